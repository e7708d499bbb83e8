-- keeps.lua: what a schedule keeps whole on every rank, so that memory does not fall as ranks are added: the keys and
-- values of role gather, the activations of role sequence, the summaries of role hierarchical.
local keeps = {}

-- Product of the sizes of axes with one of these roles.
local function ranks_along(axes, ...)
    local n = 1
    for _, axis in ipairs(axes) do
        for i = 1, select("#", ...) do
            n = axis.role == select(i, ...) and n * axis.size or n
        end
    end
    return n
end

--- [local] What each rank keeps at the fullest moment of a block because of a role, with a full mask: { {role=, what=,
--- bytes=}, ... }. Of sizes that ranks do not divide: on the rank with most.
---@param axes table[] { {size=, role=}, ... }, as mesh.axes
---@param o table {batch=, seq=, hidden=, heads=, kv_heads=, head_dim=, chunk=, summaries=, element= bytes of a number}
---@return table[]
function keeps.keeps(axes, o)
    local list = {}
    local function share(n, parts) return (n + parts - 1) // parts end
    local batch = share(o.batch, ranks_along(axes, "data"))
    -- query heads here, and the KV heads that they read
    local heads = share(o.heads, ranks_along(axes, "tensor", "sequence", "ulysses"))
    local kv = math.min(o.kv_heads, share(heads + o.heads // o.kv_heads - 1, o.heads // o.kv_heads))
    if ranks_along(axes, "gather") > 1 then
        local rows = share(o.seq, ranks_along(axes, "ring"))
        list[#list + 1] = { role = "gather", what = "keys and values",
            bytes = 2 * batch * rows * kv * o.head_dim * o.element }
    end
    if ranks_along(axes, "sequence") > 1 then
        local rows = share(o.seq, ranks_along(axes, "ring", "gather", "ulysses", "hierarchical"))
        list[#list + 1] = { role = "sequence", what = "the norm's output", bytes = batch * rows * o.hidden * o.element }
    end
    if ranks_along(axes, "hierarchical") > 1 then
        local last = o.seq % o.chunk
        local n = o.seq // o.chunk * o.summaries + math.min(last, o.summaries)
        list[#list + 1] = { role = "hierarchical", what = "summaries of keys and values",
            bytes = 2 * batch * n * kv * o.head_dim * o.element }
    end
    return list
end

return keeps
