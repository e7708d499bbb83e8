/* embed.c: a build tool. Writes a C file that holds the given Lua files as bytes: embed OUT.c lua/spl/a.lua ...
 * A file is known inside the program by its path under lua/ ("spl/args.lua"). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what, const char *path) {
    fprintf(stderr, "embed: cannot %s '%s': %s\n", what, path, strerror(errno));
    return 1;
}

static int write_bytes(FILE *out, const char *path, int index, long *size) {
    FILE *in = fopen(path, "rb");
    if (!in) return fail("read", path);
    fprintf(out, "static const unsigned char bytes_%d[] = {", index);
    long n = 0;
    for (int c; (c = getc(in)) != EOF; n++) fprintf(out, "%s%d,", n % 24 ? "" : "\n", c);
    fprintf(out, "0};\n");
    *size = n;
    int bad = ferror(in);
    fclose(in);
    return bad ? fail("read", path) : 0;
}

static const char *name_of(const char *path) {
    return strncmp(path, "lua/", 4) == 0 ? path + 4 : path;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: embed OUT.c FILE.lua ...\n");
        return 2;
    }
    FILE *out = fopen(argv[1], "wb");
    if (!out) return fail("write", argv[1]);
    long *size = calloc((size_t)argc, sizeof *size);
    if (!size) return fail("hold sizes for", argv[1]);
    fprintf(out, "/* Made from lua/spl and lua/meta by embed.c. */\n#include \"embed.h\"\n\n");
    for (int i = 2; i < argc; i++) {
        if (write_bytes(out, argv[i], i, &size[i])) return 1;
    }
    fprintf(out, "\nconst lspl_embedded lspl_embedded_files[] = {\n");
    for (int i = 2; i < argc; i++) fprintf(out, "    {\"%s\", bytes_%d, %ld},\n", name_of(argv[i]), i, size[i]);
    fprintf(out, "    {0, 0, 0}\n};\n");
    free(size);
    return fclose(out) ? fail("write", argv[1]) : 0;
}
