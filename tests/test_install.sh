#!/usr/bin/env bash
# Installs into an empty prefix and uses what lies there as a stranger would: a program built by pkg-config (shared and static) and
# by find_package, the header in C++, the names that the shared library exports, the manual page. Folders have spaces and quotes in
# their names throughout.
set -eu
top=$(mktemp -d)
trap 'rm -rf "$top"' EXIT
work="$top/it's a folder"
prefix="$work/a prefix"
mkdir "$work"
die() {
    echo "test_install: $*"
    exit 1
}
quiet() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; die "$1 failed"; }; }

quiet cmake --install "$QN_BIN" --prefix "$prefix"
for file in bin/quern include/quern/quern.h include/quern/status.h share/man/man1/quern.1 share/man/man1/quern-check.1 share/quern/quern-demo.gguf \
    lib/systemd/system/quern.service; do
    [ -s "$prefix/$file" ] || die "$file was not installed"
done
libdir=$(dirname "$(find "$prefix" -name libquern.so)")
[ -f "$libdir/libquern.a" ] || die "libquern.a was not installed"

cat >"$work/main.c" <<'C'
#include <quern/quern.h>
#include <stdio.h>
#include <string.h>
int main(void)
{
    qn_model *model = NULL;
    const qn_status status = qn_model_load("/nonexistent/model.gguf", NULL, &model);
    printf("%s %s: %s\n", qn_version(), qn_status_name(status), qn_error_text());
    return !(status == QN_ERR_IO && !model && strstr(qn_error_text(), "/nonexistent/model.gguf"));
}
C

# quern.pc names the prefix that the build was configured with, as for any installed package: here it gets this one, as if it had
# been. pkg-config escapes spaces, so a shell has to read what it prints.
sed "s|^prefix=.*|prefix=$prefix|" "$libdir/pkgconfig/quern.pc" >"$work/quern.pc"
export PKG_CONFIG_PATH=$work
flags() { eval "flags=($(pkg-config "$@" quern))"; }
flags --cflags --libs
quiet "$CC" "$work/main.c" -o "$work/shared" "${flags[@]}"
LD_LIBRARY_PATH=$libdir "$work/shared" || die "the program against the shared library failed"
flags --cflags --static --libs
for i in "${!flags[@]}"; do
    [ "${flags[i]}" != -lquern ] || flags[i]=$libdir/libquern.a
done
quiet "$CC" "$work/main.c" -o "$work/static" "${flags[@]}"
"$work/static" || die "the program against the static library failed"

mkdir "$work/project"
cp "$work/main.c" "$work/project"
cat >"$work/project/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
find_package(quern $(pkg-config --modversion quern) REQUIRED)
add_executable(with-shared main.c)
target_link_libraries(with-shared quern::quern)
add_executable(with-static main.c)
target_link_libraries(with-static quern::quern-static)
CMAKE
quiet cmake -S "$work/project" -B "$work/project/build" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$CC"
quiet cmake --build "$work/project/build"
for program in with-shared with-static; do
    "$work/project/build/$program" || die "$program, built by find_package, failed"
done

