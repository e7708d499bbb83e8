-- theory.lua: bytes a rank sends in one forward pass, written from the algorithms, apart from core.
--
-- Every axis that splits the weights leaves a sum to be made after attention and after the MLP:
--   tensor    an all-reduce of the activation, 2(P-1)/P of its size: as reduce-scatter + all-gather over n elements
--             cut into P balanced parts, (n - mine) + mine (P-1)
--   sequence  an all-gather of this rank's rows before each half, rows (P-1), and a reduce-scatter after it:
--             everybody else's rows
--   data      nothing
-- Where several axes split the sequence, an inner one splits the rows that are left. Where several leave a sum, each
-- reduces the part that the one before has left it, and of bf16 and f16 all but the first send sums in f32; what
-- all-reduces gather is finished, and as it is stored.
--
-- Axes that split the sequence inside attention:
--   ulysses       four all-to-alls: my rows of the heads that others take, of q, k and v, and back their rows of the
--                 heads that I took; a KV head goes to everybody who takes a query head that reads it
--   ring, gather  keys and values: a row goes to every member whose queries see it. gather: from its owner. ring: from
--                 the member before, as long as each in the row needs it, else as `senders` says. With a full mask both
--                 send (P-1) blocks.
--   hierarchical  an all-gather of the summaries of this rank's chunks
local deal = require "spl.deal"
local theory = {}

local share = deal.share

-- ---- attention

-- Query heads [first, last) of this rank out of `heads`, counted from 0, and the KV heads that they read.
local function heads_of(axes, o, roles, coord_of)
    local first, last = 0, o.heads
    for _, group in ipairs(roles) do
        for _, axis in ipairs(axes) do
            if group[axis.role] then
                local begin, n = deal.part(last - first, axis.size, coord_of(axis))
                first, last = first + begin, first + begin + n
            end
        end
    end
    return first, last
end

local WEIGHTS, ULYSSES = { tensor = true, sequence = true }, { ulysses = true }

local function own(axis) return axis.coord end

-- How many KV heads the query heads [first, last) read.
local function kv_of(first, last, o)
    local group = o.heads // o.kv_heads
    return last > first and (last - 1) // group - first // group + 1 or 0
end

