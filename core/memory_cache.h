/* memory_cache.h: memory given back is kept for the next request of its size class. */
#ifndef SPL_MEMORY_CACHE_H
#define SPL_MEMORY_CACHE_H
#include "runtime.h"

/* [local] Backend memory of at least `bytes` that was kept; NULL when there is none of its size. */
void *spli_cache_find(spl_runtime *rt, size_t bytes);
/* [local] The same, new. When the backend has none left, what is kept goes back to it first. */
spl_status spli_cache_new(spl_runtime *rt, size_t bytes, void **out);
void spli_cache_give(spl_runtime *rt, void *p, size_t bytes);
/* [local] Everything that is kept goes back to the backend. */
void spli_cache_flush(spl_runtime *rt);
/* [local] The same, for good. */
void spli_cache_close(spl_runtime *rt);
/* Bytes that are kept now. */
int64_t spli_cache_held(const spl_runtime *rt);

#endif
