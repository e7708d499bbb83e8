-- collective_spec.lua: mesh:all_gather and its like against plain lists, in place and out of place, and what they
-- refuse.
local spl = require "spl"

local rank, world = spl.rank(), spl.size()

-- What the rank at coordinate `c` holds: n whole numbers, told apart by rank and place.
local function held(c, n)
    local list = {}
    for i = 1, n do
        list[i] = 1000 * (c + 1) + i
    end
    return list
end

local function sum(n, ranks)
    local list = {}
    for i = 1, n do
        list[i] = 0
        for c = 0, ranks - 1 do
            list[i] = list[i] + held(c, n)[i]
        end
    end
    return list
end

local function slice(list, first, count)
    return table.move(list, first, first + count - 1, 1, {})
end

-- {what is sent, what must be received} at coordinate c of `ranks`, as flat lists, from a part of n elements.
local MODEL = {
    all_gather = function(c, ranks, n)
        local all = {}
        for r = 0, ranks - 1 do
            table.move(held(r, n), 1, n, #all + 1, all)
        end
        return held(c, n), all
    end,
    all_reduce = function(c, ranks, n) return held(c, n), sum(n, ranks) end,
    reduce_scatter = function(c, ranks, n)
        return held(c, n * ranks), slice(sum(n * ranks, ranks), n * c + 1, n)
    end,
    all_to_all = function(c, ranks, n)
        local got = {}
        for r = 0, ranks - 1 do
            table.move(held(r, n * ranks), n * c + 1, n * c + n, #got + 1, got)
        end
        return held(c, n * ranks), got
    end,
    broadcast = function(c, ranks, n, root) return held(c, n), held(root % ranks, n) end,
    shift = function(c, ranks, n, by) return held(c, n), held((c - by) % ranks, n) end,
}

-- In one order on all ranks, which pairs() does not give.
local NAMES = { "all_gather", "all_reduce", "reduce_scatter", "all_to_all", "broadcast", "shift" }

local function tensor(values, dtype, columns)
    return spl.from_table({ shape = { #values // columns, columns }, data = values }, dtype)
end

local function call(name, mesh, axis, t, extra, out)
    if extra then
        return mesh[name](mesh, axis, t, extra, out)
    end
    return mesh[name](mesh, axis, t, out)
end

-- Extra arguments: roots and steps.
local function extras(name, ranks)
    if name == "broadcast" then
        return { 0, ranks - 1 }
    elseif name == "shift" then
        return { 1, -1, 0, 5 }
    end
    return { false }
end

local function meshes()
    local list = { { "x=*", "x" }, { "a=1, x=*", "x" }, { "a=1, x=*", "a" } }
    if world % 2 == 0 then
        table.move({ { "a=2, b=*", "a" }, { "a=2, b=*", "b" } }, 1, 2, #list + 1, list)
    end
    return list
end

local function each_case(name, run)
    for _, text in ipairs(meshes()) do
        local mesh <close> = spl.mesh(text[1])
        local c, ranks = mesh:coord(text[2]), 1
        for _, axis in ipairs(mesh.axes) do
            ranks = axis.name == text[2] and axis.size or ranks
        end
        for _, extra in ipairs(extras(name, ranks)) do
            run(mesh, text[2], c, ranks, extra)
        end
    end
end

local function refused(code, pattern, f, ...)
    local good, e = pcall(f, ...)
    assert.is_false(good)
    assert.equal(code, e.code)
    assert.matches(pattern, e.message)
    for _, other in ipairs(spl.gather(e.code)) do
        assert.equal(e.code, other)
    end
    return e
end

describe("collectives on tensors of one rank", function()
    for _, name in ipairs(NAMES) do
        local model = MODEL[name]
        it(name .. " gives what a plain list calculation gives", function()
            each_case(name, function(mesh, axis, c, ranks, extra)
                for _, dtype in ipairs { "f32", "f64", "i64" } do
                    for _, n in ipairs { 0, 1, 3, 260 } do
                        local columns = n % 2 == 0 and 2 or 1
                        local send, wanted = model(c, ranks, n, extra)
                        local t <close> = tensor(send, dtype, columns)
                        local made <close> = call(name, mesh, axis, t, extra)
                        assert.same(wanted, made:flat())
                        assert.same({ #wanted // columns, columns }, made.shape)
                        local out <close> = tensor(wanted, dtype, columns):fill(-1)
                        assert.equal(out, call(name, mesh, axis, t, extra, out))
                        assert.same(wanted, out:flat())
                        assert.same(send, t:flat()) -- which nobody may touch
                    end
                end
            end)
        end)
    end

    it("all_gather and reduce_scatter work in place on their own part", function()
        each_case("all_gather", function(mesh, axis, c, ranks)
            for _, n in ipairs { 0, 1, 7, 300 } do
                local send, wanted = MODEL.all_gather(c, ranks, n)
                local whole <close> = spl.ones { shape = { n * ranks }, dtype = "f64" }
                local own <close> = whole:narrow(1, c * n + 1, n)
                own:set_local(send)
                mesh:all_gather(axis, own, whole)
                assert.same(wanted, whole:flat())

                local all, part = MODEL.reduce_scatter(c, ranks, n)
                whole:set_local(all)
                mesh:reduce_scatter(axis, whole, own)
                assert.same(part, own:flat())
                table.move(part, 1, n, c * n + 1, all) -- the rest of what was sent stays
                assert.same(all, whole:flat())
            end
        end)
    end)

    it("all_reduce and broadcast work in place", function()
        each_case("broadcast", function(mesh, axis, c, ranks, root)
            for _, n in ipairs { 0, 1, 7, 300 } do
                local send, wanted = MODEL.all_reduce(c, ranks, n)
                local t <close> = spl.from_table({ shape = { n }, data = send }, "f64")
                assert.equal(t, mesh:all_reduce(axis, t, t))
                assert.same(wanted, t:flat())
                t:set_local(send)
                mesh:broadcast(axis, t, root, t)
                assert.same(held(root, n), t:flat())
            end
        end)
    end)

    it("move pieces larger than one message of a reduction, and sum halves in order", function()
        local mesh <close> = spl.mesh "x=*"
        local n = 400000
        local t <close> = spl.tensor { shape = { n * world } }:iota()
        local part <close> = mesh:reduce_scatter("x", t)
        assert.equal((rank * n + 17) * world, part:item(18))
        assert.equal((rank * n + n - 1) * world, part:item(n))
        local back <close> = mesh:all_gather("x", part)
        assert.equal((n * world - 1) * world, back:item(n * world))
        for _, dtype in ipairs { "bf16", "f16", "i32", "u8" } do
            local small <close> = spl.from_table({ 1, 2, rank }, dtype)
            local total <close> = mesh:all_reduce("x", small)
            assert.same({ world, 2 * world, world * (world - 1) // 2 }, total:flat())
        end
        local flag <close> = spl.from_table({ rank == 0, false }, "bool")
        local any <close> = mesh:all_reduce("x", flag)
        assert.same({ true, false }, any:flat())
    end)

    it("take a single number where no dimension is split", function()
        local mesh <close> = spl.mesh "x=*"
        local t <close> = spl.tensor { shape = {}, dtype = "f64" }:fill(rank + 1)
        local total <close> = mesh:all_reduce("x", t)
        assert.equal(world * (world + 1) / 2, total:item())
        local next_one <close> = mesh:shift("x", t)
        assert.equal((rank - 1) % world + 1, next_one:item())
        refused("argument", "single number", mesh.all_gather, mesh, "x", t)
        refused("argument", "single number", mesh.all_to_all, mesh, "x", t)
    end)

    it("count calls and the bytes that this rank sends", function()
        local mesh <close> = spl.mesh "x=*"
        local t <close> = spl.ones { shape = { 6 * world } }
        spl.reset_counters()
        mesh:all_gather("x", t):release()
        mesh:reduce_scatter("x", t):release()
        mesh:all_to_all("x", t):release()
        local c = spl.counters()
        assert.equal(1, c.calls["all-gather"])
        assert.equal(24 * world * (world - 1), c.bytes["all-gather"])
        assert.equal(24 * (world - 1), c.bytes["reduce-scatter"])
        assert.equal(24 * (world - 1), c.bytes["all-to-all"])
        mesh:shift("x", t):release()
        c = spl.counters()
        assert.equal(2, c.calls["all-to-all"])
        assert.equal(24 * (world - 1) + (world > 1 and 24 * world or 0), c.bytes["all-to-all"])
    end)
end)

describe("collectives on tensors of one rank refuse", function()
    it("a size that the ranks do not divide", function()
        local mesh <close> = spl.mesh "x=*"
        local t <close> = spl.ones { shape = { 6 * world + 1, 2 } }
        if world == 1 then return end
        for _, name in ipairs { "reduce_scatter", "all_to_all" } do
            local e = refused("argument", "do not divide", mesh[name], mesh, "x", t)
            assert.matches(tostring(6 * world + 1), e.message, 1, true)
            assert.matches("axis 'x'", e.message, 1, true)
        end
    end)

    it("a released tensor, mesh or out", function()
        local mesh = spl.mesh "x=*"
        local t, gone = spl.ones { shape = { world } }, spl.ones { shape = { world } }
        gone:release()
        for _, name in ipairs(NAMES) do
            local extra = name == "broadcast" and 0 or name == "shift" and 1
            refused("released", "'t': this tensor was released", call, name, mesh, "x", gone, extra)
            refused("released", "'out': this tensor was released", call, name, mesh, "x", t, extra, gone)
        end
        mesh:release()
        refused("released", "mesh was released", function() mesh.all_reduce(mesh, "x", t) end)
        t:release()
    end)

    it("arguments of another kind", function()
        local mesh <close> = spl.mesh "x=*"
        local t <close> = spl.ones { shape = { world } }
        local whole <close> = spl.ones { shape = { world }, mesh = mesh, layout = "x=shard(1)" }
        local double <close> = spl.ones { shape = { world }, dtype = "f64" }
        local longer <close> = spl.ones { shape = { world + 1 } }
        refused("argument", "no axis 'y'", mesh.all_reduce, mesh, "y", t)
        refused("argument", "'axis': the name of an axis is needed", mesh.all_reduce, mesh, 1, t)
        refused("argument", "'t': a tensor is needed", mesh.all_reduce, mesh, "x", { 1 })
        refused("argument", "to_local", mesh.all_reduce, mesh, "x", whole)
        refused("argument", "layout", mesh.all_reduce, mesh, "x", t, whole)
        refused("argument", "one dtype", mesh.all_reduce, mesh, "x", t, double)
        refused("argument", "shape %[" .. world + 1 .. "%]; %[" .. world .. "%] is needed", mesh.all_reduce, mesh, "x",
            t, longer)
        refused("argument", "'root' is " .. world, mesh.broadcast, mesh, "x", t, world)
        refused("argument", "'root' is %-1", mesh.broadcast, mesh, "x", t, -1)
        refused("argument", "'root': an integer is needed", mesh.broadcast, mesh, "x", t)
    end)

    it("tensors that do not lie densely", function()
        local mesh <close> = spl.mesh "x=*"
        local t <close> = spl.ones { shape = { 2, 3 } }
        local turned <close> = t:transpose(1, 2)
        refused("argument", "contiguous", mesh.all_reduce, mesh, "x", turned)
        local dense <close> = spl.ones { shape = { 3, 2 } }
        refused("argument", "contiguous", mesh.all_reduce, mesh, "x", dense, turned)
    end)

    it("to work in place in any other way", function()
        local mesh <close> = spl.mesh "x=*"
        local t <close> = spl.ones { shape = { 4 * world } }
        refused("argument", "in place", mesh.all_to_all, mesh, "x", t, t)
        refused("argument", "in place", mesh.shift, mesh, "x", t, 1, t)
        local first <close> = t:narrow(1, 1, 3 * world)
        local second <close> = t:narrow(1, 2, 3 * world)
        refused("argument", "the same elements", mesh.all_reduce, mesh, "x", first, second)
        if world == 1 then return end
        local wrong <close> = t:narrow(1, 4 * ((rank + 1) % world) + 1, 4)
        refused("argument", "own part", mesh.all_gather, mesh, "x", wrong, t)
        refused("argument", "own part", mesh.reduce_scatter, mesh, "x", t, wrong)
    end)

    it("that ranks call different things, and go on afterwards", function()
        if world == 1 then return end
        spl.check_collectives(true)
        local mesh <close> = spl.mesh "x=*"
        local t <close> = spl.ones { shape = { world } }
        local more <close> = spl.ones { shape = { 2 * world } }
        refused("disagree", "different count", mesh.all_reduce, mesh, "x", rank == 0 and t or more)
        refused("disagree", "different API", rank == 0 and mesh.all_reduce or mesh.all_to_all, mesh, "x", t)
        local good <close> = mesh:all_reduce("x", t)
        assert.equal(world, good:item(1))
    end)
end)
