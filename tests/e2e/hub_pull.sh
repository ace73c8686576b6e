#!/usr/bin/env bash
# quern pull against a server on loopback that plays the hub and misbehaves: each failure has a clear end, and no partial file is
# ever under its final name. hub_cache.sh tests what is done with the cache.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_hub.sh"
command -v openssl >/dev/null && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 \
    -keyout "$work/key.pem" -out "$work/cert.pem" 2>/dev/null && export TLS_CERT=$work/cert.pem TLS_KEY=$work/key.pem
export SLOW=0.15
start_hub

# What takes seconds runs beside the rest.
in_background() {
    local name=$1
    shift
    "$@" >"$work/$name.out" 2>"$work/$name.err"
    echo $? >"$work/$name.status"
}
in_background cut-always "$QN_BIN/quern" pull t/cut-always &
waits=$!
in_background down "$QN_BIN/quern" pull t/down &
waits+=" $!"
in_background slow "$QN_BIN/quern" pull t/slow &
waits+=" $!"
in_background nowhere "$QN_BIN/quern" pull t/nowhere &
waits+=" $!"
host=$(hostname -I 2>/dev/null | cut -d ' ' -f 1)
if [ -n "$host" ]; then # not loopback; nobody listens there
    in_background plain env HF_TOKEN=hf_secret HF_ENDPOINT=http://$host:${hub#*:} "$QN_BIN/quern" pull t/private &
    waits+=" $!"
fi
# Ctrl-C while another process has the lock.
mkdir -p "$HF_HOME/hub/.locks/models--t--weak"
exec 9>"$HF_HOME/hub/.locks/models--t--weak/$hash.lock"
flock 9
env --default-signal=INT "$QN_BIN/quern" pull t/weak >"$work/out" 2>"$work/err" 9>&- &
second=$!
wait_until grep -qs 'another process downloads it; waiting' "$work/err" || fail "a second process: does not say that it waits"
kill -INT $second
wait $second && fail "Ctrl-C while another process has the lock: status 0"
[ ! -s "$work/out" ] || fail "Ctrl-C while another process has the lock: $(cat "$work/out")"
exec 9>&-

# ---- What is right, and what passes ----
for repo in weak plain-list trouble busy busy-date busy-list cut closed no-range no-resume; do
    pulls $repo
done
inode=$(stat -c %i "$(link busy)")
quern pull t/busy
[ "$(grep -c m-Q1_0 "$work/out")" -eq 1 ] || fail "pull of what is there"
[ "$(stat -c %i "$(link busy)")" = "$inode" ] || fail "pull of what is there writes to the cache, which may be read-only"
grep -q 'HEAD.*cut/.*' "$work/log" && grep -q 'bytes=1200000-' "$work/log" || fail "cut: the download was not continued by a range"
rm -rf "$(folder busy)"
quern pull t/busy-list:Q1_0
HF_HUB_DOWNLOAD_TIMEOUT=1 pulls stall

# ---- Interrupted, and continued ----
interrupted() {
    rm -rf "$(folder away)"
    mkdir -p "$(folder away)/blobs"
    if [ "$1" -gt 3145728 ]; then
        head -c "$1" /dev/zero
    else
        head -c "$1" "$work/whole"
    fi >"$(blob away).incomplete"
}
cp -L "$(link cut)" "$work/whole"
interrupted 1000000
: >"$work/log"
pulls away
grep -q '^cdn GET.* bytes=1000000-' "$work/log" || fail "an interrupted download is not continued"
interrupted 3145728
: >"$work/log"
pulls away
! grep -q '^cdn' "$work/log" || fail "a complete download that was not renamed is downloaded again"
interrupted 3145729
pulls away
interrupted 1000000
printf x | dd of="$(blob away).incomplete" bs=1 seek=77 conv=notrunc 2>/dev/null
quern pull t/away
grep -q 'does not fit; from the beginning' "$work/err" || fail "a damaged beginning: not said"
is_whole away

# ---- Ctrl-C, and a process that is killed ----
export HF_HOME=$work/home2
for signal in INT KILL; do
    rm -rf "$HF_HOME"
    env --default-signal=INT "$QN_BIN/quern" pull -q t/slow >"$work/out" 2>"$work/err" &
    pull=$!
    wait_until [ -s "$(blob slow).incomplete" ]
    kill -$signal $pull
    wait $pull 2>/dev/null
    [ ! -s "$work/out" ] && [ ! -e "$(blob slow)" ] && [ ! -L "$(link slow)" ] || fail "$signal: something under its final name"
    size=$(stat -c %s "$(blob slow).incomplete")
    [ "${size:-0}" -gt 0 ] || fail "$signal: nothing is kept"
