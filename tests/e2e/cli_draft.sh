#!/usr/bin/env bash
# Drafts on the command line: the same text with and without them, what is said about them, what is refused.
. "$(dirname "$0")/lib_cli.sh"
demo=$QN_SOURCE_DIR/models/quern-demo.gguf
export QN_DEVICE=cpu

# A text that repeats itself.
text=$(printf 'Tom has a red ball and a blue box. %.0s' 1 2 3 4 5 6)
for temp in 0 0.5; do
    for draft in off auto ngram; do
        quern run -m "$demo" --temp $temp --seed 5 -n 60 --draft $draft "$text"
        [ $status -eq 0 ] || fail "--draft $draft"
        [ $draft != off ] || cp "$work/out" "$work/plain"
        cmp -s "$work/out" "$work/plain" || fail "--draft $draft, --temp $temp: another text"
    done
    QN_DRAFT=ngram quern run -m "$demo" --temp $temp --seed 5 -n 60 "$text"
    cmp -s "$work/out" "$work/plain" || fail "QN_DRAFT=ngram, --temp $temp: another text"
    grep -Eq 'tok/s, [0-9.]+ tokens/step \([0-9]+ of [0-9]+ drafted\); peak' "$work/err" || fail "the speed line has no drafts"
    QN_DRAFT=ngram quern run -m "$demo" --temp $temp --seed 5 -n 60 --draft off "$text"
    ! grep -q drafted "$work/err" || fail "--draft off: drafts"
done

# The demo model drafts for itself: at --temp 0 all of its tokens are accepted, with another random number not all.
for temp in 0 0.7; do
    quern run -m "$demo" --temp $temp --seed 5 -n 120 --draft off 'Once upon a time'
    cp "$work/out" "$work/plain"
    for draft in model auto; do
        QN_DRAFT=model quern run -m "$demo" --temp $temp --seed 5 -n 120 --draft $draft --draft-model "$demo" 'Once upon a time'
        [ $status -eq 0 ] || fail "--draft-model, --draft $draft"
        cmp -s "$work/out" "$work/plain" || fail "--draft-model, --draft $draft, --temp $temp: another text"
        read -r per_step accepted drafted < <(sed -nE 's|.* ([0-9.]+) tokens/step \(([0-9]+) of ([0-9]+) drafted\).*|\1 \2 \3|p' "$work/err")
        if [ $temp = 0 ]; then
            [ "$accepted" -eq "$drafted" ] && [ "${per_step%.*}" -ge 8 ] || fail "--draft-model at --temp 0: $(cat "$work/err")"
        else
            [ "$accepted" -lt "$drafted" ] && [ "${per_step%.*}" -ge 2 ] || fail "--draft-model at --temp $temp: $(cat "$work/err")"
        fi
    done
done

# Files that a stranger made never take the program down: cut, and with one byte changed, they load or are refused with a reason.
size=$(stat -c %s "$QN_SOURCE_DIR/tests/golden/parrot.gguf")
for at in 4 8 9 20 100 500 1000 2000 4000 8000 $((size - 1)); do
    head -c "$at" "$QN_SOURCE_DIR/tests/golden/parrot.gguf" >"$work/cut.gguf"
    cp "$QN_SOURCE_DIR/tests/golden/parrot.gguf" "$work/changed.gguf"
    printf '\377' | dd of="$work/changed.gguf" bs=1 seek="$at" conv=notrunc 2>/dev/null
    for file in cut changed; do
        quern run -m "$QN_SOURCE_DIR/tests/golden/parrot.gguf" -n 8 --temp 0 --draft-model "$work/$file.gguf" 'the'
        [ $status -eq 0 ] || { [ $status -eq 1 ] && grep -q "$file.gguf" "$work/err"; } || fail "--draft-model $file at $at: $status, $(cat "$work/err")"
    done
done

for command in run chat serve bench; do
    for draft in model dflash; do
        refuses 2 "--draft: $draft needs --draft-model FILE" $command -m "$demo" --draft $draft
    done
    for draft in off ngram; do
        refuses 2 "--draft-model: it is not used with --draft $draft" $command -m "$demo" --draft $draft --draft-model "$demo"
    done
