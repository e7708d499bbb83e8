-- hang_spec.lua: ranks that disagree or stall: the error names the kind, and a table says what each rank does, where.
local mpi = require "mpi"

local BEGIN = 'local spl = require "spl"\nlocal mesh = spl.mesh "tp=*"\nlocal t = spl.ones { shape = { 6 } }\n'
    .. 'local rank = spl.rank()\n' -- four lines

local function ends_with_four(chunk, flags)
    local r = mpi.run(3, BEGIN .. chunk, nil, { flags = flags or { "--check-collectives", "--timeout", "20" } })
    assert.same({ 4, "" }, { r.code, r.out })
    assert.equal(1, mpi.count(r.err, "spl: rank "))
    assert.equal(1, mpi.count(r.err, "what it does"))
    return r.err
end

-- Is there a row of the table that says so?
local function row(text, ranks, what, line)
    for found_ranks, rest in text:gmatch("\n  ([%d,-]+) +([^\n]+)") do
        if found_ranks == ranks and rest:sub(1, #what) == what and
            rest:sub(#what + 1):match("^ +%S+%.lua:(%d+)$") == (line and tostring(line)) then
            return true
        end
    end
    error(("no row '%s %s' at line %s in:\n%s"):format(ranks, what, line, text), 2)
end

describe("ranks that call different things", function()
    it("a different API", function()
        local text = ends_with_four 'if rank == 1 then\nmesh:all_gather("tp", t)\nend\nmesh:all_reduce("tp", t)'
        assert.matches("ranks disagree %(different API%): rank 0 calls all%-reduce of 6 f32 on axis tp %(%S+:8%), "
            .. "rank 1 calls all%-gather of 6 f32 on axis tp %(%S+:6%)\n", text)
        row(text, "0,2", "all-reduce of 6 f32 on axis tp", 8)
        row(text, "1", "all-gather of 6 f32 on axis tp", 6)
    end)

    it("a different parameter: dtype, root, axis", function()
        local text = ends_with_four 'if rank == 2 then t = t:cast "f64" end\nmesh:all_reduce("tp", t)'
        assert.matches("(different parameter, the dtype)", text, 1, true)
        row(text, "0-1", "all-reduce of 6 f32 on axis tp", 6)
        row(text, "2", "all-reduce of 6 f64 on axis tp", 6)
        text = ends_with_four 'mesh:broadcast("tp", t, rank == 0 and 1 or 2)'
        assert.matches("(different parameter, the root)", text, 1, true)
        row(text, "0", "broadcast of 6 f32 from member 1 on axis tp", 5)
        row(text, "1-2", "broadcast of 6 f32 from member 2 on axis tp", 5)
        text = ends_with_four('local other = spl.mesh "a=*"\nif rank > 0 then mesh = other end\n'
            .. 'mesh:all_reduce(mesh.axes[1].name, t)')
        assert.matches("(different parameter, the axis)", text, 1, true)
        row(text, "0", "all-reduce of 6 f32 on axis tp", 7)
        row(text, "1-2", "all-reduce of 6 f32 on axis a", 7)
    end)

    it("a different count", function()
        local text = ends_with_four 'mesh:all_reduce("tp", rank == 1 and t:narrow(1, 1, 4) or t)'
        assert.matches("(different count)", text, 1, true)
        row(text, "0,2", "all-reduce of 6 f32 on axis tp", 5)
        row(text, "1", "all-reduce of 4 f32 on axis tp", 5)
    end)

    it("a missing participant: one that has ended, loops, computes, or is elsewhere", function()
        local text = ends_with_four 'if rank ~= 1 then\nmesh:all_reduce("tp", t) end'
        assert.matches("missing participant: rank 1 ended its script", text, 1, true)
        row(text, "0,2", "all-reduce of 6 f32 on axis tp", 6)
        assert.matches("\n  1 +has ended its script\n", text)
        text = ends_with_four('if rank == 1 then while true do\nrank = rank + 1 end end\nmesh:all_reduce("tp", t)',
            { "--check-collectives", "--timeout", "2" })
        assert.matches("missing participant: rank 1 never came to all-reduce of 6 f32 on axis tp", text, 1, true)
        row(text, "0,2", "all-reduce of 6 f32 on axis tp", 7)
        assert.matches("\n  1 +runs Lua +%S+:[56]\n", text)
    end)
end)

describe("a stall without checking", function()
    local function stall(chunk)
        return ends_with_four(chunk, { "--timeout", "2" })
    end

    it("shows a rank that is stuck in Lua, with its line", function()
        local text = stall 'if rank == 2 then\nwhile true do end end\nspl.barrier()'
        assert.matches("waited [%d.]+ s for [^\n]* and nothing moved for", text)
        row(text, "0-1", "a barrier over all ranks", 7)
        row(text, "2", "runs Lua", 6)
    end)

    it("names a rank that makes another call, and the option that compares calls", function()
        local text, who, other
        for _ = 1, 4 do -- the rank that gave up first may be on its way out when the other looks
            text = stall 'if rank == 1 then\nmesh:all_gather("tp", t)\nend\nmesh:all_reduce("tp", t)'
            who, other = text:match("^spl: rank (%d): rank %d waited [^\n]*; rank (%d) makes another call, "
                .. "all%-%l+ on axis tp %(%S+%.lua:[68]%); %-%-check%-collectives names [^\n]*, or raise %-%-timeout")
            if who then break end
        end
        assert.is_truthy(who and other and (who == "1") ~= (other == "1"), text)
        text = stall 'mesh:all_reduce("tp", rank == 1 and t:narrow(1, 1, 4) or t)'
        assert.matches("all ranks make this call, but perhaps not with the same sizes; --check-collectives", text, 1,
            true)
        text = stall 'if rank == 1 then\nwhile true do end end\nmesh:all_reduce("tp", t)'
        assert.matches("; look for a rank that does not make this call, or raise --timeout", text, 1, true)
        assert.is_nil(text:find("--check-collectives", 1, true))
    end)

    it("shows a rank that is stuck in compute, with the op", function()
        local text = stall('if rank == 1 then\nlocal x = spl.ones { shape = { 3000, 3000 }, dtype = "f64" }\n'
            .. 'while true do spl.linear(x, x) end end\nmesh:all_reduce("tp", t)')
        row(text, "1", "computes linear", 7)
        row(text, "0,2", "all-reduce on axis tp", 8)
    end)

    it("shows a rank that waits for another program, and one that was stopped", function()
        local text = stall 'if rank == 1 then os.execute "exec sleep 20" end\nspl.barrier()'
        assert.matches("\n  1 +runs Lua, inside a library or another program", text)
        text = stall 'if rank == 1 then io.popen("kill -STOP $PPID"):close() end\nspl.barrier()'
        assert.matches("\n  1 +is stopped by a signal", text)
    end)
end)

describe("an error object", function()
    it("carries the table, apart from its sentence", function()
        local r = mpi.run(2, BEGIN
            .. 'local _, e = pcall(mesh.all_reduce, mesh, "tp", rank == 0 and t or t:cast "f64")\n'
            .. 'if rank == 0 then print(e.code, tostring(e):find "\\n", (e.report:gsub("%S+%.lua", "x.lua"))) end', nil,
            { flags = { "--check-collectives" } })
        assert.same({ 0, "disagree\tnil\t  rank  what it does                    where\n"
            .. "  0     all-reduce of 6 f32 on axis tp  x.lua:5\n"
            .. "  1     all-reduce of 6 f64 on axis tp  x.lua:5\n" }, { r.code, r.out })
    end)
end)
