/* lfile.c: whole files as strings, for modules that read configurations, tokenizers and texts: only regular files, and
 * only up to a size, so that a device or a fifo given by mistake is an error and neither a wait nor all memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "lspl.h"

static int failed(lua_State *L, const char *what, const char *path, const char *why) {
    lua_pushnil(L);
    lua_pushfstring(L, "cannot %s %s: %s", what, path, why);
    lua_pushliteral(L, "io");
    return 3;
}

enum { STEP = 64 << 10 };

/* All of an open file; 0, or errno: EFBIG where there is more than `most`. */
static int read_all(int fd, lua_Integer most, luaL_Buffer *b) {
    for (lua_Integer got = 0;;) {
        char *room = luaL_prepbuffsize(b, STEP);
        ssize_t n = read(fd, room, STEP);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return 0;
        if ((got += n) > most) return EFBIG;
        luaL_addsize(b, (size_t)n);
    }
}

static int descriptor_close(lua_State *L) {
    int *fd = lua_touserdata(L, 1);
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return 0;
}

/* core.read_file(path, most) -> text, or nil, message, "io" [local] */
static int read_file(lua_State *L) {
    const char *path = luaL_checkstring(L, 1);
    lua_Integer most = luaL_checkinteger(L, 2);
    struct stat st;
    lua_settop(L, 2);
    int *fd = lua_newuserdatauv(L, sizeof *fd, 0); /* closed also when memory for the text runs out */
    *fd = -1;
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, descriptor_close);
    lua_setfield(L, -2, "__close");
    lua_setmetatable(L, -2);
    lua_toclose(L, -1);
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo must not wait for its writer */
    if (*fd < 0) return failed(L, "open", path, strerror(errno));
    if (fstat(*fd, &st)) return failed(L, "read", path, strerror(errno));
    if (!S_ISREG(st.st_mode)) {
        return failed(L, "read", path, S_ISDIR(st.st_mode)    ? "this is a directory; give the path of a file"
                                       : S_ISFIFO(st.st_mode) ? "this is a fifo; give the path of a regular file"
                                                              : "this is a device; give the path of a regular file");
    }
    luaL_Buffer b;
    luaL_buffinit(L, &b);
    int error = st.st_size > most ? EFBIG : read_all(*fd, most, &b);
    if (error == EFBIG) {
        const char *why = lua_pushfstring(L, "it is larger than %I bytes, the most that is read of such a file",
                                          (LUAI_UACINT)most);
        return failed(L, "read", path, why);
    }
    if (error) return failed(L, "read", path, strerror(error));
    luaL_pushresult(&b);
    return 1;
}

/* core.exists(path): is there anything of that name? [local] */
static int exists(lua_State *L) {
    lua_pushboolean(L, access(luaL_checkstring(L, 1), F_OK) == 0);
    return 1;
}

void lspl_open_file(lua_State *L) {
    lua_pushcfunction(L, read_file);
    lua_setfield(L, -2, "read_file");
    lua_pushcfunction(L, exists);
    lua_setfield(L, -2, "exists");
}
