#!/usr/bin/env bash
# Files with rotated weights: what info says of them, and that nothing runs when a key of theirs is not understood.
. "$(dirname "$0")/lib_cli.sh"

# rotation PATTERN FILE - the line of info about rotation.
rotation() {
    quern info "$2"
    [ $status -eq 0 ] || fail "info $2: status $status"
    [ "$(grep -c '^rotation ' "$work/out")" -eq 1 ] || fail "info $2: expected one line about rotation"
    grep -q "^rotation    $1\$" "$work/out" || fail "info $2: the rotation is not '$1'"
}

model=$golden/qwen35-rotated.f16.gguf
rotation 'Walsh-Hadamard in blocks of 32, with signs: 19 matrices, token_embd (also the output); value heads grouped' "$model"
rotation 'Walsh-Hadamard in blocks of 64, without signs: 19 matrices, token_embd (also the output); value heads grouped' \
    "$golden/qwen35-rotated.q2_0.gguf"
quern info "$parrot"
! grep -q '^rotation ' "$work/out" || fail "info: a rotation in a file that has none"

# The names of keys and values stand in the file as they are: one of the same length in their place.
sed 's/prism\.hadamard\.axis/prism.hadamard.exis/' "$model" >"$work/key.gguf"
rotation "not usable: .*key 'prism.hadamard.exis' is not a supported key of rotated weights" "$work/key.gguf"
refuses 1 "key 'prism.hadamard.exis' is not a supported" logits -m "$work/key.gguf" --ids 1 -o "$work/logits"
sed 's/prism\.hadamard\.version/prism.hadamard.uersion/' "$model" >"$work/version.gguf"
refuses 1 "without 'prism.hadamard.version'" logits -m "$work/version.gguf" --ids 1 -o "$work/logits"
sed 's/sylvester-walsh/sylvester-hadam/' "$model" >"$work/transform.gguf"
refuses 1 "key 'prism.hadamard.transform' is 'normalized-sylvester-hadam-hadamard'" logits -m "$work/transform.gguf" --ids 1 \
    -o "$work/logits"
finish
