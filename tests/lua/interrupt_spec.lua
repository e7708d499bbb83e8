-- interrupt_spec.lua: SIGINT, SIGTERM and os.exit get through whatever a script is doing, and ranks that keep others
-- from their turn do not keep a job from its end.
local mpi = require "mpi"

local SEND = "os.execute '(sleep 0.3; kill -%s $PPID) &'\n"
local LOOP = "while true do end"

local function ends(r, signal, seconds)
    assert.equal(1, r.code)
    assert.matches("spl: rank 0: interrupted", r.err, 1, true)
    assert.equal(1, mpi.count(r.err, "interrupted"))
    assert.is_true(signal == nil or r.err:find("SIG" .. signal, 1, true) ~= nil, r.err)
    assert.is_true(r.seconds < (seconds or 15), r.seconds)
end

-- What a script may be doing; all of it lasts for more than the limit below, or for ever.
local BUSY = {
    ["a loop in a coroutine"] = "coroutine.wrap(function() " .. LOOP .. " end)()",
    ["a loop in a coroutine made before, under pcalls everywhere"] = [[
        local co = coroutine.wrap(function() while true do pcall(function() ]] .. LOOP .. [[ end) end end)
        while true do pcall(co) end]],
    ["coroutines that take turns"] = [[
        local function turns() while true do pcall(coroutine.yield) end end
        local a, b = coroutine.create(turns), coroutine.create(turns)
        coroutine.wrap(function() while true do pcall(coroutine.resume, a) pcall(coroutine.resume, b) end end)()]],
    ["a coroutine's variable that is closed"] = [[
        local co = coroutine.create(function()
            local v <close> = setmetatable({}, { __close = function() ]] .. LOOP .. [[ end })
            coroutine.yield(v)
        end)
        coroutine.resume(co)
        coroutine.close(co)]],
    ["a finalizer"] = "setmetatable({}, { __gc = function() " .. LOOP .. " end }) collectgarbage()",
    ["os.execute"] = "os.execute 'sleep 30'",
    ["io.popen and read"] = "io.popen('sleep 30'):read 'a'",
    ["a long call of C"] = "local s = ('a'):rep(1000000) s:find '.-.-.-.-b'",
}

