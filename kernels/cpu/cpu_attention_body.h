/* cpu_attention_body.h: packing and one unit of cpu_attention.c in element type T. EXP(x) is e^x for
 * x <= 0. */

#define FN(name) SPLK_PASTE(name, S)

/* What a thread works in. The rows of acc and total are `width` elements apart: head_dim in whole vectors. */
typedef struct FN(work) {
    double sum[ROWS], sum_total[ROWS]; /* of probabilities: since the last restart, and before it */
    T max[ROWS], max_total[ROWS];      /* what acc and total are scaled by */
    int64_t begin[ROWS], end[ROWS];    /* visible keys of each row in the present piece, as local keys */
    T scores[ROWS * KEYS] __attribute__((aligned(64)));
    double total[]; /* [ROWS, width]; then, in T: acc [ROWS, width], q [ROWS, head_dim], scaled */
} FN(work);

static int64_t FN(width)(int64_t head_dim) {
    return (head_dim + FN(LANES) - 1) / FN(LANES) * FN(LANES);
}

static int64_t FN(work_bytes)(int64_t head_dim) {
    int64_t width = FN(width)(head_dim);
    return (int64_t)sizeof(FN(work)) + ROWS * width * 8 + ROWS * (width + head_dim) * (int64_t)sizeof(T);
}

static T *FN(acc_of)(FN(work) *w, int64_t width) { return (T *)(void *)(w->total + ROWS * width); }

/* Elements of one packed block: keys [head_dim, KEYS], values [KEYS, width]. */
static int64_t FN(block_size)(int64_t head_dim) { return KEYS * (head_dim + FN(width)(head_dim)); }

/* Four rows of four, `ld` apart, become columns of a block of keys. */
static inline void FN(transpose4)(const T *from, int64_t ld, T *to) {
    typedef T quad __attribute__((vector_size(4 * sizeof(T)), aligned(sizeof(T)), may_alias));
    quad r0 = *(const quad *)from, r1 = *(const quad *)(from + ld), r2 = *(const quad *)(from + 2 * ld),
         r3 = *(const quad *)(from + 3 * ld);
    quad a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), b = __builtin_shufflevector(r2, r3, 0, 4, 1, 5),
         c = __builtin_shufflevector(r0, r1, 2, 6, 3, 7), e = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
    *(quad *)to = __builtin_shufflevector(a, b, 0, 1, 4, 5);
    *(quad *)(to + KEYS) = __builtin_shufflevector(a, b, 2, 3, 6, 7);
    *(quad *)(to + 2 * KEYS) = __builtin_shufflevector(c, e, 0, 1, 4, 5);
    *(quad *)(to + 3 * KEYS) = __builtin_shufflevector(c, e, 2, 3, 6, 7);
}

/* Packs block n of KV head `kv` of batch entry b: keys transposed, values in dense rows, zeros where there is none.
 * Returns whether all its values are finite. */
static int FN(pack)(const spl_attn_args *a, int64_t b, int64_t kv, int64_t n, T *block) {
    int64_t d = a->head_dim, width = FN(width)(d), first = n * KEYS, keys = a->sk - first < KEYS ? a->sk - first : KEYS;
    const T *k = (const T *)a->k + b * a->k_strides[0] + first * a->k_strides[1] + kv * a->k_strides[2];
    const T *v = (const T *)a->v + b * a->v_strides[0] + first * a->v_strides[1] + kv * a->v_strides[2];
    T *values = block + KEYS * d, poison = 0;
    enum { EDGE = 16 }; /* a square at a time: both sides stay in cache */
    if (keys < KEYS) memset(block, 0, (size_t)(KEYS * d) * sizeof(T));
    for (int64_t j0 = 0; j0 < keys; j0 += EDGE)
        for (int64_t x0 = 0; x0 < d; x0 += EDGE) {
            int64_t j1 = j0 + EDGE < keys ? j0 + EDGE : keys, x1 = x0 + EDGE < d ? x0 + EDGE : d;
            for (int64_t j = j0; j < j1; j++) { /* rows are far apart: what comes next is asked for early */
                __builtin_prefetch(k + (j + EDGE) * a->k_strides[1] + x0);
                __builtin_prefetch(v + j * a->v_strides[1] + x0);
            }
            if (j1 - j0 == EDGE && x1 - x0 == EDGE) {
                for (int64_t j = j0; j < j1; j += 4)
                    for (int64_t x = x0; x < x1; x += 4)
                        FN(transpose4)(k + j * a->k_strides[1] + x, a->k_strides[1], block + x * KEYS + j);
                continue;
            }
            for (int64_t j = j0; j < j1; j++)
                for (int64_t x = x0; x < x1; x++) block[x * KEYS + j] = k[j * a->k_strides[1] + x];
        }
    for (int64_t j = 0; j < keys; j++) {
        const T *from = v + j * a->v_strides[1];
        T *to = values + j * width, line = 0;
#pragma omp simd reduction(+ : line)
        for (int64_t x = 0; x < d; x++) {
            to[x] = from[x];
            line += from[x] * 0;
        }
        for (int64_t x = d; x < width; x++) to[x] = 0;
        poison += line;
    }
    return poison == 0;
}

