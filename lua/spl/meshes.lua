-- meshes.lua: spl.meshes(ranks): the meshes that a block can use on so many ranks, found by asking the program itself
-- (scripts/list_meshes.lua on virtual ranks that compute nothing), for the grids of sweeps.
local core = require "spl.core"
local json = require "spl.json"
local spl = require "spl"
local meshes = {}

local known = {} -- answers by question

local LIMIT = 120 -- seconds; it takes a fraction of one

local function read(path)
    local file = io.open(path, "rb")
    local text = file and file:read "a" or ""
    if file then
        file:close()
    end
    os.remove(path)
    return text
end

--- [local] Meshes as texts ("tp=4:tensor", "dp=2:data, tp=2:sequence"): every way of cutting the ranks into axes, with
--- every choice of roles that a block takes. Starts a process.
---@param ranks integer
---@param options? {axes: integer?, hidden: integer?, heads: integer?, kv_heads: integer?} axes: at most so many (2)
---@return string[]
---Errors: code "argument" for what is no number of ranks; what the process said where it failed.
function meshes.meshes(ranks, options)
    if math.type(ranks) ~= "integer" or ranks < 1 or ranks > 4096 then
        spl.error { message = ("meshes: ranks = %s; whole numbers from 1 to 4096 are possible"):format(
            tostring(ranks)) }
    end
    local words = { spl.executable(), "run", "--virtual", ("%d"):format(ranks), "--backend", "null",
        core.shipped().list_meshes or "list_meshes.lua", "--", "--json" }
    local names = {}
    for name in pairs(options or {}) do
        names[#names + 1] = name
    end
    table.sort(names)
    for _, name in ipairs(names) do
        words[#words + 1] = ("--%s=%s"):format(name:gsub("_", "-"), tostring(options[name]))
    end
    local question = table.concat(words, "\n")
    if known[question] then
        return table.move(known[question], 1, #known[question], 1, {})
    end
    local out, err = os.tmpname(), os.tmpname()
    local result, message = core.system.run_process(words, { out = out, err = err, seconds = LIMIT })
    local text, problem = read(out), read(err)
    if not result or result.how ~= "exit" or result.code ~= 0 then
        spl.error { code = result and result.how == "interrupt" and "interrupt" or "argument", message = "meshes: "
            .. (message or problem:match "spl: ([^\n]+)" or "the program that lists them did not end well") }
    end
    local list = {}
    for line in text:gmatch "[^\n]+" do
        list[#list + 1] = json.decode(line).mesh
    end
    known[question] = list
    return table.move(list, 1, #list, 1, {})
end

return meshes
