-- json_tree.lua: changes a JSON text as a tree, so that it stays JSON: most bytes changed at random only make a text
-- that the JSON reader refuses, and never reach the parser that is fuzzed.
local json = require "spl.json"
local tree = {}

local VALUES = { 0, 1, -1, 2, 1.5, 1e300, 1 << 31, 1 << 53, true, false, json.null, "", "a", "\0", "\xff",
    "BPE", "Sequence" }
local KEYS = { "type", "id", "ids", "model", "vocab", "w", "" }

-- Every place {table, key} of the tree, and all of its values.
local function places(value, list, values)
    values[#values + 1] = value
    if type(value) == "table" then
        local keys = {}
        for key in pairs(value) do
            keys[#keys + 1] = key
        end
        table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
        for _, key in ipairs(keys) do
            list[#list + 1] = { value, key }
            places(value[key], list, values)
        end
    end
    return list, values
end

local function copy(value)
    if type(value) ~= "table" then
        return value
    end
    local out = {}
    for key, part in pairs(value) do
        out[key] = copy(part)
    end
    return out
end

local function new_value(values)
    local kind = math.random(5)
    if kind == 1 then
        return {}
    elseif kind == 2 then
        return { copy(values[math.random(#values)]) }
    elseif kind == 3 then
        return copy(values[math.random(#values)])
    end
    return VALUES[math.random(#VALUES)]
end

--- The text with one to three places of its tree changed; nil where it is no JSON.
---@param text string
---@param seed integer
function tree.change(text, seed)
    local good, value = pcall(json.decode, text)
    if not good then
        return nil
    end
    math.randomseed(seed)
    for _ = 1, math.random(3) do
        local list, values = places(value, {}, {})
        local place = #list > 0 and list[math.random(#list)]
        local kind = math.random(4)
        if not place then
            value = new_value(values)
        elseif kind == 1 then
            place[1][place[2]] = nil
        elseif kind == 2 and type(place[2]) == "string" then
            place[1][KEYS[math.random(#KEYS)]] = place[1][place[2]]
        else
            place[1][place[2]] = new_value(values)
        end
    end
    local written, out = pcall(json.encode, value)
    return written and out or nil
end

return tree
