-- virtual_spec.lua: ranks within one process: the same bits as under mpirun, repeatable, and ending as ranks do.
local mpi = require "mpi"

-- Prints every rank's output of a block, bit by bit, in rank order.
local BLOCK = [[
local spl = require "spl"
local o = spl.args { mesh = "tp=*:tensor" }
local mesh = spl.mesh(o.mesh)
local blk = spl.block { hidden = 24, heads = 6, kv_heads = 3, qkv = "separate", rope_theta = 10000, dropout = 0.1,
    seed = 3 }:schedule(mesh)
local y = blk:forward(blk:input { batch = 3, seq = 13 }:randn(5))
local all = spl.gather((y:to_bytes():gsub(".", function(c) return ("%02x"):format(c:byte()) end)))
if spl.rank() == 0 then
    for rank, bytes in ipairs(all) do print(rank, bytes) end
end
]]

local function virtual(n, chunk, args, flags)
    local words = { "--virtual", tostring(n) }
    for _, word in ipairs(flags or {}) do words[#words + 1] = word end
    return mpi.run(1, chunk, args, { flags = words })
end

describe("virtual ranks", function()
    for _, case in ipairs { { 2, "tp=*:tensor" }, { 3, "tp=*:sequence" }, { 4, "dp=2:data, tp=*:sequence" } } do
        local n, mesh = case[1], case[2]
        it(("give the same bits as %d processes in %s"):format(n, mesh), function()
            local here, there = virtual(n, BLOCK, { "--mesh", mesh }), mpi.run(n, BLOCK, { "--mesh", mesh })
            assert.same({ 0, "" }, { here.code, here.err })
            assert.equal(0, there.code)
            assert.is_true(#here.out > 1000)
            assert.equal(there.out, here.out)
        end)
    end

    it("run 64 at once", function()
        local r = virtual(64, [[
            local spl = require "spl"
            local mesh = spl.mesh "tp=*:sequence"
            local blk = spl.block { hidden = 32, heads = 4, seed = 1 }:schedule(mesh)
            local result = blk:check(blk:input { batch = 1, seq = 50 }:randn(2))
            if spl.rank() == 0 then print(spl.size(), spl.virtual(), result.wrong, result.rel_err < 2e-6) end
        ]])
        assert.same({ 0, "64\ttrue\t0\ttrue\n", "" }, { r.code, r.out, r.err })
    end)

    it("take turns in the same order every time", function()
        local chunk = [[
            local spl = require "spl"
            for i = 1, 3 do print(spl.rank(), i) spl.barrier() end
        ]]
        local first = virtual(5, chunk)
        assert.equal(15, mpi.count(first.out, "\n"))
        assert.equal(first.out, virtual(5, chunk).out)
    end)

    it("end together when one fails, its cause printed once", function()
        local r = virtual(4, [[
            local spl = require "spl"
            if spl.rank() == 2 then error("this rank is unwell") end
            spl.barrier()
        ]])
        assert.equal(1, r.code)
        assert.equal(1, mpi.count(r.err, "this rank is unwell"))
        assert.matches("rank 2", r.err)
        assert.is_true(r.seconds < 60)
    end)

    it("notice a call that one rank leaves out", function()
        local r = virtual(3, [[
            local spl = require "spl"
            if spl.rank() > 0 then spl.max(1) end
        ]], nil, { "--timeout", "2" })
        assert.equal(4, r.code)
        assert.matches("rank 0", r.err)
    end)

    it("end with the code that a script asks for", function()
        assert.equal(7, virtual(3, "if require 'spl'.rank() == 1 then os.exit(7) end").code)
    end)

    it("count bytes for many ranks without memory", function()
        local r = virtual(16, [[
            local spl = require "spl"
            local mesh = spl.mesh "tp=*:tensor"
            local blk = spl.block { hidden = 4096, heads = 32 }:schedule(mesh)
            blk:forward(blk:input { batch = 1, seq = 65536 })
            local c = spl.counters()
            if spl.rank() == 0 then print(c.bytes["all-reduce"]) end
        ]], nil, { "--backend", "null" })
        assert.equal(0, r.code)
        -- two all-reduces of 65536 x 4096 floats, each 2 (P-1)/P of its size
        assert.equal(2 * 2 * 15 * (65536 * 4096 // 16) * 4, math.tointeger(tonumber(r.out:match("[%d.]+"))))
    end)

    it("do not go together with processes", function()
        local both = mpi.spl { "run", "--virtual", "2", "-n", "2", "sp_forward.lua" }
        assert.equal(2, both.code)
        assert.matches("leave out %-n", both.err)
        assert.equal(2, mpi.spl({ "run", "--virtual", "0", "sp_forward.lua" }).code)
        local under = mpi.run(2, "return 1", nil, { mpirun = true, flags = { "--virtual", "2" } })
        assert.equal(2, under.code)
        assert.equal(1, mpi.count(under.err, "leave out mpirun"))
    end)
end)
