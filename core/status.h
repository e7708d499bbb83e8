/* status.h: errors as values. Every function that can fail returns a spl_status; nothing in core prints, exits or
 * jumps. */
#ifndef SPL_STATUS_H
#define SPL_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

/* What went wrong. The exit code of a program that ends with it is spl_exit_code(code). */
typedef enum spl_code {
    SPL_OK = 0,
    SPL_EARG,         /* an argument of a call is wrong (type, range, shape, layout)              exit 1 */
    SPL_EUSAGE,       /* the command line is wrong: flag, script, mesh, role, size                exit 2 */
    SPL_ENOMEM,       /* memory is exhausted or a size overflows                                  exit 1 */
    SPL_EIO,          /* a file cannot be opened, read or written                                 exit 1 */
    SPL_EFORMAT,      /* a file's contents break its format                                       exit 1 */
    SPL_ERELEASED,    /* an object is used after it was released                                  exit 1 */
    SPL_ENUMERIC,     /* NaN or infinity where a number is needed; a result is wrong              exit 1 */
    SPL_EENV,         /* the environment lacks something: no mpirun, no GPU, no library           exit 3 */
    SPL_EDISAGREE,    /* ranks called different things                                            exit 4 */
    SPL_ESTALL,       /* no progress within the time limit                                        exit 4 */
    SPL_EINTERRUPT,   /* SIGINT or SIGTERM                                                        exit 1 */
    SPL_EUNSUPPORTED, /* possible in principle, refused here; the message names what works        exit 1 */
    SPL_EINTERNAL     /* a fault of SPL itself                                                    exit 1 */
} spl_code;

enum { SPL_MESSAGE_BYTES = 480 };

/* An error as a value: plain data, nothing to free. Only `code` is defined when code == SPL_OK. */
typedef struct spl_status {
    spl_code code;
    int line;         /* where it was first reported */
    const char *file; /* static string */
    int rank;         /* world rank that reported it, -1 when not known */
    long native;      /* errno, MPI error class, cudaError_t ... or 0 */
    char message[SPL_MESSAGE_BYTES]; /* one clear sentence: what was given, what is allowed, what to try */
} spl_status;

/* [local] Builds an error; the message is printf-formatted and cut at SPL_MESSAGE_BYTES. Use the macros below. */
spl_status spli_error_at(const char *file, int line, spl_code code, long native, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* [local] The short stable name that scripts see as `err.code`: "usage", "memory", "released", ... */
const char *spl_code_name(spl_code code);

/* [local] The exit code of a process that ends with this code: 0, 1, 2, 3 or 4. */
int spl_exit_code(spl_code code);

static inline spl_status spli_ok(void) {
    spl_status s;
    s.code = SPL_OK; /* the rest stays unset on purpose: success must cost nothing */
    return s;
}

#define spli_error(code, ...) spli_error_at(__FILE__, __LINE__, (code), 0, __VA_ARGS__)
#define spli_error_native(code, native, ...) spli_error_at(__FILE__, __LINE__, (code), (native), __VA_ARGS__)

/* Return at once on failure. */
#define SPL_TRY(call)                      \
    do {                                   \
        spl_status try_ = (call);          \
        if (try_.code != SPL_OK) return try_; \
    } while (0)

/* Keep the FIRST error in `status` (a spl_status variable in scope) and jump to `label` for cleanup. */
#define SPL_GO(call, label)                                 \
    do {                                                    \
        spl_status go_ = (call);                            \
        if (go_.code != SPL_OK) { status = go_; goto label; } \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
