#!/usr/bin/env bash
# Writes cc, ar and ranlib for a target of zig into a folder, for builds that want one path for each, and its version. zig_tools.sh ZIG TARGET FOLDER
set -euo pipefail
[ $# -eq 3 ] || { sed -n '2s/^# //p' "$0" >&2; exit 2; }
zig=$(realpath "$1") target=$2 folder=$3
mkdir -p "$folder"
# write NAME LINE - a script that is there with the same text keeps its time: caches of compilers compare it.
write() {
    printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$zig" "$2" >"$folder/$1.new"
    chmod +x "$folder/$1.new"
    cmp -s "$folder/$1.new" "$folder/$1" && rm "$folder/$1.new" || mv "$folder/$1.new" "$folder/$1"
}
# Undefined behaviour would be a trap in builds without optimisation. What zig compiles has data for debuggers, with paths of this machine,
# unless it is told not to.
write cc "cc -target $target -fno-sanitize=undefined -g0"
write ar ar
write ranlib ranlib
"$zig" version >"$folder/version"
