-- refuse_spec.lua: arguments, and fields of model files, of a wrong kind: one sentence that names them.
local spl = require "spl"
local bpe = require "spl.bpe"
local config = require "spl.config"
local json = require "spl.json"
local model = require "spl.model"
local mpi = require "mpi"

local function refused(code, words, f, ...)
    local good, e = pcall(f, ...)
    assert.is_false(good, words)
    assert.equal(code, spl.is_error(e) and e.code or tostring(e))
    assert.is_truthy(e.message:find(words, 1, true), e.message)
end

describe("refused with a sentence", function()
    it("are an eps that is no number of zero or more", function()
        local t = spl.ones { shape = { 2, 3 } }
        for _, eps in ipairs { -1, 0 / 0, math.huge } do
            refused("argument", "norm: eps is", spl.norm, t, nil, nil, "layer", eps)
        end
        assert.equal(0, spl.norm(spl.tensor { shape = { 2, 3 } }:fill(1), nil, nil, "layer", 1e-5):max_abs())
    end)

    it("are maps of what has no ranks", function()
        local where = require "spl.where"
        for _, value in ipairs { 5, {}, "tp=2" } do
            refused("argument", "where.mesh: argument 'mesh'", where.mesh, value)
            refused("argument", "where.layout: argument 'layout'", where.layout, value)
        end
        assert.is_string(where.mesh(spl.mesh.parse("tp=2", 2)))
    end)

    it("are shapes with holes", function()
        for _, shape in ipairs { { 2, nil, 3 }, { [2] = 3 }, { 2, 3, [5] = 1 }, { [0] = 2 } } do
            refused("argument", "argument 'shape'", spl.zeros, { shape = shape })
        end
    end)

    it("are two axes of one name", function()
        refused("argument", "axes 1 and 2 of the mesh are both called 'x'", spl.layout, "x=shard(1)",
            { axes = { { name = "x", size = 2 }, { name = "x", size = 3 } } }, { 4 })
    end)

    it("are sizes of zero in a block, here and on the command line", function()
        for _, name in ipairs { "kv_heads", "head_dim", "ffn", "eps" } do
            refused("argument", "block: " .. name .. " is 0", spl.block, { hidden = 8, heads = 2, [name] = 0 })
        end
        for _, flag in ipairs { "--kv-heads", "--head-dim", "--ffn" } do
            assert.equal(2, mpi.run(1, "sp_forward.lua", { flag, "0" }).code)
        end
        refused("memory", "does not fit 63 bits", spl.block, { hidden = 1 << 62, heads = 2 })
    end)

    it("are weights that memory cannot hold, before the first is filled", function()
        local r = mpi.run(1, "sp_forward.lua", { "--seq", "1", "--hidden", "1048576", "--heads", "16" }, { limit = 60 })
        assert.equal(1, r.code)
        assert.matches("bytes %(.* GiB%) are wanted for weights, but only .* are free", r.err)
        local blk = spl.block { hidden = 1 << 20, heads = 16 }
        local before = spl.memory().peak.weights
        refused("memory", "wanted for weights", blk.schedule, blk, spl.mesh "tp=*:tensor")
        assert.equal(before, spl.memory().peak.weights)
    end)

    it("are what a model is not loaded from, or does not run on", function()
        local mesh = spl.mesh "tp=*:tensor"
        refused("argument", "argument 'dir'", model.load, nil, mesh)
        refused("argument", "argument 'mesh'", model.load, "dir", nil)
        refused("argument", "argument 'options'", model.load, "dir", mesh, 5)
        refused("argument", "unknown option 'dtpe'", model.load, "dir", mesh, { dtpe = "f32" })
        refused("argument", "a list of token ids", model.score, setmetatable({}, model), 5)
        refused("argument", "a list of token ids", model.next, setmetatable({}, model), "a")
    end)

    it("are fields of config.json of a wrong type", function()
        local function with(name, value)
            return { architectures = { "LlamaForCausalLM" }, hidden_size = 64, intermediate_size = 172,
                num_hidden_layers = 5, num_attention_heads = 8, vocab_size = 512, max_position_embeddings = 512,
                [name] = value }
        end
        assert.equal(64, config.new(with("bos_token_id", 1)).hidden)
        for _, case in ipairs { { "architectures", 5 }, { "architectures", "x" }, { "architectures", { 5 } },
            { "architectures", { a = "x" } }, { "model_type", 5 }, { "hidden_size", 1 << 62 }, { "hidden_size", "64" },
            { "vocab_size", 1 << 40 }, { "num_hidden_layers", 1 << 40 }, { "sliding_window", "x" },
            { "use_sliding_window", 1 }, { "eos_token_id", { a = 1 } }, { "eos_token_id", "x" },
            { "rms_norm_eps", math.huge }, { "rms_norm_eps", 0 / 0 }, { "rope_theta", math.huge },
            { "head_dim", 0 }, { "head_dim", "x" }, { "tie_word_embeddings", 0 } } do
            refused("format", "'" .. case[1] .. "'", config.new, with(case[1], case[2]))
        end
        refused("format", "'rope_parameters.rope_theta'", config.new, with("rope_parameters", { rope_theta = "x" }))
    end)

    it("are fields of tokenizer.json of a wrong type", function()
        local function fail(code, message) spl.error { code = code, message = message } end
        local function with(name, value)
            local spec = { type = "BPE", vocab = { a = 0, b = 1, ab = 2 }, merges = { "a b" }, dropout = json.null,
                unk_token = json.null }
            if name then spec[name] = value end
            return spec
        end
        assert.is_truthy(bpe.new(with("unk_token", "a"), fail))
        for _, case in ipairs { { "merges", { x = "a b" } }, { "merges", 5 }, { "unk_token", { "a" } },
            { "unk_token", 5 }, { "dropout", "x" }, { "dropout", {} }, { "continuing_subword_prefix", 5 },
            { "byte_fallback", 1 }, { "vocab", { "a" } } } do
            refused("format", "model." .. case[1], bpe.new, with(case[1], case[2]), fail)
        end
        local tokenizer = require "spl.tokenizer"
        refused("format", "added_tokens", tokenizer.new, { model = with(), added_tokens = { x = 1 } })
        refused("format", "'special' must be true or false", tokenizer.new,
            { model = with(), added_tokens = { { id = 3, content = "c", special = "yes" } } })
    end)
end)

describe("a single number", function()
    it("can be drawn, and looked up by", function()
        local t = spl.zeros { shape = {}, dtype = "f64" }:randn(7)
        assert.equal(spl.zeros { shape = { 1 }, dtype = "f64" }:randn(7):item(1), t:item())
        assert.equal("[3]", tostring(spl.embed(spl.zeros { shape = {}, dtype = "i64" }, spl.ones { shape = { 2, 3 } })
            .shape))
    end)
end)
