---@meta
-- runtime.lua: the rank a script runs on, agreement between ranks, counters and errors.

---@class spl
---@field version string
local spl = {}

--- [local] This rank, from 0.
---@return integer
function spl.rank() end

--- [local] The number of ranks.
---@return integer
function spl.size() end

--- [local] Threads that kernels of this rank use: its share of the cores unless --threads or OMP_NUM_THREADS says
--- otherwise.
---@return integer
function spl.threads() end

--- [local] Whether this is one of several ranks of one process that take turns (`spl run --virtual P`): times mean
--- nothing then.
---@return boolean
function spl.virtual() end

--- [collective] Returns when every rank has called it.
function spl.barrier() end

--- [local] Returns when this rank's device has done all that was asked of it so far: before a clock is read. On the CPU
--- that is always so.
function spl.synchronize() end

--- [collective] The largest of the ranks' values, for each of up to 16 arguments. Integers stay integers below 2^53.
---@param x number
---@param ... number
---@return number ...
function spl.max(x, ...) end

--- [collective] The smallest of the ranks' values, for each argument.
---@param x number
---@param ... number
---@return number ...
function spl.min(x, ...) end

--- [collective] The sum of the ranks' values, for each argument, added in rank order: equal on all ranks to the last
--- bit.
---@param x number
---@param ... number
---@return number ...
function spl.sum(x, ...) end

--- [collective] The strings of all ranks, in rank order; they may differ in length.
---@param text string
---@return string[]
function spl.gather(text) end

--- [local] What this rank has done since the start or the last reset: `calls` and `bytes` by collective ("all-gather"
--- ...) and in `total` (logical bytes sent), `comm_seconds` inside communication, `comm_exposed_seconds` of them not
--- covered by compute, `gemm_flops`, `attention_flops`, `attention_tiles`, `memory` as spl.memory gives it.
---@return table
function spl.counters() end

--- [local] Sets calls, bytes, seconds and FLOPs to zero; the peaks of memory start again from what is held now.
function spl.reset_counters() end

--- [local] Bytes that core holds on this rank: {now = , peak = }, each by category: weights, activations, buffers,
--- workspace.
---@return table
function spl.memory() end

--- [local] Objects of core alive on this rank: {tensors = , storages = , meshes = , blocks = , total = }.
---@return table
function spl.live() end

--- [local] Seconds from an arbitrary start, never backwards.
---@return number
function spl.now() end

--- [local] The name of this machine.
---@return string
function spl.host() end

--- [local] The machine, the libraries and the build, as `spl info` prints them. blas_forced says so where the
--- environment has chosen the kernels of OpenBLAS; it is nil where they are the library's or spl's own choice.
---@return table
function spl.facts() end

--- [local] The path of this program.
---@return string
function spl.executable() end

--- [local] Whether ranks agree on each collective before data moves (as --check-collectives does). Every rank must set
--- the same.
---@param on boolean
function spl.check_collectives(on) end

--- [local] The string of the list that `word` was probably meant to be, or nil.
---@param word string
---@param list string[]
---@return string?
function spl.nearest(word, list) end

--- [local] Raises an error object {code, message, rank, exit}. Codes: usage (exit code 2), environment (3), disagree
--- and stall (4), and with 1 argument, memory, io, format, released, numeric, interrupt, unsupported, internal. It
--- prints as its message. Of disagree and stall it may also have `report`, a text: the table of what each rank was
--- doing, and where.
---@param options {code: string?, message: string} code is "argument" when absent
function spl.error(options) end

--- [local] Whether the value is an error object of spl.
---@param value any
---@return boolean
function spl.is_error(value) end

return spl
