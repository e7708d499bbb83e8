-- trace_spec.lua: `--trace FILE` on runs that end well and badly, the calls that scripts make, and what `spl trace`
-- says of a trace whose numbers are known.
local json = require "spl.json"
local mpi = require "mpi"
local trace = require "spl.trace"

local SMALL = { "--seq", "33", "--hidden", "24", "--heads", "4", "--rounds", "2", "--warmup", "1", "--mesh",
    "tp=*:sequence" }

local function fresh()
    local path = os.tmpname()
    os.remove(path)
    return path
end

local function read(path)
    local data = assert(json.read(path))
    os.remove(path)
    return data
end

local function exists(path)
    local file = io.open(path)
    return file ~= nil and (file:close() or true)
end

describe("a trace", function()
    it("of a run on several ranks has their ops, communication, memory and lines, on one clock", function()
        local path = fresh()
        local r = mpi.run(2, "sp_forward.lua", SMALL, { flags = { "--trace", path } })
        assert.equal(0, r.code, r.err)
        local seen, lines, bytes, begin, stop = {}, {}, { [0] = 0, 0 }, math.huge, 0
        for _, e in ipairs(read(path).traceEvents) do
            if e.ph == "X" then
                seen[e.pid .. e.cat] = true
                begin, stop = math.min(begin, e.ts), math.max(stop, e.ts + e.dur)
                lines[e.args.line or ""] = e.cat == "op" or lines[e.args.line or ""]
                assert.is_true(e.dur >= 0)
                bytes[e.pid] = bytes[e.pid] + (e.cat == "comm" and e.args.bytes or 0)
            elseif e.ph == "C" then
                seen[e.pid .. "memory"] = true
            end
        end
        for rank = 0, 1 do
            for _, cat in ipairs { "op", "move", "comm", "wait", "memory", "script" } do
                assert.is_true(seen[rank .. cat], ("rank %d has no %s"):format(rank, cat))
            end
        end
        local script_line
        for line in pairs(lines) do script_line = script_line or line:match("^sp_forward%.lua:%d+$") end
        assert.is_truthy(script_line)
        local rounds = 3 * 4 * 33 * 24 * 4 // 2 -- three passes of four moves of half a sequence each
        assert.is_true(bytes[0] + bytes[1] == 2 * rounds, "bytes of the trace")
        assert.is_true(begin > -1e6 and stop - begin < 1000 * r.seconds * 1000)
    end)

    it("names the ranks that a step round a ring goes to and comes from", function()
        local path = fresh()
        assert.equal(0, mpi.run(3, "examples/04_ring.lua", nil, { flags = { "--trace", path } }).code)
        local steps = 0
        for _, e in ipairs(read(path).traceEvents) do
            if e.cat == "comm" and e.name == "all-to-all" then
                steps = steps + 1
                assert.equal((e.pid + 1) % 3, e.args.to)
                assert.equal((e.pid - 1) % 3, e.args.from)
                assert.equal("0 1 2", e.args.ranks)
                assert.equal(40, e.args.bytes)
            end
        end
        assert.equal(6, steps)
    end)

    it("names no single peer where there are several", function()
        local path = fresh()
        assert.equal(0, mpi.run(3, [[local spl = require "spl"
            spl.mesh "x=*":all_to_all("x", spl.ones { shape = { 6 } })]], nil, { flags = { "--trace", path } }).code)
        local seen = 0
        for _, e in ipairs(read(path).traceEvents) do
            if e.cat == "comm" and e.name == "all-to-all" then
                seen = seen + 1
                assert.same({ nil, nil, 16 }, { e.args.to, e.args.from, e.args.bytes })
            end
        end
        assert.equal(3, seen)
    end)

    it("begins and ends where the script says so", function()
        local path = fresh()
        local r = mpi.run(1, ([[local spl = require "spl"
            local function work() return spl.add(spl.ones { shape = { 2 } }, spl.ones { shape = { 2 } }) end
            work()
            assert(not spl.tracing())
            spl.trace_start()
            assert(spl.tracing())
            local begin = spl.now()
            work()
            spl.trace_span("mine", begin)
            spl.trace_write(%q)
            assert(not spl.tracing())
            work()
            print(select(2, pcall(spl.trace_write, "x")))
            print(select(2, pcall(spl.trace_start, { event = 3 })))
            spl.trace_start { events = 5 }
            print(select(2, pcall(spl.trace_start)))
            print(select(2, pcall(spl.trace_write, "/dev/null/x.json")))]]):format(path))
        assert.equal(0, r.code, r.err)
        assert.matches("no trace is being recorded", r.out)
        assert.matches("did you mean 'events'", r.out)
        assert.matches("recorded already", r.out)
        assert.matches("cannot write the trace to '/dev/null/x.json'", r.out)
        local names = {}
        for _, e in ipairs(read(path).traceEvents) do
            if e.ph == "X" then names[e.cat .. " " .. e.name] = (names[e.cat .. " " .. e.name] or 0) + 1 end
        end
        assert.equal(1, names["op add"])
        assert.equal(1, names["script mine"])
    end)

    it("of a run that fails has all ranks where they come to their end", function()
        local path = fresh()
        local r = mpi.run(2, [[local spl = require "spl"
            local mesh = spl.mesh "r=*"
            mesh:all_reduce("r", spl.ones { shape = { 5 } })
            if spl.rank() == 1 then error "as planned" end
            spl.barrier()]], nil, { flags = { "--trace", path } })
        assert.equal(1, r.code)
        assert.matches("as planned", r.err)
        local data, reduced = read(path), {}
        for _, e in ipairs(data.traceEvents) do
            if e.cat == "comm" and e.name == "all-reduce" then reduced[e.pid] = true end
        end
        assert.is_true(reduced[1])
    end)

    it("of virtual ranks works too", function()
        local path = fresh()
        local r = mpi.spl { "run", "--virtual", "3", "--trace", path, "sp_forward.lua", table.unpack(SMALL) }
        assert.equal(0, r.code, r.err)
        local ranks = {}
        for _, e in ipairs(read(path).traceEvents) do ranks[e.pid] = true end
        assert.same({ [0] = true, true, true }, ranks)
    end)

    it("of a backend without memory is rank 0's, and says so", function()
        local path = fresh()
        local r = mpi.spl { "run", "--virtual", "2", "--backend", "null", "--trace", path, "sp_forward.lua",
            table.unpack(SMALL) }
        assert.equal(0, r.code, r.err)
        local s = trace.summary(path)
        assert.same({ true, 2, 1 }, { s.complete, s.size, #s.ranks })
        assert.matches("# of rank 0 alone: a backend without memory", tostring(s), 1, true)
        os.remove(path)
    end)

    it("that cannot be written is said before any work starts", function()
        for path, why in pairs { ["/dev/null/x.json"] = "Not a directory", ["/tmp"] = "it is a folder",
            ["/dev/null"] = "no regular file" } do
            local r = mpi.run(2, "print 'worked'\n", nil, { flags = { "--trace", path } })
            assert.equal(1, r.code)
            assert.equal("", r.out)
            assert.matches("^spl: rank 0: cannot write the trace to '" .. path .. "': .*" .. why, r.err)
        end
        local r = mpi.spl { "run", "x.lua", "--trace" }
        assert.equal(2, r.code)
        assert.equal("spl: --trace needs the name of a file to write, such as trace.json\n", r.err)
        assert.is_false(exists "/dev/null.new0")
    end)
end)

describe("a trace for which there is no room", function()
    it("is an error, and leaves nothing behind", function()
        local folder = os.tmpname()
        os.remove(folder)
        local script = ("mkdir '%s' && mount -t tmpfs -o size=32k none '%s' || exit 77; "
            .. "'%s' run -n 2 --trace '%s/t.json' sp_forward.lua %s > /dev/null; code=$?; ls -A '%s'; exit $code")
            :format(folder, folder, require "spl".executable(), folder, table.concat(SMALL, " "), folder)
        local r = mpi.command { "unshare", "--mount", "sh", "-c", script }
        os.remove(folder)
        if r.code ~= 1 and not r.err:find "spl:" then
            pending "a small file system cannot be mounted here"
        end
        assert.equal(1, r.code, r.err)
        assert.matches("cannot write the trace to '.*/t%.json': No space left on device", r.err)
        assert.equal("", r.out)
    end)
end)

-- Two ranks, one all-reduce: rank 1 comes 300 us late to it; it takes 100 us once both are there.
local function planted()
    local events = json.array {}
    local function add(pid, cat, name, ts, dur, args)
        args = args or {}
        args.line = args.line or "a.lua:7"
        events[#events + 1] = { ph = "X", pid = pid, tid = 1, cat = cat, name = name, ts = ts, dur = dur, args = args }
    end
    for rank = 0, 1 do
        events[#events + 1] = { ph = "M", pid = rank, tid = 0, name = "spl_rank",
            args = { rank = rank, host = "h" .. rank, dropped = 0, events = 9 } }
        events[#events + 1] = { ph = "C", pid = rank, name = "memory", ts = 1,
            args = { weights = 7, activations = 1024, buffers = 1024, workspace = 9 } }
        local late = 300 * rank
        add(rank, "op", "linear", 0, 200 + late, { flops = 2000000 })
        add(rank, "move", "all-reduce", 200 + late, 410 - late) -- 10 us of packing
        add(rank, "comm", "all-reduce", 205 + late, 400 - late, { bytes = 512, axis = "tp", ranks = "0 1" })
        add(rank, "wait", "rows of it along tp", 205 + late, 399.9 - late, { communication = true })
        add(rank, "wait", "a gather of bytes", 620, 50)
        add(rank, "op", "norm", 700, 100, { line = "b.lua:1" })
    end
    return { otherData = { spl = "9", ranks = 2, backend = "cpu", complete = true, virtual = false },
        traceEvents = events }
end

local function summary(data, whole)
    local path = mpi.temporary(json.encode(data))
    local ok, s = pcall(trace.summary, path, whole)
    os.remove(path)
    assert.is_true(ok, tostring(s))
    return s
end

local function near(expected, got)
    assert.is_true(math.abs(expected - got) < 0.2, ("%s, not %s"):format(got, expected))
end

describe("spl trace", function()
    it("tells work, packing, exposed communication and idle time apart, and who came last", function()
        local s = summary(planted())
        local a, b = s.ranks[1], s.ranks[2]
        near(300, a.ops_us)
        near(600, b.ops_us)
        near(10.1, a.moves_us)
        near(10.1, b.moves_us)
        near(99.9, a.exposed_us)
        near(99.9, b.exposed_us)
        near(300 + 50, a.idle_us)
        near(50, b.idle_us)
        near(800, a.us)
        near(800 - 300 - 10.1 - 99.9 - 350, a.rest_us)
        assert.same({ 0, 1, 1, 512, 2048 }, { a.last, b.last, s.critical, a.bytes, a.peak_bytes })
        near(300, b.late_us)
        assert.equal("linear", s.ops[1].name)
        near(700, s.ops[1].us)
        assert.equal("all-reduce, tp", s.comm[1].name)
        local text = tostring(s)
        assert.matches("critical rank: 1, the last to enter 1 of 1 shared collective, 0.300 ms behind the next", text)
        assert.matches("b%.lua:1", text)
    end)

    it("does not call idle what computed while another was late", function()
        local data = planted()
        for _, e in ipairs(data.traceEvents) do
            if e.pid == 0 and e.name == "rows of it along tp" then
                e.ts, e.dur = 555, 49.9 -- it came to wait only when the other had long been there
            end
        end
        local s = summary(data)
        near(50, s.ranks[1].idle_us) -- of the gather alone
        near(49.9, s.ranks[1].exposed_us)
    end)

    it("counts only what lies in the spans that the script marked, or with --whole everything", function()
        local data = planted()
        for rank = 0, 1 do
            table.insert(data.traceEvents, { ph = "X", pid = rank, tid = 3, cat = "script", name = "round", ts = 650,
                dur = 100, args = {} })
        end
        local s = summary(data)
        near(50, s.ranks[1].ops_us)
        near(20, s.ranks[1].idle_us)
        near(100, s.ranks[1].us)
        assert.equal(0, s.ranks[2].last)
        assert.equal("round", s.spans[1].name)
        near(300, summary(data, true).ranks[1].ops_us)
    end)

    it("takes the peak of memory from what was held within those spans, also since before them", function()
        local data = planted()
        local function hold(ts, bytes)
            table.insert(data.traceEvents, { ph = "C", pid = 0, name = "memory", ts = ts,
                args = { activations = bytes, buffers = 0 } })
        end
        hold(100, 1 << 20) -- before the span
        hold(640, 3000)
        hold(700, 2500)
        hold(750.5, 1 << 21) -- after it
        table.insert(data.traceEvents, { ph = "X", pid = 0, tid = 3, cat = "script", name = "round", ts = 650,
            dur = 100, args = {} })
        assert.equal(3000, summary(data).ranks[1].peak_bytes)
        assert.equal(1 << 21, summary(data, true).ranks[1].peak_bytes)
    end)

    it("names a ring by its role, knows its waits for communication, and has the peak of the benchmark", function()
        local path = fresh()
        local r = mpi.run(2, "sp_forward.lua", { "--seq", "512", "--hidden", "32", "--heads", "4", "--rounds", "3",
            "--warmup", "1", "--mesh", "cp=*:ring", "--json" }, { flags = { "--trace", path } })
        assert.equal(0, r.code, r.err)
        local row, s, peak = json.decode(r.out), trace.summary(path), 0
        assert.same({ 1, "ring, cp", 6 }, { #s.comm, s.comm[1].name, s.comm[1].calls })
        assert.equal(3, s.calls)
        for _, rank in ipairs(s.ranks) do peak = math.max(peak, rank.peak_bytes) end
        assert.is_true(peak <= row.peak_bytes and peak > row.peak_bytes // 2, ("%s, not %s"):format(peak,
            row.peak_bytes))
        for _, e in ipairs(read(path).traceEvents) do
            if e.name == "keys and values along cp" or e.name == "the device to finish its queue" then
                assert.equal(e.name:match "^keys" ~= nil, e.args.communication or false)
            end
        end
    end)

    it("says when events are missing or the run had failed", function()
        local data = planted()
        data.otherData.complete = false
        data.traceEvents[1].args.dropped = 12
        local text = tostring(summary(data))
        assert.matches("the run failed", text)
        assert.matches("12 events did not fit", text)
    end)

    it("prints tables, or with --json one object", function()
        local path = mpi.temporary(json.encode(planted()))
        local r, j = mpi.spl { "trace", path }, mpi.spl { "trace", "--json", path }
        os.remove(path)
        assert.same({ 0, "" }, { r.code, r.err })
        assert.matches("\nrank host", r.out)
        assert.equal(1, json.decode(j.out).critical)
    end)

    it("refuses what is no trace, in a sentence", function()
        local function refused(text, why)
            local path = mpi.temporary(text)
            local r = mpi.spl { "trace", path }
            os.remove(path)
            assert.equal(1, r.code)
            assert.matches(why, r.err)
        end
        refused("hello", "not valid JSON")
        refused("[1, 2]", "it has no traceEvents")
        refused('{"traceEvents":[{"ph":"X"}, 3]}', "of another program")
        refused('{"traceEvents":[{"name":"spl_rank","pid":0,"args":{}},{"ph":"X","pid":0,"cat":"op","ts":"x"}],'
            .. '"otherData":5', "not valid JSON")
        for words, why in pairs { [{ "trace" }] = "needs FILE", [{ "trace", "a", "b" }] = "unexpected argument 'b'",
            [{ "trace", "--wohle", "a" }] = "did you mean '%-%-whole'" } do
            local r = mpi.spl(words)
            assert.equal(2, r.code)
            assert.matches(why, r.err)
        end
        local r = mpi.spl { "trace", "/dev/null/t.json" }
        assert.equal(2, r.code)
        assert.matches("cannot open", r.err)
        assert.matches("^usage: spl trace", mpi.spl({ "trace", "--help" }).out)
    end)

    it("passes over what it does not know in a trace", function()
        local data = planted()
        table.insert(data.traceEvents, { ph = "X", pid = 0, cat = "op", name = 5, ts = "soon", dur = 1 })
        table.insert(data.traceEvents, { ph = "s", pid = 9 })
        table.insert(data.traceEvents, { ph = "C", pid = 0, args = "none" })
        near(300, summary(data).ranks[1].ops_us)
    end)
end)
