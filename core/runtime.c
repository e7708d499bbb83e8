/* runtime.c: opening and closing what hangs on one rank, and how ranks end together.
 *
 * Opening: comm, control messages, cores, backend, queues. Closing: queues, backend, control messages, comm (MPI last).
 *
 * The end of a job: each rank tells every other once how it ended. A rank that did well waits for all the others; one
 * that failed waits a little, so that the lowest of those that failed on their own account speaks, and then ends the
 * job for all unless everybody has ended by then. A rank that failed only since another had ended is not the cause and
 * does not speak. */
#include "comm_pairwise.h"
#include "control.h"
#include "cores.h"
#include "memory_cache.h"
#include "sim.h"
#include "trace.h"
#include "whereabouts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- opening */

static spl_status buffer_alloc(void *owner, size_t bytes, void **out) {
    return spli_alloc(owner, SPL_MEM_BUFFERS, bytes, out);
}
static void buffer_free(void *owner, void *p, size_t bytes) { spli_free(owner, SPL_MEM_BUFFERS, p, bytes); }

static spl_status open_comm(spl_runtime *rt, const spl_runtime_config *config) {
    rt->dry = config->dry_size > 0;
    /* the backend is opened later, since it is told how many threads it has, which ranks agree on */
    if (rt->dry) SPL_TRY(spli_comm_dry_open(config->dry_rank, config->dry_size, rt->backend, NULL, NULL, &rt->world));
    else if (config->sim)
        SPL_TRY(spli_comm_sim_open(config->sim, config->sim_rank, rt->backend, NULL, NULL, &rt->world));
    else if (spli_comm_mpi_launched()) SPL_TRY(spli_comm_mpi_open(rt->backend, NULL, NULL, &rt->world));
    else SPL_TRY(spli_comm_self_open(rt->backend, NULL, NULL, &rt->world));
    rt->sim = config->sim;
    rt->rank = rt->world->rank;
    rt->size = rt->world->size;
    rt->world->memory = (spl_comm_memory){.alloc = buffer_alloc, .free = buffer_free, .owner = rt};
    return spli_ok();
}

static int threads_asked_for(const spl_runtime_config *config) {
    if (config->threads > 0) return config->threads;
    const char *text = getenv("OMP_NUM_THREADS");
    int n = text ? atoi(text) : 0; /* "4,2" means 4 at the outermost level */
    return n > 0 ? n : 0;
}

static spl_status share_cores(spl_runtime *rt, const spl_runtime_config *config) {
    int asked = threads_asked_for(config);
    rt->threads = asked > 0 ? asked : 1;
    rt->local_ranks = 1;
    if (rt->dry) return spli_ok();
    spli_cores here, *all = malloc(sizeof *all * (size_t)rt->size);
    if (!all) return spli_error(SPL_ENOMEM, "out of memory while opening %d ranks", rt->size);
    spli_cores_here(&here);
    spli_slot_place(rt, &here);
    spl_status status = spl_gather_bytes(rt, &here, sizeof here, all);
    if (status.code == SPL_OK) {
        int share = spli_cores_threads(all, rt->size, rt->rank, &rt->local_ranks);
        if (asked == 0) rt->threads = share;
        rt->host_of = malloc(sizeof *rt->host_of * (size_t)rt->size);
        if (rt->host_of)
            spli_cores_hosts(all, rt->size, rt->host_of);
        else
            status = spli_error(SPL_ENOMEM, "out of memory while opening %d ranks", rt->size);
    }
    if (status.code == SPL_OK) {
        status = spli_slots_note(rt, all);
    }
    free(all);
    return status;
}

static spl_status open_backend(spl_runtime *rt) {
    const spl_backend_ops *b = rt->backend;
    SPL_TRY(b->open(rt->rank, rt->threads, &rt->backend_ctx));
    rt->backend_open = 1;
    SPL_TRY(b->queue_open(rt->backend_ctx, &rt->compute));
    rt->comm_queue = rt->compute; /* sums and copies of collectives run in line with compute */
    if (b->device_memory) SPL_TRY(b->queue_open(rt->backend_ctx, &rt->comm_queue)); /* or beside it */
    rt->world->backend_ctx = rt->backend_ctx;
    rt->world->queue = rt->comm_queue;
    return b->device_memory ? spli_staging_open(rt->world) : spli_ok();
}

/* What ranks tell each other about their devices before they choose how memory moves between them. */
typedef struct device_word {
    char device[160], refusal[160]; /* why the plugin's own comm cannot be; "": it can */
} device_word;

static int shared_device(const device_word *all, int n, int *first, int *second) {
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++)
            if (strcmp(all[i].device, all[j].device) == 0) return *first = i, *second = j, 1;
    return 0;
}

/* The plugin's comm, where every rank can have it and has a device of its own; else memory goes through the host. The
 * choice is the same on all ranks, and said in the runtime's description. */
