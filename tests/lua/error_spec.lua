-- error_spec.lua: error objects: what they hold, how they print, how they pass through pcall and end a run.
local spl = require "spl"
local mpi = require "mpi"

local EXIT = { usage = 2, environment = 3, disagree = 4, stall = 4, argument = 1, memory = 1, io = 1, format = 1,
    released = 1, numeric = 1, interrupt = 1, unsupported = 1, internal = 1 }

describe("an error object", function()
    it("holds code, message, rank and exit code, and prints as its message", function()
        local ok, err = pcall(spl.error, { code = "usage", message = "heads 7 do not divide 2048" })
        assert.is_false(ok)
        assert.same({ "usage", "heads 7 do not divide 2048", 0, 2 }, { err.code, err.message, err.rank, err.exit })
        assert.equal("heads 7 do not divide 2048", tostring(err))
        assert.is_true(spl.is_error(err))
    end)

    it("has the exit code of its code", function()
        for code, exit in pairs(EXIT) do
            local _, err = pcall(spl.error, { code = code, message = "m" })
            assert.equal(exit, err.exit, code)
        end
    end)

    it("is an argument error when no code is said", function()
        local _, err = pcall(spl.error, { message = "m" })
        assert.equal("argument", err.code)
    end)

    it("is not any other value", function()
        for _, value in ipairs { "text", 3, {}, setmetatable({ code = "usage" }, {}), print } do
            assert.is_false(spl.is_error(value))
        end
    end)

    it("is refused with a code nobody knows or without a message", function()
        local _, err = pcall(spl.error, { code = "useage", message = "m" })
        assert.matches("there is no code 'useage'", err.message, 1, true)
        _, err = pcall(spl.error, { code = "usage" })
        assert.matches("error: argument 'message': a string is needed, got nil", err.message, 1, true)
        _, err = pcall(spl.error, "text")
        assert.matches("a table {code = , message = } is needed, got 'text'", err.message, 1, true)
    end)

    it("keeps its text whole when it holds a percent sign", function()
        local _, err = pcall(spl.error, { message = "100 %s %d" })
        assert.equal("100 %s %d", err.message)
    end)
end)

describe("an unknown name in spl", function()
    it("is an error that names the nearest", function()
        local ok, message = pcall(function() return spl.barier end)
        assert.is_false(ok)
        assert.matches("spl has no 'barier'; did you mean 'barrier'?", message, 1, true)
    end)
end)

