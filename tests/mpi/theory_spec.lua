-- theory_spec.lua: bytes that ranks send are what theory.lua, which shares nothing with core, says: on every rank, for
-- every role, scheme and mask.
local spl = require "spl"
local deal = require "spl.deal"
local masks = require "spl.masks"
local theory = require "spl.theory"
local world = spl.size()

local function sent(o)
    local mesh <close> = spl.mesh(o.mesh)
    local heads = o.heads or 4
    local blk <close> = spl.block { hidden = 4 * heads, heads = heads, kv_heads = o.kv_heads, mask = o.mask, seed = 5 }
    blk:schedule(mesh, { scheme = o.scheme, chunk = o.chunk, summaries = o.summaries })
    local seq, batch = o.seq or 45, o.batch or 2
    local x <close> = blk:input { batch = batch, seq = seq }:randn(11)
    spl.reset_counters()
    blk:forward(x):release()
    local counted, tiles = spl.counters().bytes.total, spl.counters().attention_tiles
    local m = masks.masks(o.mask or "causal", seq)
    local options = { batch = batch, seq = seq, hidden = 4 * heads, element = 4, heads = heads,
        kv_heads = o.kv_heads or heads, head_dim = 4, slices = m.slices, documents = m.documents,
        scheme = o.scheme or "contiguous", chunk = o.chunk, summaries = o.summaries }
    local what = ("%s %s %s on rank %d"):format(mesh.spec, o.scheme or "contiguous", o.mask or "causal", spl.rank())
    assert.equal(theory.block_bytes(mesh.axes, options), counted, what)
    return tiles, theory.attention_tiles(mesh.axes, options), what
end

describe("bytes in theory", function()
    local many = { "causal", "full", "window:7", "docs:20,4,21", "prefix:9", "padding:30" }
    for _, role in ipairs { "ring", "gather", "ulysses" } do
        it("of " .. role .. ": every scheme and mask", function()
            for _, scheme in ipairs { "contiguous", "zigzag", "striped" } do
                for _, mask in ipairs(many) do
                    sent { mesh = "cp=*:" .. role, scheme = scheme, mask = mask, kv_heads = 2 }
                end
            end
        end)

        it("of " .. role .. ": any length, heads that ranks do not divide, KV heads fewer than ranks", function()
            for _, seq in ipairs { 1, 2, 3, 2 * world - 1, 2 * world, 2 * world + 1 } do
                sent { mesh = "cp=*:" .. role, seq = seq, scheme = "zigzag" }
            end
            for _, heads in ipairs { { 7, 7 }, { 8, 2 }, { 8, 4 }, { 5, 1 } } do
                sent { mesh = "cp=*:" .. role, heads = heads[1], kv_heads = heads[2] }
            end
        end)
    end

    it("of hierarchical: chunks and summaries of any size", function()
        for _, c in ipairs { { 8, 1 }, { 8, 3 }, { 7, 2 }, { 64, 4 }, { 1, 1 } } do
            sent { mesh = "cp=*:hierarchical", chunk = c[1], summaries = c[2], kv_heads = 2 }
        end
    end)

    local meshes = {
        { "u=2:ulysses, r=*:ring", 2 }, { "r=2:ring, u=*:ulysses", 2 }, { "tp=2:tensor, sp=*:ulysses", 2 },
        { "tp=2:sequence, cp=*:ring", 2 }, { "cp=*:ring, tp=2:sequence", 2 }, { "a=2:ring, b=*:ring", 2 },
        { "a=2:gather, b=*:ring", 2 }, { "a=2:ring, b=*:gather", 2 }, { "a=2:gather, b=*:gather", 2 },
        { "dp=2:data, cp=*:ring", 2 }, { "h=2:hierarchical, u=*:ulysses", 2 }, { "h=2:hierarchical, t=*:sequence", 2 },
        { "h=2:hierarchical, g=*:hierarchical", 2 }, { "d=2:data, r=2:ring, u=*:ulysses", 4 },
        { "r=2:ring, g=2:gather, u=*:ulysses", 4 }, { "t=2:sequence, r=2:ring, u=*:ulysses", 4 },
        { "d=2:data, t=2:sequence, r=2:ring, u=*:ulysses", 8 },
    }
    for _, m in ipairs(meshes) do
        if world % m[2] == 0 then
            it("of " .. m[1], function()
                local exact = not m[1]:match "hierarchical"
                for _, scheme in ipairs(exact and { "contiguous", "zigzag", "striped" } or { "contiguous" }) do
                    for _, mask in ipairs(exact and { "causal", "full", "docs:20,4,21" } or { "causal" }) do
                        sent { mesh = m[1], scheme = scheme, mask = mask, kv_heads = 2, chunk = 8, summaries = 2 }
                    end
                end
            end)
        end
    end
end)

describe("tiles", function()
    it("that the kernel visits are those that hold a visible pair", function()
        local seq = 2 * 384 * world -- zigzag's chunks are whole tiles: 384 is 4 x 96 and 3 x 128
        for _, mask in ipairs { "causal", "full", "window:300" } do
            for _, scheme in ipairs { "contiguous", "zigzag" } do
                for _, role in ipairs { "ring", "gather", "ulysses" } do
                    local visited, needed, what = sent { mesh = "cp=*:" .. role, seq = seq, mask = mask, batch = 1,
                        scheme = scheme, heads = 2 }
                    assert.is_true(needed > 0 or seq == 0 or visited == 0, what)
                    if mask ~= "window:300" then
                        assert.equal(needed, visited, what)
                    else -- stretches of keys that came from several members may share a tile
                        assert.is_true(visited >= needed and visited <= 1.25 * needed + 4, what)
                    end
                end
            end
        end
    end)
end)

describe("dealing", function()
    it("gives every row to one member", function()
        for _, scheme in ipairs { "contiguous", "zigzag", "striped" } do
            local axes = { { size = 2, role = "ring", coord = 0 }, { size = 3, role = "gather", coord = 0 } }
            local seen = {}
            for a = 0, 1 do
                for b = 0, 2 do
                    for _, row in ipairs(deal.rows(axes, { seq = 41, scheme = scheme, documents = { 7, 0, 34 } },
                        function(axis) return axis == axes[1] and a or b end)) do
                        assert.is_nil(seen[row])
                        seen[row] = true
                    end
                end
            end
            assert.equal(41, #seen)
        end
    end)
end)
