-- tensor_spec.lua: tensors over several ranks: values by global index, whole-tensor numbers, gather, errors that all
-- ranks see.
local spl = require "spl"
local holdings = require "tests.support.holdings"

local rank, world = spl.rank(), spl.size()

local function same_everywhere(text)
    for _, other in ipairs(spl.gather(text)) do assert.equal(text, other) end
end

describe("a mesh", function()
    it("numbers ranks with the first axis outermost", function()
        local m <close> = spl.mesh(("a=1, b=*, c=1"))
        assert.equal(0, m:coord("a"))
        assert.equal(rank, m:coord("b"))
        if world % 2 == 0 then
            local two <close> = spl.mesh("a=2, b=*")
            assert.equal(rank // (world // 2), two:coord("a"))
            assert.equal(rank % (world // 2), two:coord("b"))
            local last <close> = spl.mesh("a=*, b=2")
            assert.equal(rank // 2, last:coord("a"))
        end
    end)

    it("that does not fit is refused alike on all ranks", function()
        local ok, err = pcall(spl.mesh, ("a=%d"):format(world + 1))
        assert.is_false(ok)
        assert.equal("usage", err.code)
        same_everywhere(err.message)
    end)
end)

describe("a distributed tensor", function()
    it("takes its part of a table, a tensor and of the numbers of a seed", function()
        local mesh <close> = spl.mesh("tp=*")
        local whole <close> = spl.tensor { shape = { 5, 7 }, dtype = "f64" }
        whole:randn(3, 2)
        local table_of = whole:flat()
        for _, layout in ipairs { "tp=shard(1)", "tp=shard(2)", "tp=shard(2,zigzag)", "tp=shard(1,striped)",
            "replicate" } do
            local a <close> = spl.tensor { shape = { 5, 7 }, dtype = "f64", mesh = mesh, layout = layout }
            a:set(table_of)
            local all <close> = a:gather()
            assert.same(table_of, all:flat())
            a:fill(0):set(whole)
            local again <close> = a:gather()
            assert.same(table_of, again:flat())
            a:fill(0):randn(3, 2)
            local drawn <close> = a:gather()
            assert.equal(whole:to_bytes(), drawn:to_bytes())
        end
    end)

    it("holds by global index what iota says", function()
        local mesh <close> = spl.mesh("tp=*")
        local placement = { { place = "shard", dim = 1, scheme = "zigzag" } }
        local t <close> = spl.tensor { shape = { 11, 3 }, dtype = "i64", mesh = mesh,
            layout = holdings.text(placement, { "tp" }) }
        assert.same(holdings.flat(placement, { world }, { rank }, { 11, 3 }), t:iota():flat())
    end)

    it("counts every element once in sum, norm and largest", function()
        local mesh <close> = spl.mesh("tp=*")
        local values, sum, squares = {}, 0, 0
        for i = 1, 12 do
            values[i] = (i % 2 == 0 and -i or i)
            sum, squares = sum + values[i], squares + i * i
        end
        for _, layout in ipairs { "replicate", "tp=shard(1)", "tp=shard(2)", "tp=partial", "tp=shard(1,cover:3)",
            "tp=shard(2,striped)" } do
            local t <close> = spl.tensor { shape = { 4, 3 }, dtype = "f64", mesh = mesh, layout = layout }
            t:set(values)
            assert.equal(sum, t:sum(), layout)
            assert.is_true(math.abs(math.sqrt(squares) - t:norm()) < 1e-12, layout)
            assert.equal(12, t:max_abs(), layout)
            assert.equal(squares, t:stats().sum_squares, layout)
        end
        local partial <close> = spl.tensor { shape = { 2 }, dtype = "f64", mesh = mesh, layout = "tp=partial" }
        partial:set_local { rank + 1, -rank } -- summands of two numbers
        assert.equal(world * (world + 1) / 2 - world * (world - 1) / 2, partial:sum())
        assert.equal(world * (world + 1) / 2, partial:max_abs())
    end)

    it("fills a pending sum once", function()
        local mesh <close> = spl.mesh("tp=*")
        local t <close> = spl.ones { shape = { 3 }, dtype = "f64", mesh = mesh, layout = "tp=partial" }
        assert.equal(3, t:sum())
    end)

    it("has fields for the whole and for this rank's part", function()
        local mesh <close> = spl.mesh("tp=*")
        local t <close> = spl.tensor { shape = { 2, 7 }, dtype = "f64", mesh = mesh, layout = "tp=shard(2)" }
        local _, mine = holdings.part(7, world, rank)
        assert.same({ 2, 7 }, t.shape)
        assert.same({ 2, mine }, t.local_shape)
        assert.equal(14, t.count)
        assert.equal(2 * mine, t.local_count)
        assert.equal(16 * mine, t.bytes)
        assert.equal(mesh, t.mesh)
        assert.equal("tp=shard(2)", tostring(t.layout))
        local here = t:to_local()
        assert.is_nil(here.mesh)
        assert.same({ 2, mine }, here.shape)
        local first = holdings.part(7, world, rank)
        assert.same({ { start = first + 1, length = mine, stride = 1 } }, t:where()[2])
        assert.matches("^tensor f64 %[2, 7%], tp=shard%(2%), here %[2, " .. mine .. "%]", tostring(t:fill(1)))
        here:release()
    end)

    it("is cut, turned, reshaped and cloned where no shard is broken", function()
        local mesh <close> = spl.mesh("tp=*")
        local t <close> = spl.tensor { shape = { 5, 6 }, dtype = "f64", mesh = mesh, layout = "tp=shard(1)" }
        t:iota()
        local cut <close> = t:narrow(2, 2, 3)
        local all <close> = cut:gather()
        assert.same({ 1, 2, 3 }, all:to_table()[1])
        local function refused(pattern, f, ...)
            if world == 1 then return end -- nothing is sharded then
            local ok, err = pcall(f, ...)
            assert.is_false(ok)
            assert.matches(pattern, err.message)
        end
        refused("redistribute", t.narrow, t, 1, 1, 2)
        local turned <close> = t:transpose(1, 2)
        local twin <close> = turned:clone()
        local back <close> = twin:gather()
        assert.equal(6, back:item(1, 2))
        local split <close> = t:reshape { 5, 2, 3 }
        local spread <close> = split:gather()
        assert.equal(9, spread:item(2, 2, 1))
        refused("shards", t.reshape, t, { 30 })
    end)

    it("may be released on one rank sooner than on another", function()
        local mesh <close> = spl.mesh("tp=*")
        local t = spl.ones { shape = { 4 }, mesh = mesh, layout = "tp=shard(1)" }
        if rank == 0 then t:release() end
        spl.barrier()
        t:release()
        local next_one <close> = spl.ones { shape = { 4 }, mesh = mesh, layout = "tp=shard(1)" }
        assert.equal(4, next_one:sum())
    end)

    it("is not mixed with tensors of another mesh", function()
        local mesh <close> = spl.mesh("tp=*")
        local other <close> = spl.mesh("tp=*")
        local a <close> = spl.ones { shape = { 4 }, mesh = mesh }
        local b <close> = spl.ones { shape = { 4 }, mesh = other }
        local c <close> = spl.ones { shape = { 4 } }
        for _, wrong in ipairs { b, c } do
            local ok, err = pcall(spl.add, a, wrong)
            assert.is_false(ok)
            assert.equal("argument", err.code)
            assert.matches("mesh", err.message)
        end
    end)

    it("that is empty on some ranks is reshaped and checked as any other", function()
        local mesh <close> = spl.mesh("tp=*:sequence")
        for _, seq in ipairs { 0, 1, 2 } do -- shorter than the ranks, with a batch
            local block = spl.block { hidden = 8, heads = 2, seed = 3 }:schedule(mesh)
            local x <close> = block:input { batch = 2, seq = seq }:randn(1)
            local result = block:check(x)
            assert.same({ 0, seq }, { result.wrong, result.rows })
            block:release()
        end
        local t <close> = spl.zeros { shape = { 2, 0 } }
        local r <close> = t:reshape { 0, 2 }
        assert.same({ 0, 2 }, { table.unpack(r.shape) })
    end)

    it("keeps two sharded dimensions of size 1 apart when it is reshaped", function()
        if world ~= 4 then return end
        local mesh <close> = spl.mesh("a=2, b=2")
        local t <close> = spl.ones { shape = { 1, 1 }, mesh = mesh, layout = "a=shard(1), b=shard(2)" }
        local r <close> = t:reshape { 1, 1 }
        assert.same({ table.unpack(t.local_shape) }, { table.unpack(r.local_shape) })
        assert.equal(tostring(t.layout), tostring(r.layout))
        local ok, err = pcall(t.reshape, t, { 1 })
        assert.is_false(ok)
        assert.matches("would become one", err.message)
    end)

    it("keeps a sharded dimension of size 1 where it stood when it is reshaped", function()
        local mesh <close> = spl.mesh("a=*")
        for _, c in ipairs {
            { { 1, 1 }, 2, { 1, 1, 1 }, 2 }, { { 1, 1 }, 1, { 1, 1, 1 }, 1 }, { { 1, 1, 1 }, 3, { 1, 1 }, 2 },
            { { 1, 1, 1 }, 2, { 1, 1 }, 2 }, { { 4, 1, 1 }, 3, { 4, 1, 1, 1 }, 3 }, { { 1, 3 }, 1, { 1, 1, 3 }, 1 },
            { { 2, 1, 3 }, 2, { 1, 2, 1, 3 }, 3 }, { { 1, 1, 3 }, 2, { 1, 3 }, 1 },
        } do
            local t <close> = spl.ones { shape = c[1], mesh = mesh, layout = ("a=shard(%d)"):format(c[2]) }
            local r <close> = t:reshape(c[3])
            assert.equal(("a=shard(%d)"):format(c[4]), tostring(r.layout))
            assert.equal(t.local_shape[c[2]], r.local_shape[c[4]])
        end
        if world ~= 4 then return end
        local pair <close> = spl.mesh("a=2, b=2") -- the first gives way where the second would have no place
        local t <close> = spl.ones { shape = { 1, 1, 1, 4 }, mesh = pair, layout = "a=shard(2), b=shard(3)" }
        local r <close> = t:reshape { 1, 1, 4 }
        assert.equal("a=shard(1), b=shard(2)", tostring(r.layout))
        assert.same({ t.local_shape[2], t.local_shape[3] }, { r.local_shape[1], r.local_shape[2] })
    end)

    it("is looked up in by token, however its rows are split", function()
        local mesh <close> = spl.mesh("tp=*")
        for _, layout in ipairs { "tp=shard(1)", "tp=shard(1,zigzag)" } do
            local table_ <close> = spl.tensor { shape = { 23, 3 }, dtype = "f64", mesh = mesh, layout = layout }
            table_:iota()
            local ids <close> = spl.tensor { shape = { 2, 13 }, dtype = "i64", mesh = mesh }
            local wanted, list = {}, {}
            for i = 1, 26 do
                list[i] = (7 * i) % 23
                for j = 0, 2 do wanted[#wanted + 1] = 3 * list[i] + j end
            end
            ids:set(list)
            local rows <close> = spl.embed(ids, table_)
            local whole <close> = rows:gather()
            assert.same(wanted, whole:flat())
        end
    end)

    it("is not looked up in by token where its rows overlap, which would count some twice", function()
        local mesh <close> = spl.mesh("tp=*")
        local ids <close> = spl.zeros { shape = { 2 }, dtype = "i64", mesh = mesh }
        local table_ <close> = spl.ones { shape = { 4, 3 }, mesh = mesh, layout = "tp=shard(1,cover:2)" }
        local ok, err = pcall(spl.embed, ids, table_)
        if world == 1 then return end
        assert.is_false(ok)
        assert.matches("embed.*overlap %(cover%)", err.message)
    end)

    it("shares memory with a result in the same places on any number of ranks", function()
        local mesh <close> = spl.mesh("tp=*")
        for _, layout in ipairs { "tp=shard(1)", "replicate", "tp=partial" } do
            local t <close> = spl.ones { shape = { 6, 4 }, mesh = mesh, layout = layout }
            for _, made in ipairs { t:gather(), t:redistribute(layout), t:redistribute "replicate", t:clone(),
                t:reshape { 6, 2, 2 }, t:contiguous(), t:cast "f32" } do
                made:fill(7)
                assert.equal(24, t:sum())
            end
            local alone <close> = t:to_local()
            alone:gather():fill(7)
            assert.equal(24, t:sum())
            alone:fill(0)
            assert.equal(0, t:sum())
        end
    end)

    it("may be moved when a variable is closed, which is not a finalizer", function()
        local mesh <close> = spl.mesh("tp=*")
        local t <close> = spl.ones { shape = { 4 }, mesh = mesh, layout = "tp=shard(1)" }
        do
            local _ <close> = setmetatable({}, { __close = function() t:sum() end })
        end
        assert.equal(4, t:sum())
    end)
end)
