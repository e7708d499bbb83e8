--- JSON: reading through lua-cjson, writing here, because numbers need 17 digits and whole numbers must stay integers.
local cjson = require "cjson".new()
cjson.decode_invalid_numbers(false)

local json = {}

local MOST = 512 << 20 -- bytes of a JSON file: many times the largest tokenizer

--- What `null` decodes to (and encodes from); a Lua nil cannot stand in a table.
json.null = cjson.null

local function fail(code, message)
    require "spl".error{ code = code, message = message }
end

local function needed(what, value, kind)
    if type(value) ~= kind then fail("argument", ("%s: a %s is needed, got %s"):format(what, kind, type(value))) end
end

local array_mark, object_mark = {}, {}

--- [local] Marks a table to be written as a list, also when it is empty.
---@param t? table
---@return table t
function json.array(t)
    if t ~= nil then needed("json.array", t, "table") end
    return setmetatable(t or {}, array_mark)
end

--- [local] Marks a table to be written as an object, whatever its keys.
---@param t? table
---@return table t
function json.object(t)
    if t ~= nil then needed("json.object", t, "table") end
    return setmetatable(t or {}, object_mark)
end

-- lua-cjson reads every number as a float; whole ones that a float holds exactly become integers.
local function integers(value)
    if math.type(value) == "float" then
        if value == math.floor(value) and value >= -2^53 and value <= 2^53 then return math.tointeger(value) end
    elseif type(value) == "table" then
        for k, v in next, value do
            local type_of = type(v)
            if type_of == "number" or type_of == "table" then value[k] = integers(v) end
        end
    end
    return value
end

--- [local] Decodes a JSON text. Whole numbers come back as integers, `null` as json.null. Errors: code "format" where
--- the text is not valid JSON.
---@param text string
---@param what? string  named in the error, e.g. a path
---@return any value
function json.decode(text, what)
    needed("json.decode", text, "string")
    local good, value = pcall(cjson.decode, text)
    if not good then
        fail("format", ("%s: not valid JSON: %s"):format(what or "json.decode", tostring(value)))
    end
    return integers(value)
end

--- [local] Reads a JSON file. Errors: code "format" where its contents are not valid JSON.
---@param path string
---@return any value  nil, message, code where the file cannot be read
function json.read(path)
    needed("json.read", path, "string")
    local text, problem, code = require "spl.core".read_file(path, MOST)
    if not text then return nil, problem, code end
    return json.decode(text, path)
end

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r",
                  ["\t"] = "\\t" }

local function encode_string(s)
    return '"' .. s:gsub('[%c"\\]', function(c) return escapes[c] or ("\\u%04x"):format(c:byte()) end) .. '"'
end

-- The shortest of 15, 16 and 17 digits that reads back as the same number.
local function encode_number(n)
    if math.type(n) == "integer" then return ("%d"):format(n) end
    if n ~= n or n == math.huge or n == -math.huge then return "null" end
    for digits = 15, 16 do
        local text = ("%." .. digits .. "g"):format(n)
        if tonumber(text) == n then return text end
    end
    return ("%.17g"):format(n)
end

local encode_value

local function is_array(t)
    local mark = getmetatable(t)
    if mark == array_mark then return true end
    if mark == object_mark or #t == 0 then return false end
    local count = 0
    for _ in next, t do count = count + 1 end
    return count == #t
end

local function encode_array(t, out, path)
    out[#out + 1] = "["
    for i = 1, #t do
        if i > 1 then out[#out + 1] = "," end
        encode_value(t[i], out, path)
    end
    out[#out + 1] = "]"
end

local function encode_object(t, out, path, order)
    local keys, seen = {}, {}
    for _, k in ipairs(order or {}) do
        if t[k] ~= nil then keys[#keys + 1], seen[k] = k, true end
    end
    local rest = {}
    for k in next, t do
        if type(k) ~= "string" then
            fail("argument", ("json.encode: keys must be strings, got %s (%s)"):format(tostring(k), type(k)))
        end
        if not seen[k] then rest[#rest + 1] = k end
    end
    table.sort(rest)
    table.move(rest, 1, #rest, #keys + 1, keys)
    out[#out + 1] = "{"
    for i, k in ipairs(keys) do
        if i > 1 then out[#out + 1] = "," end
        out[#out + 1] = encode_string(k) .. ":"
        encode_value(t[k], out, path)
    end
    out[#out + 1] = "}"
end

function encode_value(value, out, path, order)
    local kind = type(value)
    if kind == "string" then
        out[#out + 1] = encode_string(value)
    elseif kind == "number" then
        out[#out + 1] = encode_number(value)
    elseif kind == "boolean" then
        out[#out + 1] = tostring(value)
    elseif value == nil or value == json.null then
        out[#out + 1] = "null"
    elseif kind == "table" then
        if path[value] then fail("argument", "json.encode: a table contains itself") end
        path[value] = true
        if is_array(value) then encode_array(value, out, path) else encode_object(value, out, path, order) end
        path[value] = nil
    else
        fail("argument", ("json.encode: a %s cannot be written as JSON"):format(kind))
    end
end

--- [local] Encodes a value on one line. Floats are written so that they read back exactly; NaN and infinities, which
--- JSON does not have, as null. An empty table is an object unless json.array marks it. Errors: code "argument" for a
--- function, a table that contains itself, or keys that are not strings.
---@param value any
---@param order? string[]  keys of the outermost object that come first, in this order; the others follow sorted
---@return string
function json.encode(value, order)
    local out = {}
    encode_value(value, out, {}, order)
    return table.concat(out)
end

return json