/* Adds what was gathered since the last restart to the totals. */
static void FN(fold)(FN(work) *w, int64_t rows, int64_t width) {
    for (int64_t i = 0; i < rows; i++) {
        T *acc = FN(acc_of)(w, width) + i * width;
        double *total = w->total + i * width;
        if (w->sum[i] == 0) continue; /* nothing seen since the last restart; acc is zero */
        double f = w->sum_total[i] == 0 ? 0 : exp((double)w->max_total[i] - (double)w->max[i]);
        for (int64_t j = 0; j < width; j++) {
            total[j] = total[j] * f + (double)acc[j];
            acc[j] = 0;
        }
        w->sum_total[i] = w->sum_total[i] * f + w->sum[i];
        w->max_total[i] = w->max[i];
        w->sum[i] = 0;
    }
}

#ifdef EXP_VECTOR /* the two loops below, in the level's own operations */
static inline __attribute__((always_inline)) T FN(largest)(const T *s, int64_t n) {
    enum { L = FN(LANES) };
    FN(vector) low = (FN(vector)){0} - (T)INFINITY, top[2] = {low, low};
    int64_t j = 0;
    for (; j + 2 * L <= n; j += 2 * L)
        for (int half = 0; half < 2; half++) top[half] = MAX_VECTOR(*(const FN(vector) *)(s + j + half * L), top[half]);
    T most = LARGEST_LANE(MAX_VECTOR(top[0], top[1]));
    for (; j < n; j++) most = s[j] > most ? s[j] : most;
    return most;
}

static inline __attribute__((always_inline)) T FN(exponentials)(T *s, int64_t n, T base) {
    enum { L = FN(LANES) };
    FN(vector) sum[2] = {{0}, {0}};
    T rest = 0;
    int64_t j = 0;
    for (; j + 2 * L <= n; j += 2 * L)
        for (int half = 0; half < 2; half++) {
            FN(vector) *at = (FN(vector) *)(s + j + half * L);
            *at = EXP_VECTOR(*at - base);
            sum[half] += *at;
        }
    for (; j < n; j++) {
        s[j] = EXP(s[j] - base);
        rest += s[j];
    }
    return SUM_LANES(sum[0] + sum[1]) + rest;
}
#else
/* The largest of n numbers, -inf of none; a NaN is never the largest. In lanes, which a compiler may not make of a
 * loop over floats by itself. */
static inline __attribute__((always_inline)) T FN(largest)(const T *s, int64_t n) {
    enum { L = 2 * FN(LANES) };
    T top[L];
    int64_t j = 0;
    for (int l = 0; l < L; l++) top[l] = -(T)INFINITY;
    for (; j + L <= n; j += L)
#pragma omp simd
        for (int l = 0; l < L; l++) top[l] = s[j + l] > top[l] ? s[j + l] : top[l];
    for (int l = 0; l < L && j + l < n; l++) top[l] = s[j + l] > top[l] ? s[j + l] : top[l];
#pragma GCC unroll 8
    for (int half = L / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) top[l] = top[l + half] > top[l] ? top[l + half] : top[l];
    return top[0];
}

