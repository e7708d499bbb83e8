-- bench_attention.lua: attention alone under several schedules: how fast, what of its communication is hidden, who
-- waits for whom, and is it right. Prints as sp_forward does.
local spl = require "spl"
local deal = require "spl.deal"
local masks = require "spl.masks"
local report = require "spl.report"
local rows = require "spl.rows"
local spread = require "spl.spread"
local theory = require "spl.theory"

local o = spl.args {
    "Times attention on each mesh and, with --check, compares it with fp64.",
    batch = { type = "integer", metavar = "N", help = "sequences (default: one for each rank along data axes)" },
    seq = { default = 4096, help = "tokens of each" },
    heads = { default = 8, help = "query heads" },
    kv_heads = { type = "integer", metavar = "N", help = "key and value heads (default: heads)" },
    head_dim = { default = 64, help = "of each head" },
    mesh = { type = "list", of = "string", metavar = "MESH",
        help = "axes with roles, \"u=2:ulysses, r=*:ring\", or, on one rank, naive: all scores in memory at once "
            .. "(default: cp=*:ring)" },
    scheme = { default = "contiguous", choices = { "contiguous", "zigzag", "striped" },
        help = "how ring, gather and ulysses axes deal out the sequence" },
    mask = { default = "causal", metavar = "MASK", help = "who sees whom: causal, full, window:W, docs:N,N,..., "
        .. "prefix:N or padding:N" },
    chunk = { default = 1024, help = "tokens that the role hierarchical sees exactly" },
    summaries = { default = 1, help = "of each other chunk" },
    dtype = { default = "f32", choices = { "f32", "f64", "bf16", "f16" },
        help = "of q, k and v; bf16 and f16 are computed in f32" },
    rounds = { default = 10, help = "timed rounds" },
    warmup = { default = 2, min = 0, help = "rounds before them" },
    seed = { default = 1, min = 0, help = "of q, k and v" },
    check = { default = false, help = "compare the output and its log-sum-exp with the fp64 reference" },
    rows = { type = "integer", metavar = "N", help = "rows that --check judges (default: all while that is quick)" },
    json = { default = false, help = "one JSON object a row, nothing else" },
}

-- sp_forward's, and four of attention.
local JSON_KEYS = { "mesh", "ranks", "threads", "time_ms_p50", "time_ms_min", "gflops", "gemm_pct", "comm_ms",
    "comm_exposed_ms", "comm_pct", "bytes_sent", "bytes_theory", "peak_bytes", "rel_err", "wrong", "batch", "seq",
    "hidden", "heads", "kv_heads", "head_dim", "ffn", "norm", "act", "gated", "qkv", "bias", "rope_theta", "dropout",
    "seed", "dtype", "save", "backend", "rounds", "warmup", "time_ms_p99", "tokens_per_s", "weights_bytes",
    "workspace_bytes", "rows_checked", "scheme", "mask", "chunk", "summaries", "approx_err", "imbalance",
    "tiles_computed", "tiles_needed" }

local ELEMENT_BYTES = { f64 = 8, f32 = 4, bf16 = 2, f16 = 2 }
local SLOW = 2e13 -- FLOPs of exact attention beside which an approximation is not judged
local UNEVEN = 1.05

local columns = {
    { title = "mesh", unit = "", width = 9, left = true },
    { title = "time", unit = "ms p50", width = 8, digits = 2 },
    { title = "min", unit = "ms", width = 7, digits = 2 },
    { title = "p99", unit = "ms", width = 7, digits = 2 },
    { title = "per rank", unit = "GFLOP/s", width = 9, digits = 1 },
    { title = "gemm", unit = "%", width = 6 },
    { title = "hidden", unit = "comm ms", width = 7, digits = 2 },
    { title = "exposed", unit = "comm ms", width = 7, digits = 2 },
    { title = "sent", unit = "bytes", width = 9 },
    { title = "theory", unit = "bytes", width = 9 },
    { title = "peak", unit = "bytes", width = 9 },
    { title = "imbal", unit = "max/avg", width = 7, format = "%.2f" },
    { title = "tiles", unit = "", width = 7 },
    { title = "needed", unit = "tiles", width = 7 },
    { title = "rel_err", unit = "", width = 7, format = "%.1e" },
    { title = "#wrong", unit = "", width = 6 },
}

local say = rows.printer(o.json)

local function usage(format, ...)
    spl.error { code = "usage", message = format:format(...) }
end

