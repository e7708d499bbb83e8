/* cpu_select.c: which of the instruction levels that this program was built with runs here: the highest that the
 * processor has, or a lower one where SPL_CPU_LEVEL asks for it (to compare, or to look for a fault of one level). */
#include "cpu.h"
#include <stdlib.h>

typedef struct level {
    const char *name;
    const spl_backend_ops *ops;
} level;

/* In rising order. What a level means to the compiler (x86-64-v3, x86-64-v4) is what is asked of the processor. */
static const level levels[] = {
    {"baseline", &splk_cpu_backend},
#ifdef SPLK_LEVELS_X86
    {"avx2", &splk_cpu_backend_avx2},
    {"avx512", &splk_cpu_backend_avx512},
#endif
};

enum { NLEVELS = sizeof levels / sizeof levels[0] };

static int highest(void) {
#ifdef SPLK_LEVELS_X86
    __builtin_cpu_init();
    int v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
             __builtin_cpu_supports("bmi2");
    int v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
    return v4 ? 2 : v3;
#else
    return 0;
#endif
}

/* The level asked for, -1 when it is none of ours; the highest when none is asked for. */
static int wanted(const char *name) {
    if (!name || !*name) return highest();
    for (int i = 0; i < NLEVELS; i++)
        if (strcmp(levels[i].name, name) == 0) return i;
    return -1;
}

/* A choice that cannot be met is refused when the table is opened; until then there must be a table. */
const spl_backend_ops *splk_cpu_select(void) {
    int w = wanted(getenv("SPL_CPU_LEVEL")), top = highest();
    return levels[w < 0 ? 0 : w > top ? top : w].ops;
}

spl_status splk_cpu_select_check(void) {
    const char *name = getenv("SPL_CPU_LEVEL");
    int w = wanted(name), top = highest();
    if (w >= 0 && w <= top) return spli_ok();
    char allowed[64] = "";
    for (int i = 0; i <= top; i++) {
        if (i > 0) strcat(allowed, i < top ? ", " : " or ");
        strcat(allowed, levels[i].name);
    }
    return spli_error(SPL_EUSAGE, "SPL_CPU_LEVEL is '%s'; this program on this processor has %s: give one, or unset it",
                      name, allowed);
}
