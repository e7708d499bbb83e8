-- lint.lua: the rules of the house that a program can check: `make lint`. TAP output, one test a rule.
local spl = require "spl"

local o = spl.args { "Checks the rules of the house.", build = { default = "build", metavar = "DIR" } }

local CORE_FOR_KERNELS = { ["backend.h"] = true, ["comm.h"] = true, ["status.h"] = true, ["dtype.h"] = true }
local MAX_COLUMNS, MAX_LINES = 120, 650
local FOREIGN = { -- headers of libraries, and the only files that may see them
    ["^mpi%.h$"] = { ["core/comm_mpi.c"] = true, ["core/describe.c"] = true },
    ["^jansson%.h$"] = { ["core/safetensors.c"] = true },
    ["^pcre2%.h$"] = { ["lua/lregex.c"] = true },
}
local FORBIDDEN_CALLS = { printf = true, puts = true, putchar = true, fprintf = true, vfprintf = true, fputs = true,
    perror = true, exit = true, _exit = true, _Exit = true, abort = true, __assert_fail = true }
local MAY_EXIT = { ["lua/main.c"] = true, ["lua/launch.c"] = true, ["lua/interrupt.c"] = true,
    ["lua/lprocess.c"] = true }
-- The `abort` of a comm ends the process by contract.
local MAY_END = { ["core/comm_dry.c"] = true, ["core/comm_mpi.c"] = true, ["core/comm_self.c"] = true }

local rules, problems = {}, nil