static spl_status open_device_comm(spl_runtime *rt) {
    const spl_plugin *plugin = spli_plugin_of(rt->backend);
    if (!plugin || !plugin->comm_open || rt->size == 1 || rt->sim) return spli_ok();
    device_word mine = {.refusal = ""}, *all = malloc(sizeof *all * (size_t)rt->size);
    spl_comm *comm = NULL;
    int a = 0, b = 0, refuses = -1;
    if (!all) return spli_error(SPL_ENOMEM, "out of memory while opening %d ranks", rt->size);
    spl_status status = plugin->device_id(rt->backend_ctx, mine.device, sizeof mine.device);
    if (status.code == SPL_OK) {
        spl_status opened = plugin->comm_open(rt->world, &comm);
        if (opened.code != SPL_OK) snprintf(mine.refusal, sizeof mine.refusal, "%.150s", opened.message);
        status = spl_gather_bytes(rt, &mine, sizeof mine, all);
    }
    for (int i = rt->size - 1; status.code == SPL_OK && i >= 0; i--)
        if (all[i].refusal[0]) refuses = i;
    const char *described = rt->backend->describe(rt->backend_ctx);
    if (status.code != SPL_OK) {
        free(all);
        if (comm) comm->ops->close(comm);
        return status;
    }
    if (shared_device(all, rt->size, &a, &b)) {
        snprintf(rt->transport, sizeof rt->transport,
                 "%.200s; between ranks: pinned host memory and MPI, as ranks %d and %d share a GPU", described, a, b);
    } else if (refuses >= 0) {
        snprintf(rt->transport, sizeof rt->transport, "%.200s; between ranks: pinned host memory and MPI (%.80s)",
                 described, all[refuses].refusal);
    } else {
        snprintf(rt->transport, sizeof rt->transport, "%.200s; between ranks: %s", described, comm->ops->name);
        rt->host_world = rt->world;
        rt->world = comm;
        comm = NULL;
    }
    if (comm) comm->ops->close(comm);
    free(all);
    return spli_ok();
}

/* The device's own comm goes before the device's queues, the one it stands on last of all. */
static void close_device_comm(spl_runtime *rt) {
    if (!rt->host_world) return;
    rt->world->ops->close(rt->world);
    rt->world = rt->host_world;
    rt->host_world = NULL;
}

static spl_status check_config(const spl_runtime_config *c) {
    if (c->backend && c->backend->abi != SPL_BACKEND_ABI)
        return spli_error(SPL_EENV,
                          "backend %s was built for interface %d, this program has %d; build both from one version",
                          c->backend->name, c->backend->abi, SPL_BACKEND_ABI);
    if (c->timeout < 0 || c->timeout != c->timeout)
        return spli_error(SPL_EUSAGE, "the time limit is %g s; give seconds above 0", c->timeout);
    if (c->threads < 0) return spli_error(SPL_EUSAGE, "%d threads were asked for; give 1 or more", c->threads);
    return spli_ok();
}

static void close_backend(spl_runtime *rt) {
    if (!rt->backend_open) return;
    close_device_comm(rt);
    spli_cache_close(rt);
    if (rt->backend->device_memory) spli_staging_close(rt->world);
    if (rt->comm_queue && rt->comm_queue != rt->compute)
        rt->backend->queue_close(rt->backend_ctx, rt->comm_queue);
    if (rt->compute) rt->backend->queue_close(rt->backend_ctx, rt->compute);
    rt->backend->close(rt->backend_ctx);
    rt->backend_open = 0;
    rt->compute = rt->comm_queue = NULL;
    rt->backend_ctx = NULL;
}

spl_status spl_runtime_open(const spl_runtime_config *config, spl_runtime **out) {
    static const spl_runtime_config defaults;
    spl_status status = spli_ok();
    *out = NULL;
    if (!config) config = &defaults;
    SPL_TRY(check_config(config));
    spl_runtime *rt = calloc(1, sizeof *rt);
    if (!rt) return spli_error(SPL_ENOMEM, "out of memory while opening the runtime");
    rt->backend = config->backend ? config->backend : spli_backend_find("cpu");
    rt->timeout = config->timeout > 0 ? config->timeout : 60;
    rt->interrupt = config->interrupt;
    rt->next_comm_id = 1; /* 0 is the world */
    SPL_GO(spli_slot_open(rt), fail);
    SPL_GO(open_comm(rt, config), fail);
    SPL_GO(spli_control_open(rt), fail);
    SPL_GO(share_cores(rt, config), fail);
    SPL_GO(open_backend(rt), fail);
    SPL_GO(open_device_comm(rt), fail);
    int64_t room = spli_memory_free();
    rt->memory_share = room > 0 && !rt->dry ? room / rt->local_ranks : 0;
    rt->check = config->check_collectives != 0;
    *out = rt;
    return spli_ok();
fail:
    close_backend(rt);
    spli_control_close(rt);
    /* Other ranks may be well: closing MPI would wait for them. The process is about to end, which ends the job. */
    if (rt->world && (rt->size == 1 || rt->dry)) rt->world->ops->close(rt->world);
    spli_slots_close(rt);
    free(rt->host_of);
    free(rt);
    return status;
}

