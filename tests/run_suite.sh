#!/usr/bin/env bash
# The suite: run_suite.sh STAGE...
#
#   check   the plain build and the tests of the edit cycle: unit tests and quern-check, without those that take longest
#   test    the plain build and all of its tests (make test)
#   more    GPU kernels, Vulkan models, drafts, ASan and UBSan with short fuzz runs, TSan, 64-bit ARM under qemu, programs for macOS; adds
#           to what `test` counted last
#   windows quern.exe, quern-check.exe and pyquern, cross-compiled, under Wine; Windows on ARM compiles (make test-windows)
#   release what make release builds for Linux and macOS, started here and under qemu; SYSTEMS: some of them (make test-release)
#
# Logs lie in BUILD/test-logs. The last line counts the tests of all builds.
set -u
cd "$(dirname "$0")/.."
build=${BUILD:-build}
jobs=${JOBS:-$(nproc)}
mkdir -p "$build/test-logs" && build=$(cd "$build" && pwd) || exit 1
logs=$build/test-logs

passed=0 failed=0 skipped=0
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
export QN_FUZZ_SECONDS=${QN_FUZZ_SECONDS:-3}
export QN_TEST_VENVS=${QN_TEST_VENVS:-$build} # all builds use the same Python packages

ahead= # process group of builds in the background
trap '[ -z "$ahead" ] || kill -- "-$ahead" 2>/dev/null' EXIT

launcher=()
! command -v ccache >/dev/null || launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)

line() { printf '%-34s %s\n' "$1" "$2"; }

