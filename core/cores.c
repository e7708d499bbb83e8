/* cores.c: a rank's share of the cores. Launchers bind ranks to cores, to sockets, or not at all; so each rank says
 * which cores its affinity mask allows, and cores that several ranks may use are shared out between them. */
#include "cores.h"
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static uint64_t mix(uint64_t h, const char *bytes, size_t n) { /* FNV-1a */
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)bytes[i]) * UINT64_C(1099511628211);
    return h;
}

/* Containers of one machine may have any host name, and machines may share one: both count, and the kernel's boot. */
static uint64_t host_mark(void) {
    char text[256] = "";
    uint64_t h = UINT64_C(14695981039346656037);
    if (gethostname(text, sizeof text - 1) == 0) h = mix(h, text, strlen(text));
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (f) {
        h = mix(h, text, fread(text, 1, sizeof text, f));
        fclose(f);
    }
    return h;
}

/* cpu.max of this process's control group (version 2): "quota period" in microseconds, or "max period". */
static int64_t quota_here(void) {
    char line[512], path[640];
    long long quota = 0, period = 0;
    FILE *f = fopen("/proc/self/cgroup", "re");
    int found = 0;
    while (f && !found && fgets(line, sizeof line, f)) found = strncmp(line, "0::", 3) == 0;
    if (f) fclose(f);
    if (!found) return 0;
    line[strcspn(line, "\n")] = '\0';
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", line + 3);
    f = fopen(path, "re");
    if (!f) return 0;
    int n = fscanf(f, "%lld %lld", &quota, &period);
    fclose(f);
    return n == 2 && quota > 0 && period > 0 ? (quota + period - 1) / period : 0;
}

void spli_cores_here(spli_cores *out) {
    cpu_set_t set;
    memset(out, 0, sizeof *out);
    out->host = host_mark();
    out->quota = quota_here();
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        for (int c = 0; c < 8 * (int)sizeof out->mask && c < CPU_SETSIZE; c++)
            if (CPU_ISSET(c, &set)) out->mask[c / 8] |= (unsigned char)(1 << c % 8);
        return;
    }
    long n = sysconf(_SC_NPROCESSORS_ONLN); /* more cores than the mask holds */
    for (int c = 0; c < n && c < 8 * (int)sizeof out->mask; c++) out->mask[c / 8] |= (unsigned char)(1 << c % 8);
}

static int ones(const unsigned char *mask, const unsigned char *other) {
    int n = 0;
    for (size_t i = 0; i < sizeof((spli_cores *)0)->mask; i++) n += __builtin_popcount(mask[i] & other[i]);
    return n;
}

int spli_cores_threads(const spli_cores *all, int size, int rank, int *local) {
    const spli_cores *mine = &all[rank];
    int64_t cores = ones(mine->mask, mine->mask), sharing = 0;
    *local = 0;
    for (int r = 0; r < size; r++) {
        if (all[r].host != mine->host) continue;
        ++*local;
        sharing += ones(mine->mask, all[r].mask) > 0;
    }
    int64_t threads = sharing > 0 ? cores / sharing : cores;
    if (mine->quota > 0 && threads > mine->quota / *local) threads = mine->quota / *local;
    return threads > 1 ? (int)threads : 1;
}

void spli_cores_hosts(const spli_cores *all, int size, int *host_of) {
    int n = 0;
    for (int r = 0; r < size; r++) {
        int before = r > 0 && all[r].host == all[r - 1].host ? r - 1 : 0; /* most often as the rank before */
        while (before < r && all[before].host != all[r].host) before++;
        host_of[r] = before < r ? host_of[before] : n++;
    }
}
