#!/usr/bin/env bash
# Programs that `make release` built: started here, or under qemu, and compared with this system's build.
#   test_release_programs.sh FOLDER_OF_MAKE_RELEASE FOLDER_OF_QUERN
# Those of macOS and Windows are only looked at; tests/test_windows.sh starts quern.exe. Wheels are installed, files of package managers are
# given to what plays these. QN_TWICE: all is built a second time elsewhere, without ccache, and must be the same bytes; QN_RELEASE_URL is then
# that of the first build.
set -u
release=$(realpath "$1")
native=$(realpath "$2")
cd "$(dirname "$0")/.." || exit 1
source=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0 checks=0
export QN_DEVICE=cpu

check() {
    checks=$((checks + 1))
    if ! eval "$2"; then
        failures=$((failures + 1))
        echo "FAILED: $1"
        sed 's/^/    /' "$work/out" "$work/err" 2>/dev/null | head -n 20
    fi
}

# emulated PROCESSOR PROGRAM ARGUMENT... - the program, by qemu where it is for ARM. The architected cipher of signed return addresses would
# take most of qemu's time.
emulated() {
    local processor=$1
    shift
    case $processor in
    "") timeout 900 "$@" ;;
    *) timeout 900 qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu "$processor" "$@" ;;
    esac >"$work/out" 2>"$work/err"
    status=$?
}

# levels PROCESSOR FOLDER - the names of the levels that quern-check finds.
levels() { emulated "$1" "$2/quern-check" --list-levels && sed -n 's/ *present$//p' "$work/out"; }

# same_logits FOLDER MODEL LEVEL PROCESSOR LEVEL_HERE - the program's logits have the bits of this system's at a level.
same_logits() {
    local model=$2 ids=tests/golden/$(basename "${2%.gguf}").ids
    [ "$model" != models/quern-demo.gguf ] || ids=tests/golden/demo.ids
    QN_CPU=$5 "$native/quern" logits -t 2 "$model" --ids "$(paste -sd, "$ids")" -o "$work/native.f32" >"$work/out" 2>"$work/err" ||
        { check "this system's logits of $model at $5" false && return; }
    QN_CPU=$3 emulated "$4" "$1/quern" logits -t 2 "$model" --ids "$(paste -sd, "$ids")" -o "$work/other.f32"
    check "logits of $model at $3 (${4:-here})" '[ $status -eq 0 ] && cmp -s "$work/native.f32" "$work/other.f32"'
    rm -f "$work/other.f32"
}

