-- repl_complete.lua: how a line at the prompt may go on: globals, fields and methods of what is there, commands, and
-- the options and strings that the annotations of a function name. Nothing is called to find out.
local core = require "spl.core"
local help = require "spl.help"
local complete = {}

local KEYWORDS = { "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in",
    "local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while" }
-- Words of the notations that strings have, by the name of the argument or the option.
local NOTATION = {
    dtype = { "f64", "f32", "bf16", "f16", "i64", "i32", "u8", "bool" },
    layout = { "replicate", "partial", "shard(", "contiguous", "zigzag", "striped", "unit:", "cover:", "nest:" },
    mesh = {},
}
local NOTATION_OF = { ["tensor:redistribute"] = "layout", ["tensor:cast"] = "dtype", mesh = "mesh",
    ["mesh.parse"] = "mesh", layout = "layout" }

for _, role in ipairs(require "spl.topics".role_list) do
    NOTATION.mesh[#NOTATION.mesh + 1] = role[1]
end

local function kind_of(value)
    local meta = debug.getmetatable(value)
    local name = type(meta) == "table" and rawget(meta, "__name")
    return type(name) == "string" and name:match("^spl%.(.+)$") or nil
end

-- ---- what stands where

local function walk(path)
    local value = _G
    for name in path:gmatch("[%w_]+") do
        if type(value) == "table" then
            local found = rawget(value, name)
            if found == nil and value == package.loaded.spl then
                found = package.loaded["spl." .. name]
            end
            value = found
        else
            return nil
        end
    end
    return value
end

-- Adds what may follow `value` and a "." or ":".
local function add_members(words, value, separator)
    local kind = kind_of(value)
    if type(value) == "string" then
        value = string
    end
    for _, list in ipairs { help.entries(), help.fields() } do
        for _, e in ipairs(kind and list or {}) do
            local class, mark, name = e.name:match("^([%w_]+)([.:])([%w_]+)$")
            if class == kind and (e.field and "." or mark) == separator then
                words[name] = true
            end
        end
    end
    if type(value) == "table" then
        for key, member in next, value do
            if type(key) == "string" and (separator == "." or type(member) == "function") then
                words[key] = true
            end
        end
        if value == package.loaded.spl then
            for _, path in ipairs(core.embedded_list()) do
                words[path:match("^spl/([%w_]+)%.lua$") or "tensor"] = true
            end
        end
    end
end

local function add_all(words, list)
    for _, word in ipairs(list) do
        words[word] = true
    end
end

-- ---- calls: their options and their strings

-- The documented function that "spl.block" or "x:redistribute" calls.
local function entry_of(callee)
    local object, method = callee:match("^([%w_.]+):([%w_]+)$")
    local wanted = callee:gsub("^spl%.", "")
    if object then
        local kind = kind_of(walk(object))
        wanted = kind and kind .. ":" .. method or nil
    end
    for _, e in ipairs(help.entries()) do
        if e.name == wanted or (not wanted and e.name:match(":([%w_]+)$") == method) then
            return e
        end
    end
end

local function parameters(e)
    local lines = {}
    local inside = false
    for _, line in ipairs(e.text) do
        inside = line:match("^@param") and true or not line:match("^@") and inside
        lines[#lines + 1] = inside and line or nil
    end
    return table.concat(lines, " ")
end

local function add_options(words, e)
    local text = parameters(e)
    for key in text:gmatch("([%a_][%w_]*)=") do
        words[key] = true
    end
    if text:find("as of spl.tensor", 1, true) then
        add_options(words, entry_of "spl.tensor")
    end
end

-- Strings that the annotation names for an option (`norm= "layer" or "rms"`), or for the arguments.
local function add_strings(words, e, key)
    local text = parameters(e)
    local part = text
    if key then
        local _, from = text:find("%f[%w_]" .. key .. "=")
        part = from and text:sub(from + 1, (text:find("[%a_][%w_]*=", from + 1) or #text + 1) - 1) or ""
    end
    for word in part:gmatch('"([^"%s]+)"') do
        words[word] = true
    end
end

local function add_axes(words)
    for _, value in next, _G do
        if type(value) == "userdata" and kind_of(value) == "mesh" then
            local ok, axes = pcall(function() return value.axes end)
            for _, axis in ipairs(ok and axes or {}) do
                words[axis.name] = true
            end
        end
    end
end

-- Where `text` stands: the function whose arguments are open there, the option it is the value of, and the string that
-- is open, if one is.
local function context(text)
    local open, quote, start = {}, nil, nil
    local i = 1
    while i <= #text do
        local c = text:sub(i, i)
        if quote then
            if c == "\\" then
                i = i + 1
            elseif c == quote then
                quote = nil
            end
        elseif c == '"' or c == "'" then
            quote, start = c, i
        elseif c == "(" or c == "{" then
            open[#open + 1] = i
        elseif c == ")" or c == "}" then
            open[#open] = nil
        end
        i = i + 1
    end
    local before = quote and text:sub(1, start - 1) or text
    local callee, key = before:match("([%w_.:]+)%s*$"), before:match("([%a_][%w_]*)%s*=%s*$")
    if not quote or key or not callee then
        callee = nil
        for k = #open, 1, -1 do
            local head = text:sub(1, open[k] - 1)
            callee = callee or head:match("([%w_.:]*[%w_])%s*%(?%s*$")
        end
    end
    return callee, key, quote and text:sub(start + 1) or nil, #open > 0
end

-- ---- all of it

local function matching(words, part)
    local list = {}
    for word in pairs(words) do
        if word:sub(1, #part) == part and word ~= "" then
            list[#list + 1] = word
        end
    end
    table.sort(list)
    return list
end

local function find(text)
    local words = {}
    text = text:gsub("^%s*@[%d,%-]+%s*", "")
    local command, argument = text:match("^%s*:(%S*)(.*)$")
    if command and argument == "" then
        add_all(words, require "spl.repl_commands".names())
        return words, command
    elseif command == "help" then
        for _, e in ipairs(help.entries()) do
            words[e.name] = e.public and true or nil
        end
        add_all(words, { "api", "scripts", "roles", "tensor", "mesh", "layout", "block" })
        return words, argument:match("%S*$")
    elseif command then
        add_all(words, (command == "time" or command == "trace") and { "on", "off" } or {})
        return words, argument:match("%S*$")
    end
    local callee, key, string_part, inside = context(text)
    local e = callee and entry_of(callee)
    if string_part then
        local notation = NOTATION[key] or (e and NOTATION[NOTATION_OF[e.name]])
        add_all(words, notation or {})
        if notation == NOTATION.layout or notation == NOTATION.mesh or (e and not key) then
            add_axes(words)
        end
        if e then
            add_strings(words, e, key)
        end
        return words, string_part:match("[%w_]*$")
    end
    local path, separator, part = text:match("([%a_][%w_.]*)([.:])([%w_]*)$")
    if path then
        add_members(words, walk(path), separator)
        return words, part
    end
    part = text:match("[%a_][%w_]*$") or ""
    for name in next, _G do
        if type(name) == "string" and name:match("^[%a_]") then
            words[name] = true
        end
    end
    add_all(words, KEYWORDS)
    if e and inside then
        add_options(words, e)
    end
    return words, part
end

--- [local] The words that may stand where `text` ends: a line with how many bytes they replace, then one a line.
---@param text string
---@return string
function complete.words(text)
    local words, part = find(text)
    return #part .. "\n" .. table.concat(matching(words, part), "\n") .. "\n"
end

return complete
