/* embed.h: the Lua files that travel inside the program, by their path under lua/ ("spl/args.lua"). */
#ifndef LSPL_EMBED_H
#define LSPL_EMBED_H
#include <stddef.h>

typedef struct lspl_embedded {
    const char *path; /* NULL ends the list */
    const unsigned char *bytes; /* followed by a zero byte */
    size_t size;
} lspl_embedded;

extern const lspl_embedded lspl_embedded_files[];

#endif
