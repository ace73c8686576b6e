#!/usr/bin/env bash
# quern.exe and quern-check.exe under Wine: kernels against their references at every level, logits of the golden models with the bits
# of this system's quern, commands with the paths, ends of lines and streams of Windows, and the server with clients of this system.
#   test_windows.sh FOLDER_OF_EXE FOLDER_OF_QUERN [quick]
# quick: a sample of the kernels' cases, and two of the server's tests.
set -u
exe=$(realpath "$1")
native=$(realpath "$2")
every=${3:+--every 40}
cd "$(dirname "$0")/.." || exit 1
command -v wine >/dev/null && [ -x "$exe/quern.exe" ] && [ -x "$exe/helper.exe" ] && [ -x "$native/quern" ] || { echo "skipped: no Wine, or not built"; exit 77; }
work=$(mktemp -d)
export WINEPREFIX=${WINEPREFIX:-$work/wine} WINEDEBUG=-all WINEARCH=win64 TMPDIR=$work
trap 'wineserver -k 2>/dev/null; [ -z "${display:-}" ] || kill "$display" 2>/dev/null; rm -rf "$work"' EXIT
failures=0 checks=0

check() {
    checks=$((checks + 1))
    if ! eval "$2"; then
        failures=$((failures + 1))
        echo "FAILED: $1"
        sed 's/^/    /' "$work/out" "$work/err" 2>/dev/null | head -n 20
    fi
}

# windows ARGUMENTS... - quern.exe; its streams in $work/out and $work/err, its status in $status.
windows() {
    timeout 300 wine "$exe/quern.exe" "$@" >"$work/out" 2>"$work/err"
    status=$?
}

# Wine's Vulkan needs a display, from its first program on.
software=$(compgen -G '/usr/share/vulkan/icd.d/lvp_icd*.json' | head -n 1)
if command -v Xvfb >/dev/null && [ -n "$software" ]; then
    Xvfb -displayfd 3 -screen 0 640x480x24 3>"$work/display" >/dev/null 2>&1 &
    display=$!
    for _ in {1..50}; do [ -s "$work/display" ] && break || sleep 0.1; done
    DISPLAY=:$(cat "$work/display")
    export DISPLAY
fi
timeout 300 wineboot -u >/dev/null 2>&1

# ---- Kernels ----

# shellcheck disable=SC2086
timeout 1500 wine "$exe/quern-check.exe" $every >"$work/out" 2>"$work/err"
status=$?
check "quern-check.exe: status $status" '[ $status -eq 0 ]'
tail -n 1 "$work/out"

# ---- Logits: the same bits at every level that both have ----