describe("an interrupt", function()
    for what, chunk in pairs(BUSY) do
        for _, signal in ipairs { "INT", "TERM" } do
            it(("gets through %s: SIG%s"):format(what, signal), function()
                ends(mpi.run(1, SEND:format(signal) .. chunk, nil, { limit = 25 }), signal)
            end)
        end
    end

    it("gets through a blocking read of standard input", function()
        local r = mpi.command({ "sh", "-c", "sleep 3 | \"$0\" run \"$1\"", require "spl".executable(),
            mpi.temporary(SEND:format "TERM" .. "io.read 'a' print 'read'", ".lua") }, { limit = 60 })
        assert.equal(1, r.code)
        assert.equal("", r.out)
        assert.matches("interrupted by SIGTERM", r.err, 1, true)
    end)

    it("gets through a wait for the script itself, from a fifo; many ranks do not share one", function()
        local fifo = os.tmpname()
        os.remove(fifo)
        local r = mpi.command({ "sh", "-c", "mkfifo $1; $0 run $1 & waits=$!; sleep 1; kill $waits; wait $waits; "
            .. "echo $?; (sleep 0.3; echo 'print \"read\"' > $1) & $0 run $1; $0 run --virtual 2 $1; echo $?; rm $1",
            require "spl".executable(), fifo }, { limit = 60 })
        assert.equal("1\nread\n2\n", r.out)
        assert.matches("interrupted by SIGTERM", r.err, 1, true)
        assert.matches("no regular file, and only one of 2 ranks could read it", r.err, 1, true)
    end)

    it("to one of three ranks ends all, and that rank is named", function()
        for _, chunk in ipairs { "while true do spl.barrier() end", LOOP } do
            local r = mpi.run(3, "local spl = require 'spl'\nif spl.rank() == 1 then " .. SEND:format "TERM" .. " end\n"
                .. chunk, nil, { limit = 60 })
            assert.equal(1, r.code)
            assert.matches("^spl: rank 1: interrupted", r.err)
            assert.equal(1, mpi.count(r.err, "spl: rank"))
        end
    end)

    it("to the launcher, or to mpirun, ends all ranks", function()
        for levels = 1, 2 do -- the parent of a rank is mpirun, whose parent is the launcher
            local pid = "$PPID"
            for _ = 1, levels do
                pid = "$(ps -o ppid= -p " .. pid .. ")"
            end
            local r = mpi.run(2, ("local spl = require 'spl'\nif spl.rank() == 1 then "
                .. "os.execute '(sleep 0.3; kill -INT %s) &' end\nwhile true do spl.barrier() end"):format(pid), nil,
                { limit = 60 })
            assert.equal(1, r.code)
            assert.matches("^spl: rank %d: interrupted", r.err)
        end
    end)

    it("to the whole process group, mpirun too, leaves no rank behind", function()
        local note = os.tmpname() -- timeout sends its signal to the group that it makes
        local script = mpi.temporary(([[
            local spl = require "spl"
            local file = assert(io.open("%s", "a"))
            file:write(require "spl.core".process(), " ")
            file:close()
            spl.barrier()
            os.execute("touch %s.on")
            while true do pcall(spl.barrier) end]]):format(note, note), ".lua")
        local r = mpi.command({ "sh", "-c", ("timeout 60 \"$0\" run -n 2 \"$1\" & waits=$!; "
            .. "until [ -e %s.on ]; do sleep 0.1; done; kill $waits; wait $waits; "
            .. "sleep 0.3; for pid in $(cat %s); do ps -o pid=,stat=,args= -p $pid | grep -v ' Z'; done; true"):format(
                note, note), require "spl".executable(), script })
        os.remove(note)
        os.remove(note .. ".on")
        os.remove(script)
        assert.equal("", r.out)
        assert.matches("interrupted by SIGTERM", r.err, 1, true)
        assert.is_nil(r.err:find("mpirun:", 1, true), r.err)
    end)

    it("ends all ranks under a plain mpirun", function()
        local r = mpi.run(2, "if require 'spl'.rank() == 1 then " .. SEND:format "TERM" .. " end\n" .. LOOP, nil,
            { mpirun = true, limit = 60 })
        assert.equal(1, r.code)
        assert.equal(1, mpi.count(r.err, "spl: rank 1: interrupted by SIGTERM"))
    end)

    it("ends virtual ranks that compute, that wait, and that have not begun", function()
        for _, chunk in ipairs { LOOP, "while true do spl.barrier() end",
            "coroutine.wrap(function() " .. LOOP .. " end)()" } do
            ends(mpi.run(1, "local spl = require 'spl'\nif spl.rank() == 0 then " .. SEND:format "INT" .. " end\n"
                .. chunk, nil, { flags = { "--virtual", "3" }, limit = 25 }))
        end
    end)
end)

describe("coroutines", function()
    it("behave as Lua's own do", function()
        local co = coroutine.create(function(...)
            local got = { ..., coroutine.yield(select("#", ...)) }
            error { got[1], got[2] }
        end)
        assert.same({ true, 2 }, { coroutine.resume(co, "a", "b") })
        local ok, err = coroutine.resume(co, "c")
        assert.same({ false, { "a", "c" } }, { ok, err })
        assert.same({ false, "cannot resume dead coroutine" }, { coroutine.resume(co) })
        local closed = {}
        local wrapped = coroutine.wrap(function()
            local _ <close> = setmetatable({}, { __close = function() closed[1] = true end })
            error("no good", 0)
        end)
        ok, err = pcall(function() return (wrapped()) end)
        assert.same({ false, true }, { ok, closed[1] })
        assert.matches("^%S*interrupt_spec.lua:%d+: no good$", err)
        ok, err = pcall(wrapped)
        assert.is_false(ok)
        assert.matches("cannot resume dead coroutine", err)
        assert.same({ true, true }, { coroutine.close(coroutine.create(print)), (coroutine.isyieldable(co)) or true })
        ok, err = pcall(coroutine.close, (coroutine.running()))
        assert.is_false(ok)
        assert.matches("cannot close a running coroutine", err)
        for _, f in ipairs { coroutine.resume, coroutine.wrap, coroutine.close } do
            assert.is_false(pcall(f, 3))
        end
    end)

    it("pass many values", function()
        local list = {}
        for i = 1, 5000 do
            list[i] = i
        end
        local n = select("#", coroutine.wrap(function(...) return coroutine.yield(...) end)(table.unpack(list)))
        assert.equal(5000, n)
    end)
end)

