-- topics.lua: help on what is no function: roles of axes, schemes, long sequences, sweeps.
local topics = {}

-- What is split along an axis of each role, and where it communicates; whether this version has it.
topics.role_list = {
    { "tensor", true, "heads and hidden of the weights; an all-reduce after attention and after the MLP" },
    { "sequence", true, "as tensor, and the sequence in norms and residual; all-gather, reduce-scatter" },
    { "data", true, "the batch; nothing in a forward pass" },
    { "ulysses", true, "the sequence, and heads inside attention; an all-to-all before and after attention" },
    { "ring", true, "the sequence; keys and values travel round a ring" },
    { "gather", true, "the sequence; keys and values are gathered before attention" },
    { "hierarchical", true, "the sequence; exact nearby, summaries of the rest" },
    { "fsdp", false, "the batch and the weights, which are gathered for use" },
    { "pipeline", false, "the layers; send and receive between stages" },
}

-- Topics with their texts; `also` names the functions to whose help a text belongs too.
local function roles()
    local lines = {
        "\"dp=2:data, tp=*:sequence\" is a mesh of two axes, the first-written outermost in rank order; `*`",
        "stands, once, for what is left of the ranks. A role says what is split along its axis, and where it",
        "communicates. In this version a block can use:",
    }
    for _, there in ipairs { true, false } do
        if not there then
            lines[#lines + 1] = "Refused by name in this version:"
        end
        for _, role in ipairs(topics.role_list) do
            if role[2] == there then
                lines[#lines + 1] = ("  %-13s %s"):format(role[1], role[3])
            end
        end
    end
    lines[#lines + 1] = ""
    lines[#lines + 1] = "ring, gather and ulysses axes deal out the sequence by a scheme: contiguous, zigzag"
    lines[#lines + 1] = "(chunks r and 2P-1-r of 2P: under a causal mask all ranks have the same work) or striped."
    lines[#lines + 1] = "Roles go together: \"u=2:ulysses, r=*:ring\" is USP, \"tp=2:sequence, cp=*:ring\" Megatron"
    lines[#lines + 1] = "with a ring. hierarchical is approximate, and goes with neither ring nor gather."
    lines[#lines + 1] = ""
    lines[#lines + 1] = "An axis without a role may carry collectives (mesh:all_gather ...) and layouts"
    lines[#lines + 1] = "(\"tp=shard(2)\"), but no block."
    return table.concat(lines, "\n")
end

-- What stands in the file of a sweep.
local SWEEPS = [[
`spl sweep FILE` runs a grid of points of a script; FILE is Lua and returns a table:

  return {
      script = "sp_forward.lua",                       -- by path, from FILE's folder too, or shipped name
      about = "which schedule wins where",             -- for people (left out: nothing)
      options = { hidden = 768, rounds = 5 },          -- of the script, the same at every point
      grid = {                                         -- every combination is a point
          ranks = { 1, 2, 4 },                         -- ranks to start (left out: 1)
          seq = { 1024, 4096 },                        -- any option of the script
          mesh = function(point) return { ... } end,   -- values that hang on the lists above
      },
      skip = function(point) return "reason" end,      -- points not to run; nil: run it
      repeats = 3, timeout = 600,                      -- runs of each point (1); seconds for one run
      run = { threads = 1, timeout = 60 },             -- of `spl run`: backend threads timeout check_collectives
                                                       -- virtual
      trace = true,                                    -- also where the time goes, from a trace of each run
      report = { x = "seq", y = "time_ms_p50", series = "mesh" },   -- what `spl report` compares
  }

The script is called with --json and prints a JSON object a row; what it refuses with exit code 2 is listed with its
sentence. spl.meshes(ranks) gives all meshes that a block takes. `--set seq=1k,4k` replaces values, `--list` lists
the points. Results lie in sweep-NAME (--out): results.jsonl, a line a run, and results.csv, medians; the same command
goes on where it stopped, `spl report sweep-NAME` makes a page of it.]]

local LONG = [[
Long sequences: roles split the sequence, masks say who sees whom, schemes deal the sequence out.

  ring, gather            keys travel to the queries: round a ring while tiles are computed, or at once
  ulysses                 heads change hands; bytes fall with the ranks while there are heads for all
  u=2:ulysses, r=*:ring   both (USP)
  hierarchical            exact within chunks (--chunk), means of the others (--summaries): approximate

Masks (--mask, spl.mask): causal, full, window:W (the last W keys, itself included),
docs:100,300,24 (causal within each), prefix:N (seen by all), padding:N (only the first N count);
scripts also give lists of slices. What no query of a rank sees is not sent to it, and tiles
without a visible pair are not computed.

Schemes (--scheme) of ring, gather and ulysses: contiguous; zigzag, which gives all ranks equal
work under a causal mask, and deals out packed documents each by itself; striped, which gives
them equal work under windows too.

  spl run -n 2 bench_attention.lua --seq 16384 --scheme zigzag     attention alone
  spl run -n 2 sp_forward.lua --mesh cp=*:ring --scheme zigzag     a block
  spl help attention, attention_tile, attention_merge              for scripts]]

local SCHEMES = [[
A scheme deals the sequence out to the ranks of ring, gather and ulysses axes; the roles data, tensor,
sequence and hierarchical know contiguous alone. 12 tokens on 3 ranks:

  contiguous   0: 1-4         1: 5-8         2: 9-12        one stretch each
  zigzag       0: 1-2,11-12   1: 3-4,9-10    2: 5-8         chunks r and 2P-1-r of 2P
  striped      0: 1,4,7,10    1: 2,5,8,11    2: 3,6,9,12    every P-th token

Under a causal mask a rank with early tokens sees little and one with late tokens much: zigzag and striped
give all the same work. zigzag deals out packed documents (docs:N,N,...) each by itself; striped has equal
work under windows too. What comes out is the same under any of them.

  block:schedule(mesh, { scheme = "zigzag" })                        in a script
  spl run -n 2 sp_forward.lua --mesh cp=*:ring --scheme zigzag
  spl check -n 3 --role ring                                         all of them against fp64]]

-- Words that people look up, and what says them, where there is no function or object of that name.
topics.alias = { scheme = "schemes", contiguous = "schemes", zigzag = "schemes", striped = "schemes", masks = "mask",
    role = "roles", usp = "roles", megatron = "roles" }
for _, role in ipairs(topics.role_list) do
    topics.alias[role[1]] = "roles"
end

topics.list = {
    schemes = { text = function() return SCHEMES end, also = { ["block:schedule"] = true } },
    ["long-context"] = { text = function() return LONG end, also = { mask = true, masks = true } },
    sweeps = { text = function() return SWEEPS end, also = {} },
    roles = { text = roles, also = { mesh = true, gather = true, ["block:schedule"] = true } },
}

return topics
