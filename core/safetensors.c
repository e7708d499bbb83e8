/* safetensors.c: one weight file in the safetensors format, validated before anything reads its data.
 *
 * The file is 8 bytes of little-endian header length, a JSON object {name: {dtype, shape, data_offsets}}, then data.
 * Nothing in the header is trusted: lengths are held against the file, offsets against the data, bytes against
 * shape * dtype, ranges against each other. Entries are handed out in order of offsets, and found by name through a
 * second order. Data is read where it is wanted, not mapped: a file that someone cuts short meanwhile is an error then,
 * where a mapping would end the program. Holes and zero-size tensors are legal. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "spl.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "safetensors data is little-endian, and so must be the machine"
#endif

enum { LENGTH_BYTES = 8, HEADER_LIMIT = 100 * 1000 * 1000, SHOWN = 120, AHEAD = 1 << 20 };

struct spl_safetensors {
    int refs, fd; /* fd -1: the data is the caller's memory */
    const unsigned char *memory;
    int64_t start, data_bytes; /* of the data within the file */
    char *path;
    unsigned char *ahead; /* a stretch of data read together, since what a rank takes lies in many short runs */
    size_t ahead_at, ahead_bytes;
    json_t *header; /* owns the names */
    int count;
    spl_safetensors_entry *entries;        /* by offset */
    const spl_safetensors_entry **by_name; /* names ascending */
};

/* What is being read, for messages. */
typedef struct source {
    const char *file;
    int64_t data_bytes; /* after the header */
} source;

/* Text made fit for a message: short, and without control characters. */
typedef struct shown {
    char text[SHOWN + 4];
} shown;

static void printable(char *s) {
    for (; *s; s++) {
        if ((unsigned char)*s < 0x20 || *s == 0x7f) *s = '?';
    }
}

/* A name: its beginning. */
static shown show(const char *s) {
    shown out;
    snprintf(out.text, sizeof out.text, "%.*s%s", SHOWN, s, strlen(s) > SHOWN ? "..." : "");
    printable(out.text);
    return out;
}

/* A path: its end, where the file's name is. */
static shown show_path(const char *s) {
    shown out;
    size_t n = strlen(s);
    snprintf(out.text, sizeof out.text, "%s%s", n > SHOWN ? "..." : "", n > SHOWN ? s + n - SHOWN : s);
    printable(out.text);
    return out;
}

static int dtype_of(const char *name, spl_dtype *t) {
    static const struct {
        const char *name;
        spl_dtype dtype;
    } known[] = {{"F64", SPL_F64}, {"F32", SPL_F32}, {"BF16", SPL_BF16}, {"F16", SPL_F16},
                 {"I64", SPL_I64}, {"I32", SPL_I32}, {"U8", SPL_U8},     {"BOOL", SPL_BOOL}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, name) == 0) {
            *t = known[i].dtype;
            return 1;
        }
    }
    return 0;
}

static spl_status bad(const source *src, const char *tensor, const char *what) {
    return spli_error(SPL_EFORMAT, "%s: tensor '%s': %s", show_path(src->file).text, show(tensor).text, what);
}

static spl_status read_shape(const source *src, const char *name, const json_t *shape, spl_safetensors_entry *e) {
    if (!json_is_array(shape)) return bad(src, name, "'shape' is missing or is not a list of sizes");
    if (json_array_size(shape) > SPL_MAX_DIMS) {
        return spli_error(SPL_EUNSUPPORTED, "%s: tensor '%s' has %zu dimensions; at most %d are supported",
                          show_path(src->file).text, show(name).text, json_array_size(shape), SPL_MAX_DIMS);
    }
    e->ndim = (int)json_array_size(shape);
    for (int d = 0; d < e->ndim; d++) {
        const json_t *size = json_array_get(shape, (size_t)d);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return bad(src, name, "'shape' must hold integers that are zero or more");
        }
        e->shape[d] = json_integer_value(size);
    }
    return spli_ok();
}

/* Bytes that the shape asks for; -1 when they do not fit in 63 bits. */
static int64_t bytes_wanted(const spl_safetensors_entry *e) {
    int64_t n = (int64_t)spl_dtype_size(e->dtype);
    for (int d = 0; d < e->ndim; d++) {
        if (e->shape[d] == 0) return 0;
    }
    for (int d = 0; d < e->ndim; d++) {
        if (__builtin_mul_overflow(n, e->shape[d], &n)) return -1;
    }
    return n;
}

