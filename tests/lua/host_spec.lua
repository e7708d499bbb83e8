-- host_spec.lua: the command line of spl, where scripts and modules come from, and how runs end.
local spl = require "spl"
local mpi = require "mpi"

local WITH_SPL = "local spl = require 'spl'\n"

local function refused(words, message)
    local r = mpi.spl(words)
    assert.equal(2, r.code)
    assert.equal("", r.out)
    assert.equal("spl: " .. message .. "\n", r.err)
end

describe("the command line", function()
    it("says its version", function()
        local r = mpi.spl { "version" }
        assert.same({ 0, "spl " .. spl.version .. "\n" }, { r.code, r.out })
    end)

    it("refuses arguments that a command does not take", function()
        refused({ "version", "x" }, "unexpected argument 'x': `spl version` takes none")
        refused({ "info", "x" }, "unexpected argument 'x': `spl info` takes none")
        assert.matches("^usage: spl version", mpi.spl({ "version", "--help" }).out)
    end)

    it("explains itself, and each command itself", function()
        for _, words in ipairs { {}, { "--help" }, { "help" } } do
            local r = mpi.spl(words)
            assert.equal(0, r.code)
            assert.matches("spl run %[%-n RANKS%]", r.out)
        end
        for _, command in ipairs { "run", "test", "info", "help", "version" } do
            local r = mpi.spl { "help", command }
            assert.equal(0, r.code)
            assert.matches("^usage: spl " .. command, r.out)
        end
        assert.matches("^usage: spl run", mpi.spl { "run", "--help" }.out)
    end)

    it("refuses an unknown command, naming the nearest", function()
        refused({ "rnu", "x.lua" }, "unknown command 'rnu'; did you mean `spl run`?")
        refused({ "frobnicate" }, "unknown command 'frobnicate'; `spl --help` lists them")
    end)

    it("refuses an unknown option, naming the nearest", function()
        refused({ "run", "--timout", "3", "x.lua" },
            "unknown option '--timout' of `spl run`; did you mean '--timeout'?")
    end)

    it("refuses a missing or unknown script, naming the nearest shipped one", function()
        refused({ "run" }, "`spl run` needs a script: a path or a shipped name, such as sp_forward.lua")
        refused({ "run", "no/such/file.lua" }, "no script 'no/such/file.lua' here or among the shipped ones")
        refused({ "run", "scroe" }, "no script 'scroe' here or among the shipped ones; did you mean 'score.lua'?")
        refused({ "run", "tests" }, "no script 'tests' here or among the shipped ones")
    end)

    it("refuses rank counts that are none, once also with -n behind the script", function()
        for _, n in ipairs { "0", "-2", "two", "1.5", "", "99999999999" } do
            refused({ "run", "-n", n, "score.lua" }, ("-n needs a whole number from 1 on, got '%s'"):format(n))
        end
        refused({ "run", "score.lua", "-n" }, "-n needs a whole number from 1 on, got nothing")
    end)

    it("refuses other wrong values", function()
        refused({ "run", "--threads", "0", "x.lua" }, "--threads needs a whole number from 1 on, got '0'")
        refused({ "run", "--timeout", "-1", "x.lua" }, "--timeout needs a number of seconds above 0, got '-1'")
        refused({ "run", "--timeout=nan", "x.lua" }, "--timeout needs a number of seconds above 0, got 'nan'")
        refused({ "run", "--backend", "gpu", "x.lua" }, "--backend takes cpu, cuda or null, got 'gpu'")
    end)

    it("refuses more threads than are of use, and an address space too small for the libraries", function()
        local r = mpi.spl { "run", "--threads", "100000", "x.lua" }
        assert.equal(2, r.code)
        assert.matches("^spl: %-%-threads 100000 is more than this machine has a use for: it has %d+ cores?, and takes",
            r.err)
        if mpi.sanitized() then
            pending "the sanitizers do not know a limit of address space"
        end
        for limit, said in pairs { [100000] = "at least 409600 are needed", [300000] = "at least 409600 are needed",
            [450000] = "2 threads need 835584" } do
            r = mpi.command { "sh", "-c", ("ulimit -v %d; '%s' run --threads 2 sp_forward.lua"):format(limit,
                spl.executable()) }
            assert.same({ 3, "" }, { r.code, r.out })
            assert.matches(said, r.err, 1, true)
            assert.equal(1, mpi.count(r.err, "\n"))
        end
    end)

    it("tells about the machine", function()
        local r = mpi.spl { "info" }
        assert.equal(0, r.code)
        for _, word in ipairs { "spl", "host", "processor", "affinity", "ranks", "backend", "blas", "kernels", "mpi",
            "lua", "cuda" } do
            assert.matches("\n" .. word .. " ", "\n" .. r.out, 1, true)
        end
        assert.matches("OpenMP", r.out:match("\nblas[^\n]*"), 1, true)
        local kernels = r.out:match("\nkernels.-\nmpi")
        for _, op in ipairs { "gemm", "attention", "norm", "residual" } do
            assert.matches(op, kernels, 1, true)
        end
    end)

    it("says who chose the kernels of OpenBLAS, as headers of benchmarks do", function()
        local set = "OPENBLAS_CORETYPE=Haswell is set in the environment"
        local r = mpi.spl({ "info" }, { env = { OPENBLAS_CORETYPE = "Haswell" } })
        assert.matches(set, r.out:match("\nblas[^\n]*"), 1, true)
        r = mpi.run(2, "bench_comm.lua", { "--op", "broadcast", "--max", "8", "--rounds", "1" },
            { env = { OPENBLAS_CORETYPE = "Haswell" } })
        assert.equal(1, mpi.count(r.out, "#  " .. set))
        r = mpi.command { "env", "-u", "OPENBLAS_CORETYPE", spl.executable(), "info" }
        assert.is_nil(r.out:find("environment", 1, true))
    end)

    it("helps with functions of the API", function()
        local r = mpi.spl { "help", "barrier" }
        assert.equal(0, r.code)
        assert.matches("^spl%.barrier%(%)\n  %[collective%]", r.out)
        r = mpi.spl { "help", "bariier" }
        assert.equal(2, r.code)
        assert.matches("did you mean 'barrier'?", r.err, 1, true)
    end)
end)