-- Bytes of the all-to-alls along the ulysses axes, in the order in which they are done: the innermost first.
local function ulysses_bytes(axes, o, batch)
    local list = {}
    for _, axis in ipairs(axes) do
        if axis.role == "ulysses" and axis.size > 1 then list[#list + 1] = axis end
    end
    if #list == 0 then return 0 end
    if #list > 1 then return nil end -- heads change hands more than once
    local axis, elements = list[1], 0
    local rows = #deal.rows(axes, o, own)
    local mine_first, mine_last = heads_of(axes, o, { WEIGHTS, ULYSSES }, own)
    for c = 0, axis.size - 1 do
        if c ~= axis.coord then
            local function there(a) return a == axis and c or a.coord end
            local first, last = heads_of(axes, o, { WEIGHTS, ULYSSES }, there)
            elements = elements + rows * ((last - first) + 2 * kv_of(first, last, o))
                + #deal.rows(axes, o, there) * (mine_last - mine_first)
        end
    end
    return elements * batch * o.head_dim * o.element
end

-- For each member the set of global keys that its queries see.
local function needs(o, queries)
    local list = {}
    for m, rows in ipairs(queries) do
        local change, seen, depth = {}, {}, 0
        for _, q in ipairs(rows) do
            for first, last in deal.visible(o.slices, q) do
                change[first] = (change[first] or 0) + 1
                change[last + 1] = (change[last + 1] or 0) - 1
            end
        end
        for k = 1, o.seq do
            depth = depth + (change[k] or 0)
            seen[k] = depth > 0
        end
        list[m] = seen
    end
    return list
end

-- Who brings the rows of block b to whom: calls bring(row, from, to, step) for each. A row goes up, from b to b+1, as
-- long as each member needs it; then down, b-1, b-2, ...; then straight from b. Where anything goes down at all, of the
-- rows that all need only as many go up as fit half of the block, the rest down. Returns whether anything went down.
local function senders(needed, blocks, b, both, bring)
    local P, down = #blocks, false
    local room = (#blocks[b] + 1) // 2
    for _, row in ipairs(blocks[b]) do
        local served, all = {}, true
        for m = 1, P do all = all and (m == b or needed[m][row]) end
        local up = not (both and all)
        if both and all and room > 0 then up, room = true, room - 1 end
        for direction = up and 1 or -1, -1, -2 do
            for t = 1, P - 1 do
                local to = (b - 1 + direction * t) % P + 1
                if not needed[to][row] or served[to] then break end
                served[to] = true
                bring(row, (to - 1 - direction) % P + 1, to, t)
                down = down or direction < 0
            end
        end
        for t = 1, P - 1 do
            local to = (b - 1 + t) % P + 1
            if needed[to][row] and not served[to] then bring(row, b, to, t) end
        end
    end
    return down
end

-- Members of the group along which keys travel, with the rows of their queries and keys; `me` is this rank's.
local function members(axes, o)
    local way = deal.way(axes)
    local list, me = deal.members(axes, way)
    local queries, blocks = {}, {}
    for m, coords in ipairs(list) do
        local function there(axis) return coords[axis] or axis.coord end
        queries[m] = deal.rows(axes, o, there, { ulysses = true })
        blocks[m] = deal.rows(axes, o, there, { ulysses = true, gather = way == "ring" or nil })
    end
    return way, queries, blocks, me
end

-- Rows that travel: bring(row, from, to, step) for each, members counted from 1.
local function travel(o, way, queries, blocks, bring)
    local needed = needs(o, queries)
    if way == "gather" then
        for b = 1, #blocks do
            for _, row in ipairs(blocks[b]) do
                for m = 1, #blocks do
                    if m ~= b and needed[m][row] then bring(row, b, m, 1) end
                end
            end
        end
        return
    end
    local both = false
    for b = 1, #blocks do both = senders(needed, blocks, b, false, function() end) or both end
    for b = 1, #blocks do senders(needed, blocks, b, both, bring) end
end

-- Rows of keys that this rank sends along the axes on which they travel, and first along the gather axes inside a ring.
local function travel_rows(axes, o)
    local way, queries, blocks, me = members(axes, o)
    local sent = 0
    if #blocks > 1 then
        if o.full then
            sent = #blocks[me] * (#blocks - 1)
            if way == "ring" then -- passed on as well: every block but that of the next member
                sent = 0
                for m = 1, #blocks do sent = sent + (m ~= me % #blocks + 1 and #blocks[m] or 0) end
            end
        else
            travel(o, way, queries, blocks, function(_, from) sent = sent + (from == me and 1 or 0) end)
        end
    end
    if way == "ring" then
        sent = sent + deal.gathered(axes, o, "gather", #deal.rows(axes, o, own, { ulysses = true }))
    end
    return sent
end

-- Rows of summaries that this rank sends.
local function summary_rows(axes, o)
    local rows = deal.rows(axes, o, own, { ulysses = true })
    local chunks, n = {}, 0
    for _, row in ipairs(rows) do
        local c = (row - 1) // o.chunk
        chunks[c] = (chunks[c] or 0) + 1
        n = n + (chunks[c] <= o.summaries and 1 or 0)
    end
    return deal.gathered(axes, o, "hierarchical", n, function(there)
        local seen, count = {}, 0
        for _, row in ipairs(deal.rows(axes, o, there, { ulysses = true })) do
            local c = (row - 1) // o.chunk
            seen[c] = (seen[c] or 0) + 1
            count = count + (seen[c] <= o.summaries and 1 or 0)
        end
        return count
    end)
end

local LARGEST = 1 << 21 -- rows times ranks that are counted one by one

-- What is left out is filled in: of one head where nothing splits heads, a full mask.
local function filled(axes, o)
    local all = { batch = 1, chunk = 1024, summaries = 1, heads = 1, head_dim = 1, scheme = "contiguous" }
    for key, value in pairs(o) do all[key] = value end
    all.kv_heads = all.kv_heads or all.heads
    all.slices = all.slices or { { q = { 1, all.seq }, k = { 1, all.seq }, kind = "full" } }
    local s = all.slices[1]
    all.full = #all.slices == 1 and s.kind == "full" and s.q[1] == 1 and s.q[2] == all.seq and s.k[1] == 1
        and s.k[2] == all.seq
    local ranks = 1
    for _, axis in ipairs(axes) do ranks = ranks * axis.size end
    return ranks * all.seq * (#all.slices > 64 and 4 or 1) <= LARGEST and all or nil
end

--- [local] Bytes that the rank at these coordinates sends for attention alone: heads that change hands, keys that
--- travel, summaries. nil: too large to count, or several ulysses axes of more than one rank.
---@param axes table[] { {size=, role=, coord=}, ... } in mesh order; mesh.axes has this form
---@param o table {batch=, seq=, heads=, kv_heads=, head_dim=, element= bytes of one number, scheme=, chunk=,
--- summaries=, slices= of the mask as mask:slices gives it (full), documents= their lengths, for zigzag}
---@return integer? bytes
function theory.attention_bytes(axes, o)
    o = filled(axes, o)
    if not o then return nil end
    local batch = o.batch
    for _, axis in ipairs(axes) do
        if axis.role == "data" then batch = share(batch, axis.size, axis.coord) end
    end
    local bytes, way = ulysses_bytes(axes, o, batch), deal.way(axes)
    if not bytes then return nil end
    if way then
        local first, last = heads_of(axes, o, { WEIGHTS, ULYSSES }, own)
        local rows = way == "hierarchical" and summary_rows(axes, o) or travel_rows(axes, o)
        bytes = bytes + 2 * rows * batch * kv_of(first, last, o) * o.head_dim * o.element
    end
    return bytes
end

--- [local] Bytes that the rank at these coordinates sends in one forward pass of a block; nil: not to be counted.
---@param axes table[] { {size=, role=, coord=}, ... } in mesh order; mesh.axes has this form
---@param o table {batch=, seq=, hidden=, element= bytes of one number}, and where an axis splits the sequence inside
--- attention what theory.attention_bytes takes
---@return integer? bytes
function theory.block_bytes(axes, o)
    local batch, rows = o.batch, o.seq
    local bytes, reduces, summed, inside = 0, {}, o.element, false
    local BUILT = { data = true, tensor = true, sequence = true, ring = true, gather = true, ulysses = true,
        hierarchical = true }

    local function reduce(n, axis)
        bytes = bytes + n * summed
        summed = axis.size > 1 and math.max(o.element, 4) or summed
    end
    for _, axis in ipairs(axes) do
        if not BUILT[axis.role] then
            return nil
        elseif axis.role == "data" then
            batch = share(batch, axis.size, axis.coord)
        elseif axis.role == "tensor" then
            reduces[#reduces + 1] = axis
        else
            inside = inside or axis.role ~= "sequence"
        end
    end
    local all = filled(axes, o)
    if inside and not all then return nil end
    if inside then rows = #deal.rows(axes, all, own) end
    for i, axis in ipairs(axes) do
        if axis.role == "sequence" then
            local inner = {}
            for j = i + 1, #axes do inner[axes[j]] = axes[j].role == "sequence" or nil end
            local mine = inside and #deal.rows(axes, all, own, nil, inner) or share(rows, axis.size, axis.coord)
            bytes = bytes + mine * (axis.size - 1) * batch * o.hidden * o.element
            reduce((rows - mine) * batch * o.hidden, axis)
            rows = mine
        end
    end
    local n = batch * rows * o.hidden
    for _, axis in ipairs(reduces) do
        local mine = share(n, axis.size, axis.coord)
        reduce(n - mine, axis)
        bytes = bytes + mine * (axis.size - 1) * o.element
        n = mine
    end
    bytes = 2 * bytes -- once around attention, once around the MLP
    if not inside then return bytes end
    local attention = theory.attention_bytes(axes, o)
    return attention and bytes + attention
end

--- [local] Tiles of TILE_ROWS queries by TILE_KEYS keys that hold a visible pair, for the rank at these coordinates and
--- all its heads and sequences. Its queries are cut into tiles in the order in which it holds them; so are the keys of
--- each source: its own, then, step by step, what came from others, by rising sender. nil: too large to count.
---@param axes table[] as theory.attention_bytes
---@param o table as theory.attention_bytes
---@return integer? tiles
function theory.attention_tiles(axes, o)
    o = filled(axes, o)
    if not o then return nil end
    local batch, n, way = o.batch, 0, deal.way(axes)
    for _, axis in ipairs(axes) do
        if axis.role == "data" then batch = share(batch, axis.size, axis.coord) end
    end
    local first, last = heads_of(axes, o, { WEIGHTS, ULYSSES }, own)
    local mine, sources
    if way and way ~= "hierarchical" then
        local _, queries, blocks, me = members(axes, o)
        local came = {}
        mine, sources = queries[me], { blocks[me] }
        travel(o, way, queries, blocks, function(row, from, to, step)
            if to == me then
                came[step] = came[step] or {}
                local list = came[step]
                list[#list + 1] = { from = from, row = row, order = #list }
            end
        end)
        for step = 1, #blocks - 1 do
            local list, source = came[step] or {}, {}
            table.sort(list, function(a, b)
                if a.from ~= b.from then return a.from < b.from end
                return a.order < b.order
            end)
            for i, entry in ipairs(list) do source[i] = entry.row end
            sources[#sources + 1] = source
        end
    elseif way then
        return nil
    else
        mine = deal.rows(axes, o, own, { ulysses = true })
        sources = { mine }
    end
    for _, source in ipairs(sources) do
        n = n + deal.tiles(o.slices, mine, source, theory.TILE_ROWS, theory.TILE_KEYS)
    end
    return n * batch * (last - first)
end

theory.TILE_ROWS, theory.TILE_KEYS = 96, 128

--- [local] FLOPs of one forward pass over all ranks: GEMMs 2mnk, attention 4 head_dim per visible (query, key, head).
---@param c table {hidden=, heads=, kv_heads=, head_dim=, ffn=, gated=, causal=} as block.config
---@param o table {batch=, seq=}
---@return number total, number gemm, number attention
function theory.block_flops(c, o)
    local tokens = o.batch * o.seq
    local attention_weights = (2 * c.heads + 2 * c.kv_heads) * c.head_dim * c.hidden
    local mlp_weights = (c.gated and 3 or 2) * c.ffn * c.hidden
    local pairs_seen = c.causal and o.seq * (o.seq + 1) // 2 or o.seq * o.seq
    local gemm = 2.0 * tokens * (attention_weights + mlp_weights)
    local attention = 4.0 * c.head_dim * pairs_seen * c.heads * o.batch
    return gemm + attention, gemm, attention
end

return theory
