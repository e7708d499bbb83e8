-- block_spec.lua: the transformer block on several ranks: every schedule of this world against fp64 with sizes that
-- ranks do not divide, the same numbers on any mesh, bytes as theory and explain say, shards of the shapes the design
-- states.
local spl = require "spl"
local theory = require "spl.theory"
local holdings = require "tests.support.holdings"

local rank, world = spl.rank(), spl.size()

local meshes = { "tp=*:tensor", "tp=*:sequence", "dp=*:data" }
if world % 2 == 0 then
    for _, text in ipairs { "dp=2:data, tp=*:sequence", "dp=2:data, tp=*:tensor", "tp=2:tensor, sp=*:sequence",
        "sp=2:sequence, tp=*:tensor", "a=2:sequence, b=*:sequence", "a=2:tensor, b=*:tensor" } do
        meshes[#meshes + 1] = text
    end
end

local GPT = { hidden = 21, heads = 7, seed = 7, dropout = 0.1 } -- 7 heads: 2, 2, 2, 1 on 4 ranks; ffn 84
local LLAMA = { hidden = 32, heads = 8, kv_heads = 4, ffn = 37, norm = "rms", qkv = "separate", bias = false,
    act = "silu", gated = true, rope_theta = 10000, seed = 9 }
local FEW_KV = { hidden = 24, heads = 6, kv_heads = 1, ffn = 13, qkv = "separate", bias = true, seed = 5,
    dropout = 0.1 }
local FEW_HEADS = { hidden = 10, heads = 1, ffn = 3, seed = 5, causal = false } -- fewer heads and columns than ranks

local function sharpen(blk)
    for i, p in ipairs(blk:params()) do
        p.tensor:randn(100, i, p.name:match("gamma") and 1 or 0, 0.4)
    end
end

local function on_block(text, o, batch, seq, use)
    local mesh <close> = spl.mesh(text)
    local blk <close> = spl.block(o):schedule(mesh)
    local x <close> = blk:input { batch = batch, seq = seq }:randn(11)
    sharpen(blk)
    use(blk, x, mesh)
end

-- With batch 1 on a data axis rank 0 computes alone: what one rank would give.
local function one_rank(o, seq, use)
    on_block("dp=*:data", o, 1, seq, use)
end

describe("a block on several ranks", function()
    for _, text in ipairs(meshes) do
        for _, c in ipairs { { "GPT, 7 heads", GPT, 3, 29 }, { "Llama, shared KV heads", LLAMA, 2, 31 },
            { "one KV head", FEW_KV, 2, 17 }, { "one head", FEW_HEADS, 2, 9 } } do
            it(("is right: %s, %s"):format(text, c[1]), function()
                on_block(text, c[2], c[3], c[4], function(blk, x)
                    local r = blk:check(x, { step = 5 })
                    assert.equal(0, r.wrong)
                    assert.is_true(r.rel_err <= 2e-6, ("rel_err %g"):format(r.rel_err))
                    assert.equal(c[4], r.rows)
                end)
            end)
        end

        it(("sends the bytes of theory and of explain: %s"):format(text), function()
            on_block(text, GPT, 3, 29, function(blk, x, mesh)
                spl.reset_counters()
                local y <close> = blk:forward(x)
                local sent = spl.counters().bytes.total
                local want = theory.block_bytes(mesh.axes, { batch = 3, seq = 29, hidden = 21, element = 4 })
                assert.equal(want, sent)
                assert.same({ 3, 29, 21 }, y.shape)
                local everyone = spl.gather(tostring(sent))
                for r = 0, world - 1 do
                    assert.equal(everyone[r + 1], tostring(blk:explain { batch = 3, seq = 29, rank = r }.bytes))
                end
                local lines, total = blk:explain { batch = 3, seq = 29 }, 0
                for _, l in ipairs(lines) do total = total + (l.axis and l.bytes or 0) end
                assert.equal(sent, total)
            end)
        end)

        it(("has fewer rows than ranks, one, or none: %s"):format(text), function()
            for _, seq in ipairs { 1, 2, world + 1 } do
                on_block(text, GPT, 1, seq, function(blk, x)
                    assert.equal(0, blk:check(x).wrong)
                end)
            end
            for _, size in ipairs { { 0, 3 }, { 2, 0 } } do
                on_block(text, GPT, size[1], size[2], function(blk, x)
                    local y <close> = blk:forward(x)
                    assert.same({ size[1], size[2], 21 }, y.shape)
                end)
            end
        end)
    end

    it("has at most 1.5 times the error of one rank", function()
        local alone
        one_rank(GPT, 101, function(blk, x) alone = blk:check(x).rel_err end)
        for _, text in ipairs(meshes) do
            on_block(text, GPT, 1, 101, function(blk, x)
                assert.is_true(blk:check(x).rel_err <= 1.5 * alone, text)
            end)
        end
    end)

    it("draws the same weights, input and dropout masks as one rank", function()
        local function facts(text)
            local out = {}
            on_block(text, GPT, 1, 23, function(blk, x)
                local y, saved = blk:forward(x, { save = true, step = 1 })
                for _, name in ipairs { "mha_dropout_mask", "mlp_dropout_mask" } do
                    local whole <close> = saved[name]:gather()
                    out[#out + 1] = whole:to_bytes()
                end
                for _, p in ipairs(blk:params()) do
                    local whole <close> = p.tensor:gather()
                    out[#out + 1] = whole:to_bytes()
                end
                local whole <close> = x:gather()
                out[#out + 1] = whole:to_bytes()
                y:release()
                saved:release()
            end)
            return table.concat(out)
        end
        local alone = facts("dp=*:data")
        for _, text in ipairs(meshes) do
            assert.is_true(alone == facts(text), text)
        end
    end)

    it("gives the same bits twice", function()
        for _, text in ipairs(meshes) do
            on_block(text, LLAMA, 2, 31, function(blk, x)
                local a <close> = blk:forward(x)
                local b <close> = blk:forward(x)
                assert.is_true(a:to_bytes() == b:to_bytes(), text)
            end)
        end
    end)

    it("takes an x in any layout and gives out in its own", function()
        on_block("tp=*:sequence", GPT, 2, 13, function(blk, x)
            local want <close> = blk:forward(x)
            for _, layout in ipairs { "replicate", "tp=shard(3)", "tp=shard(1)", "tp=shard(2,zigzag)", "tp=partial" } do
                local other <close> = x:redistribute(layout)
                local y <close> = blk:forward(other)
                assert.equal(want.layout, y.layout)
                assert.is_true(want:to_bytes() == y:to_bytes(), layout)
            end
        end)
    end)

    it("holds less memory on more ranks when the sequence is split", function()
        if spl.size() == 1 then return pending("one rank") end
        local function peak(text)
            local bytes
            on_block(text, { hidden = 64, heads = 8, seed = 1 }, 1, 256, function(blk, x)
                collectgarbage()
                spl.reset_counters()
                local y, saved = blk:forward(x, { save = true })
                bytes = spl.max(spl.memory().peak.activations)
                y:release()
                saved:release()
            end)
            return bytes
        end
        assert.is_true(peak("tp=*:sequence") < 0.75 * peak("dp=*:data"))
    end)

    it("refuses roles that a block cannot use, naming the mesh that works", function()
        local blk <close> = spl.block(GPT)
        for _, role in ipairs { "fsdp", "pipeline" } do
            local mesh <close> = spl.mesh("cp=*:" .. role)
            local ok, err = pcall(blk.schedule, blk, mesh)
            assert.is_false(ok)
            assert.equal("usage", err.code)
            assert.matches("'" .. role .. "'", err.message)
            assert.matches(("cp=%d:%s"):format(world, role == "fsdp" and "data" or "sequence"), err.message)
        end
    end)
end)

describe("saved outputs on several ranks", function()
    local b, s, e, heads = 2, 29, 21, 7
    local _, my_heads = holdings.part(heads, world, rank)
    local _, my_rows = holdings.part(s, world, rank)
    local _, my_columns = holdings.part(4 * e, world, rank)

    local function shapes(rows)
        return { ln0_mean = { b, rows }, ln0_rstd = { b, rows, 1 }, mha_linear0_out = { b, s, 3 * 3 * my_heads },
            sdpa_out = { b, my_heads, s, 3 }, sdpa_logsumexp = { b, my_heads, s }, mha_linear1_out = { b, rows, e },
            mha_dropout_mask = { b, rows, e }, ln1_mean = { b, rows }, ln1_rstd = { b, rows, 1 },
            mlp_linear0_out = { b, s, my_columns }, mlp_dropout_mask = { b, rows, e }, out = { b, rows, e } }
    end

    for _, c in ipairs { { "tp=*:tensor", s }, { "tp=*:sequence", my_rows } } do
        local text, rows = c[1], c[2]
        it("have the local shapes of the design: " .. text, function()
            on_block(text, GPT, b, s, function(blk, x)
                local y, saved = blk:forward(x, { save = true })
                local want, count = shapes(rows), 0
                for _, one in ipairs(saved) do
                    assert.same(want[one.name], one.tensor.local_shape, one.name)
                    count = count + 1
                end
                assert.equal(12, count)
                y:release()
                saved:release()
            end)
        end)
    end
end)
