/* spl.h: the public API of libspl, the engine of SPL (sequence-parallel transformers).
 *
 * [local]      this rank alone; may be called in any order.
 * [collective] every rank of the mesh (or of the world where there is no mesh) calls it, in the same order.
 * Objects: spl_x_create / spl_x_release in pairs; release(NULL) is legal; an object keeps what it needs alive
 * (tensor -> storage, mesh; block -> mesh, weights), so the order of releases is free. The runtime is closed last.
 * Dimensions and axes are 0-based here (1-based in Lua). Sizes are elements unless a name says bytes. */
#ifndef SPL_H
#define SPL_H
#include "backend.h"
#include "comm.h"
#include "dtype.h"
#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SPL_VERSION "0.1.0"
enum { SPL_MAX_AXES = 6, SPL_NAME_BYTES = 32 };

typedef struct spl_runtime spl_runtime;
typedef struct spl_mesh spl_mesh;
typedef struct spl_tensor spl_tensor;
typedef struct spl_block spl_block;
typedef struct spl_safetensors spl_safetensors;

/* ---------------------------------------------------------------- virtual ranks: P ranks in one process */

typedef struct spl_sim spl_sim;
spl_status spl_sim_create(int ranks, spl_sim **out);
/* [local] Runs rank_main(ctx, rank) for every rank, each on its own stack (bytes; 0: 2 MiB), one at a time, switching
 * where a rank waits, until all have returned or one ended the job. Each opens its runtime with config.sim and
 * sim_rank. */
spl_status spl_sim_run(spl_sim *s, size_t stack_bytes, void (*rank_main)(void *ctx, int rank), void *ctx,
                       int *exit_code);
void spl_sim_release(spl_sim *s);
/* [local] The rank that runs now lets the others go on, where it does not wait by itself. */
void spl_sim_give_way(spl_sim *s);
/* [local] How often control has passed on so far, and to whom (*running; -1: spl_sim_run). Safe in a signal handler. */
unsigned long spl_sim_turn(const spl_sim *s, int *running);

/* ---------------------------------------------------------------- runtime */

typedef struct spl_runtime_config {
    const spl_backend_ops *backend; /* NULL: cpu */
    int dry_rank, dry_size;         /* dry_size > 0: comm `dry`, needs a backend without memory */
    spl_sim *sim;                   /* virtual ranks: this one is sim_rank */
    int sim_rank;
    int threads;                    /* 0: this rank's share of the cores in its affinity mask */
    double timeout;                 /* seconds without progress before a wait fails with SPL_ESTALL; 0: 60 */
    int check_collectives;          /* ranks agree on each collective before data moves */
    const volatile int *interrupt;  /* non-zero: waits end with SPL_EINTERRUPT; may be NULL */
} spl_runtime_config;

/* [collective] Opens backend and comm: MPI when started by a launcher, else one rank. */
spl_status spl_runtime_open(const spl_runtime_config *config, spl_runtime **out);
/* [collective] Closes in the agreed order. Objects still alive are counted and reported through *leaked (may be NULL).
 */
spl_status spl_runtime_close(spl_runtime *rt, int *leaked);
/* [all ranks, whenever each is done] Says how this rank ended (exit code 0..4) and learns how the others did. With 0 it
 * waits for all of them; with a failure it waits at most `seconds` for the others' word. *speak: not 0 on the one rank
 * that prints the cause: 1 on the lowest known to have failed by itself; where none has, 2 on the lowest that was
 * interrupted; else 3 on the lowest that failed only because another had ended. *worst: the exit code of the job as
 * known (that of the rank that speaks). *all: 1 when every rank has ended, so that an orderly close is possible; else
 * spl_runtime_abort. */
void spl_runtime_finish(spl_runtime *rt, int exit_code, double seconds, int *speak, int *worst, int *all);
/* [local] 1 after a wait here failed only because another rank had failed (in this turn, where there are turns). */
int spl_runtime_follows(const spl_runtime *rt);
/* [local] Ends the job on all ranks with this exit code; does not return. */
void spl_runtime_abort(spl_runtime *rt, int exit_code);

int spl_rank(const spl_runtime *rt);
int spl_size(const spl_runtime *rt);
int spl_threads(const spl_runtime *rt);
int spl_virtual(const spl_runtime *rt); /* 1: one of several ranks of this process */
/* [local] This rank's share of the memory that was free when it started, in bytes; 0: not known. */
int64_t spl_memory_share(const spl_runtime *rt);
/* [local] What the ranks run on, in words (describe.c): "cpu"; device and kernel choices in one line; the MPI library.
 */
