-- 09_ring_attention.lua: ring attention (Liu, Zaharia & Abbeel 2023) from shift, tiles and merging, beside the built-in
-- one. spl run -n 4 examples/09_ring_attention.lua
local spl = require "spl"

local o = spl.args { "Causal ring attention by hand.", batch = 1, chunk = 24, heads = 4, head_dim = 16 }
local P, me = spl.size(), spl.rank()
local mesh = spl.mesh "cp=*"
local shape = { o.batch, o.chunk * P, o.heads, o.head_dim }

-- Each rank holds a chunk of the sequence; the local parts are tensors of this rank alone.
local function part(seed)
    return spl.tensor { shape = shape, mesh = mesh, layout = "cp=shard(2)" }:randn(seed)
end
local q, k, v = part(1), part(2), part(3)

local function ring(mine, key, value)
    local out, lse
    for step = 0, P - 1 do
        local from = (me - step) % P -- whose chunk is here now
        local onward = step < P - 1
        local next_key = onward and mesh:shift("cp", key)
        local next_value = onward and mesh:shift("cp", value)
        if from <= me then -- keys of later chunks are invisible
            out, lse = spl.attention(mine, key, value,
                { mask = from == me and "causal" or "full", into = out and { out, lse } })
        end
        key, value = next_key, next_value
    end
    return out
end

spl.reset_counters()
local by_hand = ring(q:to_local(), k:to_local(), v:to_local())
local sent = spl.sum(spl.counters().bytes.total)

-- The built-in ring does the same, and does not send what nobody on the way can see.
spl.reset_counters()
local built_in = spl.attention(q, k, v, { role = "ring" })
local least = spl.sum(spl.counters().bytes.total)
local d = spl.compare(by_hand, built_in:to_local())
assert(spl.max(d.max_abs) < 1e-5 and least <= sent)
if me == 0 then
    print(("by hand and built in agree to %.1e; bytes sent by all: %d by hand, %d built in"):format(d.max_abs, sent,
        least))
end
