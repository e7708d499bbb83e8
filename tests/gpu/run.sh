#!/bin/sh
# run.sh: everything that wants a GPU, in one go: builds the plugin and the programs, tests the kernels against the
# reference on the device, looks at them with compute-sanitizer, and measures. Needs nvcc and a C compiler; no Lua, no MPI,
# no BLAS, no network. Writes tests/gpu/results/DEVICE-DATE.jsonl and prints a table.   tests/gpu/run.sh [--emulated]
# --emulated: the same on the emulator with tiny sizes, to test this script.
set -u
cd "$(dirname "$0")/../.." || exit 1
backend=cuda small= build=${BUILD:-build-gpu} failed=0
[ "${1:-}" = --emulated ] && backend=cuda-emu small=--small
cc=${CC:-gcc} cxx=${CXX:-g++}
mkdir -p "$build" tests/gpu/results || exit 1
results=$build/results.jsonl
rm -f "$results"

say() { printf '%s\n' "$*"; }

# The engine's part is small: what opens a backend, and the reference. There is no CPU backend without a BLAS.
sources="core/status.c core/dtype.c core/coll.c core/backend.c core/backend_check.c core/plugin.c kernels/ref/*.c kernels/null/*.c"
flags="-std=gnu11 -D_GNU_SOURCE= -O2 -fopenmp -Icore -DSPLI_NO_CPU"
if [ $backend = cuda ]; then
    nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null) || { say "run.sh: nvcc was not found" >&2; exit 3; }
    say "building for $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/CUDA \1/p')"
    make -s -f tests/gpu/plugin.mk BUILD="$build" CC="$cc" CXX="$cxx" NVCC="$nvcc" \
        -j"$(nproc)" "$build/spl-cuda.so" || exit 1
else
    cp "${SPL_EMU_PLUGIN:-build/spl-cuda-emu.so}" "$build/" || exit 1
fi
for name in kernels_ops kernels_half kernels_attention kernels_tensor_core; do
    # shellcheck disable=SC2086 # lists of words
    $cc $flags tests/unit/${name}_test.c $sources -o "$build/$name" -lm -ldl &
done
# shellcheck disable=SC2086
$cc $flags tests/gpu/bench.c $sources -o "$build/bench" -lm -ldl
wait

"$build/bench" --backend $backend --small >/dev/null || exit $?

for name in kernels_tensor_core kernels_half kernels_ops kernels_attention; do
    [ $backend = cuda-emu ] && [ $name != kernels_tensor_core ] && continue
    SPL_TEST_BACKEND=$backend "$build/$name" >"$build/$name.log" 2>&1
    bad=$(grep -c '^not ok' "$build/$name.log") good=$(grep -c '^ok' "$build/$name.log")
    say "$name: $good passed, $bad failed"
    grep '^not ok\|^#' "$build/$name.log" | head -n 20
    printf '{"test":"%s","passed":%d,"failed":%d}\n' "$name" "$good" "$bad" >>"$results"
    [ "$bad" = 0 ] && [ "$good" -gt 0 ] || failed=1
done

if [ $backend = cuda ] && command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck racecheck; do
        if SPL_MEMORY_CACHE=0 timeout 60 compute-sanitizer --tool $tool --error-exitcode 9 "$build/bench" --small \
            >"$build/$tool.log" 2>&1; then
            verdict=clean
        elif [ $? = 9 ]; then
            verdict=errors failed=1
        else
            verdict="not finished"
        fi
        say "compute-sanitizer $tool: $verdict"
        printf '{"sanitizer":"%s","verdict":"%s"}\n' $tool "$verdict" >>"$results"
    done
fi

# shellcheck disable=SC2086
"$build/bench" --backend $backend $small --out "$results" || failed=1

if [ $backend = cuda ] && command -v mpirun >/dev/null 2>&1 && [ -x build/spl ]; then
    cp "$build/spl-cuda.so" build/
    say "two ranks on one GPU, by way of the host:"
    CUDA_VISIBLE_DEVICES=0 build/spl run -n 2 --backend cuda sp_forward.lua --seq 256 --hidden 256 --heads 8 --check \
        --rounds 2 || failed=1
fi

if [ $backend = cuda ]; then
    card=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n1 | tr -cs 'A-Za-z0-9.\n' -)
    kept=tests/gpu/results/${card:-gpu}-$(date +%F).jsonl
    cp "$results" "$kept" && say "results: $kept"
fi
exit $failed
