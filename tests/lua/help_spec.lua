-- help_spec.lua: `spl help` and spl.help: what topics there are, what they say, and that it is true.
local spl = require "spl"
local help = require "spl.help"
local topics = require "spl.topics"
local mpi = require "mpi"

local function of(...)
    local r = mpi.spl { "help", ... }
    assert.equal(0, r.code, r.err)
    assert.equal("", r.err)
    return r.out
end

describe("spl help", function()
    it("lists topics, each of which there is", function()
        local text = of()
        local listed = text:match("Topics: (.-)\n\n")
        for _, topic in ipairs { "run", "test", "info", "help", "version", "scripts", "sp_forward", "api", "block",
            "tensor:gather", "tensor.shape", "mesh.parse", "roles", "sweeps" } do
            assert.matches(topic, listed, 1, true)
            of(topic)
        end
        assert.equal(of("help"), of("--help"))
    end)

    it("takes one topic", function()
        local r = mpi.spl { "help", "block", "mesh" }
        assert.same({ 2, "spl: unexpected argument 'mesh': `spl help` takes one topic\n" }, { r.code, r.err })
    end)

    it("lists functions by concept, the public ones first, and cuts no text", function()
        local text = of "api"
        local modules = text:find("Modules, each by require", 1, true)
        local at = 1
        for _, title in ipairs { "The rank a script runs on", "Named axes", "Tensors:", "Moving tensors",
            "The transformer", "Weight files", "Regular expressions", "Scripts:", "Modules, each by require" } do
            at = text:find("\n" .. title, at, true) or title == "The rank a script runs on" and 1
            assert.is_truthy(at, title)
        end
        for _, entry in ipairs(help.entries()) do
            local name = entry.name:gsub("%p", "%%%0")
            if entry.public then
                assert.is_true(text:find("\n  " .. name .. " +[%[%w]") < modules, name)
            else
                assert.is_truthy(text:find("[ \n]" .. name .. "[,\n]", modules), name)
            end
        end
        for line in text:gmatch("[^\n]+") do
            assert.is_true(#line <= 100, line)
            assert.is_nil(line:match("%w%.%.%.$"), line)
        end
    end)

    it("lists the scripts that come with the program", function()
        local text = of "scripts"
        for _, name in ipairs { "bench_attention", "bench_comm", "generate", "long_context", "score", "sp_forward" } do
            assert.matches("\n  " .. name .. " +%l", text)
            assert.matches("^usage: spl run %[%-n RANKS%] " .. name .. "%.lua", of(name))
        end
    end)

    it("knows a method by : and by .", function()
        assert.equal(of "block:schedule", of "block.schedule")
        assert.equal(of "block:schedule", of "spl.block.schedule")
        assert.matches("^block:schedule%(mesh, o%)\n  %[collective%]", of "block:schedule")
    end)

    it("shows of an object its fields, its methods and an example", function()
        local text = of "block"
        assert.matches("^spl%.block%(o%)\n  %[local%]", text)
        assert.matches("\n    local blk = spl.block {", text, 1, true)
        for name in pairs { schedule = 1, forward = 1, check = 1, explain = 1 } do
            assert.matches("\n  block:" .. name .. " +%[", text)
        end
        assert.matches("\n  block%.config +table ", text)
        local tensor <close> = spl.zeros { shape = { 2 } }
        for _, name in ipairs { "shape", "local_shape", "dtype", "ndim", "count", "local_count", "bytes" } do
            assert.is_truthy(tensor[name])
            assert.matches("\n  tensor%." .. name .. " ", of "tensor")
        end
        assert.matches("^tensor.shape\n  integer%[%] global", of "tensor.shape")
    end)

    it("describes no field that there is not", function()
        local mesh <close> = spl.mesh "tp=*:sequence"
        local blk <close> = spl.block { hidden = 2, heads = 1 }:schedule(mesh)
        local tensor <close> = spl.zeros { shape = { 1 }, mesh = mesh }
        local objects = { mesh = mesh, block = blk, tensor = tensor, layout = tensor.layout }
        local seen = 0
        for _, field in ipairs(help.fields()) do
            local class, name = field.name:match("^(%l+)%.(.*)$")
            if objects[class] then
                seen = seen + 1
                assert.is_not_nil(objects[class][name], field.name)
            end
        end
        assert.is_true(seen > 12)
    end)

    it("says how a module is reached", function()
        assert.matches("^json%.encode%(value, order%)   %(local json = require \"spl%.json\"%)\n", of "json.encode")
        assert.matches('^require "spl.json": JSON', of "json")
        assert.matches("\nsafetensors.open", of("safetensors"):gsub("\n +", "\n"), 1, true)
    end)

    it("names the nearest topic", function()
        for word, near in pairs { josn = "json", scirpts = "scripts", ["tensor:gahter"] = "tensor:gather",
            roels = "roles" } do
            local r = mpi.spl { "help", word }
            assert.equal(2, r.code)
            assert.equal(("spl: no help on '%s'; did you mean '%s'?\n"):format(word, near), r.err)
        end
        assert.matches("`spl help` lists topics", mpi.spl({ "help", "frobnicate" }).err, 1, true)
    end)
end)

describe("words of the field that are no function", function()
    it("lead to the topic that says them", function()
        for word, topic in pairs { scheme = "schemes", zigzag = "schemes", striped = "schemes", role = "roles",
            ring = "roles", hierarchical = "roles", ulysses = "roles", data = "roles" } do
            assert.equal(of(topic), of(word), word)
        end
        for word, said in pairs { tensor = "^spl%.tensor%(o%)", gather = "^spl%.gather%(", masks = "window:W",
            mask = "window:W" } do
            assert.matches(said, of(word))
        end
    end)

    it("and what schemes deal out is what is said", function()
        local text = of "schemes"
        local r = mpi.run(1, [[local spl = require "spl"
            for _, scheme in ipairs { "contiguous", "zigzag", "striped" } do
                local x = spl.block { hidden = 2, heads = 1 }:schedule(spl.mesh "cp=*:ring", { scheme = scheme })
                    :input { seq = 12 }
                local rows = {}
                for _, s in ipairs(x.layout:segments(2)) do
                    for i = 0, s.length - 1 do rows[#rows + 1] = s.start + i * s.stride end
                end
                local all = spl.gather(table.concat(rows, ","))
                if spl.rank() == 0 then print(scheme, table.concat(all, " ")) end
            end]], nil, { flags = { "--virtual", "3" } })
        assert.equal(0, r.code, r.err)
        local n = 0
        for scheme, held in r.out:gmatch "(%l+)\t([^\n]+)" do
            local parts = {}
            for part in text:match("\n  " .. scheme .. "([^\n]*)"):gmatch "%d: (%S+)" do
                parts[#parts + 1] = part:gsub("(%d+)%-(%d+)", function(a, b)
                    local rows = {}
                    for i = a, b do rows[#rows + 1] = math.tointeger(i) end
                    return table.concat(rows, ",")
                end)
            end
            assert.equal(held, table.concat(parts, " "), scheme)
            n = n + 1
        end
        assert.equal(3, n)
    end)
end)

describe("help on roles", function()
    it("names all nine, and says which of them a block can use", function()
        assert.equal(9, #topics.role_list)
        local text = of "roles"
        assert.matches(text:gsub("\n$", ""), of "mesh", 1, true)
        local refused = text:find("Refused by name in this version:", 1, true)
        for _, role in ipairs(topics.role_list) do
            local at = text:find("\n  " .. role[1] .. " ", 1, true)
            assert.equal(role[2], at < refused, role[1])
            local mesh <close> = spl.mesh("x=*:" .. role[1])
            local blk <close> = spl.block { hidden = 2, heads = 1 }
            local works, err = pcall(blk.schedule, blk, mesh)
            assert.equal(role[2], works, tostring(err))
        end
    end)
end)

describe("spl.help in a script", function()
    it("prints once, whatever the ranks", function()
        local r = mpi.run(3, "local spl = require 'spl' spl.help 'barrier' spl.barrier()")
        assert.same({ 0, "spl.barrier()\n  [collective] Returns when every rank has called it.\n" }, { r.code, r.out })
    end)

    it("refuses what is no topic", function()
        local ok, err = pcall(spl.help, "nosuchthing")
        assert.same({ false, "usage" }, { ok, err.code })
        ok, err = pcall(spl.help, 5)
        assert.same({ false, "argument" }, { ok, err.code })
    end)
end)
