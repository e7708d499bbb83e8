-- sp_forward.lua: the forward pass of a transformer block under several schedules: how fast, what it moves and holds,
-- is it right. Prints as nccl-tests does: a header, one row a mesh, a footer, and a non-zero exit when a result is
-- wrong.
local spl = require "spl"
local keeps = require "spl.keeps"
local report = require "spl.report"
local rows = require "spl.rows"
local spread = require "spl.spread"
local theory = require "spl.theory"
local masks = require "spl.masks"
local json = require "spl.json"

local o = spl.args {
    "Times the forward pass of a transformer block on each mesh and, with --check, compares it with fp64.",
    batch = { type = "integer", metavar = "N",
        help = "sequences (default: one for each rank along the mesh's data axes)" },
    seq = { default = 2048, help = "tokens of each" },
    hidden = { default = 768, help = "a multiple of heads, unless --head-dim is given" },
    heads = { default = 12, help = "query heads" },
    kv_heads = { type = "integer", metavar = "N", help = "key and value heads (default: heads)" },
    head_dim = { type = "integer", metavar = "N", help = "of each head (default: hidden / heads)" },
    ffn = { type = "integer", metavar = "N", help = "width of the MLP (default: 4 hidden)" },
    norm = { default = "layer", choices = { "layer", "rms" }, help = "LayerNorm or RMSNorm" },
    act = { type = "string", choices = { "gelu_tanh", "gelu_erf", "silu", "none" },
        help = "activation of the MLP (default: gelu_tanh, with --gated silu)" },
    gated = { default = false, help = "an MLP of act(gate) * up, as Llama's" },
    qkv = { type = "string", choices = { "interleaved", "separate" },
        help = "one QKV weight with the heads interleaved, or three weights (default: interleaved, separate where "
            .. "kv_heads differ from heads)" },
    bias = { default = true, help = "of all linears" },
    rope = { type = "number", min = 0, metavar = "THETA", help = "rotary positions with this base, as 10000 "
        .. "(default: none)" },
    mesh = { type = "list", of = "string", metavar = "MESH",
        help = "axes with roles, as \"dp=2:data, tp=*:sequence\" (default: a mesh for each of tensor, sequence, ring "
            .. "and ulysses over all ranks; where their number is even also the one above)" },
    scheme = { type = "string", choices = { "contiguous", "zigzag", "striped" },
        help = "how ring, gather and ulysses axes deal out the sequence (default: contiguous; the default meshes with "
            .. "a ring are zigzag under a causal mask)" },
    mask = { default = "causal", metavar = "MASK", help = "who sees whom: causal, full, window:W, docs:N,N,..., "
        .. "prefix:N or padding:N" },
    chunk = { default = 1024, help = "tokens that the role hierarchical sees exactly" },
    summaries = { default = 1, help = "of each other chunk" },
    dtype = { default = "f32", choices = { "f32", "f64", "bf16", "f16" },
        help = "of weights and activations; bf16 and f16 are computed in f32" },
    dropout = { default = 0.0, min = 0, help = "probability, in attention and after both halves" },
    rounds = { default = 10, help = "timed rounds" },
    warmup = { default = 2, min = 0, help = "rounds before them" },
    seed = { default = 1, min = 0, help = "of weights, input and dropout" },
    save = { default = true, help = "keep what a backward pass needs, as in training" },
    check = { default = false, help = "compare out and every saved tensor with the fp64 reference" },
    rows = { type = "integer", metavar = "N", help = "rows that --check judges (default: all while that is quick)" },
    shapes = { default = false, help = "print each saved tensor's shapes and layout" },
    json = { default = false, help = "one JSON object a row, nothing else" },
}

