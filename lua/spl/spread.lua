-- spread.lua: what times that scatter allow to say: which is fastest, and which others cannot be told apart from it. A
-- time is {name, y = median, low, high}; low and high are the least and most that were measured, nil where that was
-- once. Two times are told apart where their spreads do not meet.
local spl = require "spl"
local spread = {}

local NAMED = 3

--- [local] Do the spreads of two times meet? nil where one was measured once.
---@param p table
---@param q table
---@return boolean?
function spread.overlap(p, q)
    if not (p.low and p.high and q.low and q.high) then
        return nil
    end
    return p.low <= q.high and q.low <= p.high
end

--- [local] Of a list with the fastest first, those that cannot be told apart from it.
---@param list table[]
---@return table[]
function spread.rivals(list)
    local rivals = {}
    for i = 2, #list do
        rivals[#rivals + 1] = spread.overlap(list[1], list[i]) and list[i] or nil
    end
    return rivals
end

--- [local] "a, b, c and 2 more".
---@param names string[]
---@return string
function spread.names(names)
    local text = table.concat(names, ", ", 1, math.min(#names, NAMED))
    return #names > NAMED and ("%s and %d more"):format(text, #names - NAMED) or text
end

-- What runs the same program is one entry: the better median, the spread of all, and all names.
local function folded(list)
    local entries, by_program = {}, {}
    for _, t in ipairs(list) do
        local e = by_program[t.program]
        if not e then
            e = { y = t.y, low = t.low, high = t.high, names = {}, best = t }
            by_program[t.program], entries[#entries + 1] = e, e
        end
        e.names[#e.names + 1] = t.name
        e.low, e.high = e.low and t.low and math.min(e.low, t.low), e.high and t.high and math.max(e.high, t.high)
        if t.y < e.y then
            e.y, e.best = t.y, t
        end
    end
    for i, e in ipairs(entries) do
        e.place = i
    end
    table.sort(entries, function(a, b) return a.y < b.y or a.y == b.y and a.place < b.place end)
    return entries
end

-- Equal for rows that run the same program: axes of one rank split nothing (hierarchical leaves out rows even so).
local function program(row)
    local parts = {}
    for _, axis in ipairs(row.naive and {} or spl.mesh.parse(row.mesh).axes) do
        if axis.size > 1 or axis.role == "hierarchical" then
            parts[#parts + 1] = ("%s %d"):format(axis.role, axis.size)
        end
    end
    return ("%s %d: %s%s"):format(row.naive and "naive" or "", row.batch, table.concat(parts, ", "),
        #parts > 0 and " " .. row.scheme or "")
end

--- [local] Notes in a row of a benchmark what spl.bench measured of it, by token.
---@param row table {name, mesh, scheme, batch, naive?}; y, low and high are added
---@param r table what spl.bench gave
---@param seq integer
function spread.note(row, r, seq)
    local tokens = row.batch * seq
    row.y = r.ms_p50 and r.ms_p50 / tokens
    if row.y and r.rounds > 1 then
        row.low, row.high = r.ms_min / tokens, r.ms_p99 / tokens
    end
end

--- [local] What a benchmark may say of its rows: the fastest, and how sure that is; nil without a choice, or
--- where ranks are virtual, whose times mean nothing.
---@param rows table[] after note
---@return string?
function spread.fastest(rows)
    local timed, names = {}, {}
    for _, row in ipairs(rows) do
        row.program = row.y and program(row)
        timed[#timed + 1] = row.y and row or nil
    end
    local entries = folded(timed)
    if #timed < 2 or spl.virtual() then
        return nil
    elseif #entries == 1 then
        return spread.names(entries[1].names) .. " run the same program here: their times differ by noise alone"
    end
    for _, e in ipairs(spread.rivals(entries)) do
        table.move(e.names, 1, #e.names, #names + 1, names)
    end
    local first = entries[1]
    local words = ("fastest: %s, %.0f tokens/s (batch x seq / time)"):format(first.best.name, 1e3 / first.y)
    if #first.names > 1 then
        words = ("%s; %s run the same program here"):format(words, spread.names(first.names))
    end
    if #names > 0 then
        words = ("%s; not distinguishable from %s: their spreads (min to p99) overlap"):format(words,
            spread.names(names))
    elseif spread.overlap(first, entries[2]) == nil then
        words = words .. "; each was measured once, so that may be noise"
    end
    return words
end

return spread
