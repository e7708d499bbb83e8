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
    "comm_exposed_ms", "comm_pct", "bytes_sent", "bytes_theory", "peak_bytes", "rel_err", "wrong", "batch", "seq",
    "hidden", "heads", "kv_heads", "head_dim", "ffn", "norm", "act", "gated", "qkv", "bias", "rope_theta", "dropout",
    "seed", "dtype", "save", "backend", "rounds", "warmup", "time_ms_p99", "tokens_per_s", "weights_bytes",
    "workspace_bytes", "rows_checked", "scheme", "mask", "chunk", "summaries", "approx_err", "virtual",
    "cores", "oversubscribed", "hosts" }

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
        assert.equal(5, #rows)
        assert.matches("^ tp=2:tensor ", rows[1])
        assert.matches("^ tp=2:sequence ", rows[2])
        assert.matches("^ dp=2:data, tp=1:sequence ", rows[3])
        assert.matches("^ cp=2:ring zigzag ", rows[4])
        assert.matches("^ sp=2:ulysses ", rows[5])
        local lines = {}
        for line in r.out:gmatch("[^\n]+") do lines[#lines + 1] = line end
        local head
        for i, line in ipairs(lines) do
            if line:match("^#mesh") then head = i end
        end
        assert.matches("time.*gemm.*sent.*theory.*peak.*rel_err.*#wrong$", lines[head])
        assert.matches("%(ms p50%).*%(GFLOP/s%).*%(bytes%)$", lines[head + 1]:gsub("%s+$", ""))
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

    it("says which mesh was fastest where there are several, and how long a line may be", function()
        local r = run(2, "--mesh", "tp=*:tensor", "--mesh", "tp=*:sequence")
        assert.equal(0, r.code, r.err)
        local name, tokens = r.out:match("\n# fastest: (tp=2:%l+), (%d+) tokens/s")
        assert.is_truthy(name, r.out)
        local least = math.huge -- of milliseconds with two digits behind the point
        for row in r.out:gmatch("\n( tp=[^\n]*)") do
            least = math.min(least, tonumber(row:match("^ %S+ +1 +(%S+)")))
        end
        assert.is_true(math.abs(33e3 / tokens - least) < 0.0051, r.out)
        r = run(2, "--mesh", "tp=*:tensor")
        assert.is_nil(r.out:match("fastest"))
        r = run(1, "--mesh", "tp=*:tensor", "--mesh", "tp=*:sequence")
        assert.is_nil(r.out:match("fastest"))
        assert.matches("\n# tp=1:tensor, tp=1:sequence run the same program here: ", r.out, 1, true)
        r = run(2)
        for line in r.out:gmatch("[^\n]+") do
            assert.is_true(line:sub(1, 1) == "#" and not line:match "^#mesh" or #line < 140, line)
        end
    end)

    it("gives each rank of the data axes a sequence, and says who is idle when told otherwise", function()
        local r = run(4, "--json", "--mesh", "a=2:data, b=2:data", "--mesh", "dp=2:data, tp=2:tensor", "--mesh",
            "tp=*:tensor")
        assert.equal(0, r.code, r.err)
        local batches = {}
        for line in r.out:gmatch("[^\n]+") do batches[#batches + 1] = json.decode(line).batch end
        assert.same({ 4, 2, 1 }, batches)
        r = run(4, "--mesh", "dp=4:data", "--batch", "3")
        assert.matches("\n dp=4:data +3 ", r.out)
        assert.matches("batch 3 is less than the 4 ranks of the data axes: 1 of 4 is idle; give %-%-batch 4", r.out)
        r = run(4, "--mesh", "dp=2:data, tp=2:tensor", "--batch", "1")
        assert.matches("2 of 4 are idle", r.out)
        assert.equal(0, mpi.count(run(2, "--mesh", "dp=2:data", "--batch", "2").out, "idle"))
    end)

    it("warns when ranks have to take turns on the cores", function()
        local cores = spl.facts().cores_allowed
        local r = mpi.run(1, "sp_forward.lua", SMALL, { flags = { "--threads", tostring(cores) } })
        assert.equal(0, mpi.count(r.out, "take turns"))
        r = mpi.run(1, "sp_forward.lua", SMALL, { flags = { "--threads", tostring(cores + 1) } })
        assert.equal(1, mpi.count(r.out, ("\n# 1 rank with %d threads on %d core"):format(cores + 1, cores)))
        assert.equal(1, mpi.count(r.out, ": they take turns, so times say little\n"))
        r = mpi.run(1, "sp_forward.lua", SMALL, { flags = { "--virtual", "2" } })
        assert.equal(1, mpi.count(r.out, "take turns"))
        assert.matches("\n# virtual ranks take turns in one process", r.out)
        assert.is_nil(r.out:find("fastest", 1, true))
    end)

    it("says in JSON what the header warns of, and gives virtual ranks no times", function()
        local cores = spl.facts().cores_allowed
        local args = table.move({ "--json", "--mesh", "tp=*:tensor" }, 1, 3, #SMALL + 1,
            table.move(SMALL, 1, #SMALL, 1, {}))
        local row = json.decode(mpi.run(1, "sp_forward.lua", args,
            { flags = { "--threads", tostring(cores + 1) } }).out)
        assert.same({ false, true, cores, spl.host() }, { row.virtual, row.oversubscribed, row.cores, row.hosts })
        assert.is_true(row.time_ms_p50 > 0)
        row = json.decode(mpi.run(1, "sp_forward.lua", args, { flags = { "--virtual", "2" } }).out)
        assert.same({ true, false }, { row.virtual, row.bytes_sent == 0 })
        for _, key in ipairs { "time_ms_p50", "time_ms_min", "time_ms_p99", "gflops", "gemm_pct", "comm_ms",
            "comm_exposed_ms", "comm_pct", "tokens_per_s" } do
            assert.equal(json.null, row[key], key)
        end
    end)

    it("times other blocks than GPT's, and says in the header which", function()
        local r = run(2, "--check", "--norm", "rms", "--gated", "--no-bias", "--rope", "10000", "--kv-heads", "2",
            "--head-dim", "8", "--ffn", "50", "--act", "gelu_erf", "--mesh", "tp=*:sequence")
        assert.equal(0, r.code, r.err)
        assert.matches("# block: hidden 24, heads 4, kv_heads 2, head_dim 8, ffn 50, f32, rms norm, gelu_erf gated, "
            .. "qkv separate, no bias, rope 10000, causal, dropout 0, seed 1\n", r.out)
        assert.matches("wrong elements: 0, OK", r.out)
        r = run(1, "--json", "--qkv", "separate", "--mesh", "tp=1:tensor")
        assert.equal("separate", json.decode(r.out).qkv)
    end)

    it("prints no times where nothing is computed", function()
        local r = mpi.run(2, "sp_forward.lua", SMALL, { flags = { "--backend", "null" } })
        assert.equal(0, r.code, r.err)
        assert.matches("\n tp=2:tensor +1 +%- +%- +%- +%- +%- +%- +%- +%- +%d+ +%d+ +%d+ +%- +%-\n", r.out)
        assert.equal(0, mpi.count(r.out, "SGEMM"))
        assert.equal(0, mpi.count(r.out, "fastest"))
        r = mpi.run(1, "sp_forward.lua", { "--json", table.unpack(SMALL) }, { flags = { "--backend", "null" } })
        local row = json.decode(r.out:match("[^\n]+"))
        for _, key in ipairs { "time_ms_p50", "time_ms_min", "time_ms_p99", "gflops", "gemm_pct", "comm_ms",
            "comm_exposed_ms", "comm_pct", "tokens_per_s" } do
            assert.equal(json.null, row[key])
        end
        assert.equal(0, row.bytes_sent)
    end)

    it("prints JSON with exactly the keys of the design and those that say what was timed", function()
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
        assert.equal(4, count)
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
            spl.reference.block = function(a) a.causal, a.slices = false, nil return truth(a) end
            dofile("scripts/sp_forward.lua")]], { "--check", table.unpack(SMALL) })
        assert.equal(1, r.code)
        assert.matches("wrong elements: %d+, FAILED", r.out)
        assert.matches("bytes sent: as theory says", r.out)
    end)

    it("ends with 1 when rel_err is above its bound though no element counts as wrong", function()
        local chunk = [[
            local spl = require "spl"
            local truth = spl.reference.block
            spl.reference.block = function(a) a.eps = a.eps + 1e-5 return truth(a) end
            dofile("scripts/sp_forward.lua")]]
        local r = mpi.run(1, chunk, { "--check", table.unpack(SMALL) })
        assert.equal(1, r.code)
        assert.matches("wrong elements: 0\n", r.out)
        assert.matches("rel_err %d.%de%-06 is above the 2.0e%-06 that f32 must keep, FAILED", r.out)
        r = mpi.run(1, chunk, { "--json", "--check", table.unpack(SMALL) })
        assert.equal(1, r.code)
        assert.matches("0 wrong elements; bytes as theory says; .*rel_err .* above the 2.0e%-06", r.err)
    end)

    it("finds nothing wrong in very short vectors", function()
        for _, args in ipairs { { "--hidden", "3", "--heads", "3" }, { "--hidden", "8", "--heads", "2", "--ffn", "1" },
            { "--hidden", "64", "--heads", "16", "--dtype", "bf16" } } do
            for seed = 1, 2 do
                local r = mpi.run(1, "sp_forward.lua", { "--check", "--seq", "64", "--rounds", "1", "--warmup", "0",
                    "--mesh", "tp=1:tensor", "--seed", tostring(seed), "--json", table.unpack(args) })
                assert.same({ 0, "" }, { r.code, r.err }, table.concat(args, " "))
            end
        end
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

    it("refuses a sequence that no memory holds in a sentence, before it measures anything", function()
        local r = run(1, "--seq", "1000000000")
        assert.same({ 1, "" }, { r.code, r.out })
        assert.matches("^spl: rank 0: %d+ bytes [^\n]* are wanted for activations[^\n]*\n$", r.err)
    end)

    local function refused(n, code, pattern, ...)
        local r = run(n, ...)
        assert.equal(code, r.code)
        assert.equal(1, mpi.count(r.err, "spl: "), r.err) -- once, not once a rank
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
        refused(2, 2, "role 'pipeline'.*not available", "--mesh", "tp=*:tensor", "--mesh", "pp=*:pipeline")
        refused(1, 2, "probability", "--dropout", "1")
        refused(1, 2, "f32, f64, bf16, f16, got 'i32'", "--dtype", "i32")
        refused(1, 2, "choose one", "--shapes", "--json")
    end)

    it("ends with 1, bytes wanted and bytes free, when memory does not suffice", function()
        refused(2, 1, "bytes .* wanted.* free", "--seq", "1000000000")
    end)

    it("does not judge a backend that computes nothing", function()
        local r = mpi.run(1, "sp_forward.lua", { "--check", table.unpack(SMALL) }, { flags = { "--backend", "null" } })
        assert.same({ 2, "" }, { r.code, r.out })
        assert.equal("spl: --check: the backend 'null' computes no values to judge; run with --backend cpu\n",
            r.err)
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

    it("takes schemes, masks, chunks and summaries, and says what an approximation costs", function()
        local r = run(4, "--check", "--json", "--mesh", "u=2:ulysses, r=2:ring", "--scheme", "striped", "--mask",
            "window:5")
        assert.equal(0, r.code, r.err)
        local row = json.decode(r.out)
        assert.same({ "striped", "window:5", 0, json.null }, { row.scheme, row.mask, row.wrong, row.approx_err })
        assert.equal(row.bytes_theory, row.bytes_sent)
        r = run(2, "--check", "--mesh", "cp=2:hierarchical", "--chunk", "4", "--summaries", "2")
        assert.equal(0, r.code, r.err)
        local approx = tonumber(r.out:match("approximate: chunks of 4, 2 summaries of each; approx_err (%S+),"))
        assert.is_true(approx > 1e-5 and approx < 0.5, r.out)
        assert.matches("wrong elements: 0, OK", r.out)
        r = run(1, "--mask", "padding:30", "--check")
        assert.equal(0, r.code, r.err)
        assert.equal(1, mpi.count(r.out, "3 of 33 queries see no key under padding:30; attention gives 0 there"))
        r = run(1, "--mask", "docs:1,2")
        assert.equal(2, r.code)
        assert.matches("sum to 3 tokens, but the sequence has 33", r.err)
        r = run(2, "--mesh", "tp=2:tensor", "--scheme", "zigzag")
        assert.equal(2, r.code)
        assert.matches("deals out the sequence by a scheme", r.err)
    end)
end)
