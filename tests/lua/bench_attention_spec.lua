-- bench_attention_spec.lua: the script bench_attention.lua as a user starts it: rows, keys, what it says, exit codes.
local json = require "spl.json"
local mpi = require "tests.support.mpi"

local function run(n, ...)
    local args = { "--seq", "64", "--heads", "4", "--head-dim", "8", "--rounds", "1", "--warmup", "0" }
    return mpi.spl { "run", "--virtual", tostring(n), "bench_attention.lua", "--",
        table.unpack(table.move({ ... }, 1, select("#", ...), #args + 1, args)) }
end

describe("bench_attention.lua", function()
    it("prints a row a mesh, right and with the bytes and tiles that theory says", function()
        local r = run(4, "--check", "--mesh", "cp=*:ring", "--mesh", "u=2:ulysses, r=2:ring", "--kv-heads", "2",
            "--mesh", "cp=*:gather", "--scheme", "zigzag", "--seq", "1536")
        assert.equal(0, r.code, r.err)
        for _, mesh in ipairs { "cp=4:ring zigzag", "u=2:ulysses, r=2:ring zigzag", "cp=4:gather zigzag" } do
            assert.equal(1, mpi.count(r.out, "\n " .. mesh .. " "), r.out)
        end
        assert.matches("hidden exposed", r.out)
        assert.equal(1, mpi.count(r.out, "each rank holds the keys and values"))
        assert.matches("wrong elements: 0, OK\n# bytes sent: as theory says\n$", r.out)
        for line in r.out:gmatch("[^\n]+") do
            assert.is_true(line:sub(1, 1) == "#" and not line:match "^#mesh" or #line < 190, line)
        end
    end)

    it("prints JSON with sp_forward's keys and those of attention", function()
        -- zigzag's 8 chunks are whole tiles: 384 is 4 x 96 and 3 x 128
        local r = run(4, "--json", "--check", "--seq", "3072", "--mesh", "cp=*:ring", "--scheme", "zigzag")
        assert.equal(0, r.code, r.err)
        local row = json.decode(r.out)
        for _, key in ipairs { "mesh", "ranks", "threads", "time_ms_p50", "time_ms_min", "gflops", "gemm_pct",
            "comm_ms", "comm_exposed_ms", "comm_pct", "bytes_sent", "bytes_theory", "peak_bytes", "rel_err", "wrong",
            "batch", "seq", "heads", "kv_heads", "head_dim", "dtype", "scheme", "mask", "tokens_per_s", "imbalance",
            "tiles_computed", "tiles_needed", "approx_err" } do
            assert.is_truthy(row[key] ~= nil, key)
        end
        assert.same({ "cp=4:ring", 0, 1.0, json.null }, { row.mesh, row.wrong, row.imbalance, row.approx_err })
        assert.equal(row.bytes_theory, row.bytes_sent)
        assert.equal(row.tiles_needed, row.tiles_computed)
        -- contiguous: 16 blocks of 96 rows, 12 of 128 keys, 4 heads: the tiles on or below the diagonal
        row = json.decode(run(4, "--json", "--seq", "1536", "--mesh", "cp=*:ring").out)
        assert.equal(row.tiles_needed, row.tiles_computed)
        local needed = 0
        for i = 0, 15 do needed = needed + ((i + 1) * 96 + 127) // 128 end
        assert.equal(4 * needed, row.tiles_needed)
    end)

    it("says why a contiguous ring is imbalanced and what to use instead", function()
        local r = run(4, "--seq", "256")
        assert.equal(0, r.code, r.err)
        assert.equal(1, mpi.count(r.out, "imbalance 1.7"), r.out)
        assert.matches("see more keys.*%-%-scheme zigzag or striped", r.out)
        r = run(4, "--seq", "256", "--scheme", "zigzag")
        assert.equal(0, mpi.count(r.out, "imbalance"))
        r = run(4, "--seq", "256", "--mask", "full")
        assert.equal(0, mpi.count(r.out, "imbalance"))
    end)

    it("prints how far summaries are from exact attention", function()
        local r = run(2, "--json", "--check", "--mesh", "cp=*:hierarchical", "--chunk", "8")
        assert.equal(0, r.code, r.err)
        local row = json.decode(r.out)
        assert.is_true(row.approx_err > 1e-3 and row.approx_err < 1)
        assert.is_true(row.rel_err < 2e-6)
        assert.same({ 8, 1 }, { row.chunk, row.summaries })
        -- chunks as long as the sequence: nothing is summarised
        r = run(2, "--json", "--mesh", "cp=*:hierarchical", "--chunk", "64")
        assert.is_true(json.decode(r.out).approx_err < 1e-6)
        assert.matches("approximate: chunks of 8, 1 summary of each; approx_err %d", run(2, "--mesh",
            "cp=*:hierarchical", "--chunk", "8").out)
    end)

    it("compares with all scores in memory, on one rank", function()
        local r = run(1, "--check", "--json", "--mesh", "naive", "--mesh", "cp=1:ring", "--kv-heads", "2")
        assert.equal(0, r.code, r.err)
        local naive, tiled = r.out:match("(%b{})%s*(%b{})")
        naive, tiled = json.decode(naive), json.decode(tiled)
        assert.same({ "naive", 0, 0 }, { naive.mesh, naive.wrong, tiled.wrong })
        assert.is_true(naive.peak_bytes >= 4 * 64 * 64 + tiled.peak_bytes - 4 * 64 * 4)
        assert.equal(0, run(1, "--check", "--mesh", "naive", "--mask", "full").code)
    end)

    it("says once that rows see no key", function()
        local r = run(2, "--check", "--mask", "padding:60", "--mesh", "cp=*:ring", "--mesh", "cp=*:ulysses")
        assert.equal(0, r.code, r.err)
        assert.equal(1, mpi.count(r.out, "4 of 64 queries see no key under padding:60"))
    end)

    it("refuses before work starts what cannot be", function()
        local function refused(n, pattern, ...)
            local r = run(n, ...)
            assert.equal(2, r.code, r.err)
            assert.matches(pattern, r.err)
            assert.equal("", r.out)
        end
        refused(2, "naive is one rank's way", "--mesh", "naive")
        refused(1, "knows the masks causal and full", "--mesh", "naive", "--mask", "window:3")
        refused(1, "sum to 3 tokens, but the sequence has 64", "--mask", "docs:1,2")
        refused(1, "window.*1 or more", "--mask", "window:0")
        refused(2, "keeps chunks whole", "--mesh", "cp=*:hierarchical", "--scheme", "zigzag")
        refused(2, "has no role", "--mesh", "cp=*")
        refused(1, "must be a multiple of kv_heads", "--kv-heads", "3")
        refused(1, "did you mean '%-%-heads'", "--head", "3")
    end)
end)
