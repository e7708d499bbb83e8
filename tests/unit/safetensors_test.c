/* safetensors_test.c: the safetensors parser on good files, each kind of damage, every truncation, random flips. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "spl.h"

static int cases, failures;

static void report(int good, const char *what, const char *note) {
    cases++;
    if (!good) failures++;
    printf("%s %d - %s\n", good ? "ok" : "not ok", cases, what);
    if (!good && note) printf("# %s\n", note);
}

/* A file image: header text and data bytes, exactly sized so that a sanitizer sees any read past the end. */
typedef struct image {
    unsigned char *bytes;
    size_t n;
} image;

static image make(const char *header, size_t data) {
    image f;
    uint64_t length = strlen(header);
    f.n = 8 + (size_t)length + data;
    f.bytes = malloc(f.n);
    if (!f.bytes) exit(2);
    memcpy(f.bytes, &length, 8);
    memcpy(f.bytes + 8, header, (size_t)length);
    for (size_t i = 0; i < data; i++) f.bytes[8 + length + i] = (unsigned char)i;
    return f;
}

static void expect_error(const char *what, image f, spl_code code, const char *const *words, size_t nwords) {
    spl_safetensors *s = NULL;
    spl_status status = spl_safetensors_parse(f.bytes, f.n, "weights.safetensors", &s);
    int good = status.code == code && s == NULL && strncmp(status.message, "weights.safetensors: ", 21) == 0;
    for (size_t i = 0; good && i < nwords; i++) good = strstr(status.message, words[i]) != NULL;
    report(good, what, status.code == SPL_OK ? "it was accepted" : status.message);
    if (status.code == SPL_OK) spl_safetensors_close(s);
    free(f.bytes);
}

#define REFUSE(what, header, data, code, ...)                                        \
    do {                                                                             \
        const char *const words[] = {__VA_ARGS__};                                   \
        expect_error(what, make(header, data), code, words, sizeof words / sizeof *words); \
    } while (0)

static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                           "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[7,31]},"
                           "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                           "\"none\":{\"dtype\":\"F64\",\"shape\":[4,0,9223372036854775807],\"data_offsets\":[7,7]},"
                           "\"one\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[31,32]}}   ";

static void accepts(void) {
    image f = make(good, 32);
    spl_safetensors *s = NULL;
    spl_status status = spl_safetensors_parse(f.bytes, f.n, "weights.safetensors", &s);
    report(status.code == SPL_OK, "a good file opens", status.message);
    if (status.code == SPL_OK) {
        const spl_safetensors_entry *a = spl_safetensors_find(s, "a"), *b = spl_safetensors_find(s, "b");
        const spl_safetensors_entry *none = spl_safetensors_find(s, "none"), *one = spl_safetensors_find(s, "one");
        report(spl_safetensors_count(s) == 4 && a && b && none && one, "its four tensors are found", NULL);
        report(!spl_safetensors_find(s, "__metadata__") && !spl_safetensors_find(s, "c") &&
                   !spl_safetensors_find(s, ""),
               "others are not", NULL);
        report(spl_safetensors_at(s, 0) == a && spl_safetensors_at(s, 1) == none && spl_safetensors_at(s, 2) == b &&
                   spl_safetensors_at(s, 3) == one && !spl_safetensors_at(s, 4) && !spl_safetensors_at(s, -1),
               "they come in order of offsets", NULL);
        report(b && b->dtype == SPL_F32 && b->ndim == 2 && b->shape[0] == 2 && b->shape[1] == 3 && b->bytes == 24 &&
                   b->at == 7,
               "an unaligned tensor behind a hole is where it should be", NULL);
        report(none && none->bytes == 0 && one && one->ndim == 0 && one->bytes == 1,
               "zero-size tensors and scalars are legal", NULL);
        spl_safetensors_close(s);
    }
    free(f.bytes);

    f = make("{}", 0);
    status = spl_safetensors_parse(f.bytes, f.n, "weights.safetensors", &s);
    report(status.code == SPL_OK && spl_safetensors_count(s) == 0, "an empty header is legal", NULL);
    if (status.code == SPL_OK) spl_safetensors_close(s);
    free(f.bytes);
}

