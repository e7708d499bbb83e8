/* host_values.c: barrier, agreed numbers and gathered bytes over the world, in host memory, not counted.
 *
 * They travel on the control channel, so that they work the same on every backend: each rank sends its bytes to rank 0
 * in pieces, rank 0 works out the answer (in rank order: the same bits in every run) and sends it to all. */
#include "control.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct arrival { /* bytes on their way from one rank */
    spl_runtime *rt;
    int peer, kind;
    uint64_t number;
    char *into;
    size_t bytes, got;
    int pieces;
    const char *what;
} arrival;

static const char *name_of(int kind) {
    switch (kind) {
    case SPLI_HOST_SUM: return "an agreement of numbers (sum)";
    case SPLI_HOST_MAX: return "an agreement of numbers (max)";
    case SPLI_HOST_MIN: return "an agreement of numbers (min)";
    default: return "a gather of bytes";
    }
}

static spl_status send_bytes(spl_runtime *rt, int peer, int kind, uint64_t number, const void *bytes, size_t n) {
    spli_message m = {.type = SPLI_HOST, .sequence = number};
    m.as.host.kind = kind;
    m.as.host.bytes = (int64_t)n;
    size_t at = 0;
    do { /* also of no bytes one message */
        size_t piece = n - at < SPLI_HOST_PIECE ? n - at : SPLI_HOST_PIECE;
        m.as.host.offset = (int64_t)at;
        if (piece) memcpy(m.as.host.piece, (const char *)bytes + at, piece);
        SPL_TRY(spli_control_send(rt, peer, &m));
        at += piece;
    } while (at < n);
    return spli_ok();
}

/* An answer that is an error, so that no rank waits for one in vain. */
static void send_failure(spl_runtime *rt, int kind, uint64_t number, const spl_status *s) {
    spli_message m = {.type = SPLI_HOST, .sequence = number};
    m.as.host.kind = kind;
    m.as.host.code = (int32_t)s->code;
    snprintf(m.as.host.piece, sizeof m.as.host.piece, "%.*s", SPLI_HOST_PIECE - 1, s->message);
    for (int p = 1; p < rt->size; p++)
        if (!rt->control->peers[p].ended)
            (void)spli_control_send(rt, p, &m); /* the first error is already on its way up */
}

static spl_status take_piece(arrival *a, const spli_message *m) {
    size_t piece = a->bytes - a->got < SPLI_HOST_PIECE ? a->bytes - a->got : SPLI_HOST_PIECE;
    if (m->as.host.code != SPL_OK)
        return spli_error((spl_code)m->as.host.code, "%.*s", SPLI_HOST_PIECE, m->as.host.piece);
    if (m->as.host.kind != a->kind || m->as.host.bytes != (int64_t)a->bytes || m->sequence != a->number)
        return spli_error(SPL_EDISAGREE,
                          "ranks disagree: rank %d takes part in %s of %" PRId64 " bytes, rank %d in %s of %zu "
                          "bytes; every rank must make the same collective calls",
                          a->peer, name_of(m->as.host.kind), m->as.host.bytes, a->rt->rank, name_of(a->kind), a->bytes);
    if (piece) memcpy(a->into + a->got, m->as.host.piece, piece);
    a->got += piece;
    a->pieces++;
    return spli_ok();
}

static spl_status poll_arrival(void *ctx, int *done, uint64_t *progress) {
    arrival *a = ctx;
    SPL_TRY(spli_control_drain(a->rt, a->peer));
    spli_letter **at = &a->rt->control->peers[a->peer].inbox;
    while (*at && !(a->pieces && a->got == a->bytes)) {
        spli_message *m = &(*at)->m;
        if (m->type != SPLI_HOST) {
            at = &(*at)->next;
            continue;
        }
        spl_status status = m->sequence < a->number ? spli_ok() /* of a call that failed */ : take_piece(a, m);
        spli_control_drop(at);
        SPL_TRY(status);
    }
    *done = a->pieces && a->got == a->bytes;
    *progress = a->rt->control->letters;
    return *done ? spli_ok() : spli_control_ended(a->rt, a->peer, a->what);
}

static spl_status receive_bytes(spl_runtime *rt, int peer, int kind, uint64_t number, void *into, size_t n) {
    arrival a = {
        .rt = rt, .peer = peer, .kind = kind, .number = number, .into = into, .bytes = n, .what = name_of(kind)};
    char what[80];
    snprintf(what, sizeof what, "rank %d in %s over all ranks", peer, a.what);
    /* rank 0 answers only after it has waited for the last rank, so the others give it longer */
    return spli_wait_for(rt, poll_arrival, &a, rt->rank == 0 ? rt->timeout : 2 * rt->timeout, 1, what);
}