-- Rows of the table: {mesh=, axes=, batch=, scheme=, name=}.
local function planned()
    local list = {}
    for i, text in ipairs(o.mesh or { "cp=*:ring" }) do
        local naive, parts = text == "naive", 1
        if naive and spl.size() > 1 then
            usage("--mesh naive is one rank's way of doing attention, but there are %d; run it with -n 1", spl.size())
        elseif naive and (o.mask ~= "causal" and o.mask ~= "full") then
            usage("--mesh naive knows the masks causal and full, not %s", o.mask)
        elseif naive and o.dtype ~= "f32" then
            usage("--mesh naive computes in f32, not in %s", o.dtype)
        end
        local axes = naive and {} or spl.mesh.parse(text).axes
        for _, axis in ipairs(axes) do
            parts = axis.role == "data" and parts * axis.size or parts
        end
        local row = { mesh = text, axes = axes, naive = naive, batch = o.batch or parts, scheme = o.scheme }
        row.name = naive and text or spl.mesh.parse(text).spec .. (o.scheme ~= "contiguous" and " " .. o.scheme or "")
        columns[1].width = math.max(columns[1].width, #row.name)
        list[i] = row
    end
    return list
end

local function input(row, mesh, seq)
    return spl.attention_input(mesh, { batch = row.batch, seq = seq or o.seq, heads = o.heads, kv_heads = o.kv_heads,
        head_dim = o.head_dim, scheme = o.scheme, chunk = o.chunk, summaries = o.summaries, dtype = o.dtype,
        mask = o.mask })
end

-- Everything that a command line can have wrong is found before any work starts.
local function refuse_early(list)
    if o.check then
        local able, err = pcall(require "spl.check".able)
        if not able then
            usage("--%s", tostring(err))
        end
    end
    o.kv_heads = o.kv_heads or o.heads
    local mask = masks.masks(o.mask, o.seq)
    for _, row in ipairs(list) do
        if not row.naive then
            local mesh <close> = spl.mesh(row.mesh)
            local q, k, v = input(row, mesh, mask.documents and o.seq or 0)
            q:release()
            k:release()
            v:release()
        end
    end
    return mask
end

local function header(mask)
    say("# spl %s bench_attention: attention alone, forward", spl.version)
    for _, line in ipairs(report.machine()) do
        say("# %s", line)
    end
    say("# heads %d, kv_heads %d, head_dim %d, %s, %s, seq %d, seed %d", o.heads, o.kv_heads, o.head_dim, o.dtype,
        mask.spec, o.seq, o.seed)
    local blind = masks.blind(mask)
    if blind then
        say("# %s", blind)
    end
    if spl.facts().backend ~= "null" then
        say("# time: wall time after a barrier, on the slowest rank; %s",
            report.rounds(o.rounds, o.warmup))
        say("# gemm %%: 4 head_dim FLOPs per visible (query, key, head) against %.1f GFLOP/s, a 2048^3 SGEMM on all "
            .. "ranks at once in this run", require "spl.bench".sgemm() / 1e9)
        say("# hidden: communication while tiles are computed; exposed: all ranks wait for it")
    end
    say("# bytes: on the rank with most; peak: activations and communication buffers; imbal: most FLOPs of a rank over "
        .. "the mean")
    say("# tiles of %d queries x %d keys, over all ranks, heads and sequences: visited by the kernel, and needed, that "
        .. "hold a visible pair", theory.TILE_ROWS, theory.TILE_KEYS)
    say("#")
    say(report.head(columns))
end

-- What theory says: bytes of this rank and tiles of all, nil where it cannot be counted.
local function in_theory(row, mesh, mask, sent)
    local options = { batch = row.batch, seq = o.seq, heads = o.heads, kv_heads = o.kv_heads, head_dim = o.head_dim,
        element = ELEMENT_BYTES[o.dtype], slices = mask.slices, documents = mask.documents, scheme = o.scheme,
        chunk = o.chunk, summaries = o.summaries }
    local axes = mesh and mesh.axes or {}
    local bytes, tiles = theory.attention_bytes(axes, options), theory.attention_tiles(axes, options)
    local needed
    if not row.naive and spl.max(tiles and 0 or 1) == 0 then
        needed = spl.sum(tiles)
    end
    local most, as_theory = rows.theory(bytes, sent)
    return most, as_theory, needed
end

-- Distance of the result from exact attention: ||approximate - exact|| / ||exact||.
local function approximation(row, mesh, q, k, v, out, mask)
    if not mesh or not rows.has_role(mesh.axes, "hierarchical") or spl.facts().backend == "null"
        or 4.0 * o.head_dim * mask.pairs * o.heads * row.batch > SLOW * spl.size() then
        return nil
    end
    local exact, lse = spl.attention(q, k, v, { mask = o.mask, role = "gather" })
    lse:release()
    local near <close> = out:to_local()
    local truth <close> = exact:to_local()
    local r = spl.compare(near, truth)
    local diff, ref = spl.sum(r.diff_squares, r.ref_squares)
    exact:release()
    return ref > 0 and math.sqrt(diff / ref) or 0
end

local function show_details(row, m, checked)
    rows.details(say, ("workspace %d bytes"):format(m.workspace_bytes), checked)
    rows.approximate(say, row.axes, o, m.approx_err)
    local uneven = m.imbalance and m.imbalance > UNEVEN
    if uneven and rows.has_role(row.axes, "hierarchical") then
        say("#   imbalance %.2f: chunks stay whole, and some ranks have more of them, or later ones; a smaller --chunk "
            .. "deals them out more evenly", m.imbalance)
    elseif uneven and deal.way(row.axes) and o.scheme == "contiguous" then
        say("#   imbalance %.2f: in a contiguous split under %s some ranks' rows see more keys than others' (the later "
            .. "the row, the more), and the rest wait for them; --scheme zigzag or striped deals them out evenly",
            m.imbalance, o.mask)
    end
    if deal.way(row.axes) == "gather" then
        say("#   gather: each rank holds the keys and values that its queries see, at most the whole sequence's %d "
            .. "bytes",
            2 * row.batch * o.seq * o.kv_heads * o.head_dim * ELEMENT_BYTES[o.dtype])
    end
end

local function judged(mesh, q, k, v, out, lse, mask)
    if not o.check then
        return nil
    end
    local hierarchical = mesh and rows.has_role(mesh.axes, "hierarchical")
    return require "spl.check".attention(q, k, v, out, lse, { slices = mask.slices, rows = o.rows,
        chunk = hierarchical and o.chunk or nil, summaries = hierarchical and o.summaries or nil,
        causal = o.mask ~= "full" })
end

local function run(row, mask)
    local mesh <close> = not row.naive and spl.mesh(row.mesh) or nil
    local q, k, v
    if mesh then
        q, k, v = input(row, mesh)
    else
        local function of(heads)
            return spl.tensor { shape = { row.batch, o.seq, heads, o.head_dim }, dtype = o.dtype }
        end
        q, k, v = of(o.heads), of(o.kv_heads), of(o.kv_heads)
    end
    q:randn(o.seed, 0)
    k:randn(o.seed, 1)
    v:randn(o.seed, 2)
    local function attend()
        if row.naive then
            return spl.attention_naive(q, k, v, o.mask)
        end
        return spl.attention(q, k, v, { mask = o.mask, chunk = o.chunk, summaries = o.summaries })
    end
    spl.reset_counters()
    local out, lse = attend()
    local mine = spl.counters()
    local done, most, tiles = spl.sum(mine.attention_flops), spl.max(mine.attention_flops),
        spl.sum(mine.attention_tiles)
    local hierarchical = rows.has_role(row.axes, "hierarchical")
    local useful = hierarchical and done or 4.0 * o.head_dim * mask.pairs * o.heads * row.batch
    local checked = judged(mesh, q, k, v, out, lse, mask)
    local approx_err = approximation(row, mesh, q, k, v, out, mask)
    out:release()
    if lse then lse:release() end
    local r = spl.bench { name = row.mesh, rounds = o.rounds, warmup = o.warmup, flops = useful, quiet = true, attend }
    local bytes_theory, as_theory, needed = in_theory(row, mesh, mask, r.bytes_here)
    local m = { imbalance = row.naive and 1 or done > 0 and most * spl.size() / done or nil, approx_err = approx_err,
        tiles_computed = not row.naive and spl.facts().backend ~= "null" and tiles or nil, tiles_needed = needed,
        workspace_bytes = r.workspace_bytes }
    row.tokens_per_s = r.ms_p50 and row.batch * o.seq / r.ms_p50 * 1e3
    spread.note(row, r, o.seq)
    say(report.row(columns, { row.name, r.ms_p50, r.ms_min, r.ms_p99, r.gflops, report.percent(r.gemm_pct, 100),
        r.comm_ms and r.comm_ms - r.comm_exposed_ms, r.comm_exposed_ms, r.bytes_sent, bytes_theory, r.peak_bytes,
        m.imbalance, m.tiles_computed, m.tiles_needed, checked and checked.rel_err, checked and checked.wrong }))
    show_details(row, m, checked)
    if o.json then
        report.json_line(JSON_KEYS, { mesh = mesh and tostring(mesh) or row.mesh, bytes_theory = bytes_theory,
            batch = row.batch, seq = o.seq, heads = o.heads, kv_heads = o.kv_heads, head_dim = o.head_dim, dropout = 0,
            seed = o.seed, dtype = o.dtype, rounds = o.rounds, warmup = o.warmup, tokens_per_s = row.tokens_per_s,
            scheme = o.scheme, mask = mask.spec, chunk = hierarchical and o.chunk or nil,
            summaries = hierarchical and o.summaries or nil }, m, rows.measured(r, checked))
    end
    q:release()
    k:release()
    v:release()
    return checked, as_theory
end

local list = planned()
local mask = refuse_early(list)
header(mask)
if rows.all(list, function(row) return run(row, mask) end, { say = say, script = "bench_attention", json = o.json,
    checked = o.check, what = "output and log-sum-exp", dtype = o.dtype }) then
    os.exit(1)
end
