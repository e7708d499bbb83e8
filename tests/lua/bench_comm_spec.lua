-- bench_comm_spec.lua: the script bench_comm.lua as a user starts it: exit codes, and what is printed once. The specs
-- of tests/mpi on one rank. And the data that it checks with.
local spl = require "spl"
local mpi = require "mpi"
local transfers = require "spl.transfers"

local SMALL = { "--min", "1k", "--max", "4k", "--rounds", "2", "--warmup", "0" }

local function small(...)
    return table.move(SMALL, 1, #SMALL, select("#", ...) + 1, { ... })
end

describe("bench_comm.lua", function()
    it("runs on one rank and on two, and every row has its 13 cells", function()
        for ranks = 1, 2 do
            local r = mpi.run(ranks, "bench_comm.lua", small())
            assert.equal(0, r.code, r.err)
            assert.equal("", r.err)
            local rows = 0
            for line in r.out:gmatch("[^\n]+") do
                if line:sub(1, 1) ~= "#" then
                    rows = rows + 1
                    assert.equal(13, select(2, line:gsub("%S+", "")))
                    local busbw = line:match("^%s+%d+%s+%d+%s+f32%s+%S+%s+%-?%d+%s+%S+%s+%S+%s+(%S+)%s+0%s")
                    assert.is_true(ranks == 2 or tonumber(busbw) == 0, line)
                end
            end
            assert.equal(2 * #transfers.names, rows)
            assert.equal(#transfers.names, mpi.count(r.out, "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : "))
        end
    end)

    it("exits with 1 when a value is wrong", function()
        local chunk = [[
            local spl, transfers = require "spl", require "spl.transfers"
            local run = transfers.run
            function transfers.run(c, mesh, axis, send, recv)
                run(c, mesh, axis, send, recv)
                if spl.rank() == 1 then recv:narrow(1, 5, 1):fill(77777) end
            end
            dofile "scripts/bench_comm.lua"
        ]]
        local r = mpi.run(2, chunk, small("--op", "all_gather,send_recv"))
        assert.equal(1, r.code)
        assert.equal(1, mpi.count(r.out, "values : 4 FAILED"))
        assert.equal(1, mpi.count(r.out, "values : 2 FAILED"))
        r = mpi.run(2, chunk, small("--json", "--op", "all_reduce"))
        assert.equal(1, r.code)
        assert.equal(2, mpi.count(r.out, '"wrong":1,'))
        assert.equal(1, mpi.count(r.err, "4 wrong elements"))
    end)

    it("exits with 2 and one sentence when the command line is wrong", function()
        for ranks = 1, 2 do
            local r = mpi.run(ranks, "bench_comm.lua", { "--op", "all_redce" })
            assert.equal(2, r.code)
            assert.equal("", r.out)
            assert.equal("spl: --op: there is no collective 'all_redce'; did you mean 'all_reduce'?\n", r.err)
        end
    end)

    it("exits with 1 and says how much is wanted where the buffers do not fit", function()
        local r = mpi.run(1, "bench_comm.lua", { "--max", "100000G", "--op", "all_reduce" })
        assert.equal(1, r.code)
        assert.matches("107374182400000 bytes", r.err)
        assert.matches("free", r.err)
    end)
end)

describe("on one rank", function()
    for _, name in ipairs { "collective_spec", "bench_comm_spec" } do
        it("the tests of " .. name .. " pass", function()
            local r = mpi.spl({ "test", "tests/mpi/" .. name .. ".lua" }, { env = { OMP_NUM_THREADS = "1" } })
            assert.equal(0, r.code, r.out .. r.err)
            assert.matches("\n?[1-9]%d* passed, 0 failed, 0 skipped\n$", r.out)
        end)
    end
end)

describe("the data of bench_comm", function()
    it("sums exactly in its dtype over any number of ranks", function()
        local limits = { f64 = 1 << 53, f32 = 1 << 24, bf16 = 256, f16 = 2048, i64 = 1 << 53, i32 = 1 << 31, u8 = 254 }
        for dtype, exact in pairs(limits) do
            for _, ranks in ipairs { 1, 2, 3, 127, 128, 300 } do
                local data, most, least = transfers.data(dtype, ranks), 0, 0
                for i = 0, 9972, 97 do
                    local sum = 0
                    for rank = 0, ranks - 1 do
                        local value = data:value(rank, i)
                        assert(math.type(value) == "integer")
                        sum, least = sum + value, math.min(least, value)
                    end
                    most = math.max(most, sum)
                end
                local exactly = least == 0 and most > 0 and most <= exact
                assert.is_true(exactly, ("%s, %d ranks: %d"):format(dtype, ranks, most))
            end
        end
    end)

    it("fills tensors of any length with its period", function()
        local f64 = transfers.data("f64", 3)
        for _, n in ipairs { 0, 1, 9972, 9973, 9974, 40000 } do
            local t <close> = spl.tensor { shape = { n }, dtype = "f64" }
            f64:fill(t, 2)
            local flat = t:flat()
            assert.equal(n, #flat)
            for i = 1, n do
                assert(flat[i] == f64:value(2, (i - 1) % 9973), i)
            end
        end
    end)
end)
