#!/usr/bin/env bash
# Makes sure that the Debian packages for the named purposes (build, test, windows, release, dist, deb) are there: installs what is missing when it may
# (root, or sudo without a password), else prints the one command that would and stops.
set -eu

build="gcc make cmake ninja-build pkg-config libc6-dev libpcre2-dev libutf8proc-dev libxxhash-dev libjansson-dev"
# quern serve, and Markdown and formulas in its page; downloads (libcurl by either of its packages, and what its TLS
# trusts); the headers of Vulkan: installed too, but not required.
optional="libmicrohttpd-dev libgnutls28-dev libjs-marked libjs-katex libvulkan-dev ca-certificates"
dpkg-query -W -f '${db:Status-Status}\n' libcurl4-openssl-dev 2>/dev/null | grep -qx installed || optional+=" libcurl4-gnutls-dev"
case $(uname -m) in
x86_64) cross="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user" ;;
*) cross= ;;
esac

# Where there is no dpkg the packages have other names: the build then says itself what it misses.
command -v dpkg-query >/dev/null 2>&1 || exit 0

installed() { dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }

wanted= extra=
for purpose in "$@"; do
    case $purpose in
    build) wanted+=" $build" extra+=" $optional" ;;
    # clang's own run-time libraries (sanitizers, libFuzzer) are a package that carries clang's version; it is found below.
    # Chromium is for the test of the page of quern serve, HAProxy for that of docs/haproxy.cfg; lavapipe, Chromium's SwiftShader and
    # the validation layers are for those of Vulkan devices, glslc for that of their kernels' code; pip installs the compiler for macOS, whose
    # libraries apt-get source fetches with dpkg-dev. They are skipped without.
    test) wanted+=" git binutils clang curl libcmocka-dev mandoc python3-cffi python3-venv $cross"
        extra+=" chromium chromium-driver haproxy mesa-vulkan-drivers vulkan-validationlayers glslc python3-pip dpkg-dev" ;;
    # Optional, too: half a gigabyte, for one build and its test.
    windows) extra+=" gcc-mingw-w64-x86-64-posix wine wine64 dpkg-dev libvulkan-dev xvfb mesa-vulkan-drivers" ;;
    dist) wanted+=" git" ;;
    # zig comes from PyPI. cffi writes the declarations of the wheels. GMP's configure wants m4.
    release) wanted+=" python3-pip python3-cffi m4 llvm dpkg-dev" extra+=" debootstrap ruby" ;;
    # Build-Depends of debian/control, libcurl by either of its packages, and lintian.
    deb) wanted+=" $optional debhelper dpkg-dev libcmocka-dev lintian" ;;
    *) echo "need-packages: unknown purpose '$purpose'" >&2 && exit 2 ;;
    esac
done

missing=
for package in $wanted; do
    installed "$package" || missing+=" $package"
done
case " $* " in
*" test "*)
    # `clang` depends on clang-N; libclang-rt-N-dev goes with it. Before clang is there, ask the package lists for N.
    runtime() { apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9][0-9]*\)$/libclang-rt-\1-dev/p' | head -n 1; }
    rt=$(runtime)
    if [ -n "$rt" ]; then
        installed "$rt" || missing+=" $rt"
    elif ! echo 'int main(void){return 0;}' | clang -fsanitize=address -x c - -o /dev/null 2>/dev/null; then
        missing+=" libclang-rt-14-dev" # Debian 12's, where the package lists are not there yet to ask
    fi
    ;;
esac
required=$missing
useful=
for package in $extra; do
    installed "$package" || useful+=" $package"
done
[ -n "$required$useful" ] || exit 0

install="apt-get install -y --no-install-recommends"
# A machine that has just started installs packages by itself. dpkg's lock is waited for by apt-get; for the lists and the archives it
# has no such option, and fails at once.
patience=300
wait_for_dpkg="-o DPkg::Lock::Timeout=$patience"
if [ "$(id -u)" = 0 ]; then
    as_root=
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
elif [ -z "$required" ]; then
    exit 0
else
    echo "quern: these Debian packages are missing; install them with" >&2
    echo "    sudo $install$required$useful" >&2
    exit 1
fi
echo "Installing Debian packages:$required$useful"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# unlocked COMMAND... - the command, again while another process holds a lock; its output in $log.
unlocked() {
    local end=$((SECONDS + patience)) said=
    until "$@" >"$log" 2>&1; do
        grep -q 'Could not get lock\|Unable to lock directory' "$log" && [ $SECONDS -lt $end ] || return 1
        [ -n "$said" ] || echo "Another process installs packages; waiting for it"
        said=1
        sleep 2
    done
}
install_packages() { unlocked $as_root env LC_ALL=C DEBIAN_FRONTEND=noninteractive $install $wait_for_dpkg "$@"; }
if ! unlocked $as_root env LC_ALL=C apt-get update $wait_for_dpkg || { [ -n "$required" ] && ! install_packages $required; }; then
    [ -n "$required" ] || exit 0
    tail -n 20 "$log" >&2
    echo "quern: installing failed; the command was: $install$required" >&2
    exit 1
fi
# One by one: another Debian may not have one of the names.
for package in $useful; do
    install_packages "$package" || echo "quern: $package is not installed; what needs it is left out"
done
