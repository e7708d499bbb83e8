-- half_spec.lua: bf16 and f16 on several ranks: every schedule of this world against fp64, no more error than on one
-- rank, bytes as theory and explain say, the same bits twice, and a model scored.
local spl = require "spl"
local model = require "spl.model"
local theory = require "spl.theory"
local plain = require "tests.support.plain_llama"

local world = spl.size()
local HALVES = { "bf16", "f16" }

local meshes = { "tp=*:tensor", "tp=*:sequence", "dp=*:data" }
if world % 2 == 0 then
    for _, text in ipairs { "dp=2:data, tp=*:sequence", "a=2:tensor, b=*:tensor", "tp=2:tensor, sp=*:sequence" } do
        meshes[#meshes + 1] = text
    end
end
if world % 4 == 0 then
    for _, text in ipairs { "a=2:sequence, b=2:sequence, c=*:tensor", "a=2:tensor, b=2:tensor, c=*:tensor",
        "a=2:sequence, b=*:sequence, c=2:sequence" } do
        meshes[#meshes + 1] = text
    end
end

local GPT = { hidden = 63, heads = 7, seed = 7, dropout = 0.1 } -- 7 heads: 2, 2, 2, 1 on 4 ranks
local LLAMA = { hidden = 64, heads = 8, kv_heads = 4, ffn = 101, norm = "rms", qkv = "separate", bias = false,
    act = "silu", gated = true, rope_theta = 10000, seed = 9 }

-- `strong`: weights far larger than a model's, so that attention is sharp and errors grow from op to op.
local function on_block(text, o, dtype, batch, seq, strong, use)
    local mesh <close> = spl.mesh(text)
    local config = { dtype = dtype }
    for k, v in pairs(o) do config[k] = v end
    local blk <close> = spl.block(config):schedule(mesh)
    local x <close> = blk:input { batch = batch, seq = seq }:randn(11)
    for i, p in ipairs(strong and blk:params() or {}) do
        p.tensor:randn(100, i, p.name:match("gamma") and 1 or 0, 0.3)
    end
    use(blk, x, mesh)
end

describe("a block in half precision on several ranks", function()
    for _, dtype in ipairs(HALVES) do
        for i, c in ipairs { GPT, LLAMA } do
            it(("is right, with at most 1.3 times the error of one rank: %s, config %d"):format(dtype, i), function()
                for _, strong in ipairs { false, true } do
                    local alone
                    -- with batch 1 on a data axis rank 0 computes alone: what one rank would give
                    on_block("dp=*:data", c, dtype, 1, 101, strong, function(blk, x)
                        alone = blk:check(x, { step = 5 })
                    end)
                    for _, text in ipairs(meshes) do
                        on_block(text, c, dtype, 1, 101, strong, function(blk, x)
                            local r = blk:check(x, { step = 5 })
                            if not strong then assert.equal(0, r.wrong, text) end
                            assert.is_true(r.rel_err <= 1.3 * alone.rel_err,
                                ("%s: %g, on one rank %g"):format(text, r.rel_err, alone.rel_err))
                        end)
                    end
                end
            end)
        end

        it("sends the bytes of theory and of explain: " .. dtype, function()
            for _, text in ipairs(meshes) do
                on_block(text, GPT, dtype, 3, 29, false, function(blk, x, mesh)
                    spl.reset_counters()
                    local y <close> = blk:forward(x)
                    local sent = spl.counters().bytes.total
                    assert.equal(theory.block_bytes(mesh.axes, { batch = 3, seq = 29, hidden = 63, element = 2 }),
                        sent)
                    assert.equal(sent, blk:explain { batch = 3, seq = 29 }.bytes)
                    assert.equal(dtype, y.dtype)
                end)
            end
        end)

        it("gives the same bits twice, and where rows are few or none: " .. dtype, function()
            for _, text in ipairs(meshes) do
                for _, seq in ipairs { 31, 1, 0 } do
                    on_block(text, LLAMA, dtype, 2, seq, false, function(blk, x)
                        local a <close> = blk:forward(x)
                        local b <close> = blk:forward(x)
                        assert.is_true(a:to_bytes() == b:to_bytes(), text)
                    end)
                end
            end
        end)
    end
end)

describe("a model in half precision on several ranks", function()
    local IDS = { 0, 3, 10, 7, 7, 1, 5, 9, 2, 4, 8 }

    it("scores near a plain implementation in double, whatever the mesh", function()
        local m = plain.new { seed = 5 }
        local dir = spl.gather(spl.rank() == 0 and plain.folder() or "")[1]
        if spl.rank() == 0 then plain.write(m, dir, { dtype = "F32" }) end
        spl.barrier()
        local want, off = plain.nll(m, IDS), {}
        for dtype, most in pairs { bf16 = 0.1, f16 = 0.01 } do
            off[dtype] = { most = most }
        end
        for _, dtype in ipairs(HALVES) do -- in order: pairs() would go its own way on each rank
            for i, text in ipairs(meshes) do
                local mesh <close> = spl.mesh(text)
                local loaded <close> = model.load(dir, mesh, { dtype = dtype })
                off[dtype][i] = math.abs(loaded:score(IDS) - want)
            end
        end
        spl.barrier()
        if spl.rank() == 0 then plain.remove(dir) end
        for _, dtype in ipairs(HALVES) do
            for i, text in ipairs(meshes) do
                assert.is_true(off[dtype][i] < off[dtype].most, ("%s, %s: %g"):format(dtype, text, off[dtype][i]))
            end
        end
    end)
end)
