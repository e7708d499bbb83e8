/* repl_text.c: frames between the front end and rank 0, and which lines make a chunk. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <lauxlib.h>
#include "repl.h"

int lspl_frame_send(int fd, lspl_frame kind, const char *text, size_t n) {
    unsigned char head[LSPL_FRAME_HEAD] = {(unsigned char)kind};
    for (int i = 0; i < 4; i++) head[i + 1] = (unsigned char)(n >> (8 * i));
    struct iovec parts[2] = {{head, sizeof head}, {(void *)text, n}};
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2};
    size_t left = sizeof head + n;
    while (left) {
        ssize_t sent = sendmsg(fd, &m, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return 0;
        left -= (size_t)sent;
        while (sent > 0 && m.msg_iovlen) {
            size_t part = (size_t)sent < m.msg_iov->iov_len ? (size_t)sent : m.msg_iov->iov_len;
            m.msg_iov->iov_base = (char *)m.msg_iov->iov_base + part;
            m.msg_iov->iov_len -= part;
            sent -= (ssize_t)part;
            if (m.msg_iov->iov_len == 0) m.msg_iov++, m.msg_iovlen--;
        }
    }
    return 1;
}

static int read_all(int fd, char *into, size_t n) {
    while (n) {
        ssize_t got = recv(fd, into, n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return 0;
        into += got;
        n -= (size_t)got;
    }
    return 1;
}

int lspl_frame_read(int fd, lspl_frame *kind, char **text, size_t *n) {
    unsigned char head[LSPL_FRAME_HEAD];
    *text = NULL;
    *n = 0;
    if (!read_all(fd, (char *)head, sizeof head)) return 0;
    for (int i = 0; i < 4; i++) *n |= (size_t)head[i + 1] << (8 * i);
    *kind = (lspl_frame)head[0];
    if (*n > LSPL_FRAME_MOST || !(*text = malloc(*n + 1))) return 0;
    (*text)[*n] = 0;
    if (read_all(fd, *text, *n)) return 1;
    free(*text);
    *text = NULL;
    return 0;
}

/* Behind "@0,2-3 ", which says who runs the rest. */
static size_t skip_ranks(const char *text, size_t n) {
    size_t at = strspn(text, " \t");
    if (at >= n || text[at] != '@') return at;
    at++;
    at += strspn(text + at, "0123456789,-");
    return at + strspn(text + at, " \t");
}

int lspl_wants_more(lua_State *L, const char *text, size_t n) {
    static const char mark[] = "<eof>";
    size_t at = skip_ranks(text, n), length = 0;
    if (at >= n || text[at] == ':') return 0;
    const char *expression = lua_pushfstring(L, "return %s", text + at);
    int status = luaL_loadbufferx(L, expression, strlen(expression), "=x", "t");
    int more = 0;
    if (status != LUA_OK) {
        lua_pop(L, 1);
        status = luaL_loadbufferx(L, text + at, n - at, "=x", "t");
        const char *message = status == LUA_ERRSYNTAX ? lua_tolstring(L, -1, &length) : NULL;
        more = message && length >= sizeof mark - 1 && !strcmp(message + length - (sizeof mark - 1), mark);
    }
    lua_pop(L, 2);
    return more;
}

int lspl_chunk_add(lspl_chunk *c, const char *line, size_t n) {
    if (c->n + n + 2 > c->room) {
        size_t room = 2 * (c->n + n) + 256;
        char *grown = realloc(c->text, room);
        if (!grown) return 0;
        c->text = grown;
        c->room = room;
    }
    memcpy(c->text + c->n, line, n);
    c->n += n;
    if (n == 0 || line[n - 1] != '\n') c->text[c->n++] = '\n';
    c->text[c->n] = 0;
    return 1;
}
