-- expect.lua: what the fuzzed parsers may do: give a value, or raise an error object of spl that is a sentence.
-- Anything else, a plain Lua error first of all, is a finding.
local spl = require "spl"
local expect = {}

local function keep(e)
    if spl.is_error(e) then
        return e
    end
    return debug.traceback("a plain error: " .. tostring(e), 2)
end

--- The value of f(...), or nil where it was refused.
function expect.refused_or_made(f, ...)
    local good, value = xpcall(f, keep, ...)
    if good then
        return value
    elseif not spl.is_error(value) then
        error(value, 0)
    end
    local text = value.message
    if type(text) ~= "string" or #text < 12 or not text:find(" ", 1, true) then
        error(("no sentence: %q"):format(tostring(text)), 0)
    end
    if value.code == "internal" then
        error("an internal error: " .. text, 0)
    end
end

return expect
