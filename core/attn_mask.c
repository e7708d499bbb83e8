/* attn_mask.c: masks: a name that fits any length ("window:128"), or a list of slices for one; and what they mean for
 * given lengths: a short list of disjoint slices. */
#include "attn.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum mask_kind { CAUSAL, FULL, WINDOW, PREFIX, PADDING, DOCS, SLICES } mask_kind;

static const struct {
    const char *name, *argument;
} kinds[] = {
    [CAUSAL] = {"causal", NULL},  [FULL] = {"full", NULL},      [WINDOW] = {"window", "W"}, [PREFIX] = {"prefix", "N"},
    [PADDING] = {"padding", "N"}, [DOCS] = {"docs", "N,N,..."}, [SLICES] = {"slices", NULL}};

struct spl_mask { /* immutable */
    int refs;
    mask_kind kind;
    int64_t n;            /* of window, prefix and padding */
    int64_t seq_q, seq_k; /* of slices; docs: their sum */
    int count;            /* of slices */
    spl_slice *slices;
    spl_documents *documents;
};

/* ---- making ---- */

static spl_status no_memory(void) { return spli_error(SPL_ENOMEM, "out of memory while making a mask"); }

static spl_status mask_new(mask_kind kind, spl_mask **out) {
    *out = calloc(1, sizeof **out);
    if (!*out) return no_memory();
    (*out)->refs = 1;
    (*out)->kind = kind;
    return spli_ok();
}

void spl_mask_retain(spl_mask *m) { m->refs++; }

void spl_mask_release(spl_mask *m) {
    if (!m || --m->refs) return;
    free(m->slices);
    if (m->documents && --m->documents->refs == 0) free(m->documents);
    free(m);
}

static spl_status not_understood(const char *text) {
    return spli_error(SPL_EUSAGE,
                      "the mask '%.80s' is not understood; masks are causal, full, window:W (the last W keys, itself "
                      "included), docs:N,N,... (causal within documents of these lengths), prefix:N (the first N keys "
                      "are seen by all) and padding:N (only the first N tokens count)",
                      text);
}

/* One positive number at *s; moves on behind it. */
static int number(const char **s, int64_t *out) {
    char *end;
    if (**s < '0' || **s > '9') return 0;
    long long v = strtoll(*s, &end, 10);
    *s = end;
    *out = v;
    return v < INT64_MAX;
}

static spl_status at_least_one(const char *text, const char *what, int64_t n) {
    if (n >= 1) return spli_ok();
    return spli_error(SPL_EUSAGE, "the mask '%.80s' has %s of %lld; it must be 1 or more", text, what, (long long)n);
}

static spl_status parse_documents(const char *text, const char *s, spl_mask *m) {
    int commas = 0;
    for (const char *c = s; *c; c++) commas += *c == ',';
    m->documents = malloc(sizeof *m->documents + (size_t)(commas + 1) * sizeof *m->documents->begins);
    if (!m->documents) return no_memory();
    m->documents->refs = 1;
    for (m->documents->n = 0;; s++) {
        int64_t length;
        if (!number(&s, &length)) return not_understood(text);
        SPL_TRY(at_least_one(text, "a document", length));
        m->documents->begins[m->documents->n++] = m->seq_k;
        if (__builtin_add_overflow(m->seq_k, length, &m->seq_k))
            return spli_error(SPL_EUSAGE, "the documents of the mask '%.80s' are longer than can be counted", text);
        if (!*s) break;
        if (*s != ',') return not_understood(text);
    }
    m->seq_q = m->seq_k;
    return spli_ok();
}

/* Document i: [*begin, *end). */
static void document(const spl_mask *m, int i, int64_t *begin, int64_t *end) {
    const spl_documents *d = m->documents;
    *begin = d->begins[i];
    *end = i + 1 < d->n ? d->begins[i + 1] : m->seq_k;
}

spl_status spl_mask_parse(const char *text, spl_mask **out) {
    const char *colon = strchr(text, ':');
    size_t length = colon ? (size_t)(colon - text) : strlen(text);
    spl_status status = spli_ok();
    spl_mask *m = NULL;
    *out = NULL;
    for (int k = CAUSAL; k < SLICES; k++) {
        if (strlen(kinds[k].name) != length || strncmp(kinds[k].name, text, length)) continue;
        if (!colon != !kinds[k].argument) return not_understood(text);
        SPL_TRY(mask_new((mask_kind)k, &m));
        if (k == DOCS) {
            SPL_GO(parse_documents(text, colon + 1, m), fail);
        } else if (colon) {
            const char *s = colon + 1;
            if (!number(&s, &m->n) || *s) SPL_GO(not_understood(text), fail);
            if (k == WINDOW) SPL_GO(at_least_one(text, "a window", m->n), fail);
        }
        *out = m;
        return status;
    }
    return not_understood(text);
fail:
    spl_mask_release(m);
    return status;
}

