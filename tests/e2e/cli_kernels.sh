#!/usr/bin/env bash
# quern kernels: what the program carries, the cache and its clearing; with a GPU, every kernel ready, and from the cache or built
# in the second time.
. "$(dirname "$0")/lib_cli.sh"
export XDG_CACHE_HOME=$work/cache

refuses 2 "--device: 'tpu' is not one of cpu, cuda, cuda:N, vulkan, vulkan:N, auto" kernels --device tpu
refuses 2 "--device: 'cuda:x' is not one of" kernels --device cuda:x
refuses 2 "unknown option '--nonsense'" kernels --nonsense
refuses 2 "unexpected argument 'x'" kernels x
refuses 1 '--device cuda:999: ' kernels --device cuda:999
QN_DEVICE=tpu refuses 2 "the environment variable QN_DEVICE: 'tpu' is not one of cpu, cuda, cuda:N, vulkan, vulkan:N, auto" kernels
quern kernels --help
{ [ $status -eq 0 ] && grep -q '^usage: quern kernels' "$work/out"; } || fail 'quern kernels --help'

quern kernels --device cpu
[ $status -eq 0 ] || fail 'quern kernels --device cpu'
grep -q -E '^processors  [0-9]+ cores?.*; -t auto is [0-9]+ threads?$' "$work/out" || fail 'the processors are not named'
grep -q '^device      cpu, ' "$work/out" || fail 'the instruction set is not named'
cp "$work/out" "$work/cpu"
QN_DEVICE=cpu quern kernels
cmp -s "$work/out" "$work/cpu" || fail 'quern kernels with QN_DEVICE=cpu is not quern kernels --device cpu'
rows=$(cat "$QN_SOURCE_DIR"/src/cuda/kernels/*/variants.def | grep -c -E '^QN_(PLAIN|VARIANT|VARIANT_ON)\(')
listed=$(grep -c -E '^ *[a-z]+/[a-z0-9_]+\.cu( |$)' "$work/out")
[ "$listed" -eq "$rows" ] || fail "$listed pipelines listed, expected $rows"

# Only what is a file of the cache goes.
mkdir -p "$XDG_CACHE_HOME/quern"
touch "$XDG_CACHE_HOME/quern/notes.txt"
printf 1234 >"$XDG_CACHE_HOME/quern/0123456789abcdef0123456789abcdef.cubin"
gives "1 file, 4 B, removed from $XDG_CACHE_HOME/quern
" kernels --clear
gives "0 files, 0 B, removed from $XDG_CACHE_HOME/quern
" kernels --clear
[ -e "$XDG_CACHE_HOME/quern/notes.txt" ] || fail 'a file that is none of the cache was removed'
(
    unset XDG_CACHE_HOME HOME
    gives 'there is no cache: neither XDG_CACHE_HOME nor HOME is an absolute path
' kernels --clear
    exit $failures
) || failures=$((failures + 1))

quern kernels --device cuda
if [ $status -eq 0 ]; then
    grep -q '^all ready after' "$work/out" || fail 'the kernels are not ready'
    quern kernels --device auto
    [ $status -eq 0 ] || fail 'quern kernels, the second time'
    ! grep -q -E ' (nvcc|NVRTC) +(nvcc|NVRTC) ' "$work/out" || fail 'kernels were compiled again'
else
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail 'expected one line about the missing device'
    grep -q '^quern: --device cuda: ' "$work/err" || fail 'the missing device is not named'
    quern kernels --device auto
    [ $status -eq 0 ] || fail 'quern kernels without a GPU'
    QN_DEVICE=cuda quern kernels
    { [ $status -eq 1 ] && grep -q '^quern: the environment variable QN_DEVICE cuda: ' "$work/err"; } ||
        fail 'quern kernels ignores QN_DEVICE'
fi
finish
