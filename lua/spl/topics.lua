-- topics.lua: help on what is no function: how meshes give roles to their axes.
local topics = {}

-- What is split along an axis of each role, and where it communicates; whether this version has it.
topics.role_list = {
    { "tensor", true, "heads and hidden of the weights; an all-reduce after attention and after the MLP" },
    { "sequence", true, "as tensor, and the sequence in norms and residual; all-gather, reduce-scatter" },
    { "data", true, "the batch; nothing in a forward pass" },
    { "ulysses", true, "the sequence, and heads inside attention; an all-to-all before and after attention" },
    { "ring", true, "the sequence; keys and values travel round a ring" },
    { "gather", true, "the sequence; keys and values are gathered before attention" },
    { "hierarchical", true, "the sequence; exact nearby, summaries of the rest" },
    { "fsdp", false, "the batch and the weights, which are gathered for use" },
    { "pipeline", false, "the layers; send and receive between stages" },
}

-- Topics with their texts; `also` names the functions to whose help a text belongs too.
local function roles()
    local lines = {
        "\"dp=2:data, tp=*:sequence\" is a mesh of two axes, the first-written outermost in rank order; `*`",
        "stands, once, for what is left of the ranks. A role says what is split along its axis, and where it",
        "communicates. In this version a block can use:",
    }
    for _, there in ipairs { true, false } do
        if not there then
            lines[#lines + 1] = "Refused by name in this version:"
        end
        for _, role in ipairs(topics.role_list) do
            if role[2] == there then
                lines[#lines + 1] = ("  %-13s %s"):format(role[1], role[3])
            end
        end
    end
    lines[#lines + 1] = ""
    lines[#lines + 1] = "ring, gather and ulysses axes deal out the sequence by a scheme: contiguous, zigzag"
    lines[#lines + 1] = "(chunks r and 2P-1-r of 2P: under a causal mask all ranks have the same work) or striped."
    lines[#lines + 1] = "Roles go together: \"u=2:ulysses, r=*:ring\" is USP, \"tp=2:sequence, cp=*:ring\" Megatron"
    lines[#lines + 1] = "with a ring. hierarchical is approximate, and goes with neither ring nor gather."
    lines[#lines + 1] = ""
    lines[#lines + 1] = "An axis without a role may carry collectives (mesh:all_gather ...) and layouts"
    lines[#lines + 1] = "(\"tp=shard(2)\"), but no block."
    return table.concat(lines, "\n")
end

topics.list = {
    roles = { text = roles, also = { mesh = true, ["block:schedule"] = true } },
}

return topics
