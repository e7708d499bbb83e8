-- command.lua: words of a command that works on files (`spl trace FILE`): what is a name, and what an option.
local spl = require "spl"
local command = {}

local function usage(format, ...)
    spl.error { code = "usage", message = format:format(...) }
end

--- [local] Splits the words behind a command into names and options, and reads the options.
---@param name string the command, for messages
---@param needed string[] what the names are, as "FILE"; each must be there, and no more
---@param options table a declaration as spl.args takes it
---@param words string[]
---@return string[] names, table options
function command.read(name, needed, options, words)
    local takes_value = {}
    for option, default in pairs(options) do
        local kind = type(default) == "table" and (default.type or type(default.default)) or type(default)
        takes_value["--" .. tostring(option):gsub("_", "-")] = kind ~= "boolean"
    end
    local names, rest, i, raw = {}, {}, 1, false
    while i <= #words do
        local word = words[i]
        if raw or word:sub(1, 1) ~= "-" or word == "-" then
            names[#names + 1] = word
        elseif word == "--" then
            raw = true
        else
            rest[#rest + 1] = word
            if takes_value[word] and words[i + 1] then
                i = i + 1
                rest[#rest + 1] = words[i]
            end
        end
        i = i + 1
    end
    if #names > #needed then
        usage("unexpected argument '%s': `spl %s` takes %s", names[#needed + 1], name, table.concat(needed, " "))
    elseif #names < #needed then
        usage("`spl %s` needs %s; `spl %s --help` tells more", name, table.concat(needed, " ", #names + 1), name)
    end
    return names, spl.args(options, rest)
end

return command
