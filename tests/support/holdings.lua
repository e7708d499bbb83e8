-- holdings.lua: who holds what, worked out the slow and obvious way: explicit lists of indices, one entry an element.
-- It judges core's layouts and redistribution, so it shares nothing with them.
--
-- A placement is a table {place =, dim =, scheme =, unit =, cover =, nest =}; a layout is one placement a mesh axis.
-- Coordinates and indices count from 0, dimensions from 1.
local holdings = {}

-- Balanced split: first index and length of part `c` of `parts`.
local function part(n, parts, c)
    local each, more = n // parts, n % parts
    return c * each + math.min(c, more), each + (c < more and 1 or 0)
end
holdings.part = part

local function pick(list, scheme, parts, c)
    local out = {}
    local function take(first, length)
        for i = first + 1, first + length do out[#out + 1] = list[i] end
    end
    if scheme == "zigzag" then
        take(part(#list, 2 * parts, c))
        take(part(#list, 2 * parts, 2 * parts - 1 - c))
    elseif scheme == "striped" then
        for i = c + 1, #list, parts do out[#out + 1] = list[i] end
    else
        take(part(#list, parts, c))
    end
    return out
end

--- Global indices of dimension `dim` (of `n` elements) at `coords`, in local order.
function holdings.indices(layout, sizes, coords, dim, n)
    local axes, unit, cover = {}, 1, 1
    for a, p in ipairs(layout) do
        if p.place == "shard" and p.dim == dim then
            axes[#axes + 1] = a
            unit, cover = p.unit or 1, p.cover or 1
        end
    end
    table.sort(axes, function(a, b)
        local na, nb = layout[a].nest or 0, layout[b].nest or 0
        if na ~= nb then return na < nb end
        return a < b
    end)
    local list = {}
    for i = 1, n // unit * cover do list[i] = i - 1 end
    for _, a in ipairs(axes) do list = pick(list, layout[a].scheme, sizes[a], coords[a]) end
    local out, seen = {}, {}
    for _, fine in ipairs(list) do
        local u = fine // cover
        if not seen[u] then
            seen[u] = true
            for k = 0, unit - 1 do out[#out + 1] = u * unit + k end
        end
    end
    return out
end

--- Flat global indices of the local elements at `coords`, in local (row-major) order; and the local shape.
function holdings.flat(layout, sizes, coords, shape)
    local flat, local_shape = { 0 }, {}
    for d, n in ipairs(shape) do
        local held, next_flat = holdings.indices(layout, sizes, coords, d, n), {}
        local_shape[d] = #held
        for _, f in ipairs(flat) do
            for _, i in ipairs(held) do next_flat[#next_flat + 1] = f * n + i end
        end
        flat = next_flat
    end
    return flat, local_shape
end

--- Coordinates of a rank; the first axis is outermost.
function holdings.coords(sizes, rank)
    local coords = {}
    for a = #sizes, 1, -1 do
        coords[a] = rank % sizes[a]
        rank = rank // sizes[a]
    end
    return coords
end

local function with(coords, axis, c)
    local copy = { table.unpack(coords) }
    copy[axis] = c
    return copy
end

-- Flat indices that the member at `coords` gives to others along `axis`: what no lower member holds too.
local function owned(layout, sizes, coords, shape, axis)
    local taken, out = {}, {}
    for c = 0, coords[axis] - 1 do
        for _, g in ipairs((holdings.flat(layout, sizes, with(coords, axis, c), shape))) do taken[g] = true end
    end
    for _, g in ipairs((holdings.flat(layout, sizes, coords, shape))) do
        if not taken[g] then out[#out + 1] = g end
    end
    return out
end

--- Elements that the rank at `coords` sends when only `axis` changes from one layout to the other.
function holdings.sent(from, to, sizes, coords, shape, axis)
    local before, after, parts = from[axis].place, to[axis].place, sizes[axis]
    if parts == 1 or before == "replicate" or after == "partial" then return 0 end
    if before == "partial" and after == "replicate" then -- reduce-scatter over a balanced split, then all-gather
        local n = #holdings.flat(from, sizes, coords, shape)
        local _, mine = part(n, parts, coords[axis])
        return (n - mine) + mine * (parts - 1)
    end
    if before == "shard" and after == "replicate" then
        return #owned(from, sizes, coords, shape, axis) * (parts - 1)
    end
    local give = {}
    local mine = before == "partial" and holdings.flat(from, sizes, coords, shape)
        or owned(from, sizes, coords, shape, axis)
    for _, g in ipairs(mine) do give[g] = true end
    local count = 0
    for c = 0, parts - 1 do
        if c ~= coords[axis] then
            for _, g in ipairs((holdings.flat(to, sizes, with(coords, axis, c), shape))) do
                if give[g] then count = count + 1 end
            end
        end
    end
    return count
end

--- The notation of a layout for a mesh whose axes have these names.
function holdings.text(layout, names)
    local parts = {}
    for a, p in ipairs(layout) do
        if p.place == "shard" then
            local s = { tostring(p.dim) }
            if p.scheme then s[#s + 1] = p.scheme end
            for _, key in ipairs { "unit", "cover", "nest" } do
                if p[key] then s[#s + 1] = key .. ":" .. p[key] end
            end
            parts[#parts + 1] = ("%s=shard(%s)"):format(names[a], table.concat(s, ","))
        else
            parts[#parts + 1] = ("%s=%s"):format(names[a], p.place)
        end
    end
    return table.concat(parts, ", ")
end

--- A small generator of its own, equal on all ranks whatever else draws random numbers.
function holdings.random(seed)
    local state = seed
    return function(low, high)
        state = (state * 6364136223846793005 + 1442695040888963407)
        return low + ((state >> 33) % (high - low + 1))
    end
end

local schemes = { "contiguous", "zigzag", "striped" }

--- A random layout for a shape: any places, schemes, units that divide, covers, nests. `no_partial`: shard or
--- replicate only.
function holdings.random_layout(random, shape, naxes, no_partial)
    local grain, layout = {}, {}
    for d, n in ipairs(shape) do
        local units = {}
        for u = 1, math.max(n, 1) do
            if n % u == 0 then units[#units + 1] = u end
        end
        grain[d] = { unit = random(0, 2) == 0 and units[random(1, #units)] or 1,
            cover = random(0, 3) == 0 and random(2, 4) or 1 }
    end
    for a = 1, naxes do
        local kind = random(0, no_partial and 3 or 4)
        if kind >= 1 and kind <= 3 and #shape > 0 then
            local d = random(1, #shape)
            layout[a] = { place = "shard", dim = d, scheme = schemes[random(1, 3)], unit = grain[d].unit,
                cover = grain[d].cover, nest = random(0, 2) }
        else
            layout[a] = { place = kind == 4 and "partial" or "replicate" }
        end
    end
    return layout
end

local lengths = { 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13 }

function holdings.random_shape(random)
    local shape = {}
    for d = 1, random(1, 3) do shape[d] = lengths[random(1, #lengths)] end
    return shape
end

--- Sizes of 1 to 3 axes that multiply to `world`.
function holdings.random_mesh(random, world)
    local sizes, left, n = {}, world, random(1, 3)
    for a = 1, n - 1 do
        local divisors = {}
        for s = 1, left do
            if left % s == 0 then divisors[#divisors + 1] = s end
        end
        sizes[a] = divisors[random(1, #divisors)]
        left = left // sizes[a]
    end
    sizes[n] = left
    return sizes
end

return holdings
