/* describe.c: what a runtime runs on, in words, for headers of benchmarks and `spl info`. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include "runtime.h"

const char *spl_backend_name(const spl_runtime *rt) {
    return rt->backend->name;
}

const char *spl_backend_describe(const spl_runtime *rt) {
    if (rt->transport[0]) return rt->transport;
    return rt->backend->describe(rt->backend_ctx);
}

const char *spl_backend_kernels(const spl_runtime *rt) {
    return rt->backend->kernels ? rt->backend->kernels(rt->backend_ctx) : "";
}

void spl_describe_mpi(char *out, size_t n) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    if (MPI_Get_library_version(version, &length) != MPI_SUCCESS) version[0] = 0; /* legal before MPI_Init */
    snprintf(out, n, "%.*s", (int)strcspn(version, ",\n"), version);
}