done
refuses 2 '--draft: dflash needs --draft-model FILE' batch -m "$demo" --draft dflash "$work/in" "$work/out2"
refuses 2 "--draft: 'fast'" run -m "$demo" --draft fast x
refuses 2 '--accept: needs --draft' bench -m "$demo" --accept 0.5
refuses 2 '--draft-tokens: needs --draft' bench -m "$demo" --draft-tokens 3
refuses 2 '--draft: at -n 0 nothing is decoded' bench -m "$demo" --draft ngram -n 0
refuses 2 '--draft-model: serves one model' serve -m "$demo" -m "$demo" --draft-model "$demo"
refuses 1 'not the vocabulary of' run -m "$demo" --draft-model "$QN_SOURCE_DIR/tests/golden/parrot.gguf" x
refuses 1 'nowhere.gguf' run -m "$demo" --draft-model "$work/nowhere.gguf" x
QN_DRAFT=model refuses 1 'draft: model needs a draft model' run -m "$demo" x
QN_DRAFT=fast refuses 1 "QN_DRAFT: 'fast'" run -m "$demo" x

# A model with a block for multi-token prediction, one without, and one that was loaded without it.
mtp=$QN_SOURCE_DIR/tests/golden/scheduler-mtp.gguf
without=$QN_SOURCE_DIR/tests/golden/scheduler.gguf
for temp in 0 0.5; do
    for draft in off auto mtp; do
        quern run -m "$mtp" --temp $temp --seed 5 -n 60 --draft $draft "$text"
        [ $status -eq 0 ] || fail "--draft $draft with a block"
        [ $draft != off ] || cp "$work/out" "$work/plain"
        cmp -s "$work/out" "$work/plain" || fail "--draft $draft, --temp $temp: another text with a block"
    done
    QN_DRAFT=mtp quern run -m "$mtp" --temp $temp --seed 5 -n 60 "$text"
    cmp -s "$work/out" "$work/plain" || fail "QN_DRAFT=mtp, --temp $temp: another text"
    grep -Eq 'tok/s, [0-9.]+ tokens/step \([0-9]+ of [0-9]+ drafted\); peak' "$work/err" || fail "QN_DRAFT=mtp: no drafts"
    QN_DRAFT=mtp quern run -m "$without" --temp $temp --seed 5 -n 60 "$text"
    [ $status -eq 0 ] || fail "QN_DRAFT=mtp without a block"
    ! grep -q drafted "$work/err" || fail "QN_DRAFT=mtp without a block: drafts"
done
quern info -m "$mtp"
grep -q "^drafts *mtp, by the file's block" "$work/out" || fail "info: no block"
quern info -m "$without"
! grep -q '^drafts' "$work/out" || fail "info: a block"
for command in run bench; do
    refuses 1 'draft: mtp: there is no block for multi-token prediction (nextn)' $command -m "$without" --draft mtp
done
quern bench -m "$mtp" -p 0 -n 60 -r 2 --draft mtp --accept 1 --draft-tokens 3 --format json
[ $status -eq 0 ] || fail "bench --draft mtp"
grep -q '"draft":"mtp"' "$work/out" || fail "bench --draft mtp: $(cat "$work/out")"

# A block drafter: a file of its own.
drafter=$QN_SOURCE_DIR/tests/golden/scheduler-dflash.gguf
for temp in 0 0.5; do
    quern run -m "$without" --device cpu --temp $temp --seed 5 -n 60 --draft off "$text"
    cp "$work/out" "$work/plain"
    for draft in auto dflash; do
        QN_DRAFT=dflash quern run -m "$without" --device cpu --temp $temp --seed 5 -n 60 --draft $draft --draft-model "$drafter" "$text"
        [ $status -eq 0 ] || fail "--draft $draft with a drafter"
        cmp -s "$work/out" "$work/plain" || fail "--draft $draft, --temp $temp: another text with a drafter"
    done
    QN_DRAFT=dflash quern run -m "$without" --device cpu --temp $temp --seed 5 -n 60 --draft-model "$drafter" "$text"
    grep -Eq 'tok/s, [0-9.]+ tokens/step \([0-9]+ of [0-9]+ drafted\); peak' "$work/err" || fail "QN_DRAFT=dflash: no drafts"
