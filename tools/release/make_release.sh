#!/usr/bin/env bash
# make release: what people download, in FOLDER/out, for the systems that are named (all): programs, wheels of pyquern, SHA256SUMS, a list of
# what is inside (SPDX), sources of quern and of what is under the LGPL, and the files of package managers, filled.
#   make_release.sh FOLDER [SYSTEM...]
#
# Sources are those of the commit, times are its time, and paths of this machine are in no file, so that the same bytes come out with the same
# compilers and the same Debian. JOBS systems are built at a time, each by JOBS compilers: configure of libraries leaves processors idle. QN_ZIG
# is the compiler zig, else ziglang of PyPI is installed in FOLDER. QN_RELEASE_URL is the address that the files will be published at. GPU
# kernels are compiled where nvcc is (QN_CUDA, QN_CUDA_ARCHS=all), once for all systems.
set -euo pipefail
cd "$(dirname "$0")/../.."
systems="linux-x86_64 linux-x86_64-static linux-aarch64 linux-aarch64-static macos-arm64 macos-x86_64 windows-x86_64"
[ $# -ge 1 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
die() {
    echo "make release: $*" >&2
    exit 1
}
[[ $(realpath -m "$1") != *[[:space:]]* ]] || die "'$(realpath -m "$1")' has a space, which configure of curl, GMP and GnuTLS refuses"
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
wanted=${*:-$systems}
out=$folder/out source=$folder/source
export JOBS=${JOBS:-$(nproc)} LC_ALL=C TZ=UTC
umask 022

# zig's target of a system; nothing for those that it does not build.
zig_target() {
    case $1 in
    linux-x86_64) echo x86_64-linux-gnu.2.28 ;;
    linux-x86_64-static) echo x86_64-linux-musl ;;
    linux-aarch64) echo aarch64-linux-gnu.2.28 ;;
    linux-aarch64-static) echo aarch64-linux-musl ;;
    macos-arm64) echo aarch64-macos.12.0 ;;
    macos-x86_64) echo x86_64-macos.12.0 ;;
    windows-x86_64) ;;
    *) die "'$1' is none of: $systems" ;;
    esac
}

# What the programs of a system may need of it (check_binary.py).
policy() {
    case $1 in
    *-static) echo static ;;
    linux-*) echo glibc ;;
    *) echo "${1%%-*}" ;;
    esac
}

# Whether programs of a system use GPUs: a static program loads no drivers, macOS has none.
has_gpus() { [[ $1 != *-static && $1 != macos-* ]]; }

# The shared library that the wheel of a system has, as CMake names it; nothing where there is no wheel: static programs have no shared
# libraries, and Python on Windows was never tried.
wheel_library() {
    case $1 in
    *-static | windows-*) ;;
    macos-*) echo libquern.dylib ;;
    *) echo libquern.so ;;
    esac
}

# logged NAME COMMAND... - the command, its output and its time in a log.
logged() {
    local log=$folder/logs/$1.log
    local TIMEFORMAT="$1: %R s, of processors %U s and for the system %S s"
    shift
    { time "$@" >"$log" 2>&1; } 2>>"$folder/logs/times" || { tail -n 30 "$log" >&2; die "the log is $log"; }
}

