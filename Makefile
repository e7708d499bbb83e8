# SPL: `make` builds build/spl, `make demo` and `make test` do all the set-up too. `make help` lists the targets.
#
# One make, no recursion into folders: a pattern rule a folder, so that each sees only the headers it may see. What the
# machine offers is looked up once and kept in $(BUILD)/config.mk; `make clean` or a changed Makefile looks again.

BUILD  ?= build
PREFIX ?= /usr/local
V      ?= 0

# The program runs on any processor of its kind: the CPU kernels are built for several instruction levels and pick theirs
# when it starts. MARCH raises the least processor that everything is built for (make MARCH=native); nothing needs it.
MARCH    ?=
OPT      ?= -O3 -g1
WARNINGS := -Wall -Wextra -Wpedantic
CFLAGS   ?= $(OPT)
LDFLAGS  ?=
ifeq ($(origin CC),default)
CC := gcc
endif

# Under the sanitizers optimisation stays (the reference loops are slow enough), frames stay readable.
SANITIZE ?= 0
ifneq ($(SANITIZE),0)
sanitizers := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT        := -O1 -g
endif

ALL_CFLAGS = -std=gnu11 -D_GNU_SOURCE= $(WARNINGS) -fno-math-errno -fopenmp -fPIC $(MARCH:%=-march=%) $(sanitizers) $(CFLAGS)
ALL_LDFLAGS = -fopenmp -Wl,-E $(sanitizers) $(LDFLAGS)

OBJ := $(BUILD)/obj
GEN := $(BUILD)/gen