/* Scores to probabilities; returns their sum. */
static inline __attribute__((always_inline)) T FN(exponentials)(T *s, int64_t n, T base) {
    enum { L = 2 * FN(LANES) };
    T sum[L] = {0};
    int64_t j = 0;
    for (; j + L <= n; j += L)
#pragma omp simd
        for (int l = 0; l < L; l++) {
            T e = EXP(s[j + l] - base);
            s[j + l] = e;
            sum[l] += e;
        }
    for (int l = 0; l < L && j + l < n; l++) {
        T e = EXP(s[j + l] - base);
        s[j + l] = e;
        sum[l] += e;
    }
#pragma GCC unroll 8
    for (int half = L / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) sum[l] += sum[l + half];
    return sum[0];
}
#endif

typedef struct FN(tile_of) {
    const spl_attn_piece *p;
    int64_t b, h, row0;  /* row 0 of the unit */
    const T *keys, *values; /* the packed block */
    int64_t key0;        /* its first key */
    int finite;
} FN(tile_of);

static void FN(drop)(const job *jb, const FN(tile_of) *t, int64_t row, int64_t begin, int64_t end, T *s) {
    const spl_attn_args *a = jb->a;
    const spl_attn_piece *p = t->p;
    uint32_t words[KEYS];
    int64_t head = global_index(a->batch_segments, a->nbatch_segments, t->b) * a->heads_global +
                   global_index(a->head_segments, a->nhead_segments, t->h);
    int64_t q_pos = p->q_start + (t->row0 + row - p->q0) * p->q_stride;
    int64_t k_pos = p->k_start + (t->key0 + begin - p->k0) * p->k_stride;
    splk_random_words(a->key, (head * a->seq_q_global + q_pos) * a->seq_k_global + k_pos, p->k_stride, end - begin,
                      words);
    for (int64_t j = 0; j < end - begin; j++) s[j] = words[j] >> 8 >= jb->least ? s[j] : 0 * s[j];
}

/* Turns the scores of rows [lo, hi), each of which sees keys [begin, end) of the block, into probabilities; keep[i] is
 * what the row's sums so far are to be multiplied by, since its maximum may have grown (it never falls). Row by row
 * without a choice, and all that is one number a row in a pass of its own: rows do not wait for each other. */
static void FN(softmax)(const job *jb, FN(work) *w, const FN(tile_of) *t, int64_t lo, int64_t hi, const int *begin,
                        const int *end, T *keep) {
    T base[ROWS];
    for (int64_t i = lo; i < hi; i++) {
        const T *s = w->scores + i * KEYS + begin[i];
        base[i] = end[i] - begin[i] == KEYS ? FN(largest)(s, KEYS) : FN(largest)(s, end[i] - begin[i]);
    }
#pragma omp simd
    for (int64_t i = lo; i < hi; i++) {
        T before = w->max[i], top = base[i] > before ? base[i] : before;
        keep[i] = top == before ? 1 : EXP(before - top);
        w->max[i] = top;
        base[i] = top == -(T)INFINITY ? 0 : top; /* scores may all be -inf, or NaN, never the maximum */
    }
    for (int64_t i = lo; i < hi; i++) {
        T *s = w->scores + i * KEYS + begin[i];
        T sum = end[i] - begin[i] == KEYS ? FN(exponentials)(s, KEYS, base[i])
                                          : FN(exponentials)(s, end[i] - begin[i], base[i]);
        w->sum[i] = w->sum[i] * (double)keep[i] + (double)sum;
    }
    for (int64_t i = lo; i < hi && jb->least; i++)
        FN(drop)(jb, t, i, begin[i], end[i], w->scores + i * KEYS + begin[i]);
}

/* Rows [lo, hi) of the unit against keys [from, to) of the block, at least one pair of which is visible; w->begin and
 * w->end say what each row sees. */