const char *spl_backend_name(const spl_runtime *rt);
const char *spl_backend_describe(const spl_runtime *rt);
/* [local] Which kernel each op has, one "ops: kernel" a line; "" where the backend does not say. */
const char *spl_backend_kernels(const spl_runtime *rt);
void spl_describe_mpi(char *out, size_t n);
/* [collective] */
spl_status spl_barrier(spl_runtime *rt);
/* [local] Waits until all that was queued on this rank's device so far is done. */
spl_status spl_synchronize(spl_runtime *rt);
/* [collective] Control data over the world, host memory: in place, n doubles; op '+' or '>' (max) or '<' (min). Not
 * counted. */
spl_status spl_agree_doubles(spl_runtime *rt, double *values, int n, char op);
/* [collective] The same of numbers that may be integers: exact where every rank gives an integer (and a sum fits). */
typedef struct spl_number {
    double value;
    int64_t integer, whole; /* whole: integer is the number, and value near it */
} spl_number;
spl_status spl_agree_numbers(spl_runtime *rt, spl_number *values, int n, char op);
/* [collective] Gathers n bytes of every rank, in rank order, into out[size * n]; host memory. Not counted. */
spl_status spl_gather_bytes(spl_runtime *rt, const void *mine, size_t n, void *out);

/* ---- turns: what a prompt on all ranks is made of. Ranks that called different things in a turn are in step again in
 * the next, with checking on. */
/* [collective] The text of the next turn: given on rank 0, waited for without limit on the others. *text (free it) is
 * NULL when there is none, since a rank has left the job. */
spl_status spl_turn_begin(spl_runtime *rt, const char *given, size_t n, char **text, size_t *length);
typedef void (*spl_turn_take)(void *ctx, int rank, const char *bytes, size_t n);
/* [collective] This rank's turn is over, well (SPL_OK) or not: whoever waits for it in a collective fails at once. On
 * rank 0 `take` gets what every rank that is still there says, when all have ended their turn; an interrupt meanwhile
 * stops them. */
spl_status spl_turn_end(spl_runtime *rt, spl_code how, const char *mine, size_t n, spl_turn_take take, void *ctx);
/* [local] 1 when this rank is to end its turn: rank 0 was interrupted, or a rank waited for others in vain. For
 * hooks. */
int spl_turn_stopped(spl_runtime *rt);

/* [local] A table of what each rank was doing, to be shown with the last SPL_EDISAGREE or SPL_ESTALL that was returned
 * here; NULL: there is none. Valid until the next or until it is dropped. */
const char *spl_runtime_report(const spl_runtime *rt);
void spl_runtime_drop_report(spl_runtime *rt);
/* [local] Does another rank want to know the line of the script? It sends SIGURG then, which may be left alone. */
int spl_runtime_asked(const spl_runtime *rt);
void spl_runtime_answer(spl_runtime *rt, const char *site);
/* [local] From now on each tensor's memory is noted with the line of the script that made it, as `site` says; NULL: no
 * longer. For a person who looks for what fills the memory: it costs a little for every tensor. */
typedef void (*spl_site_of)(void *ctx, char *out, size_t n);
void spl_runtime_note_origins(spl_runtime *rt, spl_site_of site, void *ctx);
/* [local] Calls take for every piece of tensor memory that was noted and lives, the latest first. */
typedef void (*spl_origin_take)(void *ctx, const char *site, const char *what, int category, int64_t bytes);
void spl_runtime_origins(const spl_runtime *rt, spl_origin_take take, void *take_ctx);
/* What to tell about where the script stands, for agreement and stalls ("sp_forward.lua:31"); copied, may be NULL. */
void spl_runtime_set_site(spl_runtime *rt, const char *site);
void spl_runtime_set_check(spl_runtime *rt, int on);

