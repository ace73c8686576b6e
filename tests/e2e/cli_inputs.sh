#!/usr/bin/env bash
# Texts as editors and shells leave them: a byte order mark at the beginning, a newline at the end, the end of a terminal's input. And
# what is said of wrong ones: the value found, the values expected; the exit status of a job whose lines are all wrong; what quern serve
# finds before it listens.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_batch.sh"
command -v python3 >/dev/null || exit 77
mark=$'\xef\xbb\xbf'

# same WHAT FILE OTHER ARGS... - both files are the same to the program: `@` in the arguments is the file.
same() {
    local what=$1 file=$2 other=$3 expected
    shift 3
    quern "${@//@/$file}" </dev/null
    [ $status -eq 0 ] || fail "$what: status $status"
    expected=$(cat "$work/out")
    quern "${@//@/$other}" </dev/null
    [ $status -eq 0 ] && [ "$(cat "$work/out")" = "$expected" ] || fail "$what: not the same"
}

# with_mark FILE - the same with a byte order mark.
with_mark() { { printf %s "$mark"; cat "$1"; } >"$1.bom"; }

# ---- Prompts ----
# -v counts the prompt's tokens on standard error: the text alone could be the same by chance.
tokens() { sed -n 's/^quern: prompt \([0-9]*\) tokens.*/\1/p' "$work/err"; }
run=(run -m "$demo" -n 4 --temp 0)
quern "${run[@]}" -p "Once upon a time"
plain=$(cat "$work/out") n=$(tokens)
[ -n "$n" ] || fail "run: no number of tokens"
i=0
for text in 'Once upon a time' $'Once upon a time\n' $'Once upon a time\r\n' "${mark}Once upon a time" "$mark"$'Once upon a time\n'; do
    i=$((i + 1))
    printf %s "$text" >"$work/prompt"
    quern "${run[@]}" -f "$work/prompt" </dev/null
    [ "$(tokens) $(cat "$work/out")" = "$n $plain" ] || fail "run -f: text $i: $(tokens) tokens, expected $n"
    quern "${run[@]}" -f - <"$work/prompt"
    [ "$(tokens) $(cat "$work/out")" = "$n $plain" ] || fail "run -f -: text $i: $(tokens) tokens, expected $n"
    quern "${run[@]}" <"$work/prompt"
    [ "$(tokens) $(cat "$work/out")" = "$n $plain" ] || fail "run <: text $i: $(tokens) tokens, expected $n"
done
quern tokenize -m "$demo" --ids $'Once upon a time\n'
[ "$(wc -w <"$work/out")" -eq $((n + 1)) ] || quern tokenize -m "$demo" --bos --ids $'Once upon a time\n'
longer=$(wc -w <"$work/out")
printf 'Once upon a time\n\n' >"$work/prompt"
quern "${run[@]}" -f "$work/prompt" </dev/null
[ "$(tokens)" -eq "$longer" ] || fail "run -f: of two newlines $(tokens) tokens are left, expected $longer"
quern "${run[@]}" -p $'Once upon a time\n' # as it was typed
[ "$(tokens)" -eq "$longer" ] || fail "run -p: a newline was taken away"
printf '\n' >"$work/prompt"
quern "${run[@]}" --chat -f "$work/prompt" </dev/null
[ $status -eq 0 ] || fail "run --chat: a prompt of a newline: status $status"

# One Ctrl-D ends the text of a terminal.
cat >"$work/terminal.py" <<'PY'
import os, pty, select, signal, sys, time

child, terminal = pty.fork()
if not child:
    os.execv(sys.argv[1], sys.argv[1:])
found, begin, sent = b"", time.monotonic(), False
while time.monotonic() - begin < 60:
    if not sent and time.monotonic() - begin > 1:
        os.write(terminal, b"Once upon a time\n\x04")
        sent = True
    if select.select([terminal], [], [], 0.1)[0]:
        try:
            piece = os.read(terminal, 4096)
        except OSError:
            break
        if not piece:
            break
        found += piece
else:
    os.kill(child, signal.SIGKILL)
    sys.exit(f"it waits for more: {found}")
