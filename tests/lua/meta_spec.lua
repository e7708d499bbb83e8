-- meta_spec.lua: what bindings offer and what is written about them are the same, both ways.
local spl = require "spl"
local help = require "spl.help"

-- Methods of an object: the C function behind __index keeps them as its upvalue.
local function methods_of(object)
    local _, methods = debug.getupvalue(getmetatable(object).__index, 1)
    assert.is_table(methods)
    return methods
end

describe("annotations", function()
    local written = {}
    for _, entry in ipairs(help.entries()) do written[entry.name] = entry end

    local function compare(prefix, offered)
        for name, value in pairs(offered) do
            if type(value) == "function" then
                assert.is_truthy(written[prefix .. name], ("%s%s is not described in lua/meta"):format(prefix, name))
            end
        end
        for name in pairs(written) do
            local method = name:match("^" .. prefix:gsub("%.", "%%.") .. "([%w_]+)$")
            if method then
                assert.is_truthy(offered[method], ("%s is described in lua/meta, but not there"):format(name))
            end
        end
    end

    it("describe tensors, meshes, layouts and blocks", function()
        local mesh <close> = spl.mesh("tp=*:sequence")
        local tensor <close> = spl.zeros { shape = { 1 }, mesh = mesh }
        local block <close> = spl.block { hidden = 2, heads = 1 }
        compare("mesh:", methods_of(mesh))
        compare("layout:", methods_of(tensor.layout))
        compare("tensor:", methods_of(tensor))
        compare("block:", methods_of(block))
        compare("reference.", spl.reference)
        compare("mesh.", spl.mesh)
    end)

    it("describe the functions that make and measure them", function()
        for _, name in ipairs { "mesh", "layout", "tensor", "zeros", "ones", "from_table", "linear", "norm", "embed",
            "nll", "add",
            "block", "compare" } do
            assert.is_truthy(written[name], name)
            assert.is_truthy(spl[name], name)
        end
    end)

    it("say of each whether it is local or collective", function()
        for name, entry in pairs(written) do
            if name:match("^%l+:") or rawget(spl, name) then
                local text = table.concat(entry.text, " ")
                local said = text:find("[local]", 1, true) or text:find("[collective", 1, true)
                assert.is_truthy(said, name .. " does not say [local] or [collective]")
            end
        end
    end)

    it("give methods for every field that an unknown one is compared with", function()
        local tensor <close> = spl.zeros { shape = { 1 } }
        for name in pairs(methods_of(tensor)) do
            local ok, err = pcall(function() return tensor[name .. "x"] end)
            assert.is_false(ok)
            assert.matches("did you mean '" .. name .. "'", err.message)
        end
    end)
end)
