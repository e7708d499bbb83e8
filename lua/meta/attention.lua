---@meta
-- attention.lua: attention on tensors: on a sequence that ranks share, or tile by tile in a scheme of one's own.

---@class spl
local spl = {}

--- [collective over the axes that split k's sequence, else local] Attention of q to k and v, tile by tile with an
--- online softmax (Dao 2023; Milakov & Gimelshein 2018), and the log of the sum of exponentials of each row. Axes may
--- split the batch, the heads (k and v then cover q's), or the sequences: then keys travel. A row that sees no key
--- gives 0 and -inf.
---
--- With `into`, keys are added to those of earlier calls with the same q: out and lse become what one call with all
--- keys would give. So a scheme is: tiles in any order, each merged; causal attention between pieces of a sequence is
--- "full" below the diagonal, "causal" on it, and nothing above.
---@param q spl.tensor [batch, seq_q, heads, head_dim]
---@param k spl.tensor [batch, seq_k, kv_heads, head_dim]; heads are a multiple of kv_heads
---@param v spl.tensor as k
---@param o? {mask: spl.mask|string|table?, scale: number?, role: string?, into: spl.tensor[]?} mask (causal); scale
--- (1/sqrt(head_dim)); role: how keys travel, "ring" or "gather"; into: {out, lse} of an earlier call, changed in place
---@return spl.tensor out like q; f32 where it is merged into
---@return spl.tensor lse [batch, heads, seq_q], f32 (f64 where q is)
---Errors: code "argument" for shapes, dtypes or layouts that do not fit; "usage" for a mask that does not.
function spl.attention(q, k, v, o) end

return spl
