--- The parts of a Hugging Face tokenizer.json that stand around the model: normalizers, pre-tokenizers and decoders.
---
--- Each kind is a table of makers by type name: maker(spec, fail) checks a part's description and gives a function.
---   normalizer:     text -> text
---   pre-tokenizer:  list of pieces -> list of pieces, with first = whether the list starts at the start of the text
---   decoder:        list of token texts -> list of token texts
--- A type that is not listed here is refused by name. Offsets are not tracked: ids are all that is wanted.
local spl = require "spl"

local parts = {}

-- GPT-2's alphabet: every byte as one printable character. The printable bytes of Latin-1 stand for themselves, the
-- others, in order, for U+0100 and up.
local byte_to_char, char_to_byte = {}, {}
do
    local spare = 256
    for b = 0, 255 do
        local printable = b >= 0x21 and b <= 0x7e or b >= 0xa1 and b <= 0xac or b >= 0xae
        local c = utf8.char(printable and b or spare)
        if not printable then spare = spare + 1 end
        byte_to_char[string.char(b)], char_to_byte[c] = c, string.char(b)
    end
end

local GPT2_SPLIT = [['s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+]]

-- Characters that normal form C changes or may change: combining marks, conjoining Jamo, and what decomposes for good.
local NFC_TOUCHED = [=[[\p{M}\x{1160}-\x{11FF}\x{0374}\x{037E}\x{0387}\x{0958}-\x{095F}\x{09DC}\x{09DD}\x{09DF}]=] ..
    [=[\x{0A33}\x{0A36}\x{0A59}-\x{0A5B}\x{0A5E}\x{0B5C}\x{0B5D}\x{0F43}\x{0F4D}\x{0F52}\x{0F57}\x{0F5C}\x{0F69}]=] ..
    [=[\x{1F71}-\x{1FFD}\x{2000}\x{2001}\x{2126}\x{212A}\x{212B}\x{2329}\x{232A}\x{2ADC}\x{F900}-\x{FAFF}]=] ..
    [=[\x{FB1D}-\x{FB4E}\x{110AB}\x{1D15E}-\x{1D164}\x{1D1BB}-\x{1D1C0}\x{2F800}-\x{2FA1D}]]=]

local function absent(value)
    return value == nil or type(value) == "userdata" -- JSON null
end

local function check(value, kind, what, fail)
    if type(value) ~= kind then fail("format", ("%s must be a %s"):format(what, kind)) end
    return value
end

local function flag(spec, name, default, fail)
    if absent(spec[name]) then return default end
    return check(spec[name], "boolean", ("%s.%s"):format(spec.type, name), fail)
end

local function compile(pattern, what, fail)
    -- Two spellings mean other things in Oniguruma, which these files are written for, than in PCRE2.
    for _, other in ipairs{ "&&", "\\h", "\\H" } do
        if pattern:find(other, 1, true) then
            fail("unsupported", ("%s: the regular expression %q uses %q, which is not supported")
                :format(what, pattern, other))
        end
    end
    local good, re = pcall(spl.regex.compile, pattern, "m") -- ^ and $ at each line, as there
    if not good then fail("format", ("%s: %s"):format(what, tostring(re))) end
    return re
end

-- A pattern {String = } or {Regex = } as a function text -> {first, last, first, last, ...}.
local function finder(spec, what, fail)
    local pattern = check(spec.pattern, "table", what .. ".pattern", fail)
    if type(pattern.Regex) == "string" then
        local re = compile(pattern.Regex, what, fail)
        return function(text) return re:spans(text) end
    end
    local plain = check(pattern.String, "string", what .. ".pattern.String", fail)
    if plain == "" then fail("format", what .. ".pattern.String must not be empty") end
    return function(text)
        local spans, at = {}, 1
        while true do
            local first, last = text:find(plain, at, true)
            if not first then return spans end
            spans[#spans + 1], spans[#spans + 2], at = first, last, last + 1
        end
    end
end

local function replacer(spec, fail)
    local find = finder(spec, "Replace", fail)
    local content = check(spec.content, "string", "Replace.content", fail)
    return function(text)
        local spans = find(text)
        if #spans == 0 then return text end
        local out, at = {}, 1
        for i = 1, #spans, 2 do
            out[#out + 1], out[#out + 2] = text:sub(at, spans[i] - 1), content
            at = spans[i + 1] + 1
        end
        out[#out + 1] = text:sub(at)
        return table.concat(out)
    end
end

-- The part that `spec` describes, out of `kind`; a missing part is the identity.
local function make(kind, plural, spec, fail)
    if absent(spec) then return function(value) return value end end
    check(spec, "table", plural, fail)
    local maker = kind[spec.type]
    if not maker then
        local names = {}
        for name in pairs(kind) do names[#names + 1] = name end
        table.sort(names)
        fail("unsupported", ("%s of type %q are not supported; supported are %s"):format(plural, tostring(spec.type),
            table.concat(names, ", ")))
    end
    return maker(spec, fail)
end

local function sequence(kind, plural, list, fail)
    check(list, "table", "Sequence." .. plural, fail)
    local steps = {}
    for i, spec in ipairs(list) do steps[i] = make(kind, plural, spec, fail) end
    return function(value, first)
        for _, step in ipairs(steps) do value = step(value, first) end
        return value
    end
end

-- ------------------------------------------------------------------------------------------------------- normalizers

local normalizers = {}

function normalizers.Sequence(spec, fail)
    return sequence(normalizers, "normalizers", spec.normalizers, fail)
end

function normalizers.Prepend(spec, fail)
    local prefix = check(spec.prepend, "string", "Prepend.prepend", fail)
    return function(text) return text == "" and text or prefix .. text end
end

function normalizers.Replace(spec, fail)
    return replacer(spec, fail)
end

-- Text that is in normal form C already passes; other text is refused rather than scored as what it is not.
function normalizers.NFC(_, fail)
    local touched = spl.regex.compile(NFC_TOUCHED)
    return function(text)
        local spans = text:find("[\xcc-\xff]") and touched:spans(text) or {} -- below U+0300 nothing changes
        if #spans > 0 then
            fail("unsupported", ("the text has a character that normal form C may change (%q at byte %d); "
                .. "only text without combining marks and compatibility forms is supported with this tokenizer")
                :format(text:sub(spans[1], spans[2]), spans[1]))
        end
        return text
    end
end

-- ---------------------------------------------------------------------------------------------------- pre-tokenizers

local pre_tokenizers = {}

function pre_tokenizers.Sequence(spec, fail)
    return sequence(pre_tokenizers, "pre-tokenizers", spec.pretokenizers, fail)
end

-- What happens to a piece that a pattern cuts. Each takes the parts in order, {text =, matched =} for matches and what
-- lies between them, and merges neighbours by changing `text` of one and taking the other out.
local behaviors = {}

function behaviors.Isolated(part_list)
    return part_list
end

function behaviors.Removed(part_list)
    local out = {}
    for _, part in ipairs(part_list) do
        if not part.matched then out[#out + 1] = part end
    end
    return out
end

-- A match joins what is before it, unless that is a match.
function behaviors.MergedWithPrevious(part_list)
    local out, after_match = {}, false
    for _, part in ipairs(part_list) do
        if part.matched and not after_match and #out > 0 then
            out[#out].text = out[#out].text .. part.text
        else
            out[#out + 1] = part
        end
        after_match = part.matched
    end
    return out
end

-- A match joins what comes after it, unless that is a match.
function behaviors.MergedWithNext(part_list)
    local out = {}
    for _, part in ipairs(part_list) do
        local before = out[#out]
        if before and before.matched and not part.matched then
            before.text, before.matched = before.text .. part.text, false
        else
            out[#out + 1] = part
        end
    end
    return out
end

-- Neighbouring matches are one piece.
function behaviors.Contiguous(part_list)
    local out = {}
    for _, part in ipairs(part_list) do
        local before = out[#out]
        if before and before.matched == part.matched then before.text = before.text .. part.text
        else out[#out + 1] = part end
    end
    return out
end

-- Cuts each piece by `find` and appends what the behaviour makes of the parts.
local function splitter(find, behave, invert)
    return function(pieces)
        local out = {}
        for _, text in ipairs(pieces) do
            local list, at, spans = {}, 1, find(text)
            for i = 1, #spans, 2 do
                if spans[i] > at then list[#list + 1] = { text = text:sub(at, spans[i] - 1), matched = invert } end
                list[#list + 1] = { text = text:sub(spans[i], spans[i + 1]), matched = not invert }
                at = spans[i + 1] + 1
            end
            if at <= #text then list[#list + 1] = { text = text:sub(at), matched = invert } end
            for _, part in ipairs(behave(list)) do out[#out + 1] = part.text end
        end
        return out
    end
end

function pre_tokenizers.Split(spec, fail)
    local find = finder(spec, "Split", fail)
    local behave = behaviors[spec.behavior]
    if not behave then fail("unsupported", ("Split.behavior %q is not known"):format(tostring(spec.behavior))) end
    return splitter(find, behave, flag(spec, "invert", false, fail))
end

function pre_tokenizers.Digits(spec, fail)
    local re = compile(flag(spec, "individual_digits", false, fail) and [[\p{N}]] or [[\p{N}+]], "Digits", fail)
    return splitter(function(text) return re:spans(text) end, behaviors.Isolated, false)
end

function pre_tokenizers.ByteLevel(spec, fail)
    local prefix = flag(spec, "add_prefix_space", true, fail)
    local re = flag(spec, "use_regex", true, fail) and compile(GPT2_SPLIT, "ByteLevel", fail)
    local split = re and splitter(function(text) return re:spans(text) end, behaviors.Isolated, false)
    return function(pieces)
        for i, text in ipairs(pieces) do
            if prefix and text:sub(1, 1) ~= " " then pieces[i] = " " .. text end
        end
        local out = split and split(pieces) or pieces
        for i, text in ipairs(out) do out[i] = text:gsub(".", byte_to_char) end
        return out
    end
end

-- When the mark for a space goes before a piece that has none: always, first (of the text), never.
local function prepend_scheme(spec, fail)
    local scheme = spec.prepend_scheme
    if absent(scheme) then return flag(spec, "add_prefix_space", true, fail) and "always" or "never" end
    if scheme ~= "always" and scheme ~= "first" and scheme ~= "never" then
        fail("format", "Metaspace.prepend_scheme must be always, first or never")
    end
    return scheme
end

function pre_tokenizers.Metaspace(spec, fail)
    local mark = check(spec.replacement, "string", "Metaspace.replacement", fail)
    local scheme, split = prepend_scheme(spec, fail), flag(spec, "split", true, fail)
    local mark_spaces = replacer({ pattern = { String = " " }, content = mark }, fail)
    local cut = splitter(finder({ pattern = { String = mark } }, "Metaspace", fail), behaviors.MergedWithNext, false)
    return function(pieces, first)
        for i, text in ipairs(pieces) do
            text = mark_spaces(text)
            local wanted = scheme == "always" or scheme == "first" and first and i == 1
            pieces[i] = wanted and text:sub(1, #mark) ~= mark and mark .. text or text
        end
        return split and cut(pieces) or pieces
    end
end

-- ---------------------------------------------------------------------------------------------------------- decoders

local decoders = {}

local function each_token(change)
    return function(tokens)
        for i, token in ipairs(tokens) do tokens[i] = change(token, i) end
        return tokens
    end
end

function decoders.Sequence(spec, fail)
    return sequence(decoders, "decoders", spec.decoders, fail)
end

function decoders.Replace(spec, fail)
    local replace = replacer(spec, fail)
    return each_token(function(token) return replace(token) end)
end

function decoders.ByteFallback()
    return each_token(function(token)
        local hex = token:match("^<0x(%x%x)>$")
        return hex and string.char(tonumber(hex, 16)) or token
    end)
end

function decoders.Fuse()
    return function(tokens) return { table.concat(tokens) } end
end

function decoders.Strip(spec, fail)
    local content = check(spec.content, "string", "Strip.content", fail)
    local start, stop = spec.start or 0, spec.stop or 0
    if math.type(start) ~= "integer" or math.type(stop) ~= "integer" or start < 0 or stop < 0 or content == "" then
        fail("format", "Strip needs a content, and start and stop that are zero or more")
    end
    return each_token(function(token)
        local n = #content
        for _ = 1, start do
            if token:sub(1, n) ~= content then break end
            token = token:sub(n + 1)
        end
        for _ = 1, stop do
            if #token < n or token:sub(-n) ~= content then break end
            token = token:sub(1, -n - 1)
        end
        return token
    end)
end

function decoders.ByteLevel()
    return each_token(function(token)
        local known = true
        local bytes = token:gsub(utf8.charpattern, function(c)
            known = known and char_to_byte[c] ~= nil
            return char_to_byte[c]
        end)
        return known and bytes or token -- an added token stands for itself
    end)
end

function decoders.Metaspace(spec, fail)
    local mark = check(spec.replacement, "string", "Metaspace.replacement", fail)
    local strip = prepend_scheme(spec, fail) ~= "never"
    local replace = replacer({ pattern = { String = mark }, content = " " }, fail)
    return each_token(function(token, i)
        if strip and i == 1 and token:sub(1, #mark) == mark then token = token:sub(#mark + 1) end
        return replace(token)
    end)
end

--- [local] What a tokenizer.json says under `normalizer` (nil or null: nothing), as a function of a text.
---@param spec any
---@param fail fun(code: string, message: string) raises
---@return function
function parts.normalizer(spec, fail) return make(normalizers, "normalizers", spec, fail) end

--- [local] What it says under `pre_tokenizer`.
---@param spec any
---@param fail fun(code: string, message: string) raises
---@return function
function parts.pre_tokenizer(spec, fail) return make(pre_tokenizers, "pre-tokenizers", spec, fail) end

--- [local] What it says under `decoder`.
---@param spec any
---@param fail fun(code: string, message: string) raises
---@return function
function parts.decoder(spec, fail) return make(decoders, "decoders", spec, fail) end

return parts