describe("a run that ends with an error", function()
    for code, exit in pairs(EXIT) do
        it(("of code %s exits %d"):format(code, exit), function()
            local r = mpi.run(1, ("require 'spl'.error { code = '%s', message = 'because' }"):format(code))
            assert.equal(exit, r.code)
            assert.matches(code == "usage" and "spl: because" or "spl: rank 0: because", r.err, 1, true)
            -- what is wrong with a command line or a file is not explained by a traceback
            local traced = exit ~= 2 and exit ~= 3 and code ~= "io" and code ~= "format"
            assert.equal(traced and 1 or 0, mpi.count(r.err, "stack traceback:"))
        end)
    end

    it("about what was given says where in the script instead of a traceback", function()
        for chunk, message in pairs {
            ["spl.mesh 'tp=7'"] = "7 ranks, but there is 1; start 7",
            ["spl.block { hidden = 5, heads = 3 }"] = "not a multiple of heads",
            ["spl.safetensors.require '/nowhere/x'"] = "/nowhere/x",
            ["require 'spl.model'.load('/nowhere', spl.mesh 'tp=*:tensor')"] = "/nowhere",
            ["spl.error { code = 'format', message = 'because' }"] = "because",
        } do
            local r = mpi.run(1, "local spl = require 'spl'\n\nlocal function f() " .. chunk .. " end\nf() print 'on'")
            assert.equal("", r.out)
            assert.matches(message, r.err, 1, true)
            assert.matches("^spl: rank 0: [^\n]*\nat [^\n]*%.lua:3\n$", r.err)
        end
    end)

    it("says no line of the script where the command line is wrong, nor of a shipped script", function()
        local r = mpi.run(1, "require 'spl'.args { seq = 1 }", { "--sek", "2" })
        assert.equal("spl: unknown option '--sek'; did you mean '--seq'?\n", r.err)
        r = mpi.run(1, "local spl = require 'spl'\nspl.error { code = 'usage', message = 'choose one' }")
        assert.equal("spl: choose one\n", r.err)
        r = mpi.run(1, "sp_forward.lua", { "--heads", "5" })
        assert.matches("^spl: [^\n]*not a multiple[^\n]*\n$", r.err)
        r = mpi.run(1, "score.lua", { "--model", "/nowhere", "--text", "/nowhere/text" })
        assert.matches("^spl: rank 0: [^\n]*/nowhere[^\n]*\n$", r.err)
    end)

    it("has no traceback where a shipped script or a command says what it was given", function()
        local empty = mpi.temporary ""
        local r = mpi.run(1, "score.lua", { "--model", "/nowhere", "--text", empty })
        os.remove(empty)
        assert.same({ 1, ("spl: rank 0: %s is empty: there is nothing to score\n"):format(empty) }, { r.code, r.err })
        r = mpi.run(1, "local spl = require 'spl' spl.error { message = 'of a script' }") -- which can be looked into
        assert.matches("stack traceback", r.err)
    end)

    it("is the command line's for a scheme that there is not as for one that does not fit", function()
        for scheme, said in pairs { zig = "scheme = 'zig' is not known", zigzag = "use scheme = \"contiguous\"" } do
            local r = mpi.run(1, ("local spl = require 'spl'\nspl.block { hidden = 2, heads = 1 }:schedule(spl.mesh "
                .. "'tp=*:tensor', { scheme = '%s' }) print(1)"):format(scheme))
            assert.equal(2, r.code)
            assert.matches(said, r.err, 1, true)
            assert.matches("\nat %S+%.lua:2\n$", r.err)
        end
        for _, command in ipairs { "run", "trace", "report", "sweep" } do
            assert.equal(2, mpi.spl({ command, "/nowhere/at/all" }).code, command)
        end
    end)

    it("that is a plain Lua error exits 1 with file, line and traceback", function()
        local r = mpi.run(1, "local t = nil\nprint(t.x)")
        assert.equal(1, r.code)
        assert.matches("spl: rank 0: [^\n]*%.lua:2: attempt to index a nil value %(local 't'%)\nstack traceback:\n",
            r.err)
    end)

    it("that is a table with __tostring prints it; another value is named by its type", function()
        local r = mpi.run(1, "error(setmetatable({}, { __tostring = function() return 'custom' end }))")
        assert.equal(1, r.code)
        assert.matches("spl: rank 0: custom\n", r.err, 1, true)
        r = mpi.run(1, "local function f() error({}) end f()")
        assert.equal(1, r.code)
        assert.matches("spl: rank 0: the error is a table value, not a message\n", r.err, 1, true)
    end)

    it("that is any other value says the value; a very long message says that it was cut", function()
        for chunk, said in pairs { ["error(42)"] = "the error is 42, not a message\n",
            ["error(nil)"] = "the error is nil, not a message\n",
            ["error(false)"] = "the error is false, not a message\n",
            ["error { 'x' }"] = "the error is a table value, not a message: { [1] = 'x' }\n",
            ["error(print)"] = "the error is a function value, not a message\n" } do
            local r = mpi.run(1, "local x " .. chunk)
            assert.equal(1, r.code)
            assert.matches("spl: rank 0: " .. said, r.err, 1, true)
        end
        local r = mpi.run(1, "error(('x'):rep(1000000), 0)")
        assert.equal(1, r.code)
        assert.is_true(#r.err < 9000)
        assert.matches("xxx ... (cut here: the message has 1000000 bytes)\nstack traceback:\n", r.err, 1, true)
    end)

    it("names a script that is compiled", function()
        local path = mpi.temporary(string.dump(function() end), ".lua")
        local r = mpi.spl { "run", path }
        os.remove(path)
        assert.equal(1, r.code)
        assert.matches(path .. ": attempt to load a binary chunk", r.err, 1, true)
    end)

    it("that recurses for ever, or takes all the memory there is, ends all ranks", function()
        local r = mpi.run(1, "local function f() return 1 + f() end\nf()")
        assert.equal(1, r.code)
        assert.matches("stack overflow", r.err)
        if mpi.sanitized() then
            pending "the sanitizers do not know a limit of address space"
        end
        r = mpi.command { "sh", "-c", ("ulimit -v 1500000; '%s' run -n 2 '%s'"):format(spl.executable(),
            mpi.temporary("local spl = require 'spl'\nif spl.rank() == 1 then local t = {} while true do "
                .. "t[#t + 1] = ('x'):rep(1000000) .. #t end end\nspl.barrier()", ".lua")) }
        assert.equal(1, r.code)
        assert.matches("^spl: rank 1: not enough memory", r.err)
    end)

    it("of memory may be caught, and the script goes on", function()
        if mpi.sanitized() then
            pending "the sanitizers do not know a limit of address space"
        end
        local path = mpi.temporary([[
            local spl = require "spl"
            for _ = 1, 3 do
                local kept = {}
                local ok, err = pcall(function()
                    while true do kept[#kept + 1] = ("x"):rep(1000000) .. #kept end
                end)
                kept = nil
                assert(not ok and tostring(err):find "memory")
                ok, err = pcall(function()
                    local all = {}
                    while true do all[#all + 1] = spl.tensor { shape = { 1000, 1000 } } end
                end)
                assert(not ok and err.code == "memory", tostring(err))
                collectgarbage()
            end
            print(spl.tensor { shape = { 3 } }:fill(1):norm() > 1.7)]], ".lua")
        local r = mpi.command { "sh", "-c", ("ulimit -v 1500000; '%s' run '%s'"):format(spl.executable(), path) }
        os.remove(path)
        assert.same({ 0, "true\n", "" }, { r.code, r.out, r.err })
    end)

    it("names the process's limit where that, not the machine, leaves too little", function()
        if mpi.sanitized() then return end
        local path = mpi.temporary([[
            local all = {}
            while true do all[#all + 1] = require "spl".tensor { shape = { tonumber(arg[1]) } } end]], ".lua")
        for _, limit in ipairs { "ulimit -v 1500000", "ulimit -d 1000000" } do
            for _, count in ipairs { 1000000, 8 << 20 } do -- looked at before, and refused by the system
                local r = mpi.command { "sh", "-c", ("%s; '%s' run --threads 1 '%s' %d"):format(limit,
                    spl.executable(), path, count) }
                assert.equal(1, r.code, r.err)
                local wanted, name, left = r.err:match("^spl: rank 0: (%d+) bytes [^\n]* limit %((ulimit %-%a)%) "
                    .. "leaves only (%d+) bytes")
                assert.equal(limit:sub(1, 9), name, r.err)
                assert.equal(4 * count, tonumber(wanted))
                assert.is_true(tonumber(left) < tonumber(wanted), r.err)
            end
        end
        os.remove(path)
    end)

    it("in a syntax error names file and line", function()
        local r = mpi.run(1, "local x = 1\nlocal y = = 2")
        assert.equal(1, r.code)
        assert.matches("^spl: rank 0: [^\n]*%.lua:2: unexpected symbol near '='\n$", r.err)
    end)
end)
