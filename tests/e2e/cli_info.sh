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
efforts     low medium xhigh'
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
quern info "$golden/caller.gguf"
grep -q '^ends        [0-9].*[0-9] "<|im_end|>"' "$work/out" || fail "info: the end tokens"
grep -qxF 'tool calls  json: <tool_call>{"name": ..., "arguments": {...}}</tool_call>' "$work/out" || fail "info: tool calls of the caller"
finish
