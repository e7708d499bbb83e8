-- peak_spec.lua: the most memory that a forward pass takes, to the byte: a temporary that is kept too long shows here.
-- The expected values are closed forms of the tensors that must be alive at the fullest moment.
local mpi = require "mpi"

local BATCH, SEQ, HIDDEN, HEADS = 2, 32, 64, 4
local FFN = 4 * HIDDEN

local RUN = ([[
local spl = require "spl"
local o = spl.args { save = false }
local mesh = spl.mesh "tp=*:sequence"
local blk = spl.block { hidden = %d, heads = %d, seed = 1 }:schedule(mesh)
local x <close> = blk:input { batch = %d, seq = %d }:randn(5)
for _ = 1, 2 do
    spl.reset_counters()
    collectgarbage "stop"
    local y, saved = blk:forward(x, { save = o.save })
    collectgarbage "restart"
    if spl.rank() == 0 then print(spl.memory().peak.activations, spl.memory().now.activations) end
    y:release()
    if saved then saved:release() end
end
]]):format(HIDDEN, HEADS, BATCH, SEQ)

-- At the end of the MLP's first linear (and again when its second writes): x and the residual between the halves, both
-- split by rows; the norm's output gathered whole; the MLP's columns of this rank, twice where they are also kept.
local function fullest(ranks, kept)
    local rows = 4 * BATCH * SEQ -- of one float a token
    local whole, shard, columns = rows * HIDDEN, rows * HIDDEN // ranks, rows * FFN // ranks
    return 2 * shard + whole + columns + (kept and columns or 0)
end

-- What is kept by then: qkv, attention's output and logsumexp; mha_linear1_out and its mask; four statistics a token.
local function kept_then(ranks)
    local rows = 4 * BATCH * SEQ
    local attention = (rows * 4 * HIDDEN + rows * HEADS) // ranks
    return attention + (rows * HIDDEN + BATCH * SEQ * HIDDEN + 4 * rows) // ranks
end

-- And at the end: x, all that is kept, the MLP's columns before the activation, its mask, the output.
local function at_the_end(ranks, save)
    local rows = 4 * BATCH * SEQ
    local x_and_out = 2 * rows * HIDDEN // ranks
    return x_and_out + (save and kept_then(ranks) + (rows * FFN + BATCH * SEQ * HIDDEN) // ranks or 0)
end

describe("a forward pass of a block", function()
    for _, ranks in ipairs { 1, 2, 4 } do
        for _, save in ipairs { false, true } do
            it(("takes what it must and no more: %d ranks, %s"):format(ranks, save and "kept" or "not kept"), function()
                local r = mpi.run(1, RUN, save and { "--save" } or {}, { flags = { "--virtual", tostring(ranks) } })
                assert.same({ 0, "" }, { r.code, r.err })
                local line = ("%d\t%d\n"):format(fullest(ranks, save) + (save and kept_then(ranks) or 0),
                    at_the_end(ranks, save))
                assert.equal(line .. line, r.out)
            end)
        end
    end
end)
