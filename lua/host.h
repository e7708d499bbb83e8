/* host.h: inside of the host: one lua_State and one runtime a rank, and how a run of a script begins and ends. */
#ifndef LSPL_HOST_H
#define LSPL_HOST_H
#include <lua.h>
#include "spl.h"

typedef struct lspl_options { /* of `spl run` and its relatives, as the command line gave them */
    const char *command;
    int alone;              /* a command that is no job of ranks */
    int ranks;              /* -n; 0: not given */
    int virtual_ranks;      /* --virtual; 0: not given */
    const char *backend;    /* NULL: cpu */
    double timeout;         /* 0: the runtime's own */
    const char *trace;      /* --trace: the file; NULL: none */
    int check_collectives;
    int threads;            /* 0: this rank's share */
    int strict;             /* reading an undefined global is an error */
    const char *script;     /* resolved path, or NULL for a module */
    const char *module;     /* embedded module whose function `main` is the script */
    char **args;            /* what the script gets, args[nargs] == NULL */
    int nargs;
} lspl_options;

enum { LSPL_TEXT_BYTES = 8192 };
enum { LSPL_ONCE = 1, LSPL_ALWAYS }; /* lspl_host.gives_way */

enum { LSPL_IDLE = 2 };

typedef struct lspl_host {
    const lspl_options *options;
    spl_sim *sim;         /* virtual ranks: this host is one of them */
    int sim_rank;
    struct lspl_host *next; /* of the hosts of this process, for signals */
    spl_runtime *runtime; /* NULL: a state without ranks (help) */
    lua_State *L;
    lua_State *running;   /* the coroutine that runs; NULL: the main one */
    volatile int gives_way; /* a virtual rank: it lets the others go on while it computes in Lua */
    volatile int signal;  /* SIGINT or SIGTERM when it came; also what waits in core look at */
    lua_Hook hook;        /* when nothing is to be stopped: called every hook_count instructions; NULL: none */
    int hook_count;
    volatile int at_prompt; /* about to run a line, or done with it: only SIGTERM stops what runs; LSPL_IDLE: between
                             * lines, SIGINT does nothing at all */
    int defers_signals;   /* Lua asks for them itself (core.system.interrupted) */
    int leaving;          /* the script called os.exit */
    int leave_code;
    int finalizer_failed;
    char finalizer_message[SPL_MESSAGE_BYTES];
    /* the last error of spl raised in a finalizer: Lua's warning only says `not a string` */
    char finalizer_note[SPL_MESSAGE_BYTES];
    int script_warns;     /* the warning that comes is the script's own */
    char warning[SPL_MESSAGE_BYTES]; /* pieces of a warning on their way */
    char cause[LSPL_TEXT_BYTES];     /* why the run failed: message and traceback */
    int misused;                     /* it is the command line, whichever rank says so */
    void *repl;                      /* repl.c's; freed after the state is closed */
} lspl_host;

/* [collective] Runs the script or module; returns the exit code of the job. */
int lspl_host_run(const lspl_options *options);
/* [local] The same on options->virtual_ranks ranks within this process (virtual.c). */
int lspl_virtual_run(const lspl_options *options);
/* [collective] What both do for one rank; sim NULL: a process of its own. */
int lspl_host_run_rank(const lspl_options *options, spl_sim *sim, int rank);
/* [local] Calls `main` of an embedded module in a state without runtime (help). */
int lspl_host_call(const char *module, char **args, int nargs);

lspl_host *lspl_host_of(lua_State *L);
/* 1 inside a finalizer, or while the state is closing. */
int lspl_finalizing(lua_State *L);
/* The run fails in the end with this message, even if Lua or the script swallows the error. */
void lspl_host_blame_finalizer(lspl_host *host, const char *message);

/* ltrace.c: [collective] */
spl_status lspl_trace_start(lspl_host *host, int64_t most_events);
/* lerror.c */
int lspl_is_error(lua_State *L, int index);
int lspl_rethrow(lua_State *L); /* raises the value on top as it is */
int lspl_raised_by_script(lua_State *L); /* in a message handler: is it spl.error that raises? */

/* paths.c: where things lie. All return 1 when found. */
int lspl_find_script(const char *name, char *out, size_t n);
/* The shipped name nearest to `name`, or "" */
void lspl_nearest_script(const char *name, char *out, size_t n);
int lspl_own_path(char *out, size_t n);
int lspl_is_shipped(const char *script);
int lspl_find_shipped(const char *name, char *out, size_t n); /* among the shipped ones only */
void lspl_each_shipped(void (*take)(void *ctx, const char *folder, const char *name), void *ctx);

/* [local] Flushes standard output; 1, with a sentence in `message`, when not all that was printed could be written. */
int lspl_output_broken(char *message, size_t n);

/* startup.c */
/* [local] Standard input, output and error are open files, so that no other file becomes one of them; writing to an
 * output that was closed still fails. */
void lspl_hold_standard_files(void);
/* May start the program anew. */
void lspl_prepare_libraries(char **argv);
/* [local] The OpenBLAS kernels that the environment asks for, when it was not this program that did; else NULL.
 * *better: faster ones that the processor has, or NULL. */
const char *lspl_forced_kernels(const char **better);

/* launch.c: starts mpirun with this same program. Returns the job's exit code. */
int lspl_launch(const lspl_options *options);
/* Rank and size that a launcher's environment says, 1 when there is one. */
int lspl_launched(int *rank, int *size);

#endif
