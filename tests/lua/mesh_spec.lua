-- mesh_spec.lua: the notation of meshes, and a mesh of one rank.
local spl = require "spl"

describe("the notation of a mesh", function()
    it("takes sizes, roles, a star and any spaces", function()
        local m = spl.mesh.parse(" dp = 2 : data ,tp=* :sequence", 8)
        assert.same({ { name = "dp", size = 2, role = "data" }, { name = "tp", size = 4, role = "sequence" } }, m.axes)
        assert.equal(8, m.size)
        assert.equal("dp=2:data, tp=4:sequence", m.spec)
    end)

    it("may leave roles out", function()
        assert.same({ { name = "x", size = 3, role = "" } }, spl.mesh.parse("x=3", 3).axes)
    end)

    it("gives back what it prints", function()
        for _, text in ipairs { "a=1", "dp=2:data, tp=3:tensor, cp=4:ring", "u=2:ulysses, r=2:ring, p=1:pipeline" } do
            local world = 1
            for n in text:gmatch("=(%d+)") do world = world * n end
            assert.equal(text, spl.mesh.parse(text, world).spec)
        end
    end)

    it("says on how many hosts the groups of an axis are, where it is told of hosts", function()
        local function hosts(text, world, list)
            local spans = {}
            for i, axis in ipairs(spl.mesh.parse(text, world, list).axes) do spans[i] = axis.hosts end
            return spans
        end
        assert.same({ 2, 1 }, hosts("dp=2, cp=4", 8, { 4, 4 })) -- the last-written axis has neighbours
        assert.same({ 2, 2 }, hosts("dp=4, cp=2", 8, { 5, 3 })) -- ranks 4 and 5 are a group, and on two hosts
        assert.same({ 2, 1 }, hosts("dp=4, cp=2", 8, { 6, 2 }))
        assert.same({ 3, 2, 1 }, hosts("a=3, b=2, c=2", 12, { 2, 2, 2, 2, 2, 2 }))
        assert.same({ 6 }, hosts("a=12", 12, { 2, 2, 2, 2, 2, 2 }))
        assert.same({ 1, 1 }, hosts("a=2, b=2", 4, { 4 }))
        local report = require "spl.report"
        assert.equal("dp across 2 hosts, cp inside a host", report.hosts(spl.mesh.parse("dp=2, cp=4", 8, { 4, 4 })))
        assert.is_nil(report.hosts(spl.mesh.parse("dp=2, cp=4", 8, { 8 })))
        for _, list in ipairs { { 4, 5 }, { 4 }, {}, { 8, 0 }, { 4, 4, 1 }, { -1, 9 }, { 4, "x" }, 8 } do
            assert.is_false(pcall(spl.mesh.parse, "dp=2, cp=4", 8, list))
        end
    end)

    local function refused(text, world, pattern)
        local ok, err = pcall(spl.mesh.parse, text, world)
        assert.is_false(ok, text)
        assert.equal("usage", err.code)
        assert.matches(pattern, err.message)
    end
    it("refuses sizes that do not multiply to the world", function() refused("a=2, b=2", 6, "4 ranks") end)
    it("refuses a star that cannot be filled", function() refused("a=4, b=*", 6, "does not divide") end)
    it("refuses two stars", function() refused("a=*, b=*", 4, "two axes of size %*") end)
    it("refuses an axis twice", function() refused("a=2, a=2", 4, "twice") end)
    it("refuses zero and negative sizes", function()
        refused("a=0", 1, "size")
        refused("a=-2", 2, "size")
    end)
    it("refuses what is no size", function() refused("a=two", 2, "not understood") end)
    it("refuses nothing at all", function() refused("", 1, "empty") end)
    it("refuses a role that is not there, naming the nearest", function() refused("a=1:sequense", 1, "'sequence'") end)
    it("refuses a comma at the end", function() refused("a=1,", 1, "not understood") end)
    it("refuses too many axes", function() refused("a=1,b=1,c=1,d=1,e=1,f=1,g=1", 1, "more than 6") end)
    it("wants a text", function()
        local ok, err = pcall(spl.mesh.parse, 4)
        assert.is_false(ok)
        assert.matches("a text", err.message)
    end)
end)

describe("a mesh of one rank", function()
    it("has axes, coordinates, a size and a text", function()
        local m <close> = spl.mesh("dp=1:data, tp=*:sequence")
        assert.same({ { name = "dp", size = 1, role = "data", coord = 0, hosts = 1 },
            { name = "tp", size = 1, role = "sequence", coord = 0, hosts = 1 } }, m.axes)
        assert.equal(1, m.size)
        assert.equal("dp=1:data, tp=1:sequence", tostring(m))
        assert.equal(0, m:coord("tp"))
    end)

    it("says which axes there are not", function()
        local m <close> = spl.mesh("tp=*")
        local ok, err = pcall(m.coord, m, "cp")
        assert.is_false(ok)
        assert.matches("no axis 'cp'", err.message)
    end)

    it("is gone after release, which may be called twice", function()
        local before = spl.live().meshes
        local m = spl.mesh("tp=*")
        assert.equal(before + 1, spl.live().meshes)
        m:release()
        m:release()
        assert.equal(before, spl.live().meshes)
        local ok, err = pcall(function() return m.axes end)
        assert.is_false(ok)
        assert.equal("released", err.code)
        assert.equal("mesh (released)", tostring(m))
    end)

    it("names the nearest field", function()
        local m <close> = spl.mesh("tp=*")
        local ok, err = pcall(function() return m.axis end)
        assert.is_false(ok)
        assert.matches("did you mean 'axes'", err.message)
    end)

    it("is the same object through its tensors", function()
        local m <close> = spl.mesh("tp=*")
        local t <close> = spl.tensor { shape = { 2 }, mesh = m }
        assert.equal(m, t.mesh)
        local other <close> = spl.mesh("tp=*")
        assert.not_equal(other, t.mesh)
    end)
end)
