# plugin.mk: spl-cuda.so without looking for anything else: no MPI, no BLAS, no Lua. For run.sh.
BUILD ?= build-gpu
OBJ   := $(BUILD)/obj
CC    ?= gcc
CXX   ?= g++
own   :=
quiet  = @
ALL_CFLAGS := -std=gnu11 -D_GNU_SOURCE= -O2 -fPIC
compile = $(call quiet)mkdir -p $(@D) && $(CC) $(ALL_CFLAGS) $(1) -MMD -MP -c $< -o $@

# The device that is here is enough, and compiles in half the time.
CUDA_ARCHS ?= $(or $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n1 | tr -d . | \
                sed 's/^90$$/90a/'),80 90a)

all: $(BUILD)/spl-cuda.so
$(OBJ)/core/%.o: core/%.c
	$(call compile,-Icore)

include kernels/cuda/cuda.mk
