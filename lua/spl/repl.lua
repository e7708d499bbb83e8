-- repl.lua: `spl repl`: what a line at the prompt means, on every rank: run, show, tell rank 0, which prints equal
-- answers once.
local core = require "spl.core"
local show = require "spl.repl_show"
local commands = require "spl.repl_commands"
local repl = {}

local LEFT = "spl: a rank has left, so the session is over (os.exit ends it for all)\n"
local MOST = 64 * 1024 -- bytes that a rank may print a line

-- ---- what a line prints

local out = { n = 0, bytes = 0, lost = 0 }

local function write(text)
    local room = MOST - out.bytes
    if #text > room then
        out.lost = out.lost + #text - math.max(room, 0)
        text = text:sub(1, math.max(room, 0))
    end
    if text ~= "" then
        out.n, out.bytes = out.n + 1, out.bytes + #text
        out[out.n] = text
    end
end

local function take_output()
    local text = table.concat(out, "", 1, out.n)
    if out.lost > 0 then
        text = text .. ("%s... (%d more bytes are not shown; a line shows %d KiB of each rank)\n"):format(
            text:sub(-1) == "\n" and "" or "\n", out.lost, MOST // 1024)
    end
    out = { n = 0, bytes = 0, lost = 0 }
    return text
end

-- A stand-in for io.stdout and io.stderr, so that what is written there is grouped by ranks as well.
local function stream()
    local file = {}
    function file.write(_, ...)
        for i = 1, select("#", ...) do
            local piece = select(i, ...)
            if type(piece) ~= "string" and type(piece) ~= "number" then
                core.error { message = ("write: argument %d: text or a number is needed, got %s"):format(i,
                    type(piece)) }
            end
            write(tostring(piece))
        end
        return file
    end
    function file.flush() return file end
    function file.close() return nil, "the prompt's own output stays open" end
    function file.setvbuf() return true end
    function file.seek() return nil, "the prompt's own output has no positions" end
    return file
end

local function capture()
    local stdout = stream()
    io.stdout, io.stderr = stdout, stream()
    function io.write(...)
        return stdout:write(...)
    end
    function print(...)
        local parts = table.pack(...)
        for i = 1, parts.n do
            parts[i] = tostring(parts[i])
        end
        write(table.concat(parts, "\t", 1, parts.n) .. "\n")
    end
end

-- ---- running a line

local function compile(text, name)
    local chunk = load("return " .. text, name)
    if chunk then
        return chunk
    end
    return load(text, name)
end

-- What to write in place of words that other prompts take, or nil.
local function meant(text)
    local word, rest = text:match "^%s*(%a+)%s*%(?%s*([%w_.:-]*)%s*%)?%s*$"
    if (word == "exit" or word == "quit") and rest == "" then
        return "to end the session write :quit, or press Ctrl-D; os.exit() ends it too"
    elseif word == "help" and rest ~= "" and not text:find("(", 1, true) then
        return ("write :help %s, or help \"%s\""):format(rest, rest)
    end
end

-- What is said of a name alone that no global has. In a script it is an error; here it is what Lua says, nil.
local function undefined(word)
    if rawget(_G, word) ~= nil or word == "nil" or word == "_" then
        return nil
    end
    local names = {}
    for name in pairs(_G) do
        names[#names + 1] = type(name) == "string" and name or nil
    end
    table.sort(names)
    local near = core.nearest(word, names)
    return ("   (there is no global '%s'%s)"):format(word, near and ("; did you mean '%s'?"):format(near) or "")
end

-- What `text` asks for; its results are printed.
local function evaluate(text, name)
    if text:match("^%s*=") then -- as in Lua 5.1
        text = text:gsub("^%s*=", "", 1)
    end
    local chunk, message = compile(text, name)
    if not chunk then
        core.error { code = "usage", message = meant(text) or message }
    end
    local word, call = text:match "^%s*([%a_][%w_]*)%s*(%(?%s*%)?)%s*$"
    if word and rawget(_G, word) == nil and meant(word) then
        core.error { code = "usage", message = meant(word) }
    end
    local results = table.pack(chunk())
    if results.n > 0 then
        _G._ = results[1]
        for i = 1, results.n do
            write(show.text(results[i]) .. (i < results.n and "\t" or ""))
        end
        write((word and call == "" and results[1] == nil and undefined(word) or "") .. "\n")
    end
end

local function trimmed_trace(trace)
    local lines = {}
    for line in (trace or ""):gmatch("[^\n]+") do
        if line:match("^\t%.%.%.") then
            lines[#lines + 1] = line
        elseif line:match("^\t") and not line:match("^\t%[C%]: in %?") and not line:match("^\tspl/repl") and
            not line:match("^\t%[C%]: in function 'spl") and not line:match("^\t%(%.%.%.tail calls") then
            lines[#lines + 1] = line
        end
    end
    while #lines > 0 and lines[#lines]:match("^\t%[C%]") do -- how the prompt came to run the line
        lines[#lines] = nil
    end
    if #lines > 12 then
        lines = table.move(lines, #lines - 3, #lines, 10, table.move(lines, 1, 8, 1, {}))
        lines[9] = "\t..."
    end
    return #lines > 1 and "\n" .. table.concat(lines, "\n") or ""
end

-- Status, code and text of an error. "f": only since another rank's line was over.
local function describe_error(value, trace)
    if core.is_error(value) then
        if value.code == "interrupt" then
            return "i", value.code, "interrupted"
        end
        local report = value.report and not value.follows and "\n" .. value.report or ""
        local about_calls = value.code == "disagree" or value.code == "stall" or value.code == "usage"
        return value.follows and "f" or "e", value.code,
            value.message .. report .. (about_calls and "" or trimmed_trace(trace))
    elseif type(value) == "string" then
        return "e", "argument", value .. trimmed_trace(trace)
    end
    local ok, text = pcall(show.text, value)
    return "e", "argument", "the error is not a message but: " .. (ok and text or type(value))
end

-- "@0,2-3 rest" -> does this rank run the rest?, the rest
local function addressed(text)
    local list, rest = text:match("^%s*@([%d,%-]*)%s?(.*)$")
    if not list then
        return true, text
    end
    local mine, size = false, core.size()
    for part in (list .. ","):gmatch("([^,]*),") do
        local first, last = part:match("^(%d+)%-?(%d*)$")
        if not first then
            core.error { code = "usage", message = ("'@%s' does not name ranks: write @2, @0,3 or @0-3 before the "
                .. "line"):format(list) }
        end
        first = math.tointeger(tonumber(first))
        last = last == "" and (part:find("-", 1, true) and size - 1 or first) or math.tointeger(tonumber(last))
        if not first or not last or last >= size or first > last then
            core.error { code = "usage", message = ("'@%s' names ranks that there are not; they are 0 to %d"):format(
                list, size - 1) }
        end
        mine = mine or first <= core.rank() and core.rank() <= last
    end
    return mine, rest
end

local function run_text(text, number)
    local mine, rest = addressed(text)
    if not mine then
        return
    end
    local name, argument = rest:match("^%s*:(%S*)%s*(.-)%s*$")
    if name then
        commands.run(name, argument, { write = write, evaluate = evaluate, number = number })
    elseif rest:match("%S") then
        evaluate(rest, "=line " .. number)
    end
end

-- One line on this rank; what rank 0 is told.
local function work(text, number)
    local before = core.counters()
    local started = core.now()
    local ok, value, trace = core.repl.run(run_text, text, number)
    local seconds = core.now() - started
    local status, code, message = "k", "ok", ""
    if not ok then
        status, code, message = describe_error(value, trace)
    end
    local comm = core.counters().comm_seconds - before.comm_seconds
    return code, string.pack("<c1 d d s4 s4", status, seconds, math.max(comm, 0), take_output(), message)
end

-- ---- what rank 0 prints

-- "[0-2,5]"
local function tag_of(ranks, size)
    if size == 1 then
        return ""
    end
    local parts, i = {}, 1
    while i <= #ranks do
        local last = i
        while ranks[last + 1] == ranks[last] + 1 do
            last = last + 1
        end
        parts[#parts + 1] = last == i and tostring(ranks[i]) or ranks[i] .. "-" .. ranks[last]
        i = last + 1
    end
    return "[" .. table.concat(parts, ",") .. "] "
end

-- Texts that are equal, with their ranks, in the order of the lowest.
local function groups(answers, size, pick)
    local list, by_text = {}, {}
    for rank = 0, size - 1 do
        local text = answers[rank] and pick(answers[rank])
        if text and text ~= "" then
            local group = by_text[text]
            if not group then
                group = { text = text, ranks = {} }
                by_text[text], list[#list + 1] = group, group
            end
            group.ranks[#group.ranks + 1] = rank
        end
    end
    return list
end

local function tagged(group, size)
    local tag = tag_of(group.ranks, size)
    local text = group.text:gsub("\n$", "")
    return tag .. text:gsub("\n", "\n" .. (" "):rep(#tag)) .. "\n"
end

local function present(said, size)
    local answers = {}
    for rank, bytes in pairs(said) do
        local status, seconds, comm, text, message = string.unpack("<c1 d d s4 s4", bytes)
        answers[rank] = { status = status, seconds = seconds, comm = comm, text = text, message = message }
    end
    for _, group in ipairs(groups(answers, size, function(a) return a.text end)) do
        core.repl.write("O", tagged(group, size))
    end
    local function errors(status, format)
        for _, group in ipairs(groups(answers, size, function(a)
            return a.status == status and format:format(a.message) or nil
        end)) do
            core.repl.write("E", tagged(group, size))
        end
    end
    errors("e", "error: %s")
    errors("f", "stopped: %s")
    errors("i", "%s")
    if commands.timing() then
        core.repl.write("O", commands.time_text(answers, size))
    end
end

-- ---- the session

local function hello()
    local f = core.facts()
    return ("spl %s: %d rank%s, host %s, %s, %d thread%s each; :help tells what there is, Ctrl-D ends\n"):format(
        core.version, core.size(), core.size() == 1 and "" or "s", f.host, f.backend, core.threads(),
        core.threads() == 1 and "" or "s")
end

-- Rank 0: the next line, with requests for completion answered meanwhile.
local function next_line()
    while true do
        local kind, text = core.repl.read()
        if kind ~= "complete" then
            return text, kind == "over"
        end
        local ok, words = pcall(function() return require "spl.repl_complete".words(text) end)
        core.repl.write("W", ok and words or "0\n")
    end
end

--- [collective] Runs the prompt until the end of its input; what `spl repl` calls on every rank.
function repl.main()
    local front, size = core.repl.open(), core.size()
    _G.spl = require "spl"
    _G.help = commands.help
    capture()
    if front then
        core.repl.write("H", hello())
        core.repl.write("R", "")
    end
    local number = 0
    while true do
        local line
        if core.rank() == 0 then
            local over
            line, over = next_line()
            if over then
                core.repl.write("B", LEFT)
            end
            if not line or line:match("^%s*:quit%s*$") then
                break
            end
        end
        local text = core.repl.begin(line)
        if not text then
            if core.rank() == 0 then
                core.repl.write("B", LEFT)
            end
            break
        end
        number = number + 1
        local said = core.repl.finish(work(text, number))
        if said then
            present(said, size)
            core.repl.write("R", "")
        end
    end
end

return repl