models() {
    for ids in tests/golden/*.ids; do
        [ ! -f "${ids%.ids}.gguf" ] || echo "${ids%.ids}.gguf"
    done
    echo models/quern-demo.gguf
}

# An installation by install.sh's layout, for x86-64.
here() {
    local bin=$1 system=$2 level
    emulated "" "$bin/quern" version
    check "$system: version" '[ $status -eq 0 ]'
    levels "" "$bin" >"$work/levels"
    "$native/quern-check" --list-levels | sed -n 's/ *present$//p' >"$work/levels-here"
    check "$system: levels of this processor" 'cmp -s "$work/levels" "$work/levels-here"'
    # Processors without AVX2, and with it alone: the level that each gets, and the bits of that level here.
    if command -v qemu-x86_64 >/dev/null; then
        for level in Nehalem:ref Haswell:avx2; do
            timeout 60 qemu-x86_64 -cpu "${level%:*}" "$bin/quern-check" --list-levels >"$work/out" 2>"$work/err"
            check "$system: the level of ${level%:*} is ${level#*:}" '[ "$(sed -n "s/ *present$//p" "$work/out" | tail -n 1)" = "${level#*:}" ]'
            for model in tests/golden/llama.q1_0.gguf tests/golden/llama.ptq1_0.gguf; do
                QN_CPU=${level#*:} "$native/quern" logits -t 1 "$model" --ids 1,2,3 -o "$work/level.f32" >"$work/out" 2>"$work/err"
                timeout 300 qemu-x86_64 -cpu "${level%:*}" "$bin/quern" logits -t 1 "$model" --ids 1,2,3 -o "$work/own.f32" >"$work/out" 2>"$work/err"
                status=$?
                check "$system: $model on ${level%:*} without QN_CPU" '[ $status -eq 0 ] && cmp -s "$work/level.f32" "$work/own.f32"'
            done
        done
    fi
    emulated "" "$bin/quern-check" --every 40
    check "$system: quern-check" '[ $status -eq 0 ]'
    tail -n 1 "$work/out"
    while read -r level; do
        for model in $(models); do
            same_logits "$bin" "$model" "$level" "" "$level"
        done
    done <"$work/levels-here"
    emulated "" "$bin/quern" run "Once upon a time" -n 24 --seed 1
    cp "$work/out" "$work/text"
    "$native/quern" run models/quern-demo.gguf "Once upon a time" -n 24 --seed 1 >"$work/native" 2>/dev/null
    check "$system: the demo model is found next to the program, and tells the same" 'cmp -s "$work/text" "$work/native"'
    # Scripts of the program's own tests, with the other programs of this build.
    mkdir -p "$work/bin"
    find "$native" -maxdepth 1 -mindepth 1 ! -name quern ! -name quern-check -exec ln -sfn -t "$work/bin" {} +
    ln -sfn "$bin/quern" "$work/bin/quern"
    ln -sfn "$bin/quern-check" "$work/bin/quern-check"
    for script in cli_model serve_http serve_tls hub_pull; do
        QN_BIN=$work/bin QN_SOURCE_DIR=$source timeout 600 bash "tests/e2e/$script.sh" >"$work/out" 2>"$work/err"
        status=$?
        check "$system: tests/e2e/$script.sh" '[ $status -eq 0 ] || [ $status -eq 77 ]'
    done
}

# Processors with and without instructions for dot products and matrices: the level that each gets, and bits of this system's reference.
arm() {
    local bin=$1 system=$2 processor best
    for processor in cortex-a72:neon cortex-a76:dotprod max,pauth-impdef=on:i8mm; do
        best=${processor##*:} processor=${processor%:*}
        levels "$processor" "$bin" >"$work/levels"
        check "$system: the level of $processor is $best" '[ "$(tail -n 1 "$work/levels")" = "$best" ]'
        emulated "$processor" "$bin/quern-check" --every 400
        check "$system: quern-check on $processor" '[ $status -eq 0 ]'
        for model in tests/golden/llama.q1_0.gguf tests/golden/llama.ptq1_0.gguf; do
            QN_CPU=$best emulated "$processor" "$bin/quern" logits -t 1 "$model" --ids 1,2,3 -o "$work/level.f32"
            QN_CPU= emulated "$processor" "$bin/quern" logits -t 2 "$model" --ids 1,2,3 -o "$work/own.f32"
            check "$system: $model on $processor without QN_CPU" '[ $status -eq 0 ] && cmp -s "$work/level.f32" "$work/own.f32"'
        done
    done
    same_logits "$bin" tests/golden/llama.q1_0.gguf ref max,pauth-impdef=on ref
    same_logits "$bin" tests/golden/llama.ptq1_0.gguf ref max,pauth-impdef=on ref
}

# ---- Wheels: the demo's story from Python ----

story='import sys, pyquern; print(pyquern.Model(sys.argv[1]).generate("Once upon a time", max_tokens=24, temperature=0).text)'
told() {
    "$native/quern" run models/quern-demo.gguf "Once upon a time" -n 24 --temp 0 >"$work/native" 2>/dev/null
    diff <(cat "$work/native" && echo) "$work/out" >"$work/err"
}

wheel_here() {
    /usr/bin/python3 -m venv --system-site-packages "$work/venv" >"$work/out" 2>"$work/err" &&
        "$work/venv/bin/python" -m pip --disable-pip-version-check install --no-index --no-deps "$1" >>"$work/out" 2>&1
    status=$?
    check "$(basename "$1"): pip installs it" '[ $status -eq 0 ]'
    (cd "$work" && venv/bin/python -c "$story" "$source/models/quern-demo.gguf") >"$work/out" 2>"$work/err"
    check "$(basename "$1"): tells the same" told
}

# Python for ARM is unpacked from Debian's packages, and emulated.
wheel_for_arm() {
    local mirror python=$work/arm package
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' 2>/dev/null | head -n 1)
    if [ "$(id -u)" != 0 ] || [ -z "$mirror" ] || ! command -v qemu-aarch64 debootstrap >/dev/null ||
        ! debootstrap --arch=arm64 --foreign --variant=minbase --include=python3,python3-cffi bookworm "$python" "$mirror" >"$work/out" 2>&1; then
        echo "$(basename "$1"): not tried, no Python for ARM"
        return
    fi
    for package in "$python"/var/cache/apt/archives/*.deb; do dpkg -x "$package" "$python"; done
    python3 -m zipfile -e "$1" "$python/packages"
    PYTHONPATH=$python/packages timeout 300 qemu-aarch64 -L "$python" "$python/usr/bin/python3.11" -c "$story" \
        models/quern-demo.gguf >"$work/out" 2>"$work/err"
    check "$(basename "$1"): tells the same, on ARM" told
}

# ---- Files of package managers, by what plays the managers ----

arch_package() (
    set -e
    pkgdir=$work/arch CARCH=x86_64
    # shellcheck source=/dev/null
    . "$release/out/aur/PKGBUILD"
    echo "${sha256sums_x86_64[0]}  $release/out/${source_x86_64[0]##*/}" | sha256sum -c --quiet
    cd "$work"
    package
    "$pkgdir/usr/bin/quern" version
    cmp "$pkgdir/usr/share/licenses/quern/LICENSE" "$source/LICENSE"
)

