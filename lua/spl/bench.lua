-- bench.lua: spl.bench{...}: how long something takes on all ranks together, and what it moved and held meanwhile.
--
-- Each round begins with a barrier; its time is wall time on the slowest rank. Counters are zeroed before each round,
-- so communication, bytes and peak memory are those of one round. What the timed function returns (tensors, saved
-- outputs) is released after the clock has stopped, and garbage is collected before it starts. A backend that computes
-- nothing has bytes and memory, and no times.
local core = require "spl.core"
local spl = require "spl"
local report = require "spl.report"

local bench = {}

local OPTIONS = { "name", "rounds", "warmup", "flops", "quiet" }

local function release(...)
    for i = 1, select("#", ...) do
        local value = select(i, ...)
        local kind = type(value)
        if (kind == "table" and getmetatable(value) or kind == "userdata") and value.release then
            value:release()
        end
    end
end

-- The value below which a share `p` of the sorted list lies (nearest rank); the median of an even count is the mean
-- of two.
local function percentile(sorted, p)
    if p == 0.5 and #sorted % 2 == 0 then
        return (sorted[#sorted // 2] + sorted[#sorted // 2 + 1]) / 2
    end
    return sorted[math.max(1, math.ceil(p * #sorted))]
end

local function one_round(f, name)
    collectgarbage()
    spl.synchronize()
    spl.barrier()
    spl.reset_counters()
    local start = spl.now()
    local results = table.pack(f())
    spl.synchronize()
    local seconds = spl.now() - start
    local c = spl.counters()
    spl.trace_span("round of " .. name, start)
    release(table.unpack(results, 1, results.n))
    local peak = c.memory.peak
    return { seconds, c.comm_seconds, c.comm_exposed_seconds, c.bytes.total, peak.activations + peak.buffers,
        peak.workspace }
end

local rate -- FLOP/s of all ranks together in SGEMM, once measured

--- [collective] FLOP/s, summed over ranks, of a 2048^3 SGEMM that all ranks run at once with their own threads: the
--- best of three rounds, measured once a run.
---@return number flops_per_second
function bench.sgemm()
    if rate then
        return rate
    end
    local n = 2048
    local x <close> = spl.tensor { shape = { n, n } }:uniform(1, 1, -1, 1)
    local w <close> = spl.tensor { shape = { n, n } }:uniform(1, 2, -1, 1)
    local best = 0
    do -- threads and pages
        local few <close> = x:narrow(1, 1, 128)
        spl.linear(few, w):release()
    end
    for _ = 1, 3 do
        spl.synchronize()
        spl.barrier()
        local start = spl.now()
        local y = spl.linear(x, w)
        spl.synchronize()
        local seconds = spl.now() - start
        y:release()
        best = math.max(best, spl.sum(2.0 * n ^ 3 / seconds))
    end
    rate = best
    return rate
end

local columns = {
    { title = "name", unit = "", width = 28, left = true },
    { title = "time", unit = "ms p50", width = 10, format = "%.3f" },
    { title = "min", unit = "ms", width = 10, format = "%.3f" },
    { title = "p99", unit = "ms", width = 10, format = "%.3f" },
    { title = "speed", unit = "GFLOP/s/rank", width = 13, format = "%.2f" },
    { title = "gemm", unit = "%", width = 7, format = "%.1f" },
    { title = "comm", unit = "ms", width = 10, format = "%.3f" },
    { title = "exposed", unit = "ms", width = 10, format = "%.3f" },
    { title = "sent", unit = "bytes", width = 12 },
    { title = "peak", unit = "bytes", width = 12 },
}

local headed = false

local function show(r)
    local lines = not headed and report.machine()
    headed = true
    if spl.rank() ~= 0 then
        return
    end
    if lines then
        print("# " .. table.concat(lines, "\n# "))
        print(report.head(columns))
    end
    print(report.row(columns, { r.name, r.ms_p50, r.ms_min, r.ms_p99, r.gflops, r.gemm_pct, r.comm_ms,
        r.comm_exposed_ms, r.bytes_sent, r.peak_bytes }))
end

local function check_options(o)
    local known = {}
    for _, name in ipairs(OPTIONS) do
        known[name] = true
    end
    for key in pairs(o) do
        if key ~= 1 and not known[key] then
            local near = spl.nearest(tostring(key), OPTIONS)
            spl.error { message = ("bench: unknown option '%s'; %s"):format(tostring(key), near
                and ("did you mean '%s'?"):format(near) or "known: " .. table.concat(OPTIONS, ", ")) }
        end
    end
    local rounds, warmup = o.rounds or 20, o.warmup or 5
    if math.type(rounds) ~= "integer" or rounds < 1 or math.type(warmup) ~= "integer" or warmup < 0 then
        spl.error { message = ("bench: rounds = %s, warmup = %s; whole numbers are needed, and a round"):format(
            tostring(rounds), tostring(warmup)) }
    end
    return rounds, warmup
end

local PATIENCE = 5 -- seconds without a word that whoever watches is asked for

-- Tells a person at the terminal how long this will take, once the first call has shown it.
local function announce(name, seconds, calls)
    if spl.rank() == 0 and seconds * calls > PATIENCE and core.terminal() then
        io.stderr:write(("%s: %d calls of about %.1f s\n"):format(name or "bench", calls, seconds))
    end
end

-- Each thing measured as a list over the rounds of the most of any rank, ascending.
local function sorted_series(here)
    local series = {}
    for k = 1, #here[1] do
        series[k] = {}
    end
    for i = 1, #here do
        for k, value in ipairs { spl.max(table.unpack(here[i])) } do
            series[k][i] = value
        end
    end
    for k = 1, #series do
        table.sort(series[k])
    end
    return series
end

local function add_times(r, series, flops, total)
    local p50 = percentile(series[1], 0.5)
    r.ms_p50, r.ms_min, r.ms_p99 = 1e3 * p50, 1e3 * series[1][1], 1e3 * percentile(series[1], 0.99)
    r.comm_ms, r.comm_exposed_ms = 1e3 * percentile(series[2], 0.5), 1e3 * percentile(series[3], 0.5)
    r.comm_pct = 100 * r.comm_exposed_ms / math.max(r.ms_p50 - r.comm_exposed_ms, 1e-9)
    if flops then
        r.gflops = flops / p50 / spl.size() / 1e9
        r.gemm_pct = 100 * flops / p50 / total
    end
end

--- [collective] Times a function. Prints a row on rank 0 (with its head, the first time) unless `quiet`.
---@param o table {name=, rounds= (20), warmup= (5), flops= of all ranks together, quiet=, [1]= the function}
---@return table result ms_p50 ms_min ms_p99 (slowest rank), gflops (per rank) and gemm_pct where flops are given,
--- comm_ms and comm_exposed_ms (median round, slowest rank), comm_pct (the exposed part as a share of the rest
--- of the time), bytes_sent, peak_bytes (activations + buffers), workspace_bytes (each the most of any rank),
--- bytes_here (this rank's). On the backend `null`, which computes nothing, there are no times and no shares.
---Errors: code "argument" for unknown options, no function, or counts below 1.
function bench.bench(o)
    local f = type(o) == "table" and o[1]
    if type(f) ~= "function" then
        spl.error { message = "bench: the function to time is needed: spl.bench{ name = \"...\", function() ... end }" }
    end
    local rounds, warmup = check_options(o)
    local timed = spl.facts().backend ~= "null"
    local total = o.flops and timed and bench.sgemm()
    for i = 1, warmup do
        local start = spl.now()
        release(f())
        if i == 1 then
            announce(o.name, spl.now() - start, warmup - 1 + rounds)
        end
    end
    local here = {}
    for i = 1, rounds do
        here[i] = one_round(f, o.name or "bench")
        if i == 1 and warmup == 0 then
            announce(o.name, here[1][1], rounds - 1)
        end
    end
    local series = sorted_series(here)
    local r = { name = o.name or "", rounds = rounds, bytes_sent = series[4][rounds], bytes_here = here[rounds][4],
        peak_bytes = series[5][rounds], workspace_bytes = series[6][rounds] }
    if timed then
        add_times(r, series, o.flops, total)
    end
    if not o.quiet then
        show(r)
    end
    return core.record(r)
end

return bench
