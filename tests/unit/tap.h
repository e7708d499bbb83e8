/* tap.h: the Test Anything Protocol for unit programs: ok(condition, "name %d", ...), then `return tap_done();` in main. */
#ifndef TAP_H
#define TAP_H
#include <stdarg.h>
#include <stdio.h>

static int tap_count, tap_failed;

__attribute__((format(printf, 2, 3))) static inline int ok(int condition, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("%s %d - ", condition ? "ok" : "not ok", ++tap_count);
    vprintf(format, args);
    printf("\n");
    va_end(args);
    if (!condition) tap_failed++;
    return condition;
}

static inline int tap_done(void) {
    printf("1..%d\n", tap_count);
    return tap_failed ? 1 : 0;
}
#endif
