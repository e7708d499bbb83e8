/* fuzz_lua.c: libFuzzer target around one lua_State: FUZZ_SCRIPT, a Lua file inside this program, returns a function
 * that takes the input as a string. That it raises is a finding: it catches the errors that it expects. It may return a
 * second function (text, seed) -> text, which then changes every other input.
 *
 * libFuzzer sees branches of C alone, so a hook counts pairs of Lua lines into its extra counters; without them it
 * would be blind in a parser written in Lua. A new state every thousand inputs keeps memory stable, and shows what
 * a parser leaves behind in C. */
#include <sanitizer/lsan_interface.h>
#include <string.h>
#include "embed.h"
#include "fuzz.h"
#include "host.h"
#include "lspl.h"

enum { INPUTS_A_STATE = 1000, COUNTERS = 1 << 14 };

__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t counters[COUNTERS];

size_t LLVMFuzzerMutate(uint8_t *bytes, size_t n, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed);

/* Of one process that runs one input at a time. */
static lspl_host host;
static lua_State *state;
static int inputs;
static uint32_t last_place;

static void count_line(lua_State *L, lua_Debug *frame) {
    lua_getinfo(L, "Sl", frame);
    uint32_t place = (uint32_t)frame->currentline;
    for (const char *s = frame->source; *s; s++) place = (place ^ (unsigned char)*s) * 16777619u;
    counters[(place ^ last_place) % COUNTERS]++;
    last_place = place >> 1;
}

static int load_embedded(lua_State *L, const char *path) {
    for (const lspl_embedded *f = lspl_embedded_files; f->path; f++) {
        if (strcmp(f->path, path)) continue;
        char name[256];
        snprintf(name, sizeof name, "@%s", path);
        return luaL_loadbufferx(L, (const char *)f->bytes, f->size, name, "t");
    }
    return LUA_ERRFILE;
}

/* What os.exit becomes: the parser of options calls it after --help. */
static int leave(lua_State *L) {
    return lspl_raisef(L, SPL_EINTERRUPT, "os.exit was called");
}

static int traced(lua_State *L) {
    luaL_traceback(L, L, luaL_tolstring(L, 1, NULL), 1);
    return 1;
}

/* As the host does it, without a runtime: what stands in Lua needs none. */
static int prepare(lua_State *L) {
    luaL_openlibs(L);
    fuzz_require(load_embedded(L, "spl/boot.lua") == LUA_OK, "boot.lua inside this program");
    lspl_open_bindings(L);
    lua_pushcfunction(L, leave);
    lua_setfield(L, -2, "leave");
    lua_call(L, 1, 0);
    lua_getglobal(L, "package");
    lua_getfield(L, -1, "preload");
    fuzz_require(load_embedded(L, "tests/fuzz/expect.lua") == LUA_OK, "expect.lua inside this program");
    lua_setfield(L, -2, "expect");
    fuzz_require(load_embedded(L, "tests/fuzz/json_tree.lua") == LUA_OK, "json_tree.lua inside this program");
    lua_setfield(L, -2, "json_tree");
    fuzz_require(load_embedded(L, FUZZ_SCRIPT) == LUA_OK, "the script inside this program");
    lua_call(L, 0, 2);
    return 2;
}

static void fail(lua_State *L) {
    fprintf(stderr, "%s\n", lua_tostring(L, -1));
    abort();
}

static void close_state(void) {
    if (state) lua_close(state); /* finalizers remove files that the script made */
    state = NULL;
}

static void fresh_state(void) {
    if (!state) atexit(close_state);
    else {
        close_state();
        fuzz_require(!__lsan_do_recoverable_leak_check(), "nothing left behind by a state that was closed");
    }
    state = luaL_newstate();
    fuzz_require(state, "memory for a state");
    *(lspl_host **)lua_getextraspace(state) = &host;
    lua_pushcfunction(state, traced);
    lua_pushcfunction(state, prepare);
    if (lua_pcall(state, 0, 2, 1) != LUA_OK) fail(state);
    lua_sethook(state, count_line, LUA_MASKLINE, 0);
    inputs = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    if (!state || ++inputs > INPUTS_A_STATE) fresh_state();
    last_place = 0;
    lua_pushvalue(state, 2);
    lua_pushlstring(state, (const char *)bytes, n);
    if (lua_pcall(state, 1, 0, 1) != LUA_OK) fail(state);
    return 0;
}

/* Stack of the state: message handler, what takes an input, what changes one (or nil). */
size_t LLVMFuzzerCustomMutator(uint8_t *bytes, size_t n, size_t most, unsigned seed) {
    if (!state) fresh_state();
    size_t made = 0;
    if (seed % 2 && lua_isfunction(state, 3)) {
        lua_sethook(state, NULL, 0, 0);
        lua_pushvalue(state, 3);
        lua_pushlstring(state, (const char *)bytes, n);
        lua_pushinteger(state, seed);
        if (lua_pcall(state, 2, 1, 1) != LUA_OK) fail(state);
        const char *text = lua_tolstring(state, -1, &made);
        if (made > most) made = 0;
        if (made) memcpy(bytes, text, made);
        lua_pop(state, 1);
        lua_sethook(state, count_line, LUA_MASKLINE, 0);
    }
    return made ? made : LLVMFuzzerMutate(bytes, n, most);
}
