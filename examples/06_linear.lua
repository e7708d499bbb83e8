-- 06_linear.lua: tensor parallelism by hand: two linear layers split by columns, then by rows, and one sum at the end.
-- spl run -n 3 examples/06_linear.lua
local spl = require "spl"

local mesh = spl.mesh "tp=*"
local rows, hidden, inner = 8, 16, 30 -- ranks need not divide anything

-- Weights are [outputs, inputs]; the same seed gives the same weight in every layout.
local x = spl.tensor { shape = { rows, hidden }, mesh = mesh }:randn(1)
local up = spl.tensor { shape = { inner, hidden }, mesh = mesh, layout = "tp=shard(1)" }:randn(2)
local down = spl.tensor { shape = { hidden, inner }, mesh = mesh, layout = "tp=shard(2)" }:randn(3)

-- Column-parallel, then row-parallel: between them nothing moves, after them everybody holds a part of the sum.
local h = spl.linear(x, up, nil, "gelu_tanh")
local part = spl.linear(h, down)
assert(spl.size() == 1 or tostring(h.layout):find "shard%(2%)" and tostring(part.layout):find "partial")
spl.reset_counters()
local y = part:redistribute "tp=replicate" -- the all-reduce of Megatron
local sent = spl.counters().bytes.total

-- The same on one rank alone.
local whole = spl.linear(spl.linear(spl.tensor { shape = { rows, hidden } }:randn(1),
    spl.tensor { shape = { inner, hidden } }:randn(2), nil, "gelu_tanh"),
    spl.tensor { shape = { hidden, inner } }:randn(3))
local difference = spl.compare(y:to_local(), whole)
assert(difference.max_abs < 1e-4)

-- An op does not communicate by itself: what a layout rule does not allow is refused, with what would work.
local ok, err = pcall(spl.linear, part, up)
assert(ok == (spl.size() == 1) and (ok or err.message:find "Redistribute first"))
if spl.rank() == 0 then
    print(("y %s, off by at most %.1e, %d bytes sent"):format(tostring(y.layout), difference.max_abs, sent))
end
