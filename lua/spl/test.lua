-- test.lua: `spl test`: busted inside the host, on one rank or on many.
--
-- On many ranks every rank runs the same tests in the same order. After each test the ranks gather what happened, so
-- that a failure on any rank is a failure on all, named by the lowest rank that failed; rank 0 alone prints. A test
-- that makes ranks part ways for good (one fails while the others wait for it) cannot be followed by another: the run
-- ends there with the test's name and each rank's view. After each test the live objects of core must be back to what
-- they were before it.
local spl = require "spl"
local test = {}

local SEED = 20241117
local MEETINGS = 20
local failed_to_meet = "the ranks cannot meet again after this test, so the run ends here"

local function full_name(busted, element)
    local names, at = {}, element
    while at and at.descriptor ~= "file" and (at.name or at.descriptor ~= "suite") do
        table.insert(names, 1, at.name or at.descriptor)
        at = busted.parent(at)
    end
    return table.concat(names, " ")
end

-- ---- guarding one test

local function live()
    collectgarbage()
    collectgarbage() -- what finalizers of the first one let go
    return spl.live().total
end

local function leak_message(before)
    local after = live()
    if after > before then
        return ("the test left %d objects of spl alive (%d before, %d after)"):format(after - before, before, after)
    end
end

local function is_pending(value)
    local meta = debug.getmetatable(value)
    return type(meta) == "table" and meta.__type == "pending"
end

local function message_of(value)
    local ok, text = pcall(tostring, value)
    text = ok and text or type(value)
    if text:match("^[^\n]-:%d+: ") then
        return text
    end
    local level = 2
    while true do -- the nearest line of a spec
        local frame = debug.getinfo(level, "Sl")
        if not frame then
            return text
        elseif frame.short_src:match("_spec%.lua$") then
            return ("%s:%d: %s"):format(frame.short_src, frame.currentline, text)
        end
        level = level + 1
    end
end

local function part_for_good(name, failure, why)
    io.stderr:write(("spl test: rank %d, '%s': %s\n  %s (%s)\n"):format(spl.rank(), name,
        failure or "nothing wrong here", failed_to_meet, tostring(why)))
    os.exit(1)
end

-- Gathers, also after a test in which a rank left its collectives early: agreement has refused the call that did not
-- match on every rank, and so has it for this one, until all are here.
local function meet(word)
    local ok, words
    for _ = 1, MEETINGS do
        ok, words = pcall(spl.gather, word)
        if ok or not (spl.is_error(words) and words.code == "disagree") then
            break
        end
    end
    return ok, words
end

