/* comm_virtual_test.c: the same communication between virtual ranks of one process. */
#include "comm_cases.h"

typedef struct run {
    spl_sim *sim;
    int bad;
} run;

static void rank_main(void *ctx, int rank) {
    run *r = ctx;
    spl_runtime *rt;
    spl_runtime_config config = {
        .backend = &tiny_backend, .threads = 1, .timeout = 30, .sim = r->sim, .sim_rank = rank};
    spl_status s = spl_runtime_open(&config, &rt);
    if (s.code != SPL_OK) {
        r->bad = 1;
        return;
    }
    int leaked;
    all_cases(rt);
    s = spl_runtime_close(rt, &leaked);
    if (s.code != SPL_OK || leaked) r->bad = 1;
}

int main(void) {
    static const int sizes[] = {1, 2, 4, 7};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        run r = {0};
        int code = 0;
        spl_status s = spl_sim_create(sizes[i], &r.sim);
        if (s.code == SPL_OK) s = spl_sim_run(r.sim, 1 << 20, rank_main, &r, &code);
        spl_sim_release(r.sim);
        ok(s.code == SPL_OK && code == 0 && !r.bad, "%d virtual ranks opened, ran and closed", sizes[i]);
    }
    return tap_done();
}
