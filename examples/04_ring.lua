-- 04_ring.lua: a scheme of one's own: a sum round a ring, a step at a time, beside the library's all-reduce.
-- spl run -n 4 examples/04_ring.lua
local spl = require "spl"

local mesh = spl.mesh "ring=*"
local n = spl.size()

-- Each rank starts with its own vector; after n - 1 steps everybody has seen all of them.
local mine = spl.tensor { shape = { 5 }, dtype = "f64" }:fill(spl.rank() + 1)
local travelling, total = mine, mine
for _ = 1, n - 1 do
    travelling = mesh:shift("ring", travelling)
    total = spl.add(total, travelling)
end

local reduced = mesh:all_reduce("ring", mine)
assert(total:item(1) == n * (n + 1) / 2 and reduced:item(1) == total:item(1))
if spl.rank() == 0 then
    print(("the ring and the all-reduce agree: %g"):format(total:item(1)))
end