typedef struct spl_counters {
    int64_t live_tensors, live_storages, live_meshes, live_blocks;
    int64_t bytes_now[4], bytes_peak[4];  /* by spl_memory_category */
    int64_t comm_calls[SPL_COLL_KIND_COUNT], comm_bytes[SPL_COLL_KIND_COUNT]; /* logical bytes sent by this rank */
    double comm_seconds;         /* while anything travels, waiting for others included */
    double comm_exposed_seconds; /* the part not covered by compute */
    int64_t gemm_flops, attention_flops;
    int64_t attention_tiles; /* that the kernel visited, where it counts them: see spl_attn_args.tiles */
} spl_counters;
typedef enum spl_memory_category {
    SPL_MEM_WEIGHTS,
    SPL_MEM_ACTIVATIONS,
    SPL_MEM_BUFFERS,
    SPL_MEM_WORKSPACE
} spl_memory_category;
/* [local] */
void spl_counters_get(const spl_runtime *rt, spl_counters *out);
/* [local] Zeroes calls, bytes, seconds and flops; peaks restart from the present values. */
void spl_counters_reset(spl_runtime *rt);
/* [local] a + b of counts, the largest value where it does not fit: without memory any size runs. */
int64_t spl_saturated_sum(int64_t a, int64_t b);

/* ---------------------------------------------------------------- traces */

typedef struct spl_trace_config {
    int64_t most_events; /* a rank keeps at most so many and counts what it leaves out; 0: 200,000 */
    void (*site)(void *ctx, char *out, size_t n); /* where the script stands; NULL: what set_site said last */
    void *ctx;
} spl_trace_config;
/* [collective] From now on ops, communication, waits and memory are recorded. SPL_EARG where they are already. Times
 * are those of the calling thread: work that a backend queues is seen where it is waited for. */
spl_status spl_trace_start(spl_runtime *rt, const spl_trace_config *config);
/* [local] */
int spl_tracing(const spl_runtime *rt);
/* [local] Records something of the script's own that began at spl's monotonic clock `begin` and ends now. */
void spl_trace_span(spl_runtime *rt, const char *name, double begin);
/* [collective] Ends the recording; rank 0 writes one file of the Trace Event Format for all ranks, on one clock. With
 * `by_itself` [local]: this rank's part alone, when others may not answer any more; the recording goes on. The file is
 * written whole or not at all. SPL_EIO, on the rank that writes. */
spl_status spl_trace_write(spl_runtime *rt, const char *path, int by_itself);
/* [local] Ends the recording and forgets it. */
void spl_trace_drop(spl_runtime *rt);
/* [local] SPL_EIO where a trace could not be written to this path. */
spl_status spl_trace_check_path(const char *path);

/* ---------------------------------------------------------------- mesh */

typedef enum spl_role {
    SPL_ROLE_NONE,
    SPL_ROLE_TENSOR,
    SPL_ROLE_SEQUENCE,
    SPL_ROLE_DATA, /* built */
    SPL_ROLE_ULYSSES,
    SPL_ROLE_RING,
    SPL_ROLE_GATHER,
    SPL_ROLE_HIERARCHICAL,
    SPL_ROLE_FSDP,
    SPL_ROLE_PIPELINE, /* refused by name until they exist */
    SPL_ROLE_COUNT
} spl_role;
const char *spl_role_name(spl_role r);

typedef struct spl_axis {
    char name[SPL_NAME_BYTES];
    int size;
    spl_role role;
} spl_axis;

typedef struct spl_mesh_spec {
    int naxes;
    spl_axis axes[SPL_MAX_AXES]; /* first = outermost in rank order */
} spl_mesh_spec;

/* [local] Parses "dp=2:data, tp=*:sequence" for `world` ranks (spaces ignored; `*` once; the role is optional). Pure.
 * SPL_EUSAGE with the rule that broke and what would work. */
spl_status spl_mesh_parse(const char *text, int world, spl_mesh_spec *out);
/* [collective] */
spl_status spl_mesh_create(spl_runtime *rt, const spl_mesh_spec *spec, spl_mesh **out);
void spl_mesh_release(spl_mesh *m);
void spl_mesh_retain(spl_mesh *m);
const spl_mesh_spec *spl_mesh_spec_of(const spl_mesh *m);
int spl_mesh_coord(const spl_mesh *m, int axis); /* this rank's */
int spl_mesh_find(const spl_mesh *m, const char *axis); /* -1 when absent */
/* [local] On how many hosts the ranks of one group along the axis are, at most; 1: no group leaves a host. host_of
 * [ranks]: the host of each rank. */
int spl_mesh_spans(const spl_mesh_spec *spec, const int *host_of, int axis);
/* [local] The same where this job runs (axis < 0: of all ranks). */
int spl_mesh_hosts(const spl_mesh *m, int axis);
/* Writes "dp=2:data, tp=4:sequence"; returns the length it needs (snprintf). */
int spl_mesh_format(const spl_mesh_spec *spec, char *out, size_t n);

/* ---------------------------------------------------------------- layout */

