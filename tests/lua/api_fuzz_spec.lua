-- api_fuzz_spec.lua: every function and method of the Lua API with random wrong arguments (tests/fuzz/api.lua): errors
-- only, and nothing of core is alive at the end. Again under the sanitizers where `make asan` was run.
local mpi = require "mpi"
local spl = require "spl"

local SEED = "20241117"
-- Absurd sizes fail at once; with few threads, since each takes address space of its own.
local LIMITS = "export OMP_NUM_THREADS=2 OPENBLAS_NUM_THREADS=2; ulimit -v 6000000;"

local function lines_of(command)
    local pipe = assert(io.popen(command))
    local list = {}
    for line in pipe:lines() do
        list[#list + 1] = line
    end
    pipe:close()
    return list
end

local function exists(path)
    local file = io.open(path)
    if file then
        file:close()
    end
    return file ~= nil
end

-- In a folder of its own, since a file name may be among the arguments.
local function fuzz(program, rounds, before, env, flags)
    local folder, here = lines_of("mktemp -d")[1], lines_of("pwd")[1]
    local line = ("cd '%s' && %s exec '%s' run %s '%s/tests/fuzz/api.lua' --rounds %d --seed %s"):format(folder,
        before, program, flags or "", here, rounds, SEED)
    local r = mpi.command({ "sh", "-c", line }, { env = env, limit = 240 })
    mpi.command({ "rm", "-rf", folder })
    local report = r.out:gsub("plain [^\n]*\n", "") .. r.err
    assert.equal(0, r.code, report)
    local functions, calls, alive = r.out:match("(%d+) functions, (%d+) calls: .*; (%d+) alive")
    assert.is_true(math.tointeger(tonumber(functions)) > 120, report)
    assert.equal(rounds * math.tointeger(tonumber(functions)), math.tointeger(tonumber(calls)))
    assert.equal("0", alive)
end

describe("the Lua API", function()
    it("answers wrong arguments with errors only", function()
        fuzz(spl.executable(), 80, LIMITS)
    end)

    it("answers wrong arguments with errors only on 2 ranks, and both end", function()
        fuzz(spl.executable(), 20, LIMITS, nil, "-n 2 --check-collectives --timeout 20")
    end)

    it("answers wrong arguments with errors only, under the sanitizers", function()
        local program = spl.executable():gsub("/build/spl$", "/build-asan/spl")
        if program == spl.executable() or not exists(program) then
            pending("`make asan` was not run")
        end
        fuzz(program, 25, "", { ASAN_OPTIONS = "allocator_may_return_null=1:max_allocation_size_mb=512" })
    end)
end)
