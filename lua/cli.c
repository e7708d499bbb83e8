/* cli.c: the command line of spl: commands, their options, and what is wrong with those that are not. */
#include "cli.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "lspl.h"

const char lspl_usage[] =
    "spl " SPL_VERSION ": sequence-parallel transformers, driven by Lua scripts that run once per rank\n"
    "\n"
    "  spl run [-n RANKS] [options] SCRIPT [ARGS]   run a script (a path or a shipped name)\n"
    "  spl repl [-n RANKS]                          one prompt, all ranks\n"
    "  spl check [-n RANKS] [options]               every role, scheme and mask against fp64\n"
    "  spl test [-n RANKS] [busted arguments]       run specs with busted inside the host\n"
    "  spl sweep [options] FILE                     run a grid of points, resumable, to JSONL and CSV\n"
    "  spl report DIR                               a page with charts of a sweep's results\n"
    "  spl trace FILE                               sum up what `spl run --trace FILE` wrote\n"
    "  spl info                                     what this machine and this build offer\n"
    "  spl help [TOPIC]                             what this page and the topics below say\n"
    "  spl version\n"
    "\n"
    "Topics: run, repl, check, test, sweep, report, trace, info, help, version: a command and its options\n"
    "        scripts: what comes with spl; a script's name, such as sp_forward: its options\n"
    "        api: all functions of the Lua API, by concept; the name of a function, an object or a field, such as\n"
    "        block, tensor:gather, tensor.shape, mesh.parse: what it does\n"
    "        roles: what the axes of a mesh may do; schemes: how a sequence is dealt out; sweeps: what stands in "
    "the file of a sweep\n"
    "\n"
    "`spl COMMAND --help` tells more. Exit codes: 0 good; 1 the script failed or a result is wrong; 2 the command\n"
    "line is wrong; 3 the environment lacks something; 4 ranks disagreed or stalled.\n";

#define HOST_OPTIONS \
    "  -n RANKS               start mpirun with this many ranks (without it: one rank, or mpirun's)\n" \
    "  --virtual RANKS        as many ranks inside this one process, taking turns: exact and repeatable, for\n" \
    "                         tests and debugging; times mean nothing then\n" \
    "  --backend cpu|cuda|null  where tensors live; null counts shapes and bytes and computes nothing (default cpu)\n" \
    "  --timeout SECONDS      give up when ranks make no progress for so long (default 60)\n" \
    "  --check-collectives    ranks agree on each collective before data moves\n" \
    "  --trace FILE           write what every rank did and when, as JSON for ui.perfetto.dev and `spl trace FILE`\n" \
    "  --threads N            threads of each rank (default: its share of the cores)\n"

