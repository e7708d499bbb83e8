-- write_api.lua: `make api`: writes lua/API.md from the annotations.
local file = assert(io.open("lua/API.md", "w"))
file:write(require "spl.api".markdown())
file:close()
