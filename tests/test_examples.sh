#!/usr/bin/env bash
# The programs of examples/, built against the public headers and the shared library alone, and run with the demo model. curl's talk to a
# quern serve; Python's use the package in the source tree with the library of this build. Without a GPU, CUDA's is built and not run.
set -u
: "${QN_SOURCE_DIR:=$(cd "$(dirname "$0")/.." && pwd)}" "${QN_BIN:=$QN_SOURCE_DIR/build}" "${CC:=cc}"
examples=$QN_SOURCE_DIR/examples
demo=$QN_SOURCE_DIR/models/quern-demo.gguf
work=$(mktemp -d)
server=
trap 'if [ -n "$server" ]; then kill "$server"; wait "$server"; fi 2>/dev/null; rm -rf "$work"' EXIT
export QN_DEVICE=cpu LD_LIBRARY_PATH=$QN_BIN
failures=0
fail() {
    failures=$((failures + 1))
    echo "FAILED: $*"
    head -c 2000 "$work/out" "$work/err" 2>/dev/null
}

# says PATTERN COMMAND... - the command must succeed and print a line that matches.
says() {
    local pattern=$1
    shift
    timeout 120 "$@" >"$work/out" 2>"$work/err" || { fail "$*: status $?"; return; }
    grep -q "$pattern" "$work/out" || fail "$*: expected '$pattern'"
}

# compile FILE OPTIONS... - a program of the same name in the work folder.
compile() {
    local file=$1 name
    name=$(basename "$file" .c)
    shift
    "$CC" -std=c11 -Wall -Wextra -Werror "$examples/$file" -o "$work/$name" -I "$QN_SOURCE_DIR/include" -L "$QN_BIN" -lquern -lm "$@" \
        >"$work/out" 2>"$work/err" || fail "$file does not compile"
}

for name in stream many schema matmul; do
    compile c/$name.c
done
says '[a-z]' "$work/stream" "$demo" 'Tell me a story about a fox.'
says '^One day, a fox.' "$work/many" "$demo" 'Once upon a time' 'One day, a fox' 'The cat'
[ "$(grep -c '^    [0-9]* + [0-9]* tokens$' "$work/out")" -eq 3 ] || fail 'many: not three answers'
says '^{"name": ".*", "age": [0-9]*, "colour": "[a-z]*"}$' "$work/schema" "$demo" 'Describe a fox.'
says '^64 x 256 weights in 2304 bytes, ' "$work/matmul"
! "$work/stream" "$work/none.gguf" x >"$work/out" 2>"$work/err" && grep -q '^stream: .*none.gguf: cannot open' "$work/err" ||
    fail 'stream: a model that is not there'

toolkit=
for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    [ -n "$toolkit" ] || [ ! -f "$folder/include/cuda_runtime.h" ] || toolkit=$folder
done
runtime=$(ls "$toolkit"/lib*/libcudart.so 2>/dev/null | head -n 1)
if [ -n "$runtime" ]; then
    compile cuda/rms_norm.c -isystem "$toolkit/include" "$runtime" "-Wl,-rpath,$(dirname "$runtime")"
    if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
        says '^mean square of a row: 1\.0000$' "$work/rms_norm"
    else
        echo 'cuda/rms_norm.c was built and not run: no GPU'
    fi
else
    echo 'cuda/rms_norm.c was not built: no CUDA runtime'
fi

if python3 -c 'import cffi, sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
    mkdir "$work/python"
    cp -r "$QN_SOURCE_DIR/python/src/pyquern" "$work/python"
    headers=()
    for header in status kernels cuda output quern scheduler grammar; do
        headers+=("$QN_SOURCE_DIR/include/quern/$header.h")
    done
    python3 "$QN_SOURCE_DIR/python/make_cdef.py" "$work/python/pyquern/_cdef.py" "${headers[@]}" || fail 'make_cdef.py'
    export PYTHONPATH=$work/python QN_PYQUERN_LIBRARY=$QN_BIN/libquern.so
    says '[a-z]' python3 "$examples/python/chat.py" "$demo" 'Tell me a story about a fox.'
    says '^    40 tokens, length$' python3 "$examples/python/batch.py" "$demo" 'Once upon a time' 'One day, a fox'
    says '"age": [0-9]*,$' python3 "$examples/python/schema.py" "$demo" 'Describe a fox.'
else
    echo "Python's were not run: no Python 3.10 with cffi"
fi

# field EXPRESSION - prints it, of the answer `a`.
field() { python3 -c "import json, sys; a = json.load(open(sys.argv[1])); print($1)" "$work/out"; }
# serve MODEL - sets QUERN_URL. Status 1 where this quern has no server.
serve() {
    [ -z "$server" ] || { kill "$server"; wait "$server"; server=; }
    "$QN_BIN/quern" serve -m "$1" --port 0 -t 1 >"$work/serve" 2>&1 &
    server=$!
    for ((i = 0; i < 600; i++)); do
        export QUERN_URL
        QUERN_URL=$(grep -o 'http://127\.0\.0\.1:[0-9]*' "$work/serve" | head -n 1)
        [ -z "$QUERN_URL" ] || ! curl -sf "$QUERN_URL/health" >/dev/null || return 0
        kill -0 "$server" 2>/dev/null || return 1
        sleep 0.1
    done
    return 1
}
if ! command -v curl >/dev/null || ! curl --help all 2>/dev/null | grep -q fail-with-body; then
    echo "curl's were not run: no curl 7.76"
elif ! serve "$demo"; then
    grep -q libmicrohttpd "$work/serve" || fail "serve: $(cat "$work/serve")"
else
    says '"content"' "$examples/curl/chat.sh" 'Tell me a story about a fox.'
    says '^data: \[DONE\]' "$examples/curl/stream.sh" 'Tell me a story about a fox.'
    says '"content"' "$examples/curl/schema.sh" 'Describe a fox.'
    [ "$(field 'sorted(json.loads(a["choices"][0]["message"]["content"]))')" = "['age', 'colour', 'name']" ] || fail 'schema.sh: the answer'
    serve "$QN_SOURCE_DIR/tests/golden/agent.gguf" || fail "serve: $(cat "$work/serve")"
    says '"tool_calls"' "$examples/curl/tools.sh" 'What is a quern?'
    [ "$(field 'a["choices"][0]["message"]["tool_calls"][0]["function"]["name"]')" = look_up ] || fail 'tools.sh: the call'
fi
exit $((failures > 0))
