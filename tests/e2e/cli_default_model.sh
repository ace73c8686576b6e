#!/usr/bin/env bash
# Without -m, run and chat load the demo model of their installation, print a note, and report clearly when it is missing. The program is copied
# to places of the test's own, with the parrot for a model, so that what is really beside it plays no part.
. "$(dirname "$0")/lib_cli.sh"

# default PLACE ARGS... - the program in PLACE/bin.
default() {
    local place=$work/$1
    shift
    timeout 120 "$place/bin/quern" "$@" >"$work/out" 2>"$work/err" </dev/null
    status=$?
}
for place in tree installed none; do
    mkdir -p "$work/$place/bin"
    cp "$QN_BIN/quern" "$work/$place/bin/"
done
mkdir -p "$work/tree/models" "$work/installed/share/quern"
cp "$parrot" "$work/tree/models/quern-demo.gguf"
cp "$parrot" "$work/installed/share/quern/quern-demo.gguf"

for place in tree installed; do
    default $place run -p x
    { [ $status -eq 0 ] && [ "$(cat "$work/out")" = 'Hé 世🙂!' ]; } || fail "run in $place without -m"
    grep -q "^quern: note: .*demo model, $work/$place/.*quern-demo.gguf\$" "$work/err" || fail "run in $place: does not say which model"
    default $place run -p x -q
    [ ! -s "$work/err" ] || fail "run -q in $place: printed something on standard error"
    printf 'one\n' | timeout 120 "$work/$place/bin/quern" chat >"$work/out" 2>"$work/err"
    [ "$(cat "$work/out")" = 'Hé 世🙂!' ] || fail "chat in $place without -m"
done
# The program through a link: the link's target decides.
ln -s "$work/tree/bin/quern" "$work/link"
[ "$("$work/link" run -p x -q)" = 'Hé 世🙂!' ] || fail "run through a link"
# Others have no default, and one that is named counts.
default tree perplexity -f "$QN_SOURCE_DIR/LICENSE"
{ [ $status -eq 2 ] && grep -q '^quern: -m: no model given' "$work/err"; } || fail "perplexity without -m"
default tree run -m "$work/absent.gguf" -p x
{ [ $status -eq 1 ] && grep -q "absent.gguf" "$work/err"; } || fail "run with a model that is not there"

default none run -p x
if [ $status -eq 0 ]; then # one is installed where this build's would be
    grep -q "demo model, /.*/quern-demo.gguf\$" "$work/err" || fail "run: does not say which model"
else
    { [ $status -eq 2 ] && [ ! -s "$work/out" ] && grep -q '^quern: -m: no model given.*/quern/quern-demo.gguf' "$work/err"; } ||
        fail "run where there is no model"
fi
finish
