/* fail_test.c: memory runs out: the n-th allocation fails, for every n, in everything from opening the runtime to a
 * forward pass that keeps its saved outputs. Each time there is an error and nothing is left behind; the n after the
 * last succeeds.
 *
 * Linked with --wrap, so that each malloc, calloc, realloc and aligned_alloc of core and kernels counts, and none of
 * the libraries'. */
#include "attn.h"
#include "block.h"
#include "memory_cache.h"
#include "spl.h"
#include "tap.h"
#include <stdlib.h>
#include <string.h>

static long countdown = -1; /* < 0: nothing fails */
static long live;           /* blocks taken and not given back, by the code under test */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t alignment, size_t n);
void __real_free(void *p);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t alignment, size_t n);
void __wrap_free(void *p);

static int fails(void) { return countdown >= 0 && countdown-- == 0; }

static void *counted(void *p) {
    if (p) __atomic_add_fetch(&live, 1, __ATOMIC_RELAXED);
    return p;
}

void *__wrap_malloc(size_t n) { return fails() ? NULL : counted(__real_malloc(n)); }
void *__wrap_calloc(size_t n, size_t size) { return fails() ? NULL : counted(__real_calloc(n, size)); }
void *__wrap_aligned_alloc(size_t alignment, size_t n) {
    return fails() ? NULL : counted(__real_aligned_alloc(alignment, n));
}

void *__wrap_realloc(void *p, size_t n) {
    if (fails()) return NULL;
    return p ? __real_realloc(p, n) : counted(__real_malloc(n));
}

void __wrap_free(void *p) {
    if (p) __atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
    __real_free(p);
}

typedef struct objects {
    spl_runtime *rt;
    spl_mesh *mesh;
    spl_block *block;
    spl_tensor *x, *y, *other;
    spl_saved saved;
} objects;

static void count_lines(void *ctx, const spl_explain_line *l) {
    (void)l;
    ++*(int *)ctx;
}

/* All of it; whatever was made is in *o, also on failure. */
static spl_status everything(objects *o, const spl_block_config *config) {
    spl_mesh_spec spec;
    spl_layout io, other;
    spl_runtime_config rc = {.threads = 1};
    SPL_TRY(spl_runtime_open(&rc, &o->rt));
    SPL_TRY(spl_mesh_parse("dp=1:data, tp=*:sequence", 1, &spec));
    SPL_TRY(spl_mesh_create(o->rt, &spec, &o->mesh));
    SPL_TRY(spl_block_create(o->rt, config, &o->block));
    SPL_TRY(spl_block_schedule(o->block, o->mesh, NULL));
    SPL_TRY(spl_block_io_layout(o->block, 2, 9, &io));
    SPL_TRY(spl_tensor_create(o->rt, o->mesh, &io, config->dtype, SPL_MEM_ACTIVATIONS, &o->x));
    SPL_TRY(spl_tensor_random(o->x, SPL_RANDOM_NORMAL, 3, 0, 0, 1));
    SPL_TRY(spl_layout_parse("tp=shard(3)", &spec, 3, io.shape, &other));
    SPL_TRY(spl_redistribute(o->x, &other, &o->other));
    SPL_TRY(spl_block_forward(o->block, o->x, 0, &o->y, &o->saved));
    int lines = 0;
    return spl_block_explain(o->block, 2, 9, 0, count_lines, &lines);
}

static int clean_up(objects *o) {
    int leaked = 0;
    for (int i = 0; i < o->saved.count; i++) spl_tensor_release(o->saved.tensor[i]);
    spl_tensor_release(o->other);
    spl_tensor_release(o->y);
    spl_tensor_release(o->x);
    spl_block_release(o->block);
    spl_mesh_release(o->mesh);
    if (o->rt && spl_runtime_close(o->rt, &leaked).code != SPL_OK) leaked = -1;
    memset(o, 0, sizeof *o);
    return leaked;
}

