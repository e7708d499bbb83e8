-- deal.lua: who holds which rows of a sequence, and which keys a query sees, one by one in plain Lua, apart from core:
-- what theory counts with. Rows and keys are global positions from 1.
local deal = {}

--- [local] Balanced split: where part `c` of `parts` begins and how many of n it has; the first n % parts have one
--- more.
---@param n integer
---@param parts integer
---@param c integer from 0
---@return integer begin from 0
---@return integer length
function deal.part(n, parts, c)
    local each, more = n // parts, n % parts
    return c * each + math.min(c, more), each + (c < more and 1 or 0)
end

--- [local] How many of n part `c` of `parts` has.
---@param n integer
---@param parts integer
---@param c integer from 0
---@return integer length
function deal.share(n, parts, c)
    local _, length = deal.part(n, parts, c)
    return length
end

-- Ring and hierarchical axes split the sequence first, then gather, ulysses and sequence; equals in mesh order.
local NEST = { ring = 1, hierarchical = 1, gather = 2, ulysses = 3, sequence = 4 }

--- [local] The role in whose way keys travel.
---@param axes table[] { {size=, role=, coord=}, ... } in mesh order
---@return string? role hierarchical, ring or gather
function deal.way(axes)
    for _, role in ipairs { "hierarchical", "ring", "gather" } do
        for _, axis in ipairs(axes) do
            if axis.role == role then return role end
        end
    end
    return nil
end

