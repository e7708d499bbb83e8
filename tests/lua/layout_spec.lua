-- layout_spec.lua: who holds what, for meshes of any size looked at from one rank, against the slow lists of
-- holdings.lua.
local spl = require "spl"
local holdings = require "tests.support.holdings"

local function expand(segments)
    local out = {}
    for _, s in ipairs(segments) do
        for i = 0, s.length - 1 do out[#out + 1] = s.start - 1 + i * s.stride end
    end
    return out
end

local function mesh_of(sizes)
    local parts, world = {}, 1
    for a, size in ipairs(sizes) do
        parts[a] = ("a%d=%d"):format(a, size)
        world = world * size
    end
    return spl.mesh.parse(table.concat(parts, ","), world), world
end

local names = { "a1", "a2", "a3" }

describe("a layout", function()
    it("cuts 7 heads on 4 ranks into 2, 2, 2, 1", function()
        local l = spl.layout("t=shard(1,unit:8)", spl.mesh.parse("t=4", 4), { 56 })
        local sizes = {}
        for c = 0, 3 do sizes[c + 1] = l:local_shape { c }[1] end
        assert.same({ 16, 16, 16, 8 }, sizes)
    end)

    it("lets ranks share KV heads: 8 query heads, 4 KV heads, 3 ranks", function()
        local l = spl.layout("t=shard(1,cover:2)", spl.mesh.parse("t=3", 3), { 4 })
        assert.same({ 0, 1 }, expand(l:segments(1, { 0 })))
        assert.same({ 1, 2 }, expand(l:segments(1, { 1 })))
        assert.same({ 3 }, expand(l:segments(1, { t = 2 })))
    end)

    it("gives the first and the last chunk to rank 0 in zigzag", function()
        local l = spl.layout("cp=shard(1,zigzag)", spl.mesh.parse("cp=2", 2), { 8 })
        assert.same({ { start = 1, length = 2, stride = 1 }, { start = 7, length = 2, stride = 1 } },
            l:segments(1, { 0 }))
        assert.same({ { start = 3, length = 4, stride = 1 } }, l:segments(1, { 1 }))
    end)

    it("has one strided segment in striped", function()
        local l = spl.layout("cp=shard(1,striped)", spl.mesh.parse("cp=3", 3), { 8 })
        assert.same({ { start = 2, length = 3, stride = 3 } }, l:segments(1, { 1 }))
        assert.same({ { start = 3, length = 2, stride = 3 } }, l:segments(1, { 2 }))
    end)

    it("allows sizes around 2P and empty shards", function()
        for _, n in ipairs { 0, 1, 3, 4, 5 } do
            local l = spl.layout("cp=shard(1,zigzag)", spl.mesh.parse("cp=2", 2), { n })
            local all = {}
            for c = 0, 1 do
                for _, i in ipairs(expand(l:segments(1, { c }))) do all[#all + 1] = i end
            end
            table.sort(all)
            assert.equal(n, #all)
            for i = 1, n do assert.equal(i - 1, all[i]) end
        end
    end)

    it("prints what it was made of and compares by holdings", function()
        local mesh = spl.mesh.parse("dp=2, tp=3, one=1", 6)
        local l = spl.layout("tp = shard(2, zigzag, unit:2), dp=partial", mesh, { 3, 8 })
        assert.equal("dp=partial, tp=shard(2,zigzag,unit:2)", tostring(l))
        assert.equal(l, spl.layout(tostring(l), mesh, { 3, 8 }))
        assert.not_equal(l, spl.layout("tp=shard(2,unit:2), dp=partial", mesh, { 3, 8 }))
        assert.equal("replicate", tostring(spl.layout("", mesh, { 3, 8 })))
        assert.equal(spl.layout("", mesh, { 3 }), spl.layout("one=shard(1)", mesh, { 3 }))
        assert.same({ 3, 8 }, l.shape)
        assert.equal(2, l.ndim)
    end)

    it("describes itself an axis at a time", function()
        local l = spl.layout("tp=shard(2,striped,nest:1)", spl.mesh.parse("dp=2, tp=2", 4), { 3, 8 })
        assert.same({ { axis = "dp", size = 2, place = "replicate" },
            { axis = "tp", size = 2, place = "shard", dim = 2, scheme = "striped", unit = 1, cover = 1, nest = 1 } },
            l:describe())
    end)

    it("agrees with lists of indices for random shapes, meshes, schemes, units, covers and nests", function()
        local random = holdings.random(20240117)
        for case = 1, 400 do
            local shape, sizes = holdings.random_shape(random), {}
            for a = 1, random(1, 3) do sizes[a] = random(1, 4) end
            local layout = holdings.random_layout(random, shape, #sizes)
            local mesh, world = mesh_of(sizes)
            local text = holdings.text(layout, names)
            local l = spl.layout(text, mesh, shape)
            for rank = 0, world - 1 do
                local coords = holdings.coords(sizes, rank)
                local local_shape = l:local_shape(coords)
                for d, n in ipairs(shape) do
                    local want = holdings.indices(layout, sizes, coords, d, n)
                    local what = ("case %d: %s of {%s} at {%s}, dimension %d"):format(case, text,
                        table.concat(shape, ","), table.concat(coords, ","), d)
                    assert.same(want, expand(l:segments(d, coords)), what)
                    assert.equal(#want, local_shape[d], what)
                end
            end
        end
    end)

    it("works for a thousand ranks", function()
        local l = spl.layout("cp=shard(1,zigzag)", spl.mesh.parse("cp=1024", 1024), { 1000003 })
        local total = 0
        for c = 0, 1023 do total = total + l:local_shape { c }[1] end
        assert.equal(1000003, total)
    end)

    describe("refuses", function()
        local mesh = spl.mesh.parse("dp=2, tp=3", 6)
        local function refused(text, shape, pattern)
            local ok, err = pcall(spl.layout, text, mesh, shape)
            assert.is_false(ok, text)
            assert.equal("argument", err.code)
            assert.matches(pattern, err.message)
        end
        it("an axis that is not there", function() refused("cp=shard(1)", { 4 }, "cp") end)
        it("a dimension that is not there", function() refused("tp=shard(3)", { 4, 4 }, "dimension 3") end)
        it("a dimension 0", function() refused("tp=shard(0)", { 4, 4 }, "dimension 0") end)
        it("an axis named twice", function() refused("tp=shard(1), tp=partial", { 4 }, "twice") end)
        it("a unit that does not divide", function() refused("tp=shard(1,unit:3)", { 4 }, "units of 3") end)
        it("two units in one dimension", function() refused("dp=shard(1,unit:2), tp=shard(1)", { 4 }, "units") end)
        it("a scheme that is not there", function() refused("tp=shard(1,spiral)", { 4 }, "spiral") end)
        it("a nest or a name that would be cut", function()
            refused("tp=shard(1,nest:4294967297)", { 4 }, "nest:4294967297")
            refused(("t"):rep(40) .. "=shard(1)", { 4 }, "not understood")
        end)
        it("a negative size", function() refused("tp=shard(1)", { -4 }, "%-4") end)
        it("too many dimensions", function() refused("tp=shard(1)", { 1, 1, 1, 1, 1, 1, 1 }, "7 dimensions") end)
        it("a field that is not there, naming the nearest", function()
            local l = spl.layout("", mesh, { 4 })
            local ok, err = pcall(function() return l.shap end)
            assert.is_false(ok)
            assert.matches("did you mean 'shape'", err.message)
        end)
        it("coordinates outside the mesh", function()
            local l = spl.layout("", mesh, { 4 })
            assert.has_error(function() l:segments(1, { 0, 3 }) end)
            assert.has_error(function() l:segments(1, { 0 }) end)
            assert.has_error(function() l:segments(1, { cp = 0 }) end)
            assert.has_error(function() l:segments(2, { 0, 0 }) end)
        end)
        it("to say where this rank stands in a mesh that is not here", function()
            local ok, err = pcall(function() return spl.layout("", mesh, { 4 }):local_shape() end)
            assert.is_false(ok)
            assert.matches("not here", err.message)
        end)
    end)
end)
