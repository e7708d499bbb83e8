-- report.lua: text that people read: fixed-width tables in the manner of nccl-tests, sizes, and how explain prints.
local report = {}

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

--- One column of a table.
---@class spl.column
---@field title string
---@field unit string in brackets under the title; "" for none
---@field width integer of the text; longer cells push the line out rather than being cut
---@field left? boolean
---@field format? string for numbers

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
        return type(cell) == "number" and (c.format or "%s"):format(cell) or tostring(cell)
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
        rows[i] = { l.what, l.subject, l.axis or "", report.shape(l.shape), report.shape(l.local_shape), l.layout,
            l.axis and tostring(l.bytes) or "" }
    end
    local table_text = report.aligned({ "op", "makes", "axis", "shape", "here", "layout", "bytes sent" }, rows,
        { [7] = true })
    return ("%s\nrank %d sends %d bytes (%s)"):format(table_text, lines.rank, lines.bytes, report.bytes(lines.bytes))
end

return report
