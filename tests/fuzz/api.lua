-- api.lua: calls every function and method of the Lua API, found in the running tables, with random arguments that are
-- mostly wrong. Allowed: a result, an error object of spl, or a Lua error that is a sentence. At the end nothing of
-- core is alive. Run by tests/lua/api_fuzz_spec.lua as a child, in an empty folder:
--   spl run tests/fuzz/api.lua [--rounds N] [--seed N] [--tell]     --tell tells each call before it is made
local spl = require "spl"
local core = require "spl.core"

local o = spl.args { "Fuzzes the Lua API.", rounds = 60, seed = 1, tell = false,
    only = { default = "", help = "functions whose name contains this" } }

-- What ends the process, runs a command of its own, or is no module to call; what works for minutes when it is called
-- well.
local SKIPPED_MODULES = { boot = true, init = true, test = true, strict = true, help = true, info = true,
    repl = true, sweep = true, sweep_store = true, sweep_report = true, plots = true, meshes = true }
local SKIPPED = { ["differential.main"] = true }
local INSTRUCTIONS = 2000000 -- of Lua in one call; a longer one is cut short
local real_print, real_exit = print, os.exit
local live_before = spl.live().total

print = function() end -- luacheck: ignore
io.write = function() end -- luacheck: ignore
os.exit = function() -- luacheck: ignore
    spl.error { code = "interrupt", message = "os.exit was called" }
end

-- ---- what there is

local functions, seen = {}, {}