/* Integers among themselves stay exact; a sum that leaves 64 bits, or meets a float, is one of doubles. */
static void combine(spl_number *into, const spl_number *x, int n, char op) {
    for (int i = 0; i < n; i++) {
        spl_number *a = &into[i];
        const spl_number *b = &x[i];
        int whole = a->whole && b->whole;
        int better = whole ? (op == '>' ? b->integer > a->integer : b->integer < a->integer)
                           : (op == '>' ? b->value > a->value : b->value < a->value);
        if (op == '+') {
            a->value += b->value;
            a->whole = whole && !__builtin_add_overflow(a->integer, b->integer, &a->integer);
        } else {
            if (better || b->value != b->value) *a = *b; /* NaN stays visible */
            a->whole = whole;
        }
    }
}

/* `mine` of every rank to rank 0; there they are combined by `op` ('\0': put behind each other) and sent to all. */
static spl_status exchange(spl_runtime *rt, int kind, char op, const void *mine, size_t n, void *answer,
                           size_t answer_bytes) {
    SPL_TRY(spli_agree_host(rt, rt->world, kind, (int64_t)(op ? n / sizeof(spl_number) : n)));
    uint64_t number = rt->world->sequence++;
    if (rt->rank != 0) {
        SPL_TRY(send_bytes(rt, 0, kind, number, mine, n));
        return receive_bytes(rt, 0, kind, number, answer, answer_bytes);
    }
    spl_status status = spli_ok();
    char *part = op ? malloc(n > 0 ? n : 1) : NULL;
    if (op && !part) SPL_GO(spli_error(SPL_ENOMEM, "out of memory in %s", name_of(kind)), done);
    if (n) memmove(answer, mine, n); /* rank 0's own part is the first */
    for (int p = 1; p < rt->size; p++) {
        SPL_GO(receive_bytes(rt, p, kind, number, op ? part : (char *)answer + (size_t)p * n, n), done);
        if (op) combine(answer, (const spl_number *)(const void *)part, (int)(n / sizeof(spl_number)), op);
    }
    for (int p = 1; p < rt->size; p++) SPL_GO(send_bytes(rt, p, kind, number, answer, answer_bytes), done);
done:
    free(part);
    if (status.code != SPL_OK) send_failure(rt, kind, number, &status);
    return status;
}

spl_status spl_agree_doubles(spl_runtime *rt, double *values, int n, char op) {
    spl_number *numbers = calloc(n > 0 ? (size_t)n : 1, sizeof *numbers);
    if (!numbers) return spli_error(SPL_ENOMEM, "out of memory in %s", name_of(SPLI_HOST_SUM));
    for (int i = 0; i < n; i++) numbers[i].value = values[i];
    spl_status status = spl_agree_numbers(rt, numbers, n, op);
    for (int i = 0; i < n && status.code == SPL_OK; i++) values[i] = numbers[i].value;
    free(numbers);
    return status;
}

spl_status spl_agree_numbers(spl_runtime *rt, spl_number *values, int n, char op) {
    if (op != '+' && op != '>' && op != '<')
        return spli_error(SPL_EARG, "numbers are agreed with '+', '>' or '<', not with '%c'", op);
    if (n < 0) return spli_error(SPL_EARG, "%d numbers were to be agreed; give 0 or more", n);
    if (rt->size == 1 || rt->dry) return spli_ok();
    size_t bytes = (size_t)n * sizeof *values;
    const int kind = op == '+' ? SPLI_HOST_SUM : op == '>' ? SPLI_HOST_MAX : SPLI_HOST_MIN;
    return exchange(rt, kind, op, values, bytes, values, bytes);
}

spl_status spl_gather_bytes(spl_runtime *rt, const void *mine, size_t n, void *out) {
    int64_t all;
    if (n > INT64_MAX) return spli_error(SPL_ENOMEM, "%zu bytes of every rank are more than can be gathered", n);
    SPL_TRY(spli_mul_size((int64_t)n, rt->size, &all));
    if (rt->size == 1 || rt->dry) {
        for (int p = 0; p < rt->size; p++)
            if (n) memmove((char *)out + (size_t)p * n, mine, n); /* alone, every rank is taken to say the same */
        return spli_ok();
    }
    return exchange(rt, SPLI_HOST_BYTES, '\0', mine, n, out, (size_t)all);
}

spl_status spl_barrier(spl_runtime *rt) {
    spl_coll coll = {.kind = SPL_COLL_BARRIER};
    spl_request *r;
    if (rt->size == 1 || rt->dry) return spli_ok();
    SPL_TRY(spli_agree(rt, rt->world, &coll));
    SPL_TRY(rt->world->ops->start(rt->world, &coll, NULL, 0, &r));
    return spli_wait(rt, r, "a barrier over all ranks");
}
