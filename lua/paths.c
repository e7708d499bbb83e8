/* paths.c: where things lie: this program, and scripts by path or by shipped name. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "build.h"
#include "host.h"
#include "lspl.h"

int lspl_own_path(char *out, size_t n) {
    ssize_t length = readlink("/proc/self/exe", out, n - 1);
    if (length <= 0) return 0;
    out[length] = 0;
    return 1;
}

/* The i-th folder where shipped scripts may lie: beside build/, beside bin/, under the prefix. 0 when i is past the
 * last. */
static int script_folder(int i, char *out, size_t n) {
    char own[4096];
    if (i < 2) {
        if (!lspl_own_path(own, sizeof own)) own[0] = 0;
        char *slash = strrchr(own, '/');
        if (slash) *slash = 0;
        return snprintf(out, n, i == 0 ? "%s/../scripts" : "%s/../share/spl/scripts", own) > 0;
    }
    return i == 2 && snprintf(out, n, "%s/share/spl/scripts", LSPL_BUILD_PREFIX) > 0;
}

static int is_file(const char *path) {
    struct stat s;
    return stat(path, &s) == 0 && !S_ISDIR(s.st_mode);
}

/* `folder/name` or `folder/name.lua`; no folder: as given. The result has no "build/../" in it. */
static int try_script(const char *folder, const char *name, char *out, size_t n) {
    for (int with_suffix = 0; with_suffix < 2; with_suffix++) {
        char path[8192];
        int length = snprintf(path, sizeof path, "%s%s%s%s", folder ? folder : "", folder ? "/" : "", name,
                              with_suffix ? ".lua" : "");
        if (length >= (int)sizeof path || !is_file(path)) continue;
        char *real = folder ? realpath(path, NULL) : NULL;
        int fits = snprintf(out, n, "%s", real ? real : path) < (int)n;
        free(real);
        return fits;
    }
    return 0;
}

int lspl_find_script(const char *name, char *out, size_t n) {
    if (try_script(NULL, name, out, n)) return 1;
    char folder[8192];
    if (name[0] == '/' || name[0] == '.') return 0;
    for (int i = 0; script_folder(i, folder, sizeof folder); i++) {
        if (try_script(folder, name, out, n)) return 1;
    }
    return 0;
}

int lspl_is_shipped(const char *script) {
    char folder[8192];
    char *real = realpath(script, NULL), *slash = real ? strrchr(real, '/') : NULL;
    int found = 0;
    if (slash) *slash = 0;
    for (int i = 0; slash && !found && script_folder(i, folder, sizeof folder); i++) {
        char *shipped = realpath(folder, NULL);
        found = shipped && strcmp(shipped, real) == 0;
        free(shipped);
    }
    free(real);
    return found;
}

int lspl_find_shipped(const char *name, char *out, size_t n) {
    char folder[8192];
    if (strchr(name, '/') || name[0] == '.') return 0;
    for (int i = 0; script_folder(i, folder, sizeof folder); i++) {
        if (try_script(folder, name, out, n)) return 1;
    }
    return 0;
}

void lspl_each_shipped(void (*take)(void *ctx, const char *folder, const char *name), void *ctx) {
    char folder[8192];
    for (int i = 0; script_folder(i, folder, sizeof folder); i++) {
        DIR *dir = opendir(folder);
        if (!dir) continue;
        for (struct dirent *e; (e = readdir(dir));) {
            size_t length = strlen(e->d_name);
            if (length >= 5 && !strcmp(e->d_name + length - 4, ".lua")) take(ctx, folder, e->d_name);
        }
        closedir(dir);
    }
}

enum { MOST_NAMES = 64 };

typedef struct names {
    char *list[MOST_NAMES + 1];
    int count;
} names;

static void take_name(void *ctx, const char *folder, const char *name) {
    (void)folder;
    names *all = ctx;
    if (all->count == MOST_NAMES) return;
    all->list[all->count] = strdup(name);
    if (all->list[all->count]) all->count++;
}

void lspl_nearest_script(const char *name, char *out, size_t n) {
    names all = {{NULL}, 0};
    lspl_each_shipped(take_name, &all);
    all.list[all.count] = NULL;
    const char *base = strrchr(name, '/');
    char wanted[256];
    size_t length = strlen(base ? base + 1 : name);
    snprintf(wanted, sizeof wanted, "%s%s", base ? base + 1 : name,
             length > 4 && !strcmp((base ? base + 1 : name) + length - 4, ".lua") ? "" : ".lua");
    const char *near = lspl_nearest(wanted, (const char *const *)all.list);
    snprintf(out, n, "%s", near ? near : "");
    for (int i = 0; i < all.count; i++) free(all.list[i]);
}
