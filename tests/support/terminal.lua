-- terminal.lua: for specs: a program on a terminal of its own, in tmux: keys go in, what is on the screen comes out.
local spl = require "spl"
local terminal = {}

local LIMIT = 20 -- seconds: generous, so that only a hang reaches it
local count = 0

local function quote(word)
    return "'" .. word:gsub("'", "'\\''") .. "'"
end

local function output_of(command)
    local pipe = assert(io.popen(command .. " 2>/dev/null"))
    local text = pipe:read("a")
    pipe:close()
    return text
end

--- Is tmux there?
function terminal.there()
    return output_of "command -v tmux" ~= ""
end

--- Starts a shell command line on a terminal of 100 columns; :close() ends it.
---@param line string
---@param env table<string, string>?
function terminal.open(line, env)
    count = count + 1
    local name = ("spl-test-%s-%d"):format(os.tmpname():match("[^/]*$"), count)
    local tmux = "env -u TMUX LC_ALL=C.UTF-8 tmux -u -f /dev/null -L " .. name .. " "
    local words = {}
    for key, value in pairs(env or {}) do
        words[#words + 1] = key .. "=" .. quote(value)
    end
    table.sort(words)
    local self = {}
    output_of(tmux .. "new-session -d -x 100 -y 50 " .. quote(("env %s %s; echo \"ended with $?\"; sleep 60"):format(
        table.concat(words, " "), line)))

    --- Types text as it is.
    function self.type(text)
        output_of(tmux .. "send-keys -l " .. quote(text))
    end

    --- Presses keys by the names that tmux has for them: "Enter", "Tab", "Up", "C-c".
    function self.press(...)
        output_of(tmux .. "send-keys " .. table.concat({ ... }, " "))
    end

    function self.line(text)
        self.type(text)
        self.press "Enter"
    end

    function self.screen()
        return (output_of(tmux .. "capture-pane -p -J"):gsub("%s+$", ""))
    end

    --- Waits until the screen has this text (plain); with `last`, until it ends with it: a prompt that waits for keys.
    function self.wait(text, last)
        local begin = spl.now()
        while not self.screen():find(text, last and -#text or 1, true) do
            if spl.now() - begin > LIMIT then
                error(("'%s' did not come to the screen:\n%s"):format(text, self.screen()), 2)
            end
            os.execute "sleep 0.1"
        end
        return self.screen()
    end

    function self.close()
        output_of(tmux .. "kill-server")
    end

    return setmetatable(self, { __close = self.close, __gc = self.close })
end

return terminal