typedef enum spl_place { SPL_REPLICATE, SPL_SHARD, SPL_PARTIAL } spl_place;
typedef enum spl_scheme { SPL_CONTIGUOUS, SPL_ZIGZAG, SPL_STRIPED } spl_scheme; /* names: contiguous zigzag striped */

/* Packed documents: where each begins, rising from 0; the last ends with the sequence. Counted references: masks and
 * tensors hold them, and whoever else keeps a layout calls spl_layout_retain. */
typedef struct spl_documents {
    int n, refs;
    int64_t begins[];
} spl_documents;

/* What one mesh axis does to a tensor.
 * shard: dimension `dim` is cut into units of `unit` elements (a head of head_dim elements is one unit), and the units
 * are split balanced. `cover` > 1 says that each unit stands for `cover` finer ones (query heads per KV head): the
 * finer ones are split, and a rank holds every unit that one of its finer ones needs, so neighbours may overlap; the
 * lowest holder owns. `nest`: where several axes split one dimension, the axis with the lower nest is the outer one
 * (ties: mesh order); an inner axis splits the outer's local list by its own scheme. `ragged`: units need not divide
 * the dimension; the last is shorter. `documents`: zigzag of each document by itself (see spl_layout_retain). */
typedef struct spl_placement {
    spl_place place;
    int dim;
    spl_scheme scheme;
    int64_t unit, cover; /* 0 means 1 */
    int nest;
    int ragged;
    const spl_documents *documents; /* NULL: the dimension is one */
} spl_placement;

/* Who holds what: pure data, no mesh pointer, so that it can be worked out for any rank of any mesh. */
typedef struct spl_layout {
    int ndim, naxes;
    int64_t shape[SPL_MAX_DIMS]; /* global */
    int axis_size[SPL_MAX_AXES];
    char axis_name[SPL_MAX_AXES][SPL_NAME_BYTES];
    spl_placement axes[SPL_MAX_AXES];
} spl_layout;

/* [local] Checks dims, units, schemes. A layout with every axis replicated is spl_layout_replicated. */
spl_status spl_layout_check(const spl_layout *l);
/* [local] For who keeps a copy of a layout: its documents live until as many releases. */
void spl_layout_retain(const spl_layout *l);
void spl_layout_release(const spl_layout *l);
void spl_layout_replicated(spl_layout *l, const spl_mesh_spec *mesh, int ndim, const int64_t *shape);
/* [local] Parses "tp=shard(2), cp=shard(2,zigzag)", "dp=replicate", "tp=partial"; dims 1-BASED as in Lua; axes not
 * named are replicated; options in shard(...): a scheme name, unit:N, cover:N, nest:N. */
spl_status spl_layout_parse(const char *text, const spl_mesh_spec *mesh, int ndim, const int64_t *shape,
                            spl_layout *out);
/* Writes the same notation ("replicate" where no axis does anything); returns the length it needs. */
int spl_layout_format(const spl_layout *l, char *out, size_t n);
int spl_layout_equal(const spl_layout *a, const spl_layout *b); /* same placements and shape, hence same holdings */
/* [local] Segments of `dim` held at mesh coordinates `coords`, in the order of local positions, merged where they join.
 * Returns how many there are; writes at most `max` of them. */
int spl_layout_segments(const spl_layout *l, const int *coords, int dim, spl_segment *out, int max);
int64_t spl_layout_local_size(const spl_layout *l, const int *coords, int dim);

/* ---------------------------------------------------------------- masks (attn_mask.c) */

typedef enum spl_slice_kind { /* the slices of MagiAttention */
    SPL_SLICE_FULL,    /* every pair of the rectangle */
    SPL_SLICE_CAUSAL,  /* k - k_end <= q - q_end: aligned at the bottom right corner */
    SPL_SLICE_INVERSE, /* k - k_begin >= q - q_begin: aligned at the top left corner */
    SPL_SLICE_BOTH     /* both bounds: a diagonal band */
} spl_slice_kind;

typedef struct spl_slice { /* queries [q_begin, q_end), keys [k_begin, k_end), global indices */
    int64_t q_begin, q_end, k_begin, k_end;
    spl_slice_kind kind;
} spl_slice;

/* Who sees whom in attention; immutable, counted references. With more keys than queries the last of both stand at the
 * same place. */