static spl_status read_entry(const source *src, const char *name, json_t *value, spl_safetensors_entry *e) {
    if (!json_is_object(value)) return bad(src, name, "its entry must be an object with dtype, shape and data_offsets");
    e->name = name;
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    if (!dtype) return bad(src, name, "'dtype' is missing or is not a string");
    if (!dtype_of(dtype, &e->dtype)) {
        return spli_error(SPL_EUNSUPPORTED,
                          "%s: tensor '%s' has dtype '%s'; supported are F64 F32 BF16 F16 I64 I32 U8 BOOL: "
                          "convert the weights to one of them",
                          show_path(src->file).text, show(name).text, show(dtype).text);
    }
    SPL_TRY(read_shape(src, name, json_object_get(value, "shape"), e));

    const json_t *offsets = json_object_get(value, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second)) {
        return bad(src, name, "'data_offsets' must be a pair of integers");
    }
    int64_t begin = json_integer_value(first), end = json_integer_value(second);
    if (begin < 0 || end < begin || end > src->data_bytes) {
        return spli_error(SPL_EFORMAT,
                          "%s: tensor '%s': data_offsets [%lld, %lld] lie outside the file's %lld bytes of data; "
                          "the file is truncated or damaged: fetch it again",
                          show_path(src->file).text, show(name).text, (long long)begin, (long long)end,
                          (long long)src->data_bytes);
    }
    int64_t wanted = bytes_wanted(e);
    if (wanted != end - begin) {
        if (wanted < 0) return bad(src, name, "its shape overflows 63 bits");
        return spli_error(SPL_EFORMAT, "%s: tensor '%s': its dtype and shape need %lld bytes, data_offsets give %lld",
                          show_path(src->file).text, show(name).text, (long long)wanted, (long long)(end - begin));
    }
    e->at = (size_t)begin;
    e->bytes = (size_t)wanted;
    return spli_ok();
}