done
refuses 2 '--draft: dflash needs --draft-model FILE' run -m "$without" --draft dflash x
refuses 2 '--draft-model: it is not used with --draft ngram' run -m "$without" --draft ngram --draft-model "$drafter" x
refuses 1 'a drafter for hidden states of 128 elements' run -m "$demo" --device cpu --draft-model "$drafter" x
quern bench -m "$without" --device cpu -p 0 -n 60 -r 2 --draft dflash --draft-model "$drafter" --accept 1 --draft-tokens 3 --format json
[ $status -eq 0 ] || fail "bench --draft dflash"
grep -q '"draft":"dflash"' "$work/out" || fail "bench --draft dflash: $(cat "$work/out")"

# The block for multi-token prediction in a file of its own: for a model without one, and in place of the model's.
block=$QN_SOURCE_DIR/tests/golden/scheduler-mtp-block.gguf
for temp in 0 0.5; do
    quern run -m "$without" --temp $temp --seed 5 -n 60 --draft off "$text"
    cp "$work/out" "$work/plain"
    QN_DRAFT=mtp quern run -m "$mtp" --temp $temp --seed 5 -n 60 "$text"
    of_model=$(grep -Eo '[0-9]+ of [0-9]+ drafted' "$work/err") || fail "QN_DRAFT=mtp: no drafts"
    for model in "$without" "$mtp"; do
        for draft in auto mtp; do
            QN_DRAFT=mtp quern run -m "$model" --temp $temp --seed 5 -n 60 --draft $draft --draft-model "$block" "$text"
            [ $status -eq 0 ] || fail "--draft $draft with a block's file"
            cmp -s "$work/out" "$work/plain" || fail "--draft $draft, --temp $temp: another text with a block's file"
            [ $draft = mtp ] || quern run -m "$model" --temp $temp --seed 5 -n 60 --draft-model "$block" "$text"
            cmp -s "$work/out" "$work/plain" || fail "--draft-model, --temp $temp: another text with a block's file"
        done
        QN_DRAFT=mtp quern run -m "$model" --temp $temp --seed 5 -n 60 --draft-model "$block" "$text"
        grep -q "$of_model" "$work/err" || fail "$model: a block's file drafts other tokens: $(cat "$work/err"), expected $of_model"
        [ "$model" = "$without" ] || grep -q "drafts: mtp: the block of $block, not the model's own" "$work/err" || fail "no note of the block's file"
    done
done
for draft in ngram off; do
    refuses 2 "--draft-model: it is not used with --draft $draft" run -m "$without" --draft $draft --draft-model "$block" x
done
for draft in dflash model; do
    refuses 1 "a drafter for draft mtp, given with draft $draft" run -m "$without" --draft $draft --draft-model "$block" x
done
refuses 1 'embedding_length: 128, but 48 in ' run -m "$QN_SOURCE_DIR/tests/golden/qwen35.f16.gguf" --draft-model "$block" x
refuses 1 "which models of the architecture 'llama'" run -m "$QN_SOURCE_DIR/tests/golden/parrot.gguf" --draft-model "$block" x
quern bench -m "$without" -p 0 -n 60 -r 2 --draft mtp --draft-model "$block" --accept 1 --draft-tokens 3 --format json
[ $status -eq 0 ] || fail "bench --draft mtp with a block's file"
grep -q '"draft":"mtp"' "$work/out" || fail "bench --draft mtp with a block's file: $(cat "$work/out")"
size=$(stat -c %s "$block")
for at in 4 8 9 20 100 500 1000 2000 200000 $((size - 60000)) $((size - 1)); do
    head -c "$at" "$block" >"$work/cut.gguf"
    cp "$block" "$work/changed.gguf"
    printf '\377' | dd of="$work/changed.gguf" bs=1 seek="$at" conv=notrunc 2>/dev/null
    for file in cut changed; do
        quern run -m "$without" -n 8 --temp 0 --draft-model "$work/$file.gguf" 'the'
        [ $status -eq 0 ] || { [ $status -eq 1 ] && grep -q "$file.gguf" "$work/err"; } || fail "the block's file $file at $at: $status, $(cat "$work/err")"
    done
