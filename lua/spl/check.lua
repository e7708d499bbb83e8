-- check.lua: is a forward pass right? Its output and every saved tensor against the whole-block reference in fp64,
-- element by element, on all ranks together.
--
-- The weights and x are gathered and handed to the reference, which shares nothing with core. Each rank computes the
-- reference for its own subset of the rows judged and compares those; sums of squares and counts of wrong elements
-- are agreed. All rows are judged while the reference is quick; above that a sample: the first and last row of every
-- rank's part, and rows spread evenly.
local core = require "spl.core"
local spl = require "spl"

local check = {}

-- FLOPs of reference that a check may cost before it samples, and the fewest rows it then judges.
local BUDGET, FEWEST = 6e9, 64

-- Allowed |a - b| as a share of |b| + rms of the vector that b stands in. The rms of a vector of a few elements says
-- little (all may be near zero by chance), so that of the whole tensor is the least then.
local TOLERANCE = { f64 = 1e-5, f32 = 1e-5, bf16 = 2e-2, f16 = 2e-2 }
local FEW = 16

-- Allowed rel_err of each tensor: of the halves, 1.3 of the largest relative error of storing a number. It is not held
-- where norms run over few elements: a chance near-zero deviation makes any rounding large.
local BOUND = { f64 = 1e-13, f32 = 2e-6, bf16 = 1.3 * 2^-8, f16 = 1.3 * 2^-11 }

-- Weights of a block by the name that the reference gives them.
local WEIGHTS = {
    ln0_gamma = "ln0_gamma", ln0_beta = "ln0_beta", ln1_gamma = "ln1_gamma", ln1_beta = "ln1_beta",
    mha_linear0_weight = "wqkv", mha_linear0_bias = "bqkv",
    mha_q_weight = "wq", mha_q_bias = "bq", mha_k_weight = "wk", mha_k_bias = "bk",
    mha_v_weight = "wv", mha_v_bias = "bv",
    mha_linear1_weight = "wo", mha_linear1_bias = "bo",
    mlp_linear0_weight = "w1", mlp_linear0_bias = "b1", mlp_up_weight = "w1", mlp_up_bias = "b1",
    mlp_gate_weight = "wg", mlp_gate_bias = "bg",
    mlp_linear1_weight = "w2", mlp_linear1_bias = "b2",
}

-- Saved tensors: what the reference calls them, which dimension the sequence is, and whether they are masks.
local SAVED = {
    ln0_mean = { "ln0_mean", 2 }, ln0_rstd = { "ln0_rstd", 2 },
    ln1_mean = { "ln1_mean", 2 }, ln1_rstd = { "ln1_rstd", 2 },
    mha_linear0_out = { "linear0", 2 }, mha_q_out = { "linear0", 2 }, mha_k_out = { "linear0_k", 2 },
    mha_v_out = { "linear0_v", 2 }, sdpa_out = { "sdpa_out", 3 }, sdpa_logsumexp = { "sdpa_lse", 3 },
    mha_linear1_out = { "linear1", 2 }, mha_dropout_mask = { "mask0", 2, mask = true },
    mlp_linear0_out = { "mlp0", 2 }, mlp_gate_out = { "mlp0", 2 }, mlp_up_out = { "mlp0_up", 2 },
    mlp_dropout_mask = { "mask1", 2, mask = true },
    out = { "out", 2 },
}

local function refuse(code, format, ...)
    spl.error { code = code, message = ("check: " .. format):format(...) }
end

--- [local] Refuses to judge a reference by itself, or a backend that computes nothing: code "unsupported".
function check.able()
    local name, is_reference, has_values = spl.reference.judged()
    if is_reference then
        refuse("unsupported",
            "the backend '%s' is itself a reference and would be judged by itself; run with --backend cpu", name)
    elseif not has_values then
        refuse("unsupported", "the backend '%s' computes no values to judge; run with --backend cpu", name)
    end
end

