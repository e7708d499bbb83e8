-- rows.lua: what the benchmarks that print a row a mesh have in common: lines on rank 0, what of a row goes into JSON,
-- approximate rows, and the way from the first row to the verdict. A row is {name, mesh, scheme, batch, ...}.
local report = require "spl.report"
local spl = require "spl"
local spread = require "spl.spread"
local rows = {}

--- [local] A function that prints a formatted line of the table on rank 0; nothing with json.
---@param json boolean
---@return function say (format, ...)
function rows.printer(json)
    return function(format, ...)
        if spl.rank() == 0 and not json then
            print(select("#", ...) > 0 and format:format(...) or format)
        end
    end
end

--- [local] Has an axis one of these roles?
---@param axes table[] as mesh.axes
---@param ... string
---@return boolean
function rows.has_role(axes, ...)
    for _, axis in ipairs(axes) do
        for _, role in ipairs { ... } do
            if axis.role == role then return true end
        end
    end
    return false
end

--- [collective] What theory says of bytes against what was sent: the most of any rank, and whether every rank sent what
--- its own theory says; nil, nil where one rank has none.
---@param mine integer? of this rank
---@param sent integer of this rank
---@return integer? most
---@return boolean? as_theory
function rows.theory(mine, sent)
    if spl.max(mine and 0 or 1) > 0 then
        return nil, nil
    end
    return spl.max(mine), spl.max(mine == sent and 0 or 1) == 0
end

--- [local] The fields of a JSON row that every benchmark measures alike.
---@param r table what spl.bench gave
---@param checked? table what a check gave
---@return table
function rows.measured(r, checked)
    return { ranks = spl.size(), threads = spl.threads(), backend = spl.facts().backend, time_ms_p50 = r.ms_p50,
        time_ms_min = r.ms_min, time_ms_p99 = r.ms_p99, gflops = r.gflops, gemm_pct = r.gemm_pct, comm_ms = r.comm_ms,
        comm_exposed_ms = r.comm_exposed_ms, comm_pct = r.comm_pct, bytes_sent = r.bytes_sent,
        peak_bytes = r.peak_bytes, workspace_bytes = r.workspace_bytes, rel_err = checked and checked.rel_err,
        wrong = checked and checked.wrong, rows_checked = checked and checked.rows }
end

--- [local] The line of a row on what no column has room for.
---@param say function
---@param what string "workspace 12 bytes"
---@param checked? table what a check gave
function rows.details(say, what, checked)
    say("#   %s%s", what, not checked and "" or checked.rows == checked.seq and "; all rows checked against fp64"
        or ("; %d of %d rows checked against fp64"):format(checked.rows, checked.seq))
end

--- [local] What is said of a row that is approximate, nothing of others: of what, how far from exact attention, and
--- which ranks have no token, since chunks stay whole.
---@param say function
---@param axes table[]
---@param o table {seq=, chunk=, summaries=}
---@param err? number distance from exact attention
function rows.approximate(say, axes, o, err)
    local ranks = 1
    for _, axis in ipairs(axes) do
        ranks = axis.role == "hierarchical" and ranks * axis.size or ranks
    end
    if not rows.has_role(axes, "hierarchical") then
        return
    end
    say("#   approximate: chunks of %d, %d summar%s of each; approx_err %s, the distance from exact attention", o.chunk,
        o.summaries, o.summaries == 1 and "y" or "ies",
        err and ("%.1e"):format(err) or "- (exact attention would take too long)")
    local chunks = (o.seq + o.chunk - 1) // o.chunk
    if chunks < ranks then
        say("#   %d chunk%s for %d ranks: chunks stay whole, so %d hold no token; a --chunk of at most %d gives each "
            .. "some", chunks, chunks == 1 and "" or "s", ranks, ranks - chunks, math.max(1, o.seq // ranks))
    end
end

--- [collective] Runs the rows and says what comes of them all: the fastest exact one, wrong elements, rows whose
--- rel_err is above its bound, bytes that are not as theory says.
---@param list table[] the rows, as spread.note takes them; row.axes where known
---@param run function (row) -> checked?, as_theory? true, false, or nil where there is no theory
---@param v table {say=, script=, json=, checked= boolean, what= "every saved tensor", dtype=}
---@return boolean failed
function rows.all(list, run, v)
    local wrong, as_theory, over, untold, exact = 0, true, {}, {}, {}
    for _, row in ipairs(list) do
        local checked, told = run(row)
        wrong, as_theory = wrong + (checked and checked.wrong or 0), as_theory and told ~= false
        untold[#untold + 1] = told == nil and row.name or nil
        if checked and checked.bound and checked.rel_err > checked.bound then
            over[#over + 1] = ("%s: rel_err %.1e is above the %.1e that %s must keep"):format(row.name, checked.rel_err,
                checked.bound, v.dtype)
        end
        local axes = row.mesh == "naive" and {} or spl.mesh.parse(row.mesh).axes
        exact[#exact + 1] = not rows.has_role(axes, "hierarchical") and row or nil
    end
    v.say("#")
    local fastest = spread.fastest(exact)
    if fastest then
        v.say("# %s%s", fastest, #exact < #list and "; approximate rows do not compete" or "")
    end
    return report.verdict(v.say, { script = v.script, json = v.json, checked = v.checked, what = v.what, wrong = wrong,
        over = over, as_theory = as_theory, untold = untold, rows = #list })
end

return rows
