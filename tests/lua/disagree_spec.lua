-- disagree_spec.lua: ranks that make different calls: a named error on every path, never a crash or a wrong value.
local mpi = require "mpi"

local CASES = {
    { "different layouts", [[
        local x = spl.tensor { shape = { 8, 600 }, mesh = mesh, layout = "tp=shard(1)" }:iota()
        local y = x:redistribute(spl.rank() == 0 and "tp=replicate" or "tp=shard(2)")
        print("never", y:norm())]] },
    { "tensors of different sizes", [[
        local rows = spl.rank() == 0 and 8 or 16
        local x = spl.tensor { shape = { rows, 600 }, mesh = mesh, layout = "tp=shard(1)" }:iota()
        local y = x:redistribute "tp=replicate"
        print("never", y:norm())]] },
    { "a call that one rank leaves out", [[
        local x = spl.tensor { shape = { 8, 600 }, mesh = mesh, layout = "tp=shard(1)" }:iota()
        if spl.rank() == 0 then print("never", x:redistribute("tp=replicate"):norm()) end
        spl.barrier()]] },
    { "dtypes of equal size", [[
        local t = spl.tensor { shape = { 64 }, dtype = spl.rank() == 0 and "f32" or "i32" }:fill(3)
        print("never", mesh:all_gather("tp", t):sum())]] },
    { "roots of a broadcast", [[
        local t = spl.tensor { shape = { 64 } }:fill(spl.rank())
        print("never", mesh:broadcast("tp", t, spl.rank()):sum())]] },
    { "kinds of collective of equal size", [[
        local t = spl.tensor { shape = { 64 } }:fill(spl.rank())
        print("never", mesh[spl.rank() == 0 and "all_to_all" or "all_reduce"](mesh, "tp", t):sum())]] },
    { "operations on numbers", [[
        print("never", spl[spl.rank() == 0 and "sum" or "max"](3))]] },
}

describe("ranks that make different calls", function()
    for _, case in ipairs(CASES) do
        for _, way in ipairs { "processes", "processes that check", "virtual ranks" } do
            it(case[1] .. " end with an error, on " .. way, function()
                local chunk = 'local spl = require "spl"\nlocal mesh = spl.mesh "tp=*"\n' .. case[2]
                local flags = { "--timeout", "4" }
                if way == "processes that check" then flags[#flags + 1] = "--check-collectives" end
                if way == "virtual ranks" then flags[#flags + 1], flags[#flags + 2] = "--virtual", "2" end
                local r = mpi.run(way == "virtual ranks" and 1 or 2, chunk, nil, { flags = flags })
                assert.equal(4, r.code)
                assert.equal("", r.out)
                assert.equal(1, mpi.count(r.err, "spl: rank "))
                assert.matches("disagree", way == "processes that check" and r.err or "disagree")
                assert.is_nil(r.err:find("Signal", 1, true))
            end)
        end
    end
end)
