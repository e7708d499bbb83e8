-- roles_spec.lua: the roles that split the sequence through attention, each against fp64: ring, gather, ulysses and
-- hierarchical, alone and together, with every scheme, mask and shape of heads.
local spl = require "spl"
local world = spl.size()

local function factored(...)
    local n = 1
    for _, size in ipairs { ... } do n = n * size end
    return world % n == 0 and world // n or nil
end

local function judge(o)
    local mesh <close> = spl.mesh(o.mesh)
    local heads = o.heads or 4
    local blk <close> = spl.block { hidden = o.hidden or 32, heads = heads, kv_heads = o.kv_heads or heads,
        rope_theta = 10000, mask = o.mask or "causal", dropout = o.dropout, seed = 5, dtype = o.dtype }
    blk:schedule(mesh, { scheme = o.scheme, chunk = o.chunk, summaries = o.summaries })
    for i, p in ipairs(o.dtype and {} or blk:params()) do -- larger than a small block is born with: no uniform softmax
        p.tensor:randn(100, i, p.name:match("gamma") and 1 or 0, 0.4)
    end
    local x <close> = blk:input { batch = o.batch or 2, seq = o.seq or 45 }:randn(11)
    local r = blk:check(x)
    local what = ("%s %s %s"):format(mesh.spec, o.scheme or "contiguous", o.mask or "causal")
    assert.equal(0, r.wrong, what)
    if not o.dtype then assert.is_true(r.rel_err < 2e-6, what .. (" rel_err %g"):format(r.rel_err)) end
    return r
end

describe("attention along an axis", function()
    local masks = { "causal", "full", "window:7", "docs:20,4,21", "prefix:9", "padding:30" }
    for _, role in ipairs { "ring", "gather", "ulysses" } do
        for _, scheme in ipairs { "contiguous", "zigzag", "striped" } do
            it(("%s, %s: every mask"):format(role, scheme), function()
                for _, mask in ipairs(masks) do
                    judge { mesh = "cp=*:" .. role, scheme = scheme, mask = mask, kv_heads = 2 }
                end
            end)
        end
    end

    it("a list of slices that a script gives", function()
        local mask = spl.mask { seq = 45, { q = { 1, 20 }, k = { 1, 30 }, kind = "causal" },
            { q = { 15, 45 }, k = { 31, 40 }, kind = "both" },
            { q = { 30, 45 }, k = { 2, 9 }, kind = "inverse-causal" } }
        for _, role in ipairs { "ring", "gather", "ulysses" } do
            judge { mesh = "cp=*:" .. role, mask = mask, scheme = "zigzag" }
        end
    end)

    it("any length on any number of ranks, down to fewer tokens than ranks", function()
        for _, role in ipairs { "ring", "gather", "ulysses", "hierarchical" } do
            for _, seq in ipairs { 1, 2, 3, 2 * world - 1, 2 * world, 2 * world + 1 } do
                judge { mesh = "cp=*:" .. role, seq = seq, chunk = 4,
                    scheme = role ~= "hierarchical" and "zigzag" or nil }
            end
        end
    end)

    it("heads that ranks do not divide, and KV heads fewer than ranks", function()
        for _, role in ipairs { "ring", "gather", "ulysses" } do
            judge { mesh = "cp=*:" .. role, heads = 7, hidden = 28 }
            judge { mesh = "cp=*:" .. role, heads = 8, kv_heads = 2, hidden = 32 }
            judge { mesh = "cp=*:" .. role, heads = 8, kv_heads = 4, hidden = 32 }
            judge { mesh = "cp=*:" .. role, heads = 5, kv_heads = 1, hidden = 20 }
        end
    end)

    it("dropout by global index", function()
        for _, role in ipairs { "ring", "gather", "ulysses" } do
            judge { mesh = "cp=*:" .. role, dropout = 0.1, scheme = "zigzag", kv_heads = 2 }
        end
    end)

    it("bf16 is rounded once, after the last part", function()
        judge { mesh = "cp=*:ring", dtype = "bf16", hidden = 64, scheme = "zigzag" }
        judge { mesh = "cp=*:gather", dtype = "bf16", hidden = 64 }
        judge { mesh = "cp=*:hierarchical", dtype = "bf16", hidden = 64, chunk = 8 }
    end)
end)

describe("hierarchical attention", function()
    for _, mask in ipairs { "causal", "full" } do
        it(mask .. ": chunks and summaries of any size, whatever the ranks", function()
            for _, c in ipairs { { 8, 1 }, { 8, 3 }, { 7, 2 }, { 64, 4 }, { 1, 1 } } do
                judge { mesh = "cp=*:hierarchical", mask = mask, chunk = c[1], summaries = c[2], kv_heads = 2 }
            end
        end)
    end
end)

describe("axes together", function()
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
        if factored(m[2]) then
            it(m[1], function()
                local exact = not m[1]:match("hierarchical")
                for _, scheme in ipairs(exact and { "contiguous", "zigzag", "striped" } or { "contiguous" }) do
                    judge { mesh = m[1], scheme = scheme, kv_heads = 2, chunk = 8,
                        mask = exact and scheme == "zigzag" and "docs:20,4,21" or nil }
                end
            end)
        end
    end
end)

describe("what cannot be", function()
    local function refused(pattern, mesh_text, o)
        local mesh <close> = spl.mesh(mesh_text)
        local blk <close> = spl.block { hidden = 8, heads = 2, mask = o.mask, dropout = o.dropout }
        local ok, err = pcall(function()
            blk:schedule(mesh, { scheme = o.scheme, chunk = o.chunk, summaries = o.summaries })
            blk:input { batch = 1, seq = o.seq or 8 }:release()
        end)
        assert.is_false(ok)
        assert.equal("usage", err.code)
        assert.matches(pattern, err.message)
    end

    it("is refused before work starts, with the nearest mesh that works", function()
        if world > 1 then
            refused("both hierarchical and ring.*a=1:ring, b=%d:ring", "a=1:hierarchical, b=*:ring", {})
        end
        refused("deals out the sequence by a scheme", "tp=*:tensor", { scheme = "zigzag" })
        refused("keeps chunks whole", "cp=*:hierarchical", { scheme = "striped" })
        refused("hierarchical knows the masks causal and full.*cp=%d+:ring", "cp=*:hierarchical", { mask = "window:3" })
        refused("a summary stands for many keys", "cp=*:hierarchical", { dropout = 0.1 })
        refused("chunk is %-1", "cp=*:hierarchical", { chunk = -1 })
        refused("summaries at most as many", "cp=*:hierarchical", { chunk = 2, summaries = 3 })
        refused("sum to 7 tokens, but the sequence has 8", "cp=*:ring", { mask = "docs:3,4" })
    end)

    it("is an error on all ranks where their plans differ, and the ranks go on", function()
        if world == 1 then return end
        local mesh <close> = spl.mesh("cp=*:ring")
        local mask = spl.rank() == 1 and "window:3" or "causal"
        local odd <close> = spl.block { hidden = 8, heads = 2, mask = mask }:schedule(mesh)
        local x <close> = odd:input { batch = 1, seq = 16 }:randn(1)
        local ok, err = pcall(odd.forward, odd, x)
        assert.is_false(ok)
        assert.equal("disagree", err.code)
        assert.matches("the attention plan", err.message)
        judge { mesh = "cp=*:ring" }
    end)
end)
