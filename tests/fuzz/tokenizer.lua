-- tokenizer.lua: fuzzed: any text as a tokenizer.json; one that is accepted encodes and decodes texts.
local json = require "spl.json"
local tokenizer = require "spl.tokenizer"
local expect = require "expect"

local TEXTS = { "", "Hello  world, I'm 12345\n", "序 🙂 é ▁▁ <s></s>", "\xff\xfe\0\x80abc", "aaaa bbbb <mask> rank" }

local function try(input)
    local tok = expect.refused_or_made(function() return tokenizer.new(json.decode(input, "tokenizer.json")) end)
    if not tok then
        return
    end
    for _, text in ipairs(TEXTS) do
        local ids = expect.refused_or_made(tok.encode, tok, text)
        if ids then
            for i, id in ipairs(ids) do
                assert(math.type(id) == "integer" and id >= 0 and id < tok.size, ("id %d is %s"):format(i, id))
            end
            local out = expect.refused_or_made(tok.decode, tok, ids, { special = true })
            assert(out == nil or type(out) == "string", "what is decoded is no text")
            local step = tok:stream()
            for _, id in ipairs(ids) do
                expect.refused_or_made(step, id)
            end
        end
    end
end

return try, require("json_tree").change