local JSON_KEYS = { "mesh", "ranks", "threads", "time_ms_p50", "time_ms_min", "gflops", "gemm_pct", "comm_ms",
    "comm_exposed_ms", "comm_pct", "bytes_sent", "bytes_theory", "peak_bytes", "rel_err", "wrong", "batch", "seq",
    "hidden", "heads", "kv_heads", "head_dim", "ffn", "norm", "act", "gated", "qkv", "bias", "rope_theta", "dropout",
    "seed", "dtype", "save", "backend", "rounds", "warmup", "time_ms_p99", "tokens_per_s", "weights_bytes",
    "workspace_bytes", "rows_checked", "scheme", "mask", "chunk", "summaries",
    "approx_err" }

local ELEMENT_BYTES = { f64 = 8, f32 = 4, bf16 = 2, f16 = 2 }

local columns = {
    { title = "mesh", unit = "", width = 12, left = true },
    { title = "batch", unit = "", width = 5 },
    { title = "time", unit = "ms p50", width = 8, digits = 2 },
    { title = "min", unit = "ms", width = 7, digits = 2 },
    { title = "p99", unit = "ms", width = 7, digits = 2 },
    { title = "per rank", unit = "GFLOP/s", width = 9, digits = 1 },
    { title = "gemm", unit = "%", width = 6 },
    { title = "comm", unit = "ms", width = 5, digits = 2 },
    { title = "exposed", unit = "ms", width = 7, digits = 2 },
    { title = "comm", unit = "%", width = 6 },
    { title = "sent", unit = "bytes", width = 9 },
    { title = "theory", unit = "bytes", width = 9 },
    { title = "peak", unit = "bytes", width = 9 },
    { title = "rel_err", unit = "", width = 7, format = "%.1e" },
    { title = "#wrong", unit = "", width = 6 },
}

local say = rows.printer(o.json)

if o.shapes and o.json then
    spl.error { code = "usage", message = "--shapes prints tables and --json nothing but JSON; choose one" }
end

-- Ranks along the data axes of a mesh: how many sequences it takes to give each something to do.
local function data_ranks(text)
    local n = 1
    for _, axis in ipairs(spl.mesh.parse(text).axes) do
        n = axis.role == "data" and n * axis.size or n
    end
    return n
end