local function add(name, f)
    if type(f) == "function" and not seen[f] and not SKIPPED[name] and name:find(o.only, 1, true) then
        seen[f] = true
        functions[#functions + 1] = { name = name, call = f, is_c = debug.getinfo(f, "S").what == "C" }
    end
end

local function sorted(t)
    local keys = {}
    for key in next, t do
        if type(key) == "string" then
            keys[#keys + 1] = key
        end
    end
    table.sort(keys)
    return keys
end

local function add_table(prefix, t)
    for _, key in ipairs(sorted(t)) do
        local value = rawget(t, key)
        add(prefix .. key, value)
        if type(value) == "table" and not seen[value] and value ~= _G then
            seen[value] = true
            add_table(prefix .. key .. ".", value)
            local meta = debug.getmetatable(value)
            if meta and meta.__call then
                add(prefix .. key .. "()", meta.__call)
            end
        end
    end
end

-- Methods stand in the metatable's __index, or in a table that an __index in C carries.
local function add_methods(name, meta)
    for _, key in ipairs(sorted(meta)) do
        add(name .. ":" .. key, meta[key])
    end
    local index = rawget(meta, "__index")
    if type(index) == "table" then
        add_table(name .. ":", index)
    elseif type(index) == "function" then
        local _, methods = debug.getupvalue(index, 1)
        if type(methods) == "table" then
            add_table(name .. ":", methods)
        end
    end
end

-- What ends the run, speaks to people, or belongs to the prompt is for the host's own modules only.
for _, inside in ipairs { core.leave, core.warn, core.repl, core.system } do
    seen[inside] = true
end
if spl.size() > 1 then -- without agreement each call that only some make costs the whole time limit
    seen[core.check_collectives] = true
end
add_table("spl.", core)
for _, path in ipairs(core.embedded_list()) do
    local name = path:match("^spl/(.*)%.lua$")
    if name and not SKIPPED_MODULES[name] then
        local module = require("spl." .. name)
        if type(module) == "table" then
            add_table(name .. ".", module)
        end
    end
end
-- ---- arguments

local function pick(list)
    return list[math.random(#list)]
end

-- Sizes are small or absurd: what lies between would be done, and take the machine's memory.
local NUMBERS = { 0, 1, 2, 3, 4, 7, 8, 16, -1, -2, 0.5, -0.0, 2.0, 1e300, math.huge, -math.huge, 0 / 0, 1 << 53,
    1 << 62, math.maxinteger, math.mininteger, 4294967296, 0x7fffffff }
local LONG = ("x"):rep(100)
local STRINGS = { "", "a", "f32", "f64", "bf16", "i64", "bool", "tp=*", "tp=*:tensor", "tp=1", "tp", "x=2:ring",
    "tp=shard(1)", "tp=shard(9)", "tp=partial", "replicate", "gelu", "rms", "sum", "+", "normal", "--help", "--batch",
    "\0", "a\0b", "\xff\xfe", "%s%n%d", "/nonexistent/x", ".", LONG:rep(50), "(", "[", "(?i", "\\p{L}+", "{}", "[1,2",
    "2048", "1e5", "nil" }
local KEYS = { "hidden", "heads", "kv_heads", "head_dim", "ffn", "norm", "eps", "causal", "seed", "dtype", "batch",
    "seq", "shape", "layout", "mesh", "act", "gated", "dropout", "rounds", "warmup", "flops", "quiet", "name", "code",
    "message", "axes", "size", "model", "type", "vocab", "merges", "pattern", "single", "weight_map", "default",
    "choices", "min", "max", "required", "axis", "into", "root", "op", "tp", "x", "q", "k", "v", "keep", "save",
    "step", "from", "to", "__index", "__len", "special", "mask", "scale", "ranks", "of" }

local RECENT = 24
local pool, recent = {}, {} -- recent: by the number of the call
local value -- the generator, below

local function some_table(depth)
    local t, kind = {}, math.random(7)
    if kind <= 3 then
        for i = 1, math.random(0, 4) do
            t[i] = math.random(2) == 1 and math.random(0, 4) or value(depth + 1)
        end
    elseif kind <= 5 then
        for _ = 1, math.random(1, 5) do
            t[pick(KEYS)] = value(depth + 1)
        end
    elseif kind == 6 then
        local key = value(depth + 1)
        t[1], t[pick(KEYS)], t[key == key and key or 1] = value(depth + 1), value(depth + 1), 1
        t[t] = t
    else
        local odd = value(depth + 1)
        setmetatable(t, { __index = function() return type(odd) == "string" and odd .. os.clock() or odd end,
            __len = function() return odd end, __tostring = function() return odd end, __name = "odd",
            __eq = function() error "__eq" end })
    end
    return t
end

local CALLBACKS = {
    function() end,
    function(...) return ... end,
    function() error("an error of the callback, as it is") end,
    function() error(setmetatable({}, {})) end,
    function() collectgarbage() end,
    function(...)
        for _, x in ipairs { ... } do
            pcall(function() x:release() end)
        end
    end,
    function()
        for _, x in ipairs(pool) do
            if math.random(3) == 1 then
                pcall(function() x:release() end)
            end
        end
    end,
}

function value(depth)
    local kind = math.random(depth > 2 and 6 or 12)
    if kind == 1 then
        return nil
    elseif kind == 2 then
        return math.random(2) == 1
    elseif kind <= 4 then
        return pick(NUMBERS)
    elseif kind <= 6 then
        return pick(STRINGS)
    elseif kind == 7 then
        return pick(CALLBACKS)
    elseif kind == 8 then
        return recent[math.random(RECENT)] or {}
    elseif kind <= 10 then
        return some_table(depth)
    end
    return pick(pool)
end

local header = '{"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},' ..
    '"e":{"dtype":"I32","shape":[0],"data_offsets":[8,8]}}'
local weights_path = ("one%d.safetensors"):format(spl.rank())
local weights = assert(io.open(weights_path, "wb"))
weights:write(("<i8"):pack(#header), header, ("\0"):rep(8))
weights:close()

-- Objects of every kind, fresh, and one of each that was released.
local function fill_pool()
    pool = {}
    local function both(make)
        pool[#pool + 1] = make()
        local gone = make()
        gone:release()
        pool[#pool + 1] = gone
    end
    both(function() return spl.mesh("tp=*:tensor") end)
    local mesh = pool[1]
    both(function() return spl.tensor { shape = { 2, 3, 4 } } end)
    both(function() return spl.tensor { shape = { 2, 4 }, dtype = "i64" } end)
    both(function() return spl.tensor { shape = { 0, 3 }, dtype = "f64" } end)
    both(function() return spl.tensor { shape = { 4, 6 }, mesh = mesh, layout = "tp=shard(2)" } end)
    both(function() return spl.block { hidden = 8, heads = 2, ffn = 8, seed = 3 } end)
    both(function() return spl.block { hidden = 8, heads = 2, seed = 3 }:schedule(mesh) end)
    both(function() return spl.regex.compile("\\p{L}+") end)
    both(function() return spl.safetensors.require(weights_path) end)
    pool[#pool + 1] = spl.layout("tp=shard(1)", mesh, { 8, 2 })
    pool[#pool + 1] = select(2, pcall(spl.error, { message = "a thing to pass around" }))
    pool[#pool + 1] = coroutine.create(function() end)
    pool[#pool + 1] = io.tmpfile()
    pool[#pool + 1] = require("spl.json").null
    local saved = select(2, pool[13]:forward(pool[13]:input { batch = 1, seq = 3 }:randn(1), { save = true }))
    pool[#pool + 1] = saved
end

-- Metatables are there once there are objects.
fill_pool()
tostring(pool[3].shape)
for _, key in ipairs(sorted(debug.getregistry())) do
    local meta = debug.getregistry()[key]
    if key:match("^spl%.") and type(meta) == "table" then
        add_methods(key, meta)
    end
end

-- ---- calling

local counts = { calls = 0, results = 0, errors = 0, plain = 0, cut = 0 }
local bad, plain_from = {}, {}
local CUT = setmetatable({}, { __tostring = function() return "cut short" end })

local function complain(f, what)
    local line = ("%s: %s"):format(f.name, what)
    if not bad[line] then
        bad[line] = true
        bad[#bad + 1] = line
    end
end

local function judge(f, e)
    counts.errors = counts.errors + 1
    if rawequal(e, CUT) then
        counts.cut = counts.cut + 1
    elseif spl.is_error(e) then
        local text = rawget(e, "message")
        -- (one of our long names may fill the whole message)
        local sentence = type(text) == "string" and #text >= 8
            and (text:find(" ", 1, true) or text:find(LONG, 1, true)) or f.name == "spl.error" -- its text is ours
        if not sentence then
            complain(f, ("an error object without a sentence: %q"):format(tostring(text)))
        elseif rawget(e, "code") == "internal" then
            complain(f, "an internal error: " .. text)
        end
    elseif type(e) == "string" then
        counts.plain = counts.plain + 1
        if #e < 8 or not e:find(" ", 1, true) then
            complain(f, ("a plain error without a sentence: %q"):format(e))
        end
        plain_from[f.name] = plain_from[f.name] or e
    elseif type(e) ~= "table" then -- a table: from one of our own callbacks
        complain(f, "an error that is a " .. type(e))
    end
end

local function shown(x)
    if type(x) == "string" then
        return ("%q"):format(x:sub(1, 40))
    end
    return type(x) == "number" and tostring(x) or type(x) == "userdata" and (getmetatable(x) or {}).__name or type(x)
end

local function call(f)
    -- by its number, so that ranks make the same calls whatever came of those before
    math.randomseed(o.seed, counts.calls)
    local list, n = {}, math.random(0, 5)
    for i = 1, n do
        list[i] = value(0)
    end
    if f.name:find(":", 1, true) and math.random(8) > 1 then -- mostly on an object of that kind
        local kind, same = f.name:match("^([^:]*):"), {}
        for _, x in ipairs(pool) do
            local meta = type(x) == "userdata" and debug.getmetatable(x)
            if meta and meta.__name == kind then
                same[#same + 1] = x
            end
        end
        if #same > 0 then
            list[1], n = pick(same), math.max(n, 1)
        end
    end
    if o.tell then
        local words = {}
        for i = 1, n do
            words[i] = shown(list[i])
        end
        io.stderr:write(f.name, "(", table.concat(words, ", "), ")\n")
    end
    counts.calls = counts.calls + 1
    debug.sethook(function() error(CUT) end, "", INSTRUCTIONS)
    local result = table.pack(pcall(f.call, table.unpack(list, 1, n)))
    debug.sethook()
    if not result[1] then
        judge(f, result[2])
        return
    end
    counts.results = counts.results + 1
    for i = 2, math.min(result.n, 4) do
        if type(result[i]) == "userdata" or type(result[i]) == "table" then
            recent[(counts.calls + i) % RECENT + 1] = result[i]
        end
    end
end

for round = 1, o.rounds do
    if round % 4 == 1 then
        fill_pool()
        recent = {}
    end
    for _, f in ipairs(functions) do
        call(f)
    end
    if round % 10 == 0 then
        collectgarbage()
    end
end

-- ---- what came out

pool, recent = {}, {}
debug.sethook()
collectgarbage()
collectgarbage()
local alive = spl.live().total - live_before
for _, line in ipairs(bad) do
    real_print("BAD " .. line)
end
for _, name in ipairs(sorted(plain_from)) do
    real_print("plain " .. name .. ": " .. tostring(plain_from[name]):gsub("\n.*", ""))
end
real_print(("%d functions, %d calls: %d results, %d errors of which %d plain and %d cut short; %d alive"):format(
    #functions, counts.calls, counts.results, counts.errors, counts.plain, counts.cut, alive))
real_exit(#bad == 0 and alive == 0)
