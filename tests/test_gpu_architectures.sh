#!/usr/bin/env bash
# The GPU's kernels compile for every architecture without a warning: one pipeline of each source, and under continuous
# integration, which has the time, all. Skipped where there is no nvcc.
set -u
: "${QN_SOURCE_DIR:=$(cd "$(dirname "$0")/.." && pwd)}"
: "${QN_BIN:=$QN_SOURCE_DIR/build}"
PATH=$PATH:${CUDA_HOME:-}/bin:${CUDA_PATH:-}/bin:/usr/local/cuda/bin
command -v nvcc >/dev/null || { echo 'skipped: no nvcc'; exit 77; }
folder=$QN_BIN/gpu-architectures variants=first
[ "${CI:-}" != true ] || variants=all
cmake -S "$QN_SOURCE_DIR" -B "$folder" -DQN_CUDA=ON -DQN_CUDA_ARCHS=all -DQN_CUDA_VARIANTS=$variants -DQN_WERROR=ON -DQN_TESTS=OFF >"$QN_BIN/gpu-architectures.log" 2>&1 &&
    cmake --build "$folder" --target gpu-kernels -j "$(nproc)" >>"$QN_BIN/gpu-architectures.log" 2>&1
status=$?
[ $status -eq 0 ] || grep -E -B2 -A6 'error|warning|Error' "$QN_BIN/gpu-architectures.log" | head -n 60
echo "$(find "$folder/cuda" -name '*.cubin' | wc -l) cubins of $(ls "$folder/cuda" | sed -n 's/.*\.\(sm_[0-9a-z]*\)\.cubin$/\1/p' | sort -u | tr '\n' ' ')"
exit $status
