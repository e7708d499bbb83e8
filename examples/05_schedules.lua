-- 05_schedules.lua: one definition under every schedule that a block can use on these ranks: the same numbers, other
-- bytes. spl run -n 4 examples/05_schedules.lua
local spl = require "spl"

local o = spl.args { "One block under every schedule.", batch = 2, seq = 48, hidden = 48, heads = 6 }

-- The program itself knows which meshes a block takes; rank 0 asks it, and everybody hears the answer.
local list = spl.rank() == 0 and table.concat(spl.meshes(spl.size(), { axes = 2 }), ";") or ""
local meshes = spl.gather(list)[1]

local first
for text in meshes:gmatch "[^;]+" do
    local mesh <close> = spl.mesh(text)
    local block <close> = spl.block { hidden = o.hidden, heads = o.heads, seed = 7 }:schedule(mesh)
    local x <close> = block:input { batch = o.batch, seq = o.seq }:randn(11)
    spl.reset_counters()
    local y <close> = block:forward(x)
    local sent, norm = spl.max(spl.counters().bytes.total), y:norm()
    first = first or norm
    if spl.rank() == 0 then
        print(("%-32s ‖y‖ = %.4f   %7d bytes sent at most"):format(text, norm, sent))
    end
    -- hierarchical attention is an approximation and says so; all others compute the same
    assert(text:find "hierarchical" or math.abs(norm - first) < 1e-3 * first, text)
end