const lspl_command lspl_commands[] = {
    {"run",
     "usage: spl run [options] SCRIPT [ARGS]\n\n"
     "Runs SCRIPT, a path or a shipped name with or without .lua, once per rank. Under mpirun this is one rank.\n\n"
     HOST_OPTIONS
     "  --no-strict            let undefined globals read as nil\n"
     "  -h, --help             this text; behind SCRIPT the script's own\n\n"
     "These may stand after SCRIPT too; what follows `--` is left to the script. `spl run SCRIPT --help` shows the\n"
     "script's own.\n",
     1, NULL, -1, 0},
    {"repl",
     "usage: spl repl [options]\n\n"
     "Opens one prompt for all ranks: each runs every line, and equal answers are printed once. Under mpirun, or with\n"
     "lines from a pipe, there is no line editing. `:help` at the prompt says the rest. Lines are kept in\n"
     "$XDG_STATE_HOME/spl/history, or ~/.local/state/spl/history.\n\n" HOST_OPTIONS,
     0, "spl.repl", 0, 0},
    {"test",
     "usage: spl test [options] [busted arguments]\n\n"
     "Runs busted specs (default: tests/lua, or tests/mpi on more than one rank) inside the host. On several ranks\n"
     "all of them run the same tests, and a failure on any rank is a failure on all.\n\n" HOST_OPTIONS,
     0, "spl.test", -1, 0},
    {"check",
     "usage: spl check [options]\n\n"
     "Judges the forward pass of a small block against fp64 for every role of mesh axes, alone and up to four\n"
     "together, with every scheme, mask and layout of heads that fits these ranks: error, the same bits when\n"
     "run again, bytes against theory. Lists what is refused, and why. Exits 1 where anything is wrong.\n"
     "Without -n and --virtual it runs on 1, 2, 3, 4, 8 and 16 virtual ranks in turn.\n\n"
     "  --role ROLE[,ROLE]     only meshes whose axes all have one of these roles\n"
     "  --mesh MESH            these meshes instead, with every mask and layout of heads (may be repeated)\n"
     "  --scheme NAME[,NAME]   only these schemes: contiguous, zigzag, striped\n"
     "  --mask MASK            only these masks: causal, full, window, docs, prefix, padding, slices, or a notation\n"
     "                         such as window:9 (may be repeated)\n"
     "  --heads Q/KV[,Q/KV]    only these query and KV heads (default 4/4, 8/2, 6/1, 7/7)\n"
     "  --axes N[-M]           how many axes meshes have (default 1-4)\n"
     "  --full                 also every mask, layout of heads and order of axes where axes go together; without it\n"
     "                         they take turns\n"
     "  --seq N, --batch N     tokens (45) and sequences (2)\n"
     "  --dtype NAME           f32, f64, bf16 or f16 (default f32)\n"
     "  --seed N               of weights and input (default 5)\n"
     "  --sizes N[,N]          numbers of virtual ranks, without -n and --virtual\n"
     "  --here                 on one rank, without -n and --virtual\n"
     "  --refused              list everything that is refused, not one of a kind\n"
     "  --json                 one JSON object a combination, nothing else\n"
     "  --markdown             the support matrix as Markdown tables, nothing else\n\n" HOST_OPTIONS,
     0, "spl.differential", -1, 0},
    {"info",
     "usage: spl info [options]\n\n"
     "Prints version, machine, libraries and the choices made from them.\n\n" HOST_OPTIONS,
     0, "spl.info", 0, 0},
    {"sweep",
     "usage: spl sweep [options] FILE\n\n"
     "Runs a grid of rank counts, meshes, sizes and other parameters of a script, each point in a process of its own.\n"
     "FILE is a Lua file that returns the grid, or a shipped one: modes, scaling. Called again it goes on where it\n"
     "stopped. `spl help sweeps` says what stands in FILE.\n\n"
     "  --out DIR              folder of results.jsonl and results.csv (default sweep-NAME here)\n"
     "  --set NAME=V[,V...]    other values of the grid or an option, as seq=1k,4k; with ; where values hold commas\n"
     "  --list                 list the points, run nothing\n"
     "  --retry                run again what failed or took too long\n"
     "  --yes                  run more than 10,000 points without asking\n",
     0, "spl.sweep", -1, 1},
    {"report",
     "usage: spl report DIR\n\n"
     "Makes one HTML page, DIR/report.html, and PNG charts (with gnuplot) of the results of `spl sweep`: which\n"
     "schedule wins where, where one overtakes another, efficiency, where the time goes, memory.\n",
     0, "spl.sweep_report", -1, 1},
    {"trace",
     "usage: spl trace [--whole] [--json] FILE\n\n"
     "Sums up a trace that `spl run --trace FILE` wrote: time by op, communication that compute does not cover, idle\n"
     "time, and the rank that the others wait for. The file itself opens in ui.perfetto.dev and chrome://tracing.\n\n"
     "  --whole                also what lies outside of the spans that the script marked, such as spl.bench's rounds\n"
     "  --json                 one JSON object instead of tables\n",
     0, "spl.trace", -1, 1},
    {"help",
     "usage: spl help [TOPIC]\n\n"
     "TOPIC is a command; `scripts`, or the name of one; `roles`, `schemes`; `api`, or a function, object or field of "
     "the\nLua API such as `block`, `mesh.parse`, `tensor:gather` or `tensor.shape`. Without it: what there is.\n",
     0, "spl.help", 1, 0},
    {"version", "usage: spl version\n", 0, NULL, 0, 0},
    {NULL, NULL, 0, NULL, 0, 0}};

static const char *const host_options[] = {"-n", "--virtual", "--backend", "--timeout", "--check-collectives",
                                           "--threads", "--trace", "--no-strict", "--help", NULL};

const lspl_command *lspl_find_command(const char *name) {
    for (const lspl_command *c = lspl_commands; c->name; c++) {
        if (strcmp(c->name, name) == 0) return c;
    }
    return NULL;
}

const char *lspl_nearest_command(const char *name) {
    const char *names[sizeof lspl_commands / sizeof *lspl_commands];
    int i = 0;
    for (; lspl_commands[i].name; i++) names[i] = lspl_commands[i].name;
    names[i] = NULL;
    return lspl_nearest(name, names);
}

typedef struct reader { /* the arguments, and where we are */
    int argc, at;
    char **argv;
    char *message;
    size_t n;
} reader;

/* 1 when argv[at] is `name VALUE` or `name=VALUE` (or -nVALUE); *value NULL: it is missing. Moves past it. */
static int option_value(reader *r, const char *name, const char **value) {
    const char *given = r->argv[r->at];
    size_t length = strlen(name);
    if (strncmp(given, name, length)) return 0;
    if (given[length] == 0) {
        *value = r->at + 1 < r->argc ? r->argv[r->at + 1] : NULL;
        r->at += *value ? 2 : 1;
        return 1;
    }
    int short_form = name[1] != '-' && given[length] >= '0' && given[length] <= '9';
    if (given[length] != '=' && !short_form) return 0;
    *value = given + length + (given[length] == '=');
    r->at++;
    return 1;
}

static int positive_int(reader *r, const char *option, const char *value, int *out) {
    char *end = NULL;
    errno = 0;
    long v = value ? strtol(value, &end, 10) : 0;
    if (value && *value && !*end && !errno && v >= 1 && v <= 1000000) {
        *out = (int)v;
        return 1;
    }
    snprintf(r->message, r->n, "%s needs a whole number from 1 on, got %s%s%s", option, value ? "'" : "nothing",
             value ? value : "", value ? "'" : "");
    return -1;
}

