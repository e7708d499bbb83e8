-- sweep_store.lua: the folder of a sweep's results: results.jsonl, one line a run, each on the disk before the next run
-- begins, and results.csv, one line a point and row, made anew from it.
--
-- The first line of results.jsonl says what was swept and by which version. A last line that was cut off by a crash is
-- passed over and its run done again.
local core = require "spl.core"
local json = require "spl.json"
local spl = require "spl"
local sweep_file = require "spl.sweep_file"
local store = {}

local FORMAT = 1
local FIRST = { "kind", "format", "spl", "name" } -- keys of the first line, in order

local function fail(code, format, ...)
    spl.error { code = code, message = format:format(...) }
end

local function must(value, message)
    if not value then
        fail("io", "%s", message)
    end
    return value
end

local function results_path(folder)
    return folder .. "/results.jsonl"
end

-- All whole lines as tables, and whether something was cut off behind them.
local function read_lines(path)
    local file = io.open(path, "rb")
    if not file then
        return nil
    end
    local text = file:read "a" or ""
    file:close()
    local lines, number, stop = {}, 0, 0
    for line, at in text:gmatch "([^\n]*)\n()" do
        number, stop = number + 1, at - 1
        local good, value = pcall(json.decode, line)
        if not good or type(value) ~= "table" then
            fail("format", "%s, line %d: no line of results; a sweep writes JSON objects there; %s", path, number,
                number == 1 and "give another folder" or "delete that line, and a sweep does its run again")
        end
        lines[number] = value
    end
    return lines, #text > stop, text:sub(1, stop)
end

