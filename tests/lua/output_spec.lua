-- output_spec.lua: what programs print: to full disks, closed and broken pipes, from many ranks at once; and which rank
-- is named when one is killed.
local spl = require "spl"
local mpi = require "mpi"

local PRINTS = "for i = 1, 20000 do print(i, 'some text that makes it a line') end"

-- `spl WORDS` with a redirection of its output; {code, err}
local function redirected(words, redirection)
    local quoted = {}
    for i, word in ipairs(words) do
        quoted[i] = "'" .. word .. "'"
    end
    return mpi.command { "sh", "-c", ("'%s' %s %s"):format(spl.executable(), table.concat(quoted, " "), redirection) }
end

local function with_script(chunk, use)
    local path = mpi.temporary(chunk, ".lua")
    use(path)
    os.remove(path)
end

describe("standard output that cannot be written", function()
    local COMMANDS = { { "version" }, { "help" }, { "help", "api" }, { "run", "--help" }, { "info" },
        { "run", "sp_forward.lua", "--help" }, { "test", "tests/lua/regex_spec.lua" }, { "info", "-n", "2" } }
    for _, words in ipairs(COMMANDS) do
        it("is an error of spl " .. table.concat(words, " "), function()
            for _, redirection in ipairs { "> /dev/full", ">&-" } do
                local r = redirected(words, redirection)
                assert.equal(1, r.code)
                assert.equal(1, mpi.count(r.err, "cannot write"))
                assert.matches(redirection == ">&-" and "Bad file descriptor" or "No space left on device", r.err, 1,
                    true)
            end
        end)
    end

    it("is an error of a run that prints much, on one rank, virtual ranks and processes", function()
        with_script(PRINTS, function(path)
            for _, flags in ipairs { {}, { "--virtual", "2" }, { "-n", "2" } } do
                local r = redirected({ "run", path, table.unpack(flags) }, "> /dev/full")
                assert.equal(1, r.code)
                assert.equal(1, mpi.count(r.err, "cannot write"))
            end
        end)
    end)

    it("is none where nothing is printed", function()
        with_script("local x = 1", function(path)
            assert.same({ 0, "" }, { redirected({ "run", path }, ">&-").code, redirected({ "run", path }, ">&-").err })
        end)
    end)

    it("ends the run quietly when its reader has gone", function()
        with_script(PRINTS:gsub("20000", "1000000"), function(path)
            for _, flags in ipairs { {}, { "-n", "2" } } do
                local r = redirected({ "run", path, table.unpack(flags) }, "| head -n 1")
                assert.same({ 0, "1\tsome text that makes it a line\n", "" }, { r.code, r.out, r.err })
            end
        end)
    end)
end)

describe("what ranks print under -n", function()
    it("stays whole line by line, long lines too", function()
        local r = mpi.run(4, [[
            local rank = require "spl".rank()
            for i = 1, 1500 do
                local text = ("x"):rep(17 + i * 37 % 9000)
                print(rank, i, text)
                if i % 50 == 0 then io.stderr:write(rank, " ", i, " ", text, "\n") end
            end]])
        assert.equal(0, r.code)
        for stream, most in pairs { [r.out] = 1500, [r.err] = 30 } do
            local lines = 0
            for line in stream:gmatch("[^\n]+") do
                local i, text = line:match("^[0-3]%s(%d+)%s(x+)$")
                assert.equal(17 + (math.tointeger(tonumber(i or 0)) * 37) % 9000, #(text or ""))
                lines = lines + 1
            end
            assert.equal(4 * most, lines)
        end
    end)

    it("may be any bytes", function()
        local bytes = {}
        for i = 0, 255 do
            bytes[#bytes + 1] = string.char(i)
        end
        local text = table.concat(bytes) .. ("-"):rep(74) .. "\n\1spl: rank 0: made up\n\2"
        local r = mpi.run(2, ("local s = %q if require 'spl'.rank() == 1 then io.write(s) io.stderr:write(s) end")
            :format(text))
        assert.equal(0, r.code)
        assert.equal(text, r.out)
        assert.equal(text, r.err)
    end)

    it("shows a begun line at once, and another rank's after it", function()
        local r = mpi.run(2, [[
            local spl = require "spl"
            if spl.rank() == 0 then io.write "begun" io.flush() end
            spl.barrier()
            if spl.rank() == 1 then print "other" end]])
        assert.equal(0, r.code)
        assert.equal("begunother\n", r.out)
    end)

    it("leaves nothing behind", function()
        local folder = os.tmpname()
        os.remove(folder)
        os.execute("mkdir " .. folder)
        local r = mpi.run(2, "if require 'spl'.rank() == 1 then error 'x' end", nil, { env = { TMPDIR = folder } })
        assert.equal(1, r.code)
        assert.is_true((os.execute("rmdir " .. folder)))
    end)

    it("is told before mpirun starts, which needs larger files itself", function()
        local r = mpi.command { "sh", "-c", ("ulimit -f 8; '%s' run -n 2 sp_forward.lua"):format(spl.executable()) }
        assert.equal(3, r.code, r.err)
        assert.matches("spl: files are limited to %d+ KiB and mpirun needs at least 65536 for several ranks", r.err)
    end)

    it("arrives also without a place for the launcher's pipes", function()
        local r = mpi.run(2, "print 'out' if require 'spl'.rank() == 1 then error 'the cause' end", nil,
            { env = { TMPDIR = "/nowhere/at/all" } })
        assert.equal(1, r.code)
        assert.equal(2, mpi.count(r.out, "out\n"))
        assert.equal(1, mpi.count(r.err, "the cause"))
    end)
end)

describe("a limit on the size of files", function()
    it("ends a run that traces with a sentence and leaves nothing half written", function()
        local folder = os.tmpname()
        os.remove(folder)
        os.execute("mkdir " .. folder)
        local r = mpi.command { "sh", "-c", ("ulimit -f 8; '%s' run --virtual 4 --trace %s/big.json sp_forward.lua "
            .. "--seq 32 --hidden 32 --heads 4 --rounds 40 > /dev/null"):format(spl.executable(), folder) }
        assert.equal(1, r.code, r.err)
        assert.equal(1, mpi.count(r.err, "big.json': File too large"), r.err)
        assert.is_true((os.execute("rmdir " .. folder)))
    end)
end)

describe("SIGKILL", function()
    it("of a rank ends the others and names it; of mpirun, too, without guessing why", function()
        local r = mpi.run(3, "local spl = require 'spl'\nif spl.rank() == 1 then io.popen('kill -9 $PPID'):close() "
            .. "end\nwhile true do end", nil, { limit = 30 })
        assert.equal(1, r.code)
        assert.matches("^spl: rank 1 was ended by signal 9 %(Killed%)[^\n]*\n$", r.err)
        assert.equal(0, mpi.count(r.err, "ran out of memory"))
        r = mpi.run(2, "local spl = require 'spl'\nspl.barrier()\nif spl.rank() == 1 then "
            .. "io.popen('kill -9 $(ps -o ppid= -p $PPID)'):close() end\nwhile true do end", nil, { limit = 30 })
        assert.equal(1, r.code)
        assert.matches("^spl: mpirun was ended by signal 9 %(Killed%)[^\n]*\n$", r.err)
    end)
end)