# Addresses of a formula with their hashes, one a line.
formula() {
    ruby - "$1" <<'RUBY'
class Formula
  def self.url(url) = print(url, " ")
  def self.sha256(hash) = puts(hash)
  def self.test = nil
  def self.method_missing(*) = (yield if block_given?)
end
load ARGV[0]
RUBY
}

formula_hashes() {
    local url hash n=0
    while read -r url hash; do
        echo "$hash  $release/out/${url##*/}" | sha256sum -c --quiet || return
        n=$((n + 1))
    done <"$work/out"
    [ $n = 4 ]
}

managers() {
    if [ -f "$release/out/aur/PKGBUILD" ]; then
        arch_package >"$work/out" 2>"$work/err"
        status=$?
        check "PKGBUILD: its package() gives a program that starts" '[ $status -eq 0 ]'
    fi
    if [ -f "$release/out/homebrew/quern.rb" ] && command -v ruby >/dev/null; then
        formula "$release/out/homebrew/quern.rb" >"$work/out" 2>"$work/err"
        check "quern.rb: the hashes of four archives" formula_hashes
    fi
}

(cd "$release/out" && sha256sum --quiet -c SHA256SUMS) >"$work/out" 2>"$work/err"
status=$?
check "SHA256SUMS" '[ $status -eq 0 ] && [ ! -s "$work/out" ]'
shopt -s nullglob
archives=("$release"/out/quern-*.tar.gz "$release"/out/quern-*.zip)
check "$release/out has archives" '[ ${#archives[@]} -gt 0 ]'
for archive in "${archives[@]}"; do
    name=$(basename "${archive%.zip}" .tar.gz)
    case $archive in
    *.zip) python3 -m zipfile -e "$archive" "$work" ;;
    *) tar -C "$work" -xzf "$archive" ;;
    esac
    grep -laF "$release" "$work/$name"/bin/* >"$work/out" 2>"$work/err"
    status=$?
    check "$name: no path of this machine is in it" '[ $status -eq 1 ]'
    case $name in
    *-linux-x86_64*) here "$work/$name/bin" "$name" ;;
    *-linux-aarch64*) ! command -v qemu-aarch64 >/dev/null || arm "$work/$name/bin" "$name" ;;
    esac
done
for wheel in "$release"/out/*-manylinux_2_28_x86_64.whl; do wheel_here "$wheel"; done
for wheel in "$release"/out/*-manylinux_2_28_aarch64.whl; do wheel_for_arm "$wheel"; done
managers
if [ -n "${QN_TWICE:-}" ]; then
    # shellcheck disable=SC2046
    CCACHE_DISABLE=1 tools/release/make_release.sh "$work/again" $(sed -n 's/.*quern-[0-9.]*-\(.*\)\.\(tar\.gz\|zip\)$/\1/p' "$release/out/SHA256SUMS") >"$work/out" 2>"$work/err"
    check "a second build" 'cmp -s "$release/out/SHA256SUMS" "$work/again/out/SHA256SUMS"'
fi
echo "$checks checks, $failures failed"
[ $failures -eq 0 ]