levels=$("$native/quern-check" --list-levels | sed -n 's/ *present$//p')
for ids in tests/golden/*.ids; do
    model=${ids%.ids}.gguf
    [ "$ids" != tests/golden/demo.ids ] || model=models/quern-demo.gguf
    [ -f "$model" ] || continue
    # quick: the best level alone, but for a few models.
    chosen=$levels
    [ -z "$every" ] || [[ $model == *q1_0.gguf ]] || chosen=$(tail -n 1 <<<"$levels")
    for level in $chosen; do
        QN_CPU=$level "$native/quern" logits --device cpu -t 2 "$model" --ids "$(paste -sd, "$ids")" -o "$work/native.f32" >"$work/out" 2>"$work/err"
        status=$?
        check "this system's logits of $model at $level" '[ $status -eq 0 ]'
        QN_CPU=$level windows logits --device cpu -t 2 "$model" --ids "$(paste -sd, "$ids")" -o "$work/windows.f32"
        check "logits of $model at $level" '[ $status -eq 0 ] && cmp -s "$work/native.f32" "$work/windows.f32"'
    done
done

echo "$checks checks so far, $failures failed"

# ---- Commands ----

demo=models/quern-demo.gguf
windows version
check "version" '[ $status -eq 0 ] && grep -q "^quern [0-9]" "$work/out"'
check "no carriage returns" '! grep -q $'"'\\r'"' "$work/out"'

arguments=(run "$demo" "Once upon a time" -n 24 --seed 1)
"$native/quern" "${arguments[@]}" --device cpu >"$work/native" 2>/dev/null
windows "${arguments[@]}"
check "run: the text of Linux" '[ $status -eq 0 ] && cmp -s "$work/native" "$work/out"'

# A path with characters beyond Latin, one of 300 characters, a drive letter and backslashes.
unicode=$work/größe-模型-😀
deep=$work/$(printf 'a%.0s' {1..100})/$(printf 'b%.0s' {1..100})/$(printf 'c%.0s' {1..100})
mkdir -p "$unicode" "$deep"
cp "$demo" "$unicode/модель.gguf"
cp "$demo" "$deep/m.gguf"
windows run "Z:${unicode//\//\\}\\модель.gguf" "Once upon a time" -n 24 --seed 1
check "run: a UTF-8 path with a drive letter" '[ $status -eq 0 ] && cmp -s "$work/native" "$work/out"'
windows run "$deep/m.gguf" "Once upon a time" -n 24 --seed 1
check "run: a path of 300 characters" '[ $status -eq 0 ] && cmp -s "$work/native" "$work/out"'
windows run "$work/missing.gguf" hi
check "run: a missing file" '[ $status -eq 1 ] && grep -q "No such file" "$work/err"'

# Sessions: written, and read again. A file that is open elsewhere is replaced, or, as under Wine 8, stays, and nothing is lost.
windows run "$demo" "Once upon a time" -n 8 --seed 1 --save "$unicode/s.session"
check "run --save" '[ $status -eq 0 ] && [ -s "$unicode/s.session" ]'
cp "$unicode/s.session" "$unicode/open.session"
coproc holder { timeout 60 wine "$exe/helper.exe" hold "$unicode/open.session" 2>/dev/null; }
read -r opened <&"${holder[0]}"
windows run "$demo" "Once upon a time" -n 5 --seed 1 --save "$unicode/open.session"
check "the file is open" '[ "${opened%?}" = open ]'
if [ $status -eq 0 ]; then
    check "run --save: a file that is open elsewhere" '! cmp -s "$unicode/s.session" "$unicode/open.session"'
else
    check "run --save: a file that is open elsewhere stays" 'cmp -s "$unicode/s.session" "$unicode/open.session" && [ $status -eq 1 ]'
    other=$(sed -n 's/.*the conversation is in \(.*\) instead.*/\1/p' "$work/err")
    check "run --save: the conversation is in another file" '[ -s "$other" ] && grep -q "open.session: cannot rename" "$work/err"'
fi
[ -z "${holder[1]:-}" ] || eval "exec ${holder[1]}>&-"
windows run "$demo" -n 8 --seed 1 --load "$unicode/s.session" --save "$unicode/s.session"
check "run --load and --save of one file" '[ $status -eq 0 ]'
check "no temporary files are left" '! compgen -G "$unicode/.*.part" >/dev/null'

# The file that is written is not the model, whatever its path.
windows quantize "$demo" "$work/q8.gguf" q8_0
check "quantize" '[ $status -eq 0 ]'
"$native/quern" quantize "$demo" "$work/q8-native.gguf" q8_0 >/dev/null 2>&1
check "quantize: the bytes of Linux" 'cmp -s "$work/q8.gguf" "$work/q8-native.gguf"'
windows logits "$work/q8.gguf" --ids 1,2,3 -o "$work/q8.gguf"
check "a model is not overwritten by logits" '[ $status -eq 1 ]'

# Streams: bytes in, bytes out, ends of lines of both systems.
printf 'one\r\ntwo\n\x1athree' >"$work/text"
"$native/quern" tokenize "$demo" -f "$work/text" >"$work/native" 2>/dev/null
windows tokenize "$demo" -f "$work/text"
check "tokenize: CRLF and Ctrl-Z are bytes" '[ $status -eq 0 ] && cmp -s "$work/native" "$work/out"'
timeout 60 wine "$exe/quern.exe" tokenize "$demo" -f - <"$work/text" >"$work/out" 2>"$work/err"
check "tokenize: of standard input" 'cmp -s "$work/native" "$work/out"'

"$native/quern" perplexity "$demo" -f tests/golden/demo.txt --device cpu 2>/dev/null | sed 's/[0-9.]* tokens.s//' >"$work/native"
windows perplexity "$demo" -f tests/golden/demo.txt
sed -i 's/[0-9.]* tokens.s//' "$work/out"
check "perplexity: the value of Linux" '[ $status -eq 0 ] && [ -s "$work/out" ] && cmp -s "$work/native" "$work/out"'

windows bench "$demo" -n 8 -p 16 -r 1
check "bench" '[ $status -eq 0 ]'
windows info "$demo"
check "info" '[ $status -eq 0 ]'

