/* nccl.cpp: NCCL over non-blocking messages of MPI on MPI_COMM_WORLD. Members find each other by the unique id, which
 * says where the first of them is; a collective is one work of its stream, which polls its messages and never waits.
 * Communicators do not block: a group is put on the stream some polls after its end, as it may be with NCCL. Parts that
 * do not fit what the other side expects, and device memory that is not there, end the program. */
#include "emu.h"
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mpi.h>
#include <nccl.h>
#include <unistd.h>
#include <vector>

using namespace emu;

struct Message {
    bool sending;
    void *device;
    size_t bytes;
    int peer; /* world rank */
    std::vector<char> host;
    MPI_Request request;
};

struct ncclComm {
    int rank, size, tag, polls;
    bool ready, root;
    std::vector<int> world;  /* of each member */
    std::vector<int> found;  /* bootstrap: {member, world rank} pairs */
    std::vector<MPI_Request> requests;
    bool told;
    cudaStream_t stream; /* of the group that is not on its stream yet */
    std::vector<Message> waiting;
};

struct Id { int world_rank, tag; };

static int depth;
static std::vector<ncclComm_t> in_group;

static int world_rank() {
    int r = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &r);
    return r;
}

static void post(Message &m, int tag) {
    m.host.resize(m.bytes);
    if (m.sending) {
        reads(m.device, m.bytes);
        memcpy(m.host.data(), m.device, m.bytes);
        MPI_Isend(m.host.data(), (int)m.bytes, MPI_BYTE, m.peer, tag, MPI_COMM_WORLD, &m.request);
    } else {
        MPI_Irecv(m.host.data(), (int)m.bytes, MPI_BYTE, m.peer, tag, MPI_COMM_WORLD, &m.request);
    }
}

static bool arrived(Message &m) {
    MPI_Status status;
    int done = 0, n = 0;
    if (m.request == MPI_REQUEST_NULL) return true;
    if (MPI_Test(&m.request, &done, &status) != MPI_SUCCESS)
        die("ncclRecv: a member sends more than the %zu bytes that are expected of it", m.bytes);
    if (!done) return false;
    if (!m.sending) {
        MPI_Get_count(&status, MPI_BYTE, &n);
        if ((size_t)n != m.bytes) die("ncclRecv: a member sends %d bytes, %zu are expected of it", n, m.bytes);
        writes(m.device, m.bytes);
        memcpy(m.device, m.host.data(), m.bytes);
    }
    return true;
}

static void put_on_stream(ncclComm_t c) {
    auto work = std::make_shared<std::vector<Message>>(std::move(c->waiting));
    auto posted = std::make_shared<bool>(false);
    const int tag = c->tag + 1;
    c->waiting.clear();
    if (work->empty()) return;
    enqueue(c->stream, "a group of NCCL", [=] {
        if (!*posted)
            for (auto &m : *work) post(m, tag);
        *posted = true;
        bool all = true;
        for (auto &m : *work) all &= arrived(m);
        return all;
    });
}

static void join(ncclComm_t c) {
    int done = 0;
    MPI_Testall((int)c->requests.size(), c->requests.data(), &done, MPI_STATUSES_IGNORE);
    if (!done) return;
    if (!c->root) {
        c->ready = true;
    } else if (!c->told) {
        for (int i = 0; i + 1 < c->size; i++) c->world[(size_t)c->found[2 * (size_t)i]] = c->found[2 * (size_t)i + 1];
        c->requests.assign((size_t)c->size - 1, MPI_REQUEST_NULL);
        for (int m = 1; m < c->size; m++)
            MPI_Isend(c->world.data(), c->size, MPI_INT, c->world[(size_t)m], c->tag, MPI_COMM_WORLD,
                      &c->requests[(size_t)m - 1]);
        c->told = true;
        join(c);
    } else {
        c->ready = true;
    }
}

extern "C" {

ncclResult_t ncclGetVersion(int *v) { return *v = 22800, ncclSuccess; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static int made;
    memset(id, 0, sizeof *id);
    const Id it = {world_rank(), 1 << 20 | ((world_rank() * 512 + made++ % 512) & 0x3ffff) << 1};
    memcpy(id->internal, &it, sizeof it);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *config) {
    Id it;
    memcpy(&it, id.internal, sizeof it);
    if (config->blocking != 0) die("a communicator that blocks is asked for");
    ncclComm_t c = *out = new ncclComm();
    c->rank = rank;
    c->size = n;
    c->tag = it.tag;
    c->root = rank == 0;
    c->world.assign((size_t)n, -1);
    c->world[(size_t)rank] = world_rank();
    if (c->root) {
        c->found.resize(2 * (size_t)n);
        c->requests.resize((size_t)n - 1);
        for (int m = 1; m < n; m++)
            MPI_Irecv(&c->found[2 * (size_t)m - 2], 2, MPI_INT, MPI_ANY_SOURCE, c->tag, MPI_COMM_WORLD,
                      &c->requests[(size_t)m - 1]);
    } else {
        c->found = {rank, world_rank()};
        c->requests.resize(2);
        MPI_Irecv(c->world.data(), n, MPI_INT, it.world_rank, c->tag, MPI_COMM_WORLD, &c->requests[0]);
        MPI_Isend(c->found.data(), 2, MPI_INT, it.world_rank, c->tag, MPI_COMM_WORLD, &c->requests[1]);
    }
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state) {
    if (!c->ready) join(c);
    if (c->ready && !c->waiting.empty() && ++c->polls > 2) put_on_stream(c);
    *state = c->ready && c->waiting.empty() ? ncclSuccess : ncclInProgress;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c) { return delete c, ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t c) { return delete c, ncclSuccess; }

const char *ncclGetErrorString(ncclResult_t r) { return r == ncclSuccess ? "no error" : "an emulated error"; }

ncclResult_t ncclGroupStart(void) { return depth++, ncclSuccess; }

ncclResult_t ncclGroupEnd(void) {
    if (--depth > 0) return ncclSuccess;
    const bool any = !in_group.empty();
    for (auto c : in_group) c->polls = 0;
    in_group.clear();
    return any ? ncclInProgress : ncclSuccess;
}

static void add(ncclComm_t c, cudaStream_t s, bool sending, const void *p, size_t n, int peer) {
    if (!c->ready) die("a communicator is used before all its members have joined");
    if (depth == 0) die("ncclSend and ncclRecv outside of a group");
    check_device(p, n, sending ? "ncclSend" : "ncclRecv");
    c->stream = s;
    c->waiting.push_back({sending, (void *)p, n, c->world[(size_t)peer], {}, MPI_REQUEST_NULL});
    in_group.push_back(c);
}

ncclResult_t ncclSend(const void *p, size_t n, ncclDataType_t, int peer, ncclComm_t c, cudaStream_t s) {
    return add(c, s, true, p, n, peer), ncclSuccess;
}

ncclResult_t ncclRecv(void *p, size_t n, ncclDataType_t, int peer, ncclComm_t c, cudaStream_t s) {
    return add(c, s, false, p, n, peer), ncclSuccess;
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t, int root, ncclComm_t c,
                           cudaStream_t s) {
    if (c->rank != root) return add(c, s, false, to, n, root), ncclSuccess;
    for (int m = 0; m < c->size; m++)
        if (m != root) add(c, s, true, from, n, m);
    if (from != to) cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, s);
    return ncclSuccess;
}
}
