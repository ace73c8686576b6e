#!/usr/bin/env bash
# Every kernel of the GPU against the CPU's reference, on machines that have one; elsewhere skipped.
. "$(dirname "$0")/lib_cli.sh"
needs_gpu
timeout 500 "$QN_BIN/quern-check" --device cuda || fail 'quern-check --device cuda'
finish
