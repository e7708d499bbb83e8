-- long_context.lua: a very long sequence through a small model, layer by layer: how long, how much memory on all ranks
-- together, and for hierarchical attention how far from exact it is.
local core_terminal = require "spl.core".terminal
local report = require "spl.report"
local spl = require "spl"
local rows = require "spl.rows"

local o = spl.args {
    "Sends one long sequence through the layers of a model and says how long it took and what memory all ranks used. "
        .. "Try --mesh cp=*:ring --seq 128k for exact attention.",
    seq = { default = 1048576, help = "tokens" },
    layers = { default = 2, help = "transformer blocks" },
    hidden = { default = 64, help = "a multiple of heads" },
    heads = { default = 1, help = "query heads" },
    kv_heads = { type = "integer", metavar = "N", help = "key and value heads (default: heads)" },
    ffn = { type = "integer", metavar = "N", help = "width of the MLP (default: 4 hidden)" },
    mesh = { default = "cp=*:hierarchical", metavar = "MESH", help = "axes with roles" },
    scheme = { type = "string", choices = { "contiguous", "zigzag", "striped" },
        help = "how the sequence is dealt out (default: zigzag for ring and gather with a causal mask, else contiguous)"
    },
    mask = { default = "causal", help = "who sees whom: causal, full, window:W, docs:N,N,..., prefix:N or padding:N" },
    chunk = { default = 1024, help = "hierarchical: tokens of a chunk" },
    summaries = { default = 1, help = "hierarchical: of each chunk" },
    rope = { default = 10000.0, min = 0, metavar = "THETA", help = "rotary positions with this base; 0: none" },
    dtype = { default = "f32", choices = { "f32", "f64", "bf16", "f16" }, help = "of weights and activations" },
    seed = { default = 1, min = 0, help = "of weights and input" },
    json = { default = false, help = "one JSON object, nothing else" },
}

local JSON_KEYS = { "mesh", "ranks", "threads", "seq", "layers", "hidden", "heads", "kv_heads", "ffn", "scheme", "mask",
    "chunk", "summaries", "dtype", "seconds", "tokens_per_s", "gflops", "comm_exposed_s", "bytes_sent",
    "peak_bytes", "peak_bytes_all", "weights_bytes_all", "rss_bytes_all", "approx_err", "approx_seq", "output_norm" }

local function say(format, ...)
    if spl.rank() == 0 and not o.json then
        print(select("#", ...) > 0 and format:format(...) or format)
        io.stdout:flush()
    end
end

-- ---- progress: on standard error, over itself where somebody watches; else a line every few seconds

local EVERY = 5

