-- matrix.lua: `make matrix`: writes what `spl check` finds between two marks of README.md. For specs: require "matrix"
-- reads both.
local spl = require "spl"
local matrix = {}

local BEGIN, END = "<!-- spl check --virtual 4 --markdown -->\n", "<!-- end -->"

--- The text of README.md up to the matrix, the matrix, and what follows.
---@return string before, string block, string after
function matrix.read()
    local file = assert(io.open "README.md")
    local text = file:read "a"
    file:close()
    local _, first = text:find(BEGIN, 1, true)
    local last = first and text:find(END, first, true)
    assert(last, "README.md has no marks of the support matrix")
    return text:sub(1, first), text:sub(first + 1, last - 1), text:sub(last)
end

--- What `spl check` finds now.
---@return string
function matrix.find()
    local pipe = assert(io.popen(("'%s' check --virtual 4 --markdown"):format(spl.executable())))
    local text = pipe:read "a"
    assert(pipe:close(), "spl check failed")
    return "\n" .. text .. "\n"
end

if not ... then -- run, not required
    local before, block, after = matrix.read()
    local found = matrix.find()
    if found ~= block then
        local file = assert(io.open("README.md", "w"))
        assert(file:write(before, found, after))
        assert(file:close())
    end
    print(found == block and "README.md has it already" or "README.md is new")
end

return matrix