done
: >"$work/log"
python3 -c 'import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))' "$QN_BIN/quern" pull t/slow >"$work/out" </dev/null ||
    fail "on a terminal: status $?"
grep -qE $'\rm-Q1_0.gguf \[=+ *\] +[0-9]+%  0:0[0-9] left  [0-9.]+ .iB of 3.0 MiB  [0-9.]+ .iB/s' "$work/out" || fail "on a terminal: no progress"
is_whole slow
grep -q "^cdn GET.* bytes=$size-" "$work/log" || fail "the download of a killed process is not continued"
export HF_HOME=$work/home

# ---- What cannot be ----
refused() {
    refuses 1 "$2" pull -q "t/$1"
    is_not_there "$1" "${3:-0}"
}
refused wrong 'its SHA-256 is .*, expected ba11c17412b'
refused other-length 'has 3145718 bytes more, expected 3145728'
refuses 1 'sends more than 3145728 bytes' pull -q t/longer
[ ! -e "$(blob longer)" ] && [ ! -L "$(link longer)" ] || fail "longer: a file under its final name"
refused gated '403.*gated; accept the conditions on .*/t/gated.*HF_TOKEN.*Access to model t/gated is restricted'
refused gated-401 '401.*gated; accept the conditions'
refused forbidden '403'
refused private '401.*private; then set HF_TOKEN'
refused loop 'more than 5 redirects'
refused busy-long '429.*4000 s, quern waits 300'
refused ftp 'rotocol\|is not an address' # libcurl may know ftp
refused vast "size is '4611686018427387904'"
refused negative "size is '-1'"
refused words "size is 'many'"
refused list-lies 'expected 0000000'
refused other-commit 'X-Repo-Commit'
refused no-commit 'X-Repo-Commit'
refused deep 'nested more than 32 deep'
refused not-json 'is not JSON'
refused empty 'is not JSON'
refused endless 'longer than 8388608 bytes'
refused no-list "'sha' is missing"
refused bad-commit "'sha' is ../../"
refused evil 'could stay inside'
refused evil2 'could stay inside'
refused evil3 'could stay inside'
refused evil4 'could stay inside'
refused evil5 'could stay inside'
refused none 'no GGUF file'
refuses 1 'weight type of none.*m-IQ2_S.gguf, m-IQ3_XXS.gguf' pull t/unreadable
refuses 1 "2 models match the type q4_0; name a file: a-Q4_0.gguf, b-Q4_0.gguf" pull t/same:q4_0
refuses 1 'lacks .*00003-of-00003' pull t/no-part:s-Q4_K_M-00002-of-00003.gguf
refuses 1 "no model of type Q5_0; there is" pull t/good-gguf:Q5_0
refuses 1 "no file 'other.gguf'" pull t/good-gguf:other.gguf
refuses 1 '401' pull t/nothing
HF_TOKEN=hf_secret refuses 1 '404.*Repository not found' pull t/nothing
HF_TOKEN=hf_wrong refuses 1 'does not accept the token' pull t/private
interrupted 1000000
mv "$(folder away)" "$(folder bad-range)"
refused bad-range "sends the range 'bytes 1000001-" 1000000
quern pull -q t/long-name
[ -e "$(folder long-name)/snapshots/$commit/$(printf 'n%.0s' {1..250}).gguf" ] || fail "the longest name: $(cat "$work/err")"
pulls odd # names of other files that are not safe are left out
# ETags are names of files: one that is no hash is not taken, the listed hash is.
pulls evil-etag
[ ! -e "$HF_HOME/etc" ] || fail "an ETag left the cache"
for name in t t/ /t/x t/x/y t/..x t/x. t/-x 't/x y' t/x--y t/x.git t/x: 't/x:../y.gguf' t/x:/y.gguf 't/x:a\b.gguf' t/x:-Q1; do
    refuses 2 "'$(printf %s "$name" | sed 's/[\\.]/\\&/g')':" pull "$name"
done

# ---- The token ----
: >"$work/log"
HF_TOKEN=hf_secret pulls private
grep -q '^hub GET /api.* token' "$work/log" && grep -q '^hub HEAD.* token' "$work/log" || fail "the token is not sent to the hub"
! grep -q '^cdn.* token' "$work/log" || fail "the token is sent to another host"
! grep -rq hf_secret "$HF_HOME" || fail "the token is in the cache"
for way in HUGGING_FACE_HUB_TOKEN=hf_secret HF_TOKEN_PATH="$work/token" HF_HOME="$work/home3" 'HF_HOME=$WORK_FOLDER/home3'; do
    rm -rf "$(folder private)" "$work/home3/hub"
    mkdir -p "$work/home3"
    printf ' hf_secret\r\n' | tee "$work/home3/token" >"$work/token"
    env WORK_FOLDER="$work" "$way" "$QN_BIN/quern" pull -q t/private >"$work/out" 2>"$work/err" || fail "a token by $way"
