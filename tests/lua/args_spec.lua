-- args_spec.lua: options of scripts: what is read, what is refused and how, what --help prints.
local spl = require "spl"
local mpi = require "mpi"

local function read(declaration, ...)
    return spl.args(declaration, { ... })
end

-- The message with which reading fails, which must be a usage error.
local function refused(declaration, ...)
    local ok, err = pcall(spl.args, declaration, { ... })
    assert.is_false(ok)
    assert.equal("usage", err.code)
    return err.message
end

describe("options", function()
    it("are the defaults where nothing is given", function()
        local o = read { batch = 1, ratio = 0.5, name = "x", check = false, color = true, mesh = { "a", "b" } }
        assert.equal(1, o.batch)
        assert.equal(0.5, o.ratio)
        assert.equal("x", o.name)
        assert.is_false(o.check)
        assert.is_true(o.color)
        assert.same({ "a", "b" }, o.mesh)
    end)

    it("take the value behind them or after =", function()
        local o = read({ batch = 1, name = "x" }, "--batch", "3", "--name=y=z")
        assert.equal(3, o.batch)
        assert.equal("integer", math.type(o.batch))
        assert.equal("y=z", o.name)
    end)

    it("may be written with - or _", function()
        assert.equal(2, read({ kv_heads = 8 }, "--kv-heads", "2").kv_heads)
        assert.equal(2, read({ kv_heads = 8 }, "--kv_heads=2").kv_heads)
    end)

    it("understand sizes in powers of 1024", function()
        assert.equal(65536, read({ seq = 1 }, "--seq", "64k").seq)
        assert.equal(3 * 1024 ^ 2, read({ seq = 1 }, "--seq", "3M").seq)
        assert.equal(8 * 1024 ^ 3, read({ seq = 1 }, "--seq", "8g").seq)
    end)

    it("of a number are floats", function()
        local o = read({ p = 0.5 }, "--p", "1")
        assert.equal("float", math.type(o.p))
        assert.equal(1.0, o.p)
        assert.equal(-2.5e-3, read({ p = 0.5 }, "--p", "-2.5e-3").p)
    end)

    it("that are on or off", function()
        assert.is_true(read({ check = false }, "--check").check)
        assert.is_false(read({ check = true }, "--no-check").check)
        assert.is_false(read({ check = true }, "--check=false").check)
        assert.is_true(read({ check = false }, "--check=yes").check)
    end)

    it("that are lists replace the default at the first use and then add", function()
        assert.same({ "a" }, read({ mesh = { "x", "y" } }, "--mesh", "a").mesh)
        assert.same({ "a", "b" }, read({ mesh = { "x", "y" } }, "--mesh", "a", "--mesh=b").mesh)
        assert.same({ 4, 1024 }, read({ seq = { 1, 2 } }, "--seq", "4", "--seq", "1k").seq)
    end)

    it("that are lists with a separator take several at once", function()
        local declaration = { op = { default = { "a" }, separator = "," }, seq = { default = { 1 }, separator = ":" } }
        assert.same({ "a" }, read(declaration).op)
        assert.same({ "x", "y", "z" }, read(declaration, "--op", "x, y", "--op=z").op)
        assert.same({ 2, 3072 }, read(declaration, "--seq", "2:3k").seq)
        assert.equal("--seq needs a whole number such as 2048 or 64k, got ''", refused(declaration, "--seq", "2:"))
    end)

    it("do not change the declaration's own lists", function()
        local default = { "x" }
        table.insert(read({ mesh = default }).mesh, "y")
        assert.same({ "x" }, default)
    end)

    it("without a default are nil until given", function()
        local declaration = { model = { type = "string", metavar = "DIR" } }
        assert.is_nil(read(declaration).model)
        assert.equal("here", read(declaration, "--model", "here").model)
    end)

    it("that were not declared cannot be read", function()
        local ok, err = pcall(function() return read({ seq = 1 }).sqe end)
        assert.is_false(ok)
        assert.matches("no option 'sqe' was declared", tostring(err), 1, true)
    end)
end)

