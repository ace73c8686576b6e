#!/usr/bin/env bash
# Libraries of a release for Linux and macOS, static, from Debian's source packages: those of cmake/cross-libraries.sh, and
# GMP, Nettle, GnuTLS, libmicrohttpd and libcurl. libmicrohttpd has TLS by GnuTLS alone; libcurl shares it.
#   libraries.sh TARGET TOOLS FOLDER     a target of zig; scripts of zig_tools.sh; FOLDER/lib/pkgconfig is for PKG_CONFIG_LIBDIR
# Sources are next to FOLDER, in sources/. A library that is complete is left as it is, unless its or an earlier one's source or options, or the
# compiler, have changed. JOBS is the number of compilers at a time.
set -euo pipefail
[ $# -eq 3 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
target=$1 tools=$(realpath "$2")
top=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$3"
prefix=$(realpath "$3")
sources=$(dirname "$prefix")/sources
jobs=${JOBS:-$(nproc)}
case $target in
*-musl*) host=${target%%-*}-linux-musl ;;
*-macos*) host=${target%%-*}-apple-darwin ;;
*) host=${target%%-*}-linux-gnu ;;
esac

# Paths of this machine are in no file. Names of the libraries are not exported by a shared library that they are part of. Sections, so that the
# linker leaves out functions that nobody calls.
flags="-O2 -fPIC -fvisibility=hidden -ffunction-sections -fdata-sections -ffile-prefix-map=$sources=. -Wno-everything"
QN_ZIG_TOOLS=$tools CMAKE_BUILD_PARALLEL_LEVEL=$jobs CFLAGS="$flags -DUTF8PROC_STATIC" \
    "$top/cmake/cross-libraries.sh" "$top/cmake/zig.cmake" "$prefix"
# shellcheck source=/dev/null
. "$top/cmake/debian-sources.sh"
fetch_sources "$sources" gmp nettle gnutls28 libmicrohttpd curl

# prepare - changes the sources; a second time it changes nothing.
prepare() {
    local gmp gnutls makefile
    gmp=$(echo "$sources"/gmp-[0-9]*/)
    gnutls=$(echo "$sources"/gnutls28-[0-9]*/)
    # Debian leaves out GMP's manual, whose license is not free; its configure wants a makefile there.
    mkdir -p "$gmp/doc"
    printf 'all install:\n' >"$gmp/doc/Makefile.in"
    # Debian's patch adds a source to gl/Makefile.am, of which automake would make this.
    makefile=$gnutls/gl/Makefile.in
    grep -q 'gl_linkedhash_list\.lo' "$makefile" || sed -i 's/ hash\.lo / hash.lo gl_linkedhash_list.lo /' "$makefile"
    grep -q 'gl_linkedhash_list\.lo' "$makefile" || { echo "libraries.sh: $makefile has no hash.lo" >&2 && exit 1; }
    # On macOS GnuTLS would take certificates from two frameworks, of which zig has none; quern names a file of certificates.
    sed -i 's/^#ifdef __APPLE__$/#if 0/; s/^#elif defined(__APPLE__) .*/#elif 0/' "$gnutls/lib/system/certs.c"
    sed -i 's/ -framework Security -framework CoreFoundation"$/"/' "$gnutls/configure"
    # Debian's patches are newer than what automake made: equal times keep make from calling it.
    find "$gmp" "$gnutls" "$sources"/{nettle,libmicrohttpd,curl}-[0-9]*/ -type f -exec touch -d @0 {} +
}
(
    flock 9
    [ "$(cat "$sources/prepared" 2>/dev/null)" = "$(declare -f prepare)" ] || { prepare && declare -f prepare >"$sources/prepared"; }
) 9>"$sources/lock"

# GnuTLS' configure, which cannot run programs of macOS, would take its malloc(0) for one without memory, and a replacement that is not built.
[[ $target != *-macos* ]] || export ac_cv_func_malloc_0_nonnull=yes ac_cv_func_realloc_0_nonnull=yes
export PKG_CONFIG_LIBDIR=$prefix/lib/pkgconfig PKG_CONFIG_PATH= LC_ALL=C SOURCE_DATE_EPOCH=0

