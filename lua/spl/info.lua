-- info.lua: `spl info`: version, machine, libraries, and the choices made from them.
local spl = require "spl"
local info = {}

local function gib(bytes)
    return ("%.1f GiB"):format(bytes / 2 ^ 30)
end

--- [local] The lines of `spl info`, as {label, text}.
---@return string[][]
function info.lines()
    local f = spl.facts()
    local lines = {
        { "spl", f.version },
        { "host", f.host .. ", " .. (f.system or "unknown system") },
        { "processor", ("%s; %d cores; %s"):format(f.processor, f.cores, gib(f.memory_bytes)) },
        { "affinity", ("cores %s: %d of %d"):format(f.affinity, f.cores_allowed, f.cores) },
        { "ranks", ("%d, %d thread%s each"):format(f.ranks, f.threads, f.threads == 1 and "" or "s") },
        { "backend", f.backend_description },
        { "blas", f.blas .. (f.blas_forced and "; " .. f.blas_forced
            or f.blas_choice and ("; OPENBLAS_CORETYPE=%s, set by spl"):format(f.blas_choice) or "") },
    }
    for ops, kernel in f.kernels:gmatch "([^\n]-): ([^\n]+)" do
        lines[#lines + 1] = { #lines == 7 and "kernels" or "", ops .. ": " .. kernel }
    end
    for _, line in ipairs { { "mpi", f.mpi }, { "lua", f.lua }, { "cuda", f.cuda },
        { "built by", f.compiler .. " " .. f.flags } } do
        lines[#lines + 1] = line
    end
    return lines
end

function info.main()
    if spl.rank() == 0 then
        for _, line in ipairs(info.lines()) do
            print(("%-10s %s"):format(line[1], line[2]))
        end
    end
end

return info
