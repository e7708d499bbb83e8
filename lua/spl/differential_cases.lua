-- differential_cases.lua: which combinations `spl check` judges on so many ranks, and the support matrix made of them.
local spl = require "spl"

local cases = {}

cases.SCHEMES = { "contiguous", "zigzag", "striped" }
cases.MASKS = { "causal", "full", "window", "docs", "prefix", "padding", "slices" }
cases.HEADS = { "4/4", "8/2", "6/1", "7/7" } -- query heads / KV heads
cases.HEAD_DIM = 4
cases.CHUNK, cases.SUMMARIES = 8, 3

-- The roles that blocks can use, in the order in which axes are written; reversed every other time.
local ROLES = { "data", "tensor", "sequence", "ring", "gather", "hierarchical", "ulysses" }

local function usage(format, ...)
    spl.error { code = "usage", message = format:format(...) }
end

-- A list of slices as a script might give it: a window that grows, a band, and a corner the other way round.
local function slices(seq)
    local half, third = (seq + 1) // 2, (seq + 2) // 3
    if seq < 12 then
        return spl.mask { seq = seq, { kind = "causal" } }
    end
    return spl.mask { seq = seq, { q = { 1, half }, k = { 1, 2 * third }, kind = "causal" },
        { q = { third, seq }, k = { 2 * third + 1, seq - 4 }, kind = "both" },
        { q = { 2 * third, seq }, k = { 2, 9 }, kind = "inverse-causal" } }
end

