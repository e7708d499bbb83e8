-- Models on several ranks: the same likelihoods and logits whatever the mesh, with sizes that the ranks do not divide.
local spl = require "spl"
local json = require "spl.json"
local model = require "spl.model"
local plain = require "tests.support.plain_llama"

local IDS = { 0, 3, 10, 7, 7, 1, 5, 9, 2, 4, 8 }

local function meshes()
    local list = { "tp=*:tensor", "tp=*:sequence", "dp=*:data", "a=1:data, b=*:sequence, c=1:tensor" }
    if spl.size() % 2 == 0 then
        list[#list + 1] = "dp=2:data, tp=*:sequence"
        list[#list + 1] = "dp=2:data, tp=*:tensor"
        list[#list + 1] = "a=2:tensor, b=*:sequence"
        list[#list + 1] = "a=2:sequence, b=*:tensor"
    end
    return list
end

-- A directory that rank 0 writes and all ranks see; removed when all are done with it.
local function with_model(m, options, run)
    local dir = spl.gather(spl.rank() == 0 and plain.folder() or "")[1]
    if spl.rank() == 0 then plain.write(m, dir, options) end
    spl.barrier()
    local good, problem = pcall(run, dir)
    spl.barrier()
    if spl.rank() == 0 then plain.remove(dir) end
    if not good then error(problem, 0) end
end

describe("a model on several ranks", function()
    for _, text in ipairs(meshes()) do
        it("gives the logits and likelihoods of a plain implementation: " .. text, function()
            for _, options in ipairs{ {}, { tied = true, qwen = true, seed = 3 }, { bias = true, seed = 4 } } do
                local m = plain.new(options)
                local wanted, nll = plain.logits(m, IDS), plain.nll(m, IDS)
                with_model(m, { shards = 2, dtype = "BF16" }, function(dir)
                    local mesh <close> = spl.mesh(text)
                    local loaded <close> = model.load(dir, mesh, { dtype = "f64" })
                    local hidden <close> = loaded:hidden(IDS)
                    for t, row in ipairs(wanted) do
                        for i, value in ipairs(loaded:row(hidden, t)) do
                            assert.is_true(math.abs(value - row[i]) < 1e-11, ("token %d, logit %d"):format(t, i))
                        end
                    end
                    local sum, count = loaded:score(IDS)
                    assert.equal(10, count)
                    assert.is_true(math.abs(sum - nll) < 1e-10)
                    loaded.logits_at_once = 3 * m.vocab -- in pieces, the last of one row: empty shards
                    assert.is_true(math.abs(loaded:score(IDS) - nll) < 1e-10)
                    assert.is_true(math.abs(loaded:score{ 0, 5 } - plain.nll(m, { 0, 5 })) < 1e-10)
                end)
            end
        end)
    end

    it("is refused alike on all ranks where one rank's part has a NaN", function()
        local m = plain.new()
        m.weights["lm_head.weight"].data[1] = 0 / 0 -- row 1: on the first rank alone
        with_model(m, nil, function(dir)
            local mesh <close> = spl.mesh "tp=*:tensor"
            local good, e = pcall(model.load, dir, mesh)
            assert.is_false(good)
            assert.equal("numeric", e.code)
            assert.matches("'lm_head.weight'", e.message, 1, true)
            for _, other in ipairs(spl.gather(e.message)) do assert.equal(e.message, other) end
        end)
    end)

    it("splits the weights: what one rank holds falls with the ranks", function()
        if spl.size() == 1 then return pending("one rank") end
        local m = plain.new()
        local all = 0
        for _, w in pairs(m.weights) do all = all + 4 * #w.data end
        with_model(m, nil, function(dir)
            local before = spl.memory().now.weights
            local mesh <close> = spl.mesh "tp=*:tensor"
            local loaded <close> = model.load(dir, mesh)
            assert.equal(2, #loaded.blocks)
            local mine = spl.memory().now.weights - before
            assert.is_true(mine < all * (spl.size() == 2 and 0.65 or 0.6), ("%d of %d bytes"):format(mine, all))
            assert.is_true(spl.sum(mine) >= all)
        end)
    end)
end)

describe("a real model on several ranks", function()
    local dir = (os.getenv "SPL_SHARED" or "../shared") .. "/models/stories260k"
    local golden = json.read(dir .. "/golden.json")

    for _, text in ipairs(meshes()) do
        it("has the golden likelihood and logits: " .. text, function()
            if not golden then return pending("no folder " .. dir) end
            local mesh <close> = spl.mesh(text)
            local loaded <close> = model.load(dir, mesh)
            local sum, count = loaded:score(golden.tokens)
            assert.is_true(math.abs(sum / count - golden.mean_nll) < 1e-5, "mean NLL " .. sum / count)
            local hidden <close> = loaded:hidden(golden.tokens)
            for row = 0, #golden.tokens - 1 do -- in order: pairs() would go its own way on each rank
                local wanted = golden.logits_rows[tostring(row)]
                local got = wanted and loaded:row(hidden, row + 1)
                for i, value in ipairs(wanted or {}) do
                    assert.is_true(math.abs(got[i] - value) < 1e-4, ("row %d, logit %d: %g"):format(row, i, got[i]))
                end
            end
            assert.equal(golden.argmax_next, loaded:next(golden.tokens))
        end)
    end
end)

describe("a model whose sequence is split", function()
    local dir = (os.getenv "SPL_SHARED" or "../shared") .. "/models/stories260k"
    local golden = json.read(dir .. "/golden.json")

    local function cases()
        local list = { "cp=*:ring", "cp=*:gather", "cp=*:ulysses" }
        if spl.size() % 2 == 0 then
            for _, text in ipairs{ "u=2:ulysses, r=*:ring", "tp=2:tensor, cp=*:ring", "tp=2:sequence, cp=*:ulysses",
                "g=2:gather, r=*:ring", "dp=2:data, cp=*:ring" } do list[#list + 1] = text end
        end
        if spl.size() % 8 == 0 then list[#list + 1] = "tp=2:sequence, u=2:ulysses, r=*:ring" end
        return list
    end

    for _, text in ipairs(cases()) do
        for _, scheme in ipairs{ "contiguous", "zigzag", "striped" } do
            it(("scores as on one rank: %s, %s"):format(text, scheme), function()
                local m = plain.new{ seed = 4 }
                local nll = plain.nll(m, IDS)
                with_model(m, nil, function(folder)
                    local mesh <close> = spl.mesh(text)
                    local loaded <close> = model.load(folder, mesh, { dtype = "f64", scheme = scheme })
                    assert.is_true(math.abs(loaded:score(IDS) - nll) < 1e-10)
                    loaded.logits_at_once = 3 * m.vocab -- in pieces
                    assert.is_true(math.abs(loaded:score(IDS) - nll) < 1e-10)
                    assert.is_true(math.abs(loaded:score{ 0, 5 } - plain.nll(m, { 0, 5 })) < 1e-10)
                end)
                if not golden then return pending("no folder " .. dir) end
                local mesh <close> = spl.mesh(text)
                local loaded <close> = model.load(dir, mesh, { scheme = scheme })
                local sum, count = loaded:score(golden.tokens)
                assert.is_true(math.abs(sum / count - golden.mean_nll) < 1e-5, "mean NLL " .. sum / count)
                assert.equal(golden.argmax_next, loaded:next(golden.tokens))
            end)
        end
    end

    it("holds its own rows of the logits alone", function()
        if spl.size() == 1 then return end
        local m = plain.new{ vocab = 2000, hidden = 8 }
        local ids = {}
        for i = 1, 16 do ids[i] = i % 7 end
        with_model(m, nil, function(folder)
            local mesh <close> = spl.mesh("cp=*:ring")
            local loaded <close> = model.load(folder, mesh)
            spl.reset_counters()
            loaded:score(ids)
            local peak = spl.memory().peak
            assert.is_true(spl.max(peak.activations) < 1.3 * (#ids / spl.size() + 1) * 2000 * 4,
                tostring(peak.activations))
        end)
    end)

    it("by summaries is near, and refuses what does not go together", function()
        if not golden then return pending("no folder " .. dir) end
        local mesh <close> = spl.mesh("cp=*:hierarchical")
        local loaded <close> = model.load(dir, mesh, { chunk = 32, summaries = 4 })
        local sum, count = loaded:score(golden.tokens)
        assert.is_true(math.abs(sum / count - golden.mean_nll) < 0.5)
        local ok, err = pcall(model.load, dir, mesh, { scheme = "zigzag" })
        assert.is_false(ok)
        assert.matches("keeps chunks whole", tostring(err))
    end)
end)
