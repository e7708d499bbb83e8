/* tap.h: the Test Anything Protocol for unit programs:
 * ok(condition, "name %d", ...), then `return tap_done();` in main. */
#ifndef TAP_H
#define TAP_H
#include <stdarg.h>
#include <stdio.h>

static int tap_count, tap_failed;

/* Reports one check and returns whether it was good; the name is printf-formatted. */
__attribute__((format(printf, 2, 3))) static inline int ok(int good, const char *format, ...) {
    va_list args;
    tap_count++;
    if (!good) tap_failed++;
    printf("%sok %d - ", good ? "" : "not ", tap_count);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    return good;
}

/* A line of explanation under a failed check. */
__attribute__((format(printf, 1, 2))) static inline void tap_note(const char *format, ...) {
    va_list args;
    printf("#   ");
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
}

static inline int tap_done(void) {
    printf("1..%d\n", tap_count);
    if (tap_failed) printf("# %d of %d failed\n", tap_failed, tap_count);
    return tap_failed || tap_count == 0 ? 1 : 0;
}

#endif
