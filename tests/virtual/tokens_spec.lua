-- tokens_spec.lua: a block on every kind of mesh: changing one token of its input changes the rows that may see it and
-- not one bit of the others; what a rank sends grows with KV heads; lengths and layouts that others were reported to
-- get wrong.
local spl = require "spl"
local world = spl.size()

local function divides(n)
    return world % n == 0
end

local function scheduled(mesh, o)
    local blk = spl.block { hidden = o.hidden or 32, heads = o.heads or 4, kv_heads = o.kv_heads or 2,
        head_dim = o.head_dim, rope_theta = 10000, mask = o.mask or "causal", seed = 3 }
    return blk:schedule(mesh, { scheme = o.scheme, chunk = 8, summaries = 2 })
end

-- ---- one token of the input

local S = 37

local function causal(q, k) return k <= q end

local cases = {
    { "cp=*:ring", scheme = "zigzag" }, { "cp=*:ring", scheme = "striped", mask = "window:8" },
    { "cp=*:gather", scheme = "zigzag" }, { "cp=*:ulysses", scheme = "striped" }, { "cp=*:hierarchical" },
    { "cp=*:hierarchical", mask = "full" }, { "tp=*:tensor" }, { "tp=*:sequence", mask = "prefix:5" },
    { "u=2:ulysses, r=*:ring", 2, scheme = "zigzag", mask = "docs:9,20,2,6" }, { "r=2:ring, u=*:ulysses", 2 },
    { "tp=2:sequence, cp=*:ring", 2, scheme = "zigzag" }, { "tp=2:tensor, sp=*:ulysses", 2 },
    { "h=2:hierarchical, u=*:ulysses", 2 }, { "r=2:ring, g=*:gather", 2, scheme = "zigzag" },
}

local function sees(mask)
    if mask == "full" then return function() return true end end
    if mask == "window:8" then return function(q, k) return k <= q and k > q - 8 end end
    if mask == "prefix:5" then return function(q, k) return k <= q or k <= 5 end end
    if mask == "docs:9,20,2,6" then
        local ends = { 9, 29, 31, 37 }
        return function(q, k)
            for _, e in ipairs(ends) do
                if q <= e or k <= e then return q <= e and k <= q end
            end
        end
    end
    return causal
end

describe("changing one token of a block's input", function()
    for _, case in ipairs(cases) do
        if divides(case[2] or 1) then
            it(("%s, %s, %s"):format(case[1], case.scheme or "contiguous", case.mask or "causal"), function()
                local mesh <close> = spl.mesh(case[1])
                local blk <close> = scheduled(mesh, case)
                local x <close> = blk:input { batch = 1, seq = S }:randn(11)
                local whole <close> = x:gather()
                local function rows(values)
                    local t <close> = spl.tensor { shape = values.shape }:set(values)
                    local input <close> = blk:input { batch = 1, seq = S }:set(t)
                    local y <close> = blk:forward(input)
                    local out <close> = y:gather()
                    return out:to_bytes()
                end
                local before, width, may_see = rows(whole), 4 * 32, sees(case.mask)
                assert.is_true(before == rows(whole))
                for _, j in ipairs { 1, 13, S } do
                    local values = whole:flat()
                    for i = 32 * (j - 1) + 1, 32 * j do values[i] = -values[i] end
                    local changed <close> = spl.tensor { shape = whole.shape }:set(values)
                    local after = rows(changed)
                    for i = 1, S do
                        local a = before:sub(width * (i - 1) + 1, width * i)
                        local b = after:sub(width * (i - 1) + 1, width * i)
                        assert.equal(may_see(i, j), a ~= b, ("token %d, row %d"):format(j, i))
                    end
                end
            end)
        end
    end
end)

-- ---- reports

local function judged(mesh_text, o)
    local mesh <close> = spl.mesh(mesh_text)
    local blk <close> = scheduled(mesh, o)
    local x <close> = blk:input { batch = 1, seq = o.seq }:randn(11)
    local r = blk:check(x, { rows = o.rows })
    assert.equal(0, r.wrong)
    assert.is_true(not r.bound or r.rel_err <= r.bound)
