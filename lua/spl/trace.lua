-- trace.lua: `spl trace FILE`: what a trace says in a few tables: time by op, communication that is not hidden behind
-- compute, waiting for others, and the rank that the others wait for.
--
-- Communication of a rank is `exposed` while it waits for a collective that all members have entered, and `idle` while
-- it waits for one that some member has not. The k-th collective of one name over the same ranks is the same call on
-- all of them.
local spl = require "spl"
local report = require "spl.report"
local trace = {}

local DEVICE = "the device to finish its queue"
local LINES = 8

-- ---- reading

local function fail(path, what, code)
    spl.error { code = code or "format", message = ("%s: %s"):format(path, what) }
end

local function number(value)
    return math.type(value) and value or nil
end

local function by_begin(a, b)
    if a.ts ~= b.ts then
        return a.ts < b.ts
    end
    return a.dur > b.dur
end

local function new_rank(n)
    return { rank = n, work = {}, waits = {}, comm = {}, spans = {}, memory = {}, host = "?", dropped = 0 }
end

local PLACE = { op = "work", move = "work", wait = "waits", comm = "comm", script = "spans" }

local function take_event(ranks, e)
    local r = ranks[e.pid]
    local args = type(e.args) == "table" and e.args or {}
    if r and e.ph == "X" and PLACE[e.cat] and number(e.ts) and number(e.dur) and type(e.name) == "string" then
        table.insert(r[PLACE[e.cat]], { name = e.name, ts = e.ts, dur = e.dur, stop = e.ts + e.dur, cat = e.cat,
            args = args, self = e.dur })
    elseif r and e.ph == "C" then
        local held = (number(args.activations) or 0) + (number(args.buffers) or 0)
        r.memory[#r.memory + 1] = { ts = number(e.ts) or 0, place = #r.memory, held = held }
    end
end

--- [local] A trace file as tables: {ranks = {[0] = {work, waits, comm, spans, memory, host,
--- dropped}}, size, backend, complete}. Errors: code "usage" where it cannot be read, "format".
---@param path string
---@return table
function trace.read(path)
    local data, message = require "spl.json".read(path)
    if data == nil then
        spl.error { code = "usage", message = message }
    end
    local events = type(data) == "table" and data.traceEvents
    if type(events) ~= "table" then
        fail(path, "no trace: it has no traceEvents; `spl run --trace FILE` writes one")
    end
    local about = type(data.otherData) == "table" and data.otherData or {}
    local t = { ranks = {}, list = {}, size = about.ranks, backend = about.backend, virtual = about.virtual == true,
        complete = about.complete ~= false, version = about.spl }
    for _, e in ipairs(events) do
        if type(e) == "table" and e.name == "spl_rank" and math.type(e.pid) == "integer" then
            local r = new_rank(e.pid)
            r.host, r.dropped = tostring(e.args.host or "?"), number(e.args.dropped) or 0
            r.finish = number(e.args.end_us)
            t.ranks[e.pid], t.list[#t.list + 1] = r, r
        end
    end
    if #t.list == 0 then
        fail(path, "a trace, but of another program: `spl trace` reads what `spl run --trace FILE` writes")
    end
    for _, e in ipairs(events) do
        take_event(t.ranks, e)
    end
    table.sort(t.list, function(a, b) return a.rank < b.rank end)
    for _, r in ipairs(t.list) do
        table.sort(r.memory, function(a, b) return a.ts < b.ts or a.ts == b.ts and a.place < b.place end)
        for _, name in ipairs { "work", "waits", "comm", "spans" } do
            table.sort(r[name], by_begin)
        end
    end
    return t
end

-- ---- what belongs to what

-- Time of ops less that of what lies inside them: ops, redistributions, waits.
local function subtract_inner(r)
    local all = table.move(r.work, 1, #r.work, 1, {})
    table.move(r.waits, 1, #r.waits, #all + 1, all)
    table.sort(all, by_begin)
    local open = {}
    for _, e in ipairs(all) do
        while #open > 0 and open[#open].stop <= e.ts do
            open[#open] = nil
        end
        local outer = open[#open]
        if outer and outer.cat ~= "wait" then
            outer.self = outer.self - e.dur
            e.within = outer
        end
        open[#open + 1] = e
    end
end

-- The last wait that ended within a piece of communication is the one for it.
local function pair_waits(r)
    local waits = {}
    for _, w in ipairs(r.waits) do
        if w.args.communication == true then
            waits[#waits + 1] = w
        end
    end
    local at = 1
    local ended = table.move(r.comm, 1, #r.comm, 1, {})
    table.sort(ended, function(a, b) return a.stop < b.stop end)
    for _, c in ipairs(ended) do
        while waits[at + 1] and waits[at + 1].stop <= c.stop + 1e-3 do
            at = at + 1
        end
        local w = waits[at]
        if w and not w.comm and w.stop <= c.stop + 1e-3 and w.stop >= c.ts then
            c.wait, w.comm = w, c
        end
    end
end

-- The same call on all its members: {members' events by rank}. Those that not all members have (some left out, or
-- under way at the end) are passed over.
local function calls(t)
    local found, list = {}, {}
    for _, r in ipairs(t.list) do
        local count = {}
        for _, c in ipairs(r.comm) do
            local key = ("%s|%s|%s"):format(c.name, c.args.axis, c.args.ranks)
            count[key] = (count[key] or 0) + 1
            local id = key .. "|" .. count[key]
            if not found[id] then
                found[id] = { name = c.name, axis = c.args.axis, members = {}, n = 0, id = id }
                list[#list + 1] = found[id]
            end
            found[id].members[r.rank], found[id].n = c, found[id].n + 1
        end
    end
    return list
end

-- When the last member entered a call, who that was, and how much later than the one before.
local function last_of(call, list)
    local last, who, second = -math.huge, nil, -math.huge
    for _, r in ipairs(list) do
        local c = call.members[r.rank]
        if c and c.ts > last then
            last, who, second = c.ts, r, last
        elseif c and c.ts > second then
            second = c.ts
        end
    end
    return last, who, last - second
end

-- The part of an event within the windows; the share of its own time goes with it.
local function share_within(e, windows)
    if not windows then
        return 1
    end
    local inside = 0
    for _, w in ipairs(windows) do
        inside = inside + math.max(0, math.min(e.stop, w.stop) - math.max(e.ts, w.ts))
    end
    if e.dur > 0 then
        return inside / e.dur
    end
    for _, w in ipairs(windows) do
        if e.ts >= w.ts and e.ts <= w.stop then
            return 1
        end
    end
    return 0
end

-- The most that was held within the windows: each amount from its event to the next.
local function peak_within(memory, windows)
    local peak = 0
    for i, m in ipairs(memory) do
        m.stop = memory[i + 1] and memory[i + 1].ts or math.huge
        if not windows then
            peak = math.max(peak, m.held)
        end
        for _, w in ipairs(m.held > peak and windows or {}) do
            peak = m.ts <= w.stop and m.stop > w.ts and m.held or peak
        end
    end
    return peak
end

local function judge_waits(t, within)
    for _, call in ipairs(calls(t)) do
        local last, who, late = last_of(call, t.list)
        local counts = call.n > 1 and (not within or share_within(call.members[who.rank], who.spans) > 0)
        if counts then
            who.last, who.late = (who.last or 0) + 1, (who.late or 0) + late
            t.calls = (t.calls or 0) + 1
            for _, r in ipairs(t.list) do
                local c = call.members[r.rank]
                local w = c and c.wait
                if w then
                    w.idle = math.max(0, math.min(w.stop, last) - w.ts)
                end
            end
        end
    end
end

-- ---- sums

local function add_to(list, key, title, fields)
    local row = list[key]
    if not row then
        row = { name = title, calls = 0, us = 0, most_us = 0, flops = 0, bytes = 0, exposed_us = 0, per_rank = {} }
        list[key], list[#list + 1] = row, row
    end
    for name, value in pairs(fields) do
        row[name] = row[name] + value
    end
    return row
end

local function sum_rank(s, r, windows)
    local sum = { rank = r.rank, host = r.host, ops_us = 0, moves_us = 0, exposed_us = 0, idle_us = 0, comm_us = 0,
        bytes = 0, peak_bytes = peak_within(r.memory, windows),
        late_us = r.late or 0, last = r.last or 0, dropped = r.dropped }
    for _, e in ipairs(r.work) do
        local part = share_within(e, windows)
        if part > 0 then
            local own = math.max(0, e.self) * part
            local key = e.cat == "op" and "ops_us" or "moves_us"
            sum[key] = sum[key] + own
            local row = add_to(s.ops, e.cat .. e.name, e.cat == "op" and e.name or e.name .. " (packing)",
                { calls = 1, us = own, flops = (number(e.args.flops) or 0) * part })
            row.per_rank[r.rank] = (row.per_rank[r.rank] or 0) + own
            local line = e.args.line or "?"
            add_to(s.lines, line, line, { calls = 1, us = own })
        end
    end
    for _, w in ipairs(r.waits) do
        local part = share_within(w, windows)
        if part > 0 and w.name == DEVICE then
            sum.ops_us = sum.ops_us + w.dur * part
        elseif part > 0 then
            local idle = w.args.communication == true and (w.idle or 0) or w.dur
            sum.idle_us = sum.idle_us + idle * part
            sum.exposed_us = sum.exposed_us + (w.dur - idle) * part
            local line = w.args.line or "?"
            add_to(s.lines, line, line, { us = w.dur * part })
        end
    end
    for _, c in ipairs(r.comm) do
        local part = share_within(c, windows)
        if part > 0 then
            sum.comm_us, sum.bytes = sum.comm_us + c.dur * part, sum.bytes + (number(c.args.bytes) or 0)
            add_to(s.comm, c.name .. "|" .. tostring(c.args.axis), ("%s, %s"):format(c.name, tostring(c.args.axis)),
                { calls = 1, us = c.dur * part, bytes = number(c.args.bytes) or 0,
                    exposed_us = c.wait and (c.wait.dur - (c.wait.idle or 0)) * part or 0 })
        end
    end
    local first, last, length = math.huge, -math.huge, 0
    for _, w in ipairs(windows or {}) do
        length = length + w.dur
    end
    for _, list in ipairs { r.work, r.waits, r.comm, r.spans } do
        for _, e in ipairs(list) do
            first, last = math.min(first, e.ts), math.max(last, e.stop)
        end
    end
    sum.us = windows and length or math.max(0, last - first)
    sum.rest_us = math.max(0, sum.us - sum.ops_us - sum.moves_us - sum.exposed_us - sum.idle_us)
    s.ranks[#s.ranks + 1] = sum
end

local function by_time(a, b)
    if a.us ~= b.us then
        return a.us > b.us
    end
    return a.name < b.name
end

local function critical(ranks)
    local worst, others = nil, 0
    for _, r in ipairs(ranks) do
        if not worst or r.late_us > worst.late_us then
            worst = r
        end
    end
    for _, r in ipairs(ranks) do
        others = others + (r ~= worst and r.idle_us or 0)
    end
    return worst, others
end

--- [local] What a trace file says, in microseconds: {ranks = {rank, host, us, ops_us, moves_us, exposed_us, idle_us,
--- rest_us, comm_us, bytes, peak_bytes, last, late_us}, ops = {name, calls, us, flops}, comm = {name, calls, us, bytes,
--- exposed_us}, lines = {name, calls, us}, spans = {name, calls, us}, critical = rank}. Sums are over all ranks. Where
--- the script marked spans (spl.bench marks its rounds), only what lies within them counts, unless `whole`. It prints.
---@param path string
---@param whole? boolean
---@return table
function trace.summary(path, whole)
    local t = trace.read(path)
    local s = { path = path, size = t.size, backend = t.backend, version = t.version, complete = t.complete,
        virtual = t.virtual, ranks = {}, ops = {}, comm = {}, lines = {}, spans = {}, calls = 0 }
    local marked = false
    for _, r in ipairs(t.list) do
        subtract_inner(r)
        pair_waits(r)
        marked = marked or #r.spans > 0
    end
    s.within = marked and not whole
    judge_waits(t, s.within)
    for _, r in ipairs(t.list) do
        sum_rank(s, r, s.within and r.spans or nil)
        for _, span in ipairs(r.spans) do
            local row = add_to(s.spans, span.name, span.name, { calls = 1, us = span.dur })
            row.most_us = math.max(row.most_us, span.dur)
        end
    end
    s.calls = t.calls or 0
    for _, name in ipairs { "ops", "comm", "lines" } do
        for i = #s[name], 1, -1 do
            s[name][s[name][i].name] = nil
        end
        table.sort(s[name], by_time)
    end
    local worst, idle = critical(s.ranks)
    if worst and worst.late_us > 0 then
        s.critical, s.idle_of_others_us = worst.rank, idle
    end
    return setmetatable(s, { __tostring = trace.text })
end

-- ---- text

local function ms(us)
    return ("%.3f"):format(us / 1e3)
end

local function share(part, whole)
    return whole > 0 and ("%.1f"):format(100 * part / whole) or "-"
end

local function rank_rows(s)
    local rows = {}
    for i, r in ipairs(s.ranks) do
        rows[i] = { tostring(r.rank), r.host, ms(r.us), share(r.ops_us, r.us), share(r.moves_us, r.us),
            share(r.exposed_us, r.us), share(r.idle_us, r.us), share(r.rest_us, r.us), report.bytes(r.bytes),
            report.bytes(r.peak_bytes), tostring(r.last) }
    end
    return report.aligned({ "rank", "host", "time ms", "ops %", "packing %", "exposed %", "idle %", "rest %", "sent",
        "peak", "last" }, rows, { false, false, true, true, true, true, true, true, true, true, true })
end

local function op_rows(s, total)
    local rows = {}
    for i, o in ipairs(s.ops) do
        local most = 0
        for _, us in pairs(o.per_rank) do
            most = math.max(most, us)
        end
        rows[i] = { o.name, tostring(o.calls), ms(o.us / #s.ranks), ms(most), share(o.us, total),
            o.flops > 0 and o.us > 0 and ("%.1f"):format(o.flops / o.us / 1e3) or "" }
    end
    return report.aligned({ "op", "calls, all ranks", "ms a rank", "most ms", "share %", "GFLOP/s a rank" }, rows,
        { false, true, true, true, true, true })
end

local function comm_rows(s)
    local rows = {}
    for i, c in ipairs(s.comm) do
        rows[i] = { c.name, tostring(c.calls), report.bytes(c.bytes), ms(c.us / #s.ranks),
            ms(c.exposed_us / #s.ranks), c.us > 0 and ("%.2f"):format(c.bytes / c.us / 1e3) or "-" }
    end
    return report.aligned({ "communication", "calls, all ranks", "sent, all ranks", "ms a rank", "exposed ms",
        "GB/s a rank" }, rows, { false, true, true, true, true, true })
end

local function line_rows(s, total)
    local rows = {}
    for i = 1, math.min(LINES, #s.lines) do
        rows[i] = { s.lines[i].name, tostring(s.lines[i].calls), ms(s.lines[i].us / #s.ranks),
            share(s.lines[i].us, total) }
    end
    return report.aligned({ "line of the script", "ops, all ranks", "ms a rank", "share %" }, rows,
        { false, true, true, true })
end

local function span_rows(s)
    local rows = {}
    for i = 1, math.min(LINES, #s.spans) do
        local p = s.spans[i]
        rows[i] = { p.name, tostring(p.calls), ms(p.us / p.calls), ms(p.most_us) }
    end
    return report.aligned({ "span", "times, all ranks", "mean ms", "most ms" }, rows, { false, true, true, true })
end

local function sentence_of_critical(s)
    if #s.ranks < 2 then
        return nil
    elseif s.virtual then
        return "virtual ranks take turns, so times and who waits for whom mean nothing"
    elseif not s.critical then
        return "no rank kept another waiting"
    end
    local r
    for _, one in ipairs(s.ranks) do
        r = one.rank == s.critical and one or r
    end
    return ("critical rank: %d, the last to enter %d of %s, %s ms behind the next in all; the others were idle for "
        .. "%s ms"):format(r.rank, r.last, report.plural(s.calls, "shared collective"), ms(r.late_us),
        ms(s.idle_of_others_us))
end

--- [local] The summary as text.
---@param s table what trace.summary gave
---@return string
function trace.text(s)
    local total, dropped = 0, 0
    for _, r in ipairs(s.ranks) do
        total, dropped = total + r.us, dropped + r.dropped
    end
    local scope = s.within and "; of the spans that the script marked (--whole: of all)" or ""
    local out = { ("# %s: %s of spl %s, backend %s%s"):format(s.path, report.plural(s.size or #s.ranks, "rank"),
        tostring(s.version), tostring(s.backend), scope) }
    if not s.complete then
        out[#out + 1] = "# the run failed: this is the part of the rank that said why"
    elseif math.type(s.size) and #s.ranks < s.size then
        out[#out + 1] = ("# of rank %d alone: a backend without memory has nothing to send the others' parts with")
            :format(s.ranks[1].rank)
    end
    if dropped > 0 then
        out[#out + 1] = ("# %d events did not fit and are missing"):format(dropped)
    end
    out[#out + 1] = rank_rows(s)
    out[#out + 1] = "# exposed: waiting for data of a collective that all have entered; idle: for ranks that have not;"
    out[#out + 1] = "# the exposed time of sp_forward.lua and other benchmarks is both together: late ranks cost, too;"
    out[#out + 1] = "# packing: copies of redistributions; rest: outside of ops; last: collectives entered last"
    local rows = { spans = span_rows, ops = op_rows, comm = comm_rows, lines = line_rows }
    for _, name in ipairs { "spans", "ops", "comm", "lines" } do
        if #s[name] > 0 then
            out[#out + 1] = "\n" .. rows[name](s, total)
        end
    end
    local sentence = sentence_of_critical(s)
    if sentence then
        out[#out + 1] = "\n# " .. sentence
    end
    return table.concat(out, "\n")
end

local OPTIONS = {
    json = { default = false, help = "one JSON object instead of tables" },
    whole = { default = false, help = "everything, also outside of the spans that the script marked" },
}

function trace.main(...)
    local names, o = require "spl.command".read("trace", { "FILE" }, OPTIONS, { ... })
    local s = trace.summary(names[1], o.whole)
    if not o.json then
        print(s)
        return
    end
    local plain = {}
    for key, value in pairs(s) do
        plain[key] = value
    end
    for _, key in ipairs { "ranks", "ops", "comm", "lines", "spans" } do
        local list = require "spl.json".array {}
        for i, row in ipairs(s[key]) do
            row.per_rank = nil
            list[i] = row
        end
        plain[key] = list
    end
    print(require "spl.json".encode(plain, { "path", "size", "critical", "ranks", "ops", "comm" }))
end

return trace
