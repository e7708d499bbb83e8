-- bench_spec.lua: timing and the text around it.
local spl = require "spl"
local bench = require "spl.bench"
local mpi = require "mpi"
local report = require "spl.report"

describe("bench", function()
    local function refused(pattern, o)
        local ok, err = pcall(spl.bench, o)
        assert.is_false(ok)
        assert.equal("argument", err.code)
        assert.matches(pattern, err.message)
    end

    it("times rounds after warm-up, releases what they give, counts each round alone", function()
        local calls = 0
        local r = spl.bench { name = "nap", rounds = 4, warmup = 2, quiet = true, function()
            calls = calls + 1
            local stop = spl.now() + (calls == 4 and 0.030 or 0.010)
            repeat until spl.now() >= stop
            return spl.zeros { shape = { 1 << 20 } }, setmetatable({}, { __index = { release = function() end } })
        end }
        assert.equal(6, calls)
        assert.equal("nap", r.name)
        assert.is_true(r.ms_min >= 10 and r.ms_min <= r.ms_p50 and r.ms_p50 <= r.ms_p99)
        assert.is_true(r.ms_p99 >= 30)
        assert.is_true(r.peak_bytes >= 4 << 20 and r.peak_bytes < 8 << 20) -- one tensor at a time
        assert.equal(0, r.bytes_sent)
        assert.equal(0, r.comm_ms)
        assert.is_nil(r.gflops)
    end)

    it("gives speed where FLOPs are given, against an SGEMM measured once", function()
        local rate = bench.sgemm()
        assert.is_true(rate > 1e8)
        assert.equal(rate, bench.sgemm())
        for _ = 1, 2 do
            local r = bench.bench { rounds = 1, warmup = 0, flops = 2e9, quiet = true, function()
                local stop = spl.now() + 0.020
                repeat until spl.now() >= stop
            end }
            local seconds = r.ms_p50 / 1e3
            assert.is_true(math.abs(r.gflops - 2 / seconds) < 1e-9 * r.gflops)
            assert.is_true(math.abs(r.gemm_pct - 100 * 2e9 / seconds / rate) < 1e-9 * r.gemm_pct)
        end
    end)

    it("says at a terminal how long it will take, where that is long", function()
        local chunk = [[
            local spl = require "spl"
            local stop
            spl.bench { name = "slow", rounds = 40, warmup = %d, quiet = true, function()
                stop = stop or spl.now() + %g -- the first call alone
                repeat until spl.now() >= stop
            end }]]
        for _, case in ipairs { { 1, 0.3, "t", 1, 40 }, { 0, 0.3, "t", 1, 39 }, { 1, 0.3, "-", 0 },
            { 1, 0.01, "t", 0 } } do
            local r = mpi.run(1, chunk:format(case[1], case[2]), nil, { env = { SPL_LAUNCHER = case[3] } })
            assert.same({ 0, "" }, { r.code, r.out })
            assert.equal(case[4], mpi.count(r.err, ("slow: %d calls of about 0.3 s\n"):format(case[5] or 0)), r.err)
            assert.is_true(case[4] == 1 or r.err == "")
        end
    end)

    it("refuses what it cannot time", function()
        refused("function to time", {})
        refused("function to time", 5)
        refused("unknown option 'round'", { round = 3, function() end })
        refused("rounds = 0", { rounds = 0, function() end })
        refused("rounds = 2.5", { rounds = 2.5, function() end })
    end)

    it("lets errors of the function through", function()
        local ok, err = pcall(spl.bench, { warmup = 0, function() error("mine", 0) end })
        assert.is_false(ok)
        assert.equal("mine", err)
    end)
end)

describe("a report", function()
    local columns = { { title = "mesh", unit = "", width = 6, left = true }, { title = "time", unit = "ms", width = 8,
        format = "%.1f" }, { title = "sent", unit = "bytes", width = 7 } }

    it("stands its cells under their titles", function()
        assert.equal("#mesh       time    sent\n#           (ms) (bytes)", report.head(columns))
        assert.equal(" tp=2       12.3       -", report.row(columns, { "tp=2", 12.34 }))
        assert.equal(" tp=2       12.3     512", report.row(columns, { "tp=2", 12.34, 512 }))
    end)

    it("pushes a line out rather than cutting a number", function()
        assert.equal(" a      123456789.0       1", report.row(columns, { "a", 123456789, 1 }))
    end)

    it("fits as many digits as a column holds", function()
        assert.equal("12.34", report.fitted(12.34, 7))
        assert.equal("12.3", report.fitted(12.34, 4))
        assert.equal("1234", report.fitted(1234.4, 4))
        assert.equal("1.2e+04", report.fitted(12345, 4))
        assert.equal("12.3", report.fitted(12.34, 7, 1))
        assert.equal("1 rank, 2 ranks", report.plural(1, "rank") .. ", " .. report.plural(2, "rank"))
    end)

    it("says sizes", function()
        assert.equal("0 B", report.bytes(0))
        assert.equal("1023 B", report.bytes(1023))
        assert.equal("1.50 KiB", report.bytes(1536))
        assert.equal("2.00 GiB", report.bytes(2 << 30))
        assert.equal("[1, 2048]", report.shape { 1, 2048 })
        assert.equal("a   bb\n1  222\n33   4", report.aligned({ "a", "bb" }, { { "1", "222" }, { "33", "4" } },
            { [2] = true }))
    end)
end)
