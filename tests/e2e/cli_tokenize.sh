#!/usr/bin/env bash
# quern tokenize: on the parrot's vocabulary always, and on the shared vocabularies with their listed ids where they are: a tenth of those
# texts by the program, all by tokenize_lines.
. "$(dirname "$0")/lib_cli.sh"

gives $'257\n' tokenize -m "$parrot" --ids ' t'
gives $'258 120\n' tokenize -m "$parrot" --ids ' thex'
gives $'    258 \' the\'\n    195 \'\\xc3\'\n    169 \'\\xa9\'\n' tokenize -m "$parrot" ' theé'
gives $'\n' tokenize -m "$parrot" --ids ''
gives $'261\n' tokenize -m "$parrot" --ids '<|im_end|>'
quern tokenize -m "$parrot" --ids --no-special '<|im_end|>'
[ "$(wc -w <"$work/out")" -eq 10 ] || fail "tokenize --no-special: a special token was parsed"
gives $'45 109\n' tokenize -m "$parrot" --ids -- '-m'
printf ' the\n\377' >"$work/text"
gives $'258 10 255\n' tokenize -m "$parrot" --ids -f "$work/text"
[ "$("$QN_BIN/quern" tokenize -m "$parrot" --ids <"$work/text")" = '258 10 255' ] || fail "tokenize: standard input"

# SentencePiece: a space is put before the text; a character without a token is bytes.
spm=$golden/vocab_spm-plain.gguf
gives $'395 408 261 396\n' tokenize -m "$spm" --ids 'Once upon a time'
gives $'    395 \' Once\'\n    198 \'\\xc3\'\n    171 \'\\xa8\'\n' tokenize -m "$spm" 'Onceè'
gives $'1 2\n' tokenize -m "$spm" --bos --ids '</s>'

# A conversation: its text exactly, and tokens in which messages spell no control token.
cat >"$work/talk.json" <<'JSON'
{"messages": [{"role": "user", "content": "a<|im_end|>é"}], "add_generation_prompt": true, "x": [1, "é"]}
JSON
printf '%s' '{{ messages[0].content }}|{{ x }}{{ "<|im_end|>" }}{% if add_generation_prompt %}{{ strftime_now("%Y") }}{% endif %}' >"$work/own.jinja"
talk() { SOURCE_DATE_EPOCH=86400 TZ=UTC quern tokenize -m "$parrot" --chat "$work/talk.json" "$@"; }
talk --chat-template "$work/own.jinja" --text
printf '%s' "a<|im_end|>é|[1, 'é']<|im_end|>1970" | cmp -s - "$work/out" || fail "tokenize --chat --text: $(cat "$work/out")"
talk --chat-template "$work/own.jinja" --ids
[ "$(tr ' ' '\n' <"$work/out" | grep -c '^261$')" -eq 1 ] || fail "tokenize --chat: a message spelled a control token"
talk --text
[ "$(cat "$work/out")" = "<|im_start|>user
a<|im_end|>é<|im_end|>
<|im_start|>assistant" ] || fail "tokenize --chat: the model's template"
[ "$("$QN_BIN/quern" tokenize -m "$parrot" --chat - --ids <"$work/talk.json")" = "$(talk --ids; cat "$work/out")" ] || fail "tokenize --chat -"
printf '{{ raise_exception("No " ~ x[0]) }}' >"$work/own.jinja"
talk --chat-template "$work/own.jinja"
[ "$(cat "$work/err")" = 'quern: No 1' ] || fail "tokenize --chat: the template's own words: $(cat "$work/err")"
printf 'a\n{{ x.y.z }}' >"$work/own.jinja"
talk --chat-template "$work/own.jinja"
grep -q "line 2, 'x.y.z'" "$work/err" || fail "tokenize --chat: line and expression: $(cat "$work/err")"
refuses 2 'needs --chat' tokenize -m "$parrot" --text x
echo '[' >"$work/talk.json"
refuses 1 'is not JSON' tokenize -m "$parrot" --chat "$work/talk.json"

# The .inp file holds texts separated by a line __ggml_vocab_test__; the .out file has the ids of each on a line. Each text stands
# between newlines that belong to the separator.
for vocab in "$shared"/data/vocab/*.gguf; do
    [ -e "$vocab" ] || break
    rm -rf "$work/texts"
    mkdir "$work/texts"
    awk -v folder="$work/texts" 'BEGIN { RS = "\n__ggml_vocab_test__\n"; ORS = "" } { printf "%s", $0 > sprintf("%s/%04d", folder, NR) }' "$vocab.inp"
    n=0
    while IFS= read -r expected; do
        n=$((n + 1))
        text=$(printf '%s/texts/%04d' "$work" $n)
        [ -e "$text" ] || { fail "$(basename "$vocab"): the .inp file has fewer texts than the .out file"; break; }
        { od -An -v -tx1 "$text" | tr -d ' \n' && echo; } >&3
        xargs <<<"$expected" >&4
        [ $((n % 10)) -eq 0 ] || continue # the program reads a vocabulary for each text
        quern tokenize -m "$vocab" --ids -f "$text"
        [ "$(xargs <"$work/out")" = "$(xargs <<<"$expected")" ] || fail "$(basename "$vocab") text $n: expected $expected"
    done <"$vocab.out" 3>"$work/lines" 4>"$work/expected"
    [ $n -ge 40 ] || fail "$(basename "$vocab"): only $n texts"
    "$QN_BIN/tests/tokenize_lines" "$vocab" special <"$work/lines" 2>"$work/err" | cut -d ';' -f 1 | diff "$work/expected" - ||
        fail "$(basename "$vocab"): the listed ids (<) and those found (>) differ"
done
finish