wanted=$(cat "$prefix/complete" "$sources/prepared") # what the libraries so far are built from, and how
# build NAME configure PACKAGE OPTIONS... - builds in a folder of its own, once; the output is in a log there.
build() {
    local name=$1 folder=$prefix/build/$1
    shift
    wanted+="
$(source_versions "$sources" "$2") $*"
    [ "$(cat "$folder/complete" 2>/dev/null)" != "$wanted" ] || return 0
    rm -rf "$folder"
    mkdir -p "$folder"
    if ! (cd "$folder" && "$@") >"$folder/log" 2>&1; then
        tail -n 20 "$folder/log" >&2
        echo "libraries.sh: $name cannot be built for $target; the log is $folder/log" >&2
        exit 1
    fi
    echo "$wanted" >"$folder/complete"
}

# A program that links static libraries needs what is private to shared ones.
publish() { python3 "$top/tools/release/public_libraries.py" "$prefix"/lib/pkgconfig/*.pc; }

# make_library PACKAGE - make and make install, without programs and examples where a makefile can leave them out.
make_library() {
    local make=(make -j "$jobs" MAKEINFO=true)
    case $1 in
    nettle) "${make[@]}" all-here && "${make[@]}" install-here ;;
    curl) "${make[@]}" -C lib install && "${make[@]}" -C include install && "${make[@]}" install-pkgconfigDATA ;;
    *) "${make[@]}" && "${make[@]}" install ;;
    esac
}

# configure PACKAGE OPTIONS... - configure, make, make install, static.
configure() {
    local package=$1 source
    source=$(echo "$sources/$1"-[0-9]*/)
    shift
    CC=$tools/cc AR=$tools/ar RANLIB=$tools/ranlib NM=${NM:-llvm-nm} CFLAGS=$flags CPPFLAGS=-I$prefix/include LDFLAGS=-L$prefix/lib \
        "$source/configure" --host="$host" --build="$("$source"/config.guess 2>/dev/null || echo x86_64-pc-linux-gnu)" \
        --prefix="$prefix" --libdir="$prefix/lib" --disable-shared --enable-static --disable-dependency-tracking "$@" &&
        make_library "$package" && publish
}

build gmp configure gmp --with-pic --disable-cxx --enable-fat CC_FOR_BUILD=gcc
build nettle configure nettle --enable-fat --enable-pic --disable-openssl --disable-documentation CC_FOR_BUILD=gcc
build gnutls configure gnutls28 --with-pic --disable-doc --disable-tests --disable-tools --disable-cxx --disable-nls --disable-guile \
    --disable-libdane --disable-rpath --disable-heartbeat-support --disable-openssl-compatibility --without-p11-kit --without-idn \
    --without-zlib --without-brotli --without-zstd --without-tpm --without-tpm2 --with-included-libtasn1 --with-included-unistring
build libmicrohttpd configure libmicrohttpd --with-pic --enable-https --disable-doc --disable-examples --disable-curl --disable-tools
# Its CMakeLists.txt knows no GnuTLS. Of macOS' frameworks it would call one, without using the result.
[[ $target != *-macos* ]] || flags+=" -include $top/tools/release/no_frameworks.h"
build curl configure curl --with-pic --with-gnutls --without-ca-bundle --without-ca-path --without-ca-fallback --without-zlib \
    --without-brotli --without-zstd --without-libpsl --without-libidn2 --without-nghttp2 --without-librtmp --without-libssh2 \
    --disable-manual --disable-ldap --disable-ntlm --disable-netrc --disable-alt-svc --enable-threaded-resolver --enable-proxy \
    $(printf -- '--disable-%s ' dict file ftp gopher imap ldaps mqtt pop3 rtsp smb smtp telnet tftp)
grep -q '^supported_protocols=.*HTTPS' "$prefix/lib/pkgconfig/libcurl.pc" || { echo "libraries.sh: libcurl has no TLS" >&2; exit 1; }
# Of Vulkan its types alone.
[ ! -d /usr/include/vulkan ] || cp -R /usr/include/vulkan /usr/include/vk_video "$prefix/include"
