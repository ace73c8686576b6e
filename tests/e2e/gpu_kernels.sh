#!/usr/bin/env bash
# All kernels of the GPU compile and load, where there is one; before the tests that run them, which else compile one after the other.
. "$(dirname "$0")/lib_cli.sh"
needs_gpu
finish
