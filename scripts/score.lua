-- score.lua: how well a Hugging Face model predicts a text: mean negative log-likelihood, perplexity, tokens a second.
-- The file's bytes are scored as they are, in one piece, and the result does not depend on the number of ranks.
local spl = require "spl"
local json = require "spl.json"
local model = require "spl.model"
local report = require "spl.report"
local tokenizer = require "spl.tokenizer"

local o = spl.args{
    "Scores a text under a Llama-type Hugging Face model: mean NLL, perplexity, tokens/s.",
    model = { type = "string", required = true, metavar = "DIR",
              help = "directory with config.json, model.safetensors (or its shards and index), tokenizer.json" },
    text = { type = "string", required = true, metavar = "FILE", help = "the text; its bytes are scored as they are" },
    mesh = { default = "tp=*:sequence", help = "how the model is spread over the ranks; the text is one sequence, "
             .. "so of the ranks along data axes one has something to do" },
    scheme = { default = "contiguous", choices = { "contiguous", "zigzag", "striped" },
               help = "how ring, gather and ulysses axes deal out the text" },
    chunk = { default = 1024, help = "tokens that the role hierarchical sees exactly" },
    summaries = { default = 1, help = "of each other chunk" },
    dtype = { default = "f32", choices = { "f32", "f64", "bf16", "f16" },
              help = "of weights and activations; bf16 and f16 are computed in f32" },
    json = { default = false, help = "one line of JSON instead of text" },
}

local function fail(code, format, ...)
    spl.error{ code = code, message = format:format(...) }
end

local MOST = 1 << 30 -- bytes of a text

local function read_text(path)
    local text, problem, code = require "spl.core".read_file(path, MOST)
    if not text then fail(code, "--text: %s", problem) end
    if text == "" then fail("argument", "%s is empty: there is nothing to score", path) end
    return text
end

local mesh = spl.mesh(o.mesh)
local text = read_text(o.text)
local m <close> = model.load(o.model, mesh, { dtype = o.dtype, scheme = o.scheme, chunk = o.chunk,
    summaries = o.summaries })
local tok, message, code = tokenizer.of_model(o.model, m.config.bos)
if not tok then fail(code, "%s", message) end
local ids = tok:encode(text)
if #ids > m.config.context then
    fail("argument", "%s has %s, but the context of the model in %s ends at %d; score a shorter text", o.text,
        report.plural(#ids, "token"), o.model, m.config.context)
end

spl.barrier()
local start = spl.now()
local sum, count = m:score(ids)
local seconds = spl.max(spl.now() - start)
local mean = sum / count
if mean ~= mean or mean == math.huge then
    fail("numeric", "the mean NLL is %s: the model gives no finite numbers", mean)
end

if spl.rank() == 0 then
    local result = { tokens = #ids, mean_nll = mean, perplexity = math.exp(mean), tokens_per_s = #ids / seconds,
        mesh = tostring(mesh), ranks = spl.size(), dtype = o.dtype, model = o.model }
    if o.json then
        print(json.encode(result, { "tokens", "mean_nll", "perplexity", "tokens_per_s", "mesh", "ranks", "dtype",
            "model" }))
    else
        local c = m.config
        print(("# %s: %d layers, hidden %d, %d heads, %d KV heads, vocabulary %d, context %d, %s"):format(o.model,
            c.layers, c.hidden, c.heads, c.kv_heads, c.vocab, c.context, o.dtype))
        print(("# %s: %d bytes; mesh %s, %s"):format(o.text, #text, mesh,
            report.plural(spl.size(), "rank")))
        print(("tokens      %d"):format(result.tokens))
        print(("mean NLL    %.6f nats a token (%d tokens, each given those before it)"):format(mean, count))
        print(("perplexity  %.6f"):format(result.perplexity))
        print(("tokens/s    %.1f"):format(result.tokens_per_s))
    end
end
