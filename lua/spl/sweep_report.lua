-- sweep_report.lua: `spl report DIR`: one HTML page and PNG charts of a sweep's results.
local analysis = require "spl.sweep_analysis"
local core = require "spl.core"
local html = require "spl.html"
local plots = require "spl.plots"
local report = require "spl.report"
local spl = require "spl"
local spread = require "spl.spread"
local sweep_file = require "spl.sweep_file"
local sweep_report = {}

local MOST_RANKS = 6                     -- charts of one kind
local MOST_SERIES, MOST_BARS = 8, 12     -- in one chart: the fastest

local UNITS = { time_ms_p50 = "time of one forward pass (ms)", time_ms = "time (ms)", time_us = "time (us)",
    seconds = "time (s)", seq = "sequence length (tokens)", size_bytes = "size (bytes)", batch = "batch (sequences)",
    ranks = "ranks" }

local function label(key)
    return UNITS[key] or key:gsub("_", " ")
end

local function points_of(s, by, y)
    local list = {}
    for _, r in ipairs(s.points) do
        local value, low, high = y(r)
        if value then
            list[#list + 1] = { r[by], value, low, high }
        end
    end
    return list
end

-- Series as plots.lines takes them; those without a point are left out.
local function lines_of(series, by, y)
    local list = {}
    for _, s in ipairs(series) do
        local points = points_of(s, by, y)
        if #points > 0 then
            list[#list + 1] = { name = s.name, points = points, dashed = s.dashed }
        end
    end
    return list
end

local function time(r)
    return r.y, r.low, r.high
end

-- The series that are nearest to the fastest, all winners among them, by name, and what to say of the others. Dashed
-- ones are kept beside.
local function fastest(a, series)
    local judged, dashed = {}, {}
    for _, s in ipairs(series) do
        local sum, n, wins = 0, 0, false
        for _, r in ipairs(s.points) do
            if r.ranks > 1 then
                local best = analysis.ranking(a, r.ranks, r.x)[1]
                sum, n, wins = sum + math.log(r.y / best.y), n + 1, wins or best == r
            end
        end
        local into = s.dashed and dashed or judged
        into[#into + 1] = { s = s, behind = wins and -1 or n > 0 and sum / n or math.huge }
    end
    table.sort(judged, function(p, q)
        if p.behind ~= q.behind then
            return p.behind < q.behind
        end
        return p.s.name < q.s.name
    end)
    local kept = table.move(judged, 1, math.min(#judged, MOST_SERIES), 1, {})
    table.sort(kept, function(p, q) return p.s.name < q.s.name end)
    local list = {}
    for _, one in ipairs(table.move(dashed, 1, #dashed, #kept + 1, kept)) do
        list[#list + 1] = one.s
    end
    return list, #judged > MOST_SERIES and (" The %d of %d that are fastest on the whole."):format(MOST_SERIES, #judged)
        or ""
end

local function add_chart(charts, name, caption, text_of)
    charts[#charts + 1] = { name = name .. ".png", caption = caption, text_of = text_of }
end

local function add_lines(charts, name, caption, p)
    if #p.series > 0 then
        add_chart(charts, name, caption, function(out) return plots.lines(p, out) end)
    end
end

-- ---- the charts

local function time_against_x(a, charts)
    if #a.xs < 2 then
        return
    end
    local one = analysis.series(a, function(r) return r.ranks == 1 end, "x")
    for i = 1, math.min(#a.ranks, MOST_RANKS) do
        local ranks = a.ranks[#a.ranks + 1 - i]
        local series = analysis.series(a, function(r) return r.ranks == ranks end, "x")
        for _, s in ipairs(ranks > 1 and one or {}) do
            s.dashed = true
            series[#series + 1] = s
        end
        local drawn = ranks > 1 or #a.ranks == 1 -- else one rank is in the others' charts
        local caption = "Time against %s on %s; bars show the least and most of rounds and repeats.%s"
        local shown, few = fastest(a, series)
        add_lines(charts, "time-" .. ranks, caption:format(a.spec.x, report.plural(ranks, "rank"), few), {
            title = ("Time on %s"):format(report.plural(ranks, "rank")), xlabel = label(a.spec.x),
            ylabel = label(a.spec.y), logx = true, logy = true, xtics = a.xs,
            series = drawn and lines_of(shown, "x", time) or {} })
    end
end

local function distance_from_best(a, charts)
    local crossings = analysis.crossings(a)
    if #a.xs < 2 then
        return
    end
    for i = 1, math.min(#a.ranks, MOST_RANKS) do
        local ranks = a.ranks[#a.ranks + 1 - i]
        local series = analysis.series(a, function(r) return r.ranks == ranks end, "x")
        local marks, words = {}, {}
        for _, c in ipairs(crossings) do
            if c.ranks == ranks then
                marks[#marks + 1] = c.x
                words[#words + 1] = ("%s %s %s at about %.0f"):format(c.above, c.sure and "overtakes" or "may overtake",
                    c.below, c.x)
            end
        end
        local function relative(r)
            local best = analysis.ranking(a, ranks, r.x)[1]
            return r.y / best.y
        end
        if #series > 1 then
            local shown, few = fastest(a, series)
            local caption = "How far each schedule is from the fastest one on %s%s.%s"
            add_lines(charts, "crossover-" .. ranks, caption:format(report.plural(ranks, "rank"), #words > 0
                and "; dotted: " .. table.concat(words, "; ") or "; no schedule overtakes the fastest in this range",
                few),
                { title = ("Time relative to the fastest on %s"):format(report.plural(ranks, "rank")),
                    xlabel = label(a.spec.x), ylabel = "time / fastest time", logx = true, xtics = a.xs, marks = marks,
                    series = lines_of(shown, "x", relative) })
        end
    end
end

local function against_ranks(a, charts)
    local chosen = { a.xs[#a.xs] }
    if #a.xs > 1 and a.spec.x ~= "ranks" then
        chosen[2] = a.xs[1]
    end
    if #a.ranks < 2 then
        return
    end
    for _, x in ipairs(a.spec.x == "ranks" and {} or chosen) do
        local function here(r) return r.x == x end
        local where = ("%s %s"):format(a.spec.x, math.tointeger(x) or x)
        -- the one-rank time begins every line
        local series = {}
        local one = analysis.series(a, function(r) return here(r) and r.ranks == 1 end, "ranks")[1]
        for _, s in ipairs(analysis.series(a, function(r) return here(r) and r.ranks > 1 end, "ranks")) do
            if one then
                table.insert(s.points, 1, one.points[1])
            end
            series[#series + 1] = s
        end
        local few
        series, few = fastest(a, series)
        add_lines(charts, "ranks-" .. (math.tointeger(x) or x),
            ("Time against the number of ranks at %s.%s"):format(where, few),
            { title = "Time at " .. where, xlabel = "ranks", ylabel = label(a.spec.y), logx = true, logy = true,
                xtics = a.ranks, series = lines_of(series, "ranks", time) })
        add_lines(charts, "efficiency-" .. (math.tointeger(x) or x),
            ("Efficiency at %s: speed-up over one rank, divided by the ranks.%s"):format(where, few),
            { title = "Efficiency at " .. where, xlabel = "ranks", ylabel = "efficiency (%)", logx = true,
                xtics = a.ranks, from_zero = true, series = lines_of(series, "ranks", function(r)
                    local e = analysis.efficiency(a, r)
                    return e and 100 * e
                end) })
    end
end

local function scaling(a, charts)
    if a.spec.x ~= "ranks" or #a.ranks < 2 then
        return
    end
    local series = analysis.series(a, function(r) return r.ranks > 1 end, "ranks")
    for _, s in ipairs(series) do
        local one
        for _, r in ipairs(a.records) do
            local same = s.name:match ",.*$" == r.series:match ",.*$"
            one = r.ranks == 1 and same and (not one or r.y < one.y) and r or one
        end
        if one then
            table.insert(s.points, 1, one)
        end
    end
    local few
    series, few = fastest(a, series)
    add_lines(charts, "ranks", "Time against the number of ranks; bars show the least and most of rounds and repeats."
        .. few,
        { title = "Time against ranks", xlabel = "ranks", ylabel = label(a.spec.y), logx = true, logy = true,
            xtics = a.ranks, series = lines_of(series, "ranks", time) })
    add_lines(charts, "efficiency", "Efficiency: speed-up over one rank, divided by the ranks." .. few,
        { title = "Efficiency", xlabel = "ranks", ylabel = "efficiency (%)", logx = true, xtics = a.ranks,
            from_zero = true, series = lines_of(series, "ranks", function(r)
                local e = r.ranks == 1 and 1 or analysis.efficiency(a, r)
                return e and 100 * e
            end) })
end

local TRACE_PARTS = { { "ops", "compute", "#009E73" }, { "moves", "packing", "#56B4E9" },
    { "exposed", "communication", "#D55E00" }, { "idle", "idle: waiting for another rank", "#E69F00" },
    { "rest", "the rest", "#999999" } }

-- Where the time goes at the most ranks and the largest x.
local function breakdown(a, charts)
    local x, ranks = a.xs[#a.xs], a.ranks[#a.ranks]
    if a.spec.x == "ranks" then
        x = ranks
    end
    local list, traced = {}, true
    for _, r in ipairs(x and analysis.ranking(a, ranks, x) or {}) do
        if analysis.exposed(r) and #list < MOST_BARS then
            list[#list + 1] = r
            traced = traced and math.type(r.row.trace_ops_pct) ~= nil
        end
    end
    if #list == 0 then
        return
    end
    local parts, names = {}, {}
    for i, r in ipairs(list) do
        names[i] = r.series
    end
    for _, p in ipairs(traced and TRACE_PARTS or {}) do
        local part = { name = p[2], colour = p[3], values = {} }
        for i, r in ipairs(list) do
            part.values[i] = r.y * r.row["trace_" .. p[1] .. "_pct"] / 100
        end
        parts[#parts + 1] = part
    end
    if not traced then
        parts = { { name = "compute", colour = "#009E73", values = {} },
            { name = "communication, waiting included", colour = "#D55E00", values = {} } }
        for i, r in ipairs(list) do
            parts[2].values[i] = r.y * analysis.exposed(r)
            parts[1].values[i] = r.y - parts[2].values[i]
        end
    end
    local where = a.spec.x == "ranks" and "" or (" at %s %s"):format(a.spec.x, math.tointeger(x) or x)
    local p = { title = ("Where the time goes on %s%s"):format(report.plural(ranks, "rank"), where),
        ylabel = label(a.spec.y), names = names, parts = parts }
    add_chart(charts, "breakdown", ("Where the time goes on %s%s, mean over ranks%s."):format(
        report.plural(ranks, "rank"), where, traced and ", from traces of the same runs" or ""),
        function(out) return plots.bars(p, out) end)
end

local function memory(a, charts)
    if #a.ranks < 2 then
        return
    end
    local x = a.spec.x ~= "ranks" and a.xs[#a.xs]
    local series = analysis.series(a, function(r) return r.ranks > 1 and (not x or r.x == x) end, "ranks")
    local one = analysis.series(a, function(r) return r.ranks == 1 and (not x or r.x == x) end, "ranks")[1]
    for _, s in ipairs(series) do
        if one then
            table.insert(s.points, 1, one.points[1])
        end
    end
    local where = x and (" at %s %s"):format(a.spec.x, math.tointeger(x) or x) or ""
    local shown, few = fastest(a, series)
    add_lines(charts, "memory", ("Most memory of a rank for activations and communication buffers%s.%s"):format(where,
        few),
        { title = "Memory of a rank" .. where, xlabel = "ranks", ylabel = "peak of activations and buffers (MiB)",
            logx = true, logy = true, xtics = a.ranks, series = lines_of(shown, "ranks", function(r)
                local peak = r.row.peak_bytes
                return math.type(peak) and peak > 0 and peak / 2 ^ 20 or nil
            end) })
end

-- ---- the page

local function short(value)
    if math.type(value) == "float" then
        return ("%.4g"):format(value)
    end
    return tostring(value)
end

local function winners_table(a)
    local titles, rows = { "ranks" }, {}
    for i, x in ipairs(a.xs) do
        titles[i + 1] = ("%s %s"):format(a.spec.x, math.tointeger(x) or x)
    end
    for _, ranks in ipairs(a.ranks) do
        local row = { tostring(ranks) }
        for i, x in ipairs(a.xs) do
            local list = analysis.ranking(a, ranks, x)
            local behind = analysis.doubt(list) or list[2]
                and ("next: %s, +%.0f %%"):format(list[2].series, 100 * (list[2].y / list[1].y - 1))
            row[i + 1] = list[1] and ("%s: %s%s"):format(list[1].series, short(list[1].y),
                behind and (" (%s)"):format(behind) or "") or ""
        end
        rows[#rows + 1] = row
    end
    return html.table(titles, rows, { true })
end

local COLUMNS = { { "gemm_pct", "gemm %" }, { "comm_ms", "comm ms" }, { "comm_exposed_ms", "exposed ms" },
    { "bytes_sent", "sent bytes" }, { "peak_bytes", "peak bytes" }, { "tokens_per_s", "tokens/s" } }

local function results_table(a)
    local titles, right = { "ranks", a.spec.series == "mesh" and "schedule" or a.spec.series, a.spec.x, a.spec.y,
        "least", "most", "efficiency %" }, { true, false, true, true, true, true, true }
    local used = {}
    for _, c in ipairs(COLUMNS) do
        for _, r in ipairs(a.records) do
            used[c[1]] = used[c[1]] or math.type(r.row[c[1]]) ~= nil
        end
        if used[c[1]] then
            titles[#titles + 1], right[#titles + 1] = c[2], true
        end
    end
    local rows = {}
    for _, ranks in ipairs(a.ranks) do
        for _, x in ipairs(a.xs) do
            local best = analysis.ranking(a, ranks, x)[1]
            for i, r in ipairs(analysis.ranking(a, ranks, x)) do
                local e = analysis.efficiency(a, r)
                local top = i == 1 or spread.overlap(best, r)
                local row = { tostring(ranks), r.series, short(x), { short(r.y), best = top },
                    r.low and short(r.low) or "n/a",
                    r.high and short(r.high) or "n/a", e and ("%.0f"):format(100 * e) or "" }
                for _, c in ipairs(COLUMNS) do
                    if used[c[1]] then
                        row[#row + 1] = r.row[c[1]] and short(r.row[c[1]]) or ""
                    end
                end
                rows[#rows + 1] = row
            end
        end
    end
    return html.table(titles, rows, right)
end

local function crossings_table(a)
    local rows = {}
    for i, c in ipairs(analysis.crossings(a)) do
        rows[i] = { tostring(c.ranks), c.below, c.above, ("%.0f"):format(c.x), ("%s to %s"):format(short(c.from),
            short(c.to)), c.sure and "no" or c.overlap and "yes" or "n/a" }
    end
    return #rows > 0 and html.table({ "ranks", "faster below", "faster above", "crossover " .. a.spec.x,
        "measured between", "spreads overlap" }, rows, { true, false, false, true }) or nil
end

local function not_measured_table(a)
    local rows = {}
    for _, p in ipairs(a.points) do
        if p.status ~= "ok" then
            rows[#rows + 1] = { sweep_file.words(p.point), p.status, tostring(p.reason or "") }
        end
    end
    return #rows > 0 and html.table({ "point", "", "reason" }, rows) or nil
end

local function options_text(h)
    local parts = {}
    for _, key in ipairs(sweep_file.sorted_keys(type(h.options) == "table" and h.options or {})) do
        parts[#parts + 1] = ("%s %s"):format(key, tostring(h.options[key]))
    end
    return table.concat(parts, ", ")
end

local function page(a, pictures, missing)
    local h = a.header
    local title = ("%s: %s"):format(h.name, h.script)
    local body = { "<h1>", html.escape(title), "</h1>\n" }
    local function add(text) body[#body + 1] = text end
    local function section(heading, text)
        if text then
            add(("<h2>%s</h2>\n%s"):format(html.escape(heading), text))
        end
    end
    if h.about then
        add("<p>" .. html.escape(h.about) .. "</p>\n")
    end
    add(("<p class=\"small\">%s</p>\n"):format(html.escape(("spl %s on %s (%s%s), %s; options: %s"):format(h.spl,
        tostring(h.host), tostring(h.machine), h.cores and ", " .. report.plural(h.cores, "core") or "",
        tostring(h.started), options_text(h) ~= "" and options_text(h) or "none"))))
    section("In short", html.list(analysis.summary(a)))
    if #a.records > 0 then
        section("Fastest", winners_table(a) .. ("<p class=\"small\">%s, median over repeats; least is best. Times "
            .. "whose spreads (least to most, of rounds and repeats) overlap are not told apart.</p>\n")
            :format(html.escape(label(a.spec.y))))
        section("Where one overtakes another", crossings_table(a))
    end
    if #pictures > 0 then
        add("<h2>Charts</h2>\n")
        for _, picture in ipairs(pictures) do
            add(html.figure(picture.png, picture.caption))
        end
    elseif missing then
        section("Charts", "<p>" .. html.escape(missing) .. "</p>\n")
    end
    if #a.records > 0 then
        section("All results", results_table(a))
    end
    section("Not measured", not_measured_table(a))
    return html.page(title, body)
end

local function read_file(path)
    local file = io.open(path, "rb")
    local bytes = file and file:read "a"
    if file then
        file:close()
    end
    return bytes
end

--- [local] The charts of results: {name, caption, text_of(path)}.
---@param a table what spl.sweep_analysis.read gave
---@return table[]
function sweep_report.charts(a)
    local charts = {}
    if #a.records == 0 then
        return charts
    end
    for _, make in ipairs { a.spec.x == "ranks" and scaling or time_against_x, distance_from_best, against_ranks,
        breakdown, memory } do
        if not (a.spec.x == "ranks" and make == distance_from_best) then
            make(a, charts)
        end
    end
    return charts
end

--- [local] Writes DIR/report.html and the charts beside it. The page is written also where gnuplot is not here.
---@param folder string
---@return string path, string[] pictures, table? problem why there are no charts
function sweep_report.write(folder)
    local a = analysis.read(folder)
    local pictures, problem = {}, nil
    for _, chart in ipairs(sweep_report.charts(a)) do
        local path = folder .. "/" .. chart.name
        local good, err = pcall(plots.draw, chart.text_of(path), path)
        if not good then
            if not (spl.is_error(err) and err.code == "environment") then
                error(err, 0)
            end
            problem = err
            break
        end
        pictures[#pictures + 1] = { png = read_file(path), caption = chart.caption, path = path }
    end
    local path = folder .. "/report.html"
    local good, message = core.system.replace(path, page(a, problem and {} or pictures, problem and problem.message))
    if not good then
        spl.error { code = "io", message = message }
    end
    local names = {}
    for i, p in ipairs(pictures) do
        names[i] = p.path
    end
    return path, names, problem, analysis.summary(a)
end

function sweep_report.main(...)
    local names = require "spl.command".read("report", { "DIR" }, {}, { ... })
    local path, pictures, problem, summary = sweep_report.write((names[1]:gsub("(.)/+$", "%1")))
    print("# " .. table.concat(summary, "\n# "))
    print(("# page: %s%s"):format(path, #pictures > 0 and not problem and (", with %s beside it"):format(
        report.plural(#pictures, "chart")) or ""))
    if problem then
        error(problem, 0)
    end
end

return sweep_report