spl_status spl_mask_from_slices(const spl_slice *slices, int n, int64_t seq_q, int64_t seq_k, spl_mask **out) {
    spl_mask *m;
    *out = NULL;
    spli_mask plain = {.seq_q = seq_q, .seq_k = seq_k, .n = n, .slices = (spl_slice *)slices};
    if (n < 0 || seq_q < 0 || seq_k < 0)
        return spli_error(SPL_EARG,
                          "a mask of %d slices, %lld queries and %lld keys was asked for; sizes are 0 or more", n,
                          (long long)seq_q, (long long)seq_k);
    SPL_TRY(spli_mask_check(&plain));
    SPL_TRY(mask_new(SLICES, &m));
    m->slices = malloc((size_t)(n ? n : 1) * sizeof *slices);
    if (!m->slices) {
        spl_mask_release(m);
        return no_memory();
    }
    if (n) memcpy(m->slices, slices, (size_t)n * sizeof *slices);
    m->count = n;
    m->seq_q = seq_q;
    m->seq_k = seq_k;
    *out = m;
    return spli_ok();
}

int spl_mask_format(const spl_mask *m, char *out, size_t n) {
    if (m->kind == SLICES)
        return snprintf(out, n, "%d slice%s of %lld x %lld", m->count, m->count == 1 ? "" : "s", (long long)m->seq_q,
                        (long long)m->seq_k);
    if (m->kind != DOCS) {
        if (!kinds[m->kind].argument) return snprintf(out, n, "%s", kinds[m->kind].name);
        return snprintf(out, n, "%s:%lld", kinds[m->kind].name, (long long)m->n);
    }
    int used = snprintf(out, n, "docs:");
    for (int i = 0; i < m->documents->n; i++) {
        int64_t begin, end;
        document(m, i, &begin, &end);
        size_t room = (size_t)used < n ? n - (size_t)used : 0;
        used += snprintf(room ? out + used : NULL, room, "%s%lld", i ? "," : "", (long long)(end - begin));
    }
    return used;
}

const spl_documents *spl_mask_documents(const spl_mask *m) { return m ? m->documents : NULL; }

/* ---- for given lengths ---- */

void spli_mask_free(spli_mask *m) {
    free(m->slices);
    memset(m, 0, sizeof *m);
}

static spl_status spli_mask_room(spli_mask *m, int64_t seq_q, int64_t seq_k, int slices) {
    *m = (spli_mask){.seq_q = seq_q, .seq_k = seq_k};
    m->slices = malloc((size_t)(slices ? slices : 1) * sizeof *m->slices);
    return m->slices ? spli_ok() : no_memory();
}

static void add(spli_mask *m, int64_t q_begin, int64_t q_end, int64_t k_begin, int64_t k_end, spl_slice_kind kind) {
    if (k_begin < 0) k_begin = 0;
    if (k_end < k_begin) k_end = k_begin;
    if (q_begin < q_end && k_begin < k_end) m->slices[m->n++] = (spl_slice){q_begin, q_end, k_begin, k_end, kind};
}

static int64_t clamp(int64_t v, int64_t low, int64_t high) { return v < low ? low : v > high ? high : v; }

static spl_status lengths_fit(const spl_mask *m, int64_t seq_q, int64_t seq_k) {
    if (m->kind == DOCS && (seq_q != m->seq_q || seq_k != m->seq_k))
        return spli_error(SPL_EUSAGE,
                          "the documents of the mask sum to %lld tokens, but the sequence has %lld; their lengths must "
                          "sum to the sequence's",
                          (long long)m->seq_k, (long long)(seq_q != m->seq_q ? seq_q : seq_k));
    if (m->kind == SLICES && (seq_q != m->seq_q || seq_k != m->seq_k))
        return spli_error(SPL_EUSAGE,
                          "the mask's slices are for %lld queries and %lld keys, but there are %lld and %lld",
                          (long long)m->seq_q, (long long)m->seq_k, (long long)seq_q, (long long)seq_k);
    if ((m->kind == PREFIX || m->kind == PADDING) && m->n > seq_k)
        return spli_error(SPL_EUSAGE, "the mask %s:%lld reaches past the sequence of %lld; it can be at most that long",
                          kinds[m->kind].name, (long long)m->n, (long long)seq_k);
    return spli_ok();
}

