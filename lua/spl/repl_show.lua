-- repl_show.lua: how the prompt shows a value: tables by their entries and functions by name, without addresses, which
-- differ between ranks.
local core = require "spl.core"
local show = {}

local DEPTH, ENTRIES, WIDTH = 3, 40, 100

local names -- of functions that scripts reach

local function note_names(t, prefix, depth)
    for key, value in pairs(t) do
        if type(key) == "string" and type(value) == "function" and not names[value] then
            names[value] = prefix .. key
        elseif depth > 0 and type(key) == "string" and type(value) == "table" and value ~= t then
            note_names(value, prefix .. key .. ".", depth - 1)
        end
    end
end

local function function_text(f)
    if not names then
        names = {}
        note_names(core, "spl.", 0)
        for _, library in ipairs { "string", "table", "math", "io", "os", "coroutine", "utf8", "debug" } do
            note_names(_G[library], library .. ".", 0)
        end
        note_names({ print = print, pairs = pairs, ipairs = ipairs, require = require, type = type, load = load,
            tostring = tostring, tonumber = tonumber, pcall = pcall, error = error, select = select, next = next }, "",
            0)
    end
    if names[f] then
        return "function " .. names[f]
    end
    local info = debug.getinfo(f, "S")
    return info.what == "C" and "function (C)" or ("function (%s:%d)"):format(info.short_src, info.linedefined)
end

local function key_text(key)
    if type(key) == "string" and key:match("^[%a_][%w_]*$") then
        return key .. " = "
    end
    return ("[%s] = "):format(type(key) == "string" and ("%q"):format(key) or show.text(key, 0))
end

local function by_kind(a, b)
    local ta, tb = type(a), type(b)
    if ta ~= tb then
        return ta < tb
    elseif ta == "number" or ta == "string" then
        return a < b
    end
    return false
end

local function table_text(t, depth, seen)
    if seen[t] then
        return "{...}" -- itself, further out
    elseif next(t) == nil then
        return "{}"
    elseif depth == 0 then
        return "{ ... }"
    end
    seen[t] = true
    local keys, parts = {}, {}
    for key in next, t do
        if math.type(key) ~= "integer" or key < 1 or key > #t then
            keys[#keys + 1] = key
        end
    end
    pcall(table.sort, keys, by_kind)
    for i = 1, math.min(#t, ENTRIES) do
        parts[i] = show.value(rawget(t, i), depth - 1, seen)
    end
    for i = 1, math.min(#keys, ENTRIES - #parts) do
        parts[#parts + 1] = key_text(keys[i]) .. show.value(rawget(t, keys[i]), depth - 1, seen)
    end
    if #t + #keys > #parts then
        parts[#parts + 1] = ("... (%d more)"):format(#t + #keys - #parts)
    end
    seen[t] = nil
    local line = "{ " .. table.concat(parts, ", ") .. " }"
    if #line <= WIDTH and not line:find("\n", 1, true) then
        return line
    end
    return "{\n  " .. table.concat(parts, ",\n"):gsub("\n", "\n  ") .. "\n}"
end

--- [local] One value inside others: strings in quotes.
---@param value any
---@param depth integer of tables that are opened
---@param seen table
---@return string
function show.value(value, depth, seen)
    if type(value) == "string" then
        return (("%q"):format(#value > 200 and value:sub(1, 200) .. "..." or value):gsub("\\\n", "\\n"))
    elseif type(value) == "function" then
        return function_text(value)
    elseif type(value) == "thread" then
        return "coroutine (" .. coroutine.status(value) .. ")"
    elseif type(value) == "table" and not (getmetatable(value) or {}).__tostring then
        return table_text(value, depth, seen)
    elseif type(value) == "userdata" and tostring(value):match(": 0x%x+$") then
        return (tostring(value):gsub(": 0x%x+$", ""))
    end
    return tostring(value)
end

--- [local] A value as the prompt answers with it: a string as it is.
---@param value any
---@param depth? integer (3)
---@return string
function show.text(value, depth)
    if type(value) == "string" then
        return value
    end
    return show.value(value, depth or DEPTH, {})
end

return show
