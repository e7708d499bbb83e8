-- repl_commands.lua: what begins with a colon at the prompt.
local core = require "spl.core"
local report = require "spl.report"
local commands = {}

local timing = false

local function switch(argument, name, now)
    if argument == "" then
        return not now
    elseif argument == "on" or argument == "off" then
        return argument == "on"
    end
    core.error { code = "usage", message = (":%s takes on, off or nothing, got '%s'"):format(name, argument) }
end

local function values_of_kind(kind)
    local list = {}
    for name, value in pairs(_G) do
        local meta = type(name) == "string" and type(value) == "userdata" and debug.getmetatable(value)
        if meta and meta.__name == kind then
            list[#list + 1] = { name = name, value = value }
        end
    end
    table.sort(list, function(a, b) return a.name < b.name end)
    return list
end

-- What was recorded goes to a file; without a name only its summary is shown.
local function trace(argument, at)
    if argument == "on" or (argument == "" and not core.tracing()) then
        core.trace_start()
        return
    elseif not core.tracing() then
        core.error { code = "usage", message = ":trace on begins a recording; there is none to end" }
    end
    local keep = argument ~= "off" and argument ~= ""
    local path = keep and argument or core.gather(core.rank() == 0 and os.tmpname() or "")[1]
    core.trace_write(path)
    if core.rank() == 0 then
        local tracing = require "spl.trace"
        local text = tostring(tracing.summary(path))
        at.write((keep and text or text:gsub("^# [^\n]-: ", "# ")) .. "\n")
        if keep then
            at.write(("kept in %s: open it in ui.perfetto.dev, or `spl trace %s`\n"):format(path, path))
        else
            os.remove(path)
        end
    end
end

local list = {
    { "ranks", "", "the ranks: host, process, threads, device", function(_, at)
        local f = core.facts()
        at.write(("rank %d: host %s, process %d, %s, cores %s, %s\n"):format(core.rank(), f.host, core.process(),
            report.plural(core.threads(), "thread"), f.affinity, f.backend_description))
    end },
    { "mesh", "[NAME]", "the meshes among the globals, drawn with their ranks", function(argument, at)
        local found = 0
        for _, entry in ipairs(values_of_kind "spl.mesh") do
            if argument == "" or argument == entry.name then
                found = found + 1
                local ok, text = pcall(require "spl.where".mesh, entry.value)
                at.write(("%s = %s\n%s"):format(entry.name, tostring(entry.value), ok and text .. "\n" or ""))
            end
        end
        if found == 0 then
            at.write(argument == "" and "no global is a mesh; m = spl.mesh \"tp=*\" makes one\n"
                or ("there is no mesh '%s' among the globals\n"):format(argument))
        end
    end },
    { "mem", "", "live tensors with their bytes, and the lines that made them", function(_, at)
        at.write(require "spl.repl_memory".text())
    end },
    { "trace", "[on|off|FILE]", "records what ranks do; off sums it up, FILE keeps it for Perfetto", trace },
    { "time", "[on|off]", "says after each line how long it took, on the slowest rank", function(argument)
        timing = switch(argument, "time", timing)
    end },
    { "load", "FILE", "runs a script, a path or a shipped name, on all ranks", function(argument)
        local words = {}
        for word in argument:gmatch("%S+") do
            words[#words + 1] = word
        end
        if not words[1] then
            core.error { code = "usage", message = ":load needs a script: a path or a shipped name" }
        end
        local path = core.shipped()[words[1]] or core.shipped()[words[1] .. ".lua"] or words[1]
        local file = io.open(words[1]) or io.open(path)
        if not file then
            local near = core.nearest(words[1], commands.shipped_names())
            core.error { code = "io", message = ("no script '%s' here or among the shipped ones%s"):format(words[1],
                near and ("; did you mean '%s'?"):format(near) or "") }
        end
        file:close()
        if io.open(words[1]) then
            path = words[1]
        end
        local chunk, message = loadfile(path)
        if not chunk then
            core.error { code = "usage", message = message }
        end
        _G.arg = table.move(words, 2, #words, 1, { [0] = path })
        chunk(table.unpack(words, 2))
    end },
    { "help", "[NAME]", "this list; or what a function, an object or a field does", function(argument, at)
        if core.rank() == 0 then
            at.write((argument == "" and commands.overview() or commands.help_text(argument)) .. "\n")
        end
    end },
    { "quit", "", "ends the session, as Ctrl-D does", function() end },
}

local by_name = {}
for _, entry in ipairs(list) do
    by_name[entry[1]] = entry
end

--- [local] Names of the commands, without their colon.
---@return string[]
function commands.names()
    local names = {}
    for i, entry in ipairs(list) do
        names[i] = entry[1]
    end
    return names
end

--- [local] Names of the shipped scripts.
---@return string[]
function commands.shipped_names()
    local names = {}
    for name in pairs(core.shipped()) do
        names[#names + 1] = name
    end
    table.sort(names)
    return names
end

--- [local] What the prompt takes.
---@return string
function commands.overview()
    local out = {
        "Every rank runs each line; equal answers are printed once, with their ranks: [0-3]. An expression needs no",
        "`return`, a line that is not whole goes on in the next, and a name given without `local` stays; one that was",
        "never given is nil here, and an error in a script. `_` is the last answer. @2 EXPR runs on rank 2 alone,",
        "@0,3 or @0-2 on several. What a line prints comes when all ranks are done with it.",
        "",
    }
    for _, entry in ipairs(list) do
        out[#out + 1] = ("  %-16s %s"):format((":%s %s"):format(entry[1], entry[2]), entry[3])
    end
    out[#out + 1] = ""
    out[#out + 1] = "Tab completes names, fields, methods and options. Ctrl-C stops the line on all ranks, Ctrl-D ends."
    out[#out + 1] = "help \"block\" or help(x) says the same as :help; :help api lists all functions. Lines are kept in"
    out[#out + 1] = "$XDG_STATE_HOME/spl/history, or ~/.local/state/spl/history. Collectives are checked: calls that do"
    out[#out + 1] = "not fit are an error on the ranks concerned, and the session goes on."
    return table.concat(out, "\n")
end

--- [local] The help of a topic.
---@param topic string
---@return string
---Errors: code "usage" for a topic that there is not.
function commands.help_text(topic)
    if by_name[topic:gsub("^:", "")] and topic:match("^:") then
        local entry = by_name[topic:sub(2)]
        return (":%s %s  %s"):format(entry[1], entry[2], entry[3])
    end
    local text, near = require "spl.help".text(topic)
    if not text then
        core.error { code = "usage", message = ("no help on '%s'%s"):format(topic,
            near and ("; did you mean '%s'?"):format(near) or "; :help api lists all functions") }
    end
    return text
end

--- [local] `help(x)` at the prompt: of a topic by name, of an object by its kind, of a function.
---@param x any
function commands.help(x)
    if x == nil then
        print(commands.overview())
        return
    end
    local topic = x
    if type(x) == "userdata" then
        topic = ((debug.getmetatable(x) or {}).__name or "api"):gsub("^spl%.", "")
    elseif type(x) ~= "string" then
        topic = require "spl.repl_show".text(x):match("^function spl%.([%w_.]+)$")
        for name, value in pairs(require "spl") do
            topic = topic or value == x and name
        end
        if not topic then
            core.error { message = ("help: there is no help on %s; give a name such as \"block\""):format(
                require "spl.repl_show".text(x)) }
        end
    end
    print(commands.help_text(topic))
end

--- [local] Runs `:name argument`.
---@param name string
---@param argument string
---@param at {write: fun(text: string), number: integer}
function commands.run(name, argument, at)
    local entry = by_name[name]
    if not entry then
        local near = core.nearest(name, commands.names())
        core.error { code = "usage", message = ("there is no command ':%s'%s"):format(name,
            near and ("; did you mean ':%s'?"):format(near) or "; :help lists them") }
    end
    entry[4](argument, at)
end

--- [local] Is the time of lines to be told?
---@return boolean
function commands.timing()
    return timing
end

--- [local] The time of a line on all ranks.
---@param answers table by rank: {seconds=, comm=}
---@param size integer
---@return string
function commands.time_text(answers, size)
    local most, at, comm = 0, 0, 0
    for rank = 0, size - 1 do
        local a = answers[rank]
        if a and a.seconds > most then
            most, at = a.seconds, rank
        end
        comm = math.max(comm, a and a.comm or 0)
    end
    local text = most < 1 and ("%.3f ms"):format(most * 1e3) or ("%.3f s"):format(most)
    if size == 1 then
        return ("# %s\n"):format(text)
    end
    return ("# %s on rank %d, the slowest; up to %.3f ms in communication\n"):format(text, at, comm * 1e3)
end

return commands