-- The rows to print: what --mesh says, or the defaults of this world.
local function planned()
    local meshes, schemes = o.mesh or { "tp=*:tensor", "tp=*:sequence" }, {}
    if not o.mesh and spl.size() % 2 == 0 then
        meshes[#meshes + 1] = "dp=2:data, tp=*:sequence"
    end
    if not o.mesh and o.scheme and o.scheme ~= "contiguous" then
        meshes = {} -- what deals out the sequence
    end
    if not o.mesh and (spl.size() > 1 or #meshes == 0) then
        table.move({ "cp=*:ring", "sp=*:ulysses" }, 1, 2, #meshes + 1, meshes)
        schemes[meshes[#meshes - 1]] = o.mask == "causal" and "zigzag" or nil
    end
    local list = {}
    for i, text in ipairs(meshes) do
        local parts = data_ranks(text)
        local scheme = o.scheme or schemes[text] or "contiguous"
        list[i] = { mesh = text, batch = o.batch or parts, data_ranks = parts, scheme = scheme,
            name = spl.mesh.parse(text).spec .. (scheme ~= "contiguous" and " " .. scheme or "") }
        columns[1].width = math.max(columns[1].width, #list[i].name)
    end
    return list
end

local function define()
    return spl.block { hidden = o.hidden, heads = o.heads, kv_heads = o.kv_heads, head_dim = o.head_dim, ffn = o.ffn,
        norm = o.norm, act = o.act, gated = o.gated, qkv = o.qkv, bias = o.bias, rope_theta = o.rope,
        dropout = o.dropout, seed = o.seed, dtype = o.dtype, mask = o.mask }
end

local function how(row)
    return { scheme = row.scheme, chunk = o.chunk, summaries = o.summaries }
end

-- Everything that a command line can have wrong is found before any work starts. Returns the definition filled in.
local function refuse_early(list)
    if o.check then
        local able, err = pcall(require "spl.check".able)
        if not able then
            spl.error { code = "usage", message = "--" .. tostring(err) }
        end
    end
    local blk <close> = define()
    for _, row in ipairs(list) do
        local mesh <close> = spl.mesh(row.mesh)
        row.hosts = report.hosts(mesh)
        local smallest <close> = spl.block { hidden = 1, heads = 1, mask = o.mask, dropout = o.dropout }
        smallest:schedule(mesh, how(row))
        -- is there memory for the input alone? A block of width 1 says how many tokens are here
        local thin <close> = smallest:input { batch = row.batch, seq = o.seq }
        spl.tensor { shape = { thin.local_count, o.hidden }, dtype = o.dtype }:release()
    end
    return blk.config, masks.masks(o.mask, o.seq)
end

local function header(list, config, mask)
    say("# spl %s sp_forward: forward pass of one transformer block", spl.version)
    local computes = spl.facts().backend ~= "null"
    for _, line in ipairs(report.machine()) do
        say("# %s", line)
    end
    for _, row in ipairs(list) do
        if row.hosts then
            say("# mesh %s: %s", spl.mesh.parse(row.mesh).spec, row.hosts)
        end
    end
    say("# block: %s", report.block(config))
    if computes then
        say("# seq %d; time: wall time after a barrier, on the slowest rank; %s", o.seq,
            report.rounds(o.rounds, o.warmup))
    else
        say("# seq %d", o.seq)
    end
    local blind = masks.blind(mask)
    if blind then
        say("# %s", blind)
    end
    say("# saved outputs: %s", o.save and "kept, as in training" or "not kept")
    if computes then
        say("# gemm %%: useful FLOPs against %.1f GFLOP/s, a 2048^3 SGEMM on all ranks at once in this run",
            require "spl.bench".sgemm() / 1e9)
        say("# comm %: exposed communication (waiting for late ranks too) as a share of the rest of the time; "
            .. "! above 20")
    end
    say("# bytes: on the rank with most; peak: activations and communication buffers")
    say("#")
    say(report.head(columns))
end

-- Bytes in theory for this rank and the largest of all; whether every rank sent what theory says.
local function theory_of(mesh, row, config, mask, sent)
    local mine = theory.block_bytes(mesh.axes, { batch = row.batch, seq = o.seq, hidden = o.hidden,
        element = ELEMENT_BYTES[o.dtype], heads = config.heads, kv_heads = config.kv_heads,
        head_dim = config.head_dim, slices = mask.slices, documents = mask.documents, scheme = row.scheme,
        chunk = o.chunk, summaries = o.summaries })
    return rows.theory(mine, sent)
end

local function print_shapes(blk, x)
    local y, kept = blk:forward(x, { save = true })
    y:release()
    local saved <close> = kept
    local lines = {}
    for _, s in ipairs(saved) do
        lines[#lines + 1] = { s.name, s.tensor.dtype, report.shape(s.tensor.shape), report.shape(s.tensor.local_shape),
            tostring(s.tensor.layout) }
        if s.name == "sdpa_logsumexp" then
            lines[#lines + 1] = { "seed", "u64", tostring(saved.seed), tostring(saved.seed), "" }
            lines[#lines + 1] = { "offset", "u64", tostring(saved.offset), tostring(saved.offset), "" }
        end
    end
    say(("# " .. report.aligned({ "saved", "dtype", "global", "on rank 0", "layout" }, lines)):gsub("\n", "\n# ")
        :gsub("%%", "%%%%"))
end

-- Distance of what attention gives from exact attention on the same input: ||approximate - exact|| / ||exact||.
local function approximation(row, mesh, blk, x)
    if not rows.has_role(mesh.axes, "hierarchical") or spl.facts().backend == "null" then
        return nil
    end
    local exact_mesh <close> = spl.mesh((tostring(mesh):gsub(":hierarchical", ":gather")))
    local exact <close> = define():schedule(exact_mesh)
    local same <close> = exact:input { batch = row.batch, seq = o.seq }:randn(o.seed)
    local function attended(b, input)
        local y, saved = b:forward(input, { save = true })
        y:release()
        local out = saved.sdpa_out:gather()
        saved:release()
        return out
    end
    local near <close> = attended(blk, x)
    local truth <close> = attended(exact, same)
    local r = spl.compare(near, truth)
    return r.ref_squares > 0 and math.sqrt(r.diff_squares / r.ref_squares) or 0
end

-- What no column has room for.
local function show_details(row, mesh, weights, r, checked, approx_err)
    rows.details(say, ("weights %d bytes, workspace %d bytes"):format(weights, r.workspace_bytes), checked)
    rows.approximate(say, mesh.axes, o, approx_err)
    if row.batch < row.data_ranks then
        local idle = spl.size() // row.data_ranks * (row.data_ranks - row.batch)
        say("#   batch %d is less than the %d ranks of the data axes: %s of %d %s idle; give --batch %d", row.batch,
            row.data_ranks, idle, spl.size(), idle == 1 and "is" or "are", row.data_ranks)
    end
end

-- What does not shrink as ranks are added.
local function show_kept(blk, row, config)
    for _, kept in ipairs(keeps.keeps(blk.mesh.axes, { batch = row.batch, seq = o.seq, hidden = o.hidden,
        heads = config.heads, kv_heads = config.kv_heads, head_dim = config.head_dim, chunk = blk.plan.chunk,
        summaries = blk.plan.summaries, element = ELEMENT_BYTES[o.dtype] })) do
        say("#   %s keeps %s whole on each rank: up to %d bytes", kept.role, kept.what, kept.bytes)
    end
end

local function run(row, config, mask)
    local mesh <close> = spl.mesh(row.mesh)
    local before = spl.memory().now.weights
    local blk <close> = define():schedule(mesh, how(row))
    local weights = spl.max(spl.memory().now.weights - before)
    local x <close> = blk:input { batch = row.batch, seq = o.seq }:randn(o.seed)
    local flops = blk:flops { batch = row.batch, seq = o.seq }
    local r = spl.bench { name = row.mesh, rounds = o.rounds, warmup = o.warmup, flops = flops, quiet = true,
        function() return blk:forward(x, { save = o.save }) end }
    local bytes_theory, as_theory = theory_of(mesh, row, config, mask, r.bytes_here)
    local checked = o.check and blk:check(x, { rows = o.rows }) or nil
    local approx_err = approximation(row, mesh, blk, x)
    say(report.row(columns, { row.name, row.batch, r.ms_p50, r.ms_min, r.ms_p99, r.gflops,
        report.percent(r.gemm_pct, 100), r.comm_ms, r.comm_exposed_ms, report.percent(r.comm_pct, 20), r.bytes_sent,
        bytes_theory, r.peak_bytes, checked and checked.rel_err, checked and checked.wrong }))
    show_details(row, mesh, weights, r, checked, approx_err)
    if o.shapes then
        print_shapes(blk, x)
    end
    show_kept(blk, row, config)
    row.tokens_per_s = r.ms_p50 and row.batch * o.seq / r.ms_p50 * 1e3
    spread.note(row, r, o.seq)
    if o.json then
        local hierarchical = rows.has_role(mesh.axes, "hierarchical")
        report.json_line(JSON_KEYS, { mesh = tostring(mesh), batch = row.batch, seq = o.seq, rounds = o.rounds,
            warmup = o.warmup, dropout = o.dropout, bias = o.bias, save = o.save, bytes_theory = bytes_theory,
            tokens_per_s = row.tokens_per_s, weights_bytes = weights, scheme = row.scheme, mask = mask.spec,
            approx_err = approx_err, chunk = hierarchical and o.chunk or json.null,
            summaries = hierarchical and o.summaries or json.null }, rows.measured(r, checked), config)
    end
    return checked, as_theory
end

local list = planned()
local config, mask = refuse_early(list)
header(list, config, mask)
if rows.all(list, function(row) return run(row, config, mask) end, { say = say, script = "sp_forward", json = o.json,
    checked = o.check, what = "every saved tensor", dtype = o.dtype }) then
    os.exit(1)
end
