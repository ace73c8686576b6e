#!/usr/bin/env bash
# A large file: resident memory stays small. 100 MB here; with QN_SOAK (make soak) 2 GB, and at 90% or more of curl's rate, the best of three
# runs of each in turn.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_hub.sh"
megabytes=${QN_SOAK:+2000}
head -c 1000000 /dev/urandom >"$work/piece"
for ((i = 0; i < ${megabytes:-100}; i++)); do cat "$work/piece"; done >"$work/big"
start_hub "$work/big"
cat >"$work/measure.py" <<'P'
import resource, subprocess, sys, time
start = time.monotonic()
status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(round((time.monotonic() - start) * 1000), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, status)
P
measure() { # milliseconds, KiB, status
    python3 "$work/measure.py" "$@" 2>"$work/err"
}
best=999999999 best_curl=999999999
for _ in ${megabytes:-once} ${megabytes:+2 3}; do
    rm -rf "$HF_HOME"
    read -r ms kib status < <(measure "$QN_BIN/quern" pull -q t/big)
    [ "$status" -eq 0 ] || fail "a large file: status $status"
    [ "$ms" -ge "$best" ] || best=$ms
    [ -n "$QN_SANITIZE" ] || [ "$kib" -lt 50000 ] || fail "a large file: $kib KiB resident"
    cmp -s "$work/big" "$HF_HOME"/hub/models--t--big/snapshots/*/big-Q1_0.gguf || fail "a large file: another content"
    if [ -n "$megabytes" ] && command -v curl >/dev/null; then
        read -r ms _ _ < <(measure curl -s -o "$work/by-curl" "http://$cdn/big/big-Q1_0.gguf")
        [ "$ms" -ge "$best_curl" ] || best_curl=$ms
        rm "$work/by-curl"
    fi
done
echo "$kib KiB resident; quern $best ms${megabytes:+, curl $best_curl ms}"
[ -z "$megabytes" ] || [ $((best * 9)) -le $((best_curl * 10)) ] || fail "a large file: less than 90% of curl's rate"
finish
