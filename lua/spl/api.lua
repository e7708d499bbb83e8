-- api.lua: the annotations of lua/meta and of the modules as one page of Markdown, lua/API.md: `make api` writes it,
-- and lint holds it to the annotations.
local core = require "spl.core"
local help = require "spl.help"
local api = {}

local INTRO = [[
# The Lua API of SPL

Made from the annotations in `lua/meta` and `lua/spl` by `make api`; `spl help NAME` prints the same in a terminal, and
editors complete from them (`.luarc.json`). `local spl = require "spl"` stands above everything.

- **[collective]** functions are called by every rank (of the mesh, or of all), in the same order; **[local]** ones by
  any rank at any time.
- Sizes are in elements and dimensions count from 1, unless a name says bytes; `[batch, seq, hidden]` is a shape. Ranks
  and coordinates count from 0. Times are in seconds where a name does not say `ms` or `us`.
- Errors are objects `{code, message, rank}`; what fails as expected (no such file) gives `nil, message, code`. Any
  function that takes an object raises "released" for one that was released, and "argument" for one of another kind.
]]

-- ---- reading

-- A description in parts: text, parameters, results, errors; continued lines belong to what they continue.
local function parts_of(lines)
    local parts = { text = {}, params = {}, returns = {}, errors = {} }
    local into, indented = parts.text, nil
    for _, line in ipairs(lines) do
        local kind, rest = line:match "^@(%w+)%s*(.*)$"
        local errors = line:match "^%s*Errors: ?(.*)$"
        if kind == "param" then
            local name, tail = rest:match "^(%S+)%s*(.*)$"
            indented = { name = name, words = { tail } }
            parts.params[#parts.params + 1] = indented
        elseif kind == "return" then
            indented = { words = { rest } }
            parts.returns[#parts.returns + 1] = indented
        elseif kind then
            indented = nil
        elseif errors then
            into, indented = parts.errors, nil
            into[#into + 1] = errors
        else
            local words = line:match "^%s*(.-)%s*$"
            local target = indented and indented.words or into
            target[#target + 1] = words
        end
    end
    return parts
end

-- A type and what stands behind it: types may hold blanks in brackets and behind `|` and `,`.
local function type_and_rest(text)
    local depth, i = 0, 1
    while i <= #text do
        local c = text:sub(i, i)
        if c:find "[{(<%[]" then
            depth = depth + 1
        elseif c:find "[})>%]]" then
            depth = depth - 1
        elseif c == " " and depth == 0 and not text:sub(1, i - 1):find "[,|:]$" and not text:find("^ ?|", i) then
            break
        end
        i = i + 1
    end
    return text:sub(1, i - 1), text:sub(i + 1)
end

local function escape(text)
    return (text:gsub("[|<>*_]", "\\%0"))
end

-- Prose keeps its words; `code` in it stays code, the rest must not turn into markup.
local function prose(words)
    local text = table.concat(words, " "):gsub("%s+", " "):gsub("^ ", ""):gsub(" $", "")
    local out, at = {}, 1
    while at <= #text do
        local first, last = text:find("`[^`]+`", at)
        out[#out + 1] = escape(text:sub(at, (first or #text + 1) - 1))
        if not first then
            break
        end
        out[#out + 1] = text:sub(first, last)
        at = last + 1
    end
    return (table.concat(out):gsub("^%[(%a[%w ]*)%]", "**[%1]**"))
end

-- Lines of at most 120 columns.
local function wrapped(text, first, indent)
    local lines, line = {}, first
    for word in text:gmatch "%S+" do
        if #line + 1 + #word > 120 and line:match "%S" then
            lines[#lines + 1] = (line:gsub("%s+$", ""))
            line = indent .. word
        else
            line = line .. ((line == "" or line:match "%s$") and "" or " ") .. word
        end
    end
    lines[#lines + 1] = (line:gsub("%s+$", ""))
    return table.concat(lines, "\n")
end

local function add_entry(out, e)
    local parts = parts_of(e.text)
    out[#out + 1] = ("\n### `%s`\n"):format(e.signature)
    out[#out + 1] = wrapped(prose(parts.text), "", "")
    local list = {}
    for _, p in ipairs(parts.params) do
        local kind, rest = type_and_rest(table.concat(p.words, " "))
        list[#list + 1] = wrapped(("`%s` `%s`%s"):format(p.name, kind, rest ~= "" and " " .. prose { rest } or ""),
            "- ", "  ")
    end
    for _, r in ipairs(parts.returns) do
        local kind, rest = type_and_rest(table.concat(r.words, " "))
        list[#list + 1] = wrapped(("returns `%s`%s"):format(kind, rest ~= "" and " " .. prose { rest } or ""),
            "- ", "  ")
    end
    if #parts.errors > 0 then
        list[#list + 1] = wrapped("errors: " .. prose(parts.errors), "- ", "  ")
    end
    if #list > 0 then
        out[#out + 1] = "\n" .. table.concat(list, "\n")
    end
end

-- The fields of the classes of one file, each class with its own.
local function add_fields(out, path)
    local by_class, classes = {}, {}
    for _, f in ipairs(help.fields()) do
        local class = f.path == path and f.name:match "^(.*)%.[%w_]+$"
        if class then
            if not by_class[class] then
                by_class[class], classes[#classes + 1] = {}, class
            end
            table.insert(by_class[class], f)
        end
    end
    for _, class in ipairs(classes) do
        out[#out + 1] = ("\n### Fields of `%s`\n"):format(class)
        for _, f in ipairs(by_class[class]) do
            local about = f.text[1]:match "^%s*%S+%s*(.*)$" or ""
            out[#out + 1] = wrapped(("`%s` `%s`%s"):format(f.name:match "[%w_]+$", f.kind,
                about ~= "" and " " .. prose { about } or ""), "- ", "  ")
        end
    end
end

local function heading(path, fallback)
    local title = help.title(path)
    return title ~= "" and title:sub(1, 1):upper() .. title:sub(2) or fallback
end

-- ---- the page

--- [local] The whole API as Markdown.
---@return string
function api.markdown()
    local out, own, by_path, modules = { INTRO }, {}, {}, {}
    for _, e in ipairs(help.entries()) do
        if e.own then
            own[#own + 1] = e
        else
            if not by_path[e.path] then
                by_path[e.path], modules[#modules + 1] = {}, e.path
            end
            table.insert(by_path[e.path], e)
        end
    end
    for _, group in ipairs(help.groups()) do
        local path = "meta/" .. group .. ".lua"
        out[#out + 1] = ("\n## %s\n"):format(group)
        out[#out + 1] = wrapped(prose { heading(path, group) }, "", "")
        add_fields(out, path)
        for _, e in ipairs(by_path[path] or {}) do
            add_entry(out, e)
        end
    end
    out[#out + 1] = "\n## scripts\n\nOptions, timing, checks, help, and what sweeps need."
    for _, e in ipairs(own) do
        add_entry(out, e)
    end
    out[#out + 1] = "\n## modules\n\nReached by `require \"spl.NAME\"`; what programs are made of; may change sooner."
    table.sort(modules)
    for _, path in ipairs(modules) do
        local name = path:match "^spl/(.*)%.lua$"
        if name then
            out[#out + 1] = ("\n## spl.%s\n"):format(name)
            out[#out + 1] = wrapped(prose { heading(path, name) }, "", "")
            add_fields(out, path)
            for _, e in ipairs(by_path[path]) do
                add_entry(out, e)
            end
        end
    end
    return table.concat(out, "\n") .. "\n"
end

--- [local] Files of lua/meta that no group of help names.
---@return string[]
function api.ungrouped()
    local grouped, list = {}, {}
    for _, group in ipairs(help.groups()) do
        grouped["meta/" .. group .. ".lua"] = true
    end
    for _, path in ipairs(core.embedded_list()) do
        if path:match "^meta/" and not grouped[path] then
            list[#list + 1] = path
        end
    end
    return list
end

return api
