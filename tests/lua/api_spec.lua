-- api_spec.lua: annotations and running tables say the same, both ways: names, parameters, scope; and what is made of
-- the annotations: lua/API.md, help, completion in editors.
local api = require "spl.api"
local core = require "spl.core"
local help = require "spl.help"
local json = require "spl.json"
local spl = require "spl"

local NOT_API = { main = true, __close = true, __gc = true, __index = true, __tostring = true }

local function file_of(path)
    local file = assert(io.open(path))
    local text = file:read "a"
    file:close()
    return text
end

local function methods_of(object)
    local index = getmetatable(object).__index
    return type(index) == "table" and index or select(2, debug.getupvalue(index, 1))
end

-- Names that a signature gives its parameters.
local function parameters(signature)
    local list = {}
    for name in signature:match "%((.-)%)$":gmatch "[%w_.]+" do
        list[#list + 1] = name
    end
    return list
end

-- What is behind an entry while the program runs; nil for methods.
local function value_of(e)
    if e.name:find(":", 1, true) then
        return nil
    elseif not e.public then
        local good, module = pcall(require, "spl." .. e.module)
        return good and type(module) == "table" and module[e.name:match "[%w_]+$"] or nil
    end
    local value = spl
    for part in e.name:gmatch "[%w_]+" do
        value = type(value) == "table" and value[part] or nil
    end
    return value
end

describe("annotations", function()
    it("describe every public function, and none that is not there", function()
        local written = {}
        for _, e in ipairs(help.entries()) do
            if e.public then written[e.name] = e end
        end
        local offered = {}
        for name, value in pairs(spl) do
            if type(value) == "function" then offered[name] = true end
            if type(value) == "table" then
                for inner, one in pairs(value) do
                    if type(one) == "function" and rawget(core, name) then offered[name .. "." .. inner] = true end
                end
            end
        end
        for name in pairs(offered) do
            assert.is_truthy(written[name], "spl." .. name .. " is not described")
        end
        for name, e in pairs(written) do
            if not name:find(":", 1, true) then
                local value = value_of(e)
                local called = type(value) == "function" or type(value) == "table" and getmetatable(value)
                    and getmetatable(value).__call
                assert.is_truthy(called, e.signature .. " is described, but not there")
            end
        end
    end)

    it("describe every function that modules give out", function()
        local written, described = {}, {} -- by name; functions themselves, which may have a second name
        for _, e in ipairs(help.entries()) do
            if e.module then
                written[e.module .. " " .. e.name:match "[%w_]+$"] = true
                described[value_of(e) or e] = true
            end
        end
        local bare = {}
        for _, path in ipairs(core.embedded_list()) do
            local name = path:match "^spl/(.*)%.lua$"
            local good, module = false, nil
            if name and name ~= "init" and name ~= "boot" then good, module = pcall(require, "spl." .. name) end
            for key, value in pairs(good and type(module) == "table" and module or {}) do
                if type(value) == "function" and not NOT_API[key] and not described[value]
                    and not written[name .. " " .. key] then
                    bare[#bare + 1] = name .. "." .. key
                end
            end
        end
        table.sort(bare)
        assert.equal("", table.concat(bare, " "))
    end)

    it("describe the methods of every kind of object, and none that is not there", function()
        local path = os.tmpname()
        local file = assert(io.open(path, "wb"))
        file:write(string.pack("<s8", "{}"))
        file:close()
        local mesh <close> = spl.mesh "tp=*:sequence"
        local tensor <close> = spl.zeros { shape = { 1 }, mesh = mesh }
        local block <close> = spl.block { hidden = 2, heads = 1 }
        local weights <close> = spl.safetensors.require(path)
        os.remove(path)
        local objects = { mesh = mesh, tensor = tensor, layout = tensor.layout, block = block, file = weights,
            re = spl.regex.compile "x" }
        local written = {}
        for _, e in ipairs(help.entries()) do written[e.name] = true end
        for kind, object in pairs(objects) do
            local methods = methods_of(object)
            for name, value in pairs(methods) do
                assert.is_true(type(value) ~= "function" or NOT_API[name] or written[kind .. ":" .. name] or false,
                    kind .. ":" .. name .. " is not described")
            end
            for name in pairs(written) do
                local method = name:match("^" .. kind .. ":(.+)$")
                assert.is_true(not method or methods[method] ~= nil, name .. " is described, but not there")
            end
        end
    end)

    it("give each parameter of a signature, in its order, with a type", function()
        for _, e in ipairs(help.entries()) do
            local given = {}
            for _, line in ipairs(e.text) do
                local name, kind = line:match "^@param ([%w_.]+)%?? +(%S+)"
                given[#given + 1] = name
                assert.is_true(not line:match "^@param" or kind ~= nil, e.signature .. ": " .. line)
            end
            local wanted = parameters(e.signature)
            if e.path:match "^meta/" or #given > 0 then
                assert.same(wanted, given, e.signature .. " of " .. e.path)
            end
        end
    end)

    it("name the parameters as the Lua functions themselves do", function()
        local compared = 0
        for _, e in ipairs(help.entries()) do
            local f = value_of(e)
            local info = type(f) == "function" and debug.getinfo(f, "Su")
            if info and info.what == "Lua" then
                local own = {}
                for i = 1, info.nparams do own[i] = debug.getlocal(f, i) end
                if info.isvararg then own[#own + 1] = "..." end
                assert.same(own, parameters(e.signature), e.signature .. " of " .. e.path)
                compared = compared + 1
            end
        end
        assert.is_true(compared > 40, compared .. " were compared")
    end)

    it("say of each function whether it is local or collective", function()
        for _, e in ipairs(help.entries()) do
            local text = table.concat(e.text, " ")
            assert.is_truthy(text:find("[local]", 1, true) or text:find("[collective", 1, true),
                e.signature .. " of " .. e.path .. " does not say [local] or [collective]")
        end
    end)

    it("all stand in a group of help", function()
        assert.same({}, api.ungrouped())
    end)
end)

describe("lua/API.md", function()
    it("is what the annotations make, with every function and field", function()
        local page = file_of "lua/API.md"
        assert.is_true(page == api.markdown(), "lua/API.md is behind: `make api` writes it anew")
        for _, e in ipairs(help.entries()) do
            assert.is_truthy(page:find("### `" .. e.signature .. "`", 1, true), e.signature)
        end
        for _, f in ipairs(help.fields()) do
            assert.is_truthy(page:find("- `" .. f.name:match "[%w_]+$" .. "` ", 1, true), f.name)
        end
    end)

    it("has lines of at most 120 columns, but for words that are longer", function()
        for line in file_of("lua/API.md"):gmatch "[^\n]+" do
            assert.is_true(utf8.len(line) <= 120 or not line:find "^%w", line)
        end
    end)
end)

describe(".luarc.json", function()
    it("points editors to the annotations", function()
        local settings = json.decode(file_of ".luarc.json", ".luarc.json")
        assert.equal("Lua 5.4", settings["runtime.version"])
        for _, folder in ipairs(settings["workspace.library"]) do
            assert.is_truthy(io.open(folder .. "/tensor.lua"), folder)
        end
    end)
end)
