/* plugin.c: backends that need libraries which the program does not link: spl-NAME.so, opened when it is asked for.
 *
 * Looked for in the folders of SPL_PLUGINS (separated by colons), beside the program, in ../lib/spl from there, and one
 * folder up (programs of tests). A plugin that is linked into the program comes first. Opening one twice gives the same
 * one, and none is ever closed, so nothing need be remembered here. */
#include "comm.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const spl_plugin splk_plugin __attribute__((weak));

static int good_name(const char *name) {
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return n > 0 && n < 32 && name[n] == '\0';
}

/* The i-th file that may be the plugin; 0 when i is past the last. */
static int candidate(const char *name, int i, char *out, size_t n) {
    static const char *const beside[] = {"", "../lib/spl/", "../"};
    const char *folders = getenv("SPL_PLUGINS");
    for (; folders && *folders; i--) {
        size_t length = strcspn(folders, ":");
        if (i == 0) return snprintf(out, n, "%.*s/spl-%s.so", (int)length, folders, name) > 0;
        folders += length + (folders[length] == ':');
    }
    if (i >= (int)(sizeof beside / sizeof beside[0])) return 0;
    char own[2048] = "";
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    char *slash = length > 0 ? strrchr(own, '/') : NULL;
    if (slash) slash[1] = '\0';
    return snprintf(out, n, "%s%sspl-%s.so", own, beside[i], name) > 0;
}

static spl_status check(const spl_plugin *plugin, const char *name, const char *file) {
    if (plugin && plugin->abi == SPL_BACKEND_ABI && plugin->backend->abi == SPL_BACKEND_ABI &&
        strcmp(plugin->backend->name, name) == 0)
        return spli_ok();
    if (!plugin || plugin->abi == SPL_BACKEND_ABI)
        return spli_error(SPL_EENV, "%.250s is no plugin with a backend '%s'; build it again (make %s)", file, name,
                          name);
    return spli_error(SPL_EENV, "%.250s was built for interface %d, this program has %d; build both from one version",
                      file, plugin->abi, SPL_BACKEND_ABI);
}

spl_status spli_plugin_open(const char *name, const spl_plugin **out) {
    char file[4096];
    *out = NULL;
    if (&splk_plugin && strcmp(splk_plugin.backend->name, name) == 0) {
        *out = &splk_plugin;
        return check(*out, name, "what is linked in");
    }
    for (int i = 0; good_name(name) && candidate(name, i, file, sizeof file); i++) {
        if (access(file, F_OK) != 0) continue;
        void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
        if (!library) return spli_error(SPL_EENV, "the backend %s cannot be loaded: %.300s", name, dlerror());
        const spl_plugin *plugin = dlsym(library, "splk_plugin");
        SPL_TRY(check(plugin, name, file));
        *out = plugin;
        return spli_ok();
    }
    return spli_error(SPL_EENV,
                      "there is no backend '%.32s' here: no spl-%.32s.so beside the program, in ../lib/spl, or in "
                      "SPL_PLUGINS; `make %.32s` builds it, and --backend cpu needs none",
                      name, name, name);
}

const spl_plugin *spli_plugin_of(const spl_backend_ops *backend) {
    const spl_plugin *plugin;
    if (!backend->device_memory || spli_plugin_open(backend->name, &plugin).code != SPL_OK) return NULL;
    return plugin->backend == backend ? plugin : NULL;
}
