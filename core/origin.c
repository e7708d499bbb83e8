/* origin.c: which line of the script made the memory that tensors hold, for whoever looks for it. */
#include "tensor.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct spli_origin {
    struct spli_origin *next, **link;
    const spli_storage *storage;
    char site[64], what[80]; /* what: dtype and sizes of the tensor that it was made for */
} spli_origin;

void spli_origin_note(const spl_tensor *t) {
    spl_runtime *rt = t->rt;
    spli_origin *o = calloc(1, sizeof *o);
    if (!o) return; /* it is only not listed */
    rt->origin_site(rt->origin_ctx, o->site, sizeof o->site);
    size_t at = (size_t)snprintf(o->what, sizeof o->what, "%s [", spl_dtype_name(t->dtype));
    for (int d = 0; d < t->ndim && at < sizeof o->what; d++)
        at += (size_t)snprintf(o->what + at, sizeof o->what - at, "%s%lld", d ? ", " : "", (long long)t->local[d]);
    if (at < sizeof o->what) snprintf(o->what + at, sizeof o->what - at, "]");
    o->storage = t->storage;
    o->link = &rt->origins;
    o->next = rt->origins;
    if (o->next) o->next->link = &o->next;
    rt->origins = o;
    t->storage->origin = o;
}

void spli_origin_forget(spli_storage *s) {
    spli_origin *o = s->origin;
    *o->link = o->next;
    if (o->next) o->next->link = o->link;
    s->origin = NULL;
    free(o);
}

void spl_runtime_note_origins(spl_runtime *rt, spl_site_of site, void *ctx) {
    rt->origin_site = site;
    rt->origin_ctx = ctx;
}

void spl_runtime_origins(const spl_runtime *rt, spl_origin_take take, void *take_ctx) {
    for (const spli_origin *o = rt->origins; o; o = o->next)
        if (o->storage->data || o->storage->bytes == 0)
            take(take_ctx, o->site, o->what, (int)o->storage->category, (int64_t)o->storage->bytes);
}
