-- attention_spec.lua: spl.attention: against the fp64 reference, in tiles against the whole, and shared by ranks.
local spl = require "spl"

local B, S, H, KV, D = 2, 37, 6, 3, 8

local function random(seed, heads, dtype, mesh, layout)
    return spl.tensor { shape = { B, S, heads, D }, dtype = dtype, mesh = mesh, layout = layout }:randn(seed)
end

local function near(limit, actual, expected)
    local c = spl.compare(actual, expected)
    assert.is_true(math.sqrt(c.diff_squares / c.ref_squares) <= limit,
        ("off by %g"):format(math.sqrt(c.diff_squares / c.ref_squares)))
end

local function truth(q, k, v, slices, scale)
    return spl.reference.attention { batch = B, heads = H, kv_heads = KV, seq_q = S, seq_k = S, head_dim = D, q = q,
        k = k, v = v, slices = slices, scale = scale }
end

local CAUSAL = { { q_begin = 0, q_end = S, k_begin = 0, k_end = S, kind = "causal" } }

describe("spl.attention", function()
    it("is the reference's, by default causal, with any mask and scale", function()
        for dtype, limit in pairs { f32 = 2e-6, f64 = 1e-13 } do
            local q, k, v = random(1, H, dtype), random(2, KV, dtype), random(3, KV, dtype)
            local out, lse = spl.attention(q, k, v)
            local want = truth(q, k, v, CAUSAL)
            near(limit, out, want.out)
            near(limit, lse, want.lse)
            out = spl.attention(q, k, v, { mask = "full", scale = 0.1 })
            near(limit, out, truth(q, k, v, nil, 0.1).out)
        end
    end)

    it("merged from tiles, in any order, is what one call gives", function()
        local q, k, v = random(1, H, "f32"), random(2, KV, "f32"), random(3, KV, "f32")
        local whole, whole_lse = spl.attention(q, k, v, { mask = "full" })
        local out, lse
        for _, piece in ipairs { { 21, 17 }, { 1, 3 }, { 4, 17 } } do
            local kp, vp = k:narrow(2, piece[1], piece[2]), v:narrow(2, piece[1], piece[2])
            local again, again_lse = spl.attention(q, kp, vp, { mask = "full", into = out and { out, lse } })
            assert.is_true(out == nil or again == out and again_lse == lse)
            out, lse = again, again_lse
        end
        near(1e-6, out, whole)
        near(1e-6, lse, whole_lse)
    end)

    it("of half precision is merged in f32", function()
        local q, k, v = random(1, H, "bf16"), random(2, KV, "bf16"), random(3, KV, "bf16")
        local out, lse = spl.attention(q, k, v, { mask = "full" })
        local ok, err = pcall(spl.attention, q, k, v, { mask = "full", into = { out, lse } })
        assert.is_false(ok)
        assert.matches("cast it to f32 first", err.message)
        local wide = out:cast "f32"
        spl.attention(q, k, v, { mask = "full", into = { wide, lse } }) -- the same keys twice: the same average
        near(1e-2, wide, out)
    end)

    it("of a sequence that ranks share is that of one rank, as ring and as gather", function()
        local mesh <close> = spl.mesh "cp=*"
        for _, layout in ipairs { "cp=shard(2)", "cp=shard(2,zigzag)", "cp=shard(2,striped)" } do
            for _, role in ipairs { "ring", "gather" } do
                local q, k, v = random(1, H, "f32", mesh, layout), random(2, KV, "f32", mesh, layout),
                    random(3, KV, "f32", mesh, layout)
                local out, lse = spl.attention(q, k, v, { role = role })
                local want, want_lse = spl.attention(random(1, H, "f32"), random(2, KV, "f32"), random(3, KV, "f32"))
                local scheme = layout:match ",(%l+)" or "cp="
                assert.is_truthy(spl.size() == 1 or tostring(out.layout):find(scheme, 1, true))
                near(1e-6, out:gather(), want)
                near(1e-6, lse:gather(), want_lse)
            end
        end
    end)

    it("merges into what an earlier call gave, whatever roles moved it", function()
        local roles = { "cp=*:ulysses", "cp=*:gather" }
        if spl.size() % 2 == 0 and spl.size() > 2 then roles[3] = "u=2:ulysses, r=*:ring" end
        local want, want_lse = spl.attention(random(1, H, "f32"), random(2, KV, "f32"), random(3, KV, "f32"))
        spl.attention(random(1, H, "f32"), random(4, KV, "f32"), random(5, KV, "f32"),
            { mask = "full", into = { want, want_lse } })
        for _, spec in ipairs(roles) do
            local mesh <close> = spl.mesh(spec)
            local sizes = { batch = B, seq = S, heads = H, kv_heads = KV, head_dim = D, scheme = "striped" }
            local q, k, v = spl.attention_input(mesh, sizes)
            local _, k2, v2 = spl.attention_input(mesh, sizes)
            local out, lse = spl.attention(q:randn(1), k:randn(2), v:randn(3))
            local again, again_lse = spl.attention(q, k2:randn(4), v2:randn(5), { mask = "full", into = { out, lse } })
            assert.is_true(again == out and again_lse == lse and tostring(out.layout) == tostring(q.layout))
            near(1e-6, out:gather(), want)
            near(1e-6, lse:gather(), want_lse)
        end
    end)

    it("refuses memory that what is merged into shares with what it reads", function()
        local q, k, v = random(1, H, "f32"), random(2, KV, "f32"), random(3, KV, "f32")
        local before = q:clone()
        local all = spl.tensor { shape = { B, S, 3, H, D } }:randn(1)
        local out, lse = spl.attention(q, k, v)
        for name, of in pairs { q = { q, k, v }, k = { before, q, v }, v = { before, k:clone(), q } } do
            local kv = spl.tensor { shape = { B, S, H, D } }:randn(2)
            of[2] = name == "k" and q or kv
            of[3] = name == "v" and q or kv
            for _, call in ipairs { spl.attention, spl.attention_tile } do
                local ok, err = pcall(call, of[1], of[2], of[3], { into = { q, lse } })
                assert.is_false(ok)
                assert.matches("out to merge into shares memory with " .. name, err.message, 1, true)
            end
        end
        assert.equal(0, spl.compare(q, before).max_abs)
        local parts = all:reshape { B * S * 3, H, D }
        local first, second = parts:narrow(1, 1, B * S):reshape { B, S, H, D },
            parts:narrow(1, B * S + 1, B * S):reshape { B, S, H, D }
        spl.attention(first, first, first, { into = { second, lse } }) -- of one storage, but not the same memory
        near(10, out, out)
    end)

    it("of ranks that mean something else ends with an error", function()
        if spl.size() == 1 then return end
        local me = spl.rank()
        for _, spec in ipairs { "cp=*:ring", "cp=*:ulysses" } do
            for _, case in ipairs {
                { { scale = 0.5 }, { scale = 0.25 } }, { {}, { dropout = 0.1 } }, { { mask = "full" }, {} },
                { { dropout = 0.1, seed = 1 }, { dropout = 0.1, seed = 2 } },
                { { dropout = 0.1, step = 1 }, { dropout = 0.1, step = 2 } },
                { { dropout = 0.1, instance = 1 }, { dropout = 0.1, instance = 2 } }, { { into = true }, {} } } do
                local mesh <close> = spl.mesh(spec)
                local q, k, v = spl.attention_input(mesh, { seq = S, heads = H, head_dim = D })
                local o = case[me == 0 and 1 or 2]
                if o.into then o.into = { spl.attention(q, k, v) } else spl.attention(q, k, v) end
                local ok, err = pcall(spl.attention, q, k, v, o)
                assert.is_false(ok)
                assert.equal("disagree", err.code)
                assert.matches("the attention plan (shapes, mask, scale, dropout or into)", err.message, 1, true)
            end
        end
        local mesh <close> = spl.mesh "cp=*:ring" -- a seed that nothing is drawn from is nobody's business
        local q, k, v = spl.attention_input(mesh, { seq = S, heads = H, head_dim = D })
        spl.attention(q, k, v, { seed = me })
    end)

    it("refuses what does not fit, in a sentence", function()
        local q, k, v = random(1, H, "f32"), random(2, KV, "f32"), random(3, KV, "f32")
        local out, lse = spl.attention(q, k, v)
        local function refused(why, ...)
            local ok, err = pcall(spl.attention, ...)
            assert.is_false(ok)
            assert.matches(why, err.message, 1, true)
        end
        refused("argument 'v': a tensor is needed", q, k)
        refused("did you mean 'mask'", q, k, v, { mak = "full" })
        refused("q has 3 dimensions", q:reshape { B, S, H * D }, k, v)
        refused("heads a multiple of KV heads", q:narrow(3, 1, 5), k, v)
        refused("into", q, k, v, { into = { out } })
        refused("is not shaped and placed as this call's result", q, k, v, { into = { lse, out } })
        refused("to merge into has dtype f64", q, k, v, { into = { out, lse:cast "f64" } })
        refused("a positive number is needed", q, k, v, { scale = -1 })
        refused("role", q, k, v, { role = "rnig" })
        out:release()
        refused("released", q, k, v, { into = { out, lse } })
    end)
end)
