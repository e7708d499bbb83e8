-- list_meshes.lua: the meshes that a block can use on this many ranks, found by asking: every way of cutting the ranks
-- into axes and every role for each axis is offered to a block, which takes it or says why not. Nothing is computed, so
-- `spl run --virtual 8 --backend null list_meshes.lua` tells about 8 ranks anywhere.
local spl = require "spl"

local o = spl.args {
    "Lists the meshes that a block can use on this many ranks, and those that it refuses with the reason.",
    axes = { default = 2, max = 4, help = "most axes of a mesh" },
    hidden = { default = 768, help = "width of the block" },
    heads = { default = 12, help = "query heads" },
    kv_heads = { type = "integer", help = "KV heads (default: as heads)" },
    refused = { default = false, help = "list also what is refused, and why" },
    json = { default = false, help = "one JSON object a mesh, nothing else" },
}

-- All lists of at least two ranks each whose product is n, of at most `most` parts; of one rank: {1}.
local function cuts(n, most)
    local list = { { n } }
    for first = 2, n // 2 do
        if most > 1 and n % first == 0 then
            for _, rest in ipairs(cuts(n // first, most - 1)) do
                if rest[1] > 1 then
                    list[#list + 1] = table.move(rest, 1, #rest, 2, { first })
                end
            end
        end
    end
    return list
end

local SHORT = { tensor = "tp", sequence = "sp", data = "dp", ulysses = "u", ring = "r", gather = "cp", pipeline = "pp",
    hierarchical = "h", fsdp = "fsdp" }

-- Every choice of roles for these sizes, each role at most once.
local function meshes(sizes, roles, take)
    local function fill(i, parts, used)
        if i > #sizes then
            take(table.concat(parts, ", "))
            return
        end
        for _, role in ipairs(roles) do
            if not used[role] then
                used[role] = true
                parts[i] = ("%s=%d:%s"):format(SHORT[role] or role, sizes[i], role)
                fill(i + 1, parts, used)
                parts[i], used[role] = nil, nil
            end
        end
    end
    fill(1, {}, {})
end

local function ask(text)
    local mesh <close> = spl.mesh(text)
    local block <close> = spl.block { hidden = o.hidden, heads = o.heads, kv_heads = o.kv_heads }
    local good, err = pcall(block.schedule, block, mesh)
    if not good and not (spl.is_error(err) and (err.code == "usage" or err.code == "unsupported"
        or err.code == "argument")) then
        error(err, 0)
    end
    return good, good and "" or tostring(err)
end

local function show(text, good, reason)
    if spl.rank() ~= 0 or not (good or o.refused) then
        return
    end
    if o.json then
        print(require "spl.json".encode({ mesh = text, accepted = good, reason = reason, ranks = spl.size() },
            { "mesh", "accepted" }))
    else
        print(good and text or ("%s  refused: %s"):format(text, reason))
    end
end

for _, sizes in ipairs(cuts(spl.size(), o.axes)) do
    meshes(sizes, spl.mesh.roles(), function(text)
        show(text, ask(text))
    end)
end
