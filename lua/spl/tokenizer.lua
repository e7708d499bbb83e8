--- Tokenizers from a Hugging Face tokenizer.json: byte-level BPE (GPT-2, Llama 3) and byte-fallback BPE (Llama 2).
---
--- text -> added tokens are cut out -> normalizer -> pre-tokenizer -> BPE of each piece -> template (BOS). Bytes that
--- are not UTF-8 are kept: a byte-level tokenizer has a symbol for each byte, a byte-fallback one a token.
--- Truncation and padding that the file may ask for do not apply: a text is taken whole.
local spl = require "spl"
local bpe = require "spl.bpe"
local json = require "spl.json"
local parts = require "spl.tokenizer_parts"

---@class spl.tokenizer
---@field size integer  one more than the greatest token id
local tokenizer = {}
tokenizer.__index = tokenizer

-- ------------------------------------------------------------------------------------------------------ added tokens

-- What single_word takes for a part of a word.
local WORD = [=[[\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}\x{1F130}-\x{1F189}]]=]

-- Finds added tokens in a text: by first byte, then by length, the longest first.
local function new_matcher(tokens)
    if #tokens == 0 then return nil end
    local by_text, lengths, class, seen = {}, {}, {}, {}
    for _, token in ipairs(tokens) do
        local first, n = token.pattern:sub(1, 1), #token.pattern
        by_text[token.pattern] = token
        if not lengths[first] then
            lengths[first] = {}
            class[#class + 1] = first:find("^[%w\x80-\xff]$") and first or "%" .. first
        end
        if not seen[first .. n] then
            seen[first .. n] = true
            table.insert(lengths[first], n)
        end
    end
    for _, list in pairs(lengths) do table.sort(list, function(a, b) return a > b end) end
    return { by_text = by_text, lengths = lengths, class = "[" .. table.concat(class) .. "]" }
end

local function word_around(self, text, first, last)
    local before, after = text:sub(math.max(1, first - 4), first - 1), text:sub(last + 1, last + 4)
    return #self.word_end:spans(before) > 0 or #self.word_start:spans(after) > 0
end

-- The next match from byte `at`: token, first, last; nil when there is none.
local function next_match(self, matcher, text, at)
    local found = at
    while true do
        found = text:find(matcher.class, found)
        if not found then return nil end
        for _, n in ipairs(matcher.lengths[text:sub(found, found)]) do
            local token = matcher.by_text[text:sub(found, found + n - 1)]
            if token and not (token.single_word and word_around(self, text, found, found + n - 1)) then
                local first, last = found, found + n - 1
                if token.lstrip then
                    local spans = self.space_end:spans(text:sub(at, first - 1))
                    first = spans[1] and at + spans[1] - 1 or first
                end
                if token.rstrip then
                    local spans = self.space_start:spans(text:sub(last + 1))
                    last = last + (spans[2] or 0)
                end
                return token, first, last
            end
        end
        found = found + 1
    end
end

-- Calls plain(text, first) for what lies between added tokens and special(id) for them.
local function cut(self, matcher, text, first, plain, special)
    local at = 1
    while matcher and at <= #text do
        local token, from, to = next_match(self, matcher, text, at)
        if not token then break end
        if from > at then plain(text:sub(at, from - 1), first and at == 1) end
        special(token.id)
        at = to + 1
    end
    if at <= #text then plain(at == 1 and text or text:sub(at), first and at == 1) end
end

-- ----------------------------------------------------------------------------------------------------------- reading

local function read_added(self, list, fail)
    local raw, normalized = {}, {}
    if list == nil or list == json.null then list = {} end
    if type(list) ~= "table" or #list == 0 and next(list) ~= nil then
        fail("format", "added_tokens must be a list")
    end
    for i, token in ipairs(list) do
        if type(token) ~= "table" or math.type(token.id) ~= "integer" or token.id < 0 or type(token.content) ~= "string"
            or token.content == "" then
            fail("format", ("added_tokens: entry %d needs an id and a content"):format(i))
        end
        for _, flag in ipairs { "special", "normalized", "single_word", "lstrip", "rstrip" } do
            local value = token[flag]
            if value ~= nil and type(value) ~= "boolean" then
                fail("format", ("added_tokens: entry %d: '%s' must be true or false"):format(i, flag))
            end
        end
        self.text_of[token.id] = token.content
        self.id_of[token.content] = token.id
        if token.special then self.special[token.id] = true end
        local entry = { id = token.id, single_word = token.single_word, lstrip = token.lstrip, rstrip = token.rstrip }
        if token.normalized then
            entry.pattern = self.normalize(token.content)
            normalized[#normalized + 1] = entry
        else
            entry.pattern = token.content
            raw[#raw + 1] = entry
        end
        if token.single_word or token.lstrip or token.rstrip then
            self.word_end, self.word_start = spl.regex.compile(WORD .. [[\z]]), spl.regex.compile([[\A]] .. WORD)
            self.space_end, self.space_start = spl.regex.compile([[\s+\z]]), spl.regex.compile([[\A\s+]])
        end
    end
    self.raw, self.normalized = new_matcher(raw), new_matcher(normalized)
end

local function read_template(self, spec, fail)
    local target = self.prefix
    if type(spec.single) ~= "table" then fail("format", "post_processor.single must be a list") end
    for i, item in ipairs(spec.single) do
        if type(item) == "table" and item.Sequence then
            target = self.suffix
        elseif type(item) == "table" and type(item.SpecialToken) == "table" then
            local known = type(spec.special_tokens) == "table" and spec.special_tokens[item.SpecialToken.id]
            if type(known) ~= "table" or type(known.ids) ~= "table" then
                fail("format", ("post_processor: special_tokens lacks token %q"):format(tostring(item.SpecialToken.id)))
            end
            for _, id in ipairs(known.ids) do
                if not self.text_of[id] then
                    fail("format", ("post_processor: token %q has the id %s, which is no token's"):format(
                        tostring(item.SpecialToken.id), tostring(id)))
                end
                target[#target + 1] = id
            end
        else
            fail("format", ("post_processor.single: entry %d is neither a Sequence nor a SpecialToken"):format(i))
        end
    end
end

local function read_post_processor(self, spec, fail)
    if spec == nil or spec == json.null then return end
    if type(spec) ~= "table" then fail("format", "post_processor must be an object") end
    if spec.type == "Sequence" then
        if type(spec.processors) ~= "table" then fail("format", "post_processor.processors must be a list") end
        for _, part in ipairs(spec.processors) do read_post_processor(self, part, fail) end
    elseif spec.type == "TemplateProcessing" then
        read_template(self, spec, fail)
    elseif spec.type ~= "ByteLevel" then -- which only moves offsets
        fail("unsupported", ("post-processors of type %q are not supported; supported are ByteLevel, Sequence, "
            .. "TemplateProcessing"):format(tostring(spec.type)))
    end
end

--- [local] Makes a tokenizer from the decoded contents of a tokenizer.json. Errors: code "format" for contents that
--- make no sense, "unsupported" for parts that are not supported, by name.
---@param spec table
---@param name? string  named in errors; default "tokenizer"
---@return spl.tokenizer
function tokenizer.new(spec, name)
    name = name or "tokenizer"
    local function fail(code, message) spl.error{ code = code, message = name .. ": " .. message } end
    if type(spec) ~= "table" or type(spec.model) ~= "table" then fail("format", "it has no 'model' object") end
    local self = setmetatable({ name = name, fail = fail, text_of = {}, id_of = {}, special = {}, prefix = {},
                                suffix = {} }, tokenizer)
    self.model = bpe.new(spec.model, fail)
    for text, id in pairs(self.model.vocab) do self.text_of[id], self.id_of[text] = text, id end
    self.normalize = parts.normalizer(spec.normalizer, fail)
    self.pre_tokenize = parts.pre_tokenizer(spec.pre_tokenizer, fail)
    self.has_decoder = spec.decoder ~= nil and spec.decoder ~= json.null
    self.decode_tokens = parts.decoder(spec.decoder, fail)
    read_added(self, spec.added_tokens, fail)
    read_post_processor(self, spec.post_processor, fail)
    self.size = 0
    for id in pairs(self.text_of) do self.size = math.max(self.size, id + 1) end
    return self
end

--- [local] Reads a tokenizer.json. Errors: as tokenizer.new.
---@param path string
---@return spl.tokenizer?  nil, message, code where the file cannot be read
function tokenizer.load(path)
    local spec, message, code = json.read(path)
    if spec == nil then return nil, message, code end
    return tokenizer.new(spec, path)
end

--- [local] The tokenizer of a Hugging Face model directory. Where tokenizer.json has no template but
--- tokenizer_config.json asks for it (add_bos_token), `bos` is put in front of every text. Errors: as tokenizer.new.
---@param dir string
---@param bos? integer
---@return spl.tokenizer?  nil, message, code where DIR/tokenizer.json cannot be read
function tokenizer.of_model(dir, bos)
    if type(dir) ~= "string" then
        spl.error{ message = "tokenizer.of_model: the directory of a model is needed, got " .. type(dir) }
    end
    local self, message, code = tokenizer.load(dir .. "/tokenizer.json")
    if not self then return nil, message, code end
    local settings = json.read(dir .. "/tokenizer_config.json")
    if bos and #self.prefix == 0 and type(settings) == "table" and settings.add_bos_token == true then
        self.prefix[1] = bos
    end
    return self
end

-- ------------------------------------------------------------------------------------------------- encode and decode

--- [local] The token ids of a text, with what the file's template puts around it (BOS). Any bytes are accepted.
---@param text string
---@param options? { special?: boolean }  special = false leaves the template out
---@return integer[]
function tokenizer:encode(text, options)
    local special = not options or options.special ~= false
    local ids = {}
    local function add(id) ids[#ids + 1] = id end
    local function words(piece, first)
        for _, word in ipairs(self.pre_tokenize({ piece }, first)) do self.model:encode(word, ids) end
    end
    if special then table.move(self.prefix, 1, #self.prefix, 1, ids) end
    cut(self, self.raw, text, true, function(piece, first)
        cut(self, self.normalized, self.normalize(piece), first, words, add)
    end, add)
    if special then table.move(self.suffix, 1, #self.suffix, #ids + 1, ids) end
    return ids
end

--- [local] The text of token ids: bytes, so a character that its tokens do not finish stays unfinished. Errors: code
--- "argument" for an id that the tokenizer does not have.
---@param ids integer[]
---@param options? { special?: boolean }  special = true writes special tokens too
---@return string
function tokenizer:decode(ids, options)
    local keep = options and options.special
    local tokens = {}
    for _, id in ipairs(ids) do
        local text = self.text_of[id]
        if not text then
            self.fail("argument", ("there is no token with id %s; ids are below %d"):format(tostring(id), self.size))
        end
        if keep or not self.special[id] then tokens[#tokens + 1] = text end
    end
    if not self.has_decoder then return table.concat(tokens, " ") end
    return table.concat(self.decode_tokens(tokens))
end

--- [local] Decodes as tokens come: returns a function that takes an id and returns the bytes that it adds. Decoders
--- look at the start of a text (Llama 2 drops a leading space), so each token is decoded behind the last one that gave
--- text.
---@return fun(id: integer): string
function tokenizer:stream()
    local window, shown = {}, ""
    return function(id)
        window[#window + 1] = id
        local text = self:decode(window)
        local added = text:sub(#shown + 1)
        if added ~= "" then
            window = { id }
            shown = self:decode(window)
        end
        return added
    end
end

--- [local] The id of a token, nil when there is none.
---@param text string  as in the vocabulary
---@return integer?
function tokenizer:id(text)
    return self.id_of[text]
end

return tokenizer
