-- plots.lua: line and bar charts as PNG files, drawn by gnuplot.
local core = require "spl.core"
local spl = require "spl"
local plots = {}

local LIMIT = 120 -- seconds for one chart
-- Colours that most people can tell apart (Okabe & Ito, "Color universal design", 2008), and a mark for each.
local COLOURS = { "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933" }
local MARKS = { 7, 5, 9, 11, 13, 4, 6, 8 }

-- A string for gnuplot; nothing in it is special to it.
local function quoted(text)
    return '"' .. text:gsub('[\\"]', "\\%0"):gsub("[%c]", " ") .. '"'
end

local function number(value)
    return ("%.10g"):format(value)
end

local function head(p, out)
    local lines = {
        ("set terminal pngcairo noenhanced font 'sans,11' size %d,%d background rgb 'white'"):format(p.width or 900,
            p.height or 520),
        "set output " .. quoted(out),
        "set title " .. quoted(p.title) .. " font 'sans,13'",
        "set xlabel " .. quoted(p.xlabel or ""),
        "set ylabel " .. quoted(p.ylabel or ""),
        "set grid xtics ytics lc rgb '#dddddd' lw 1",
        "set border 3 lc rgb '#666666'",
        "set tics nomirror",
        "set key outside right top vertical Left reverse samplen 2",
    }
    return lines
end

-- The least and most of one coordinate over all series.
local function extent(series, index)
    local low, high = math.huge, -math.huge
    for _, s in ipairs(series) do
        for _, q in ipairs(s.points) do
            low, high = math.min(low, q[index]), math.max(high, q[index])
        end
    end
    return low, high
end

--- [local] The text for gnuplot of a chart of lines.
---@param p table {title, xlabel, ylabel, logx, logy, xtics = {values}, from_zero, series = {{name, points = {{x, y,
--- low?, high?}}, dashed}}, marks = {x of vertical lines}}
---@param out string the PNG file
---@return string
function plots.lines(p, out)
    local text = head(p, out)
    local low, high = extent(p.series, 1)
    local function add(format, ...)
        text[#text + 1] = format:format(...)
    end
    for _, axis in ipairs { "x", "y" } do
        if p["log" .. axis] then
            add("set logscale %s", axis)
        end
    end
    if p.logx then
        add("set xrange [%s:%s]", number(low / 1.15), number(high * 1.15))
    else
        local margin = math.max((high - low) * 0.05, 0.2)
        add("set xrange [%s:%s]", number(low - margin), number(high + margin))
    end
    if p.from_zero then
        add("set yrange [0:*]")
    end
    if p.xtics then
        local tics = {}
        for i, x in ipairs(p.xtics) do
            tics[i] = ('"%s" %s'):format(math.tointeger(x) or number(x), number(x))
        end
        add("set xtics (%s)", table.concat(tics, ", "))
    end
    for i, s in ipairs(p.series) do
        add("$data%d << END", i)
        for _, q in ipairs(s.points) do
            add("%s %s %s %s", number(q[1]), number(q[2]), number(q[3] or q[2]), number(q[4] or q[2]))
        end
        add("END")
    end
    for _, x in ipairs(p.marks or {}) do
        add("set arrow from first %s, graph 0 to first %s, graph 1 nohead dashtype 3 lw 1.5 lc rgb '#444444'",
            number(x), number(x))
    end
    local drawn = {}
    for i, s in ipairs(p.series) do
        local colour = s.dashed and "#888888" or COLOURS[(i - 1) % #COLOURS + 1]
        local mark = MARKS[(i - 1) % #MARKS + 1]
        drawn[#drawn + 1] = ("$data%d using 1:2:3:4 with yerrorbars notitle lw 1 pt %d ps 0 lc rgb '%s'"):format(i,
            mark, colour)
        drawn[#drawn + 1] = ("$data%d using 1:2 with linespoints lw 2 pt %d ps 1.1 %slc rgb '%s' title %s"):format(i,
            mark, s.dashed and "dashtype 2 " or "", colour, quoted(s.name))
    end
    add("plot %s", table.concat(drawn, ", \\\n     "))
    return table.concat(text, "\n") .. "\n"
end

--- [local] The text for gnuplot of a chart of stacked bars.
---@param p table {title, ylabel, names = {of the bars}, parts = {{name, values = {one a bar}}}}
---@param out string the PNG file
---@return string
function plots.bars(p, out)
    local text = head(p, out)
    local function add(format, ...)
        text[#text + 1] = format:format(...)
    end
    add("set style data histograms")
    add("set style histogram rowstacked")
    add("set style fill solid 0.9 border rgb 'white'")
    add("set boxwidth 0.7 relative")
    add("set yrange [0:*]")
    add("set xtics rotate by -35 scale 0")
    add("unset grid\nset grid ytics lc rgb '#dddddd' lw 1")
    add("$data << END")
    for i, name in ipairs(p.names) do
        local cells = { quoted(name) }
        for k, part in ipairs(p.parts) do
            cells[k + 1] = number(part.values[i])
        end
        add("%s", table.concat(cells, " "))
    end
    add("END")
    local drawn = {}
    for k, part in ipairs(p.parts) do
        drawn[k] = ("$data using %d%s lc rgb '%s' title %s"):format(k + 1, k == 1 and ":xtic(1)" or "",
            part.colour or COLOURS[(k - 1) % #COLOURS + 1], quoted(part.name))
    end
    add("plot %s", table.concat(drawn, ", \\\n     "))
    return table.concat(text, "\n") .. "\n"
end

--- [local] The path of gnuplot, or nil.
---@return string?
function plots.program()
    for folder in (os.getenv "PATH" or ""):gmatch "[^:]+" do
        local path = folder .. "/gnuplot"
        local file = io.open(path)
        if file then
            file:close()
            return path
        end
    end
end

local function read(path)
    local file = io.open(path, "rb")
    local text = file and file:read "a" or ""
    if file then
        file:close()
    end
    return text
end

--- [local] Draws one chart. Errors: code "environment" where there is no gnuplot, or it cannot draw.
---@param text string what plots.lines or plots.bars gave
---@param out string the PNG file that it names
function plots.draw(text, out)
    local program = plots.program()
    if not program then
        spl.error { code = "environment", message = "gnuplot is not here, so there are no charts: install it (Debian: "
            .. "apt-get install gnuplot-nox) and call `spl report` again" }
    end
    local input, said = os.tmpname(), os.tmpname()
    local file = assert(io.open(input, "w"))
    file:write(text)
    file:close()
    local result, message = core.system.run_process({ program, input }, { out = "/dev/null", err = said,
        seconds = LIMIT })
    local err = read(said)
    os.remove(input)
    os.remove(said)
    if result and result.how == "interrupt" then
        spl.error { code = "interrupt", message = "interrupted while gnuplot drew" }
    elseif not result or result.how ~= "exit" or result.code ~= 0 or #read(out) == 0 then
        spl.error { code = "environment", message = ("gnuplot could not draw '%s': %s"):format(out,
            message or err:match "([^\n]+)%s*$" or "it said nothing") }
    end
end

return plots
