-- lifetime_spec.lua: what a call uses stays alive while it runs, though finalizers and metamethods release it; and many
-- tiny tensors are collected as large ones are.
local mpi = require "mpi"
local spl = require "spl"

-- Calls use(victim) again and again, while a finalizer that runs at any allocation releases the victim; each result
-- must be right, or the error of a released object.
local function under_release(make, use, right)
    local was = collectgarbage "generational"
    local finished, refused = 0, 0
    local ok, message = pcall(function()
        for round = 1, 300 do
            local victim = make()
            local armed = { skip = round % 7 }
            local function arm()
                setmetatable({}, { __gc = function()
                    if not armed then return end
                    if armed.skip > 0 then
                        armed.skip = armed.skip - 1
                        arm()
                    else
                        victim:release()
                    end
                end })
            end
            arm()
            for _ = 1, round % 50 do local _ = { {} } end -- so that the next allocation is at another place each time
            local good, result = pcall(use, victim)
            armed = nil
            if good then
                finished = finished + 1
                assert(right(result), "a wrong value came out of a call whose tensor was released meanwhile")
            else
                refused = refused + 1
                assert(type(result) == "table" and result.code == "released", tostring(result))
            end
            victim:release()
        end
    end)
    collectgarbage(was)
    assert(ok, message)
    assert.is_true(finished > 0)
end

local function ones() return spl.ones { shape = { 64, 1024 } } end

describe("a tensor that a finalizer releases during a call", function()
    local uses = {
        clone = { function(t) return t:clone() end, function(c) return c:item(3, 5) == 1 end },
        to_bytes = { function(t) return t:to_bytes() end, function(b) return #b == 64 * 1024 * 4 end },
        flat = { function(t) return t:flat() end, function(f) return #f == 64 * 1024 and f[9] == 1 end },
        to_table = { function(t) return t:to_table() end, function(f) return f[64][1024] == 1 end },
        cast = { function(t) return t:cast "f64" end, function(c) return c:item(3, 5) == 1 end },
        contiguous = { function(t) return t:transpose(1, 2):clone() end, function(c) return c:item(5, 3) == 1 end },
        reshape = { function(t) return t:reshape { 1024, 64 } end, function(c) return c:item(5, 3) == 1 end },
        norm = { function(t) return t:norm() end, function(n) return n == 256 end },
        set = { function(t) return spl.tensor { shape = { 64, 1024 } }:set(t) end, function(c)
            return c:item(64, 1024) == 1 end },
        compare = { function(t) return spl.compare(t, t) end, function(c) return c.ref_squares == 65536 end },
        add = { function(t) return spl.add(t, t) end, function(c) return c:item(2, 2) == 2 end },
        linear = { function(t) return spl.linear(t, t) end, function(c) return c:item(2, 2) == 1024 end },
        normalise = { function(t) return (spl.norm(t, nil, nil)) end, function(c) return c:item(2, 2) == 0 end },
        shape = { function(t) return t.shape end, function(s) return s[1] == 64 and s[2] == 1024 end },
        tostring = { tostring, function(s) return s:find "%[64, 1024%]" or s:find "released" end },
    }
    for name, use in pairs(uses) do
        it("is kept for it: " .. name, function() under_release(ones, use[1], use[2]) end)
    end

    it("is kept for it: fields of a block, a mesh", function()
        under_release(function() return spl.block { hidden = 8, heads = 2 } end, function(b) return b.config end,
            function(c) return c.hidden == 8 and c.dtype == "f32" end)
        under_release(function() return spl.mesh "a=1" end, function(m) return m.axes end,
            function(a) return a[1].name == "a" and a[1].size == 1 end)
    end)
end)

describe("options with metamethods", function()
    it("are read as plain tables: __index is not asked", function()
        local mesh = spl.mesh "tp=1:tensor"
        local asked = 0
        local options = setmetatable({ mesh = mesh, shape = { 4 } }, { __index = function(_, key)
            asked = asked + 1
            mesh:release()
            return key == "layout" and "tp=shard(1)" or nil
        end })
        local t = spl.tensor(options)
        assert.are.equal(0, asked)
        assert.are.equal("[4]", tostring(t.shape))
        assert.are.equal(4, t:fill(1):sum())
    end)
end)

describe("another type's metatable", function()
    it("does not make a tensor of a layout, or of a file", function()
        local t = spl.zeros { shape = { 2 } }
        local tensor_mt = debug.getmetatable(t)
        local others = { spl.layout("replicate", spl.mesh "a=1", { 2 }), spl.mesh "a=1",
            spl.block { hidden = 4, heads = 1 }, spl.regex.compile "a", io.tmpfile() }
        for _, other in ipairs(others) do
            local own = debug.getmetatable(other)
            debug.setmetatable(other, tensor_mt)
            local ok, err = pcall(t.norm, other)
            debug.setmetatable(other, own)
            assert.is_false(ok)
            assert.matches("a tensor is needed", tostring(err))
        end
    end)
end)

describe("an object whose finalizer a script took", function()
    it("is not called a fault of spl", function()
        local r = mpi.run(1, [[
            local spl = require "spl"
            debug.setmetatable(spl.zeros { shape = { 2 } }, nil)]])
        assert.same({ 1, "" }, { r.code, r.out })
        assert.matches("were never released: the script took __gc", r.err, 1, true)
    end)
end)

describe("tiny tensors", function()
    it("are collected before they pile up", function()
        local was = collectgarbage "incremental"
        collectgarbage("setpause", 1000)
        collectgarbage "collect"
        local before, most = spl.live().tensors, 0
        local t = spl.zeros { shape = { 1 } }
        for i = 1, 100000 do
            t:narrow(1, 1, 1)
            if i % 1000 == 0 then most = math.max(most, spl.live().tensors - before) end
        end
        collectgarbage("setpause", 200)
        collectgarbage(was)
        assert.is_true(most < 50000, most .. " tensors were alive")
    end)
end)
