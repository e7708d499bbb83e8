-- repl_spec.lua: `spl repl`: one prompt on all ranks, from a pipe and on a terminal.
local mpi = require "mpi"

-- What the prompt answers to these lines.
local function session(ranks, text, opts)
    local file = mpi.temporary(text)
    local words = { "repl" }
    if ranks and ranks > 1 then
        words = { "repl", "-n", tostring(ranks) }
    end
    for _, word in ipairs((opts or {}).flags or {}) do
        words[#words + 1] = word
    end
    local r = mpi.spl(words, { stdin = file, limit = (opts or {}).limit })
    os.remove(file)
    return r
end

local function answers(ranks, text, opts)
    local r = session(ranks, text, opts)
    assert.same({ 0, "" }, { r.code, r.err })
    return r.out
end

describe("the prompt from a pipe", function()
    it("answers expressions without return, statements, chunks of several lines, and keeps globals", function()
        assert.equal("3\nx\ty\n1\n2\n6\n", answers(1, '1 + 2\n"x", "y"\nfor i = 1, 2 do\nprint(i)\nend\n'
            .. "a = {\n6 }\n= a[1]\n"))
        assert.equal("{ 1, { 2 }, a = { b = true } }\n", answers(1, "{ 1, { 2 }, a = { b = true } }"))
        assert.equal("7\n49\n", answers(1, "7\n_ * _\n\n  \n-- nothing\n"))
    end)

    it("prints equal answers once, and others with the ranks that gave them", function()
        assert.equal("[0-2] 6\n[0] 0\n[1] 1\n[2] 2\n[0,2] even\n[1] odd\n[1] one\n    two\n", answers(3,
            'spl.sum(2)\nspl.rank()\nspl.rank() % 2 == 0 and "even" or "odd"\n@1 "one\\ntwo"\n'))
    end)

    it("runs a line on the ranks that are named before it", function()
        assert.equal("[1] 1\n[0,2] here\n[1-2] here\n[2] yes\n", answers(3, '@1 spl.rank()\n@0,2 "here"\n@1-2 "here"\n'
            .. '@2 x = "yes"\n@2 x\n'))
        local r = session(3, "@3 1\n@x 1\n@2-1 1\n")
        assert.equal(0, r.code)
        assert.matches("'@3' names ranks that there are not; they are 0 to 2", r.err, 1, true)
        assert.matches("'@' does not name ranks: write @2", r.err, 1, true)
        assert.matches("'@2-1' names ranks that there are not", r.err, 1, true)
    end)

    it("shows tensors with their shape, dtype, layout and values, and who holds what", function()
        local out = answers(3, 'm = spl.mesh "tp=*"\nx = spl.tensor { shape = { 6 }, mesh = m, '
            .. 'layout = "tp=shard(1)" }:iota()\nx\nx:gather()\nx:where()\n:mesh\n')
        assert.matches("[1] tensor f32 [6], tp=shard(1), here [2]\n    {2, 3}\n", out, 1, true)
        assert.matches("[0-2] tensor f32 [6], local\n      {0, 1, 2, 3, ...}\n", out, 1, true)
        assert.matches("[0-2] tp=0     tp=1     tp=2\n      0: [1-2] 1: [3-4] 2: [5-6]\n", out, 1, true)
        assert.matches("m = tp=3\n      tp=0 tp=1 tp=2\n      0    1    2\n", out, 1, true)
    end)

    it("says what to write for words of other prompts, and that a name is of no global", function()
        local r = session(2, "exit\nquit()\nhelp block\nspll\nzz = 1\nzz\nnil\nquit = 3\nquit\n")
        assert.same({ 0, "[0-1] nil   (there is no global 'spll'; did you mean 'spl'?)\n[0-1] 1\n[0-1] nil\n"
            .. "[0-1] 3\n" }, { r.code, r.out })
        assert.equal(2, mpi.count(r.err, "error: to end the session write :quit, or press Ctrl-D"))
        assert.matches("error: write :help block, or help \"block\"\n", r.err, 1, true)
    end)

    it("exits 0 at the end of its input, also after lines that failed", function()
        local r = session(1, "error 'no'\nx = = 1\nlocal t = nil; t.x = 1\nfor i = 1, 2 do\n")
        assert.same({ 0, "" }, { r.code, r.out })
        assert.matches("^error: line 1:1: no\n", r.err)
        assert.matches("error: line 2:1: unexpected symbol near '='\n", r.err, 1, true)
        assert.matches("error: line 3:1: attempt to index a nil value (local 't')\n", r.err, 1, true)
        assert.matches("error: line 4:2: 'end' expected", r.err, 1, true)
    end)

    it("takes bytes that are no text", function()
        local r = session(1, '"h\xc3\xa9"\n"\xff\xfe"\n\xff = 1\n#"\0"\n"on"\n')
        assert.equal(0, r.code)
        assert.equal('h\xc3\xa9\n\xff\xfe\n1\non\n', r.out)
        assert.matches("unexpected symbol near '<\\255>'", r.err, 1, true)
    end)

    it("works under mpirun, where rank 0 reads standard input, and on virtual ranks", function()
        local file = mpi.temporary "spl.rank()\nspl.barrier()\nif spl.rank() == 1 then error 'no' end\nspl.sum(1)\n"
        local r = mpi.command({ "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2",
            require "spl".executable(), "repl" }, { stdin = file })
        local v = mpi.spl({ "repl", "--virtual", "2" }, { stdin = file })
        os.remove(file)
        for _, result in ipairs { r, v } do
            assert.same({ 0, "[0] 0\n[1] 1\n[0-1] 2\n" }, { result.code, result.out })
            assert.matches("[1] error: line 3:1: no", result.err, 1, true)
        end
    end)

    it("refuses the null backend on several processes, not on virtual ranks", function()
        local r = session(2, "1\n", { flags = { "--backend", "null" } })
        assert.equal(2, r.code)
        assert.matches("use --virtual 2 in place of several processes", r.err, 1, true)
        assert.equal("[0-1] tensor f32 [2], local\n      (a backend without memory: no values)\n", answers(1,
            "spl.ones { shape = { 2 } }\n", { flags = { "--backend", "null", "--virtual", "2" } }))
    end)

    it("has help, time and the ranks", function()
        local out = answers(2, ":help\n:help :time\n:ranks\n:time\nspl.barrier()\n:time off\nhelp 'barrier'\n")
        assert.matches("  :time [on|off]   says after each line how long it took", out, 1, true)
        assert.matches("[1] rank 1: host ", out, 1, true)
        assert.matches("# [%d.]+ ms on rank [01], the slowest; up to [%d.]+ ms in communication\n", out)
        assert.matches("[0-1] spl.barrier()\n        [collective] Returns when every rank has called it.", out, 1, true)
    end)

    it("loads scripts, and says what is wrong with a command", function()
        local script = mpi.temporary("print(arg[0] == nil, spl ~= nil, ...)", ".lua")
        local r = session(1, ":load " .. script .. " a b\n:load no_such\n:load scroe\n:nonsense\n:tim\n:time never\n")
        os.remove(script)
        assert.same({ 0, "false\ttrue\ta\tb\n" }, { r.code, r.out })
        assert.matches("no script 'no_such' here or among the shipped ones\n", r.err, 1, true)
        assert.matches("did you mean 'score'?", r.err, 1, true)
        assert.matches("there is no command ':nonsense'; :help lists them", r.err, 1, true)
        assert.matches("there is no command ':tim'; did you mean ':time'?", r.err, 1, true)
        assert.matches(":time takes on, off or nothing, got 'never'", r.err, 1, true)
    end)
end)

describe("a line that goes wrong", function()
    it("on one rank says which, and all stay in step", function()
        local r = session(3, "if spl.rank() == 1 then error 'the cause' end spl.barrier()\nspl.sum(1)\n"
            .. "if spl.rank() == 2 then error {} end\nspl.sum(2)\n")
        assert.same({ 0, "[0-2] 3\n[0-2] 6\n" }, { r.code, r.out })
        assert.matches("^%[1%] error: line 1:1: the cause\n", r.err)
        assert.matches("%[0,2%] stopped: [^\n]*rank 1 failed in the line", r.err)
        assert.matches("[2] error: the error is not a message but: {}\n", r.err, 1, true)
    end)

    it("leaves no rank behind: collectives that only some enter are missed at once", function()
        local r = session(3, 'm = spl.mesh "tp=*"\nt = spl.ones { shape = { 3 } }\n'
            .. "if spl.rank() ~= 1 then spl.barrier() end\nif spl.rank() == 0 then m:all_reduce('tp', t) end\n"
            .. "@2 m:all_gather('tp', t)\n@0 n = spl.mesh 'a=*'\nn2 = spl.mesh 'b=*'\n"
            .. "n2:all_reduce('b', t):item(1)\nm:all_reduce('tp', t):item(1)\n")
        assert.same({ 0, "[0-2] 3.0\n[0-2] 3.0\n" }, { r.code, r.out })
        assert.equal(3, mpi.count(r.err, "missing participant: rank "))
        assert.is_true(r.seconds < 20)
    end)

    it("may be any mix of calls that do not fit: the next line is in step again", function()
        local calls = { "spl.barrier()", "m:all_reduce('tp', t)", "n:all_gather('a', t)", "spl.sum(1)",
            "m:all_gather('tp', t)", "m = spl.mesh 'tp=*'", "error 'own'", "n = spl.mesh 'a=*'",
            "m:broadcast('tp', t, 1)", "pcall(spl.barrier)" }
        local lines, seed = { 'm = spl.mesh "tp=*"', 'n = spl.mesh "a=*"', "t = spl.ones { shape = { 3 } }" }, 7
        local function draw(k)
            seed = (seed * 1103515245 + 12345) % 2147483648
            return seed // 65536 % k
        end
        for i = 1, 25 do
            for rank = 0, 2 do
                local parts = {}
                for k = 1, 1 + draw(3) do
                    parts[k] = draw(4) > 0 and calls[i % #calls + 1] or calls[1 + draw(#calls)]
                end
                lines[#lines + 1] = ("if spl.rank() == %d then %s end"):format(rank, table.concat(parts, " "))
            end
            local joined = table.concat(table.move(lines, #lines - 2, #lines, 1, {}), " ")
            lines[#lines - 2], lines[#lines - 1], lines[#lines] = joined, nil, nil
            lines[#lines + 1] = ("m, n = spl.mesh 'tp=*', spl.mesh 'a=*'; return %d, m:all_reduce('tp', t):item(1), "
                .. "n:all_gather('a', t):item(9), spl.sum(1)"):format(i)
        end
        for _, way in ipairs { { "-n", "3" }, { "--virtual", "3" } } do
            local r = session(1, table.concat(lines, "\n") .. "\n", { flags = way })
            assert.equal(0, r.code)
            for i = 1, 25 do
                assert.matches(("[0-2] %d\t3.0\t1.0\t3\n"):format(i), r.out, 1, true)
            end
        end
    end)

    it("may take memory until there is none: an error, and the session lives", function()
        if mpi.sanitized() then
            pending "the sanitizers do not know a limit of address space"
        end
        local file = mpi.temporary("t = {} for i = 1, 1e6 do t[i] = ('x'):rep(1e6) .. i end\nt = nil\n'on'\n"
            .. "spl.ones { shape = { 1000000, 1000000, 1000 } }\n'still on'\n")
        local r = mpi.command({ "sh", "-c", "ulimit -v 1500000; exec '" .. require "spl".executable() .. "' repl" },
            { stdin = file })
        os.remove(file)
        assert.same({ 0, "on\nstill on\n" }, { r.code, r.out })
        assert.matches("error: [^\n]*not enough memory", r.err)
        assert.matches("bytes (3725290.30 GiB) are wanted for activations", r.err, 1, true)
    end)

    it("is stopped by os.exit of any rank, which ends the session", function()
        local r = session(2, "1\nif spl.rank() == 1 then os.exit(5) end\n2\n")
        assert.same({ 5, "[0-1] 1\n" }, { r.code, r.out })
        assert.matches("a rank has left, so the session is over", r.err, 1, true)
        r = session(2, "os.exit(true)\n2\n")
        assert.same({ 0, "" }, { r.code, r.out })
    end)

    it("survives recursion without end, and prints of megabytes are cut", function()
        local r = session(2, "function f() return 1 + f() end f()\nfor i = 1, 1e5 do print(('x'):rep(100)) end\n'on'\n")
        assert.equal(0, r.code)
        assert.matches("[0-1] error: line 1:1: stack overflow", r.err, 1, true)
        assert.matches("\n%.%.%. %(10034464 more bytes are not shown; a line shows 64 KiB of each rank%)\n",
            (r.out:gsub("\n +", "\n")))
        assert.matches("%[0%-1%] on\n$", r.out)
        assert.is_true(#r.out < 100000)
    end)
end)
