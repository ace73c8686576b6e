#!/usr/bin/env bash
# The boundaries of modules, from the #include lines: a folder of src/ may include itself and the folders before it in the order
# below; a kernel module may include itself and what lies directly in kernels/, never its neighbours, but for kernels/persistent/, which
# joins operations of others in one launch and which no other module includes; device/cpu/ and device/cuda/ include neither each
# other nor the registry, and of the files directly in device/ only registry.c includes them; public headers include public headers
# only; nothing is included by a path that climbs or by a name that is not "module/file.h".
set -eu
root=${1:-${QN_SOURCE_DIR:-$(dirname "$0")/..}}
cd "$root"

check() {
    find "$@" \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z | xargs -0 -r awk '
    BEGIN {
        n = split("base quant gguf kernels plan cache device model text jinja chat grammar engine convert hub http protocol page serve cli", order)
        for (i = 1; i <= n; i++) rank[order[i]] = i
    }
    FNR == 1 {
        n = split(FILENAME, part, "/")
        module = part[1] == "src" ? part[2] : part[1]
        kernel_module = module == "kernels" && n > 3 ? part[3] : ""
        device = module == "device" && n > 3 ? part[3] : ""
        if (!(module in rank) && module != "include") { printf "%s: folder %s has no place in the order\n", FILENAME, module; bad = 1 }
        files++
    }
    /^[ \t]*#[ \t]*include[ \t]*"/ {
        line = $0
        sub(/^[^"]*"/, "", line); sub(/".*/, "", line)
        why = ""
        m = split(line, target, "/")
        if (line ~ /\.\./ || m < 2) why = "is not of the form module/file.h"
        else if (target[1] == "quern") why = ""
        else if (module == "include") why = "is not a public header"
        else if (!(target[1] in rank)) why = "is in no known folder"
        else if (rank[target[1]] > rank[module]) why = "is in a folder that comes after " module
        else if (kernel_module != "" && target[1] == "kernels" && m > 2 && target[2] != kernel_module && kernel_module != "persistent") why = "is another kernel module than " kernel_module
        else if (device != "" && line == "device/registry.h") why = "is above the devices that it opens"
        else if (module == "device" && target[1] == "device" && m > 2 && target[2] != device && part[3] != "registry.c") why = "is a device, which only registry.c includes"
        if (why != "") { printf "%s:%d: \"%s\" %s\n", FILENAME, FNR, line, why; bad = 1 }
        includes++
    }
    END { printf "%d files, %d includes\n", files, includes; exit bad }'
}

# The test must be able to fail: one wrong file of each kind has to be seen.
trial=$(mktemp -d)
trap 'rm -rf "$trial"' EXIT
refuses() {
    rm -rf "$trial/src" "$trial/include"
    mkdir -p "$trial/$(dirname "$1")"
    printf '#include "%s"\n' "$2" >"$trial/$1"
    if (cd "$trial" && check "${1%%/*}") >/dev/null; then
        echo "test_includes: did not notice that $1 includes \"$2\""
        exit 1
    fi
}
refuses src/base/x.c quant/quant.h
refuses src/quant/x.c gguf/gguf.h
refuses src/kernels/norm/x.c kernels/rope/rope.h
refuses src/kernels/matmul/x.cu kernels/persistent/persistent_cuda.h
refuses src/device/cpu/x.c device/cuda/cuda.h
refuses src/device/cuda/x.c device/cpu/memory.h
refuses src/device/cpu/x.c device/registry.h
refuses src/device/cuda/x.c device/registry.h
refuses src/device/device.h device/cpu/device.h
refuses src/engine/x.c cli/args.h
refuses src/engine/x.c ../base/status.h
refuses include/quern/x.h base/status.h
refuses src/unknown/x.c base/status.h

check src include
