-- report_spec.lua: `spl report`: what it says of results whose truth is known, the page and its charts, and what
-- happens without gnuplot or with a folder that is no sweep's.
local analysis = require "spl.sweep_analysis"
local core = require "spl.core"
local html = require "spl.html"
local json = require "spl.json"
local mpi = require "mpi"
local plots = require "spl.plots"
local spl = require "spl"

local folder

local function write(name, text)
    local file = assert(io.open(folder .. "/" .. name, "w"))
    file:write(text)
    file:close()
end

local function read(name)
    local file = io.open(folder .. "/" .. name, "rb")
    local text = file and file:read "a"
    if file then file:close() end
    return text
end

-- Times by law: one rank seq; tensor 0.5 seq + 200; ring 0.25 seq + 600, on two ranks: they cross at 1600.
local LAWS = { ["tp=2:tensor"] = function(x) return 0.5 * x + 200 end,
    ["cp=2:ring"] = function(x) return 0.25 * x + 600 end, ["tp=1:tensor"] = function(x) return x end }

local function results(change)
    local h = { kind = "sweep", format = 1, spl = spl.version, name = "planted", script = "sp_forward.lua",
        host = "here", identity = "x", options = json.object { hidden = 8 }, machine = "a <fast> one", cores = 2,
        started = "today",
        report = json.object { x = "seq", y = "time_ms_p50", series = "mesh" } }
    local lines = { h }
    for _, ranks in ipairs { 1, 2 } do
        for _, seq in ipairs { 400, 1600 // 2, 3200, 6400 } do
            for _, mesh in ipairs(ranks == 1 and { "tp=1:tensor" } or { "tp=2:tensor", "cp=2:ring" }) do
                for number = 1, 3 do
                    local ms = LAWS[mesh](seq) * (1 + 0.001 * (number - 2))
                    lines[#lines + 1] = { status = "ok", point = { ranks = ranks, seq = seq, mesh = mesh },
                        repeat_number = number, seconds = 1, rows = json.array { { time_ms_p50 = ms, ranks = ranks,
                            comm_exposed_ms = mesh == "cp=2:ring" and 0.6 * ms or 0.1 * ms, threads = 1,
                            peak_bytes = seq * 1024 * (mesh == "cp=2:ring" and 1 or 3) } } }
                end
            end
        end
    end
    lines[#lines + 1] = { status = "refused", point = { ranks = 2, seq = 400, mesh = "x=2:<odd>" }, repeat_number = 1,
        reason = "role \"<odd>\" is none", seconds = 0 }
    lines[#lines + 1] = { status = "failed", point = { ranks = 2, seq = 9, mesh = "cp=2:ring" }, repeat_number = 1,
        reason = "boom", seconds = 0 }
    if change then change(lines) end
    local text = {}
    for i, line in ipairs(lines) do text[i] = json.encode(line) .. "\n" end
    write("results.jsonl", table.concat(text))
end

local function said(sentence)
    local all = table.concat(analysis.summary(analysis.read(folder)), "\n")
    assert.is_truthy(all:find(sentence, 1, true), ("'%s' is not in\n%s"):format(sentence, all))
end

describe("spl report", function()
    before_each(function()
        folder = os.tmpname()
        os.remove(folder)
        assert(core.system.make_folder(folder))
    end)
    after_each(function() os.execute("rm -rf '" .. folder .. "'") end)

    it("finds who wins where, where one overtakes another, efficiency, communication and memory", function()
        results()
        said "On 2 ranks the fastest changes with seq: tensor from seq 400 to seq 800; ring from seq 3200 to seq 6400."
        local c = analysis.crossings(analysis.read(folder))
        assert.equal(1, #c)
        assert.same({ "tensor", "ring", 800, 3200, true, 2 }, { c[1].below, c[1].above, c[1].from, c[1].to, c[1].sure,
            c[1].ranks })
        -- ln(600/800) and ln(1800/1400) at 800 and 3200, straight between in ln x
        local share = math.log(600 / 800) / (math.log(600 / 800) - math.log(1800 / 1400))
        assert.is_true(math.abs(c[1].x - 800 * 4 ^ share) < 1e-6 * c[1].x)
        said "At seq 6400, 2 ranks (ring) are 2.91 times as fast as one rank: an efficiency of 145 %."
        said "more than half of the time at 4 of 8 places; most, 60 %, with ring on 2 ranks"
        said "At seq 6400 on 2 ranks, ring needs least memory for activations and buffers (6.25 MiB a rank)"
        said "12 of 14 points measured; 1 refused by the script, 1 failed"
    end)

    it("says so where spreads overlap, ranks take turns, or there is nothing to compare", function()
        results(function(lines)
            lines[1].cores = 1
            for _, l in ipairs(lines) do
                if l.rows and l.repeat_number == 3 and l.point.ranks == 2 then
                    l.rows[1].time_ms_p50 = l.rows[1].time_ms_p50 * 3
                end
            end
        end)
        said "may overtake tensor at about"
        said "but their spreads overlap there"
        said "(not distinguishable from tensor)"
        said "This machine has 1 core, fewer than the most threads that ran (2)"
        results(function(lines)
            for i = #lines, 2, -1 do lines[i] = nil end
            lines[2] = { status = "failed", point = { ranks = 2 }, repeat_number = 1, reason = "boom" }
        end)
        said "there is nothing to compare"
        said "0 of 1 point measured; 1 failed"
    end)

    it("names no winner for sure where a point was measured once", function()
        results(function(lines)
            for i = #lines, 2, -1 do
                if lines[i].repeat_number > 1 then table.remove(lines, i) end
            end
        end)
        said "Some points were measured once, so there is no spread to judge them by"
        said "Fastest on 2 ranks, by seq: tensor from seq 400 to seq 800; ring from seq 3200 to seq 6400."
        said "ring may overtake tensor at about seq 1677 (between seq 800 and seq 3200), but each was measured once."
        assert.equal(0, mpi.spl({ "report", folder }, { env = { PATH = "/nothing" } }).code % 3)
        assert.matches("n/a", read "report.html", 1, true)
    end)

    it("takes the spread of rounds where rows have it, and judges the fastest against all others", function()
        results(function(lines)
            for i = #lines, 2, -1 do
                local row = lines[i].rows and lines[i].rows[1]
                if lines[i].repeat_number > 1 then
                    table.remove(lines, i)
                elseif row then
                    row.time_ms_min, row.time_ms_p99, row.rounds = 0.99 * row.time_ms_p50, 1.01 * row.time_ms_p50, 5
                end
            end
            lines[#lines + 1] = { status = "ok", point = { ranks = 2, seq = 6400, mesh = "gp=2:gather" },
                repeat_number = 1, rows = json.array { { time_ms_p50 = 4000, time_ms_min = 2100, time_ms_p99 = 9000,
                    rounds = 5 } } }
        end)
        said("Fastest on 2 ranks, by seq: tensor from seq 400 to seq 800; ring at seq 3200; "
            .. "ring (not distinguishable from gather) at seq 6400.")
        said "On 2 ranks, ring overtakes tensor at about"
    end)

    it("takes one rank's points under several meshes for the same program", function()
        results(function(lines)
            for i = 2, #lines do
                local p = lines[i].point
                if p.ranks == 1 then
                    local row = json.decode(json.encode(lines[i].rows[1]))
                    row.time_ms_p50 = 3 * row.time_ms_p50
                    lines[#lines + 1] = { status = "ok", point = { ranks = 1, seq = p.seq, mesh = "tp=1:sequence" },
                        repeat_number = lines[i].repeat_number, rows = json.array { row } }
                end
            end
        end)
        local list = analysis.ranking(analysis.read(folder), 1, 400)
        assert.equal(1, #list)
        assert.is_true(math.abs(list[1].low - 400 * 0.999) < 1e-6 and math.abs(list[1].high - 1200 * 1.001) < 1e-6)
    end)

    it("compares by tokens a second where rows have them", function()
        results(function(lines)
            for _, l in ipairs(lines) do
                if l.rows then l.rows[1].tokens_per_s = l.point.ranks == 1 and 100 or 150 end
            end
        end)
        said "are 1.50 times as fast as one rank: an efficiency of 75 %"
    end)

    it("names schedules by the roles of their axes", function()
        assert.equal("ring", analysis.schedule("cp=4:ring", 4))
        assert.equal("sequence", analysis.schedule("tp=*:sequence", 4))
        assert.equal("data 2 × ring", analysis.schedule("dp=2:data, cp=*:ring", 4))
        assert.equal("one rank", analysis.schedule("cp=1:ring", 1))
        assert.equal("x", analysis.schedule("x=4", 4))
        assert.equal("ring zigzag", analysis.schedule("cp=*:ring", 4, "zigzag"))
        assert.equal("ring", analysis.schedule("cp=*:ring", 4, "contiguous"))
    end)

    it("writes a page that holds everything, and charts beside it", function()
        results()
        if not plots.program() then pending "gnuplot is not here" end
        local r = mpi.spl { "report", folder .. "/" }
        assert.equal(0, r.code, r.err)
        local page = assert(read "report.html")
        local pictures = 0
        for png in page:gmatch 'src="data:image/png;base64,([A-Za-z0-9+/=]+)"' do
            assert.equal("iVBORw0KGgo", png:sub(1, 11))
            pictures = pictures + 1
        end
        assert.is_true(pictures >= 8, pictures .. " pictures")
        assert.equal(pictures, mpi.count(page, "<img "))
        for _, name in ipairs { "time-2", "crossover-2", "ranks-6400", "efficiency-6400", "breakdown", "memory" } do
            assert.equal("\137PNG\r\n\26\n", (read(name .. ".png") or ""):sub(1, 8), name)
        end
        assert.is_nil(page:find "src=\"http" or page:find "<script" or page:find "<odd>" or page:find "<fast>")
        assert.matches("role &quot;&lt;odd&gt;&quot; is none", page, 1, true)
        assert.matches("a &lt;fast&gt; one", page, 1, true)
        assert.matches("ring: 2200 (next: tensor, +55 %)", page, 1, true)
    end)

    it("draws the fastest of many series, the winners among them, and says so", function()
        results(function(lines)
            for i = #lines, 2, -1 do
                if lines[i].point.ranks == 2 then table.remove(lines, i) end
            end
            for i = 1, 12 do -- the last is slow but at one length, where it wins
                for _, seq in ipairs { 400, 800, 3200, 6400 } do
                    local ms = i == 12 and (seq == 800 and 1 or 90 * seq) or seq * i
                    lines[#lines + 1] = { status = "ok", point = { ranks = 2, seq = seq, mesh = ("x%d=2"):format(i) },
                        repeat_number = 1, rows = json.array { { time_ms_p50 = ms } } }
                end
            end
        end)
        local charts = {}
        for _, c in ipairs(require "spl.sweep_report".charts(analysis.read(folder))) do charts[c.name] = c end
        local c = charts["crossover-2.png"]
        assert.matches("The 8 of 12 that are fastest on the whole.", c.caption, 1, true)
        local text = c.text_of "x.png"
        for i = 1, 12 do
            assert.equal(i <= 7 or i == 12, text:find(('"x%d"'):format(i), 1, true) ~= nil, i)
        end
    end)

    it("shows all its pictures in a browser", function()
        results()
        if not plots.program() then pending "gnuplot is not here" end
        if mpi.command({ "sh", "-c", "command -v chromium" }).code ~= 0 then pending "chromium is not here" end
        assert.equal(0, mpi.spl({ "report", folder }).code)
        local page = read "report.html"
        write("judged.html", (page:gsub("</body>", function()
            return "<script>document.title = Array.from(document.images).map(i => i.complete && i.naturalWidth > 500 &&"
                .. " i.getBoundingClientRect().width <= innerWidth).join() + ' ' + "
                .. "(document.documentElement.scrollWidth <= innerWidth)</script></body>"
        end)))
        local r = mpi.command({ "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000",
            "--user-data-dir=" .. folder .. "/chromium", "--dump-dom", "file://" .. folder .. "/judged.html" })
        local title = r.out:match "<title>([^<]*)</title>" or ""
        assert.matches("^true", title)
        assert.is_nil(title:find "false", title)
        assert.equal(mpi.count(page, "<img "), mpi.count(title:match "^(%S+)", "true"))
    end)

    it("writes the page without charts where gnuplot is not here, and says which package is missing", function()
        results()
        local r = mpi.spl({ "report", folder }, { env = { PATH = "/nothing" } })
        assert.equal(3, r.code)
        assert.matches("gnuplot is not here, so there are no charts: install it (Debian: apt-get install gnuplot-nox)",
            r.err, 1, true)
        local page = assert(read "report.html")
        assert.equal(0, mpi.count(page, "<img "))
        assert.matches("gnuplot-nox", page, 1, true)
        assert.matches("On 2 ranks the fastest changes with seq", page, 1, true)
    end)

    it("refuses a folder without results, or with something else", function()
        local r = mpi.spl { "report", folder }
        assert.equal(2, r.code)
        assert.matches("there are no results of a sweep in", r.err)
        write("results.jsonl", "{}\n")
        r = mpi.spl { "report", folder }
        assert.equal(1, r.code)
        assert.matches("its first line does not say of which", r.err, 1, true)
        results(function(lines) lines[3] = { status = "ok" } end)
        assert.matches("line 3: no run of a sweep", mpi.spl({ "report", folder }).err, 1, true)
        results(function(lines) lines[1].format = 9 end)
        assert.matches("has format 9", mpi.spl({ "report", folder }).err, 1, true)
        assert.matches("`spl report` needs DIR", mpi.spl({ "report" }).err, 1, true)
    end)
end)

describe("what a benchmark says of its rows", function()
    local spread = require "spl.spread"

    local function row(mesh, low, p50, high, rounds)
        local r = { name = mesh, mesh = mesh, scheme = "contiguous", batch = 2 }
        spread.note(r, { ms_min = low, ms_p50 = p50, ms_p99 = high, rounds = rounds or 5 }, 500)
        return r
    end

    it("is the fastest, those that overlap with it, and what runs the same program", function()
        local a, b, c = row("a=1:tensor", 9, 10, 11), row("a=1:sequence", 12, 13, 14), row("h=1:hierarchical", 5, 6, 8)
        assert.equal("fastest: h=1:hierarchical, 166667 tokens/s (batch x seq / time)", spread.fastest { a, b, c })
        assert.equal("a=1:tensor, a=1:sequence run the same program here: their times differ by noise alone",
            spread.fastest { a, b })
        c.high = 9.5 / 1000
        assert.matches("time%); not distinguishable from a=1:tensor, a=1:sequence: their spreads",
            spread.fastest { a, b, c })
        assert.matches("; each was measured once", spread.fastest { row("a=1:tensor", 9, 9, 9, 1), c })
        assert.is_nil(spread.fastest { a })
        assert.is_nil(spread.fastest { a, row("h=1:hierarchical") })
    end)
end)

describe("html", function()
    it("encodes base64 as RFC 4648 says", function()
        for plain, coded in pairs { [""] = "", f = "Zg==", fo = "Zm8=", foo = "Zm9v", foob = "Zm9vYg==",
            ["\0\255\254"] = "AP/+" } do
            assert.equal(coded, html.base64(plain))
        end
    end)
end)

describe("the verdict of a benchmark", function()
    it("says OK of no wrong elements only where rel_err keeps its bound too", function()
        local report = require "spl.report"
        local function first(over)
            local lines = {}
            report.verdict(function(format, ...) lines[#lines + 1] = format:format(...) end,
                { script = "x", checked = true, what = "out", wrong = 0, over = over, as_theory = true })
            return lines[1]
        end
        assert.equal("# wrong elements: 0, OK", first {})
        assert.equal("# wrong elements: 0", first { "rel_err 1 is above 0.5" })
    end)

    it("says of bytes only what theory says, and names the rows of which it says nothing", function()
        local report = require "spl.report"
        local function last(untold, as_theory)
            local lines = {}
            report.verdict(function(format, ...) lines[#lines + 1] = format:format(...) end, { script = "x",
                checked = true, what = "out", wrong = 0, over = {}, as_theory = as_theory, untold = untold, rows = 2 })
            return lines[2]
        end
        assert.equal("# bytes sent: as theory says", last({}, true))
        assert.equal("# bytes sent: as theory says; no theory for b", last({ "b" }, true))
        assert.equal("# bytes sent: not compared; no theory for a, b", last({ "a", "b" }, true))
        assert.equal("# bytes sent: NOT as theory says, FAILED; no theory for b", last({ "b" }, false))
    end)
end)

describe("rows of a benchmark", function()
    local rows = require "spl.rows"
    local function told(meshes, times)
        local list, lines = {}, {}
        for i, mesh in ipairs(meshes) do
            list[i] = { name = mesh, mesh = mesh, batch = 1, scheme = "contiguous", y = times[i], low = times[i],
                high = times[i] }
        end
        local failed = rows.all(list, function(row)
            if row.mesh == meshes[2] then return { wrong = 0, bound = 1e-6, rel_err = 2e-6 }, true end
            return nil, true
        end, { say = function(format, ...) lines[#lines + 1] = format:format(...) end, script = "x", what = "out",
            checked = true, dtype = "f32" })
        return table.concat(lines, "\n"), failed
    end

    it("let no approximate one win, and name what is above its bound", function()
        local text, failed = told({ "a=1:hierarchical", "a=1:tensor, b=1:data" }, { 1, 2 })
        assert.is_nil(text:find("fastest", 1, true))
        assert.matches("a=1:tensor, b=1:data: rel_err 2.0e-06 is above the 1.0e-06 that f32 must keep, FAILED", text, 1,
            true)
        assert.is_true(failed)
    end)

    it("say how an approximate one is one, and which ranks have no token", function()
        local lines = {}
        local function say(format, ...) lines[#lines + 1] = format:format(...) end
        local axes = { { size = 4, role = "hierarchical" }, { size = 2, role = "sequence" } }
        rows.approximate(say, { { size = 4, role = "ring" } }, { seq = 8, chunk = 4, summaries = 1 })
        assert.same({}, lines)
        rows.approximate(say, axes, { seq = 100, chunk = 64, summaries = 1 }, 1e-3)
        assert.matches("approximate: chunks of 64, 1 summary of each; approx_err 1.0e-03", lines[1], 1, true)
        assert.matches("2 chunks for 4 ranks: .* 2 hold no token; a %-%-chunk of at most 25", lines[2])
        rows.approximate(say, axes, { seq = 256, chunk = 64, summaries = 2 }, nil)
        assert.equal(3, #lines)
    end)
end)
