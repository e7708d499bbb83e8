-- bench_comm.lua: the collectives over one axis of a mesh, over a range of sizes: time, bandwidths as nccl-tests
-- defines them, and whether every element arrived. Prints as nccl-tests does, with one section a collective, and exits
-- with 1 when a value is wrong.
local spl = require "spl"
local report = require "spl.report"
local transfers = require "spl.transfers"

local o = spl.args {
    "Times collectives over an axis of a mesh over a range of sizes, out of place and in place, and checks all values.",
    op = { default = transfers.names, of = "string", separator = ",", metavar = "OP[,OP...]",
        help = "collectives to measure" },
    mesh = { default = "x=*", metavar = "MESH", help = "axes of the ranks, as \"node=2, x=*\"" },
    axis = { type = "string", metavar = "NAME", help = "the axis to measure, at the same time in each of its groups "
        .. "(default: the first)" },
    min = { default = 8, metavar = "BYTES", help = "smallest size; suffixes k, M, G" },
    max = { default = 64 << 20, metavar = "BYTES", help = "largest size" },
    factor = { default = 4, min = 2, help = "from one size to the next" },
    dtype = { default = "f32", choices = transfers.dtypes, help = "of the elements" },
    root = { default = 0, min = 0, metavar = "RANK", help = "of broadcast: a coordinate of the axis" },
    rounds = { default = 20, help = "timed rounds" },
    warmup = { default = 5, min = 0, help = "rounds before them" },
    check = { default = true, help = "compare every element that arrives" },
    json = { default = false, help = "one JSON object a row, nothing else" },
}

local JSON_KEYS = { "op", "size_bytes", "count", "dtype", "redop", "root", "time_us", "algbw_gbs", "busbw_gbs", "wrong",
    "time_us_in_place", "algbw_gbs_in_place", "busbw_gbs_in_place", "wrong_in_place", "mesh", "axis", "ranks" }