_, status = os.waitpid(child, 0)
sys.stdout.buffer.write(found)
sys.exit(os.waitstatus_to_exitcode(status))
PY
timeout 100 python3 "$work/terminal.py" "$QN_BIN/quern" "${run[@]}" -f - -q >"$work/out" 2>"$work/err" || fail "run -f -: one Ctrl-D does not end a terminal's text"
grep -qF "$plain" "$work/out" || fail "run -f - on a terminal: the answer"

# ---- Byte order marks ----
echo '{"type": "boolean"}' >"$work/schema.json"
echo 'root ::= "yes" | "no"' >"$work/yes.gbnf"
printf '{%% for m in messages %%}{{ m.role }}: {{ m.content }}\n{%% endfor %%}' >"$work/template"
echo '{"messages": [{"role": "user", "content": "a"}]}' >"$work/chat.json"
for file in schema.json yes.gbnf template chat.json; do with_mark "$work/$file"; done
same "a schema" "$work/schema.json" "$work/schema.json.bom" run -m "$demo" -p a --seed 1 -q --json-schema @
same "a grammar" "$work/yes.gbnf" "$work/yes.gbnf.bom" run -m "$demo" -p a --seed 1 -q --grammar @
same "a template" "$work/template" "$work/template.bom" tokenize -m "$demo" --chat "$work/chat.json" --text --chat-template @
same "a conversation" "$work/chat.json" "$work/chat.json.bom" tokenize -m "$demo" --text --chat @
{
    line a '{"prompt":"Once","max_tokens":2}'
    line b '{"prompt":"Once","max_tokens":2}'
} >"$work/marked.jsonl"
with_mark "$work/marked.jsonl"
quern batch -m "$demo" "$work/marked.jsonl.bom" "$work/marked.out" --ordered
[ $status -eq 0 ] && [ "$(value 'x["custom_id"], x["error"]' <"$work/marked.out" | tr '\n' ';')" = "a None;b None;" ] ||
    fail "batch: a byte order mark: $(cat "$work/marked.out")"
printf '%s\n' "$mark" >"$work/only.jsonl"
quern batch -m "$demo" "$work/only.jsonl" "$work/only.out" --ordered
[ $status -eq 0 ] && grep -q ' 0 answers, 0 errors' "$work/err" || fail "batch: a byte order mark alone: status $status"
line a "{\"prompt\":\"Once\",\"max_tokens\":2,\"grammar\":\"${mark}root ::= [a-z]+\"}" >"$work/inner.jsonl"
quern batch -m "$demo" "$work/inner.jsonl" "$work/inner.out"
[ $status -eq 0 ] || fail "batch: a grammar with a byte order mark: $(cat "$work/inner.out")"

printf '%shello\n/exit\n' "$mark" | timeout 60 "$QN_BIN/quern" chat -m "$parrot" -q --save "$work/marked.session" >"$work/out" 2>"$work/err" || fail "chat: a byte order mark"
printf 'hello\n/exit\n' | timeout 60 "$QN_BIN/quern" chat -m "$parrot" -q --save "$work/plain.session" >"$work/out" 2>"$work/err" || fail "chat"
cmp -s "$work/marked.session" "$work/plain.session" || fail "chat: a byte order mark is a part of the first message"

# ---- Jobs ----
quern batch -m "$demo" "$work/marked.jsonl" "$work/marked.jsonl"
[ $status -eq 1 ] && grep -q 'it is the input itself' "$work/err" && ! grep -q -e '-f' "$work/err" || fail "batch in in: $(cat "$work/err")"
ln "$work/marked.jsonl" "$work/linked.jsonl"
refuses 1 'it is the input itself' batch -m "$demo" "$work/marked.jsonl" "$work/linked.jsonl"
quern help batch
for name in response_format tools chat_template_kwargs; do grep -q "$name" "$work/out" || fail "help batch: $name"; done
! grep -q 'others are ignored' "$work/out" || fail "help batch: others are ignored"
{
    echo nonsense
    line a '{"prompt":7}'
} >"$work/all_wrong.jsonl"
for options in "" -q --ordered; do
    rm -f "$work/all_wrong.out"
    quern batch -m "$demo" "$work/all_wrong.jsonl" "$work/all_wrong.out" $options
    [ $status -eq 1 ] && grep -q '^quern: .*all_wrong.jsonl: none of its 2 requests was answered; .*see .*all_wrong.out for the errors' "$work/err" ||
        fail "batch $options: all lines are wrong: status $status"
    [ "$(wc -l <"$work/all_wrong.out")" -eq 2 ] || fail "batch $options: lines of errors"
