/* nccl_api.h: the functions of NCCL that comm_nccl calls, found when they are needed: a machine without the library
 * still has the backend. SPLK_NCCL_LINKED: they are linked in; SPLK_NO_NCCL: built without NCCL's header. */
#ifndef SPLK_NCCL_API_H
#define SPLK_NCCL_API_H
#include "cuda.h"

#ifndef SPLK_NO_NCCL
#include <nccl.h>

#define SPLK_NCCL_FUNCTIONS(F)                                                                                       \
    F(GetVersion) F(GetUniqueId) F(CommInitRankConfig) F(CommDestroy) F(CommAbort) F(CommGetAsyncError)              \
    F(GetErrorString) F(GroupStart) F(GroupEnd) F(Send) F(Recv) F(Broadcast)

typedef struct splk_nccl {
#define SPLK_NCCL_FIELD(name) __typeof__(&nccl##name) name;
    SPLK_NCCL_FUNCTIONS(SPLK_NCCL_FIELD)
#undef SPLK_NCCL_FIELD
} splk_nccl;

#pragma GCC visibility push(hidden)
spl_status splk_nccl_load(splk_nccl *out); /* nccl_api.c */
#pragma GCC visibility pop
#endif
#endif
