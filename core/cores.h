/* cores.h: which cores this rank may use, and how many threads that makes. */
#ifndef SPL_CORES_H
#define SPL_CORES_H
#include <stdint.h>

typedef struct spli_cores {  /* what ranks tell each other about where they run */
    uint64_t host;           /* equal on ranks of one host */
    int64_t quota;           /* cores that a control group allows, 0: no limit */
    int32_t pid, fd;         /* the process, and its file of the slot below (whereabouts.h); -1: none */
    uint64_t slot;           /* its address, for ranks of the same process */
    unsigned char mask[128]; /* a bit a core, as the kernel numbers them */
} spli_cores;

void spli_cores_here(spli_cores *out);
/* Threads for rank `rank` of `size`: its share of the cores of its mask, which it shares with the ranks of its host
 * whose masks meet it; at least 1. *local: how many ranks its host has. */
int spli_cores_threads(const spli_cores *all, int size, int rank, int *local);
/* Numbers the hosts of ranks from 0, as they first appear, into host_of[size]. */
void spli_cores_hosts(const spli_cores *all, int size, int *host_of);

#endif
