-- redistribute_spec.lua: between any two layouts, on random meshes of this world: every element of every rank is
-- compared with the explicit lists of holdings.lua, in both directions; pending sums are summed by hand; bytes are
-- counted independently.
local spl = require "spl"
local holdings = require "tests.support.holdings"

local names = { "a1", "a2", "a3" }
local world = spl.size()

local function mesh_of(sizes)
    local parts = {}
    for a, size in ipairs(sizes) do parts[a] = ("%s=%d"):format(names[a], size) end
    return spl.mesh(table.concat(parts, ","))
end

-- What the member at `coords` holds of global element g: on partial axes each coordinate has its own summand.
local function summand(layout, coords, g)
    local value = g + 1
    for a, p in ipairs(layout) do
        if p.place == "partial" then value = value * 3 + coords[a] * 7 + a end
    end
    return value
end

-- Sum over all coordinates of the partial axes.
local function whole(layout, sizes, g)
    local total, coords = 0, {}
    local function visit(a)
        if a > #sizes then
            total = total + summand(layout, coords, g)
            return
        end
        local last = layout[a].place == "partial" and sizes[a] - 1 or 0
        for c = 0, last do
            coords[a] = c
            visit(a + 1)
        end
    end
    visit(1)
    return total
end

-- Local values of all ranks, as lists, on every rank.
local function everyone(t)
    local mine = t:flat()
    for i, v in ipairs(mine) do mine[i] = string.pack("<d", v) end
    local out = {}
    for r, text in ipairs(spl.gather(table.concat(mine))) do
        local list = {}
        for i = 1, #text, 8 do list[#list + 1] = string.unpack("<d", text, i) end
        out[r - 1] = list
    end
    return out
end

