/* attn_rows.c: sets of rows as ascending, disjoint, non-touching intervals. */
#include "attn.h"
#include <stdlib.h>
#include <string.h>

void spli_rows_free(spli_rows *r) {
    free(r->at);
    memset(r, 0, sizeof *r);
}

int64_t spli_rows_total(const spli_rows *r) {
    int64_t total = 0;
    for (int i = 0; i < r->n; i++) total += r->at[i].end - r->at[i].begin;
    return total;
}

static int room(spli_rows *r) {
    if (r->failed) return 0;
    if (r->n < r->capacity) return 1;
    int capacity = r->capacity ? 2 * r->capacity : 4;
    spli_interval *at = realloc(r->at, (size_t)capacity * sizeof *at);
    if (!at) {
        r->failed = 1;
        return 0;
    }
    r->at = at;
    r->capacity = capacity;
    return 1;
}

void spli_rows_add(spli_rows *r, int64_t begin, int64_t end) {
    if (begin >= end) return;
    int i = r->n;
    while (i > 0 && r->at[i - 1].end >= begin) i--; /* the first that the new one touches or precedes */
    if (i == r->n) {
        if (room(r)) r->at[r->n++] = (spli_interval){begin, end};
        return;
    }
    int j = i;
    while (j < r->n && r->at[j].begin <= end) j++; /* past the last that it touches */
    if (i == j) {
        if (!room(r)) return;
        memmove(r->at + i + 1, r->at + i, (size_t)(r->n - i) * sizeof *r->at);
        r->at[i] = (spli_interval){begin, end};
        r->n++;
        return;
    }
    if (r->at[i].begin < begin) begin = r->at[i].begin;
    if (r->at[j - 1].end > end) end = r->at[j - 1].end;
    r->at[i] = (spli_interval){begin, end};
    memmove(r->at + i + 1, r->at + j, (size_t)(r->n - j) * sizeof *r->at);
    r->n -= j - i - 1;
}

void spli_rows_copy(const spli_rows *a, spli_rows *out) {
    out->failed |= a->failed;
    for (int i = 0; i < a->n; i++) spli_rows_add(out, a->at[i].begin, a->at[i].end);
}

void spli_rows_meet(const spli_rows *a, const spli_rows *b, spli_rows *out) {
    out->failed |= a->failed | b->failed;
    for (int i = 0, j = 0; i < a->n && j < b->n;) {
        int64_t begin = a->at[i].begin > b->at[j].begin ? a->at[i].begin : b->at[j].begin;
        int64_t end = a->at[i].end < b->at[j].end ? a->at[i].end : b->at[j].end;
        spli_rows_add(out, begin, end);
        if (a->at[i].end < b->at[j].end)
            i++;
        else
            j++;
    }
}

void spli_rows_less(const spli_rows *a, const spli_rows *b, spli_rows *out) {
    int j = 0;
    out->failed |= a->failed | b->failed;
    for (int i = 0; i < a->n; i++) {
        int64_t begin = a->at[i].begin, end = a->at[i].end;
        while (j > 0 && b->at[j - 1].end > begin) j--;
        while (j < b->n && b->at[j].end <= begin) j++;
        for (; j < b->n && b->at[j].begin < end; j++) {
            spli_rows_add(out, begin, b->at[j].begin);
            begin = b->at[j].end;
        }
        spli_rows_add(out, begin, end);
    }
}

void spli_rows_place(const spli_rows *all, int64_t base, const spli_rows *part, spli_rows *out) {
    int i = 0;
    out->failed |= all->failed | part->failed;
    for (int j = 0; j < part->n; j++) {
        while (i < all->n && all->at[i].end <= part->at[j].begin) base += all->at[i].end - all->at[i].begin, i++;
        if (i == all->n) return;
        int64_t begin = base + part->at[j].begin - all->at[i].begin, end = begin + part->at[j].end - part->at[j].begin;
        if (out->n && out->at[out->n - 1].end == begin)
            out->at[out->n - 1].end = end;
        else if (room(out))
            out->at[out->n++] = (spli_interval){begin, end}; /* the order of travel, whatever it is */
    }
}
