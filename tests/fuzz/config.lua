-- config.lua: fuzzed: any text as a config.json; one that is accepted has numbers that a model can be made of.
local config = require "spl.config"
local json = require "spl.json"
local expect = require "expect"

local COUNTS = { "hidden", "ffn", "layers", "heads", "kv_heads", "head_dim", "vocab", "context" }
local FLAGS = { "tied", "qkv_bias", "out_bias", "mlp_bias" }

local function try(input)
    local c = expect.refused_or_made(function() return config.new(json.decode(input, "config.json")) end)
    if not c then
        return
    end
    for _, name in ipairs(COUNTS) do
        assert(math.type(c[name]) == "integer" and c[name] >= 1, name)
    end
    for _, name in ipairs(FLAGS) do
        assert(type(c[name]) == "boolean", name)
    end
    assert(c.heads % c.kv_heads == 0 and c.head_dim % 2 == 0, "heads that do not divide")
    assert(c.eps > 0 and c.eps < math.huge and c.rope_theta > 0 and c.rope_theta < math.huge, "eps, rope_theta")
    assert(c.bos == nil or math.type(c.bos) == "integer" and c.bos >= 0 and c.bos < c.vocab, "bos")
    for _, id in ipairs(c.eos) do
        assert(math.type(id) == "integer" and id >= 0 and id < c.vocab, "eos")
    end
end

return try, require("json_tree").change
