-- boot.lua: the first thing that runs in a state: where modules come from, what os.exit means, what scripts may not
-- load.
local core, script, strict = ...

-- Modules inside the program: "spl" is spl/init.lua, "spl.args" is spl/args.lua.
local function embedded_loader(name)
    if name ~= "spl" and name:sub(1, 4) ~= "spl." then
        return nil
    end
    local path = name:gsub("%.", "/")
    for _, try in ipairs { path .. ".lua", path .. "/init.lua" } do
        local text = core.embedded(try)
        if text then
            local chunk, message = load(text, "@" .. try, "t")
            if not chunk then
                error(message, 0)
            end
            return chunk, try
        end
    end
    return ("no module '%s' inside spl"):format(name)
end

-- Bytecode can crash the interpreter, so files are read as text only.
local function load_text_file(name)
    local path, message = package.searchpath(name, package.path)
    if not path then
        return message
    end
    local chunk, why = loadfile(path, "t")
    if not chunk then
        error(("error loading module '%s' from file '%s':\n\t%s"):format(name, path, why), 0)
    end
    return chunk, path
end

package.preload["spl.core"] = function()
    return core
end
package.searchers[2] = load_text_file
table.insert(package.searchers, 2, embedded_loader)

local plain_loadfile, plain_load = loadfile, load

function loadfile(path, _, ...)
    return plain_loadfile(path, "t", ...)
end

function load(chunk, name, _, ...)
    return plain_load(chunk, name, "t", ...)
end

function dofile(path)
    local chunk, message = plain_loadfile(path, "t")
    if not chunk then
        error(message, 2)
    end
    return chunk()
end

-- Ends all ranks in order: unwinds to the host, through every pcall.
os.exit = core.leave
warn = core.warn -- which the host tells from warnings of the interpreter

if script then
    local folder = script:match("^(.*)/[^/]*$") or "."
    package.path = ("%s/?.lua;%s/?/init.lua;%s"):format(folder, folder, package.path)
    if strict then
        require "spl.strict".install(folder)
    end
end
