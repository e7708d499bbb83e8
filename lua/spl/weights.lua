--- The weights of a Hugging Face model directory: one model.safetensors, or shards with an index. Each file is opened
--- once, and each rank reads only its part of a tensor out of it.
local spl = require "spl"
local json = require "spl.json"

---@class spl.weights
local weights = {}
weights.__index = weights

local FLOATS = { f64 = true, f32 = true, bf16 = true, f16 = true }

local function fail(code, format, ...)
    spl.error{ code = code, message = format:format(...) }
end

local exists = require "spl.core".exists

local function read_index(self, path)
    local index, message, code = json.read(path)
    if index == nil then fail(code, "%s", message) end
    if type(index) ~= "table" or type(index.weight_map) ~= "table" then
        fail("format", "%s: it has no 'weight_map' object", path)
    end
    for name, file in pairs(index.weight_map) do
        if type(name) ~= "string" or type(file) ~= "string" or file == "" or file:find "/" then
            fail("format", "%s: 'weight_map' must name a file beside it for tensor '%s'", path, tostring(name))
        end
    end
    self.map, self.source = index.weight_map, path
end

--- [local] Opens the weights of a directory. Errors: code "io" where there are no weights or a shard is missing,
--- "format" for broken files.
---@param dir string
---@return spl.weights
function weights.open(dir)
    if type(dir) ~= "string" then
        fail("argument", "weights.open: the directory of a model is needed, got %s", type(dir))
    end
    local self = setmetatable({ dir = dir, files = {}, loaded = {} }, weights)
    local single, index = dir .. "/model.safetensors", dir .. "/model.safetensors.index.json"
    if exists(single) then
        self.source = single
        self.files[single] = spl.safetensors.require(single)
    elseif exists(index) then
        read_index(self, index)
    else
        fail("io", "%s: it has neither model.safetensors nor model.safetensors.index.json; give the directory of a "
            .. "Hugging Face model with safetensors weights", dir)
    end
    return self
end

--- [local] The open file that holds a tensor; nil when none does.
---@param name string
---@return spl.safetensors?
function weights:file_of(name)
    if not self.map then
        local file = self.files[self.source]
        return file:info(name) and file
    end
    local shard = self.map[name]
    if not shard then return nil end
    local path = self.dir .. "/" .. shard
    if not self.files[path] then
        local file, message = spl.safetensors.open(path)
        if not file then fail("io", "%s (tensor '%s' should be in it, says %s)", message, name, self.source) end
        self.files[path] = file
    end
    if not self.files[path]:info(name) then
        fail("format", "%s: it has no tensor '%s', which %s says is in it", path, name, self.source)
    end
    return self.files[path]
end

--- [local] Whether there is a tensor of this name.
---@param name string
---@return boolean
function weights:has(name)
    return self:file_of(name) ~= nil
end

--- [local] Fills `tensor` with this rank's part of the stored tensor, converted to its dtype. Errors: code "format"
--- where it is missing, has another shape (both shapes are named) or does not hold floats.
---@param name string
---@param tensor spl.tensor  of the stored shape
function weights:load(name, tensor)
    local file = self:file_of(name)
    if not file then fail("format", "%s: tensor '%s' is missing", self.source, name) end
    local dtype = file:info(name).dtype
    if not FLOATS[dtype] then
        fail("format", "%s: tensor '%s' has dtype %s; the weights of a model are F64, F32, BF16 or F16", self.source,
            name, dtype:upper())
    end
    file:load(name, tensor)
    self.loaded[#self.loaded + 1] = name
    local _, _, has_values = spl.reference.judged()
    if not has_values then return end -- a dry run: shapes only
    local part <close> = tensor:to_local()
    local stats = part:stats()
    if stats.nan + stats.inf > 0 then self.bad = self.bad or #self.loaded end
    self.narrowed = tensor.dtype == "f16" and dtype ~= "f16"
end

--- [collective] Refuses weights with values that are no finite numbers, whichever rank holds them. Errors: code
--- "numeric", naming the first such tensor.
function weights:check()
    local first = spl.min(self.bad or #self.loaded + 1)
    if first <= #self.loaded then
        fail("numeric", "%s: tensor '%s' has values that are NaN or infinite; the file is damaged or was saved from a "
            .. "run that had diverged%s", self.source, self.loaded[first],
            self.narrowed and ", or they are past 65504, where f16 ends: load as bf16" or "")
    end
end

--- [local] Closes the files.
function weights:release()
    for path, file in pairs(self.files) do
        file:release()
        self.files[path] = nil
    end
end

weights.__close = weights.release

return weights