-- A run that was done again replaces the one before.
local function put(runs, run)
    local key = sweep_file.canonical(run.point)
    for i, other in ipairs(runs) do
        if other.repeat_number == run.repeat_number and sweep_file.canonical(other.point) == key then
            runs[i] = run
            return
        end
    end
    runs[#runs + 1] = run
end

local function runs_of(lines, path)
    local runs, places = {}, {}
    for i = 2, #lines do
        local run = lines[i]
        if type(run.point) ~= "table" or type(run.status) ~= "string" or math.type(run.repeat_number) ~= "integer" then
            fail("format", "%s, line %d: no run of a sweep; it has no point, status and repeat_number", path, i)
        end
        local key = sweep_file.canonical(run.point) .. run.repeat_number
        if not places[key] then
            runs[#runs + 1], places[key] = run, #runs + 1
        else
            runs[places[key]] = run
        end
    end
    return runs
end

local function header_of(lines, path)
    local h = lines[1]
    if not h or h.kind ~= "sweep" or type(h.identity) ~= "string" or type(h.spl) ~= "string" then
        fail("format", "%s is no result of a sweep: its first line does not say of which", path)
    end
    return h
end

--- [local] Reads a results folder: the first line, then the runs. Errors: code "usage" where there are no results,
--- "format" for what is no result.
---@param folder string
---@return table header, table[] runs
function store.read(folder)
    local lines = read_lines(results_path(folder))
    if not lines or #lines == 0 then
        fail("usage", "there are no results of a sweep in '%s'; `spl sweep FILE --out %s` makes some", folder, folder)
    end
    local header = header_of(lines, results_path(folder))
    if header.format ~= FORMAT then
        fail("format", "%s has format %s, written by spl %s; this is spl %s, which reads format %d",
            results_path(folder), tostring(header.format), header.spl, spl.version, FORMAT)
    end
    return header, runs_of(lines, results_path(folder))
end

local function check_same(h, s, folder)
    if h.spl ~= spl.version or h.format ~= FORMAT then
        fail("usage", "'%s' holds results of spl %s, this is spl %s: times of two versions do not belong into one "
            .. "table; give another folder with --out", folder, h.spl, spl.version)
    elseif h.identity ~= sweep_file.identity(s) then
        fail("usage", "'%s' holds results of another sweep (%s of %s), or of other options; give another folder with "
            .. "--out", folder, tostring(h.name), tostring(h.script))
    end
end

--- [local] Opens a folder to add runs to: made where it is missing, refused where it is another sweep's or another
--- version's, or where another process is at work in it.
---@param folder string
---@param s table the sweep
---@return table handle {runs = those that are there, torn = whether a line was cut off}
function store.open(folder, s)
    must(core.system.make_folder(folder))
    local lock, message = core.system.lock(folder .. "/.lock")
    if not lock then
        fail("io", "%s", message or ("another sweep is at work in '%s'; wait for it, or give another folder with --out")
            :format(folder))
    end
    local path = results_path(folder)
    local lines, torn, whole = read_lines(path)
    local h = { folder = folder, path = path, lock = lock, runs = {}, torn = torn }
    if lines and #lines > 0 then
        check_same(header_of(lines, path), s, folder)
        h.runs = runs_of(lines, path)
    end
    if torn then
        must(core.system.replace(path, whole))
    end
    if not lines or #lines == 0 then
        must(core.system.append(path, json.encode({ kind = "sweep", format = FORMAT, spl = spl.version, name = s.name,
            about = s.about, script = s.script, options = json.object(s.options), report = json.object(s.report),
            identity = sweep_file.identity(s), host = spl.host(), started = os.date "!%Y-%m-%dT%H:%M:%SZ",
            machine = spl.facts().processor, cores = spl.facts().cores_allowed }, FIRST) .. "\n"))
    end
    return h
end

--- [local] Adds one run.
---@param h table
---@param run table {point, repeat_number, status, seconds, exit, reason, rows}
function store.add(h, run)
    put(h.runs, run)
    must(core.system.append(h.path, json.encode(run, { "status", "point", "repeat_number" }) .. "\n"))
end

-- ---- points with their runs

local function median(list)
    table.sort(list)
    local n = #list
    return n % 2 == 1 and list[n // 2 + 1] or (list[n // 2] + list[n // 2 + 1]) / 2
end

-- The least and most behind a number over repeats: of rounds where rows tell them (time_ms_min and time_ms_p99 of
-- time_ms_p50), else of the runs; nil where it was measured once.
local function extremes(rows, y)
    local base = y:match "^(.*)_p50$"
    local low, high, times = math.huge, -math.huge, 0
    for _, row in ipairs(rows) do
        local least, most = base and row[base .. "_min"], base and row[base .. "_p99"]
        local rounds = math.type(least) and math.type(most) and (math.type(row.rounds) and row.rounds or 2)
        if not rounds then
            least, most = row[y], row[y]
        end
        if math.type(least) then
            low, high, times = math.min(low, least), math.max(high, most), times + (rounds or 1)
        end
    end
    if times > 1 then
        return low, high
    end
end

-- One row of a script over the repeats: the median of each number, the least and most of that by name `y`.
local function merge_rows(rows, y)
    local merged = {}
    for key, value in pairs(rows[1]) do
        local numbers = {}
        for _, row in ipairs(rows) do
            numbers[#numbers + 1] = math.type(row[key]) and row[key] or nil
        end
        merged[key] = #numbers == #rows and median(numbers) or value
    end
    if math.type(rows[1][y]) then
        merged[y .. "_low"], merged[y .. "_high"] = extremes(rows, y)
    end
    return merged
end

local WORSE = { ok = 0, skipped = 1, refused = 2, timeout = 3, failed = 4 }

--- [local] Runs put together by point, in order of their first appearance: {point, status, reason, runs, rows}; status
--- is "ok" where any run was, and rows hold the median of each number over these.
---@param runs table[]
---@param y string the number whose least and most are kept too, as y_low and y_high, unless it was measured once
---@return table[]
function store.points(runs, y)
    local list, by_key = {}, {}
    for _, run in ipairs(runs) do
        local key = sweep_file.canonical(run.point)
        local p = by_key[key]
        if not p then
            p = { point = run.point, status = run.status, reason = run.reason, runs = 0, bad = 0, good = {},
                seconds = 0 }
            by_key[key], list[#list + 1] = p, p
        end
        p.runs, p.seconds = p.runs + 1, p.seconds + (run.seconds or 0)
        if run.status == "ok" then
            p.good[#p.good + 1] = run.rows
        else
            p.bad = p.bad + 1
        end
        if run.status == "ok" or p.status ~= "ok" and WORSE[run.status] >= WORSE[p.status] then
            p.status, p.reason = run.status, run.reason
        end
    end
    for _, p in ipairs(list) do
        p.rows = {}
        for i = 1, p.good[1] and #p.good[1] or 0 do
            local same = {}
            for _, rows in ipairs(p.good) do
                same[#same + 1] = rows[i]
            end
            p.rows[i] = merge_rows(same, y)
        end
    end
    return list
end

-- ---- CSV

local function cell(value)
    if value == nil or value == json.null then
        return ""
    end
    local text = math.type(value) == "float" and ("%.9g"):format(value) or tostring(value)
    return text:find '[",\n\r]' and '"' .. text:gsub('"', '""') .. '"' or text
end

--- [local] Writes results.csv: a line a point and row of its script; points that gave none have a line with the
--- reason.
---@param folder string
---@param points table[] what store.points gave
function store.csv(folder, points)
    local in_point, in_rows = {}, {}
    for _, p in ipairs(points) do
        for key in pairs(p.point) do
            in_point[key] = true
        end
    end
    for _, p in ipairs(points) do
        for _, row in ipairs(p.rows) do
            for key, value in pairs(row) do
                in_rows[key] = not in_point[key] and type(value) ~= "table" or nil
            end
        end
    end
    local first, rest = sweep_file.sorted_keys(in_point), sweep_file.sorted_keys(in_rows)
    local titles = table.move(first, 1, #first, 1, {})
    table.move({ "status", "reason", "runs" }, 1, 3, #titles + 1, titles)
    table.move(rest, 1, #rest, #titles + 1, titles)
    local lines = { table.concat(titles, ",") }
    for _, p in ipairs(points) do
        for _, row in ipairs(#p.rows > 0 and p.rows or { {} }) do
            local cells = {}
            for i, key in ipairs(first) do
                cells[i] = cell(p.point[key])
            end
            table.move({ p.status, cell(p.reason), cell(p.runs) }, 1, 3, #cells + 1, cells)
            for _, key in ipairs(rest) do
                cells[#cells + 1] = cell(row[key])
            end
            lines[#lines + 1] = table.concat(cells, ",")
        end
    end
    must(core.system.replace(folder .. "/results.csv", table.concat(lines, "\n") .. "\n"))
end

return store
