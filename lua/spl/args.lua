-- args.lua: the options of a script. A table of defaults is the whole declaration; the types follow from the defaults.
--
--   local o = spl.args{ "What the script does.", batch = 1, mesh = { "tp=*:tensor" }, check = false,
--                       dropout = { default = 0.0, min = 0, max = 0.9, help = "probability" } }
local core = require "spl.core"
local args = {}

local RESERVED = { help = true, n = true, virtual = true, backend = true, timeout = true, threads = true,
    check_collectives = true, trace = true, strict = true, no_strict = true }
local FIELDS = { "choices", "default", "help", "max", "metavar", "min", "of", "required", "separator", "type" }
local TYPES = { integer = true, number = true, string = true, boolean = true, list = true }
local SUFFIX = { k = 1 << 10, m = 1 << 20, g = 1 << 30 }
local METAVAR = { integer = "N", number = "X", string = "TEXT", list = "TEXT" }
local COLUMNS, LEFT = 100, 28 -- of a line of help; of what stands before its text, unless it is longer

local function usage(format, ...)
    core.error { code = "usage", message = format:format(...) }
end

local function wrong_declaration(name, what)
    core.error { code = "argument", message = ("args: option '%s': %s"):format(name, what) }
end

local function flag_of(name)
    return "--" .. name:gsub("_", "-")
end

local function type_of(value)
    local kind = math.type(value) or type(value)
    return kind == "float" and "number" or kind == "table" and "list" or kind
end

local function is_rich(value)
    if type(value) ~= "table" then
        return false
    end
    for key in pairs(value) do
        if type(key) == "string" then
            return true
        end
    end
    return false
end

-- One declaration with all its fields filled in.
local function declare(name, value)
    if type(name) ~= "string" or not name:match("^[%a][%w_]*$") then
        wrong_declaration(tostring(name), "a name of letters, digits and underscores is needed")
    elseif RESERVED[name] then
        wrong_declaration(name, "this name belongs to `spl run` itself; choose another")
    end
    local d = { name = name, flag = flag_of(name) }
    if is_rich(value) then
        for key, field in pairs(value) do
            local known = false
            for _, one in ipairs(FIELDS) do
                known = known or one == key
            end
            if not known then
                local near = core.nearest(tostring(key), FIELDS)
                wrong_declaration(name, ("unknown field '%s'; %s"):format(tostring(key), near
                    and ("did you mean '%s'?"):format(near) or "there are " .. table.concat(FIELDS, ", ")))
            end
            d[key] = field
        end
    else
        d.default = value
    end
    d.type = d.type or (d.default ~= nil and type_of(d.default)) or "string"
    if not TYPES[d.type] then
        wrong_declaration(name,
            ("type '%s' is none of integer, number, string, boolean, list"):format(tostring(d.type)))
    end
    d.element = d.type == "list" and (d.of or (d.default and d.default[1] ~= nil and type_of(d.default[1])) or "string")
        or d.type
    if d.separator ~= nil and (d.type ~= "list" or type(d.separator) ~= "string" or not d.separator:match "^%p$") then
        wrong_declaration(name, "separator is for lists: one character such as \",\"")
    end
    if d.element == "integer" and d.min == nil then
        d.min = math.type(d.default) == "integer" and math.min(1, d.default) or 1
    end
    return d
end

local function parse_integer(d, text)
    local digits, suffix = text:match("^([+-]?%d+)([kKmMgG]?)$")
    local value = digits and math.tointeger(tonumber(digits))
    local scale = SUFFIX[suffix and suffix:lower()] or 1
    -- tonumber gives a float where 64 bits do not hold the digits; tointeger may take such a float back
    local fits = value and #digits:gsub("^[+-]?0*", "") <= 18 and math.abs(value) <= math.maxinteger // scale
    if digits and not fits then
        usage("%s: %s is too large", d.flag, text)
    elseif not value then
        usage("%s needs a whole number such as 2048 or 64k, got '%s'", d.flag, text)
    end
    return value * scale
end

local function parse_number(d, text)
    local value = text:match("^%s*[+-]?[%d.]") and tonumber(text)
    if not value or value ~= value or math.abs(value) == math.huge then
        usage("%s needs a number, got '%s'", d.flag, text)
    end
    return value + 0.0
end

local function parse_boolean(d, text)
    if text == "true" or text == "yes" or text == "1" then
        return true
    elseif text == "false" or text == "no" or text == "0" then
        return false
    end
    return usage("%s is on or off: %s, --no-%s or %s=false, got '%s'", d.flag, d.flag, d.flag:sub(3), d.flag, text)
end

local PARSE = { integer = parse_integer, number = parse_number, boolean = parse_boolean }

