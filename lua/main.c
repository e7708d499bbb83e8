/* main.c: the program spl. Reads the command line, hands over to the host or to mpirun, and is the only place that
 * exits. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cli.h"
#include "host.h"
#include "launch.h"
#include "repl.h"

/* Under a launcher every rank reads the same command line; one of them says what is wrong with it. */
static int complain(const char *message) {
    int rank = 0, size = 1;
    lspl_launched(&rank, &size);
    if (rank == 0) fprintf(stderr, "spl: %s\n", message);
    return 2;
}

static int find_script(lspl_options *o, char *path, size_t n) {
    char near[256], message[1024];
    struct stat s;
    int rank, size = o->virtual_ranks > o->ranks ? o->virtual_ranks : o->ranks;
    if (lspl_find_script(o->script, path, n)) {
        o->script = path;
        if (size == 0) lspl_launched(&rank, &size);
        if (size < 2 || stat(path, &s) || S_ISREG(s.st_mode)) return 0;
        snprintf(message, sizeof message, "the script '%.800s' is no regular file, and only one of %d ranks could read "
                 "it; copy it to a file", path, size);
        return complain(message);
    }
    lspl_nearest_script(o->script, near, sizeof near);
    snprintf(message, sizeof message, "no script '%s' here or among the shipped ones%s%s%s", o->script,
             near[0] ? "; did you mean '" : "", near, near[0] ? "'?" : "");
    return complain(message);
}

static int run(const lspl_command *command, int argc, char **argv, char **args) {
    lspl_options options;
    char message[1024], path[8192];
    int wants_help, rank, size;
    int wrong = lspl_parse_command(command, argc, argv, args, &options, &wants_help, message, sizeof message);
    if (wrong) return complain(message);
    if (wants_help) return fputs(command->usage, stdout), 0;
    if (options.script && (wrong = find_script(&options, path, sizeof path))) return wrong;
    if (options.virtual_ranks && (options.ranks || lspl_launched(&rank, &size))) {
        snprintf(message, sizeof message, "--virtual %d puts all ranks into one process; leave out %s",
                 options.virtual_ranks, options.ranks ? "-n" : "mpirun");
        return complain(message);
    }
    if (command->alone && lspl_launched(&rank, &size) && size > 1) {
        snprintf(message, sizeof message, "`spl %s` is for one process, but this is one of %d ranks; leave mpirun out",
                 command->name, size);
        return complain(message);
    }
    if (!strcmp(command->name, "repl") && !lspl_launched(&rank, &size)) return lspl_repl_front(&options);
    if (options.virtual_ranks) return lspl_virtual_run(&options);
    if (options.ranks == 0) return lspl_host_run(&options);
    if (lspl_launched(&rank, &size)) {
        snprintf(message, sizeof message, "-n %d was given, but this already runs under mpirun as one of %d ranks; "
                 "leave -n out, or leave mpirun out", options.ranks, size);
        return complain(message);
    }
    return lspl_launch(&options);
}

/* `spl help [TOPIC]`: the general page, a command, a shipped script's --help, or what the annotations say. */
static int help(int argc, char **argv) {
    if (argc == 0) return fputs(lspl_usage, stdout), 0;
    int asks = !strcmp(argv[0], "--help") || !strcmp(argv[0], "-h");
    const lspl_command *command = lspl_find_command(asks ? "help" : argv[0]);
    char message[512], path[8192];
    if (argc > 1) {
        snprintf(message, sizeof message, "unexpected argument '%s': `spl help` takes one topic", argv[1]);
        return complain(message);
    }
    if (command) return fputs(command->usage, stdout), 0;
    if (!lspl_find_shipped(argv[0], path, sizeof path)) return lspl_host_call("spl.help", argv, argc);
    char *words[] = {path, "--help"}, *args[3];
    return run(lspl_find_command("run"), 2, words, args);
}

/* `spl version` */
static int version(int argc, char **argv) {
    char message[512];
    if (argc == 0) return puts("spl " SPL_VERSION), 0;
    if (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h")) return help(1, (char *[]){"version"});
    snprintf(message, sizeof message, "unexpected argument '%s': `spl version` takes none", argv[0]);
    return complain(message);
}

static int run_command(int argc, char **argv) {
    if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) return help(0, NULL);
    if (!strcmp(argv[1], "help")) return help(argc - 2, argv + 2);
    if (!strcmp(argv[1], "version") || !strcmp(argv[1], "--version")) return version(argc - 2, argv + 2);
    const lspl_command *command = lspl_find_command(argv[1]);
    if (!command) {
        const char *near = lspl_nearest_command(argv[1]);
        char message[512];
        if (near) snprintf(message, sizeof message, "unknown command '%s'; did you mean `spl %s`?", argv[1], near);
        else snprintf(message, sizeof message, "unknown command '%s'; `spl --help` lists them", argv[1]);
        return complain(message);
    }
    char **args = calloc((size_t)argc + 1, sizeof *args);
    if (!args) return 1;
    int code = run(command, argc - 2, argv + 2, args);
    free(args);
    return code;
}

/* OpenBLAS takes buffers when it is loaded, and tries for ever where an address space is too small for them. So this is
 * looked at before any library begins; the sanitizers have their own ideas of address space, and begin here too. */
#if !defined(__SANITIZE_ADDRESS__)
static void check_address_space(void) {
    const unsigned long long least = 400ull << 20;
    struct rlimit limit;
    char text[256];
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= least) return;
    int n = snprintf(text, sizeof text, "spl: the address space is limited to %llu KiB and at least %llu are needed to "
                     "begin with; raise it (ulimit -v)\n", (unsigned long long)limit.rlim_cur >> 10, least >> 10);
    ssize_t unheard = write(STDERR_FILENO, text, (size_t)n);
    (void)unheard;
    _exit(3);
}

__attribute__((section(".preinit_array"), used)) static void (*const before_libraries)(void) = check_address_space;
#endif

int main(int argc, char **argv) {
    lspl_hold_standard_files();
    signal(SIGXFSZ, SIG_IGN); /* a limit on sizes of files: the write fails and says so */
    lspl_prepare_libraries(argv);
    lspl_adopt();
    int code = run_command(argc, argv);
    char why[512];
    if (code || !lspl_output_broken(why, sizeof why)) return code;
    fprintf(stderr, "spl: %s\n", why);
    return 1;
}
