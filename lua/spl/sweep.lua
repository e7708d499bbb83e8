-- sweep.lua: `spl sweep FILE`: runs a grid of points, each in a process of its own, to a folder of results that a
-- second call continues.
--
-- A run that its script refuses (exit code 2) is listed with the sentence that the script printed; one that fails or
-- runs too long is a row like any other.
local core = require "spl.core"
local json = require "spl.json"
local report = require "spl.report"
local spl = require "spl"
local sweep_file = require "spl.sweep_file"
local store = require "spl.sweep_store"
local sweep = {}

local ASKS_FROM, REFUSES_FROM = 10000, 1000000
local ERROR_TAIL = 2000 -- bytes of what a failed run printed that its row keeps

local OPTIONS = {
    out = { type = "string", help = "folder of the results" },
    yes = { default = false, help = "run more than 10,000 points without asking" },
    list = { default = false, help = "list the points and what is skipped, run nothing" },
    retry = { default = false, help = "run again what failed or took too long" },
    set = { default = {}, of = "string", help = "other values, as seq=1k,4k" },
}

-- ---- one run

local function flag(name)
    return "--" .. name:gsub("_", "-")
end

-- Options of a script as words of its command line, by name.
local function add_options(words, options)
    for _, key in ipairs(sweep_file.sorted_keys(options)) do
        local value = options[key]
        if value == true then
            words[#words + 1] = flag(key)
        elseif value == false then
            words[#words + 1] = "--no-" .. flag(key):sub(3)
        else
            words[#words + 1] = ("%s=%s"):format(flag(key),
                math.type(value) == "float" and ("%.17g"):format(value) or tostring(value))
        end
    end
end

--- [local] The command line of a point.
---@param s table the sweep
---@param point table
---@param trace_path? string
---@return string[]
function sweep.command(s, point, trace_path)
    local words = { spl.executable(), "run" }
    local options = {}
    for key, value in pairs(s.options) do
        options[key] = value
    end
    for key, value in pairs(point) do
        options[key] = value
    end
    local ranks = options.ranks or 1
    options.ranks = nil
    if ranks > 1 then
        table.move({ s.run.virtual and "--virtual" or "-n", ("%d"):format(ranks) }, 1, 2, #words + 1, words)
    end
    for _, key in ipairs(sweep_file.sorted_keys(s.run)) do
        local value = s.run[key]
        if key ~= "virtual" and value == true then
            words[#words + 1] = flag(key)
        elseif key ~= "virtual" and value then
            words[#words + 1] = ("%s=%s"):format(flag(key), tostring(value))
        end
    end
    if trace_path then
        words[#words + 1] = "--trace=" .. trace_path
    end
    table.move({ s.script_path, "--", "--json" }, 1, 3, #words + 1, words)
    add_options(words, options)
    return words
end

local function read_file(path)
    local file = io.open(path, "rb")
    local text = file and file:read "a" or ""
    if file then
        file:close()
    end
    os.remove(path)
    return text
end

local function rows_of(text)
    local rows = json.array {}
    for line in text:gmatch "[^\n]+" do
        if line:sub(1, 1) == "{" then
            local good, row = pcall(json.decode, line)
            rows[#rows + 1] = good and row or nil
        end
    end
    return rows
end

-- The sentence that says why a run ended: the last one that spl printed, without its traceback.
local function cause_of(err)
    local cause
    for line in err:gmatch "[^\n]+" do
        cause = line:match "^spl: rank %d+: (.+)$" or line:match "^spl: (.+)$" or cause
    end
    return cause or err:match "([^\n]+)%s*$"
end

local function judge(run, result, out, err)
    run.exit = result.how == "exit" and result.code or nil
    if result.how == "timeout" then
        run.status, run.reason = "timeout", "not done within the time for one run"
    elseif result.how == "signal" then
        run.status, run.reason = "failed", ("ended by signal %d"):format(result.code)
    elseif result.code == 2 then
        run.status, run.reason = "refused", cause_of(err) or "the script refused it without a word"
    elseif result.code ~= 0 then
        run.status, run.reason = "failed", cause_of(err) or ("exit code %d"):format(result.code)
    else
        run.rows = rows_of(out)
        run.status = #run.rows > 0 and "ok" or "failed"
        run.reason = #run.rows == 0 and "the script printed no JSON object; its --json should" or nil
    end
    if run.status == "failed" or run.status == "timeout" then
        run.stderr = err:sub(-ERROR_TAIL)
    end
end

-- Shares of the time of all ranks, in percent, that a trace of the run tells apart.
local function add_trace(run, path)
    local good, t = pcall(require "spl.trace".summary, path)
    os.remove(path)
    if run.status ~= "ok" or not good then
        return
    end
    local total, sum = 0, { ops = 0, moves = 0, exposed = 0, idle = 0, rest = 0 }
    for _, r in ipairs(t.ranks) do
        total = total + r.us
        for name in pairs(sum) do
            sum[name] = sum[name] + r[name .. "_us"]
        end
    end
    for _, row in ipairs(run.rows) do
        for name, us in pairs(sum) do
            row["trace_" .. name .. "_pct"] = total > 0 and 100 * us / total or 0
        end
        row.trace_critical_rank = t.critical
    end
end

-- One run; nil when a signal ended it.
local function run_point(s, p, number, folder)
    local out, err, trace_path = folder .. "/.out", folder .. "/.err", s.trace and folder .. "/.trace.json"
    local run = { point = p.point, repeat_number = number, status = "failed" }
    local result, message = core.system.run_process(sweep.command(s, p.point, trace_path),
        { out = out, err = err, seconds = s.timeout })
    if not result then
        spl.error { code = "io", message = message }
    end
    run.seconds = result.seconds
    judge(run, result, read_file(out), read_file(err))
    if trace_path then
        add_trace(run, trace_path)
    end
    return result.how ~= "interrupt" and run or nil
end

-- ---- progress

local function duration(seconds)
    if seconds < 90 then
        return ("%.0f s"):format(seconds)
    elseif seconds < 5400 then
        return ("%.0f min"):format(seconds / 60)
    end
    return ("%.1f h"):format(seconds / 3600)
end

local function clear(p)
    if p.live then
        io.stderr:write "\r\27[K"
    end
end

-- Seconds for what is to come, `now` runs of it under way.
local function left(p, now)
    local mean = (spl.now() - p.begin) / math.max(1, p.ran)
    return mean * (p.total - p.done + now)
end

local function show_next(p, words)
    if p.live then
        local rate = p.ran > 0 and (", %.1f runs/min, %s left"):format(60 * p.ran / (spl.now() - p.begin),
            duration(left(p, 1))) or ""
        io.stderr:write(("\r\27[K[%d/%d%s] %s"):format(p.done, p.total, rate, words):sub(1, 150))
    end
end

local function what_came(s, run)
    if run.status ~= "ok" then
        return run.status .. ": " .. tostring(run.reason)
    end
    local y = s.report.y or "time_ms_p50"
    local value = run.rows[1][y]
    return math.type(value) and ("%s %.4g"):format(y, value) or report.plural(#run.rows, "row")
end

local function show_done(p, s, run)
    clear(p)
    local width = #tostring(p.total)
    print(("[%" .. width .. "d/%d] %s: %s  (%s%s)"):format(p.done, p.total, sweep_file.words(run.point),
        what_came(s, run), duration(run.seconds or 0), not p.live and p.done < p.total
            and ("; about %s left"):format(duration(left(p, 0))) or ""))
    io.stdout:flush()
end

-- ---- a whole sweep

local function ask(n, repeats, yes)
    if n > REFUSES_FROM then
        spl.error { code = "usage", message = ("the grid has more than %d points; no machine runs that many: leave "
            .. "values out"):format(REFUSES_FROM) }
    elseif n <= ASKS_FROM or yes then
        return
    end
    local question = ("the grid has %d points or more, of %s each"):format(n, report.plural(repeats, "run"))
    if not core.terminal() then
        spl.error { code = "usage", message = question .. "; leave values out, or say that you mean it with --yes" }
    end
    io.stderr:write("spl: " .. question .. ". Go on? [y/N] ")
    local answer = io.read "l" or ""
    if not answer:match "^[yY]" then
        spl.error { code = "usage", message = "nothing was run" }
    end
end

-- What there is to run: {point, number}; points that were refused, failed or took too long are not repeated.
local function missing(points, s, runs, retry)
    local had, over = {}, {}
    for _, run in ipairs(runs) do
        local key = sweep_file.canonical(run.point)
        local again = retry and (run.status == "failed" or run.status == "timeout")
        if not again then
            had[key] = had[key] or {}
            had[key][run.repeat_number] = true
            over[key] = over[key] or run.status ~= "ok"
        end
    end
    local list = {}
    for number = 1, s.repeats do
        for _, p in ipairs(points) do
            if not p.skip and not over[p.key] and not (had[p.key] and had[p.key][number]) then
                list[#list + 1] = { point = p, number = number }
            end
        end
    end
    return list
end

local function add_skipped(h, points)
    local known = {}
    for _, run in ipairs(h.runs) do
        known[sweep_file.canonical(run.point)] = true
    end
    for _, p in ipairs(points) do
        if p.skip and not known[p.key] then
            store.add(h, { point = p.point, repeat_number = 1, status = "skipped", reason = p.skip, seconds = 0 })
        end
    end
end

local function count(points)
    local n = { ok = 0, refused = 0, skipped = 0, failed = 0, timeout = 0 }
    for _, p in ipairs(points) do
        n[p.status] = n[p.status] + 1
    end
    return n
end

local function finish(s, h)
    local points = store.points(h.runs, s.report.y or "time_ms_p50")
    store.csv(h.folder, points)
    local n = count(points)
    print(("# %s: %d measured, %d refused, %d skipped, %d failed, %d took too long"):format(
        report.plural(#points, "point"), n.ok, n.refused, n.skipped, n.failed, n.timeout))
    print(("# results: %s/results.csv, results.jsonl; `spl report %s` makes a page of them"):format(h.folder, h.folder))
    if n.ok == 0 then
        io.stderr:write "spl: no point was measured; the reasons stand above\n"
    end
    return n.failed + n.timeout, n.ok
end

local function interrupted(s, h)
    finish(s, h)
    spl.error { code = "interrupt", message = "interrupted; what was measured is kept, and the same command goes on "
        .. "with the rest" }
end

local function announce(s, points, h)
    print(("# sweep %s: %s of %s on %s, %s each"):format(s.name, report.plural(#points, "point"), s.script, spl.host(),
        report.plural(s.repeats, "run")))
    if s.about then
        print("# " .. s.about)
    end
    if #h.runs > 0 then
        print(("# continuing in %s: %s already there%s"):format(h.folder, report.plural(#h.runs, "run"),
            h.torn and "; a line that was cut off is done again" or ""))
    end
end

-- An option that the script does not have is wrong at every point, so the first one says it for all.
local function refuse_unknown(s, run)
    local flags = {}
    for _, options in ipairs { s.options, run.point } do
        for key in pairs(options) do
            flags[flag(key)] = true
        end
    end
    local given = run.status == "refused" and run.reason:match "unknown option '%-%-([^']*)'"
    if given and (flags["--" .. given] or flags["--" .. given:gsub("^no%-", "")]) then
        spl.error { code = "usage", message = ("%s: %s"):format(s.script, run.reason) }
    end
end

local function run_all(s, h, work)
    if core.system.interrupted() then
        interrupted(s, h)
    end
    local p = { total = #work, done = 0, ran = 0, begin = spl.now(), live = core.terminal() }
    local over = {}
    for _, w in ipairs(work) do
        p.done = p.done + 1
        if not over[w.point.key] then
            show_next(p, sweep_file.words(w.point.point))
            local run = run_point(s, w.point, w.number, h.folder)
            if not run or core.system.interrupted() then
                clear(p)
                if run then
                    store.add(h, run)
                end
                interrupted(s, h)
            end
            refuse_unknown(s, run)
            store.add(h, run)
            over[w.point.key] = run.status ~= "ok"
            p.ran = p.ran + 1
            show_done(p, s, run)
        end
    end
    clear(p)
end

--- [local] Runs a sweep to its end. Errors: code "usage" for a bad file or folder, "interrupt" when a signal came.
---@param path string
---@param o? {out: string?, yes: boolean?, list: boolean?, retry: boolean?, set: string[]?}
---@return integer bad how many points failed or took too long
---@return integer? good how many were measured; nil where they were only listed
function sweep.run(path, o)
    o = o or {}
    local s = sweep_file.read(sweep_file.find(path))
    sweep_file.set(s, o.set or {})
    ask(sweep_file.least(s), s.repeats, o.yes)
    local points = sweep_file.points(s)
    ask(#points, s.repeats, o.yes)
    if o.list then
        for _, p in ipairs(points) do
            print(sweep_file.words(p.point) .. (p.skip and "  (skipped: " .. p.skip .. ")" or ""))
        end
        print(("# %s of %s each"):format(report.plural(#points, "point"), report.plural(s.repeats, "run")))
        return 0
    end
    local h = store.open(o.out or "sweep-" .. s.name, s)
    announce(s, points, h)
    add_skipped(h, points)
    local work = missing(points, s, h.runs, o.retry)
    run_all(s, h, work)
    return finish(s, h)
end

function sweep.main(...)
    local names, o = require "spl.command".read("sweep", { "FILE" }, OPTIONS, { ... })
    local bad, good = sweep.run(names[1], o)
    if bad > 0 or good == 0 then
        os.exit(1)
    end
end

return sweep
