--- Byte-pair encoding: the merge loop of a tokenizer.json model of type BPE.
---
--- A word starts as one symbol per character (or per byte, where a character is unknown and byte fallback is on). The
--- adjacent pair that comes first in the list of merges is joined until none is left; equal pairs from left to right.
--- Symbols form a linked list and candidate pairs a heap, so a word of n characters takes n log n steps: a whole Llama
--- 2 text is one word. Short words repeat, so their ids are cached.
local bpe = {}
bpe.__index = bpe

local CACHED_BYTES, CACHE_WORDS = 64, 65536
local PAIR_SHIFT, POSITION_SHIFT = 31, 40

-- A binary heap of integers, the least first.
local function push(heap, key)
    local i = #heap + 1
    while i > 1 do
        local parent = i // 2
        if heap[parent] <= key then break end
        heap[i] = heap[parent]
        i = parent
    end
    heap[i] = key
end

local function pop(heap)
    local top, n = heap[1], #heap
    local key = heap[n]
    heap[n] = nil
    n = n - 1
    if n == 0 then return top end
    local i = 1
    while true do
        local child = 2 * i
        if child > n then break end
        if child < n and heap[child + 1] < heap[child] then child = child + 1 end
        if key <= heap[child] then break end
        heap[i] = heap[child]
        i = child
    end
    heap[i] = key
    return top
end

-- Calls emit(character) for each character; a byte that is no UTF-8 is a character of its own.
local function each_character(text, emit)
    local at, n = 1, #text
    while at <= n do
        local good, bad = utf8.len(text, at)
        local last = good and n or bad - 1
        for c in text:sub(at, last):gmatch(utf8.charpattern) do emit(c) end
        if not good then emit(text:sub(bad, bad)) end
        at = last + (good and 1 or 2)
    end
end