describe("a script", function()
    it("gets its arguments; the host's options may stand behind it, and `--` ends them", function()
        local script = mpi.temporary("print(#arg, arg[1], arg[2], arg[3], ..., require 'spl'.threads())", ".lua")
        local r = mpi.spl { "run", script, "a", "--threads", "3", "b", "--", "-n" }
        os.remove(script)
        assert.same({ 0, "3\ta\tb\t-n\ta\t3\n" }, { r.code, (r.out:gsub("a\tb\t%-n\t3", "a\t3")) })
    end)

    it("may be named without .lua", function()
        local script = mpi.temporary("print 'here'", ".lua")
        local r = mpi.spl { "run", (script:gsub("%.lua$", "")) }
        os.remove(script)
        assert.same({ 0, "here\n" }, { r.code, r.out })
    end)

    it("reaches the modules of spl and those beside it", function()
        local module = mpi.temporary("return { answer = 42 }", ".lua")
        local name = module:match("([^/]*)%.lua$")
        local chunk = "print(require('%s').answer, require 'spl'.args == require 'spl.args'.args)"
        local r = mpi.run(1, chunk:format(name))
        os.remove(module)
        assert.same({ 0, "42\ttrue\n" }, { r.code, r.out })
    end)

    it("cannot load bytecode from files", function()
        local bytecode = mpi.temporary(string.dump(function() print "ran" end), ".lua")
        local name = bytecode:match("([^/]*)%.lua$")
        assert.equal(1, mpi.spl({ "run", bytecode }).code)
        local r = mpi.run(1, ("print(loadfile('%s', 'b')) print(pcall(dofile, '%s')) print(pcall(require, '%s')) "
            .. "print(load(string.dump(print and function() end), 'x', 'b'))"):format(bytecode, bytecode, name))
        os.remove(bytecode)
        assert.equal(0, r.code)
        assert.equal(0, mpi.count(r.out, "ran"))
        assert.equal(4, mpi.count(r.out, "attempt to load a binary chunk"))
    end)

    it("cannot read undefined globals, unless it says so", function()
        local r = mpi.run(1, "local x = 1\npront(x)")
        assert.equal(1, r.code)
        assert.matches("%.lua:2: undefined global 'pront'; did you mean 'print'%?\n", r.err)
        assert.equal(0, mpi.run(1, "require 'spl'.strict(false) print(undefined_thing)").code)
        assert.equal(0, mpi.run(1, "print( undefined_thing )", nil, { flags = { "--no-strict" } }).code)
        assert.equal(0, mpi.run(1, "x = 3 print(x, rawget(_G, 'y'))").code)
    end)

    it("may use modules that read undefined globals", function()
        local r = mpi.run(1, "print(require 'cjson'.encode { 1 }, require 'pl.compat'.lua51)")
        assert.same({ 0, "[1]\tfalse\n" }, { r.code, r.out })
    end)

    it("leaves with os.exit, through every pcall", function()
        local r = mpi.run(1, "pcall(pcall, function() os.exit(7) end)\nprint 'still here'")
        assert.same({ 7, "", "" }, { r.code, r.out, r.err })
        assert.equal(0, mpi.run(1, "os.exit(true) print 'x'").code)
        assert.equal(1, mpi.run(1, "local co = coroutine.wrap(function() os.exit(false) end) co()").code)
    end)

    it("is not silenced by a pcall when it is interrupted", function()
        for _, signal in ipairs { "INT", "TERM" } do
            local chunk = "local once\nwhile true do pcall(function()\nif not once then once = true "
                .. "io.popen('kill -%s $PPID'):close() end\nwhile true do end end) end"
            local r = mpi.run(1, chunk:format(signal), nil, { limit = 20 })
            assert.equal(1, r.code)
            assert.matches("spl: rank 0: interrupted by SIG" .. signal, r.err, 1, true)
        end
    end)
end)

