-- index.lua: fuzzed: any text as model.safetensors.index.json of a directory, which also holds one shard a.safetensors.
-- The files are given to the modules in memory, the shard through a directory made once.
local spl = require "spl"
local expect = require "expect"

local DIR = os.tmpname()
os.remove(DIR)
assert(os.execute("mkdir -p '" .. DIR .. "'"))

local header = '{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
local shard = assert(io.open(DIR .. "/a.safetensors", "wb"))
shard:write(("<i8"):pack(#header), header, "\0\0\128\63")
shard:close()
-- Removed when the state is closed.
local keeper = setmetatable({}, { __gc = function()
    os.remove(DIR .. "/a.safetensors")
    os.remove(DIR)
end })

local plain_open, index = io.open, nil
function io.open(path, mode) -- luacheck: ignore
    if path == DIR .. "/model.safetensors.index.json" then
        return { read = function() return index end, close = function() return keeper end }
    end
    return plain_open(path, mode)
end

local weights = require "spl.weights"

local function try(input)
    index = input
    local w = expect.refused_or_made(weights.open, DIR)
    if not w then
        return
    end
    local asked = 0
    for name in pairs(w.map) do
        local there = expect.refused_or_made(w.has, w, name)
        asked = asked + 1
        if there or asked > 40 then
            break
        end
    end
    expect.refused_or_made(w.has, w, "no such tensor")
    w:release()
    assert(next(w.files) == nil and spl.is_error ~= nil, "files that stay open")
end

return try, require("json_tree").change
