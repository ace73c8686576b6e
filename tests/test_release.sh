#!/usr/bin/env bash
# Scripts of `make release` without what takes minutes: nothing is compiled. install.sh against a server of this machine, templates of package
# managers, libraries with a CMake that is played, the wheel, the list of parts, and what programs may need of a system. `make test-release`
# builds and starts the programs.
set -u
: "${QN_SOURCE_DIR:=$(cd "$(dirname "$0")/.." && pwd)}"
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
command -v python3 >/dev/null && command -v curl >/dev/null || { echo "skipped: no python3 or no curl"; exit 77; }
python3 -c 'import tomllib' 2>/dev/null || { echo "skipped: Python before 3.11"; exit 77; }
tools=$QN_SOURCE_DIR/tools/release failures=0
export SOURCE_DATE_EPOCH=1700000000 PYTHONDONTWRITEBYTECODE=1
fail() {
    failures=$((failures + 1))
    echo "FAILED: $*"
    cat "$work/log" 2>/dev/null | head -n 20
}
quiet() { "$@" >"$work/log" 2>&1; }

# ---- A release of programs that only say a version ----

files=$work/files
mkdir "$files"
for system in linux-x86_64 linux-x86_64-static linux-aarch64 macos-arm64 macos-x86_64; do
    tree=$work/tree/quern-9.8.7-$system
    mkdir -p "$tree/bin" "$tree/share/quern"
    printf '#!/bin/sh\necho quern %s "$@"\n' "$system" >"$tree/bin/quern"
    cp "$tree/bin/quern" "$tree/bin/quern-check"
    chmod +x "$tree"/bin/*
    echo model >"$tree/share/quern/quern-demo.gguf"
    tar -C "$work/tree" -czf "$files/quern-9.8.7-$system.tar.gz" "quern-9.8.7-$system"
done

# ---- Templates ----

fill() { quiet "$tools/fill_templates.py" "$QN_SOURCE_DIR/packaging" 9.8.7 "$files" https://files.test/v9.8.7/; }
fill || fail "templates"
[ -x "$files/install.sh" ] && [ -f "$files/homebrew/quern.rb" ] && [ -f "$files/aur/PKGBUILD" ] && [ -f "$files/docker/Dockerfile" ] || fail "templates are missing"
[ ! -e "$files/scoop/quern.json" ] && [ ! -e "$files/winget" ] || fail "a template of a system that was not built was filled"
echo zip >"$files/quern-9.8.7-windows-x86_64.zip"
fill || fail "templates with Windows"
windows=$(sha256sum "$files/quern-9.8.7-windows-x86_64.zip" | cut -d' ' -f1)
python3 - "$files/scoop/quern.json" "$windows" <<'PYTHON' || fail "scoop/quern.json"
import json, sys
x64 = json.load(open(sys.argv[1]))["architecture"]["64bit"]
assert x64 == {"url": "https://files.test/v9.8.7/quern-9.8.7-windows-x86_64.zip", "hash": sys.argv[2]}, x64
PYTHON
grep -q "InstallerSha256: ${windows^^}\$" "$files/winget/quern.installer.yaml" || fail "winget: the hash"
grep -rn '@[A-Z]' "$files" --include='*.rb' --include='*.yaml' --include='*.json' --include=PKGBUILD --include=Dockerfile --include=install.sh &&
    fail "a place of a template was not filled"
hash=$(sha256sum "$files/quern-9.8.7-linux-x86_64.tar.gz" | cut -d' ' -f1)
for file in homebrew/quern.rb aur/PKGBUILD docker/Dockerfile install.sh; do
    grep -q "$hash" "$files/$file" || fail "$file: the hash of the archive for Linux"
done
bash -n "$files/aur/PKGBUILD" || fail "PKGBUILD: not a script"
mkdir "$work/bad"
echo '@VERSION@ @WHAT@' >"$work/bad/x.in"
quiet "$tools/fill_templates.py" "$work/bad" 1 "$work/bad" https://x && fail "an unknown place of a template was accepted"

# ---- install.sh ----

# Ports: the kernel's choice.
(cd "$files" && exec python3 -u -m http.server 0 --bind 127.0.0.1 >"$work/server" 2>&1) &
server=$!
for _ in $(seq 100); do
    port=$(sed -n 's/.* port \([0-9]*\) .*/\1/p' "$work/server" 2>/dev/null)
    [ -z "$port" ] || break
    sleep 0.1
