-- 07_trace.lua: what a piece of a program did and when: a trace of two forward passes, and what it says.
-- spl run -n 2 examples/07_trace.lua --file trace.json    (the file opens in ui.perfetto.dev)
local spl = require "spl"
local trace = require "spl.trace"

local o = spl.args { "Traces a block.", file = { type = "string", metavar = "FILE", help = "keep the trace here" } }

local mesh = spl.mesh "tp=*:sequence"
local block = spl.block { hidden = 96, heads = 6, seed = 7 }:schedule(mesh)
local x = block:input { batch = 1, seq = 256 }:randn(11)
block:forward(x):release() -- the first pass takes memory, which the next ones use again

-- Everybody agrees on the name that rank 0 made up.
local path = o.file or spl.gather(spl.rank() == 0 and os.tmpname() or "")[1]
spl.trace_start()
for pass = 1, 2 do
    local begin = spl.now()
    block:forward(x):release()
    spl.trace_span("pass " .. pass, begin)
end
spl.trace_write(path)

if spl.rank() == 0 then
    local s = trace.summary(path)
    print(s) -- as `spl trace FILE` prints it
    assert(#s.ranks == spl.size() and #s.spans == 2 and s.ops[1].calls > 0)
    if not o.file then
        os.remove(path)
    end
end
