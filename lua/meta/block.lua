---@meta
-- block.lua: the transformer block, and the fp64 reference that judges it.

--- A transformer block: its definition says the mathematics, its schedule how each mesh axis is used.
---@class spl.block
---@field config table the definition with its defaults filled in; prints a line a field
---@field mesh spl.mesh? of its schedule
---@field plan table? of its schedule: {scheme=}, of hierarchical axes also {chunk=, summaries=}
local block = {}

--- [local] Defines a block: of GPT unless said otherwise (LayerNorm, one head-interleaved QKV weight, biases,
--- tanh-GELU, causal).
---
---   local blk = spl.block { hidden = 768, heads = 12, seed = 7 }:schedule(spl.mesh "tp=*:sequence")
---   local x = blk:input { batch = 1, seq = 2048 }:randn(11)
---   local y, saved = blk:forward(x, { save = true })
---   print(saved, blk:check(x)) -- what was saved; all of it against fp64
---
---@param o table {hidden=, heads=, kv_heads= (heads), head_dim= (hidden / heads), ffn= (4 hidden), norm= "layer" or
--- "rms", eps= (1e-5), qkv= "interleaved" or "separate" (the latter where kv_heads differ from heads), bias= (true) or
--- qkv_bias=, out_bias=, mlp_bias=, act= "gelu_tanh", "gelu_erf", "silu" or "none", gated= (false) act(gate) * up,
--- rope_theta= (0: no RoPE), causal= (true) or mask= a spl.mask or its notation, dropout= (0) or dropout_attention=,
--- dropout_hidden=, seed= of weights and
--- dropout, instance= which block of a model, dtype= ("f32"; f64, or bf16 or f16: stored so and computed in f32, the
--- residual f32 inside)}
---@return spl.block
---Errors: code "usage" for sizes that do not fit together; "argument" for unknown keys, naming the nearest.
function spl.block(o) end

--- [collective] Chooses layouts from the roles of the mesh's axes (tensor, sequence, data, ring, ulysses, gather,
--- hierarchical) and makes the weights: normal with deviation 0.02, by global index, gains around 1.
---@param mesh spl.mesh
---@param o? table {scheme= how ring, gather and (where there is neither) ulysses axes deal out the sequence:
--- "contiguous" (default), "zigzag" or "striped"; chunk= tokens of a chunk (1024) and summaries= of each chunk (1), for
--- the role hierarchical}
---@return spl.block self
---Errors: code "usage" for roles, schemes or masks that do not go together, naming the nearest mesh that works.
function block:schedule(mesh, o) end

--- [local] Its weights in a fixed order: { {name=, tensor=}, ... }.
---@return table[]
function block:params() end

--- [local] One weight; tensor:set() loads it.
---@param name string "ln0_gamma", "mha_linear0_weight", ...
---@return spl.tensor
function block:param(name) end

--- [local] A tensor for its input, [batch, seq, hidden], in the layout that forward takes; contents undefined.
---@param o table {batch= (1), seq=}; other keys are ignored
---@return spl.tensor
function block:input(o) end

--- [collective] The forward pass. x may have any layout of the block's mesh. With save, also what a backward pass
--- needs, in the order of computing: saved[i] = {name=, tensor=}, saved.NAME, saved.seed, saved.offset;
--- saved:release() and <close> let all of it go; print(saved) shows it.
---@param x spl.tensor [batch, seq, hidden]
---@param o? table {save= (false), step= (0) of dropout}
---@return spl.tensor y [batch, seq, hidden]
---@return table? saved
---Errors: code "argument" for an x of another mesh, shape or dtype.
function block:forward(x, o) end

--- [local] FLOPs of one forward pass, all ranks together: GEMMs 2mnk, attention 4 head_dim per visible (query, key,
--- head).
---@param o table {batch= (1), seq=}; other keys are ignored
---@return number total
---@return number gemm
---@return number attention
function block:flops(o) end

--- [local] What forward would do, without doing it: each op and each communication with its layout and the bytes that
--- the rank sends: { {what=, subject=, axis=, layout=, shape=, local_shape=, bytes=}, ..., bytes= in all, rank=}.
--- Prints as a table.
---@param o table {batch= (1), seq=, rank= (this one)}; other keys are ignored
---@return table lines
function block:explain(o) end

--- [collective] Forward against the fp64 reference, output and every saved tensor: see check.block.
---@param x spl.tensor
---@param o? table {rows=, step=}
---@return table result {rel_err=, wrong=, bound=, failed=, rows=, seq=, tensors=}
function block:check(x, o) end

--- [local] The Philox key of one of its dropouts.
---@param which "attention"|"hidden0"|"hidden1"
---@param step? integer (0)
---@return integer word0
---@return integer word1
function block:dropout_key(which, step) end

--- [local] Lets the block and its weights go. May be called twice; <close> does it too.
function block:release() end

--- [local] The whole block in plain fp64 loops that share nothing with core: what judges it. Arrays are tensors of
--- this rank alone, of any dtype, whole.
---@param o table {batch=, seq=, hidden=, heads=, kv_heads=, head_dim=, ffn=, norm=, eps=, interleaved_qkv=, act=,
--- gated=, rope_theta=, causal=, p_attention=, p_hidden=, key_attention=, key_hidden0=, key_hidden1= pairs of words,
--- rows= sampled sequence rows from 1 (all), x= [b, s, hidden], ln0_gamma=, ln0_beta=, ln1_gamma=, ln1_beta=, wqkv=,
--- bqkv= or wq=, bq=, wk=, bk=, wv=, bv=, wo=, bo=, w1=, b1=, wg=, bg=, w2=, b2=}
---@return table results f64 tensors of this rank alone over the rows: ln0_mean ln0_rstd ln1_mean ln1_rstd [b, n],
--- linear0 (and linear0_k, linear0_v), sdpa_out [b, heads, n, head_dim], sdpa_lse [b, heads, n], linear1, mlp0 (and
--- mlp0_up), mask0 mask1 (bool), out [b, n, hidden]
---Errors: code "argument" for an array whose size does not fit.
function spl.reference.block(o) end

--- [local] Attention over a list of slices in plain fp64 loops.
---@param o table {batch=, heads=, kv_heads=, seq_q=, seq_k=, head_dim=, q= [b, s, heads, head_dim], k=, v=, scale=
--- (1 / sqrt(head_dim)), p=, key= pair of words, slices= { {q_begin=, q_end=, k_begin=, k_end=, kind= "full",
--- "causal", "inverse" or "both"}, ... } half-open and from 0 (everything), rows= sampled query rows from 1 (all)}
---@return table results {out= [b, n, heads, head_dim], lse= [b, heads, n]}
function spl.reference.attention(o) end

--- [local] What a check here would judge: the name of the backend, whether it is a reference, whether it computes
--- values.
---@return string name
---@return boolean is_reference
---@return boolean has_values
function spl.reference.judged() end

--- [local] Measures one tensor against another of the same shape, both of this rank alone: {count=, wrong=,
--- diff_squares=, ref_squares=, max_abs=}. wrong counts |a - b| > tolerance (|b| + rms), and NaN; equal infinities
--- are right.
---@param actual spl.tensor
---@param reference spl.tensor
---@param o? table {tolerance= (0), rms= (0; or "vector": that of the element's vector along the last dimension), dim=,
--- rows= row i of the reference stands for row rows[i] of actual along dim}
---@return table
function spl.compare(actual, reference, o) end