local function one_of(d, value)
    for _, choice in ipairs(d.choices) do
        if choice == value then
            return
        end
    end
    local names = {}
    for i, choice in ipairs(d.choices) do
        names[i] = tostring(choice)
    end
    local near = core.nearest(tostring(value), names)
    usage("%s takes %s, got '%s'%s", d.flag, table.concat(names, ", "), tostring(value),
        near and ("; did you mean '%s'?"):format(near) or "")
end

local function parse(d, text)
    local value = PARSE[d.element] and PARSE[d.element](d, text) or text
    if PARSE[d.element] == parse_boolean then
        value = parse_boolean(d, text)
    end
    if d.min and value < d.min then
        usage("%s must be at least %s, got %s", d.flag, tostring(d.min), text)
    elseif d.max and value > d.max then
        usage("%s must be at most %s, got %s", d.flag, tostring(d.max), text)
    elseif d.choices then
        one_of(d, value)
    end
    return value
end

-- ---- help

-- The default as it may be written on the command line.
local function shown_default(d)
    local value = d.default
    if type(value) == "table" then
        local parts = {}
        for i, part in ipairs(value) do
            parts[i] = tostring(part)
        end
        if d.separator or #parts < 2 then
            value = table.concat(parts, d.separator)
        else
            value = d.flag .. " " .. table.concat(parts, " " .. d.flag .. " ")
        end
    end
    if d.required then
        return "required"
    elseif value == nil or value == "" or value == false then
        return nil
    end
    return "default " .. (value == true and "on" or tostring(value):gsub("^(%-?%d+)%.0$", "%1"))
end

