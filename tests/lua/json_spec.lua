-- JSON: numbers keep their value, whole ones their type; errors name what was read.
local json = require "spl.json"
local core = require "spl.core"

describe("json", function()
    it("keeps whole numbers as integers and others as floats", function()
        local v = json.decode '[1, -2, 9007199254740992, 0.5, 1e-5, 2.0, 1e3]'
        for _, i in ipairs{ 1, 2, 3, 6, 7 } do assert.equal("integer", math.type(v[i]), "element " .. i) end
        assert.same({ 1, -2, 9007199254740992, 0.5, 1e-5, 2, 1000 }, v)
        assert.equal("integer", math.type(json.decode '{"a": {"b": [7]}}'.a.b[1]))
    end)

    it("writes floats so that they read back as the same number", function()
        for _, x in ipairs{ 0.1, 1 / 3, 2 / 3, 1e300, 5e-324, 123456789.123456789, -0.45734623699803323 } do
            local text = json.encode{ x = x }
            assert.equal(x, tonumber(text:match ':(.*)}'), text)
        end
        assert.equal('{"x":0.1}', json.encode{ x = 0.1 })
    end)

    it("writes keys in the order asked for, the rest sorted", function()
        local text = json.encode({ b = 1, a = 2, tokens = 3, mean_nll = 4 }, { "tokens", "mean_nll", "absent" })
        assert.equal('{"tokens":3,"mean_nll":4,"a":2,"b":1}', text)
    end)

    it("tells lists, objects and null", function()
        assert.equal('[[1,2],[],{},null,null,true]',
            json.encode{ { 1, 2 }, json.array(), {}, json.null, 0 / 0, true })
        assert.equal(json.null, json.decode '[null]'[1])
        assert.equal('{"1":"x"}', json.encode(json.object{ ["1"] = "x" }))
    end)

    it("escapes what must be escaped", function()
        local s = "a\"\\\n\t\0\1é\127"
        assert.equal(s, json.decode(json.encode{ s })[1])
    end)

    it("names what is not JSON", function()
        for _, text in ipairs{ "", "{", "[1,]", "[nan]", "[NaN]", "[0x10]", "[01]", "{} x", "[Infinity]" } do
            local good, e = pcall(json.decode, text, "settings.json")
            assert.is_false(good, text)
            assert.equal("format", e.code)
            assert.matches("^settings%.json: not valid JSON", e.message)
        end
    end)

    it("gives nil, message, code for a file that cannot be read", function()
        local value, message, code = json.read "/nonexistent/x.json"
        assert.is_nil(value)
        assert.matches("/nonexistent/x.json", message, 1, true)
        assert.equal("io", code)
        assert.is_nil((json.read "/"))
    end)

    it("refuses what JSON cannot hold", function()
        local loop = {}
        loop[1] = loop
        for _, value in ipairs{ loop, { print }, { [2] = 1 } } do
            local good, e = pcall(json.encode, value)
            assert.is_false(good)
            assert.equal("argument", e.code)
        end
    end)
end)

describe("a file that is read whole", function()
    it("must be a regular one, within a size", function()
        local fifo = os.tmpname()
        os.remove(fifo)
        assert(os.execute(("mkfifo '%s'"):format(fifo)))
        for path, kind in pairs { ["/dev/zero"] = "device", ["/"] = "directory", [fifo] = "fifo" } do
            local text, message, code = json.read(path)
            assert.same({ nil, "io" }, { text, code })
            assert.matches("cannot read " .. path .. ": this is a " .. kind, message, 1, true)
        end
        os.remove(fifo)
        local path = os.tmpname()
        local file = assert(io.open(path, "wb"))
        file:write(("x"):rep(200000))
        file:close()
        assert.equal(200000, #core.read_file(path, 200000))
        local text, message, code = core.read_file(path, 199999)
        os.remove(path)
        assert.same({ nil, "io" }, { text, code })
        assert.matches("larger than 199999 bytes", message)
        assert.matches("^cannot open .*: No such file", (select(2, json.read(path))))
    end)
end)