typedef struct spl_mask spl_mask;
/* [local] "causal", "full", "window:W" (the last W keys, itself included), "docs:N,N,..." (causal within documents of
 * these lengths, which must sum to the sequence), "prefix:N" (the first N keys are seen by all, the rest causal),
 * "padding:N" (only the first N tokens count; causal). SPL_EUSAGE for anything else. */
spl_status spl_mask_parse(const char *text, spl_mask **out);
/* [local] Any list of slices inside seq_q queries and seq_k keys that shows no pair twice; copied. */
spl_status spl_mask_from_slices(const spl_slice *slices, int n, int64_t seq_q, int64_t seq_k, spl_mask **out);
void spl_mask_retain(spl_mask *m);
void spl_mask_release(spl_mask *m);
int spl_mask_format(const spl_mask *m, char *out, size_t n); /* the notation above; returns the length it needs */
/* [local] The slices for these lengths (free the list), and how many (query, key) pairs they show, INT64_MAX where
 * there are as many or more. SPL_EUSAGE where the mask does not fit the lengths. */
spl_status spl_mask_slices(const spl_mask *m, int64_t seq_q, int64_t seq_k, spl_slice **out, int *n, int64_t *pairs);
/* Where documents begin; NULL where the mask knows of none. Lives as long as the mask. */
const spl_documents *spl_mask_documents(const spl_mask *m);

/* ---------------------------------------------------------------- tensor */

/* [local] A tensor of `mesh` with a layout, or of this rank alone (mesh and layout NULL, shape given). Contents
 * undefined. */
spl_status spl_tensor_create(spl_runtime *rt, spl_mesh *mesh, const spl_layout *layout, spl_dtype t,
                             spl_memory_category category, spl_tensor **out);
spl_status spl_tensor_create_local(spl_runtime *rt, int ndim, const int64_t *shape, spl_dtype t, spl_tensor **out);
/* [local] Drops the memory at once; other use then gives SPL_ERELEASED. The handle itself lives until
 * spl_tensor_release. */
void spl_tensor_drop(spl_tensor *t);
void spl_tensor_release(spl_tensor *t);
void spl_tensor_retain(spl_tensor *t);

int spl_tensor_dropped(const spl_tensor *t);
spl_dtype spl_tensor_dtype(const spl_tensor *t);
int spl_tensor_ndim(const spl_tensor *t);
const int64_t *spl_tensor_shape(const spl_tensor *t);       /* global */
const int64_t *spl_tensor_local_shape(const spl_tensor *t);
const spl_layout *spl_tensor_layout(const spl_tensor *t);   /* NULL for a local tensor */
spl_mesh *spl_tensor_mesh(const spl_tensor *t);             /* borrowed; NULL for a local tensor */
int64_t spl_tensor_local_count(const spl_tensor *t);

/* [local] By global index: the same values whatever the layout. `instance` tells tensors of one seed apart. */
spl_status spl_tensor_random(spl_tensor *t, spl_random_kind kind, uint64_t seed, uint64_t instance, double a, double b);
spl_status spl_tensor_fill(spl_tensor *t, double value);
/* [local] Takes this rank's part out of a dense global host array of `dtype` (converted). Partial axes: coordinate 0
 * takes it, others zero. */
spl_status spl_tensor_load(spl_tensor *t, const void *global, spl_dtype dtype);
/* [local] The same where the array lies elsewhere: fetch copies `n` bytes at byte `at` of it, mostly ascending. */
typedef spl_status spl_fetch(void *ctx, size_t at, size_t n, void *into);
spl_status spl_tensor_load_from(spl_tensor *t, spl_fetch *fetch, void *ctx, spl_dtype dtype);
/* [local] This rank's part, dense, converted to `dtype`, into host memory of spl_tensor_local_count elements. And back.
 */
spl_status spl_tensor_read(spl_tensor *t, void *host, spl_dtype dtype);
spl_status spl_tensor_write(spl_tensor *t, const void *host, spl_dtype dtype);
/* [local] sum, sum of squares, max, NaN count of the local part. */
spl_status spl_tensor_stats(spl_tensor *t, spl_stats *out);

/* [local] Views share storage. narrow: an unsharded dimension, or any of a local tensor. */
spl_status spl_tensor_narrow(spl_tensor *t, int dim, int64_t start, int64_t length, spl_tensor **out);
spl_status spl_tensor_transpose(spl_tensor *t, int dim_a, int dim_b, spl_tensor **out);
/* reshape: each sharded dimension must survive whole. Shares storage when t is dense, else is a view of a dense copy.
 */
