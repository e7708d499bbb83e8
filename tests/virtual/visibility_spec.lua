-- visibility_spec.lua: who sees whom, by changing one key or value and looking at every bit of the result: exactly what
-- may see it changes. With every way of moving keys, scheme and mask; and random slices and lengths against fp64, with
-- every byte that travels counted.
local spl = require "spl"
local world = spl.size()

-- ---- masks, said once more and plainly: does query q see key k (from 1)?

local function docs(...)
    local ends, last = {}, 0
    for _, n in ipairs { ... } do
        last = last + n
        ends[#ends + 1] = last
    end
    return function(q, k)
        for _, e in ipairs(ends) do
            if q <= e or k <= e then return q <= e and k <= q end
        end
    end
end

local masks = {
    { "causal", function(q, k) return k <= q end },
    { "full", function() return true end },
    { "window:8", function(q, k) return k <= q and k > q - 8 end },
    { "window:20", function(q, k) return k <= q and k > q - 20 end },
    { "docs:9,20,2,6", docs(9, 20, 2, 6) },
    { "prefix:7", function(q, k) return k <= q or k <= 7 end },
    { "padding:30", function(q, k) return k <= q and k <= 30 and q <= 30 end },
}

local function slice_shows(s, q, k)
    if q < s.q[1] or q > s.q[2] or k < s.k[1] or k > s.k[2] then return false end
    local kind = s.kind or "full"
    if (kind == "causal" or kind == "both") and k - s.k[2] > q - s.q[2] then return false end
    return not ((kind == "inverse-causal" or kind == "both") and k - s.k[1] < q - s.q[1])
end

local function any_slice(list)
    return function(q, k)
        for _, s in ipairs(list) do
            if slice_shows(s, q, k) then return true end
        end
        return false
    end
end

-- ---- attention with the sequence split, in one of three ways

local ways = {}
for _, scheme in ipairs { "contiguous", "zigzag", "striped" } do
    for _, role in ipairs { "ring", "gather", "ulysses" } do ways[#ways + 1] = { role = role, scheme = scheme } end
end

-- out [B, S, H, D] and lse [B, H, S], whole, of whole q, k, v.
local function attend(mesh, way, q, k, v, mask)
    local shards, group = {}, q.shape[3] // k.shape[3]
    for i, t in ipairs { q, k, v } do
        local part <close> = spl.tensor { shape = t.shape, dtype = t.dtype, mesh = mesh,
            layout = ("cp=shard(2,%s)"):format(way.scheme) }:set(t)
        local heads = ("cp=shard(3,cover:%d)"):format(i > 1 and group or 1)
        shards[i] = part:redistribute(way.role == "ulysses" and heads or part.layout)
    end
    spl.reset_counters()
    local out <close>, lse = spl.attention(shards[1], shards[2], shards[3], { mask = mask,
        role = way.role ~= "ulysses" and way.role or nil })
    local sent = spl.counters().bytes.total
    local whole_out, whole_lse = out:gather(), lse:gather()
    lse:release()
    for _, t in ipairs(shards) do t:release() end
    return whole_out, whole_lse, sent
end

local function random(seed, shape)
    return spl.tensor { shape = shape }:randn(seed)
end

-- Row i of out [1, S, H, D] and of lse [1, H, S] as bytes.
local function row_reader(out, lse)
    local o, l = out:to_bytes(), lse:to_bytes()
    local S, H, D = out.shape[2], out.shape[3], out.shape[4]
    return function(i)
        local parts = {}
        for h = 0, H - 1 do parts[h + 1] = l:sub(4 * (h * S + i - 1) + 1, 4 * (h * S + i)) end
        return o:sub(4 * H * D * (i - 1) + 1, 4 * H * D * i), table.concat(parts)
    end
end

local function changed(t, row, by)
    local values, shape = t:flat(), t.shape
    local width = shape[3] * shape[4]
    for i = (row - 1) * width + 1, row * width do values[i] = by(values[i]) end
    return spl.tensor { shape = shape, dtype = t.dtype }:set(values)
end

local function with_mesh(f)
    local mesh <close> = spl.mesh "cp=*"
    f(mesh)
end

describe("changing one token", function()
    local S, H, KV, D = 37, 4, 2, 8
    for _, way in ipairs(ways) do
        it(("changes what sees it and not one bit of the rest: %s, %s"):format(way.role, way.scheme), function()
            with_mesh(function(mesh)
                local q <close> = random(1, { 1, S, H, D })
                local k <close> = random(2, { 1, S, KV, D })
                local v <close> = random(3, { 1, S, KV, D })
                for _, mask in ipairs(masks) do
                    local out <close>, lse = attend(mesh, way, q, k, v, mask[1])
                    local before = row_reader(out, lse)
                    lse:release()
                    for _, j in ipairs { 1, 14, 31, S } do
                        local v2 <close> = changed(v, j, function(x) return x + 1 end)
                        local k2 <close> = changed(k, j, function(x) return x - 0.5 end)
                        for _, what in ipairs { "value", "key" } do
                            local out2 <close>, lse2 = attend(mesh, way, q, what == "key" and k2 or k,
                                what == "value" and v2 or v, mask[1])
                            local after = row_reader(out2, lse2)
                            lse2:release()
                            for i = spl.rank() + 1, S, world do -- all ranks have the same; each looks at its share
                                local o1, l1 = before(i)
                                local o2, l2 = after(i)
                                local sees = mask[2](i, j)
                                local text = ("%s: %s %d, row %d"):format(mask[1], what, j, i)
                                if what == "value" then
                                    assert.equal(sees, o1 ~= o2, text)
                                    assert.is_true(l1 == l2, text)
                                else
                                    assert.equal(sees, l1 ~= l2, text)
                                    assert.is_true(sees or o1 == o2, text)
                                end
                            end
                        end
                    end
                end
            end)
        end)
    end

    it("that no one sees contributes nothing at all: not even what is no number", function()
        local S2 = 24
        local hidden = { seq = S2, { q = { 1, S2 }, k = { 1, 9 } }, { q = { 1, 12 }, k = { 17, S2 } } }
        with_mesh(function(mesh)
            local q <close> = random(1, { 1, S2, H, D })
            local k <close> = random(2, { 1, S2, KV, D })
            local v <close> = random(3, { 1, S2, KV, D })
            for _, way in ipairs(ways) do
                local mask <close> = spl.mask(hidden)
                local out <close>, lse = attend(mesh, way, q, k, v, mask)
                for _, poison in ipairs { 0 / 0, math.huge, 1e30 } do
                    local v2, k2 = v:clone(), k:clone()
                    for j = 10, 16 do
                        local nv, nk = changed(v2, j, function() return poison end),
                            changed(k2, j, function() return poison end)
                        v2:release()
                        k2:release()
                        v2, k2 = nv, nk
                    end
                    local out2 <close>, lse2 = attend(mesh, way, q, k2, v2, mask)
                    assert.is_true(out:to_bytes() == out2:to_bytes() and lse:to_bytes() == lse2:to_bytes(),
                        ("%s %s %g"):format(way.role, way.scheme, poison))
                    lse2:release()
                    v2:release()
                    k2:release()
                end
                lse:release()
            end
        end)
    end)

    it("of one document leaves the others alone, as it was reported for rings", function()
        if world > 2 then return end
        local lengths = { 100, 300, 24, 500, 100 }
        local see = docs(table.unpack(lengths))
        with_mesh(function(mesh)
            local q <close> = random(1, { 1, 1024, 1, 4 })
            local k <close> = random(2, { 1, 1024, 1, 4 })
            local v <close> = random(3, { 1, 1024, 1, 4 })
            local v2 <close> = changed(v, 250, function() return 1e30 end)
            for _, scheme in ipairs { "contiguous", "zigzag" } do
                local way = { role = "ring", scheme = scheme }
                local out <close>, lse = attend(mesh, way, q, k, v, "docs:100,300,24,500,100")
                local out2 <close>, lse2 = attend(mesh, way, q, k, v2, "docs:100,300,24,500,100")
                local a, b = row_reader(out, lse), row_reader(out2, lse2)
                for i = 1, 1024 do assert.equal(see(i, 250), a(i) ~= b(i)) end
                lse:release()
                lse2:release()
            end
        end)
    end)
end)

describe("a row that sees no key", function()
    it("is 0 with a logsumexp of -inf, also where its whole rank sees none", function()
        local S = 24
        local list = { seq = S, { q = { S // 2 + 1, S - 3 }, k = { 3, 20 }, kind = "causal" } }
        local see = any_slice(list)
        with_mesh(function(mesh)
            local t = {}
            for i = 1, 3 do t[i] = random(i, { 1, S, 4, 8 }) end
            for _, way in ipairs(ways) do
                local mask <close> = spl.mask(list)
                local out <close>, lse = attend(mesh, way, t[1], t[2], t[3], mask)
                local o, l = out:flat(), lse:flat()
                lse:release()
                for q = spl.rank() + 1, S, world do
                    local seen = false
                    for k = 1, S do seen = seen or see(q, k) end
                    for x = (q - 1) * 32 + 1, q * 32 do assert.equal(seen, o[x] ~= 0 and o[x] == o[x]) end
                    for h = 0, 3 do assert.equal(seen, l[h * S + q] ~= -math.huge) end
                end
            end
            for i = 1, 3 do t[i]:release() end
        end)
    end)
end)

-- ---- random slices

-- Disjoint slices: the keys are cut, and each stretch is seen by some queries in some way.
local function random_slices(seq, seq_k)
    local list, at = { seq = seq, kv_seq = seq_k }, 1
    local kinds = { "full", "causal", "inverse-causal", "both" }
    while at <= seq_k and #list < 5 do
        local last = math.random(at, seq_k)
        local q = math.random(1, seq)
        list[#list + 1] = { q = { q, math.random(q, seq) }, k = { at, last }, kind = kinds[math.random(4)] }
        at = last + math.random(1, 4)
    end
    return list
end

-- Bytes that all members send: each needs, once, every row of others that one of its queries sees.
local function bytes_needed(out_layout, kv_layout, see, row_bytes)
    local rows = 0
    local function listed(layout, r)
        local list = {}
        for _, s in ipairs(layout:segments(2, { cp = r })) do
            for i = 0, s.length - 1 do list[#list + 1] = s.start + i * s.stride end
        end
        return list
    end
    for me = 0, world - 1 do
        local mine = listed(out_layout, me)
        for other = 0, world - 1 do
            for _, k in ipairs(other ~= me and listed(kv_layout, other) or {}) do
                for _, q in ipairs(mine) do
                    if see(q, k) then
                        rows = rows + 1
                        break
                    end
                end
            end
        end
    end
    return rows * row_bytes
end

describe("random slices and lengths", function()
    for _, way in ipairs(ways) do
        it(("are what fp64 says, and move what must move: %s, %s"):format(way.role, way.scheme), function()
            with_mesh(function(mesh)
                for round = 1, 12 do
                    local S, SK = math.random(1, 40), math.random(1, 40)
                    local list = random_slices(S, SK)
                    local KV, group, D = math.random(1, 3), math.random(1, 2), math.random(1, 9)
                    local q <close> = random(10 * round, { 2, S, KV * group, D })
                    local k <close> = random(10 * round + 1, { 2, SK, KV, D })
                    local v <close> = random(10 * round + 2, { 2, SK, KV, D })
                    local slices = {}
                    for i, s in ipairs(list) do
                        slices[i] = { q_begin = s.q[1] - 1, q_end = s.q[2], k_begin = s.k[1] - 1, k_end = s.k[2],
                            kind = s.kind == "inverse-causal" and "inverse" or s.kind }
                    end
                    local truth = spl.reference.attention { batch = 2, heads = KV * group, kv_heads = KV, seq_q = S,
                        seq_k = SK, head_dim = D, q = q, k = k, v = v, slices = slices }
                    local mask <close> = spl.mask(list)
                    local out <close>, lse, sent = attend(mesh, way, q, k, v, mask)
                    local again <close>, lse_again = attend(mesh, way, q, k, v, mask)
                    local text = ("%s: %d x %d, %d heads, head_dim %d"):format(mask.spec, S, SK, KV * group, D)
                    assert.is_true(out:to_bytes() == again:to_bytes() and lse:to_bytes() == lse_again:to_bytes(), text)
                    assert.equal(0, spl.compare(out, truth.out, { tolerance = 1e-5, rms = "vector" }).wrong, text)
                    assert.equal(0, spl.compare(lse, truth.lse, { tolerance = 1e-5, rms = 1 }).wrong, text)
                    if way.role ~= "ulysses" then
                        local axes = spl.mesh.parse("cp=*", world)
                        local notation = ("cp=shard(2,%s)"):format(way.scheme)
                        local needed = bytes_needed(spl.layout(notation, axes, q.shape),
                            spl.layout(notation, axes, k.shape), any_slice(list), 2 * 2 * KV * D * 4)
                        assert.equal(needed, spl.sum(sent), text)
                    else
                        assert.equal(0, sent)
                    end
                    for _, t in ipairs { lse, lse_again, truth.out, truth.lse } do t:release() end
                end
            end)
        end)
    end
end)
