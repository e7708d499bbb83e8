-- mpi.lua: for specs: runs spl as a child, on any number of ranks, within a time limit, and says what came out.
local spl = require "spl"
local mpi = {}

local LIMIT = 120 -- seconds: generous, so that only a hang reaches it

local function quote(word)
    return "'" .. tostring(word):gsub("'", "'\\''") .. "'"
end

--- Do programs run under the address sanitizer? It takes terabytes of address space, and no other tool beside it.
function mpi.sanitized()
    return spl.executable():find("build-asan", 1, true) ~= nil
end

local function read_file(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read("a")
    file:close()
    return text
end

--- A new file with this text; the caller removes it.
function mpi.temporary(text, suffix)
    local path = os.tmpname()
    if suffix then
        os.remove(path)
        path = path .. suffix
    end
    local file = assert(io.open(path, "wb"))
    file:write(text)
    file:close()
    return path
end

-- Runs a shell command line. `timeout` ends its whole process group, mpirun and its ranks with it.
local function run_line(line, opts)
    local out, err = os.tmpname(), os.tmpname()
    local limit = opts.limit or LIMIT
    local environment = {}
    for name, value in pairs(opts.env or {}) do
        environment[#environment + 1] = name .. "=" .. quote(value)
    end
    table.sort(environment)
    local full = ("timeout -k 10 %d env %s %s < %s > %s 2> %s"):format(limit, table.concat(environment, " "), line,
        opts.stdin and quote(opts.stdin) or "/dev/null", quote(out), quote(err))
    local started = spl.now()
    local _, kind, code = os.execute(full)
    local result = { code = kind == "exit" and code or 128 + code, seconds = spl.now() - started, out = read_file(out),
        err = read_file(err), line = line }
    os.remove(out)
    os.remove(err)
    if mpi.sanitized() then -- it says so at every switch of virtual ranks
        result.err = result.err:gsub("==%d+==WARNING: ASan doesn't fully support makecontext[^\n]*\n", "")
    end
    if result.code == 124 or result.code == 137 then
        error(("hung: not done after %d s: %s\n%s%s"):format(limit, line, result.out, result.err), 3)
    end
    return result
end

local function words_of(list)
    local words = {}
    for i, word in ipairs(list or {}) do
        words[i] = quote(word)
    end
    return table.concat(words, " ")
end

--- Any program and its arguments as a child.
---@param words string[]
---@param opts table?
---@return table {code=, out=, err=, seconds=}
function mpi.command(words, opts)
    return run_line(words_of(words), opts or {})
end

--- `spl WORDS...` as a child of one process.
---@param words string[]
---@param opts table? {limit = seconds, env = {}, stdin = path}
---@return table {code=, out=, err=, seconds=}
function mpi.spl(words, opts)
    return run_line(quote(spl.executable()) .. " " .. words_of(words), opts or {})
end

--- Runs a script on n ranks: `spl run -n N SCRIPT ARGS`; with opts.mpirun under a plain mpirun instead; n = 1 runs
--- without any launcher.
---@param n integer
---@param script string a path, a shipped name, or a Lua chunk (anything with a newline or a space in it)
---@param args string[]?
---@param opts table? {limit = seconds, env = {}, stdin = path, mpirun = true, flags = {"--timeout", "5"}}
---@return table {code=, out=, err=, seconds=}
function mpi.run(n, script, args, opts)
    opts = opts or {}
    local chunk = script:find("[%s]") and mpi.temporary(script, ".lua")
    local line = quote(spl.executable()) .. " run"
    if opts.mpirun then
        line = ("mpirun --allow-run-as-root --oversubscribe --bind-to none -n %d %s"):format(n, line)
    elseif n > 1 then
        line = line .. " -n " .. n
    end
    line = ("%s %s %s -- %s"):format(line, words_of(opts.flags), quote(chunk or script), words_of(args))
    local ok, result = pcall(run_line, line, opts)
    if chunk then
        os.remove(chunk)
    end
    if not ok then
        error(result, 0)
    end
    return result
end

--- How often `text` occurs in `where` (plain text).
function mpi.count(where, text)
    local n, at = 0, 1
    while true do
        local first, last = where:find(text, at, true)
        if not first then
            return n
        end
        n, at = n + 1, last + 1
    end
end

return mpi
