-- Models from Hugging Face directories against a plain Lua implementation, what is refused, and the two scripts that
-- use them, on more ranks than there are heads and on a real model where there is one.
local spl = require "spl"
local config = require "spl.config"
local json = require "spl.json"
local model = require "spl.model"
local mpi = require "tests.support.mpi"
local plain = require "tests.support.plain_llama"
local tokenizer = require "spl.tokenizer"

local IDS = { 0, 3, 10, 7, 7, 1, 5, 9, 2, 4, 8 }

-- Runs with a directory that holds the model.
local function with_model(m, options, run)
    local dir = plain.folder()
    plain.write(m, dir, options)
    local good, problem = pcall(run, dir)
    plain.remove(dir)
    if not good then error(problem, 0) end
end

local function largest_difference(m, loaded)
    local worst, wanted = 0, plain.logits(m, IDS)
    local hidden <close> = loaded:hidden(IDS)
    for t, row in ipairs(wanted) do
        for i, value in ipairs(loaded:row(hidden, t)) do worst = math.max(worst, math.abs(value - row[i])) end
    end
    return worst
end

describe("a model", function()
    local mesh

    before_each(function() mesh = spl.mesh "tp=*:sequence" end)
    after_each(function() mesh:release() end)

    local function check(m, options, dtype, limit)
        with_model(m, options, function(dir)
            local loaded <close> = model.load(dir, mesh, { dtype = dtype })
            local difference = largest_difference(m, loaded)
            assert.is_true(difference < limit, "logits differ by " .. difference)
            local sum, count = loaded:score(IDS)
            assert.equal(#IDS - 1, count)
            assert.is_true(math.abs(sum - plain.nll(m, IDS)) < 10 * limit, "NLL " .. sum)
        end)
    end

    it("gives the logits of a plain implementation: Llama, own head", function()
        check(plain.new(), nil, "f64", 1e-11)
        check(plain.new(), nil, "f32", 2e-5)
    end)

    it("gives them with the head tied to the table, biases on q, k and v (Qwen2), biases everywhere", function()
        check(plain.new{ tied = true, seed = 2 }, nil, "f64", 1e-11)
        check(plain.new{ qwen = true, seed = 3 }, nil, "f64", 1e-11)
        check(plain.new{ bias = true, seed = 4 }, nil, "f64", 1e-11)
    end)

    it("gives them from each stored type, from shards, and from data at odd bytes", function()
        local m = plain.new{ seed = 5 }
        for _, dtype in ipairs{ "F64", "BF16", "F16" } do check(m, { dtype = dtype }, "f64", 1e-11) end
        check(m, { shards = 3 }, "f64", 1e-11)
        check(m, { padding = "x", dtype = "F64" }, "f64", 1e-11)
    end)

    it("scores long texts in pieces that add up", function()
        local m = plain.new()
        with_model(m, nil, function(dir)
            local loaded <close> = model.load(dir, mesh, { dtype = "f64" })
            local whole = loaded:score(IDS)
            loaded.logits_at_once = 3 * m.vocab
            assert.is_true(math.abs(loaded:score(IDS) - whole) < 1e-12)
        end)
    end)

    it("continues with the most likely token", function()
        local m = plain.new()
        with_model(m, nil, function(dir)
            local loaded <close> = model.load(dir, mesh)
            local rows, best = plain.logits(m, IDS), 1
            for i, v in ipairs(rows[#rows]) do
                if v > rows[#rows][best] then best = i end
            end
            assert.equal(best - 1, loaded:next(IDS))
        end)
    end)

    it("refuses token lists that it cannot take", function()
        with_model(plain.new(), nil, function(dir)
            local loaded <close> = model.load(dir, mesh)
            local long = {}
            for i = 1, 17 do long[i] = 0 end
            for ids, words in pairs{ [long] = { "17", "16" }, [{ 0, 11 }] = { "token 2", "11" }, [{ 0, -1 }] = { "-1" },
                                     [{}] = { "no tokens" }, [{ 3 }] = { "1 token;" } } do
                local good, e = pcall(loaded.score, loaded, ids)
                assert.is_false(good)
                assert.equal("argument", e.code)
                for _, word in ipairs(words) do assert.matches(word, e.message, 1, true) end
            end
            assert.is_false(pcall(loaded.next, loaded, {}))
        end)
    end)
end)

describe("a model directory", function()
    -- Writes a model, lets `change` break it, and expects an error whose message has all the words.
    local function refused(change, options, code, ...)
        local words = { ... }
        local mesh <close> = spl.mesh "tp=*:tensor"
        local m = plain.new()
        with_model(m, options, function(dir)
            change(dir, m)
            local good, e = pcall(model.load, dir, mesh)
            assert.is_false(good)
            assert.equal(code, e.code, e.message)
            assert.matches(dir, e.message, 1, true)
            for _, word in ipairs(words) do assert.matches(word, e.message, 1, true) end
        end)
    end

    local function rewrite(dir, m) plain.write(m, dir) end

    it("is refused where a file is missing", function()
        refused(function(dir) os.remove(dir .. "/config.json") end, nil, "io", "config.json")
        refused(function(dir) os.remove(dir .. "/model.safetensors") end, nil, "io", "model.safetensors.index.json")
        refused(function(dir) os.remove(dir .. "/model-2.safetensors") end, { shards = 3 }, "io", "model-2.safetensors",
            "tensor 'model.")
    end)

    it("is refused where a tensor is missing, by its name", function()
        refused(function(dir, m)
            table.remove(m.names) -- lm_head.weight
            rewrite(dir, m)
        end, nil, "format", "'lm_head.weight'", "missing")
        refused(function(dir, m)
            table.remove(m.names, 3)
            plain.write(m, dir, { shards = 2 })
            os.remove(dir .. "/model.safetensors")
        end, nil, "format", "'model.layers.0.post_attention_layernorm.weight'", "index.json")
        refused(function(dir)
            local path = dir .. "/model.safetensors.index.json"
            local index = json.read(path)
            index.weight_map["model.norm.weight"] = "model-" .. index.weight_map["model.norm.weight"]:byte(7) % 2 + 1
                .. ".safetensors"
            plain.write_file(path, json.encode(index))
        end, { shards = 2 }, "format", "'model.norm.weight'", "no tensor")
    end)

    it("is refused where a tensor has another shape, with both", function()
        refused(function(dir, m)
            m.weights["model.layers.1.mlp.up_proj.weight"].shape = { 10, 13 }
            rewrite(dir, m)
        end, nil, "format", "'model.layers.1.mlp.up_proj.weight'", "[10, 13]", "[13, 10]")
        refused(function(dir, m)
            m.fields.vocab_size = 12
            rewrite(dir, m)
        end, nil, "format", "'model.embed_tokens.weight'", "[11, 10]", "[12, 10]")
    end)

    it("is refused where a weight does not hold floats", function()
        refused(function(dir, m)
            local path, names = dir .. "/model.safetensors", {}
            for i, name in ipairs(m.names) do
                local w = m.weights[name]
                names[i] = { name, "I32", w.shape, ("\0"):rep(4 * #w.data) }
            end
            plain.write_file(path, plain.safetensors(names))
        end, nil, "format", "'model.embed_tokens.weight'", "I32", "F32")
    end)

    it("is refused where a weight is NaN or infinite, by its name", function()
        for _, value in ipairs{ 0 / 0, math.huge } do
            refused(function(dir, m)
                m.weights["model.layers.1.self_attn.v_proj.weight"].data[79] = value
                rewrite(dir, m)
            end, nil, "numeric", "'model.layers.1.self_attn.v_proj.weight'", "NaN")
        end
    end)

    it("is refused where a weight file is damaged", function()
        refused(function(dir)
            local path = dir .. "/model.safetensors"
            local file <close> = assert(io.open(path, "rb"))
            plain.write_file(path .. ".cut", file:read "a":sub(1, -2))
            os.rename(path .. ".cut", path)
        end, nil, "format", "model.safetensors", "truncated")
        refused(function(dir) plain.write_file(dir .. "/config.json", "{") end, nil, "format", "config.json", "JSON")
        refused(function(dir) plain.write_file(dir .. "/model.safetensors.index.json", '{"weight_map": 1}') end,
            { shards = 2 }, "format", "weight_map")
        refused(function(dir)
            plain.write_file(dir .. "/model.safetensors.index.json", '{"weight_map": {"a": "../a.safetensors"}}')
        end, { shards = 2 }, "format", "'a'")
    end)
end)

describe("a config.json", function()
    local function fields(change)
        local f = plain.new().fields
        for name, value in pairs(change or {}) do f[name] = value end
        return f
    end

    local function refused(change, code, ...)
        local good, e = pcall(config.new, fields(change), "config.json")
        assert.is_false(good)
        assert.equal(code, e.code, e.message)
        assert.matches("config.json: ", e.message, 1, true)
        for _, word in ipairs{ ... } do assert.matches(word, e.message, 1, true) end
    end

    it("is read with the defaults of its kind", function()
        local c = config.new(fields{ num_key_value_heads = json.null, head_dim = json.null, hidden_size = 12,
                                     rms_norm_eps = json.null, rope_theta = json.null, eos_token_id = { 3, 4 } })
        assert.equal(6, c.kv_heads)
        assert.equal(2, c.head_dim)
        assert.equal(1e-6, c.eps)
        assert.equal(10000, c.rope_theta)
        assert.same({ 3, 4 }, c.eos)
        assert.is_false(c.qkv_bias)
        c = config.new(fields{ architectures = { "Qwen2ForCausalLM" }, sliding_window = 4, use_sliding_window = false })
        assert.is_true(c.qkv_bias)
        assert.is_false(c.out_bias)
        c = config.new(fields{ architectures = { "MistralForCausalLM" }, sliding_window = 16, rope_theta = json.null,
                               rope_parameters = { rope_type = "default", rope_theta = 5000 } })
        assert.equal(5000, c.rope_theta)
    end)

    it("is refused by the field that is missing or wrong", function()
        for _, name in ipairs{ "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                               "vocab_size", "max_position_embeddings" } do
            refused({ [name] = json.null }, "format", "'" .. name .. "' is missing")
            refused({ [name] = 0 }, "format", "'" .. name .. "' is 0")
            refused({ [name] = "8" }, "format", "'" .. name .. "' is \"8\"")
            refused({ [name] = 1.5 }, "format", "'" .. name .. "' is 1.5")
        end
        refused({ rms_norm_eps = 0 }, "format", "'rms_norm_eps'")
        refused({ rope_theta = "x" }, "format", "'rope_theta'")
        refused({ tie_word_embeddings = 1 }, "format", "'tie_word_embeddings'")
        refused({ num_key_value_heads = 4 }, "format", "'num_key_value_heads' (4)")
        refused({ head_dim = json.null, hidden_size = 13 }, "format", "'hidden_size' (13)", "'head_dim'")
        refused({ head_dim = 3 }, "format", "'head_dim' is 3")
        refused({ eos_token_id = 11 }, "format", "'eos_token_id'")
    end)

    it("is refused by what is not built", function()
        refused({ architectures = { "GPT2LMHeadModel" } }, "unsupported", "GPT2LMHeadModel", "LlamaForCausalLM")
        refused({ architectures = json.null, model_type = json.null }, "unsupported", "architecture")
        refused({ hidden_act = "gelu" }, "unsupported", "'hidden_act'", "gelu")
        refused({ rope_scaling = { rope_type = "llama3", factor = 8 } }, "unsupported", "'rope_scaling'", "llama3")
        refused({ rope_scaling = { type = "linear", factor = 2 } }, "unsupported", "'rope_scaling'", "linear")
        refused({ architectures = { "MistralForCausalLM" }, sliding_window = 8 }, "unsupported", "'sliding_window' 8")
        refused({ partial_rotary_factor = 0.5 }, "unsupported", "'partial_rotary_factor'")
        refused({ quantization_config = { bits = 4 } }, "unsupported", "'quantization_config'")
    end)
end)

describe("score.lua and generate.lua", function()
    local dir, text, m

    setup(function()
        m, dir = plain.new{ seed = 6 }, plain.folder()
        plain.write(m, dir)
        text = mpi.temporary("adkhhbfjcei")
    end)

    teardown(function()
        plain.remove(dir)
        os.remove(text)
    end)

    local function score(n, args, opts)
        table.move({ "--model", dir, "--text", text }, 1, 4, #args + 1, args)
        return mpi.run(n, "score.lua", args, opts)
    end

    it("score the same on more ranks than heads, in JSON with its four keys", function()
        for _, case in ipairs{ { 1, "tp=*:tensor" }, { 7, "tp=*:tensor" }, { 7, "tp=*:sequence" },
                               { 6, "dp=2:data, tp=*:sequence" } } do
            local r = score(case[1], { "--mesh", case[2], "--json" })
            assert.equal(0, r.code, r.err)
            assert.matches('^{"tokens":11,"mean_nll":[%d.]+,"perplexity":[%d.]+,"tokens_per_s":[%d.]+,"mesh":"[^"]+",'
                .. '"ranks":%d,"dtype":"f32","model":"[^"]+"}\n$', r.out)
            local got = json.decode(r.out)
            assert.same({ case[1], dir }, { got.ranks, got.model })
            assert.equal(case[2]:gsub("%*", ""):match("^%l+="), got.mesh:match("^%l+="))
            assert.is_true(math.abs(got.mean_nll - plain.nll(m, IDS) / 10) < 1e-5, r.out)
            assert.is_true(math.abs(got.perplexity - math.exp(got.mean_nll)) < 1e-9)
        end
    end)

    it("print a table to read", function()
        local r = score(2, {})
        assert.equal(0, r.code, r.err)
        for _, word in ipairs{ "tokens      11\n", "mean NLL    ", "perplexity  ", "tokens/s    ", "tp=2:sequence" } do
            assert.matches(word, r.out, 1, true)
        end
    end)

    it("say once what is wrong, and end with the right code", function()
        local empty, long = mpi.temporary "", mpi.temporary(("a"):rep(17))
        local foreign = mpi.temporary "a letter too far: z"
        local cases = {
            { 1, { "--text", empty }, "is empty" }, { 1, { "--text", long }, "17 tokens", "16" },
            { 1, { "--text", foreign }, "no token for" }, { 1, { "--text", "/nonexistent.txt" }, "/nonexistent.txt" },
            { 1, { "--model", "/nonexistent" }, "/nonexistent/config.json" }, { 2, { "--dtype", "i64" }, "f16" },
            { 2, { "--mesh", "tp=3:tensor" }, "3" }, { 2, { "--mesh", "tp=*:fsdp" }, "fsdp" },
            { 2, { "--mesh", "tp=*:tensr" }, "tensr" }, { 2, { "--modell", "x" }, "--modell", "--model" },
        }
        for c, case in ipairs(cases) do
            local args = table.move(case[2], 1, #case[2], 5, { "--model", dir, "--text", text })
            local r = mpi.run(c % 3 == 1 and 2 or 1, "score.lua", args)
            assert.equal(case[1], r.code, r.err)
            for i = 3, #case do assert.matches(case[i], r.err, 1, true) end
            assert.equal(1, mpi.count(r.err, "spl: "), r.err)
            assert.equal(1, mpi.count(r.err, "\n"), r.err)
            assert.equal("", r.out)
        end
        for _, path in ipairs{ empty, long, foreign } do os.remove(path) end
    end)

    -- Greedy continuation by the plain implementation, up to the tokens that begin and end a text.
    local function continued(plain_model, ids, count)
        for _ = 1, count do
            local rows, best = plain.logits(plain_model, ids), 1
            for i, v in ipairs(rows[#rows]) do
                if v > rows[#rows][best] then best = i end
            end
            if best == 1 or best == plain_model.vocab then break end
            ids[#ids + 1] = best - 1
        end
        return ids
    end

    it("generate what the plain implementation prefers, and nothing else on standard output", function()
        local wanted = continued(m, { 0, 3, 10 }, 9)
        assert.equal(12, #wanted)
        local r = mpi.run(2, "generate.lua", { "--model", dir, "--prompt", "adk", "--tokens", "9" })
        assert.equal(0, r.code, r.err)
        assert.equal(tokenizer.load(dir .. "/tokenizer.json"):decode(wanted), r.out)
        assert.matches("^\n# 9 tokens added in [%d.]+ s, [%d.]+ tokens/s\n$", r.err)
        r = mpi.run(1, "generate.lua", { "--model", dir, "--prompt", "adk", "--tokens", "14" })
        assert.equal(2, r.code)
        assert.matches("^spl: the prompt has 3 tokens [^\n]*at most 13\n$", r.err)
    end)

    it("end a text where the model does", function()
        local short = plain.new{ seed = 9 }
        with_model(short, nil, function(where)
            local wanted = continued(short, { 0, 3, 10 }, 9)
            assert.equal(6, #wanted)
            local r = mpi.run(1, "generate.lua", { "--model", where, "--prompt", "adk", "--tokens", "9" })
            assert.equal(tokenizer.load(where .. "/tokenizer.json"):decode(wanted), r.out, r.err)
        end)
    end)
end)

describe("a real model", function()
    local dir = (os.getenv "SPL_SHARED" or "../shared") .. "/models/stories260k"
    local golden = json.read(dir .. "/golden.json")

    it("scores as golden on 1, 5 and 8 ranks", function()
        if not golden then return pending("no folder " .. dir) end
        for _, n in ipairs{ 1, 5, 8 } do
            for _, role in ipairs{ "tensor", "sequence" } do
                local r = mpi.run(n, "score.lua", { "--model", dir, "--text", dir .. "/story.txt", "--json", "--mesh",
                                                    "tp=*:" .. role })
                assert.equal(0, r.code, r.err)
                local got = json.decode(r.out)
                assert.equal(#golden.tokens, got.tokens)
                assert.is_true(math.abs(got.mean_nll - golden.mean_nll) < 1e-5, role .. " " .. r.out)
            end
        end
    end)

    it("writes its story from an empty prompt", function()
        if not golden then return pending("no folder " .. dir) end
        local file <close> = assert(io.open(dir .. "/story.txt", "rb"))
        local tokens = tostring(#golden.tokens - 1)
        local r = mpi.run(2, "generate.lua", { "--model", dir, "--prompt", "", "--tokens", tokens })
        assert.equal(0, r.code, r.err)
        assert.equal(file:read "a", r.out)
    end)
end)
