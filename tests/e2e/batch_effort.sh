#!/usr/bin/env bash
# The level of reasoning of requests that name none: the middle one that the chat template knows, or --reasoning-effort. The template
# prints each level in as many words as the level is high, so that the number of prompt tokens tells it.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77

cat >"$work/levels.jinja" <<'EOT'
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{%- if reasoning_effort is not defined %}{%- set reasoning_effort = 'xhigh' %}{%- endif %}
{%- if reasoning_effort == 'low' %} a{% elif reasoning_effort == 'high' %} a a a{% elif reasoning_effort == 'xhigh' %} a a a a a a a{% endif %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}
EOT

# prompt_tokens BODY ARGS... - of a chat with these members of its body.
prompt_tokens() {
    echo '{"custom_id":"1","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1'"$1"'}}' >"$work/in.jsonl"
    shift
    rm -f "$work/out.jsonl"
    quern batch -m "$QN_SOURCE_DIR/models/quern-demo.gguf" --chat-template "$work/levels.jinja" -q "$@" "$work/in.jsonl" "$work/out.jsonl"
    [ $status -eq 0 ] || fail "batch $*"
    python3 -c 'import json, sys; print(json.loads(open(sys.argv[1]).read())["response"]["body"]["usage"]["prompt_tokens"])' "$work/out.jsonl"
}

# expect LEVEL BODY ARGS... - the request has as many tokens as one that names the level.
expect() {
    local level=$1 named given
    shift
    named=$(prompt_tokens ",\"reasoning_effort\":\"$level\"")
    given=$(prompt_tokens "$@")
    [ "$named" = "$given" ] || fail "$*: $given prompt tokens, expected $named, those of $level"
}

[ "$(prompt_tokens ',"reasoning_effort":"low"')" -lt "$(prompt_tokens ',"reasoning_effort":"xhigh"')" ] || fail 'the template prints no levels'
expect high ''
expect low '' --reasoning-effort low
expect xhigh '' --reasoning-effort xhigh
expect xhigh ',"reasoning_effort":"xhigh"' --reasoning-effort low
refuses 2 "'huge'" batch --reasoning-effort huge - -
finish
