#!/usr/bin/env bash
# Vulkan kernels and models on drivers that compute on the CPU: test_vulkan.sh lavapipe|swiftshader|addresses|spirv
#
#   lavapipe, swiftshader   quern-check, and golden models within 4e-2 of the CPU's logits, with the validation layer, which may report
#                           nothing; the same bits with staged copies, with kernels in reverse order between barriers, and without each
#                           feature that a device may have. QN_SOAK (make soak): more cases and models; these drivers take seconds to
#                           compile a kernel. Without it, every 23rd case: a prime, which meets all kinds of them in turn
#   addresses               some kernels and a model on lavapipe, whose accesses the layer checks: none is outside a buffer
#   spirv                   tools/make_spirv.sh gives the code that is kept, and both drivers the same bits
#
# Skipped without the driver or the compiler, unless QN_VULKAN_REQUIRED is set.
. "$(dirname "$0")/e2e/lib_cli.sh"
missing() {
    [ -z "${QN_VULKAN_REQUIRED:-}" ] || { echo "QN_VULKAN_REQUIRED: $*"; exit 1; }
    echo "skipped: $*"
    exit 77
}

# use DRIVER - all that follows runs on it; 1 without it.
use() {
    local found
    case $1 in
    lavapipe) found=$(ls /usr/share/vulkan/icd.d/lvp_icd*.json 2>/dev/null | head -n 1) ;;
    swiftshader) found=$(ls /usr/lib/chromium/vk_swiftshader_icd.json 2>/dev/null) ;;
    esac
    [ -n "$found" ] || return 1
    export VK_ICD_FILENAMES=$found VK_DRIVER_FILES=$found QN_VULKAN_CPU=1
}

# logits MODEL OUT ARGS... - of 40 tokens; with recurrent layers of 70, among which a chunk is folded. MODEL may be NAME@CACHE: of 150,
# so that codes are attended to.
ids_of() { seq 1 "$1" | awk '{ print ($1 * $1 * 7 + $1) % 71 }' | paste -s -d,; }
logits() {
    local model=$1 out=$2 ids kv=f16
    shift 2
    case $model in *@*) ids=$(ids_of 150) kv=${model#*@} ;; qwen35*) ids=$(ids_of 70) ;; *) ids=$(ids_of 40) ;; esac
    quern logits -m "$golden/${model%@*}.gguf" --ids "$ids" --kv "$kv" -o "$work/$out" "$@"
    [ $status -eq 0 ] || fail "logits of $model $*"
}

