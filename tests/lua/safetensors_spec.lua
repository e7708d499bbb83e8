-- Weight files as scripts see them: reading, loading into tensors (unaligned and converted too), what is refused.
local spl = require "spl"
local plain = require "tests.support.plain_llama"

local function with_file(bytes, run)
    local path = os.tmpname()
    plain.write_file(path, bytes)
    local good, problem = pcall(run, path)
    os.remove(path)
    if not good then error(problem, 0) end
end

local function refused(bytes, code, ...)
    local words = { ... }
    with_file(bytes, function(path)
        local good, e = pcall(spl.safetensors.open, path)
        assert.is_false(good)
        assert.equal(code, e.code)
        assert.matches(path, e.message, 1, true)
        for _, word in ipairs(words) do assert.matches(word, e.message, 1, true) end
    end)
end

local function pack(format, ...)
    local out = {}
    for i, v in ipairs{ ... } do out[i] = string.pack("<" .. format, v) end
    return table.concat(out)
end

-- Every dtype, with data that starts at an odd byte.
local function sample()
    return plain.safetensors({
        { "f64", "F64", { 2 }, pack("d", 0.1, -2) }, { "f32", "F32", { 2, 3 }, pack("f", 1, 2, 3, 4, 5, 6) },
        { "bf16", "BF16", { 3 }, pack("I2", 0x3f80, 0xc040, 0x7f80) },
        { "f16", "F16", { 5 }, pack("I2", 0x3c00, 0xc200, 0x0001, 0x7c00, 0x03ff) },
        { "i64", "I64", { 1 }, pack("i8", -2^53 | 0) }, { "i32", "I32", { 2 }, pack("i4", -7, 7) },
        { "u8", "U8", { 2 }, "\0\255" }, { "bool", "BOOL", { 2 }, "\0\1" }, { "scalar", "F32", {}, pack("f", 42) },
        { "empty", "F32", { 3, 0 }, "" },
    }, "x")
end

