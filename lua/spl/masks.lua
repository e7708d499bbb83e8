-- masks.lua: what benchmarks say of a mask: its slices and documents, which rows see nothing.
local spl = require "spl"
local masks = {}

--- [local] A mask for a sequence: {spec=, mask=, slices=, documents= their lengths or nil, pairs= that it shows}.
---@param spec string
---@param seq integer
---@param kv_seq? integer (seq)
---@return table
---Errors: code "usage" where it is not understood or does not fit.
function masks.masks(spec, seq, kv_seq)
    local mask = spl.mask(spec)
    local m = { spec = mask.spec, mask = mask, slices = mask:slices(seq, kv_seq or seq), seq = seq,
        pairs = mask:pairs(seq, kv_seq or seq) }
    local lengths = mask.spec:match("^docs:(.*)")
    if lengths then
        m.documents = {}
        for length in lengths:gmatch("%d+") do
            m.documents[#m.documents + 1] = math.tointeger(length)
        end
    end
    return m
end

-- Queries [first, last] of one slice that see something.
local function sighted(s)
    local first, last, nk = s.q[1], s.q[2], s.k[2] - s.k[1] + 1
    if nk < 1 then return 1, 0 end
    if s.kind == "causal" or s.kind == "both" then first = math.max(first, last - nk + 1) end
    if s.kind == "inverse-causal" or s.kind == "both" then last = math.min(last, s.q[1] + nk - 1) end
    return first, last
end

--- [local] A sentence on the queries that see no key, or nil.
---@param m table of masks.masks
---@return string?
function masks.blind(m)
    local stretches, seen, till = {}, 0, 0
    for _, s in ipairs(m.slices) do
        local first, last = sighted(s)
        if first <= last then stretches[#stretches + 1] = { first, last } end
    end
    table.sort(stretches, function(a, b) return a[1] < b[1] end)
    for _, s in ipairs(stretches) do
        seen = seen + math.max(0, s[2] - math.max(till, s[1] - 1))
        till = math.max(till, s[2])
    end
    local blind = m.seq - seen
    if blind == 0 then return nil end
    return ("%d of %d queries see no key under %s; attention gives 0 there"):format(blind, m.seq, m.spec)
end

return masks
