-- tensor_spec.lua: tensors of one rank: values in and out, views, printing, errors, and that nothing is left behind.
local spl = require "spl"

local function refused(pattern, code, f, ...)
    local ok, err = pcall(f, ...)
    assert.is_false(ok)
    assert.equal(code, err.code)
    assert.matches(pattern, err.message)
end

describe("a tensor of this rank alone", function()
    local live
    before_each(function()
        collectgarbage()
        live = spl.live().total
    end)
    after_each(function()
        collectgarbage()
        collectgarbage()
        assert.equal(live, spl.live().total)
    end)

    it("has fields", function()
        local t = spl.tensor { shape = { 2, 3 }, dtype = "f64" }
        assert.same({ 2, 3 }, t.shape)
        assert.same({ 2, 3 }, t.local_shape)
        assert.equal("f64", t.dtype)
        assert.equal(2, t.ndim)
        assert.equal(6, t.count)
        assert.equal(6, t.local_count)
        assert.equal(48, t.bytes)
        assert.is_nil(t.mesh)
        assert.is_nil(t.layout)
    end)

    it("carries values of every dtype", function()
        for _, dtype in ipairs { "f64", "f32", "bf16", "f16", "i64", "i32", "u8" } do
            local t = spl.from_table({ { 1, 2, 3 }, { 4, 5, 6 } }, dtype)
            assert.equal(dtype, t.dtype)
            assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, t:to_table())
            assert.same({ 1, 2, 3, 4, 5, 6 }, t:flat())
        end
        assert.same({ true, false, true }, spl.from_table({ true, false, 1 }, "bool"):flat())
        assert.equal(math.type(spl.from_table({ 3 }, "i64"):item()), "integer")
        local big = 9007199254740993
        assert.equal(big, spl.from_table({ big }, "i64"):item())
    end)

    it("is made of nested tables or of a shape and data", function()
        local t = spl.from_table { shape = { 3, 2 }, data = { 1, 2, 3, 4, 5, 6 } }
        assert.same({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, t:to_table())
        assert.same({ 2, 0 }, spl.from_table({ {}, {} }).shape)
        assert.same({ 0 }, spl.from_table({}).shape)
        assert.same({ { { 1 } }, { { 2 } } }, spl.from_table({ { { 1 } }, { { 2 } } }):to_table())
    end)

    it("is filled by set, fill, iota, zeros and ones", function()
        local t = spl.tensor { shape = { 2, 2 }, dtype = "i32" }
        assert.same({ 0, 1, 2, 3 }, t:iota():flat())
        assert.same({ 7, 7, 7, 7 }, t:fill(7):flat())
        assert.same({ 4, 3, 2, 1 }, t:set({ 4, 3, 2, 1 }):flat())
        assert.same({ 1, 2, 3, 4 }, t:set({ { 1, 2 }, { 3, 4 } }):flat())
        assert.same({ 9, 8, 7, 6 }, t:set(spl.from_table({ { 9, 8 }, { 7, 6 } }, "f64")):flat())
        assert.same({ 0, 0 }, spl.zeros { shape = { 2 } }:flat())
        assert.same({ 1, 1 }, spl.ones { shape = { 2 }, dtype = "u8" }:flat())
    end)

    it("draws the same numbers from the same seed and instance, others from others", function()
        local function draw(seed, instance) return spl.tensor { shape = { 100 } }:randn(seed, instance):to_bytes() end
        assert.equal(draw(3, 1), draw(3, 1))
        assert.not_equal(draw(3, 1), draw(3, 2))
        assert.not_equal(draw(3, 1), draw(4, 1))
        local t = spl.tensor { shape = { 20000 }, dtype = "f64" }:randn(5)
        assert.is_true(math.abs(t:sum() / 20000) < 0.03)
        assert.is_true(math.abs(t:norm() ^ 2 / 20000 - 1) < 0.05)
        local u = spl.tensor { shape = { 20000 }, dtype = "f64" }:uniform(5, 0, -2, 6)
        assert.is_true(math.abs(u:sum() / 20000 - 2) < 0.1)
        for _, v in ipairs(u:flat()) do assert.is_true(v >= -2 and v < 6) end
    end)

    it("has a sum, a norm, a largest and statistics", function()
        local t = spl.from_table({ { 3, -4 }, { 0, 12 } }, "f64")
        assert.equal(13, t:norm())
        assert.equal(11, t:sum())
        assert.equal(12, t:max_abs())
        assert.same({ sum = 11, sum_squares = 169, max_abs = 12, nan = 0, inf = 0 }, t:stats())
        local bad = spl.from_table({ 1, 0 / 0, 1 / 0 }, "f64")
        assert.equal(1, bad:stats().nan)
        assert.equal(1, bad:stats().inf)
        assert.is_true(bad:norm() ~= bad:norm())
        assert.equal(0, spl.tensor { shape = { 0 } }:sum())
    end)

    it("gives views that share memory", function()
        local t = spl.from_table({ { 1, 2, 3 }, { 4, 5, 6 } }, "f64")
        local right = t:narrow(2, 2, 2)
        assert.same({ { 2, 3 }, { 5, 6 } }, right:to_table())
        right:fill(0)
        assert.same({ { 1, 0, 0 }, { 4, 0, 0 } }, t:to_table())
        assert.same({ { 1, 4 }, { 0, 0 }, { 0, 0 } }, t:transpose(1, 2):to_table())
        assert.same({ { 1, 0 }, { 0, 4 }, { 0, 0 } }, t:reshape({ 3, 2 }):to_table())
        assert.same({ 1, 4, 0, 0, 0, 0 }, t:transpose(1, 2):reshape({ 6 }):to_table())
        t:release()
        assert.same({ { 0, 0 }, { 0, 0 } }, right:to_table())
    end)

    it("is cloned and cast into memory of its own", function()
        local t = spl.from_table({ { 1.5, 2 }, { 3, 4 } }, "f64")
        local c = t:transpose(1, 2):clone()
        t:fill(0)
        assert.same({ { 1.5, 3 }, { 2, 4 } }, c:to_table())
        assert.same({ { 1.5, 3 }, { 2, 4 } }, c:cast("f32"):to_table())
        assert.same({ { 1, 3 }, { 2, 4 } }, c:cast("i64"):to_table())
    end)

    it("gives single items", function()
        local t = spl.from_table({ { 1, 2, 3 }, { 4, 5, 6 } }, "f64")
        assert.equal(6, t:item(2, 3))
        assert.equal(3, t:transpose(1, 2):item(3, 1))
        assert.equal(7, spl.from_table({ { 7 } }):item())
        refused("6 elements", "argument", t.item, t)
        refused("index 2 is 4", "argument", t.item, t, 1, 4)
        refused("1 indices", "argument", t.item, t, 1)
    end)

    it("says where it lies", function()
        assert.same({ { { start = 1, length = 2, stride = 1 } }, {} }, spl.tensor { shape = { 2, 0 } }:where())
    end)

    it("is printed with its kind and a corner of its values", function()
        assert.equal("tensor f32 [2, 3], local\n{{1, 2, 3},\n {4, 5, 6}}", tostring(spl.from_table({ { 1, 2, 3 }, { 4, 5, 6 } })))
        local big = tostring(spl.tensor { shape = { 50, 60, 70 }, dtype = "i32" }:iota())
        assert.is_true(#big < 400)
        assert.matches("%[50, 60, 70%]", big)
        assert.matches("%.%.%.", big)
        assert.equal("tensor f32 [0], local\n{}", tostring(spl.tensor { shape = { 0 } }))
        local t = spl.tensor { shape = { 1 } }
        t:release()
        assert.equal("tensor (released)", tostring(t))
    end)

    it("is released once, however often it is asked", function()
        local t <close> = spl.tensor { shape = { 1000 } }
        assert.equal(live + 2, spl.live().total) -- a tensor and its storage
        t:release()
        assert.equal(live, spl.live().total)
        t:release()
        refused("released", "released", function() return t.shape end)
        refused("released", "released", t.flat, t)
        refused("argument 'x'.*released", "released", spl.linear, t, t)
        local mt = getmetatable(t)
        mt.__gc(t)
    end)

    it("names what is wrong with an option", function()
        refused("did you mean 'shape'", "argument", spl.tensor, { shap = { 1 } })
        refused("'shape': a list of sizes", "argument", spl.tensor, {})
        refused("size 2 is %-1", "argument", spl.tensor, { shape = { 1, -1 } })
        refused("size 1 is 1.5", "argument", spl.tensor, { shape = { 1.5 } })
        refused("no dtype 'f31'.*f32", "argument", spl.tensor, { shape = { 1 }, dtype = "f31" })
        refused("needs a mesh", "argument", spl.tensor, { shape = { 1 }, layout = "tp=shard(1)" })
        refused("7 dimensions", "argument", spl.tensor, { shape = { 1, 1, 1, 1, 1, 1, 1 } })
        refused("a table such as", "argument", spl.tensor, 5)
    end)

    it("names what is wrong with values", function()
        local t = spl.tensor { shape = { 2, 2 }, dtype = "i64" }
        refused("3 values where the tensor has 4", "argument", t.set, t, { 1, 2, 3 })
        refused("3 entries where dimension 2", "argument", t.set, t, { { 1, 2 }, { 1, 2, 3 } })
        refused("value 2 is 1.5, which is not an integer", "argument", t.set, t, { 1, 1.5, 2, 3 })
        refused("value 2 is one, which is not an integer", "argument", t.set, t, { { 1, "one" }, { 3, 4 } })
        refused("1 entries where dimension 2 has size 2", "argument", t.set, t, { { 1, 2 }, { 3 } })
        refused("a number where dimension 2 needs a table", "argument", t.set, t, { { 1, 2 }, 3 })
        refused("same global shape", "argument", t.set, t, spl.tensor { shape = { 4 } })
        refused("entries where dimension 2", "argument", spl.from_table, { { 1, 2 }, { 3 } })
    end)

    it("names what is wrong with a view", function()
        local t = spl.tensor { shape = { 2, 3 } }
        refused("dimension 3 of a tensor of 2", "argument", t.narrow, t, 3, 1, 1)
        refused("do not fit dimension 2 of size 3", "argument", t.narrow, t, 2, 3, 2)
        refused("do not fit", "argument", t.narrow, t, 2, 0, 1)
        refused("7 elements for a tensor of 6", "argument", t.reshape, t, { 7 })
        refused("is needed, got 'one'", "argument", t.narrow, t, "one", 1, 1)
    end)

    it("has no length, and says what to use instead", function()
        refused("%.count", "argument", function() return #spl.tensor { shape = { 1 } } end)
    end)

    it("names the nearest field and method, and lets none be set", function()
        local t = spl.tensor { shape = { 1 } }
        refused("did you mean 'shape'", "argument", function() return t.shpe end)
        refused("did you mean 'randn'", "argument", function() return t:rand(1) end)
        refused("cannot be set", "argument", function() t.shape = { 2 } end)
    end)

    it("refuses sizes that overflow or do not fit memory, and goes on", function()
        refused(".", "memory", spl.tensor, { shape = { 1 << 40, 1 << 40 } })
        refused("bytes", "memory", spl.tensor, { shape = { 1 << 45 } })
        assert.same({ 0 }, spl.zeros { shape = { 1 } }:flat())
    end)

    it("lets Lua's collector free memory it cannot see", function()
        for _ = 1, 60 do spl.tensor { shape = { 4 << 20 } } end -- 60 x 16 MiB, nothing kept
        assert.is_true(spl.memory().now.activations < 600 << 20)
    end)

    it("does not want to be another kind of object", function()
        local m <close> = spl.mesh("tp=*")
        refused("a tensor is needed, got spl.mesh", "argument", spl.add, m, m)
        refused("a tensor is needed, got nil", "argument", spl.add, nil, nil)
    end)
end)

describe("ops on tensors of one rank", function()
    it("linear: y = act(x w^T + bias)", function()
        local x = spl.from_table({ { 1, 2 }, { 3, 4 } }, "f64")
        local w = spl.from_table({ { 1, 0 }, { 0, 1 }, { 1, 1 } }, "f64")
        local b = spl.from_table({ 10, 20, 30 }, "f64")
        assert.same({ { 11, 22, 33 }, { 13, 24, 37 } }, spl.linear(x, w, b):to_table())
        assert.same({ { 1, 2, 3 }, { 3, 4, 7 } }, spl.linear(x, w):to_table())
        local silu = spl.linear(x, w, nil, "silu"):item(1, 1)
        assert.is_true(math.abs(silu - 1 / (1 + math.exp(-1))) < 1e-12)
        refused("act = 'tanh'.*gelu_tanh", "argument", spl.linear, x, w, nil, "tanh")
        refused("last dimension of x must be 3", "argument", spl.linear, x, spl.from_table({ { 1, 2, 3 } }, "f64"))
    end)

    it("norm: rows of mean 0 and variance 1, with its statistics", function()
        local x = spl.from_table({ { 1, 3 } }, "f64")
        local gamma, beta = spl.from_table({ 2, 2 }, "f64"), spl.from_table({ 0, 1 }, "f64")
        local y, mean, rstd = spl.norm(x, gamma, beta, "layer", 0)
        assert.same({ { -2, 3 } }, y:to_table())
        assert.equal(2, mean:flat()[1])
        assert.equal(1, rstd:flat()[1])
        local z, _, r = spl.norm(spl.from_table({ { 3, 4 } }, "f64"), gamma, nil, "rms", 0)
        assert.is_true(math.abs(r:flat()[1] - 1 / math.sqrt(12.5)) < 1e-15)
        assert.is_true(math.abs(z:item(1, 1) - 6 / math.sqrt(12.5)) < 1e-14)
    end)

    it("embed, nll and add", function()
        local ids = spl.from_table({ { 2, 0 } }, "i64")
        local rows = spl.embed(ids, spl.from_table({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, "f64"))
        assert.same({ { { 5, 6 }, { 1, 2 } } }, rows:to_table())
        assert.same({ { { 10, 12 }, { 2, 4 } } }, spl.add(rows, rows):to_table())
        local logits = spl.from_table({ { { 0, 0, 0 }, { 0, 0, 0 } } }, "f64")
        local nll = spl.nll(logits, spl.from_table({ { 1, -1 } }, "i64")):flat()
        assert.is_true(math.abs(nll[1] - math.log(3)) < 1e-15)
        assert.equal(0, nll[2])
    end)

    it("rng_key makes other keys of other instances and steps", function()
        local seen = {}
        for instance = 0, 3 do
            for step = 0, 3 do
                local a, b = spl.rng_key(1, instance, step)
                local key = a .. ":" .. b
                assert.is_nil(seen[key])
                seen[key] = true
            end
        end
    end)
end)
