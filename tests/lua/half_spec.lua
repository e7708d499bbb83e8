-- half_spec.lua: bf16 and f16 on one rank: a block against fp64 and what it keeps in which dtype, the residual in f32
-- inside it, weights loaded from any stored dtype, and a real model scored.
local spl = require "spl"
local json = require "spl.json"
local model = require "spl.model"
local mpi = require "tests.support.mpi"
local plain = require "tests.support.plain_llama"

-- Half a unit of each: the largest relative error of one rounding.
local UNIT = { bf16 = 2 ^ -8, f16 = 2 ^ -11 }
local HALVES = { "bf16", "f16" }

local GPT = { hidden = 64, heads = 8, seed = 7, dropout = 0.1 }
local LLAMA = { hidden = 48, heads = 6, kv_heads = 2, ffn = 77, norm = "rms", qkv = "separate", bias = false,
    act = "silu", gated = true, rope_theta = 10000, seed = 9 }

local function with(base, more)
    local out = {}
    for k, v in pairs(base) do out[k] = v end
    for k, v in pairs(more) do out[k] = v end
    return out
end

local function on_block(o, batch, seq, use)
    local mesh <close> = spl.mesh "tp=*:sequence"
    local blk <close> = spl.block(o):schedule(mesh)
    local x <close> = blk:input { batch = batch, seq = seq }:randn(11)
    use(blk, x, mesh)
end

-- The number rounded to a dtype, by a tensor of one element.
local function rounded(value, dtype)
    local t <close> = spl.from_table({ value }, dtype)
    return t:item(1)
end

