#!/usr/bin/env bash
# pyquern on a Python of Windows under Wine, which the wheel of Panda3D has: python311.dll and its modules. Python's own library is that of
# this system, where that is a Python 3.11 too.
#   test_windows_python.sh FOLDER_OF_DLL FOLDER_OF_QUERN
set -u
exe=$(realpath "$1")
native=$(realpath "$2")
cd "$(dirname "$0")/.." || exit 1
skip() { echo "skipped: $*"; exit 77; }
command -v wine >/dev/null && [ -f "$exe/libquern.dll" ] && [ -x "$exe/python.exe" ] && [ -x "$native/quern" ] || skip "no Wine, or not built"
library=$(python3 -c 'import sys, sysconfig; print(sysconfig.get_path("stdlib") if sys.version_info[:2] == (3, 11) else "")')
[ -n "$library" ] || skip "python3 is no Python 3.11"
work=$(mktemp -d)
export WINEPREFIX=$work/wine WINEDEBUG=-all WINEARCH=win64 TMPDIR=$work PYTHONHOME=Z:${work//\//\\}\\python PYTHONDONTWRITEBYTECODE=1
trap 'wineserver -k 2>/dev/null; rm -rf "$work"' EXIT
site=$work/python/Lib/site-packages demo=models/quern-demo.gguf

(unset PYTHONHOME
 python3 -m pip --disable-pip-version-check download -q --retries 1 --timeout 30 --no-deps --only-binary=:all: --platform win_amd64 \
    --python-version 3.11 --implementation cp -d "$work/wheels" panda3d==1.10.16 cffi==2.1.1 pycparser==3.12) >"$work/log" 2>&1 ||
    skip "pip cannot download a Python of Windows: $(tail -n 1 "$work/log")"
mkdir -p "$site"
cp -r "$library"/. "$work/python/Lib/" 2>/dev/null
rm -rf "$work/python/Lib/"{test,site-packages/*,lib-dynload}
unpack() { python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' "$@"; }
(unset PYTHONHOME
 for wheel in "$work"/wheels/{cffi,pycparser}-*.whl; do unpack "$wheel" "$site"; done
 unpack "$work"/wheels/panda3d-*.whl "$work/panda3d"
 cp -r python/src/pyquern "$site/"
 # shellcheck disable=SC2046
 python3 python/make_cdef.py "$site/pyquern/_cdef.py" $(sed -n 's/^set(headers \(.*\))$/\1/p' cmake/python.cmake | tr ' ' '\n' | sed 's,.*,include/quern/&.h,')) >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
# Wine has the C runtime that the others stand for.
cp "$work"/panda3d/deploy_libs/* "$exe/python.exe" "$work/python/"
rm "$work"/python/api-ms-win-crt-*.dll
cp "$exe/libquern.dll" "$site/pyquern/libquern.so" # its name on every system

"$native/quern" run "$demo" "Once upon a time" -n 24 --seed 1 --device cpu -q 2>/dev/null >"$work/text"
"$native/quern" tokenize "$demo" --ids "größe 模型 🙂" >"$work/ids" || exit 1
timeout 300 wineboot -u >/dev/null 2>&1
# By pipes: Wine gives Python no files of this system as standard streams.
timeout 300 wine "$work/python/python.exe" tests/windows/package.py "$demo" "Z:$work/text" "Z:$work/ids" </dev/null 2>&1 | cat
exit "${PIPESTATUS[0]}"
