/* comm_test.c: communication between processes over MPI. ranks: 1 2 3 5 8 */
#include "comm_cases.h"

int main(void) {
    spl_runtime *rt;
    spl_runtime_config config = {.backend = &tiny_backend, .threads = 1, .timeout = 30};
    spl_status s = spl_runtime_open(&config, &rt);
    if (s.code != SPL_OK) return printf("not ok 1 - opening: %s\n", s.message), 1;
    int rank = rt->rank, leaked, speak, worst, all;
    all_cases(rt);
    int code = rank == 0 ? tap_done() : 0;
    spl_runtime_finish(rt, code, 1, &speak, &worst, &all);
    if (!all) spl_runtime_abort(rt, 1);
    s = spl_runtime_close(rt, &leaked);
    return s.code != SPL_OK || leaked != 0 || worst != 0;
}
