-- differential.lua: `spl check`: every role of mesh axes, alone and together, with every scheme, mask and layout of
-- heads that fits these ranks. Each is a small block whose forward pass is judged against the fp64 reference, element
-- by element, run twice (the same bits), and its bytes are held against theory.
local core = require "spl.core"
local cases = require "spl.differential_cases"
local report = require "spl.report"
local spl = require "spl"
local theory = require "spl.theory"

local differential = {}

local SIZES = { 1, 2, 3, 4, 8, 16 } -- virtual ranks where the user names none
local LIMIT = 3600                  -- seconds for one of these
local ELEMENT_BYTES = { f64 = 8, f32 = 4, bf16 = 2, f16 = 2 }

local OPTIONS = {
    "Judges every role, scheme, mask and layout of heads against fp64.",
    role = { type = "list", of = "string", separator = ",", metavar = "ROLE",
        help = "only meshes whose axes all have one of these roles" },
    mesh = { type = "list", of = "string", metavar = "MESH", help = "these meshes instead" },
    scheme = { type = "list", of = "string", separator = ",", choices = cases.SCHEMES, help = "only these schemes" },
    mask = { type = "list", of = "string", metavar = "MASK",
        help = "only these: causal, full, window, docs, prefix, padding, slices, or a notation such as window:9" },
    heads = { type = "list", of = "string", separator = ",", metavar = "HEADS",
        help = "only these layouts, as 8/2: query heads / KV heads (default: 4/4, 8/2, 6/1, 7/7)" },
    axes = { default = "1-4", metavar = "N[-M]", help = "how many axes meshes have" },
    full = { default = false, help = "also every mask, layout of heads and order of axes where axes go together" },
    seq = { default = 45, help = "tokens" },
    batch = { default = 2, help = "sequences" },
    dtype = { default = "f32", choices = { "f32", "f64", "bf16", "f16" }, help = "of weights and activations" },
    seed = { default = 5, min = 0, help = "of weights and input" },
    sizes = { type = "list", of = "integer", separator = ",", metavar = "N", default = SIZES,
        help = "numbers of virtual ranks, where neither -n nor --virtual says how many" },
    here = { default = false, help = "on this one rank, where neither -n nor --virtual says how many" },
    refused = { default = false, help = "list every combination that is refused, not one of a kind" },
    json = { default = false, help = "one JSON object a combination, nothing else" },
    markdown = { default = false, help = "the support matrix as a table for a README, nothing else" },
}

local JSON_KEYS = { "mesh", "ranks", "scheme", "mask", "heads", "kv_heads", "result", "rel_err", "wrong", "bytes_sent",
    "bytes_theory", "reason" }

local COLUMNS = {
    { title = "mesh", unit = "", width = 34, left = true },
    { title = "scheme", unit = "", width = 10, left = true },
    { title = "passed", unit = "", width = 6 },
    { title = "missed", unit = "", width = 6 },
    { title = "refused", unit = "", width = 7 },
    { title = "rel_err", unit = "", width = 7, format = "%.1e" },
    { title = "#wrong", unit = "", width = 6 },
    { title = "sent", unit = "bytes", width = 9 },
    { title = "theory", unit = "bytes", width = 9 },
    { title = "sent", unit = "of theory", width = 9, format = "%.3f" },
}

-- ---- judging one combination

local function define(case, o)
    local heads, kv_heads = case.heads:match "^(%d+)/(%d+)$"
    heads, kv_heads = math.tointeger(heads), math.tointeger(kv_heads)
    return spl.block { hidden = heads * cases.HEAD_DIM, heads = heads, kv_heads = kv_heads, rope_theta = 10000,
        mask = cases.mask(case.mask, o.seq), seed = o.seed, dtype = o.dtype }
end

-- Weights larger than those a block is born with: attention that is nearly uniform would hide what goes wrong in it.
local function fill(blk, o)
    for i, p in ipairs(blk:params()) do
        p.tensor:randn(o.seed + 100, i, p.name:match "gamma" and 1 or 0, o.dtype == "f32" and 0.4 or 0.1)
    end
