#!/usr/bin/env bash
# The GPU's kernels compile without a warning for architectures other than sm_90a, of which the library has all pipelines: one of each
# source for the oldest and the newest. In `make soak` those between too, and all pipelines of the oldest, whose code is that of all
# without wgmma. They are compressed, and another build takes them as they are.
# Skipped where there is no nvcc.
set -u
: "${QN_SOURCE_DIR:=$(cd "$(dirname "$0")/.." && pwd)}"
: "${QN_BIN:=$QN_SOURCE_DIR/build}"
PATH=$PATH:${CUDA_HOME:-}/bin:${CUDA_PATH:-}/bin:/usr/local/cuda/bin
command -v nvcc >/dev/null || { echo 'skipped: no nvcc'; exit 77; }

# compile ARCHS VARIANTS
compile() {
    local folder=$QN_BIN/gpu-architectures/$2 log=$QN_BIN/gpu-architectures-$2.log
    cmake -S "$QN_SOURCE_DIR" -B "$folder" -DQN_CUDA=ON -DQN_CUDA_ARCHS="$1" -DQN_CUDA_VARIANTS="$2" -DQN_CUDA_COMPRESS=ON -DQN_WERROR=ON -DQN_TESTS=OFF >"$log" 2>&1 &&
        cmake --build "$folder" --target gpu-kernels -j "$(nproc)" >>"$log" 2>&1 && share "$folder" "$1" "$2" >>"$log" 2>&1
    local status=$?
    [ $status -eq 0 ] || grep -E -B2 -A6 'error|warning|Error' "$log" | head -n 60
    echo "$(find "$folder/cuda" -name '*.cubin' | wc -l) cubins of $(ls "$folder/cuda" | sed -n 's/.*\.\(sm_[0-9a-z]*\)\.cubin$/\1/p' | sort -u | tr '\n' ' ')"
    return $status
}

# share FOLDER ARCHS VARIANTS - a build with the kernels of that folder compiles none. Each is a fatbin.
share() {
    local file
    for file in "$1"/cuda/*.cubin.fatbin; do
        cmp -s -n 4 "$file" <(printf '\x50\xed\x55\xba') || { echo "Error: $file is no fatbin" && return 1; }
    done
    cmake -S "$QN_SOURCE_DIR" -B "$1-shared" -DQN_CUDA=ON -DQN_CUDA_ARCHS="$2" -DQN_CUDA_VARIANTS="$3" -DQN_CUDA_COMPRESS=ON -DQN_TESTS=OFF \
        -DQN_CUBINS="$1/cuda" && cmake --build "$1-shared" --target gpu-kernels || return
    [ -z "$(find "$1-shared" -name '*.cubin*' ! -name probe.cubin)" ] || { echo "Error: kernels were compiled" && return 1; }
}

if [ -n "${QN_SOAK:-}" ]; then
    compile "sm_80;sm_86;sm_89;sm_100;sm_120" first && compile sm_80 all
else
    compile "sm_80;sm_120" first
fi