static void refuses(void) {
    image f = make(good, 32);
    f.n = 7;
    const char *few[] = {"7 bytes", "truncated"};
    expect_error("fewer than 8 bytes", f, SPL_EFORMAT, few, 2);

    f = make(good, 0);
    uint64_t length = strlen(good) + 1;
    memcpy(f.bytes, &length, 8);
    const char *longer[] = {"header is", "bytes follow", "truncated"};
    expect_error("a header longer than the file", f, SPL_EFORMAT, longer, 3);

    f = make(good, 32);
    length = UINT64_MAX;
    memcpy(f.bytes, &length, 8);
    const char *limit[] = {"18446744073709551615", "limit"};
    expect_error("a header length that overflows", f, SPL_EFORMAT, limit, 2);

    f = make("", 0);
    expect_error("a header of no bytes", f, SPL_EFORMAT, (const char *[]){"JSON object"}, 1);
    REFUSE("a header that is a list", "[1]", 0, SPL_EFORMAT, "JSON object");
    REFUSE("broken JSON", "{\"a\":", 0, SPL_EFORMAT, "not valid JSON");
    REFUSE("bytes after the JSON", "{}x", 0, SPL_EFORMAT, "not valid JSON");
    REFUSE("a tensor twice",
           "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
           "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
           2, SPL_EFORMAT, "not valid JSON", "uplicate");
    REFUSE("an entry that is a number", "{\"a\":1}", 0, SPL_EFORMAT, "'a'", "object");
    REFUSE("metadata that is a number", "{\"__metadata__\":1}", 0, SPL_EFORMAT, "__metadata__");
    REFUSE("no dtype", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, SPL_EFORMAT, "'a'", "'dtype'");
    REFUSE("an unknown dtype", "{\"a.w\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
           SPL_EUNSUPPORTED, "'a.w'", "'F8_E4M3'", "F32");
    REFUSE("no shape", "{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, SPL_EFORMAT, "'a'", "'shape'");
    REFUSE("a negative size", "{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, SPL_EFORMAT, "'a'",
           "zero or more");
    REFUSE("a fractional size", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, SPL_EFORMAT,
           "'a'", "integers");
    REFUSE("seven dimensions", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1,
           SPL_EUNSUPPORTED, "'a'", "7 dimensions", "at most 6");
    REFUSE("a shape that overflows",
           "{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,1]}}", 1, SPL_EFORMAT,
           "'a'", "overflows");
    REFUSE("an integer above 63 bits",
           "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,9223372036854775808]}}",
           1, SPL_EFORMAT, "not valid JSON");
    REFUSE("three offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1, SPL_EFORMAT, "'a'",
           "pair");
    REFUSE("offsets the wrong way round", "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1,
           SPL_EFORMAT, "'a'", "[1, 0]");
    REFUSE("a negative offset", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[-1,1]}}", 1, SPL_EFORMAT,
           "'a'", "[-1, 1]");
    REFUSE("offsets behind the data", "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 1, SPL_EFORMAT,
           "'a'", "[0, 2]", "1 bytes of data", "truncated");
    REFUSE("offsets that do not match the shape", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 8,
           SPL_EFORMAT, "'a'", "8 bytes", "4");
    REFUSE("tensors that overlap",
           "{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
           "\"y\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[3,3]},"
           "\"z\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}",
           8, SPL_EFORMAT, "'x'", "'z'", "overlap");
    REFUSE("a tensor inside another",
           "{\"x\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},"
           "\"z\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}}",
           8, SPL_EFORMAT, "'x'", "'z'", "overlap");

    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    f = make("", sizeof pointer);
    f.n = sizeof pointer - 1;
    memcpy(f.bytes, pointer, f.n);
    expect_error("a Git LFS pointer", f, SPL_EFORMAT, (const char *[]){"Git LFS", "git lfs pull"}, 2);
}

/* No truncation may be taken for the whole file: the last tensor always misses bytes. */
static void truncations(void) {
    image f = make(good, 32);
    int accepted = 0;
    for (size_t n = 0; n < f.n; n++) {
        unsigned char *part = malloc(n ? n : 1); /* exactly sized for the sanitizer */
        if (!part) exit(2);
        memcpy(part, f.bytes, n);
        spl_safetensors *s = NULL;
        if (spl_safetensors_parse(part, n, "part", &s).code == SPL_OK) {
            accepted++;
            spl_safetensors_close(s);
        }
        free(part);
    }
    report(accepted == 0, "every truncation is refused", NULL);
    free(f.bytes);
}

/* Random flips: what is accepted must stay inside the file. */
static void flips(void) {
    image f = make(good, 32);
    uint64_t state = 88172645463325252u;
    int outside = 0, accepted = 0;
    unsigned sum = 0;
    for (int round = 0; round < 20000; round++) {
        unsigned char *copy = malloc(f.n);
        if (!copy) exit(2);
        memcpy(copy, f.bytes, f.n);
        for (int k = 0; k < 1 + round % 3; k++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            copy[8 + state % (f.n - 40)] = (unsigned char)(state >> 32);
        }
        spl_safetensors *s = NULL;
        if (spl_safetensors_parse(copy, f.n, "flipped", &s).code == SPL_OK) {
            accepted++;
            for (int i = 0; i < spl_safetensors_count(s); i++) {
                const spl_safetensors_entry *e = spl_safetensors_at(s, i);
                if (e->at + e->bytes > f.n) outside++;
                for (size_t b = 0; b < e->bytes; b++) {
                    unsigned char byte = 0;
                    if (spl_safetensors_read(s, e, b, 1, &byte).code != SPL_OK) outside++;
                    sum += byte;
                }
            }
            spl_safetensors_close(s);
        }
        free(copy);
    }
    report(outside == 0 && accepted > 0 && sum > 0, "random flips never lead outside the file", NULL);
    free(f.bytes);
}

static void files(void) {
    spl_safetensors *s = NULL;
    spl_status status = spl_safetensors_open("/nonexistent/folder/model.safetensors", &s);
    report(status.code == SPL_EIO && !s && strstr(status.message, "/nonexistent/folder/model.safetensors") &&
               status.native != 0,
           "a missing file is named", status.message);
    status = spl_safetensors_open("/", &s);
    report(status.code == SPL_EIO && !s && strstr(status.message, "regular file"), "a folder is refused",
           status.message);
    status = spl_safetensors_open("/dev/null", &s);
    report(status.code == SPL_EIO && !s, "a device is refused", status.message);
    spl_safetensors_close(NULL);
}

int main(void) {
    accepts();
    refuses();
    truncations();
    flips();
    files();
    printf("1..%d\n", cases);
    return failures != 0;
}
