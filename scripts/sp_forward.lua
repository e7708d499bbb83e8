-- sp_forward.lua: the forward pass of a transformer block under several schedules: how fast, what it moves and holds,
-- is it right. Prints as nccl-tests does: a header, one row a mesh, a footer, and a non-zero exit when a result is
-- wrong.
local spl = require "spl"
local report = require "spl.report"
local theory = require "spl.theory"

local o = spl.args {
    "Times the forward pass of a transformer block on each mesh and, with --check, compares it with fp64.",
    batch = { type = "integer", metavar = "N",
        help = "sequences (default 1; 2 for the default mesh with a data axis)" },
    seq = { default = 2048, help = "tokens of each" },
    hidden = { default = 768, help = "a multiple of heads" },
    heads = { default = 12, help = "query heads" },
    kv_heads = { type = "integer", metavar = "N", help = "key and value heads (default: heads)" },
    mesh = { type = "list", of = "string", metavar = "MESH",
        help = "axes with roles, \"dp=2:data, tp=*:sequence\"; default: tensor, sequence and, on an even world, this" },
    dtype = { default = "f32", choices = { "f32", "f64" }, help = "of weights and activations" },
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
    "comm_exposed_ms", "comm_pct", "bytes_sent", "bytes_theory", "peak_bytes", "rel_err", "wrong" }

local columns = {
    { title = "mesh", unit = "", width = 26, left = true },
    { title = "time", unit = "ms p50", width = 9, format = "%.2f" },
    { title = "min", unit = "ms", width = 9, format = "%.2f" },
    { title = "p99", unit = "ms", width = 9, format = "%.2f" },
    { title = "speed", unit = "GFLOP/s/rank", width = 14, format = "%.1f" },
    { title = "gemm", unit = "%", width = 7 },
    { title = "comm", unit = "ms", width = 8, format = "%.2f" },
    { title = "exposed", unit = "ms", width = 8, format = "%.2f" },
    { title = "comm", unit = "%", width = 7 },
    { title = "sent", unit = "bytes", width = 11 },
    { title = "theory", unit = "bytes", width = 11 },
    { title = "peak", unit = "bytes", width = 11 },
    { title = "rel_err", unit = "", width = 9, format = "%.1e" },
    { title = "#wrong", unit = "", width = 7 },
}

local function say(format, ...)
    if spl.rank() == 0 and not o.json then
        print(select("#", ...) > 0 and format:format(...) or format)
    end
end

if o.shapes and o.json then
    spl.error { code = "usage", message = "--shapes prints tables and --json nothing but JSON; choose one" }
end