done
quern batch -m "$demo" "$work/all_wrong.jsonl" "$work/all_wrong.out" --resume -q
[ $status -eq 1 ] || fail "batch --resume: all lines were wrong before: status $status"
line b '{"prompt":"Once","max_tokens":2}' >>"$work/all_wrong.jsonl"
quern batch -m "$demo" "$work/all_wrong.jsonl" "$work/all_wrong.out" --resume -q
[ $status -eq 0 ] && [ ! -s "$work/err" ] || fail "batch --resume: some lines are right: status $status"
quern batch -m "$demo" "$work/all_wrong.jsonl" "$work/all_wrong.out" --resume -q
[ $status -eq 0 ] || fail "batch --resume: some lines were right before: status $status"
: >"$work/none.jsonl"
quern batch -m "$demo" "$work/none.jsonl" "$work/none.out"
[ $status -eq 0 ] || fail "batch: no lines: status $status"
# A job without standard streams, as a daemon's, writes nothing but answers into its output, whatever descriptor that has.
for closed in '2>/dev/null <&-' '2>/dev/null <&- >&-' '<&- >&- 2>&-' '>&- 2>&-'; do
    rm -f "$work/daemon.out"
    eval "timeout 60 \"$QN_BIN/quern\" batch -m \"$demo\" \"$work/marked.jsonl\" \"$work/daemon.out\" --ordered $closed"
    [ "$(value 'x["custom_id"]' <"$work/daemon.out" 2>&1 | tr '\n' ' ')" = "a b " ] || fail "batch $closed: $(cat "$work/daemon.out")"
done

# ---- What was found and what was expected ----
# wrong TEXT BODY [URL] - a line of this body has an error that begins so.
wrong() {
    line a "$2" "${3:-/v1/chat/completions}" >"$work/wrong.jsonl"
    rm -f "$work/wrong.out"
    quern batch -m "$demo" "$work/wrong.jsonl" "$work/wrong.out" -q
    local found
    found=$(value 'x["error"]["message"]' <"$work/wrong.out")
    [ "${found#"line 1: ${1%\*}"}" != "$found" ] || fail "batch: $found, expected $1"
}
ask='"messages":[{"role":"user","content":"a"}]'
wrong "'role' is \"robot\", expected \"system\", *" '{"messages":[{"role":"robot","content":"a"}]}'
wrong "'role' is 5, expected \"system\", *" '{"messages":[{"role":5,"content":"a"}]}'
wrong "'role' is an object, expected *" '{"messages":[{"role":{},"content":"a"}]}'
wrong "'role' is \"\", expected *" '{"messages":[{"role":"","content":"a"}]}'
wrong "'role' is \"$(printf 'a%.0s' {1..40})...\", expected *" "{\"messages\":[{\"role\":\"$(printf 'a%.0s' {1..80})\",\"content\":\"a\"}]}"
wrong "'messages' is an empty array, expected *" '{"messages":[]}'
wrong "'tool_choice' is \"any\", expected \"none\", *" "{$ask,\"tool_choice\":\"any\"}"
wrong "'response_format.type' is \"xml\", expected \"text\", *" "{$ask,\"response_format\":{\"type\":\"xml\"}}"
wrong "'reasoning_effort' is \"much\", expected \"none\", *" "{$ask,\"reasoning_effort\":\"much\"}"
wrong "'reasoning_format' is \"x\", expected \"none\", *" "{$ask,\"reasoning_format\":\"x\"}"
wrong "'seed' is 1.5, expected an integer" "{$ask,\"seed\":1.5}"
wrong "'url' is \"/v1/embeddings\", expected \"/v1/chat/completions\" or *" '{}' /v1/embeddings
echo '{"custom_id":5,"url":"/v1/completions","body":{"prompt":"a"}}' >"$work/wrong.jsonl"
rm -f "$work/wrong.out"
quern batch -m "$demo" "$work/wrong.jsonl" "$work/wrong.out" -q
grep -qF "'custom_id' is 5, expected a string" "$work/wrong.out" || fail "batch: a custom_id that is a number"

