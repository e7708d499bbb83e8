-- fuzz_spec.lua: each libFuzzer target is built and runs for two seconds on its seeds, without a finding. For longer:
-- `make fuzz-long`.
local mpi = require "mpi"

local SECONDS = "2"
local SEEDS = "tests/fuzz/seeds/"
local MAKE = { "make", "--no-print-directory", "-j2", "BUILD=build", "SANITIZE=0", "fuzz" }

local function lines_of(command)
    local pipe = assert(io.popen(command))
    local list = {}
    for line in pipe:lines() do
        list[#list + 1] = line
    end
    pipe:close()
    return list
end

local NAMES = lines_of("ls " .. SEEDS)

-- nil, or why there is no fuzzing here: a program is built that needs both sanitizers and libFuzzer.
local function missing()
    local source = mpi.temporary("int LLVMFuzzerTestOneInput(const char *b, long n) { return b && !n; }\n", ".c")
    local r = mpi.command({ "clang", "-fsanitize=fuzzer,address,undefined", source, "-o", source .. ".bin" })
    os.remove(source)
    os.remove(source .. ".bin")
    if r.code ~= 0 then
        return "clang with libFuzzer and the sanitizers is not here (Debian: clang, libclang-rt-14-dev)"
    end
end

describe("fuzzing", function()
    local reason, built, folder

    -- All targets run in one go, two at a time.
    setup(function()
        reason = missing()
        built = not reason and mpi.command(MAKE, { limit = 280 })
        if reason or built.code ~= 0 then
            return
        end
        folder = lines_of("mktemp -d")[1]
        for _, name in ipairs(NAMES) do
            mpi.command({ "ln", "-s", lines_of("pwd")[1] .. "/build-fuzz/" .. name, folder .. "/" .. name })
        end
        mpi.command({ "sh", "-c", ("printf '%%s\\n' %s | xargs -P 2 -I{} sh -c 'tests/fuzz/run.sh \"%s\" {} %s -seed=1 "
            .. "> \"%s/{}.log\" 2>&1; echo status $? >> \"%s/{}.log\"'"):format(table.concat(NAMES, " "), folder,
            SECONDS, folder, folder) })
    end)

    teardown(function()
        if folder then
            mpi.command({ "rm", "-rf", folder })
        end
    end)

    it("has targets, which build", function()
        if reason then
            pending(reason)
        end
        assert.equal(0, built.code, built.err)
    end)

    for _, name in ipairs(NAMES) do
        it(name .. " finds nothing", function()
            if reason or built.code ~= 0 then
                pending(reason or "the targets were not built")
            end
            local log = table.concat(lines_of(("cat '%s/%s.log'"):format(folder, name)), "\n")
            assert.matches("\nstatus 0$", log)
            local tried = math.tointeger(tonumber(log:match("stat::number_of_executed_units: (%d+)")))
            local seeds = #lines_of("ls " .. SEEDS .. name)
            assert.is_true(seeds > 0 and tried > 2 * seeds, ("%d inputs tried, %d seeds"):format(tried, seeds))
        end)
    end
end)