describe("os.execute", function()
    it("tells how a command ended", function()
        assert.is_true(os.execute())
        assert.same({ true, "exit", 0 }, { os.execute "true" })
        assert.same({ nil, "exit", 3 }, { [2] = "exit", [3] = select(3, os.execute "exit 3") })
        assert.equal("signal", (select(2, os.execute "kill -9 $$")))
    end)
end)

describe("virtual ranks", function()
    it("end when one fails while another computes in Lua, before or after it", function()
        for rank = 0, 1 do
            local r = mpi.run(1, ("if require 'spl'.rank() == %d then error 'unwell' end\n%s"):format(rank,
                "coroutine.wrap(function() " .. LOOP .. " end)()"), nil, { flags = { "--virtual", "2" }, limit = 60 })
            assert.equal(1, r.code)
            assert.matches(("^spl: rank %d: [^\n]*unwell"):format(rank), r.err)
        end
    end)

    it("that wait for one that computes for ever stall after the time limit", function()
        local r = mpi.run(1, "local spl = require 'spl'\nif spl.rank() == 1 then " .. LOOP .. " end spl.barrier()", nil,
            { flags = { "--virtual", "3", "--timeout", "2" }, limit = 60,
                env = mpi.sanitized() and { ASAN_OPTIONS = "detect_leaks=0" } }) -- one is left as it is
        assert.equal(4, r.code)
        assert.matches("waited %d", r.err)
    end)
end)

describe("os.exit", function()
    it("gives the job its code under -n, whatever the number", function()
        for _, code in ipairs { 127, 130, 255 } do
            local r = mpi.run(2, ("if require 'spl'.rank() == 1 then os.exit(%d) end"):format(code))
            assert.same({ code, "", "" }, { r.code, r.out, r.err })
        end
    end)

    it("in a finalizer ends the run with its code, and is no failure", function()
        for _, chunk in ipairs { "setmetatable({}, M) collectgarbage() while true do end",
            "X = setmetatable({}, M)" } do
            local r = mpi.run(1, "local M = { __gc = function() os.exit(7) end }\n" .. chunk)
            assert.same({ 7, "", "" }, { r.code, r.out, r.err })
        end
        local r = mpi.run(1, "X = setmetatable({}, { __gc = function() os.exit(0) end }) error 'first'")
        assert.equal(1, r.code)
        assert.matches("first", r.err)
    end)

    it("in a coroutine in a coroutine ends the run", function()
        local r = mpi.run(1, "coroutine.wrap(function() pcall(coroutine.wrap(function() os.exit(9) end)) "
            .. LOOP .. " end)()", nil, { limit = 20 })
        assert.same({ 9, "" }, { r.code, r.err })
    end)
end)

describe("a warning of the script", function()
    it("is no failed finalizer, whatever it says", function()
        local r = mpi.run(1, "warn 'error in __gc' warn('error in ', '__gc', ' (x)') print 'on'")
        assert.same({ 0, "on\n" }, { r.code, r.out })
        assert.equal(2, mpi.count(r.err, "spl: rank 0: warning: error in __gc"))
    end)
end)