/* More threads than that only wait for each other. */
static int thread_count(reader *r, const char *value, int *out) {
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int most = cores > 16 ? 4 * (int)cores : 64;
    if (positive_int(r, "--threads", value, out) < 0) return -1;
    if (*out <= most) return 1;
    snprintf(r->message, r->n, "--threads %d is more than this machine has a use for: it has %ld core%s, and takes up "
             "to %d threads a rank", *out, cores, cores == 1 ? "" : "s", most);
    return -1;
}

static int seconds(reader *r, const char *value, double *out) {
    char *end = NULL;
    double v = value ? strtod(value, &end) : 0;
    if (value && *value && !*end && isfinite(v) && v > 0) {
        *out = v;
        return 1;
    }
    snprintf(r->message, r->n, "--timeout needs a number of seconds above 0, got %s%s%s", value ? "'" : "nothing",
             value ? value : "", value ? "'" : "");
    return -1;
}

/* `ref` and `cuda-emu` are for tests. */
static int backend_name(reader *r, const char *value, const char **out) {
    static const char *const names[] = {"cpu", "cuda", "null", "ref", "cuda-emu"};
    for (size_t i = 0; value && i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(value, names[i])) continue;
        *out = value;
        return 1;
    }
    snprintf(r->message, r->n, "--backend takes cpu, cuda or null, got %s%s%s", value ? "'" : "nothing",
             value ? value : "", value ? "'" : "");
    return -1;
}

static int file_name(reader *r, const char *option, const char *value, const char **out) {
    *out = value;
    if (value && *value) return 1;
    snprintf(r->message, r->n, "%s needs the name of a file to write, such as trace.json", option);
    return -1;
}

/* 1: an option of the host was read; 0: not one of ours; -1: it is wrong. */
static int host_option(reader *r, lspl_options *out) {
    const char *value, *given = r->argv[r->at];
    if (option_value(r, "-n", &value)) return positive_int(r, "-n", value, &out->ranks);
    if (option_value(r, "--virtual", &value)) return positive_int(r, "--virtual", value, &out->virtual_ranks);
    if (option_value(r, "--threads", &value)) return thread_count(r, value, &out->threads);
    if (option_value(r, "--timeout", &value)) return seconds(r, value, &out->timeout);
    if (option_value(r, "--trace", &value)) return file_name(r, "--trace", value, &out->trace);
    if (option_value(r, "--backend", &value)) return backend_name(r, value, &out->backend);
    if (strcmp(given, "--check-collectives") == 0) return r->at++, out->check_collectives = 1;
    if (strcmp(given, "--no-strict") == 0) return r->at++, out->strict = 0, 1;
    return 0;
}

static int unknown_option(reader *r, const char *command) {
    const char *near = lspl_nearest(r->argv[r->at], host_options);
    snprintf(r->message, r->n, "unknown option '%s' of `spl %s`%s%s%s", r->argv[r->at], command,
             near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "; see `spl run --help`");
    return 2;
}

int lspl_parse_command(const lspl_command *command, int argc, char **argv, char **args, lspl_options *out, int *help,
                       char *message, size_t n) {
    reader r = {.argc = argc, .argv = argv, .message = message, .n = n};
    *out = (lspl_options){
        .command = command->name, .module = command->module, .args = args, .strict = command->takes_script,
        .alone = command->alone};
    /* where a person looks on, or tests do, every collective is checked */
    static const char *const checked[] = {"repl", "test", "check", NULL};
    for (int i = 0; checked[i]; i++) out->check_collectives |= !strcmp(command->name, checked[i]);
    *help = 0;
    int raw = command->alone; /* after `--` everything is the script's */
    while (r.at < argc) {
        char *given = argv[r.at];
        int waiting = command->takes_script && !out->script;
        if (!raw) {
            int took = host_option(&r, out);
            if (took < 0) return 2;
            if (took) continue;
            if (strcmp(given, "--") == 0 && (!waiting || r.at + 1 < argc)) {
                raw = 1, r.at++;
                continue;
            }
            int asks = !strcmp(given, "--help") || !strcmp(given, "-h");
            if (asks && (waiting || !command->takes_script)) return *help = 1, 0;
            if (waiting && given[0] == '-') return unknown_option(&r, command->name);
        }
        if (command->alone && (!strcmp(given, "--help") || !strcmp(given, "-h"))) return *help = 1, 0;
        if (waiting) out->script = given;
        else args[out->nargs++] = given;
        r.at++;
    }
    args[out->nargs] = NULL;
    if (command->most_args >= 0 && out->nargs > command->most_args) {
        snprintf(message, n, "unexpected argument '%s': `spl %s` takes %s", args[command->most_args], command->name,
                 command->most_args ? "one topic" : "none");
        return 2;
    }
    if (command->takes_script && !out->script) {
        snprintf(message, n, "`spl %s` needs a script: a path or a shipped name, such as sp_forward.lua",
                 command->name);
        return 2;
    }
    return 0;
}
