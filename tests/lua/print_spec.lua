-- print_spec.lua: what print shows of objects and results, and what using them wrongly says.
local spl = require "spl"
local report = require "spl.report"

local function message_of(f, ...)
    local ok, err = pcall(f, ...)
    assert.is_false(ok)
    assert.equal("argument", err.code)
    return err.message
end

local function small_block()
    local mesh <close> = spl.mesh "tp=*:sequence"
    return spl.block { hidden = 8, heads = 2, kv_heads = 1, ffn = 12, norm = "rms", gated = true, rope_theta = 500,
        bias = false, dropout_attention = 0.25, seed = 9 }:schedule(mesh)
end

describe("print", function()
    it("shows all that is set of a block", function()
        local blk <close> = small_block()
        assert.equal("block hidden 8, heads 2, kv_heads 1, head_dim 4, ffn 12, f32, rms norm, silu gated, "
            .. "qkv separate, no bias, rope 500, causal, dropout 0.25 in attention, 0 after, seed 9 (tp=1:sequence)",
            tostring(blk))
        local other <close> = spl.block { hidden = 6, heads = 3, qkv_bias = false, causal = false, dropout = 0.5,
            dtype = "f64" }
        assert.equal("block hidden 6, heads 3, kv_heads 3, head_dim 2, ffn 24, f64, layer norm, gelu_tanh, "
            .. "qkv interleaved, out_bias and mlp_bias, no rope, full, dropout 0.5, seed 0 (not scheduled)",
            tostring(other))
    end)

    it("shows a definition a line a field", function()
        local blk <close> = small_block()
        local text = tostring(blk.config)
        for _, line in ipairs { "heads              2", "act                silu", "rope_theta         500",
            "dropout_attention  0.25", "gated              true" } do
            assert.matches("\n" .. line .. "\n", "\n" .. text .. "\n", 1, true)
        end
    end)

    it("shows what was saved, also after release", function()
        local blk <close> = small_block()
        local x <close> = blk:input { seq = 3 }:randn(1)
        local y, saved = blk:forward(x, { save = true })
        y:release()
        local text = tostring(saved)
        assert.matches("^saved +dtype +shape +here +layout\nln0_rstd +f32 +%[1, 3, 1%] +%[1, 3, 1%] +tp=", text)
        assert.matches("\nseed 9, offset 0$", text)
        saved:release()
        assert.matches("\nln0_rstd +released\n", tostring(saved))
    end)

    it("shows checks, counters, memory and statistics", function()
        local blk <close> = small_block()
        local x <close> = blk:input { seq = 3 }:randn(1)
        local text = tostring(blk:check(x))
        assert.matches("^failed   false\nrel_err  %S+\nrows     3\nseq      3\nwrong    0\ntensors\n  name +count "
            .. "+max_abs +rel_err wrong\n  ln0_rstd +3 ", text)
        assert.matches("\nbytes\n.*\n  total           0\n.*memory\n  now\n    activations  %d+\n",
            tostring(spl.counters()))
        assert.matches("^now\n  activations  %d+\n.*\npeak\n", tostring(spl.memory()))
        assert.matches("^blocks    1\n.*\ntotal     %d+$", tostring(spl.live()))
        assert.matches("^inf          0\nmax_abs", tostring(x:stats()))
    end)

    it("shows comparisons, axes and schedules, and of these what applies", function()
        local ones <close> = spl.ones { shape = { 4 } }
        assert.equal("count         4\ndiff_squares  0\nmax_abs       0\nref_squares   4\nwrong         0",
            tostring(spl.compare(ones, ones)))
        local mesh <close> = spl.mesh "dp=1:data, cp=1:ring"
        assert.equal("name coord hosts role size\ndp       0     1 data    1\ncp       0     1 ring    1",
            tostring(mesh.axes))
        assert.equal("coord  0\nhosts  1\nname   cp\nrole   ring\nsize   1", tostring(mesh.axes[2]))
        assert.matches("^size  8\nspec  dp=2, tp=4\naxes\n  name role size\n",
            tostring(spl.mesh.parse("dp=2, tp=4", 8)))
        local blk <close> = spl.block { hidden = 8, heads = 2 }:schedule(mesh, { scheme = "zigzag" })
        assert.equal("scheme  zigzag", tostring(blk.plan))
        local chunked <close> = spl.mesh "cp=1:hierarchical"
        blk:schedule(chunked, { chunk = 4, summaries = 2 })
        assert.equal("chunk      4\nscheme     contiguous\nsummaries  2", tostring(blk.plan))
    end)

    it("shows no shape of what a ring passes on", function()
        local r = require "mpi".run(1, [[local spl = require "spl"
            local blk = spl.block { hidden = 8, heads = 2 }:schedule(spl.mesh "cp=*:ring")
            if spl.rank() == 0 then print(blk:explain { seq = 8 }) end]], nil,
            { flags = { "--virtual", "2" } })
        assert.matches("\nring +keys and values cp +256\n", r.out)
        assert.is_nil(r.out:find("[]", 1, true))
    end)

    it("shows lists in tables of results", function()
        assert.equal("a  1.5\nlist\n  [1, 2]\nnone", report.record { a = 1.5, list = { 1, 2 }, none = {} })
    end)
end)