core_src   := $(sort $(wildcard core/*.c))
kernel_src := $(sort $(wildcard kernels/ref/*.c kernels/cpu/*.c kernels/null/*.c))
lua_src    := $(sort $(wildcard lua/*.c))
unit_src   := $(sort $(wildcard tests/unit/*_test.c))
embedded   := $(sort $(shell find lua/spl lua/meta -name '*.lua' 2>/dev/null))

# Instruction levels of the CPU kernels above the baseline, where the compiler's target has them; cpu.h says how.
levels    := $(if $(filter x86_64%,$(shell $(CC) -dumpmachine 2>/dev/null)),avx2 avx512)
level_src := $(filter-out kernels/cpu/cpu_select.c,$(filter kernels/cpu/%,$(kernel_src)))
avx2_flags   := -march=x86-64-v3
avx512_flags := -march=x86-64-v4 -mprefer-vector-width=512

lib_obj  := $(core_src:%.c=$(OBJ)/%.o) $(kernel_src:%.c=$(OBJ)/%.o) \
            $(foreach level,$(levels),$(level_src:%.c=$(OBJ)/levels/$(level)/%.o))
lua_obj  := $(lua_src:%.c=$(OBJ)/%.o) $(OBJ)/gen/modules.o
c_examples := $(patsubst examples/%.c,$(BUILD)/examples/%,$(wildcard examples/*.c))
unit_bin := $(unit_src:tests/unit/%_test.c=$(BUILD)/tests/%)

# What is compiled is one line that is written over on a terminal, and elsewhere a line for each new folder of objects.
wipe  = [ ! -t 1 ] || printf '\r\033[K'
brief = if [ -t 1 ]; then printf '\r\033[K  %-5s %s\r' CC '$(1)'; \
        elif [ ! -d $(@D) ]; then printf '  %-5s %s\n' CC '$(patsubst $(OBJ)/%,%,$(@D))'; fi
quiet = $(if $(filter 0,$(V)),@$(if $(filter CC,$(1)),$(call brief,$(2)),$(wipe); printf '  %-5s %s\n' '$(1)' '$(2)');,)

.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: all lib units examples api asan test demo deps lint matrix clean install uninstall help cuda cuda-emu test-long

all: $(BUILD)/spl

lib: $(BUILD)/libspl.a

units: $(unit_bin) $(BUILD)/tests/spl-faults

examples: $(c_examples)

# ------------------------------------------------------------------------------------------------ what is on this machine

# The OpenMP flavour of OpenBLAS by its own folder: in Debian's alternatives the pthread flavour has the same soname and
# comes first, so both the link and the RUNPATH must name the folder.
define look_for_packages
set -e; mkdir -p $(BUILD); missing=; \
pc() { pkg-config --exists $$1 2>/dev/null || { missing="$$missing $$2"; return 0; }; \
       echo "$$3_CFLAGS := $$(pkg-config --cflags $$1)"; echo "$$3_LIBS := $$(pkg-config --libs $$1)"; }; \
command -v $(firstword $(CC)) >/dev/null || missing="$$missing gcc"; \
command -v pkg-config >/dev/null || missing="$$missing pkg-config"; \
{ \
if pkg-config --exists ompi-c 2>/dev/null; then pc ompi-c libopenmpi-dev MPI; echo "OPENMPI := 1"; \
elif mpicc --showme:compile >/dev/null 2>&1; then echo "OPENMPI := 1"; \
    echo "MPI_CFLAGS := $$(mpicc --showme:compile)"; echo "MPI_LIBS := $$(mpicc --showme:link)"; \
elif pkg-config --exists mpich 2>/dev/null; then pc mpich libmpich-dev MPI; echo "OPENMPI := 0"; \
else missing="$$missing libopenmpi-dev"; fi; \
pc lua5.4 liblua5.4-dev LUA; pc libedit libedit-dev EDIT; pc libpcre2-8 libpcre2-dev PCRE; pc jansson libjansson-dev JANSSON; \
multi=$$($(CC) -print-multiarch 2>/dev/null || true); blas=/usr/lib/$$multi/openblas-openmp; \
if [ -e $$blas/libopenblas.so ]; then \
    echo "BLAS_CFLAGS := -I/usr/include/$$multi/openblas-openmp"; \
    echo "BLAS_LIBS := -L$$blas -Wl,--enable-new-dtags,-rpath,$$blas -lopenblas"; \
else pc openblas libopenblas-openmp-dev BLAS; fi; \
nvcc=$$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true); \
if [ -n "$$nvcc" ]; then \
    echo "CUDA_NOTE := CUDA $$($$nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p') found: $$nvcc; not needed"; \
else echo "CUDA_NOTE := CUDA not found; not needed"; fi; \
} > $@.new; \
if [ -n "$$missing" ]; then rm -f $@.new; \
    echo "make: missing here:$$missing (names of Debian packages); 'make deps' installs them" >&2; exit 1; fi; \
mv $@.new $@; sed -n 's/^CUDA_NOTE := /  /p' $@
endef

$(BUILD)/config.mk: Makefile
	@$(look_for_packages)

no_config := clean help deps demo test test-long lint matrix api asan uninstall
ifneq ($(if $(MAKECMDGOALS),$(filter-out $(no_config),$(MAKECMDGOALS)),all),)
include $(BUILD)/config.mk

# Objects are made again when the flags, the compiler or (for MARCH=native) the processor changed; archives and programs
# also when a source file was added or removed.
ifneq ($(MAKE_RESTARTS)$(wildcard $(BUILD)/config.mk),)
march_now := $(levels) $(if $(filter native,$(MARCH)),$(shell $(CC) -march=native -Q --help=target 2>/dev/null | awk '/-march=/{print $$2; exit}'))
flags_now := $(CC) $(ALL_CFLAGS) $(MARCH) $(march_now) $(MPI_CFLAGS) $(BLAS_CFLAGS)
links_now := $(ALL_LDFLAGS) $(core_src) $(kernel_src) $(lua_src) $(embedded) $(BLAS_LIBS)
ifneq ($(strip $(file <$(BUILD)/flags)),$(strip $(flags_now)))
$(file >$(BUILD)/flags,$(flags_now))
endif
ifneq ($(strip $(file <$(BUILD)/links)),$(strip $(links_now)))
$(file >$(BUILD)/links,$(links_now))
endif
endif
endif

# -------------------------------------------------------------------------------------------------------------- objects

compile = $(call quiet,CC,$<)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) $(1) -MMD -MP -c $< -o $@
own     = $(BUILD)/flags

$(OBJ)/core/%.o: core/%.c $(own)
	$(call compile,-Icore $(MPI_CFLAGS) $(JANSSON_CFLAGS))

$(OBJ)/kernels/%.o: kernels/%.c $(own)
	$(call compile,-Icore $(if $(levels),-DSPLK_LEVELS_X86) $(BLAS_CFLAGS))

define level_rule
$(OBJ)/levels/$(1)/%.o: %.c $(own)
	$$(call compile,-Icore -DSPLK_LEVEL=$(1) $$($(1)_flags) $(BLAS_CFLAGS))
endef
$(foreach level,$(levels),$(eval $(call level_rule,$(level))))

$(OBJ)/lua/%.o: lua/%.c $(own)
	$(call compile,-Icore -Ilua -I$(GEN) $(LUA_CFLAGS) $(EDIT_CFLAGS) $(PCRE_CFLAGS))

$(OBJ)/gen/%.o: $(GEN)/%.c $(own)
	$(call compile,-Ilua)

$(OBJ)/tests/unit/%.o: tests/unit/%.c $(own)
	$(call compile,-Icore $(MPI_CFLAGS) $(JANSSON_CFLAGS))

$(OBJ)/tests/support/%.o: tests/support/%.c $(own)
	$(call compile,-Icore $(MPI_CFLAGS) $(JANSSON_CFLAGS))

$(OBJ)/examples/%.o: examples/%.c $(own)
	$(call compile,-Icore)

$(OBJ)/lua/linfo.o $(OBJ)/lua/launch.o $(OBJ)/lua/paths.o: $(GEN)/build.h

# What was found at build time, for `spl info`.
$(GEN)/build.h: $(BUILD)/config.mk $(own)
	@mkdir -p $(@D)
	@{ echo '#define LSPL_BUILD_CUDA "$(CUDA_NOTE)"'; \
	   echo '#define LSPL_BUILD_OPENMPI $(OPENMPI)'; \
	   echo '#define LSPL_BUILD_COMPILER "$(shell $(CC) --version 2>/dev/null | head -n1)"'; \
	   echo '#define LSPL_BUILD_FLAGS "$(strip $(CFLAGS) $(MARCH:%=-march=%))"'; \
	   echo '#define LSPL_BUILD_PREFIX "$(PREFIX)"'; } > $@

# The Lua modules travel inside the binary.
$(BUILD)/embed: lua/embed/embed.c $(own)
	$(call quiet,CC,$<)$(CC) -std=gnu11 $(WARNINGS) -O1 $< -o $@

$(GEN)/modules.c: $(BUILD)/embed $(embedded) $(BUILD)/links
	$(call quiet,EMBED,lua/spl)mkdir -p $(@D) && $(BUILD)/embed $@ $(embedded)

# ----------------------------------------------------------------------------------------------------- library, programs

LIBS = $(BLAS_LIBS) $(JANSSON_LIBS) $(MPI_LIBS) -lm

$(BUILD)/libspl.a: $(lib_obj) $(BUILD)/links
	$(call quiet,AR,$@)rm -f $@.new && $(AR) rcs $@.new $(lib_obj) && mv $@.new $@

# C modules of Lua import the interpreter's symbols from a shared liblua; -E is for modules that want the host's own.
# What others read is moved into place when it is whole: two makes, or a make and a run, may happen at once.
$(BUILD)/spl: $(lua_obj) $(BUILD)/libspl.a
	$(call quiet,LD,$@)$(CC) $(ALL_LDFLAGS) -Wl,-E $(lua_obj) $(BUILD)/libspl.a $(LUA_LIBS) $(EDIT_LIBS) $(PCRE_LIBS) $(LIBS) \
	    -o $@.new && mv $@.new $@

# fail_test makes the allocations of core and kernels fail, and none of the libraries'
$(BUILD)/tests/fail: UNIT_LDFLAGS = -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc,--wrap=free

# The program with faults planted in its attention, for tests of `spl check`.
$(BUILD)/tests/spl-faults: $(OBJ)/tests/support/faults.o $(lua_obj) $(BUILD)/libspl.a
	$(call quiet,LD,$@)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) -Wl,-E,--wrap=spli_attn_plan_make,--wrap=spli_attn_execute \
	    $< $(lua_obj) $(BUILD)/libspl.a $(LUA_LIBS) $(EDIT_LIBS) $(PCRE_LIBS) $(LIBS) -o $@

$(BUILD)/tests/%: $(OBJ)/tests/unit/%_test.o $(BUILD)/libspl.a
	$(call quiet,LD,$@)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) $(UNIT_LDFLAGS) $< $(BUILD)/libspl.a $(LIBS) -o $@

$(BUILD)/examples/%: $(OBJ)/examples/%.o $(BUILD)/libspl.a
	$(call quiet,LD,$@)mkdir -p $(@D) && $(CC) $(ALL_LDFLAGS) $< $(BUILD)/libspl.a $(LIBS) -o $@

.SECONDARY:

-include $(lib_obj:.o=.d) $(lua_obj:.o=.d) $(unit_src:%.c=$(OBJ)/%.d)

# -------------------------------------------------------------------------------------------------------------- targets

include tests/fuzz/fuzz.mk
include kernels/cuda/cuda.mk

asan:
	@$(MAKE) --no-print-directory $(jobs) SANITIZE=1 BUILD=build-asan all units examples

deps:
	@.ci/deps test

# As many jobs as cores where the user did not say.
jobs = $(if $(filter -j%,$(MAKEFLAGS))$(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 1))

demo:
	@.ci/deps demo
	@$(MAKE) --no-print-directory $(jobs) all
	$(BUILD)/spl run -n 2 sp_forward.lua

test:
	@.ci/deps test
	@$(MAKE) --no-print-directory $(jobs) all units examples cuda-emu emu-plain emu-asan emu-tsan $(if $(NVCC),cuda)
	@$(BUILD)/spl run tests/support/run_tests.lua --build $(BUILD)

api:
	@$(MAKE) --no-print-directory $(jobs) all
	@$(BUILD)/spl run tests/support/write_api.lua

matrix:
	@$(MAKE) --no-print-directory $(jobs) all
	@$(BUILD)/spl run tests/support/matrix.lua

test-long:
	@.ci/deps test
	@$(MAKE) --no-print-directory $(jobs) all emu-plain emu-asan emu-tsan
	@sh tests/emu/proof.sh $(BUILD) long

lint:
	@$(MAKE) --no-print-directory $(jobs) all
	@$(BUILD)/spl run tests/support/lint.lua --build $(BUILD)

install: all lib
	@.ci/install install '$(BUILD)' '$(PREFIX)' '$(DESTDIR)' '$(strip $(LIBS))'

uninstall:
	@.ci/install uninstall '$(PREFIX)' '$(DESTDIR)'

clean:
	rm -rf build build-asan build-fuzz

help:
	@echo 'make            build/spl and build/libspl.a (also: make all); make lib: the library alone'
	@echo 'make demo       installs what is needed, builds, runs sp_forward.lua on 2 ranks'
	@echo 'make test       installs what is needed, builds, runs all tests'
	@echo 'make matrix     the support matrix of README.md, as `spl check` finds it'
	@echo 'make api        lua/API.md from the annotations of lua/meta and lua/spl'
	@echo 'make lint       the rules of the house: luacheck, includes, globals, names'
	@echo 'make test-long  the longer runs of what proves the CUDA backend: orders, seeds, sanitizers'
	@echo 'make asan       build-asan/spl, with the address and undefined-behaviour sanitizers'
	@echo 'make fuzz       the libFuzzer targets in build-fuzz (clang); make fuzz-long SECONDS=1200 runs each for so long'
	@echo 'make cuda       build/spl-cuda.so, the CUDA backend (nvcc); make cuda-emu: the same on an emulator, for tests'
	@echo 'make units      the unit test programs in build/tests; make examples: build/examples'
	@echo 'make deps       installs the packages for building and testing (Debian: root or sudo)'
	@echo 'make install    under PREFIX (now $(PREFIX)), with DESTDIR before it; make uninstall; make clean'
	@echo 'Variables: CC CFLAGS LDFLAGS MARCH (least processor) BUILD PREFIX V=1 (show commands)'
