/* cli.h: the command line of spl, read into lspl_options. */
#ifndef LSPL_CLI_H
#define LSPL_CLI_H
#include "host.h"

typedef struct lspl_command {
    const char *name;
    const char *usage; /* what `spl NAME --help` prints */
    int takes_script;  /* 1: SCRIPT [ARGS]; 0: the rest goes to `module` */
    const char *module;
    int most_args;     /* what the module takes besides options; -1: any number */
    int alone;         /* 1: one process that reads its own options; no ranks */
} lspl_command;

/* Ends with name NULL. */
extern const lspl_command lspl_commands[];
extern const char lspl_usage[];

const lspl_command *lspl_find_command(const char *name);
/* The name nearest to an unknown command, or NULL. */
const char *lspl_nearest_command(const char *name);

/* Reads what follows the command. Returns 0, or 2 with one sentence in `message`; `help` is set when --help was
 * asked of the command itself. The strings stay argv's; `args` (argc + 1 pointers) receives what the script gets. */
int lspl_parse_command(const lspl_command *command, int argc, char **argv, char **args, lspl_options *out, int *help,
                       char *message, size_t n);

#endif
