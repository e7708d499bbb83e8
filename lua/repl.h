/* repl.h: what the two sides of the prompt share: the front end, which owns the terminal, and rank 0. */
#ifndef LSPL_REPL_H
#define LSPL_REPL_H
#include <lua.h>
#include <stdint.h>
#include "host.h"

#define LSPL_REPL_SOCKET "SPL_REPL" /* in the environment of the ranks: where their front end listens */

/* A frame on the socket: its kind, four bytes of length, the text. */
typedef enum lspl_frame {
    LSPL_FRAME_LINE = 'L',     /* to rank 0: run this */
    LSPL_FRAME_COMPLETE = 'C', /* to rank 0: how may this go on? */
    LSPL_FRAME_STOP = 'I',     /* to rank 0, while a line runs: stop it on all ranks; no text */
    LSPL_FRAME_HELLO = 'H',    /* from rank 0: what runs here, in a line */
    LSPL_FRAME_OUT = 'O',      /* from rank 0: for standard output */
    LSPL_FRAME_ERR = 'E',      /* from rank 0: for standard error */
    LSPL_FRAME_WORDS = 'W',    /* from rank 0: how many bytes to replace, then a word a line */
    LSPL_FRAME_READY = 'R',    /* from rank 0: the line is over */
    LSPL_FRAME_BYE = 'B'       /* from rank 0: no more lines, and why */
} lspl_frame;

enum { LSPL_FRAME_HEAD = 5, LSPL_FRAME_MOST = 64 << 20 };

/* repl_text.c */
/* 1 when it went through. */
int lspl_frame_send(int fd, lspl_frame kind, const char *text, size_t n);
/* Waits for a whole frame; *text is malloc'd. 0 at the end of the stream. */
int lspl_frame_read(int fd, lspl_frame *kind, char **text, size_t *n);
/* Is this the beginning of a chunk, so that more lines belong to it? L is any state. */
int lspl_wants_more(lua_State *L, const char *text, size_t n);

typedef struct lspl_chunk { /* lines as they come, until they make a chunk */
    char *text;
    size_t n, room;
} lspl_chunk;
/* Adds a line and its end; 0 when memory is out. */
int lspl_chunk_add(lspl_chunk *c, const char *line, size_t n);

/* repl.c: the side of the ranks. Adds the table `repl` to the one on top of the stack. */
void lspl_open_repl(lua_State *L);
/* repl_front.c: the front end. Starts the ranks and returns the exit code; in the process of the ranks too. */
int lspl_repl_front(const lspl_options *options);

#endif
