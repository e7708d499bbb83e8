-- html.lua: one page with everything in it: text, tables, pictures.
local html = {}

local STYLE = [[
body { font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; color: #222; background: #fff; margin: 0 auto;
       padding: 1.5em; max-width: 62em; }
h1 { font-size: 1.6em; margin: 0 0 .2em; } h2 { font-size: 1.2em; margin: 2em 0 .5em; border-bottom: 1px solid #ccc; }
p.small, caption { color: #666; font-size: .9em; } ul.summary li { margin: .4em 0; }
figure { margin: 1em 0; } img { max-width: 100%; height: auto; border: 1px solid #ddd; }
figcaption { color: #666; font-size: .9em; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9em; margin: .5em 0; }
th, td { padding: .25em .7em; border-bottom: 1px solid #e3e3e3; text-align: left; vertical-align: top; }
th { border-bottom: 2px solid #999; } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.best { font-weight: 600; background: #eef6ee; }
]]

local ENTITIES = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }

--- [local] Text as it stands in a page.
---@param text any
---@return string
function html.escape(text)
    return (tostring(text):gsub('[&<>"]', ENTITIES))
end

local ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

--- [local] Base64 (RFC 4648) of bytes.
---@param bytes string
---@return string
function html.base64(bytes)
    local out = {}
    for i = 1, #bytes, 3 do
        local a, b, c = bytes:byte(i, i + 2)
        local n = a << 16 | (b or 0) << 8 | (c or 0)
        local function digit(shift)
            local at = (n >> shift & 63) + 1
            return ALPHABET:sub(at, at)
        end
        out[#out + 1] = digit(18) .. digit(12) .. (b and digit(6) or "=") .. (c and digit(0) or "=")
    end
    return table.concat(out)
end

--- [local] A table. Cells are texts, or {text, best = true}; numbers stand to the right.
---@param titles string[]
---@param rows table[]
---@param right? table<integer, boolean> columns of numbers
---@return string
function html.table(titles, rows, right)
    right = right or {}
    local out = { '<div class="wide"><table><thead><tr>' }
    for i, title in ipairs(titles) do
        out[#out + 1] = ("<th%s>%s</th>"):format(right[i] and ' class="n"' or "", html.escape(title))
    end
    out[#out + 1] = "</tr></thead><tbody>"
    for _, row in ipairs(rows) do
        out[#out + 1] = "<tr>"
        for i = 1, #titles do
            local cell = row[i]
            local best = type(cell) == "table" and cell.best
            cell = type(cell) == "table" and cell[1] or cell
            local class = (right[i] and "n" or "") .. (best and " best" or "")
            out[#out + 1] = ("<td%s>%s</td>"):format(class ~= "" and (' class="%s"'):format(class) or "",
                html.escape(cell == nil and "" or cell))
        end
        out[#out + 1] = "</tr>\n"
    end
    out[#out + 1] = "</tbody></table></div>\n"
    return table.concat(out)
end

--- [local] A picture, inside the page.
---@param png string its bytes
---@param caption string
---@return string
function html.figure(png, caption)
    return ('<figure><img alt="%s" src="data:image/png;base64,%s"><figcaption>%s</figcaption></figure>\n'):format(
        html.escape(caption), html.base64(png), html.escape(caption))
end

--- [local] A list of sentences.
---@param sentences string[]
---@return string
function html.list(sentences)
    local out = { '<ul class="summary">' }
    for _, sentence in ipairs(sentences) do
        out[#out + 1] = "<li>" .. html.escape(sentence) .. "</li>"
    end
    out[#out + 1] = "</ul>\n"
    return table.concat(out, "\n")
end

--- [local] The whole page.
---@param title string
---@param body string[]
---@return string
function html.page(title, body)
    return ("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        .. "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>%s</title>\n"
        .. "<style>%s</style></head><body>\n%s</body></html>\n"):format(html.escape(title), STYLE, table.concat(body))
end

return html
