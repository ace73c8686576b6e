#!/usr/bin/env bash
# What quern info says of a file's chat template: the form of tool calls, thinking, levels of effort.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77

# with_template TEMPLATE - the parrot with another template, as $work/model.gguf. A comment fills the template, so that tensors stay aligned.
with_template() {
    python3 - "$golden/parrot.gguf" "$work/model.gguf" "$1" <<'PY'
import struct, sys
data, template = open(sys.argv[1], "rb").read(), sys.argv[3].encode()
key = b"tokenizer.chat_template"
at = data.index(struct.pack("<Q", len(key)) + key) + 8 + len(key) + 4
(n,) = struct.unpack_from("<Q", data, at)
template += b"{#" + b" " * ((n - len(template) - 4) % 32) + b"#}"
open(sys.argv[2], "wb").write(data[:at] + struct.pack("<Q", len(template)) + template + data[at + 8 + n:])
PY
}
# says TEMPLATE LINES - info of a model with that template has these lines.
says() {
    with_template "$1"
    quern info "$work/model.gguf"
    [ $status -eq 0 ] || fail "info: status $status with $1"
    [ "$(sed -n '/^tokeniser/,/^$/p' "$work/out" | sed '1d;/^ends/d;$d')" = "$2" ] || fail "info of $1: $(sed -n '/^tokeniser/,/^$/p' "$work/out")"
}