--- [local] The mask of this name for so many tokens; a name with a number in it is a mask's own notation.
---@param name string
---@param seq integer
---@return spl.mask|string
function cases.mask(name, seq)
    local a, b = seq * 4 // 9, math.min(4, seq // 2)
    local made = { causal = "causal", full = "full", window = ("window:%d"):format(math.max(1, seq // 6)),
        docs = seq >= 4 and ("docs:%d,%d,%d"):format(a, b, seq - a - b) or ("docs:%d"):format(seq),
        prefix = ("prefix:%d"):format(seq // 5), padding = ("padding:%d"):format(seq * 2 // 3) }
    return name == "slices" and slices(seq) or made[name] or name
end

-- ---- meshes

-- The fewest and the most axes.
local function low_and_high(o)
    local low, high = o.axes:match "^(%d+)%-?(%d*)$"
    low, high = math.tointeger(low), math.tointeger(high ~= "" and high or low)
    if not low or low < 1 or high < low or high > 4 then
        usage("--axes is %s; a number from 1 to 4, or two of them as 1-4, is needed", o.axes)
    end
    return low, high
end

-- All ways of writing n as a product of `parts` factors above 1, in order.
local function factors(n, parts)
    if parts == 1 then
        return n > 1 and { { n } } or {}
    end
    local list = {}
    for first = 2, n // 2 do
        if n % first == 0 then
            for _, rest in ipairs(factors(n // first, parts - 1)) do
                list[#list + 1] = { first, table.unpack(rest) }
            end
        end
    end
    return list
end

-- Lists of `n` roles: any order, or one of each set.
local function role_lists(n, any_order, least)
    local list = {}
    if n == 0 then
        return { {} }
    end
    for i = any_order and 1 or least or 1, #ROLES do
        for _, rest in ipairs(role_lists(n - 1, any_order, i)) do
            list[#list + 1] = { ROLES[i], table.unpack(rest) }
        end
    end
    return list
end

local function reversed(list)
    local out = {}
    for i = #list, 1, -1 do
        out[#out + 1] = list[i]
    end
    return out
end

local function mesh_text(sizes, roles)
    local parts = {}
    for i, size in ipairs(sizes) do
        parts[i] = ("%s=%d:%s"):format(("abcdef"):sub(i, i), size, roles[i])
    end
    return table.concat(parts, ", ")
end

local function has(list, value)
    for _, v in ipairs(list) do
        if v == value then
            return true
        end
    end
    return false
end

-- {text =, roles =} of each mesh.
local function meshes(world, o)
    local low, high = low_and_high(o)
    local list = {}
    for n = low, high do
        local sizes = world == 1 and n == 1 and { { 1 } } or factors(world, n)
        for _, size in ipairs(sizes) do
            for i, roles in ipairs(role_lists(n, o.full)) do
                roles = not o.full and i % 2 == 0 and reversed(roles) or roles
                list[#list + 1] = { text = mesh_text(size, roles), roles = roles }
            end
        end
    end
    return list
end

local function only_roles(mesh, wanted)
    for _, role in ipairs(mesh.roles) do
        if not has(wanted, role) then
            return false
        end
    end
    return true
end

local function given_meshes(o)
    local list = {}
    for i, text in ipairs(o.mesh) do
        local parsed, roles = spl.mesh.parse(text), {}
        for a, axis in ipairs(parsed.axes) do
            roles[a] = axis.role
        end
        list[i] = { text = parsed.spec, roles = roles, given = true }
    end
    return list
end

-- ---- combinations

-- Masks and heads of a mesh and a scheme, as pairs: all of them where there is one axis; where there are two, every
-- mask, with heads in turn; where there are more, two of the masks in turn.
local function pairs_of(mesh, masks, heads, turn, full)
    local list, n = {}, #mesh.roles
    for i, mask in ipairs(masks) do
        if n == 1 or full or mesh.given then
            for _, h in ipairs(heads) do
                list[#list + 1] = { mask, h }
            end
        elseif n == 2 or (i + turn) % #masks < 2 then
            list[#list + 1] = { mask, heads[(i + turn) % #heads + 1] }
        end
    end
    return list
end

--- [local] Refuses filters that name nothing that there is, before any work starts.
---@param o table options of `spl check`
---Errors: code "usage".
function cases.check(o)
    low_and_high(o)
    for _, role in ipairs(o.role or {}) do
        if not has(ROLES, role) then
            local near = spl.nearest(role, ROLES)
            usage("--role %s: %s%s", role, near and ("did you mean %s? "):format(near) or "", "a block can use "
                .. table.concat(ROLES, ", "))
        end
    end
    for _, h in ipairs(o.heads or {}) do
        local q, kv = h:match "^(%d+)/(%d+)$"
        if not q or tonumber(kv) < 1 or tonumber(q) < 1 or tonumber(q) % tonumber(kv) ~= 0 then
            usage("--heads %s: two numbers as 8/2 are needed, query heads a multiple of KV heads", h)
        end
    end
    for _, name in ipairs(o.mask or {}) do
        local mask = cases.mask(name, o.seq)
        if type(mask) == "string" then
            spl.mask(mask):slices(o.seq) -- refuses what is none, or does not fit
        end
    end
end

--- [local] The combinations for so many ranks, those of one mesh and scheme behind each other: {mesh=, roles=, scheme=,
--- mask=, heads=}.
---@param world integer ranks
---@param o table options of `spl check`
---@return table[]
---Errors: code "usage" where filters leave nothing.
function cases.list(world, o)
    local list, turn = {}, 0
    local masks, heads, schemes = o.mask or cases.MASKS, o.heads or cases.HEADS, o.scheme or cases.SCHEMES
    for _, mesh in ipairs(o.mesh and given_meshes(o) or meshes(world, o)) do
        if not o.role or only_roles(mesh, o.role) then
            for _, scheme in ipairs(schemes) do
                turn = turn + 1
                for _, pair in ipairs(pairs_of(mesh, masks, heads, turn, o.full)) do
                    list[#list + 1] = { mesh = mesh.text, roles = mesh.roles, scheme = scheme, mask = pair[1],
                        heads = pair[2] }
                end
            end
        end
    end
    if #list == 0 and not (o.axes ~= "1-4" or o.role) then
        usage("no combination fits %d ranks", world)
    elseif #list == 0 then
        usage("no mesh of %d ranks has %s axes%s; take other --axes, --role or -n", world, o.axes,
            o.role and " of the roles " .. table.concat(o.role, ", ") or "")
    end
    return list
end

-- ---- the support matrix

-- "yes" where all that is not refused passes, "no" where something missed, a dash where all is refused, nothing where
-- nothing was run.
local function verdict(results, wanted)
    local passed, missed, refused = 0, 0, 0
    for _, r in ipairs(results) do
        if wanted(r.case) then
            passed = passed + (r.result == "passed" and 1 or 0)
            missed = missed + (r.result == "missed" and 1 or 0)
            refused = refused + (r.result == "refused" and 1 or 0)
        end
    end
    return missed > 0 and "**no**" or passed > 0 and "yes" or refused > 0 and "–" or ""
end

local function table_row(cells)
    return "| " .. table.concat(cells, " | ") .. " |\n"
end

local function rule(n)
    return "|" .. ("---|"):rep(n) .. "\n"
end

local function same_roles(case, a, b)
    if #case.roles ~= (b and 2 or 1) then
        return false
    end
    return case.roles[1] == a and case.roles[2] == b or b ~= nil and case.roles[1] == b and case.roles[2] == a
end

--- [local] Two tables in Markdown: roles by scheme, mask and heads; and roles by roles, along two axes.
---@param results table[] as `spl check` has them, each with its case
---@return string
function cases.markdown(results)
    local titles, columns = { "role" }, {}
    for _, group in ipairs { { "scheme", cases.SCHEMES }, { "mask", cases.MASKS }, { "heads", cases.HEADS } } do
        for _, value in ipairs(group[2]) do
            titles[#titles + 1] = group[1] == "heads" and "heads " .. value or value
            columns[#columns + 1] = { group[1], value }
        end
    end
    local text = { table_row(titles), rule(#titles) }
    for _, role in ipairs(ROLES) do
        local cells = { ("`%s`"):format(role) }
        for i, column in ipairs(columns) do
            cells[i + 1] = verdict(results, function(case)
                return same_roles(case, role) and case[column[1]] == column[2]
            end)
        end
        text[#text + 1] = table_row(cells)
    end
    local pair_titles = { "together with" }
    for i, role in ipairs(ROLES) do
        pair_titles[i + 1] = ("`%s`"):format(role)
    end
    text[#text + 1] = "\n" .. table_row(pair_titles) .. rule(#pair_titles)
    for _, a in ipairs(ROLES) do
        local cells = { ("`%s`"):format(a) }
        for i, b in ipairs(ROLES) do
            cells[i + 1] = verdict(results, function(case) return same_roles(case, a, b) end)
        end
        text[#text + 1] = table_row(cells)
    end
    return table.concat(text)
end

return cases
