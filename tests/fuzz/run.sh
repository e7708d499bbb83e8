#!/bin/sh
# run.sh: runs one libFuzzer target for a number of seconds: run.sh BUILD NAME SECONDS. What it learned is kept in
# BUILD/corpus/NAME, findings go to BUILD/findings/. The last lines say how many inputs were tried. Exit code 0: no
# finding. More arguments go to libFuzzer.
set -u
build=$1 name=$2 seconds=$3
shift 3
here=$(dirname "$0")
mkdir -p "$build/corpus/$name" "$build/findings"
# With a Lua state each input leaves garbage, which is no leak; there the target looks for leaks itself.
[ -e "$here/$name.lua" ] && set -- -detect_leaks=0 "$@"
[ -e "$here/$name.dict" ] && set -- "-dict=$here/$name.dict" "$@"
ASAN_OPTIONS="allocator_may_return_null=1:detect_odr_violation=0:quarantine_size_mb=32${ASAN_OPTIONS:+:$ASAN_OPTIONS}" OMP_NUM_THREADS=1 \
    exec "$build/$name" -max_total_time="$seconds" -max_len="${MAX_LEN:-16384}" -timeout=100 -rss_limit_mb=2048 \
    -print_final_stats=1 -artifact_prefix="$build/findings/$name-" "$@" \
    "$build/corpus/$name" "$here/seeds/$name"