static void FN(strip)(const job *jb, FN(work) *w, const FN(tile_of) *t, int64_t lo, int64_t hi, int64_t from,
                      int64_t to) {
    int64_t d = jb->a->head_dim, width = FN(width)(d);
    T *acc = FN(acc_of)(w, width), *q = acc + ROWS * width;
    int64_t left = from / FN(LANES) * FN(LANES), right = (to + FN(LANES) - 1) / FN(LANES) * FN(LANES);
    FN(tile_store)(hi - lo, right - left, d, q + lo * d, d, t->keys + left, KEYS, w->scores + lo * KEYS + left, KEYS);
    int whole = 1;
    if (jb->a->key_bias) {
        const T *bias = (const T *)jb->a->key_bias + t->key0;
        for (int64_t i = lo; i < hi; i++)
            for (int64_t j = from; j < to; j++) w->scores[i * KEYS + j] += bias[j];
    }
    int first[ROWS], last[ROWS];
    T keep[ROWS];
    for (int64_t i = lo; i < hi; i++) {
        int64_t begin = w->begin[i] - t->key0, end = w->end[i] - t->key0;
        T *s = w->scores + i * KEYS;
        if (begin < from) begin = from;
        if (end > to) end = to;
        if (end < begin) end = begin;
        first[i] = (int)begin;
        last[i] = (int)end;
        if (begin == from && end == to) continue;
        whole = 0;
        for (int64_t j = from; j < begin; j++) s[j] = 0;
        for (int64_t j = end; j < to; j++) s[j] = 0;
    }
    FN(softmax)(jb, w, t, lo, hi, first, last, keep);
    if (d == 0) return;
    if (whole || t->finite) {
        FN(tile_add)(keep + lo, hi - lo, width, to - from, w->scores + lo * KEYS + from, KEYS,
                     t->values + from * width, width, acc + lo * width, width);
        return;
    }
    /* A value that some rows must not see is not finite, and 0 * inf is NaN: each row takes its own keys only. The same
     * product, so that a row which sees none of it does not change by a bit: zeros would have added nothing. */
    for (int64_t i = lo; i < hi; i++)
        FN(tile_add)(keep + i, 1, width, last[i] - first[i], w->scores + i * KEYS + first[i], KEYS,
                     t->values + first[i] * width, width, acc + i * width, width);
}

/* Rows [lo, hi) against keys [from, to) of the block: at once where all see all, else in strips of rows, each with the
 * keys that it sees. Both ends of what a row sees grow with the row. */
static void FN(tile)(const job *jb, FN(work) *w, const FN(tile_of) *t, int64_t lo, int64_t hi, int64_t from,
                     int64_t to) {
    if (w->begin[hi - 1] <= t->key0 + from && w->end[lo] >= t->key0 + to) {
        FN(strip)(jb, w, t, lo, hi, from, to);
        return;
    }
    enum { STRIP = 4 * FN(TILE_ROWS) };
    for (int64_t i = lo, next; i < hi; i = next) {
        next = i + STRIP < hi ? i + STRIP : hi;
        int64_t begin = w->begin[i] - t->key0, end = w->end[next - 1] - t->key0;
        if (begin < from) begin = from;
        if (end > to) end = to;
        if (begin < end) FN(strip)(jb, w, t, i, next, begin, end);
    }
}

/* All keys of piece p for the unit's rows; *since counts the keys since the last restart. */
static void FN(piece)(const job *jb, FN(work) *w, FN(tile_of) *t, const T *packed, const unsigned char *finite,
                      int64_t rows, int64_t *since) {
    const spl_attn_piece *p = t->p;
    int64_t d = jb->a->head_dim, width = FN(width)(d), row0 = t->row0;
    int64_t lo = p->q0 > row0 ? p->q0 - row0 : 0, hi = p->q0 + p->nq - row0 < rows ? p->q0 + p->nq - row0 : rows;
    int64_t first = p->nk, last = 0;
    for (int64_t i = lo; i < hi; i++) {
        int64_t begin, end;
        visible(p, row0 + i - p->q0, &begin, &end);
        if (begin < end && begin < first) first = begin;
        if (begin < end && end > last) last = end;
        w->begin[i] = p->k0 + begin;
        w->end[i] = p->k0 + end;
    }
    first += p->k0;
    last += p->k0;
    for (int64_t n = first / KEYS; n * KEYS < last; n++) {
        int64_t from = first > n * KEYS ? first - n * KEYS : 0, to = last - n * KEYS < KEYS ? last - n * KEYS : KEYS;
        int64_t top = lo, bottom = hi;
        t->key0 = n * KEYS;
        while (top < bottom && w->end[top] <= t->key0 + from) top++;
        while (bottom > top && w->begin[bottom - 1] >= t->key0 + to) bottom--;
        if (top == bottom) continue;
        if (*since + to - from > RESTART) {
            FN(fold)(w, rows, width);
            *since = 0;
        }
        t->keys = packed + n * FN(block_size)(d);
        t->values = t->keys + KEYS * d;
        t->finite = finite[n];
        FN(tile)(jb, w, t, top, bottom, from, to);
        if (jb->a->tiles) __atomic_fetch_add(jb->a->tiles, 1, __ATOMIC_RELAXED);
        *since += to - from;
    }
}

