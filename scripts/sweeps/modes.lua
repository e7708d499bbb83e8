-- modes.lua: which schedule wins where on this machine: every mesh that a block can use, over rank counts and lengths;
-- ring and gather also with the sequence dealt out in zigzag, which balances the work under a causal mask.
-- spl sweep modes && spl report sweep-modes; shorter: spl sweep modes --set ranks=1,2 --set seq=512,2k
local spl = require "spl"

return {
    about = "one transformer block under every schedule that it can use, over ranks and sequence lengths",
    script = "sp_forward.lua",
    options = { hidden = 512, heads = 8, rounds = 3, warmup = 1 },
    grid = {
        ranks = { 1, 2, 4 },
        seq = { 512, 2048, 4096 },
        batch = { 1 },
        mesh = function(point)
            if point.ranks == 1 then
                return { "tp=1:tensor" }
            end
            return spl.meshes(point.ranks, { axes = 2, hidden = point.hidden, heads = point.heads })
        end,
        scheme = function(point)
            local balances = point.mesh:find ":ring" or point.mesh:find ":gather"
            return balances and { "contiguous", "zigzag" } or { "contiguous" }
        end,
    },
    skip = function(point)
        for size, role in point.mesh:gmatch "=(%d+):(%a+)" do
            if role == "data" and tonumber(size) > point.batch then
                return ("%s ranks of the data axis for a batch of %d: some would be idle"):format(size, point.batch)
            end
        end
    end,
    repeats = 2,
    timeout = 900,
    trace = true,
    report = { x = "seq", y = "time_ms_p50", series = "mesh" },
}
