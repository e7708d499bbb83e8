-- sweep_spec.lua: `spl sweep`: grids of runs of a small script that can go wrong in every way, killed and continued,
-- and what is said of bad sweeps and foreign folders.
local core = require "spl.core"
local json = require "spl.json"
local mpi = require "mpi"
local spl = require "spl"
local store = require "spl.sweep_store"
local sweep_file = require "spl.sweep_file"

-- Appends a letter to the file SPL_TEST_LOG each time it runs, so that runs can be counted.
local SCRIPT = [[
local spl = require "spl"
local o = spl.args { k = { default = 1, min = 0 }, kind = "good", flag = false, json = false }
local log = assert(io.open(os.getenv "SPL_TEST_LOG", "a"))
log:write("x"):close()
if o.kind == "refused" then spl.error { code = "usage", message = "kind refused is no kind for k " .. o.k } end
if o.kind == "crash" then error "boom" end
if o.kind == "killed" then os.execute "kill -9 $PPID" end
if o.kind == "loop" then while true do end end
local hold = o.k == 3 and io.open(os.getenv "SPL_TEST_LOG" .. ".hold") -- waits there to be killed
while hold do end
if o.kind == "silent" then return end
print "# not for machines"
print(('{"time_ms_p50":%d,"what":"%s"}'):format(10 * o.k, o.kind))
if o.kind == "two" then print '{"time_ms_p50":7,"what":"second"}' end
]]

local folder

local function write(name, text)
    local file = assert(io.open(folder .. "/" .. name, "w"))
    file:write(text)
    file:close()
    return folder .. "/" .. name
end

local function read(name)
    local file = io.open(folder .. "/" .. name, "rb")
    local text = file and file:read "a" or ""
    if file then file:close() end
    return text
end

local function sweep(text, ...)
    local path = write("s.lua", text)
    return mpi.spl({ "sweep", path, "--out", folder .. "/out", ... }, { env = { SPL_TEST_LOG = folder .. "/log" } })
end

local function refused(text, why, ...)
    local r = sweep(text, ...)
    assert.equal(2, r.code, r.out .. r.err)
    assert.equal("", r.out)
    assert.matches(why, r.err, 1, true)
    assert.equal("", read "log")
end

