---@meta
-- trace.lua: recording what ranks do, for chrome://tracing and Perfetto (ui.perfetto.dev); `spl run --trace FILE` does
-- it for a whole run, `spl trace FILE` sums a file up.

---@class spl
local spl = {}

--- [collective] From now on ops, redistributions, communication (bytes, members or peers), waits and memory of every
--- rank are recorded, each with the script's line. Times are microseconds of one clock, also across machines.
---@param options? {events: integer?} the most events that a rank keeps (default 200,000); later ones are only counted
---Errors: code "argument" where a trace is being recorded already.
function spl.trace_start(options) end

--- [collective] Ends the recording and writes it, for all ranks, to one file: whole or not at all.
---@param path string
---Errors: code "io" where the file cannot be written; "argument" where nothing is being recorded.
function spl.trace_write(path) end

--- [local] Whether a trace is being recorded.
---@return boolean
function spl.tracing() end

--- [local] Adds something of the script's own to the trace, from `begin` until now: a round, a layer. Does nothing
--- where none is being recorded.
---@param name string
---@param begin number what spl.now() was
function spl.trace_span(name, begin) end

return spl
