---@meta
-- mask.lua: who sees whom in attention.

--- A mask: immutable. Printed in its own notation.
---@class spl.mask
---@field spec string its notation: "window:128"
local mask = {}

--- One rectangle of a mask; first and last are counted from 1. causal is aligned at the bottom right corner, and
--- inverse-causal at the top left; both is a diagonal band.
---@class spl.slice
---@field q integer[] {first, last} of the queries
---@field k integer[] {first, last} of the keys
---@field kind "full"|"causal"|"inverse-causal"|"both"

--- [local] A mask from its notation: "causal", "full", "window:W" (the last W keys, itself included), "docs:100,300,24"
--- (causal within documents of these lengths, which must sum to the sequence), "prefix:N" (the first N keys are seen by
--- all, the rest is causal), "padding:N" (only the first N tokens count; causal). Or from a list of slices, {seq = 8,
--- kv_seq = 8, {q = {1, 8}, k = {1, 4}, kind = "full"}, ...}; kv_seq is seq where absent. With more keys than queries
--- the last of both stand at the same place.
---@param spec string|table
---@return spl.mask
---Errors: code "usage" for a notation that is not understood, slices outside the sequence, or a pair shown twice.
function spl.mask(spec) end

--- [local] What it means for a sequence: disjoint slices.
---@param seq integer
---@param kv_seq? integer (seq)
---@return spl.slice[]
---Errors: code "usage" where the mask does not fit the length.
function mask:slices(seq, kv_seq) end

--- [local] How many (query, key) pairs are visible.
---@param seq integer
---@param kv_seq? integer (seq)
---@return integer
---Errors: code "usage" where the mask does not fit the length.
function mask:pairs(seq, kv_seq) end

--- [local] Lets the mask go; blocks keep what they need of it. May be called twice; <close> does it too.
function mask:release() end