end

describe("as it was reported elsewhere:", function()
    it("a sequence of 2999, and those around twice the ranks", function()
        for _, role in ipairs { "ring", "gather", "ulysses" } do
            judged("cp=*:" .. role, { seq = 2999, scheme = "zigzag", rows = 40, hidden = 16, heads = 2, kv_heads = 1 })
            for _, seq in ipairs { 2 * world - 1, 2 * world, 2 * world + 1 } do
                judged("cp=*:" .. role, { seq = seq, scheme = "zigzag", hidden = 4, heads = 1, kv_heads = 1 })
            end
        end
    end)

    it("zigzag with a full mask, and windows across ranks", function()
        for _, mask in ipairs { "full", "window:8", "window:20" } do
            for _, role in ipairs { "ring", "gather", "ulysses" } do
                judged("cp=*:" .. role, { seq = 64, scheme = "zigzag", mask = mask })
                judged("cp=*:" .. role, { seq = 64, mask = mask })
            end
        end
    end)

    it("fewer KV heads than ranks: right, and bytes of keys and values scale with them", function()
        for _, role in ipairs { "ring", "gather" } do
            local mesh <close> = spl.mesh("cp=*:" .. role)
            local sent = {}
            for _, h in ipairs { { 8, 2 }, { 8, 8 }, { 40, 8 } } do
                judged(mesh.spec, { seq = 45, heads = h[1], kv_heads = h[2], hidden = 4 * h[1] })
                local blk <close> = scheduled(mesh, { heads = h[1], kv_heads = h[2], hidden = 4 * h[1], mask = "full" })
                local x <close> = blk:input { batch = 1, seq = 45 }:randn(11)
                spl.reset_counters()
                blk:forward(x):release()
                local rows = x.local_shape[2] -- each of them reaches all the others once
                local bytes = spl.sum(spl.counters().bytes.total)
                assert.equal((world - 1) * 45 * 2 * h[2] * 4 * 4, bytes)
                assert.is_true(rows <= 45 // world + 1)
                sent[#sent + 1] = bytes
            end
            assert.equal(4 * sent[1], sent[2])
            assert.equal(sent[2], sent[3])
        end
    end)

    it("a prefix that every rank holds, beside a sequence that is split", function()
        local P, N, H, D = 6, 64, 4, 8
        local axes = divides(2) and world > 1 and "u=2, r=*" or "r=*"
        local mesh <close> = spl.mesh(axes)
        local function random(seed, n)
            return spl.tensor { shape = { 1, n, H, D } }:randn(seed)
        end
        local q <close>, k <const>, v <const> = random(1, N), random(2, P + N), random(3, P + N)
        local mask <close> = spl.mask { seq = N, kv_seq = P + N, { kind = "causal" } } -- all of the prefix
        local want <close>, want_lse = spl.attention(q, k, v, { mask = mask })
        local function split(t, first)
            local n <close> = t:narrow(2, first, N)
            local c <close> = n:contiguous()
            return spl.tensor { shape = c.shape, mesh = mesh, layout = mesh.axes[2]
                and "r=shard(2), u=shard(3)" or "r=shard(2)" }:set(c)
        end
        local function held(t)
            local n <close> = t:narrow(2, 1, P)
            local c <close> = n:contiguous()
            return spl.tensor { shape = c.shape, mesh = mesh, layout = mesh.axes[2] and "u=shard(3)" or "" }:set(c)
        end
        local parts = { split(q, 1), split(k, P + 1), split(v, P + 1), held(k), held(v) }
        local out <close>, lse = spl.attention(parts[1], parts[4], parts[5], { mask = "full" })
        spl.attention(parts[1], parts[2], parts[3], { mask = "causal", into = { out, lse } })
        local whole <close> = out:gather()
        assert.equal(0, spl.compare(whole, want, { tolerance = 1e-5, rms = "vector" }).wrong)
        for _, t in ipairs(parts) do t:release() end
        for _, t in ipairs { lse, want_lse, k, v } do t:release() end
    end)
end)
