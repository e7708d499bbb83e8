-- sp_forward_spec.lua: the script as users run it: what it prints, its JSON, its checks, and how it ends.
local spl = require "spl"
local json = require "spl.json"
local mpi = require "tests.support.mpi"

local SMALL = { "--seq", "33", "--hidden", "24", "--heads", "4", "--rounds", "2", "--warmup", "1" }

local function run(n, ...)
    local args = table.move(SMALL, 1, #SMALL, 1, {})
    return mpi.run(n, "sp_forward.lua", table.move({ ... }, 1, select("#", ...), #args + 1, args))
end

local KEYS = { "mesh", "ranks", "threads", "time_ms_p50", "time_ms_min", "gflops", "gemm_pct", "comm_ms",
    "comm_exposed_ms", "comm_pct", "bytes_sent", "bytes_theory", "peak_bytes", "rel_err", "wrong" }

local function rows_of(text)
    local rows = {}
    for line in text:gmatch("[^\n]+") do
        if line:sub(1, 1) ~= "#" then rows[#rows + 1] = line end
    end
    return rows
end

describe("sp_forward", function()
    it("prints a header, a row a mesh and a footer, as nccl-tests does", function()
        local r = run(2, "--check")
        assert.equal(0, r.code, r.err)
        assert.equal("", r.err)
        local rows = rows_of(r.out)
        assert.equal(3, #rows)
        assert.matches("^ tp=2:tensor ", rows[1])
        assert.matches("^ tp=2:sequence ", rows[2])
        assert.matches("^ dp=2:data, tp=1:sequence ", rows[3])
        local lines = {}
        for line in r.out:gmatch("[^\n]+") do lines[#lines + 1] = line end
        local head
        for i, line in ipairs(lines) do
            if line:match("^#mesh") then head = i end
        end
        assert.matches("time.*gemm.*sent.*theory.*peak.*rel_err.*#wrong$", lines[head])
        assert.matches("%(ms p50%).*%(GFLOP/s/rank%).*%(bytes%)$", lines[head + 1]:gsub("%s+$", ""))
        assert.equal(#lines[head], #rows[1]) -- columns stand under their titles
        assert.equal("# bytes sent: as theory says", lines[#lines])
        assert.equal("# wrong elements: 0, OK", lines[#lines - 1])
    end)

    it("leaves the mesh with a data axis out of an odd world", function()
        local r = run(1)
        assert.equal(0, r.code, r.err)
        assert.equal(2, #rows_of(r.out))
        assert.matches("not checked", r.out)
    end)

    it("prints JSON with exactly the keys of the design", function()
        local r = run(3, "--json", "--check", "--dropout", "0.1")
        assert.equal(0, r.code, r.err)
        local count = 0
        for line in r.out:gmatch("[^\n]+") do
            count = count + 1
            local row, at = json.decode(line), 1
            for _, key in ipairs(KEYS) do -- in this order
                local found = line:find('"' .. key .. '":', at, true)
                assert.is_truthy(found, key)
                at = found
            end
            for key in pairs(row) do
                assert.is_truthy(table.concat(KEYS, " "):find(key, 1, true), key)
            end
            assert.equal(3, row.ranks)
            assert.equal(0, row.wrong)
            assert.is_true(row.rel_err > 0 and row.rel_err <= 2e-6)
            assert.equal(row.bytes_theory, row.bytes_sent)
            assert.is_true(row.time_ms_min > 0 and row.time_ms_p50 >= row.time_ms_min)
            assert.is_true(row.gflops > 0 and row.gemm_pct > 0 and row.peak_bytes > 0)
        end
        assert.equal(2, count)
    end)

    it("prints each saved tensor's shapes and layout", function()
        local r = run(2, "--shapes", "--mesh", "tp=*:sequence", "--no-save")
        assert.equal(0, r.code, r.err)
        assert.matches("saved outputs: not kept", r.out)
        assert.matches("# ln0_mean +f32 +%[1, 33%] +%[1, 17%] +tp=shard%(2%)", r.out)
        assert.matches("# mha_linear0_out +f32 +%[1, 33, 72%] +%[1, 33, 36%] +tp=shard%(3,unit:18%)", r.out)
        assert.matches("# sdpa_out +f32 +%[1, 4, 33, 6%] +%[1, 2, 33, 6%]", r.out)
        local order, at = { "ln0_mean", "ln0_rstd", "mha_linear0_out", "sdpa_out", "sdpa_logsumexp", "seed", "offset",
            "mha_linear1_out", "mha_dropout_mask", "ln1_mean", "ln1_rstd", "mlp_linear0_out", "mlp_dropout_mask",
                "out" }, 1
        for _, name in ipairs(order) do
            at = r.out:find("\n# " .. name .. " ", at, true)
            assert.is_truthy(at, name)
        end
    end)

    it("takes meshes, KV heads, batches and dtypes", function()
        local r = run(4, "--json", "--check", "--mesh", "dp=2:data, tp=*:sequence", "--mesh", "a=2:tensor,b=2:sequence",
            "--kv-heads", "2", "--batch", "3", "--dtype", "f64")
        assert.equal(0, r.code, r.err)
        local seen = {}
        for line in r.out:gmatch("[^\n]+") do
            local row = json.decode(line)
            seen[#seen + 1] = row.mesh
            assert.equal(0, row.wrong)
            assert.is_true(row.rel_err < 1e-13)
        end
        assert.same({ "dp=2:data, tp=2:sequence", "a=2:tensor, b=2:sequence" }, seen)
    end)

    it("ends with 1 when a result is wrong, and says so", function()
        local r = mpi.run(2, [[
            local spl = require "spl"
            local truth = spl.reference.block
            spl.reference.block = function(a) a.causal = false return truth(a) end
            dofile("scripts/sp_forward.lua")]], { "--check", table.unpack(SMALL) })
        assert.equal(1, r.code)
        assert.matches("wrong elements: %d+, FAILED", r.out)
        assert.matches("bytes sent: as theory says", r.out)
    end)

    it("ends with 1 when bytes are not those of theory", function()
        local r = mpi.run(2, [[
            local theory = require "spl.theory"
            local truth = theory.block_bytes
            theory.block_bytes = function(...) return truth(...) + 1 end
            dofile("scripts/sp_forward.lua")]], { "--json", table.unpack(SMALL) })
        assert.equal(1, r.code)
        assert.equal("spl: sp_forward: 0 wrong elements; bytes not as theory says\n", r.err)
    end)

    local function refused(n, code, pattern, ...)
        local r = run(n, ...)
        assert.equal(code, r.code)
        assert.equal(1, mpi.count(r.err, "spl: rank"), r.err) -- once, not once a rank
        assert.matches(pattern, r.err)
        assert.equal(0, #rows_of(r.out))
    end

    it("ends with 2 and one sentence for a command line that is wrong, before any row", function()
        refused(1, 2, "did you mean '%-%-seq'", "--sek", "3")
        refused(1, 2, "at least 1, got 0", "--seq", "0")
        refused(1, 2, "at least 1, got %-3", "--hidden", "-3")
        refused(1, 2, "whole number.*got 'many'", "--batch", "many")
        refused(2, 2, "not a multiple of heads", "--heads", "5")
        refused(1, 2, "not a multiple of kv_heads", "--kv-heads", "3")
        refused(2, 2, "3 ranks, but there are 2", "--mesh", "tp=3:tensor")
        refused(1, 2, "two axes of size %*", "--mesh", "tp=*:tensor, sp=*:sequence")
        refused(1, 2, "twice", "--mesh", "tp=1:tensor, tp=2:tensor")
        refused(1, 2, "did you mean 'tensor'", "--mesh", "tp=*:tensr")
        refused(2, 2, "role 'ring'.*not available", "--mesh", "tp=*:tensor", "--mesh", "cp=*:ring")
        refused(1, 2, "probability", "--dropout", "1")
        refused(1, 2, "f32, f64, got 'bf16'", "--dtype", "bf16")
        refused(1, 2, "choose one", "--shapes", "--json")
    end)

    it("ends with 1, bytes wanted and bytes free, when memory does not suffice", function()
        refused(2, 1, "bytes .* wanted.* free", "--seq", "1000000000000")
    end)

    it("does not judge a backend that computes nothing", function()
        local r = mpi.run(1, "sp_forward.lua", { "--check", table.unpack(SMALL) }, { flags = { "--backend", "null" } })
        assert.equal(1, r.code)
        assert.matches("computes no values", r.err)
    end)

    it("lists its options", function()
        local r = run(1, "--help")
        assert.equal(0, r.code)
        for _, option in ipairs { "batch", "seq", "hidden", "heads", "kv%-heads", "mesh", "dtype", "dropout", "rounds",
            "warmup", "seed", "check", "shapes", "json" } do
            assert.matches("%-%-" .. option, r.out)
        end
    end)

    it("is found by its name wherever it is started", function()
        local r = mpi.spl { "run", "sp_forward", "--help" }
        assert.equal(0, r.code)
        assert.is_truthy(spl.executable())
    end)
end)
