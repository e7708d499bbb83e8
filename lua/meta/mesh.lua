---@meta
-- mesh.lua: named axes over the ranks, and layouts: who holds what.

--- Axes over all ranks; the first-written is outermost in rank order. Printed in its own notation, equal only to
--- itself.
---@class spl.mesh
---@field axes spl.axis[]
---@field size integer ranks in all
---@field spec string its notation, sizes filled in: "dp=2:data, tp=4:sequence"
local mesh = {}

---@class spl.axis
---@field name string
---@field size integer
---@field role string "" where none was given
---@field coord integer? this rank's place on it, from 0
---@field hosts integer? on how many hosts the ranks of one group along it are, at most; 1: it stays inside a host

--- [collective] A mesh of axes that multiply to the number of ranks: "dp=2:data, tp=*:sequence". Spaces are ignored;
--- `*` once takes what is left of the world; the role may be left out.
---@param text string
---@return spl.mesh
---Errors: code "usage" for a text that breaks a rule, naming it and what would work.
function spl.mesh(text) end

--- [local] The names of all roles that an axis can be given, also of those that a block refuses.
---@return string[]
function spl.mesh.roles() end

--- [local] The same notation for any number of ranks, as plain data: {axes = , size = , spec = }. spl.layout takes it
--- too. With `hosts` each axis says on how many hosts its groups are, so that the one that communicates most can be
--- put inside a host: the last-written axis has neighbouring ranks.
---@param text string
---@param world? integer (the ranks that are here)
---@param hosts? integer[] how many ranks each host has, in rank order, as {8, 8}
---@return table
---Errors: code "usage"; "argument" for hosts that do not sum to the ranks.
function spl.mesh.parse(text, world, hosts) end

--- [local] This rank's place on an axis, from 0.
---@param axis string
---@return integer
function mesh:coord(axis) end

--- [local] Lets the mesh go; tensors and blocks keep what they need of it. May be called twice; <close> does it too.
function mesh:release() end

--- Who holds what, as plain data. Equal to another when every rank holds the same in both; printed in its notation.
---@class spl.layout
---@field shape integer[] global
---@field ndim integer
local layout = {}

--- One run of positions of a dimension, counted from 1: start, start + stride, ...
---@class spl.segment
---@field start integer
---@field length integer
---@field stride integer

--- [local] A layout from its notation: for each mesh axis `replicate`, `partial` (a pending sum) or
--- `shard(DIM[, contiguous|zigzag|striped][, unit:N][, cover:N][, nest:N])`, separated by commas; axes left out
--- replicate. Units are never cut (a head of 64 elements is unit:64); cover:N says that a unit serves N finer ones,
--- which are split, so that neighbours may share it; of several axes that split a dimension the one with the lower
--- nest is the outer one.
---@param text string "dp=shard(1), tp=shard(2,zigzag)"
---@param axes spl.mesh|table a mesh, or what spl.mesh.parse gives: then coordinates must be said below
---@param shape integer[] global
---@return spl.layout
---Errors: code "argument".
function spl.layout(text, axes, shape) end

--- [local] The segments of a dimension that are held at a place of the mesh, in the order in which they lie there.
---@param dim integer from 1
---@param coords? table {tp = 1} (axes left out: 0) or {0, 1} in mesh order, from 0; this rank's when absent
---@return spl.segment[]
function layout:segments(dim, coords) end

--- [local] Sizes of the part at a place of the mesh.
---@param coords? table as of segments
---@return integer[]
function layout:local_shape(coords) end

--- [local] The layout an axis at a time: {axis=, size=, place=, dim=, scheme=, unit=, cover=, nest=}.
---@return table[]
function layout:describe() end
