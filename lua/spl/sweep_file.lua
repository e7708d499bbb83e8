-- sweep_file.lua: what a sweep is: a Lua file that returns a table, read and checked, and the points of its grid.
-- `spl help sweeps` shows one.
local core = require "spl.core"
local json = require "spl.json"
local spl = require "spl"
local sweep_file = {}

local KEYS = { "name", "about", "script", "options", "grid", "skip", "repeats", "timeout", "run", "report", "trace" }
local RUN_KEYS = { "backend", "threads", "timeout", "check_collectives", "virtual" }
local REPORT_KEYS = { "x", "y", "series", "title" }
local TYPES = { name = "string", about = "string", script = "string", options = "table", grid = "table",
    skip = "function", run = "table", report = "table", trace = "boolean" }
local MOST_VALUES = 1000000

local function wrong(path, format, ...)
    spl.error { code = "usage", message = ("%s: %s"):format(path, format:format(...)) }
end

local function check_keys(path, t, known, what)
    local names = {}
    for key in pairs(t) do
        names[#names + 1] = tostring(key)
    end
    table.sort(names)
    for _, name in ipairs(names) do
        local found = false
        for _, one in ipairs(known) do
            found = found or one == name
        end
        if not found then
            local near = spl.nearest(name, known)
            wrong(path, "unknown key '%s'%s; %s", name, what, near and ("did you mean '%s'?"):format(near)
                or "there are " .. table.concat(known, ", "))
        end
    end
end

local function is_value(v)
    local kind = type(v)
    return kind == "string" or kind == "boolean" or kind == "number" and v == v and math.abs(v) < math.huge
end

-- Values of one key of the grid: a list of plain values, at least one.
local function check_values(path, key, values)
    if type(values) ~= "table" then
        wrong(path, "grid.%s is a %s; a list of values such as { 1, 2 } is needed, or a function of the point", key,
            type(values))
    end
    local n = 0
    for index in pairs(values) do
        n = n + 1
        if math.type(index) ~= "integer" then
            wrong(path, "grid.%s has the key '%s'; a list of values such as { 1, 2 } is needed", key, tostring(index))
        end
    end
    if n == 0 or #values == 0 then
        wrong(path, "grid.%s is empty, so there is no point to run; give it a value", key)
    elseif n ~= #values then
        wrong(path, "grid.%s has gaps; a list of values such as { 1, 2 } is needed", key)
    end
    for i, v in ipairs(values) do
        if not is_value(v) then
            wrong(path, "grid.%s[%d] is %s; numbers, strings and booleans can be given to a script", key, i,
                type(v) == "number" and tostring(v) or "a " .. type(v))
        elseif key == "ranks" and (math.type(v) ~= "integer" or v < 1) then
            wrong(path, "grid.ranks[%d] is %s; numbers of ranks are whole and at least 1", i, tostring(v))
        end
    end
    return values
end

local function positive(path, key, value, whole)
    if type(value) ~= "number" or value ~= value or value <= 0 or value == math.huge
        or whole and math.type(value) ~= "integer" then
        wrong(path, "%s = %s; a %snumber above 0 is needed", key, tostring(value), whole and "whole " or "")
    end
end

local function check_flat(path, what, t)
    for key, value in pairs(t) do
        if type(key) ~= "string" or not key:match "^%a[%w_]*$" then
            wrong(path, "%s has the key '%s'; names of options are needed", what, tostring(key))
        elseif not is_value(value) then
            wrong(path, "%s.%s is a %s; a number, string or boolean is needed%s", what, key, type(value),
                type(value) == "table" and what == "options" and "; several values belong into the grid" or "")
        end
    end
end

-- Where the script is, for a sweep file at `path`.
local function find_script(path, script)
    local beside = path:match "^(.*/)" or ""
    for _, try in ipairs { beside .. script, beside .. script .. ".lua" } do
        local file = script:sub(1, 1) ~= "/" and io.open(try)
        if file and file:read(0) then
            file:close()
            return try
        end
    end
    return script
end

local function check(path, s)
    if type(s) ~= "table" then
        wrong(path, "it returns %s; a sweep is a table: return { script = ..., grid = { ... } }",
            s == nil and "nothing" or "a " .. type(s))
    end
    check_keys(path, s, KEYS, "")
    for key, kind in pairs(TYPES) do
        if s[key] ~= nil and type(s[key]) ~= kind then
            wrong(path, "%s is a %s; a %s is needed", key, type(s[key]), kind)
        end
    end
    if s.script == nil then
        wrong(path, "it names no script; add script = \"sp_forward.lua\", or a path")
    elseif s.grid == nil or next(s.grid) == nil then
        wrong(path, "its grid is empty, so there is no point to run; give grid = { seq = { 1024, 2048 } }")
    end
    for key, values in pairs(s.grid) do
        if type(key) ~= "string" or not key:match "^%a[%w_]*$" then
            wrong(path, "the grid has the key '%s'; names of the script's options are needed, or ranks", tostring(key))
        elseif type(values) ~= "function" then
            check_values(path, key, values)
        end
    end
    check_flat(path, "options", s.options or {})
    check_flat(path, "run", s.run or {})
    check_keys(path, s.run or {}, RUN_KEYS, " in run")
    check_keys(path, s.report or {}, REPORT_KEYS, " in report")
    check_flat(path, "report", s.report or {})
    for key in pairs(s.options or {}) do
        if s.grid[key] ~= nil then
            wrong(path, "'%s' is in options and in the grid; it belongs into one of them", key)
        end
    end
    positive(path, "repeats", s.repeats or 1, true)
    positive(path, "timeout", s.timeout or 1)
end

-- What stands in a file, run as a chunk of its own.
local function load_file(path)
    local file, message = io.open(path, "r")
    local text = file and file:read "a"
    if file then
        file:close()
    end
    if not text then
        spl.error { code = "usage", message = ("cannot read the sweep '%s': %s"):format(path,
            (message or "is it a folder?"):gsub("^.*: ", "")) }
    end
    local chunk, problem = load(text, "@" .. path, "t")
    if not chunk then
        wrong(path, "%s", problem:gsub("^.-:(%d+): ", "line %1: "))
    end
    local good, value = pcall(chunk)
    if not good then
        if spl.is_error(value) and value.code == "interrupt" then
            error(value, 0)
        end
        wrong(path, "%s", tostring(value):gsub("^.-:(%d+): ", "line %1: "))
    end
    return value
end

--- [local] The path of a sweep: a file, or the name of a shipped one ("modes").
---@param name string
---@return string
function sweep_file.find(name)
    local folder
    for _, path in pairs(core.shipped()) do
        folder = path:match "^(.*)/[^/]*$"
    end
    for _, path in ipairs { name, name .. ".lua", (folder or ".") .. "/sweeps/" .. name,
        (folder or ".") .. "/sweeps/" .. name .. ".lua" } do
        local file = io.open(path)
        if file then
            local readable = file:read(0) ~= nil or file:seek "end" == 0
            file:close()
            if readable then
                return path
            end
        end
    end
    return name
end

--- [local] Reads and checks a sweep. Errors: code "usage", one sentence, for whatever is wrong with the file.
---@param path string
---@return table sweep with name, repeats, timeout, options, run, report and the script's path filled in
function sweep_file.read(path)
    local s = load_file(path)
    check(path, s)
    s.path = path
    s.name = s.name or path:match "([^/]*)$":gsub("%.lua$", "")
    if not s.name:match "^[%w_.-]+$" or s.name:match "^%.+$" then
        wrong(path, "name = '%s'; letters, digits, '_', '-' and '.' make a name", s.name)
    end
    s.options, s.run, s.repeats, s.timeout = s.options or {}, s.run or {}, s.repeats or 1, s.timeout or 600
    s.report = s.report or {}
    s.script_path = find_script(path, s.script)
    return s
end

local function parse_value(text)
    local trimmed = text:match "^%s*(.-)%s*$"
    local digits, suffix = trimmed:match "^(%d+)([kKmMgG])$"
    if digits then
        return math.tointeger(digits) * ({ k = 1 << 10, m = 1 << 20, g = 1 << 30 })[suffix:lower()]
    elseif trimmed == "true" or trimmed == "false" then
        return trimmed == "true"
    end
    return math.tointeger(tonumber(trimmed)) or tonumber(trimmed) or trimmed
end

--- [local] Replaces values from the command line: "seq=1k,4k" or, where values hold commas, "mesh=a=2:ring;b=*:data".
---@param s table what read gave
---@param settings string[]
function sweep_file.set(s, settings)
    for _, setting in ipairs(settings) do
        local key, text = setting:match "^([%a][%w_-]*)=(.*)$"
        if not key then
            spl.error { code = "usage", message = ("--set takes NAME=VALUE[,VALUE...], got '%s'"):format(setting) }
        end
        key = key:gsub("-", "_")
        local values = {}
        local separator = text:find(";", 1, true) and ";" or ","
        for part in (text .. separator):gmatch("(.-)" .. separator) do
            if part:match "%S" then
                values[#values + 1] = parse_value(part)
            end
        end
        if key == "repeats" or key == "timeout" then
            s[key] = values[1]
            positive("--set " .. setting, key, s[key], key == "repeats")
        else
            check_values("--set " .. setting, key, values)
            local option = s.grid[key] == nil and #values == 1
            s.options[key] = option and values[1] or nil
            s.grid[key] = not option and values or nil
        end
    end
end

-- ---- points

--- [local] The keys of a table by name, ranks first.
---@param t table
---@return string[]
function sweep_file.sorted_keys(t)
    local names = {}
    for key in pairs(t) do
        names[#names + 1] = key
    end
    table.sort(names, function(a, b)
        local pa, pb = a == "ranks" and 0 or 1, b == "ranks" and 0 or 1
        if pa ~= pb then
            return pa < pb
        end
        return a < b
    end)
    return names
end

-- Keys whose values are lists, then those whose values hang on the point, each by name, ranks first.
local function ordered(grid)
    local lists, functions = {}, {}
    for _, key in ipairs(sweep_file.sorted_keys(grid)) do
        local into = type(grid[key]) == "function" and functions or lists
        into[#into + 1] = key
    end
    return lists, functions
end

--- [local] The least number of points of the grid: the product of its lists.
---@param s table
---@return integer
function sweep_file.least(s)
    local n = 1
    for _, key in ipairs((ordered(s.grid))) do
        n = n * #s.grid[key]
        if n > MOST_VALUES * 10 then
            break
        end
    end
    return n
end

local function values_of(s, key, point)
    local values = s.grid[key]
    if type(values) ~= "function" then
        return values
    end
    local copy = {}
    for name, value in pairs(point) do
        copy[name] = value
    end
    for name, value in pairs(s.options) do
        copy[name] = value
    end
    copy.ranks = copy.ranks or 1
    local good, made = pcall(values, copy)
    if not good then
        if spl.is_error(made) and made.code == "interrupt" then
            error(made, 0)
        end
        wrong(s.path, "grid.%s failed: %s", key, tostring(made))
    elseif type(made) == "table" and #made == 0 and next(made) == nil then
        return {} -- nothing at this point
    end
    return check_values(s.path, key, made)
end

local function reason_to_skip(s, point)
    if not s.skip then
        return nil
    end
    local good, reason = pcall(s.skip, point)
    if not good then
        if spl.is_error(reason) and reason.code == "interrupt" then
            error(reason, 0)
        end
        wrong(s.path, "skip failed: %s", tostring(reason))
    elseif reason ~= nil and reason ~= false and type(reason) ~= "string" then
        wrong(s.path, "skip gave a %s; it gives the reason as a string, or nil to run the point", type(reason))
    end
    return reason or nil
end

--- [local] A value as one line that is equal for equal points: JSON with sorted keys.
---@param value any
---@return string
function sweep_file.canonical(value)
    return json.encode(value)
end

--- [local] All points, in order: {point = {name = value}, key, skip = reason or nil}.
---@param s table
---@return table[]
function sweep_file.points(s)
    local lists, functions = ordered(s.grid)
    local names = table.move(functions, 1, #functions, #lists + 1, table.move(lists, 1, #lists, 1, {}))
    local points, seen = {}, {}
    local function fill(i, point)
        if i > #names then
            local made = {}
            for key, value in pairs(point) do
                made[key] = value
            end
            local key = sweep_file.canonical(made)
            if not seen[key] then
                seen[key] = true
                points[#points + 1] = { point = made, key = key, skip = reason_to_skip(s, made) }
            end
            return
        end
        for _, value in ipairs(values_of(s, names[i], point)) do
            point[names[i]] = value
            fill(i + 1, point)
            point[names[i]] = nil
        end
    end
    fill(1, {})
    if #points == 0 then
        wrong(s.path, "its grid has no point to run: the functions in it give no values")
    end
    return points
end

--- [local] What makes results comparable: they may be added to a folder only when this is the same.
---@param s table
---@return string
function sweep_file.identity(s)
    return sweep_file.canonical { name = s.name, script = s.script, options = json.object(s.options),
        run = json.object(s.run) }
end

--- [local] A point in words: "ranks 4, mesh tp=4:ring, seq 1024".
---@param point table
---@return string
function sweep_file.words(point)
    local parts = {}
    for i, key in ipairs(sweep_file.sorted_keys(point)) do
        local text = tostring(point[key])
        parts[i] = (text:find("[, ]") and "%s '%s'" or "%s %s"):format(key, text)
    end
    return table.concat(parts, ", ")
end

return sweep_file
