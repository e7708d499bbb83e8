-- args.lua: fuzzed: lines of the input as the options of a script. What is read has the declared types and bounds.
local args = require "spl.args"
local expect = require "expect"

local CHOICES = { fast = true, exact = true, both = true }

local function declaration()
    return { "A script.", batch = 1, seq = 2048, any = { default = 0, min = -1000, max = 1000000 }, dtype = "f32",
        mesh = { "tp=*:tensor" }, sizes = { default = { 1, 2 }, of = "integer" }, rate = { default = 0.5, max = 1.0 },
        fractions = { 0.5, 0.25 }, check = false, causal = true, word = { default = "fast", choices =
            { "fast", "exact", "both" } }, needed = { type = "string", required = true }, long_name_of_it = "" }
end

return function(input)
    local list = {}
    for word in input:gmatch("[^\n]*") do
        list[#list + 1] = word
    end
    local o = expect.refused_or_made(args.args, declaration(), list)
    if not o then
        return
    end
    assert(math.type(o.batch) == "integer" and o.batch >= 1 and math.type(o.seq) == "integer" and o.seq >= 1, "sizes")
    assert(math.type(o.any) == "integer" and o.any >= -1000 and o.any <= 1000000, "any")
    assert(math.type(o.rate) == "float" and o.rate <= 1 and o.rate == o.rate, "rate")
    assert(type(o.check) == "boolean" and type(o.causal) == "boolean" and CHOICES[o.word], "flags and words")
    assert(type(o.needed) == "string" and type(o.dtype) == "string" and type(o.long_name_of_it) == "string", "texts")
    for _, size in ipairs(o.sizes) do
        assert(math.type(size) == "integer" and size >= 1, "integers of a list")
    end
    for _, x in ipairs(o.fractions) do
        assert(math.type(x) == "float" and x == x, "numbers of a list")
    end
    assert(#o.mesh >= 1 and type(o.mesh[1]) == "string", "mesh")
end