spl_status spl_tensor_reshape(spl_tensor *t, int ndim, const int64_t *shape, spl_tensor **out);
/* [local] Views: dimension n as [n / inner, inner], and [a, b] as a * b; a shard of whole units stays a shard. */
spl_status spl_tensor_split(spl_tensor *t, int dim, int64_t inner, spl_tensor **out);
spl_status spl_tensor_merge(spl_tensor *t, int dim, spl_tensor **out);
/* [local] The local part as a tensor of this rank alone (a view). */
spl_status spl_tensor_local(spl_tensor *t, spl_tensor **out);
spl_status spl_tensor_contiguous(spl_tensor *t, spl_tensor **out); /* dense copy, or itself retained when dense */
spl_status spl_tensor_cast(spl_tensor *t, spl_dtype to, spl_tensor **out);
/* [local] Dense, in the same layout, with memory of its own. */
spl_status spl_tensor_copy(spl_tensor *t, spl_tensor **out);
int spl_tensor_shares(const spl_tensor *a, const spl_tensor *b); /* one storage? */

/* [collective over the axes that change] The same global tensor in another layout. Always a new handle; no copy when
 * nothing changes. */
spl_status spl_redistribute(spl_tensor *t, const spl_layout *to, spl_tensor **out);

/* ---------------------------------------------------------------- collectives on tensors of one rank */

/* [collective over the axis] On tensors of this rank alone that lie densely (views too), element after element. Of P
 * members this is number c; counts are equal on all:
 *   all-gather       n -> P*n, parts in member order       in place: send is part c of recv
 *   reduce-scatter   P*n -> n, part c of the sum           in place: recv is part c of send
 *   all-reduce       n -> n, the sum                       in place: both are the same elements
 *   broadcast        n -> n, member root's send            in place: the same elements; c != root: send may be NULL
 *   all-to-all       P*n -> P*n, part j to member j        never in place
 *   barrier          both NULL
 * SPL_EARG: other counts, two dtypes, a layout, any other sharing of memory. SPL_ERELEASED. root: broadcast only. */
spl_status spl_collective(spl_mesh *m, int axis, spl_coll_kind kind, spl_tensor *send, spl_tensor *recv, int root);
/* [collective over the axis] A step round the ring: send goes to member c + by, recv comes from c - by (mod P). */
spl_status spl_ring_shift(spl_mesh *m, int axis, spl_tensor *send, spl_tensor *recv, int64_t by);

/* ---------------------------------------------------------------- ops (forward). Layout rules: see op_*.c */

spl_status spl_linear(spl_tensor *x, spl_tensor *weight, spl_tensor *bias, spl_activation act, spl_tensor **y);
spl_status spl_norm(spl_tensor *x, spl_tensor *gamma, spl_tensor *beta, spl_norm_kind kind, double eps,
                    spl_tensor **y, spl_tensor **mean, spl_tensor **rstd); /* mean, rstd may be NULL */
spl_status spl_embed(spl_tensor *ids, spl_tensor *table,
                     spl_tensor **y); /* ids i64; a table sharded by rows gives a partial y */
spl_status spl_nll(spl_tensor *logits, spl_tensor *labels,
                   spl_tensor **nll); /* logits [b,s,vocab] unsharded in vocab; nll f64 [b,s] */
spl_status spl_add(spl_tensor *a, spl_tensor *b, spl_tensor **y);

/* ---------------------------------------------------------------- attention (attention.c, attn_call.c, attn_tile.c) */

/* How the sequence is dealt out along the axes that split it, and the chunks of hierarchical attention. */
typedef struct spl_schedule {
    spl_scheme scheme; /* of ring and gather axes, and of ulysses where there are none */
    int64_t chunk;     /* tokens (0: 1024) */
    int64_t summaries; /* of each chunk (0: 1) */
} spl_schedule;

typedef struct spl_attention_options {
    spl_mask *mask;        /* NULL: causal */
    double scale;          /* of the scores; 0: 1 / sqrt(head_dim) */
    spl_role role;         /* how keys travel: ring, gather or hierarchical; NONE: as the mesh's roles say, else ring */
    spl_schedule schedule; /* chunk and summaries of hierarchical */
    double dropout;        /* probability */
    uint64_t seed, instance, step; /* of dropout */
} spl_attention_options;

/* [collective over the mesh; local without one] softmax(scale q k^T) v with q [batch, seq, heads, head_dim], k and v
 * [batch, kv_seq, kv_heads, head_dim]; with more keys than queries the last of both stand at the same place. Along axes
 * that split both sequences keys travel; ulysses axes give heads and take them back. out as q; lse [batch, heads, seq]
 * in f32 (f64), natural log, may be NULL. A row that sees no key gets out 0 and lse -inf. */
