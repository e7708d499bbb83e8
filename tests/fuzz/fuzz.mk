# fuzz.mk: `make fuzz`: the libFuzzer targets in build-fuzz/. What reads input is compiled anew by clang, the rest comes
# from the plain build. fuzz_NAME.c is a target by itself, NAME.lua one that fuzz_lua.c carries.

FUZZ        := build-fuzz
FUZZ_CC     ?= clang
SECONDS     ?= 1200
fuzz_c      := safetensors mesh layout mask
fuzz_lua    := index tokenizer config args
fuzz_names  := $(fuzz_c) $(fuzz_lua)
fuzz_flags  := -std=gnu11 -D_GNU_SOURCE= $(WARNINGS) -Wno-unknown-pragmas -O1 -g -fno-omit-frame-pointer \
               -fsanitize=address,undefined -fno-sanitize-recover=undefined
fuzz_parsers := core/mesh.c core/layout.c core/layout_text.c core/safetensors.c core/status.c core/attn_mask.c \
                lua/lerror.c lua/lfields.c lua/lregex.c lua/lruntime.c lua/lsafetensors.c
fuzz_obj    := $(fuzz_parsers:%.c=$(FUZZ)/obj/%.o) $(FUZZ)/obj/modules.o
fuzz_host   := $(filter-out $(OBJ)/lua/main.o $(OBJ)/gen/%,$(lua_obj))
fuzz_modules := $(embedded) $(sort $(wildcard tests/fuzz/*.lua))
fuzz_own    := tests/fuzz/fuzz.mk

.PHONY: fuzz fuzz-long

fuzz: $(addprefix $(FUZZ)/,$(fuzz_names))

fuzz_compile = $(call quiet,FUZZ,$<)mkdir -p $(@D) && $(FUZZ_CC) $(fuzz_flags) $(1) -MMD -MP -c $< -o $@

$(FUZZ)/obj/core/%.o: core/%.c $(fuzz_own)
	$(call fuzz_compile,-fsanitize=fuzzer-no-link -Icore $(MPI_CFLAGS) $(JANSSON_CFLAGS))

$(FUZZ)/obj/lua/%.o: lua/%.c $(GEN)/build.h $(fuzz_own)
	$(call fuzz_compile,-fsanitize=fuzzer-no-link -Icore -Ilua -I$(GEN) $(LUA_CFLAGS) $(EDIT_CFLAGS) $(PCRE_CFLAGS))

$(FUZZ)/gen/modules.c: $(BUILD)/embed $(fuzz_modules) $(fuzz_own)
	@mkdir -p $(@D) && $(BUILD)/embed $@ $(fuzz_modules)

$(FUZZ)/obj/modules.o: $(FUZZ)/gen/modules.c
	$(call fuzz_compile,-Ilua)

$(fuzz_c:%=$(FUZZ)/obj/fuzz_%.o): $(FUZZ)/obj/%.o: tests/fuzz/%.c $(fuzz_own)
	$(call fuzz_compile,-fsanitize=fuzzer-no-link -Icore)

$(fuzz_lua:%=$(FUZZ)/obj/fuzz_%.o): $(FUZZ)/obj/fuzz_%.o: tests/fuzz/fuzz_lua.c $(fuzz_own)
	$(call fuzz_compile,-Icore -Ilua $(LUA_CFLAGS) -DFUZZ_SCRIPT='"tests/fuzz/$*.lua"')

$(FUZZ)/libhost.a: $(fuzz_host)
	@mkdir -p $(@D) && rm -f $@ && $(AR) rcs $@ $^

$(addprefix $(FUZZ)/,$(fuzz_names)): $(FUZZ)/%: $(FUZZ)/obj/fuzz_%.o $(fuzz_obj) $(FUZZ)/libhost.a $(BUILD)/libspl.a
	$(call quiet,LD,$@)$(FUZZ_CC) $(fuzz_flags) -fsanitize=fuzzer -Wl,-E $^ $(LUA_LIBS) $(EDIT_LIBS) $(PCRE_LIBS) $(LIBS) \
	    -lgomp -o $@

fuzz-long: fuzz
	@for name in $(fuzz_names); do tests/fuzz/run.sh $(FUZZ) $$name $(SECONDS) || exit 1; done

-include $(fuzz_obj:.o=.d) $(fuzz_names:%=$(FUZZ)/obj/fuzz_%.d)
