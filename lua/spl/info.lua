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
    return {
        { "spl", f.version },
        { "host", f.host .. ", " .. (f.system or "unknown system") },
        { "processor", ("%s; %d cores, %d allowed to this process (%s); %s"):format(f.processor, f.cores,
            f.cores_allowed, f.affinity, gib(f.memory_bytes)) },
        { "ranks", ("%d, %d thread%s each"):format(f.ranks, f.threads, f.threads == 1 and "" or "s") },
        { "backend", f.backend_description },
        { "blas", f.blas },
        { "tiles", "products of attention tiles: register tiles of SPL's own; libxsmm is not used" },
        { "mpi", f.mpi },
        { "lua", f.lua },
        { "cuda", f.cuda },
        { "built by", f.compiler .. " " .. f.flags },
    }
end

function info.main()
    if spl.rank() == 0 then
        for _, line in ipairs(info.lines()) do
            print(("%-10s %s"):format(line[1], line[2]))
        end
    end
end

return info
