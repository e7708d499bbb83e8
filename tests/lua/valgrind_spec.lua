-- valgrind_spec.lua: a block's forward pass on virtual ranks, under valgrind where there is one: no read of what was
-- never written, no access beyond a block, nothing lost. One thread, since valgrind does not follow OpenMP's waiting;
-- kernels for AVX2, since it knows no AVX-512.
local mpi = require "mpi"
local spl = require "spl"

local CHUNK = [[
local spl = require "spl"
local mesh = spl.mesh "tp=*:sequence"
for _, dtype in ipairs { "f32", "bf16" } do
    local blk = spl.block { hidden = 16, heads = 2, causal = true, dropout = 0.1, seed = 3, dtype = dtype }
    local y = blk:schedule(mesh):forward(blk:input { batch = 2, seq = 6 }:randn(5))
    print(spl.rank(), dtype, y:to_local():norm() > 0)
end
]]

describe("a forward pass under valgrind", function()
    it("is clean on two virtual ranks", function()
        if not os.execute "command -v valgrind > /dev/null" then
            pending "valgrind is not here"
        elseif mpi.sanitized() then
            pending "the sanitizers do not go together with valgrind"
        end
        local script = mpi.temporary(CHUNK, ".lua")
        -- what the program would choose and start itself anew for
        local r = mpi.command({ "valgrind", "-q", "--leak-check=full", "--errors-for-leak-kinds=definite",
            "--error-exitcode=9", spl.executable(), "run", "--threads", "1", "--virtual", "2", script }, { env = {
                OMP_NUM_THREADS = "1", GOMP_SPINCOUNT = "1", OPENBLAS_CORETYPE = "Haswell", SPL_CPU_LEVEL = "avx2" } })
        os.remove(script)
        assert.same({ 0, "" }, { r.code, r.err })
        assert.equal(4, mpi.count(r.out, "true"))
    end)
end)