-- Checks every rank's part of `t` (layout `to`) against the value `value(g)` of global element g.
local function check(t, to, sizes, shape, value, what)
    local parts = everyone(t)
    local sums = {} -- by holders that differ only in partial coordinates
    for rank = 0, world - 1 do
        local coords = holdings.coords(sizes, rank)
        local flat, local_shape = holdings.flat(to, sizes, coords, shape)
        assert.equal(#flat, #parts[rank], what .. ": elements of rank " .. rank)
        if rank == spl.rank() then assert.same(local_shape, t.local_shape, what) end
        local key = {}
        for a, p in ipairs(to) do key[a] = p.place == "partial" and "*" or coords[a] end
        key = table.concat(key, ",")
        sums[key] = sums[key] or { flat = flat, values = {} }
        for i, v in ipairs(parts[rank]) do sums[key].values[i] = (sums[key].values[i] or 0) + v end
    end
    for key, s in pairs(sums) do
        for i, g in ipairs(s.flat) do
            if s.values[i] ~= value(g) then
                error(("%s: at {%s} element %d (global %d) is %s, not %s"):format(what, key, i, g, s.values[i],
                    value(g)), 0)
            end
        end
    end
end

local function describe_case(case, sizes, shape, from, to)
    return ("case %d: mesh {%s}, shape {%s}, from '%s' to '%s'"):format(case, table.concat(sizes, ","),
        table.concat(shape, ","), holdings.text(from, names), holdings.text(to, names))
end

-- Does only this axis (of more than one rank) change? Then there is one way to move the data, and bytes can be counted.
local function only_change(from, to, sizes)
    local axis
    for a, size in ipairs(sizes) do
        local same = from[a].place == to[a].place
        for _, key in ipairs { "dim", "scheme", "unit", "cover", "nest" } do
            same = same and (from[a].place ~= "shard" or from[a][key] == to[a][key])
        end
        if size > 1 and not same then
            if axis then return nil end
            axis = a
        end
    end
    return axis
end

-- True when another axis splits the dimension inside `axis`: then that one has to be undone first, and more moves
-- than this.
local function inner_axis(layout, sizes, axis)
    local p = layout[axis]
    if p.place ~= "shard" then return false end
    for a, q in ipairs(layout) do
        if a ~= axis and sizes[a] > 1 and q.place == "shard" and q.dim == p.dim then
            local inside = (q.nest or 0) > (p.nest or 0) or ((q.nest or 0) == (p.nest or 0) and a > axis)
            if inside then return true end
        end
    end
    return false
end

local function run_case(case, sizes, shape, from, to)
    local what = describe_case(case, sizes, shape, from, to)
    local mesh <close> = mesh_of(sizes)
    local coords = holdings.coords(sizes, spl.rank())
    local t <close> = spl.tensor { shape = shape, dtype = "f64", mesh = mesh, layout = holdings.text(from, names) }
    local flat = holdings.flat(from, sizes, coords, shape)
    local values = {}
    for i, g in ipairs(flat) do values[i] = summand(from, coords, g) end
    t:set_local(values)
    local function value(g) return whole(from, sizes, g) end

    spl.reset_counters()
    local moved <close> = t:redistribute(holdings.text(to, names))
    local bytes = spl.counters().bytes.total
    check(moved, to, sizes, shape, value, what)
    assert.equal(spl.layout(holdings.text(to, names), mesh, shape), moved.layout, what)

    local axis = only_change(from, to, sizes)
    if axis and not inner_axis(from, sizes, axis) and not inner_axis(to, sizes, axis) then
        local same = t.layout == moved.layout -- another nest says nothing where one axis splits the dimension
        assert.equal(same and 0 or 8 * holdings.sent(from, to, sizes, coords, shape, axis), bytes,
            what .. ": bytes of rank " .. spl.rank())
    end

    local back <close> = moved:redistribute(t.layout)
    check(back, from, sizes, shape, value, what .. ", and back")
    assert.same(values, t:flat(), what .. ": the source must not change")
end

describe("redistribute", function()
    it("moves every element to its place, between random layouts of random meshes", function()
        local random = holdings.random(7 + world)
        for case = 1, 250 do
            local sizes, shape = holdings.random_mesh(random, world), holdings.random_shape(random)
            local from = holdings.random_layout(random, shape, #sizes)
            local to = holdings.random_layout(random, shape, #sizes)
            run_case(case, sizes, shape, from, to)
        end
    end)

    it("moves as many bytes as theory says where one axis changes", function()
        local random = holdings.random(1000 + world)
        for case = 1, 150 do
            local sizes, shape = holdings.random_mesh(random, world), holdings.random_shape(random)
            local from = holdings.random_layout(random, shape, #sizes)
            local to, other = {}, holdings.random_layout(random, shape, #sizes)
            local axis = random(1, #sizes)
            for a = 1, #sizes do to[a] = from[a] end
            to[axis] = other[axis]
            local ok = pcall(spl.layout, holdings.text(to, names), spl.mesh.parse(table.concat((function()
                local parts = {}
                for a, size in ipairs(sizes) do parts[a] = names[a] .. "=" .. size end
                return parts
            end)(), ","), world), shape)
            if ok then run_case(case, sizes, shape, from, to) end -- else: two units in one dimension
        end
    end)

    it("has a closed form for the four collectives on one axis of a long sequence", function()
        local n, width = 1003, 6
        local mesh <close> = spl.mesh("tp=*")
        local _, mine = holdings.part(n, world, spl.rank())
        local function bytes(from, to)
            local t <close> = spl.zeros { shape = { n, width }, mesh = mesh, layout = from }
            spl.reset_counters()
            local y <close> = t:redistribute(to)
            assert.equal(to == "replicate" and n or y.local_shape[1], y.local_shape[1])
            return spl.counters().bytes.total
        end
        assert.equal(4 * mine * width * (world - 1), bytes("tp=shard(1)", "replicate"))
        assert.equal(4 * (n - mine) * width, bytes("tp=partial", "tp=shard(1)"))
        local _, part = holdings.part(n * width, world, spl.rank())
        assert.equal(4 * (n * width - part + part * (world - 1)), bytes("tp=partial", "replicate"))
        local _, column = holdings.part(width, world, spl.rank())
        assert.equal(4 * mine * (width - column), bytes("tp=shard(1)", "tp=shard(2)"))
        assert.equal(0, bytes("replicate", "tp=shard(1)"))
        assert.equal(0, bytes("replicate", "tp=partial"))
    end)

    it("keeps integers, booleans and small floats as they are", function()
        local mesh <close> = spl.mesh("tp=*")
        for _, dtype in ipairs { "f32", "bf16", "i64", "i32", "u8", "bool" } do
            local global = {}
            for i = 1, 7 * 5 do
                if dtype == "bool" then global[i] = i % 3 == 0 else global[i] = i end
            end
            local t <close> = spl.tensor { shape = { 7, 5 }, dtype = dtype, mesh = mesh, layout = "tp=shard(1)" }
            t:set(global)
            local moved <close> = t:redistribute("tp=shard(2,striped)")
            local all <close> = moved:gather()
            assert.same(global, all:flat())
        end
    end)

    it("finishes sums over several axes: rounded once, and no part is sent again for each axis", function()
        if world % 2 == 1 then return end
        local mesh <close> = spl.mesh("a=2, b=*")
        local b, n = world // 2, 16 * world
        local targets = { -- sent by reductions along the first axis and the others, by gathers; in parts of n / world
            [""] = { b, b - 1, (b - 1) + b },
            ["a=shard(1)"] = { b, b - 1, b - 1 },
            ["b=shard(1)"] = { (b - 1) * 2, 1, 1 },
            ["a=shard(1), b=shard(1)"] = { b, b - 1, 0 },
        }
        for _, layout in ipairs { "", "a=shard(1)", "b=shard(1)", "a=shard(1), b=shard(1)" } do
            for _, dtype in ipairs { "bf16", "f16", "f32", "f64" } do
                local big, sent = dtype == "bf16" and 256 or 2048, targets[layout]
                local x <close> = spl.tensor { shape = { n }, mesh = mesh, layout = "a=partial, b=partial",
                    dtype = dtype }
                local mine = {}
                for i = 1, n do mine[i] = spl.rank() == 0 and big or 1 end -- big + 1 has a bit too many for the dtype
                x:set_local(mine)
                spl.reset_counters()
                local y <close> = x:redistribute(layout)
                local half = dtype == "bf16" or dtype == "f16"
                local size = ({ f32 = 4, f64 = 8 })[dtype] or 2
                local first = b == 1 and sent[1] + sent[2] or sent[1] -- an axis of one rank sums nothing
                assert.equal(n // world * (first * size + (sent[1] + sent[2] - first) * (half and 4 or size)
                    + sent[3] * size), spl.counters().bytes.total, layout .. " " .. dtype)
                if half then
                    local exact <close> = spl.tensor { shape = { n } }:fill(big + world - 1)
                    local want <close> = exact:cast(dtype)
                    local all <close> = y:gather()
                    assert.is_true(want:to_bytes() == all:to_bytes(), layout .. " " .. dtype)
                end
            end
        end
    end)

    it("takes views as they lie", function()
        local mesh <close> = spl.mesh("tp=*")
        local t <close> = spl.tensor { shape = { 6, 9 }, dtype = "f64", mesh = mesh, layout = "tp=shard(2)" }
        t:iota()
        local turned <close> = t:transpose(1, 2)
        local moved <close> = turned:redistribute("tp=shard(2)")
        local all <close> = moved:gather()
        for i = 1, 9 do
            for j = 1, 6 do assert.equal((j - 1) * 9 + i - 1, all:item(i, j)) end
        end
    end)

    it("moves nothing where nothing changes, into memory of its own", function()
        local mesh <close> = spl.mesh("dp=1, tp=*")
        local t <close> = spl.ones { shape = { 5 }, mesh = mesh, layout = "tp=shard(1)" }
        local before = spl.live().storages
        spl.reset_counters()
        local same <close> = t:redistribute("tp=shard(1), dp=partial")
        assert.equal(0, spl.counters().bytes.total)
        assert.equal(before + 1, spl.live().storages)
        same:fill(7)
        assert.equal(5, t:sum())
        assert.equal(35, same:redistribute("tp=shard(1)"):sum())
    end)

    it("refuses layouts of another mesh or shape, alike on all ranks, and goes on", function()
        local mesh <close> = spl.mesh("tp=*")
        local other <close> = spl.mesh("cp=*")
        local t <close> = spl.ones { shape = { 5, 2 }, mesh = mesh, layout = "tp=shard(1)" }
        local wrong_mesh, wrong_shape = spl.layout("cp=shard(1)", other, { 5, 2 }), spl.layout("", mesh, { 2, 5 })
        for _, bad in ipairs { "cp=shard(1)", wrong_mesh, wrong_shape, 7 } do
            local ok, err = pcall(t.redistribute, t, bad)
            assert.is_false(ok)
            assert.equal("argument", err.code)
        end
        local alone <close> = spl.ones { shape = { 5 } }
        local ok, err = pcall(alone.redistribute, alone, "tp=shard(1)")
        assert.is_false(ok)
        assert.matches("one rank alone", err.message)
        assert.equal(10, t:sum())
    end)
end)
