/* memory.c: all backend memory that core takes goes through here: sizes that overflow, memory that is not there,
 * accounting. */
#include "memory_cache.h"
#include "trace.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

spl_status spli_mul_size(int64_t a, int64_t b, int64_t *out) {
    if (a < 0 || b < 0)
        return spli_error(SPL_EARG, "a size of %" PRId64 " x %" PRId64 " was asked for; sizes are 0 or more", a, b);
    if (__builtin_mul_overflow(a, b, out))
        return spli_error(SPL_ENOMEM, "a size of %" PRId64 " x %" PRId64 " does not fit 63 bits; use smaller sizes", a,
                          b);
    return spli_ok();
}

/* ---------------------------------------------------------------- what the machine has left */

/* The number after `key` in a file of "key number" lines, or the file's first number when key is NULL; -1 when there is
 * none. */
static int64_t read_number(const char *path, const char *key) {
    char line[256];
    int64_t value = -1;
    FILE *f = fopen(path, "re");
    if (!f) return -1;
    while (value < 0 && fgets(line, sizeof line, f)) {
        const char *at = line;
        if (key) {
            size_t n = strlen(key);
            if (strncmp(line, key, n) != 0 || (line[n] != ' ' && line[n] != ':')) continue;
            at = line + n + 1;
        }
        if (sscanf(at, "%" SCNd64, &value) != 1) {
            value = -1;
            if (!key) break;
        }
    }
    fclose(f);
    return value;
}

/* What one control group leaves: its limit less what it uses, page cache that can be dropped not counted. */
static int64_t group_free(const char *dir, const char *limit_file, const char *use_file, const char *cache_key) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, limit_file);
    int64_t limit = read_number(path, NULL); /* "max" is no number */
    if (limit < 0 || limit > INT64_MAX / 2) return -1;
    snprintf(path, sizeof path, "%s/%s", dir, use_file);
    int64_t use = read_number(path, NULL);
    if (use < 0) return -1;
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    int64_t cache = read_number(path, cache_key);
    if (cache > 0) use -= cache;
    return limit > use ? limit - use : 0;
}

static int64_t least(int64_t a, int64_t b) { return a < 0 ? b : b < 0 || a < b ? a : b; }

/* The tightest limit of this process's control group and all that it lies in (version 2, then 1). */
static int64_t groups_free(void) {
    char line[512], dir[560];
    int64_t found = -1;
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        int v2 = strncmp(line, "0::", 3) == 0;
        const char *v1 = strstr(line, ":memory:");
        if (!v2 && !v1) continue;
        const char *root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        snprintf(dir, sizeof dir, "%s%s", root, v2 ? line + 3 : v1 + 8);
        for (;;) {
            found = least(
                found, v2 ? group_free(dir, "memory.max", "memory.current", "inactive_file")
                          : group_free(dir, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"));
            char *slash = strrchr(dir, '/');
            if (!slash || strlen(dir) <= strlen(root)) break;
            *slash = '\0';
        }
    }
    if (f) fclose(f);
    return found;
}

int64_t spli_memory_free(void) {
    int64_t kib = read_number("/proc/meminfo", "MemAvailable");
    return least(kib < 0 ? -1 : kib * 1024, groups_free());
}

/* What this process's own limits leave it, and the tightest one as the shell names it; -1: it has none. */
static int64_t limits_free(const char **name) {
    static const struct {
        int resource;
        const char *use, *name;
    } limits[] = {{RLIMIT_AS, "VmSize", "ulimit -v"}, {RLIMIT_DATA, "VmData", "ulimit -d"}};
    int64_t found = -1;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct rlimit limit;
        if (getrlimit(limits[i].resource, &limit) || limit.rlim_cur > INT64_MAX / 2) continue;
        int64_t use = read_number("/proc/self/status", limits[i].use) * 1024;
        int64_t left = use < 0 ? (int64_t)limit.rlim_cur : (int64_t)limit.rlim_cur - use;
        if (left < 0) left = 0;
        if (found >= 0 && left >= found) continue;
        found = left;
        *name = limits[i].name;
    }
    return found;
}

static int64_t resident(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f) return 0;
    if (fscanf(f, "%*s %ld", &pages) != 1) pages = 0;
    fclose(f);
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

/* ---------------------------------------------------------------- taking and giving back */

static const char *category_name(spl_memory_category c) {
    switch (c) {
    case SPL_MEM_WEIGHTS:
        return "weights";
    case SPL_MEM_ACTIVATIONS:
        return "activations";
    case SPL_MEM_BUFFERS:
        return "communication buffers";
    case SPL_MEM_WORKSPACE:
        return "workspace";
    }
    return "memory";
}

static spl_status refuse(spl_memory_category c, size_t bytes, int64_t room, const char *whose) {
    const double GiB = 1024.0 * 1024.0 * 1024.0;
    char left[80] = "an unknown number of bytes";
    if (room >= 0) snprintf(left, sizeof left, "%" PRId64 " bytes (%.2f GiB)", room, (double)room / GiB);
    return spli_error(SPL_ENOMEM,
                      "%zu bytes (%.2f GiB) are wanted for %s, but only %s are free on this machine%s; use smaller "
                      "sizes, more machines, or a smaller dtype",
                      bytes, (double)bytes / GiB, category_name(c), left, whose);
}

static spl_status refuse_limit(spl_memory_category c, size_t bytes, int64_t room, const char *limit) {
    const double GiB = 1024.0 * 1024.0 * 1024.0;
    return spli_error(SPL_ENOMEM,
                      "%zu bytes (%.2f GiB) are wanted for %s, but this process's limit (%s) leaves only %" PRId64
                      " bytes (%.2f GiB); raise it, or use smaller sizes, more machines, or a smaller dtype",
                      bytes, (double)bytes / GiB, category_name(c), limit, room, (double)room / GiB);
}

