-- host_spec.lua: what every rank of a running job sees of itself and of the others.
local spl = require "spl"

describe("a rank", function()
    it("knows itself and the world", function()
        assert.is_true(spl.rank() >= 0 and spl.rank() < spl.size())
        local seen = {}
        for _, text in ipairs(spl.gather(tostring(spl.rank()))) do
            seen[#seen + 1] = math.tointeger(tonumber(text))
        end
        for i = 1, spl.size() do
            assert.equal(i - 1, seen[i])
        end
    end)

    it("agrees on the largest, the smallest and the sum", function()
        local r, n = spl.rank(), spl.size()
        local most, least = spl.max(r, -r), spl.min(r)
        assert.equal(n - 1, most)
        assert.equal(0, least)
        assert.equal("integer", math.type(most))
        assert.same({ n * (n - 1) // 2, n * 0.5 }, { spl.sum(r, 0.5) })
        assert.equal("float", math.type(spl.sum(0.5)))
    end)

    it("gets the same bits of a sum as every other", function()
        local sum = spl.sum(1 / (3 + spl.rank()), 1e300 * (spl.rank() % 2), -1e300 * (spl.rank() % 2))
        local bits = string.pack("d", sum)
        for _, other in ipairs(spl.gather(bits)) do
            assert.equal(bits, other)
        end
    end)

    it("gathers strings of any length, also empty and with zero bytes", function()
        local mine = ("\0x"):rep(spl.rank() * 700)
        local all = spl.gather(mine)
        assert.equal(spl.size(), #all)
        for i, text in ipairs(all) do
            assert.equal(("\0x"):rep((i - 1) * 700), text)
        end
    end)

    it("refuses what is no number", function()
        local ok, err = pcall(spl.max, "three")
        assert.is_false(ok)
        assert.equal("max: argument 'x': a number is needed, got 'three'", err.message)
        ok, err = pcall(spl.gather, 3)
        assert.is_false(ok)
        assert.equal("gather: argument 'text': a string is needed, got 3", err.message)
    end)

    it("waits for the others in a barrier", function()
        local path = os.tmpname()
        local shared = spl.gather(path)[1] -- rank 0's name on all
        if spl.rank() == spl.size() - 1 then
            local file = assert(io.open(shared, "w"))
            file:write("written")
            file:close()
        end
        spl.barrier()
        local file = assert(io.open(shared))
        assert.equal("written", file:read("a"))
        file:close()
        spl.barrier()
        os.remove(path)
    end)

    it("counts control traffic as no collective", function()
        spl.reset_counters()
        spl.barrier()
        spl.sum(1)
        spl.gather("x")
        local c = spl.counters()
        assert.equal(0, c.calls.total)
        assert.equal(0, c.bytes.total)
    end)
end)

describe("a call that does not match the others'", function()
    it("is an error on every rank that names both, and the ranks go on", function()
        if spl.size() == 1 then return pending("one rank") end
        spl.check_collectives(true)
        local ok, err
        if spl.rank() == 0 then
            ok, err = pcall(spl.barrier)
        else
            ok, err = pcall(spl.sum, 1)
        end
        assert.is_false(ok)
        assert.equal("disagree", err.code)
        assert.equal(4, err.exit)
        assert.matches("barrier", err.message, 1, true)
        assert.matches("host_spec.lua:", err.message, 1, true)
        assert.equal(spl.size(), spl.sum(1))
    end)
end)
