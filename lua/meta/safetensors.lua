---@meta
-- safetensors.lua: weight files in the safetensors format, validated whole before any data is read.
--
-- A file that breaks the format raises an error with code "format", one with a dtype other than F64 F32 BF16 F16 I64
-- I32 U8 BOOL or with more than 6 dimensions one with code "unsupported"; both name the file and the tensor.

---@class spl.safetensors.library
local safetensors = {}

---@class spl.safetensors
local file = {}

--- [local] Opens a file.
---@param path string
---@return spl.safetensors? file nil, message, code "io" where it cannot be opened
---@return string? message
---@return string? code
function safetensors.open(path) end

--- [local] Opens a file that must be there. Errors: code "io" where it cannot be opened.
---@param path string
---@return spl.safetensors file
function safetensors.require(path) end

--- [local] Names of the tensors, in the order of their data.
---@return string[]
function file:names() end

--- [local] What a tensor is.
---@param name string
---@return { dtype: string, shape: integer[] }? info nil where the file has none of this name
function file:info(name) end

--- [local] Fills a tensor with this rank's part of the stored one, converted to its dtype. Errors: code "format" where
--- the file has no such tensor, or one of another shape (both shapes are named).
---@param name string
---@param tensor spl.tensor its global shape is the stored one
---@return spl.tensor tensor
function file:load(name, tensor) end

--- [local] A stored tensor as nested tables, a scalar as itself; for small ones. Errors: code "format" where there is
--- none.
---@param name string
---@return any
function file:table(name) end

--- [local] Closes the file; also what __close and __gc do.
function file:release() end

---@class spl
---@field safetensors spl.safetensors.library

return safetensors
