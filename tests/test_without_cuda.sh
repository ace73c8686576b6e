#!/usr/bin/env bash
# src/cuda and src/vulkan can be deleted from the tree: everything else builds, the tests that include none of it pass, and the program runs on the
# CPU and says that it has no other device. In a copy, without optimisation: what is compiled counts here, not its speed.
set -eu
: "${QN_SOURCE_DIR:=$(cd "$(dirname "$0")/.." && pwd)}"
tests='test_device_registry test_plan test_quant test_prefix test_kernels_api test_gpu_format test_gpu_session_file test_gpu_page_tables
    test_gpu_batch test_gpu_weights'

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
cd "$QN_SOURCE_DIR"
cp -R CMakeLists.txt ./*.in cmake include src tests models "$tree"
for optional in debian docs README.md LICENSE; do
    [ ! -e "$optional" ] || cp -R "$optional" "$tree"
done
rm -rf "$tree/src/cuda" "$tree/src/vulkan"

launcher=()
! command -v ccache >/dev/null || launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
generator=()
! command -v ninja >/dev/null || generator=(-G Ninja)
export CCACHE_BASEDIR=$tree # the compiler cache has what an earlier copy compiled
cmake -S "$tree" -B "$tree/build" "${generator[@]}" "${launcher[@]}" -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O0 -DQN_WERROR=ON >"$tree/log" 2>&1 || {
    cat "$tree/log"
    exit 1
}
# shellcheck disable=SC2086
cmake --build "$tree/build" -j "$(nproc)" --target quern quern-check $tests >"$tree/log" 2>&1 || {
    grep -E -A6 'error|Error|warning' "$tree/log" | head -n 60
    exit 1
}
for name in $tests; do
    "$tree/build/tests/$name" >"$tree/log" 2>&1 || {
        cat "$tree/log"
        exit 1
    }
done

# expect STATUS TEXT COMMAND... - its exit status, and a text in what it prints.
expect() {
    local status=0 wanted=$1 text=$2
    shift 2
    "$@" >"$tree/log" 2>&1 || status=$?
    if [ "$status" != "$wanted" ] || { [ -n "$text" ] && ! grep -qF -- "$text" "$tree/log"; }; then
        echo "$*: status $status, expected $wanted and '$text':"
        cat "$tree/log"
        exit 1
    fi
}
quern=$tree/build/quern
model=$QN_SOURCE_DIR/tests/golden/llama.q1_0.gguf
expect 0 '' "$quern" logits -m "$model" --ids 1,2,3 -o "$tree/logits"
[ -s "$tree/logits" ]
expect 1 'this build has no cuda devices' "$quern" logits -m "$model" --ids 1,2,3 -o "$tree/logits" --device cuda
expect 1 'this build has no cuda devices' "$quern" kernels --device cuda
expect 1 'this build has no vulkan devices' "$quern" logits -m "$model" --ids 1,2,3 -o "$tree/logits" --device vulkan
expect 0 'its kernels are part of the program' "$quern" kernels
expect 0 '' "$quern" kernels --clear
expect 0 'built for' "$quern" version
expect 2 'not a device of this build' "$tree/build/quern-check" --device cuda
expect 0 '0 failed' "$tree/build/quern-check" --op norm
if nm "$quern" | grep -q -E ' T qn_(cuda|vk)_'; then
    echo 'quern has functions of a GPU'
    exit 1
fi