local function problem(format, ...)
    problems[#problems + 1] = format:format(...)
end

local function rule(name, check)
    rules[#rules + 1] = { name, check }
end

local function lines_of(command)
    local pipe = assert(io.popen(command))
    local lines = {}
    for line in pipe:lines() do
        lines[#lines + 1] = line
    end
    pipe:close()
    return lines
end

local function files(folders, patterns)
    local names = {}
    for i, pattern in ipairs(patterns) do
        names[i] = "-name '" .. pattern .. "'"
    end
    return lines_of(("find %s -type f \\( %s \\) 2>/dev/null | sort"):format(folders, table.concat(names, " -o ")))
end

local function read(path)
    local file = assert(io.open(path))
    local text = file:read("a")
    file:close()
    return text
end

local function exists(path)
    local file = io.open(path)
    if file then
        file:close()
    end
    return file ~= nil
end

local C_FILES = files("core kernels lua tests examples", { "*.c", "*.h", "*.cu", "*.cpp" })
local LUA_FILES = files("lua scripts tests examples", { "*.lua" })

rule("luacheck", function()
    for _, line in ipairs(lines_of("luacheck --no-color -q --codes lua scripts tests examples 2>&1; echo status $?")) do
        if line ~= "status 0" and line ~= "" and not line:match("^Total:") and not line:match("^Checking .* OK$") then
            problem("%s", line)
        end
    end
end)

rule("lines of at most 120 columns, no tabs, no blanks at the end", function()
    for _, list in ipairs { C_FILES, LUA_FILES } do
        for _, path in ipairs(list) do
            local number = 0
            for line in (read(path) .. "\n"):gmatch("(.-)\n") do
                number = number + 1
                if (utf8.len(line) or #line) > MAX_COLUMNS then
                    problem("%s:%d: %d columns", path, number, utf8.len(line) or #line)
                elseif line:find("\t", 1, true) or line:find("%s$") then
                    problem("%s:%d: tab, or blanks at the end", path, number)
                end
            end
        end
    end
end)

rule("each file begins with its one subject, and is not too long", function()
    for _, list in ipairs { C_FILES, LUA_FILES } do
        for _, path in ipairs(list) do
            local text = read(path)
            local first = text:match("^[^\n]*")
            if not first:match(path:match("%.lua$") and "^%-%-" or "^/%*") then
                problem("%s: its first line does not say its subject", path)
            end
            local _, count = text:gsub("\n", "\n")
            if count > MAX_LINES then
                problem("%s: %d lines; split it by subject", path, count)
            end
        end
    end
end)

-- Where a file of `folder` may take a header of ours from; nil: it may not.
local function allowed_header(path, folder, header)
    local beside = path:match("^(.*)/") .. "/" .. header
    if header:find("..", 1, true) then
        return false
    elseif folder == "core" then
        return exists("core/" .. header)
    elseif folder == "kernels" then
        local twin = header == "twins.h" and path == "kernels/cuda/mma.h" -- what the emulator has in place of PTX
        return exists(beside) or CORE_FOR_KERNELS[header] or twin
    elseif folder == "lua" then
        return exists("lua/" .. header) or exists(beside) or header == "spl.h" or header == "build.h"
    end
    return true
end

rule("includes point one way: lua -> core <- kernels", function()
    for _, path in ipairs(C_FILES) do
        local folder = path:match("^[^/]+")
        for kind, header in read(path):gmatch("#%s*include%s*([<\"])([^>\"]+)[>\"]") do
            if kind == '"' and not allowed_header(path, folder, header) then
                problem('%s includes "%s"', path, header)
            end
            if kind == "<" and folder ~= "lua" and (header:match("^lua") or header == "lauxlib.h") then
                problem("%s includes <%s>", path, header)
            end
            for pattern, seen_by in pairs(FOREIGN) do
                if header:match(pattern) and folder ~= "tests" and not seen_by[path] then
                    problem("%s includes <%s>", path, header)
                end
            end
        end
    end
end)

-- Symbols of the objects of a folder: {file, name, class, section}.
local function symbols(folder)
    local list = {}
    local command = "find %s/obj/%s -name '*.o' | sort | xargs nm -A -f sysv"
    for _, line in ipairs(lines_of(command:format(o.build, folder))) do
        local object, name, class, section = line:match("^(%S+%.o):(%S+)%s*|[^|]*|%s*(%a)%s*|[^|]*|[^|]*|[^|]*|(%S*)")
        local file = name and object:match("/obj/(.*)%.o$") .. ".c"
        if file and exists(file) then -- an object of a file that is gone says nothing
            list[#list + 1] = { file = file, name = name, class = class, section = section }
        end
    end
    return list
end

rule("core and kernels have no mutable globals", function()
    for _, folder in ipairs { "core", "kernels" } do
        for _, s in ipairs(symbols(folder)) do
            local writable = s.section == "*COM*" or s.section:match("^%.t?bss") or s.section:match("^%.t?data")
            if writable and not s.section:match("^%.data%.rel%.ro") and not s.name:match("^__?odr_asan") then
                problem("%s: %s in %s", s.file, s.name, s.section)
            end
        end
    end
end)

rule("core and kernels neither print nor exit", function()
    for _, folder in ipairs { "core", "kernels" } do
        for _, s in ipairs(symbols(folder)) do
            if s.class == "U" and FORBIDDEN_CALLS[s.name] and not (s.name == "_exit" and MAY_END[s.file]) then
                problem("%s calls %s", s.file, s.name)
            end
        end
    end
end)

rule("only lerror.c raises, only main.c, children that become another program and unheeded signals exit", function()
    for _, s in ipairs(symbols("lua")) do
        if s.class == "U" and (s.name == "lua_error" or s.name == "luaL_error") and s.file ~= "lua/lerror.c" then
            problem("%s calls %s", s.file, s.name)
        elseif s.class == "U" and s.name:match("^_?[eE]xit$") and not MAY_EXIT[s.file] then
            problem("%s calls %s", s.file, s.name)
        end
    end
end)

rule("names across files: spl_ and spli_ in core, splk_ in kernels, lspl_ in lua", function()
    local prefixes = { core = { "^spli?_" }, kernels = { "^splk_" }, lua = { "^lspl_", "^main$" } }
    for folder, patterns in pairs(prefixes) do
        for _, s in ipairs(symbols(folder)) do
            local fine = not s.class:match("[TDRBVW]") or s.section == "" or s.name:match("^__odr")
            for _, pattern in ipairs(patterns) do
                fine = fine or s.name:match(pattern)
            end
            if not fine then
                problem("%s: %s", s.file, s.name)
            end
        end
    end
end)

rule("lua/API.md says what the annotations say (`make api` writes it)", function()
    local wanted = require "spl.api".markdown()
    if not exists "lua/API.md" then
        problem("there is no lua/API.md")
        return
    end
    local number, given = 0, (read "lua/API.md"):gmatch "(.-)\n"
    for line in wanted:gmatch "(.-)\n" do
        number = number + 1
        local there = given()
        if there ~= line then
            problem("lua/API.md:%d: '%s', but the annotations say '%s'", number, tostring(there), line)
            return
        end
    end
    if given() then
        problem("lua/API.md:%d: there is more than the annotations say", number + 1)
    end
end)

rule("nothing is left for later", function()
    local words = { "TO" .. "DO", "FIX" .. "ME", "X" .. "XX", "not " .. "implemented" }
    for _, list in ipairs { C_FILES, LUA_FILES } do
        for _, path in ipairs(list) do
            local text = read(path)
            for _, word in ipairs(words) do
                if text:find(word, 1, true) then
                    problem("%s: %s", path, word)
                end
            end
        end
    end
end)

local failed = 0
for i, r in ipairs(rules) do
    problems = {}
    r[2]()
    for _, line in ipairs(problems) do
        print("# " .. line)
    end
    print(("%sok %d - lint: %s"):format(#problems > 0 and "not " or "", i, r[1]))
    failed = failed + (#problems > 0 and 1 or 0)
end
print("1.." .. #rules)
os.exit(failed == 0)