/* Writes the unit's rows, or merges them with what is there. */
static void FN(finish)(const spl_attn_args *a, const FN(work) *w, int64_t width, const FN(tile_of) *t, int64_t rows) {
    int64_t d = a->head_dim;
    for (int64_t i = 0; i < rows; i++) {
        T *out = (T *)a->out + t->b * a->out_strides[0] + (t->row0 + i) * a->out_strides[1] + t->h * a->out_strides[2];
        T *lse = (T *)a->lse + (t->b * a->heads + t->h) * a->sq + t->row0 + i;
        const double *o = w->total + i * width;
        if (w->sum_total[i] == 0) { /* saw nothing */
            if (a->merge) continue;
            for (int64_t j = 0; j < d; j++) out[j] = 0;
            *lse = -(T)INFINITY;
            continue;
        }
        double mine = (double)w->max_total[i] + log(w->sum_total[i]);
        double scale = 1 / (w->sum_total[i] * (1 - a->p));
        if (!a->merge || *lse == -(T)INFINITY) {
            for (int64_t j = 0; j < d; j++) out[j] = (T)(o[j] * scale);
            *lse = (T)mine;
            continue;
        }
        double theirs = (double)*lse, top = theirs > mine ? theirs : mine;
        double weight = exp(mine - top), kept = exp(theirs - top), sum = weight + kept;
        kept /= sum;
        scale *= weight / sum;
        for (int64_t j = 0; j < d; j++) out[j] = (T)((double)out[j] * kept + o[j] * scale);
        *lse = (T)(top + log(sum));
    }
}

/* Rows [row0, row0 + ROWS) of query head h of batch entry b, with the packed blocks of its KV head. */
static void FN(unit)(const job *jb, int64_t b, int64_t h, int64_t row0, const void *packed,
                     const unsigned char *finite) {
    const spl_attn_args *a = jb->a;
    FN(work) *w = (FN(work) *)(void *)(jb->work + splk_thread() * jb->work_stride);
    int64_t rows = a->sq - row0 < ROWS ? a->sq - row0 : ROWS, d = a->head_dim, width = FN(width)(d), since = 0;
    T *acc = FN(acc_of)(w, width), *mine = acc + ROWS * width, scale = (T)a->scale;
    FN(tile_of) t = {.b = b, .h = h, .row0 = row0};
    for (int64_t i = 0; i < rows; i++) {
        w->sum[i] = w->sum_total[i] = 0;
        w->max[i] = w->max_total[i] = -(T)INFINITY;
    }
    memset(w->total, 0, (size_t)(ROWS * width) * 8);
    memset(acc, 0, (size_t)(ROWS * width) * sizeof(T));
    const T *q = (const T *)a->q + b * a->q_strides[0] + row0 * a->q_strides[1] + h * a->q_strides[2];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < d; j++) mine[i * d + j] = q[i * a->q_strides[1] + j] * scale;
    for (int i = 0; i < a->npieces; i++) {
        t.p = &a->pieces[i];
        if (t.p->q0 < row0 + rows && t.p->q0 + t.p->nq > row0) FN(piece)(jb, w, &t, packed, finite, rows, &since);
    }
    FN(fold)(w, rows, width);
    FN(finish)(a, w, width, &t, rows);
}

#undef FN
