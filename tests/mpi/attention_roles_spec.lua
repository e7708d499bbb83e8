-- attention_roles_spec.lua: spl.attention by the roles of meshes, and tiles and merging for schemes of one's own,
-- against fp64.
local spl = require "spl"
local world = spl.size()

-- The reference's slices, counted from 0, of a mask.
local function slices_of(mask, seq, kv_seq)
    local list = {}
    for i, s in ipairs(spl.mask(mask):slices(seq, kv_seq)) do
        list[i] = { q_begin = s.q[1] - 1, q_end = s.q[2], k_begin = s.k[1] - 1, k_end = s.k[2],
            kind = s.kind == "inverse-causal" and "inverse" or s.kind }
    end
    return list
end

local function reference(q, k, v, o)
    local whole = { q:gather(), k:gather(), v:gather() }
    return spl.reference.attention { batch = q.shape[1], seq_q = q.shape[2], heads = q.shape[3],
        head_dim = q.shape[4], seq_k = k.shape[2], kv_heads = k.shape[3], q = whole[1], k = whole[2], v = whole[3],
        slices = not o.chunk and slices_of(o.mask or "causal", q.shape[2], k.shape[2]) or nil, scale = o.scale,
        p = o.dropout, key = o.dropout and { spl.dropout_key(o.seed or 0, o.instance, o.step) } or nil,
        chunk = o.chunk, summaries = o.summaries, causal = o.mask ~= "full" }
end

local function near(what, actual, expected, bound)
    local whole <close> = actual:gather()
    local r = spl.compare(whole, expected, { tolerance = 1e-5, rms = 1 })
    assert.equal(0, r.wrong, what)
    local rel = math.sqrt(r.diff_squares / math.max(r.ref_squares, 1e-300))
    assert.is_true(rel <= (bound or 2e-6), ("%s: rel_err %g"):format(what, rel))
end

local function judge(what, q, k, v, o)
    local options = {}
    for key, value in pairs(o) do options[key] = value end
    options.bound = nil
    local out, lse = spl.attention(q, k, v, options)
    local truth = reference(q, k, v, o)
    assert.same(q.shape, out.shape)
    assert.equal(tostring(q.layout), tostring(out.layout))
    near(what .. ": out", out, truth.out, o.bound)
    near(what .. ": lse", lse, truth.lse, o.bound)
end

local function input(mesh, o)
    local all = { batch = 2, seq = 37, heads = 4, kv_heads = 2, head_dim = 6, dtype = o.dtype }
    for key, value in pairs(o) do all[key] = value end
    local q, k, v = spl.attention_input(mesh, all)
    return q:randn(1, 0), k:randn(1, 1), v:randn(1, 2)
end

local function factored(n)
    return world % n == 0
end