# Requests whose lines have both ends.
{
    printf '{"custom_id":"%s","method":"POST","url":"/v1/completions","body":{"prompt":"Once upon a time","max_tokens":%s,"temperature":0}}\r\n' a 4 b 9
    printf '{"custom_id":"größe","method":"POST","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"🙂"}],"max_tokens":9,"temperature":0}}\n'
} >"$work/batch.jsonl"
# answers FILE - without times and names.
answers() { sed 's/"created":[0-9]*//; s/"id":"[^"]*"//g; s/"request_id":"[^"]*"//g' "$1"; }
"$native/quern" batch -m "$demo" "$work/batch.jsonl" "$work/native.jsonl" --ordered --device cpu >/dev/null 2>&1
windows batch -m "$demo" "$work/batch.jsonl" "$unicode/windows.jsonl" --ordered --device cpu
check "batch" '[ $status -eq 0 ] && [ "$(grep -c "\"status_code\":200" "$unicode/windows.jsonl")" = 3 ]'
check "batch: the answers of Linux" '[ "$(answers "$work/native.jsonl")" = "$(answers "$unicode/windows.jsonl")" ]'

printf 'Hello\n' | timeout 60 wine "$exe/quern.exe" chat "$demo" -n 8 --seed 1 >"$work/out" 2>"$work/err"
status=$?
check "chat: a message from a pipe" '[ $status -eq 0 ] && [ -s "$work/out" ]'
windows convert tests/golden/checkpoints/none "$work/x.gguf" f16
check "convert: a missing folder" '[ $status -ne 0 ] && [ -s "$work/err" ]'

# ---- Chat on a console ----

if command -v python3 >/dev/null; then
    timeout 300 python3 tests/windows/console.py "$exe/quern.exe" "$exe/helper.exe" tests/golden/parrot.gguf "$demo" "$work" >"$work/out" 2>"$work/err"
    status=$?
    check "chat on a console: status $status" '[ $status -eq 0 ]'
fi

# ---- GPUs: without a driver each says what is missing; Vulkan by a driver that computes on the processor ----

windows devices
check "devices: NVIDIA's driver is not here" '[ $status -eq 0 ] && grep -q "^cuda: no NVIDIA driver: nvcuda.dll cannot be loaded" "$work/out"'
check "devices: Vulkan" 'grep -q "^vulkan: " "$work/out"'
windows logits tests/golden/qwen2.q1_0.gguf --ids 1,2,3 --device cuda -o "$work/windows.f32"
check "logits --device cuda" '[ $status -eq 1 ] && grep -q "no NVIDIA driver" "$work/err"'
windows kernels --clear
check "kernels --clear" '[ $status -eq 0 ] && grep -q "AppData.*quern/cache" "$work/out"'
if [ -n "${display:-}" ]; then
    export VK_DRIVER_FILES=$software VK_ICD_FILENAMES=$software QN_VULKAN_CPU=1
    arguments=(logits tests/golden/qwen2.q1_0.gguf --ids "1,2,3,4,5,6" --device vulkan)
    "$native/quern" "${arguments[@]}" -o "$work/native.f32" >"$work/out" 2>"$work/err"
    for _ in 1 2; do # compiled, then from the cache
        windows "${arguments[@]}" -o "$work/windows.f32"
        check "logits by Vulkan have the bits of Linux" '[ $status -eq 0 ] && cmp -s "$work/native.f32" "$work/windows.f32"'
    done
    windows kernels --clear
    check "kernels --clear: of Vulkan" '[ $status -eq 0 ] && ! grep -q "^0 files" "$work/out"'
    timeout 300 wine "$exe/quern-check.exe" --device vulkan --op rows --every 20 >"$work/out" 2>"$work/err"
    status=$?
    check "quern-check.exe --device vulkan: status $status" '[ $status -eq 0 ]'
    unset VK_DRIVER_FILES VK_ICD_FILENAMES QN_VULKAN_CPU
fi

# ---- The hub: into a cache without links, by TLS of Windows ----