done
export HOME=$work/home
mkdir "$HOME" "$work/bin"
program() { printf '#!/bin/sh\n%s\n' "$2" >"$work/bin/$1" && chmod +x "$work/bin/$1"; }
# machine KERNEL PROCESSOR GLIBC - plays a system; root's helpers must not be called.
machine() {
    program uname "case \$1 in -m) echo $2 ;; *) echo $1 ;; esac"
    program getconf "[ -n '$3' ] && echo glibc $3"
    for name in sudo su doas; do program $name "echo \"$name was called\" >&2; exit 1"; done
}
# Folders of temporary files may not allow programs: none is used.
install() { TMPDIR=$work/none PATH=$work/bin:$PATH quiet sh "$files/install.sh" --url "http://127.0.0.1:$port" "$@"; }
# installs SYSTEM - install.sh takes that archive.
installs() {
    rm -rf "$HOME/.local"
    install || fail "install.sh for $1"
    [ "$("$HOME/.local/bin/quern" x 2>&1)" = "quern $1 x" ] || fail "install.sh for $1 installed '$("$HOME/.local/bin/quern" x 2>&1)'"
    [ "$(ls -Am "$HOME/.local")" = "bin, share" ] || fail "install.sh for $1 left $(ls -Am "$HOME/.local")"
    [ -s "$HOME/.local/share/quern/quern-demo.gguf" ] && [ -x "$HOME/.local/bin/quern-check" ] || fail "install.sh for $1: files are missing"
}
machine Linux x86_64 2.36
installs linux-x86_64
installs linux-x86_64 # a second time
machine Linux x86_64 2.28
installs linux-x86_64
machine Linux x86_64 2.27
installs linux-x86_64-static
machine Linux x86_64 '' # musl
installs linux-x86_64-static
machine Linux aarch64 2.40
installs linux-aarch64
machine Darwin arm64 ''
installs macos-arm64
machine Darwin x86_64 ''
installs macos-x86_64
machine Linux x86_64 2.36
install --prefix "$work/it's a folder" && [ -x "$work/it's a folder/bin/quern" ] || fail "install.sh --prefix"
install --static && [ "$("$HOME/.local/bin/quern")" = "quern linux-x86_64-static" ] || fail "install.sh --static"

# refuses TEXT ARGUMENT... - install.sh fails with the text and leaves the program that is there.
refuses() {
    local text=$1
    shift
    echo before >"$HOME/.local/bin/quern"
    install "$@" && fail "install.sh $*: accepted"
    grep -q "$text" "$work/log" || fail "install.sh $*: expected '$text'"
    [ "$(ls -Am "$HOME/.local")" = "bin, share" ] && [ "$(cat "$HOME/.local/bin/quern")" = before ] || fail "install.sh $*: replaced the program, or left files"
}
refuses 'unknown option' --root
refuses 'only https is trusted' --url http://files.test/x
refuses 'cannot be downloaded' --url "http://127.0.0.1:$port/nowhere"
machine Linux riscv64 2.36
refuses "processors of kind 'riscv64'"
machine Linux aarch64 2.20
refuses 'no archive for linux-aarch64-static'
machine FreeBSD amd64 ''
refuses 'for Linux and macOS'
machine Linux x86_64 2.36
cp "$files/quern-9.8.7-linux-x86_64.tar.gz" "$work/kept"
printf x >>"$files/quern-9.8.7-linux-x86_64.tar.gz"
refuses "its SHA-256 is .* expected $hash; nothing was installed"
mv "$work/kept" "$files/quern-9.8.7-linux-x86_64.tar.gz"
# A script that was cut on its way does nothing.
head -c $(($(wc -c <"$files/install.sh") - 12)) "$files/install.sh" >"$work/cut.sh"
rm -rf "$HOME/.local"
quiet sh "$work/cut.sh" --url "http://127.0.0.1:$port"
[ ! -e "$HOME/.local" ] || fail "a part of install.sh installed something"

# ---- A folder that the libraries cannot be built in ----

quiet "$tools/make_release.sh" "$work/a folder" && fail "make_release.sh: a folder with a space was accepted"
grep -q "a folder' has a space" "$work/log" && [ ! -e "$work/a folder" ] || fail "make_release.sh: a folder with a space"

# ---- The wheel ----

