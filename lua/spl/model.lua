--- Llama-type language models: the definition, on ops and blocks, and how it is spread over a mesh.
---
---   ids -> embed -> blocks -> norm -> head -> logits
---
--- The table and the head are sharded by vocabulary over the axes that split weights (tensor, sequence): looking up
--- gives a partial sum, which the first block takes in its own layout, and the head gives logits sharded by vocabulary,
--- which are redistributed to whole rows before the loss. The batch is split over the data axes. The sequence stays
--- split over the axes that split it inside attention (ring, gather, ulysses, hierarchical) from the ids to the loss.
--- Nothing needs to divide anything.
local spl = require "spl"
local config = require "spl.config"
local weights = require "spl.weights"

---@class spl.model
---@field config spl.config
---@field mesh spl.mesh
---@field logits_at_once integer  elements of logits in memory at once, over all ranks; may be set
local model = {}
model.__index = model

-- Logits that are in memory at once over all ranks, in elements; longer texts are scored in pieces.
model.logits_at_once = 1 << 25

local function fail(code, format, ...)
    spl.error{ code = code, message = format:format(...) }
end

local function needs_list(ids)
    if type(ids) ~= "table" then fail("argument", "a list of token ids is needed, got %s", type(ids)) end
end

local function needs_values(what)
    local name, _, has_values = spl.reference.judged()
    if not has_values then
        fail("unsupported", "%s reads values, and the backend '%s' computes none; run with --backend cpu", what, name)
    end
end