/* By offset; a zero-size tensor comes before what starts at the same byte, so that it never looks like an overlap. */
static int compare_offsets(const void *pa, const void *pb) {
    const spl_safetensors_entry *a = pa, *b = pb;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int compare_names(const void *pa, const void *pb) {
    const spl_safetensors_entry *const *a = pa, *const *b = pb;
    return strcmp((*a)->name, (*b)->name);
}

static spl_status check_overlaps(const source *src, const spl_safetensors *s) {
    const spl_safetensors_entry *last = NULL;
    for (int i = 0; i < s->count; i++) {
        const spl_safetensors_entry *e = &s->entries[i];
        if (e->bytes == 0) continue;
        if (last && e->at < last->at + last->bytes) {
            return spli_error(SPL_EFORMAT, "%s: tensors '%s' and '%s' overlap: their data_offsets share bytes",
                              show_path(src->file).text, show(last->name).text, show(e->name).text);
        }
        last = e;
    }
    return spli_ok();
}

static spl_status read_entries(const source *src, spl_safetensors *s) {
    size_t n = json_object_size(s->header);
    s->entries = calloc(n + 1, sizeof *s->entries);
    s->by_name = calloc(n + 1, sizeof *s->by_name);
    if (!s->entries || !s->by_name) {
        return spli_error(SPL_ENOMEM, "%s: no memory for an index of %zu tensors", show_path(src->file).text, n);
    }
    const char *name;
    json_t *value;
    json_object_foreach(s->header, name, value) {
        if (strcmp(name, "__metadata__") == 0) {
            if (!json_is_object(value)) {
                return spli_error(SPL_EFORMAT, "%s: '__metadata__' must be an object", show_path(src->file).text);
            }
            continue;
        }
        SPL_TRY(read_entry(src, name, value, &s->entries[s->count]));
        s->count++;
    }
    qsort(s->entries, (size_t)s->count, sizeof *s->entries, compare_offsets);
    for (int i = 0; i < s->count; i++) s->by_name[i] = &s->entries[i];
    qsort(s->by_name, (size_t)s->count, sizeof *s->by_name, compare_names);
    return check_overlaps(src, s);
}

static spl_status parse_header(const char *file, const unsigned char *header, size_t length, json_t **out) {
    json_error_t error;
    *out = length && header[0] == '{' ? json_loadb((const char *)header, length, JSON_REJECT_DUPLICATES, &error) : NULL;
    if (*out) return spli_ok();
    if (!length || header[0] != '{') {
        return spli_error(SPL_EFORMAT, "%s: its header is not a JSON object; this is not a safetensors file",
                          show_path(file).text);
    }
    if (json_error_code(&error) == json_error_out_of_memory) {
        return spli_error(SPL_ENOMEM, "%s: no memory to read its header of %zu bytes", show_path(file).text, length);
    }
    return spli_error(SPL_EFORMAT, "%s: its header is not valid JSON: %s (at byte %d)", show_path(file).text,
                      show(error.text).text, error.position);
}

/* The header's length, checked against its limit and the file. */
static spl_status header_length(const char *file, const unsigned char *bytes, size_t n, size_t *out) {
    static const char pointer[] = "version https://git-lfs";
    if (n >= sizeof pointer - 1 && memcmp(bytes, pointer, sizeof pointer - 1) == 0) {
        return spli_error(SPL_EFORMAT, "%s: a Git LFS pointer, not the weights; run 'git lfs pull' where it lies",
                          show_path(file).text);
    }
    if (n < LENGTH_BYTES) {
        return spli_error(SPL_EFORMAT, "%s: %zu bytes are too few for a safetensors file; it is truncated or empty",
                          show_path(file).text, n);
    }
    uint64_t length = 0;
    memcpy(&length, bytes, sizeof length);
    if (length > HEADER_LIMIT) {
        return spli_error(SPL_EFORMAT,
                          "%s: its header would be %llu bytes long, more than the limit of %d; "
                          "this is not a safetensors file or it is damaged",
                          show_path(file).text, (unsigned long long)length, HEADER_LIMIT);
    }
    if (length > n - LENGTH_BYTES) {
        return spli_error(SPL_EFORMAT,
                          "%s: its header is %llu bytes long, but only %zu bytes follow; the file is truncated: "
                          "fetch it again",
                          show_path(file).text, (unsigned long long)length, n - LENGTH_BYTES);
    }
    *out = (size_t)length;
    return spli_ok();
}

/* Takes over fd; `header` is the JSON text, `memory` the data where there is no file. */
static spl_status index_file(const char *name, int fd, const unsigned char *header, size_t length,
                             const unsigned char *memory, int64_t data_bytes, spl_safetensors **out) {
    spl_safetensors *s = calloc(1, sizeof *s);
    char *path = strdup(name);
    if (!s || !path) {
        free(s);
        free(path);
        if (fd >= 0) close(fd);
        return spli_error(SPL_ENOMEM, "%s: no memory to open it", show_path(name).text);
    }
    *s = (spl_safetensors){.refs = 1, .fd = fd, .memory = memory, .path = path, .data_bytes = data_bytes};
    s->start = (int64_t)(LENGTH_BYTES + length);
    source src = {name, data_bytes};
    spl_status status = parse_header(name, header, length, &s->header);
    if (status.code == SPL_OK) status = read_entries(&src, s);
    if (status.code != SPL_OK) spl_safetensors_close(s);
    else *out = s;
    return status;
}

spl_status spl_safetensors_parse(const void *bytes, size_t n, const char *name, spl_safetensors **out) {
    *out = NULL;
    size_t length = 0;
    SPL_TRY(header_length(name, bytes, n, &length));
    const unsigned char *header = (const unsigned char *)bytes + LENGTH_BYTES;
    return index_file(name, -1, header, length, header + length, (int64_t)(n - LENGTH_BYTES - length), out);
}

/* All of `n` bytes at `at`, or an error. */
static spl_status read_at(const char *path, int fd, int64_t at, size_t n, void *into) {
    for (size_t got = 0; got < n;) {
        ssize_t more = pread(fd, (char *)into + got, n - got, (off_t)(at + (int64_t)got));
        if (more < 0 && errno == EINTR) continue;
        if (more < 0) {
            return spli_error_native(SPL_EIO, errno, "%s: cannot read it: %s", show_path(path).text, strerror(errno));
        }
        if (more == 0) {
            return spli_error(SPL_EIO,
                              "%s: it ends at byte %lld, before the %zu bytes wanted at %lld: it was cut short after "
                              "it was opened; fetch it again",
                              show_path(path).text, (long long)(at + (int64_t)got), n, (long long)at);
        }
        got += (size_t)more;
    }
    return spli_ok();
}

static spl_status open_regular(const char *path, int *fd, size_t *bytes) {
    struct stat st;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo must not wait for its writer */
    if (*fd < 0) {
        return spli_error_native(SPL_EIO, errno, "%s: cannot open it: %s", show_path(path).text, strerror(errno));
    }
    if (fstat(*fd, &st) != 0) {
        return spli_error_native(SPL_EIO, errno, "%s: cannot read its size: %s", show_path(path).text,
                                 strerror(errno));
    }
    *bytes = (size_t)st.st_size;
    if (S_ISREG(st.st_mode)) return spli_ok();
    return spli_error(SPL_EIO, "%s: this is not a regular file; give the path of a .safetensors file",
                      show_path(path).text);
}

spl_status spl_safetensors_open(const char *path, spl_safetensors **out) {
    unsigned char first[64];
    unsigned char *header = NULL;
    size_t bytes = 0, length = 0;
    int fd = -1;
    *out = NULL;
    spl_status status = open_regular(path, &fd, &bytes);
    if (status.code != SPL_OK) goto done;
    SPL_GO(read_at(path, fd, 0, bytes < sizeof first ? bytes : sizeof first, first), done);
    SPL_GO(header_length(path, first, bytes, &length), done);
    header = malloc(length + 1);
    if (!header) SPL_GO(spli_error(SPL_ENOMEM, "%s: no memory to read its header of %zu bytes", show_path(path).text,
                                   length), done);
    SPL_GO(read_at(path, fd, LENGTH_BYTES, length, header), done);
    status = index_file(path, fd, header, length, NULL, (int64_t)(bytes - LENGTH_BYTES - length), out);
    fd = -1;
done:
    free(header);
    if (fd >= 0) close(fd);
    return status;
}

spl_status spl_safetensors_read(spl_safetensors *s, const spl_safetensors_entry *e, size_t at, size_t n, void *into) {
    if (at > e->bytes || n > e->bytes - at) {
        return spli_error(SPL_EARG, "%s: %zu bytes at %zu of tensor '%s' were asked for; it has %zu",
                          show_path(s->path).text, n, at, show(e->name).text, e->bytes);
    }
    if (n == 0) return spli_ok();
    at += e->at;
    if (s->fd < 0) {
        memcpy(into, s->memory + at, n);
        return spli_ok();
    }
    if (n < AHEAD && !(at >= s->ahead_at && at + n <= s->ahead_at + s->ahead_bytes)) {
        if (!s->ahead) s->ahead = malloc(AHEAD);
        s->ahead_bytes = 0;
        size_t left = e->at + e->bytes - at;
        if (left > AHEAD) left = AHEAD;
        if (s->ahead) {
            SPL_TRY(read_at(s->path, s->fd, s->start + (int64_t)at, left, s->ahead));
            s->ahead_at = at;
            s->ahead_bytes = left;
        }
    }
    if (n < AHEAD && s->ahead_bytes) {
        memcpy(into, s->ahead + (at - s->ahead_at), n);
        return spli_ok();
    }
    return read_at(s->path, s->fd, s->start + (int64_t)at, n, into);
}

void spl_safetensors_retain(spl_safetensors *s) { s->refs++; }

void spl_safetensors_close(spl_safetensors *s) {
    if (!s || --s->refs) return;
    json_decref(s->header);
    free(s->entries);
    free(s->by_name);
    free(s->ahead);
    free(s->path);
    if (s->fd >= 0) close(s->fd);
    free(s);
}

int spl_safetensors_count(const spl_safetensors *s) {
    return s->count;
}

const spl_safetensors_entry *spl_safetensors_at(const spl_safetensors *s, int i) {
    return i >= 0 && i < s->count ? &s->entries[i] : NULL;
}

const spl_safetensors_entry *spl_safetensors_find(const spl_safetensors *s, const char *name) {
    int low = 0, high = s->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        const spl_safetensors_entry *e = s->by_name[middle];
        int order = strcmp(name, e->name);
        if (order == 0) return e;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}