mkdir "$work/checkpoint"
config='"architectures": ["Qwen3ForCausalLM"], "vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2'
for case in '"64"|"64", expected an integer of 1 to' '0|0, expected an integer of 1 to' '1.5|1.5, expected an integer' 'true|true, expected an integer' '[64]|an array, expected an integer'; do
    echo "{$config, \"hidden_size\": ${case%%|*}}" >"$work/checkpoint/config.json"
    quern convert "$work/checkpoint" "$work/x.gguf"
    grep -qF "'hidden_size' is ${case#*|}" "$work/err" || fail "convert: hidden_size ${case%%|*}: $(cat "$work/err")"
done

# ---- What a server finds before it listens ----
serve=(serve --port 0)
refuses 1 'no such file\.gguf: cannot open' "${serve[@]}" -m "$work/no such file.gguf"
refuses 1 'not a GGUF file' "${serve[@]}" -m "$work/prompt"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n' >"$work/pointer.gguf"
refuses 1 "pointer.gguf: is a Git LFS pointer, not the file itself: run 'git lfs pull'" info -m "$work/pointer.gguf"
refuses 1 'there is no such file' "${serve[@]}" -m "$demo" -m "$work/no such file.gguf"
refuses 1 'not a GGUF file' "${serve[@]}" -m "$demo" -m "$work/prompt"
refuses 1 'No such file' "${serve[@]}" --models-dir "$work/none"
refuses 2 'models-dir: the name is empty' "${serve[@]}" --models-dir ""
refuses 1 'No such file' "${serve[@]}" -m "$demo" --chat-template "$work/none"
echo '{% for %}' >"$work/bad_template"
refuses 1 'line 1' "${serve[@]}" -m "$demo" --chat-template "$work/bad_template"
for origin in nonsense "" https://a.example/ https://a.example/path a.example "https://a b" https:// https://a:99999 "https://a.example,https://b.example"; do
    refuses 2 'cors-origin: .* is not an origin' "${serve[@]}" -m "$demo" --cors-origin "$origin"
done
for host in "" a:80 https://a a/b "a b"; do refuses 2 'allowed-host: .* is not a name' "${serve[@]}" -m "$demo" --allowed-host "$host"; done
refuses 2 'alias: the name is empty' "${serve[@]}" -m "$demo" --alias ""
refuses 2 'host: the name is empty' "${serve[@]}" -m "$demo" --host ""
refuses 2 'parallel: 9 requests, at most 8' "${serve[@]}" -m "$demo" --parallel 9 --batch 8
mkdir "$work/empty"
starts "$work/out.1" "$work/err.1" --models-dir "$work/empty" --cors-origin '*' --cors-origin null --cors-origin http://localhost:3000 \
    --cors-origin 'http://[::1]:3000' --cors-origin chrome-extension://abc --allowed-host box.example --allowed-host ::1
stops "serve --models-dir"
grep -q '^listening' "$work/out.1" || fail "serve --models-dir: an empty folder is refused"
grep -q 'empty: has no GGUF files yet' "$work/err.1" || fail "serve --models-dir: an empty folder without a word"
printf '%sfirst: sk-marked\n' "$mark" >"$work/keys"
chmod 600 "$work/keys"
starts "$work/out.2" "$work/err.2" -m "$demo" --api-key-file "$work/keys"
python3 - "$url" <<'PY' || fail "serve: a key after a byte order mark, and a body with one"
import json, sys, urllib.request

body = b"\xef\xbb\xbf" + json.dumps({"prompt": "Once", "max_tokens": 2}).encode()
request = urllib.request.Request(sys.argv[1] + "/v1/completions", body, {"Authorization": "Bearer sk-marked", "Content-Type": "application/json"})
with urllib.request.urlopen(request, timeout=60) as answer:
    sys.exit(json.load(answer)["object"] != "text_completion")
PY
stops "serve --api-key-file"
finish
