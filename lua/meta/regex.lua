---@meta
-- regex.lua: regular expressions over UTF-8 text (PCRE2 syntax), as tokenizers need them.

---@class spl.regex.library
local regex = {}

---@class spl.regex
local re = {}

--- [local] Compiles a pattern; \s, \w, \p{L} and caselessness are Unicode's. Errors: code "format" with the byte at
--- which the pattern is wrong.
---@param pattern string
---@param flags? string any of i (caseless) and m (^ and $ match at each line)
---@return spl.regex
function regex.compile(pattern, flags) end

--- [local] All matches from left to right that are not empty. Bytes that are not UTF-8 never match, and no match
--- reaches across one.
---@param text string
---@return integer[] spans first and last byte of each match, 1-based: {first, last, first, last, ...}
function re:spans(text) end

--- [local] Frees the pattern; also what __close and __gc do.
function re:release() end

---@class spl
---@field regex spl.regex.library

return regex
