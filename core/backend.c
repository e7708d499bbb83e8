/* backend.c: the backends this program was built with, and those that plugins bring. */
#include "backend.h"
#include "comm.h"
#include <string.h>

static const spl_backend_ops *const backends[] = {
#ifndef SPLI_NO_CPU /* without a BLAS there is none (tests/gpu/run.sh) */
    &splk_cpu_backend,
#endif
    &splk_null_backend, &splk_ref_backend};

enum { NBACKENDS = sizeof backends / sizeof backends[0] };

spl_status spli_backend_open(const char *name, const spl_backend_ops **out) {
    const spl_plugin *plugin;
    for (int i = 0; i < NBACKENDS; i++)
        if (strcmp(backends[i]->name, name) == 0) {
            *out = backends[i]->select ? backends[i]->select() : backends[i];
            return spli_ok();
        }
    *out = NULL;
    SPL_TRY(spli_plugin_open(name, &plugin));
    *out = plugin->backend;
    return spli_ok();
}

const spl_backend_ops *spli_backend_find(const char *name) {
    const spl_backend_ops *found;
    return spli_backend_open(name, &found).code == SPL_OK ? found : NULL;
}

const char *spli_backend_name(int i) { return i >= 0 && i < NBACKENDS ? backends[i]->name : NULL; }
