-- theory.lua: bytes a rank sends in one forward pass, in closed form: written from the algorithms, apart from core.
--
-- Every axis that splits the weights leaves a sum to be made after attention and after the MLP:
--   tensor    an all-reduce of the activation, 2(P-1)/P of its size: as reduce-scatter + all-gather over n elements
--             cut into P balanced parts, (n - mine) + mine (P-1)
--   sequence  an all-gather of this rank's rows before each half, rows (P-1), and a reduce-scatter after it:
--             everybody else's rows
--   data      nothing
-- Where several axes split the sequence, the first-written is outermost; an inner one splits the rows that are left.
-- Where several leave a sum, each reduces the part that the one before has left it, and of bf16 and f16 all but the
-- first send sums in f32; what all-reduces gather is finished, and as it is stored.
local theory = {}

-- Balanced split: how many of n part `c` of `parts` has; the first n % parts have one more.
local function share(n, parts, c)
    return n // parts + (c < n % parts and 1 or 0)
end

--- [local] Bytes that the rank at these coordinates sends in one forward pass of a block; nil: no closed form.
---@param axes table[] { {size=, role=, coord=}, ... } in mesh order; mesh.axes has this form
---@param o table {batch=, seq=, hidden=, element= bytes of one number}
---@return integer? bytes
function theory.block_bytes(axes, o)
    local batch, rows = o.batch, o.seq
    local bytes, reduces, summed = 0, {}, o.element

    local function reduce(n, axis)
        bytes = bytes + n * summed
        summed = axis.size > 1 and math.max(o.element, 4) or summed
    end
    for _, axis in ipairs(axes) do
        if axis.role == "data" then
            batch = share(batch, axis.size, axis.coord)
        elseif axis.role == "tensor" then
            reduces[#reduces + 1] = axis
        elseif axis.role ~= "sequence" then
            return nil
        end
    end
    for _, axis in ipairs(axes) do
        if axis.role == "sequence" then
            local mine = share(rows, axis.size, axis.coord)
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
    return 2 * bytes -- once around attention, once around the MLP
end

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
