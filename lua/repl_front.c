/* repl_front.c: the front end of the prompt: a process of its own that owns the terminal and is no rank. It starts the
 * ranks in a session of their own, so that Ctrl-C of the terminal reaches only this process, which passes it on as a
 * message; talks to rank 0 over a socket in a private folder; and edits lines, keeps their history and completes words
 * with libedit. Without a terminal it reads lines as they come. */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <histedit.h>
#include <lauxlib.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>
#include "repl.h"

enum { HISTORY_LINES = 1000, PATIENCE = 2 /* seconds between one Ctrl-C and a stronger one */ };

typedef struct front {
    const lspl_options *options;
    char folder[256], path[300], history_path[4096];
    int listener, fd; /* fd: to rank 0; -1 when it is gone */
    pid_t ranks;
    int ended, status; /* of the process that runs or launches the ranks */
    int terminal, cancelled;
    lua_State *L;      /* judges only whether a chunk is whole */
    EditLine *el;
    History *history;
    lspl_chunk chunk;
} front;

/* Handlers have no arguments. */
static volatile sig_atomic_t interrupted, ending, resized;

static void on_signal(int number) {
    if (number == SIGINT) interrupted++;
    else if (number == SIGWINCH) resized = 1;
    else ending = number;
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH};
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) sigaction(caught[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static void free_signals(void) {
    static const int caught[] = {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGPIPE};
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++) signal(caught[i], SIG_DFL);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- starting the ranks */

static int listen_here(front *f) {
    const char *base = getenv("XDG_RUNTIME_DIR");
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (!base || access(base, W_OK) || strlen(base) > 60) base = "/tmp";
    snprintf(f->folder, sizeof f->folder, "%s/spl-%s", base, "XX" "XX" "XX"); /* for mkdtemp to fill */
    if (!mkdtemp(f->folder)) return 0;
    snprintf(f->path, sizeof f->path, "%s/prompt", f->folder);
    if (strlen(f->path) >= sizeof at.sun_path) return 0;
    memcpy(at.sun_path, f->path, strlen(f->path) + 1);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return f->listener >= 0 && bind(f->listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(f->listener, 1) == 0;
}

static void stop_listening(front *f) {
    if (f->listener >= 0) close(f->listener);
    f->listener = -1;
    unlink(f->path);
    rmdir(f->folder);
}

/* In the child: runs or launches the ranks; its exit code. */
static int be_the_ranks(const front *f, pid_t parent) {
    free_signals();
    setsid();
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* nothing is left behind when the front end is killed */
    if (getppid() != parent) return 1;
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        close(null);
    }
    close(f->listener);
    if (f->options->virtual_ranks) return lspl_virtual_run(f->options);
    return f->options->ranks ? lspl_launch(f->options) : lspl_host_run(f->options);
}

static void look_after_ranks(front *f, int wait) {
    if (!f->ended && waitpid(f->ranks, &f->status, wait ? 0 : WNOHANG) == f->ranks) f->ended = 1;
}

/* Waits for rank 0; 0 when the ranks ended instead. */
static int await_ranks(front *f) {
    while (!ending) {
        struct pollfd p = {.fd = f->listener, .events = POLLIN};
        if (poll(&p, 1, 100) > 0) {
            f->fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
            return f->fd >= 0;
        }
        look_after_ranks(f, 0);
        if (f->ended || interrupted) return 0;
    }
    return 0;
}

/* ---- talking to rank 0 */

static void lose(front *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

static void show(FILE *to, const char *text, size_t n) {
    fflush(to == stdout ? stderr : stdout);
    fwrite(text, 1, n, to);
    fflush(to);
}

/* The ranks do not stop: a first Ctrl-C asks them, later ones are stronger. */
static void pass_stop_on(front *f, double *last, int *asked) {
    interrupted = 0;
    if (*asked == 0 || now() - *last < PATIENCE) {
        *asked = *asked ? *asked : 1;
        lspl_frame_send(f->fd, LSPL_FRAME_STOP, "", 0);
    } else if (*asked == 1) {
        *asked = 2;
        lspl_frame_send(f->fd, LSPL_FRAME_STOP, "", 0);
        fputs("spl: the ranks have not stopped yet; Ctrl-C once more ends them\n", stderr);
    } else {
        kill(f->ranks, SIGTERM);
    }
    *last = now();
}

/* Shows what comes until the line is over; words of a completion go to *words. */
static void attend(front *f, char **words) {
    double last = 0;
    int asked = 0;
    while (f->fd >= 0) {
        struct pollfd p = {.fd = f->fd, .events = POLLIN};
        lspl_frame kind;
        char *text;
        size_t n;
        if (interrupted) pass_stop_on(f, &last, &asked);
        if (ending) break;
        if (poll(&p, 1, 500) <= 0) continue;
        if (!lspl_frame_read(f->fd, &kind, &text, &n)) {
            lose(f);
            return;
        }
        if (kind == LSPL_FRAME_OUT || kind == LSPL_FRAME_ERR || kind == LSPL_FRAME_BYE)
            show(kind == LSPL_FRAME_OUT ? stdout : stderr, text, n);
        if (kind == LSPL_FRAME_HELLO && f->terminal) show(stdout, text, n);
        if (kind == LSPL_FRAME_WORDS && words) {
            *words = text;
            text = NULL;
        }
        free(text);
        if (kind == LSPL_FRAME_READY || kind == LSPL_FRAME_WORDS) return;
    }
}

static void run_chunk(front *f) {
    interrupted = 0;
    if (f->fd >= 0 && !lspl_frame_send(f->fd, LSPL_FRAME_LINE, f->chunk.text, f->chunk.n)) lose(f);
    f->chunk.n = 0;
    attend(f, NULL);
}

/* ---- history */

static int make_folders(char *path) {
    for (char *at = path + 1; *at; at++) {
        if (*at != '/') continue;
        *at = 0;
        int bad = mkdir(path, 0700) && errno != EEXIST;
        *at = '/';
        if (bad) return 0;
    }
    return 1;
}

static void open_history(front *f) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    HistEvent event;
    f->history = history_init();
    if (!f->history) return;
    history(f->history, &event, H_SETSIZE, HISTORY_LINES);
    history(f->history, &event, H_SETUNIQUE, 1);
    if (state && state[0] == '/') snprintf(f->history_path, sizeof f->history_path, "%s/spl/history", state);
    else if (home && home[0] == '/')
        snprintf(f->history_path, sizeof f->history_path, "%s/.local/state/spl/history", home);
    int kept = f->history_path[0] && make_folders(f->history_path);
    if (kept && access(f->history_path, F_OK) && errno == ENOENT) { /* can there be one? */
        FILE *file = fopen(f->history_path, "ae");
        kept = file && fclose(file) == 0;
    }
    kept = kept && access(f->history_path, R_OK | W_OK) == 0;
    if (kept) {
        history(f->history, &event, H_LOAD, f->history_path);
        return;
    }
    if (f->history_path[0]) fprintf(stderr, "spl: lines are not kept: %s: %s\n", f->history_path, strerror(errno));
    else fprintf(stderr, "spl: lines are not kept: neither XDG_STATE_HOME nor HOME is set\n");
    f->history_path[0] = 0;
}

/* Whole and in one step, so that no other session and no end in between leaves half of it. */
static void keep_history(front *f, const char *line) {
    HistEvent event;
    char part[sizeof f->history_path + 16];
    if (!f->history || strspn(line, " \t\r\n") == strlen(line)) return;
    history(f->history, &event, H_ENTER, line);
    if (!f->history_path[0]) return;
    snprintf(part, sizeof part, "%s.%d", f->history_path, (int)getpid());
    if (history(f->history, &event, H_SAVE, part) < 0 || rename(part, f->history_path)) unlink(part);
}

/* ---- completion */

typedef struct wordlist {
    char **v;
    size_t n;
    size_t replaces; /* bytes before the cursor */
} wordlist;

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* `text`: how many bytes to replace, then a word a line. The words stay in it. */
static void split_words(char *text, wordlist *w) {
    size_t lines = 0;
    for (const char *c = text; *c; c++) lines += *c == '\n';
    w->v = calloc(lines + 1, sizeof *w->v);
    char *rest = NULL, *line = strtok_r(text, "\n", &rest);
    w->replaces = line ? strtoul(line, NULL, 10) : 0;
    while (w->v && (line = strtok_r(NULL, "\n", &rest))) w->v[w->n++] = line;
    if (w->v) qsort(w->v, w->n, sizeof *w->v, by_text);
}

static void show_words(front *f, const wordlist *w) {
    struct winsize size = {0};
    size_t width = 1, columns;
    for (size_t i = 0; i < w->n; i++) width = strlen(w->v[i]) > width ? strlen(w->v[i]) : width;
    columns = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col / (width + 2) : 1;
    if (columns < 1) columns = 1;
    fputc('\n', stdout);
    for (size_t i = 0; i < w->n; i++)
        printf("%-*s%s", (int)width, w->v[i], (i + 1) % columns == 0 || i + 1 == w->n ? "\n" : "  ");
    fflush(stdout);
    (void)f;
}

static unsigned char apply_words(front *f, const char *before, size_t n, const wordlist *w) {
    if (w->n == 0 || w->replaces > n) return CC_ERROR;
    size_t common = strlen(w->v[0]);
    for (size_t i = 1; i < w->n; i++)
        for (size_t k = 0; k < common; k++)
            if (w->v[i][k] != w->v[0][k]) common = k;
    if (common > w->replaces || strncmp(before + n - w->replaces, w->v[0], w->replaces)) {
        char word[512];
        snprintf(word, sizeof word, "%.*s", (int)common, w->v[0]);
        el_deletestr(f->el, (int)w->replaces);
        return el_insertstr(f->el, word) < 0 ? CC_ERROR : CC_REFRESH;
    }
    if (w->n == 1) return CC_ERROR;
    show_words(f, w);
    return CC_REDISPLAY;
}

/* Files for `:load`. */
static char *file_words(const char *prefix) {
    char pattern[4200];
    glob_t found = {0};
    lspl_chunk text = {0};
    char number[24];
    snprintf(pattern, sizeof pattern, "%s*", prefix);
    snprintf(number, sizeof number, "%zu", strlen(prefix));
    lspl_chunk_add(&text, number, strlen(number));
    if (glob(pattern, GLOB_MARK | GLOB_NOSORT, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            lspl_chunk_add(&text, found.gl_pathv[i], strlen(found.gl_pathv[i]));
    globfree(&found);
    return text.text;
}

static unsigned char complete(EditLine *el, int key) {
    front *f = NULL;
    (void)key;
    el_get(el, EL_CLIENTDATA, &f);
    const LineInfo *line = el_line(el);
    size_t n = (size_t)(line->cursor - line->buffer);
    char *before = malloc(n + 1), *words = NULL;
    if (!before) return CC_ERROR;
    memcpy(before, line->buffer, n);
    before[n] = 0;
    if (strspn(before, " \t") == n) { /* a tab at the beginning of a line is one */
        free(before);
        return el_insertstr(el, "    ") < 0 ? CC_ERROR : CC_REFRESH;
    }
    if (strncmp(before, ":load ", 6) == 0) {
        words = file_words(before + 6);
    } else if (f->fd >= 0 && lspl_frame_send(f->fd, LSPL_FRAME_COMPLETE, before, n)) {
        attend(f, &words);
    }
    wordlist w = {0};
    if (words) split_words(words, &w);
    unsigned char result = apply_words(f, before, n, &w);
    free(w.v);
    free(words);
    free(before);
    return result;
}

/* ---- lines from a terminal */

static char *prompt(EditLine *el) {
    front *f = NULL;
    el_get(el, EL_CLIENTDATA, &f);
    return f->chunk.n ? "  .. " : "spl> ";
}

/* What libedit reads with: waits for a key, a signal, or the end of the ranks. */
static int get_key(EditLine *el, wchar_t *out) {
    front *f = NULL;
    el_get(el, EL_CLIENTDATA, &f);
    mbstate_t state = {0};
    for (;;) {
        struct pollfd p[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = f->fd, .events = POLLIN}};
        char byte;
        if (resized) {
            resized = 0;
            el_resize(el);
        }
        if (interrupted || ending) {
            f->cancelled = interrupted > 0 && !ending;
            interrupted = 0;
            return -1;
        }
        if (poll(p, 2, -1) < 0) continue;
        if (p[1].revents) { /* between lines rank 0 has nothing to say but that it ends */
            attend(f, NULL);
            return -1;
        }
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return (int)n;
        size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-2) continue;
        if (used == (size_t)-1) { /* no character: the program on the other side will say so */
            *out = L'?';
            memset(&state, 0, sizeof state);
        } else if (used == 0) *out = 0;
        return 1;
    }
}

static void open_editor(front *f) {
    setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    f->el = el_init("spl", stdin, stdout, stderr);
    if (!f->el) return;
    el_set(f->el, EL_CLIENTDATA, f);
    el_set(f->el, EL_PROMPT, prompt);
    el_set(f->el, EL_EDITOR, "emacs");
    el_set(f->el, EL_SIGNAL, 0);
    el_set(f->el, EL_GETCFN, get_key);
    open_history(f);
    if (f->history) el_set(f->el, EL_HIST, history, f->history);
    el_set(f->el, EL_ADDFN, "spl-complete", "Completes a word.", complete);
    el_set(f->el, EL_BIND, "\t", "spl-complete", NULL);
    el_set(f->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(f->el, NULL);
}

static void read_terminal(front *f) {
    while (f->fd >= 0 && !ending) {
        int n = 0;
        const char *line = el_gets(f->el, &n);
        if (line && n > 0) {
            keep_history(f, line);
            if (!lspl_chunk_add(&f->chunk, line, (size_t)n)) return;
            if (!lspl_wants_more(f->L, f->chunk.text, f->chunk.n)) run_chunk(f);
            continue;
        }
        if (!f->cancelled) break; /* Ctrl-D, or the ranks are gone */
        f->cancelled = 0;
        f->chunk.n = 0;
        el_reset(f->el);
        fputs("^C\n", stdout);
    }
    if (!ending) fputc('\n', stdout);
}

static void read_plain(front *f) {
    char *line = NULL;
    size_t room = 0;
    ssize_t n = 0;
    while (f->fd >= 0 && !ending && !interrupted && (n = getline(&line, &room, stdin)) >= 0) {
        if (!lspl_chunk_add(&f->chunk, line, (size_t)n)) break;
        if (!lspl_wants_more(f->L, f->chunk.text, f->chunk.n)) run_chunk(f);
    }
    if (f->chunk.n && n < 0) run_chunk(f); /* it is not whole: rank 0 says why */
    free(line);
}

/* ---- all of it */

static int conclude(front *f) {
    int stopped = ending;
    lose(f); /* rank 0 reads the end of the session */
    if (stopped) kill(f->ranks, SIGTERM);
    look_after_ranks(f, 1);
    free(f->chunk.text);
    if (f->el) el_end(f->el);
    if (f->history) history_end(f->history);
    if (f->L) lua_close(f->L);
    if (stopped) {
        fprintf(stderr, "spl: interrupted by %s\n", stopped == SIGHUP ? "SIGHUP" : "SIGTERM");
        return 1;
    }
    if (WIFSIGNALED(f->status)) {
        fprintf(stderr, "spl: the process of the ranks was ended by signal %d (%s)\n", WTERMSIG(f->status),
                strsignal(WTERMSIG(f->status)));
        return 1;
    }
    return WEXITSTATUS(f->status);
}

int lspl_repl_front(const lspl_options *options) {
    front f = {.options = options, .listener = -1, .fd = -1};
    pid_t parent = getpid();
    f.terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (!listen_here(&f)) {
        fprintf(stderr, "spl: cannot open a socket for the prompt in %s: %s\n", f.folder, strerror(errno));
        return 1;
    }
    setenv(LSPL_REPL_SOCKET, f.path, 1);
    catch_signals();
    fflush(NULL);
    f.ranks = fork();
    if (f.ranks == 0) return be_the_ranks(&f, parent);
    if (f.ranks < 0) {
        fprintf(stderr, "spl: cannot start the ranks: %s\n", strerror(errno));
        stop_listening(&f);
        return 1;
    }
    int there = await_ranks(&f);
    stop_listening(&f);
    if (!there) {
        if (!f.ended) kill(f.ranks, SIGTERM);
        return conclude(&f);
    }
    f.L = luaL_newstate();
    attend(&f, NULL); /* what runs here */
    if (f.terminal) open_editor(&f);
    if (f.L && f.el) read_terminal(&f);
    else if (f.L) read_plain(&f);
    return conclude(&f);
}