-- Widths of nccl-tests' own columns.
local columns = {
    { title = "size", unit = "B", width = 11 },
    { title = "count", unit = "elements", width = 13 },
    { title = "type", unit = "", width = 9 },
    { title = "redop", unit = "", width = 7 },
    { title = "root", unit = "", width = 7 },
}
for _ = 1, 2 do
    for _, c in ipairs { { "time", "us", 8 }, { "algbw", "GB/s", 7 }, { "busbw", "GB/s", 7 }, { "#wrong", "", 7 } } do
        columns[#columns + 1] = { title = c[1], unit = c[2], width = c[3] }
    end
end

local function say(format, ...)
    if spl.rank() == 0 and not o.json then
        print(select("#", ...) > 0 and format:format(...) or format)
    end
end

local function usage(format, ...)
    spl.error { code = "usage", message = format:format(...) }
end

local function nearest(word, names)
    local near = spl.nearest(word, names)
    return near and ("; did you mean '%s'?"):format(near) or "; there is " .. table.concat(names, ", ")
end

local function wanted_ops()
    local list, known = {}, {}
    for _, name in ipairs(transfers.names) do
        known[name] = true
    end
    for i, word in ipairs(o.op) do
        list[i] = word:gsub("-", "_")
        if not known[list[i]] then
            usage("--op: there is no collective '%s'%s", word, nearest(list[i], transfers.names))
        end
    end
    return list
end

local function wanted_axis(mesh)
    local names = {}
    for i, axis in ipairs(mesh.axes) do
        names[i] = axis.name
        if axis.name == (o.axis or axis.name) then
            return axis
        end
    end
    return usage("--axis: the mesh \"%s\" has no axis '%s'%s", mesh.spec, o.axis, nearest(o.axis, names))
end

-- Mean over the rounds of the slowest rank's time, in seconds; nil where nothing is computed, and so nothing moves.
local function timed(run)
    if spl.facts().backend == "null" then
        run()
        return nil
    end
    for _ = 1, o.warmup do
        run()
    end
    local each, sum = {}, 0.0
    collectgarbage()
    for i = 1, o.rounds do
        spl.barrier()
        local start = spl.now()
        run()
        each[i] = spl.now() - start
    end
    for i = 1, o.rounds, 16 do -- as many as spl.max takes at once
        for _, slowest in ipairs { spl.max(table.unpack(each, i, math.min(i + 15, o.rounds))) } do
            sum = sum + slowest
        end
    end
    return sum / o.rounds
end

-- One half of a row: time, algbw, busbw, wrong elements on all ranks (nil: not checked). Nothing where in place has no
-- meaning.
local function measure(c, mesh, axis, data, in_place, buffers)
    local send, recv = transfers.views(c, in_place, buffers.send, buffers.recv)
    if not send then
        return {}
    end
    local function run()
        transfers.run(c, mesh, axis, send, recv)
    end
    data:prepare(c, send, recv)
    local half, seconds = {}, timed(run)
    if seconds then
        half.us = 1e6 * seconds
        half.algbw, half.busbw = transfers.bandwidths(c, seconds)
    end
    if buffers.check then -- a call of its own: in place, the rounds have summed what earlier ones left
        data:prepare(c, send, recv)
        run()
        half.wrong = spl.sum(data:count_wrong(c, recv))
    end
    return half
end

local function cells_of(half, cells)
    for _, cell in ipairs { { half.us, 7 }, { half.algbw, 6 }, { half.busbw, 6 } } do
        cells[#cells + 1] = cell[1] and report.fitted(cell[1], cell[2]) or "N/A"
    end
    cells[#cells + 1] = half.wrong and ("%d"):format(half.wrong) or "N/A"
end

local function show_row(c, mesh, axis, out, within)
    local cells = { c.size_bytes, c.count, o.dtype, c.redop, c.root }
    cells_of(out, cells)
    cells_of(within, cells)
    say(report.row(columns, cells))
    if o.json then
        local object = { op = c.op, size_bytes = c.size_bytes, count = c.count, dtype = o.dtype, redop = c.redop,
            root = c.root, mesh = mesh.spec, axis = axis.name, ranks = axis.size }
        for suffix, half in pairs { [""] = out, _in_place = within } do
            object["time_us" .. suffix] = half.us
            object["algbw_gbs" .. suffix] = half.algbw
            object["busbw_gbs" .. suffix] = half.busbw
            object["wrong" .. suffix] = half.wrong
        end
        local line = report.json_text(JSON_KEYS, object)
        if line then
            print(line)
            io.stdout:flush()
        end
    end
end

local function header(mesh, axis)
    local groups = spl.size() // axis.size
    say("# spl %s bench_comm: collectives of %s on axis %s of mesh \"%s\"%s", spl.version,
        report.plural(axis.size, "rank"), axis.name, mesh.spec,
        groups > 1 and (", %d groups at the same time"):format(groups) or "")
    say("# minBytes %d maxBytes %d step: %d(factor) warmup iters: %d iters: %d validation: %d", o.min, o.max, o.factor,
        o.warmup, o.rounds, o.check and 1 or 0)
    say("# time: mean over the iterations of the slowest rank's, each after a barrier; 1 GB/s is 1e9 bytes a second")
    say("#")
    say("# Using ranks")
    for _, line in ipairs(report.machine()) do
        say("#  %s", line)
    end
    say("#")
end

-- The sizes of one collective; returns the wrong elements.
local function section(op, mesh, axis, data, buffers)
    local wrong, bandwidth, halves = 0, 0.0, 0
    say("# %s", op)
    say("%-52s%23s%33s", "#", "out-of-place", "in-place")
    say(report.head(columns))
    local size = o.min
    while size <= o.max do
        local c = transfers.plan(op, size, o.dtype, axis.coord, axis.size, o.root)
        local out = measure(c, mesh, axis.name, data, false, buffers)
        local within = measure(c, mesh, axis.name, data, true, buffers)
        for _, half in ipairs { out, within } do
            wrong = wrong + (half.wrong or 0)
            if half.busbw then
                bandwidth, halves = bandwidth + half.busbw, halves + 1
            end
        end
        show_row(c, mesh, axis, out, within)
        size = size <= o.max // o.factor and size * o.factor or o.max + 1
    end
    say("# Out of bounds values : %s", not buffers.check and "not checked" or wrong == 0 and "0 OK"
        or ("%d FAILED"):format(wrong))
    say("# Avg bus bandwidth    : %s", halves > 0 and ("%g"):format(bandwidth / halves) or "N/A")
    say("#")
    return wrong
end

local ops = wanted_ops()
if o.min > o.max then
    usage("--min is %d and --max %d bytes; the smallest size must not be above the largest", o.min, o.max)
end
local mesh <close> = spl.mesh(o.mesh)
local axis = wanted_axis(mesh)
if o.root >= axis.size then
    usage("--root is %d; the ranks of axis '%s' are 0 to %d", o.root, axis.name, axis.size - 1)
end
local elements = 1
for _, op in ipairs(ops) do
    local c = transfers.plan(op, o.max, o.dtype, axis.coord, axis.size, o.root)
    elements = math.max(elements, c.send, c.recv)
end
local send <close> = spl.tensor { shape = { elements }, dtype = o.dtype }
local recv <close> = spl.tensor { shape = { elements }, dtype = o.dtype }
local buffers = { send = send, recv = recv, check = o.check and spl.facts().backend ~= "null" }
local data = transfers.data(o.dtype, axis.size)
header(mesh, axis)
local wrong = 0
for _, op in ipairs(ops) do
    wrong = wrong + section(op, mesh, axis, data, buffers)
end
if wrong > 0 then
    if o.json and spl.rank() == 0 then
        io.stderr:write(("spl: bench_comm: %s\n"):format(report.plural(wrong, "wrong element")))
    end
    os.exit(1)
end
