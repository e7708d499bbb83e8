-- repl_terminal_spec.lua: `spl repl` on a real terminal: editing, history, completion, Ctrl-C, Ctrl-D, ends of ranks.
local mpi = require "mpi"
local spl = require "spl"
local terminal = require "terminal"

local function output_of(command)
    local pipe = assert(io.popen(command))
    local text = pipe:read("a")
    pipe:close()
    return text
end

-- The prompt on n ranks, with a history of its own in `state`.
local function open(n, state)
    if not terminal.there() then
        pending("tmux is not here")
    end
    local t = terminal.open(("%s repl%s"):format(spl.executable(), n > 1 and " -n " .. n or ""),
        { XDG_STATE_HOME = state })
    t.wait "spl>"
    return t
end

local function folder()
    return (output_of "mktemp -d":gsub("%s+$", ""))
end

describe("the prompt on a terminal", function()
    it("edits lines, asks for more of a chunk, and ends with Ctrl-D", function()
        local state = folder()
        local t <close> = open(2, state)
        assert.matches("^spl [%d.]+: 2 ranks, host .*:help tells what there is, Ctrl%-D ends\n", t.screen())
        t.type "sp.rank()"
        t.press("C-a", "Right", "Right")
        t.line "l"
        t.wait "[1] 1"
        t.line "for i = 1, 2 do"
        t.wait "\n  .."
        t.line "print('line ' .. i)"
        t.line "end"
        t.wait "[0-1] line 1\n      line 2"
        t.type "nonsense("
        t.press "C-c"
        t.wait "^C"
        t.line "'h\xc3\xa9'"
        t.wait "[0-1] h\xc3\xa9"
        t.press "C-d"
        t.wait "ended with 0"
        os.execute("rm -rf '" .. state .. "'")
    end)

    it("keeps its history between runs", function()
        local state = folder()
        do
            local t <close> = open(1, state)
            t.line "'first' .. 1"
            t.wait "\nfirst1"
            t.line "'second' .. 2"
            t.wait "\nsecond2"
            t.press "C-d"
            t.wait "ended with 0"
        end
        local t <close> = open(1, state)
        t.press("Up", "Up", "Enter")
        t.wait "\nfirst1"
        t.press "C-d"
        t.wait "ended with 0"
        local file = assert(io.open(state .. "/spl/history"))
        assert.matches("first", file:read("a"))
        file:close()
        os.execute("rm -rf '" .. state .. "'")
    end)

    it("says when its history cannot be kept, and works", function()
        local t <close> = open(1, "/proc/none")
        assert.matches("spl: lines are not kept: /proc/none/spl/history: ", t.screen(), 1, true)
        t.line "6 * 7"
        t.wait "\n42"
        t.press "C-d"
        t.wait "ended with 0"
    end)

    it("completes globals, fields, methods, options and strings", function()
        local state = folder()
        local t <close> = open(1, state)
        local function completes(typed, wanted)
            t.wait("spl>", true)
            t.type(typed)
            t.press "Tab"
            t.wait("spl> " .. wanted)
            t.press "C-u"
        end
        completes("colle", "collectgarbage")
        completes("spl.barr", "spl.barrier")
        completes("spl.mes", "spl.mesh")
        t.line 'mesh1 = spl.mesh "tp=*"'
        t.line "x = spl.ones { shape = { 2 } }"
        completes("mes", "mesh1")
        completes("x:redis", "x:redistribute")
        completes("x.local_sh", "x.local_shape")
        completes('x:redistribute "tp=sha', 'x:redistribute "tp=shard(')
        completes('x:redistribute "t', 'x:redistribute "tp')
        completes("spl.block { kv_h", "spl.block { kv_heads")
        completes('spl.block { norm = "la', 'spl.block { norm = "layer')
        completes('spl.zeros { dtype = "bf', 'spl.zeros { dtype = "bf16')
        completes('spl.mesh "tp=*:sequ', 'spl.mesh "tp=*:sequence')
        completes(":lo", ":load")
        completes(":help tensor:gat", ":help tensor:gather")
        t.type "x:co" -- two: both are shown
        t.press "Tab"
        t.press "Tab"
        t.wait "contiguous"
        t.press("C-u", "C-d")
        t.wait "ended with 0"
        os.execute("rm -rf '" .. state .. "'")
    end)

    it("stops a line with Ctrl-C on all ranks, wherever they are, and goes on", function()
        local state = folder()
        local t <close> = open(3, state)
        t.line 'm = spl.mesh "tp=*"; x = spl.ones { shape = { 2000000 } }'
        local lines = {
            "while true do m:all_reduce('tp', x) end",
            "while true do pcall(m.all_gather, m, 'tp', x) end",
            "while true do end",
            "if spl.rank() == 1 then while true do end end spl.barrier()",
            "@2 while true do pcall(error) end",
            "@0 coroutine.wrap(function() while true do end end)()",
            "@1 os.execute 'sleep 100'",
        }
        for i, line in ipairs(lines) do
            t.line(line)
            os.execute "sleep 0.5"
            t.press "C-c"
            t.wait "interrupted"
            t.line(("'after %%d, %%d':format(%d, spl.sum(1))"):format(i):gsub("'after", "('after"):gsub("':f", "'):f"))
            t.wait(("[0-2] after %d, 3"):format(i))
            t.line "m:all_reduce('tp', x):item(7)"
            t.wait "[0-2] 3.0"
            t.press "C-l"
        end
        t.press "C-d"
        t.wait "ended with 0"
        os.execute("rm -rf '" .. state .. "'")
    end)

    it("says why it ends when a rank is killed, and leaves nothing behind when it is killed itself", function()
        local state = folder()
        do
            local t <close> = open(2, state)
            t.line "@1 io.popen('kill -9 $PPID'):close()"
            t.wait "ended with 1"
            assert.matches("rank 1 was ended by signal 9", t.screen(), 1, true)
        end
        local t <close> = open(2, state)
        t.line ":ranks"
        t.wait "[1] rank 1"
        local pids = {}
        for pid in t.screen():gmatch("process (%d+)") do
            pids[#pids + 1] = pid
        end
        assert.equal(2, #pids)
        local front = output_of(("pgrep -f '^%s repl -n 2'"):format(spl.executable()))
        local function ancestor(pid) -- the front end: parent of the session of the ranks
            local ids = {}
            while pid and pid ~= "1" and pid ~= "0" do
                ids[pid] = true
                pid = output_of("ps -o ppid= -p " .. pid):match("%d+")
            end
            return ids
        end
        local above, victim = ancestor(pids[1]), nil
        for pid in front:gmatch("%d+") do
            local parent = output_of("ps -o ppid= -p " .. pid):match("%d+")
            if above[pid] and not front:find("%f[%d]" .. parent .. "%f[%D]") then
                victim = pid
            end
        end
        assert.is_truthy(victim)
        os.execute("kill -9 " .. victim)
        for _ = 1, 300 do
            if output_of("ps -o pid= -p " .. table.concat(pids, ",")) == "" then
                break
            end
            os.execute "sleep 0.1"
        end
        assert.equal("", output_of("ps -o pid= -p " .. table.concat(pids, ",")))
        os.execute("rm -rf '" .. state .. "'")
    end)
end)

describe("the prompt without tmux", function()
    it("answers what may follow, from annotations and from what is there", function()
        local r = mpi.run(1, "local words = require 'spl.repl_complete'.words\n_G.spl = require 'spl'\n"
            .. "print(words 'spl.barr') print(words ':ti') print(words '@0 spl.bl')\n"
            .. "print(words 'spl.linear(x, w, nil, \"si') print(words 'no_such.') print(words '\"')")
        assert.same({ 0, "4\nbarrier\n\n2\ntime\n\n2\nblock\n\n2\nsilu\n\n0\n\n\n0\n\n\n" }, { r.code, r.out })
    end)
end)
