/* sanitize.c: what `make asan` asks of the address sanitizer. Open MPI leaves memory behind in plugins that it has
 * unloaded, so that no suppression can name it: leaks are looked for on one rank without MPI. Nothing in other
 * builds. */
#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__)
/* libedit keeps two names of its own */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
    return "leak:wcsdup\n";
}

int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void) {
    return getenv("OMPI_COMM_WORLD_RANK") != NULL;
}
#endif

typedef int lspl_not_empty; /* C wants something in every file */