spl_status spli_mask_resolve(const spl_mask *m, int64_t seq_q, int64_t seq_k, spli_mask *out) {
    const int64_t apart = seq_k - seq_q; /* query i stands at key i + apart */
    int64_t full;
    memset(out, 0, sizeof *out);
    SPL_TRY(lengths_fit(m, seq_q, seq_k));
    SPL_TRY(spli_mask_room(out, seq_q, seq_k, m->kind == DOCS ? m->documents->n : m->kind == SLICES ? m->count : 2));
    switch (m->kind) {
    case CAUSAL: add(out, 0, seq_q, 0, seq_k, SPL_SLICE_CAUSAL); break;
    case FULL: add(out, 0, seq_q, 0, seq_k, SPL_SLICE_FULL); break;
    case WINDOW: /* the first queries have fewer keys than a window before them */
        full = clamp(m->n - 1 - apart, 0, seq_q);
        add(out, 0, full, 0, full + apart, SPL_SLICE_CAUSAL);
        add(out, full, seq_q, full + apart - m->n + 1, seq_k, SPL_SLICE_BOTH);
        break;
    case PREFIX:
        add(out, 0, seq_q, 0, m->n, SPL_SLICE_FULL);
        add(out, 0, seq_q, m->n, seq_k, SPL_SLICE_CAUSAL);
        break;
    case PADDING: /* the same tokens count as queries and as keys */
        full = clamp(m->n - apart, 0, seq_q);
        add(out, 0, full, 0, full + apart, SPL_SLICE_CAUSAL);
        break;
    case DOCS:
        for (int i = 0; i < m->documents->n; i++) {
            int64_t begin, end;
            document(m, i, &begin, &end);
            add(out, begin, end, begin, end, SPL_SLICE_CAUSAL);
        }
        break;
    case SLICES:
        for (int i = 0; i < m->count; i++) out->slices[out->n++] = m->slices[i];
        break;
    }
    return spli_ok();
}

spl_status spl_mask_slices(const spl_mask *m, int64_t seq_q, int64_t seq_k, spl_slice **out, int *n, int64_t *pairs) {
    spli_mask plain;
    *out = NULL;
    *n = 0;
    if (seq_q < 0 || seq_k < 0)
        return spli_error(SPL_EARG, "a mask of %lld queries and %lld keys was asked for; sizes are 0 or more",
                          (long long)seq_q, (long long)seq_k);
    SPL_TRY(spli_mask_resolve(m, seq_q, seq_k, &plain));
    *pairs = spli_mask_pairs(&plain);
    *out = plain.slices;
    *n = plain.n;
    return spli_ok();
}

spl_status spli_mask_one(spli_mask *m, int64_t seq_q, int64_t seq_k, spl_slice_kind kind) {
    SPL_TRY(spli_mask_room(m, seq_q, seq_k, 1));
    add(m, 0, seq_q, 0, seq_k, kind);
    return spli_ok();
}

int spli_mask_chunkable(const spl_mask *m, int *causal) {
    *causal = !m || m->kind == CAUSAL;
    return *causal || m->kind == FULL;
}

/* Within its chunk a query sees what it did; exact attention of the hierarchical kind. */
spl_status spli_mask_chunks(int64_t seq, int64_t chunk, int causal, spli_mask *out) {
    int64_t n = (seq + chunk - 1) / chunk;
    if (n > INT32_MAX) return spli_error(SPL_EUSAGE, "%lld chunks are more than can be counted", (long long)n);
    SPL_TRY(spli_mask_room(out, seq, seq, (int)n));
    for (int64_t c = 0; c < n; c++) {
        int64_t begin = c * chunk, end = begin + chunk < seq ? begin + chunk : seq;
        add(out, begin, end, begin, end, causal ? SPL_SLICE_CAUSAL : SPL_SLICE_FULL);
    }
    return spli_ok();
}

/* And of the other chunks (the earlier ones) the summaries: `each` of a chunk, `total` in all. */
spl_status spli_mask_summaries(int64_t seq, int64_t chunk, int64_t each, int64_t total, int causal, spli_mask *out) {
    int64_t n = (seq + chunk - 1) / chunk;
    if (n > INT32_MAX / 2) return spli_error(SPL_EUSAGE, "%lld chunks are more than can be counted", (long long)n);
    SPL_TRY(spli_mask_room(out, seq, total, (int)(2 * n)));
    for (int64_t c = 0; c < n; c++) {
        int64_t begin = c * chunk, end = begin + chunk < seq ? begin + chunk : seq;
        add(out, begin, end, 0, c * each, SPL_SLICE_FULL);
        if (!causal) add(out, begin, end, (c + 1) * each, total, SPL_SLICE_FULL);
    }
    return spli_ok();
}

