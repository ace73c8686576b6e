#!/usr/bin/env bash
# Repositories with drafters next to their models: a drafter is never taken for the model, by its name or by what it contains; it is offered,
# and taken where it is named. The folder of quern serve --models-dir.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_hub.sh"
start_hub

# ---- By names, in the list of a repository ----
quern pull t/drafters
[ $status -eq 0 ] && grep -q 'parrot-F16.gguf$' "$work/out" || fail "pull: $(cat "$work/out" "$work/err")"
grep -q '^quern: note: this repository has a drafter, .* GB: pull it with quern pull t/drafters:MTP/parrot-Q8_0-MTP.gguf; use it with --draft-model FILE or quern graft$' \
    "$work/err" || fail "the drafter is not offered: $(cat "$work/err")"
[ "$(ls "$(folder drafters)/blobs" | wc -l)" -eq 1 ] || fail "more than the model is downloaded"
refuses 1 'no model of type Q8_0; there is F16' pull t/drafters:Q8_0
quern pull -q t/drafters
[ ! -s "$work/err" ] || fail "pull -q: $(cat "$work/err")"
quern pull t/drafters:dflash
grep -q 'parrot-DFlash-Q4_0.gguf$' "$work/out" || fail "pull :dflash: $(cat "$work/out" "$work/err")"
grep -q 'note: parrot-DFlash-Q4_0.gguf is a drafter, which runs next to a model: use it with --draft-model FILE$' "$work/err" ||
    fail "a drafter that is named: $(cat "$work/err")"
quern pull -q t/drafters:MTP/parrot-Q8_0-MTP.gguf
[ $status -eq 0 ] || fail "pull of a file: $(cat "$work/err")"

# ---- In the cache ----
: >"$work/log"
quern run -m t/drafters -p xyz -n 5 --temp 0 -q
[ $status -eq 0 ] || fail "run: $(cat "$work/err")"
cp "$work/out" "$work/by-name"
quern run -m "$parrot" -p xyz -n 5 --temp 0 -q
cmp -s "$work/out" "$work/by-name" || fail "run: not the model"
[ ! -s "$work/log" ] || fail "run: what is in the cache is requested again"
quern list
grep -q ' t/drafters:MTP/parrot-Q8_0-MTP.gguf (drafter)$' "$work/out" || fail "list: $(cat "$work/out")"
grep -q ' t/drafters:parrot-DFlash-Q4_0.gguf (drafter)$' "$work/out" || fail "list: $(cat "$work/out")"
grep -q ' t/drafters:parrot-F16.gguf$' "$work/out" || fail "list: $(cat "$work/out")"
refuses 1 "a drafter for a model (architecture 'dflash'), not a model" run -m t/drafters:dflash -p x
quern rm t/drafters:F16
: >"$work/log"
quern run -m t/drafters -p xyz -n 5 --temp 0 -q # only drafters are left: the hub is asked
cmp -s "$work/out" "$work/by-name" || fail "run with drafters in the cache: $(cat "$work/out" "$work/err")"
grep -q '^cdn' "$work/log" || fail "run with drafters in the cache: nothing is downloaded"
quern rm t/drafters
[ ! -e "$(folder drafters)" ] || fail "rm: drafters stay: $(find "$(folder drafters)")"

# ---- By what a file contains ----
quern pull t/hidden # x-Q4_0.gguf, which is preferred by its type
grep -q 'parrot-F16.gguf$' "$work/out" || fail "a drafter without a telling name: $(cat "$work/out" "$work/err")"
grep -q 'note: x-Q4_0.gguf is no model by what it contains$' "$work/err" || fail "a drafter without a telling name: $(cat "$work/err")"
grep -q 'this repository has a drafter, .* t/hidden:x-Q4_0.gguf; use it with' "$work/err" || fail "it is not offered: $(cat "$work/err")"
: >"$work/log"
quern run -m t/hidden -p xyz -n 5 --temp 0 -q
cmp -s "$work/out" "$work/by-name" || fail "run: a drafter without a telling name: $(cat "$work/err")"
quern list
grep -q ' t/hidden:x-Q4_0.gguf (drafter)$' "$work/out" || fail "list: $(cat "$work/out")"
quern pull t/only-drafter
[ $status -eq 0 ] && grep -q 'm-DFlash-Q8_0.gguf$' "$work/out" || fail "a repository of a drafter: $(cat "$work/out" "$work/err")"
grep -q 'is a drafter, which runs next to a model' "$work/err" || fail "a repository of a drafter: $(cat "$work/err")"

# ---- A folder of models ----
mkdir "$work/models"
cp "$parrot" "$work/models/parrot.gguf"
cp -L "$(folder only-drafter)/snapshots/$commit/m-DFlash-Q8_0.gguf" "$work/models/innocent.gguf"
hub_server=$server # `starts` and `stops` have another
starts "$work/out.1" "$work/err.1" --models-dir "$work/models"
python3 - "$url" <<'PY' || fail "serve --models-dir: names"
import json, sys, urllib.request

with urllib.request.urlopen(sys.argv[1] + "/v1/models", timeout=60) as answer:
    names = [model["id"] for model in json.load(answer)["data"]]
sys.exit(names != ["parrot"])
PY
stops "serve --models-dir"
server=$hub_server
grep -q 'note: innocent.gguf is not served: it is a drafter, which runs next to a model' "$work/err.1" || fail "serve --models-dir: $(cat "$work/err.1")"
finish