spl_status spl_attention(spl_tensor *q, spl_tensor *k, spl_tensor *v, const spl_attention_options *options,
                         spl_tensor **out, spl_tensor **lse);
/* [collective over the mesh; local without one] The same, merged into what earlier calls with the same queries gave, as
 * if all their keys had been one call's (m = max(lse_a, lse_b); a part with lse -inf contributes nothing). out is f32
 * or f64, laid out as q; lse as the earlier call gave it; neither shares memory with the other or with q, k or v. */
spl_status spl_attention_into(spl_tensor *q, spl_tensor *k, spl_tensor *v, const spl_attention_options *options,
                              spl_tensor *out, spl_tensor *lse);
/* [local] The layout of q, or with cover > 1 of k and v of so many query heads each, that the roles of a mesh give:
 * shape [batch, seq, heads, head_dim]. SPL_EUSAGE as spl_block_schedule. */
spl_status spl_attention_layout(const spl_mesh_spec *mesh, const spl_schedule *s, spl_mask *mask,
                                const int64_t shape[4], int64_t cover, spl_layout *out);

/* [local] One tile, for schemes of one's own: some queries against some keys, whose places in the whole sequences are
 * the segments, in the order of rows. q, k and v are of this rank alone. out [batch, queries, heads, head_dim] and lse
 * [batch, heads, queries] are f32 (f64). With merge, *out and *lse are given and what they hold is combined with it. */
typedef struct spl_attention_part {
    const spl_segment *queries, *keys;
    int nqueries, nkeys;
    int64_t seq, kv_seq; /* of the whole */
    const spl_mask *mask; /* NULL: causal */
    double scale;         /* 0: 1 / sqrt(head_dim) */
    int merge;
} spl_attention_part;
spl_status spl_attention_tile(spl_tensor *q, spl_tensor *k, spl_tensor *v, const spl_attention_part *part,
                              spl_tensor **out, spl_tensor **lse);
/* [local] Two partial results of the same queries over keys that do not overlap, as one: weights exp(lse - m), m the
 * larger lse; a part with lse -inf contributes exactly nothing, whatever its out holds. In f32 (f64) from first to
 * last, whatever the dtype of out. */
spl_status spl_attention_merge(spl_tensor *out_a, spl_tensor *lse_a, spl_tensor *out_b, spl_tensor *lse_b,
                               spl_tensor **out, spl_tensor **lse);
/* [local] Attention of f32 tensors of this rank alone with all scores of a head in memory, to compare with. */
spl_status spl_attention_naive(spl_tensor *q, spl_tensor *k, spl_tensor *v, int causal, spl_tensor **out);
/* [local] The Philox key of dropout for a seed, an instance and a step. */
spl_rng_key spl_dropout_key(uint64_t seed, uint64_t instance, uint64_t step);

/* ---------------------------------------------------------------- transformer block */

typedef struct spl_block_config {
    int64_t hidden, heads, kv_heads, head_dim,
        ffn; /* kv_heads 0: heads; head_dim 0: hidden / heads; ffn 0: 4 * hidden */
    spl_norm_kind norm;
    double eps;             /* 0: 1e-5 */
    int separate_qkv;       /* 0: one head-interleaved weight; needs kv_heads == heads */
    int qkv_bias, out_bias, mlp_bias;
    spl_activation act;
    int gated;              /* SwiGLU: act(gate) * up */
    double rope_theta;      /* 0: no RoPE */
    int causal;             /* without a mask: causal or full */
    spl_mask *mask;         /* NULL: by `causal`. The block retains it. */
    double dropout_attention, dropout_hidden;
    uint64_t seed;          /* weights and dropout */
    int instance;           /* which block of a model: tells its weights and masks apart */
    spl_dtype dtype;
} spl_block_config;

/* [local] Fills in defaults and refuses what cannot be (SPL_EUSAGE). */
spl_status spl_block_create(spl_runtime *rt, const spl_block_config *config, spl_block **out);
void spl_block_release(spl_block *b);
void spl_block_retain(spl_block *b);

/* [collective] Chooses layouts from the roles of the mesh's axes and makes the weights (normal, 0.02; by global index).
 * `options` may be NULL: all 0. SPL_EUSAGE for what cannot be, with the nearest mesh that works. */
