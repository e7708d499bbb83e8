-- strict.lua: reading an undefined global in a script, or in a module beside it, is an error that names it.
local core = require "spl.core"
local strict = {}

local function guarded(source, folder)
    return source:sub(1, 1) == "@" and (source:sub(2, #folder + 2) == folder .. "/" or source:sub(1, 5) == "@spl/"
        or (folder == "." and not source:find("/", 1, true)))
end

local function names_of_globals()
    local names = {}
    for name in pairs(_G) do
        if type(name) == "string" then
            names[#names + 1] = name
        end
    end
    table.sort(names)
    return names
end

--- [local] Guards the globals against code whose files lie in `folder`; modules of the system read as they always did.
---@param folder string
function strict.install(folder)
    local meta = getmetatable(_G) or {}
    meta.__index = function(_, name)
        local caller = debug.getinfo(2, "S")
        if not strict.enabled or not caller or not guarded(caller.source, folder) then
            return nil
        end
        local near = core.nearest(tostring(name), names_of_globals())
        error(("undefined global '%s'%s"):format(tostring(name),
            near and ("; did you mean '%s'?"):format(near) or "; declare it with `local` or assign it first"), 2)
    end
    strict.enabled = true
    setmetatable(_G, meta)
end

--- [local] Lets undefined globals read as nil in scripts (false), or makes that an error again, as it is at first
--- (true).
---@param on boolean
function strict.strict(on)
    strict.enabled = on ~= false
end

return strict
