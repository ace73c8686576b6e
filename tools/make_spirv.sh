#!/usr/bin/env bash
# Compiles the Vulkan kernels (src/vulkan/kernels/*.comp) to the SPIR-V that is kept beside them, which every build includes, so that
# none needs a compiler:
#
#   tools/make_spirv.sh [FOLDER]      FOLDER: where the files go; default src/vulkan/kernels/spirv
#
# The compiler is glslc of Debian 12 (glslc 2023.2); another version writes other code. The name of its version is kept, too.
set -euo pipefail
source=$(cd "$(dirname "$0")/../src/vulkan/kernels" && pwd)
to=${1:-$source/spirv}
mkdir -p "$to"
tools=$(dirname "$0")
# compile SHADER ARGS... - prints its code.
compile() { glslc --target-env=vulkan1.2 -O -mfmt=num "${@:2}" "$source/$1.comp" -o - | python3 "$tools/precise_spirv.py"; }
glslc --version | sed -n 1p >"$to/compiler"
for shader in "$source"/*.comp; do
    name=$(basename "$shader" .comp)
    # glslc knows NVIDIA's extension for cooperative matrices alone.
    to_khr=cat
    [ "$name" != matmul_matrix ] || to_khr="python3 $tools/khr_matrices.py"
    compile "$name" | $to_khr >"$to/$name.inc"
done
compile matmul_matrix -DROW_FRAGMENTS=2 | python3 "$tools/khr_matrices.py" >"$to/matmul_matrix.small.inc"
# The same kernels with integer dot products, which are a feature.
for shader in gemv matmul matmul_tiles; do
    compile "$shader" -DDOT >"$to/$shader.dot.inc"
done