-- What all ranks say about a test: nil, or the message of the lowest rank that has one; a rank that only met the others
-- in disagreement is not the cause.
local function agree(name, word)
    local ok, words = meet(word)
    if not ok then
        part_for_good(name, word:sub(1, 1) == "F" and word:sub(3) or nil, words)
    end
    local failure
    for rank, said in ipairs(words) do
        if said:sub(1, 1) == "F" and (not failure or (failure.follows and said:sub(2, 2) == " ")) then
            failure = { text = ("rank %d: %s"):format(rank - 1, said:sub(3)), follows = said:sub(2, 2) == "f" }
        end
    end
    if failure then
        return failure.text
    end
    local pending = 0
    for _, said in ipairs(words) do
        pending = pending + (said:sub(1, 1) == "P" and 1 or 0)
    end
    if pending > 0 and pending < #words then
        return ("%d of %d ranks called it pending"):format(pending, #words)
    end
end

local function run_on_all(name, run)
    local before, word, pending = live(), "", nil
    xpcall(run, function(value)
        if is_pending(value) then
            word, pending = "P", value
        else
            local follows = spl.is_error(value) and (value.code == "disagree" or value.code == "stall")
            word = (follows and "Ff" or "F ") .. message_of(value)
        end
    end)
    if word == "" then
        local leak = leak_message(before)
        word = leak and "F " .. leak or ""
    end
    local failure = agree(name, word)
    if failure then
        error(failure, 0)
    elseif pending then
        error(pending, 0)
    end
end

local function run_alone(run)
    local before = live()
    run()
    local leak = leak_message(before)
    if leak then
        error(leak, 0)
    end
end

-- ---- what is printed

local function new_report(busted, verbose)
    local report = { passed = 0, failed = 0, skipped = 0, counted = {} }
    local print_here = spl.rank() == 0

    local function say(format, ...)
        if print_here then
            print(format:format(...))
        end
    end

    function report.fail(element, message)
        report.failed = report.failed + 1
        say("FAILED  %s\n    %s", full_name(busted, element), tostring(message):gsub("\n", "\n    "))
    end

    function report.finish(element, status)
        if status == "success" then
            report.passed = report.passed + 1
            if verbose then
                say("passed  %s (%.2f s)", full_name(busted, element), element.duration or 0)
            end
        elseif status == "pending" then
            report.skipped = report.skipped + 1
            say("skipped %s: %s", full_name(busted, element), report.reason or "no reason given")
        end
        report.reason = nil
    end

    function report.summary()
        say("%d passed, %d failed, %d skipped", report.passed, report.failed, report.skipped)
    end

    return report
end

-- An output handler in busted's sense: it sees every test start and end, so it is also where tests are guarded.
local function output_handler(verbose, stage)
    local busted = require "busted"
    local report = new_report(busted, verbose)
    local handler = {}

    local function on_start(element)
        stage.busy = full_name(busted, element)
        if not element.guarded then
            local run, name = element.run, full_name(busted, element)
            element.guarded = true
            element.run = function()
                math.randomseed(SEED)
                if spl.size() > 1 then
                    run_on_all(name, run)
                else
                    run_alone(run)
                end
            end
        end
        return nil, true
    end

    function handler.subscribe()
        require "busted.languages.en" -- busted's own messages
        busted.subscribe({ "suite", "start" }, function()
            stage.busy = "a spec"
            return nil, true
        end)
        busted.subscribe({ "file", "start" }, function(element)
            stage.busy = element.name
            return nil, true
        end)
        busted.subscribe({ "test", "start" }, on_start)
        busted.subscribe({ "test", "end" }, function(element, _, status)
            report.finish(element, status)
            return nil, true
        end)
        busted.subscribe({ "pending" }, function(_, _, message)
            report.reason = message and tostring(message):gsub("^%S+%.lua:%d+: ", "")
            return nil, true
        end)
        local function on_failure(element, _, message)
            report.fail(element, message)
            return nil, true
        end
        busted.subscribe({ "failure" }, on_failure)
        busted.subscribe({ "error" }, on_failure)
        busted.subscribe({ "suite", "end" }, function()
            stage.busy, stage.over = nil, true
            report.summary()
            return nil, true
        end)
    end

    return handler
end

-- ---- the command

-- What os.exit is while busted runs. Before the suite busted itself ends, which means that its command line is wrong,
-- or that it has printed what was asked for. In the suite a spec does, and the tests after it do not run.
local function guard_exit(stage, exit)
    return function(code)
        if stage.busy then
            io.stderr:write(("spl test: os.exit(%s) was called in '%s': the tests after it did not run\n"):format(
                code == nil and "" or tostring(code), stage.busy))
            exit(1)
        end
        local good = code == nil or code == true or code == 0
        exit(good and 0 or stage.over and 1 or 2)
    end
end

-- Is a path among the words? One that looks like a path and is none is wrong, but behind an option it may be its value.
local function names_a_path(list)
    local named = false
    for i, word in ipairs(list) do
        local file = word:sub(1, 1) ~= "-" and io.open(word)
        if file then
            file:close()
            named = true
        elseif word:find("^[^-]") and (word:find("/", 1, true) or word:find("%.lua$"))
            and not (list[i - 1] or ""):find("^%-") then
            spl.error { code = "usage", message = ("there is no file or folder '%s'"):format(word) }
        end
    end
    return named
end

--- [collective] Runs busted on the given arguments; what `spl test` calls on every rank.
function test.main(...)
    local list, verbose, stage = { ... }, false, {}
    for _, word in ipairs(list) do
        verbose = verbose or word == "-v" or word == "--verbose"
    end
    if not names_a_path(list) then
        list[#list + 1] = spl.size() > 1 and "tests/mpi" or "tests/lua"
    end
    table.insert(list, 1, "--seed=" .. SEED)
    table.insert(list, 1, "--output=spl")
    table.insert(list, 1, "--lpath=./tests/?.lua;./tests/support/?.lua")
    list[0] = "spl test"
    _G.arg = list
    math.randomseed(SEED)
    package.preload["busted.outputHandlers.spl"] = function()
        return function()
            return output_handler(verbose, stage)
        end
    end
    local found, runner = pcall(require, "busted.runner")
    if not found then
        spl.error { code = "environment",
            message = "`spl test` needs busted for Lua 5.4 (Debian: apt-get install lua-busted)" }
    end
    os.exit = guard_exit(stage, os.exit)
    runner { standalone = false }
end

return test
