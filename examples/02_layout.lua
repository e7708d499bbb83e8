-- 02_layout.lua: who holds what: meshes, layouts, and moving a tensor from one layout to another. Run it on any number
-- of ranks: spl run -n 3 examples/02_layout.lua
local spl = require "spl"

local function say(...)
    if spl.rank() == 0 then
        print(...)
    end
end

-- One axis over all ranks. Larger meshes have several: "dp=2, tp=*".
local mesh = spl.mesh "tp=*"

-- Seven rows over the ranks, as even as they go: nobody pads. Each rank has its part only, and knows which.
local x = spl.tensor { shape = { 7, 4 }, dtype = "f64", mesh = mesh, layout = "tp=shard(1)" }:iota()
for rank, text in ipairs(spl.gather(("rows %s"):format(x.local_shape[1]))) do
    say("rank " .. rank - 1, text)
end

-- The same global tensor, split by columns: an all-to-all. Then whole on every rank: an all-gather.
spl.reset_counters()
local by_column = x:redistribute "tp=shard(2)"
local whole = by_column:redistribute "tp=replicate"
assert(whole:to_local():item(7, 4) == 27)
say(("moved %d bytes from here in %d calls"):format(spl.counters().bytes.total, spl.counters().calls.total))

-- A pending sum: every rank holds a summand, and replicating adds them up.
local one = spl.tensor { shape = { 3 }, dtype = "f64", mesh = mesh, layout = "tp=partial" }:set_local { 1, 2, 3 }
assert(one:redistribute("tp=replicate"):to_local():item(2) == 2 * spl.size())

-- Layouts can be asked about any machine, without having it: 64 ranks, a causal sequence in zigzag order.
local machine = spl.mesh.parse("cp=64", 64)
local layout = spl.layout("cp=shard(1,zigzag)", machine, { 1 << 20 })
for _, segment in ipairs(layout:segments(1, { 0 })) do
    say(("rank 0 of 64 holds %d positions from %d on"):format(segment.length, segment.start))
end
