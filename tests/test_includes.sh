#!/usr/bin/env bash
# The boundaries of modules, from the #include lines: a folder of src/ may include itself and the folders before it in the order
# below; a kernel module may include itself and what lies directly in kernels/, never its neighbours; devices alone include kernels, but
# for the sampler of the engine, which samples logits of its caller; cpu/, cuda/ and vulkan/ include neither each other nor the registry, and of
# the rest only registry.c includes them; gpu/, cuda/ and vulkan/ include of kernels/ the contracts named below alone; cuda/ includes its own
# folders in the order kernels, runtime, executor, api (vulkan/ its own in the order runtime, kernels, executor), of which kernels/ has modules as above, but for kernels/persistent/, which joins
# operations of others in one launch and which no other module includes, and executor/ and api/ know nothing of each other; public headers
# include public headers only; nothing is included by a path that climbs or by a name that is not "module/file.h".
set -eu
root=${1:-${QN_SOURCE_DIR:-$(dirname "$0")/..}}
cd "$root"

check() {
    find "$@" \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -print0 | sort -z | xargs -0 -r awk '
    BEGIN {
        n = split("base quant gguf plan kernels cache device cpu gpu cuda vulkan model text jinja chat grammar engine scheduler convert hub http protocol page serve cli", order)
        for (i = 1; i <= n; i++) rank[order[i]] = i
        n = split("kernels runtime executor api", order)
        for (i = 1; i <= n; i++) cuda_rank[order[i]] = i
        n = split("runtime kernels executor", order)
        for (i = 1; i <= n; i++) vulkan_rank[order[i]] = i
        last = n + 1 # files directly in cuda/
        n = split("exp.h sample/adjust.h sample/sample.h aura/aura.h hadamard/hadamard.h rope/rope.h api_check.h", order)
        for (i = 1; i <= n; i++) contract["kernels/" order[i]] = 1
    }
    FNR == 1 {
        n = split(FILENAME, part, "/")
        module = part[1] == "src" ? part[2] : part[1]
        cuda = module != "cuda" ? "" : part[3] in cuda_rank ? part[3] : "its own files"
        vulkan = module != "vulkan" ? "" : part[3] in vulkan_rank ? part[3] : "its own files"
        cuda_rank["its own files"] = vulkan_rank["its own files"] = last
        kernel_module = module == "kernels" && n > 3 ? part[3] : cuda == "kernels" && n > 4 ? part[4] : ""
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
        else if (rank[target[1]] > rank[module] && FILENAME != "src/device/registry.c") why = "is in a folder that comes after " module
        else if (cuda == "" && kernel_module != "" && target[1] == "kernels" && m > 2 && target[2] != kernel_module) why = "is another kernel module than " kernel_module
        else if (target[1] == "kernels" && module !~ /^(kernels|cpu|gpu|cuda|vulkan)$/ && !(FILENAME == "src/engine/sampler.c" && line == "kernels/sample/sample.h")) why = "is a kernel, which devices alone run"
        else if ((module == "gpu" || cuda != "" || vulkan != "") && target[1] == "kernels" && !(line in contract)) why = "is no contract that GPUs share with the CPU"
        else if (cuda != "" && target[1] == "cuda" && (target[2] in cuda_rank ? cuda_rank[target[2]] : last) > cuda_rank[cuda]) why = "is in a folder that comes after cuda/" cuda
        else if (vulkan != "" && target[1] == "vulkan" && (target[2] in vulkan_rank ? vulkan_rank[target[2]] : last) > vulkan_rank[vulkan]) why = "is in a folder that comes after vulkan/" vulkan
        else if (module == "vulkan" && target[1] == "cuda") why = "is another backend"
        else if (cuda == "api" && line ~ /^cuda\/executor/) why = "is the executor, of which cuda/api knows nothing"
        else if (kernel_module != "" && target[1] == "cuda" && m > 3 && target[3] != kernel_module && kernel_module != "persistent") why = "is another kernel module than " kernel_module
        else if ((target[1] == "cpu" || target[1] == "cuda" || target[1] == "vulkan") && module != target[1] && FILENAME != "src/device/registry.c") why = "is a device, which only device/registry.c includes"
        else if ((module == "cpu" || module == "cuda" || module == "vulkan") && line == "device/registry.h") why = "is above the devices that it opens"
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
refuses src/cuda/kernels/norm/x.cu cuda/kernels/rope/rope.h
refuses src/cuda/kernels/matmul/x.cu cuda/kernels/persistent/persistent.h
refuses src/cuda/kernels/norm/x.c kernels/norm/norm.h
refuses src/cuda/kernels/norm/x.c cuda/runtime/runtime.h
refuses src/cuda/runtime/x.c cuda/executor/device.h
refuses src/cuda/api/x.c cuda/executor/device.h
refuses src/cuda/executor/x.c cpu/memory.h
refuses src/gpu/x.c cpu/memory.h
refuses src/gpu/x.c cuda/runtime/runtime.h
refuses src/gpu/x.c kernels/kernels.h
refuses src/cpu/x.c gpu/format.h
refuses src/gpu/x.c vulkan/runtime/runtime.h
refuses src/vulkan/x.c cuda/runtime/runtime.h
refuses src/vulkan/runtime/x.c vulkan/kernels/kernels.h
refuses src/vulkan/kernels/x.c vulkan/executor/device.h
refuses src/vulkan/executor/x.c vulkan/backend.h
refuses src/vulkan/executor/x.c device/registry.h
refuses src/vulkan/executor/x.c kernels/matmul/matmul.h
refuses src/engine/x.c vulkan/executor/device.h
refuses src/cuda/executor/x.c device/registry.h
refuses src/cuda/executor/x.c kernels/kernels.h
refuses src/cuda/executor/x.c cuda/backend.h
refuses src/cpu/x.c cuda/runtime/runtime.h
refuses src/cli/x.c cuda/runtime/runtime.h
refuses src/device/device.h cuda/executor/device.h
for folder in plan cache device model text engine convert cli; do
    refuses src/$folder/x.c kernels/matmul/matmul.h
done
refuses src/engine/x.c kernels/sample/sample.h
refuses src/engine/sampler.c kernels/matmul/matmul.h
refuses src/plan/x.h cache/sequence.h
refuses src/device/registry.c kernels/kernels.h
refuses src/cpu/x.c device/registry.h
refuses src/device/device.h cpu/device.h
refuses src/cache/x.c cpu/view.h
refuses src/engine/x.c cpu/device.h
refuses src/engine/x.c cuda/executor/device.h
refuses src/engine/x.c cli/args.h
refuses src/engine/x.c ../base/status.h
refuses include/quern/x.h base/status.h
refuses src/unknown/x.c base/status.h

check src include
