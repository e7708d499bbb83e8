-- bench_comm_spec.lua: the script bench_comm.lua, run inside the test on all of its ranks: sizes, bandwidths and keys
-- as nccl-tests defines them, and that a wrong value, wherever it is, is seen and counted.
local spl = require "spl"
local json = require "spl.json"
local transfers = require "spl.transfers"

local rank, world = spl.rank(), spl.size()

local ALL = { "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast", "send_recv" }
local SPLIT = { all_gather = true, reduce_scatter = true, all_to_all = true }
local OUT_ONLY = { all_to_all = true, send_recv = true }
local KEYS = { "op", "size_bytes", "count", "dtype", "redop", "root", "time_us", "algbw_gbs", "busbw_gbs", "wrong",
    "time_us_in_place", "algbw_gbs_in_place", "busbw_gbs_in_place", "wrong_in_place", "mesh", "axis", "ranks",
    "virtual", "cores", "oversubscribed", "hosts" }

-- Factors of busbw, of n ranks.
local function bus_factor(op, n)
    if n == 1 then return 0 end
    if op == "all_reduce" then return 2 * (n - 1) / n end
    return SPLIT[op] and (n - 1) / n or 1
end

-- The script with these words as its command line: printed lines (of rank 0), exit code, the error if it raised one.
local function run(...)
    local lines, words = {}, { ... }
    local env = setmetatable({
        print = function(text)
            for line in (text .. "\n"):gmatch("(.-)\n") do lines[#lines + 1] = line end
        end,
        os = { exit = function(code) error({ left = code }) end },
        io = { stdout = io.stdout, stderr = { write = function() end } },
    }, { __index = _G })
    local script = assert(loadfile("scripts/bench_comm.lua", "t", env))
    local before = arg
    words[0] = "bench_comm.lua"
    rawset(_G, "arg", words)
    local good, e = pcall(script)
    rawset(_G, "arg", before)
    local left = not good and type(e) == "table" and rawget(e, "left")
    if not good and not left and not spl.is_error(e) then error(e, 0) end
    return lines, left or 0, not good and not left and e or nil
end

local function rows_of(lines)
    local rows = {}
    for i, line in ipairs(lines) do rows[i] = json.decode(line) end
    return rows
end

local function close(a, b)
    assert.is_true(math.abs(a - b) <= 1e-9 * math.abs(b), ("%.17g is not %.17g"):format(a, b))
end

-- With `run_one` in the place of what runs one collective.
local function with_run(run_one, body)
    local original = transfers.run
    transfers.run = function(c, mesh, axis, send, recv)
        run_one(c, recv, function() original(c, mesh, axis, send, recv) end)
    end
    local good, e = pcall(body)
    transfers.run = original
    if not good then error(e, 0) end
end

local QUICK = { "--rounds", "2", "--warmup", "1" }

local function quick(...)
    local words = { ... }
    table.move(QUICK, 1, #QUICK, #words + 1, words)
    return run(table.unpack(words))
end

describe("bench_comm", function()
    it("has one JSON line a size, with times, and bandwidths of those very times", function()
        local lines, code, e = quick("--json", "--min", "8", "--max", "32k")
        assert.is_nil(e)
        assert.equal(0, code)
        if rank ~= 0 then
            assert.same({}, lines)
            return
        end
        local rows, at = rows_of(lines), 0
        for _, op in ipairs(ALL) do
            local size = 8
            while size <= 32 << 10 do
                at = at + 1
                local r, elements = rows[at], size // 4
                local part = elements // world // 4 * 4 -- of 16 bytes each
                assert.equal(op, r.op)
                assert.equal(SPLIT[op] and part * world * 4 or elements * 4, r.size_bytes)
                assert.equal(SPLIT[op] and part or elements, r.count)
                assert.equal("f32", r.dtype)
                assert.equal((op == "all_reduce" or op == "reduce_scatter") and "sum" or "none", r.redop)
                assert.equal(op == "broadcast" and 0 or -1, r.root)
                assert.is_true(r.time_us > 0)
                close(r.algbw_gbs, r.size_bytes / (1000 * r.time_us))
                close(r.busbw_gbs, r.algbw_gbs * bus_factor(op, world))
                assert.equal(0, r.wrong)
                if OUT_ONLY[op] then
                    for _, key in ipairs { "time_us", "algbw_gbs", "busbw_gbs", "wrong" } do
                        assert.equal(json.null, r[key .. "_in_place"])
                    end
                else
                    close(r.algbw_gbs_in_place, r.size_bytes / (1000 * r.time_us_in_place))
                    close(r.busbw_gbs_in_place, r.algbw_gbs_in_place * bus_factor(op, world))
                    assert.equal(0, r.wrong_in_place)
                end
                assert.same({ "x", world, "x=" .. world }, { r.axis, r.ranks, r.mesh })
                local from = 1
                for _, key in ipairs(KEYS) do -- in this order
                    local first, last = lines[at]:find('"' .. key .. '":', from, true)
                    assert.is_truthy(first, key)
                    from = last
                    r[key] = nil
                end
                assert.is_nil(next(r))
                size = size * 4
            end
        end
        assert.equal(#rows, at)
    end)

    it("prints a table in the manner of nccl-tests", function()
        local lines, code = quick("--op", "all_reduce", "--op", "send-recv,broadcast", "--min", "1k", "--max", "4k",
            "--factor", "2", "--root", tostring(world - 1))
        assert.equal(0, code)
        if rank ~= 0 then return end
        local rows, text = {}, table.concat(lines, "\n")
        for _, line in ipairs(lines) do
            if line:sub(1, 1) ~= "#" then
                local cells = {}
                for cell in line:gmatch("%S+") do cells[#cells + 1] = cell end
                rows[#rows + 1] = cells
                assert.equal(13, #cells)
            end
        end
        assert.equal(9, #rows)
        assert.same({ "2048", "512", "f32", "sum", "-1" }, { table.unpack(rows[2], 1, 5) })
        assert.same({ "4096", "1024", "f32", "none", "-1" }, { table.unpack(rows[6], 1, 5) })
        assert.same({ "0", "N/A", "N/A", "N/A", "N/A" }, { table.unpack(rows[6], 9, 13) })
        assert.same({ "1024", "256", "f32", "none", tostring(world - 1) }, { table.unpack(rows[7], 1, 5) })
        assert.same({ "0", "0" }, { rows[7][9], rows[7][13] })
        for _, part in ipairs {
            "# +size +count +type +redop +root +time +algbw +busbw +#wrong +time +algbw +busbw +#wrong",
            "# +%(B%) +%(elements%) +%(us%) +%(GB/s%) +%(GB/s%) +%(us%) +%(GB/s%) +%(GB/s%)\n",
            "# +out%-of%-place +in%-place",
            "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : %S+", "slowest rank", "# Using ranks" } do
            assert.matches(part, text)
        end
    end)

    it("measures any axis of any mesh, each group for itself", function()
        local meshes = { { "a=1, x=*, c=1", "x", world }, { "a=1, x=*", "a", 1 } }
        if world % 2 == 0 then
            meshes[3], meshes[4] = { "a=2, b=*", "a", 2 }, { "a=2:data, b=*:tensor", "b", world // 2 }
        end
        for _, m in ipairs(meshes) do
            local lines, code = quick("--json", "--mesh", m[1], "--axis", m[2], "--min", "40000", "--max", "40000")
            assert.equal(0, code)
            for _, r in ipairs(rows_of(lines)) do
                assert.same({ m[2], m[3], 0 }, { r.axis, r.ranks, r.wrong })
                assert.is_true(r.wrong_in_place == 0 or OUT_ONLY[r.op])
                close(r.busbw_gbs, r.algbw_gbs * bus_factor(r.op, m[3]))
            end
            if rank == 0 then assert.equal(#ALL, #lines) end
        end
        local lines = quick("--json", "--mesh", "p=*, q=1", "--op", "all_reduce", "--max", "8")
        if rank == 0 then assert.equal("p", rows_of(lines)[1].axis) end
    end)

    it("checks every dtype, and more than is compared at once", function()
        for _, dtype in ipairs { "f64", "f32", "bf16", "f16", "i64", "i32", "u8" } do
            local width = ({ f64 = 8, i64 = 8, f32 = 4, i32 = 4, bf16 = 2, f16 = 2, u8 = 1 })[dtype]
            local bytes = dtype == "u8" and 1500001 or 100003
            local lines, code = run("--json", "--dtype", dtype, "--min", tostring(bytes), "--max", tostring(bytes),
                "--rounds", "1", "--warmup", "0")
            assert.equal(0, code)
            for _, r in ipairs(rows_of(lines)) do
                local part = bytes // width // world // (16 // width) * (16 // width)
                assert.equal(SPLIT[r.op] and part * world * width or bytes // width * width, r.size_bytes)
                assert.equal(dtype, r.dtype)
                assert.equal(0, r.wrong)
            end
        end
    end)

    it("counts planted wrong values on any rank, in every collective, and exits with 1", function()
        for planted = 0, world - 1 do
            with_run(function(c, recv, go)
                go()
                if rank ~= planted then return end
                local first <close> = recv:narrow(1, 1, 1)
                local last <close> = recv:narrow(1, recv.count - 1, 2)
                first:fill(3000)
                last:fill(c.op == "all_reduce" and 3000 or -7)
            end, function()
                local lines, code = quick("--json", "--min", "40000", "--max", "40000")
                assert.equal(1, code)
                for _, r in ipairs(rows_of(lines)) do
                    assert.equal(3, r.wrong)
                    assert.equal(OUT_ONLY[r.op] and json.null or 3, r.wrong_in_place)
                end
                lines, code = quick("--op", "all_gather", "--min", "40000", "--max", "40000")
                assert.equal(1, code)
                if rank == 0 then
                    assert.matches("# Out of bounds values : 6 FAILED", table.concat(lines, "\n"))
                end
            end)
        end
    end)

    it("compares to the end, however much there is", function()
        with_run(function(_, recv, go)
            go()
            local last <close> = recv:narrow(1, recv.count, 1)
            local late <close> = recv:narrow(1, recv.count * 4 // 5, 1)
            last:fill(255)
            late:fill(255)
        end, function()
            local lines, code = run("--json", "--dtype", "u8", "--min", "1500001", "--max", "1500001", "--rounds", "1",
                "--warmup", "0", "--op", "all_reduce,all_gather,all_to_all")
            assert.equal(1, code)
            for _, r in ipairs(rows_of(lines)) do assert.equal(2 * world, r.wrong) end
        end)
    end)

    it("sees data that did not move, moved to the wrong place, or were summed wrongly", function()
        local function wrong(run_one)
            local list
            with_run(run_one, function()
                list = rows_of((quick("--json", "--min", "40000", "--max", "40000")))
            end)
            return list
        end
        for _, r in ipairs(wrong(function() end)) do -- nothing done
            assert.is_true(r.wrong >= r.size_bytes // 4 // world, r.op)
            assert.is_true(OUT_ONLY[r.op] or world == 1 or r.wrong_in_place > 0, r.op)
        end
        local calls = 0
        for _, r in ipairs(wrong(function(_, _, go) -- done while it is timed, but not in the call that is judged
            calls = calls + 1
            if calls % 4 ~= 0 then go() end
        end)) do
            assert.is_true(r.wrong >= r.size_bytes // 4 // world, r.op)
        end
        assert.equal(4 * (2 * #ALL - 2), calls)
        for _, r in ipairs(wrong(function(c, recv, go) -- shifted by one element on every rank
            go()
            local from <close> = recv:narrow(1, 1, recv.count - 1)
            local to <close> = recv:narrow(1, 2, recv.count - 1)
            local copy <close> = from:clone()
            to:set(copy)
            assert.is_true(c.recv == recv.count)
        end)) do
            assert.is_true(r.wrong > r.size_bytes // 4 // world * 0.9, r.op)
        end
        for _, r in ipairs(wrong(function(_, recv, go) -- one more than there should be
            go()
            local ones <close> = spl.ones { shape = { recv.count } }
            local more <close> = spl.add(recv, ones)
            recv:set(more)
        end)) do
            local of_a_rank = r.op == "reduce_scatter" and r.count or r.size_bytes // 4
            assert.equal(world * of_a_rank, r.wrong)
        end
    end)

    it("does not compare with --no-check", function()
        local lines, code = quick("--no-check", "--json", "--op", "all_reduce", "--max", "8")
        assert.equal(0, code)
        for _, r in ipairs(rows_of(lines)) do assert.equal(json.null, r.wrong) end
        lines = quick("--no-check", "--op", "all_reduce", "--max", "8")
        if rank == 0 then assert.matches("values : not checked", table.concat(lines, "\n")) end
    end)

    it("refuses what makes no sense, as a usage error on all ranks", function()
        local cases = {
            { "did you mean 'all_reduce'?", "--op", "all_redce" },
            { "no collective 'gossip'", "--op", "all_gather,gossip" },
            { "smallest size must not be above the largest", "--min", "2k", "--max", "1k" },
            { "--factor must be at least 2", "--factor", "1" },
            { "--min must be at least 1", "--min", "0" },
            { "--max needs a whole number", "--max", "1.5M" },
            { "has no axis 'xx'; there is x", "--axis", "xx" },
            { ("the ranks of axis 'x' are 0 to %d"):format(world - 1), "--root", tostring(world) },
            { "has 7 ranks", "--mesh", "x=7" },
            { "did you mean 'f32'?", "--dtype", "f33" },
            { "did you mean '--rounds'?", "--round", "3" },
        }
        for _, case in ipairs(cases) do
            local lines, _, e = run(table.unpack(case, 2))
            assert.same({}, lines)
            assert.equal("usage", e and e.code)
            assert.matches(case[1], e.message, 1, true)
        end
    end)
end)