/* ---- checking and counting ---- */

__extension__ typedef __int128 wide; /* bounds and products of int64 */

static wide larger(wide a, wide b) { return a > b ? a : b; }
static wide smaller(wide a, wide b) { return a < b ? a : b; }

/* The first query whose keys in s and t meet, -1: none. Row q of a slice sees [max(k_begin, q + a), min(k_end, q + b));
 * so the rows of two that share keys are those with max(begins, q + a) < min(ends, q + b), which is four bounds. */
static int64_t meeting(const spl_slice *s, const spl_slice *t) {
    const spl_slice *both[] = {s, t};
    const wide none = (wide)1 << 100; /* where a slice has no such bound */
    wide begin = 0, end = none, a = -none, b = none, first = larger(s->q_begin, t->q_begin),
         last = smaller(s->q_end, t->q_end);
    for (int i = 0; i < 2; i++) {
        const spl_slice *x = both[i];
        begin = larger(begin, x->k_begin);
        end = smaller(end, x->k_end);
        if (x->kind == SPL_SLICE_CAUSAL || x->kind == SPL_SLICE_BOTH) b = smaller(b, (wide)x->k_end - x->q_end + 1);
        if (x->kind == SPL_SLICE_INVERSE || x->kind == SPL_SLICE_BOTH) a = larger(a, (wide)x->k_begin - x->q_begin);
    }
    first = larger(first, begin - b + 1);
    last = smaller(last, end - a);
    return begin < end && a < b && first < last ? (int64_t)first : -1;
}

static int by_query(const void *x, const void *y) {
    const spl_slice *const *a = x, *const *b = y;
    if ((*a)->q_begin != (*b)->q_begin) return (*a)->q_begin < (*b)->q_begin ? -1 : 1;
    return *a < *b ? -1 : *a > *b;
}

spl_status spli_mask_check(const spli_mask *m) {
    spl_status status = spli_ok();
    for (int i = 0; i < m->n; i++) {
        const spl_slice *s = &m->slices[i];
        if (s->q_begin < 0 || s->q_end < s->q_begin || s->q_end > m->seq_q || s->k_begin < 0 || s->k_end < s->k_begin ||
            s->k_end > m->seq_k)
            return spli_error(
                SPL_EUSAGE, "mask slice %d (queries %lld-%lld, keys %lld-%lld) lies outside %lld queries and %lld keys",
                i + 1, (long long)s->q_begin, (long long)s->q_end, (long long)s->k_begin, (long long)s->k_end,
                (long long)m->seq_q, (long long)m->seq_k);
    }
    if (m->n < 2) return status;
    const spl_slice **sorted = malloc((size_t)m->n * sizeof *sorted); /* only those with rows in common are compared */
    if (!sorted) return no_memory();
    for (int i = 0; i < m->n; i++) sorted[i] = &m->slices[i];
    qsort(sorted, (size_t)m->n, sizeof *sorted, by_query);
    for (int i = 0; i < m->n && status.code == SPL_OK; i++)
        for (int j = i + 1; j < m->n && sorted[j]->q_begin < sorted[i]->q_end; j++) {
            const int64_t query = meeting(sorted[i], sorted[j]);
            if (query < 0) continue;
            const long long one = sorted[i] - m->slices + 1, other = sorted[j] - m->slices + 1;
            status = spli_error(
                SPL_EUSAGE, "mask slices %lld and %lld both show query %lld the same keys; slices must not overlap",
                one < other ? one : other, one < other ? other : one, (long long)query + 1);
            break;
        }
    free(sorted);
    return status;
}

/* Of a slice with one bound, one row sees all its keys and each further one a key less, down to none; with both bounds
 * all rows see as many. */
static wide slice_pairs(const spl_slice *s) {
    const wide nq = s->q_end - s->q_begin, nk = s->k_end - s->k_begin, rows = smaller(nq, nk);
    if (s->kind == SPL_SLICE_FULL) return nq * nk;
    if (s->kind == SPL_SLICE_BOTH) return nk < nq ? 0 : nq * (nk - nq + 1);
    return rows * nk - rows * (rows - 1) / 2;
}

int64_t spli_mask_pairs(const spli_mask *m) {
    wide total = 0;
    for (int i = 0; i < m->n; i++) total += slice_pairs(&m->slices[i]);
    return total < INT64_MAX ? (int64_t)total : INT64_MAX;
}
