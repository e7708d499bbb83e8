-- 01_tensor.lua: a tensor of one rank: values, views, arithmetic, memory.
local spl = require "spl"

local x = spl.from_table { { 1, 2, 3 }, { 4, 5, 6 } }
local w = spl.from_table { { 1, 0, -1 }, { 0, 2, 0 } }
print(x) -- shape, dtype and values

-- A linear layer: y = x wᵀ. Weights are [outputs, inputs].
local y = spl.linear(x, w)
assert(y:item(2, 1) == 4 - 6 and y:item(2, 2) == 10)

-- Views share memory: what is written through one is seen through the other. Dimensions count from 1.
local column = x:narrow(2, 3, 1)
column:fill(0)
assert(x:item(1, 3) == 0 and x:transpose(1, 2):item(3, 2) == 0)

-- Random numbers depend on seed and position alone, so they are the same in every layout and on every rank.
local r = spl.tensor { shape = { 2, 4 }, dtype = "f64" }:randn(7)
print(r:norm(), r:stats().max_abs)

-- What is wrong is said by name, as an object that a script can look at.
local ok, err = pcall(spl.linear, x, spl.zeros { shape = { 5, 4 } })
assert(not ok and err.code == "argument")
print(err)

r:release() -- at once; otherwise when Lua collects it
print(("%d bytes of activations at the most"):format(spl.memory().peak.activations))
