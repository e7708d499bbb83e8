#!/bin/sh
# proof.sh: what proves the CUDA backend without a GPU beside the specs: TAP.   proof.sh BUILD [long]
# The emulator finds planted faults; kernels are right in every order of threads, and clean under the address and
# undefined-behaviour sanitizers and, with CUDA threads and streams as its fibers, ThreadSanitizer; the headers that stand
# in for CUDA's say what those say; nvcc compiles it all and hot kernels spill nothing. What is not here is skipped.
build=$1 long=${2:-} n=0 failed=0
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT
export OMP_NUM_THREADS=1 SPL_TEST_BACKEND=cuda-emu SPL_MEMORY_CACHE=0 ASAN_OPTIONS=detect_leaks=0
export TSAN_OPTIONS=halt_on_error=1:report_signal_unsafe=0:atexit_sleep_ms=0

check() { # check NAME COMMAND ...: a test by its exit status
    name=$1
    shift
    n=$((n + 1))
    if "$@" >"$out" 2>&1; then
        echo "ok $n - $name"
    else
        echo "not ok $n - $name"
        grep -v '^ok' "$out" | head -n 40 | sed 's/^/# /'
        failed=1
    fi
}
skip() { n=$((n + 1)) && echo "ok $n - $1 # SKIP $2"; }

still() { setarch "$(uname -m)" -R "$@"; } # ThreadSanitizer of GCC 12 wants addresses that stay
tests=$build/emu-tests

compiled() { # make built the plugin: hot kernels are there for each architecture, and what ptxas said is good
    for arch in sm_80 sm_90a; do
        grep -q "attention_mma_kernel.*for '$arch'" "$build/obj/cuda/kernels/cuda/cuda_attention_mma.cu.o.log" ||
            { echo "no attention on tensor cores for $arch"; return 1; }
    done
    for file in kernels/cuda/*.cu; do
        sh kernels/cuda/spills.sh "$build/obj/cuda/$file.o.log" || return 1
    done
}

check "the emulator finds planted faults" "$tests/plain/faults"
check "planted faults, address sanitizer" "$tests/asan/faults"
check "planted faults, ThreadSanitizer" still "$tests/tsan/faults"
for order in forward reverse random; do
    check "attention on tensor cores, threads in $order order" env SPL_EMU_ORDER=$order "$tests/plain/kernels_tensor_core"
done
check "kernels against the reference" "$tests/plain/kernels_ops"
check "kernels of half precision against the reference, threads in reverse" \
    env SPL_EMU_ORDER=reverse "$tests/plain/kernels_half"
check "attention on tensor cores, address and undefined-behaviour sanitizers" "$tests/asan/kernels_tensor_core"
check "attention on tensor cores, ThreadSanitizer" still env "SPL_TEST_SHORT${long:+_NOT}=1" "$tests/tsan/kernels_tensor_core"

if [ -n "$long" ]; then
    for name in kernels_ops kernels_half; do
        check "$name, address and undefined-behaviour sanitizers" "$tests/asan/$name"
        check "$name, ThreadSanitizer" still "$tests/tsan/$name"
    done
    seed=1
    while [ $seed -le 8 ]; do
        check "attention, random threads and streams, seed $seed, ThreadSanitizer" \
            still env SPL_EMU_ORDER=random SPL_EMU_MODE=random SPL_EMU_SEED=$seed "$tests/tsan/kernels_tensor_core"
        check "kernels of half precision, random threads and streams, seed $seed" \
            env SPL_EMU_ORDER=random SPL_EMU_MODE=random SPL_EMU_SEED=$seed "$tests/plain/kernels_half"
        seed=$((seed + 1))
    done
fi

check "the script for the first GPU runs, on the emulator" \
    env BUILD="$build/gpu-script" SPL_EMU_PLUGIN="$build/spl-cuda-emu.so" sh tests/gpu/run.sh --emulated

cxx=${CXX:-g++}
check "the constants that stand in for CUDA's" "$cxx" -std=c++17 -fsyntax-only -Itests/emu/include \
    tests/emu/constants_check.cpp
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
if [ -n "$nvcc" ]; then
    include=$(dirname "$(dirname "$nvcc")")/include
    if [ -e "$include/nccl.h" ]; then
        check "CUDA's own constants are the same" "$cxx" -std=c++17 -fsyntax-only -isystem "$include" \
            tests/emu/constants_check.cpp
    else
        skip "CUDA's own constants are the same" "no nccl.h beside CUDA"
    fi
    check "nvcc compiled for all architectures, hot kernels spill nothing" compiled
else
    skip "CUDA's own constants are the same" "no CUDA here"
    skip "nvcc compiled for all architectures, hot kernels spill nothing" "no CUDA here"
fi
echo "1..$n"
exit $failed
