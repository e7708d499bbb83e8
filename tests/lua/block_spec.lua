-- block_spec.lua: the transformer block on one rank: definition, weights, forward against fp64, saved outputs, dropout,
-- FLOPs, explain, and that the check can fail.
local spl = require "spl"
local theory = require "spl.theory"

local GPT = { hidden = 12, heads = 3, seed = 7 }
local LLAMA = { hidden = 24, heads = 4, kv_heads = 2, ffn = 37, norm = "rms", qkv = "separate", bias = false,
    act = "silu", gated = true, rope_theta = 10000, seed = 7 }

local function with(base, changes)
    local o = {}
    for k, v in pairs(base) do o[k] = v end
    for k, v in pairs(changes or {}) do o[k] = v end
    return o
end

-- Calls use(block, mesh, x) and leaves nothing behind.
local function on_block(o, batch, seq, use)
    local mesh <close> = spl.mesh("tp=*:sequence")
    local blk <close> = spl.block(o):schedule(mesh)
    local x <close> = blk:input { batch = batch, seq = seq }:randn(11)
    use(blk, x, mesh)
end

-- Larger weights than a small block is born with: softmax is then far from uniform, so that faults before it show.
local function sharpen(blk)
    for i, p in ipairs(blk:params()) do
        p.tensor:randn(100, i, p.name:match("gamma") and 1 or 0, 0.4)
    end
end

local function refused(pattern, code, f, ...)
    local ok, err = pcall(f, ...)
    assert.is_false(ok)
    assert.equal(code, err.code, err.message)
    assert.matches(pattern, err.message)
end

describe("the definition of a block", function()
    it("is a GPT block unless it says otherwise", function()
        local blk <close> = spl.block(GPT)
        assert.same({ hidden = 12, heads = 3, kv_heads = 3, head_dim = 4, ffn = 48, norm = "layer", eps = 1e-5,
            qkv = "interleaved", qkv_bias = true, out_bias = true, mlp_bias = true, act = "gelu_tanh", gated = false,
            rope_theta = 0, causal = true, dropout_attention = 0, dropout_hidden = 0, seed = 7, instance = 0,
            dtype = "f32" }, blk.config)
        assert.is_nil(blk.mesh)
        assert.matches("not scheduled", tostring(blk))
    end)

    it("may be a Llama block", function()
        local blk <close> = spl.block(with(LLAMA, { dropout = 0.1, mlp_bias = true }))
        local c = blk.config
        assert.equal(6, c.head_dim)
        assert.equal(2, c.kv_heads)
        assert.equal("silu", c.act)
        assert.is_false(c.qkv_bias)
        assert.is_true(c.mlp_bias)
        assert.equal(0.1, c.dropout_attention)
        assert.equal(0.1, c.dropout_hidden)
    end)

    it("takes separate projections where query and KV heads differ in number", function()
        local grouped <close> = spl.block { hidden = 8, heads = 4, kv_heads = 2 }
        assert.equal("separate", grouped.config.qkv)
        local alike <close> = spl.block { hidden = 8, heads = 4, kv_heads = 4 }
        assert.equal("interleaved", alike.config.qkv)
    end)

    it("names a key that is not known and the nearest", function()
        refused("unknown option 'hiden'; did you mean 'hidden'", "argument", spl.block, { hiden = 4, heads = 2 })
        refused("'hidden'", "argument", spl.block, { heads = 2 })
        refused("heads.* integer", "argument", spl.block, { hidden = 4, heads = "2" })
        refused("norm = 'batch'.*layer, rms$", "argument", spl.block, with(GPT, { norm = "batch" }))
        refused("silu$", "argument", spl.block, with(GPT, { act = "relu" }))
        refused("did you mean 'gelu_erf'%?$", "argument", spl.block, with(GPT, { act = "gelu_erg" }))
    end)

    it("refuses what cannot be", function()
        refused("not a multiple of heads", "usage", spl.block, { hidden = 10, heads = 3 })
        refused("hidden is 0", "usage", spl.block, { hidden = 0, heads = 3 })
        refused("heads is %-1", "usage", spl.block, { hidden = 4, heads = -1 })
        refused("separate", "usage", spl.block, { hidden = 8, heads = 4, kv_heads = 2, qkv = "interleaved" })
        refused("multiple of kv_heads", "usage", spl.block, { hidden = 8, heads = 4, kv_heads = 3, qkv = "separate" })
        refused("even", "usage", spl.block, { hidden = 9, heads = 3, rope_theta = 10000 })
        refused("dropout is 1; a probability", "usage", spl.block, with(GPT, { dropout = 1 }))
        refused("dropout_hidden is %-1", "usage", spl.block, with(GPT, { dropout_hidden = -1 }))
        refused("f32, f64, bf16 or f16", "usage", spl.block, with(GPT, { dtype = "i64" }))
        refused(".", "memory", spl.block, { hidden = 1 << 62, heads = 1 })
    end)

    it("needs a schedule before it runs, and roles before it has one", function()
        local blk <close> = spl.block(GPT)
        refused("schedule", "argument", blk.params, blk)
        refused("schedule", "argument", blk.input, blk, { seq = 4 })
        local bare <close> = spl.mesh("tp=*")
        refused("no role", "usage", blk.schedule, blk, bare)
        local stages <close> = spl.mesh("pp=*:pipeline")
        refused("'pipeline'.*not available.*sequence", "usage", blk.schedule, blk, stages)
    end)

    it("is gone after release", function()
        local blk = spl.block(GPT)
        blk:release()
        blk:release()
        refused("released", "released", function() return blk.config end)
    end)
end)

