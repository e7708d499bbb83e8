---@meta
-- attention.lua: attention on tensors, whole or across a mesh, and the parts that schemes of one's own are made of.

---@class spl
local spl = {}

--- [collective over the mesh; local without one] softmax(scale q k^T) v, tiled, in memory that grows with the sequence
--- (Dao 2023). q [batch, seq, heads, head_dim]; k and v [batch, kv_seq, kv_heads, head_dim], heads a multiple of
--- kv_heads; with more keys than queries the last of both stand at the same place. Along axes that split both sequences
--- keys travel to the queries that see them; ulysses axes give heads and take them back; what spl.attention_input makes
--- is laid out for it. A row that sees no key gets out 0 and lse -inf.
---
---   local mesh = spl.mesh "u=2:ulysses, r=*:ring"
---   local q, k, v = spl.attention_input(mesh, { seq = 4096, heads = 8, head_dim = 64, scheme = "zigzag" })
---   local out, lse = spl.attention(q:randn(1, 0), k:randn(1, 1), v:randn(1, 2), { mask = "window:512" })
---
---@param q spl.tensor
---@param k spl.tensor
---@param v spl.tensor
--- With `into`, keys are added to those of earlier calls with the same q: out and lse become what one call with all
--- keys would give. So a scheme is: tiles in any order, each merged; causal attention between pieces of a sequence is
--- "full" below the diagonal, "causal" on it, and nothing above (or see spl.attention_tile).
---
---@param o? table {mask= a spl.mask, its notation or a list of slices ("causal"), scale= (1 / sqrt(head_dim)), role=
--- how keys travel: "ring", "gather" or "hierarchical" (as the roles of the mesh's axes say, else ring), chunk= tokens
--- (1024) and summaries= of each (1) for hierarchical, into= {out, lse} of an earlier call, changed in place, dropout=
--- (0), seed=, instance=, step= of dropout}
---@return spl.tensor out laid out as q; f32 where it is merged into
---@return spl.tensor lse [batch, heads, seq] laid out as attention had it, natural log, f32 (f64)
---Errors: code "argument" for shapes and layouts that do not fit together; "usage" for masks that do not; "disagree",
---before anything moves, where ranks come with different masks, shapes, scale, dropout (and its seed, instance and
---step), or with and without `into`. What is merged into must not share memory with q, k or v.
function spl.attention(q, k, v, o) end

--- [local] q, k and v in the layouts that the roles of a mesh's axes give them inside attention: the batch along data,
--- heads along tensor and sequence, the sequence along ring, gather, ulysses and hierarchical; contents undefined.
---@param mesh spl.mesh every axis with a role
---@param o table {batch= (1), seq=, kv_seq= (seq), heads=, kv_heads= (heads), head_dim=, scheme= "contiguous", "zigzag"
--- or "striped", chunk= (1024) tokens that hierarchical keeps together, summaries= (1), mask= whose documents zigzag
--- balances each by itself, dtype= ("f32")}
---@return spl.tensor q [batch, seq, heads, head_dim]
---@return spl.tensor k [batch, kv_seq, kv_heads, head_dim]
---@return spl.tensor v
---Errors: code "usage" as block:schedule.
function spl.attention_input(mesh, o) end

--- [local] One tile: some queries against some keys, of this rank alone, in whatever order they came.
---@param q spl.tensor [batch, queries, heads, head_dim], without a layout: tensor:to_local()
---@param k spl.tensor [batch, keys, kv_heads, head_dim]
---@param v spl.tensor
---@param o? table {queries= and keys= where their rows stand in the whole sequences, as layout:segments(2) gives it
--- (from 1 on, one by one), seq= and kv_seq= lengths of the whole (those of q and k; kv_seq is seq where only seq is
--- given), mask= of the whole ("causal"), scale= (1 / sqrt(head_dim)), into= {out, lse} of another tile of the same
--- queries, with which this one is merged in place}
---@return spl.tensor out [batch, queries, heads, head_dim], f32 (f64)
---@return spl.tensor lse [batch, heads, queries], natural log, f32 (f64)
---Errors: code "argument" for shapes or segments that do not fit.
function spl.attention_tile(q, k, v, o) end

--- [local] Two partial results of the same queries, over keys of which none is in both, as one: each weighed by
--- exp(lse - m), m the larger lse. A part whose lse is -inf contributes exactly nothing; two such parts give 0 and
--- -inf. In f32 (f64) whatever the dtype of out.
---@param out_a spl.tensor [batch, queries, heads, head_dim]
---@param lse_a spl.tensor [batch, heads, queries]
---@param out_b spl.tensor
---@param lse_b spl.tensor
---@return spl.tensor out f32 (f64)
---@return spl.tensor lse
---Errors: code "argument" for parts that differ in shape, dtype or layout.
function spl.attention_merge(out_a, lse_a, out_b, lse_b) end

--- [local] Attention with all scores of a head in memory at once, by GEMM, softmax, GEMM: what spl.attention is
--- compared with. Tensors of this rank alone, f32; on the backend cpu.
---@param q spl.tensor [batch, seq, heads, head_dim]
---@param k spl.tensor [batch, kv_seq, kv_heads, head_dim]
---@param v spl.tensor
---@param mask? "causal"|"full" ("causal")
---@return spl.tensor out
---Errors: code "argument" for shapes, dtypes and layouts; "memory" where the scores do not fit.
function spl.attention_naive(q, k, v, mask) end

--- [local] The Philox key of dropout, as spl.reference.attention takes it: element (batch, head, query, key) draws by
--- its global index, so masks are the same on any number of ranks.
---@param seed integer
---@param instance? integer (0)
---@param step? integer (0)
---@return integer word0
---@return integer word1
function spl.dropout_key(seed, instance, step) end

return spl
