-- memory_roles_spec.lua: memory of the roles that split the sequence, to the byte: activations of all ranks together do
-- not depend on how many they are, and communication buffers are closed forms, of which gather's and sequence's grow.
local json = require "spl.json"
local keeps = require "spl.keeps"
local mpi = require "mpi"

local S, HEADS, DIM = 256, 8, 4
local HIDDEN, FFN = HEADS * DIM, 4 * HEADS * DIM

local RUN = ([[
local json = require "spl.json"
local spl = require "spl"
local o = spl.args { mesh = "cp=*:ring", scheme = "contiguous", mask = "causal", kv = 8 }
local mesh = spl.mesh(o.mesh)
local blk = spl.block { hidden = %d, heads = %d, kv_heads = o.kv, qkv = "separate", mask = o.mask, seed = 1 }
blk:schedule(mesh, { scheme = o.scheme, chunk = 8 })
local x <close> = blk:input { batch = 1, seq = %d }:randn(5)
spl.reset_counters()
collectgarbage "stop"
local y <close> = blk:forward(x)
local m = spl.memory().peak
local here = json.encode { activations = m.activations, buffers = m.buffers }
local all = spl.gather(here)
if spl.rank() == 0 then print("[" .. table.concat(all, ",") .. "]") end
]]):format(HIDDEN, HEADS, S)

-- Of each rank {activations=, buffers=}.
local function memory(ranks, ...)
    local r = mpi.run(1, RUN, { ... }, { flags = { "--virtual", ("%d"):format(ranks) } })
    assert.same({ 0, "" }, { r.code, r.err })
    return json.decode(r.out)
end

local function largest(list, key)
    local most = 0
    for _, m in ipairs(list) do most = math.max(most, m[key]) end
    return most
end

local FLOAT = 4
-- x, the residual between the halves, the norm's output, the MLP's columns: at its first linear
local AT_MLP = FLOAT * S * (3 * HIDDEN + FFN)

describe("memory along an axis that splits the sequence", function()
    for _, mesh in ipairs { "cp=*:ring", "cp=*:gather" } do
        for _, scheme in ipairs { "contiguous", "zigzag", "striped" } do
            it(("%s, %s: activations of all ranks are those of one"):format(mesh, scheme), function()
                for _, ranks in ipairs { 1, 2, 4, 8 } do
                    for _, m in ipairs(memory(ranks, "--mesh", mesh, "--scheme", scheme)) do
                        assert.equal(AT_MLP, ranks * m.activations)
                    end
                end
            end)
        end
    end

    it("ring: two buffers of a block's keys and values, whatever the number of ranks, and no more", function()
        for _, kv in ipairs { 8, 2 } do
            local function bound(ranks) return FLOAT * 4 * (S // ranks) * kv * DIM end
            for _, ranks in ipairs { 2, 4, 8 } do
                for _, scheme in ipairs { "contiguous", "zigzag", "striped" } do
                    local full = memory(ranks, "--mask", "full", "--scheme", scheme, "--kv", kv)
                    for _, m in ipairs(full) do assert.equal(bound(ranks), m.buffers) end
                    local causal = memory(ranks, "--scheme", scheme, "--kv", kv)
                    assert.is_true(largest(causal, "buffers") <= bound(ranks))
                    assert.is_true(ranks == 2 or largest(causal, "buffers") == bound(ranks))
                end
            end
            -- two ranks and a causal mask: the first only sends, the second only receives; of zigzag the first keeps
            -- to itself the late half that the other need not see
            local two = memory(2, "--kv", kv)
            assert.same({ bound(2) // 2, bound(2) // 2 }, { two[1].buffers, two[2].buffers })
        end
    end)

    it("all ranks together: constant within a tenth over 2, 4 and 8", function()
        for _, case in ipairs {
            { "cp=*:ring", "contiguous", "full" }, { "cp=*:ring", "zigzag", "causal" },
            { "cp=*:ring", "zigzag", "full" }, { "cp=*:ulysses", "contiguous", "causal" },
            { "cp=*:ulysses", "zigzag", "full" }, { "u=2:ulysses, r=*:ring", "zigzag", "causal" },
            { "u=2:ulysses, r=*:ring", "contiguous", "full" },
        } do
            local least, most = math.huge, 0
            for _, ranks in ipairs { 2, 4, 8 } do
                local m = memory(ranks, "--mesh", case[1], "--scheme", case[2], "--mask", case[3])
                local all = ranks * (largest(m, "activations") + largest(m, "buffers"))
                least, most = math.min(least, all), math.max(most, all)
            end
            assert.is_true(most <= 1.1 * least, ("%s, %s, %s: %d to %d"):format(case[1], case[2], case[3], least, most))
        end
    end)

    local function said(ranks, role, kv)
        return keeps.keeps({ { name = "x", size = ranks, role = role } }, { batch = 1, seq = S, hidden = HIDDEN,
            heads = HEADS, kv_heads = kv, head_dim = DIM, element = FLOAT, chunk = 8, summaries = 1 })
    end

    it("gather keeps all keys and values on each rank; sequence keeps the norm's output whole", function()
        for _, ranks in ipairs { 2, 4, 8 } do
            for _, kv in ipairs { 8, 2 } do
                for _, m in ipairs(memory(ranks, "--mesh", "cp=*:gather", "--mask", "full", "--kv", kv)) do
                    assert.equal(FLOAT * 2 * S * kv * DIM, m.buffers)
                    assert.same({ { role = "gather", what = "keys and values", bytes = m.buffers } },
                        said(ranks, "gather", kv))
                end
            end
            for _, m in ipairs(memory(ranks, "--mesh", "tp=*:sequence")) do
                local shard = FLOAT * S * HIDDEN // ranks
                assert.equal(2 * shard + ranks * shard + FLOAT * S * FFN // ranks, m.activations)
                assert.equal(ranks * shard, m.buffers)
                assert.same({ { role = "sequence", what = "the norm's output", bytes = m.buffers } },
                    said(ranks, "sequence", 8))
            end
        end
    end)

    it("sp_forward says so", function()
        local r = mpi.run(1, "sp_forward.lua", { "--seq", "32", "--hidden", "16", "--heads", "2", "--rounds", "1",
            "--warmup", "0", "--mesh", "g=2:gather, t=2:sequence", "--mesh", "cp=*:ring" },
            { flags = { "--virtual", "4" } })
        assert.equal(0, r.code, r.err)
        assert.matches("\n#   gather keeps keys and values whole on each rank: up to 2048 bytes\n", r.out, 1, true)
        assert.matches("\n#   sequence keeps the norm's output whole on each rank: up to 1024 bytes\n", r.out, 1, true)
        assert.equal(2, mpi.count(r.out, " keeps "))
    end)

    it("hierarchical: summaries of all chunks are kept on each rank, beside its share", function()
        local chunks = S // 8
        for _, ranks in ipairs { 1, 2, 4, 8 } do
            local rows = FLOAT * S // ranks
            -- in attention: six tensors like x, the logsumexp, summaries of keys and values, the logs of their sizes
            local at_attention = rows * (6 * HIDDEN + HEADS) + FLOAT * chunks * (2 * HIDDEN + 1)
            for _, m in ipairs(memory(ranks, "--mesh", "cp=*:hierarchical")) do
                assert.equal(math.max(AT_MLP // ranks, at_attention), m.activations)
                assert.equal(0, m.buffers)
            end
            local kept = said(ranks, "hierarchical", HEADS)[1]
            assert.equal(ranks > 1 and FLOAT * chunks * 2 * HIDDEN or nil, kept and kept.bytes)
        end
    end)
end)
