/* lregex.c: spl.regex, regular expressions over UTF-8 text (PCRE2), as tokenizers need them.
 *
 *   re = spl.regex.compile(pattern [, "im"])   characters and classes are Unicode; i: caseless, m: ^ and $ at each line
 *   re:spans(text) -> {first, last, first, last, ...}   all matches that are not empty, byte positions, 1-based
 *
 * Bytes that are not UTF-8 never match, and a match never reaches across one: the text is searched run by run between
 * them. Each run is checked once here, so that PCRE2 does not check the whole text again for each match. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include "lspl.h"

#define LSPL_REGEX "spl.regex"

typedef struct lspl_regex {
    int refs;
    pcre2_code *code;
    pcre2_match_data *match;
} lspl_regex;

static void let_go(void *object) {
    lspl_regex *re = object;
    if (!re || --re->refs) return;
    pcre2_match_data_free(re->match); /* NULL is legal */
    pcre2_code_free(re->code);
    free(re);
}

static lspl_regex *check_regex(lua_State *L, const char *function) {
    void **p = lspl_to_object(L, 1, LSPL_REGEX);
    if (!p) lspl_bad_argument(L, function, "self", "a regex (call it with a colon)", 1);
    if (!*p) lspl_raisef(L, SPL_ERELEASED, "%s: the regex was released", function);
    lspl_regex *re = *p;
    re->refs++;
    lspl_hold(L, re, let_go);
    return re;
}

static int regex_release(lua_State *L) {
    void **p = lspl_to_object(L, 1, LSPL_REGEX);
    if (!p) lspl_bad_argument(L, "regex:release", "self", "a regex", 1);
    lspl_regex *re = *p;
    *p = NULL;
    let_go(re);
    return 0;
}

static int regex_compile(lua_State *L) {
    if (lua_type(L, 1) != LUA_TSTRING) lspl_bad_argument(L, "regex.compile", "pattern", "a string", 1);
    if (!lua_isnoneornil(L, 2) && lua_type(L, 2) != LUA_TSTRING) {
        lspl_bad_argument(L, "regex.compile", "flags", "a string of 'i' and 'm'", 2);
    }
    size_t n;
    const char *pattern = lua_tolstring(L, 1, &n);
    const char *flags = lua_isnoneornil(L, 2) ? "" : lua_tostring(L, 2);
    uint32_t options = PCRE2_UTF | PCRE2_UCP;
    for (const char *f = flags; *f; f++) {
        if (*f == 'i') options |= PCRE2_CASELESS;
        else if (*f == 'm') options |= PCRE2_MULTILINE;
        else lspl_bad_argument(L, "regex.compile", "flags", "a string of 'i' and 'm'", 2);
    }

    void **p = lspl_new_object(L, LSPL_REGEX);
    lspl_regex *re = calloc(1, sizeof *re);
    if (!re) lspl_raisef(L, SPL_ENOMEM, "regex.compile: no memory for a pattern");
    re->refs = 1;
    *p = re;
    int error;
    PCRE2_SIZE at;
    re->code = pcre2_compile((PCRE2_SPTR)pattern, n, options, &error, &at, NULL);
    if (!re->code) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(error, text, sizeof text);
        lspl_raisef(L, SPL_EFORMAT, "regex.compile: the pattern '%s' is wrong at byte %d: %s", pattern, (int)at + 1,
                    (const char *)text);
    }
    re->match = pcre2_match_data_create_from_pattern(re->code, NULL);
    if (!re->match) lspl_raisef(L, SPL_ENOMEM, "regex.compile: no memory for a match");
    return 1;
}

/* Bytes of the UTF-8 character at s, 0 where there is none (overlong forms, surrogates and > U+10FFFF are none). */
static size_t character(const unsigned char *s, size_t n) {
    unsigned char c = s[0];
    if (c < 0x80) return 1;
    size_t need = c >= 0xc2 && c <= 0xdf ? 2 : (c & 0xf0) == 0xe0 ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
    if (need == 0 || need > n) return 0;
    unsigned char low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;  /* of the second byte */
    unsigned char high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < need; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
    }
    return need;
}

/* Matches within one valid run that starts `offset` bytes into the text; appends to the table on top. */
static lua_Integer spans_of_run(lua_State *L, lspl_regex *re, const char *run, size_t n, size_t offset,
                                lua_Integer count) {
    size_t at = 0;
    while (at < n) {
        int rc = pcre2_match(re->code, (PCRE2_SPTR)run, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, re->match, NULL);
        if (rc == PCRE2_ERROR_NOMATCH) break;
        if (rc < 0) {
            PCRE2_UCHAR text[128];
            pcre2_get_error_message(rc, text, sizeof text);
            lspl_raisef(L, SPL_EFORMAT, "regex:spans: matching failed: %s", (const char *)text);
        }
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(re->match);
        size_t first = range[0], end = range[1];
        if (end <= at || first >= end) break; /* \K in a lookaround can do this; going on could loop */
        lua_pushinteger(L, (lua_Integer)(offset + first + 1));
        lua_rawseti(L, -2, ++count);
        lua_pushinteger(L, (lua_Integer)(offset + end));
        lua_rawseti(L, -2, ++count);
        at = end;
    }
    return count;
}

static int regex_spans(lua_State *L) {
    lspl_enter(L, 2);
    lspl_regex *re = check_regex(L, "regex:spans");
    if (lua_type(L, 2) != LUA_TSTRING) lspl_bad_argument(L, "regex:spans", "text", "a string", 2);
    size_t n;
    const char *text = lua_tolstring(L, 2, &n);
    lua_newtable(L);
    lua_Integer count = 0;
    size_t start = 0;
    while (start < n) {
        size_t end = start, step;
        while (end < n && (step = character((const unsigned char *)text + end, n - end)) > 0) end += step;
        count = spans_of_run(L, re, text + start, end - start, start, count);
        start = end + 1; /* past the byte that is no character */
    }
    return 1;
}

void lspl_open_regex(lua_State *L) {
    static const luaL_Reg methods[] = {{"spans", regex_spans}, {"release", regex_release}, {NULL, NULL}};
    static const luaL_Reg meta[] = {{"__gc", regex_release}, {"__close", regex_release}, {NULL, NULL}};
    luaL_newmetatable(L, LSPL_REGEX);
    luaL_setfuncs(L, meta, 0);
    luaL_newlib(L, methods);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);

    lua_newtable(L);
    lua_pushcfunction(L, regex_compile);
    lua_setfield(L, -2, "compile");
    lua_setfield(L, -2, "regex");
}