if command -v python3 >/dev/null && command -v openssl >/dev/null; then
    mkdir "$work/hub"
    export TLS_CERT=$work/hub/cert.pem TLS_KEY=$work/hub/key.pem HF_HOME=$work/home
    openssl req -x509 -newkey rsa:2048 -nodes -keyout "$TLS_KEY" -out "$TLS_CERT" -days 1 -subj /CN=localhost \
        -addext "subjectAltName=DNS:localhost" >/dev/null 2>&1
    python3 tests/e2e/hub_server.py "$work/hub" &
    hub_server=$!
    for _ in {1..100}; do [ -s "$work/hub/ports" ] && break || sleep 0.1; done
    read -r hub _ tls <"$work/hub/ports"
    snapshot=$HF_HOME/hub/models--t--good-gguf/snapshots/0123456789abcdef0123456789abcdef01234567
    export HF_ENDPOINT=http://$hub
    windows pull -q t/good-gguf:Q1_0
    check "pull" '[ $status -eq 0 ] && [ "$(cat "$work/out")" = "$snapshot/m-Q1_0.gguf" ]'
    sum=$(sha256sum <"$snapshot/m-Q1_0.gguf" | cut -d " " -f 1)
    check "pull: the content" '[ "$sum" = ba11c17412b5136347ea20891fe3ce35c3e51d277da06b8ca555ff32e60911f2 ]'
    : >"$work/hub/log"
    windows pull -q t/good-gguf:Q1_0
    check "pull again: nothing is downloaded" '[ $status -eq 0 ] && ! grep -q resolve "$work/hub/log"'
    for i in 1 2; do
        timeout 60 wine "$exe/quern.exe" pull -q t/good-gguf:Q8_0 >"$work/pull.$i" 2>&1 &
        pulls+=($!)
    done
    wait "${pulls[@]}"
    check "two pulls at once" 'cmp -s "$work/pull.1" "$work/pull.2" && [ "$(grep -c "cdn GET.*m-Q8_0" "$work/hub/log")" = 1 ]'
    windows pull -q t/cut:Q1_0
    check "pull: a connection that breaks" '[ $status -eq 0 ]'
    windows run t/models:parrot-F16.gguf hi -n 2
    check "run: a model by its name" '[ $status -eq 0 ]'
    windows list
    check "list" '[ $status -eq 0 ] && grep -q "t/good-gguf:m-Q8_0.gguf$" "$work/out"'
    windows rm t/good-gguf
    check "rm" '[ $status -eq 0 ] && [ ! -e "$snapshot" ]'
    for name in aux.gguf sub/m-F16.gguf:x.gguf end./m.gguf; do
        windows pull -q "t/devices:$name"
        check "pull: $name" '[ $status -eq 1 ] && grep -q "Windows has no file of this name" "$work/err"'
    done
    export HF_ENDPOINT=https://localhost:${tls##*:}
    windows pull -q t/none:config.json
    check "pull: an unknown certificate" '[ $status -eq 1 ] && grep -qi "trust" "$work/err"'
    SSL_CERT_FILE=$TLS_CERT windows pull -q t/none:config.json
    check "pull: a certificate that is trusted" '[ $status -eq 0 ]'
    HF_ENDPOINT=https://127.0.0.1:${tls##*:} SSL_CERT_FILE=$TLS_CERT windows pull -q t/none:empty.txt
    check "pull: a certificate of another name" '[ $status -eq 1 ]'
    kill $hub_server
    unset HF_ENDPOINT HF_HOME
fi

# ---- The server: tests of this system, whose signals become Ctrl-C ----

mkdir "$work/bin" "$work/served"
cat >"$work/bin/quern" <<EOF
#!/usr/bin/env bash
wine "$exe/quern.exe" "\$@" &
program=\$!
trap 'kill -INT \$program 2>/dev/null' TERM INT
while :; do
    wait \$program
    status=\$?
    kill -0 \$program 2>/dev/null || exit \$status
done
EOF
chmod +x "$work/bin/quern"

# serves SCRIPT ARGUMENTS... - a script of tests/server/ with quern.exe.
serves() {
    QN_BIN=$work/bin QN_SANITIZE='' timeout 300 python3 "tests/server/$1.py" "${@:2}" >"$work/out" 2>"$work/err"
    status=$?
    check "$1: status $status" '[ $status -eq 0 ]'
}
if command -v python3 >/dev/null; then
    serves serve_events "$demo"
    serves serve_routes "$demo" tests/golden "$work/served"
    if [ -z "$every" ]; then
        serves serve_http "$demo"
        serves serve_fair "$demo"
        serves serve_load "$demo" --requests 100
    fi
fi
windows serve "$demo" --port 0 --tls-cert a --tls-key b
check "serve: TLS is refused" '[ $status -eq 1 ] && grep -q "has no TLS" "$work/err"'
windows serve "$demo" --host 192.0.2.1 --port 0 --allow-unauthenticated
check "serve: an address of another machine" '[ $status -eq 1 ] && grep -q -- "--host 192.0.2.1" "$work/err"'

echo "$checks checks, $failures failed"
[ $failures -eq 0 ]
