# The CUDA backend as a plugin: spl-cuda.so by nvcc, and spl-cuda-emu.so, the same sources against the emulator of
# tests/emu, which needs a C++ compiler alone. Each carries its own copy of the few files of core that it calls.

CXX         ?= g++
NVCC        ?= $(firstword $(shell command -v nvcc 2>/dev/null) $(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME   ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CUDA_ARCHS  ?= 80 90a

cuda_kernels := $(sort $(wildcard kernels/cuda/*.cu))
cuda_host    := $(sort $(wildcard kernels/cuda/*.c))
cuda_core    := $(addprefix $(OBJ)/core/,status.o dtype.o coll.o)
emu_src      := $(sort $(wildcard tests/emu/*.cpp))

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
