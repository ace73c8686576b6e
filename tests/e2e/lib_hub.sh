# Shared by the tests of the hub: a server that plays it. Sourced after lib_cli.sh, not run.
command -v python3 >/dev/null || exit 77
unset HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_TOKEN_PATH HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_HUB_OFFLINE TRANSFORMERS_OFFLINE
unset HF_HUB_DISABLE_IMPLICIT_TOKEN HF_HUB_DOWNLOAD_TIMEOUT SSL_CERT_FILE
export HF_HOME=$work/home
commit=0123456789abcdef0123456789abcdef01234567
hash=ba11c17412b5136347ea20891fe3ce35c3e51d277da06b8ca555ff32e60911f2 # of m-Q1_0.gguf

# start_hub [BIG_FILE] - sets HF_ENDPOINT, hub, cdn and tls (HOST:PORT of each).
start_hub() {
    python3 "$QN_SOURCE_DIR/tests/e2e/hub_server.py" "$work" "$@" &
    server=$!
    trap 'kill $server; wait $server 2>/dev/null; rm -rf "$work"' EXIT
    for _ in {1..600}; do
        [ ! -e "$work/ports" ] || break
        sleep 0.1
    done
    read -r hub cdn tls <"$work/ports" || exit 1
    export HF_ENDPOINT=http://$hub
    quern pull t/none
    if grep -q 'built without libcurl' "$work/err"; then
        echo "this quern has no libcurl"
        exit 77
    fi
}

folder() { echo "$HF_HOME/hub/models--t--$1"; }
blob() { echo "$(folder "$1")/blobs/$hash"; }
link() { echo "$(folder "$1")/snapshots/$commit/m-Q1_0.gguf"; }

# is_whole REPO - the file is there under its final names, with its content, and nothing else is.
is_whole() {
    [ "$(sha256sum <"$(link "$1")" | cut -d ' ' -f 1)" = "$hash" ] || fail "$1: the file is not there, or not whole"
    [ "$(readlink "$(link "$1")")" = "../../blobs/$hash" ] || fail "$1: the link leads to $(readlink "$(link "$1")")"
    [ "$(ls "$(folder "$1")/blobs")" = "$hash" ] || fail "$1: blobs: $(ls "$(folder "$1")/blobs")"
    [ "$(cat "$(folder "$1")/refs/main")" = "$commit" ] || fail "$1: refs/main"
}

# is_not_there REPO [SIZE] - nothing is there under a final name; SIZE bytes of the incomplete file, or none.
is_not_there() {
    [ ! -e "$(link "$1")" ] && [ ! -L "$(link "$1")" ] && [ ! -e "$(blob "$1")" ] || fail "$1: a file under its final name"
    [ ! -e "$(folder "$1")/refs/main" ] || fail "$1: a reference"
    local size
    size=$(stat -c %s "$(blob "$1").incomplete" 2>/dev/null)
    [ "${size:-0}" -eq "${2:-0}" ] || fail "$1: ${size:-0} bytes are kept, expected ${2:-0}"
}

# pulls REPO - the download must succeed with the path on standard output and nothing on standard error.
pulls() {
    quern pull -q "t/$1"
    [ $status -eq 0 ] || fail "pull t/$1: status $status"
    [ "$(cat "$work/out")" = "$(link "$1")" ] || fail "pull t/$1: printed another path"
    [ ! -s "$work/err" ] || fail "pull -q t/$1: is not quiet"
    is_whole "$1"
}
