/* control.h: small messages between ranks apart from data: agreement on collectives, how each rank ended, and host
 * values. They arrive in order per pair of ranks; what is not asked for yet waits in an inbox per rank. */
#ifndef SPL_CONTROL_H
#define SPL_CONTROL_H
#include "runtime.h"

typedef enum spli_message_type {
    SPLI_FINGERPRINT = 1, /* "I am about to call this": see fingerprint.c */
    SPLI_VERDICT,         /* "the fingerprints I got agree", or why not */
    SPLI_ENDED,           /* the sender's script is over */
    SPLI_HOST,            /* a piece of host data: see host_values.c */
    SPLI_REPORT,          /* a piece of the table that goes with the verdict that follows */
    SPLI_TURN,            /* a piece of the text of a turn: see turn.c */
    SPLI_TURN_END,        /* the sender's turn is over */
    SPLI_TURN_TEXT,       /* a piece of what came of it, to rank 0 */
    SPLI_TURN_STOP        /* rank 0 asks all ranks to stop the turn */
} spli_message_type;

/* What a member is about to call, as one other member can judge it. */
typedef struct spli_fingerprint {
    int32_t kind; /* spl_coll_kind, or one of spli_host_kind */
    int32_t dtype, root, size;
    int64_t send, expect; /* elements I send to you, and expect from you */
    int64_t total;        /* elements, for messages */
    char axis[32], site[128];
} spli_fingerprint;

typedef enum spli_host_kind {
    SPLI_HOST_SUM = 100,
    SPLI_HOST_MAX,
    SPLI_HOST_MIN,
    SPLI_HOST_BYTES,
    SPLI_HOST_PLAN
} spli_host_kind;

enum { SPLI_VERDICT_BYTES = 440, SPLI_HOST_PIECE = 440, SPLI_TEXT_PIECE = 440 };

typedef struct spli_step { /* what keeps ranks in step from turn to turn */
    uint64_t sequence;     /* no collective of any comm has had this number or a higher one */
    uint32_t next_comm_id;
    int32_t code;          /* how the sender's turn ended */
    int32_t follows;       /* failed only because another rank's turn had ended */
} spli_step;

typedef struct spli_message {
    int32_t type;
    uint32_t comm_id;
    uint64_t sequence;
    union {
        spli_fingerprint print;
        struct {
            int32_t code;      /* spl_code: SPL_OK agrees */
            int32_t follows;   /* given up since another rank had failed */
            int32_t elsewhere; /* given up since a member makes another comm's call: */
            uint32_t its_comm; /* this one */
            uint64_t its_sequence;
            char text[SPLI_VERDICT_BYTES];
        } verdict;
        struct {
            int32_t exit_code, follows; /* follows: failed only because another rank had ended */
        } ended;
        struct {
            int32_t kind, code; /* code: SPL_OK, or an answer that is an error with its sentence in `bytes` */
            int64_t bytes, offset;
            char piece[SPLI_HOST_PIECE];
        } host;
        struct { /* of a report, a turn, or what came of one; `sequence` is the turn */
            int64_t bytes, offset;
            char piece[SPLI_TEXT_PIECE];
        } text;
        spli_step step; /* goes before the pieces of a turn, and ends one */
    } as;
} spli_message;

typedef struct spli_letter {
    struct spli_letter *next;
    spli_message m;
} spli_letter;

typedef struct spli_peer {
    spli_letter *inbox;
    int ended, exit_code, follows;
    uint64_t turn_done; /* the last turn that it has ended, */
    spli_step step;     /* and what it said then */
} spli_peer;

typedef struct spli_seen { /* how far agreements over a comm have come here: older messages are stale */
    uint32_t comm_id;
    uint64_t next;
} spli_seen;

typedef struct spli_heard { /* what a member of a call is known to call, for the table of a failure */
    int there;
    uint32_t comm_id;
    spli_fingerprint print;
} spli_heard;

typedef struct spli_control {
    spli_heard *heard; /* [size], by world rank, of the last agreement */
    spli_peer *peers; /* [size], by world rank */
    spli_seen *seen;
    int nseen, max_seen;
    int said_end;
    int follows;      /* a wait here failed because another rank had ended */
    uint64_t letters; /* received so far, for progress */
    uint64_t turn, turn_stop; /* the turn under way (0: none); the one that rank 0 wants stopped */
    int in_turn;      /* between its beginning and its end here */
    spli_step step;   /* agreed when the turn began: see turn.c */
} spli_control;

spl_status spli_control_open(spl_runtime *rt);
void spli_control_close(spl_runtime *rt);
spl_status spli_control_send(spl_runtime *rt, int peer, const spli_message *m);
/* Takes in all that has arrived from `peer`; never blocks. */
spl_status spli_control_drain(spl_runtime *rt, int peer);
/* Removes *at (a letter in an inbox list) and frees it. */
void spli_control_drop(spli_letter **at);
/* An error when another rank has failed: SPL_EDISAGREE naming it. `what` is what this rank waits for. */
spl_status spli_control_watch(spl_runtime *rt, const char *what);
/* The same for a rank that ended well, though this rank needs it. */
spl_status spli_control_ended(spl_runtime *rt, int peer, const char *what);

/* 1 when this rank is to end its turn, as far as messages that came say (turn.c). */
int spli_turn_over(const spl_runtime *rt);

/* Agreement on a call that moves `total` elements between all members of c and is no data collective (kind:
 * spli_host_kind). */
spl_status spli_agree_host(spl_runtime *rt, spl_comm *c, int kind, int64_t total);

#endif