-- A layout text that puts `inner` on the axes that split weights and `batch` on those that split the batch.
local function placed(mesh, inner, batch)
    local out = {}
    for _, axis in ipairs(mesh.axes) do
        local how = axis.role == "data" and batch or (axis.role == "tensor" or axis.role == "sequence") and inner
        if how then out[#out + 1] = ("%s=%s"):format(axis.name, how) end
    end
    return #out > 0 and table.concat(out, ", ") or "replicate"
end

-- How the sequence of [1, n] lies on the axes that split it inside attention, as text: as in the blocks. "" where it is
-- whole. The axes that split weights leave it whole here: they split the vocabulary.
local function sequence_layout(self, n)
    local x <close> = self.blocks[1] and self.blocks[1]:input{ batch = 1, seq = n }
    local roles, out = {}, {}
    for _, axis in ipairs(self.mesh.axes) do roles[axis.name] = axis.role end
    for name, how in (x and tostring(x.layout) or ""):gmatch("([%w_]+)=(shard%b())") do
        local role = roles[name]
        if role ~= "data" and role ~= "tensor" and role ~= "sequence" then out[#out + 1] = name .. "=" .. how end
    end
    return table.concat(out, ", ")
end

-- One layout text of two, each of axes of its own.
local function both(a, b)
    if a == "" or a == "replicate" then return b ~= "" and b or "replicate" end
    return (b == "" or b == "replicate") and a or a .. ", " .. b
end

local function splits_weights(mesh)
    for _, axis in ipairs(mesh.axes) do
        if (axis.role == "tensor" or axis.role == "sequence") and axis.size > 1 then return true end
    end
    return false
end

-- ----------------------------------------------------------------------------------------------------------- loading

local function new_block(c, i, dtype)
    return spl.block{
        hidden = c.hidden, heads = c.heads, kv_heads = c.kv_heads, head_dim = c.head_dim, ffn = c.ffn,
        norm = "rms", eps = c.eps, qkv = "separate", act = "silu", gated = true, rope_theta = c.rope_theta,
        causal = true, qkv_bias = c.qkv_bias, out_bias = c.out_bias, mlp_bias = c.mlp_bias, instance = i, dtype = dtype,
    }
end

-- Names of a block's weights in Hugging Face files: {parameter of the block, name, present}.
local function block_names(c)
    local q, o, m = c.qkv_bias, c.out_bias, c.mlp_bias
    return {
        { "ln0_gamma", "input_layernorm.weight", true }, { "ln1_gamma", "post_attention_layernorm.weight", true },
        { "mha_q_weight", "self_attn.q_proj.weight", true }, { "mha_q_bias", "self_attn.q_proj.bias", q },
        { "mha_k_weight", "self_attn.k_proj.weight", true }, { "mha_k_bias", "self_attn.k_proj.bias", q },
        { "mha_v_weight", "self_attn.v_proj.weight", true }, { "mha_v_bias", "self_attn.v_proj.bias", q },
        { "mha_linear1_weight", "self_attn.o_proj.weight", true }, { "mha_linear1_bias", "self_attn.o_proj.bias", o },
        { "mlp_gate_weight", "mlp.gate_proj.weight", true }, { "mlp_gate_bias", "mlp.gate_proj.bias", m },
        { "mlp_up_weight", "mlp.up_proj.weight", true }, { "mlp_up_bias", "mlp.up_proj.bias", m },
        { "mlp_linear1_weight", "mlp.down_proj.weight", true }, { "mlp_linear1_bias", "mlp.down_proj.bias", m },
    }
end

local function load_all(self, files)
    local c = self.config
    local function weight(name, shape, inner)
        local t = spl.tensor{ shape = shape, dtype = self.dtype, mesh = self.mesh, layout = placed(self.mesh, inner),
                              category = "weights" }
        files:load(name, t)
        return t
    end
    self.table = weight("model.embed_tokens.weight", { c.vocab, c.hidden }, "shard(1)")
    for i = 1, c.layers do
        local block = new_block(c, i - 1, self.dtype):schedule(self.mesh, self.schedule)
        self.blocks[i] = block
        for _, entry in ipairs(block_names(c)) do
            if entry[3] then
                local param <close> = block:param(entry[1])
                files:load(("model.layers.%d.%s"):format(i - 1, entry[2]), param)
            end
        end
    end
    self.gamma = weight("model.norm.weight", { c.hidden })
    -- A file may say that head and table are one and hold both; then they are the same numbers.
    self.head = c.tied and self.table or weight("lm_head.weight", { c.vocab, c.hidden }, "shard(1)")
    files:check()
end

local OPTIONS = { dtype = true, scheme = true, chunk = true, summaries = true }

--- [collective] Loads a Hugging Face directory (config.json, model.safetensors or its shards) onto a mesh; each rank
--- holds only its part of the weights. Errors: code "io" for missing files, "format" for broken or mis-shaped ones,
--- "unsupported" for models of another kind, "numeric" for NaN in weights. All name the file and the field or tensor.
---@param dir string
---@param mesh spl.mesh  axes with roles
---@param options? { dtype?: string, scheme?: string, chunk?: integer, summaries?: integer }  dtype: "f32" (default),
--- "f64", "bf16" or "f16", stored weights are converted; the others as block:schedule takes them
---@return spl.model
function model.load(dir, mesh, options)
    if type(dir) ~= "string" then
        fail("argument", "model.load: argument 'dir': the directory of a model is needed, got %s", type(dir))
    elseif not pcall(function() return mesh:coord(mesh.axes[1].name) end) then
        fail("argument", "model.load: argument 'mesh': a mesh is needed, as spl.mesh \"tp=*:sequence\" gives; got %s",
            tostring(mesh))
    elseif options ~= nil and type(options) ~= "table" then
        fail("argument", "model.load: argument 'options': a table such as { dtype = \"bf16\" } is needed, got %s",
            type(options))
    end
    for key in pairs(options or {}) do
        if not OPTIONS[key] then
            fail("argument", "model.load: unknown option '%s'; known: dtype, scheme, chunk, summaries", tostring(key))
        end
    end
    local c, message, code = config.load(dir)
    if not c then fail(code, "%s", message) end
    local o = options or {}
    local self = setmetatable({ config = c, mesh = mesh, blocks = {}, dtype = o.dtype or "f32",
        schedule = { scheme = o.scheme, chunk = o.chunk, summaries = o.summaries } }, model)
    local files <close> = weights.open(dir)
    load_all(self, files)
    return self
end

--- [local] Drops the weights at once instead of when they are collected.
function model:release()
    for _, block in ipairs(self.blocks) do block:release() end
    for _, name in ipairs{ "table", "gamma", "head" } do
        if self[name] then self[name]:release() end
    end
    self.blocks = {}
end

model.__close = model.release

-- ----------------------------------------------------------------------------------------------------------- running

local function check_ids(self, ids)
    local c = self.config
    if #ids > c.context then
        fail("argument", "%d tokens are more than the model's context of %d positions; use a shorter text", #ids,
            c.context)
    end
    for i, id in ipairs(ids) do
        if math.type(id) ~= "integer" or id < 0 or id >= c.vocab then
            fail("argument", "token %d has id %s, but the model's vocabulary has ids below %d; is the tokenizer that "
                .. "of another model?", i, tostring(id), c.vocab)
        end
    end
end

local function integers(self, list, layout)
    return spl.tensor{ shape = { 1, #list }, dtype = "i64", mesh = self.mesh, layout = layout }:set(list)
end

-- [collective] Token ids -> [1, n, hidden] after the last norm; the sequence by the layout text.
local function run(self, ids, layout)
    check_ids(self, ids)
    local x
    do
        local id_tensor <close> = integers(self, ids, both(placed(self.mesh, nil, "shard(1)"),
            sequence_layout(self, #ids)))
        x = spl.embed(id_tensor, self.table)
    end
    for _, block in ipairs(self.blocks) do
        local y = block:forward(x)
        x:release()
        x = y
    end
    local residual <close> = x
    local normed <close>, mean, rstd = spl.norm(residual, self.gamma, nil, "rms", self.config.eps)
    if mean then mean:release() end
    if rstd then rstd:release() end
    return normed:redistribute(both(placed(self.mesh, nil, "shard(1)"), layout))
end

--- [collective] Token ids -> [1, n, hidden] after the last norm, whole in the sequence on every rank of its batch.
--- Errors: code "argument" for more tokens than the context or an id outside the vocabulary.
---@param ids integer[]
---@return spl.tensor
function model:hidden(ids)
    return run(self, ids, "")
end

--- [local] Logits of `length` tokens from the `start`th: [1, length, vocab], sharded by vocabulary.
---@param hidden spl.tensor  of model:hidden
---@param start integer  1-based
---@param length integer
---@return spl.tensor
function model:logits(hidden, start, length)
    local rows <close> = hidden:narrow(2, start, length)
    return spl.linear(rows, self.head)
end

--- [collective] The logits of one token as a Lua list, the same on every rank.
---@param hidden spl.tensor  of model:hidden
---@param row integer  1-based
---@return number[]
function model:row(hidden, row)
    local sharded <close> = self:logits(hidden, row, 1)
    local whole <close> = sharded:gather()
    return whole:flat()
end

-- [collective] The sum where the sequence is split: each rank's own rows, at once or, where weights are whole, in
-- pieces that no other rank has to do with. The last token has no label.
local function score_split(self, ids, split, step)
    local layout = both(placed(self.mesh, nil, "shard(1)"), split)
    local hidden <close> = run(self, ids, split)
    local labels = table.move(ids, 2, #ids, 1, {})
    labels[#ids] = -1
    local label_tensor <close> = integers(self, labels, layout)
    if #ids <= step then
        local sharded <close> = spl.linear(hidden, self.head)
        local logits <close> = sharded:redistribute(layout) -- the vocabulary whole
        local nll <close> = spl.nll(logits, label_tensor)
        return nll:sum()
    end
    local rows <close> = hidden:to_local()
    local own <close> = label_tensor:to_local()
    local head <close> = self.head:to_local()
    local sum = 0.0
    for start = 1, rows.shape[1] > 0 and rows.shape[2] or 0, step do
        local length = math.min(step, rows.shape[2] - start + 1)
        local piece <close> = rows:narrow(2, start, length)
        local wanted <close> = own:narrow(2, start, length)
        local logits <close> = spl.linear(piece, head)
        local nll <close> = spl.nll(logits, wanted)
        sum = sum + nll:sum()
    end
    return spl.sum(sum)
end

--- [collective] Sum of the negative log-likelihoods of tokens 2..n, each given those before it, and how many they are.
--- Labels are shifted before anything is sharded. Errors: code "argument" for fewer than 2 tokens, and as model:hidden.
---@param ids integer[]
---@return number nll_sum  in nats
---@return integer count
function model:score(ids)
    needs_values "scoring"
    needs_list(ids)
    if #ids < 2 then
        fail("argument", "%s; at least 2 are needed, since the first has nothing before it",
            #ids == 1 and "there is 1 token" or "there are no tokens")
    end
    local labels = table.move(ids, 2, #ids, 1, {})
    local step = math.max(1, self.logits_at_once // self.config.vocab)
    local split = sequence_layout(self, #ids)
    if split ~= "" and (#ids <= step or not splits_weights(self.mesh)) then
        return score_split(self, ids, split, step), #labels
    end
    local hidden <close> = self:hidden(ids)
    local rows_layout = placed(self.mesh, "shard(2)", "shard(1)")
    local sum = 0.0
    for start = 1, #labels, step do
        local length = math.min(step, #labels - start + 1)
        local sharded <close> = self:logits(hidden, start, length)
        local logits <close> = sharded:redistribute(rows_layout)
        local piece = table.move(labels, start, start + length - 1, 1, {})
        local label_tensor <close> = integers(self, piece, rows_layout)
        local nll <close> = spl.nll(logits, label_tensor)
        sum = sum + nll:sum()
    end
    return sum, #labels
end

--- [collective] The id of the most likely next token; the lowest id where several are equally likely.
---@param ids integer[]
---@return integer
function model:next(ids)
    needs_values "choosing a token"
    needs_list(ids)
    if #ids == 0 then fail("argument", "there is no token to continue from") end
    local hidden <close> = self:hidden(ids)
    local best, best_value = nil, -math.huge
    for i, value in ipairs(self:row(hidden, #ids)) do
        if value > best_value then best, best_value = i - 1, value end
    end
    if not best then fail("numeric", "the logits of token %d are not numbers", #ids) end
    return best
end

return model
