/* startup.c: two libraries read their environment only when they are loaded, and choose badly without it; so the
 * program sets it and starts itself anew, once. What the user has set is left alone.
 *
 * OpenBLAS picks its kernels by processor model, and on a model newer than itself it falls back to SSE3, a quarter of
 * the speed: OPENBLAS_CORETYPE names the kernels that the instruction set allows. OpenMP's threads spin for
 * milliseconds when they have nothing to do, which on a machine with other work, or with more ranks than cores, takes
 * the cores from those who have: GOMP_SPINCOUNT lets them spin for about as long as a short serial part between two
 * parallel ones, then sleep. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>
#include "host.h"

#define CHOICE "OPENBLAS_CORETYPE"
#define OWN_CHOICE "SPL_CORETYPE" /* what was set here, so that ranks that inherit it know whose choice it is */
#define SPIN "GOMP_SPINCOUNT"
#define SPIN_TURNS "3000" /* of about 40 ns */

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

/* 1 when it set something. */
static int choose_kernels(void) {
    static const char *const fallbacks[] = {"Prescott", "Core2", "Penryn", "Nehalem", "Generic", "Unknown", NULL};
    void *found = dlsym(RTLD_DEFAULT, "openblas_get_corename");
    char *(*corename)(void);
    if (!found || getenv(CHOICE)) return 0;
    memcpy(&corename, &found, sizeof corename); /* C has no cast from object to function pointers */
    const char *name = corename(), *better = best_kernels();
    for (int i = 0; better && fallbacks[i]; i++) {
        if (strcmp(name, fallbacks[i])) continue;
        setenv(CHOICE, better, 1);
        setenv(OWN_CHOICE, better, 1);
        return 1;
    }
    return 0;
}

/* Kernels of one level are about as fast as each other on a processor that has it. */
static int level_of(const char *kernels) {
    static const char *const wide[] = {"SkylakeX", "Cooperlake", "SapphireRapids", "Zen4", NULL};
    static const char *const middle[] = {"Haswell", "Zen", "Excavator", NULL};
    for (int i = 0; wide[i]; i++)
        if (strcasecmp(kernels, wide[i]) == 0) return 2;
    for (int i = 0; middle[i]; i++)
        if (strcasecmp(kernels, middle[i]) == 0) return 1;
    return 0;
}

const char *lspl_forced_kernels(const char **better) {
    const char *given = getenv(CHOICE), *own = getenv(OWN_CHOICE), *best = best_kernels();
    *better = NULL;
    if (!given || (own && strcmp(own, given) == 0)) return NULL;
    if (best && level_of(best) > level_of(given)) *better = best;
    return given;
}

static int choose_waiting(void) {
    if (getenv(SPIN) || getenv("OMP_WAIT_POLICY")) return 0;
    setenv(SPIN, SPIN_TURNS, 1);
    return 1;
}

void lspl_hold_standard_files(void) {
    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        /* the lowest free number is this one; it is the wrong way round, so that writing and reading fail */
        int got = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        if (got >= 0 && got != fd) close(got);
    }
}

void lspl_prepare_libraries(char **argv) {
    int kernels = choose_kernels(), waiting = choose_waiting();
    if (kernels || waiting) execv("/proc/self/exe", argv); /* returns only when it fails: slower, but it runs */
}
