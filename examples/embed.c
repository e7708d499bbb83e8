/* embed.c: libspl without Lua: opens a runtime, multiplies two matrices split over the ranks, and closes it again.
 * Built by `make examples` into build/examples/embed; run it alone or under mpirun. After `make install`:
 *     gcc embed.c $(pkg-config --cflags --libs spl) -o embed */
#include <stdio.h>
#include "spl.h"

/* y = x wT, with the rows of w (the columns of y) split over all ranks; the norm of y is printed by rank 0. */
static spl_status multiply(spl_runtime *rt) {
    spl_status status = spli_ok();
    spl_mesh_spec spec;
    spl_mesh *mesh = NULL;
    spl_tensor *x = NULL, *w = NULL, *y = NULL, *whole = NULL, *local = NULL;
    spl_layout layout;
    spl_stats stats;
    SPL_GO(spl_mesh_parse("tp=*", spl_size(rt), &spec), done);
    SPL_GO(spl_mesh_create(rt, &spec, &mesh), done);
    spl_layout_replicated(&layout, &spec, 2, (int64_t[]){30, 20});
    SPL_GO(spl_tensor_create(rt, mesh, &layout, SPL_F64, SPL_MEM_ACTIVATIONS, &x), done);
    SPL_GO(spl_layout_parse("tp=shard(1)", &spec, 2, (int64_t[]){10, 20}, &layout), done);
    SPL_GO(spl_tensor_create(rt, mesh, &layout, SPL_F64, SPL_MEM_WEIGHTS, &w), done);
    SPL_GO(spl_tensor_random(x, SPL_RANDOM_NORMAL, 1, 0, 0, 1), done);
    SPL_GO(spl_tensor_random(w, SPL_RANDOM_NORMAL, 2, 0, 0, 1), done);
    SPL_GO(spl_linear(x, w, NULL, SPL_ACT_NONE, &y), done);
    spl_layout_replicated(&layout, &spec, 2, spl_tensor_shape(y));
    SPL_GO(spl_redistribute(y, &layout, &whole), done);
    SPL_GO(spl_tensor_local(whole, &local), done);
    SPL_GO(spl_tensor_stats(local, &stats), done);
    if (spl_rank(rt) == 0) printf("sum of squares %.6f\n", stats.sum_squares);
done:
    spl_tensor_release(local);
    spl_tensor_release(whole);
    spl_tensor_release(y);
    spl_tensor_release(w);
    spl_tensor_release(x);
    spl_mesh_release(mesh);
    return status;
}

int main(void) {
    spl_runtime *rt;
    spl_status status = spl_runtime_open(&(spl_runtime_config){.timeout = 30}, &rt);
    if (status.code != SPL_OK) {
        fprintf(stderr, "embed: %s\n", status.message);
        return spl_exit_code(status.code);
    }
    status = multiply(rt);
    int speak, worst, all, leaked = 0;
    spl_runtime_finish(rt, spl_exit_code(status.code), 1.0, &speak, &worst, &all);
    if (speak && status.code != SPL_OK) fprintf(stderr, "embed: rank %d: %s\n", spl_rank(rt), status.message);
    if (!all) spl_runtime_abort(rt, worst);
    status = spl_runtime_close(rt, &leaked);
    return worst ? worst : status.code != SPL_OK || leaked;
}