case $1 in
lavapipe | swiftshader)
    use "$1" || missing "no $1"
    export QN_VULKAN_VALIDATE=1
    quern devices
    if grep -q 'vulkan: .*VK_ERROR_LAYER_NOT_PRESENT' "$work/out"; then
        [ -z "${QN_VULKAN_REQUIRED:-}" ] || fail 'the validation layer is not there'
        unset QN_VULKAN_VALIDATE
    fi
    every=23 models='llama.q1_0 qwen35.pq2_0 qwen3.f16@aura4' alike='qwen2.q1_0'
    [ "$1" = swiftshader ] || models='llama.f16 llama.ptq1_0 qwen35-rotated.pq2_0 qwen3.f16@aura8' alike='qwen2.q1_0 qwen35-rotated.f16 qwen35-rotated.q1_0'
    [ -z "${QN_SOAK:-}" ] || every=3 alike='qwen2.f16 qwen2.q1_0 qwen35.q1_0 qwen35-rotated.f16 qwen35-rotated.q1_0 qwen3.f16@aura4 qwen3.pq2_0@aura4' models='llama.f16 llama.q1_0
        llama.ptq1_0 llama.q2_k qwen2.q1_0 qwen3.f16 qwen3.pq2_0 qwen3-untied.f32 qwen35.f16 qwen35.q1_0 qwen35.pq2_0 qwen35-yarn.f16
        qwen35-rotated.ptq1_0 qwen35-rotated.pq2_0 qwen3.q2_0@aura8 qwen3.f16@aura3 qwen3.f16@aura4 qwen35-rotated.q2_0@aura4'
    nice timeout -s KILL 900 "$QN_BIN/quern-check" --device vulkan --every $every || fail 'quern-check --device vulkan'
    for model in $models; do
        logits $model cpu --device cpu
        logits $model all --device vulkan
        far=$(paste <(od -An -v -f -w4 "$work/all") <(od -An -v -f -w4 "$work/cpu") |
            awk '{ d += ($1 - $2) ^ 2; n += $2 ^ 2 } END { if (n > 0) print sqrt(d / n); else print 1 }')
        [[ $far =~ ^[0-9.e+-]+$ ]] && awk "BEGIN { exit !($far <= 0.04) }" || fail "$model is $far away from the CPU"
    done
    quern bench -m "$golden/qwen2.q1_0.gguf" --device vulkan -p 4 -n 4 -r 1 --profile
    [ $status -eq 0 ] && grep -q '^tg4 ' "$work/out" && grep -Eq '^  sampling +[0-9.]+ ' "$work/out" &&
        grep -Eq '^  matmul q1_0 .* 100.0%$' "$work/out" && grep -Eq '^  [4-5] steps$' "$work/out" || fail 'bench --profile'
    for model in $alike; do
        logits $model all --device vulkan
        logits $model one --device vulkan --batch 1
        QN_VULKAN_STAGING=1 logits $model staged --device vulkan
        QN_VULKAN_REVERSE=1 logits $model reversed --device vulkan
        QN_VULKAN_REVERSE=1 logits $model one-reversed --device vulkan --batch 1
        for feature in dot,matrix lanes shared; do
            case $feature$model in sharedqwen35*) continue ;; esac # which need more than every device has
            QN_VULKAN_OFF=$feature logits $model "no-$feature" --device vulkan
        done
        for other in one staged reversed one-reversed no-dot,matrix no-lanes no-shared; do
            [ ! -e "$work/$other" ] || cmp -s "$work/all" "$work/$other" || fail "$model: $other has other bits"
        done
        rm -f "$work"/no-*
    done
    for feature in dot,matrix lanes; do
        QN_VULKAN_OFF=$feature nice timeout -s KILL 900 "$QN_BIN/quern-check" --device vulkan --every $((5 * every)) || fail "quern-check without $feature"
    done
    QN_VULKAN_OFF=addresses refuses 1 'has no bufferDeviceAddress' logits -m "$golden/qwen2.f16.gguf" --ids 1 -o "$work/all" --device vulkan
    ;;
addresses)
    use lavapipe || missing 'no lavapipe'
    export QN_VULKAN_VALIDATE=gpu
    quern devices
    ! grep -q 'vulkan: .*VK_ERROR_LAYER_NOT_PRESENT' "$work/out" || missing 'no validation layer'
    # An access searches all buffers: few tokens, in one step and one after the other.
    nice timeout -s KILL 900 "$QN_BIN/quern-check" --device vulkan --op rows --every 3 || fail 'quern-check --device vulkan'
    for model in qwen2.q1_0; do
        for rows in 6 1; do
            quern logits -m "$golden/$model.gguf" --ids 1,2,3,4,5,6 --batch $rows --device vulkan -o "$work/of-$rows"
            [ $status -eq 0 ] || fail "logits of $model"
        done
        cmp -s "$work/of-6" "$work/of-1" || fail "$model: other bits"
    done
    ;;
spirv)
    use lavapipe || missing 'no lavapipe'
    models='qwen2.q1_0 qwen35-rotated.q1_0 qwen3.f16@aura3'
    [ -z "${QN_SOAK:-}" ] || models+=' llama.f16 qwen3.iq4_nl'
    for model in $models; do
        use lavapipe
        logits $model first --device vulkan
        use swiftshader || missing 'no swiftshader'
        logits $model second --device vulkan
        cmp -s "$work/first" "$work/second" || fail "$model: two drivers give different bits"
    done
    command -v glslc >/dev/null || missing 'no glslc'
    "$QN_SOURCE_DIR/tools/make_spirv.sh" "$work/spirv" || fail 'the shaders do not compile'
    kept=$QN_SOURCE_DIR/src/vulkan/kernels/spirv
    cmp -s "$work/spirv/compiler" "$kept/compiler" || missing "glslc is $(cat "$work/spirv/compiler"), not $(cat "$kept/compiler")"
    diff -rq "$work/spirv" "$kept" || fail 'the code that is kept is not that of the shaders'
    ;;
esac
finish