local function new_progress(total, unit)
    local started, shown, width = spl.now(), -math.huge, 0
    local watched = core_terminal()
    return function(done, expected)
        local now = spl.now()
        if spl.rank() ~= 0 or o.json or not watched and now - shown < EVERY and done < total then
            return
        end
        shown = now
        local text
        if done == 0 then
            text = expected and ("# 0 of %d %s, about %.0f s in all"):format(total, unit, expected) or ""
        else
            local rate = done * o.seq / (now - started)
            text = ("# %d of %d %s (%.0f %%), %.0f tokens/s a layer, %.0f s left"):format(done, total, unit,
                100 * done / total, rate, (now - started) / done * (total - done))
        end
        if watched then
            io.stderr:write("\r", text, (" "):rep(width - #text), done == total and "\n" or "")
            width = #text
        elseif text ~= "" then
            io.stderr:write(text, "\n")
        end
        io.stderr:flush()
    end
end

-- ---- the model

local function scheme_for(mesh)
    return o.scheme or (o.mask == "causal" and rows.has_role(mesh.axes, "ring", "gather") and "zigzag") or "contiguous"
end

local function build(mesh, scheme)
    local blocks = {}
    for i = 1, o.layers do
        blocks[i] = spl.block { hidden = o.hidden, heads = o.heads, kv_heads = o.kv_heads, ffn = o.ffn,
            rope_theta = o.rope, mask = o.mask, seed = o.seed, instance = i, dtype = o.dtype }
        blocks[i]:schedule(mesh, { scheme = scheme, chunk = o.chunk, summaries = o.summaries })
    end
    return blocks
end

local function release(blocks)
    for _, blk in ipairs(blocks) do blk:release() end
end

-- [collective] The output of all layers; each layer's input is let go as soon as its output is there.
local function forward(blocks, seq, progress)
    local x = blocks[1]:input { batch = 1, seq = seq }:randn(o.seed)
    for i, blk in ipairs(blocks) do
        local y = blk:forward(x)
        x:release()
        x = y
        spl.barrier()
        if progress then
            progress(i)
        end
    end
    return x
end

-- Multiply-adds of a forward pass, to tell from a short one how long a long one takes.
local function work(seq, mesh)
    local weights = (4 * o.hidden + 3 * (o.ffn or 4 * o.hidden)) * o.hidden
    local summarised = rows.has_role(mesh.axes, "hierarchical")
    local reach = summarised and math.min(seq, o.chunk) + seq / o.chunk * o.summaries or seq
    return seq * (weights + 2 * o.hidden * reach / 2)
end

-- Seconds that the whole is expected to take, from a short piece.
local function expect(blocks, mesh)
    local short = math.max(1, math.min(o.seq // 16, 16384))
    forward(blocks, short):release()
    local started = spl.now()
    forward(blocks, short):release()
    return spl.max(spl.now() - started) * work(o.seq, mesh) / work(short, mesh)
end

-- ---- how approximate

-- [collective] Distance of the output from that of exact attention, at a length where exact is quick.
local function approximation(blocks, mesh)
    if not rows.has_role(mesh.axes, "hierarchical") then
        return nil
    end
    local seq = math.min(o.seq, math.max(8 * o.chunk, 4096), 16384)
    local exact_mesh <close> = spl.mesh((mesh.spec:gsub("hierarchical", "ring")))
    local exact_blocks = build(exact_mesh, "contiguous")
    local exact <close> = forward(exact_blocks, seq)
    local near <close> = forward(blocks, seq)
    release(exact_blocks)
    local a <close> = near:gather()
    local b <close> = exact:gather()
    local r = spl.compare(a, b)
    return r.ref_squares > 0 and math.sqrt(r.diff_squares / r.ref_squares) or 0, seq
end

-- ---- memory

-- The most memory that this process has held, or nil.
local function resident()
    local file = io.open "/proc/self/status"
    local kib = file and file:read("a"):match "VmHWM:%s*(%d+)"
    if file then
        file:close()
    end
    return kib and math.tointeger(kib) * 1024
end

local function memory_of_all()
    local mine = resident()
    if spl.min(mine and 1 or 0) == 0 then
        return nil
    end
    return spl.virtual() and mine or spl.sum(mine)
end

-- ---- all of it

local function show(r, mesh)
    say("# %.1f s, %.0f tokens/s, %.1f GFLOP/s a rank; communication not hidden %.2f s; a rank sent up to %s",
        r.seconds, r.tokens_per_s, r.gflops, r.comm_exposed_s, report.bytes(r.bytes_sent))
    say("# memory of all ranks: activations and buffers %s (a rank: up to %s), weights %s%s",
        report.bytes(r.peak_bytes_all), report.bytes(r.peak_bytes), report.bytes(r.weights_bytes_all),
        r.rss_bytes_all and "; resident " .. report.bytes(r.rss_bytes_all) or "")
    if r.approx_err then
        say("# approx_err %.2e: the output's distance from that of exact attention (%s), at %d tokens", r.approx_err,
            mesh.spec:gsub("hierarchical", "ring"), r.approx_seq)
    else
        say("# attention is exact")
    end
    say("# output: norm %.9g", r.output_norm)
end

local mesh <close> = spl.mesh(o.mesh)
local scheme = scheme_for(mesh)
local blocks = build(mesh, scheme)
blocks[1]:input { batch = 1, seq = 1 }:release()
local config = blocks[1].config
say("# spl %s long_context: %s tokens through %s", spl.version, o.seq, report.plural(o.layers, "layer"))
for _, line in ipairs(report.machine()) do
    say("# %s", line)
end
say("# each: %s", report.block(config))
say("# mesh %s, scheme %s%s", mesh.spec, scheme, rows.has_role(mesh.axes, "hierarchical")
    and (", chunks of %d tokens, %s each"):format(o.chunk, o.summaries == 1 and "1 summary"
        or o.summaries .. " summaries") or "")

local approx_err, approx_seq = approximation(blocks, mesh)
local progress = new_progress(o.layers, "layers")
progress(0, spl.facts().backend ~= "null" and expect(blocks, mesh) or nil)
collectgarbage()
spl.reset_counters()
local started = spl.now()
local output <close> = forward(blocks, o.seq, progress)
local seconds = spl.max(spl.now() - started)
local counters = spl.counters()
local peak = counters.memory.peak.activations + counters.memory.peak.buffers
local result = { mesh = mesh.spec, ranks = spl.size(), threads = spl.threads(), seq = o.seq, layers = o.layers,
    hidden = config.hidden, heads = config.heads, kv_heads = config.kv_heads, ffn = config.ffn, scheme = scheme,
    mask = o.mask, chunk = o.chunk, summaries = o.summaries, dtype = o.dtype, seconds = seconds,
    tokens_per_s = o.seq / seconds, gflops = spl.sum(counters.gemm_flops + counters.attention_flops) / seconds / 1e9
        / spl.size(),
    comm_exposed_s = spl.max(counters.comm_exposed_seconds), bytes_sent = spl.max(counters.bytes.total),
    peak_bytes = spl.max(peak), peak_bytes_all = spl.sum(peak),
    weights_bytes_all = spl.sum(counters.memory.now.weights),
    rss_bytes_all = memory_of_all(), approx_err = approx_err, approx_seq = approx_seq, output_norm = output:norm() }
show(result, mesh)
if o.json then
    report.json_line(JSON_KEYS, result)
end
release(blocks)
if result.output_norm ~= result.output_norm or result.output_norm == math.huge then
    spl.error { message = "long_context: the output is not finite" }
end
