-- sweep_analysis.lua: what a sweep's results say: which schedule wins where, where one overtakes another, efficiency,
-- where communication dominates, memory; as data and as sentences.
--
-- A schedule is what the roles of a mesh and the scheme say: "ring zigzag", or with several axes "data 2 × ring 4". One
-- rank has no schedule.
local report = require "spl.report"
local spread = require "spl.spread"
local store = require "spl.sweep_store"
local analysis = {}

local DOMINATES = 0.5 -- of the time
local CLOSE = 0.02    -- two times within this are not told apart

--- [local] The schedule that a mesh stands for.
---@param mesh string
---@param ranks integer
---@param scheme? any of the deal of the sequence, where it is known
---@return string
function analysis.schedule(mesh, ranks, scheme)
    if ranks == 1 then
        return mesh:find(":hierarchical", 1, true) and "one rank hierarchical" or "one rank"
    end
    local deal = type(scheme) == "string" and scheme ~= "contiguous" and " " .. scheme or ""
    local parts = {}
    for name, size, role in mesh:gmatch "([%w_]+)=([%d*]+):?(%a*)" do
        parts[#parts + 1] = { role = role ~= "" and role or name, size = size }
    end
    if #parts == 0 then
        return mesh .. deal
    elseif #parts == 1 then
        return parts[1].role .. deal
    end
    local words = {}
    for i, p in ipairs(parts) do
        words[i] = p.role .. (p.size == "*" and "" or " " .. p.size)
    end
    return table.concat(words, " × ") .. deal
end

local function number(value)
    return math.type(value) and value or nil
end

-- Keys of points that tell experiments apart, besides ranks, x and series.
local function other_parameters(points, spec)
    local values, names = {}, {}
    for _, p in ipairs(points) do
        for key, value in pairs(p.point) do
            local in_schedule = key == "scheme" and spec.series == "mesh"
            if key ~= "ranks" and key ~= spec.x and key ~= spec.series and not in_schedule then
                values[key] = values[key] or {}
                values[key][tostring(value)] = true
            end
        end
    end
    for key, set in pairs(values) do
        if next(set, next(set)) then
            names[#names + 1] = key
        end
    end
    table.sort(names)
    return names
end

local function first_known(points, candidates)
    for _, key in ipairs(candidates) do
        for _, p in ipairs(points) do
            if number(p.point[key]) or p.rows[1] and number(p.rows[1][key]) then
                return key
            end
        end
    end
end

-- One measured row as the charts take it.
local function record(p, row, spec, others)
    local ranks = number(p.point.ranks) or number(row.ranks) or 1
    local function get(key)
        local value = p.point[key]
        if value == nil then
            value = row[key]
        end
        return value
    end
    local series = tostring(get(spec.series) or row.name or row.op or "")
    if spec.series == "mesh" then
        series = analysis.schedule(series, ranks, get "scheme")
    end
    for _, key in ipairs(others) do
        series = ("%s, %s %s"):format(series, key, tostring(p.point[key]))
    end
    return { ranks = ranks, x = number(get(spec.x)), y = number(get(spec.y)), series = series,
        low = number(row[spec.y .. "_low"]), high = number(row[spec.y .. "_high"]), row = row, point = p.point }
end

-- On one rank nothing is split, so all meshes are the same program: one record with the spread of all of them.
local function fold_one_rank(records)
    local list, by_place = {}, {}
    for _, r in ipairs(records) do
        local place = r.ranks == 1 and r.series .. "|" .. r.x
        local same = place and by_place[place]
        if same then
            same[#same + 1] = r
        else
            list[#list + 1] = { r }
            by_place[place or #list] = list[#list]
        end
    end
    for i, same in ipairs(list) do
        table.sort(same, function(p, q) return p.y < q.y end)
        local middle = same[(#same + 1) // 2]
        for _, r in ipairs(#same > 1 and same or {}) do
            middle.low, middle.high = math.min(middle.low or middle.y, r.low or r.y), math.max(middle.high or middle.y,
                r.high or r.y)
        end
        list[i] = middle
    end
    return list
end

local function distinct(records, key)
    local seen, list = {}, {}
    for _, r in ipairs(records) do
        if not seen[r[key]] then
            seen[r[key]] = true
            list[#list + 1] = r[key]
        end
    end
    table.sort(list)
    return list
end

--- [local] Reads a results folder into {header, points, records = {ranks, x, y, low, high, series, row}, xs, ranks,
--- spec}.
---@param folder string
---@return table
function analysis.read(folder)
    local header, runs = store.read(folder)
    local spec = {}
    for key, value in pairs(type(header.report) == "table" and header.report or {}) do
        spec[key] = value
    end
    local probe = store.points(runs, spec.y or "time_ms_p50")
    spec.y = spec.y or first_known(probe, { "time_ms_p50", "time_us", "time_ms", "seconds" }) or "time_ms_p50"
    spec.x = spec.x or first_known(probe, { "seq", "size_bytes", "size", "batch", "hidden", "ranks" }) or "ranks"
    spec.series = spec.series or "mesh"
    local points = store.points(runs, spec.y)
    local others = other_parameters(points, spec)
    local records = {}
    for _, p in ipairs(points) do
        for _, row in ipairs(p.rows) do
            local r = record(p, row, spec, others)
            if r.x and r.y and r.y > 0 then
                records[#records + 1] = r
            end
        end
    end
    records = spec.series == "mesh" and fold_one_rank(records) or records
    return { folder = folder, header = header, points = points, runs = runs, records = records, spec = spec,
        xs = distinct(records, "x"), ranks = distinct(records, "ranks"), others = others }
end

--- [local] Records that fit, by series: {{name, points = {record...} by ascending `by`}}.
---@param a table what read gave
---@param fits fun(r: table): boolean
---@param by string "x" or "ranks"
---@return table[]
function analysis.series(a, fits, by)
    local list, by_name = {}, {}
    for _, r in ipairs(a.records) do
        if fits(r) then
            local s = by_name[r.series]
            if not s then
                s = { name = r.series, points = {} }
                by_name[r.series], list[#list + 1] = s, s
            end
            s.points[#s.points + 1] = r
        end
    end
    for _, s in ipairs(list) do
        table.sort(s.points, function(p, q) return p[by] < q[by] end)
    end
    table.sort(list, function(p, q) return p.name < q.name end)
    return list
end

--- [local] The records of one place, fastest first.
---@param a table
---@param ranks integer
---@param x number
---@return table[]
function analysis.ranking(a, ranks, x)
    local list = {}
    for _, r in ipairs(a.records) do
        if r.ranks == ranks and r.x == x then
            list[#list + 1] = r
        end
    end
    table.sort(list, function(p, q)
        if p.y ~= q.y then
            return p.y < q.y
        end
        return p.series < q.series
    end)
    return list
end

-- Where the times of two series meet between two x, both logarithmic.
local function meeting(x0, x1, a0, a1, b0, b1)
    local d0, d1 = math.log(a0 / b0), math.log(a1 / b1)
    local share = d0 == d1 and 0.5 or d0 / (d0 - d1)
    return math.exp(math.log(x0) + share * (math.log(x1) - math.log(x0)))
end

local function find(list, series)
    for _, r in ipairs(list) do
        if r.series == series then
            return r
        end
    end
end

--- [local] Where the fastest series changes along x, for each number of ranks: {ranks, x, below, above, from, to,
--- sure, overlap}. `sure` is false where the spreads of the two meet on a side (overlap = true) or there are none.
---@param a table
---@return table[]
function analysis.crossings(a)
    local list = {}
    for _, ranks in ipairs(a.ranks) do
        local before
        for _, x in ipairs(a.xs) do
            local now = analysis.ranking(a, ranks, x)
            local was, is = before and before.list[1], now[1]
            if was and is and x > 0 and before.x > 0 and was.series ~= is.series then
                local was_here, is_there = find(now, was.series), find(before.list, is.series)
                if was_here and is_there then
                    local left, right = spread.overlap(was, is_there), spread.overlap(is, was_here)
                    list[#list + 1] = { ranks = ranks, below = was.series, above = is.series, from = before.x, to = x,
                        x = meeting(before.x, x, was.y, was_here.y, is_there.y, is.y),
                        sure = left == false and right == false, overlap = left or right }
                end
            end
            before = #now > 0 and { x = x, list = now } or before
        end
    end
    return list
end

-- The one-rank time that a record is compared with.
local function baseline(a, r)
    local best
    for _, one in ipairs(a.records) do
        if one.ranks == 1 and one.x == r.x and (#a.others == 0
            or one.series:match ",.*$" == r.series:match ",.*$") and (not best or one.y < best.y) then
            best = one
        end
    end
    return best
end

--- [local] T1 / (P · TP), or by tokens a second where rows have them (a data axis does more work at a time); nil where
--- nothing was measured on one rank.
---@param a table
---@param r table a record
---@return number?
function analysis.efficiency(a, r)
    local one = baseline(a, r)
    if not one then
        return nil
    end
    local tokens, tokens_one = number(r.row.tokens_per_s), number(one.row.tokens_per_s)
    if tokens and tokens_one and tokens_one > 0 then
        return tokens / tokens_one / r.ranks
    end
    return one.y / r.y / r.ranks
end

--- [local] The share of the time of a record in which communication is waited for, or nil.
---@param r table
---@return number?
function analysis.exposed(r)
    local ms, exposed = number(r.row.time_ms_p50), number(r.row.comm_exposed_ms)
    return ms and exposed and ms > 0 and math.min(1, exposed / ms) or nil
end

-- ---- sentences

local function percent(share)
    return ("%.0f %%"):format(100 * share)
end

local function x_text(a, x)
    return ("%s %s"):format(a.spec.x, math.tointeger(x) or ("%.4g"):format(x))
end

-- How much slower the second is, in words, where the two are told apart.
local function lead(list)
    if #list < 2 then
        return "the only one measured"
    end
    local by = list[2].y / list[1].y - 1
    if by < CLOSE then
        return ("with %s close behind (%s)"):format(list[2].series, percent(by))
    end
    return ("%s ahead of %s"):format(percent(by), list[2].series)
end

--- [local] "not distinguishable from ring, gather": what the fastest of a ranking cannot be told apart from; nil where
--- there is none.
---@param list table[]
---@return string?
function analysis.doubt(list)
    local names = {}
    for i, r in ipairs(spread.rivals(list)) do
        names[i] = r.series
    end
    return #names > 0 and "not distinguishable from " .. spread.names(names) or nil
end

-- Stretches of x with one winner and the same doubt: {series, doubt, first, last, list of the last}.
local function stretches(a, ranks)
    local runs = {}
    for _, x in ipairs(a.xs) do
        local list = analysis.ranking(a, ranks, x)
        local last, doubt = runs[#runs], analysis.doubt(list)
        if #list > 0 and last and last.series == list[1].series and last.doubt == doubt then
            last.last, last.list = x, list
        elseif #list > 0 then
            runs[#runs + 1] = { series = list[1].series, doubt = doubt, first = x, last = x, list = list }
        end
    end
    return runs
end

local function one_winner(a, who, run)
    local where = run.first == run.last and (" at %s"):format(x_text(a, run.first)) or ""
    local sentence = ("On %s%s, %s is fastest"):format(who, where, run.series)
    if run.first ~= run.last then
        sentence = ("%s at every %s measured (%s to %s)"):format(sentence, a.spec.x, x_text(a, run.first),
            x_text(a, run.last))
    end
    if run.doubt then
        return ("%s, but %s: their spreads overlap."):format(sentence, run.doubt)
    end
    local at = run.first == run.last and "," or ("; at %s it is"):format(x_text(a, run.last))
    return ("%s%s %s."):format(sentence, at, lead(run.list))
end

local function add_winners(a, out)
    for _, ranks in ipairs(a.ranks) do
        local runs = ranks > 1 and stretches(a, ranks) or {}
        local who, parts, changes = report.plural(ranks, "rank"), {}, true
        for i, r in ipairs(runs) do
            local name = r.series .. (r.doubt and (" (%s)"):format(r.doubt) or "")
            parts[i] = r.first == r.last and ("%s at %s"):format(name, x_text(a, r.first))
                or ("%s from %s to %s"):format(name, x_text(a, r.first), x_text(a, r.last))
            changes = changes and not r.doubt and (not r.list[2] or spread.overlap(r.list[1], r.list[2]) == false)
        end
        if #runs == 1 then
            out[#out + 1] = one_winner(a, who, runs[1])
        elseif #runs > 1 then
            out[#out + 1] = ((changes and "On %s the fastest changes with %s: %s." or "Fastest on %s, by %s: %s.")
                :format(who, a.spec.x, table.concat(parts, "; ")))
        end
    end
end

local function add_single(a, out)
    for _, ranks in ipairs(a.ranks) do
        for _, x in ipairs(ranks > 1 and a.xs or {}) do
            local list = analysis.ranking(a, ranks, x)
            if #list > 1 and spread.overlap(list[1], list[2]) == nil then
                out[#out + 1] = "Some points were measured once, so there is no spread to judge them by: which is "
                    .. "faster there may be noise."
                return
            end
        end
    end
end

local function add_crossings(a, out)
    for _, c in ipairs(analysis.crossings(a)) do
        if c.ranks > 1 then
            out[#out + 1] = ("On %s, %s %s %s at about %s (between %s and %s)%s."):format(
                report.plural(c.ranks, "rank"), c.above, c.sure and "overtakes" or "may overtake", c.below,
                x_text(a, math.floor(c.x + 0.5)), x_text(a, c.from), x_text(a, c.to), c.sure and ""
                or c.overlap and ", but their spreads overlap there" or ", but each was measured once")
        end
    end
end

local function add_efficiency(a, out)
    local x = a.xs[#a.xs]
    for _, ranks in ipairs(a.ranks) do
        local best = x and ranks > 1 and analysis.ranking(a, ranks, x)[1]
        local e = best and analysis.efficiency(a, best)
        if e then
            out[#out + 1] = ("At %s, %s (%s) are %.2f times as fast as one rank: an efficiency of %s."):format(
                x_text(a, x), report.plural(ranks, "rank"), best.series, e * ranks, percent(e))
        end
    end
end

local function add_communication(a, out)
    local over, worst, all = {}, nil, 0
    for _, r in ipairs(a.records) do
        local share = r.ranks > 1 and analysis.exposed(r)
        if share then
            all = all + 1
            if share > DOMINATES then
                over[#over + 1] = r
            end
            if not worst or share > worst.share then
                worst = { share = share, r = r }
            end
        end
    end
    if not worst then
        return
    end
    local where = ("%s on %s at %s"):format(worst.r.series, report.plural(worst.r.ranks, "rank"), x_text(a, worst.r.x))
    if #over == 0 then
        out[#out + 1] = ("Communication that nothing hides never takes more than half of the time; most it takes %s, "
            .. "with %s."):format(percent(worst.share), where)
    else
        out[#out + 1] = ("Communication that nothing hides takes more than half of the time at %d of %s; most, %s, "
            .. "with %s."):format(#over, report.plural(all, "place"), percent(worst.share), where)
    end
end

local function add_memory(a, out)
    local x, ranks = a.xs[#a.xs], a.ranks[#a.ranks]
    local least, most
    for _, r in ipairs(x and ranks > 1 and analysis.ranking(a, ranks, x) or {}) do
        local peak = number(r.row.peak_bytes)
        if peak then
            least = (not least or peak < least.row.peak_bytes) and r or least
            most = (not most or peak > most.row.peak_bytes) and r or most
        end
    end
    if least and least ~= most and least.row.peak_bytes < most.row.peak_bytes then
        out[#out + 1] = ("At %s on %s, %s needs least memory for activations and buffers (%s a rank), %s most (%s).")
            :format(x_text(a, x), report.plural(ranks, "rank"), least.series,
                report.bytes(math.floor(least.row.peak_bytes)), most.series,
                report.bytes(math.floor(most.row.peak_bytes)))
    end
end

local function add_caution(a, out)
    local cores, crowded = number(a.header.cores), 0
    for _, r in ipairs(a.records) do
        crowded = math.max(crowded, r.ranks * (number(r.row.threads) or 1))
    end
    if cores and crowded > cores then
        out[#out + 1] = ("This machine has %s, fewer than the most threads that ran (%d): ranks took turns there, so "
            .. "those times say little about a machine with enough."):format(report.plural(cores, "core"), crowded)
    end
end

local function add_counts(a, out)
    local n = { ok = 0, refused = 0, skipped = 0, failed = 0, timeout = 0 }
    for _, p in ipairs(a.points) do
        n[p.status] = (n[p.status] or 0) + 1
    end
    local parts = {}
    for _, pair in ipairs { { "refused", "refused by the script" }, { "skipped", "skipped" }, { "failed", "failed" },
        { "timeout", "took too long" } } do
        if n[pair[1]] > 0 then
            parts[#parts + 1] = ("%d %s"):format(n[pair[1]], pair[2])
        end
    end
    out[#out + 1] = ("%d of %s measured%s."):format(n.ok, report.plural(#a.points, "point"),
        #parts > 0 and "; " .. table.concat(parts, ", ") .. " (listed below with the reasons)" or "")
end

--- [local] The results in plain words.
---@param a table what read gave
---@return string[]
function analysis.summary(a)
    local out = {}
    if #a.records == 0 then
        out[1] = ("No row has both %s and %s, so there is nothing to compare."):format(a.spec.x, a.spec.y)
    end
    for _, add in ipairs { add_single, add_winners, add_crossings, add_efficiency, add_communication, add_memory,
        add_caution, add_counts } do
        add(a, out)
    end
    return out
end

return analysis