foreign=$(nm -D --defined-only "$libdir/libquern.so" | awk '$3 !~ /^qn_/ {print $3}')
[ -z "$foreign" ] || die "the shared library exports names that are not its own: $foreign"
# Every name that the headers declare is exported, and no other.
nm -D --defined-only "$libdir/libquern.so" | awk '{print $3}' | sort >"$work/exported"
functions() { cat "$@" | grep -o '^QN_API [^(]*(' | grep -o 'qn_[a-z0-9_]*($' | tr -d '(' | sort; }
functions "$prefix"/include/quern/*.h >"$work/declared"
diff "$work/declared" "$work/exported" || die "declared (<) and exported (>) names differ"
# So do those of the Debian package, each with the version that brought it.
sed -n 's/^ \([a-z0-9_]*\)@Base [0-9.]*$/\1/p' "$QN_SOURCE_DIR"/debian/libquern[0-9]*.symbols | LC_ALL=C sort >"$work/packaged"
LC_ALL=C sort "$work/declared" | diff - "$work/packaged" || die "names of the headers (<) and of debian/libquern*.symbols (>) differ"

# The library of the kernels: the names of its headers, and none of the libraries that models and templates need.
kernels=$libdir/libquern-kernels.so
if [ -e "$kernels" ]; then
    functions "$prefix"/include/quern/{kernels,cuda,status}.h >"$work/kernel-names"
    nm -D --defined-only "$kernels" | awk '{print $3}' | sort | diff "$work/kernel-names" - || die "names of the kernels' headers (<) and library (>) differ"
    sed -n 's/^ \([a-z0-9_]*\)@Base [0-9.]*$/\1/p' "$QN_SOURCE_DIR"/debian/libquern-kernels*.symbols | sort | diff "$work/kernel-names" - ||
        die "names of the kernels' headers (<) and of debian/libquern-kernels*.symbols (>) differ"
    cat >"$work/kernels.c" <<'C'
#include <quern/kernels.h>
#include <stdio.h>
int main(void)
{
    float x[2] = { 3, 4 }, weight[2] = { 1, 1 }, out[2];
    const qn_view in = { x, QN_DTYPE_F32, 2 }, w = { weight, QN_DTYPE_F32, 2 }, to = { out, QN_DTYPE_F32, 2 };
    if (qn_rms_norm(in, w, 1, 2, 1e-6f, to))
        return fprintf(stderr, "%s\n", qn_error_text()), 1;
    return !(out[0] > 0.8f && out[0] < 0.9f && out[1] > 1.1f && out[1] < 1.2f);
}
C
    sed "s|^prefix=.*|prefix=$prefix|" "$libdir/pkgconfig/quern-kernels.pc" >"$work/quern-kernels.pc"
    eval "flags=($(pkg-config --cflags --libs quern-kernels))"
    quiet "$CC" "$work/kernels.c" -o "$work/with-kernels" "${flags[@]}"
    LD_LIBRARY_PATH=$libdir "$work/with-kernels" || die "the program with the kernels alone failed"
    needed=$(LD_LIBRARY_PATH=$libdir ldd "$work/with-kernels" | grep -E 'pcre2|jansson|utf8proc|libquern\.so' || true)
    [ -z "$needed" ] || die "the kernels need $needed"
fi

for cxx in "clang -x c++" "$CC -x c++"; do
    echo 'int main() {}' | $cxx -fsyntax-only - 2>/dev/null || continue # this compiler has no C++
    for header in "$prefix"/include/quern/*.h; do
        quiet $cxx -std=c++11 -Wall -Wextra -Werror -fsyntax-only -I "$prefix/include" -include "$header" /dev/null
    done
done

"$prefix/bin/quern" --version | grep -qx "quern [0-9.]*" || die "the installed program does not run"
"$prefix/bin/quern" run --temp 0 -n 8 -p 'Once upon a time' >"$work/out" 2>"$work/err" || die "the installed program finds no model of its own"
grep -qF "demo model, $prefix/" "$work/err" || die "the installed program does not say which model it took: $(cat "$work/err")"
if command -v mandoc >/dev/null; then
    mandoc -T lint -W warning "$prefix"/share/man/man1/*.1 || die "a manual page has mistakes"
fi

# The Makefile in a folder with a space, with such a BUILD, PREFIX and DESTDIR. A project of one file stands in for quern, whose
# build would take minutes.
export -n MAKEFLAGS MAKELEVEL
source="$work/a source" build="$work/a source/my build" dest="$work/a dest"
mkdir -p "$source/cmake"
cp "$QN_SOURCE_DIR/Makefile" "$source"
cp "$QN_SOURCE_DIR/cmake/need-packages.sh" "$source/cmake"
cat >"$source/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(one LANGUAGES NONE)
install(FILES Makefile DESTINATION "share/one folder")
CMAKE
quiet make -C "$source" BUILD="my build" PREFIX="$prefix" DESTDIR="$dest" install
[ "$(find "$dest" -type f)" = "$dest$prefix/share/one folder/Makefile" ] || die "make install put $(find "$dest" -type f)"
[ "$(ls "$source")" = "$(printf 'CMakeLists.txt\nMakefile\ncmake\nmy build')" ] || die "make install left $(ls "$source")"
mkdir "$source/my"
quiet make -C "$source" BUILD="my build" clean
[ -d "$source/my" ] && [ ! -e "$build" ] || die "make clean left $(ls "$source")"

# make demo builds the program alone and leaves GPU kernels for make, which does not change what a folder was configured with.
mkdir "$source/tools"
echo 'echo "told in $1"' >"$source/tools/demo.sh"
chmod +x "$source/tools/demo.sh"
cat >>"$source/CMakeLists.txt" <<'CMAKE'
set(QN_CUDA AUTO CACHE STRING "")
add_custom_target(quern COMMAND ${CMAKE_COMMAND} -E touch program)
add_custom_target(other ALL COMMAND ${CMAKE_COMMAND} -E touch other)
CMAKE
# kernels EXPECTED ARGUMENTS... - make with these; then QN_CUDA is as expected.
kernels() {
    local expected=$1
    shift
    quiet make -C "$source" BUILD="my build" "$@"
    grep -qx "QN_CUDA:STRING=$expected" "$build/CMakeCache.txt" || die "make $*: $(grep ^QN_CUDA: "$build/CMakeCache.txt"), expected $expected"
}
kernels LATER demo
grep -qx 'told in my build' "$work/log" && [ -e "$build/program" ] && [ ! -e "$build/other" ] || die "make demo: $(cat "$work/log"; ls "$build")"
kernels AUTO all
[ -e "$build/other" ] || die 'make built nothing'
kernels AUTO demo
quiet cmake -S "$source" -B "$build" -DQN_CUDA=OFF
kernels OFF all
kernels OFF demo
quiet make -C "$source" BUILD="my build" clean
rm -r "$source/tools"

# quern itself is configured in such a folder, and the sources that hold paths are compiled, the GPU's kernels among them.
for part in CMakeLists.txt cmake src include models docs quern.pc.in quern-kernels.pc.in quern-config.cmake.in; do
    cp -r "$QN_SOURCE_DIR/$part" "$source"
done
mkdir "$source/tests" && cp -r "$QN_SOURCE_DIR/tests/kernels" "$source/tests"
quiet cmake -S "$source" -B "$build" -G Ninja -DCMAKE_C_COMPILER="$CC" -DCMAKE_INSTALL_PREFIX="$prefix" -DQN_CUDA=OFF -DQN_TESTS=OFF \
    -DCMAKE_C_FLAGS_RELEASE=-O1
quiet cmake --build "$build" --target CMakeFiles/quern-objects.dir/cuda/built_in.c.o CMakeFiles/quern-objects.dir/src/base/status.c.o \
    CMakeFiles/quern-cli.dir/src/cli/demo_model.c.o CMakeFiles/quern-page.dir/page/page_files.c.o
cmp <(grep '^prefix=' "$build/quern.pc") <(grep '^prefix=' "$work/quern.pc") || die "quern.pc has another prefix"

# A caller's flags are kept; without them Release has the -O3 that the kernels need, and so has RelWithDebInfo.
grep -q -- ' -O1 ' "$build/compile_commands.json" || die "CMAKE_C_FLAGS_RELEASE=-O1 has no effect"
! grep -q -- ' -O3 ' "$build/compile_commands.json" || die "CMAKE_C_FLAGS_RELEASE=-O1 is followed by -O3"
for type in Release RelWithDebInfo; do
    quiet cmake -S "$source" -B "$build $type" -G Ninja -DCMAKE_C_COMPILER="$CC" -DCMAKE_BUILD_TYPE=$type -DQN_CUDA=OFF -DQN_TESTS=OFF
    [ -z "$(grep '"command"' "$build $type/compile_commands.json" | grep -v -- ' -O3 ')" ] || die "$type does not compile with -O3"
done
