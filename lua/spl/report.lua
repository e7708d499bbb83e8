-- report.lua: text that people read: fixed-width tables in the manner of nccl-tests, sizes, headers of benchmarks, and
-- how tables of results print.
local core = require "spl.core"
local report = {}

--- [local] "1 rank", "2 ranks".
---@param n integer
---@param what string in the singular
---@return string
function report.plural(n, what)
    return ("%d %s%s"):format(n, what, n == 1 and "" or "s")
end

--- [local] "1.50 MiB" of a number of bytes; "0 B" up to 1023 are whole.
---@param bytes number
---@return string
function report.bytes(bytes)
    local units = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" }
    local i = 1
    while bytes >= 1024 and i < #units do
        bytes, i = bytes / 1024, i + 1
    end
    return (i == 1 and "%d %s" or "%.2f %s"):format(i == 1 and math.tointeger(bytes) or bytes, units[i])
end

--- [local] "[1, 2048, 768]" of a list of sizes.
---@param shape integer[]
---@return string
function report.shape(shape)
    return "[" .. table.concat(shape, ", ") .. "]"
end

--- [local] A number in `width` columns with as many digits after the point as fit, at most `most`.
---@param value number
---@param width integer
---@param most? integer (2)
---@return string
function report.fitted(value, width, most)
    local digits = #("%.0f"):format(math.floor(value))
    local after = math.max(0, math.min(most or 2, width - digits - 1))
    return digits > width and ("%.1e"):format(value) or ("%." .. after .. "f"):format(value)
end

--- One column of a table.
---@class spl.column
---@field title string
---@field unit string in brackets under the title; "" for none
---@field width integer of the text; longer cells push the line out rather than being cut
---@field left? boolean
---@field format? string for numbers
---@field digits? integer in place of format: as many after the point as fit the width, at most this

local function line(columns, cell)
    local parts = {}
    for i, column in ipairs(columns) do
        parts[i] = ((column.left and "%-" or "%") .. column.width .. "s"):format(cell(column, i))
    end
    return (table.concat(parts, " "):gsub("%s+$", ""))
end

--- [local] The column row and the units row, each a comment beginning with '#'.
---@param columns spl.column[]
---@return string
function report.head(columns)
    local titles = line(columns, function(c) return c.title end)
    local units = line(columns, function(c) return c.unit ~= "" and "(" .. c.unit .. ")" or "" end)
    return "#" .. titles .. "\n#" .. units
end

--- [local] One row, one blank before it where the head has its '#'. A cell is a number (written by the column's
--- format), a text, or nil: "-".
---@param columns spl.column[]
---@param cells table by position
---@return string
function report.row(columns, cells)
    return " " .. line(columns, function(c, i)
        local cell = cells[i]
        if cell == nil then
            return "-"
        end
        if type(cell) ~= "number" then
            return tostring(cell)
        end
        return c.digits and report.fitted(cell, c.width, c.digits) or (c.format or "%s"):format(cell)
    end)
end

