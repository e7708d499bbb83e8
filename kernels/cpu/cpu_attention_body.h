/* cpu_attention_body.h: one unit of cpu_attention.c in element type T, with EXP of that type. */

#define FN(name) SPLK_PASTE(name, S)

/* What a thread works in; arrays of ROWS rows or KEYS keys by head_dim. */
typedef struct FN(work) {
    double sum[ROWS], sum_total[ROWS]; /* of probabilities: since the last restart, and before it */
    T max[ROWS], max_total[ROWS];      /* what acc and total are scaled by */
    int64_t begin[ROWS], end[ROWS];    /* visible keys of each row in the present piece */
    T scores[ROWS * KEYS];
    double total[]; /* [ROWS, head_dim]; then, in T: acc, q [ROWS, head_dim], k, v [KEYS, head_dim] */
} FN(work);

static int64_t FN(work_bytes)(int64_t head_dim) {
    return (int64_t)sizeof(FN(work)) + ROWS * head_dim * 8 + (2 * ROWS + 2 * KEYS) * head_dim * (int64_t)sizeof(T);
}

static T *FN(acc_of)(FN(work) *w, int64_t head_dim) { return (T *)(void *)(w->total + ROWS * head_dim); }

/* Rows as they are where the stride serves as a leading dimension; others are gathered into `pack`. */
static const T *FN(operand)(const T *x, int64_t stride, int64_t rows, int64_t head_dim, T *pack, int64_t *ld) {
    *ld = stride;
    if (stride >= head_dim && stride > 0 && stride <= INT32_MAX) return x;
    *ld = head_dim > 0 ? head_dim : 1;
    for (int64_t r = 0; r < rows; r++) memcpy(pack + r * head_dim, x + r * stride, (size_t)head_dim * sizeof(T));
    return pack;
}

static void FN(fold)(FN(work) *w, int64_t rows, int64_t d) {
    T *acc = FN(acc_of)(w, d);
    double *total = w->total;
    for (int64_t i = 0; i < rows; i++) {
        if (w->sum[i] == 0) continue; /* nothing seen since the last restart; acc is zero */
        double f = w->sum_total[i] == 0 ? 0 : exp((double)w->max_total[i] - (double)w->max[i]);
        for (int64_t j = 0; j < d; j++) {
            total[i * d + j] = total[i * d + j] * f + (double)acc[i * d + j];
            acc[i * d + j] = 0;
        }
        w->sum_total[i] = w->sum_total[i] * f + w->sum[i];
        w->max_total[i] = w->max[i];
        w->sum[i] = 0;
    }
}

/* Turns a row of scores into probabilities: s[begin, end) is what the row sees, the rest of the tile becomes 0. */
static void FN(softmax_row)(FN(work) *w, int64_t row, T *acc, int64_t d, T *s, int64_t begin, int64_t end,
                            int64_t keys) {
    T top = SPLK_PASTE(splk_largest, S)(s + begin, end - begin);
    if (!(top > w->max[row])) top = w->max[row];
    if (top > w->max[row]) {
        if (w->sum[row] != 0) {
            T f = EXP(w->max[row] - top);
            w->sum[row] *= (double)f;
            for (int64_t j = 0; j < d; j++) acc[row * d + j] *= f;
        }
        w->max[row] = top;
    }
    T base = top == -(T)INFINITY ? 0 : top, sum = 0; /* scores may all be -inf, or NaN, which is never the maximum */
    for (int64_t j = 0; j < begin; j++) s[j] = 0;
    for (int64_t j = begin; j < end; j++) s[j] = EXP(s[j] - base);
    for (int64_t j = end; j < keys; j++) s[j] = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = begin; j < end; j++) sum += s[j];
    w->sum[row] += (double)sum;
}

static int FN(finite)(const T *v, int64_t ld, int64_t rows, int64_t d) {
    T poison = 0;
    for (int64_t r = 0; r < rows; r++) {
        T line = 0;
#pragma omp simd reduction(+ : line)
        for (int64_t j = 0; j < d; j++) line += v[r * ld + j] * 0;
        poison += line;
    }
    return poison == 0;
}

