-- long_context_spec.lua: the script as users run it, at lengths that take no time: what it prints, and that neither the
-- result nor the memory of all ranks depends on how many they are.
local json = require "spl.json"
local mpi = require "tests.support.mpi"

local function run(ranks, ...)
    return mpi.run(1, "long_context.lua", { "--seq", "2048", "--hidden", "32", "--chunk", "128", ... },
        { flags = { "--virtual", ("%d"):format(ranks) } })
end

local function object(ranks, ...)
    local r = run(ranks, "--json", ...)
    assert.same({ 0, "" }, { r.code, r.err })
    return json.decode(r.out)
end

local function near(a, b, limit)
    assert.is_true(math.abs(a - b) <= limit * b, ("%.9g is not %.9g"):format(a, b))
end

describe("long_context", function()
    it("says how long, how much memory, and how far from exact", function()
        local r = run(2, "--layers", "3")
        assert.equal(0, r.code, r.err)
        for _, line in ipairs { "# spl %d%.%d%.%d long_context: 2048 tokens through 3 layers",
            "# mesh cp=2:hierarchical, scheme contiguous, chunks of 128 tokens, 1 summary each",
            "# %d+%.%d s, %d+ tokens/s, ", "# memory of all ranks: activations and buffers [%d.]+ MiB ",
            "# approx_err %d%.%d%de%-%d+: .*%(cp=2:ring%), at 2048 tokens", "# output: norm %d+%.%d+" } do
            assert.matches("\n" .. line, "\n" .. r.out)
        end
        assert.matches("^# 0 of 3 layers, about %d+ s in all\n", r.err)
        assert.matches("# 3 of 3 layers %(100 %%%), %d+ tokens/s a layer, 0 s left\n$", r.err)
    end)

    it("gives the same with hierarchical attention on any number of ranks, in the same memory", function()
        local one = object(1)
        assert.is_true(one.approx_err > 0 and one.approx_err < 0.1)
        for _, ranks in ipairs { 2, 4, 8 } do
            local o = object(ranks)
            near(o.output_norm, one.output_norm, 1e-6)
            near(o.approx_err, one.approx_err, 1e-2)
            near(o.peak_bytes_all, one.peak_bytes_all, 0.1)
            assert.equal(ranks, o.ranks)
        end
    end)

    it("is exact with the other roles", function()
        local ring = object(4, "--mesh", "cp=*:ring")
        assert.equal("zigzag", ring.scheme)
        assert.equal(json.null, ring.approx_err)
        for _, mesh in ipairs { "cp=*:gather", "cp=*:ulysses", "u=2:ulysses, r=*:ring", "tp=*:sequence" } do
            near(object(4, "--mesh", mesh).output_norm, ring.output_norm, 1e-6)
        end
        local full = object(4, "--mesh", "cp=*:ring", "--mask", "full")
        assert.equal("contiguous", full.scheme)
        assert.is_true(math.abs(full.output_norm - ring.output_norm) > 1e-6)
    end)

    it("runs under mpirun too", function()
        local r = mpi.run(2, "long_context.lua", { "--seq", "2k", "--chunk", "256", "--layers", "1" })
        assert.equal(0, r.code, r.err)
        assert.matches("; resident [%d.]+ [MG]iB\n", r.out)
    end)

    it("refuses what cannot be before it begins", function()
        for _, case in ipairs {
            { "hierarchical knows the masks causal and full", "--mask", "window:9" },
            { "keeps chunks whole", "--scheme", "zigzag" }, { "has no role", "--mesh", "cp=*" },
            { "whole number", "--seq", "many" },
        } do
            local r = run(2, table.unpack(case, 2))
            assert.equal(2, r.code, r.err)
            assert.matches(case[1], r.err, 1, true)
            assert.equal("", r.out)
        end
    end)
end)
