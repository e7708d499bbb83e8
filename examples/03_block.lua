-- 03_block.lua: a transformer block, split as the mesh says, checked against fp64, and everything it sends.
-- spl run -n 2 examples/03_block.lua --mesh tp=*:tensor
local spl = require "spl"

local o = spl.args {
    "Runs a small block under a schedule, checks it, and compares what it sent with what explain said.",
    batch = 2, seq = 50, hidden = 96, heads = 6, kv_heads = 3, mesh = "tp=*:sequence",
}

-- The definition says the mathematics once; the schedule says how the axes of the mesh are used.
local mesh = spl.mesh(o.mesh)
local block = spl.block {
    hidden = o.hidden, heads = o.heads, kv_heads = o.kv_heads, qkv = "separate", norm = "rms", gated = true,
    act = "silu", ffn = 250, bias = false, rope_theta = 10000, seed = 7,
}:schedule(mesh)

local x = block:input { batch = o.batch, seq = o.seq }:randn(11)
spl.reset_counters()
local y = block:forward(x)
local sent = spl.counters().bytes.total
local norm = y:norm() -- the same number whatever the mesh

local plan = block:explain { batch = o.batch, seq = o.seq }
local result = block:check(x)
if spl.rank() == 0 then
    print(plan)
    print(("‖y‖ = %.6f, relative error %.1e, %d wrong"):format(norm, result.rel_err, result.wrong))
end
local said = 0
for _, line in ipairs(plan) do
    said = said + line.bytes
end
assert(said == sent, "explain and the counters disagree")
assert(result.wrong == 0 and result.rel_err < 2e-6)
