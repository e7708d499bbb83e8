-- mask_spec.lua: masks of any length, and what is refused; who sees whom is tested against brute force elsewhere.
local spl = require "spl"

local LONG = 1 << 40

local function refused(why, f, ...)
    local ok, err = pcall(f, ...)
    assert.is_false(ok)
    assert.matches(why, err.message, 1, true)
end

describe("masks", function()
    it("of any length are counted at once, or refused where the count is no integer", function()
        local n = 3000000000
        assert.equal(n // 2 * (n + 1), spl.mask "causal":pairs(n))
        assert.equal(8 * LONG - 28, spl.mask "window:8":pairs(LONG))
        for _, mask in ipairs { spl.mask "causal", spl.mask { seq = LONG, { kind = "full" } } } do
            refused("more of 1099511627776 keys than can be counted", mask.pairs, mask, LONG)
            assert.same({ 1, LONG }, mask:slices(LONG)[1].q)
        end
    end)

    it("of any length are checked at once: slices must not overlap", function()
        refused("slices 1 and 2 both show query 1 the same keys", spl.mask,
            { seq = LONG, { kind = "causal" }, { kind = "inverse-causal" } })
        spl.mask { seq = LONG, { q = { 2, LONG }, k = { 1, LONG - 1 }, kind = "causal" }, { kind = "inverse-causal" } }
        local documents = { seq = 200000 }
        for i = 1, 100000 do documents[i] = { q = { 2 * i - 1, 2 * i }, k = { 2 * i - 1, 2 * i } } end
        assert.equal(400000, spl.mask(documents):pairs(200000))
        documents[7].q = { 13, 15 }
        documents[7].k = { 1, 15 }
        refused("slices 7 and 8 both show query 15", spl.mask, documents)
    end)

    it("are refused where text or slices say nothing", function()
        refused("goes on behind a zero byte", spl.mask, "docs:2,2\0")
        refused("goes on behind a zero byte", spl.mask, "causal\0 or not")
        refused("no slice is given", spl.mask, { seq = 4 })
        local q = spl.tensor { shape = { 1, 4, 1, 2 } }:randn(1)
        refused("no slice is given", spl.attention, q, q, q, { mask = { seq = 4 } })
        refused("attention: 5 arguments were given; it takes at most 4", spl.attention, q, q, q, {}, { mask = "full" })
        refused("attention_tile: 5 arguments were given", spl.attention_tile, q, q, q, {}, {})
    end)
end)

describe("spl.attention_tile", function()
    it("counts the rows of its segments without going round", function()
        local q = spl.tensor { shape = { 1, 4, 1, 2 } }:randn(1)
        local all = { start = 1, length = math.maxinteger }
        refused("more rows than can be counted", spl.attention_tile, q, q, q,
            { queries = { all, all, { start = 1, length = 6 } }, seq = math.maxinteger })
        local last = { { start = math.maxinteger - 3, length = 4 } }
        local out = spl.attention_tile(q, q, q, { queries = last, keys = last, seq = math.maxinteger })
        assert.equal(0, spl.compare(out, (spl.attention(q, q, q))).max_abs)
    end)
end)