describe("a block in half precision", function()
    for _, dtype in ipairs(HALVES) do
        for name, c in pairs { GPT = GPT, Llama = LLAMA } do
            it(("is right: %s, %s"):format(dtype, name), function()
                on_block(with(c, { dtype = dtype }), 2, 150, function(blk, x)
                    assert.equal(dtype, x.dtype)
                    local r = blk:check(x, { step = 3 })
                    assert.equal(0, r.wrong)
                    -- a few roundings, one after another, of 0.4 each in the mean; and not none, as if in truth f32
                    assert.is_true(r.rel_err <= 1.2 * UNIT[dtype] and r.rel_err >= 0.25 * UNIT[dtype],
                        ("rel_err %g, %.2f units"):format(r.rel_err, r.rel_err / UNIT[dtype]))
                    for _, t in ipairs(r.tensors) do
                        if t.name == "ln0_mean" or t.name == "ln0_rstd" then -- of x as stored, in f32
                            assert.is_true(t.rel_err <= 1e-6, t.name .. " " .. t.rel_err)
                        end
                    end
                end)
            end)
        end

        it("keeps statistics in f32 and the rest as its weights: " .. dtype, function()
            on_block(with(GPT, { dtype = dtype }), 2, 5, function(blk, x)
                local y, kept = blk:forward(x, { save = true })
                local saved <close> = kept
                local want = { ln0_mean = "f32", ln0_rstd = "f32", ln1_mean = "f32", ln1_rstd = "f32",
                    sdpa_logsumexp = "f32", mha_dropout_mask = "bool", mlp_dropout_mask = "bool" }
                for _, s in ipairs(saved) do assert.equal(want[s.name] or dtype, s.tensor.dtype, s.name) end
                assert.equal(12, #saved)
                assert.equal(dtype, y.dtype)
                y:release()
                for _, p in ipairs(blk:params()) do assert.equal(dtype, p.tensor.dtype, p.name) end
            end)
        end)

        it("holds weights and sends numbers of two bytes: " .. dtype, function()
            local function weights(t)
                local before, bytes = spl.memory().now.weights, nil
                on_block(with(LLAMA, { dtype = t }), 1, 3, function() bytes = spl.memory().now.weights - before end)
                return bytes
            end
            assert.equal(weights "f32", 2 * weights(dtype))
        end)

        it("gives the same bits twice: " .. dtype, function()
            on_block(with(LLAMA, { dtype = dtype }), 2, 150, function(blk, x)
                local a <close> = blk:forward(x)
                local b <close> = blk:forward(x)
                assert.is_true(a:to_bytes() == b:to_bytes())
            end)
        end)
    end

    for _, dtype in ipairs { "f32", "f64", "bf16", "f16" } do
        it("gives the same bits whether it saves or not: " .. dtype, function()
            for _, o in ipairs { GPT, LLAMA, with(GPT, { act = "silu" }), with(GPT, { act = "gelu_erf", ffn = 7 }) } do
                on_block(with(o, { dtype = dtype }), 2, 33, function(blk, x)
                    local a <close> = blk:forward(x, { step = 4 })
                    local b, kept = blk:forward(x, { step = 4, save = true })
                    assert.is_true(a:to_bytes() == b:to_bytes())
                    b:release()
                    kept:release()
                end)
            end
        end)
    end

    -- Attention and MLP give nothing but their biases, which are too small for the half-precision neighbourhood of x.
    local function only_biases(dtype, use)
        on_block({ hidden = 4, heads = 1, seed = 1, dtype = dtype }, 1, 3, function(blk, x, mesh)
            for _, name in ipairs { "mha_linear1_weight", "mlp_linear1_weight" } do blk:param(name):fill(0) end
            for _, name in ipairs { "mha_linear1_bias", "mlp_linear1_bias" } do blk:param(name):fill(0.75) end
            use(blk, x, mesh)
        end)
    end

    it("adds to the residual in f32 and rounds it once, at the end", function()
        -- bf16 has steps of 2 from 256 to 512, f16 from 2048 to 4096: 0.75 alone is lost, 0.75 + 0.75 is not
        for dtype, start in pairs { bf16 = 256, f16 = 2048 } do
            only_biases(dtype, function(blk, x)
                x:fill(start)
                local y <close> = blk:forward(x)
                assert.equal(start, rounded(start + 0.75, dtype))
                for _, value in ipairs(y:flat()) do assert.equal(start + 2, value) end
            end)
        end
    end)

    it("takes an x of f32 as it is", function()
        only_biases("bf16", function(blk, x, mesh)
            local wide <close> = spl.tensor { shape = x.shape, mesh = mesh, layout = x.layout }:fill(257)
            assert.equal(256, rounded(257, "bf16"))
            local y <close> = blk:forward(wide) -- 257 + 1.5 is nearer to 258 than to 260; rounded first it were 256
            assert.equal("bf16", y.dtype)
            for _, value in ipairs(y:flat()) do assert.equal(258, value) end
            wide:fill(257.75) -- 259.25
            local z <close> = blk:forward(wide)
            for _, value in ipairs(z:flat()) do assert.equal(260, value) end
        end)
    end)

    it("refuses an x of another half, of f64, or of bf16 for f32 weights", function()
        for x_dtype, block_dtype in pairs { f16 = "bf16", f64 = "f16", bf16 = "f32" } do
            on_block({ hidden = 4, heads = 1, dtype = block_dtype }, 1, 2, function(blk, x)
                local other <close> = x:cast(x_dtype)
                local good, e = pcall(blk.forward, blk, other)
                assert.is_false(good)
                assert.equal("argument", e.code)
                assert.matches("x has dtype " .. x_dtype, e.message)
            end)
        end
    end)

    it("keeps NaN, and shows values past the end of f16 as infinite", function()
        only_biases("f16", function(blk, x)
            x:fill(65504)
            blk:param("mlp_linear1_bias"):fill(100)
            local y <close> = blk:forward(x)
            for _, value in ipairs(y:flat()) do assert.equal(math.huge, value) end
            x:fill(0 / 0)
            local z <close> = blk:forward(x)
            for _, value in ipairs(z:flat()) do assert.is_true(value ~= value) end
        end)
    end)
end)

describe("ops in half precision", function()
    it("give what f32 gives from the same numbers, rounded", function()
        for _, dtype in ipairs(HALVES) do
            local x <close> = spl.tensor { shape = { 9, 40 }, dtype = dtype }:randn(1)
            local w <close> = spl.tensor { shape = { 24, 40 }, dtype = dtype }:randn(2)
            local b <close> = spl.tensor { shape = { 24 }, dtype = dtype }:randn(3)
            local y <close> = spl.linear(x, w, b, "gelu_tanh")
            local wide <close> = spl.linear(x:cast "f32", w:cast "f32", b:cast "f32", "gelu_tanh")
            assert.equal(dtype, y.dtype)
            local fine, near = wide:flat(), y:flat()
            for i, value in ipairs(near) do
                assert.is_true(math.abs(value - fine[i]) <= UNIT[dtype] * math.abs(fine[i]) * 1.001 + 1e-5)
            end
        end
    end)

    it("mix a norm's f32 with gains of half, and nothing else", function()
        local x <close> = spl.tensor { shape = { 3, 8 } }:randn(1)
        local gamma <close> = spl.tensor { shape = { 8 }, dtype = "bf16" }:fill(1)
        local y, mean, rstd = spl.norm(x, gamma, nil, "layer", 1e-5)
        assert.same({ "bf16", "f32", "f32" }, { y.dtype, mean.dtype, rstd.dtype })
        for _, t in ipairs { y, mean, rstd } do t:release() end
        local double <close> = x:cast "f64"
        assert.is_false(pcall(spl.norm, double, gamma, nil, "layer", 1e-5))
        local w <close> = spl.tensor { shape = { 2, 8 }, dtype = "bf16" }:randn(1)
        local good, e = pcall(spl.linear, x, w)
        assert.is_false(good)
        assert.matches("bf16", e.message)
    end)
end)

describe("weights in half precision", function()
    it("are loaded from any stored dtype into any, rounded once", function()
        -- 1 + 2^-8 + 2^-30 is past the middle of two bf16 numbers, which rounding to f32 first would land on
        local values = { 1 + 2 ^ -8 + 2 ^ -30, -1 / 3, 1 + 2 ^ -11, 65504, 3e-6, 0 }
        for stored, name in pairs { f64 = "F64", f32 = "F32", bf16 = "BF16", f16 = "F16" } do
            local source <close> = spl.from_table(values, stored)
            local path = os.tmpname()
            plain.write_file(path, plain.safetensors({ { "w", name, { #values }, source:to_bytes() } }, ""))
            local file <close> = spl.safetensors.open(path)
            for _, dtype in ipairs { "f64", "f32", "bf16", "f16" } do
                local t <close> = spl.tensor { shape = { #values }, dtype = dtype }
                file:load("w", t)
                local kept = source:flat()
                for i, value in ipairs(t:flat()) do
                    assert.equal(rounded(kept[i], dtype), value, ("%s to %s, %.17g"):format(stored, dtype, kept[i]))
                end
            end
            os.remove(path)
        end
        assert.equal(1 + 2 ^ -7, rounded(values[1], "bf16"))
    end)

    it("past the end of f16 are refused, naming bf16", function()
        local m = plain.new()
        m.weights["model.norm.weight"].data[2] = 70000
        local dir = plain.folder()
        plain.write(m, dir, {})
        local mesh <close> = spl.mesh "tp=*:sequence"
        local good, e = pcall(model.load, dir, mesh, { dtype = "f16" })
        local loaded <close> = model.load(dir, mesh, { dtype = "bf16" })
        plain.remove(dir)
        assert.is_false(good)
        assert.equal("numeric", e.code)
        assert.matches("'model.norm.weight'", e.message, 1, true)
        assert.matches("bf16", e.message)
        assert.equal("bf16", loaded.gamma.dtype)
    end)
end)

describe("a real model in half precision", function()
    local dir = (os.getenv "SPL_SHARED" or "../shared") .. "/models/stories260k"
    local golden = json.read(dir .. "/golden.json")

    -- Logits of up to about 20 in bf16 are off by 0.03 either way; over 256 tokens most of it cancels.
    for dtype, most in pairs { bf16 = 4e-3, f16 = 5e-4 } do
        it("scores near the golden likelihood: " .. dtype, function()
            if not golden then return pending("no folder " .. dir) end
            local mesh <close> = spl.mesh "tp=*:sequence"
            local loaded <close> = model.load(dir, mesh, { dtype = dtype })
            local sum, count = loaded:score(golden.tokens)
            local off = math.abs(sum / count - golden.mean_nll)
            assert.is_true(off <= most and off > 1e-6, ("off by %g"):format(off))
            assert.equal(golden.argmax_next, loaded:next(golden.tokens))
        end)
    end

    it("is scored and continued by the scripts", function()
        if not golden then return pending("no folder " .. dir) end
        local r = mpi.spl { "run", "score.lua", "--model", dir, "--text", dir .. "/story.txt", "--json", "--dtype",
            "bf16" }
        assert.equal(0, r.code, r.err)
        assert.is_true(math.abs(json.decode(r.out).mean_nll - golden.mean_nll) <= 4e-3, r.out)
        local g = mpi.spl { "run", "generate.lua", "--model", dir, "--tokens", "12", "--dtype", "f16" }
        assert.equal(0, g.code, g.err)
        assert.matches("^Once upon a time, there was a ", g.out)
    end)
end)

describe("sp_forward in half precision", function()
    it("is right on virtual ranks, sends half the bytes and holds half the weights", function()
        local function rows(dtype)
            local r = mpi.spl { "run", "--virtual", "3", "sp_forward.lua", "--dtype", dtype, "--seq", "97", "--hidden",
                "60", "--heads", "5", "--dropout", "0.1", "--rounds", "1", "--warmup", "0", "--check", "--json",
                "--mesh", "tp=*:tensor", "--mesh", "tp=*:sequence" }
            assert.equal(0, r.code, r.err)
            local out = {}
            for line in r.out:gmatch "[^\n]+" do out[#out + 1] = json.decode(line) end
            assert.equal(2, #out)
            return out
        end
        local full = rows "f32"
        for _, dtype in ipairs(HALVES) do
            for i, row in ipairs(rows(dtype)) do
                assert.equal(0, row.wrong)
                assert.is_true(row.rel_err <= 1.2 * UNIT[dtype] and row.rel_err >= 0.25 * UNIT[dtype], row.rel_err)
                assert.equal(full[i].bytes_sent, 2 * row.bytes_sent)
                assert.equal(row.bytes_theory, row.bytes_sent)
                assert.is_true(row.peak_bytes < 0.8 * full[i].peak_bytes)
            end
        end
    end)
end)
