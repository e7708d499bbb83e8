/* linfo.c: spl.facts: what this machine and this build offer, for `spl info` and the headers of benchmarks. */
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "build.h"
#include "host.h"
#include "launch.h"
#include "lspl.h"

static void set(lua_State *L, const char *key, const char *value) {
    lua_pushstring(L, value);
    lua_setfield(L, -2, key);
}

/* "model name" of the first processor. */
static void processor(char *out, size_t n) {
    snprintf(out, n, "unknown processor");
    FILE *f = fopen("/proc/cpuinfo", "r");
    char line[512];
    while (f && fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !value) continue;
        snprintf(out, n, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
        break;
    }
    if (f) fclose(f);
}

/* Cores of the affinity mask as "0-3,8", and how many. */
static int affinity(char *out, size_t n) {
    cpu_set_t set;
    int count = 0;
    size_t used = 0;
    out[0] = 0;
    if (sched_getaffinity(0, sizeof set, &set)) return 0;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &set)) continue;
        int last = i;
        while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set)) last++;
        count += last - i + 1;
        if (used < n) {
            used += (size_t)snprintf(out + used, n - used, last > i ? "%s%d-%d" : "%s%d", used ? "," : "", i, last);
        }
        i = last;
    }
    return count;
}

typedef char *blas_text(void);
typedef int blas_int(void);

/* Asks the BLAS that is really loaded, whichever that is: its names are looked up at run time, so another one may be
 * linked. */
static void blas(char *out, size_t n) {
    static const char *const parallel[] = {"sequential", "pthreads", "OpenMP"};
    void *config = dlsym(RTLD_DEFAULT, "openblas_get_config"), *core = dlsym(RTLD_DEFAULT, "openblas_get_corename");
    void *kind = dlsym(RTLD_DEFAULT, "openblas_get_parallel"), *sgemm = dlsym(RTLD_DEFAULT, "cblas_sgemm");
    Dl_info where = {0};
    const char *file = sgemm && dladdr(sgemm, &where) && where.dli_fname ? where.dli_fname : "inside this program";
    if (!config || !core || !kind) {
        snprintf(out, n, "not OpenBLAS: %s", file);
        return;
    }
    blas_text *get_config, *get_core; /* C has no cast from object to function pointers */
    blas_int *get_kind;
    memcpy(&get_config, &config, sizeof config);
    memcpy(&get_core, &core, sizeof core);
    memcpy(&get_kind, &kind, sizeof kind);
    int k = get_kind();
    const char *text = get_config();
    const char *version = strchr(text, ' '); /* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..." */
    int words = version ? (int)(version + 1 - text) + (int)strcspn(version + 1, " ") : (int)strlen(text);
    snprintf(out, n, "%.*s, %s, kernels for %s, %s", words, text, k >= 0 && k <= 2 ? parallel[k] : "threading unknown",
             get_core(), file);
}

/* spl.facts(): a table of strings and numbers. */
static int l_facts(lua_State *L) {
    spl_runtime *rt = lspl_runtime(L);
    char text[512];
    struct utsname system;
    lua_createtable(L, 0, 26);
    set(L, "version", SPL_VERSION);
    set(L, "compiler", LSPL_BUILD_COMPILER);
    set(L, "flags", LSPL_BUILD_FLAGS);
    set(L, "cuda", LSPL_BUILD_CUDA);
    gethostname(text, sizeof text);
    set(L, "host", text);
    if (uname(&system) == 0) {
        snprintf(text, sizeof text, "%s %s %s", system.sysname, system.release, system.machine);
        set(L, "system", text);
    }
    processor(text, sizeof text);
    set(L, "processor", text);
    lua_pushinteger(L, sysconf(_SC_NPROCESSORS_ONLN));
    lua_setfield(L, -2, "cores");
    lua_pushinteger(L, affinity(text, sizeof text));
    lua_setfield(L, -2, "cores_allowed");
    set(L, "affinity", text);
    lua_pushinteger(L, (lua_Integer)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE));
    lua_setfield(L, -2, "memory_bytes");
    lua_pushinteger(L, spl_threads(rt));
    lua_setfield(L, -2, "threads");
    lua_pushinteger(L, spl_size(rt));
    lua_setfield(L, -2, "ranks");
    blas(text, sizeof text);
    set(L, "blas", text);
    spl_describe_mpi(text, sizeof text);
    set(L, "mpi", text);
    set(L, "lua", LUA_RELEASE);
    set(L, "backend", spl_backend_name(rt));
    set(L, "backend_description", spl_backend_describe(rt));
    set(L, "kernels", spl_backend_kernels(rt));
    set(L, "blas_choice", getenv("OPENBLAS_CORETYPE"));
    const char *better, *forced = lspl_forced_kernels(&better);
    if (forced) {
        snprintf(text, sizeof text, "OPENBLAS_CORETYPE=%.40s is set in the environment%s%s", forced,
                 better ? "; this processor has faster kernels, such as " : "", better ? better : "");
        set(L, "blas_forced", text);
    }
    lspl_record(L);
    return 1;
}

/* spl.executable(): the path of this program. */
static int l_executable(lua_State *L) {
    char path[4096];
    if (!lspl_own_path(path, sizeof path)) {
        return lspl_raisef(L, SPL_EENV, "cannot find this program's own path in /proc");
    }
    lua_pushstring(L, path);
    return 1;
}

static void add_script(void *ctx, const char *folder, const char *name) {
    lua_State *L = ctx;
    lua_pushlstring(L, name, strlen(name) - 4); /* without .lua */
    lua_pushvalue(L, -1);
    if (lua_rawget(L, -3) == LUA_TNIL) { /* of two the first found is the one that runs */
        lua_pop(L, 1);
        lua_pushfstring(L, "%s/%s", folder, name);
        lua_rawset(L, -3);
    } else lua_pop(L, 2);
}

/* core.shipped(): paths of the scripts that come with the program, by name. */
static int l_shipped(lua_State *L) {
    lua_newtable(L);
    lspl_each_shipped(add_script, L);
    return 1;
}

/* core.terminal(): does somebody watch standard error? Under the launcher it is a pipe, and the launcher knows. */
static int l_terminal(lua_State *L) {
    lua_pushboolean(L, lspl_watched());
    return 1;
}

void lspl_open_info(lua_State *L) {
    lua_pushcfunction(L, l_terminal);
    lua_setfield(L, -2, "terminal");
    lua_pushcfunction(L, l_shipped);
    lua_setfield(L, -2, "shipped");
    lua_pushcfunction(L, l_executable);
    lua_setfield(L, -2, "executable");
    lua_pushcfunction(L, l_facts);
    lua_setfield(L, -2, "facts");
}