describe("a finalizer", function()
    it("that fails makes the run fail in the end, also while the state closes", function()
        for _, chunk in ipairs {
            "setmetatable({}, M) collectgarbage() print 'on'",
            "X = setmetatable({}, M) print 'on'",
        } do
            local r = mpi.run(1, "local M = { __gc = function() error 'no good' end }\n" .. chunk)
            assert.same({ 1, "on\n" }, { r.code, r.out })
            assert.matches("spl: rank 0: a finalizer failed: [^\n]*%.lua:1: no good", r.err)
        end
    end)

    local function collective(body)
        local r = mpi.run(1, "local spl = require 'spl'\nlocal M = { __gc = " .. body .. " }\nsetmetatable({}, M)\n"
            .. "collectgarbage()\nprint 'on'")
        assert.same({ 1, "on\n" }, { r.code, r.out })
        assert.matches("barrier is collective and was called in a finalizer", r.err, 1, true)
    end
    it("may not call anything collective", function() collective "function() spl.barrier() end" end)
    it("may not do so in a tail call", function() collective "function() return spl.barrier() end" end)
    it("may not do so inside a pcall", function() collective "function() pcall(spl.barrier) end" end)
    it("may not do so in a coroutine", function() collective "function() coroutine.wrap(spl.barrier)() end" end)
end)