# build NAME FOLDER TARGET cmake-arguments... - configure and compile; a failure counts as one failed test.
build() {
    local name=$1 folder=$2 target=$3 start=$SECONDS log="$logs/build-$1.log"
    shift 3
    if cmake -S . -B "$folder" "$@" >"$log" 2>&1 && cmake --build "$folder" -j "$jobs" --target $target >>"$log" 2>&1; then
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

# The tests that failed, each with the first 40 and the last 40 lines that it printed.
failures() {
    awk '
        function flush(   i) {
            for (i = 1; i <= n; i++)
                if (i <= 40 || i > n - 40) print "    " text[i]
                else if (i == 41) print "    ..."
            n = 0
        }
        /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / { flush(); told = /\*\*\*(Failed|Timeout|Exception|Not Run)/; if (told) print; next }
        /^ *Start +[0-9]+: / { next }
        /^[0-9]+% tests passed/ { flush(); told = 0 }
        told { text[++n] = $0 }
    ' "$1"
}

# run NAME FOLDER ctest-arguments... - run tests and add up what came of them. More run at a time than there are cores: many wait.
# Those that compute count for two (PROCESSORS in tests/CMakeLists.txt).
run() {
    local name=$1 folder=$2 start=$SECONDS log="$logs/test-$1.log" xml="$logs/test-$1.xml"
    shift 2
    rm -f "$xml"
    ctest --test-dir "$folder" -j $((2 * jobs + 2)) --output-on-failure --no-tests=ignore --output-junit "$xml" "$@" >"$log" 2>&1
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
        echo "of $log:"
        failures "$log"
        tail -n 30 "$log"
    fi
}

# A folder that is configured stays as it is. In a new one, warnings are errors, and GPU kernels are compiled later.
plain_build() {
    local first=()
    [ -e "$build/CMakeCache.txt" ] || first=(-G Ninja -DCMAKE_C_COMPILER=gcc -DQN_WERROR=ON -DQN_CUDA=LATER "${launcher[@]}")
    build gcc "$build" all "${first[@]}"
}

stage_check() { plain_build && run gcc "$build" -L '^(unit|check)$' -LE '^(long|gpu)$'; }

stage_test() { plain_build && run gcc "$build" -LE '^gpu$'; }

build_asan() { build clang-asan-ubsan "$build/fuzz" all --preset fuzz "${launcher[@]}"; }

build_tsan() { build clang-tsan "$build/tsan" thread_tests --preset tsan "${launcher[@]}"; }

have_aarch64() { command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null; }

build_aarch64() { build aarch64 "$build/aarch64" all --preset aarch64 "${launcher[@]}"; }

stage_more() {
    # The other builds are compiled meanwhile, on what tests leave of the processors while they wait. Each is begun again below, where it
    # finds all done, or says what failed. They are a process group of their own, which ends with this script.
    set -m
    (
        renice -n 19 "$BASHPID"
        build_asan
        build_tsan
        have_aarch64 && build_aarch64
    ) >/dev/null 2>&1 &
    ahead=$!
    set +m

    # Every pipeline of the architecture that is built in, then the sources for others.
    if [ -e "$build/CMakeCache.txt" ] || plain_build; then
        build gpu-kernels "$build" all -DQN_CUDA=AUTO && run gpu-kernels "$build" -L '^gpu$'
    fi

    # Every proposal is drafted: answers, errors and times of ends are those of one token a step.
    if [ -e "$build/CMakeCache.txt" ]; then
        QN_DRAFT=ngram run drafts "$build" -L '^drafts$'
        QN_DRAFT=mtp run drafts-mtp "$build" -L '^mtp$'
        QN_DRAFT=dflash run drafts-dflash "$build" -L '^dflash$'
    fi
    wait "$ahead"
    ahead=

    # test_scheduler_random covers the code of the scheduler's tests, and they run with TSan. test_gpu_code runs the installed compilers,
    # which no sanitizer checks; test_pipeline has the code that calls them. The statistics of samples are those of the plain build.
    local long_with_asan='^test_(scheduler(_params)?|gpu_code|sample_statistics)$'
    build_asan && run clang-asan-ubsan "$build/fuzz" -L '^(unit|check|fuzz|hostile)$' -E "$long_with_asan"

    build_tsan && run clang-tsan "$build/tsan" -L '^threads$'

    if have_aarch64; then
        build_aarch64 && run aarch64 "$build/aarch64"
    else
        line "aarch64" "skipped: no cross compiler or no qemu-aarch64"
        skipped=$((skipped + 1))
    fi
    macos
}

# The release's compiler: programs for macOS on ARM compile and link, and need of the system what macOS 12 has. Of the libraries those that
# all systems need, so that it takes few minutes; make test-release builds the others.
macos() {
    local folder=$build/macos libraries=$build/macos/cross/macos-arm64 zig code=0
    mkdir -p "$folder"
    if ! zig=$(tools/release/get_zig.sh "$folder" 2>"$logs/zig.log"); then
        line "macos" "skipped: no zig"
        skipped=$((skipped + 1))
        return
    fi
    export QN_ZIG_TOOLS=$folder/tools ZIG_GLOBAL_CACHE_DIR=$folder/zig-cache ZIG_LOCAL_CACHE_DIR=$folder/zig-cache
    tools/release/zig_tools.sh "$zig" aarch64-macos.12.0 "$QN_ZIG_TOOLS"
    CFLAGS="-O2 -DUTF8PROC_STATIC" cmake/cross-libraries.sh cmake/zig.cmake "$libraries" >"$logs/build-macos-libraries.log" 2>&1 || code=$?
    if [ $code = 3 ]; then
        line "macos" "skipped: the sources of the libraries cannot be had"
        skipped=$((skipped + 1))
    elif [ $code != 0 ]; then
        line "macos" "FAILED: the libraries, end of $logs/build-macos-libraries.log:"
        tail -n 30 "$logs/build-macos-libraries.log"
        failed=$((failed + 1))
    elif PKG_CONFIG_LIBDIR=$libraries/lib/pkgconfig LDFLAGS=-s build macos "$folder" "quern quern-check quern-shared" -G Ninja \
        -DCMAKE_TOOLCHAIN_FILE=cmake/zig.cmake -DQN_TESTS=OFF -DQN_GPUS=OFF "${launcher[@]}"; then
        one_test macos tools/release/check_binary.py macos "$folder/quern" "$folder/quern-check" "$folder/libquern.dylib"
    fi
}

# quern.exe and quern-check.exe under Wine, against the plain build.
stage_windows() {
    if { [ -x "$build/quern" ] || plain_build; } && command -v x86_64-w64-mingw32-gcc-posix >/dev/null && command -v wine >/dev/null; then
        local libraries=$build/cross/windows-x86_64 code=0
        cmake/cross-libraries.sh cmake/windows-x86_64.cmake "$libraries" >"$logs/build-cross-libraries.log" 2>&1 || code=$?
        if [ "$code" = 3 ]; then
            line "windows" "skipped: the sources of the libraries cannot be had"
            skipped=$((skipped + 1))
        elif [ "$code" != 0 ]; then
            line "windows" "FAILED: the libraries, end of $logs/build-cross-libraries.log:"
            tail -n 30 "$logs/build-cross-libraries.log"
            failed=$((failed + 1))
        elif PKG_CONFIG_LIBDIR=$libraries/lib/pkgconfig build windows "$build/windows" "quern quern-check quern-shared helper python" --preset windows \
            -DQN_NATIVE_BUILD="$build" "${launcher[@]}"; then
            run windows "$build/windows"
            # Of Windows on ARM that everything compiles.
            PKG_CONFIG_LIBDIR=$libraries/lib/pkgconfig build windows-aarch64 "$build/windows-aarch64" \
                "quern-static quern-hub quern-cli quern-serve" -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/windows-aarch64.cmake \
                -DCMAKE_BUILD_TYPE=None -DQN_WERROR=ON "${launcher[@]}"
        fi
    else
        line "windows" "skipped: no mingw-w64 or no Wine"
        skipped=$((skipped + 1))
    fi
}

# one_test NAME COMMAND... - a command as a test: 77 is skipped.
one_test() {
    local name=$1 start=$SECONDS code=0 word=passed
    shift
    "$@" >"$logs/test-$name.log" 2>&1 || code=$?
    case $code in
    0) passed=$((passed + 1)) ;;
    77) word=skipped skipped=$((skipped + 1)) ;;
    *) word=FAILED failed=$((failed + 1)) && tail -n 30 "$logs/test-$name.log" ;;
    esac
    line "test $name" "$word in $((SECONDS - start)) s"
}

stage_release() {
    { [ -x "$build/quern" ] && [ -x "$build/quern-check" ]; } || plain_build || return
    local release=$build/release
    export QN_RELEASE_URL=${QN_RELEASE_URL:-https://files.test} # also of the second build
    # shellcheck disable=SC2086
    one_test release-build tools/release/make_release.sh "$release" \
        ${SYSTEMS:-linux-x86_64 linux-x86_64-static linux-aarch64 linux-aarch64-static macos-arm64 macos-x86_64}
    one_test release-programs tests/test_release_programs.sh "$release" "$build"
    one_test release-dockerfile tests/test_dockerfile.sh "$release/out"
}

[ $# -gt 0 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }
begin=$SECONDS
if [[ $1 != @(more|windows|release) ]]; then
    rm -f "$logs"/*
elif [ -s "$logs/counts" ]; then
    read -r passed failed skipped <"$logs/counts"
fi
for stage in "$@"; do
    "stage_$stage"
    rm -f "$logs/counts"
    [ "$stage" != test ] || echo "$passed $failed $skipped" >"$logs/counts"
done
echo "$* in $((SECONDS - begin)) s"
summary="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || summary+=", $skipped skipped"
echo "$summary"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
