/* comm_nccl.h: opening the comm that moves device memory with NCCL. */
#ifndef SPLK_COMM_NCCL_H
#define SPLK_COMM_NCCL_H
#include "cuda.h"

#pragma GCC visibility push(hidden)
/* [local] As comm_open of spl_plugin. */
spl_status splk_comm_nccl_open(spl_comm *under, spl_comm **out);
#pragma GCC visibility pop
#endif