unpack_source() {
    [ -e .git ] || die "this folder is not a git clone, so there is no commit to build"
    [ -z "$(git status --porcelain --untracked-files=no)" ] || die "changes are not committed"
    commit=$(git rev-parse HEAD)
    SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
    export SOURCE_DATE_EPOCH
    # Files that another commit has, too, keep their times, so that only the others are compiled again.
    [ -d "$source/.git" ] || git clone -q --shared --no-checkout . "$source"
    git -C "$source" checkout -q --force --detach "$commit"
    git -C "$source" clean -qfd # what git ignores, build/, stays
    version=$(sed -n 's/^project(quern VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
}

# build_kernels - the GPU's kernels, which are the same for every system.
build_kernels() {
    logged kernels-configure cmake -S "$source" -B "$source/build/kernels" -G Ninja -DQN_TESTS=OFF "${kernels[@]}"
    logged kernels-build cmake --build "$source/build/kernels" -j "$JOBS" --target gpu-kernels
}

# build_system SYSTEM - libraries, then quern, quern-check and the shared library of the wheel.
build_system() {
    local system=$1 target libraries=$folder/cross/$1 build=$source/build/$1 options=() programs=(quern quern-check)
    target=$(zig_target "$system")
    if [ -n "$target" ]; then
        "$source/tools/release/zig_tools.sh" "$zig" "$target" "$folder/tools/$system"
        export QN_ZIG_TOOLS=$folder/tools/$system
        logged "$system-libraries" "$source/tools/release/libraries.sh" "$target" "$QN_ZIG_TOOLS" "$libraries"
        options+=(-DCMAKE_TOOLCHAIN_FILE="$source/cmake/zig.cmake")
    else
        CFLAGS=-ffile-prefix-map=$folder/cross/sources=. \
            logged "$system-libraries" "$source/cmake/cross-libraries.sh" "$source/cmake/windows-x86_64.cmake" "$libraries"
        options+=(-DCMAKE_TOOLCHAIN_FILE="$source/cmake/windows-x86_64.cmake")
    fi
    if has_gpus "$system"; then
        options+=("${kernels[@]}" -DQN_CUBINS="$source/build/kernels/cuda")
    else
        options+=(-DQN_GPUS=OFF)
    fi
    ! command -v ccache >/dev/null || options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
    PKG_CONFIG_LIBDIR=$libraries/lib/pkgconfig LDFLAGS=-s \
        logged "$system-configure" cmake -S "$source" -B "$build" -G Ninja -DQN_TESTS=OFF "${options[@]}"
    [ -z "$(wheel_library "$system")" ] || programs+=(quern-shared)
    ! has_gpus "$system" || flock -s "$folder/kernels.lock" true # waits for them
    logged "$system-build" cmake --build "$build" -j "$JOBS" --target "${programs[@]}"
}

# build SYSTEM... - all of them, JOBS at a time, with the kernels among them. Each is a process group of its own, which ends with this script.
building=()
trap 'for group in "${building[@]}"; do kill -- "-$group" 2>/dev/null || true; done' EXIT
build() {
    local system queue=("$@")
    exec 8>"$folder/kernels.lock"
    flock 8 # held until build_kernels ends
    for system in "$@"; do
        ! has_gpus "$system" || { queue=(kernels "$@") && break; }
    done
    set -m
    for system in "${queue[@]}"; do
        [ ${#building[@]} -lt "$JOBS" ] || wait_for_one
        if [ "$system" = kernels ]; then
            build_kernels &
            exec 8>&-
        else
            build_system "$system" &
        fi
        building+=($!)
    done
    set +m
    while [ ${#building[@]} -gt 0 ]; do wait_for_one; done
}

wait_for_one() {
    local ended left=() group status=0
    wait -n -p ended "${building[@]}" || status=$?
    for group in "${building[@]}"; do
        [ "$group" = "$ended" ] || left+=("$group")
    done
    building=("${left[@]}")
    [ $status -eq 0 ] || exit $status # its log was shown
}

# pack SYSTEM - checks what was built, and packs it.
pack() {
    local system=$1 build=$source/build/$1 name=quern-$version-$1 suffix='' library
    library=$(wheel_library "$system")
    [[ $system != windows-* ]] || suffix=.exe
    local tree=$folder/pack/$name
    rm -rf "$folder/pack"
    mkdir -p "$tree/bin" "$tree/share/quern" "$tree/share/man/man1" "$tree/share/doc/quern"
    cp "$build/quern$suffix" "$build/quern-check$suffix" "$tree/bin"
    "$source/tools/release/check_binary.py" "$(policy "$system")" "$tree"/bin/* ${library:+"$build/$library"}
    cp "$source/models/quern-demo.gguf" "$tree/share/quern"
    cp "$source/docs/quern.1" "$source/docs/quern-check.1" "$tree/share/man/man1"
    cp "$source/LICENSE" "$source/README.md" "$source/CHANGELOG.md" "$tree/share/doc/quern"
    "$source/tools/release/parts.py" licences "$folder/cross/sources" "$zig" "$system" >"$tree/share/doc/quern/licences.txt"
    if [ -n "$suffix" ]; then
        python3 "$source/tools/release/pack_zip.py" "$out/$name.zip" "$folder/pack"
    else
        tar -C "$folder/pack" --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX \
            -c "$name" | gzip -n -9 >"$out/$name.tar.gz"
    fi
    if [ -n "$library" ]; then
        "$source/tools/release/parts.py" licences "$folder/cross/sources" "$zig" wheel >"$folder/licences-wheel.txt"
        "$source/tools/release/make_wheel.py" "$source" "$build" "$system" "$folder/licences-wheel.txt" "$out"
    fi
}

unpack_source
for system in $wanted; do
    zig_target "$system" >/dev/null
done
rm -rf "$out" "$folder/logs"
mkdir -p "$out" "$folder/logs"
logged zig "$source/tools/release/get_zig.sh" "$folder"
zig=$(tail -n 1 "$folder/logs/zig.log")
export ZIG_GLOBAL_CACHE_DIR=$folder/zig-cache ZIG_LOCAL_CACHE_DIR=$folder/zig-cache
kernels=(-DQN_CUDA="${QN_CUDA:-AUTO}" -DQN_CUDA_ARCHS="${QN_CUDA_ARCHS:-all}" -DQN_CUDA_COMPRESS=ON)
# shellcheck disable=SC2086
build $wanted
for system in $wanted; do
    pack "$system"
    echo "$system: $(cd "$out" && ls -s --block-size=K | awk -v s="$version-$system\\\\." '$2 ~ s { print $1, $2 }')"
done
logged dist "$source/tools/make_dist.sh" "$out/sources"
# shellcheck disable=SC2086
"$source/tools/release/parts.py" sources "$folder/cross/sources" "$out/sources" $wanted
"$source/tools/release/parts.py" spdx "$folder/cross/sources" "$zig" "$version" "$commit" "$out" >"$folder/spdx.json"
mv "$folder/spdx.json" "$out/quern-$version.spdx.json"
if [ -n "${QN_RELEASE_URL:-}" ]; then
    "$source/tools/release/fill_templates.py" "$source/packaging" "$version" "$out" "$QN_RELEASE_URL"
else
    echo "QN_RELEASE_URL is not set: install.sh and files of package managers, which name the address, are left out"
fi
(cd "$out" && find . -type f ! -name SHA256SUMS -printf '%P\n' | sort | xargs -d '\n' sha256sum >SHA256SUMS)
