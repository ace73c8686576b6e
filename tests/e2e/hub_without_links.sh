#!/usr/bin/env bash
# A cache on a file system without symbolic links: files are in the snapshots themselves, as huggingface_hub has them there; they are found,
# pulled once, listed and removed.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_hub.sh"
without=$(dirname "$0")/without_calls.py
python3 "$without" links true || exit 77
python3 "$without" links ln -s a "$work/a" 2>/dev/null && fail "the system still makes links"
start_hub
snapshot=$(folder good-gguf)/snapshots/$commit

# without_links ARGUMENTS... - as quern in lib_cli.sh.
without_links() {
    QN_DEVICE=cpu timeout 60 python3 "$without" links "$QN_BIN/quern" "$@" >"$work/out" 2>"$work/err"
    status=$?
}
for model in Q1_0 parts/s-Q4_K_M-00002-of-00003.gguf config.json; do
    : >"$work/log"
    without_links pull -q t/good-gguf:$model
    { [ $status -eq 0 ] && [ -f "$(cat "$work/out")" ] && [ ! -L "$(cat "$work/out")" ]; } || fail "pull :$model: status $status"
    grep -q resolve "$work/log" || fail "pull :$model: nothing was downloaded at first"
    : >"$work/log"
    without_links pull -q t/good-gguf:$model
    [ $status -eq 0 ] || fail "a second pull of :$model: status $status"
    ! grep -q resolve "$work/log" || fail "a second pull of :$model downloads: $(cat "$work/log")"
done
[ "$(sha256sum <"$snapshot/m-Q1_0.gguf" | cut -d ' ' -f 1)" = "$hash" ] || fail "the content"
[ -z "$(ls "$(folder good-gguf)/blobs")" ] || fail "blobs are left: $(ls "$(folder good-gguf)/blobs")"
[ "$(find "$snapshot" -type f | wc -l)" -eq 5 ] || fail "files of the snapshot: $(find "$snapshot")"
: >"$work/log"
without_links info t/good-gguf:m-Q1_0.gguf
[ ! -s "$work/log" ] || fail "-m asks the hub for what is there: $(cat "$work/log")"
without_links list
grep -q 't/good-gguf:m-Q1_0.gguf$' "$work/out" || fail "list"

# A file that is not whole is downloaded again.
head -c 1000 "$snapshot/m-Q1_0.gguf" >"$work/part" && cp "$work/part" "$snapshot/m-Q1_0.gguf"
without_links pull -q t/good-gguf:Q1_0
{ [ $status -eq 0 ] && [ "$(sha256sum <"$snapshot/m-Q1_0.gguf" | cut -d ' ' -f 1)" = "$hash" ]; } || fail "a file of another size"

# huggingface_hub, where Python has it, finds the files and downloads nothing; and quern finds its files.
python=${QN_HF_PYTHON:-python3}
if "$python" -c 'import huggingface_hub' 2>/dev/null; then
    export HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_PROGRESS_BARS=1
    cat >"$work/get.py" <<'PY'
import sys, huggingface_hub
print(huggingface_hub.hf_hub_download("t/" + sys.argv[1], sys.argv[2], local_files_only=len(sys.argv) > 3))
PY
    [ "$(python3 "$without" links "$python" "$work/get.py" good-gguf m-Q1_0.gguf offline 2>/dev/null)" = "$snapshot/m-Q1_0.gguf" ] ||
        fail "huggingface_hub does not find the file"
    python3 "$without" links "$python" "$work/get.py" good-gguf m-F16.gguf >/dev/null 2>&1 || fail "huggingface_hub does not download"
    : >"$work/log"
    without_links pull -q t/good-gguf:F16
    { [ $status -eq 0 ] && ! grep -q resolve "$work/log"; } || fail "quern does not find the file of huggingface_hub"
fi
without_links rm t/good-gguf
[ $status -eq 0 ] || fail "rm: status $status"
[ -z "$(find "$(folder good-gguf)" -name '*.gguf' 2>/dev/null)" ] || fail "rm: files stay"

# Another error of the link is one.
quern pull -q t/good-gguf:Q1_0
[ -L "$snapshot/m-Q1_0.gguf" ] || fail "a file system with links has no link"
finish
