#!/usr/bin/env bash
# Builds the libraries that quern links, static, for another system: from Debian's source packages, with its patches, for which neither
# root nor a deb-src line is needed: they are where the system's own packages come from.
#   cross-libraries.sh TOOLCHAIN_FILE FOLDER
# FOLDER/lib/pkgconfig is what PKG_CONFIG_LIBDIR has to name for quern's own build with that toolchain file. Sources are kept
# beside FOLDER, in sources/, for the next target; newer ones are taken where that folder is removed. A folder that is complete is left as it
# is, unless sources, options or compiler have changed. Exits with 3 if the sources cannot be had.
set -eu

[ $# = 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
toolchain=$(realpath "$1")
mkdir -p "$2"
prefix=$(realpath "$2")
sources=$(dirname "$prefix")/sources
# Source package, folder of its CMakeLists.txt or configure, options.
libraries="
pcre2 . -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF -DPCRE2_SUPPORT_UNICODE=ON
utf8proc . -DUTF8PROC_ENABLE_TESTING=OFF
xxhash cmake_unofficial -DXXHASH_BUILD_XXHSUM=OFF
jansson . -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF"
# The rest is for Windows alone: macOS has neither so far, and tools/release/libraries.sh builds those of Linux, with TLS by GnuTLS.
case $(basename "$toolchain") in
windows-*) libraries+="
libmicrohttpd . --disable-https --disable-doc --disable-examples --disable-curl --disable-tools --disable-nls --disable-dauth --disable-bauth
curl . -DBUILD_CURL_EXE=OFF -DBUILD_TESTING=OFF -DHTTP_ONLY=ON -DCURL_USE_SCHANNEL=ON -DCURL_ZLIB=OFF -DCURL_USE_LIBSSH2=OFF -DUSE_LIBIDN2=OFF" ;;
esac

# chosen NAME - the value of a variable of the toolchain file.
chosen() { sed -n "s/^set($1 \"*\([^\")]*\)\"*\( CACHE.*\)*)\$/\1/p" "$toolchain" | sed 's/ CACHE.*//'; }

# The compiler with its version; of zig, scripts of tools/release/zig_tools.sh.
compiler() {
    case $(basename "$toolchain") in
    windows-*) "$(chosen CMAKE_C_COMPILER)" --version | head -n 1 ;;
    *) cat "$QN_ZIG_TOOLS/cc" "$QN_ZIG_TOOLS/version" ;;
    esac
}

# shellcheck source=/dev/null
. "$(dirname "$0")/debian-sources.sh"
packages=$(awk 'NF { print $1 }' <<<"$libraries")
# shellcheck disable=SC2086
fetch_sources "$sources" $packages
# shellcheck disable=SC2086
wanted="$libraries
$(source_versions "$sources" $packages)
$(compiler) ${CFLAGS:-}
$(cat "$toolchain")"
[ "$(cat "$prefix/complete" 2>/dev/null)" != "$wanted" ] || exit 0
rm -rf "$prefix/build" "$prefix/complete"

# with_cmake SOURCE BUILD OPTION... - configures, builds and installs a library by its CMakeLists.txt.
with_cmake() {
    local source=$1 build=$2
    shift 2
    cmake -S "$source" -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$toolchain" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" \
        -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON -Wno-dev "$@" &&
        cmake --build "$build" && cmake --install "$build"
}

# with_configure SOURCE BUILD OPTION... - the same by its configure.
with_configure() {
    local source=$1 build=$2 compiler
    shift 2
    compiler=$(chosen CMAKE_C_COMPILER)
    cd "$build" && "$source/configure" --host="$($compiler -dumpmachine)" --prefix="$prefix" --libdir="$prefix/lib" --disable-shared --enable-static \
        --with-pic CC="$compiler" AR="$(chosen CMAKE_AR)" RANLIB="$(chosen CMAKE_RANLIB)" CPPFLAGS="$(chosen CMAKE_C_FLAGS_INIT)" CFLAGS="-O2 ${CFLAGS:-}" "$@" &&
        make -j"$(nproc)" && make install
}

while read -r package folder options; do
    [ -n "$package" ] || continue
    build=$prefix/build/$package
    source=$(realpath "$(echo "$sources/$package"-[0-9]*/)/$folder")
    how=with_cmake
    [ -f "$source/CMakeLists.txt" ] || how=with_configure
    mkdir -p "$build"
    if ! ($how "$source" "$build" $options) >"$build/log" 2>&1; then
        tail -n 20 "$build/log" >&2
        echo "cross-libraries: $package cannot be built for $toolchain; the log is $build/log" >&2
        exit 1
    fi
done <<<"$libraries"
# curl names the compiler's own libraries, also those of which there are two; quern's build has the system's.
[ ! -f "$prefix/lib/pkgconfig/libcurl.pc" ] || sed -i 's,^\(Libs: .* -lcurl\) .*,\1,' "$prefix/lib/pkgconfig/libcurl.pc"
# xxHash writes the prefix of its own makefile.
sed -i "s,^prefix=.*,prefix=$prefix," "$prefix"/lib/pkgconfig/*.pc
# Vulkan's headers are the same for every system; its loader is found at run time.
for folder in vulkan vk_video; do
    [ ! -d /usr/include/$folder ] || cp -R /usr/include/$folder "$prefix/include/"
done
echo "$wanted" >"$prefix/complete"