static void every_allocation(const char *name, const spl_block_config *config) {
    objects o = {0};
    long n = 0, wrong_code = 0, leaks = 0;
    spl_status s = everything(&o, config); /* libraries set themselves up */
    if (!ok(s.code == SPL_OK, "%s: works when memory is there %s", name, s.code ? s.message : "")) return;
    clean_up(&o);
    long before = live;
    for (;; n++) {
        countdown = n;
        s = everything(&o, config);
        int reached = countdown < 0;
        countdown = -1;
        leaks += clean_up(&o) != 0;
        if (live != before) {
            if (!leaks++)
                printf("# the %ld-th allocation leaves %ld blocks behind (%s)\n", n + 1, live - before, s.message);
            before = live;
        }
        if (!reached) break;
        if (s.code != SPL_ENOMEM && !wrong_code++)
            printf("# the %ld-th allocation gives %s: %s\n", n + 1, spl_code_name(s.code), s.code ? s.message : "");
    }
    ok(n > 100 && s.code == SPL_OK, "%s: all %ld allocations were made to fail", name, n);
    ok(wrong_code == 0, "%s: each failure is an error that says memory (%ld are not)", name, wrong_code);
    ok(leaks == 0, "%s: nothing is left behind (%ld times)", name, leaks);
}

/* What is kept is found again, never more than the peak, and goes back when memory is short. */
static void test_cache(void) {
    spl_runtime *rt = NULL;
    spl_runtime_config rc = {.threads = 1};
    void *a, *b, *c;
    if (!ok(spl_runtime_open(&rc, &rt).code == SPL_OK, "a runtime opens")) return;
    ok(spli_alloc(rt, SPL_MEM_ACTIVATIONS, 1 << 20, &a).code == SPL_OK, "1 MiB");
    spli_free(rt, SPL_MEM_ACTIVATIONS, a, 1 << 20);
    int keeps = spli_cache_held(rt) > 0;
    if (keeps) {
        ok(spli_cache_held(rt) == 1 << 20, "is kept");
        ok(spli_alloc(rt, SPL_MEM_BUFFERS, (1 << 20) - 1000, &b).code == SPL_OK && b == a,
           "and found again for about its size");
        spli_free(rt, SPL_MEM_BUFFERS, b, (1 << 20) - 1000);
        ok(spli_alloc(rt, SPL_MEM_BUFFERS, 1 << 19, &b).code == SPL_OK && b != a, "but not for half of it");
        ok(spli_cache_held(rt) == 1 << 20, "while it stays");
        spli_free(rt, SPL_MEM_BUFFERS, b, 1 << 19);
        ok(spli_cache_held(rt) == (1 << 20) + (1 << 19), "both sizes are kept");
        ok(spli_alloc(rt, SPL_MEM_BUFFERS, 3 << 18, &c).code == SPL_OK, "768 KiB");
        spli_free(rt, SPL_MEM_BUFFERS, c, 3 << 18);
        ok(spli_cache_held(rt) == (3 << 18) + (1 << 19),
           "kept and used are at most twice what was used at the peak; what was kept longest goes first");
        countdown = 0; /* the system has nothing: the request is met from what went back */
        spl_status s = spli_alloc(rt, SPL_MEM_BUFFERS, 3 << 20, &c);
        countdown = -1;
        ok(s.code == SPL_OK && spli_cache_held(rt) == 0, "when memory is short, what is kept goes back first");
        spli_free(rt, SPL_MEM_BUFFERS, c, 3 << 20);
    }
    long taken = 0;
    for (int i = 0; i <= SPL_MEM_WORKSPACE; i++) taken += rt->counters.bytes_now[i];
    ok(taken == 0 && rt->counters.bytes_peak[SPL_MEM_ACTIVATIONS] == 1 << 20, "the accounts hold what was asked for");
    spl_runtime_close(rt, NULL);
}

int main(void) {
    spl_block_config gpt = {.hidden = 12,
                            .heads = 3,
                            .qkv_bias = 1,
                            .out_bias = 1,
                            .mlp_bias = 1,
                            .act = SPL_ACT_GELU_TANH,
                            .causal = 1,
                            .dropout_attention = 0.1,
                            .dropout_hidden = 0.1,
                            .seed = 1,
                            .dtype = SPL_F32};
    spl_block_config llama = {.hidden = 12,
                              .heads = 6,
                              .kv_heads = 2,
                              .ffn = 7,
                              .norm = SPL_NORM_RMS,
                              .separate_qkv = 1,
                              .act = SPL_ACT_SILU,
                              .gated = 1,
                              .rope_theta = 10000,
                              .causal = 1,
                              .seed = 1,
                              .dtype = SPL_F64};
    test_cache();
    every_allocation("GPT block", &gpt);
    every_allocation("Llama block", &llama);
    gpt.dtype = SPL_BF16, llama.dtype = SPL_F16;
    every_allocation("GPT block in bf16", &gpt);
    every_allocation("Llama block in f16", &llama);
    return tap_done();
}