spl_status spl_runtime_close(spl_runtime *rt, int *leaked) {
    if (leaked) *leaked = 0;
    if (!rt) return spli_ok();
    const spl_counters *c = &rt->counters;
    if (leaked) *leaked = (int)(c->live_tensors + c->live_storages + c->live_meshes + c->live_blocks);
    spli_trace_free(rt);
    spl_status status = spli_wait_queue(rt, rt->compute);
    close_backend(rt);
    rt->world->ops->close(rt->world);
    rt->world = NULL;
    spli_control_close(rt);
    spli_slots_close(rt);
    free(rt->host_of);
    free(rt);
    return status;
}

/* ---------------------------------------------------------------- small things */

spl_status spl_synchronize(spl_runtime *rt) {
    SPL_TRY(spli_wait_queue(rt, rt->compute));
    return rt->comm_queue == rt->compute ? spli_ok() : spli_wait_queue(rt, rt->comm_queue);
}

int spl_rank(const spl_runtime *rt) { return rt->rank; }
int spl_size(const spl_runtime *rt) { return rt->size; }
int spl_threads(const spl_runtime *rt) { return rt->threads; }
int spl_virtual(const spl_runtime *rt) { return rt->sim != NULL; }
int spl_runtime_follows(const spl_runtime *rt) { return rt->control && rt->control->follows; }
int64_t spl_memory_share(const spl_runtime *rt) { return rt->memory_share; }
void spl_runtime_set_check(spl_runtime *rt, int on) { rt->check = on != 0; }

void spl_runtime_set_site(spl_runtime *rt, const char *site) {
    snprintf(rt->site, sizeof rt->site, "%s", site ? site : "");
    memcpy(rt->slot->site, rt->site, sizeof rt->slot->site);
    rt->slot->activity = SPLI_IN_SCRIPT;
}

/* ---------------------------------------------------------------- the end */

typedef struct finish_wait {
    spl_runtime *rt;
    double until; /* < 0: without limit */
    int all;
} finish_wait;

static spl_status poll_finish(void *ctx, int *done, uint64_t *progress) {
    finish_wait *w = ctx;
    w->all = 1;
    for (int p = 0; p < w->rt->size; p++) {
        if (p == w->rt->rank) continue;
        SPL_TRY(spli_control_drain(w->rt, p));
        w->all &= w->rt->control->peers[p].ended;
    }
    *done = w->all || (w->until >= 0 && spli_now() > w->until);
    *progress = w->rt->control->letters;
    return spli_ok();
}

/* Who failed first in rank order, on its own account if anybody did; -1: nobody. */
static int first_failure(const spl_runtime *rt, int exit_code, int follows, int *code) {
    int found = -1, found_follows = 0;
    for (int p = 0; p < rt->size; p++) {
        const spli_peer *peer = &rt->control->peers[p];
        int his = p == rt->rank ? exit_code : peer->ended ? peer->exit_code : 0;
        int his_follows = p == rt->rank ? follows : peer->follows;
        if (his == 0 || (found >= 0 && his_follows >= found_follows)) continue;
        found = p;
        found_follows = his_follows;
        *code = his;
    }
    return found;
}

void spl_runtime_finish(spl_runtime *rt, int exit_code, double seconds, int *speak, int *worst, int *all) {
    *worst = exit_code;
    *speak = exit_code != 0;
    *all = 1;
    if (rt->size == 1 || rt->dry) return;
    spli_message m = {.type = SPLI_ENDED};
    /* an interrupt is how a launcher ends the ranks that are left: the cause only when no rank failed otherwise */
    int follows = exit_code == 0 ? 0 : rt->control->follows ? 2 : rt->interrupt && *rt->interrupt;
    m.as.ended.exit_code = exit_code;
    m.as.ended.follows = follows;
    /* a message that does not get through is the other's loss: this rank ends in any case */
    for (int p = 0; p < rt->size && !rt->control->said_end; p++)
        if (p != rt->rank) (void)spli_control_send(rt, p, &m);
    rt->control->said_end = 1;

    const char *what = "the other ranks to end";
    spli_slot *slot = rt->slot, aside = *slot;
    if (exit_code != 0) rt->slot = &aside; /* others may still want to see what this rank failed in */
    const volatile int *interrupt = rt->interrupt;
    if (exit_code != 0) rt->interrupt = NULL; /* an interrupt may be why this rank ends: the others are still asked */
    finish_wait w = {.rt = rt, .until = exit_code == 0 ? -1 : spli_now() + seconds};
    spl_status status = spli_wait_for(rt, poll_finish, &w, -1, 0, what);
    if (status.code == SPL_OK && exit_code != 0 && !w.all && first_failure(rt, exit_code, follows, worst) != rt->rank) {
        w.until += seconds + 0.5; /* whoever speaks comes later than this rank, and must not be cut short */
        status = spli_wait_for(rt, poll_finish, &w, -1, 0, what);
    }
    rt->slot = slot;
    rt->interrupt = interrupt;
    *all = w.all;
    *worst = 0;
    *speak = first_failure(rt, exit_code, follows, worst) == rt->rank ? 1 + follows : 0;
    if (status.code != SPL_OK && *worst == 0) *worst = spl_exit_code(status.code);
}

void spl_runtime_abort(spl_runtime *rt, int exit_code) { rt->world->ops->abort(rt->world, exit_code); }
