/* runtime_test.c: one rank alone and a dry run: opening, memory, cores, counters. */
#include "comm_pairwise.h"
#include "cores.h"
#include "runtime.h"
#include "tap.h"
#include "tiny_backend.h"

static const spl_backend_ops backend = TINY_BACKEND;

static int has(const spl_status *s, spl_code code, const char *words) {
    int good = s->code == code && strstr(s->message, words) != NULL;
    if (!good) tap_note("%s: %s", spl_code_name(s->code), s->code ? s->message : "no error");
    return good;
}

static void test_memory(void) {
    spl_runtime_config config = {.backend = &backend, .threads = 1};
    spl_runtime *rt;
    spl_counters c;
    spl_status s = spl_runtime_open(&config, &rt);
    if (!ok(s.code == SPL_OK && rt->size == 1 && rt->rank == 0, "one rank opens without a launcher")) return;
    void *a = NULL, *b = NULL, *none = &s;
    ok(spli_alloc(rt, SPL_MEM_WEIGHTS, 1000, &a).code == SPL_OK && a, "memory");
    ok(spli_alloc(rt, SPL_MEM_WEIGHTS, 500, &b).code == SPL_OK && b, "more of it");
    spli_free(rt, SPL_MEM_WEIGHTS, a, 1000);
    spl_counters_get(rt, &c);
    ok(c.bytes_now[SPL_MEM_WEIGHTS] == 500 && c.bytes_peak[SPL_MEM_WEIGHTS] == 1500, "now and peak are counted");
    ok(c.bytes_peak[SPL_MEM_ACTIVATIONS] == 0, "by category");
    spl_counters_reset(rt);
    spl_counters_get(rt, &c);
    ok(c.bytes_peak[SPL_MEM_WEIGHTS] == 500, "peaks restart from what is held");
    ok(spli_alloc(rt, SPL_MEM_BUFFERS, 0, &none).code == SPL_OK && !none, "no bytes are no memory");
    spli_free(rt, SPL_MEM_BUFFERS, NULL, 0);

    int64_t room = spli_memory_free(), product;
    ok(room > 1 << 20, "this machine has memory left (%lld bytes)", (long long)room);
    s = spli_alloc(rt, SPL_MEM_ACTIVATIONS, (size_t)room + ((size_t)1 << 40), &none);
    ok(has(&s, SPL_ENOMEM, "free on this machine") && strstr(s.message, "activations"), "more than it has: refused");
    s = spli_alloc(rt, SPL_MEM_ACTIVATIONS, SIZE_MAX - 5, &none);
    ok(has(&s, SPL_ENOMEM, "more than any machine has"), "more than any has: refused");
    spl_counters_get(rt, &c);
    ok(c.bytes_now[SPL_MEM_ACTIVATIONS] == 0, "what is refused is not counted");
    s = spli_mul_size(INT64_MAX / 2, 3, &product);
    ok(has(&s, SPL_ENOMEM, "does not fit"), "a size that overflows is refused");
    ok(spli_mul_size(-1, 3, &product).code == SPL_EARG, "a negative size is refused");
    ok(spli_mul_size(1 << 20, 1 << 20, &product).code == SPL_OK && product == (int64_t)1 << 40,
       "others are multiplied");

    rt->fail_alloc = 2;
    ok(spli_alloc(rt, SPL_MEM_BUFFERS, 8, &a).code == SPL_OK, "asked to fail the second request, the first is good");
    s = spli_alloc(rt, SPL_MEM_BUFFERS, 8, &none);
    ok(s.code == SPL_ENOMEM && !none, "the second fails");
    ok(spli_alloc(rt, SPL_MEM_BUFFERS, 8, &none).code == SPL_OK && none, "the third is good");
    spli_free(rt, SPL_MEM_BUFFERS, a, 8);
    spli_free(rt, SPL_MEM_BUFFERS, none, 8);
    spli_free(rt, SPL_MEM_WEIGHTS, b, 500);

    rt->memory_share = 1 << 20; /* as if of many ranks on a host: each past its share asks for all alike */
    rt->local_ranks = 1 << 20;
    s = spli_alloc(rt, SPL_MEM_WEIGHTS, 64 << 20, &none);
    ok(has(&s, SPL_ENOMEM, "for each of its 1048576 ranks"), "past its share a rank asks for all of its host");
    rt->memory_share = (int64_t)1 << 40;
    ok(spli_alloc(rt, SPL_MEM_WEIGHTS, 64 << 20, &a).code == SPL_OK, "within its share it asks for itself");
    spli_free(rt, SPL_MEM_WEIGHTS, a, 64 << 20);

    int leaked = -1, speak, worst, all;
    rt->counters.live_tensors = 3;
    spl_runtime_finish(rt, 2, 1, &speak, &worst, &all);
    ok(speak && worst == 2 && all, "alone a rank speaks for itself");
    ok(spl_runtime_close(rt, &leaked).code == SPL_OK && leaked == 3, "closing counts what is still alive");
}

