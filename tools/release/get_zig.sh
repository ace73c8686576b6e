#!/usr/bin/env bash
# Prints the path of the compiler zig: QN_ZIG, else that of zig.requirements, which PyPI gives once and is kept in a folder. get_zig.sh FOLDER
set -euo pipefail
[ $# -eq 1 ] || { sed -n '2s/^# //p' "$0" >&2; exit 2; }
requirements=$(dirname "$0")/zig.requirements
version=$(sed -n 's/^ziglang==\([^ ]*\) .*/\1/p' "$requirements")
zig=${QN_ZIG:-$1/zig-$version/ziglang/zig}
[ -x "$zig" ] || python3 -m pip --disable-pip-version-check install --no-deps --only-binary :all: --require-hashes \
    --target "$1/zig-$version" --requirement "$requirements" >&2
realpath "$zig"
