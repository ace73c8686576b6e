#!/usr/bin/env bash
# Builds the libraries that quern links, static, for another system: from Debian's source packages, with its patches, for which neither
# root nor a deb-src line is needed: they are where the system's own packages come from.
#   cross-libraries.sh TOOLCHAIN_FILE FOLDER
# FOLDER/lib/pkgconfig is what PKG_CONFIG_LIBDIR has to name for quern's own build with that toolchain file. Sources are kept
# beside FOLDER, in sources/, for the next target. A folder that is complete is left as it is. Exits with 3 if the sources cannot be had.
set -eu

[ $# = 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
toolchain=$(realpath "$1")
mkdir -p "$2"
prefix=$(realpath "$2")
sources=$(dirname "$prefix")/sources
# Source package, folder of its CMakeLists.txt, options.
libraries="
pcre2 . -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF -DPCRE2_SUPPORT_UNICODE=ON
utf8proc . -DUTF8PROC_ENABLE_TESTING=OFF
xxhash cmake_unofficial -DXXHASH_BUILD_XXHSUM=OFF
jansson . -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF"

[ ! -f "$prefix/complete" ] || exit 0

# shellcheck source=/dev/null
. "$(dirname "$0")/debian-sources.sh"
# shellcheck disable=SC2046
fetch_sources "$sources" $(awk 'NF { print $1 }' <<<"$libraries")

while read -r package folder options; do
    [ -n "$package" ] || continue
    build=$prefix/build/$package
    mkdir -p "$build"
    if ! { cmake -S "$(echo "$sources/$package"-[0-9]*/)/$folder" -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$toolchain" \
               -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF \
               -DCMAKE_POSITION_INDEPENDENT_CODE=ON -Wno-dev $options && cmake --build "$build" && cmake --install "$build"
         } >"$build/log" 2>&1; then
        tail -n 20 "$build/log" >&2
        echo "cross-libraries: $package cannot be built for $toolchain; the log is $build/log" >&2
        exit 1
    fi
done <<<"$libraries"
# xxHash writes the prefix of its own makefile.
sed -i "s,^prefix=.*,prefix=$prefix," "$prefix"/lib/pkgconfig/*.pc
touch "$prefix/complete"