done

# Three drafted tokens, each accepted with a chance of 1: four tokens a step, but for the last ones and where a chunk of 64 ends.
QN_DRAFT=ngram quern bench -m "$demo" -p 0 -n 60 -r 2 --draft ngram --accept 1 --draft-tokens 3 --format json
[ $status -eq 0 ] || fail "bench --draft"
python3 - "$work/out" <<'END' || fail "bench --draft: $(cat "$work/out")"
import json, sys
plain, drafted = map(json.loads, open(sys.argv[1]))
assert plain["draft"] == "off" and plain["drafted"] == 0 and plain["tokens_per_step"] == 1 and plain["accept"] is None
assert drafted["test"] == "tg60 draft" and drafted["draft"] == "ngram" and drafted["accept"] == 1
assert drafted["drafted"] == drafted["accepted"] > 60 and 3 < drafted["tokens_per_step"] <= 4
assert drafted["of_free"] > 0
END

# Each repetition has its own seed: the third one does not accept what the first did.
for n in 1 3; do
    QN_DRAFT=ngram quern bench -m "$demo" -p 0 -n 60 -r $n --draft ngram --accept 0.5 --draft-tokens 3 --format json
    [ $status -eq 0 ] || fail "bench --accept 0.5"
    sed -n 's/.*"draft":"ngram".*"drafted":\([0-9]*\).*/\1/p' "$work/out" >"$work/drafted.$n"
done
[ $((3 * $(cat "$work/drafted.1"))) -ne "$(cat "$work/drafted.3")" ] || fail "bench --accept: repetitions are equal"

quern bench -m "$demo" -p 0 -n 60 -r 2 --draft model --draft-model "$demo" --format json
python3 - "$work/out" <<'END' || fail "bench --draft-model: $(cat "$work/out")"
import json, sys
plain, drafted = map(json.loads, open(sys.argv[1]))
assert drafted["draft"] == "model" and drafted["accepted"] <= drafted["drafted"]
END

# A server with two keys: what the first was told is drafted for the first only, and for neither if they share prefixes.
printf 'metrics: first-key\nother: second-key\n' >"$work/keys"
chmod 600 "$work/keys"
for scope in key all; do
    QN_DRAFT=ngram starts "$work/serve.out" "$work/serve.err" -m "$demo" --api-key-file "$work/keys" --prefix-cache-scope $scope --no-ui
    python3 - "$url" $scope <<'END' || fail "serve: drafts with the scope $scope"
import json, re, sys, urllib.request

url, scope = sys.argv[1:]
n_accepted = 0

def ask(path, key, body=None):
    data = body and json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Authorization": "Bearer " + key, "Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()

def complete(key, **body):
    global n_accepted
    answer = json.loads(ask("/completion", key, body | {"return_tokens": True}))
    n_accepted += answer["timings"].get("draft_n_accepted", 0)
    return answer

told = complete("first-key", prompt="Lily had a secret word. The secret word was", n_predict=60, temperature=1.0, seed=77)
found = {"first-key": 0, "second-key": 0}
for key in "second-key", "first-key":
    for k in 12, 16, 20, 24:
        probe = complete(key, prompt=told["tokens"][:k], n_predict=3, temperature=0, logit_bias=[[told["tokens"][k], 100]])
        found[key] += probe["timings"].get("draft_n", 0) > 0
for stop in "ll", "th", "wa", "ed":  # a draft ends inside of accepted tokens
    for _ in range(2):
        complete("first-key", prompt="Tom has a red ball. Tom has a red", n_predict=60, temperature=0, stop=[stop])
counted = re.search(r"^quern_accepted_tokens_total\S* (\d+)", ask("/metrics", "first-key"), re.M)
assert found["second-key"] == 0, found
assert (found["first-key"] > 0) == (scope == "key"), found
assert int(counted[1]) == n_accepted > 0, (counted[1], n_accepted)
END
    stops "serve --prefix-cache-scope $scope"
done
finish
