-- 08_tiles.lua: attention in tiles: each part gives an output and the log of its sum of exponentials, and merging parts
-- gives what one pass over all keys would. This is what flash attention does, and every scheme that moves keys.
local spl = require "spl"

local shape = { 1, 64, 4, 16 } -- batch, sequence, heads, head_dim
local q, k, v = spl.tensor { shape = shape }:randn(1), spl.tensor { shape = shape }:randn(2),
    spl.tensor { shape = shape }:randn(3)

-- All at once, causal: a query sees the keys up to its own place.
local whole, whole_lse = spl.attention(q, k, v)

-- The queries of the second half: the keys of the first half are all visible, those of the second up to the diagonal.
local first, second = { 1, 32 }, { 33, 32 } -- where a half begins, and its length
local function half(t, part)
    return t:narrow(2, part[1], part[2])
end
local mine = half(q, second)
local out, lse = spl.attention(mine, half(k, first), half(v, first), { mask = "full" })
local alone = out:clone()
spl.attention(mine, half(k, second), half(v, second), { mask = "causal", into = { out, lse } })

local merged = spl.compare(out, half(whole, second):contiguous())
local not_yet = spl.compare(alone, half(whole, second):contiguous())
assert(merged.max_abs < 1e-5 and not_yet.max_abs > 0.1)
print(("merged: off by %.1e; the first tile alone: off by %.1f"):format(merged.max_abs, not_yet.max_abs))

-- The order of tiles does not matter, and a tile that a query sees nothing of changes nothing: its lse is -inf.
local nothing, lse_of_nothing = spl.attention(mine, half(k, first), half(v, first),
    { mask = { seq = 32, { q = { 1, 1 }, k = { 1, 1 } } } }) -- only the first query sees something
assert(nothing:item(1, 2, 1, 1) == 0 and lse_of_nothing:item(1, 1, 2) == -math.huge)

-- lse is natural: weights of the merged parts are exp(lse_part - lse).
assert(math.abs(lse:item(1, 1, 32) - whole_lse:item(1, 1, 64)) < 1e-5)