end

-- Lengths of the documents of a mask, or nil.
local function documents(spec)
    local lengths = spec:match "^docs:(.*)"
    if not lengths then
        return nil
    end
    local list = {}
    for length in lengths:gmatch "%d+" do
        list[#list + 1] = math.tointeger(length)
    end
    return list
end

-- Bytes sent by all ranks, in theory (nil: not known), and whether each rank sent what theory says.
local function bytes_of(blk, sent, o)
    local c, plan = blk.config, blk.plan
    local mask = c.mask or spl.mask(c.causal and "causal" or "full")
    local mine = theory.block_bytes(blk.mesh.axes, { batch = o.batch, seq = o.seq, hidden = c.hidden, heads = c.heads,
        kv_heads = c.kv_heads, head_dim = c.head_dim, slices = mask:slices(o.seq), documents = documents(mask.spec),
        scheme = plan.scheme, chunk = plan.chunk, summaries = plan.summaries, element = ELEMENT_BYTES[o.dtype] })
    if spl.min(mine and 1 or 0) == 0 then
        return spl.sum(sent), nil, true
    end
    return spl.sum(sent), spl.sum(mine), spl.max(mine == sent and 0 or 1) == 0
end

local function wrong_tensors(r)
    local names = {}
    for _, t in ipairs(r.tensors) do
        if t.wrong > 0 then
            names[#names + 1] = t.name
        end
    end
    return table.concat(names, ", ")
end

-- [collective] Forward twice, check, bytes: what there is to object to, and numbers.
local function judge(blk, x, o)
    fill(blk, o)
    spl.reset_counters()
    local first <close> = blk:forward(x)
    local sent = spl.counters().bytes.total
    local again <close> = blk:forward(x)
    local a <close> = first:to_local()
    local b <close> = again:to_local()
    local same = spl.max(a:to_bytes() == b:to_bytes() and 0 or 1) == 0
    local r = blk:check(x)
    local result = { rel_err = r.rel_err, wrong = r.wrong }
    local as_theory
    result.sent, result.theory, as_theory = bytes_of(blk, sent, o)
    local why = {}
    if r.wrong > 0 then
        why[#why + 1] = ("%s in %s"):format(report.plural(r.wrong, "wrong element"), wrong_tensors(r))
    end
    if r.bound and r.rel_err > r.bound then
        why[#why + 1] = ("rel_err %.1e is above %.1e"):format(r.rel_err, r.bound)
    end
    if not same then
        why[#why + 1] = "a second run gives other bits"
    end
    if not as_theory then
        why[#why + 1] = ("%d bytes sent, %d in theory"):format(result.sent, result.theory)
    end
    result.result, result.reason = #why > 0 and "missed" or "passed", #why > 0 and table.concat(why, "; ") or nil
    return result
end

-- [collective] A combination is passed, missed or refused, the last two with a reason.
local function run_case(case, mesh, o)
    local blk <close> = define(case, o)
    local x
    local ok, err = pcall(function()
        blk:schedule(mesh, { scheme = case.scheme, chunk = cases.CHUNK, summaries = cases.SUMMARIES })
        x = blk:input { batch = o.batch, seq = o.seq }
    end)
    if not ok then
        if not spl.is_error(err) or err.code ~= "usage" then
            error(err, 0)
        end
        return { result = "refused", reason = err.message }
    end
    local input <close> = x:randn(o.seed)
    local good, result = pcall(judge, blk, input, o)
    if good then
        return result
    elseif spl.is_error(result) and (result.code == "interrupt" or result.code == "stall") then
        error(result, 0)
    end
    return { result = "missed", reason = tostring(spl.is_error(result) and result.message or result) }
end

-- ---- printing

local function say(o, format, ...)
    if spl.rank() == 0 and not o.json and not o.markdown then
        print(select("#", ...) > 0 and format:format(...) or format)
    end
end

local function show_json(case, r)
    local json = require "spl.json"
    local heads, kv_heads = case.heads:match "^(%d+)/(%d+)$"
    local object = { mesh = case.mesh, ranks = spl.size(), scheme = case.scheme, mask = case.mask,
        heads = math.tointeger(heads), kv_heads = math.tointeger(kv_heads), result = r.result,
        rel_err = r.rel_err, wrong = r.wrong, bytes_sent = r.sent, bytes_theory = r.theory, reason = r.reason }
    for _, key in ipairs(JSON_KEYS) do
        if object[key] == nil then
            object[key] = json.null
        end
    end
    print(json.encode(object, JSON_KEYS))
    io.stdout:flush()
end

-- A line that is written over, where somebody watches.
local function watcher(o, total)
    local watched = spl.rank() == 0 and core.terminal() and not o.json
    local started, shown, width = spl.now(), 0, 0
    return function(done)
        local now = spl.now()
        if not watched or (done and now - shown < 0.2) then
            return
        end
        shown = now
        local text = ""
        if done then
            local left = done > 0 and (now - started) / done * (total - done) or 0
            text = ("# %d of %d combinations, %.0f s left"):format(done, total, left)
        end
        io.stderr:write("\r" .. text .. (" "):rep(width - #text) .. (done and "" or "\r"))
        width = #text
    end
end

local function new_row(mesh, scheme)
    return { mesh = mesh, scheme = scheme, passed = 0, missed = 0, refused = 0, rel_err = nil, wrong = 0, sent = 0,
        theory = 0 }
end

local function add_to(row, r)
    row[r.result] = row[r.result] + 1
    if r.rel_err then
        row.rel_err = math.max(row.rel_err or 0, r.rel_err)
    end
    row.wrong = row.wrong + (r.wrong or 0)
    if r.sent then
        row.sent = row.sent + r.sent
        row.theory = row.theory and r.theory and row.theory + r.theory
    end
end

local function show_row(o, row)
    if row.passed + row.missed == 0 then
        return
    end
    local share = row.theory and row.theory > 0 and row.sent / row.theory or nil
    say(o, report.row(COLUMNS, { row.mesh, row.scheme, row.passed, row.missed, row.refused, row.rel_err, row.wrong,
        row.sent, row.theory or nil, share }))
    io.stdout:flush()
end

-- What was refused: one sentence a rule, with how often it applied.
local function show_refused(o, results)
    local list, by_rule = {}, {}
    for _, r in ipairs(results) do
        if r.result == "refused" then
            local rule = o.refused and r.case.mesh .. r.case.scheme .. r.case.mask
                or r.reason:gsub('"[^"]*"', ""):gsub("scheme %l+", ""):gsub("mask %S+", ""):gsub("%d+", "")
            if not by_rule[rule] then
                by_rule[rule] = { n = 0, example = r }
                list[#list + 1] = by_rule[rule]
            end
            by_rule[rule].n = by_rule[rule].n + 1
        end
    end
    if #list > 0 then
        say(o, "#\n# refused%s:", o.refused and "" or ", one of a kind (--refused lists all)")
    end
    for _, rule in ipairs(list) do
        local c = rule.example.case
        say(o, "#   %5d  %s, %s, %s: %s", rule.n, c.mesh, c.scheme, c.mask, rule.example.reason)
    end
end

local function show_missed(o, results)
    for _, r in ipairs(results) do
        if r.result == "missed" then
            say(o, "# MISSED  %s, %s, %s, heads %s: %s", r.case.mesh, r.case.scheme, r.case.mask, r.case.heads,
                r.reason)
        end
    end
end

-- ---- all of them

local function header(o, list)
    local widest = 4
    for _, case in ipairs(list) do
        widest = math.max(widest, #case.mesh)
    end
    COLUMNS[1].width = widest
    say(o, "# spl %s check: forward pass of a block against fp64, %s", spl.version,
        report.plural(spl.size(), spl.virtual() and "virtual rank" or "rank"))
    say(o, "# batch %d, seq %d, head_dim %d, %s; heads %s", o.batch, o.seq, cases.HEAD_DIM, o.dtype,
        table.concat(o.heads or cases.HEADS, ", "))
    say(o, "# masks: %s; hierarchical: chunks of %d tokens, %d summaries", table.concat(o.mask or cases.MASKS, ", "),
        cases.CHUNK, cases.SUMMARIES)
    say(o, "# rel_err: the largest; bytes: of all ranks and combinations of a row; passed: right, the same bits when "
        .. "run again, and")
    say(o, "# bytes as theory says where it says anything")
    say(o, "#\n" .. report.head(COLUMNS))
end

-- [collective] Runs the list; results in its order.
local function run_all(list, o)
    local results, progress = {}, watcher(o, #list)
    local mesh, row
    local refused_here = {} -- whatever the heads
    for i, case in ipairs(list) do
        progress(i - 1)
        if not mesh or mesh.text ~= case.mesh then
            if mesh then
                mesh.object:release()
            end
            mesh, refused_here = { text = case.mesh, object = spl.mesh(case.mesh) }, {}
        end
        if not row or row.mesh ~= case.mesh or row.scheme ~= case.scheme then
            if row then
                progress()
                show_row(o, row)
            end
            row = new_row(case.mesh, case.scheme)
        end
        local key = case.scheme .. " " .. case.mask
        if not refused_here[key] then
            local r = run_case(case, mesh.object, o)
            r.case = case
            refused_here[key] = r.result == "refused"
            results[#results + 1] = r
            add_to(row, r)
            if o.json and spl.rank() == 0 then
                show_json(case, r)
            end
        end
    end
    progress()
    if mesh then
        mesh.object:release()
        show_row(o, row)
    end
    return results
end

local function count(results, what)
    local n = 0
    for _, r in ipairs(results) do
        n = n + (r.result == what and 1 or 0)
    end
    return n
end

-- Several numbers of virtual ranks, each in a process of its own.
local function run_sizes(o, words)
    local worst = 0
    for i, size in ipairs(o.sizes) do
        local line = { spl.executable(), "check", "--virtual", ("%d"):format(size), "--here" }
        if size >= 16 and o.axes == OPTIONS.axes.default then -- what fewer ranks have not shown
            line[#line + 1] = "--axes=4"
        end
        table.move(words, 1, #words, #line + 1, line)
        if i > 1 and not o.json then
            print "#"
        end
        io.stdout:flush()
        local r, message = core.system.run_process(line, { seconds = LIMIT })
        if not r then
            spl.error { code = "environment", message = "check: " .. message }
        elseif r.how == "interrupt" then
            spl.error { code = "interrupt", message = "check: interrupted" }
        end
        local code = r.how == "exit" and r.code or 1
        worst = worst == 0 and code or worst
        if code >= 2 then
            break
        end
    end
    return worst
end

--- [collective] `spl check`: runs what the words say and ends the rank: 1 where a combination missed.
---@param ... string the words behind the command
function differential.main(...)
    local words = { ... }
    local o = spl.args(OPTIONS, words)
    if (o.json and o.markdown) then
        spl.error { code = "usage", message = "--json and --markdown each print nothing else; choose one" }
    end
    require "spl.check".able()
    cases.check(o)
    local launched = os.getenv "OMPI_COMM_WORLD_SIZE" or os.getenv "PMI_SIZE"
    if spl.size() == 1 and not o.here and not launched then
        os.exit(run_sizes(o, words))
    end
    local list = cases.list(spl.size(), o)
    header(o, list)
    local results = run_all(list, o)
    local missed, passed, refused = count(results, "missed"), count(results, "passed"), count(results, "refused")
    if o.markdown and spl.rank() == 0 then
        io.stdout:write(cases.markdown(results))
    end
    show_refused(o, results)
    say(o, "#")
    show_missed(o, results)
    say(o, "# %d passed, %d missed, %d refused%s", passed, missed, refused, missed > 0 and ", FAILED" or ", OK")
    if missed > 0 and (o.json or o.markdown) and spl.rank() == 0 then
        io.stderr:write(("spl: check: %s missed\n"):format(report.plural(missed, "combination")))
    end
    os.exit(missed > 0 and 1 or 0)
end

return differential