-- What stands before the text of an option, and the text.
local function help_line(d)
    local left = d.flag
    if d.type == "boolean" then
        left = d.default == true and "--[no-]" .. d.flag:sub(3) or d.flag
    else
        left = left .. " " .. (d.metavar or (d.choices and table.concat(d.choices, "|")) or METAVAR[d.element])
    end
    local notes = {}
    if d.type == "list" then
        notes[1] = "may be repeated"
    end
    notes[#notes + 1] = shown_default(d)
    local text = { d.help }
    if #notes > 0 then
        text[#text + 1] = "(" .. table.concat(notes, "; ") .. ")"
    end
    return left, table.concat(text, " ")
end

-- Words in lines of at most `columns`; one that is longer has a line of its own, cut at commas where it has any.
local function wrapped(text, columns)
    local lines = { "" }
    for word in text:gmatch("%S+") do
        while #word > columns do
            local piece = word:sub(1, columns):match("^.*,") or word:sub(1, columns)
            lines[#lines + (lines[#lines] == "" and 0 or 1)], word = piece, word:sub(#piece + 1)
            lines[#lines + 1] = ""
        end
        local last = lines[#lines]
        if last ~= "" and #last + 1 + #word > columns then
            lines[#lines + 1] = word
        else
            lines[#lines] = last == "" and word or last .. " " .. word
        end
    end
    return lines
end

-- Options below each other, their texts flush. What is too long to stand before its text stands above it.
local function add_options(lines, rows)
    local width = 0
    for _, row in ipairs(rows) do
        width = math.max(width, #row[1] <= LEFT and #row[1] or 0)
    end
    for _, row in ipairs(rows) do
        local text = wrapped(row[2], COLUMNS - width - 4)
        if #row[1] > width then
            lines[#lines + 1] = "  " .. row[1]
        else
            lines[#lines + 1] = (("  %-" .. width .. "s  %s"):format(row[1], text[1]):gsub("%s+$", ""))
            table.remove(text, 1)
        end
        for _, line in ipairs(text) do
            lines[#lines + 1] = line ~= "" and (" "):rep(width + 4) .. line or nil
        end
    end
end

--- [local] The text that --help prints.
---@param declared table[] what `args.read` makes of a declaration
---@param description string?
---@return string
function args.help(declared, description)
    local script = (arg and arg[0] or "SCRIPT"):match("[^/]*$")
    local lines = { ("usage: spl run [-n RANKS] %s [options]"):format(script), "" }
    if description then
        local words = wrapped(description, COLUMNS)
        table.move(words, 1, #words, #lines + 1, lines)
        lines[#lines + 1] = ""
    end
    local rows = {}
    for i, d in ipairs(declared) do
        rows[i] = { help_line(d) }
    end
    add_options(lines, rows)
    lines[#lines + 1] = ""
    lines[#lines + 1] = "Also the options of `spl run`: -n, --virtual, --backend, --threads, --timeout, --trace,"
    lines[#lines + 1] = "--check-collectives, --no-strict; `spl run --help` explains them."
    return table.concat(lines, "\n")
end

-- ---- reading

local function unknown(given, by_flag)
    local flags = { "--help" }
    for flag, d in pairs(by_flag) do
        flags[#flags + 1] = flag
        if d.type == "boolean" then
            flags[#flags + 1] = "--no-" .. flag:sub(3)
        end
    end
    table.sort(flags)
    local near = core.nearest(given, flags)
    usage("unknown option '%s'%s", given, near and ("; did you mean '%s'?"):format(near) or "; --help lists them all")
end

local function take_value(d, list, i, by_flag)
    local value = list[i + 1]
    if value == nil or by_flag[value:match("^[^=]*")] then
        usage("%s needs a value%s", d.flag,
            value and ("; if '%s' is meant as one, write %s=%s"):format(value, d.flag, value) or "")
    end
    return value, i + 1
end

-- Texts of a list: one, or as many as its separator makes of it.
local function pieces(d, text)
    if not d.separator then
        return { text }
    end
    local list = {}
    for piece in (text .. d.separator):gmatch("%s*(.-)%s*%" .. d.separator) do
        list[#list + 1] = piece
    end
    return list
end

local function store(result, d, text, replaced)
    if d.type ~= "list" then
        result[d.name] = parse(d, text)
        return
    end
    if not replaced[d.name] then -- the first use replaces the default
        result[d.name], replaced[d.name] = {}, true
    end
    for _, piece in ipairs(pieces(d, text)) do
        table.insert(result[d.name], parse(d, piece))
    end
end

local function read_all(result, list, by_flag)
    local replaced, i = {}, 1
    while i <= #list do
        local given = list[i]
        local flag, value = given:match("^(%-%-[^=]+)=(.*)$")
        flag = (flag or given):gsub("(%w)_", "%1-")
        local d = by_flag[flag]
        local negated = not d and flag:match("^%-%-no%-(.+)$") and by_flag["--" .. flag:sub(6)]
        if negated and negated.type == "boolean" and not value then
            result[negated.name] = false
        elseif given == "--help" or given == "-h" then
            return "help"
        elseif d and d.type == "boolean" and not value then
            result[d.name] = true
        elseif d then
            if not value then
                value, i = take_value(d, list, i, by_flag)
            end
            store(result, d, value, replaced)
        elseif given:sub(1, 1) == "-" and #given > 1 then
            unknown(given:match("^[^=]*"), by_flag)
        else
            usage("unexpected argument '%s': this script takes options only; --help lists them", given)
        end
        i = i + 1
    end
end

local function copy(value)
    return type(value) == "table" and table.move(value, 1, #value, 1, {}) or value
end

--- [local] Reads the script's options. Names may be written with - or _; integers take the suffixes k, m, g (powers of
--- 1024) and are at least 1 unless `min` says otherwise; lists are repeatable, the first use replacing the default, and
--- with a `separator` such as "," one use may hold several.
--- `--help` prints the options on rank 0 and ends all ranks. What is wrong is a usage error (exit code 2).
---@param declaration table name = default, or name = {default=, help=, min=, max=, choices=, metavar=, type=, of=,
--- required=, separator=}; [1] is the description of the script
---@param list string[]? what to read instead of the command line
---@return table values by name
function args.args(declaration, list)
    if type(declaration) ~= "table" then
        core.error { code = "argument", message = "args: a table of options is needed, got " .. type(declaration) }
    end
    for i, word in ipairs(type(list) == "table" and list or {}) do
        if type(word) ~= "string" then
            core.error { code = "argument", message = ("args: word %d of the list is a %s"):format(i, type(word)) }
        end
    end
    if list ~= nil and type(list) ~= "table" then
        core.error { code = "argument", message = "args: a list of words is needed, got " .. type(list) }
    end
    local declared, by_flag, known, result = {}, {}, {}, {}
    for name, value in pairs(declaration) do
        if name ~= 1 then
            local d = declare(name, value)
            declared[#declared + 1], by_flag[d.flag], known[name] = d, d, true
            result[name] = copy(d.default)
            if d.type == "boolean" and d.default == nil then
                result[name] = false
            end
        end
    end
    table.sort(declared, function(a, b) return a.name < b.name end)
    if read_all(result, list or arg or {}, by_flag) == "help" then
        if core.rank() == 0 then
            print(args.help(declared, declaration[1]))
        end
        os.exit(0)
    end
    for _, d in ipairs(declared) do
        if d.required and result[d.name] == nil then
            usage("%s %s is required", d.flag, d.metavar or METAVAR[d.element])
        end
    end
    return setmetatable(result, {
        __index = function(_, name)
            if not known[name] then
                core.error { code = "argument", message = ("no option '%s' was declared"):format(tostring(name)) }
            end
        end,
    })
end

return args
