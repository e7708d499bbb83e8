/* attention.h: what both attention kernels share: which keys a row sees in a piece, the walk over key tiles, dropout,
 * and how a row's result is written or merged.
 *
 * A block does `rows` query rows of one head. It walks the pieces of the call in order, and in each the tiles of keys
 * that any of its rows sees; what is masked for all of them is never loaded. */
#ifndef SPLK_ATTENTION_H
#define SPLK_ATTENTION_H
#include "gpu.h"

/* floor(a / b) by the reciprocal of b: a division of 64 bits would be a call, and a call spills registers. Exact while
 * |a| < 2^52. */
SPLK_DEV int64_t splk_floor_div(int64_t a, int64_t b, double reciprocal) {
    int64_t q = (int64_t)floor((double)a * reciprocal), rest = a - q * b;
    return rest < 0 ? q - 1 : rest >= b ? q + 1 : q;
}

SPLK_DEV int splk_between(int64_t x, int low, int high) { return (int)(x < low ? low : x < high ? x : high); }

/* The keys of piece p that local query row `row` (one of the piece's) sees: [first, last) of its own numbering. Both
 * ends grow with the row. */
SPLK_DEV void splk_seen(const splk_piece &p, int row, int *first, int *last) {
    const int64_t at = p.q_start + (row - p.q0) * p.q_stride - p.k_start;
    *first = 0;
    *last = p.nk;
    if (p.has_upper) *last = splk_between(splk_floor_div(at + p.upper, p.k_stride, p.per_k_stride) + 1, 0, p.nk);
    if (p.has_lower) *first = splk_between(-splk_floor_div(-(at + p.lower), p.k_stride, p.per_k_stride), 0, p.nk);
}

/* A tile of keys: [key, end) of piece `piece`, as far as any row of [low, high) sees them. */
struct splk_tile {
    int piece; /* the number of pieces when there is none left */
    int key, end, low, high;
};

/* The first tile at or after piece t.piece that has something to see for rows [row0, row0 + rows). */
SPLK_DEV void splk_find_tile(const splk_attention &c, int row0, int rows, splk_tile *t) {
    for (; t->piece < c.a.npieces; t->piece++) {
        const splk_piece &p = c.pieces[t->piece];
        int ignored;
        t->low = row0 > p.q0 ? row0 : p.q0;
        t->high = row0 + rows < p.q0 + p.nq ? row0 + rows : p.q0 + p.nq;
        if (t->low >= t->high) continue;
        splk_seen(p, t->low, &t->key, &ignored);
        splk_seen(p, t->high - 1, &ignored, &t->end);
        if (t->key < t->end) return;
    }
}

SPLK_DEV splk_tile splk_first_tile(const splk_attention &c, int row0, int rows) {
    splk_tile t = {0, 0, 0, 0, 0};
    splk_find_tile(c, row0, rows, &t);
    return t;
}

SPLK_DEV void splk_next_tile(const splk_attention &c, int row0, int rows, int keys, splk_tile *t) {
    t->key += keys;
    if (t->key < t->end) return;
    t->piece++;
    splk_find_tile(c, row0, rows, t);
}

/* Whether every row of the block sees all `keys` keys of the tile. */
SPLK_DEV int splk_tile_full(const splk_attention &c, const splk_tile &t, int row0, int rows, int keys) {
    int first, last, ignored;
    if (t.low > row0 || t.high < row0 + rows || t.key + keys > t.end) return 0;
    splk_seen(c.pieces[t.piece], t.high - 1, &first, &ignored);
    splk_seen(c.pieces[t.piece], t.low, &ignored, &last);
    return first <= t.key && last >= t.key + keys;
}

/* What row `row` sees of the tile: [*first, *last), counted from the tile's own first key. */
SPLK_DEV void splk_seen_in_tile(const splk_attention &c, const splk_tile &t, int row, int keys, int *first, int *last) {
    int f = 0, l = 0;
    if (row >= t.low && row < t.high) splk_seen(c.pieces[t.piece], row, &f, &l);
    *first = splk_between(f - t.key, 0, keys);
    *last = splk_between(l - t.key, 0, keys);
}

/* Where the row of dropout indices of local query row `row` begins: add the key's global position. */
SPLK_DEV int64_t splk_dropout_row(const spl_attn_args &a, const splk_piece &p, int64_t b, int64_t h, int row) {
    const int64_t bg = splk_held(a.batch_segments, a.nbatch_segments, b);
    const int64_t hg = splk_held(a.head_segments, a.nhead_segments, h);
    return ((bg * a.heads_global + hg) * a.seq_q_global + p.q_start + (row - p.q0) * p.q_stride) * a.seq_k_global;
}

/* Which rows and head a block does: the last rows first, since with a causal mask they are the longest. */
SPLK_DEV void splk_block_place(const spl_attn_args &a, int rows, int64_t *b, int64_t *h, int *row0) {
    const int64_t heads = a.batch * a.heads, tiles = (a.sq + rows - 1) / rows;
    const int64_t i = blockIdx.x % heads;
    *b = i / a.heads;
    *h = i % a.heads;
    *row0 = (int)((tiles - 1 - blockIdx.x / heads) * rows);
}

/* How the result of this call and what is there already are weighed: out = mine * (sum of the call) + theirs * out. */
template <class W> struct splk_weights {
    W mine, theirs, lse;
};

SPLK_DEV float splk_exp_of(float x) { return expf(x); }
SPLK_DEV double splk_exp_of(double x) { return exp(x); }
SPLK_DEV float splk_log_of(float x) { return logf(x); }
SPLK_DEV double splk_log_of(double x) { return log(x); }

/* m: the largest score of the row; sum: of e^(score - m), 0 where nothing was seen. */
template <class W> SPLK_DEV splk_weights<W> splk_weigh(const spl_attn_args &a, int64_t at, W m, W sum) {
    const W none = -(W)INFINITY, mine = sum == 0 ? none : m + splk_log_of(sum);
    const W theirs = a.merge ? ((const W *)a.lse)[at] : none;
    splk_weights<W> w = {sum == 0 ? 0 : 1 / sum, 0, mine};
    if (a.merge && mine == none) { /* nothing changes */
        w.theirs = 1;
        w.lse = theirs;
        return w;
    }
    if (theirs == none) return w;
    const W high = mine > theirs ? mine : theirs, low = mine > theirs ? theirs : mine, e = splk_exp_of(low - high);
    const W big = 1 / (1 + e), small = e * big;
    w.mine *= mine > theirs ? big : small;
    w.theirs = mine > theirs ? small : big;
    w.lse = high + splk_log_of(1 + e);
    return w;
}

template <class O, class W> SPLK_DEV void splk_write(O *out, W sum, const splk_weights<W> &w) {
    W y = w.mine == 0 ? 0 : sum * w.mine; /* what adds nothing adds nothing, not even a NaN */
    if (w.theirs != 0) y += splk_load(*out) * w.theirs;
    *out = splk_round<O>(y);
}

#endif
