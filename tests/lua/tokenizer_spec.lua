-- Tokenizers against ids that the Hugging Face library gives: byte-level and byte-fallback BPE, and what is refused.
local json = require "spl.json"
local tokenizer = require "spl.tokenizer"

local cases = assert(json.read "tests/golden/tokenizer_cases.json")

local function byte_level()
    return assert(json.read "tests/golden/byte_level_tokenizer.json")
end

local function byte_fallback()
    return assert(json.read "tests/golden/tokenizer_cases.json").byte_fallback.tokenizer
end

local function unhex(s)
    return (s:gsub("%x%x", function(h) return string.char(tonumber(h, 16)) end))
end

local function streamed(tok, ids)
    local next_text, out = tok:stream(), {}
    for _, id in ipairs(ids) do out[#out + 1] = next_text(id) end
    return table.concat(out)
end

local function refused(change, code, pattern)
    local spec = byte_level()
    change(spec)
    local good, e = pcall(tokenizer.new, spec, "tokenizer.json")
    assert.is_false(good)
    assert.equal(code, e.code, e.message)
    assert.matches("^tokenizer%.json: ", e.message)
    assert.matches(pattern, e.message)
end

describe("byte-level BPE", function()
    for _, variant in ipairs(cases.variants) do
        it("gives the library's ids: " .. variant.name, function()
            local spec = byte_level()
            spec.pre_tokenizer = variant.pre_tokenizer or spec.pre_tokenizer
            spec.model.ignore_merges = variant.ignore_merges
            local tok = tokenizer.new(spec)
            assert.is_true(#variant.cases > 0)
            for _, case in ipairs(variant.cases) do
                assert.same(case[2], tok:encode(case[1]), ("%q"):format(case[1]))
            end
        end)
    end

    it("keeps bytes that are not UTF-8, each as its symbol", function()
        local tok = tokenizer.new(byte_level())
        for _, case in ipairs(cases.invalid) do
            local text = unhex(case[1])
            assert.same(case[2], tok:encode(text), case[1])
            assert.equal(text, tok:decode(tok:encode(text)))
        end
    end)

    it("decodes to the bytes that were encoded, at once and as they come", function()
        local tok = tokenizer.new(byte_level())
        for _, text in ipairs{ "", " a  b\n", "序 🙂 é", "\xff\xfe\0", "I'm 12345 \u{2028}" } do
            local ids = tok:encode(text)
            assert.equal(text, tok:decode(ids))
            assert.equal(text, streamed(tok, ids))
        end
        local begin = tok:id "<|begin|>"
        assert.equal("<|begin|>a", tok:decode({ begin, tok:id "a" }, { special = true }))
        assert.equal("a", tok:decode{ begin, tok:id "a" })
    end)

    it("leaves the template out when asked", function()
        local tok = tokenizer.new(byte_level())
        assert.same({}, tok:encode("", { special = false }))
        assert.same({ tok:id "<|begin|>" }, tok:encode "")
    end)

    it("takes merges as strings and as pairs", function()
        local spec = byte_level()
        for i, merge in ipairs(spec.model.merges) do spec.model.merges[i] = merge[1] .. " " .. merge[2] end
        local case = cases.variants[1].cases[10]
        assert.same(case[2], tokenizer.new(spec):encode(case[1]))
    end)

    it("accepts text in normal form C and refuses what it would have to change", function()
        local spec = byte_level()
        spec.normalizer = { type = "NFC" }
        local tok, plain = tokenizer.new(spec), tokenizer.new(byte_level())
        assert.same(plain:encode "Größe 序 🙂 한", tok:encode "Größe 序 🙂 한")
        for _, text in ipairs{ "e\u{301}", "\u{212B}", "\u{1100}\u{1161}", "\u{FA0A}" } do
            local good, e = pcall(tok.encode, tok, text)
            assert.is_false(good, text)
            assert.equal("unsupported", e.code)
            assert.matches("normal form C", e.message)
        end
    end)
end)

describe("byte-fallback BPE", function()
    it("gives the library's ids", function()
        local tok = tokenizer.new(byte_fallback())
        for _, case in ipairs(cases.byte_fallback.cases) do
            assert.same(case[2], tok:encode(case[1]), ("%q"):format(case[1]))
        end
    end)

    it("keeps bytes that are not UTF-8, each as its token", function()
        local tok = tokenizer.new(byte_fallback())
        for _, case in ipairs(cases.byte_fallback.invalid) do
            local text = unhex(case[1])
            assert.same(case[2], tok:encode(text), case[1])
            assert.equal(text, tok:decode(case[2]))
            assert.equal(text, streamed(tok, case[2]))
        end
    end)

    it("decodes without the space that was put in front", function()
        local tok = tokenizer.new(byte_fallback())
        for _, text in ipairs{ "the rank", "  two spaces", "é序\n" } do
            assert.equal(text, tok:decode(tok:encode(text)))
            assert.equal(text, streamed(tok, tok:encode(text)))
        end
    end)

    it("joins unknown characters when fuse_unk is on, and names them when there is no unknown token", function()
        local spec = byte_fallback()
        spec.model.byte_fallback = false
        local tok = tokenizer.new(spec)
        local mark = tok:id "▁"
        assert.same({ 1, mark, 0, tok:id "h" }, tok:encode "xyzh")
        spec.model.fuse_unk = false
        assert.same({ 1, mark, 0, 0, 0, tok:id "h" }, tokenizer.new(spec):encode "xyzh")
        spec.model.unk_token = json.null
        local good, e = pcall(tokenizer.new(spec).encode, tokenizer.new(spec), "xyz")
        assert.is_false(good)
        assert.matches("no token for \"x\"", e.message)
    end)

    it("takes time in proportion to the text", function()
        local tok = tokenizer.new(byte_fallback())
        local function seconds(n)
            local text = ("the rank aaaa "):rep(n)
            local start = os.clock()
            tok:encode(text)
            return os.clock() - start
        end
        seconds(100)
        local small, large = seconds(1000), seconds(16000)
        assert.is_true(large < 64 * math.max(small, 0.01), ("%g s; 16 times as much %g s"):format(small, large))
    end)
end)

describe("a tokenizer that is not supported", function()
    it("is refused by the name of the part", function()
        refused(function(s) s.model.type = "WordPiece" end, "unsupported", "WordPiece")
        refused(function(s) s.normalizer = { type = "NFKC" } end, "unsupported", "NFKC")
        refused(function(s) s.pre_tokenizer = { type = "Whitespace" } end, "unsupported", "Whitespace")
        refused(function(s) s.decoder = { type = "CTC" } end, "unsupported", "CTC")
        refused(function(s) s.post_processor = { type = "BertProcessing" } end, "unsupported", "BertProcessing")
        refused(function(s) s.model.end_of_word_suffix = "</w>" end, "unsupported", "end_of_word_suffix")
        refused(function(s) s.model.dropout = 0.1 end, "unsupported", "dropout")
        refused(function(s) s.pre_tokenizer.pretokenizers[1].pattern.Regex = "[a-z&&[^b]]" end, "unsupported", "&&")
        refused(function(s) s.pre_tokenizer.pretokenizers[1].behavior = "Sideways" end, "unsupported", "Sideways")
    end)

    it("is refused when its contents make no sense", function()
        refused(function(s) s.model = nil end, "format", "model")
        refused(function(s) s.model.vocab = nil end, "format", "vocab")
        refused(function(s) s.model.vocab.a = -1 end, "format", '"a"')
        refused(function(s) s.model.merges[1] = { "a", "nowhere" } end, "format", '"nowhere"')
        refused(function(s) s.model.merges[1] = "abc" end, "format", "entry 1")
        refused(function(s) s.model.unk_token = "nowhere" end, "format", '"nowhere"')
        refused(function(s) s.model.byte_fallback = true end, "format", "<0x00>")
        refused(function(s) s.pre_tokenizer.pretokenizers[1].pattern.Regex = "(" end, "format", "parenthesis")
        refused(function(s) s.added_tokens[1].content = nil end, "format", "entry 1")
        refused(function(s) s.post_processor.processors[2].special_tokens = {} end, "format", "begin")
    end)

    it("is refused when its file is missing or broken", function()
        local tok, message, code = tokenizer.load "/nonexistent/tokenizer.json"
        assert.is_nil(tok)
        assert.matches("/nonexistent/tokenizer.json", message, 1, true)
        assert.equal("io", code)
    end)

    it("names an id that it does not have", function()
        local good, e = pcall(tokenizer.new(byte_level()).decode, tokenizer.new(byte_level()), { 99999 })
        assert.is_false(good)
        assert.matches("99999", e.message)
    end)
end)

describe("the tokenizer of a real model", function()
    local folder = (os.getenv "SPL_SHARED" or "../shared") .. "/models/stories260k/"

    it("gives the golden ids of a story", function()
        local golden = json.read(folder .. "golden.json")
        if not golden then return pending("no folder " .. folder) end
        local file <close> = assert(io.open(folder .. "story.txt", "rb"))
        local story = file:read "a"
        local tok = assert(tokenizer.load(folder .. "tokenizer.json"))
        assert.same(golden.tokens, tok:encode(story))
        assert.equal(story, tok:decode(golden.tokens))
        assert.equal(story, streamed(tok, golden.tokens))
        assert.equal(512, tok.size)
    end)
end)