describe("the weights of a block", function()
    it("have names, shapes and an order", function()
        on_block(GPT, 1, 1, function(blk)
            local names, shapes = {}, {}
            for i, p in ipairs(blk:params()) do
                names[i], shapes[p.name] = p.name, p.tensor.shape
            end
            assert.same({ "ln0_gamma", "ln0_beta", "mha_linear0_weight", "mha_linear0_bias", "mha_linear1_weight",
                "mha_linear1_bias", "ln1_gamma", "ln1_beta", "mlp_linear0_weight", "mlp_linear0_bias",
                "mlp_linear1_weight", "mlp_linear1_bias" }, names)
            assert.same({ 36, 12 }, shapes.mha_linear0_weight)
            assert.same({ 12, 48 }, shapes.mlp_linear1_weight)
        end)
        on_block(LLAMA, 1, 1, function(blk)
            local names = {}
            for i, p in ipairs(blk:params()) do names[i] = p.name end
            assert.same({ "ln0_gamma", "mha_q_weight", "mha_k_weight", "mha_v_weight", "mha_linear1_weight",
                "ln1_gamma", "mlp_gate_weight", "mlp_up_weight", "mlp_linear1_weight" }, names)
            assert.same({ 12, 24 }, blk:param("mha_k_weight").shape)
            refused("did you mean 'mha_k_weight'", "argument", blk.param, blk, "mha_k_wieght")
        end)
    end)

    it("differ between instances and seeds, and are equal for equal ones", function()
        local function bytes(changes)
            local text
            on_block(with(GPT, changes), 1, 1, function(blk) text = blk:param("mha_linear0_weight"):to_bytes() end)
            return text
        end
        assert.equal(bytes(), bytes())
        assert.not_equal(bytes(), bytes { instance = 1 })
        assert.not_equal(bytes(), bytes { seed = 8 })
    end)

    it("can be set, and live as long as someone holds them", function()
        local w
        on_block(GPT, 1, 2, function(blk, x)
            w = blk:param("mlp_linear1_weight")
            local before <close> = blk:forward(x)
            w:fill(0)
            local after <close> = blk:forward(x)
            assert.not_equal(before:to_bytes(), after:to_bytes())
        end)
        assert.equal(0, w:norm())
        w:release()
    end)
end)