/* Why the system gave none. A limit may leave more than was asked for, but in pieces, or less a page. */
static spl_status refused_by_system(spl_memory_category c, size_t bytes) {
    const char *limit = NULL;
    int64_t room = spli_memory_free(), limited = limits_free(&limit);
    if (limited >= 0 && (room < 0 || (int64_t)bytes <= room))
        return (int64_t)bytes > limited ? refuse_limit(c, bytes, limited, limit)
                                        : spli_error(SPL_ENOMEM,
                                                     "%zu bytes for %s were refused by the system: this process's "
                                                     "limit (%s) leaves %" PRId64 ", but not in one piece; raise it, "
                                                     "or use smaller sizes",
                                                     bytes, category_name(c), limit, limited);
    if (room < 0 || (int64_t)bytes > room) return refuse(c, bytes, room, "");
    return spli_error(SPL_ENOMEM,
                      "%zu bytes for %s were refused by the system, though %" PRId64 " are free on this machine; see "
                      "its overcommit settings, or use smaller sizes",
                      bytes, category_name(c), room);
}

/* Memory is promised freely by the kernel and the lack of it kills a process later, so large requests are held against
 * what is there: less what this rank has taken and not touched yet; and, past this rank's share of the machine, with
 * the other ranks of this host taking as much, since ranks run the same program. */
static spl_status check_room(spl_runtime *rt, spl_memory_category c, size_t bytes) {
    enum { SMALL = 16 << 20 };
    if (bytes < SMALL || !rt->backend->has_memory || rt->backend->device_memory) return spli_ok();
    const char *limit = NULL;
    int64_t limited = limits_free(&limit), room = spli_memory_free(), taken = 0;
    if (limited >= 0 && (int64_t)bytes > limited && spli_cache_held(rt) > 0) {
        spli_cache_flush(rt);
        limited = limits_free(&limit);
    }
    if (limited >= 0 && (int64_t)bytes > limited && (room < 0 || (int64_t)bytes <= room))
        return refuse_limit(c, bytes, limited, limit);
    if (room < 0) return spli_ok();
    for (int i = 0; i <= SPL_MEM_WORKSPACE; i++) taken += rt->counters.bytes_now[i];
    int ranks = rt->local_ranks, shared = ranks > 1 && rt->memory_share > 0;
    int64_t kept = spli_cache_held(rt), untouched = taken + kept - resident();
    if (untouched < 0) untouched = 0;
    if (kept > 0 && ((int64_t)bytes + untouched > room ||
                     (shared && taken + kept + (int64_t)bytes > rt->memory_share))) { /* nothing is kept at a cost */
        spli_cache_flush(rt);
        room = spli_memory_free();
        untouched = taken - resident();
        if (untouched < 0) untouched = 0;
    }
    if (bytes > (size_t)room || (int64_t)bytes + untouched > room)
        return refuse(c, bytes, room > untouched ? room - untouched : 0, "");
    if (shared && taken + (int64_t)bytes > rt->memory_share &&
        ((int64_t)bytes + untouched) > room / ranks) {
        char whose[64];
        snprintf(whose, sizeof whose, " for each of its %d ranks", ranks);
        return refuse(c, bytes, (room - untouched) / ranks, whose);
    }
    return spli_ok();
}

spl_status spli_memory_room(spl_runtime *rt, spl_memory_category c, double bytes) {
    const double GiB = 1024.0 * 1024.0 * 1024.0;
    if (!rt->backend->has_memory || !(bytes >= (double)(INT64_MAX / 2)))
        return check_room(rt, c, bytes < (double)(INT64_MAX / 2) ? (size_t)bytes : 0);
    return spli_error(SPL_ENOMEM,
                      "%.3g bytes (%.3g GiB) are wanted for %s, but only %.2f GiB are free on this machine; use "
                      "smaller sizes, more machines, or a smaller dtype",
                      bytes, bytes / GiB, category_name(c), (double)spli_memory_free() / GiB);
}

spl_status spli_alloc(spl_runtime *rt, spl_memory_category c, size_t bytes, void **out) {
    *out = NULL;
    if (bytes == 0) return spli_ok();
    if (bytes > (size_t)INT64_MAX / 2 || (int64_t)bytes > INT64_MAX - rt->counters.bytes_now[c])
        return spli_error(SPL_ENOMEM, "%zu bytes are wanted for %s: more than any machine has; use smaller sizes",
                          bytes, category_name(c));
    if (rt->fail_alloc > 0 && --rt->fail_alloc == 0)
        return spli_error(SPL_ENOMEM, "%zu bytes for %s were refused to test what follows", bytes, category_name(c));
    *out = spli_cache_find(rt, bytes);
    if (!*out) {
        SPL_TRY(check_room(rt, c, bytes));
        spl_status status = spli_cache_new(rt, bytes, out);
        int host = rt->backend->has_memory && !rt->backend->device_memory; /* a device says itself what it has */
        if (status.code == SPL_ENOMEM && host) return refused_by_system(c, bytes);
        SPL_TRY(status);
    }
    rt->counters.bytes_now[c] += (int64_t)bytes;
    if (rt->counters.bytes_now[c] > rt->counters.bytes_peak[c]) rt->counters.bytes_peak[c] = rt->counters.bytes_now[c];
    if (rt->trace) spli_trace_memory(rt);
    return spli_ok();
}

void spli_free(spl_runtime *rt, spl_memory_category c, void *p, size_t bytes) {
    if (!p) return;
    spli_cache_give(rt, p, bytes);
    rt->counters.bytes_now[c] -= (int64_t)bytes;
    if (rt->trace) spli_trace_memory(rt);
}
