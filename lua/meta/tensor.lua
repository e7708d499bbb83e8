---@meta
-- tensor.lua: tensors: of this rank alone, or over a mesh with a layout.

--- Elements of one dtype ("f64" "f32" "bf16" "f16" "i64" "i32" "u8" "bool"). Dimensions and positions count from 1.
--- Printed with shape, layout and a corner of the values (to_text() shows more). Arithmetic has no operators: spl.add,
--- spl.linear and their like take their place. Lua's collector knows how much memory tensors hold; release() and
--- <close> free it at once.
---@class spl.tensor
---@field shape integer[] global; prints as "[2, 3]" and can be compared with ==
---@field local_shape integer[] of this rank's part
---@field dtype string
---@field layout spl.layout? nil for a tensor of this rank alone
---@field mesh spl.mesh? nil for a tensor of this rank alone
---@field ndim integer
---@field count integer elements, global
---@field local_count integer elements here
---@field bytes integer of this rank's part
local tensor = {}

--- [local] A tensor with undefined contents. Without a mesh it is of this rank alone; with one and no layout every
--- rank holds all.
---@param o table {shape=, dtype="f32", mesh=, layout= text or spl.layout, category= "activations" or "weights" for
--- the accounts}
---@return spl.tensor
---Errors: code "argument"; "memory" with bytes wanted and free.
function spl.tensor(o) end

--- [local] A tensor of zeros.
---@param o table as of spl.tensor
---@return spl.tensor
function spl.zeros(o) end

--- [local] A tensor of ones. On a partial axis coordinate 0 has them and the others zeros.
---
---     local t = spl.ones { shape = { 4 } }
---     local x = spl.ones { shape = { 2, 8 }, mesh = spl.mesh "tp=*", layout = "tp=shard(2)" }
---
---@param o table as of spl.tensor
---@return spl.tensor
function spl.ones(o) end

--- [local] A tensor of this rank alone from a nested table, or from {shape = , data = flat list}.
---@param values table
---@param dtype? string ("f32")
---@return spl.tensor
---Errors: code "argument" where the table is ragged or a value does not fit the dtype.
function spl.from_table(values, dtype) end

--- [local] Normal numbers by global index: the same values in any layout.
---@param seed integer
---@param instance? integer (0) tells tensors of one seed apart
---@param mean? number (0)
---@param deviation? number (1)
---@return spl.tensor self
function tensor:randn(seed, instance, mean, deviation) end

--- [local] Uniform numbers in [low, high) by global index.
---@param seed integer
---@param instance? integer (0)
---@param low? number (0)
---@param high? number (1)
---@return spl.tensor self
function tensor:uniform(seed, instance, low, high) end

--- [local] Each element becomes its flat global index, from 0.
---@return spl.tensor self
function tensor:iota() end

--- [local] Each element becomes `value`; on a partial axis coordinate 0 has it and the others zeros.
---@param value number
---@return spl.tensor self
function tensor:fill(value) end

--- [local] Takes this rank's part of the GLOBAL value: a nested or flat table, or a tensor of this rank alone.
---@param values table|spl.tensor
---@return spl.tensor self
---Errors: code "argument" where sizes or values do not fit.
function tensor:set(values) end

--- [local] Takes this rank's part: a nested table of local_shape, or a flat one.
---@param values table
---@return spl.tensor self
function tensor:set_local(values) end

--- [local] This rank's part as a tensor of this rank alone: a view, as narrow and transpose give. What other methods
--- give has memory of its own, on any number of ranks.
---@return spl.tensor
function tensor:to_local() end

--- [local] This rank's part as a nested table: numbers, integers or booleans.
---@return table
function tensor:to_table() end

--- [local] This rank's part as one list.
---@return table
function tensor:flat() end

--- [local] This rank's part, dense, as its dtype lies in memory.
---@return string
function tensor:to_bytes() end

--- [local] Shape, layout and values of this rank's part as print shows them, with more of the values: all of them up to
--- 1024 elements, else 16 rows and columns.
---@param o? table {rows=, cols=} how many to show at most of the last two dimensions
---@return string
function tensor:to_text(o) end

--- [local] One element of this rank's part; no indices where there is only one.
---@param ... integer from 1
---@return number|integer|boolean
function tensor:item(...) end

--- [collective] The whole value, pending sums summed, as a tensor of this rank alone on every rank.
---@return spl.tensor
function tensor:gather() end

