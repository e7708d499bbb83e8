/* startup.c: OpenBLAS picks its kernels by processor model when it is loaded, and on a model newer than itself it
 * falls back to SSE3: a quarter of the speed. It reads its environment only then, so where that happened the program
 * starts itself anew with the kernels that the instruction set allows. A choice of the user's (OPENBLAS_CORETYPE) is
 * left alone. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "host.h"

#define CHOICE "OPENBLAS_CORETYPE"

#if defined(__x86_64__)
static const char *best_kernels(void) {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd")) return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
    return NULL;
}
#else
static const char *best_kernels(void) {
    return NULL;
}
#endif

void lspl_choose_blas_kernels(char **argv) {
    static const char *const fallbacks[] = {"Prescott", "Core2", "Penryn", "Nehalem", "Generic", "Unknown", NULL};
    void *found = dlsym(RTLD_DEFAULT, "openblas_get_corename");
    char *(*corename)(void);
    if (!found || getenv(CHOICE)) return;
    memcpy(&corename, &found, sizeof corename); /* C has no cast from object to function pointers */
    const char *name = corename(), *better = best_kernels();
    for (int i = 0; better && fallbacks[i]; i++) {
        if (strcmp(name, fallbacks[i])) continue;
        setenv(CHOICE, better, 1);
        execv("/proc/self/exe", argv);
        return; /* slower, but it runs */
    }
}
