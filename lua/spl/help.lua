-- help.lua: `spl help TOPIC`: the annotations of lua/meta and of the modules, as text.
local core = require "spl.core"
local help = {}

-- The documented functions of one file: {name, signature, text = {lines}} in order. A function whose name begins with
-- the module's own (args.args) is known by it alone.
local function entries_of(path, text)
    local module = path:match("^spl/(.*)%.lua$")
    local list, doc = {}, {}
    for line in (text .. "\n"):gmatch("(.-)\n") do
        local comment = line:match("^%-%-%-(.*)$")
        local name, parameters = line:match("^function ([%w_.:]+)(%b())")
        if comment then
            doc[#doc + 1] = comment
        else
            if name and #doc > 0 then
                name = name:gsub("^spl%.", "")
                if module then
                    name = name:gsub("^" .. module .. "%." .. module .. "$", module)
                end
                list[#list + 1] = { name = name, signature = name .. parameters, text = doc }
            end
            doc = {}
        end
    end
    return list
end

--- [local] All documented functions: {name, signature, text}, by name.
---@return table[]
function help.entries()
    local all = {}
    for _, path in ipairs(core.embedded_list()) do
        for _, entry in ipairs(entries_of(path, core.embedded(path))) do
            all[#all + 1] = entry
        end
    end
    table.sort(all, function(a, b) return a.name < b.name end)
    return all
end

local function shown(line)
    local kind, rest = line:match("^@(%w+)%s*(.*)$")
    if kind == "param" then
        return "  " .. rest
    elseif kind == "return" then
        return "  -> " .. rest
    elseif kind then
        return nil
    end
    return (line:gsub("^ ", ""))
end

--- [local] The text of one topic ("block", "mesh.parse", "tensor:gather"), or nil, the nearest name.
---@param topic string
---@return string?, string?
function help.text(topic)
    local wanted, names, parts = topic:gsub("^spl%.", ""):lower(), {}, {}
    for _, entry in ipairs(help.entries()) do
        names[#names + 1] = entry.name
        local last = entry.name:match("[%w_]+$")
        if entry.name:lower() == wanted or last:lower() == wanted then
            parts[#parts + 1] = entry.signature
            for _, line in ipairs(entry.text) do
                local text = shown(line)
                parts[#parts + 1] = text and ("  " .. text):gsub("%s+$", "")
            end
            parts[#parts + 1] = ""
        end
    end
    if #parts == 0 then
        return nil, core.nearest(wanted, names)
    end
    return table.concat(parts, "\n", 1, #parts - 1)
end

--- [local] Prints the help of a topic; what `spl.help"block"` does.
---@param topic string
function help.help(topic)
    local text, near = help.text(topic)
    if not text then
        core.error { code = "usage", message = ("no help on '%s'%s"):format(topic,
            near and ("; did you mean '%s'?"):format(near) or "; `spl help` lists commands, `spl help api` functions") }
    end
    print(text)
end

function help.main(topic)
    if topic ~= "api" then
        return help.help(topic)
    end
    for _, entry in ipairs(help.entries()) do
        local first = (entry.text[1] or ""):gsub("^ ", "")
        first = first:match("^(.-%.) ") or first
        print(("%-24s %s"):format(entry.name, #first <= 95 and first or first:sub(1, 92) .. "..."))
    end
end

return help