-- Rows of x (its dimension 2) to judge, ascending, from 1; the same list on all ranks. flops: of all rows.
local function choose_rows(flops, x, wanted)
    local seq = x.shape[2]
    local per_row = flops / math.max(seq, 1)
    local most = wanted or math.max(FEWEST, math.floor(BUDGET / math.max(per_row, 1)))
    local rows = {}
    if most >= seq then
        for i = 1, seq do rows[i] = i end
        return rows
    end
    local chosen = {}
    local function take(row)
        if row >= 1 and row <= seq and not chosen[row] then
            chosen[row] = true
            rows[#rows + 1] = row
        end
    end
    take(1)
    take(seq)
    local mine = {}
    for _, s in ipairs(x.layout:segments(2)) do
        mine[#mine + 1] = s.start
        mine[#mine + 1] = s.start + (s.length - 1) * s.stride
    end
    for _, text in ipairs(spl.gather(table.concat(mine, " "))) do
        for row in text:gmatch("%d+") do
            if #rows < most // 2 then take(math.tointeger(row)) end
        end
    end
    -- evenly spread, each somewhere else within its stretch, so that no tile size is in step with them
    local left, state = most - #rows, 12345
    for i = 0, left - 1 do
        local first, last = i * seq // left + 1, (i + 1) * seq // left
        state = (state * 1103515245 + 12345) % 2147483648
        take(first + (state >> 8) % (last - first + 1))
    end
    table.sort(rows)
    return rows
end

-- Slices as the reference takes them, counted from 0.
local function slices_of(list)
    local out = {}
    for i, s in ipairs(list) do
        out[i] = { q_begin = s.q[1] - 1, q_end = s.q[2], k_begin = s.k[1] - 1, k_end = s.k[2],
            kind = s.kind == "inverse-causal" and "inverse" or s.kind }
    end
    return out
end

-- What the reference is told of the mask: slices counted from 0, positions in documents, chunks of hierarchical.
local function attention_of(blk, a)
    local c, hierarchical = blk.config, false
    for _, axis in ipairs(blk.mesh.axes) do
        hierarchical = hierarchical or axis.role == "hierarchical"
    end
    if c.mask then
        a.causal = c.mask.spec ~= "full"
    end
    if hierarchical then
        a.chunk, a.summaries = blk.plan.chunk, blk.plan.summaries
    elseif c.mask then
        a.slices = slices_of(c.mask:slices(a.seq))
    end
    local lengths = c.mask and c.mask.spec:match("^docs:(.*)")
    if lengths then
        a.positions = {}
        for length in lengths:gmatch("%d+") do
            for i = 0, math.tointeger(length) - 1 do a.positions[#a.positions + 1] = i end
        end
    end
end

-- [collective] The reference's results for this rank's rows.
local function reference(blk, x, rows, step)
    local c = blk.config
    local a = {
        batch = x.shape[1], seq = x.shape[2], hidden = c.hidden, heads = c.heads, kv_heads = c.kv_heads,
        head_dim = c.head_dim, ffn = c.ffn, norm = c.norm, eps = c.eps, interleaved_qkv = c.qkv == "interleaved",
        act = c.act, gated = c.gated,
        rope_theta = c.rope_theta, causal = c.causal, p_attention = c.dropout_attention, p_hidden = c.dropout_hidden,
        key_attention = { blk:dropout_key("attention", step) }, key_hidden0 = { blk:dropout_key("hidden0", step) },
        key_hidden1 = { blk:dropout_key("hidden1", step) }, rows = rows,
    }
    attention_of(blk, a)
    a.x = x:gather()
    for _, p in ipairs(blk:params()) do
        local name = WEIGHTS[p.name]
        if not name then
            refuse("internal", "the reference has no weight for '%s'", p.name)
        end
        a[name] = p.tensor:gather()
    end
    return spl.reference.block(a)
end

-- [collective] One tensor against the reference, on this rank's rows; agreed over ranks.
local function judge(actual, expected, dim, rows, tolerance)
    local gathered <close> = actual:gather()
    -- [b, s, 1] where the reference has [b, s]
    local whole <close> = gathered:reshape(gathered.ndim > expected.ndim and { table.unpack(gathered.shape, 1, 2) }
        or gathered.shape)
    local first = spl.compare(whole, expected, { dim = dim, rows = rows })
    local diff, ref, count = spl.sum(first.diff_squares, first.ref_squares, first.count)
    -- The scale of an element is that of the token's vector it stands in: the first tokens of a causal block, which
    -- average over few, are much larger than the rest. Statistics of a token have no vector; theirs is that of all.
    local all = count > 0 and math.sqrt(ref / count) or 0
    local vector = dim < expected.ndim and expected.shape[expected.ndim]
    local second = spl.compare(whole, expected, { dim = dim, rows = rows, tolerance = tolerance,
        rms = vector and "vector" or all, least_rms = vector and vector < FEW and all or 0 })
    local wrong, largest = spl.sum(second.wrong), spl.max(second.max_abs)
    local rel = diff == 0 and 0 or math.sqrt(diff / ref) -- a difference from nothing at all is infinite
    if rel ~= rel then
        rel = math.huge
    end
    -- A few values that nearly cancel, as the one mean of one row, are exact to rounding and far off in proportion.
    local many = count >= FEW and (not vector or vector >= FEW)
    return { rel_err = rel, wrong = wrong, count = count, max_abs = largest }, many
end

--- [collective] Checks a forward pass of a block. Also block:check(x, options).
---@param blk spl.block scheduled
---@param x spl.tensor its input, [batch, seq, hidden] on the block's mesh
---@param o? table {rows= how many rows to judge (all of them while that is quick), step= of dropout (0)}
---@return table result {rel_err= the largest over out and saved floats (of 16 values and vectors of 16 at least, where
--- there is a bound; fewer are judged by wrong), wrong= elements out of bounds and masks that
--- differ, bound= that rel_err must keep (none where hidden is below 16), failed= whether either is bad, rows= judged
--- of seq=, tensors= { {name=, rel_err=, wrong=, count=, max_abs=}, ... }}
---Errors: code "unsupported" where the backend is a reference or computes nothing; "argument" for options.
function check.block(blk, x, o)
    o = o or {}
    if type(o) ~= "table" then
        refuse("argument", "a table of options is needed, got %s", type(o))
    end
    for key in pairs(o) do
        if key ~= "rows" and key ~= "step" then
            local near = spl.nearest(tostring(key), { "rows", "step" })
            refuse("argument", "unknown option '%s'; %s", tostring(key), near and ("did you mean '%s'?"):format(near)
                or "known: rows, step")
        end
    end
    local wanted, step = o.rows, o.step or 0
    if wanted ~= nil and (math.type(wanted) ~= "integer" or wanted < 1) then
        refuse("argument", "rows = %s; a whole number, 1 or more, is needed", tostring(wanted))
    end
    check.able()
    local out, kept = blk:forward(x, { save = true, step = step }) -- refuses an x that does not fit
    out:release() -- also in `kept`
    local saved <close> = kept
    local rows, mine = choose_rows(blk:flops { batch = x.shape[1], seq = x.shape[2] }, x, wanted), {}
    for i = spl.rank() + 1, #rows, spl.size() do mine[#mine + 1] = rows[i] end
    local truth = reference(blk, x, mine, step)
    local result = { rel_err = 0, wrong = 0, rows = #rows, seq = x.shape[2], tensors = {} }
    result.bound = blk.config.hidden >= FEW and BOUND[blk.config.dtype] or nil
    for _, s in ipairs(saved) do
        local known = SAVED[s.name]
        if not known then
            refuse("internal", "the reference has no value for the saved tensor '%s'", s.name)
        end
        local one, many = judge(s.tensor, truth[known[1]], known[2], mine,
            known.mask and 0 or TOLERANCE[blk.config.dtype])
        one.name = s.name
        result.tensors[#result.tensors + 1] = one
        result.wrong = result.wrong + one.wrong
        if not known.mask and (many or not result.bound) then
            result.rel_err = math.max(result.rel_err, one.rel_err)
        end
    end
    for _, t in pairs(truth) do t:release() end
    result.failed = result.wrong > 0 or result.bound ~= nil and result.rel_err > result.bound
    return core.record(result)
end

--- [collective] Checks what spl.attention gave.
---@param q spl.tensor [batch, seq, heads, head_dim]
---@param k spl.tensor
---@param v spl.tensor
---@param out spl.tensor of spl.attention
---@param lse spl.tensor of spl.attention, laid out as out; nil: not judged
---@param o table {slices= of the mask as mask:slices gives it, rows= how many to judge, chunk=, summaries=, causal= of
--- hierarchical}
---@return table result {rel_err=, wrong=, bound=, rows= judged of seq=}
---Errors: code "unsupported" where the backend is a reference or computes nothing.
function check.attention(q, k, v, out, lse, o)
    check.able()
    local b, seq, heads, d = table.unpack(q.shape)
    local rows, mine = choose_rows(4.0 * b * seq * k.shape[2] * heads * d, q, o.rows), {}
    for i = spl.rank() + 1, #rows, spl.size() do mine[#mine + 1] = rows[i] end
    local truth = spl.reference.attention { batch = b, seq_q = seq, heads = heads, head_dim = d, seq_k = k.shape[2],
        kv_heads = k.shape[3], q = q:gather(), k = k:gather(), v = v:gather(), rows = mine, chunk = o.chunk,
        summaries = o.summaries, causal = o.causal, slices = not o.chunk and slices_of(o.slices) or nil }
    local result = { rel_err = 0, wrong = 0, rows = #rows, seq = seq, bound = BOUND[q.dtype] }
    for _, one in ipairs { judge(out, truth.out, 2, mine, TOLERANCE[q.dtype]),
        lse and judge(lse, truth.lse, 3, mine, TOLERANCE[q.dtype]) } do
        result.rel_err, result.wrong = math.max(result.rel_err, one.rel_err), result.wrong + one.wrong
    end
    for _, t in pairs(truth) do t:release() end
    return core.record(result)
end

check.check = check.block

return check