test_wheel() {
    mkdir "$work/build" "$work/wheels" "$work/again"
    echo library >"$work/build/libquern.so.0.0.0"
    ln -s libquern.so.0.0.0 "$work/build/libquern.so.0"
    for folder in wheels again; do
        quiet "$tools/make_wheel.py" "$QN_SOURCE_DIR" "$work/build" linux-aarch64 "$files/install.sh" "$work/$folder" || fail "make_wheel.py"
    done
    cmp -s "$work"/wheels/*.whl "$work"/again/*.whl || fail "a wheel that was made twice differs"
    python3 - "$work"/wheels/pyquern-*-py3-none-manylinux_2_28_aarch64.whl <<'PYTHON' || fail "the wheel's content"
import base64, csv, hashlib, io, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
names = set(wheel.namelist())
info = next(n for n in names if n.endswith("/RECORD"))
rows = list(csv.reader(io.StringIO(wheel.read(info).decode())))
assert {r[0] for r in rows} == names, names ^ {r[0] for r in rows}
for name, digest, size in rows:
    if name != info:
        data = wheel.read(name)
        expected = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert digest == expected and int(size) == len(data), name
assert {"pyquern/__init__.py", "pyquern/_cdef.py", "pyquern/libquern.so", "pyquern/licences.txt", "pyquern/torch/__init__.py"} <= names, names
assert b"\nTag: py3-none-manylinux_2_28_aarch64\n" in wheel.read(info.replace("RECORD", "WHEEL"))
assert b"\nRequires-Dist: cffi>=1.15\n" in wheel.read(info.replace("RECORD", "METADATA"))
PYTHON
    echo other >"$work/build/libquern.so.0.0.1"
    quiet "$tools/make_wheel.py" "$QN_SOURCE_DIR" "$work/build" linux-aarch64 "$files/install.sh" "$work/again" && fail "two libraries were accepted"
}
wheel=wheel
if python3 -c 'import cffi' 2>/dev/null; then
    test_wheel
else
    wheel="no wheel (there is no cffi for $(command -v python3))"
fi

# ---- Libraries for zig's targets: by CMake alone, as the scripts of zig_tools.sh are no names that a configure finds in zig.cmake ----

mkdir -p "$work/libraries/target/lib/pkgconfig" "$work/libraries/target/include" "$work/zig"
printf '#!/bin/sh\necho 1.2.3\n' >"$work/zig/zig"
chmod +x "$work/zig/zig"
quiet "$tools/zig_tools.sh" "$work/zig/zig" aarch64-linux-musl "$work/zig/tools" || fail "zig_tools.sh"
for folder in pcre2-1 utf8proc-1 xxhash-1/cmake_unofficial jansson-1; do
    mkdir -p "$work/libraries/sources/$folder" "$work/libraries/sources/${folder%/*}/debian"
    touch "$work/libraries/sources/$folder/CMakeLists.txt"
    echo "${folder%%/*} (1-1)" >"$work/libraries/sources/${folder%/*}/debian/changelog"
done
mkdir "$work/libraries/sources/libmicrohttpd-1"
touch "$work/libraries/target/lib/pkgconfig/x.pc"
program cmake "[ \"\$1\" != -S ] || echo \"\$2\" >>'$work/configured'"
# configures N WHY - cross-libraries.sh builds that many libraries.
configures() {
    : >"$work/configured"
    QN_ZIG_TOOLS=$work/zig/tools PATH=$work/bin:$PATH quiet "$QN_SOURCE_DIR/cmake/cross-libraries.sh" "$QN_SOURCE_DIR/cmake/zig.cmake" \
        "$work/libraries/target" || fail "cross-libraries.sh for zig: $2"
    [ "$(wc -l <"$work/configured")" = "$1" ] || fail "cross-libraries.sh for zig, $2: expected $1 libraries, found $(cat "$work/configured")"
}
configures 4 'the first time'
configures 0 'the same again'
echo 1.2.4 >"$work/zig/tools/version"
configures 4 'another zig'
echo 'jansson (1-2)' >"$work/libraries/sources/jansson-1/debian/changelog"
configures 4 'another source'
CFLAGS=-Os configures 4 'other options'
rm "$work/bin/cmake"

# Archives of security updates that have no sources: the others', and a line says so.
program apt-get 'case $1 in
indextargets) printf "deb-src http://files.test x%s main\n" -security "" ;;
update) [ -z "${QN_OFFLINE:-}" ] && ! grep -q -- -security "${APT_CONFIG%conf}list" ;;
source) mkdir "$3-1" ;;
esac'
fetch() { PATH=$work/bin:$PATH quiet bash -c 'set -euo pipefail; . "$1"; fetch_sources "$2" jansson' bash "$QN_SOURCE_DIR/cmake/debian-sources.sh" "$work/fetched"; }
QN_OFFLINE=1 fetch
[ $? -eq 3 ] || fail "fetch_sources: sources that cannot be had"
fetch && [ -d "$work/fetched/jansson-1" ] && grep -q 'security updates' "$work/log" || fail "fetch_sources without security updates"
rm "$work/bin/apt-get"

# ---- The list of parts ----

sources=$work/sources zig=$work/zig/zig
mkdir -p "$work/zig/lib/libc/musl"
echo 'zig is licensed' >"$work/zig/LICENSE"
echo 'musl is licensed' >"$work/zig/lib/libc/musl/COPYRIGHT"
for package in $(awk '$2 == "source" { print $1 }' "$tools/parts.list"); do
    mkdir -p "$sources/$package-1.2/debian"
    echo "$package (2:1.2+x-3) unstable; urgency=low" >"$sources/$package-1.2/debian/changelog"
    echo "Copyright: the authors of $package" >"$sources/$package-1.2/debian/copyright"
    printf 'Files: \n 0 1 %s_1.2.tar.xz\n 0 1 %s_1.2+x-3.debian.tar.xz\n\nmore\n' "$package" "$package" >"$sources/${package}_1.2+x-3.dsc"
    touch "$sources/${package}_1.2.tar.xz" "$sources/${package}_1.2+x-3.debian.tar.xz"
done
licences() { "$tools/parts.py" licences "$sources" "$zig" "$1" >"$work/log" 2>&1; }
has() { grep -q "^$1" "$work/log"; }
licences wheel && has 'jansson 2:1.2+x-3: MIT' && has 'Copyright: the authors of pcre2' && has 'zig is licensed' || fail "licences of a wheel"
! has 'gmp \|libmicrohttpd \|curl \|musl ' || fail "licences of a wheel: a part that it does not have"
if [ -e /usr/share/common-licenses/LGPL-3 ]; then # Debian's
    licences linux-aarch64 && has 'gmp 2:1.2+x-3: LGPL' && has 'libunistring in gnutls28 2:' && ! has 'musl ' || fail "licences of linux-aarch64"
    for name in 'GNU LESSER GENERAL PUBLIC LICENSE' 'Version 2.1, February 1999' 'GNU GENERAL PUBLIC LICENSE'; do
        has " *$name" || fail "licences of linux-aarch64: no text of '$name'"
    done
    licences macos-arm64 && has 'gmp 2:1.2+x-3: LGPL' && has 'libmicrohttpd 2:' && ! has 'musl ' || fail "licences of macos-arm64"
    licences linux-aarch64-static && has 'musl in zig 1.2.3: MIT' && has 'musl is licensed' || fail "licences of linux-aarch64-static"
fi
quiet "$tools/parts.py" sources "$sources" "$work/copied" macos-arm64 linux-x86_64 || fail "parts.py sources"
for name in gmp_1.2.tar.xz gmp_1.2+x-3.debian.tar.xz gmp_1.2+x-3.dsc; do
    [ -e "$work/copied/$name" ] || fail "parts.py sources: no $name"
done
[ "$(ls "$work/copied" | wc -l)" = 12 ] || fail "parts.py sources: expected 12 files, found $(ls "$work/copied")"
rm "$files/quern-9.8.7-windows-x86_64.zip" # its parts are packages that may not be installed here
"$tools/parts.py" spdx "$sources" "$zig" 9.8.7 abc "$files" >"$work/log" && python3 - "$work/log" "$hash" <<'PYTHON' || fail "parts.py spdx"
import json, sys
document = json.load(open(sys.argv[1]))
known = {e["SPDXID"] for e in document["packages"] + document["files"]} | {"SPDXRef-DOCUMENT"}
assert all(r["spdxElementId"] in known and r["relatedSpdxElement"] in known for r in document["relationships"])
gmp = next(p for p in document["packages"] if p["name"] == "gmp")
assert gmp["externalRefs"][0]["referenceLocator"] == "pkg:deb/debian/gmp@2%3A1.2%2Bx-3?arch=source", gmp
archive = next(f for f in document["files"] if f["fileName"] == "./quern-9.8.7-linux-x86_64.tar.gz")
assert archive["checksums"][1] == {"algorithm": "SHA256", "checksumValue": sys.argv[2]}, archive
assert document["creationInfo"]["created"] == "2023-11-14T22:13:20Z"
holders = {r["spdxElementId"] for r in document["relationships"] if r["relatedSpdxElement"] == gmp["SPDXID"]}
assert len(holders) == 5 and all("-linux-" in h or "-macos-" in h for h in holders), holders
PYTHON
rm -r "$sources/jansson-1.2"
licences macos-arm64 && fail "licences: a part without its source was accepted"

# ---- What programs may need ----

python3 "$QN_SOURCE_DIR/tests/test_check_binary.py" "$tools" >"$work/log" 2>&1 || fail "check_binary.py"
# Each part that is linked has its licence, and is fetched.
while read -r package origin systems licence; do
    [[ $origin != source || $package == \#* ]] || grep -qw "$package" "$tools/libraries.sh" "$QN_SOURCE_DIR/cmake/cross-libraries.sh" || fail "parts.list: $package is not built"
    [[ -n $systems && -n $licence || $package == \#* ]] || fail "parts.list: $package has no licence"
done <"$tools/parts.list"

[ $failures -eq 0 ] && echo "install.sh, templates, $wheel, parts and check_binary.py: no failure"