describe("spl sweep", function()
    before_each(function()
        folder = os.tmpname()
        os.remove(folder)
        assert(core.system.make_folder(folder))
        write("job.lua", SCRIPT)
    end)
    after_each(function() os.execute("rm -rf '" .. folder .. "'") end)

    it("runs every point as often as asked, and lists what is skipped, refused, crashed or too slow", function()
        local r = sweep([[return { script = "job.lua", repeats = 2, timeout = 1.5,
            grid = { k = { 1, 2 }, kind = { "good", "refused", "crash", "killed", "silent" } },
            skip = function(p) return p.k == 2 and p.kind ~= "good" and "only good ones twice" or nil end }]])
        assert.equal(1, r.code)
        assert.equal("", r.err)
        assert.matches("# 10 points: 2 measured, 1 refused, 4 skipped, 3 failed, 0 took too long", r.out, 1, true)
        assert.equal(2 * 2 + 4, #read "log") -- what went wrong once is not done again
        local _, runs = store.read(folder .. "/out")
        local by = {}
        for _, p in ipairs(store.points(runs, "time_ms_p50")) do by[p.point.kind .. p.point.k] = p end
        assert.same({ "ok", 2, 20 }, { by.good2.status, by.good2.runs, by.good2.rows[1].time_ms_p50 })
        assert.same({ "refused", "kind refused is no kind for k 1" }, { by.refused1.status, by.refused1.reason })
        assert.same({ "skipped", "only good ones twice" }, { by.crash2.status, by.crash2.reason })
        assert.equal("failed", by.crash1.status)
        assert.matches("boom", by.crash1.reason)
        assert.matches("signal 9", by.killed1.reason)
        assert.matches("printed no JSON", by.silent1.reason)
        local csv = read "out/results.csv"
        assert.matches("^k,kind,status,reason,runs,time_ms_p50,time_ms_p50_high,time_ms_p50_low,what\n", csv)
        assert.matches("\n2,good,ok,,2,20,20,20,good\n", csv)
        assert.matches("\n1,refused,refused,kind refused is no kind for k 1,1,", csv)
    end)

    it("ends a run that takes too long, with what it started", function()
        local r = sweep [[return { script = "job.lua", timeout = 1, grid = { kind = { "loop", "good" } } }]]
        assert.equal(1, r.code)
        assert.matches("1 measured, 0 refused, 0 skipped, 0 failed, 1 took too long", r.out, 1, true)
    end)

    it("gives options as the script's command line takes them, and keeps all rows of a run", function()
        local r = sweep [[return { script = "job.lua", options = { flag = true, k = 3 }, grid = { kind = { "two" } } }]]
        assert.equal(0, r.code, r.err)
        local _, runs = store.read(folder .. "/out")
        assert.same({ 30, 7 }, { runs[1].rows[1].time_ms_p50, runs[1].rows[2].time_ms_p50 })
        local sweep_module = require "spl.sweep"
        local words = sweep_module.command({ options = { flag = false, some_thing = 0.5 }, run = { threads = 2,
            check_collectives = true }, script_path = "x" }, { ranks = 3, mesh = "a=3" })
        assert.same({ "run", "-n", "3", "--check-collectives", "--threads=2", "x", "--", "--json", "--no-flag",
            "--mesh=a=3", "--some-thing=0.5" }, table.move(words, 2, #words, 1, {}))
    end)

    it("goes on where it was killed, after a line that was cut off too", function()
        local text = [[return { script = "job.lua", repeats = 2, grid = { k = { 1, 2, 3 } } }]]
        write("s.lua", text)
        write("log.hold", "")
        local r = mpi.command({ "sh", "-c", ("'%s' sweep '%s/s.lua' --out '%s/out' >/dev/null 2>&1 & p=$!; "
            .. "for i in $(seq 600); do [ $(cat '%s/out/results.jsonl' 2>/dev/null | grep -c '\"ok\"') -ge 2 ] && "
            .. "break; sleep 0.05; done; kill -9 $p"):format(spl.executable(), folder, folder, folder) },
            { env = { SPL_TEST_LOG = folder .. "/log" } })
        assert.equal(0, r.code, r.err)
        local lines = read "out/results.jsonl"
        local before = mpi.count(lines, '"ok"')
        os.remove(folder .. "/log.hold")
        assert.is_true(before >= 2 and before < 6, before .. " runs were done")
        write("out/results.jsonl", lines:match "^.*\n" .. '{"status":"ok","point":{"k":')
        write("log", "")
        r = sweep(text)
        assert.equal(0, r.code, r.err)
        assert.matches("a line that was cut off is done again", r.out, 1, true)
        assert.equal(6 - before, #read "log")
        assert.equal(6, mpi.count(read "out/results.jsonl", '"ok"'))
        write("log", "")
        r = sweep(text)
        assert.same({ 0, "" }, { r.code, read "log" })
        r = sweep((text:gsub("3 }", "3, 4 }")))
        assert.same({ 0, "xx" }, { r.code, read "log" }) -- more points may be added
    end)

    it("keeps what was measured when it is interrupted, and says how to go on", function()
        write("s.lua", [[return { script = "job.lua", grid = { kind = { "good", "loop" } } }]])
        local r = mpi.command({ "sh", "-c", ("'%s' sweep '%s/s.lua' --out '%s/out' & p=$!; "
            .. "for i in $(seq 600); do [ $(cat '%s/log' 2>/dev/null | wc -c) -ge 2 ] && break; sleep 0.05; done; "
            .. "kill -TERM $p; wait $p"):format(spl.executable(), folder, folder, folder) },
            { env = { SPL_TEST_LOG = folder .. "/log" } })
        assert.equal(1, r.code)
        assert.matches("interrupted; what was measured is kept", r.err, 1, true)
        assert.equal(1, mpi.count(read "out/results.jsonl", '"point"'))
        assert.matches("\ngood,ok", read "out/results.csv")
    end)

    it("runs again what failed when asked to", function()
        local text = [[return { script = "job.lua", grid = { kind = { "crash" } } }]]
        assert.equal(1, sweep(text).code)
        write("job.lua", (SCRIPT:gsub('error "boom"', "")))
        assert.equal(1, sweep(text).code)
        local r = sweep(text, "--retry")
        assert.equal(0, r.code, r.out)
        assert.equal("xx", read "log")
        local _, runs = store.read(folder .. "/out")
        assert.same({ 1, "ok" }, { #runs, runs[1].status })
    end)

    it("refuses a bad file in one sentence that says where", function()
        for text, why in pairs {
            ["return {"] = "line 1: ",
            ["return nil"] = "it returns nothing; a sweep is a table",
            ["error 'no'"] = "no",
            ["return { script = 'job.lua' }"] = "its grid is empty",
            ["return { script = 'job.lua', grid = {} }"] = "its grid is empty",
            ["return { grid = { k = { 1 } } }"] = "it names no script",
            ["return { script = 'job.lua', grid = { k = {} } }"] = "grid.k is empty",
            ["return { script = 'job.lua', grid = { k = 5 } }"] = "grid.k is a number; a list of values",
            ["return { script = 'job.lua', grid = { k = { 1, {} } } }"] = "grid.k[2] is a table",
            ["return { script = 'job.lua', grid = { k = { 0/0 } } }"] = "grid.k[1] is",
            ["return { script = 'job.lua', grid = { ranks = { 0 } } }"] = "at least 1",
            ["return { script = 'job.lua', grid = { ranks = { 1.5 } } }"] = "whole",
            ["return { script = 'job.lua', gird = {} }"] = "unknown key 'gird'; did you mean 'grid'?",
            ["return { script = 'job.lua', grid = { k = { 1 } }, run = { thread = 1 } }"] = "did you mean 'threads'?",
            ["return { script = 'job.lua', grid = { k = { 1 } }, repeats = 0 }"] = "repeats = 0",
            ["return { script = 'job.lua', grid = { k = { 1 } }, timeout = -1 }"] = "timeout = -1",
            ["return { script = 'job.lua', grid = { k = { 1 } }, options = { k = 2 } }"] = "in options and in the grid",
            ["return { script = 'job.lua', grid = { k = { 1 } }, options = { m = { 2 } } }"] = "belong into the grid",
            ["return { script = 'job.lua', grid = { k = { 1 } }, skip = 'no' }"] = "skip is a string",
            ["return { script = 'job.lua', grid = { k = { 1 } }, skip = function() return 5 end }"] = "skip gave a num",
            ["return { script = 'job.lua', grid = { k = { 1 } }, skip = function() x() end }"] = "skip failed",
            ["return { script = 'job.lua', grid = { k = function() return 5 end } }"] = "grid.k is a number",
            ["return { script = 'job.lua', grid = { k = function() return {} end } }"] = "no point to run",
            ["return { script = 'job.lua', grid = { k = { 1 } }, name = '../x' }"] = "make a name",
        } do
            refused(text, why)
        end
        local r = mpi.spl { "sweep", "/dev/null/no.lua" }
        assert.equal(2, r.code)
        assert.matches("cannot read the sweep '/dev/null/no.lua'", r.err, 1, true)
        assert.matches("`spl sweep` needs FILE", mpi.spl({ "sweep" }).err, 1, true)
        assert.matches("did you mean '--retry'", mpi.spl({ "sweep", "--rety", "x" }).err, 1, true)
        assert.equal(2, sweep("return { script = 'job.lua', grid = { k = { 1 } } }", "--set", "k").code)
    end)

    it("stops at the first run where the script does not know an option, with nothing kept of it", function()
        local r = sweep([[return { script = "job.lua", grid = { k = { 1, 2, 3 }, ranks = { 1 } } }]], "--set",
            "nonsense=3")
        assert.equal(2, r.code, r.out)
        assert.matches("^spl: .*job%.lua: unknown option '%-%-nonsense'", r.err)
        assert.equal("", read "log")
        assert.equal(0, mpi.count(read "out/results.jsonl", '"point"'))
        os.execute("rm -r '" .. folder .. "/out'")
        r = sweep [[return { script = "job.lua", grid = { k = { 1, 2 } }, options = { colour = false } }]]
        assert.equal(2, r.code, r.out)
        assert.matches("unknown option '--no-colour'", r.err, 1, true)
    end)

    it("exits 1 where nothing was measured", function()
        local r = sweep [[return { script = "job.lua", grid = { k = { 1, 2 }, kind = { "refused" } } }]]
        assert.equal(1, r.code, r.out)
        assert.equal("spl: no point was measured; the reasons stand above\n", r.err)
        assert.equal("xx", read "log")
    end)

    it("asks before more than 10,000 points, and refuses a million", function()
        local list = "local t = {} for i = 1, %d do t[i] = i end return { script = 'job.lua', "
            .. "grid = { k = t, flag = { true, false } } }"
        refused(list:format(5001), "10002 points or more, of 1 run each; leave values out, or say that you mean it")
        refused(list:format(500001), "no machine runs that many", "--yes")
        local r = sweep(list:format(5001), "--yes", "--list")
        assert.equal(0, r.code, r.err)
        assert.matches("# 10002 points of 1 run each", r.out, 1, true)
    end)

    it("takes other values from the command line", function()
        local r = sweep([[return { script = "job.lua", grid = { k = { 1 }, kind = { "good" } } }]], "--list", "--set",
            "k=1k,2", "--set", "kind=a,b;")
        assert.equal("k 1024, kind 'a,b'\nk 2, kind 'a,b'\n# 2 points of 1 run each\n", r.out)
    end)

    it("leaves alone a folder of another version, of another sweep, of something else, and of one at work", function()
        local text = [[return { script = "job.lua", grid = { k = { 1 } } }]]
        assert.equal(0, sweep(text).code)
        local good = read "out/results.jsonl"
        write("log", "")
        refused([[return { script = "job.lua", options = { flag = true }, grid = { k = { 1 } } }]],
            "holds results of another sweep (s of job.lua), or of other options")
        local foreign = good:gsub('"spl":"[^"]*"', '"spl":"0.0.9"', 1)
        write("out/results.jsonl", foreign)
        refused(text, "holds results of spl 0.0.9, this is spl " .. spl.version)
        assert.equal(foreign, read "out/results.jsonl")
        for _, other in ipairs { "hello\n", "{}\n", '{"kind":"sweep"}\n' } do
            write("out/results.jsonl", other)
            local r = sweep(text)
            assert.equal(1, r.code)
            assert.matches("results.jsonl", r.err, 1, true)
            assert.equal(other, read "out/results.jsonl")
        end
        write("out/results.jsonl", good)
        local lock <close> = setmetatable({ core.system.lock(folder .. "/out/.lock") }, { __close = function() end })
        assert.is_truthy(lock[1])
        local r = sweep(text)
        assert.equal(1, r.code)
        assert.matches("another sweep is at work", r.err, 1, true)
    end)

    it("takes medians over repeats, with the least and most", function()
        local function run(value, number)
            return { point = { k = 1 }, repeat_number = number, status = "ok", rows = { { t = value, s = "a" } } }
        end
        local p = store.points({ run(5, 1), run(1, 2), run(9, 3), run(2, 4) }, "t")[1]
        assert.same({ t = 3.5, t_low = 1, t_high = 9, s = "a" }, p.rows[1])
    end)

    it("ships sweeps whose grids are sound, over the meshes that blocks really take", function()
        for _, name in ipairs { "modes", "scaling" } do
            local r = mpi.spl { "sweep", name, "--list", "--set", "ranks=1,2", "--set", "seq=64" }
            assert.equal(0, r.code, r.err)
            assert.matches("ranks 2", r.out)
        end
        local s = sweep_file.read(sweep_file.find "modes")
        for _, mesh in ipairs(s.grid.mesh { ranks = 2, hidden = 64, heads = 4, seq = 64, batch = 1 }) do
            local r = mpi.run(2, "sp_forward.lua", { "--mesh", mesh, "--seq", "16", "--hidden", "16", "--heads", "2",
                "--rounds", "1", "--warmup", "0" }, { flags = { "--backend", "null" } })
            assert.equal(0, r.code, mesh .. ": " .. r.err)
        end
    end)
end)

describe("spl.meshes", function()
    it("tells all meshes that a block takes, and no other", function()
        local found = {}
        for _, mesh in ipairs(spl.meshes(4)) do found[mesh] = true end
        assert.is_true(found["tp=4:tensor"] and found["sp=4:sequence"] and found["dp=2:data, tp=2:tensor"])
        assert.is_nil(found["pp=4:pipeline"])
        assert.same({ "tp=1:tensor" }, { spl.meshes(1)[1] })
        for _, bad in ipairs { 0, 1.5, "four" } do
            local ok, err = pcall(spl.meshes, bad)
            assert.is_false(ok)
            assert.matches("whole numbers", err.message)
        end
        assert.is_false(pcall(spl.meshes, 2, { head = 3 }))
    end)

    it("says of those that are refused why", function()
        local r = mpi.spl { "run", "--virtual", "2", "--backend", "null", "list_meshes.lua", "--refused", "--json" }
        assert.equal(0, r.code, r.err)
        local refusals = 0
        for line in r.out:gmatch "[^\n]+" do
            local m = json.decode(line)
            refusals = refusals + (m.accepted and 0 or 1)
            assert.equal(m.accepted, m.reason == "")
        end
        assert.is_true(refusals > 0)
    end)
end)

describe("a damaged line of a sweep's results", function()
    it("is named, with what to do about it", function()
        local dir = os.tmpname()
        os.remove(dir)
        os.execute("mkdir " .. dir)
        local file = assert(io.open(dir .. "/results.jsonl", "wb"))
        file:write('{"kind":"sweep"}\n', "garbage\n")
        file:close()
        local good, err = pcall(require "spl.sweep_store".read, dir)
        os.execute("rm -r " .. dir)
        assert.is_false(good)
        assert.matches("line 2: .*delete that line, and a sweep does its run again", err.message)
    end)
end)