static void test_alone(void) {
    spl_runtime_config config = {.backend = &backend, .threads = 3, .check_collectives = 1};
    spl_runtime *rt;
    spl_comm *group;
    int me = 0, other = 1;
    if (!ok(spl_runtime_open(&config, &rt).code == SPL_OK && spl_threads(rt) == 3, "threads as asked for")) return;
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    int64_t four = 4;
    spl_coll coll = {.kind = SPL_COLL_ALL_REDUCE, .dtype = SPL_F32, .send = x, .recv = y, .send_counts = &four};
    ok(spli_comm_run(rt, rt->world, &coll).code == SPL_OK && memcmp(x, y, sizeof x) == 0,
       "a collective alone is a copy");
    ok(rt->counters.comm_calls[SPL_COLL_ALL_REDUCE] == 1 && rt->counters.comm_bytes[SPL_COLL_ALL_REDUCE] == 0,
       "of no bytes sent");
    ok(spli_comm_group(rt, &me, 1, "tp", 1, &group).code == SPL_OK && strcmp(group->axis, "tp") == 0, "a group of one");
    group->ops->close(group);
    ok(spli_comm_group(rt, &other, 1, "tp", 2, &group).code == SPL_EARG && !group,
       "a group of ranks that are not there");
    ok(spli_comm_group(rt, &me, 1, "tp", 0, &group).code == SPL_EARG, "a group with the world's id");
    double v = 7;
    char c = 'x', d = 0;
    ok(spl_barrier(rt).code == SPL_OK && spl_agree_doubles(rt, &v, 1, '+').code == SPL_OK && v == 7,
       "barrier and agreement alone");
    ok(spl_gather_bytes(rt, &c, 1, &d).code == SPL_OK && d == 'x', "gather alone");
    spl_runtime_close(rt, NULL);
    spl_runtime_config bad = {.backend = &backend, .timeout = -1};
    ok(spl_runtime_open(&bad, &rt).code == SPL_EUSAGE && !rt, "a negative time limit is refused");
    bad = (spl_runtime_config){.backend = &backend, .threads = -2};
    ok(spl_runtime_open(&bad, &rt).code == SPL_EUSAGE, "a negative thread count is refused");
    bad = (spl_runtime_config){.backend = &backend, .dry_rank = 1, .dry_size = 4};
    spl_status s = spl_runtime_open(&bad, &rt);
    ok(has(&s, SPL_EARG, "without memory"), "a dry run with memory is refused");
}

static void test_dry(void) {
    enum { P = 1000, ME = 7 };
    spl_runtime_config config = {.backend = &splk_null_backend, .dry_rank = ME, .dry_size = P, .check_collectives = 1};
    spl_runtime *rt;
    spl_comm *group;
    if (!ok(spl_runtime_open(&config, &rt).code == SPL_OK && rt->rank == ME && rt->size == P, "a dry rank of 1000"))
        return;
    int members[4] = {3, ME, 100, 999};
    ok(spli_comm_group(rt, members, 4, "tp", 1, &group).code == SPL_OK && group->rank == 1 && group->size == 4,
       "a dry group");
    void *x;
    int64_t n = 1002;
    spli_alloc(rt, SPL_MEM_ACTIVATIONS, 4008, &x);
    spl_coll coll = {.kind = SPL_COLL_ALL_REDUCE, .dtype = SPL_F32, .send = x, .recv = x, .send_counts = &n};
    ok(spli_comm_run(rt, group, &coll).code == SPL_OK, "a dry all-reduce");
    ok(rt->counters.comm_bytes[SPL_COLL_ALL_REDUCE] == 4 * (1002 - 251 + 3 * 251), "counts the bytes of a real one");
    double v = 2;
    ok(spl_barrier(rt).code == SPL_OK && spl_agree_doubles(rt, &v, 1, '>').code == SPL_OK && v == 2,
       "nobody to wait for");
    spli_free(rt, SPL_MEM_ACTIVATIONS, x, 4008);
    group->ops->close(group);
    spl_runtime_close(rt, NULL);
}

static int threads_of(const spli_cores *all, int size, int rank, int want_local) {
    int local, threads = spli_cores_threads(all, size, rank, &local);
    return local == want_local ? threads : -local;
}

static void test_cores(void) {
    spli_cores c[4];
    memset(c, 0, sizeof c);
    for (int r = 0; r < 4; r++) c[r].host = 1, c[r].mask[0] = 0xFF;
    ok(threads_of(c, 4, 0, 4) == 2, "4 ranks on 8 cores that they share: 2 threads each");
    ok(threads_of(c, 3, 0, 3) == 2, "3 ranks on 8 cores: 2 each, all alike");
    ok(threads_of(c, 1, 0, 1) == 8, "1 rank on 8 cores: 8");
    for (int r = 0; r < 4; r++) c[r].mask[0] = (unsigned char)(3 << 2 * r);
    ok(threads_of(c, 4, 3, 4) == 2, "4 ranks bound to 2 cores each: 2");
    c[0].mask[0] = c[1].mask[0] = 0x0F;
    c[2].mask[0] = c[3].mask[0] = 0xF0;
    ok(threads_of(c, 4, 2, 4) == 2, "2 ranks to a socket of 4 cores: 2");
    for (int r = 0; r < 4; r++) c[r].mask[0] = 1;
    ok(threads_of(c, 4, 1, 4) == 1, "more ranks than cores: 1");
    c[2].host = c[3].host = 2;
    for (int r = 0; r < 4; r++) c[r].mask[0] = 0x0F;
    ok(threads_of(c, 4, 3, 2) == 2, "ranks of other hosts do not share");
    for (int r = 0; r < 4; r++) c[r].host = 1, c[r].mask[0] = c[r].mask[1] = 0xFF, c[r].quota = 6;
    ok(threads_of(c, 4, 0, 4) == 1, "16 cores of which a control group allows 6, 4 ranks: 1");
    spli_cores_here(&c[0]);
    int local;
    ok(spli_cores_threads(c, 1, 0, &local) >= 1 && local == 1 && c[0].host != 0, "here at least 1");
}

int main(void) {
    test_memory();
    test_alone();
    test_dry();
    test_cores();
    return tap_done();
}