--- [local] A table whose columns are as wide as their longest cell.
---@param titles string[]
---@param rows string[][]
---@param right? table<integer, boolean> columns that end flush
---@return string
function report.aligned(titles, rows, right)
    local columns = {}
    for i, title in ipairs(titles) do
        local width = #title
        for _, row in ipairs(rows) do
            width = math.max(width, #row[i])
        end
        columns[i] = { title = title, unit = "", width = width, left = not (right and right[i]) }
    end
    local lines = { line(columns, function(c) return c.title end) }
    for _, row in ipairs(rows) do
        lines[#lines + 1] = line(columns, function(_, i) return row[i] end)
    end
    return table.concat(lines, "\n")
end

--- [local] What block:explain() prints: one line an op or a communication, and the bytes that this rank sends in all.
---@param lines table as block:explain gives it
---@return string
function report.explain(lines)
    local rows = {}
    for i, l in ipairs(lines) do
        local makes = #l.shape > 0 -- a ring only passes on what there is
        rows[i] = { l.what, l.subject, l.axis or "", makes and report.shape(l.shape) or "",
            makes and report.shape(l.local_shape) or "", l.layout, l.axis and tostring(l.bytes) or "" }
    end
    local table_text = report.aligned({ "op", "makes", "axis", "shape", "here", "layout", "bytes sent" }, rows,
        { [7] = true })
    return ("%s\nrank %d sends %d bytes (%s)"):format(table_text, lines.rank, lines.bytes, report.bytes(lines.bytes))
end

-- ---- headers of benchmarks

-- Adds the cores of an affinity mask ("0-3,8") to a set; returns how many were new.
local function add_cores(set, mask)
    local new = 0
    for first, last in mask:gmatch("(%d+)%-?(%d*)") do
        for core_number = tonumber(first), tonumber(last) or tonumber(first) do
            new = new + (set[core_number] and 0 or 1)
            set[core_number] = true
        end
    end
    return new
end

-- Hosts with their ranks, threads and cores, in the order of their first rank.
local function hosts_of(ranks)
    local hosts = {}
    for _, r in ipairs(ranks) do
        local h = hosts[r.host]
        if not h then
            h = { name = r.host, ranks = 0, threads = 0, cores = 0, set = {} }
            hosts[r.host], hosts[#hosts + 1] = h, h
        end
        h.ranks, h.threads = h.ranks + 1, h.threads + r.threads
        h.cores = h.cores + add_cores(h.set, r.affinity)
    end
    return hosts
end

-- A sentence for each host on which ranks have to take turns.
local function crowded(ranks)
    local hosts, lines = hosts_of(ranks), {}
    for _, h in ipairs(hosts) do
        if h.cores > 0 and h.threads > h.cores then
            lines[#lines + 1] = ("%s%s on %s%s: they take turns, so times say little"):format(
                report.plural(h.ranks, "rank"), h.threads == h.ranks and "" or (" with %d threads"):format(h.threads),
                report.plural(h.cores, "core"), #hosts == 1 and "" or " of host " .. h.name)
        end
    end
    return lines
end

-- [collective] Where each rank computes, and with what.
local function survey()
    local f, ranks = core.facts(), {}
    for i, text in ipairs(core.gather(table.concat({ f.host, f.threads, f.affinity, f.backend_description }, "\t"))) do
        local host, threads, affinity, what = text:match("^(.-)\t(%d+)\t(.-)\t(.*)$")
        ranks[i] = { host = host, threads = tonumber(threads), affinity = affinity,
            text = ("host %s, %s"):format(host, (what:gsub("%s+$", ""))) }
    end
    return ranks
end

--- [collective] What the header of a benchmark says about the ranks: who computes where and with what, and whether
--- times mean anything there. Neighbours that are alike share a line.
---@return string[] lines without '#'
function report.machine()
    local f = core.facts()
    local ranks, lines, first = survey(), {}, 1
    for i, r in ipairs(ranks) do
        if not ranks[i + 1] or ranks[i + 1].text ~= r.text then
            local who = first == i and "rank " .. i - 1 or ("ranks %d-%d"):format(first - 1, i - 1)
            lines[#lines + 1], first = who .. ": " .. r.text, i + 1
        end
    end
    if f.blas_forced and f.backend ~= "null" then
        lines[#lines + 1] = f.blas_forced .. "; speed and gemm % are those of these kernels"
    end
    if f.backend == "null" then
        lines[#lines + 1] = "so there are no times, and no values to check"
    elseif core.virtual() then
        lines[#lines + 1] = "virtual ranks take turns in one process: values and bytes are exact, times mean nothing"
    else
        table.move(crowded(ranks), 1, #ranks, #lines + 1, lines)
    end
    return lines
end

--- [local] Which axes of a mesh stay inside a host and which do not, in words; nil where there is one host.
---@param mesh spl.mesh|table a mesh, or what spl.mesh.parse gives when told hosts
---@return string?
function report.hosts(mesh)
    local parts, several = {}, false
    for i, axis in ipairs(mesh.axes) do
        several = several or axis.hosts > 1
        parts[i] = ("%s %s"):format(axis.name, axis.hosts == 1 and "inside a host"
            or ("across %d hosts"):format(axis.hosts))
    end
    return several and table.concat(parts, ", ") or nil
end

-- ---- results

--- [local] A percentage in five columns, marked where it is above a limit; nil of nil.
---@param value? number
---@param limit number
---@return string?
function report.percent(value, limit)
    return value and report.fitted(value, 5, 1) .. (value > limit and "!" or " ")
end

--- [local] How often something was timed, in words; with few rounds, what p99 is then.
---@param rounds integer
---@param warmup integer
---@return string
function report.rounds(rounds, warmup)
    return ("%s after %d of warm-up%s"):format(report.plural(rounds, "round"), warmup,
        rounds < 100 and "; p99: the slowest" or "")
end

local SETTING = { "virtual", "cores", "oversubscribed", "hosts" }

local setting -- what a row of JSON says in place of a header

local function read_setting()
    local hosts, names = hosts_of(survey()), {}
    setting = { virtual = core.virtual(), cores = 0, oversubscribed = false }
    for i, h in ipairs(hosts) do
        names[i], setting.cores = h.name, setting.cores + h.cores
        setting.oversubscribed = setting.oversubscribed or h.cores > 0 and h.threads > h.cores
    end
    setting.hosts = table.concat(names, ",")
end

local TIMES = { seconds = true, gflops = true, gemm_pct = true, comm_ms = true, comm_exposed_ms = true, comm_pct = true,
    comm_exposed_s = true, tokens_per_s = true }

local function is_time(key)
    return TIMES[key] or key:match "^time_" or key:match "^algbw_" or key:match "^busbw_"
end

--- [collective] One line of JSON for rank 0: the keys in order, each from the first of the tables that has it, else
--- null; and whether the ranks are virtual (times and speeds are null then), on how many cores they are, whether
--- threads outnumber them on some host, and the hosts.
---@param keys string[]
---@param ... table
---@return string? nil on other ranks
function report.json_text(keys, ...)
    local spl = require "spl"
    if not setting then
        read_setting()
    end
    if spl.rank() ~= 0 then
        return nil
    end
    local json = require "spl.json"
    local object, tables = {}, table.pack(...)
    tables.n = tables.n + 1
    tables[tables.n] = setting
    keys = table.move(SETTING, 1, #SETTING, #keys + 1, table.move(keys, 1, #keys, 1, {}))
    for _, key in ipairs(keys) do
        for i = 1, tables.n do
            if object[key] == nil then
                object[key] = tables[i][key]
            end
        end
        if object[key] == nil or setting.virtual and is_time(key) then
            object[key] = json.null
        end
    end
    return json.encode(object, keys)
end

--- [collective] Prints what report.json_text gives.
---@param keys string[]
---@param ... table
function report.json_line(keys, ...)
    local text = report.json_text(keys, ...)
    if text then
        print(text)
        io.stdout:flush()
    end
end

--- [local] The last lines of a benchmark's table, and whether anything failed: wrong elements, rows whose rel_err is
--- too large, bytes that are not as theory says. With json, failures go to standard error in one line.
---@param say function prints a line of the table
---@param v table {script=, json=, checked=, what= "every saved tensor", wrong=, over= sentences, as_theory= of the rows
--- that have a theory, untold= names of those that have none, rows= how many there are}
---@return boolean failed
function report.verdict(say, v)
    say("# wrong elements: %s", not v.checked and ("not checked (--check compares %s with fp64)"):format(v.what)
        or v.wrong == 0 and (#v.over > 0 and "0" or "0, OK") or ("%d, FAILED"):format(v.wrong))
    for _, sentence in ipairs(v.over) do say("# %s, FAILED", sentence) end
    local untold = v.untold or {}
    say("# bytes sent: %s%s", not v.as_theory and "NOT as theory says, FAILED"
        or #untold > 0 and #untold == v.rows and "not compared" or "as theory says",
        #untold > 0 and "; no theory for " .. table.concat(untold, ", ") or "")
    local failed = v.wrong > 0 or #v.over > 0 or not v.as_theory
    if failed and v.json and require "spl".rank() == 0 then
        io.stderr:write(("spl: %s: %s; bytes %sas theory says%s\n"):format(v.script,
            report.plural(v.wrong, "wrong element"), v.as_theory and "" or "not ",
            #v.over > 0 and "; " .. v.over[1] or ""))
    end
    return failed
end

-- ---- definitions

local BIASES = { "qkv_bias", "out_bias", "mlp_bias" }

-- "bias", "no bias", or which of them.
local function biases(c)
    local there = {}
    for _, name in ipairs(BIASES) do
        there[#there + 1] = c[name] and name or nil
    end
    return #there == #BIASES and "bias" or #there == 0 and "no bias" or table.concat(there, " and ")
end

--- [local] A block's definition in one line: what print(block) says, and the headers of benchmarks.
---@param c table block.config
---@return string
function report.block(c)
    local parts = { ("hidden %d, heads %d, kv_heads %d, head_dim %d, ffn %d"):format(c.hidden, c.heads, c.kv_heads,
        c.head_dim, c.ffn), c.dtype, c.norm .. " norm", c.act .. (c.gated and " gated" or ""), "qkv " .. c.qkv,
        biases(c), c.rope_theta > 0 and ("rope %g"):format(c.rope_theta) or "no rope",
        c.mask and c.mask.spec or c.causal and "causal" or "full" }
    if c.dropout_attention == c.dropout_hidden then
        parts[#parts + 1] = ("dropout %g"):format(c.dropout_hidden)
    else
        parts[#parts + 1] = ("dropout %g in attention, %g after"):format(c.dropout_attention, c.dropout_hidden)
    end
    parts[#parts + 1] = "seed " .. c.seed
    return table.concat(parts, ", ")
end

local function by_kind_and_name(a, b)
    if (type(a.value) == "table") ~= (type(b.value) == "table") then
        return type(b.value) == "table"
    end
    return a.key < b.key
end

local function shown(value)
    return math.type(value) == "float" and ("%.6g"):format(value) or tostring(value)
end

local add_record

-- A list: of tables as columns, of others in brackets on one line.
local function add_list(lines, list, indent)
    local meta = type(list[1]) == "table" and getmetatable(list[1])
    if type(list[1]) ~= "table" or meta and meta.__tostring and meta.__name ~= "spl.record" then
        local parts = {}
        for i, value in ipairs(list) do
            parts[i] = shown(value)
        end
        lines[#lines + 1] = indent .. "[" .. table.concat(parts, ", ") .. "]"
        return
    end
    local titles, rows, right = {}, {}, {}
    for key in pairs(list[1]) do
        titles[#titles + 1] = tostring(key)
    end
    table.sort(titles, function(a, b) -- names first
        if (a == "name") ~= (b == "name") then
            return a == "name"
        end
        return a < b
    end)
    for i, entry in ipairs(list) do
        rows[i] = {}
        for k, title in ipairs(titles) do
            rows[i][k], right[k] = shown(entry[title]), type(entry[title]) == "number"
        end
    end
    lines[#lines + 1] = indent .. report.aligned(titles, rows, right):gsub("\n", "\n" .. indent)
end

function add_record(lines, t, indent)
    local entries, width = {}, 0
    for key, value in pairs(t) do
        if math.type(key) ~= "integer" or key < 1 or key > #t then
            entries[#entries + 1] = { key = tostring(key), value = value }
            width = type(value) == "table" and width or math.max(width, #tostring(key))
        end
    end
    table.sort(entries, by_kind_and_name)
    for _, e in ipairs(entries) do
        if type(e.value) ~= "table" then
            lines[#lines + 1] = ("%s%-" .. width .. "s  %s"):format(indent, e.key, shown(e.value))
        else
            lines[#lines + 1] = indent .. e.key
            add_record(lines, e.value, indent .. "  ")
        end
    end
    if #t > 0 then
        add_list(lines, t, indent)
    end
end

--- [local] A table of results as text, a line a field, inner tables below: how counters, checks and configurations
--- print.
---@param t table
---@return string
function report.record(t)
    local lines = {}
    add_record(lines, t, "")
    return table.concat(lines, "\n")
end

--- [local] What block:forward saved, as text: a line a tensor.
---@param saved table
---@return string
function report.saved(saved)
    local rows = {}
    for i, s in ipairs(saved) do
        local ok, layout = pcall(function() return s.tensor.layout end)
        rows[i] = ok and { s.name, s.tensor.dtype, report.shape(s.tensor.shape), report.shape(s.tensor.local_shape),
            tostring(layout) } or { s.name, "released", "", "", "" }
    end
    return ("%s\nseed %d, offset %d"):format(report.aligned({ "saved", "dtype", "shape", "here", "layout" }, rows),
        rawget(saved, "seed"), rawget(saved, "offset"))
end

return report