/* Rows [lo, hi) of the unit against keys [t, t + keys) of piece p; begin and end say what each row sees. */
static void FN(tile)(const job *jb, FN(work) *w, const spl_attn_piece *p, int64_t b, int64_t h, int64_t row0,
                     int64_t lo, int64_t hi, int64_t t, int64_t keys, const T *q, int64_t ldq) {
    const spl_attn_args *a = jb->a;
    int64_t d = a->head_dim, kv = a->kv_of_head[h], ldk, ldv;
    T *acc = FN(acc_of)(w, d), *pack = acc + 2 * ROWS * d;
    const T *k = (const T *)a->k + b * a->k_strides[0] + (p->k0 + t) * a->k_strides[1] + kv * a->k_strides[2];
    const T *v = (const T *)a->v + b * a->v_strides[0] + (p->k0 + t) * a->v_strides[1] + kv * a->v_strides[2];
    k = FN(operand)(k, a->k_strides[1], keys, d, pack, &ldk);
    v = FN(operand)(v, a->v_strides[1], keys, d, pack + KEYS * d, &ldv);
    T *s = w->scores + lo * KEYS;
    if (d > 0)
        jb->c->SPLK_PASTE(tiles, S)->abt(hi - lo, keys, d, (T)a->scale, q + lo * ldq, ldq, k, ldk, s, KEYS);
    else
        for (int64_t i = lo; i < hi; i++) memset(w->scores + i * KEYS, 0, (size_t)keys * sizeof(T));
    int whole = w->begin[hi - 1] <= t && w->end[lo] >= t + keys;
    for (int64_t i = lo; i < hi; i++) {
        int64_t begin = w->begin[i] > t ? w->begin[i] - t : 0, end = w->end[i] < t + keys ? w->end[i] - t : keys;
        s = w->scores + i * KEYS;
        FN(softmax_row)(w, i, acc, d, s, begin, end, keys);
        if (jb->least) {
            uint32_t words[KEYS];
            int64_t head = global_index(a->batch_segments, a->nbatch_segments, b) * a->heads_global +
                           global_index(a->head_segments, a->nhead_segments, h);
            int64_t q_pos = p->q_start + (row0 + i - p->q0) * p->q_stride,
                    k_pos = p->k_start + (t + begin) * p->k_stride;
            splk_random_words(a->key, (head * a->seq_q_global + q_pos) * a->seq_k_global + k_pos, p->k_stride,
                              end - begin, words);
            for (int64_t j = begin; j < end; j++) s[j] = words[j - begin] >> 8 >= jb->least ? s[j] : 0 * s[j];
        }
    }
    if (d == 0) return;
    if (whole || FN(finite)(v, ldv, keys, d)) {
        jb->c->SPLK_PASTE(tiles, S)->ab(hi - lo, d, keys, w->scores + lo * KEYS, KEYS, v, ldv, acc + lo * d, d);
        return;
    }
    /* A value that some rows must not see is not finite, and 0 * inf is NaN: each row takes its own keys only. */
    for (int64_t i = lo; i < hi; i++)
        for (int64_t j = 0; j < keys; j++)
            if (t + j >= w->begin[i] && t + j < w->end[i])
                for (int64_t x = 0; x < d; x++) acc[i * d + x] += w->scores[i * KEYS + j] * v[j * ldv + x];
}

/* All keys of piece p for the unit's rows; *since counts the keys since the last restart. */
static void FN(piece)(const job *jb, FN(work) *w, const spl_attn_piece *p, int64_t b, int64_t h, int64_t row0,
                      int64_t rows, const T *q, int64_t ldq, int64_t *since) {
    int64_t lo = p->q0 > row0 ? p->q0 - row0 : 0, hi = p->q0 + p->nq - row0 < rows ? p->q0 + p->nq - row0 : rows;
    int64_t first = p->nk, last = 0, d = jb->a->head_dim;
    for (int64_t i = lo; i < hi; i++) {
        visible(p, row0 + i - p->q0, &w->begin[i], &w->end[i]);
        if (w->begin[i] == w->end[i]) continue;
        if (w->begin[i] < first) first = w->begin[i];
        if (w->end[i] > last) last = w->end[i];
    }
    for (int64_t t = first, keys; t < last; t += keys) {
        int64_t from = lo, to = hi;
        keys = last - t < KEYS ? last - t : KEYS;
        while (from < to && w->end[from] <= t) from++;
        while (to > from && w->begin[to - 1] >= t + keys) to--;
        if (from == to) continue;
        if (*since + keys > RESTART) {
            FN(fold)(w, rows, d);
            *since = 0;
        }
        FN(tile)(jb, w, p, b, h, row0, from, to, t, keys, q, ldq);
        *since += keys;
    }
}

/* Writes the unit's rows, or merges them with what is there. */
static void FN(finish)(const spl_attn_args *a, const FN(work) *w, int64_t b, int64_t h, int64_t row0,
                       int64_t rows) {
    int64_t d = a->head_dim;
    for (int64_t i = 0; i < rows; i++) {
        T *out = (T *)a->out + b * a->out_strides[0] + (row0 + i) * a->out_strides[1] + h * a->out_strides[2];
        T *lse = (T *)a->lse + (b * a->heads + h) * a->sq + row0 + i;
        const double *o = w->total + i * d;
        if (w->sum_total[i] == 0) { /* saw nothing */
            if (a->merge) continue;
            for (int64_t j = 0; j < d; j++) out[j] = 0;
            *lse = -(T)INFINITY;
            continue;
        }
        double mine = (double)w->max_total[i] + log(w->sum_total[i]), scale = 1 / (w->sum_total[i] * (1 - a->p));
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

static void FN(unit)(const job *jb, int64_t b, int64_t h, int64_t row0) {
    const spl_attn_args *a = jb->a;
    FN(work) *w = (FN(work) *)(void *)(jb->scratch + splk_thread() * jb->stride);
    int64_t rows = a->sq - row0 < ROWS ? a->sq - row0 : ROWS, d = a->head_dim, since = 0, ldq;
    T *acc = FN(acc_of)(w, d);
    for (int64_t i = 0; i < rows; i++) {
        w->sum[i] = w->sum_total[i] = 0;
        w->max[i] = w->max_total[i] = -(T)INFINITY;
    }
    memset(w->total, 0, (size_t)(ROWS * d) * 8);
    memset(acc, 0, (size_t)(ROWS * d) * sizeof(T));
    const T *q = (const T *)a->q + b * a->q_strides[0] + row0 * a->q_strides[1] + h * a->q_strides[2];
    q = FN(operand)(q, a->q_strides[1], rows, d, acc + ROWS * d, &ldq);
    for (int i = 0; i < a->npieces; i++) {
        const spl_attn_piece *p = &a->pieces[i];
        if (p->q0 < row0 + rows && p->q0 + p->nq > row0) FN(piece)(jb, w, p, b, h, row0, rows, q, ldq, &since);
    }
    FN(fold)(w, rows, d);
    FN(finish)(a, w, b, h, row0, rows);
}

#undef FN
