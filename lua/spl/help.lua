-- help.lua: `spl help TOPIC`: the annotations of lua/meta and of the modules, as text.
--
-- A file's `--- ` comments stand above the function or class that they describe. What scripts reach as spl.NAME (all of
-- lua/meta, and of a module the function of its own name) is public and comes first; the rest of the modules is reached
-- by require.
local core = require "spl.core"
local topics = require "spl.topics"
local help = {}

local COLUMNS = 100
local GROUPS = { "runtime", "mesh", "tensor", "collective", "mask", "attention", "block", "safetensors", "regex",
    "trace" } -- lua/meta
local SCRIPTS_TITLE = "Scripts: options, timing, checks, help"

-- ---- reading the annotations

-- What a file is about: its first comment, without the name that it begins with.
local function title_of(text)
    local words = {}
    for line in (text .. "\n"):gmatch("(.-)\n") do
        local comment = line:match("^%-%-%-? ?(.*)$")
        if not comment or comment == "" then
            break
        elseif comment ~= "@meta" then
            words[#words + 1] = comment
        end
    end
    return (table.concat(words, " "):gsub("^[%w_]+%.lua: *", ""))
end

-- The functions and fields of one file, in order: {name, signature, text = {lines}, path, module, public, field}.
local function read(path, text)
    local module = path:match("^spl/(.*)%.lua$")
    local list, doc, class = {}, {}, nil
    local function add(entry)
        entry.path, entry.module = path, module
        entry.public = not module or entry.own
        list[#list + 1] = entry
    end
    for line in (text .. "\n"):gmatch("(.-)\n") do
        local comment = line:match("^%-%-%-(.*)$")
        local name, parameters = line:match("^function ([%w_.:]+)(%b())")
        local field, kind, about = (comment or ""):match("^@field ([%w_]+%??) (%S+) ?(.*)$")
        if comment then
            local declared = comment:match("^@class (%S+)")
            if declared then
                class = declared:match("^spl%.(.+)$")
            end
            doc[#doc + 1] = comment
        else
            if name and #doc > 0 then
                name = name:gsub("^spl%.", "")
                local own = module and name == module .. "." .. module or nil
                name = own and module or name
                local prefix = (not module or own) and not name:find(":", 1, true) and "spl." or ""
                add { name = name, signature = prefix .. name .. parameters, text = doc, own = own }
            end
            doc = {}
        end
        if field and class then
            local whole = class .. "." .. field:gsub("%?$", "")
            add { name = whole, signature = whole, kind = kind, field = true, text = { " " .. kind .. " " .. about } }
        end
    end
    return list
end

local everything

local function all()
    if not everything then
        everything = {}
        for _, path in ipairs(core.embedded_list()) do
            for _, entry in ipairs(read(path, core.embedded(path))) do
                everything[#everything + 1] = entry
            end
        end
        table.sort(everything, function(a, b)
            if a.name ~= b.name then
                return a.name < b.name
            end
            return a.path < b.path
        end)
    end
    return everything
end

local function selected(field)
    local list = {}
    for _, entry in ipairs(all()) do
        if (entry.field or false) == field then
            list[#list + 1] = entry
        end
    end
    return list
end

--- [local] All documented functions: {name, signature, text, public, module}, by name.
---@return table[]
function help.entries()
    return selected(false)
end

--- [local] All documented fields of objects, as entries are.
---@return table[]
function help.fields()
    return selected(true)
end

--- [local] The files of lua/meta by concept, in the order in which they are shown.
---@return string[]
function help.groups()
    return table.move(GROUPS, 1, #GROUPS, 1, {})
end

--- [local] What a file inside the program is about, by its path ("meta/mesh.lua").
---@param path string
---@return string
function help.title(path)
    return title_of(core.embedded(path) or "")
end

-- ---- texts

-- `text` in lines of at most COLUMNS, the second and later ones indented.
local function wrapped(text, first, indent)
    local lines, line = {}, first
    for word in text:gmatch("%S+") do
        local blank = line:match("%S$") and #line > 0 and " " or ""
        if #line + #blank + #word > COLUMNS and line:match("%S") then
            lines[#lines + 1] = (line:gsub("%s+$", ""))
            line, blank = (" "):rep(indent), ""
        end
        line = line .. blank .. word
    end
    lines[#lines + 1] = line
    return table.concat(lines, "\n")
end

-- The first sentence of a description, which may run over lines.
local function first_sentence(lines)
    local words = {}
    for _, line in ipairs(lines) do
        if line:match("^@") or line:match("^Errors:") then
            break
        end
        words[#words + 1] = line
    end
    local text = table.concat(words, " "):gsub("%s+", " "):gsub("^ ", "")
    local at = 1
    while true do
        local stop = text:find("[^%s.]%.%s", at)
        if not stop then
            return text
        end
        local before = text:sub(1, stop)
        if not before:match("%f[%w]e%.g$") and not before:match("%f[%w]i%.e$") then
            return text:sub(1, stop + 1)
        end
        at = stop + 1
    end
end

-- The lines of a description as people read them; parameters and results are indented, with what follows them.
local function body(lines)
    local out, indent = {}, 2
    for _, line in ipairs(lines) do
        local kind, rest = line:match("^@(%w+)%s*(.*)$")
        if kind == "param" then
            out[#out + 1], indent = "    " .. rest, 6
        elseif kind == "return" then
            out[#out + 1], indent = "    -> " .. rest, 7
        elseif not kind then
            indent = line:match("^Errors:") and 2 or indent
            out[#out + 1] = ((" "):rep(indent) .. line:gsub("^ ", "")):gsub("%s+$", "")
        end
    end
    return out
end

local function same(a, b)
    return a:gsub(":", "."):lower() == b:gsub(":", "."):lower()
end

-- "name  first sentence" of entries, flush.
local function add_table(out, entries)
    local width = 0
    for _, e in ipairs(entries) do
        width = math.max(width, #e.name)
    end
    width = math.min(width, 24)
    for _, e in ipairs(entries) do
        out[#out + 1] = wrapped(first_sentence(e.text), ("  %-" .. width .. "s  "):format(e.name), width + 4)
    end
end

local function add_entry(out, e)
    local from = e.public and "" or ("   (local %s = require \"spl.%s\")"):format(e.module, e.module)
    out[#out + 1] = e.signature .. from
    table.move(body(e.text), 1, #e.text, #out + 1, out)
end

-- What an object of this name has: its fields and its methods.
local function add_members(out, name)
    local methods, fields = {}, {}
    for _, e in ipairs(all()) do
        local class, member = e.name:match("^([%w_]+)([.:])")
        if class == name and e.field then
            fields[#fields + 1] = e
        elseif class == name and member == ":" then
            methods[#methods + 1] = e
        end
    end
    for _, group in ipairs { { "Fields:", fields }, { "Methods:", methods } } do
        if #group[2] > 0 then
            out[#out + 1] = "\n" .. group[1]
            add_table(out, group[2])
        end
    end
end

local function add_related(out, wanted, shown)
    local names = {}
    for _, e in ipairs(all()) do
        if not shown[e] and e.name:match("[%w_]+$"):lower() == wanted then
            names[#names + 1] = e.name
        end
    end
    if #names > 0 then
        out[#out + 1] = "\n" .. wrapped(table.concat(names, ", "), "See also: ", 10)
    end
end

local function known_names()
    local names = { "api", "scripts" }
    for name in pairs(topics.list) do
        names[#names + 1] = name
    end
    for _, e in ipairs(all()) do
        names[#names + 1] = e.name
    end
    for name in pairs(core.shipped()) do
        names[#names + 1] = name
    end
    for _, path in ipairs(core.embedded_list()) do
        names[#names + 1] = path:match("([%w_]+)%.lua$")
    end
    table.sort(names)
    return names
end

-- The functions of one file of lua/meta under its title; nil where there is no such file.
local function add_group(out, group)
    local path = "meta/" .. group .. ".lua"
    local text, entries = core.embedded(path), {}
    for _, e in ipairs(help.entries()) do
        entries[#entries + 1] = e.path == path and e or nil
    end
    if text then
        out[#out + 1] = wrapped(first_sentence { (title_of(text):gsub("^%l", string.upper)) }, "", 0)
        add_table(out, entries)
    end
    return text
end

--- [local] The public functions by concept, then the modules.
---@return string
function help.api()
    local own, modules, out = {}, {}, {}
    for _, e in ipairs(help.entries()) do
        if e.own then
            own[#own + 1] = e
        elseif e.module then
            local names = modules[e.module] or {}
            names[#names + 1] = e.name
            modules[e.module] = names
        end
    end
    for _, group in ipairs(GROUPS) do
        add_group(out, group)
        out[#out + 1] = ""
    end
    out[#out + 1] = SCRIPTS_TITLE
    add_table(out, own)
    out[#out + 1] = "\nModules, each by require \"spl.NAME\":"
    local names = {}
    for name in pairs(modules) do
        names[#names + 1] = name
    end
    table.sort(names)
    for _, name in ipairs(names) do
        local title = first_sentence { title_of(core.embedded("spl/" .. name .. ".lua")) }
        out[#out + 1] = wrapped(title, ("  %-16s  "):format(name), 20)
        out[#out + 1] = wrapped(table.concat(modules[name], ", "), (" "):rep(20), 20)
    end
    out[#out + 1] = "\nFields of objects: `spl help tensor`, `mesh`, `layout`, `block`. What is [collective] must be "
        .. "called"
    out[#out + 1] = "by every rank, in the same order; what is [local] by any."
    return table.concat(out, "\n")
end

--- [local] The scripts that come with the program, a line each.
---@return string
function help.scripts()
    local names, out = {}, { "Scripts that come with spl: `spl run NAME [options]`, `spl help NAME` for its options:" }
    local shipped = core.shipped()
    for name in pairs(shipped) do
        names[#names + 1] = name
    end
    table.sort(names)
    for _, name in ipairs(names) do
        local file = io.open(shipped[name])
        local text = file and file:read("a") or ""
        if file then
            file:close()
        end
        out[#out + 1] = wrapped(first_sentence { title_of(text) }, ("  %-14s  "):format(name), 18)
    end
    return table.concat(out, "\n")
end

-- Is there a public function or a kind of object of this name?
local function is_name(wanted)
    for _, e in ipairs(all()) do
        if e.public and (e.name:lower() == wanted or e.name:match "^[%w_]+":lower() == wanted) then
            return true
        end
    end
    return false
end

--- [local] The text of one topic ("block", "mesh.parse", "tensor:gather", "tensor.shape", "roles", "api"), or nil, the
--- nearest name.
---@param topic string
---@return string?, string?
function help.text(topic)
    local wanted = topic:gsub("^spl%.", ""):lower()
    if wanted == "api" or wanted == "scripts" then
        return help[wanted]()
    end
    wanted = topics.alias[wanted] and not is_name(wanted) and topics.alias[wanted] or wanted
    if topics.list[wanted] then
        return topics.list[wanted].text()
    end
    local found, shown, out = {}, {}, {}
    for pass = 1, 3 do -- the very name; else the last part of public names; else of all
        for _, e in ipairs(#found == 0 and all() or {}) do
            local last = e.name:match("[%w_]+$"):lower()
            if pass == 1 and same(e.name, wanted) or pass > 1 and last == wanted and (e.public or pass == 3) then
                found[#found + 1], shown[e] = e, true
            end
        end
        if #found > 0 then
            break
        end
    end
    for i, e in ipairs(found) do
        out[#out + 1] = i > 1 and "" or nil
        add_entry(out, e)
    end
    if #found == 0 and core.embedded("spl/" .. wanted .. ".lua") then -- a module without a function of its own name
        out[1] = wrapped(title_of(core.embedded("spl/" .. wanted .. ".lua")),
            ("require \"spl.%s\": "):format(wanted), 2)
        for _, e in ipairs(help.entries()) do
            if e.module == wanted then
                out[#out + 1] = ""
                add_entry(out, e)
            end
        end
    elseif #found == 0 and not add_group(out, wanted) then
        return nil, core.nearest(wanted, known_names())
    end
    local belonging = {}
    for name, other in pairs(topics.list) do
        belonging[#belonging + 1] = other.also[found[1] and found[1].name] and name or nil
    end
    table.sort(belonging)
    for _, name in ipairs(belonging) do
        out[#out + 1] = "\n" .. topics.list[name].text()
        out[#out + 1] = "(`spl help " .. name .. "` shows this alone.)"
    end
    add_members(out, wanted)
    add_related(out, wanted, shown)
    return table.concat(out, "\n")
end

--- [local] Prints the help of a topic, once: on rank 0. So `spl.help "block"` in a script; without a topic what there
--- is.
---@param topic? string
---Errors: code "usage" for a topic that there is not, naming the nearest.
function help.help(topic)
    local text, near = nil, nil
    if topic == nil then
        text = "Topics: api (all functions), scripts, roles, schemes, or the name of a function, object, field or "
            .. "module: block, tensor:gather, tensor.shape, json"
    elseif type(topic) == "string" then
        text, near = help.text(topic)
    else
        core.error { message = "help: a topic such as \"block\" is needed, got " .. type(topic) }
    end
    if not text then
        core.error { code = "usage", message = ("no help on '%s'%s"):format(topic,
            near and ("; did you mean '%s'?"):format(near) or "; `spl help` lists topics, `spl help api` functions") }
    end
    local ranked, rank = pcall(core.rank) -- there is none outside `spl run`
    if not ranked or rank == 0 then
        print(text)
    end
end

help.main = help.help

return help
