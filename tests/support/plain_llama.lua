-- plain_llama.lua: a small Llama-type model in plain Lua: it writes a Hugging Face directory and works out logits in
-- fp64 by loops, sharing nothing with what it judges. Weights are multiples of 1/128 up to 1: exact in any float type.
local json = require "spl.json"
local plain = {}

-- ---- numbers

-- The same numbers everywhere, whatever else draws random ones.
local function generator(seed)
    local state = seed
    return function()
        state = (state * 6364136223846793005 + 1442695040888963407) & math.maxinteger
        return ((state >> 33) % 129 - 64) / 64
    end
end

local function product(shape)
    local n = 1
    for _, size in ipairs(shape) do n = n * size end
    return n
end

-- y[i] = sum over j of w[i][j] x[j], + b[i]
local function linear(w, b, x)
    local rows, cols, y = w.shape[1], w.shape[2], {}
    for i = 1, rows do
        local sum = b and b.data[i] or 0.0
        for j = 1, cols do sum = sum + w.data[(i - 1) * cols + j] * x[j] end
        y[i] = sum
    end
    return y
end

local function rms_norm(x, gamma, eps)
    local sum, y = 0.0, {}
    for _, v in ipairs(x) do sum = sum + v * v end
    local scale = 1 / math.sqrt(sum / #x + eps)
    for i, v in ipairs(x) do y[i] = v * scale * gamma.data[i] end
    return y
end

-- Element j of a head turns with element j + d/2.
local function rotate(x, first, d, position, theta)
    for j = 0, d // 2 - 1 do
        local angle = position * theta ^ (-2 * j / d)
        local a, b = x[first + j], x[first + j + d // 2]
        x[first + j] = a * math.cos(angle) - b * math.sin(angle)
        x[first + j + d // 2] = b * math.cos(angle) + a * math.sin(angle)
    end
end

local function add(x, y)
    for i = 1, #x do x[i] = x[i] + y[i] end
end

-- ---- the model

local function fields(m, options)
    return {
        architectures = { options.qwen and "Qwen2ForCausalLM" or "LlamaForCausalLM" }, hidden_act = "silu",
        hidden_size = m.hidden, intermediate_size = m.ffn, num_hidden_layers = m.layers, num_attention_heads = m.heads,
        num_key_value_heads = m.kv_heads, head_dim = m.head_dim, vocab_size = m.vocab,
        max_position_embeddings = m.context,
        rms_norm_eps = m.eps, rope_theta = m.theta, tie_word_embeddings = m.tied, attention_bias = m.out_bias or nil,
        mlp_bias = m.mlp_bias or nil, bos_token_id = 0, eos_token_id = m.vocab - 1,
    }
end

--- A model with sizes that nothing divides. options: tied, qwen (biases on q, k, v), bias (on every linear), seed.
function plain.new(options)
    options = options or {}
    local m = { hidden = 10, heads = 6, kv_heads = 2, head_dim = 4, ffn = 13, layers = 2, vocab = 11, context = 16,
                eps = 1e-5, theta = 100.0, tied = options.tied or false }
    m.qkv_bias, m.out_bias, m.mlp_bias = options.qwen or options.bias, options.bias, options.bias
    m.fields = fields(m, options)
    m.weights, m.names = {}, {}
    local draw = generator(options.seed or 1)
    local function weight(name, present, scale, ...)
        if not present then return end
        local w = { shape = { ... }, data = {} }
        for i = 1, product(w.shape) do w.data[i] = draw() * scale end
        m.weights[name] = w
        m.names[#m.names + 1] = name
    end
    local q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    weight("model.embed_tokens.weight", true, 1, m.vocab, m.hidden)
    for i = 0, m.layers - 1 do
        local at = ("model.layers.%d."):format(i)
        weight(at .. "input_layernorm.weight", true, 1, m.hidden)
        weight(at .. "post_attention_layernorm.weight", true, 1, m.hidden)
        for _, p in ipairs{ { "q", q }, { "k", kv }, { "v", kv } } do
            weight(at .. "self_attn." .. p[1] .. "_proj.weight", true, 0.5, p[2], m.hidden)
            weight(at .. "self_attn." .. p[1] .. "_proj.bias", m.qkv_bias, 0.5, p[2])
        end
        weight(at .. "self_attn.o_proj.weight", true, 0.5, m.hidden, q)
        weight(at .. "self_attn.o_proj.bias", m.out_bias, 0.5, m.hidden)
        for _, p in ipairs{ "gate", "up" } do
            weight(at .. "mlp." .. p .. "_proj.weight", true, 0.5, m.ffn, m.hidden)
            weight(at .. "mlp." .. p .. "_proj.bias", m.mlp_bias, 0.5, m.ffn)
        end
        weight(at .. "mlp.down_proj.weight", true, 0.5, m.hidden, m.ffn)
        weight(at .. "mlp.down_proj.bias", m.mlp_bias, 0.5, m.hidden)
    end
    weight("model.norm.weight", true, 1, m.hidden)
    weight("lm_head.weight", not m.tied, 1, m.vocab, m.hidden)
    return m
end

-- Heads of one query over all keys up to it; query head h reads KV head h // (heads / kv_heads).
local function attend(m, q, keys, values, position)
    local out, d = {}, m.head_dim
    for h = 0, m.heads - 1 do
        local kv = h // (m.heads // m.kv_heads)
        local weight, sum = {}, 0.0
        for t = 1, position + 1 do
            local dot = 0.0
            for j = 1, d do dot = dot + q[h * d + j] * keys[t][kv * d + j] end
            weight[t] = math.exp(dot / math.sqrt(d))
            sum = sum + weight[t]
        end
        for j = 1, d do
            local v = 0.0
            for t = 1, position + 1 do v = v + weight[t] / sum * values[t][kv * d + j] end
            out[h * d + j] = v
        end
    end
    return out
end

local function layer(m, i, rows)
    local w, d = {}, m.head_dim
    for name, tensor in pairs(m.weights) do
        local short = name:match("^model%.layers%." .. i .. "%.(.*)$")
        if short then w[short] = tensor end
    end
    local keys, values = {}, {}
    for t, x in ipairs(rows) do
        local y = rms_norm(x, w["input_layernorm.weight"], m.eps)
        local q = linear(w["self_attn.q_proj.weight"], w["self_attn.q_proj.bias"], y)
        keys[t] = linear(w["self_attn.k_proj.weight"], w["self_attn.k_proj.bias"], y)
        values[t] = linear(w["self_attn.v_proj.weight"], w["self_attn.v_proj.bias"], y)
        for h = 0, m.heads - 1 do rotate(q, h * d + 1, d, t - 1, m.theta) end
        for h = 0, m.kv_heads - 1 do rotate(keys[t], h * d + 1, d, t - 1, m.theta) end
        add(x, linear(w["self_attn.o_proj.weight"], w["self_attn.o_proj.bias"], attend(m, q, keys, values, t - 1)))
        y = rms_norm(x, w["post_attention_layernorm.weight"], m.eps)
        local gate = linear(w["mlp.gate_proj.weight"], w["mlp.gate_proj.bias"], y)
        local up = linear(w["mlp.up_proj.weight"], w["mlp.up_proj.bias"], y)
        for j, g in ipairs(gate) do up[j] = up[j] * g / (1 + math.exp(-g)) end
        add(x, linear(w["mlp.down_proj.weight"], w["mlp.down_proj.bias"], up))
    end
end

--- Logits of every token: rows[t][id + 1].
function plain.logits(m, ids)
    local embed, rows = m.weights["model.embed_tokens.weight"], {}
    for t, id in ipairs(ids) do rows[t] = table.move(embed.data, id * m.hidden + 1, (id + 1) * m.hidden, 1, {}) end
    for i = 0, m.layers - 1 do layer(m, i, rows) end
    local head = m.weights["lm_head.weight"] or embed
    for t, x in ipairs(rows) do rows[t] = linear(head, nil, rms_norm(x, m.weights["model.norm.weight"], m.eps)) end
    return rows
end

--- Sum of the negative log-likelihoods of tokens 2..n.
function plain.nll(m, ids)
    local sum, rows = 0.0, plain.logits(m, ids)
    for t = 1, #ids - 1 do
        local total = 0.0
        for _, v in ipairs(rows[t]) do total = total + math.exp(v) end
        sum = sum + math.log(total) - rows[t][ids[t + 1] + 1]
    end
    return sum
end

-- ---- files

local function bf16(x) return string.pack("<f", x):sub(3) end

-- Exact for multiples of 1/128 between 1/128 and 2 in size, and 0: what the weights here are.
local function f16(x)
    if x == 0 then return "\0\0" end
    local size, exponent = math.abs(x), 15
    while size < 1 do size, exponent = size * 2, exponent - 1 end
    return string.pack("<I2", (x < 0 and 0x8000 or 0) | exponent << 10 | math.tointeger((size - 1) * 1024))
end

local packers = {
    F32 = function(x) return string.pack("<f", x) end,
    F64 = function(x) return string.pack("<d", x) end,
    BF16 = bf16,
    F16 = f16,
}

--- The bytes of a safetensors file. tensors: list of {name, dtype, shape, bytes}; padding goes before the first tensor.
function plain.safetensors(tensors, padding)
    local header, data, at = json.object{ __metadata__ = { format = "pt" } }, { padding or "" }, #(padding or "")
    for _, t in ipairs(tensors) do
        header[t[1]] = { dtype = t[2], shape = json.array(t[3]), data_offsets = { at, at + #t[4] } }
        data[#data + 1] = t[4]
        at = at + #t[4]
    end
    local text = json.encode(header)
    return string.pack("<I8", #text) .. text .. table.concat(data)
end

function plain.write_file(path, text)
    local file = assert(io.open(path, "wb"))
    assert(file:write(text))
    file:close()
end

-- Byte-level, one token a letter, no template.
local function tokenizer(m)
    local vocab = {}
    for i = 0, m.vocab - 1 do vocab[string.char(97 + i)] = i end
    return { version = "1.0", added_tokens = json.array(),
             model = { type = "BPE", vocab = vocab, merges = json.array() },
             pre_tokenizer = { type = "ByteLevel", add_prefix_space = false, use_regex = true },
             decoder = { type = "ByteLevel" } }
end

local function entry(m, name, dtype)
    local w, bytes = m.weights[name], {}
    for i, v in ipairs(w.data) do bytes[i] = packers[dtype](v) end
    return { name, dtype, w.shape, table.concat(bytes) }
end

--- Writes config.json, tokenizer.json and weights into an existing folder. options: dtype (of the file, default F32),
--- shards (number of files behind an index; default one file without), padding (bytes that shift the data off its
--- alignment).
function plain.write(m, dir, options)
    options = options or {}
    plain.write_file(dir .. "/config.json", json.encode(m.fields))
    plain.write_file(dir .. "/tokenizer.json", json.encode(tokenizer(m)))
    local shards, map = {}, {}
    for s = 1, options.shards or 1 do shards[s] = {} end
    for i, name in ipairs(m.names) do
        local s = i % #shards + 1
        table.insert(shards[s], entry(m, name, options.dtype or "F32"))
        map[name] = ("model-%d.safetensors"):format(s)
    end
    for s, tensors in ipairs(shards) do
        local name = options.shards and ("model-%d.safetensors"):format(s) or "model.safetensors"
        plain.write_file(dir .. "/" .. name, plain.safetensors(tensors, options.padding))
    end
    if options.shards then
        plain.write_file(dir .. "/model.safetensors.index.json", json.encode{ metadata = {}, weight_map = map })
    end
end

--- A new empty folder.
function plain.folder()
    local path = os.tmpname()
    os.remove(path)
    assert(os.execute("mkdir '" .. path .. "'"))
    return path
end

--- Removes a folder that plain.folder made, with the files in it.
function plain.remove(path)
    os.execute("rm -r '" .. path .. "'")
end

return plain