-- The rows to print: what --mesh says, or the defaults of this world.
local function planned()
    local list = {}
    for _, text in ipairs(o.mesh or { "tp=*:tensor", "tp=*:sequence" }) do
        list[#list + 1] = { mesh = text, batch = o.batch or 1 }
    end
    if not o.mesh and spl.size() % 2 == 0 then
        list[#list + 1] = { mesh = "dp=2:data, tp=*:sequence", batch = o.batch or 2 }
    end
    return list
end

local function define()
    local kv = o.kv_heads or o.heads
    return spl.block { hidden = o.hidden, heads = o.heads, kv_heads = kv,
        qkv = kv == o.heads and "interleaved" or "separate",
        dropout = o.dropout, seed = o.seed, dtype = o.dtype, causal = true }
end

-- Everything that a command line can have wrong is found before any work starts.
local function refuse_early(list)
    if o.check then
        require "spl.check".able()
    end
    define():release()
    for _, row in ipairs(list) do
        local mesh <close> = spl.mesh(row.mesh)
        local smallest <close> = spl.block { hidden = 1, heads = 1 }
        smallest:schedule(mesh)
    end
end

local function header()
    say("# spl %s sp_forward: forward pass of one transformer block", spl.version)
    local here = spl.facts()
    local kinds = spl.gather(("%s, %d thread%s, %s"):format(here.host, here.threads, here.threads == 1 and "" or "s",
        here.backend_description))
    local first = 0
    for rank = 1, #kinds do -- neighbours that are alike share a line
        if rank == #kinds or kinds[rank + 1] ~= kinds[first + 1] then
            say("# %s: %s", first == rank - 1 and "rank " .. first or ("ranks %d-%d"):format(first, rank - 1),
                kinds[rank])
            first = rank
        end
    end
    say("# seq %d, hidden %d, heads %d, kv_heads %d, head_dim %d, ffn %d, %s, dropout %g, causal, seed %d", o.seq,
        o.hidden, o.heads, o.kv_heads or o.heads, o.hidden // o.heads, 4 * o.hidden, o.dtype, o.dropout, o.seed)
    say("# time: wall time after a barrier, on the slowest rank; %d rounds after %d of warm-up", o.rounds, o.warmup)
    if spl.virtual() then
        say("# virtual ranks take turns in one process: values and bytes are exact, times mean nothing")
    end
    say("# saved outputs: %s", o.save and "kept, as in training" or "not kept")
    say("# gemm %%: useful FLOPs against %.1f GFLOP/s, a 2048^3 SGEMM on all ranks at once in this run",
        require "spl.bench".sgemm() / 1e9)
    say("# comm %: of the time that is not exposed communication; ! above 20")
    say("# bytes: on the rank with most; peak: activations and communication buffers")
    say("#")
    say(report.head(columns))
end

-- Bytes in theory for this rank and the largest of all; whether every rank sent what theory says.
local function theory_of(mesh, batch, sent)
    local mine = theory.block_bytes(mesh.axes, { batch = batch, seq = o.seq, hidden = o.hidden,
        element = o.dtype == "f64" and 8 or 4 })
    if not mine then
        return nil, true
    end
    return spl.max(mine), spl.max(mine == sent and 0 or 1) == 0
end

local function print_shapes(blk, x)
    local y, kept = blk:forward(x, { save = true })
    y:release()
    local saved <close> = kept
    local rows = {}
    for _, s in ipairs(saved) do
        rows[#rows + 1] = { s.name, s.tensor.dtype, report.shape(s.tensor.shape), report.shape(s.tensor.local_shape),
            tostring(s.tensor.layout) }
        if s.name == "sdpa_logsumexp" then
            rows[#rows + 1] = { "seed", "u64", tostring(saved.seed), tostring(saved.seed), "" }
            rows[#rows + 1] = { "offset", "u64", tostring(saved.offset), tostring(saved.offset), "" }
        end
    end
    say(("# " .. report.aligned({ "saved", "dtype", "global", "on rank 0", "layout" }, rows)):gsub("\n", "\n# ")
        :gsub("%%", "%%%%"))
end

local function percent(value, marked)
    return ("%.1f%s"):format(value, marked and "!" or " ")
end

local function run(row)
    local mesh <close> = spl.mesh(row.mesh)
    local before = spl.memory().now.weights
    local blk <close> = define():schedule(mesh)
    local weights = spl.max(spl.memory().now.weights - before)
    local x <close> = blk:input { batch = row.batch, seq = o.seq }:randn(o.seed)
    local flops = blk:flops { batch = row.batch, seq = o.seq }
    local r = spl.bench { name = row.mesh, rounds = o.rounds, warmup = o.warmup, flops = flops, quiet = true,
        function() return blk:forward(x, { save = o.save }) end }
    local bytes_theory, as_theory = theory_of(mesh, row.batch, r.bytes_here)
    local checked = o.check and blk:check(x, { rows = o.rows }) or nil
    say(report.row(columns, { tostring(mesh), r.ms_p50, r.ms_min, r.ms_p99, r.gflops,
        percent(r.gemm_pct, r.gemm_pct > 100), r.comm_ms, r.comm_exposed_ms, percent(r.comm_pct, r.comm_pct > 20),
        r.bytes_sent, bytes_theory, r.peak_bytes, checked and checked.rel_err, checked and checked.wrong }))
    say("#   batch %d; weights %d bytes, workspace %d bytes%s", row.batch, weights, r.workspace_bytes,
        checked and ("; %d of %d rows checked against fp64"):format(checked.rows, checked.seq) or "")
    if o.shapes then
        print_shapes(blk, x)
    end
    if o.json and spl.rank() == 0 then
        local json = require "spl.json"
        print(json.encode({
            mesh = tostring(mesh), ranks = spl.size(), threads = spl.threads(),
            time_ms_p50 = r.ms_p50, time_ms_min = r.ms_min, gflops = r.gflops, gemm_pct = r.gemm_pct,
            comm_ms = r.comm_ms, comm_exposed_ms = r.comm_exposed_ms, comm_pct = r.comm_pct,
            bytes_sent = r.bytes_sent, bytes_theory = bytes_theory or json.null, peak_bytes = r.peak_bytes,
            rel_err = checked and checked.rel_err or json.null, wrong = checked and checked.wrong or json.null,
        }, JSON_KEYS))
        io.stdout:flush()
    end
    return checked and checked.wrong or 0, as_theory
end

local list = planned()
refuse_early(list)
header()
local wrong, as_theory = 0, true
for _, row in ipairs(list) do
    local row_wrong, row_as_theory = run(row)
    wrong = wrong + row_wrong
    as_theory = as_theory and row_as_theory
end
say("#")
say("# wrong elements: %s", not o.check and "not checked (--check compares every saved tensor with fp64)"
    or wrong == 0 and "0, OK" or ("%d, FAILED"):format(wrong))
say("# bytes sent: %s", as_theory and "as theory says" or "NOT as theory says, FAILED")
if wrong > 0 or not as_theory then
    if o.json and spl.rank() == 0 then
        io.stderr:write(("spl: sp_forward: %d wrong elements; bytes %sas theory says\n"):format(wrong,
            as_theory and "" or "not "))
    end
    os.exit(1)
end
