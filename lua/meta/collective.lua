---@meta
-- collective.lua: moving tensors of one rank over an axis of a mesh, by hand.
--
-- All of these are [collective] over the axis: each of its ranks calls them, in the same order, with equal shapes; the
-- ranks along the other axes do the same among themselves, each group for itself. `t` is a dense tensor of this rank
-- alone. `out` is what to receive into: a dense tensor of the shape stated and of t's dtype, made anew where it is left
-- out. Errors: code "argument" for an unknown axis, another shape or dtype, a tensor with a layout or one that does not
-- lie densely (contiguous() makes a dense copy), and for an `out` that shares memory with `t` in another way than
-- stated; "released" for a released tensor; "disagree" where ranks call different things.

---@class spl.mesh
local mesh = {}

--- [collective] All ranks' t behind each other, in the order of the axis's coordinates.
---@param axis string
---@param t spl.tensor [n, ...]
---@param out? spl.tensor [ranks * n, ...]; t may be this rank's own part of it: out:narrow(1, coord * n + 1, n)
---@return spl.tensor out
function mesh:all_gather(axis, t, out) end

--- [collective] The sum of all ranks' t, equal on all of them to the last bit; of booleans: or.
---@param axis string
---@param t spl.tensor any shape
---@param out? spl.tensor the same shape; may be t itself
---@return spl.tensor out
function mesh:all_reduce(axis, t, out) end

--- [collective] This rank's part of the sum of all ranks' t, added in the order of coordinates.
---@param axis string
---@param t spl.tensor [ranks * n, ...]; a first dimension that the ranks do not divide is an error
---@param out? spl.tensor [n, ...]; may be this rank's own part of t: t:narrow(1, coord * n + 1, n)
---@return spl.tensor out
function mesh:reduce_scatter(axis, t, out) end

--- [collective] Part j of t goes to the rank at coordinate j; out holds what the ranks sent here, in their order.
---@param axis string
---@param t spl.tensor [ranks * n, ...]; a first dimension that the ranks do not divide is an error
---@param out? spl.tensor the same shape; must not share memory with t
---@return spl.tensor out
function mesh:all_to_all(axis, t, out) end

--- [collective] What the rank at coordinate `root` holds, on all of them.
---@param axis string
---@param t spl.tensor any shape: the values on root, the shape alone on the others
---@param root integer a coordinate of the axis, from 0
---@param out? spl.tensor the same shape; may be t itself
---@return spl.tensor out
function mesh:broadcast(axis, t, root, out) end

--- [collective] A step round the ring: t goes to the rank `by` coordinates on, out comes from the one `by` back.
---@param axis string
---@param t spl.tensor any shape
---@param by? integer of any sign (default 1)
---@param out? spl.tensor the same shape; must not share memory with t
---@return spl.tensor out
function mesh:shift(axis, t, by, out) end

return mesh
