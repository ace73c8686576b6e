# Shared by the tests of chat: a model that thinks "Hm" before it answers, and the messages of files. Sourced, not run.
. "$(dirname "${BASH_SOURCE[0]}")/lib_cli.sh"
command -v python3 >/dev/null || exit 77

# The parrot with the token "H" spelled "Hm</think>". Its own template is shortened by as many bytes, so that nothing moves.
thinker=$work/thinker.gguf
python3 - "$parrot" "$thinker" <<'PY'
import struct, sys
data = open(sys.argv[1], "rb").read()
def string(b): return struct.pack("<Q", len(b)) + b
word, key = b"Hm</think>", b"tokenizer.chat_template"
assert data.count(string(b"H")) == 1
data = data.replace(string(b"H"), string(word))
at = data.index(string(key)) + 8 + len(key) + 4
(n,) = struct.unpack_from("<Q", data, at)
template = data[at + 8:at + 8 + n]
open(sys.argv[2], "wb").write(data[:at] + string(template[:n - len(word) + 1]) + data[at + 8 + n:])
PY
cat >"$work/think.jinja" <<'JINJA'
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}
{%- if reasoning_effort == 'low' %}{{- 'low: ' }}{% elif reasoning_effort == 'high' %}{{- 'high: ' }}{% endif %}
{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\n\n</think>\n\n' }}{% else %}{{- '<think>\n' }}{% endif %}
{%- endif %}
JINJA
thinking=(-m "$thinker" --chat-template "$work/think.jinja")

# contents FILE - role and content of each message, one a line.
contents() { python3 -c 'import json, sys
for m in json.load(open(sys.argv[1]))["messages"]: print(m["role"], repr(m["content"]), *[m[k] for k in ["reasoning_content"] if k in m])' "$1"; }
# holds FILE TEXT - the messages of a file.
holds() { [ "$(contents "$1")" = "$2" ] || fail "$1 holds: $(contents "$1")"; }
answer="assistant 'é 世🙂!' Hm" # what it says, as contents prints it
