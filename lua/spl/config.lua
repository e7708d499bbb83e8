--- The config.json of a Hugging Face model directory, as the numbers that a Llama-type model needs.
---
--- Read are LlamaForCausalLM, MistralForCausalLM and Qwen2ForCausalLM, which differ here only in their biases. What
--- would change the mathematics and is not built (scaled RoPE, a sliding window, another activation) is refused by
--- name.
local spl = require "spl"
local json = require "spl.json"

local config = {}

-- Which linears have a bias: as `attention_bias` and `mlp_bias` say, or always for q, k and v.
local KNOWN = {
    LlamaForCausalLM = {}, llama = {},
    MistralForCausalLM = {}, mistral = {},
    Qwen2ForCausalLM = { qkv_bias = true }, qwen2 = { qkv_bias = true },
}

---@class spl.config
---@field hidden integer
---@field ffn integer
---@field layers integer
---@field heads integer
---@field kv_heads integer
---@field head_dim integer
---@field vocab integer
---@field context integer  positions that the model was made for
---@field eps number
---@field rope_theta number
---@field tied boolean  the head is the embedding table
---@field qkv_bias boolean
---@field out_bias boolean
---@field mlp_bias boolean
---@field bos? integer
---@field eos integer[]

local MOST = 2147483647 -- of any size or count

local reader = {}
reader.__index = reader

function reader:fail(code, format, ...)
    spl.error{ code = code, message = ("%s: %s"):format(self.path, format:format(...)) }
end

-- A field; nil where it is missing or null.
function reader:get(name)
    local value = self.fields[name]
    if value == json.null then return nil end
    return value
end

function reader:integer(name, default)
    local value = self:get(name)
    if value == nil then value = default end
    if value == nil then self:fail("format", "'%s' is missing; it must be an integer of 1 or more", name) end
    if math.type(value) ~= "integer" or value < 1 then
        self:fail("format", "'%s' is %s; it must be an integer of 1 or more", name, json.encode(value))
    elseif value > MOST then
        self:fail("format", "'%s' is %d; no more than %d is possible", name, value, MOST)
    end
    return value
end

function reader:positive(name, default)
    local value = self:get(name)
    if value == nil then value = default end
    if type(value) ~= "number" or not (value > 0 and value < math.huge) then
        self:fail("format", "'%s' is %s; it must be a positive number", name, json.encode(value))
    end
    return value + 0.0
end

function reader:flag(name)
    local value = self:get(name)
    if value == nil then return false end
    if type(value) ~= "boolean" then
        self:fail("format", "'%s' is %s; it must be true or false", name, json.encode(value))
    end
    return value
end

local function check_architecture(r)
    local list, kind = r:get "architectures", r:get "model_type"
    if list ~= nil and (type(list) ~= "table" or next(list) ~= nil and type(list[1]) ~= "string") then
        r:fail("format", "'architectures' is %s; it must be a list of names", json.encode(list))
    elseif kind ~= nil and type(kind) ~= "string" then
        r:fail("format", "'model_type' is %s; it must be a name", json.encode(kind))
    end
    local name = list and list[1] or kind
    if KNOWN[name] then return KNOWN[name] end
    r:fail("unsupported", "the architecture %s is not supported; supported are LlamaForCausalLM, MistralForCausalLM "
        .. "and Qwen2ForCausalLM", name and json.encode(name) or "(neither 'architectures' nor 'model_type' is given)")
end

-- rope_theta at the top or, in newer files, within rope_parameters; scaling other than none is refused.
local function read_rope(r)
    local theta = r:get "rope_theta"
    for _, name in ipairs{ "rope_scaling", "rope_parameters" } do
        local rope = r:get(name)
        if rope ~= nil and type(rope) ~= "table" then r:fail("format", "'%s' must be an object or null", name) end
        local kind = rope and (rope.rope_type or rope.type)
        if kind and kind ~= json.null and kind ~= "default" then
            r:fail("unsupported", "'%s' of type %s is not supported; only \"default\" is", name, json.encode(kind))
        end
        if rope and rope.rope_theta ~= nil and rope.rope_theta ~= json.null then
            if type(rope.rope_theta) ~= "number" then
                r:fail("format", "'%s.rope_theta' is %s; it must be a positive number", name,
                    json.encode(rope.rope_theta))
            end
            theta = theta or rope.rope_theta
        end
    end
    if theta ~= nil and (type(theta) ~= "number" or not (theta > 0 and theta < math.huge)) then
        r:fail("format", "'rope_theta' is %s; it must be a positive number", json.encode(theta))
    end
    return (theta or 10000) + 0.0
