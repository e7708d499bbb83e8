-- where.lua: who holds what, drawn as a map of the mesh: what tensor:where() prints, and `:mesh` at the prompt.
local report = require "spl.report"
local where = {}

local MOST_SEGMENTS = 4

-- "1-4, 13-16" of segments; ":" stands for all of a dimension.
local function positions(segments, size)
    local parts = {}
    for i, s in ipairs(segments) do
        if i > MOST_SEGMENTS then
            parts[i] = "..."
            break
        end
        local last = s.start + (s.length - 1) * s.stride
        parts[i] = s.length == 1 and tostring(s.start)
            or ("%d-%d%s"):format(s.start, last, s.stride > 1 and " by " .. s.stride or "")
    end
    if #segments == 1 and segments[1].length == size and segments[1].stride == 1 then
        return ":"
    end
    return #parts > 0 and table.concat(parts, ",") or "none"
end

-- A table of the cells of all ranks: the last axis runs to the right, the one before it down, the others each open a
-- table of their own. axes: { {name=, size=}, ... }.
local function draw(axes, cell)
    local n = #axes
    local columns = axes[n].size
    local rows = n > 1 and axes[n - 1].size or 1
    local planes = 1
    for i = 1, n - 2 do
        planes = planes * axes[i].size
    end
    local out = {}
    for plane = 0, planes - 1 do
        local titles, lines = { n > 1 and "" or nil }, {}
        for c = 0, columns - 1 do
            titles[#titles + 1] = ("%s=%d"):format(axes[n].name, c)
        end
        for r = 0, rows - 1 do
            local cells = { n > 1 and ("%s=%d"):format(axes[n - 1].name, r) or nil }
            for c = 0, columns - 1 do
                cells[#cells + 1] = cell((plane * rows + r) * columns + c)
            end
            lines[r + 1] = cells
        end
        if planes > 1 then
            local names, left = {}, plane
            for i = n - 2, 1, -1 do
                table.insert(names, 1, ("%s=%d"):format(axes[i].name, left % axes[i].size))
                left = left // axes[i].size
            end
            out[#out + 1] = table.concat(names, " ") .. ":"
        end
        out[#out + 1] = report.aligned(titles, lines)
    end
    return table.concat(out, "\n")
end

local function coordinates(axes, rank)
    local coords = {}
    for i = #axes, 1, -1 do
        coords[i] = rank % axes[i].size
        rank = rank // axes[i].size
    end
    return coords
end

-- Refuses what does not have the field of a mesh or layout that is asked for.
local function needs(name, what, value, field)
    if not pcall(function() return #value[field] end) then
        require "spl".error { code = "argument",
            message = ("where.%s: argument '%s': %s is needed, got %s"):format(name, name, what, tostring(value)) }
    end
end

--- [local] The ranks of a mesh by their places on its axes.
---@param mesh spl.mesh
---@return string
---Errors: code "argument" for what is no mesh.
function where.mesh(mesh)
    needs("mesh", "a mesh", mesh, "axes")
    return draw(mesh.axes, tostring)
end

--- [local] Which positions every rank holds of a tensor of this layout, "[rows, columns]"; ":" is all of a dimension.
---@param layout spl.layout
---@return string
---Errors: code "argument" for what is no layout.
function where.layout(layout)
    needs("layout", "a layout", layout, "shape")
    local axes, sums = {}, {}
    for i, axis in ipairs(layout:describe()) do
        axes[i] = { name = axis.axis, size = axis.size }
        sums[#sums + 1] = axis.place == "partial" and axis.axis or nil
    end
    local text = draw(axes, function(rank)
        local coords, parts = coordinates(axes, rank), {}
        for dim = 1, layout.ndim do
            parts[dim] = positions(layout:segments(dim, coords), layout.shape[dim])
        end
        return ("%d: [%s]"):format(rank, table.concat(parts, "; "))
    end)
    if #sums > 0 then
        text = text .. "\npending sums over " .. table.concat(sums, ", ")
    end
    return text
end

return where
