/* coll.c: what a collective call means, as one member alone can tell: names, checks, splits and byte counts. It calls
 * nothing of core but status and dtype, so that plugins carry their own copy. */
#include "comm.h"
#include <stdio.h>
#include <string.h>

const char *spl_coll_name(spl_coll_kind kind) {
    static const char *const names[] = {"barrier",        "all-gather", "all-reduce",
                                        "reduce-scatter", "all-to-all", "broadcast"};
    return (int)kind >= 0 && kind < SPL_COLL_KIND_COUNT ? names[kind] : "unknown collective";
}

const char *spli_comm_place(const spl_comm *c, char *out, size_t n) {
    if (c->axis[0]) snprintf(out, n, "on axis %s", c->axis);
    else snprintf(out, n, "over all ranks");
    return out;
}

void spli_coll_split(int64_t n, int size, int m, int64_t *offset, int64_t *count) {
    int64_t each = n / size, more = n % size;
    *count = each + (m < more);
    *offset = each * m + (m < more ? m : more);
}

int spli_coll_tree(int size, int rank, int root, int *parent, int *children) {
    int64_t here = (rank - root + size) % size, step = 1;
    int n = 0;
    while (step < size && !(here & step)) step <<= 1; /* the lowest set bit of my place says whom I hear */
    *parent = here ? (int)((here - step + root) % size) : -1;
    while (step >>= 1)
        if (here + step < size) children[n++] = (int)((here + step + root) % size);
    return n;
}

int64_t spl_coll_bytes(const spl_comm *c, const spl_coll *coll) {
    int64_t n = 0, offset, own;
    int parent, children[32];
    switch (coll->kind) {
    case SPL_COLL_ALL_GATHER:
        n = coll->send_counts[0] * (c->size - 1);
        break;
    case SPL_COLL_ALL_REDUCE:
        spli_coll_split(coll->send_counts[0], c->size, c->rank, &offset, &own);
        n = coll->send_counts[0] - own + own * (c->size - 1);
        break;
    case SPL_COLL_REDUCE_SCATTER:
    case SPL_COLL_ALL_TO_ALL:
        for (int m = 0; m < c->size; m++)
            if (m != c->rank) n += coll->send_counts[m];
        break;
    case SPL_COLL_BROADCAST:
        n = coll->send_counts[0] * spli_coll_tree(c->size, c->rank, coll->root, &parent, children);
        break;
    case SPL_COLL_BARRIER:
    case SPL_COLL_KIND_COUNT:
        break;
    }
    return n * (int64_t)spl_dtype_size(coll->dtype);
}

/* The sum of `n` counts times the element size must fit. */
static spl_status check_counts(const spl_comm *c, const char *name, const char *which, const int64_t *counts, int n,
                               size_t size, int64_t *total) {
    char place[48];
    *total = 0;
    for (int m = 0; m < n; m++) {
        if (counts[m] < 0)
            return spli_error(SPL_EARG, "%s %s was given the %s count %lld for member %d; counts are 0 or more", name,
                              spli_comm_place(c, place, sizeof place), which, (long long)counts[m], m);
        if (counts[m] > INT64_MAX / (int64_t)size / (c->size + 1) - *total)
            return spli_error(SPL_ENOMEM, "%s %s was given %s counts whose bytes do not fit 63 bits", name,
                              spli_comm_place(c, place, sizeof place), which);
        *total += counts[m];
    }
    return spli_ok();
}

spl_status spli_coll_check(const spl_comm *c, const spl_coll *coll) {
    if ((int)coll->kind < 0 || coll->kind >= SPL_COLL_KIND_COUNT)
        return spli_error(SPL_EARG, "there is no collective of kind %d", (int)coll->kind);
    if (coll->kind == SPL_COLL_BARRIER) return spli_ok();
    const char *name = spl_coll_name(coll->kind);
    char place[48];
    spli_comm_place(c, place, sizeof place);
    if ((int)coll->dtype < 0 || coll->dtype >= SPL_DTYPE_COUNT)
        return spli_error(SPL_EARG, "%s %s was given the unknown dtype %d", name, place, (int)coll->dtype);
    size_t size = spl_dtype_size(coll->dtype);
    int per_member = coll->kind == SPL_COLL_REDUCE_SCATTER || coll->kind == SPL_COLL_ALL_TO_ALL;
    int receives = coll->kind == SPL_COLL_ALL_GATHER || coll->kind == SPL_COLL_ALL_TO_ALL;
    if (!coll->send_counts || (receives && !coll->recv_counts))
        return spli_error(SPL_EARG, "%s %s was given no %s counts", name, place,
                          coll->send_counts ? "receive" : "send");
    int64_t sent, got;
    SPL_TRY(check_counts(c, name, "send", coll->send_counts, per_member ? c->size : 1, size, &sent));
    got = per_member ? coll->send_counts[c->rank] : sent;
    if (receives) {
        SPL_TRY(check_counts(c, name, "receive", coll->recv_counts, c->size, size, &got));
        int64_t own = coll->send_counts[per_member ? c->rank : 0];
        if (own != coll->recv_counts[c->rank])
            return spli_error(
                SPL_EARG,
                "%s %s sends %lld elements to this member itself but expects %lld from it; both must be equal", name,
                place, (long long)own, (long long)coll->recv_counts[c->rank]);
    }
    if (coll->kind == SPL_COLL_BROADCAST) {
        if (coll->root < 0 || coll->root >= c->size)
            return spli_error(SPL_EARG, "broadcast %s was given the root %d; members are 0 to %d", place, coll->root,
                              c->size - 1);
        if (c->rank != coll->root) sent = 0;
    }
    if ((sent && !coll->send) || (got && !coll->recv))
        return spli_error(SPL_EARG, "%s %s was given no memory to %s", name, place,
                          sent && !coll->send ? "send from" : "receive into");
    return spli_ok();
}