describe("spl.attention by roles", function()
    it("on tensors of one rank: masks, scale, dropout, and keys of another length", function()
        local q = spl.tensor { shape = { 2, 9, 4, 8 } }:randn(1)
        local k = spl.tensor { shape = { 2, 21, 2, 8 } }:randn(2)
        local v = spl.tensor { shape = { 2, 21, 2, 8 } }:randn(3)
        for _, mask in ipairs { "causal", "full", "window:5", "prefix:3" } do
            judge(mask, q, k, v, { mask = mask, scale = 0.7 })
            judge(mask, k, q:narrow(3, 1, 2), q:narrow(3, 3, 2), { mask = mask }) -- some see nothing
        end
        judge("dropout", q, k, v, { dropout = 0.3, seed = 5, instance = 2, step = 7 })
    end)

    local meshes = {
        { "cp=*:ring", 1 }, { "cp=*:gather", 1 }, { "cp=*:ulysses", 1 }, { "u=2:ulysses, r=*:ring", 2 },
        { "tp=2:tensor, cp=*:ring", 2 }, { "g=2:gather, r=*:ring", 2 }, { "dp=2:data, cp=*:ring", 2 },
    }
    for _, m in ipairs(meshes) do
        if factored(m[2]) then
            it("by the roles of " .. m[1], function()
                local mesh <close> = spl.mesh(m[1])
                for _, scheme in ipairs { "contiguous", "zigzag", "striped" } do
                    local q, k, v = input(mesh, { scheme = scheme })
                    judge(scheme, q, k, v, {})
                    judge(scheme .. " full", q, k, v, { mask = "full" })
                    local longer = { scheme = scheme, kv_seq = 53 }
                    q, k, v = input(mesh, longer)
                    judge(scheme .. " longer keys", q, k, v, { mask = "window:20" })
                    if not m[1]:match "g=" then
                        judge(scheme .. " gather", q, k, v, { role = "gather" })
                        judge(scheme .. " ring", q, k, v, { role = "ring", dropout = 0.2, seed = 3 })
                    end
                end
            end)
        end
    end

    it("in f64 and bf16, and by summaries", function()
        local mesh <close> = spl.mesh "cp=*:ring"
        local q, k, v = input(mesh, { dtype = "f64", scheme = "zigzag" })
        judge("f64", q, k, v, { bound = 1e-14 })
        local chunks <close> = spl.mesh "cp=*:hierarchical"
        for _, mask in ipairs { "causal", "full" } do
            q, k, v = input(chunks, { chunk = 4 })
            judge("summaries", q, k, v, { chunk = 4, summaries = 2, mask = mask })
        end
        q, k, v = input(mesh, { dtype = "bf16", scheme = "zigzag" })
        local out, lse = spl.attention(q, k, v, {})
        assert.equal("bf16", out.dtype)
        assert.equal("f32", lse.dtype)
        local truth = reference(q, k, v, {})
        local whole <close> = out:gather()
        assert.equal(0, spl.compare(whole, truth.out, { tolerance = 2e-2, rms = 1 }).wrong)
    end)

    it("keeps documents alive as long as tensors are dealt out by them", function()
        local mesh <close> = spl.mesh "cp=*:ring"
        local o = { scheme = "zigzag", mask = "docs:20,4,13" }
        local q, k, v = input(mesh, o)
        collectgarbage()
        collectgarbage()
        local layout = q.layout
        judge("documents", q, k, v, { mask = "docs:20,4,13" })
        q:release()
        k:release()
        v:release()
        collectgarbage()
        local rows = 0
        for _, s in ipairs(layout:segments(2)) do rows = rows + s.length end
        assert.equal(37, spl.sum(rows))
    end)

    it("refuses what does not fit, in a sentence", function()
        local q = spl.tensor { shape = { 1, 4, 3, 2 } }:randn(1)
        local k = spl.tensor { shape = { 1, 4, 2, 2 } }:randn(1)
        local function refused(pattern, ...)
            local ok, err = pcall(...)
            assert.is_false(ok)
            assert.matches(pattern, tostring(err))
        end
        refused("heads a multiple of KV heads", spl.attention, q, k, k)
        refused("role = 'rung' is not known.*did you mean 'ring'", spl.attention, q, q, q, { role = "rung" })
        refused("the scale is %-1", spl.attention, q, q, q, { scale = -1 })
        refused("dropout is 1", spl.attention, q, q, q, { dropout = 1 })
        refused("sum to 5 tokens", spl.attention, q, q, q, { mask = "docs:2,3" })
        refused("name 3 rows, but there are 4", spl.attention_tile, q, q, q, { queries = { { length = 3 } } })
        refused("lies outside a sequence of 4", spl.attention_tile, q, q, q,
            { keys = { { start = 2, length = 4, stride = 1 } } })
        refused("another tile of the same queries", spl.attention_tile, q, q, q, { into = { q, k } })
        local lse = spl.tensor { shape = { 1, 3, 5 } }:randn(1)
        refused("both parts need an out", spl.attention_merge, q, lse, q, lse)
    end)
end)

