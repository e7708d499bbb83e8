-- run_tests.lua: `make test`: the unit programs, lint, each file of specs on one rank, on virtual ranks or on
-- 2, 3 and 4, what took longest, and one line that sums it up.
local spl = require "spl"

local o = spl.args {
    "Runs all tests and ends with one line: N passed, N failed, N skipped.",
    build = { default = "build", help = "folder of the build", metavar = "DIR" },
    slow = { default = 10, help = "how many of the longest runs to show at the end", metavar = "N", min = 0 },
    only = { default = {}, help = "parts to run: unit, cuda, lint, lua, virtual, mpi",
        choices = { "unit", "cuda", "lint", "lua", "virtual", "mpi" } },
}

local MPI_RANKS, VIRTUAL_RANKS = { 2, 3, 4 }, { 1, 2, 3, 4, 8 }
local LIMIT = 300 -- seconds for one program; far above what any needs
local total = { passed = 0, failed = 0, skipped = 0 }
local times = {} -- {title, seconds} of each run
local begun = spl.now()
local program = o.build .. "/spl"

local function wanted(part)
    if #o.only == 0 then
        return true
    end
    for _, name in ipairs(o.only) do
        if name == part then
            return true
        end
    end
    return false
end

local function add(counts)
    for name in pairs(total) do
        total[name] = total[name] + counts[name]
    end
end

local function lines_of(command)
    local pipe = assert(io.popen(command))
    local lines = {}
    for line in pipe:lines() do
        lines[#lines + 1] = line
    end
    pipe:close()
    return lines
end

-- Runs a command, hands each line to `read`, and adds what was counted. A command that ends badly without having
-- counted a failure is one failure.
local function suite(title, command, read, limit)
    limit = limit or LIMIT
    local counts = { passed = 0, failed = 0, skipped = 0 }
    local started = spl.now()
    local pipe = assert(io.popen(("timeout -k 10 %d %s 2>&1"):format(limit, command)))
    for line in pipe:lines() do
        read(line, counts)
    end
    local _, kind, code = pipe:close()
    if counts.failed == 0 and (kind ~= "exit" or code ~= 0) then
        counts.failed = 1
        local hung = kind == "exit" and code == 124 and ("hung: not done after %d s"):format(limit)
        print(("FAILED  %s: %s"):format(title, hung or ("ended with %s %d"):format(kind, code)))
    elseif counts.failed == 0 and counts.passed == 0 and counts.skipped == 0 then
        counts.failed = 1
        print(("FAILED  %s: it counted no test at all"):format(title))
    end
    local seconds = spl.now() - started
    times[#times + 1] = { title, seconds }
    print(("%-44s %4d passed %3d failed %3d skipped  %6.1f s"):format(title, counts.passed, counts.failed,
        counts.skipped, seconds))
    add(counts)
end

local function read_tap(line, counts)
    local verdict, rest = line:match("^(n?o?t? ?ok) %d+(.*)$")
    if not verdict then
        if not line:match("^1%.%.%d+") and line ~= "" then
            print("    " .. line)
        end
    elseif verdict == "not ok" then
        counts.failed = counts.failed + 1
        print("FAILED " .. rest)
    elseif rest:match("# [sS][kK][iI][pP]") then
        counts.skipped = counts.skipped + 1
        print("skipped" .. rest)
    else
        counts.passed = counts.passed + 1
    end
end

local function read_busted(line, counts)
    local passed, failed, skipped = line:match("^(%d+) passed, (%d+) failed, (%d+) skipped$")
    if passed then
        counts.passed = counts.passed + math.tointeger(tonumber(passed))
        counts.failed = counts.failed + math.tointeger(tonumber(failed))
        counts.skipped = counts.skipped + math.tointeger(tonumber(skipped))
    else
        print("    " .. line)
    end
end

-- A unit test that is an MPI program says on how many ranks it runs: "ranks: 1 2 3" in its first comment.
local function ranks_of(source)
    local file = assert(io.open(source))
    local text = file:read(2000) or ""
    file:close()
    local ranks = {}
    for n in (text:match("ranks: ([%d ]+)") or ""):gmatch("%d+") do
        ranks[#ranks + 1] = math.tointeger(tonumber(n))
    end
    return ranks
end

local MPIRUN = "mpirun --allow-run-as-root --quiet --oversubscribe --bind-to none -n "

local function unit_tests()
    for _, source in ipairs(lines_of("ls tests/unit/*_test.c 2>/dev/null")) do
        local name = source:match("([^/]+)_test%.c$")
        local binary = ("%s/tests/%s"):format(o.build, name)
        local ranks = ranks_of(source)
        if #ranks == 0 then
            suite("unit " .. name, binary, read_tap)
        end
        for _, n in ipairs(ranks) do
            suite(("unit %s, %d rank%s"):format(name, n, n == 1 and "" or "s"), MPIRUN .. n .. " " .. binary, read_tap)
        end
    end
end

local function cuda()
    suite("cuda, on its emulator", "sh tests/emu/proof.sh " .. o.build, read_tap, 6 * LIMIT)
end

local function lint()
    suite("lint", ("%s run tests/support/lint.lua --build %s"):format(program, o.build), read_tap)
end

-- Each file in a run of its own: what one leaves behind is nothing to the next, and a hang costs one file.
local function specs()
    for _, file in ipairs(lines_of("ls tests/lua/*_spec.lua")) do
        suite(file, ("%s test %s"):format(program, file), read_busted)
    end
end

local function virtual_specs()
    for _, file in ipairs(lines_of("ls tests/virtual/*_spec.lua")) do
        for _, n in ipairs(VIRTUAL_RANKS) do
            suite(("%s, %d virtual rank%s"):format(file, n, n == 1 and "" or "s"),
                ("%s test --virtual %d %s"):format(program, n, file), read_busted)
        end
    end
end

local function mpi_specs()
    for _, file in ipairs(lines_of("ls tests/mpi/*_spec.lua")) do
        for _, n in ipairs(MPI_RANKS) do
            suite(("%s, %d ranks"):format(file, n),
                ("%s test -n %d --check-collectives --timeout 60 %s"):format(program, n, file), read_busted)
        end
    end
end

local function longest()
    table.sort(times, function(a, b) return a[2] > b[2] end)
    print(("took %.0f s; longest:"):format(spl.now() - begun))
    for i = 1, math.min(o.slow, #times) do
        print(("    %-44s %6.1f s"):format(times[i][1], times[i][2]))
    end
end

local parts = { { "unit", unit_tests }, { "cuda", cuda }, { "lint", lint }, { "lua", specs },
    { "virtual", virtual_specs }, { "mpi", mpi_specs } }
for _, part in ipairs(parts) do
    if wanted(part[1]) then
        part[2]()
    end
end
if o.slow > 0 then
    longest()
end
print(("%d passed, %d failed, %d skipped"):format(total.passed, total.failed, total.skipped))
os.exit(total.failed == 0)
