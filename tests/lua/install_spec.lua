-- install_spec.lua: `make install` under a prefix: what it puts where, that the program finds its scripts from there,
-- that a C program builds against it through pkg-config, that uninstall takes away exactly that; man page, completion.
local mpi = require "mpi"
local spl = require "spl"

local PREFIX = "/usr/local"

local function run(...)
    local r = mpi.command({ ... })
    assert.equal(0, r.code, r.line .. "\n" .. r.out .. r.err)
    return r.out
end

local function shell(text)
    return run("bash", "-c", text)
end

local function lines(text)
    local list = {}
    for line in text:gmatch("[^\n]+") do
        list[#list + 1] = line
    end
    return list
end

local function read(path)
    local file = assert(io.open(path))
    local text = file:read("a")
    file:close()
    return text
end

-- Commands, and every option of each, as the program itself tells them.
local function commands()
    local list = {}
    for name in mpi.spl({ "--help" }).out:gmatch("\n  spl (%a+)") do
        list[#list + 1] = name
    end
    return list
end

local function options(text)
    local list = { "--help" }
    for option in text:gmatch("\n  (%-%-?[%a-]+)") do
        list[#list + 1] = option
    end
    return list
end

local function installable()
    if not spl.executable():match("/build/spl$") then
        pending("only what `make` builds in build/ is installed here")
    elseif mpi.command({ "pkg-config", "--version" }).code ~= 0 then
        pending("pkg-config is not here")
    end
end

describe("an installation", function()
    local root

    before_each(function()
        root = lines(run("mktemp", "-d"))[1]
    end)

    after_each(function()
        run("rm", "-rf", root)
    end)

    local function make(target, prefix)
        return run("make", "--no-print-directory", target, "PREFIX=" .. (prefix or PREFIX), "DESTDIR=" .. root)
    end

    local function files()
        return shell(("cd '%s' && find . -type f | sort"):format(root))
    end

    it("has its files where they belong, and uninstall removes exactly those", function()
        installable()
        shell(("mkdir -p '%s' && touch '%s/other.pc'"):gsub("%%s", root .. PREFIX .. "/lib/pkgconfig"))
        make "install"
        local expected = { "bin/spl", "lib/libspl.a", "lib/pkgconfig/other.pc", "lib/pkgconfig/spl.pc",
            "share/bash-completion/completions/spl", "share/man/man1/spl.1", "share/spl/manifest" }
        for _, header in ipairs { "backend", "comm", "dtype", "spl", "status" } do
            expected[#expected + 1] = ("include/spl/%s.h"):format(header)
        end
        for _, script in ipairs(lines(run("find", "scripts", "-type", "f"))) do
            expected[#expected + 1] = "share/spl/" .. script
        end
        for _, annotations in ipairs(lines(run("find", "lua/meta", "-type", "f"))) do
            expected[#expected + 1] = "share/spl/" .. annotations:gsub("^lua/", "")
        end
        for i, path in ipairs(expected) do
            expected[i] = "." .. PREFIX .. "/" .. path
        end
        table.sort(expected)
        local found = lines(files())
        table.sort(found)
        assert.same(expected, found)
        make "install" -- again, over itself
        make "uninstall"
        assert.equal("." .. PREFIX .. "/lib/pkgconfig/other.pc\n", files())
        local folders = shell(("cd '%s' && find . -type d | sort"):format(root))
        assert.equal(".\n./usr\n./usr/local\n./usr/local/lib\n./usr/local/lib/pkgconfig\n", folders)
        assert.not_equal(0, mpi.command({ "make", "uninstall", "PREFIX=" .. PREFIX, "DESTDIR=" .. root }).code)
    end)

    it("runs shipped scripts by name, also after it was moved and through a link", function()
        installable()
        make("install", "/opt/one")
        run("mv", root .. "/opt/one", root .. "/opt/two")
        run("ln", "-s", root .. "/opt/two/bin/spl", root .. "/link")
        for _, program in ipairs { root .. "/opt/two/bin/spl", root .. "/link" } do
            local out = shell(("cd / && '%s' run sp_forward --seq 32 --hidden 32 --heads 4 --rounds 1 "
                .. "--mesh 'tp=*:tensor' && '%s' run -n 2 sp_forward.lua --help"):format(program, program))
            assert.matches("\n#?%s*tp=", out)
            assert.matches("usage: spl run", out)
        end
    end)

    it("builds a C program through pkg-config, also when the prefix was moved", function()
        installable()
        make "install"
        local config = ("PKG_CONFIG_PATH='%s%s/lib/pkgconfig' pkg-config"):format(root, PREFIX)
        local out = shell(("cp examples/embed.c '%s' && cd '%s' && cc -Wall -Werror embed.c "
            .. "$(%s --cflags --libs spl) -o embed && ./embed"):format(root, root, config))
        assert.matches("^sum of squares %d+%.%d+\n$", out)
        assert.equal(spl.version .. "\n", shell(config .. " --modversion spl"))
        run("mkdir", root .. "/moved")
        shell(("mv '%s%s' '%s/moved/spl'"):format(root, PREFIX, root))
        local again = shell(("cd '%s' && export PKG_CONFIG_PATH=moved/spl/lib/pkgconfig && cc embed.c "
            .. "$(pkg-config --cflags --static --libs spl) -o again && ./again"):format(root)) -- as well
        assert.equal(out, again)
    end)
end)

describe("the manual page", function()
    local page = read "lua/spl.1":gsub("\\%-", "-")

    it("tells of every command and option that the program has", function()
        assert.is_true(#commands() >= 4)
        for _, name in ipairs(commands()) do
            assert.is_truthy(page:find("spl " .. name, 1, true), name)
            for _, option in ipairs(options(mpi.spl({ name, "--help" }).out)) do
                assert.is_truthy(page:find(option, 1, true), option)
            end
        end
    end)

    it("tells of the backends that the program has, as README.md and the completion do", function()
        local choices = mpi.spl({ "run", "--help" }).out:match("%-%-backend (%S+)")
        assert.is_truthy(choices:find("|", 1, true))
        assert.is_truthy(page:find(choices, 1, true), choices)
        assert.is_truthy(read "README.md":find("--backend " .. choices:gsub("|", "\\|"), 1, true), choices)
        assert.is_truthy(read "lua/spl.bash":find('"' .. choices:gsub("|", " ") .. '"', 1, true), choices)
    end)

    it("names every shipped script in README.md", function()
        for _, path in ipairs(lines(shell "ls scripts/*.lua")) do
            assert.is_truthy(read "README.md":find(path:match "[^/]*$", 1, true), path)
        end
    end)

    it("is clean to man", function()
        if mpi.command({ "sh", "-c", "command -v man && command -v groff" }).code ~= 0 then
            pending("man or groff is not here")
        end
        local r = mpi.command({ "man", "--warnings", "-l", "lua/spl.1" }, { env = { MANWIDTH = "80", LC_ALL = "C" } })
        assert.equal("", r.err)
        assert.matches("EXIT STATUS", r.out)
    end)
end)

describe("completion in bash", function()
    local function complete(...)
        local words = { "'" .. spl.executable() .. "'" }
        for i, word in ipairs { ... } do
            words[i + 1] = "'" .. word .. "'"
        end
        local out = shell(("source lua/spl.bash; COMP_WORDS=(%s); COMP_CWORD=%d; _spl; "):format(
            table.concat(words, " "), #words - 1) .. "printf '%s\\n' \"${COMPREPLY[@]}\"")
        local found = {}
        for _, word in ipairs(lines(out)) do
            found[word] = true
        end
        return found
    end

    it("knows the commands and their options", function()
        local found = complete("")
        for _, name in ipairs(commands()) do
            assert.is_true(found[name], name)
            for _, option in ipairs(options(mpi.spl({ name, "--help" }).out)) do
                assert.is_true(complete(name, "-")[option], option)
            end
        end
        assert.same({ ["--check-collectives"] = true }, complete("run", "-n", "2", "--ch"))
        assert.same({ null = true }, complete("run", "--backend", "n"))
        assert.same({}, complete("run", "-n", ""))
    end)

    it("knows scripts and the options of shipped ones", function()
        assert.is_true(complete("run", "sp_")["sp_forward.lua"])
        assert.same({ ["examples/01_tensor.lua"] = true }, complete("run", "examples/01"))
        assert.same({ ["--mesh"] = true }, complete("run", "-n", "2", "sp_forward", "--mes"))
        assert.is_nil(complete("run", "sp_forward", "sp_")["sp_forward.lua"])
    end)
end)
