#!/usr/bin/env bash
# Every kernel of the GPU against the CPU's reference, on machines that have one; elsewhere skipped.
. "$(dirname "$0")/lib_cli.sh"
export XDG_CACHE_HOME=$work/cache
quern kernels --device cuda
if [ $status -ne 0 ] && grep -q -E 'no NVIDIA driver|no device is visible|CUDA_ERROR_NO_DEVICE' "$work/err"; then
    sed 's/^quern: /skipped: /' "$work/err"
    exit 77
fi
[ $status -eq 0 ] || fail 'quern kernels --device cuda'
timeout 500 "$QN_BIN/quern-check" --device cuda || fail 'quern-check --device cuda'
finish
