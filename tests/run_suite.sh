#!/usr/bin/env bash
# The whole suite, as `make test` runs it: builds with gcc, with clang under ASan and UBSan (and short fuzz runs), under TSan, and
# for 64-bit ARM under qemu; runs every test of each. Logs lie in BUILD/test-logs. The last line counts the tests of all builds.
set -u
cd "$(dirname "$0")/.."
build=${BUILD:-build}
jobs=${JOBS:-$(nproc)}
mkdir -p "$build" && build=$(cd "$build" && pwd) || exit 1
logs=$build/test-logs
rm -rf "$logs"
mkdir "$logs" || exit 1

passed=0 failed=0 skipped=0
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
export QN_FUZZ_SECONDS=${QN_FUZZ_SECONDS:-3}

line() { printf '%-34s %s\n' "$1" "$2"; }

# build NAME FOLDER cmake-arguments... - configure and compile; a failure counts as one failed test.
build() {
    local name=$1 folder=$2 start=$SECONDS log="$logs/build-$1.log"
    shift 2
    if cmake -S . -B "$folder" -G Ninja -DQN_WERROR=ON "$@" >"$log" 2>&1 && cmake --build "$folder" -j "$jobs" >>"$log" 2>&1; then
        line "build $name" "$((SECONDS - start)) s"
        return 0
    fi
    line "build $name" "FAILED after $((SECONDS - start)) s, end of $log:"
    grep -n -E 'error|FAILED' "$log" | head -n 20
    tail -n 30 "$log"
    failed=$((failed + 1))
    return 1
}

# Attribute of the summary that ctest writes as JUnit XML.
count() { sed -n "s/^[[:space:]]*$2=\"\([0-9]*\)\".*/\1/p" "$1" | head -n 1; }

# run NAME FOLDER ctest-arguments... - run tests and add up what came of them. One more than cores run at a time: some wait.
run() {
    local name=$1 folder=$2 start=$SECONDS log="$logs/test-$1.log" xml="$logs/test-$1.xml"
    shift 2
    ctest --test-dir "$folder" -j $((jobs + 1)) --output-on-failure --no-tests=ignore --output-junit "$xml" "$@" >"$log" 2>&1
    local status=$? tests=0 bad=0 left=0
    if [ -s "$xml" ]; then
        tests=$(count "$xml" tests)
        bad=$(count "$xml" failures)
        left=$(($(count "$xml" skipped) + $(count "$xml" disabled)))
    fi
    if { [ $status -ne 0 ] || [ "$tests" -eq 0 ]; } && [ "$bad" -eq 0 ]; then # ctest itself failed, or a program was not there to run
        bad=1
    fi
    [ "$tests" -ge $((bad + left)) ] || tests=$((bad + left))
    passed=$((passed + tests - bad - left)) failed=$((failed + bad)) skipped=$((skipped + left))
    line "test $name" "$((tests - bad - left)) passed, $bad failed, $left skipped in $((SECONDS - start)) s"
    if [ "$bad" -gt 0 ]; then
        echo "end of $log:"
        grep -E '\*\*\*(Failed|Timeout|Exception|Not Run)' "$log"
        tail -n 60 "$log"
    fi
}

begin=$SECONDS
build gcc "$build" -DCMAKE_C_COMPILER=gcc && run gcc "$build"

# test_scheduler_random covers the code of the scheduler's tests, and they run with TSan; serve_load, serve_agents and protocol that of
# serve_clients. test_gpu_code runs the installed compilers, which no sanitizer checks; test_pipeline has the code that calls them.
long_with_asan='^(test_(scheduler(_params)?|gpu_code)|e2e_serve_clients)$'
# -O1 keeps the checked builds quick to compile and their traces readable.
build clang-asan-ubsan "$build/asan" -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O1 \
    -DQN_SANITIZE=address,undefined -DQN_FUZZ=ON && run clang-asan-ubsan "$build/asan" -LE install -E "$long_with_asan"

build clang-tsan "$build/tsan" -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O1 -DQN_SANITIZE=thread &&
    run clang-tsan "$build/tsan" -L threads

if command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null; then
    build aarch64 "$build/aarch64" -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DQN_KERNELS_ONLY=ON && run aarch64 "$build/aarch64"
else
    line "aarch64" "skipped: no cross compiler or no qemu-aarch64"
    skipped=$((skipped + 1))
fi

echo "whole suite in $((SECONDS - begin)) s"
summary="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || summary+=", $skipped skipped"
echo "$summary"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