end

local function check_unsupported(r, c)
    local act = r:get "hidden_act"
    if act ~= nil and act ~= "silu" and act ~= "swish" then
        r:fail("unsupported", "'hidden_act' %s is not supported; only \"silu\" is", json.encode(act))
    end
    local window, use_window = r:get "sliding_window", r:get "use_sliding_window"
    if window ~= nil and type(window) ~= "number" then
        r:fail("format", "'sliding_window' is %s; it must be a number or null", json.encode(window))
    elseif use_window ~= nil and type(use_window) ~= "boolean" then
        r:fail("format", "'use_sliding_window' is %s; it must be true or false", json.encode(use_window))
    end
    if use_window ~= false and type(window) == "number" and window < c.context then
        r:fail("unsupported", "'sliding_window' %s is not supported: it is shorter than the context of %d", window,
            c.context)
    end
    local rotary = r:get "partial_rotary_factor"
    if rotary ~= nil and rotary ~= 1 then
        r:fail("unsupported", "'partial_rotary_factor' %s is not supported; only 1 is", json.encode(rotary))
    end
    if r:get "quantization_config" ~= nil then
        r:fail("unsupported", "quantized weights ('quantization_config') are not supported; use the unquantized model")
    end
end

local function token_list(r, name, vocab)
    local value = r:get(name)
    local list = type(value) == "table" and value or { value }
    if next(list) ~= nil and #list == 0 then
        r:fail("format", "'%s' is %s; it must be a token id, or a list of some", name, json.encode(value))
    end
    for _, id in ipairs(list) do
        if math.type(id) ~= "integer" or id < 0 or id >= vocab then
            r:fail("format", "'%s' is %s; it must be a token id below vocab_size = %d", name, json.encode(value), vocab)
        end
    end
    return list
end

--- [local] Makes a configuration from the decoded contents of a config.json. Errors: code "format" for a missing or
--- wrong field, "unsupported" for what is not built; both name the field.
---@param fields table
---@param path? string  named in errors; default "config.json"
---@return spl.config
function config.new(fields, path)
    local r = setmetatable({ fields = fields, path = path or "config.json" }, reader)
    if type(fields) ~= "table" then r:fail("format", "it must be a JSON object") end
    local kind = check_architecture(r)
    local c = {
        hidden = r:integer "hidden_size", ffn = r:integer "intermediate_size", layers = r:integer "num_hidden_layers",
        heads = r:integer "num_attention_heads", vocab = r:integer "vocab_size",
        context = r:integer "max_position_embeddings", eps = r:positive("rms_norm_eps", 1e-6),
        rope_theta = read_rope(r), tied = r:flag "tie_word_embeddings",
    }
    c.kv_heads = r:integer("num_key_value_heads", c.heads)
    if c.heads % c.kv_heads ~= 0 then
        r:fail("format", "'num_attention_heads' (%d) is not a multiple of 'num_key_value_heads' (%d)", c.heads,
            c.kv_heads)
    end
    if not r:get "head_dim" and c.hidden % c.heads ~= 0 then
        r:fail("format", "'hidden_size' (%d) is not a multiple of 'num_attention_heads' (%d), and there is no "
            .. "'head_dim'", c.hidden, c.heads)
    end
    c.head_dim = r:integer("head_dim", c.hidden // c.heads)
    if c.head_dim % 2 ~= 0 then r:fail("format", "'head_dim' is %d; RoPE needs an even one", c.head_dim) end
    local attention_bias = r:flag "attention_bias"
    c.qkv_bias, c.out_bias = kind.qkv_bias or attention_bias, attention_bias
    c.mlp_bias = r:flag "mlp_bias"
    c.bos, c.eos = token_list(r, "bos_token_id", c.vocab)[1], token_list(r, "eos_token_id", c.vocab)
    check_unsupported(r, c)
    return c
end

--- [local] Reads DIR/config.json. Errors: as config.new.
---@param dir string
---@return spl.config?  nil, message, code where the file cannot be read
function config.load(dir)
    if type(dir) ~= "string" then
        spl.error{ message = "config.load: the directory of a model is needed, got " .. type(dir) }
    end
    local path = dir .. "/config.json"
    local fields, message, code = json.read(path)
    if fields == nil then return nil, message, code end
    return config.new(fields, path)
end

return config
