/* nccl_api.c: finds the functions of NCCL in its library, where it is installed. */
#include "nccl_api.h"
#include <dlfcn.h>

#ifndef SPLK_NO_NCCL
#ifdef SPLK_NCCL_LINKED
spl_status splk_nccl_load(splk_nccl *out) {
#define SET(name) out->name = &nccl##name;
    SPLK_NCCL_FUNCTIONS(SET)
    return spli_ok();
}
#else
spl_status splk_nccl_load(splk_nccl *out) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL); /* stays open: communicators have threads */
    if (!library) return spli_error(SPL_EENV, "NCCL is not here: %.200s", dlerror());
#define FIND(name)                                                                                                   \
    *(void **)&out->name = dlsym(library, "nccl" #name);                                                             \
    if (!out->name) return spli_error(SPL_EENV, "this NCCL has no nccl" #name "; 2.14 or newer is needed");
    SPLK_NCCL_FUNCTIONS(FIND)
    return spli_ok();
}
#endif
#endif
