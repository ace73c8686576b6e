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

for command in run chat serve bench; do
    for draft in mtp dflash model; do
        refuses 2 "--draft: $draft is not supported yet; auto, off and ngram are" $command -m "$demo" --draft $draft
    done
done
refuses 2 '--draft: mtp is not supported yet' batch -m "$demo" --draft mtp "$work/in" "$work/out2"
refuses 2 "--draft: 'fast'" run -m "$demo" --draft fast x
refuses 2 '--accept: needs --draft' bench -m "$demo" --accept 0.5
refuses 2 '--draft-tokens: needs --draft' bench -m "$demo" --draft-tokens 3
refuses 2 '--draft: at -n 0 nothing is decoded' bench -m "$demo" --draft ngram -n 0
QN_DRAFT=mtp refuses 1 'draft: mtp is not supported yet' run -m "$demo" x
QN_DRAFT=fast refuses 1 "QN_DRAFT: 'fast'" run -m "$demo" x

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
finish