--- [collective] The same global value in another layout: everything in SPL that communicates, but for attention, is
--- this. The result has memory of its own, also where nothing changes.
---@param layout string|spl.layout
---@return spl.tensor
---Errors: code "argument" for a layout of another mesh or shape.
function tensor:redistribute(layout) end

--- [collective] for a distributed tensor, [local] for one of this rank alone: the square root of the sum of squares.
--- Every element counts once, however many ranks hold it, and pending sums are summed first. NaN where an element is.
---@return number
---Errors: code "unsupported" on a backend that keeps no values, as of all that reads some.
function tensor:norm() end

--- [collective] for a distributed tensor, [local] for one of this rank alone: the sum of the elements.
---@return number
function tensor:sum() end

--- [collective] for a distributed tensor, [local] for one of this rank alone: the largest absolute value.
---@return number
function tensor:max_abs() end

--- [collective] for a distributed tensor, [local] for one of this rank alone: sum, sum_squares, max_abs and how many
--- elements are nan and inf. Prints a line a field.
---@return table
function tensor:stats() end

--- [local] A view of `length` positions of a dimension from `start`. A sharded dimension cannot be cut.
---@param dim integer
---@param start integer from 1
---@param length integer
---@return spl.tensor
function tensor:narrow(dim, start, length) end

--- [local] A view with two dimensions exchanged.
---@param a integer
---@param b integer
---@return spl.tensor
function tensor:transpose(a, b) end

--- [local] The same elements in another shape; each sharded dimension must survive whole. A copy.
---@param shape integer[]
---@return spl.tensor
function tensor:reshape(shape) end

--- [local] A dense copy, as clone().
---@return spl.tensor
function tensor:contiguous() end

--- [local] A copy in another dtype.
---@param dtype string
---@return spl.tensor
function tensor:cast(dtype) end

--- [local] A dense copy with memory of its own.
---@return spl.tensor
function tensor:clone() end

--- [local] For each dimension the segments that this rank holds. Prints as a map of the mesh: which positions every
--- rank holds, "[rows; columns]", where ":" is all of a dimension.
---@return spl.segment[][]
function tensor:where() end

--- [local] Lets the tensor go; the memory is freed when no view holds it. May be called twice; <close> does it too.
--- Any other use
--- afterwards is an error of code "released".
function tensor:release() end

--- [local] y = act(x w^T + bias). Layout rules: a weight sharded by rows (dimension 1) gives a y sharded in its last
--- dimension; x sharded in its last and w in its second dimension give a partial y, which takes neither bias nor
--- activation.
---@param x spl.tensor [..., k]
---@param w spl.tensor [n, k]
---@param bias? spl.tensor [n]
---@param act? "none"|"gelu_tanh"|"gelu_erf"|"silu"
---@return spl.tensor y [..., n]
---Errors: code "argument" for shapes, dtypes, or layouts that no rule allows, naming the one that would do.
function spl.linear(x, w, bias, act) end

--- [local] (x - mean) rstd gamma + beta over the last dimension, or RMSNorm, which has no mean.
---@param x spl.tensor [..., n]
---@param gamma? spl.tensor [n]
---@param beta? spl.tensor [n]
---@param kind? "layer"|"rms" ("layer")
---@param eps? number (1e-5)
---@return spl.tensor y
---@return spl.tensor mean [...]
---@return spl.tensor rstd [...]
function spl.norm(x, gamma, beta, kind, eps) end

--- [local] Rows of a table. Where its rows are sharded, y is partial: each rank has the rows it holds and zeros for
--- the rest.
---@param ids spl.tensor i64, from 0
---@param table spl.tensor [vocabulary, hidden]
---@return spl.tensor y [..., hidden]
---Errors: code "argument" for an id outside the vocabulary.
function spl.embed(ids, table) end

--- [local] Negative log-likelihood of each label; 0 where the label is negative. The vocabulary must not be sharded.
---@param logits spl.tensor [batch, seq, vocabulary]
---@param labels spl.tensor [batch, seq] i64
---@return spl.tensor nll [batch, seq] f64
function spl.nll(logits, labels) end

--- [local] a + b, of one shape, dtype and layout.
---@param a spl.tensor
---@param b spl.tensor
---@return spl.tensor
function spl.add(a, b) end
