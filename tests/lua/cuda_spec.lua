-- cuda_spec.lua: the CUDA backend: its host code and kernels on an emulated GPU give what the reference gives, on one
-- rank and on several; and what is said where there is no GPU, or one that will not do.
local mpi = require "mpi"

local function built(name)
    local file = io.open(name)
    if file then
        file:close()
    end
    return file ~= nil
end

local EMULATOR = built "build/spl-cuda-emu.so"

local SMALL = { "--seq", "33", "--hidden", "48", "--heads", "6", "--rounds", "1", "--warmup", "1", "--check",
    "--mesh", "tp=*:sequence" }

local function emulated(n, script, args, env)
    local all = { SPL_MEMORY_CACHE = "0" } -- each block of memory ends, so that its use afterwards is found
    for name, value in pairs(env or {}) do
        all[name] = value
    end
    return mpi.run(1, script, args, { flags = { "--virtual", tostring(n), "--backend", "cuda-emu", "--threads", "1" },
        env = all })
end

local function words(...)
    local all = {}
    for _, list in ipairs { ... } do
        table.move(list, 1, #list, #all + 1, all)
    end
    return all
end

describe("the CUDA backend on an emulated GPU", function()
    if not EMULATOR then
        pending "is not built here: make cuda-emu"
        return
    end

    for n, cases in ipairs {
        { { "f32", "--dropout", "0.1" }, { "bf16", "--qkv", "separate", "--kv-heads", "2" } },
        { { "f32", "--gated", "--norm", "rms", "--rope", "10000", "--qkv", "separate", "--kv-heads", "3" },
            { "bf16", "--dropout", "0.1" } },
        { { "f32", "--dropout", "0.1" } },
    } do
        for _, case in ipairs(cases) do
            it(("checks a block on %d ranks: %s"):format(n, table.concat(case, " ")), function()
                local r = emulated(n, "sp_forward.lua", words(SMALL, { "--dtype" }, case))
                assert.same({ 0, "" }, { r.code, r.err })
                assert.matches("wrong elements: 0, OK", r.out)
                assert.matches("emulated GPU", r.out)
            end)
        end
    end

    it("gives the same bits with streams that run eagerly, lazily or at random", function()
        local script = [[
            local spl = require "spl"
            local blk = spl.block { hidden = 24, heads = 6, kv_heads = 3, qkv = "separate", rope_theta = 10000,
                dropout = 0.1, seed = 3 }:schedule(spl.mesh "tp=*:sequence")
            local y = blk:forward(blk:input { batch = 1, seq = 13 }:randn(5))
            local all = spl.gather((y:to_bytes():gsub(".", function(c) return ("%02x"):format(c:byte()) end)))
            if spl.rank() == 0 then print(table.concat(all)) end
        ]]
        local lazy = emulated(2, script, nil, { SPL_EMU_MODE = "lazy" })
        assert.same({ 0, "" }, { lazy.code, lazy.err })
        assert.is_true(#lazy.out > 1000)
        for _, env in ipairs { { SPL_EMU_MODE = "eager", SPL_EMU_ORDER = "reverse" },
            { SPL_EMU_MODE = "random", SPL_EMU_SEED = "3", SPL_EMU_ORDER = "random" },
            { SPL_MEMORY_CACHE = "1" } } do
            local r = emulated(2, script, nil, env)
            assert.same({ 0, "" }, { r.code, r.err })
            assert.equal(lazy.out, r.out)
        end
    end)

    local MODEL = "../shared/models/stories260k"
    it("scores a text under real weights as the cpu does, on 1 and 3 ranks", function()
        if not built(MODEL .. "/model.safetensors") then
            pending "the model is not here"
            return
        end
        local text = mpi.temporary "Once upon a time, there was a little girl named Lily."
        local args = { "--model", MODEL, "--text", text, "--json" }
        local function nll(r)
            assert.same({ 0, "" }, { r.code, r.err })
            return tonumber(r.out:match '"mean_nll":([%d.]+)')
        end
        local wanted = nll(mpi.run(1, "score.lua", args))
        for _, n in ipairs { 1, 3 } do
            assert.is_true(math.abs(nll(emulated(n, "score.lua", args)) - wanted) < 1e-6 * wanted)
        end
        os.remove(text)
    end)

    -- The same program over the three ways that memory travels: between virtual ranks, NCCL, pinned memory and MPI.
    it("gives the same bits over NCCL and, where ranks share a GPU, by way of the host; and says which", function()
        local script = [[
            local spl = require "spl"
            local mesh = spl.mesh "tp=*:sequence"
            local blk = spl.block { hidden = 24, heads = 6, kv_heads = 3, qkv = "separate", rope_theta = 10000,
                dropout = 0.1, seed = 3 }:schedule(mesh)
            local y = blk:forward(blk:input { batch = 1, seq = 13 }:randn(5))
            local all = spl.gather((y:to_bytes():gsub(".", function(c) return ("%02x"):format(c:byte()) end)))
            local t = spl.tensor { shape = { 7 }, mesh = mesh, layout = "tp=partial" }:randn(3)
            local norm = t:redistribute "tp=replicate":norm()
            spl.barrier()
            if spl.rank() == 0 then print(table.concat(all), norm) end
            if spl.rank() == 0 then io.stderr:write(spl.facts().backend_description, "\n") end
        ]]
        local virtual = emulated(3, script)
        assert.equal(0, virtual.code)
        for _, case in ipairs { { "8", "between ranks: nccl\n$" },
            { "1", "between ranks: pinned host memory and MPI, as ranks 0 and 1 share a GPU\n$" } } do
            local r = mpi.run(3, script, nil, { flags = { "--backend", "cuda-emu", "--threads", "1" },
                env = { SPL_EMU_DEVICES = case[1], SPL_EMU_MODE = "random", SPL_MEMORY_CACHE = "0" } })
            assert.equal(0, r.code, r.err)
            assert.matches(case[2], r.err)
            assert.equal(virtual.out, r.out)
        end
    end)

    it("ends all ranks and names the one that dies in a collective", function()
        local r = mpi.run(3, [[
            local spl = require "spl"
            local mesh = spl.mesh "tp=*:tensor"
            local t = spl.tensor { shape = { 7 }, mesh = mesh, layout = "tp=partial" }:fill(1)
            t:redistribute "tp=replicate"
            if spl.rank() == 1 then error "rank 1 has had enough" end
            t:redistribute "tp=replicate"
        ]], nil, { flags = { "--backend", "cuda-emu", "--threads", "1" }, limit = 60 })
        assert.equal(1, r.code)
        assert.matches("rank 1: .*has had enough", r.err)
    end)

    local HELLO = "print 'hello'"
    for _, case in ipairs {
        { "no driver", { SPL_EMU_DRIVER = "none" }, "no GPU for the cuda backend: CUDA driver version" },
        { "devices that are hidden", { CUDA_VISIBLE_DEVICES = "" }, "CUDA_VISIBLE_DEVICES is ''" },
        { "an old device", { SPL_EMU_CAPABILITY = "7.5" }, "compute capability 7.5; the cuda backend needs 8.0" },
    } do
        it("refuses " .. case[1] .. " in one line, with exit code 3", function()
            local r = emulated(1, HELLO, nil, case[2])
            assert.same({ 3, "" }, { r.code, r.out })
            assert.is_truthy(r.err:find(case[3], 1, true), r.err)
            assert.matches("^[^\n]*\n$", r.err)
        end)
    end

    it("says what is wanted, in use and free when device memory ends, and the script goes on", function()
        local r = emulated(1, [[
            local spl = require "spl"
            local kept = spl.tensor { shape = { 1000, 1000 } }
            local before = spl.counters().memory.now
            local ok, e = pcall(spl.tensor, { shape = { 10000, 1000 } })
            print(ok, e.code, e.message)
            local small = spl.tensor { shape = { 10, 10 } }:fill(2)
            print(small:norm(), before.activations == spl.counters().memory.now.activations - 400)
        ]], nil, { SPL_EMU_MEMORY = "16000000" })
        assert.same({ 0, "" }, { r.code, r.err })
        assert.matches("^false\tmemory\t%d+ bytes %(0%.04 GiB%) are wanted on GPU 0: %d+ .* in use here, %d+ .* free",
            r.out)
        assert.matches("\n20%.0\ttrue\n$", r.out)
    end)
end)

describe("--backend cuda without a GPU", function()
    it("exits 3 with one line that says why", function()
        local r = mpi.run(1, "print 'hello'", nil, { flags = { "--backend", "cuda" } })
        if r.code == 0 then
            pending "there is a GPU here"
            return
        end
        assert.same({ 3, "" }, { r.code, r.out })
        assert.matches("^spl: rank 0: [^\n]*\n$", r.err)
        assert.matches(built "build/spl-cuda.so" and "no GPU for the cuda backend" or "no spl%-cuda.so", r.err)
    end)
end)
