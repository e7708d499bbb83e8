-- init.lua: the table that `require "spl"` gives: the bindings, and the modules inside the program loaded when first
-- used.
local core = require "spl.core"

-- For the host's own modules.
local INSIDE = { embedded = true, embedded_list = true, exists = true, leave = true, process = true, read_file = true,
    record = true, repl = true, shipped = true, system = true, terminal = true, warn = true }

local spl = {}
for name, value in pairs(core) do
    if not INSIDE[name] then
        spl[name] = value
    end
end

local function names()
    local list = {}
    for name in pairs(spl) do
        list[#list + 1] = name
    end
    for _, path in ipairs(core.embedded_list()) do
        list[#list + 1] = path:match("^spl/([^/]+)%.lua$")
    end
    table.sort(list)
    return list
end

-- spl.args is the function `args` of the module spl/args.lua; where a module has no function of its own name, spl.NAME
-- is the module.
setmetatable(spl, {
    __index = function(_, name)
        if type(name) == "string" and core.embedded("spl/" .. name .. ".lua") then
            local module = require("spl." .. name)
            local value = type(module) == "table" and rawget(module, name) or module
            rawset(spl, name, value)
            return value
        end
        local near = core.nearest(tostring(name), names())
        error(("spl has no '%s'%s"):format(tostring(name), near and ("; did you mean '%s'?"):format(near) or ""), 2)
    end,
})

return spl
