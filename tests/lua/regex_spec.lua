-- spl.regex: Unicode matching, runs between bytes that are not UTF-8, and errors that point into the pattern.
local spl = require "spl"

local function matches(pattern, text, flags)
    local spans, out = spl.regex.compile(pattern, flags):spans(text), {}
    for i = 1, #spans, 2 do out[#out + 1] = text:sub(spans[i], spans[i + 1]) end
    return out
end

describe("regex", function()
    it("knows letters, digits and spaces of all scripts", function()
        assert.same({ "Größe", "序列", "слово" }, matches([[\p{L}+]], "Größe 12 序列, слово"))
        assert.same({ "١", "Ⅷ", "7" }, matches([[\p{N}]], "١ Ⅷ x 7"))
        assert.same({ "\u{3000}", " \t" }, matches([[\s+]], "a\u{3000}b \tc"))
    end)

    it("looks ahead", function()
        assert.same({ "  ", " ", "  " }, matches([[\s+(?!\S)|\s+]], "a   b  "))
    end)

    it("takes flags", function()
        assert.same({ "A", "a" }, matches("a", "A a", "i"))
        assert.same({ "a", "b" }, matches("^.", "a1\nb2", "m"))
        assert.same({ "a" }, matches("^.", "a1\nb2"))
    end)

    it("never matches across a byte that is not UTF-8, nor nothing", function()
        assert.same({ "a", "b" }, matches(".+", "a\xffb"))
        assert.same({ "a", "b" }, matches(".+", "\xe5\xba" .. "a\xed\xa0\x80b\xf5"))
        assert.same({}, matches("x*", "abc"))
        assert.same({ "xx" }, matches("x*", "axxb"))
        assert.same({}, matches(".", "\xff\xfe"))
        assert.same({ "\0" }, matches([[\x00]], "a\0b"))
    end)

    it("takes time in proportion to the text", function()
        local re = spl.regex.compile [[\p{L}+|\s+]]
        local start = os.clock()
        assert.equal(400000, #re:spans(("ab "):rep(100000)))
        assert.is_true(os.clock() - start < 2)
    end)

    it("points at what is wrong in a pattern", function()
        local good, e = pcall(spl.regex.compile, "ab(c")
        assert.is_false(good)
        assert.equal("format", e.code)
        assert.matches("byte 5", e.message)
        for _, call in ipairs{ { 1 }, { "a", "q" }, { "a", 1 } } do
            good, e = pcall(spl.regex.compile, table.unpack(call))
            assert.is_false(good)
            assert.equal("argument", e.code)
        end
    end)

    it("can be released twice, and then refuses use", function()
        local re = spl.regex.compile "a"
        re:release()
        re:release()
        local good, e = pcall(re.spans, re, "a")
        assert.is_false(good)
        assert.equal("released", e.code)
    end)
end)
