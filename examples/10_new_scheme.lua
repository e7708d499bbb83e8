-- 10_new_scheme.lua: a scheme of one's own in some 40 lines: a two-way ring. Half of each chunk's keys travel up the
-- ring and half down, so that both directions of the links are busy, and each round moves half as much one way. Checked
-- against the built-in ring and the fp64 reference. spl run -n 4 examples/10_new_scheme.lua
local spl = require "spl"

local o = spl.args { "A two-way ring.", batch = 1, chunk = 24, heads = 4, head_dim = 16 }
local P, me = spl.size(), spl.rank()
local mesh = spl.mesh "cp=*"
local S = o.chunk * P

local function tensor(seed, m)
    return spl.tensor { shape = { o.batch, S, o.heads, o.head_dim }, mesh = m, layout = m and "cp=shard(2)" }
        :randn(seed)
end
local q, k, v = tensor(1, mesh), tensor(2, mesh), tensor(3, mesh)

-- A half of a chunk: a dense copy, since it is about to travel.
local half = o.chunk // 2
local function halves(t)
    return t:narrow(2, 1, half):contiguous(), t:narrow(2, half + 1, o.chunk - half):contiguous()
end

-- Which keys of half h of chunk `from` my queries see: all of earlier chunks, of my own up to the diagonal.
local function mask(from, h)
    if from ~= me then
        return from < me and "full" or nil
    end
    local first = h == 1 and 1 or half + 1
    local last = h == 1 and half or o.chunk
    local slices = { seq = o.chunk, kv_seq = last - first + 1 }
    slices[1] = { q = { first, last }, k = { 1, last - first + 1 }, kind = "causal" }
    if h == 1 and half < o.chunk then -- the second half of the queries sees the first half of the keys
        slices[2] = { q = { half + 1, o.chunk }, k = { 1, half } }
    end
    return spl.mask(slices)
end

local function two_way(mine, key, value)
    local keys, values = { halves(key) }, { halves(value) }
    local out, lse
    for step = 0, P - 1 do
        for h, by in ipairs { 1, -1 } do -- half 1 goes up, half 2 down
            local visible = mask((me - by * step) % P, h)
            if visible then
                out, lse = spl.attention(mine, keys[h], values[h], { mask = visible, into = out and { out, lse } })
            end
        end
        for h, by in ipairs(step < P - 1 and { 1, -1 } or {}) do
            keys[h], values[h] = mesh:shift("cp", keys[h], by), mesh:shift("cp", values[h], by)
        end
    end
    return out, lse
end

local out, lse = two_way(q:to_local(), k:to_local(), v:to_local())

local built_in, built_in_lse = spl.attention(q, k, v, { role = "ring" })
local d, e = spl.compare(out, built_in:to_local()), spl.compare(lse, built_in_lse:to_local())
local rows = {}
for i = 1, o.chunk do
    rows[i] = me * o.chunk + i
end
local truth = spl.reference.attention { batch = o.batch, heads = o.heads, kv_heads = o.heads, seq_q = S, seq_k = S,
    head_dim = o.head_dim, q = tensor(1), k = tensor(2), v = tensor(3), rows = rows,
    slices = { { q_begin = 0, q_end = S, k_begin = 0, k_end = S, kind = "causal" } } }
local f = spl.compare(out, truth.out)
assert(spl.max(d.max_abs) < 1e-5 and spl.max(e.max_abs) < 1e-5, "the built-in ring disagrees")
assert(spl.max(math.sqrt(f.diff_squares / f.ref_squares)) < 2e-6, "the reference disagrees")
local off = spl.max(d.max_abs)
if me == 0 then
    print(("the two-way ring agrees with the built-in ring to %.1e, and with fp64"):format(off))
end