--- [local] Ids of the characters of a word before any merge.
---@param word string
---@return integer[]
---Errors: code "format" for a character that the vocabulary cannot spell.
function bpe:characters(word)
    local ids, vocab, bytes = {}, self.vocab, self.bytes
    local unknown = false -- the last symbol is the unknown token
    each_character(word, function(c)
        local id = vocab[c]
        if id then
            ids[#ids + 1], unknown = id, false
        elseif bytes then
            for i = 1, #c do ids[#ids + 1] = bytes[c:byte(i)] end
            unknown = false
        elseif self.unk then
            if not (unknown and self.fuse_unk) then ids[#ids + 1] = self.unk end
            unknown = true
        else
            self.fail("format", ("the vocabulary has no token for %q and the model has no unk_token"):format(c))
        end
    end)
    return ids
end

--- [local] Merges neighbours, the pair of lowest rank first, until no pair has one.
---@param ids integer[] changed
---@return integer[]
function bpe:merge(ids)
    local n = #ids
    if n < 2 then return ids end
    local ranks, joined = self.ranks, self.joined
    local previous, following, heap = {}, {}, {}
    for i = 1, n do previous[i], following[i] = i - 1, i + 1 end
    local function offer(i, j) -- the pair of symbols i and j, neighbours
        local rank = ranks[ids[i] << PAIR_SHIFT | ids[j]]
        if rank then push(heap, rank << POSITION_SHIFT | i) end
    end
    for i = 1, n - 1 do offer(i, i + 1) end
    while #heap > 0 do
        local key = pop(heap)
        local rank, i = key >> POSITION_SHIFT, key & (1 << POSITION_SHIFT) - 1
        local j = following[i]
        -- A stale offer: one of its symbols was merged away since.
        if ids[i] and j <= n and ranks[ids[i] << PAIR_SHIFT | ids[j]] == rank then
            ids[i], ids[j] = joined[rank], false
            local after = following[j]
            following[i] = after
            if after <= n then
                previous[after] = i
                offer(i, after)
            end
            if previous[i] >= 1 then offer(previous[i], i) end
        end
    end
    local out, i = {}, 1
    while i <= n do
        out[#out + 1] = ids[i]
        i = following[i]
    end
    return out
end

--- [local] Appends the ids of one word (a piece that the pre-tokenizer made).
---@param word string
---@param out integer[]
function bpe:encode(word, out)
    local ids = self.cache[word]
    if not ids then
        local whole = self.ignore_merges and self.vocab[word]
        ids = whole and { whole } or self:merge(self:characters(word))
        if #word <= CACHED_BYTES and self.cached < CACHE_WORDS then
            self.cache[word], self.cached = ids, self.cached + 1
        end
    end
    table.move(ids, 1, #ids, #out + 1, out)
end

local function given(value) return value ~= nil and type(value) ~= "userdata" end -- not JSON null

local function flag(spec, name, fail)
    local value = spec[name]
    if not given(value) then return false end
    if type(value) ~= "boolean" then fail("format", ("model.%s must be true or false"):format(name)) end
    return value
end

local function read_vocab(spec, fail)
    if type(spec.vocab) ~= "table" then fail("format", "model.vocab is missing or is not an object") end
    for token, id in pairs(spec.vocab) do
        if type(token) ~= "string" then fail("format", "model.vocab must be an object of tokens and their ids") end
        if math.type(id) ~= "integer" or id < 0 or id >= 1 << PAIR_SHIFT then
            fail("format", ("model.vocab: the id of token %q must be an integer that is zero or more"):format(token))
        end
    end
    return spec.vocab
end

-- Merges are "left right" or [left, right]; both parts and what they make are in the vocabulary.
local function read_merges(self, spec, fail)
    if type(spec.merges) ~= "table" then fail("format", "model.merges is missing or is not a list") end
    if #spec.merges == 0 and next(spec.merges) ~= nil then
        fail("format", "model.merges must be a list, not an object")
    end
    local vocab, ranks, joined = self.vocab, self.ranks, self.joined
    for rank, merge in ipairs(spec.merges) do
        local left, right
        if type(merge) == "string" then left, right = merge:match("^([^ ]+) ([^ ]+)$")
        elseif type(merge) == "table" then left, right = merge[1], merge[2] end
        if type(left) ~= "string" or type(right) ~= "string" then
            fail("format", ("model.merges: entry %d is not a pair of tokens"):format(rank))
        end
        local a, b, c = vocab[left], vocab[right], vocab[left .. right]
        if not (a and b and c) then
            local missing = not a and left or not b and right or left .. right
            fail("format", ("model.merges: entry %d needs token %q, which is not in the vocabulary")
                :format(rank, missing))
        end
        ranks[a << PAIR_SHIFT | b], joined[rank] = rank, c
    end
end

local function read_bytes(vocab, fail)
    local bytes = {}
    for b = 0, 255 do
        local token = ("<0x%02X>"):format(b)
        bytes[b] = vocab[token] or
            fail("format", ("model.byte_fallback is on, but token %q is not in the vocabulary"):format(token))
    end
    return bytes
end

--- [local] Makes an encoder of the `model` part of a tokenizer.json.
---@param spec table
---@param fail fun(code: string, message: string)  raises
function bpe.new(spec, fail)
    if spec.type ~= "BPE" then
        fail("unsupported", ("model type %q is not supported; only BPE is"):format(tostring(spec.type)))
    end
    for _, name in ipairs{ "continuing_subword_prefix", "end_of_word_suffix" } do
        if given(spec[name]) and type(spec[name]) ~= "string" then
            fail("format", ("model.%s must be a string or null"):format(name))
        elseif given(spec[name]) and spec[name] ~= "" then
            fail("unsupported", ("model.%s %q is not supported; it must be empty"):format(name, spec[name]))
        end
    end
    if given(spec.dropout) and type(spec.dropout) ~= "number" then
        fail("format", "model.dropout must be a number or null")
    elseif given(spec.dropout) and spec.dropout > 0 then
        fail("unsupported", "model.dropout is not supported; it must be null")
    end
    local self = setmetatable({ fail = fail, vocab = read_vocab(spec, fail), ranks = {}, joined = {}, cache = {},
                                cached = 0 }, bpe)
    self.ignore_merges, self.fuse_unk = flag(spec, "ignore_merges", fail), flag(spec, "fuse_unk", fail)
    if flag(spec, "byte_fallback", fail) then self.bytes = read_bytes(self.vocab, fail) end
    if given(spec.unk_token) then
        if type(spec.unk_token) ~= "string" then fail("format", "model.unk_token must be a string or null") end
        self.unk = self.vocab[spec.unk_token] or
            fail("format", ("model.unk_token %q is not in the vocabulary"):format(spec.unk_token))
    end
    read_merges(self, spec, fail)
    return self
end

return bpe
