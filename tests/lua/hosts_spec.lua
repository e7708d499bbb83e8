-- hosts_spec.lua: ranks on several hosts, which are namespaces of this machine: a check, a trace, the loss of a host.
local core = require "spl.core"
local json = require "spl.json"
local mpi = require "mpi"
local spl = require "spl"

local HARNESS = "tests/support/hosts.sh"
local SMALL = { "--seq", "45", "--hidden", "24", "--heads", "4", "--rounds", "2", "--warmup", "1", "--check" }

local folder, able

local function quoted(words)
    local list = {}
    for i, word in ipairs(words) do list[i] = "'" .. word:gsub("'", "'\\''") .. "'" end
    return table.concat(list, " ")
end

-- Runs words on `hosts` hosts of `slots` ranks each.
local function on(hosts, slots, words)
    return mpi.command({ HARNESS, ("%d"):format(hosts), ("%d"):format(slots), folder, table.unpack(words) })
end

local function needs_namespaces()
    if able == nil then
        able = on(2, 1, { "true" }).code == 0
    end
    if not able then
        pending "network, UTS and process namespaces cannot be made here (root, iproute2 and util-linux can)"
    end
end

describe("several hosts", function()
    before_each(function()
        folder = os.tmpname()
        os.remove(folder)
        assert(core.system.make_folder(folder))
    end)
    after_each(function() os.execute("rm -rf '" .. folder .. "'") end)

    it("run sp_forward with a check and a trace, under spl run -n", function()
        needs_namespaces()
        local path = folder .. "/trace.json"
        local r = on(2, 2, { spl.executable(), "run", "-n", "4", "--check-collectives", "--trace", path,
            "sp_forward.lua", "--mesh", "dp=2:data, tp=2:sequence", "--mesh", "r=4:ring", table.unpack(SMALL) })
        assert.equal(0, r.code, r.out .. r.err)
        assert.matches("host node1", r.out, 1, true)
        assert.matches("host node2", r.out, 1, true)
        assert.matches("\n# mesh dp=2:data, tp=2:sequence: dp across 2 hosts, tp inside a host\n", r.out, 1, true)
        assert.matches("\n# mesh r=4:ring: r across 2 hosts\n", r.out, 1, true)
        assert.matches("# wrong elements: 0, OK", r.out, 1, true)
        assert.matches("# bytes sent: as theory says", r.out, 1, true)
        local hosts = {}
        for _, e in ipairs(json.read(path).traceEvents) do
            if e.name == "spl_rank" then hosts[e.pid] = e.args.host end
        end
        assert.same({ [0] = "node1", "node1", "node2", "node2" }, hosts)
    end)

    it("run it under a plain mpirun too, a rank on each of three", function()
        needs_namespaces()
        local r = on(3, 1, { "mpirun", "-n", "3", spl.executable(), "run", "sp_forward.lua", "--mesh", "u=3:ulysses",
            table.unpack(SMALL) })
        assert.equal(0, r.code, r.out .. r.err)
        assert.matches("host node3", r.out, 1, true)
        assert.matches("# wrong elements: 0, OK", r.out, 1, true)
    end)

    it("pass spl check, every role on an axis over two hosts", function()
        needs_namespaces()
        local r = on(2, 1, { spl.executable(), "check", "-n", "2", "--axes", "1", "--mask", "causal", "--mask",
            "window:9", "--heads", "6/1" })
        assert.equal(0, r.code, r.out .. r.err)
        local passed = r.out:match "# (%d+) passed, 0 missed"
        assert.is_true(passed and tonumber(passed) >= 10, r.out)
    end)

    -- Collectives for ever, until a host is ended once they have begun. How long the rest took to end.
    local function lose_a_host(words)
        local script = folder .. "/loop.lua"
        local file = assert(io.open(script, "w"))
        file:write(([[local spl = require "spl"
            local mesh, t = spl.mesh "x=*", spl.ones { shape = { 1000 } }
            for i = 1, math.huge do
                mesh:all_reduce("x", t)
                if i == 50 and spl.rank() == 0 then io.open(%q, "w"):close() end
            end]]):format(folder .. "/begun"))
        file:close()
        words[#words + 1] = script
        local r = on(3, 1, { "sh", "-c", ([[%s & job=$!
            i=0; while [ ! -e '%s/begun' ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i + 1)); done
            '%s/end_host' node2; before=$(date +%%s)
            wait $job; echo "code $? seconds $(($(date +%%s) - before))"
            left() { ls -l /proc/[0-9]*/exe 2>/dev/null | grep -c '%s$'; }
            i=0; while [ $(left) -gt 0 ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i + 1)); done
            echo "left $(left)"]]):format(quoted(words), folder, folder, spl.executable()) })
        local code, seconds = r.out:match "code (%d+) seconds (%d+)"
        assert.is_truthy(code, r.out .. r.err)
        assert.is_true(tonumber(seconds) < 30, seconds .. " s")
        assert.equal("0", r.out:match "left (%d+)", r.out) -- nothing of it runs on any more
        assert.matches("node2", r.err, 1, true)
        return r, tonumber(code)
    end

    it("end within 30 s, naming it, when one of them is gone", function()
        needs_namespaces()
        local r, code = lose_a_host { spl.executable(), "run", "-n", "3" }
        assert.equal(1, code)
        assert.matches("spl: host node2 was lost in the middle of the job, with its ranks; the others were ended\n$",
            r.err)
    end)

    it("end so under a plain mpirun too", function()
        needs_namespaces()
        local _, code = lose_a_host { "mpirun", "-n", "3", spl.executable(), "run" }
        assert.is_true(code ~= 0)
    end)
end)
