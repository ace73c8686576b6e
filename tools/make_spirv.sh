#!/usr/bin/env bash
# Compiles the Vulkan kernels (src/vulkan/kernels/*.comp) to the SPIR-V that is kept beside them, which every build includes, so that
# none needs a compiler:
#
#   tools/make_spirv.sh [FOLDER]      FOLDER: where the files go; default src/vulkan/kernels/spirv
#
# The compiler is glslc of Debian 12 (glslc 2023.2); another version writes other code. The name of its version is kept, too.
set -eu
source=$(cd "$(dirname "$0")/../src/vulkan/kernels" && pwd)
to=${1:-$source/spirv}
mkdir -p "$to"
glslc --version | head -n 1 >"$to/compiler"
for shader in "$source"/*.comp; do
    glslc --target-env=vulkan1.2 -O -mfmt=num "$shader" -o "$to/$(basename "$shader" .comp).inc"
done
# The same kernels with integer dot products, which are a feature.
for shader in matmul matmul_tiles; do
    glslc --target-env=vulkan1.2 -O -mfmt=num -DDOT "$source/$shader.comp" -o "$to/$shader.dot.inc"
done
# And with cooperative matrices.
glslc --target-env=vulkan1.2 -O -mfmt=num -DMATRIX "$source/matmul_tiles.comp" -o - |
    python3 "$(dirname "$0")/khr_matrices.py" >"$to/matmul_tiles.matrix.inc"
