#!/usr/bin/env bash
# Vulkan devices that are not there or cannot be used: one clear line each, with the reason, and the next device is taken. With a loader
# of the tests, and with none; a machine needs neither a driver nor a GPU.
. "$(dirname "$0")/lib_cli.sh"
model=$golden/llama.q1_0.gguf
quern devices
[ $status -eq 0 ] || fail 'quern devices'
[ "$(head -n 1 "$work/out" | cut -c 1-5)" = 'cpu, ' ] || fail 'quern devices: the CPU is not first'
if ! grep -q '^vulkan' "$work/out"; then
    refuses 1 'this build has no vulkan devices' logits -m "$model" --ids 1,2 -o "$work/logits" --device vulkan
    finish
fi
[ -e "$QN_BIN/tests/fake_vulkan/libvulkan.so.1" ] || { echo 'skipped: no loader of the tests'; exit 77; }
unset QN_VULKAN_CPU QN_VULKAN_VALIDATE

# without TEXT - a model is refused with TEXT, and `quern devices` says so too.
without() {
    refuses 1 "$1" logits -m "$model" --ids 1,2 -o "$work/logits" --device vulkan
    quern devices
    [ $status -eq 0 ] || fail "quern devices: $1"
    grep -q "^vulkan.*$1" "$work/out" || fail "quern devices does not say: $1"
}

# No loader: the first folder of the path has a file that is none.
mkdir "$work/none"
echo 'no library' >"$work/none/libvulkan.so.1"
if [ -z "$QN_SANITIZE" ]; then
    export LD_LIBRARY_PATH=$work/none
    without 'no Vulkan loader: libvulkan.so.1 cannot be loaded'
fi

export LD_LIBRARY_PATH=$QN_BIN/tests/fake_vulkan
for lacks in 'none no Vulkan device: no driver has one' 'queue Paper GPU.* has no compute queue' 'address Paper GPU.* has no bufferDeviceAddress' \
    'version Paper GPU.* has Vulkan 1.1, 1.2 is needed' 'extensions Paper GPU.* does not list its extensions' 'loader the Vulkan loader has version 1.1, 1.2 is needed'; do
    export QN_FAKE_VULKAN=${lacks%% *}
    text=${lacks#* }
    # `quern devices` has more between the name and the reason.
    refuses 1 "$text" logits -m "$model" --ids 1,2 -o "$work/logits" --device vulkan
    quern devices
    grep -q "^vulkan.*$text" "$work/out" || fail "quern devices does not say: $text"
done
export QN_FAKE_VULKAN=
quern devices
grep -q '^vulkan:0, Paper GPU, discrete GPU, 3.0 GiB, Vulkan 1.3$' "$work/out" || fail 'the device is not described'
refuses 1 'vkCreateDevice: VK_ERROR_INITIALIZATION_FAILED' logits -m "$model" --ids 1,2 -o "$work/logits" --device vulkan
refuses 1 'vulkan:1: there is no such device, only 1' logits -m "$model" --ids 1,2 -o "$work/logits" --device vulkan:1
QN_VULKAN_VALIDATE=1 refuses 1 'vkCreateInstance: VK_ERROR_LAYER_NOT_PRESENT' logits -m "$model" --ids 1,2 -o "$work/logits" \
    --device vulkan

# Features are taken away by name; without addresses a device cannot be used.
QN_VULKAN_OFF=dot,addresses refuses 1 'Paper GPU has no bufferDeviceAddress' logits -m "$model" --ids 1,2 -o "$work/logits" \
    --device vulkan
QN_VULKAN_OFF=dot,f16 refuses 1 "QN_VULKAN_OFF: 'f16' is not one of dot, " logits -m "$model" --ids 1,2 -o "$work/logits" --device vulkan

# auto takes the next device if one cannot be opened.
quern logits -m "$model" --ids 1,2 -o "$work/logits" --device auto
[ $status -eq 0 ] || fail 'auto with a Vulkan device that cannot be opened'

# Those that can be used come first, and of these discrete GPUs.
export QN_FAKE_VULKAN=three
quern devices
grep '^vulkan' "$work/out" | cut -d , -f 1-3 | diff - <(printf 'vulkan:%s\n' '0, Paper GPU, discrete GPU' '1, Paper GPU, integrated GPU' \
    '2, Paper GPU, discrete GPU') || fail 'the order of devices'
grep -q '^vulkan:2.*cannot be used: has no compute queue' "$work/out" || fail 'the last device can be used'
refuses 1 'vulkan:2: Paper GPU has no compute queue' logits -m "$model" --ids 1,2 -o "$work/logits" --device vulkan:2
unset LD_LIBRARY_PATH QN_FAKE_VULKAN

# A driver that cannot be loaded, with the system's loader, if there is one.
printf '{ "file_format_version": "1.0.0", "ICD": { "library_path": "%s", "api_version": "1.3.0" } }' "$work/no-driver.so" >"$work/broken.json"
quern devices
if ! grep -q 'no Vulkan loader' "$work/out"; then
    export VK_ICD_FILENAMES=$work/broken.json VK_DRIVER_FILES=$work/broken.json
    without 'no Vulkan driver: none could be loaded'
    quern logits -m "$model" --ids 1,2 -o "$work/logits" --device auto
    [ $status -eq 0 ] || fail 'auto with a driver that cannot be loaded'
fi
finish