describe("a tensor as text", function()
    it("is whole up to 1024 elements", function()
        local t <close> = spl.zeros { shape = { 32, 32 }, dtype = "i32" }:iota()
        local text = t:to_text()
        assert.matches("1022, 1023}}$", text)
        assert.equal(32, select(2, text:gsub("\n", "")))
        assert.equal(0, select(2, text:gsub("%.%.%.", "")))
        local cube <close> = spl.zeros { shape = { 5, 2, 2 }, dtype = "i32" }:iota()
        assert.matches("18, 19}}}$", cube:to_text())
    end)

    it("is a corner above that, or what was asked for", function()
        local t <close> = spl.zeros { shape = { 33, 32 }, dtype = "i32" }:iota()
        local text = t:to_text()
        assert.equal(16, select(2, text:gsub("\n", "")))
        assert.matches("\n{{0, 1, [^\n]*, 15, ...},\n", text)
        assert.matches("^tensor i32 %[33, 32%], local\n{{0, 1, %.%.%.},\n {32, 33, %.%.%.}, %.%.%.}$",
            t:to_text { rows = 2, cols = 2 })
        assert.matches("1054, 1055}}$", t:to_text { rows = 99, cols = 99 })
        local line <close> = spl.zeros { shape = { 3 } }
        assert.matches("\n{0, 0, %.%.%.}$", line:to_text { cols = 2 })
        local scalar <close> = spl.zeros { shape = {} }
        assert.matches("\n0$", scalar:to_text())
    end)

    it("refuses sizes below zero and words it does not know", function()
        local t <close> = spl.zeros { shape = { 2 } }
        assert.matches("zero or more", message_of(t.to_text, t, { rows = -1 }))
        assert.equal("tensor:to_text: unknown option 'row'; did you mean 'rows'?",
            message_of(t.to_text, t, { row = 1 }))
    end)
end)

describe("using objects wrongly", function()
    it("names the nearest of what was saved", function()
        local blk <close> = small_block()
        local x <close> = blk:input { seq = 3 }:randn(1)
        local y <close>, kept = blk:forward(x, { save = true })
        local saved <close> = kept
        assert.equal(y.shape, saved.out.shape)
        assert.equal("what this block saved has no field 'mha_q_ou'; did you mean 'mha_q_out'?",
            message_of(function() return saved.mha_q_ou end))
        assert.matches("has no field 'nosuch'; it has .*ln0_rstd, mha_q_out", message_of(function()
            return saved.nosuch
        end))
        local n = 0
        for _ in ipairs(saved) do n = n + 1 end
        assert.equal(#saved, n)
    end)

    it("names the weights of a block", function()
        local blk <close> = small_block()
        assert.equal("block:param: there is no weight 'ln0_gama'; did you mean 'ln0_gamma'?",
            message_of(blk.param, blk, "ln0_gama"))
        assert.matches("there is no weight 'x'; this block has ln0_gamma, mha_q_weight",
            message_of(blk.param, blk, "x"))
    end)

    it("says what is missing or below zero of a size", function()
        local blk <close> = small_block()
        assert.equal("block:input: seq is missing: how many tokens, as in {batch = 1, seq = 2048}",
            message_of(blk.input, blk, {}))
        assert.equal("block:flops: seq is -1; it must be zero or more", message_of(blk.flops, blk, { seq = -1 }))
        assert.equal("block:flops: batch is -2; it must be zero or more",
            message_of(blk.flops, blk, { seq = 1, batch = -2 }))
    end)

    it("says which function takes the place of an operator", function()
        local t <close> = spl.ones { shape = { 2 } }
        assert.equal("tensors have no operator +; spl.add(a, b) adds two of one shape, dtype and layout",
            message_of(function() return t + t end))
        for sign, f in pairs { ["*"] = function() return 2 * t end, ["-"] = function() return -t end,
            ["<"] = function() return t < t end, [".."] = function() return "t = " .. t end } do
            assert.matches("tensors have no operator " .. sign .. ";", message_of(f), 1, true)
        end
    end)

    it("suggests only what differs in a third of the letters or less", function()
        assert.equal("rounds", spl.nearest("round", { "rounds", "warmup" }))
        assert.equal("run", spl.nearest("rnu", { "run", "info" }))
        assert.is_nil(spl.nearest("foo", { "io", "os" }))
        assert.is_nil(spl.nearest("relu", { "silu", "none" }))
        assert.is_nil(spl.nearest("ab", { "ac" }))
    end)
end)
