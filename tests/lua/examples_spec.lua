-- examples_spec.lua: every lesson runs, on one rank and on several, and the C example gives one answer on all.
local mpi = require "mpi"
local spl = require "spl"

local function list(pattern)
    local pipe = assert(io.popen("ls " .. pattern))
    local paths = {}
    for path in pipe:lines() do
        paths[#paths + 1] = path
    end
    pipe:close()
    return paths
end

describe("an example", function()
    for _, path in ipairs(list "examples/*.lua") do
        for _, n in ipairs { 1, 3 } do
            it(("%s runs on %d rank%s"):format(path, n, n == 1 and "" or "s"), function()
                local r = mpi.run(n, path, nil, { flags = { "--check-collectives" } })
                assert.equal("", r.err)
                assert.equal(0, r.code)
                assert.is_true(#r.out > 0)
            end)
        end
    end

    it("03_block.lua says the same with every mesh", function()
        local norms = {}
        for _, mesh in ipairs { "tp=*:tensor", "tp=*:sequence", "dp=2:data, tp=*:tensor" } do
            local r = mpi.run(2, "examples/03_block.lua", { "--mesh", mesh })
            assert.equal(0, r.code, r.err)
            norms[#norms + 1] = assert(r.out:match("‖y‖ = (%d+%.%d%d)"))
        end
        assert.same({ norms[1], norms[1], norms[1] }, norms)
    end)

    it("in C links against libspl and gives the same on 1 and 3 ranks", function()
        local embed = spl.executable():gsub("/spl$", "/examples/embed")
        local alone = mpi.command({ embed })
        assert.equal(0, alone.code, alone.err)
        assert.matches("^sum of squares %d+%.%d+\n$", alone.out)
        local three = mpi.command({ "mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", embed },
            { env = mpi.sanitized() and { ASAN_OPTIONS = "detect_leaks=0" } }) -- what Open MPI leaves is not ours
        assert.equal(0, three.code, three.err)
        assert.equal(alone.out, three.out)
    end)
end)
