/* backend.c: the list of backends this program was built with. */
#include "backend.h"
#include <string.h>

static const spl_backend_ops *const backends[] = {&splk_cpu_backend, &splk_null_backend, &splk_ref_backend};

enum { NBACKENDS = sizeof backends / sizeof backends[0] };

const spl_backend_ops *spli_backend_find(const char *name) {
    for (int i = 0; i < NBACKENDS; i++)
        if (strcmp(backends[i]->name, name) == 0) return backends[i]->select ? backends[i]->select() : backends[i];
    return NULL;
}

const char *spli_backend_name(int i) { return i >= 0 && i < NBACKENDS ? backends[i]->name : NULL; }
