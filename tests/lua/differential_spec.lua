-- differential_spec.lua: `spl check`: what it runs and prints, that README.md shows what it finds, and that it notices
-- faults planted in attention.
local json = require "spl.json"
local matrix = require "tests.support.matrix"
local mpi = require "tests.support.mpi"
local spl = require "spl"

local function check(...)
    return mpi.spl { "check", ... }
end

local function objects(text)
    local list = {}
    for line in text:gmatch "[^\n]+" do
        list[#list + 1] = json.decode(line)
    end
    return list
end

describe("spl check", function()
    it("finds what README.md says", function()
        local _, block = matrix.read()
        assert.equal(block, matrix.find(), "`make matrix` writes it anew")
        assert.is_nil(block:find "no%*")
    end)

    it("prints a row a mesh and scheme, what is refused and why, and a verdict", function()
        local r = check("--virtual", "2", "--role", "ring,hierarchical", "--heads", "4/4")
        assert.same({ 0, "" }, { r.code, r.err })
        for _, scheme in ipairs { "contiguous", "zigzag", "striped" } do
            assert.matches("\n a=2:ring +" .. scheme .. " +7 +0 +0 %d%.%de%-%d+ +0 +%d+ ", r.out)
        end
        assert.matches("\n a=2:hierarchical contiguous +2 +0 +5 ", r.out)
        assert.matches("\n# refused, one of.*hierarchical knows the masks.*hierarchical keeps chunks whole", r.out)
        assert.matches("\n# 23 passed, 0 missed, 19 refused, OK\n$", r.out)
    end)

    it("judges the whole product along one axis, and axes together", function()
        local r = check("--virtual", "4", "--role", "ring,ulysses", "--json", "--scheme", "zigzag")
        local alone, together, seen = 0, {}, {}
        for _, o in ipairs(objects(r.out)) do
            assert.equal("passed", o.result)
            assert.is_true(o.rel_err < 2e-6 and o.wrong == 0 and o.bytes_sent > 0)
            local key = ("%s %s %d/%d"):format(o.mesh, o.mask, o.heads, o.kv_heads)
            assert.is_nil(seen[key])
            seen[key] = true
            if o.mesh:find "," then
                together[o.mesh] = (together[o.mesh] or 0) + 1
            else
                alone = alone + 1
            end
        end
        assert.equal(2 * 7 * 4, alone)
        local n = 0
        for mesh, count in pairs(together) do
            n = n + 1
            assert.equal(7, count, mesh)
        end
        assert.equal(3, n) -- ring with ring, ring with ulysses, ulysses with ulysses
    end)

    it("runs on several numbers of virtual ranks in turn, and under mpirun", function()
        local r = check("--sizes", "1,3", "--role", "gather", "--mask", "docs")
        assert.equal(0, r.code, r.err)
        assert.matches("fp64, 1 virtual rank\n.* a=1:gather .*fp64, 3 virtual ranks\n.* a=3:gather ", r.out)
        r = check("-n", "2", "--mesh", "cp=*:ulysses", "--scheme", "striped", "--mask", "window:9", "--heads", "6/2")
        assert.equal(0, r.code, r.err)
        assert.matches("\n cp=2:ulysses striped +1 +0 +0 ", r.out)
    end)

    it("leaves empty in the matrix what was not run", function()
        local r = check("--virtual", "2", "--markdown", "--role", "ring,data", "--mask", "causal", "--heads", "4/4",
            "--axes", "1")
        assert.equal(0, r.code, r.err)
        local empty = "  |"
        assert.matches("\n| `ring` | yes | yes | yes | yes |" .. empty:rep(6) .. " yes |" .. empty:rep(3) .. "\n",
            r.out, 1, true)
        assert.matches("\n| `data` | yes | – | – | yes |", r.out, 1, true)
        assert.matches("\n| `gather` |" .. empty:rep(14) .. "\n", r.out, 1, true)
    end)

    it("refuses filters that name nothing that there is", function()
        for _, case in ipairs {
            { "--role ringg: did you mean ring?", "--role", "ringg" }, { "two numbers as 8/2", "--heads", "8" },
            { "a multiple of KV heads", "--heads", "3/2" }, { "a number from 1 to 4", "--axes", "5" },
            { "the mask 'windw:3' is not understood", "--mask", "windw:3" },
            { "sum to 7 tokens", "--mask", "docs:3,4" },
            { "has 3 ranks, but there are 2", "--virtual", "2", "--mesh", "a=3:ring" },
            { "no mesh of 3 ranks has 2 axes", "--virtual", "3", "--axes", "2" },
            { "choose one", "--json", "--markdown" }, { "did you mean '--scheme'?", "--shceme", "zigzag" },
        } do
            local r = check(table.unpack(case, 2))
            assert.equal(2, r.code, case[1])
            assert.matches(case[1], r.err, 1, true)
            assert.equal("", r.out)
        end
        local r = check("--virtual", "2", "--backend", "null")
        assert.matches("computes no values to judge", r.err)
    end)
end)

describe("a fault planted in attention", function()
    local program = spl.executable():gsub("[^/]*$", "tests/spl-faults")
    local function faulty(fault, ...)
        return mpi.command({ program, "check", "--virtual", "4", "--axes", "1", "--role", "ring,gather,ulysses",
            "--json", ... }, { env = { SPL_FAULT = fault } })
    end
    local function missed(r)
        local n, where = 0, {}
        for _, o in ipairs(objects(r.out)) do
            if o.result == "missed" then
                n = n + 1
                where[("%s %s %s"):format(o.mesh:match ":(%l+)", o.scheme, o.mask)] = o.reason
            end
        end
        return n, where
    end

    it("is none without one", function()
        local r = faulty("", "--heads", "4/4")
        assert.same({ 0, "" }, { r.code, r.err })
    end)

    for fault, shows in pairs {
        ["wrong scale"] = { "ring zigzag causal", "gather contiguous full", "ulysses striped docs" },
        ["dropped step"] = { "ring contiguous full", "ring zigzag docs", "gather striped window" },
        ["swapped block"] = { "ring zigzag docs", "ring zigzag slices", "ring striped prefix" },
        ["own keys again"] = { "ring contiguous causal", "ring zigzag full", "ring striped docs" },
        ["document boundary ignored"] = { "ring zigzag docs", "gather contiguous docs", "ulysses striped docs" },
    } do
        it(fault .. " is noticed", function()
            local r = faulty(fault, "--heads", "4/4")
            assert.equal(1, r.code)
            local n, where = missed(r)
            assert.equal(("spl: check: %d combination%s missed\n"):format(n, n == 1 and "" or "s"), r.err)
            for _, what in ipairs(shows) do
                assert.matches("rel_err [%d.e+-]+ is above 2.0e%-06", where[what] or "passed", what)
            end
        end)
    end

    it("is seen where it is, and nowhere else", function()
        local _, where = missed(faulty("document boundary ignored", "--heads", "4/4"))
        for what in pairs(where) do assert.matches(" docs$", what) end
        _, where = missed(faulty("dropped step", "--heads", "4/4"))
        for what in pairs(where) do assert.is_nil(what:match "^ulysses") end
    end)
end)
