-- What luacheck holds the Lua of SPL to: `make lint`.
std = "lua54"
max_line_length = 120
self = false
files["lua/spl/boot.lua"] = { globals = { "load", "loadfile", "dofile", "os", "package", "warn" } }
files["lua/spl/repl.lua"] = { globals = { "io", "print", "_G" } }
files["lua/spl/strict.lua"] = { globals = { "_G" } }
files["lua/spl/test.lua"] = { globals = { "_G", "os", "package" } }
files["lua/meta"] = { ignore = { "1..", "2..", "6.." } } -- annotations only: declared, never run
files["tests"] = { std = "+busted" }
