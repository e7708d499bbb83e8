/* layout_text.c: the notation of layouts: "cp=shard(2,zigzag), tp=shard(2,unit:64)", dims 1-based, unnamed axes
 * replicate. */
#include "layout.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const scheme_names[] = {"contiguous", "zigzag", "striped"};

/* Takes one word of [A-Za-z0-9_] from *s (spaces skipped before and after); 0: there is none, or it is too long. */
static int take_word(const char **s, char *word, size_t n) {
    size_t k = 0, length = 0;
    while (isspace((unsigned char)**s)) ++*s;
    for (; isalnum((unsigned char)**s) || **s == '_'; length++, ++*s) {
        if (k + 1 < n) word[k++] = **s;
    }
    word[k] = 0;
    while (isspace((unsigned char)**s)) ++*s;
    return k > 0 && k == length;
}

static int take_char(const char **s, char c) {
    if (**s != c) return 0;
    ++*s;
    while (isspace((unsigned char)**s)) ++*s;
    return 1;
}

static int to_int(const char *word, int64_t *out) {
    char *end;
    *out = strtoll(word, &end, 10);
    return *word && !*end && strlen(word) < 18;
}

static spl_status bad(const char *text, const char *at) {
    return spli_error(SPL_EARG,
                      "layout '%.120s' is not understood at '%.40s'; write axis=replicate, axis=partial or "
                      "axis=shard(DIM[,contiguous|zigzag|striped][,unit:N][,ragged][,cover:N][,nest:N]), separated by "
                      "commas",
                      text, *at ? at : "its end");
}

/* What stands inside shard( ... ). */
static spl_status parse_shard(const char *text, const char **s, spl_placement *p) {
    char word[SPL_NAME_BYTES];
    int64_t value;
    const char *at = *s;
    if (!take_char(s, '(') || !take_word(s, word, sizeof word) || !to_int(word, &value) || value > SPL_MAX_DIMS)
        return bad(text, at);
    p->dim = (int)value - 1;
    while (take_char(s, ',')) {
        at = *s;
        if (!take_word(s, word, sizeof word)) return bad(text, at);
        int known = 0;
        for (int k = 0; k < 3; k++)
            if (!strcmp(word, scheme_names[k])) p->scheme = (spl_scheme)k, known = 1;
        if (!strcmp(word, "ragged")) p->ragged = known = 1;
        if (known) continue;
        char number[SPL_NAME_BYTES];
        if (!take_char(s, ':') || !take_word(s, number, sizeof number) || !to_int(number, &value)) return bad(text, at);
        if (!strcmp(word, "unit")) p->unit = value;
        else if (!strcmp(word, "cover")) p->cover = value;
        else if (!strcmp(word, "nest")) p->nest = (int)value;
        else return bad(text, at);
        if (strcmp(word, "nest") ? value < 1 : value > INT32_MAX) return bad(text, at);
    }
    at = *s;
    return take_char(s, ')') ? spli_ok() : bad(text, at);
}

spl_status spl_layout_parse(const char *text, const spl_mesh_spec *mesh, int ndim, const int64_t *shape,
                            spl_layout *out) {
    spl_layout_replicated(out, mesh, ndim, shape);
    const char *s = text;
    char word[SPL_NAME_BYTES];
    unsigned seen = 0;
    while (isspace((unsigned char)*s)) s++;
    if (!strncmp(s, "replicate", 9)) {
        const char *rest = s + 9;
        while (isspace((unsigned char)*rest)) rest++;
        if (!*rest) return spl_layout_check(out);
    }
    while (*s) {
        const char *at = s;
        if (!take_word(&s, word, sizeof word) || !take_char(&s, '=')) return bad(text, at);
        int axis = -1;
        for (int a = 0; a < out->naxes; a++)
            if (!strcmp(out->axis_name[a], word)) axis = a;
        if (axis < 0) {
            char spec[200];
            spl_mesh_format(mesh, spec, sizeof spec);
            return spli_error(SPL_EARG, "layout '%.120s' names axis '%s', which the mesh (%s) does not have", text,
                              word, spec);
        }
        if (seen & 1u << axis) return spli_error(SPL_EARG, "layout '%.120s' names axis '%s' twice", text, word);
        seen |= 1u << axis;
        at = s;
        if (!take_word(&s, word, sizeof word)) return bad(text, at);
        spl_placement *p = &out->axes[axis];
        if (!strcmp(word, "replicate")) p->place = SPL_REPLICATE;
        else if (!strcmp(word, "partial")) p->place = SPL_PARTIAL;
        else if (!strcmp(word, "shard")) {
            p->place = SPL_SHARD;
            SPL_TRY(parse_shard(text, &s, p));
        } else return bad(text, at);
        if (*s && !take_char(&s, ',')) return bad(text, s);
    }
    return spl_layout_check(out);
}

int spl_layout_format(const spl_layout *l, char *out, size_t n) {
    size_t used = 0;
    if (n) *out = 0;
#define PUT(...)                                                                                     \
    do {                                                                                             \
        int w_ = snprintf(used < n ? out + used : NULL, used < n ? n - used : 0, __VA_ARGS__);       \
        used += w_ > 0 ? (size_t)w_ : 0;                                                             \
    } while (0)
    for (int a = 0; a < l->naxes; a++) {
        const spl_placement *p = &l->axes[a];
        if (p->place == SPL_REPLICATE) continue;
        PUT("%s%s=", used ? ", " : "", l->axis_name[a]);
        if (p->place == SPL_PARTIAL) {
            PUT("partial");
            continue;
        }
        PUT("shard(%d", p->dim + 1);
        if (p->scheme != SPL_CONTIGUOUS) PUT(",%s", scheme_names[p->scheme]);
        if (p->documents) PUT(" of %d documents", p->documents->n); /* not to be read back: the mask knows them */
        if (spli_unit(p) > 1) PUT(",unit:%lld", (long long)p->unit);
        if (p->ragged) PUT(",ragged");
        if (spli_cover(p) > 1) PUT(",cover:%lld", (long long)p->cover);
        int sharing[SPL_MAX_AXES]; /* the order matters only where axes share a dimension */
        if (p->nest && spli_layout_nesting(l, p->dim, sharing) > 1) PUT(",nest:%d", p->nest);
        PUT(")");
    }
    if (!used) PUT("replicate");
#undef PUT
    return (int)used;
}