-- Chunks c and 2P-1-c of the 2P chunks of positions (begin, begin + n]; the chunks with one more begin at `turn`.
local function zigzag(list, out, begin, n, P, c, turn)
    local chunks = 2 * P
    for _, wanted in ipairs { c, chunks - 1 - c } do
        local at = begin
        for chunk = 0, chunks - 1 do
            local length = n // chunks + ((chunk - turn) % chunks < n % chunks and 1 or 0)
            if chunk == wanted then
                for i = at + 1, at + length do out[#out + 1] = list[i] end
            end
            at = at + length
        end
    end
end

-- What member c of P gets of a list, by a scheme; `unit`: contiguous in whole units of consecutive rows.
local function deal_out(list, P, c, scheme, documents, unit)
    local out = {}
    if scheme == "striped" then
        for i = c + 1, #list, P do out[#out + 1] = list[i] end
    elseif scheme == "zigzag" then
        local begin, turn = 0, 0
        for _, n in ipairs(documents or { #list }) do
            zigzag(list, out, begin, n, P, c, turn)
            begin, turn = begin + n, (turn + n) % (2 * P)
        end
    else
        local begin, length = deal.part((#list + unit - 1) // unit, P, c)
        for i = begin * unit + 1, math.min((begin + length) * unit, #list) do out[#out + 1] = list[i] end
    end
    return out
end

--- [local] Rows of the sequence at coordinates. Axes of the roles in `whole` do not split it, and, since attention sees
--- the sequence so, neither do those of the role sequence; with `but` they do, except those in it.
---@param axes table[] as deal.way
---@param o table {seq=, scheme=, chunk=, documents=}
---@param coord_of function (axis) -> integer
---@param whole table? set of roles
---@param but table? set of axes
---@return integer[] rows global positions in the order in which they are held
function deal.rows(axes, o, coord_of, whole, but)
    local order, way, first = {}, deal.way(axes), true
    for _, axis in ipairs(axes) do
        if NEST[axis.role] then order[#order + 1] = axis end
    end
    local at = {}
    for i, axis in ipairs(axes) do at[axis] = i end
    table.sort(order, function(a, b)
        if NEST[a.role] ~= NEST[b.role] then return NEST[a.role] < NEST[b.role] end
        return at[a] < at[b]
    end)
    local list = {}
    for i = 1, o.seq do list[i] = i end
    for _, axis in ipairs(order) do
        local by_scheme = axis.role == "ring" or axis.role == "gather" or axis.role == "ulysses" and not way
        local splits = not (whole and whole[axis.role]) and (axis.role ~= "sequence" or but and not but[axis])
        if axis.size > 1 then
            if splits then
                list = deal_out(list, axis.size, coord_of(axis), by_scheme and o.scheme or "contiguous",
                    first and o.documents, way == "hierarchical" and o.chunk or 1)
            end
            first = false
        end
    end
    return list
end

--- [local] Members of the group of all axes of a role, the last axis fastest; and this rank's number.
---@param axes table[] as deal.way
---@param role string
---@return table[] members each as coordinates by axis
---@return integer me
function deal.members(axes, role)
    local list, me = { {} }, 1
    for _, axis in ipairs(axes) do
        if axis.role == role and axis.size > 1 then
            local more = {}
            for _, coords in ipairs(list) do
                for c = 0, axis.size - 1 do
                    local one = { [axis] = c }
                    for a, v in pairs(coords) do one[a] = v end
                    more[#more + 1] = one
                end
            end
            list, me = more, (me - 1) * axis.size + axis.coord + 1
        end
    end
    return list, me
end

--- [local] Rows that this rank sends in all-gathers along the axes of a role, the innermost first.
---@param axes table[] as deal.way
---@param o table as deal.rows
---@param role string
---@param mine integer rows that this rank has
---@param count function? (coord_of) -> rows that a member has (as deal.rows without ulysses)
---@return integer rows
function deal.gathered(axes, o, role, mine, count)
    local sent, list = 0, {}
    for _, axis in ipairs(axes) do
        if axis.role == role and axis.size > 1 then table.insert(list, 1, axis) end
    end
    count = count or function(there) return #deal.rows(axes, o, there, { ulysses = true }) end
    local known = {} -- coordinates along axes that were gathered already
    for i, axis in ipairs(list) do
        sent = sent + mine * (axis.size - 1)
        known[i] = axis
        if i < #list then -- what the next, outer one starts from
            local combos = { {} }
            for j = 1, i do
                local more = {}
                for _, coords in ipairs(combos) do
                    for c = 0, known[j].size - 1 do
                        local one = { [known[j]] = c }
                        for a, v in pairs(coords) do one[a] = v end
                        more[#more + 1] = one
                    end
                end
                combos = more
            end
            mine = 0
            for _, coords in ipairs(combos) do
                mine = mine + count(function(a) return coords[a] or a.coord end)
            end
        end
    end
    return sent
end

--- [local] Iterates over the intervals of keys that a query sees, one a slice.
---@param slices table[] as mask:slices gives them
---@param q integer
---@return function next gives first, last
function deal.visible(slices, q)
    local i = 0
    return function()
        while i < #slices do
            i = i + 1
            local s = slices[i]
            if q >= s.q[1] and q <= s.q[2] then
                local first, last = s.k[1], s.k[2]
                if s.kind == "causal" or s.kind == "both" then last = math.min(last, q - s.q[2] + s.k[2]) end
                if s.kind == "inverse-causal" or s.kind == "both" then first = math.max(first, q - s.q[1] + s.k[1]) end
                if first <= last then return first, last end
            end
        end
    end
end

--- [local] How many tiles of `rows` queries by `keys` keys hold a visible pair; the lists are cut in their own order.
---@param slices table[] as mask:slices gives them
---@param queries integer[]
---@param source integer[] keys
---@param rows integer
---@param keys integer
---@return integer tiles
function deal.tiles(slices, queries, source, rows, keys)
    local blocks = {} -- of the source: the stretches of consecutive keys of each
    for k = 1, #source, keys do
        local list = {}
        for i = k, math.min(k + keys - 1, #source) do
            local last = list[#list]
            if last and source[i] == last[2] + 1 then
                last[2] = source[i]
            else
                list[#list + 1] = { source[i], source[i] }
            end
        end
        blocks[#blocks + 1] = list
    end
    local n = 0
    for q = 1, #queries, rows do
        local seen = {}
        for i = q, math.min(q + rows - 1, #queries) do
            for first, last in deal.visible(slices, queries[i]) do seen[#seen + 1] = { first, last } end
        end
        table.sort(seen, function(a, b) return a[1] < b[1] end)
        local joined = {}
        for _, s in ipairs(seen) do
            local last = joined[#joined]
            if last and s[1] <= last[2] + 1 then last[2] = math.max(last[2], s[2]) else joined[#joined + 1] = s end
        end
        for _, list in ipairs(blocks) do
            local hit = false
            for _, stretch in ipairs(list) do
                for _, s in ipairs(joined) do
                    hit = hit or stretch[1] <= s[2] and s[1] <= stretch[2]
                end
                if hit then break end
            end
            n = n + (hit and 1 or 0)
        end
    end
    return n
end

return deal