done
rm -rf "$(folder private)"
HF_TOKEN=' ' HF_TOKEN_PATH=$work/token pulls private # white space is no token
rm -rf "$(folder private)"
HF_TOKEN=hf_secret HF_HUB_DISABLE_IMPLICIT_TOKEN=1 refuses 1 401 pull -q t/private
HF_TOKEN=$'hf\x01x' refuses 1 'HF_TOKEN: .*character' pull t/cut
: >"$work/log"
# A proxy must not see what goes to this machine; other requests may go through it.
http_proxy=http://$cdn HF_TOKEN=hf_secret pulls private
http_proxy=http://$hub HF_ENDPOINT=http://hub.example.com HF_TOKEN=hf_secret quern pull t/cut
! grep -q 'hub.example.com.* token' "$work/log" || fail "the token goes over plain HTTP by a proxy"
grep -q 'hub.example.com' "$work/log" || fail "the proxy is not used"

# ---- TLS ----
if [ -n "${tls:-}" ]; then
    rm -rf "$(folder private)"
    export HF_ENDPOINT=https://$tls HF_TOKEN=hf_secret
    refuses 1 'certificate' pull -q t/private
    is_not_there private
    SSL_CERT_FILE=$work/cert.pem refuses 1 "redirect from https to 'http:" pull -q t/private
    SSL_CERT_FILE=$work/cert.pem quern pull -q t/private:config.json
    SSL_CERT_FILE=$work/cert.pem quern pull -q t/none:config.json
    [ $status -eq 0 ] || fail "TLS with a certificate that is trusted: status $status"
    unset HF_TOKEN
    export HF_ENDPOINT=http://$hub
fi

# ---- A full disk ----
(
    ulimit -f 1000 # of 1024 bytes
    quern pull -q t/good-gguf:m-Q8_0.gguf
    cp "$work/err" "$work/limit.err"
)
grep -q 'cannot write: File too large; 1024000 bytes are kept' "$work/limit.err" || fail "a file that cannot grow: $(cat "$work/limit.err")"
[ -z "$(find "$(folder good-gguf)" -type l)" ] || fail "a full disk: a link"
quern pull -q t/good-gguf:m-Q8_0.gguf
[ $status -eq 0 ] || fail "after a full disk: status $status"
if unshare -rm true 2>/dev/null; then
    mkdir "$work/tiny"
    unshare -rm bash -c 'mount -t tmpfs -o size=2m none "$0" && { HF_HOME=$0 "$1" pull -q t/cut; ls -R "$0"/hub/models--t--cut >"$0.list"; }' \
        "$work/tiny" "$QN_BIN/quern" >"$work/out" 2>"$work/err"
    grep -q 'GB are to be downloaded, and its disk has' "$work/err" || fail "a disk that is too small: not said before"
fi
chmod a-w "$HF_HOME/hub"
[ "$(id -u)" -eq 0 ] || refuses 1 'cannot create' pull -q t/trouble
chmod u+w "$HF_HOME/hub"

# ---- Two processes at once ----
rm -rf "$(folder away)"
: >"$work/log"
in_background first "$QN_BIN/quern" pull -q t/away &
first=$!
in_background second "$QN_BIN/quern" pull -q t/away &
wait $first $!
[ "$(cat "$work/first.status" "$work/second.status" | sort -u)" = 0 ] || fail "two processes: $(cat "$work/first.err" "$work/second.err")"
[ "$(grep -c '^cdn GET' "$work/log")" -eq 1 ] || fail "two processes: $(grep -c '^cdn GET' "$work/log") downloads"
is_whole away

# ---- What ran meanwhile ----
wait $waits
[ "$(cat "$work/slow.status")" -eq 0 ] || fail "slow: $(cat "$work/slow.err")"
grep -qE 'note: m-Q1_0.gguf: [0-9]+%, .* of 3.0 MiB  .*/s, 0:0[0-9] left' "$work/slow.err" || fail "slow: no line about it: $(cat "$work/slow.err")"
is_whole slow
[ "$(cat "$work/cut-always.status")" -eq 1 ] || fail "cut-always: did not fail"
[ "$(grep -c 'again in [1248] s' "$work/cut-always.err")" -eq 4 ] || fail "cut-always: not repeated four times: $(cat "$work/cut-always.err")"
is_not_there cut-always
is_not_there nowhere
grep -q '[Cc]onnect' "$work/nowhere.err" || fail "nowhere: $(cat "$work/nowhere.err")"
grep -q 'answered with status 500' "$work/down.err" || fail "down: $(cat "$work/down.err")"
[ -z "$host" ] || grep -q 'token is not sent to http://' "$work/plain.err" || fail "a token over plain HTTP: not said"
finish
