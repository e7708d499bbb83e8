/* status.c: building errors, their names and exit codes. */
#include "status.h"
#include <stdarg.h>
#include <stdio.h>

spl_status spli_error_at(const char *file, int line, spl_code code, long native, const char *format, ...) {
    spl_status s = {.code = code, .line = line, .file = file, .rank = -1, .native = native};
    va_list args;
    va_start(args, format);
    vsnprintf(s.message, sizeof s.message, format, args);
    va_end(args);
    return s;
}

static const struct {
    const char *name;
    int exit_code;
} codes[] = {
    [SPL_OK] = {"ok", 0},
    [SPL_EARG] = {"argument", 1},
    [SPL_EUSAGE] = {"usage", 2},
    [SPL_ENOMEM] = {"memory", 1},
    [SPL_EIO] = {"io", 1},
    [SPL_EFORMAT] = {"format", 1},
    [SPL_ERELEASED] = {"released", 1},
    [SPL_ENUMERIC] = {"numeric", 1},
    [SPL_EENV] = {"environment", 3},
    [SPL_EDISAGREE] = {"disagree", 4},
    [SPL_ESTALL] = {"stall", 4},
    [SPL_EINTERRUPT] = {"interrupt", 1},
    [SPL_EUNSUPPORTED] = {"unsupported", 1},
    [SPL_EINTERNAL] = {"internal", 1},
};

const char *spl_code_name(spl_code code) {
    return (unsigned)code < sizeof codes / sizeof *codes ? codes[code].name : "unknown";
}

int spl_exit_code(spl_code code) {
    return (unsigned)code < sizeof codes / sizeof *codes ? codes[code].exit_code : 1;
}