describe("starting mpirun", function()
    it("fails with what to install when there is none", function()
        local script = mpi.temporary("print 'x'", ".lua")
        local r = mpi.spl({ "run", "-n", "2", script }, { env = { PATH = "/nonexistent" } })
        os.remove(script)
        assert.same({ 3, "" }, { r.code, r.out })
        assert.matches("^spl: %-n needs mpirun, and there is none on PATH: install it %(Debian: apt%-get", r.err)
    end)

    it("runs more ranks than cores, and every line arrives whole", function()
        local r = mpi.run(8, "local spl = require 'spl' print(('rank %d of %d'):format(spl.rank(), spl.size()))")
        assert.equal(0, r.code)
        assert.equal("", r.err)
        for rank = 0, 7 do
            assert.equal(1, mpi.count(r.out, ("rank %d of 8\n"):format(rank)))
        end
    end)

    it("is refused where mpirun runs already, once", function()
        local r = mpi.run(2, "print 'x'", nil, { mpirun = true, flags = { "-n", "2" } })
        assert.equal(2, r.code)
        assert.equal(1, mpi.count(r.err,
            "-n 2 was given, but this already runs under mpirun as one of 2 ranks; leave -n out"))
    end)

    it("passes arguments through as they are", function()
        local r = mpi.run(2, "if require 'spl'.rank() == 1 then print(#arg, table.concat(arg, '|')) end",
            { "a b", "", "'\"$x", "--", "-n", "--timeout" })
        assert.same({ 0, "6\ta b||'\"$x|--|-n|--timeout\n" }, { r.code, r.out })
    end)

    it("passes on what ranks say on standard error, and the cause of a failure after it", function()
        local r = mpi.run(2, WITH_SPL .. "io.stderr:write('a line\\n', spl.rank() == 1 and '[warn] half' or '')\n"
            .. "spl.barrier()\nif spl.rank() == 1 then error 'the end' end\nspl.barrier()")
        assert.equal(1, r.code)
        assert.equal(2, mpi.count(r.err, "a line\n"))
        assert.matches("%[warn%] half.*\nspl: rank 1: [^\n]*: the end\nstack traceback:\n", r.err)
    end)

    it("gives standard input to rank 0", function()
        local file = mpi.temporary("a line\n")
        local r = mpi.run(2, "if require 'spl'.rank() == 0 then os.execute 'sleep 0.5' print(io.read 'l') end", nil,
            { stdin = file })
        os.remove(file)
        assert.same({ 0, "a line\n" }, { r.code, r.out })
    end)
end)

-- One rank of four fails while the others are busy with something that lasts.
local MEANWHILE = {
    ["wait in a collective"] = "spl.barrier() spl.barrier()",
    ["wait in a data collective"] = "spl.tensor { shape = { 8 }, mesh = mesh, layout = 'tp=shard(1)' }:gather()",
    ["compute in Lua"] = "while true do end",
    ["sleep outside"] = "os.execute 'sleep 20'",
    ["have ended"] = "",
}

describe("when one rank of four fails", function()
    for what, code in pairs(MEANWHILE) do
        for rank = what:match("collective") and 0 or 2, 2, 2 do
            it(("all end within 5 s: rank %d fails, the others %s"):format(rank, what), function()
                local r = mpi.run(4, ("local spl = require 'spl'\nlocal mesh = spl.mesh 'tp=*'\n"
                    .. "if spl.rank() == %d then error 'the cause' end\n%s\nreturn mesh"):format(rank, code))
                assert.equal(1, r.code)
                assert.is_true(r.seconds < 5, r.seconds)
                assert.equal(1, mpi.count(r.err, "spl: rank "))
                assert.matches(("^spl: rank %d: [^\n]*%%.lua:3: the cause\nstack traceback:\n"):format(rank), r.err)
                assert.equal(1, mpi.count(r.err, "stack traceback:"))
            end)
        end
    end

    it("all end under a plain mpirun too", function()
        local r = mpi.run(4, WITH_SPL .. "if spl.rank() == 1 then error 'the cause' end\nspl.barrier()", nil,
            { mpirun = true })
        assert.equal(1, r.code)
        assert.is_true(r.seconds < 5, r.seconds)
        assert.equal(1, mpi.count(r.err, "spl: rank 1: "))
        assert.equal(1, mpi.count(r.err, "the cause"))
    end)
end)