local configs = {
    { "GPT", GPT, 2, 5 },
    { "GPT with dropout", with(GPT, { dropout = 0.1 }), 2, 33 },
    { "Llama", LLAMA, 2, 31 },
    { "Llama with dropout and biases", with(LLAMA, { dropout = 0.2, bias = true }), 1, 19 },
    { "erf-GELU, full attention", with(GPT, { act = "gelu_erf", causal = false }), 2, 9 },
    { "one head of 5", { hidden = 5, heads = 1, seed = 3 }, 3, 4 },
    { "heads wider than hidden", { hidden = 10, heads = 3, head_dim = 7, ffn = 11, seed = 3 }, 2, 6 },
    { "one KV head", with(LLAMA, { kv_heads = 1 }), 1, 12 },
    { "longer than a tile", { hidden = 32, heads = 2, seed = 5, dropout = 0.1 }, 1, 300 },
}

describe("forward against fp64", function()
    for _, c in ipairs(configs) do
        it("is right: " .. c[1], function()
            for _, dtype in ipairs { "f32", "f64" } do
                on_block(with(c[2], { dtype = dtype }), c[3], c[4], function(blk, x)
                    sharpen(blk)
                    local r = blk:check(x, { step = 3 })
                    assert.equal(0, r.wrong)
                    assert.is_true(r.rel_err <= (dtype == "f32" and 2e-6 or 1e-13), ("%s: %g"):format(dtype, r.rel_err))
                    assert.equal(c[4], r.rows)
                    assert.is_true(#r.tensors >= 10)
                end)
            end
        end)
    end

    it("judges a sample where there are many rows, and says how many", function()
        on_block(GPT, 1, 200, function(blk, x)
            local r = blk:check(x, { rows = 17 })
            assert.equal(17, r.rows)
            assert.equal(200, r.seq)
            assert.equal(0, r.wrong)
        end)
    end)

    it("takes an empty batch and an empty sequence", function()
        on_block(GPT, 0, 4, function(blk, x)
            local y <close> = blk:forward(x)
            assert.same({ 0, 4, 12 }, y.shape)
        end)
        on_block(GPT, 2, 0, function(blk, x)
            local y <close> = blk:forward(x)
            assert.same({ 2, 0, 12 }, y.shape)
        end)
    end)

    it("gives the same bits twice", function()
        on_block(with(GPT, { dropout = 0.1 }), 2, 40, function(blk, x)
            local a <close> = blk:forward(x, { step = 2 })
            local b <close> = blk:forward(x, { step = 2 })
            local c <close> = blk:forward(x, { step = 3 })
            assert.equal(a:to_bytes(), b:to_bytes())
            assert.not_equal(a:to_bytes(), c:to_bytes())
        end)
    end)

    it("gives the same with and without saving, within rounding", function()
        on_block(GPT, 2, 9, function(blk, x)
            local a <close> = blk:forward(x)
            local b, saved = blk:forward(x, { save = true })
            local d = spl.compare(a:to_local(), b:to_local(), { tolerance = 1e-5, rms = 1 })
            assert.equal(0, d.wrong)
            saved:release()
            b:release()
        end)
    end)

    it("does not depend on tokens that come later", function()
        on_block(GPT, 1, 6, function(blk, x)
            local a <close> = blk:forward(x)
            x:narrow(2, 6, 1):fill(9)
            local b <close> = blk:forward(x)
            assert.equal(a:narrow(2, 1, 5):to_bytes(), b:narrow(2, 1, 5):to_bytes())
            x:narrow(2, 1, 1):fill(-3)
            local c <close> = blk:forward(x)
            assert.not_equal(b:narrow(2, 6, 1):to_bytes(), c:narrow(2, 6, 1):to_bytes())
        end)
    end)

    it("refuses an x that does not fit", function()
        on_block(GPT, 1, 4, function(blk, _, mesh)
            local wide <close> = spl.zeros { shape = { 1, 4, 13 }, mesh = mesh }
            refused("hidden size 13, the block has 12", "argument", blk.forward, blk, wide)
            local flat <close> = spl.zeros { shape = { 4, 12 }, mesh = mesh }
            refused("3", "argument", blk.forward, blk, flat)
            local double <close> = spl.zeros { shape = { 1, 4, 12 }, mesh = mesh, dtype = "f64" }
            refused("f32", "argument", blk.forward, blk, double)
            local alone <close> = spl.zeros { shape = { 1, 4, 12 } }
            refused("mesh", "argument", blk.forward, blk, alone)
            local other <close> = spl.mesh("tp=*:sequence")
            local elsewhere <close> = spl.zeros { shape = { 1, 4, 12 }, mesh = other }
            refused("mesh", "argument", blk.forward, blk, elsewhere)
            refused("unknown option 'saved'; did you mean 'save'", "argument", blk.forward, blk, alone,
                { saved = true })
        end)
    end)
end)

describe("the check", function()
    -- What the reference is told wrongly, and the saved tensor in which that must show first.
    local faults = {
        { "another mask", GPT, { causal = false }, "sdpa_out" },
        { "another eps", GPT, { eps = 2e-5 }, "ln0_rstd" },
        { "another activation", GPT, { act = "gelu_erf" }, "out" },
        { "another dropout probability", with(GPT, { dropout = 0.1 }), { p_hidden = 0.11 }, "mha_dropout_mask" },
        { "another key of attention", with(GPT, { dropout = 0.1 }), { key_attention = { 1, 2 } }, "sdpa_out" },
        { "another key after the MLP", with(GPT, { dropout = 0.1 }), { key_hidden1 = { 1, 2 } }, "mlp_dropout_mask" },
        { "another base of RoPE", LLAMA, { rope_theta = 10100 }, "sdpa_out" },
        { "another norm", with(LLAMA, { bias = true }), { norm = "layer" }, "ln0_rstd" },
    }
    for _, f in ipairs(faults) do
        it("finds " .. f[1], function()
            local truth, told = spl.reference.block, nil
            spl.reference.block = function(a)
                for k, v in pairs(f[3]) do a[k] = v end
                told = true
                return truth(a)
            end
            local ok, err = pcall(on_block, f[2], 2, 33, function(blk, x)
                sharpen(blk)
                local r = blk:check(x)
                assert.is_true(told)
                assert.is_true(r.wrong > 0)
                local seen, total = false, 0
                for _, t in ipairs(r.tensors) do
                    if t.wrong > 0 then seen = seen or t.name end
                    total = total + t.wrong
                end
                assert.equal(total, r.wrong) -- masks count too
                assert.equal(f[4], seen)
            end)
            spl.reference.block = truth
            assert.is_true(ok, err)
        end)
    end

    it("finds one wrong element, a NaN, an infinity, and nothing in what is equal", function()
        local a = spl.tensor { shape = { 4, 50 }, dtype = "f64" }:randn(1)
        local b = a:clone()
        local function wrong() return spl.compare(a, b, { tolerance = 1e-5, rms = 1 }).wrong end
        assert.equal(0, wrong())
        local spot = a:narrow(1, 3, 1):narrow(2, 7, 1)
        local value = spot:item()
        spot:fill(value + 2e-5 * (math.abs(value) + 1))
        assert.equal(1, wrong())
        spot:fill(value + 0.5e-5 * (math.abs(value) + 1))
        assert.equal(0, wrong())
        spot:fill(0 / 0)
        assert.equal(1, wrong())
        spot:fill(-1 / 0)
        assert.equal(1, wrong())
        b:narrow(1, 3, 1):narrow(2, 7, 1):fill(-1 / 0) -- a fully masked row has lse -inf on both sides
        assert.equal(0, wrong())
        spot:fill(1 / 0)
        assert.equal(1, wrong())
    end)

    it("compares sampled rows with the rows they stand for", function()
        local a = spl.tensor { shape = { 2, 6, 3 }, dtype = "f64" }:iota()
        local b = spl.from_table({ { { 3, 4, 5 }, { 15, 16, 17 } }, { { 21, 22, 23 }, { 33, 34, 99 } } }, "f64")
        local r = spl.compare(a, b, { dim = 2, rows = { 2, 6 }, tolerance = 1e-9 })
        assert.equal(12, r.count)
        assert.equal(1, r.wrong)
        assert.equal(64, r.max_abs)
        assert.equal(64 * 64, r.diff_squares)
        refused("different shapes", "argument", spl.compare, a, b)
        refused("row 7 of a sequence of 6", "argument", spl.compare, a, b, { dim = 2, rows = { 7, 1 } })
    end)

    it("does not take options it does not know", function()
        on_block(GPT, 1, 4, function(blk, x)
            refused("unknown option 'row'", "argument", blk.check, blk, x, { row = 3 })
            refused("rows = 0", "argument", blk.check, blk, x, { rows = 0 })
            refused("a tensor is needed", "argument", blk.check, blk, 5)
            local alone <close> = spl.zeros { shape = { 1, 4, 12 } }
            refused("mesh", "argument", blk.check, blk, alone)
        end)
    end)

    it("gathers the reference's own complaints", function()
        refused("x", "argument", spl.reference.block, { batch = 1, seq = 2, hidden = 4, heads = 2, kv_heads = 2,
            head_dim = 2, ffn = 3 })
        refused("x has 3 elements; the sizes given need 8", "argument", spl.reference.block, { batch = 1, seq = 2,
            hidden = 4, heads = 2, kv_heads = 2, head_dim = 2, ffn = 3, x = spl.zeros { shape = { 3 } } })
        refused("seq is needed", "argument", spl.reference.block, { batch = 1 })
    end)
end)

describe("the fp64 reference of attention", function()
    it("weighs values by softmax", function()
        local q = spl.from_table({ { { { 1, 0 } }, { { 0, 1 } } } }, "f64")
        local k = spl.from_table({ { { { 0, 0 } }, { { 2, 0 } } } }, "f64")
        local v = spl.from_table({ { { { 1, 2 } }, { { 3, 4 } } } }, "f64")
        local a = { batch = 1, heads = 1, kv_heads = 1, seq_q = 2, seq_k = 2, head_dim = 2, q = q, k = k, v = v,
            scale = 1 }
        local full = spl.reference.attention(a)
        local w = math.exp(2) / (1 + math.exp(2))
        assert.is_true(math.abs(full.out:item(1, 1, 1, 1) - (1 + 2 * w)) < 1e-15)
        assert.is_true(math.abs(full.lse:item(1, 1, 1) - math.log(1 + math.exp(2))) < 1e-15)
        a.slices = { { kind = "causal" } }
        local causal = spl.reference.attention(a)
        assert.same({ 1, 2 }, causal.out:narrow(2, 1, 1):flat())
        assert.equal(0, causal.lse:item(1, 1, 1))
        a.slices = {}
        local none = spl.reference.attention(a)
        assert.equal(0, none.out:norm())
        assert.equal(-math.huge, none.lse:item(1, 1, 1))
        a.rows, a.slices = { 2 }, { { kind = "causal" } }
        assert.same({ 1, 1, 1, 2 }, spl.reference.attention(a).out.shape)
    end)
end)

describe("saved outputs", function()
    it("come in order, with the shapes of the design", function()
        on_block(with(GPT, { dropout = 0.1 }), 2, 5, function(blk, x)
            local y, saved = blk:forward(x, { save = true, step = 4 })
            local names = {}
            for i, s in ipairs(saved) do
                names[i] = ("%s %s {%s}"):format(s.name, s.tensor.dtype, table.concat(s.tensor.shape, ","))
                assert.equal(saved[s.name], s.tensor)
            end
            assert.same({ "ln0_mean f32 {2,5}", "ln0_rstd f32 {2,5,1}", "mha_linear0_out f32 {2,5,36}",
                "sdpa_out f32 {2,3,5,4}", "sdpa_logsumexp f32 {2,3,5}", "mha_linear1_out f32 {2,5,12}",
                "mha_dropout_mask bool {2,5,12}", "ln1_mean f32 {2,5}", "ln1_rstd f32 {2,5,1}",
                "mlp_linear0_out f32 {2,5,48}", "mlp_dropout_mask bool {2,5,12}", "out f32 {2,5,12}" }, names)
            assert.equal(7, saved.seed)
            assert.equal(4, saved.offset)
            assert.equal(y:to_bytes(), saved.out:to_bytes())
            y:release()
            saved:release()
            refused("released", "released", saved.out.flat, saved.out)
        end)
    end)

    it("have masks that drop about the share asked for, other ones in other places and steps", function()
        on_block(with(GPT, { hidden = 48, dropout = 0.25 }), 2, 100, function(blk, x)
            local function masks(step)
                local y, saved = blk:forward(x, { save = true, step = step })
                local a, b = saved.mha_dropout_mask:to_bytes(), saved.mlp_dropout_mask:to_bytes()
                local kept = saved.mha_dropout_mask:sum() / (2 * 100 * 48)
                y:release()
                saved:release()
                return a, b, kept
            end
            local a, b, kept = masks(0)
            assert.is_true(math.abs(kept - 0.75) < 0.02)
            assert.not_equal(a, b)
            assert.not_equal(a, (masks(1)))
            assert.equal(a, (masks(0)))
        end)
        on_block(GPT, 1, 3, function(blk, x)
            local y, saved = blk:forward(x, { save = true })
            assert.equal(36, saved.mha_dropout_mask:sum())
            y:release()
            saved:release()
        end)
    end)

    it("are let go when their variable is closed", function()
        on_block(GPT, 1, 3, function(blk, x)
            local before = spl.live().tensors
            do
                local y, saved = blk:forward(x, { save = true })
                local _ <close> = saved
                y:release()
                assert.is_true(spl.live().tensors > before)
            end
            assert.equal(before, spl.live().tensors)
        end)
    end)
end)

describe("FLOPs and bytes", function()
    it("are those of theory", function()
        for _, c in ipairs(configs) do
            local blk <close> = spl.block(c[2])
            local total, gemm, attention = blk:flops { batch = c[3], seq = c[4] }
            local t, g, a = theory.block_flops(blk.config, { batch = c[3], seq = c[4] })
            assert.equal(t, total)
            assert.equal(g, gemm)
            assert.equal(a, attention)
        end
        local gpt <close> = spl.block { hidden = 12288, heads = 96 }
        local _, gemm, attention = gpt:flops { batch = 1, seq = 2048 }
        assert.equal(24 * 2048 * 12288.0 ^ 2, gemm)
        assert.equal(4 * 12288.0 * 2048 * 2049 / 2, attention)
    end)

    it("are counted as they are computed", function()
        on_block(LLAMA, 2, 31, function(blk, x)
            spl.reset_counters()
            local y <close> = blk:forward(x)
            local c = spl.counters()
            local _, gemm, attention = blk:flops { batch = 2, seq = 31 }
            assert.equal(gemm, c.gemm_flops + 0.0)
            assert.equal(attention, c.attention_flops + 0.0)
            assert.equal(0, c.bytes.total)
            assert.same({ 2, 31, 24 }, y.shape)
        end)
    end)

    it("in closed form: a tensor axis and a sequence axis move the same, sharded batches less", function()
        local function bytes(axes)
            return theory.block_bytes(axes, { batch = 2, seq = 10, hidden = 6, element = 4 })
        end
        -- 2 all-reduces of 120 elements on 3 ranks: 80 + 2 x 40 ... each
        assert.equal(2 * 4 * (80 + 40 * 2), bytes { { role = "tensor", size = 3, coord = 0 } })
        -- rows 4, 3, 3: gather 4 x 2, scatter 6, of 12 elements
        assert.equal(2 * 4 * 12 * (4 * 2 + 6), bytes { { role = "sequence", size = 3, coord = 0 } })
        assert.equal(2 * 4 * 12 * (3 * 2 + 7), bytes { { role = "sequence", size = 3, coord = 2 } })
        assert.equal(0, bytes { { role = "data", size = 2, coord = 0 } })
        local data, sequence = { role = "data", size = 2, coord = 1 }, { role = "sequence", size = 3, coord = 0 }
        assert.equal(2 * 4 * 6 * (4 * 2 + 6), bytes { data, sequence })
        assert.is_nil(bytes { { role = "fsdp", size = 2, coord = 0 } })
    end)

    it("are explained op by op", function()
        on_block(GPT, 2, 5, function(blk)
            local lines = blk:explain { batch = 2, seq = 5 }
            assert.equal(0, lines.bytes)
            assert.equal("norm", lines[1].what)
            assert.same({ 2, 5, 12 }, lines[#lines].shape)
            local text = tostring(lines)
            assert.matches("mha_linear0_out", text)
            assert.matches("rank 0 sends 0 bytes", text)
            refused("rank 1 of 1", "argument", blk.explain, blk, { batch = 2, seq = 5, rank = 1 })
        end)
    end)
end)