turns='{% for m in messages %}{{ m.role + m.content }}{% endfor %}'
says "$turns" 'chat        the file'"'"'s template
tool calls  none: the template has no tools
thinking    none'
says "$turns{{ '<think>' if enable_thinking }}" 'chat        the file'"'"'s template
tool calls  none: the template has no tools
thinking    <think> and </think>, switched by enable_thinking'
says "$turns{% if reasoning_effort not in ['xhigh', 'medium', 'low'] %}{{ raise_exception(reasoning_effort) }}{% endif %}" 'chat        the file'"'"'s template
tool calls  none: the template has no tools
thinking    none
efforts     low medium xhigh, by default medium'
says "$turns{{ reasoning_effort or 'medium' }}" 'chat        the file'"'"'s template
tool calls  none: the template has no tools
thinking    none
efforts     any: the template prints reasoning_effort'
says "{{ tools|tojson }}$turns" 'chat        the file'"'"'s template
tool calls  in a form that quern does not parse: tools are refused
thinking    none'
says "{% what %}" "chat        not usable: the model has a chat template that quern cannot use (chat template, line 1: 'what', expected a tag)"
# What a file says cannot drive a terminal, reorder a line or hide in it: keys, values, a template and its errors, names of tensors.
with_template "{% $(printf '\033[2J\302\233\342\200\256\342\200\250\330\234') %}"
python3 - "$work/model.gguf" <<'PY'
import struct, sys
data = open(sys.argv[1], "rb").read()
(n,) = struct.unpack_from("<Q", data, 16)
hostile = "\x1b]0;a\x07\x9b31m\u202e\u2066\u200b\u2028\u061c".encode() + b"\xff\xc0\xaf"
hostile += b"x" * (-len(hostile) % 32)
text = lambda t: struct.pack("<Q", len(t)) + t
key = b"general." + hostile
more = text(key) + struct.pack("<I", 8) + text(hostile)
more += text(b"general.pad") + struct.pack("<I", 8) + text(b"x" * ((-len(more) - 31) % 32))
open(sys.argv[1], "wb").write(data[:16] + struct.pack("<Q", n + 2) + more + data[24:])
PY
quern info "$work/model.gguf"
[ $status -eq 0 ] || fail "info of a hostile file: status $status"
grep -q 'general.*x1b]0;a' "$work/out" || fail "info: the hostile key is not there"
python3 - "$work/out" "$work/err" <<'PY' || fail "info: characters of the file that a terminal takes for its own"
import sys, unicodedata
text = "".join(open(path, encoding="utf-8").read() for path in sys.argv[1:]).replace("\n", "")
sys.exit(any(unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") for c in text))
PY
# Models whose KV cache is f16 whatever --kv says: heads without codes, large biases. Nothing of it for others. Biases of all layers' keys get
# norms of 750 in fast rope pairs.
python3 - "$golden/qwen2.q1_0.gguf" "$work/biased.gguf" <<'PY'
import struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
text = lambda at: (at + 8 + struct.unpack_from("<Q", data, at)[0], bytes(data[at + 8 : at + 8 + struct.unpack_from("<Q", data, at)[0]]))
tensors, at, end = [], data.index(struct.pack("<Q", 17) + b"token_embd.weight"), 0
(count,) = struct.unpack_from("<Q", data, 8)
for _ in range(count):
    at, name = text(at)
    (dims,) = struct.unpack_from("<I", data, at)
    at += 4 + 8 * dims
    tensors.append((name, struct.unpack_from("<IQ", data, at)[1]))
    at += 12
start = (at + 31) // 32 * 32
for name, offset in tensors:
    if name.endswith(b"attn_k.bias"):
        bias = [250.0 if d % 32 < 4 else 0.0 for d in range(64)]
        struct.pack_into("<64f", data, start + offset, *bias)
open(sys.argv[2], "wb").write(data)
PY
quern info "$work/biased.gguf"
grep -qE '^KV cache    f16 in all layers, unless --kv is f32: AURA codes would be inaccurate, as biases of queries, keys and values are up to [0-9.]+, [0-9.]+ and [0-9.]+ times the norm without them \(layers 0-1 of 2\)$' "$work/out" ||
    fail "info: the biased model's KV cache"
quern info "$golden/ranker.gguf"
grep -qx 'ranking     documents, by the probability of "yes" among "no"' "$work/out" || fail "info: the ranker's labels"
quern info "$golden/parrot.gguf"
grep -qx 'KV cache    f16 in all layers, unless --kv is f32: there are no AURA codes for heads of 16 values' "$work/out" || fail "info: the parrot's KV cache"
for model in qwen2.q1_0 qwen3.q1_0 qwen35.q1_0; do
    quern info "$golden/$model.gguf"
    ! grep -q '^KV cache' "$work/out" || fail "info: a KV cache of $model"
done
# Commands say it when they are asked for codes.
note='^quern: note: cache: all layers are stored as f16, not as aura4, which would be inaccurate: biases of queries, keys and values are up to [0-9.]*, [0-9.]* and [0-9.]* times the norm'
quern logits -m "$work/biased.gguf" --ids 1,2,3 -o "$work/logits" --kv aura4
[ $status -eq 0 ] && grep -q "$note" "$work/err" || fail "logits: no note on the KV cache"
quern logits -m "$work/biased.gguf" --ids 1,2,3 -o "$work/logits"
[ ! -s "$work/err" ] || fail "logits: a note on the KV cache without --kv"
echo '{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"a","max_tokens":2}}' >"$work/in.jsonl"
quern batch -m "$parrot" --kv aura4 "$work/in.jsonl" "$work/batched"
[ $status -eq 0 ] && grep -q '^quern: note: cache: heads of 16 values cannot be stored as aura4; they are stored as f16' "$work/err" ||
    fail "batch: no note on the KV cache"
quern batch -q -m "$parrot" --kv aura4 "$work/in.jsonl" "$work/batched2"
! grep -q 'note: cache' "$work/err" || fail "batch -q: a note on the KV cache"

# What a model needs, and what of it fits: the demo model with a context of 2^18, and of 2^30, for which no machine has enough.
with_context() {
    python3 - "$QN_SOURCE_DIR/models/quern-demo.gguf" "$work/long.gguf" "$1" <<'PY'
import struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
key = b"qwen35.context_length"
struct.pack_into("<I", data, data.index(key) + len(key) + 4, int(sys.argv[3]))
open(sys.argv[2], "wb").write(data)
PY
    quern info "$work/long.gguf"
}
with_context 262144
grep -qE '^memory      weights 10\.5 MiB, state 6\.3 MiB a sequence; [0-9.]+ [MGT]iB are available$' "$work/out" || fail "info: the memory"
grep -qE '^KV for +4096 +32768 +262144 tokens$' "$work/out" || fail "info: the lengths"
# 3 layers of 2 heads of 128: 3072 bytes a position in f16. With codes of 4 bits 3 * 2 * 2 * (64 + 4) = 816, but 3072 on the first page.
grep -qE '^  f16 +12\.0 MiB +96\.0 MiB +768\.0 MiB  (fits|does not fit|fits up to [0-9]+ tokens)$' "$work/out" || fail "info: the cache in f16"
grep -qE '^  aura4 +3\.3 MiB +25\.6 MiB +204\.1 MiB  ' "$work/out" || fail "info: the cache in aura4"
[ "$(grep -cE '^  aura[0-9v]+ ' "$work/out")" -eq 7 ] || fail "info: the formats"
with_context 1073741824
python3 - "$work/out" <<'PY' || fail "info: what fits"
import re, sys
text = open(sys.argv[1]).read()
value, unit = re.search(r"; ([0-9.]+) ([MGT])iB are available", text).groups()
fits = int(re.search(r"^  f16 .* fits up to ([0-9]+) tokens$", text, re.M)[1])
sys.exit(abs(fits * 3072 / (float(value) * 2 ** {"M": 20, "G": 30, "T": 40}[unit]) - 1) > 0.05)
PY
quern info "$golden/parrot.gguf" --device cuda:999
[ $status -eq 0 ] && grep -q '^memory .*; the device is not usable: ' "$work/out" || fail "info: a device that is not there"
quern info "$golden/parrot.gguf"
! grep -q '^  aura' "$work/out" || fail "info: AURA codes of the parrot"

quern info "$golden/caller.gguf"
grep -q '^ends        [0-9].*[0-9] "<|im_end|>"' "$work/out" || fail "info: the end tokens"
grep -qxF 'tool calls  json: <tool_call>{"name": ..., "arguments": {...}}</tool_call>' "$work/out" || fail "info: tool calls of the caller"
finish