spl_status spl_block_schedule(spl_block *b, spl_mesh *mesh, const spl_schedule *options);
const spl_schedule *spl_block_schedule_of(const spl_block *b);
const spl_block_config *spl_block_config_of(const spl_block *b);
spl_mesh *spl_block_mesh(const spl_block *b);
/* [local] Weights by name, in a fixed order: ln0_gamma ln0_beta mha_linear0_weight mha_linear0_bias (or mha_q/k/v_...)
 * ... */
int spl_block_param_count(const spl_block *b);
const char *spl_block_param_name(const spl_block *b, int i);
spl_tensor *spl_block_param(const spl_block *b, int i); /* borrowed */
/* [local] The layout in which forward takes x and gives out, for [batch, seq, hidden]. */
spl_status spl_block_io_layout(const spl_block *b, int64_t batch, int64_t seq, spl_layout *out);

enum { SPL_MAX_SAVED = 20 };
typedef struct spl_saved { /* owned by the caller; release each tensor */
    int count;
    char name[SPL_MAX_SAVED][SPL_NAME_BYTES];
    spl_tensor *tensor[SPL_MAX_SAVED];
    uint64_t seed, offset; /* dropout state: Philox seed and step */
} spl_saved;

/* [collective] x [batch, seq, hidden]; any layout of the block's mesh (redistributed when it is not the io layout).
 * saved may be NULL: then nothing is kept that the output does not need. */
spl_status spl_block_forward(spl_block *b, spl_tensor *x, uint64_t step, spl_tensor **y, spl_saved *saved);
/* The Philox key of one dropout of this block at a step: 0 attention, 1 after attention, 2 after the MLP. */
spl_rng_key spl_block_dropout_key(const spl_block *b, int which, uint64_t step);
/* FLOPs of one forward over all ranks: GEMMs 2mnk, attention 4*head_dim per visible (query, key, head). */
void spl_block_flops(const spl_block *b, int64_t batch, int64_t seq, double *gemm, double *attention);

/* One line of explain: an op with the layout of its output, or a communication with its bytes. */
typedef struct spl_explain_line {
    char what[SPL_NAME_BYTES];  /* op or collective name */
    char subject[SPL_NAME_BYTES]; /* tensor name, e.g. "mha_linear0_out" */
    char axis[SPL_NAME_BYTES];  /* mesh axis of a communication, "" for an op */
    char layout[160];           /* of the result */
    int ndim;
    int64_t shape[SPL_MAX_DIMS], local_shape[SPL_MAX_DIMS];
    int64_t bytes;              /* logical bytes this rank sends; 0 for an op */
} spl_explain_line;
/* [local] Runs the same forward on a backend without memory as `rank` of the block's mesh, and hands out each line in
 * order. */
spl_status spl_block_explain(const spl_block *b, int64_t batch, int64_t seq, int rank,
                             void (*line)(void *ctx, const spl_explain_line *l), void *ctx);

/* ---------------------------------------------------------------- safetensors */

typedef struct spl_safetensors_entry {
    const char *name; /* owned by the file */
    spl_dtype dtype;
    int ndim;
    int64_t shape[SPL_MAX_DIMS];
    size_t at, bytes; /* where its bytes lie within the data of the file, dense */
} spl_safetensors_entry;

/* [local] Opens and validates one file: header length, JSON, dtypes, offsets in range, not overlapping, sizes that
 * match. The data stays in the file until it is read, so that a file that someone cuts short meanwhile is an error. */
spl_status spl_safetensors_open(const char *path, spl_safetensors **out);
/* [local] The same on bytes in memory, which must outlive it; `name` is used in messages. */
spl_status spl_safetensors_parse(const void *bytes, size_t n, const char *name, spl_safetensors **out);
void spl_safetensors_close(spl_safetensors *s);
void spl_safetensors_retain(spl_safetensors *s); /* close then lets go of one reference */
/* [local] Bytes `at` to `at + n` of an entry. SPL_EIO where the file no longer has them. */
spl_status spl_safetensors_read(spl_safetensors *s, const spl_safetensors_entry *e, size_t at, size_t n, void *into);
int spl_safetensors_count(const spl_safetensors *s);
const spl_safetensors_entry *spl_safetensors_at(const spl_safetensors *s, int i); /* in file order of offsets */
const spl_safetensors_entry *spl_safetensors_find(const spl_safetensors *s, const char *name); /* NULL when absent */

#ifdef __cplusplus
}
#endif
#endif
