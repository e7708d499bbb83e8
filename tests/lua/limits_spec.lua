-- limits_spec.lua: sizes, counts and numbers at the ends of their ranges: a clear error or the right value, at once.
local spl = require "spl"
local mpi = require "mpi"

local function refused(code, words, f, ...)
    local good, e = pcall(f, ...)
    assert.is_false(good)
    assert.equal(code, spl.is_error(e) and e.code or e)
    assert.matches(words, e.message)
end

describe("a tensor without elements", function()
    it("may have any other sizes that can be counted", function()
        local t = spl.zeros { shape = { 1 << 40, 0 } }
        assert.same({ 0, 0 }, { t.count, t:sum() })
        assert.matches("tensor f32 %[1099511627776, 0%]", tostring(t))
        assert.is_true(#t:to_text() < 1000)
        assert.is_true(#t:to_text { rows = 3 } < 1000)
        refused("memory", "1099511627776 empty tables", t.to_table, t)
        assert.same({}, t:flat())
        assert.same({ {}, {} }, spl.zeros { shape = { 2, 0 } }:to_table())
        assert.same({}, spl.zeros { shape = { 0, 1 << 40 } }:to_table())
        refused("memory", "does not fit 63 bits", spl.zeros, { shape = { 1 << 62, 4, 0 } })
        refused("memory", "does not fit 63 bits", spl.zeros, { shape = { 0, 1 << 40, 1 << 40 } })
    end)
end)

describe("layouts of large dimensions", function()
    local mesh = { axes = { { name = "x", size = 1 << 30 }, { name = "y", size = 4 } } }

    it("count past 31 bits", function()
        for _, scheme in ipairs { "contiguous", "zigzag", "striped" } do
            local l = spl.layout(("x=shard(1,%s)"):format(scheme), mesh, { (1 << 62) + 5 })
            assert.equal((1 << 32) + 1, l:local_shape { x = 0 }[1], scheme)
            assert.equal(1 << 32, l:local_shape { x = (1 << 30) - 1 }[1], scheme)
        end
        local whole = spl.layout("y=shard(1,striped)", mesh, { math.maxinteger })
        assert.equal(1 << 61, whole:local_shape { y = 0 }[1])
    end)

    it("that would take endless lists are refused", function()
        for _, text in ipairs { "y=shard(1,striped,unit:2)", "y=shard(1,unit:2,cover:2)" } do
            refused("argument", "more than can be listed", spl.layout, text, mesh, { 1 << 42 })
        end
        local l = spl.layout("y=shard(1,striped,unit:1099511627776)", mesh, { 1 << 42 })
        assert.equal(1 << 40, l:local_shape { y = 3 }[1])
    end)
end)

describe("large integers", function()
    it("keep every digit in max, min, sum, fill and print", function()
        local big = (1 << 62) + 1
        assert.same({ big, -big, big }, { spl.max(big), spl.min(-big), spl.sum(big) })
        assert.equal("integer", math.type(spl.max(big)))
        local t = spl.tensor { shape = { 3 }, dtype = "i64" }:fill(big)
        assert.same({ big, big, big }, t:to_table())
        assert.matches("{4611686018427387905, ", tostring(t))
        assert.same({ -1, -1 }, spl.tensor { shape = { 2 }, dtype = "i64" }:fill(-1):to_table())
    end)
    it("over ranks too", function()
        local r = mpi.run(1, [[
            local spl = require "spl"
            local big = (1 << 60) + 1
            local r = spl.rank()
            print(spl.max(big + r), spl.min(big + r), spl.sum(big + r),
                (select(2, spl.sum(1, -big))), spl.max(r == 0 and 2.5 or 2))]], nil,
            { flags = { "--virtual", "2" } })
        local line = ("%d\t%d\t%d\t%d\t2.5\n"):format((1 << 60) + 2, (1 << 60) + 1, (1 << 61) + 3, -(1 << 61) - 2)
        assert.same({ 0, line:rep(2), "" }, { r.code, r.out, r.err })
    end)
end)

describe("a backend without memory", function()
    local function null(body)
        return mpi.run(1, 'local spl = require "spl"\nlocal t = spl.ones { shape = { 2, 2 } }\n' .. body, nil,
            { flags = { "--backend", "null" } })
    end
    it("has no values to read, and says so", function()
        for _, read in ipairs { "t:norm()", "t:sum()", "t:max_abs()", "t:stats()", "t:to_table()", "t:flat()",
            "t:to_bytes()", "t:item(1, 1)", "spl.compare(t, t)", "(spl.nll(spl.ones{ shape = { 1, 2, 2 } }, "
            .. "spl.zeros{ shape = { 1, 2 }, dtype = 'i64' })):sum()" } do
            local r = null("print(" .. read .. ")")
            assert.same({ 1, "" }, { r.code, r.out }, read)
            assert.matches("backend 'null'.*no values.*%-%-backend cpu", r.err)
        end
        local r = null "print(t, t:clone().shape)"
        assert.same({ 0, "" }, { r.code, r.err })
        assert.matches("a backend without memory: no values", r.out)
    end)
    it("counts work that no 64 bits hold as their largest number", function()
        local r = null [[
            local x = spl.tensor { shape = { 1 << 28, 1 << 20 } }
            local w = spl.tensor { shape = { 1 << 20, 1 << 20 } }
            for _ = 1, 3 do spl.linear(x, w) end
            print(spl.counters().gemm_flops)]]
        assert.same({ 0, math.maxinteger .. "\n", "" }, { r.code, r.out, r.err })
    end)
end)
