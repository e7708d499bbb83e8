-- repl_memory.lua: `:mem` at the prompt: what the tensors of a rank hold, by the lines that made them.
local core = require "spl.core"
local report = require "spl.report"
local memory = {}

local MOST = 30 -- lines

local function collect()
    collectgarbage() -- what nobody holds any more is not there
    local rows, by_key, total = {}, {}, 0
    for _, piece in ipairs(core.repl.memory()) do
        local key = piece.site .. "\0" .. piece.what .. "\0" .. piece.category
        local row = by_key[key]
        if not row then
            row = { site = piece.site, what = piece.what, category = piece.category, n = 0, bytes = 0 }
            by_key[key], rows[#rows + 1] = row, row
        end
        row.n, row.bytes, total = row.n + 1, row.bytes + piece.bytes, total + piece.bytes
    end
    table.sort(rows, function(a, b)
        if a.bytes ~= b.bytes then
            return a.bytes > b.bytes
        end
        return a.site .. a.what < b.site .. b.what
    end)
    return rows, total
end

--- [local] A line for each kind of live tensor, the largest first: bytes, how many, what, where they were made; then
--- the sums by category.
---@return string
function memory.text()
    local rows, total = collect()
    local cells, out = {}, {}
    for i = 1, math.min(#rows, MOST) do
        local r = rows[i]
        cells[i] = { report.bytes(r.bytes), tostring(r.n), r.what, r.category, r.site }
    end
    if #rows > 0 then
        out[1] = report.aligned({ "bytes", "tensors", "here", "category", "made by" }, cells, { true, true })
    end
    if #rows > MOST then
        out[#out + 1] = ("and %d smaller kinds"):format(#rows - MOST)
    end
    local now = core.memory().now
    out[#out + 1] = ("%s in live tensors; %s of weights, %s of activations, %s of buffers, %s of workspace"):format(
        report.bytes(total), report.bytes(now.weights), report.bytes(now.activations), report.bytes(now.buffers),
        report.bytes(now.workspace))
    return table.concat(out, "\n") .. "\n"
end

return memory
