#!/usr/bin/env bash
# Who can read the files that quern writes: those with text of users their owner alone, whatever the umask and whatever was there
# before; products (models, logits, answers of a batch) everybody whom the umask allows.
. "$(dirname "$0")/lib_cli.sh"

# mode FILE EXPECTED
mode() { [ "$(stat -c %a "$1")" = "$2" ] || fail "umask $mask: $(basename "$1") has mode $(stat -c %a "$1"), expected $2"; }

cat >"$work/in.jsonl" <<'JSON'
{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "one", "max_tokens": 2}}
JSON
for mask in 022 000; do
    umask $mask
    folder=$work/$mask
    mkdir "$folder"
    export XDG_STATE_HOME=$folder/state
    product=$(printf '%o' $((0666 & ~0$mask)))
    quern run -m "$parrot" -p one -n 4 --save "$folder/session"
    mode "$folder/session" 600
    chmod 666 "$folder/session"
    quern run -m "$parrot" -p one -n 4 --load "$folder/session" --save "$folder/session"
    mode "$folder/session" 600
    : >"$folder/empty" # somebody may have made it, to read it later
    chmod 666 "$folder/empty"
    quern chat -m "$parrot" --save "$folder/empty" <<<$'one\n/save '"$folder/conversation.json"
    mode "$folder/empty" 600
    mode "$folder/conversation.json" 600
    chmod 644 "$folder/conversation.json"
    quern chat -m "$parrot" <<<$'/load '"$folder/conversation.json"$'\n/save '"$folder/conversation.json"
    mode "$folder/conversation.json" 600
    quern quantize "$parrot" "$folder/model.gguf" q8_0
    mode "$folder/model.gguf" "$product"
    quern logits -m "$parrot" --ids 1,2 -o "$folder/logits"
    mode "$folder/logits" "$product"
    quern batch -m "$parrot" "$work/in.jsonl" "$folder/out.jsonl"
    mode "$folder/out.jsonl" "$product"
    [ -z "$(find "$folder" -name '*.part')" ] || fail "umask $mask: a temporary file is left"
done

# A chat template is a C string: a NUL must not cut it.
printf 'one\0two' >"$work/nul.jinja"
refuses 1 "nul.jinja: has a NUL" tokenize -m "$parrot" --chat-template "$work/nul.jinja" one

# The key of a certificate that all users can read.
if command -v openssl >/dev/null && "$QN_BIN/quern" version | grep -q microhttpd; then
    openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout "$work/key.pem" -out "$work/cert.pem" 2>/dev/null
    for mode in 644 600; do
        chmod $mode "$work/key.pem"
        starts "$work/out" "$work/err" -m "$parrot" --tls-cert "$work/cert.pem" --tls-key "$work/key.pem"
        stops "quern serve with TLS"
        notes=$(grep -c 'key.pem: all users can read this private key (mode 644' "$work/err")
        [ "$notes" -eq $((mode == 644)) ] || fail "a key of mode $mode: $notes notes"
    done
fi

# A key on the command line stands in the list of processes no longer than it takes to read it.
if "$QN_BIN/quern" version | grep -q microhttpd; then
    starts "$work/out" "$work/err" -m "$parrot" --api-key 'me: hidden-1' --api-key=hidden-2
    ! tr '\0' ' ' <"/proc/$server/cmdline" | grep -q hidden || fail "keys in /proc/PID/cmdline: $(tr '\0' ' ' <"/proc/$server/cmdline")"
    for key in hidden-1 hidden-2; do
        [ "$(curl -s -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $key" "$url/v1/models")" = 200 ] || fail "the key $key"
    done
    stops "quern serve with keys"
fi
finish
