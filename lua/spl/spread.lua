-- spread.lua: what times that scatter allow to say: which is fastest, and which others cannot be told apart from it. A
-- time is {name, y = median, low, high}; low and high are the least and most that were measured, nil where that was
-- once. Two times are told apart where their spreads do not meet.
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

--- [local] What a benchmark may say of its rows: the fastest, and in words how sure that is; nil and words where all
--- run the same program.
---@param list table[] {name, y, low, high, program = equal where two rows run the same}
---@return table? best the row
---@return string words to put behind what is said of it; "" where it is sure
function spread.fastest(list)
    local entries, names = folded(list), {}
    if #entries == 1 then
        return nil, spread.names(entries[1].names) .. " run the same program here: their times differ by noise alone"
    end
    for _, e in ipairs(spread.rivals(entries)) do
        table.move(e.names, 1, #e.names, #names + 1, names)
    end
    local words = ""
    if #entries[1].names > 1 then
        words = ("; %s run the same program here"):format(spread.names(entries[1].names))
    end
    if #names > 0 then
        words = ("%s; not distinguishable from %s: their spreads (min to p99) overlap"):format(words,
            spread.names(names))
    elseif spread.overlap(entries[1], entries[2]) == nil then
        words = words .. "; each was measured once, so that may be noise"
    end
    return entries[1].best, words
end

return spread