describe("a safetensors file", function()
    it("gives names, dtypes and shapes", function()
        with_file(sample(), function(path)
            local file <close> = spl.safetensors.open(path)
            local names = file:names()
            table.sort(names)
            assert.same({ "bf16", "bool", "empty", "f16", "f32", "f64", "i32", "i64", "scalar", "u8" }, names)
            assert.same({ dtype = "f32", shape = { 2, 3 } }, file:info "f32")
            assert.same({ dtype = "f32", shape = {} }, file:info "scalar")
            assert.is_nil(file:info "other")
            assert.matches("10 tensors", tostring(file))
        end)
    end)

    it("gives values of each dtype as tables", function()
        with_file(sample(), function(path)
            local file <close> = spl.safetensors.open(path)
            assert.same({ 0.1, -2 }, file:table "f64")
            assert.same({ { 1, 2, 3 }, { 4, 5, 6 } }, file:table "f32")
            assert.same({ 1, -3, math.huge }, file:table "bf16")
            assert.same({ 1, -3, 2^-24, math.huge, 1023 * 2^-24 }, file:table "f16")
            assert.same({ math.tointeger(-2^53) }, file:table "i64")
            assert.same({ -7, 7 }, file:table "i32")
            assert.same({ 0, 255 }, file:table "u8")
            assert.same({ false, true }, file:table "bool")
            assert.equal(42, file:table "scalar")
            assert.same({}, file:table "empty")
        end)
    end)

    it("loads into tensors, converting, from any byte", function()
        with_file(sample(), function(path)
            local file <close> = spl.safetensors.open(path)
            for name, wanted in pairs{ f64 = { 0.1, -2 }, f32 = { 1, 2, 3, 4, 5, 6 }, i32 = { -7, 7 } } do
                local t <close> = spl.tensor{ shape = file:info(name).shape, dtype = "f64" }
                assert.same(wanted, file:load(name, t):flat())
            end
            for _, name in ipairs{ "f16", "bf16" } do
                local t <close> = spl.tensor{ shape = file:info(name).shape, dtype = "f32" }
                assert.same(file:table(name), file:load(name, t):flat())
            end
            local none <close> = spl.tensor{ shape = { 3, 0 } }
            file:load("empty", none)
        end)
    end)

    it("takes each rank's part of a distributed tensor", function()
        with_file(sample(), function(path)
            local file <close> = spl.safetensors.open(path)
            local mesh <close> = spl.mesh "tp=*"
            local t <close> = spl.tensor{ shape = { 2, 3 }, mesh = mesh, layout = "tp=shard(2)" }
            assert.same({ 1, 2, 3, 4, 5, 6 }, file:load("f32", t):flat())
        end)
    end)

    it("names both shapes where they differ", function()
        with_file(sample(), function(path)
            local file <close> = spl.safetensors.open(path)
            for _, shape in ipairs{ { 3, 2 }, { 6 }, { 2, 3, 1 } } do
                local t <close> = spl.tensor{ shape = shape }
                local good, e = pcall(file.load, file, "f32", t)
                assert.is_false(good)
                assert.equal("format", e.code)
                assert.matches("'f32'", e.message)
                assert.matches("[2, 3]", e.message, 1, true)
                assert.matches("[" .. table.concat(shape, ", ") .. "]", e.message, 1, true)
            end
            local t <close> = spl.tensor{ shape = { 1 } }
            local good, e = pcall(file.load, file, "other", t)
            assert.is_false(good)
            assert.matches("'other'", e.message)
        end)
    end)

    it("that is not there is nil, message, code, or an error where it is required", function()
        local file, message, code = spl.safetensors.open "/nonexistent/model.safetensors"
        assert.is_nil(file)
        assert.matches("/nonexistent/model.safetensors", message, 1, true)
        assert.equal("io", code)
        local good, e = pcall(spl.safetensors.require, "/nonexistent/model.safetensors")
        assert.is_false(good)
        assert.equal("io", e.code)
    end)

    it("can be released twice, and then refuses use", function()
        with_file(sample(), function(path)
            local file = spl.safetensors.open(path)
            file:release()
            file:release()
            local good, e = pcall(file.names, file)
            assert.is_false(good)
            assert.equal("released", e.code)
            assert.matches("released", tostring(file))
        end)
    end)

    it("is refused where it is damaged", function()
        local whole = plain.safetensors{ { "w.a", "F32", { 2 }, pack("f", 1, 2) },
                                         { "w.b", "F32", { 1 }, pack("f", 3) } }
        refused(whole:sub(1, -2), "format", "'w.b'", "truncated")
        refused(whole:sub(1, 40), "format", "truncated")
        refused("", "format", "0 bytes")
        refused(string.pack("<I8", 1 << 40) .. "{}", "format", "limit")
        refused("\16\0\0\0\0\0\0\0{}", "format", "truncated")
        refused(whole:gsub('"F32"', '"F33"', 1), "unsupported", "'F33'", "F32")
        local header = [[{"w.a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},]]
            .. [["w.b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}]]
        refused(string.pack("<I8", #header) .. header .. "abc", "format", "'w.a'", "'w.b'", "overlap")
    end)

    it("is an error where someone cuts it short after it was opened", function()
        local many = {}
        for i = 1, 40000 do many[i] = i end
        local whole = plain.safetensors{ { "w.a", "F32", { #many }, pack("f", table.unpack(many, 1, 200)) ..
            ("\0"):rep(4 * (#many - 200)) } }
        with_file(whole, function(path)
            local file = spl.safetensors.open(path)
            local t <close> = spl.tensor{ shape = { #many } }
            file:load("w.a", t)
            file:release()
            file = spl.safetensors.open(path)
            local cut = assert(io.open(path, "wb"))
            cut:write(whole:sub(1, 200))
            cut:close()
            for _, use in ipairs{ function() file:load("w.a", t) end, function() file:table "w.a" end } do
                local good, e = pcall(use)
                assert.is_false(good)
                assert.equal("io", e.code)
                assert.matches("cut short", e.message)
            end
            file:release()
        end)
    end)

    it("must be a regular file", function()
        for _, path in ipairs{ "/dev/zero", "/" } do
            local file, message, code = spl.safetensors.open(path)
            assert.same({ nil, "io" }, { file, code })
            assert.matches("not a regular file", message)
        end
    end)

    it("says what a wrong call needs", function()
        for _, call in ipairs{ { spl.safetensors.open, 1 }, { spl.safetensors.require, {} } } do
            local good, e = pcall(call[1], call[2])
            assert.is_false(good)
            assert.equal("argument", e.code)
            assert.matches("a string", e.message)
        end
    end)
end)