describe("options are refused", function()
    it("that nobody declared, with the nearest name", function()
        assert.equal("unknown option '--hiden'; did you mean '--hidden'?", refused({ hidden = 1 }, "--hiden", "3"))
        assert.equal("unknown option '--zzz'; --help lists them all", refused({ hidden = 1 }, "--zzz=3"))
        assert.matches("unknown option '-x'", refused({ hidden = 1 }, "-x"), 1, true)
    end)

    it("with sizes that are zero, negative or no whole number", function()
        assert.equal("--seq must be at least 1, got 0", refused({ seq = 4 }, "--seq", "0"))
        assert.equal("--seq must be at least 1, got -5", refused({ seq = 4 }, "--seq=-5"))
        for _, text in ipairs { "1e3", "2.5", "", "12x", "k", "0x10", "1 2", "--3" } do
            assert.equal(("--seq needs a whole number such as 2048 or 64k, got '%s'"):format(text),
                refused({ seq = 4 }, "--seq=" .. text))
        end
    end)

    it("with sizes that 64 bits do not hold", function()
        for _, text in ipairs { "99999999999999999999", "9223372036854775808", "9000000000g" } do
            assert.equal(("--seq: %s is too large"):format(text), refused({ seq = 4 }, "--seq", text))
        end
    end)

    it("with numbers that are none", function()
        for _, text in ipairs { "nan", "inf", "1e999", "half", "" } do
            assert.equal(("--p needs a number, got '%s'"):format(text), refused({ p = 0.5 }, "--p=" .. text))
        end
    end)

    it("beyond their bounds, which may allow zero", function()
        local declaration = { rounds = { default = 5, min = 0, max = 9 } }
        assert.equal(0, read(declaration, "--rounds", "0").rounds)
        assert.equal("--rounds must be at least 0, got -1", refused(declaration, "--rounds", "-1"))
        assert.equal("--rounds must be at most 9, got 10", refused(declaration, "--rounds", "10"))
    end)

    it("outside their choices", function()
        local declaration = { dtype = { default = "f32", choices = { "f32", "f64" } } }
        assert.equal("f64", read(declaration, "--dtype", "f64").dtype)
        assert.equal("--dtype takes f32, f64, got 'f33'; did you mean 'f32'?", refused(declaration, "--dtype", "f33"))
    end)

    it("without a value", function()
        assert.equal("--seq needs a value", refused({ seq = 1 }, "--seq"))
        assert.equal("--name needs a value; if '--seq' is meant as one, write --name=--seq",
            refused({ seq = 1, name = "" }, "--name", "--seq", "3"))
    end)

    it("that are required and absent", function()
        local declaration = { model = { type = "string", metavar = "DIR", required = true } }
        assert.equal("--model DIR is required", refused(declaration))
    end)

    it("with a value for what is on or off that is neither", function()
        assert.matches("--check is on or off", refused({ check = false }, "--check=maybe"), 1, true)
    end)

    it("when they are no options", function()
        assert.matches("unexpected argument 'file.txt'", refused({ seq = 1 }, "file.txt"), 1, true)
    end)
end)

describe("a declaration is refused", function()
    local function broken(declaration)
        local ok, err = pcall(spl.args, declaration, {})
        assert.is_false(ok)
        assert.equal("argument", err.code)
        return err.message
    end

    it("that takes a name of the host's", function()
        assert.matches("belongs to `spl run` itself", broken { timeout = 3 }, 1, true)
        assert.matches("belongs to `spl run` itself", broken { strict = true }, 1, true)
    end)

    it("that has a field or type nobody knows", function()
        assert.equal("args: option 'seq': unknown field 'defualt'; did you mean 'default'?",
            broken { seq = { defualt = 3 } })
        assert.matches("unknown field 'x'; there are choices, default, ", broken { seq = { x = 3 } }, 1, true)
        assert.matches("separator is for lists", broken { seq = { default = 1, separator = "," } }, 1, true)
        assert.matches("separator is for lists", broken { seq = { default = { 1 }, separator = "ab" } }, 1, true)
        assert.matches("type 'float' is none of", broken { seq = { default = 1, type = "float" } }, 1, true)
    end)

    it("that is no table", function()
        assert.matches("a table of options is needed", broken "x", 1, true)
    end)
end)

describe("--help", function()
    local script = [[
local spl = require "spl"
spl.args { "Says what it is.", seq = { default = 2048, help = "tokens" }, mesh = { "tp=*" }, check = false,
    model = { type = "string", metavar = "DIR", required = true } }
print "went on"
]]
    it("prints the options once and ends all ranks well", function()
        local r = mpi.run(3, script, { "--help" })
        assert.equal(0, r.code)
        assert.equal("", r.err)
        assert.equal(1, mpi.count(r.out, "usage: spl run"))
        assert.matches("Says what it is.", r.out, 1, true)
        assert.matches("--seq N      tokens (default 2048)", r.out, 1, true)
        assert.matches("--mesh TEXT  (may be repeated; default tp=*)", r.out, 1, true)
        assert.matches("--model DIR  (required)", r.out, 1, true)
        assert.equal(0, mpi.count(r.out, "went on"))
    end)

    it("keeps texts flush, within 100 columns and whole", function()
        local long = ("some words "):rep(20):gsub(" $", "")
        local r = mpi.run(1, "require 'spl'.args { '" .. long .. "', a = 1, no_text = 'x', sizes = { 1, 2 }, "
            .. "kind_of_thing = { default = 'first', choices = { 'first', 'second', 'third' }, help = 'which' }, "
            .. "b = { default = 1.0, help = '" .. long .. "' }, op = { default = { 'a', 'b' }, separator = ',' }, "
            .. "many = { default = { '" .. ("abcdefgh,"):rep(15) .. "' } } }", { "--help" })
        assert.equal(0, r.code, r.err)
        for line in r.out:gmatch("[^\n]+") do assert.is_true(#line <= 100, line) end
        local text = "\n" .. r.out
        local column = text:match("\n(  %-%-a N +)%(default 1%)\n")
        assert.is_truthy(column, text)
        assert.matches("\n  --no-text TEXT" .. (" "):rep(#column - 16) .. "(default x)\n", text, 1, true)
        assert.matches("\n  --kind-of-thing first|second|third\n" .. (" "):rep(#column) .. "which (default first)\n",
            text, 1, true)
        assert.matches("may be repeated; default --sizes 1 --sizes 2)", text, 1, true)
        assert.matches("may be repeated; default a,b)", text, 1, true)
        assert.equal(40, mpi.count(text, "some"))
        assert.equal(40, mpi.count(text, "words"))
        assert.equal(15, mpi.count(text, "abcdefgh,"))
        local options, also = 0, text:match("Also the options.*")
        for option in mpi.spl({ "run", "--help" }).out:gmatch("\n  (%-[%w-]+) ") do
            options = options + 1
            assert.matches(option, also, 1, true)
        end
        assert.is_true(options >= 8)
    end)
end)
