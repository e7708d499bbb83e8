-- generate.lua: continues a text greedily with a Hugging Face model and prints it as it comes: prompt and continuation,
-- and nothing else on standard output; the speed goes to standard error. The whole text is run again for each token:
-- there is no cache of keys and values.
local spl = require "spl"
local model = require "spl.model"
local report = require "spl.report"
local tokenizer = require "spl.tokenizer"

local o = spl.args{
    "Continues a text greedily with a Llama-type Hugging Face model; stops where the model ends the text.",
    model = { type = "string", required = true, metavar = "DIR",
              help = "directory with config.json, model.safetensors (or its shards and index), tokenizer.json" },
    prompt = { type = "string", default = "", help = "the beginning of the text; may be empty" },
    tokens = { default = 64, help = "how many tokens to add at most" },
    mesh = { default = "tp=*:sequence", help = "how the model is spread over the ranks; the text is one sequence, "
             .. "so of the ranks along data axes one has something to do" },
    scheme = { default = "contiguous", choices = { "contiguous", "zigzag", "striped" },
               help = "how ring, gather and ulysses axes deal out the text" },
    chunk = { default = 1024, help = "tokens that the role hierarchical sees exactly" },
    summaries = { default = 1, help = "of each other chunk" },
    dtype = { default = "f32", choices = { "f32", "f64", "bf16", "f16" },
              help = "of weights and activations; bf16 and f16 are computed in f32" },
}

local function fail(code, format, ...)
    spl.error{ code = code, message = format:format(...) }
end

local mesh = spl.mesh(o.mesh)
local m <close> = model.load(o.model, mesh, { dtype = o.dtype, scheme = o.scheme, chunk = o.chunk,
    summaries = o.summaries })
local tok, message, code = tokenizer.of_model(o.model, m.config.bos)
if not tok then fail(code, "%s", message) end
local ids = tok:encode(o.prompt)
if #ids == 0 then ids[1] = m.config.bos end
if #ids == 0 then
    fail("usage", "the prompt is empty and the model has no token that begins a text; give --prompt")
end
if #ids + o.tokens > m.config.context then
    local left = m.config.context - #ids
    fail("usage", "the prompt has %s and --tokens asks for %d more, but the context of the model in %s ends at %d; "
        .. "%s", report.plural(#ids, "token"), o.tokens, o.model, m.config.context,
        left > 0 and ("ask for at most %d"):format(left) or "give a shorter prompt")
end

-- What ends a text: the end token, or a token that would begin another.
local ends = { [m.config.bos or -1] = true }
for _, id in ipairs(m.config.eos) do ends[id] = true end

local stream = tok:stream()
local function show(id)
    local text = stream(id)
    if spl.rank() == 0 and text ~= "" then
        assert(io.stdout:write(text))
        io.stdout:flush()
    end
end

for _, id in ipairs(ids) do show(id) end
local start, added = spl.now(), 0
for _ = 1, o.tokens do
    local id = m:next(ids)
    if ends[id] then break end
    ids[#ids + 1], added = id, added + 1
    show(id)
end
if spl.rank() == 0 then
    local seconds = math.max(spl.now() - start, 1e-9)
    io.stderr:write(("\n# %s added in %.2f s, %.1f tokens/s\n"):format(report.plural(added, "token"), seconds,
        added / seconds))
end