describe("when several ranks fail", function()
    it("the lowest one speaks", function()
        local r = mpi.run(4, WITH_SPL .. "if spl.rank() > 0 then error('rank ' .. spl.rank()) end\nspl.barrier()")
        assert.equal(1, r.code)
        assert.equal(1, mpi.count(r.err, "spl: rank "))
        assert.matches("spl: rank 1: [^\n]*: rank 1\n", r.err)
    end)

    it("a usage error is printed once and exits 2", function()
        local r = mpi.run(3, "require 'spl'.args { seq = 1 }", { "--seq", "0" })
        assert.same({ 2, "spl: --seq must be at least 1, got 0\n" }, { r.code, r.err })
    end)

    it("a syntax error is printed once", function()
        local r = mpi.run(3, "local x = = 1")
        assert.equal(1, r.code)
        assert.equal(1, mpi.count(r.err, "unexpected symbol"))
    end)

    it("os.exit of one rank ends the job with its code and prints nothing", function()
        local r = mpi.run(3, "local spl = require 'spl'\nif spl.rank() == 1 then os.exit(5) end\nspl.barrier()")
        assert.same({ 5, "" }, { r.code, r.err })
    end)

    it("a rank that is killed is named", function()
        local r = mpi.run(2, WITH_SPL .. "if spl.rank() == 1 then io.popen('kill -9 $PPID'):close() end\nspl.barrier()")
        assert.equal(1, r.code)
        assert.matches("spl: rank 1 was ended by signal 9 (Killed)", r.err,
            1, true)
    end)
end)

describe("when ranks do not call the same", function()
    it("a rank that never comes is named after the time limit, exit 4", function()
        local r = mpi.run(3, WITH_SPL .. "if spl.rank() == 1 then while true do end end\nspl.barrier()", nil,
            { flags = { "--timeout", "2", "--check-collectives" }, limit = 30 })
        assert.equal(4, r.code)
        assert.equal(1, mpi.count(r.err, "spl: rank "))
        assert.matches("rank 1 never came to", r.err, 1, true)
    end)

    it("a rank that has ended is named, exit 4", function()
        local r = mpi.run(3, "local spl = require 'spl'\nif spl.rank() ~= 1 then spl.barrier() end", nil,
            { flags = { "--timeout", "5" }, limit = 30 })
        assert.equal(4, r.code)
        assert.equal(1, mpi.count(r.err, "spl: rank "))
        assert.matches("rank 1 ended", r.err, 1, true)
    end)
end)

describe("the null backend", function()
    it("counts and computes nothing, on any number of ranks", function()
        local chunk = "local spl = require 'spl'\nlocal t = spl.tensor { shape = { 4, 4 } }:fill(1)\n"
            .. "print(spl.rank(), spl.size(), spl.memory().now.activations > 0, t.shape[1])"
        local r = mpi.run(1, chunk, nil, { flags = { "--backend", "null" } })
        assert.same({ 0, "0\t1\ttrue\t4\n", "" }, { r.code, r.out, r.err })
        r = mpi.run(3, chunk, nil, { flags = { "--backend", "null" } })
        assert.same({ 0, "" }, { r.code, r.err })
        assert.equal(1, mpi.count(r.out, "2\t3\ttrue\t4\n"))
    end)
end)

describe("spl test", function()
    local function test_of(chunk, option)
        local path = mpi.temporary(chunk, "_spec.lua")
        local r = mpi.spl { "test", option or "-v", path }
        os.remove(path)
        return r
    end

    it("is no success when a spec calls os.exit", function()
        local failing = "describe('a', function() it('fails', function() assert.equal(1, 2) end) "
            .. "it('leaves', function() os.exit(%s) end) it('comes after', function() end) end)"
        for _, code in ipairs { "", "0", "true" } do
            local r = test_of(failing:format(code))
            assert.equal(1, r.code)
            assert.matches("FAILED  a fails", r.out, 1, true)
            assert.matches("was called in 'a leaves': the tests after it did not run", r.err, 1, true)
        end
        assert.equal(1, test_of("os.exit(0)").code)
        assert.equal(1, test_of("describe('a', function() it('b', function() pcall(os.exit, 0) end) end)",
            "--virtual=2").code)
        assert.equal(0, test_of("it('b', function() end)").code)
        assert.equal(1, test_of("it('b', function() error 'x' end)").code)
    end)

    it("refuses a wrong command line with exit code 2", function()
        assert.equal(2, mpi.spl({ "test", "--bogus" }).code)
        local r = mpi.spl { "test", "no/such/path" }
        assert.same({ 2, "spl: there is no file or folder 'no/such/path'\n" }, { r.code, r.err })
        assert.equal(0, mpi.spl({ "test", "--version" }).code)
    end)
end)
