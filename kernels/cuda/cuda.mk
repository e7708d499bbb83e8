# The CUDA backend as a plugin: spl-cuda.so by nvcc, and spl-cuda-emu.so, the same sources against the emulator of
# tests/emu, which needs a C++ compiler alone. Each carries its own copy of the few files of core that it calls.

CXX         ?= g++
NVCC        ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME   ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA_ARCHS  ?= 80 90a

cuda_kernels := $(sort $(wildcard kernels/cuda/*.cu))
cuda_host    := $(sort $(wildcard kernels/cuda/*.c))
cuda_core    := $(addprefix $(OBJ)/core/,status.o dtype.o coll.o backend_check.o)
emu_src      := $(filter-out %_test.cpp %_check.cpp,$(sort $(wildcard tests/emu/*.cpp)))

# ------------------------------------------------------------------------------------------------------- on the emulator

EMU         := $(OBJ)/emu
emu_include := -Itests/emu/include -Itests/emu -Icore
emu_cxx     := -std=c++17 -O2 -g1 -Wall -Wextra -Wno-unknown-pragmas -fPIC $(emu_include)
emu_obj     := $(cuda_kernels:%.cu=$(EMU)/%.cu.o) $(cuda_host:%.c=$(EMU)/%.o) $(emu_src:%.cpp=$(EMU)/%.o)

$(EMU)/kernels/cuda/%.cu.o: kernels/cuda/%.cu $(own)
	$(call quiet,CXX,$<)mkdir -p $(@D) && $(CXX) $(emu_cxx) -MMD -MP -x c++ -c $< -o $@

$(EMU)/kernels/cuda/%.o: kernels/cuda/%.c $(own)
	$(call compile,$(emu_include) -DSPLK_CUDA_NAME='"cuda-emu"' -DSPLK_NCCL_LINKED)

$(EMU)/tests/emu/%.o: tests/emu/%.cpp $(own)
	$(call quiet,CXX,$<)mkdir -p $(@D) && $(CXX) $(emu_cxx) -DOMPI_SKIP_MPICXX $(MPI_CFLAGS) $(BLAS_CFLAGS) -MMD -MP -c $< -o $@

$(BUILD)/spl-cuda-emu.so: $(emu_obj) $(cuda_core)
	$(call quiet,LD,$@)$(CXX) -shared -Wl,-Bsymbolic $(emu_obj) $(cuda_core) $(BLAS_LIBS) $(MPI_LIBS) -o $@.new && mv $@.new $@

cuda-emu: all $(BUILD)/spl-cuda-emu.so

-include $(emu_obj:.o=.d)

# The same once more with sanitizers, linked into programs of tests: address and undefined behaviour; and races between
# CUDA threads and streams, where ThreadSanitizer is told of them as fibers (the emulator itself is not instrumented).
emu_tests := faults kernels_tensor_core kernels_ops kernels_half

plain_flags    :=
asan_flags     := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
tsan_flags     := -fsanitize=thread
plain_emulator :=
asan_emulator  := $(asan_flags)
tsan_emulator  := -DEMU_TSAN

define emu_variant
$(1)_obj := $(cuda_kernels:%.cu=$(OBJ)/emu-$(1)/%.cu.o) $(cuda_host:%.c=$(OBJ)/emu-$(1)/%.o) \
            $(emu_src:%.cpp=$(OBJ)/emu-$(1)/%.o)

$(OBJ)/emu-$(1)/kernels/cuda/%.cu.o: kernels/cuda/%.cu $(own)
	$$(call quiet,CXX,$$<)mkdir -p $$(@D) && $(CXX) $(emu_cxx) -O1 $$($(1)_flags) -MMD -MP -x c++ -c $$< -o $$@

$(OBJ)/emu-$(1)/kernels/cuda/%.o: kernels/cuda/%.c $(own)
	$$(call compile,$(emu_include) $$($(1)_flags) -DSPLK_CUDA_NAME='"cuda-emu"' -DSPLK_NCCL_LINKED)

$(OBJ)/emu-$(1)/tests/emu/%_test.o: tests/emu/%_test.cpp $(own)
	$$(call quiet,CXX,$$<)mkdir -p $$(@D) && $(CXX) $(emu_cxx) -O1 $$($(1)_flags) $$($(1)_emulator) -MMD -MP -c $$< -o $$@

$(OBJ)/emu-$(1)/tests/emu/%.o: tests/emu/%.cpp $(own)
	$$(call quiet,CXX,$$<)mkdir -p $$(@D) && $(CXX) $(emu_cxx) $$($(1)_emulator) -DOMPI_SKIP_MPICXX $(MPI_CFLAGS) \
	    $(BLAS_CFLAGS) -MMD -MP -c $$< -o $$@

$(BUILD)/emu-tests/$(1)/faults: $(OBJ)/emu-$(1)/tests/emu/faults_test.o $$($(1)_obj) $(BUILD)/libspl.a
	$$(call quiet,LD,$$@)mkdir -p $$(@D) && $(CXX) -fopenmp $$($(1)_flags) $$^ $(LIBS) -o $$@

$(BUILD)/emu-tests/$(1)/%: $(OBJ)/tests/unit/%_test.o $$($(1)_obj) $(BUILD)/libspl.a
	$$(call quiet,LD,$$@)mkdir -p $$(@D) && $(CXX) -fopenmp $$($(1)_flags) $$^ $(LIBS) -o $$@

emu-$(1): $(emu_tests:%=$(BUILD)/emu-tests/$(1)/%)

-include $$($(1)_obj:.o=.d)
endef
$(foreach v,plain asan tsan,$(eval $(call emu_variant,$(v))))

.PHONY: emu-plain emu-asan emu-tsan

# ----------------------------------------------------------------------------------------------------------- for devices

# Registers that hot kernels may spill, in bytes: none; with dropout, whose random words need many, a few.
CU       := $(OBJ)/cuda
cuda_lib := $(firstword $(wildcard $(CUDA_HOME)/lib64 $(CUDA_HOME)/lib))
cuda_obj := $(cuda_kernels:%.cu=$(CU)/%.cu.o) $(cuda_host:%.c=$(CU)/%.o)
nccl_h   := $(wildcard $(CUDA_HOME)/include/nccl.h /usr/include/nccl.h)
cuda_flags := -std=c++17 -O3 -Icore -Xcompiler -fPIC -Xptxas -v \
              $(foreach arch,$(CUDA_ARCHS),-gencode arch=compute_$(arch),code=sm_$(arch))

# Random numbers are defined to the last bit: no multiplication is joined with an addition there.
$(CU)/kernels/cuda/cuda_random.cu.o: cuda_flags += -fmad=false

$(CU)/kernels/cuda/%.cu.o: kernels/cuda/%.cu $(own)
	$(call quiet,NVCC,$<)mkdir -p $(@D) && { $(NVCC) $(cuda_flags) -MMD -MP -c $< -o $@ >$@.log 2>&1 || { cat $@.log; exit 1; }; } && \
	    sh kernels/cuda/spills.sh $@.log

$(CU)/kernels/cuda/%.o: kernels/cuda/%.c $(own)
	$(call compile,-isystem $(CUDA_HOME)/include -Icore $(if $(nccl_h),,-DSPLK_NO_NCCL))

$(BUILD)/spl-cuda.so: $(cuda_obj) $(cuda_core)
	$(call quiet,LD,$@)$(CXX) -shared -Wl,-Bsymbolic $(cuda_obj) $(cuda_core) -L$(cuda_lib) -Wl,-rpath,$(cuda_lib) \
	    -lcublasLt -lcudart_static -ldl -lrt -lpthread -o $@.new && mv $@.new $@

ifeq ($(NVCC),)
cuda:
	@echo 'make cuda: nvcc was not found; install the CUDA toolkit or name it: make cuda NVCC=/path/to/nvcc' >&2; exit 3
else
cuda: all $(BUILD)/spl-cuda.so
endif

-include $(cuda_obj:.o=.d)