describe("tiles", function()
    -- A ring in Lua: what 20 lines of a script can be.
    local function ring(mesh, q, k, v, o)
        local axis = mesh.axes[1].name
        local mine, keys, values = q:to_local(), k:to_local():contiguous(), v:to_local():contiguous()
        local part = { queries = q.layout:segments(2), seq = q.shape[2], mask = o.mask }
        local out, lse
        for step = 0, world - 1 do
            part.keys = k.layout:segments(2, { (spl.rank() - step) % world })
            out, lse = spl.attention_tile(mine, keys, values, part)
            part.into = part.into or { out, lse }
            if step < world - 1 then
                keys, values = mesh:shift(axis, keys), mesh:shift(axis, values)
            end
        end
        return out, lse
    end

    it("make a ring of one's own, equal to the library's", function()
        local mesh <close> = spl.mesh "cp=*:ring"
        for _, mask in ipairs { "causal", "window:9", "full" } do
            local o = { seq = 8 * world, scheme = "zigzag", mask = mask } -- shares of one size: shift sends as many
            local q, k, v = input(mesh, o)
            local out, lse = ring(mesh, q, k, v, o)
            local truth, truth_lse = spl.attention(q, k, v, { mask = mask })
            local here, lse_here = truth:to_local(), truth_lse:to_local()
            assert.equal(0, spl.compare(out, here, { tolerance = 2e-6, rms = 1 }).wrong)
            assert.equal(0, spl.compare(lse, lse_here, { tolerance = 2e-6, rms = 1 }).wrong)
        end
    end)

    it("of a part merge to the whole in any order, and into each other", function()
        local q = spl.tensor { shape = { 1, 12, 2, 4 } }:randn(1)
        local k, v = spl.tensor { shape = { 1, 30, 2, 4 } }:randn(2), spl.tensor { shape = { 1, 30, 2, 4 } }:randn(3)
        local truth = reference(q, k, v, { mask = "full" })
        local function tile(first, last, into)
            return spl.attention_tile(q, k:narrow(2, first, last - first + 1), v:narrow(2, first, last - first + 1),
                { keys = { { start = first, length = last - first + 1 } }, seq = 12, kv_seq = 30, mask = "full",
                    into = into })
        end
        local parts = { { tile(1, 7) }, { tile(8, 8) }, { tile(9, 30) } }
        for _, order in ipairs { { 1, 2, 3 }, { 3, 1, 2 }, { 2, 3, 1 } } do
            local out, lse = table.unpack(parts[order[1]])
            for i = 2, 3 do
                out, lse = spl.attention_merge(out, lse, table.unpack(parts[order[i]]))
            end
            near("merged", out, truth.out)
            near("merged lse", lse, truth.lse)
        end
        local out, lse = tile(9, 30)
        assert.is_true(rawequal(out, (tile(1, 7, { out, lse }))))
        tile(8, 8, { out, lse })
        near("into", out, truth.out)
        near("into lse", lse, truth.lse)
    end)

    local function part(value, lse, dtype)
        return spl.tensor { shape = { 1, 1, 1, 2 }, dtype = dtype or "f32" }:set { value, -value },
            spl.tensor { shape = { 1, 1, 1 }, dtype = dtype or "f32" }:set { lse }
    end

    it("with sums far apart merge without overflow, whichever comes first", function()
        for _, order in ipairs { { -50, 60 }, { 60, -50 }, { -800, 800 }, { 800, -800 } } do
            local a, la = part(3, order[1])
            local b, lb = part(5, order[2])
            local out, lse = spl.attention_merge(a, la, b, lb)
            assert.same({ order[1] > order[2] and 3.0 or 5.0, order[1] > order[2] and -3.0 or -5.0 }, out:flat())
            assert.same({ math.max(order[1], order[2]) + 0.0 }, lse:flat())
        end
    end)

    it("weigh by natural logarithms: masses 0.99 and 0.01", function()
        local a, la = part(1, math.log(0.99), "f64")
        local b, lb = part(-1, math.log(0.01), "f64")
        local out, lse = spl.attention_merge(a, la, b, lb)
        assert.is_true(math.abs(out:flat()[1] - 0.98) < 1e-14)
        assert.is_true(math.abs(lse:flat()[1]) < 1e-14)
    end)

    it("that saw nothing contribute exactly nothing, and two of them are nothing", function()
        local a, la = part(2, 0.25)
        local nan, none = part(0 / 0, -math.huge)
        for _, pair in ipairs { { a, la, nan, none }, { nan, none, a, la } } do
            local out, lse = spl.attention_merge(table.unpack(pair))
            assert.same({ 2.0, -2.0 }, out:flat())
            assert.same({ 0.25 }, lse:flat())
        end
        local out, lse = spl.attention_merge(nan, none, nan, none)
        assert.same({ 0.0, 0.0 }, out:flat())
        assert.same({ -math.huge }, lse:flat())
    end)
end)
