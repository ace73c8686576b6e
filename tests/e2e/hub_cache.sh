#!/usr/bin/env bash
# What is in the hub's cache: names after -m, the choice of a file, offline use, quern list and quern rm, and huggingface_hub (where Python has
# it) over the same cache.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_hub.sh"
start_hub

# ---- Names after -m ----
quern run -m t/models:F16 -p xyz -n 5 --temp 0
[ $status -eq 0 ] || fail "run -m t/models:F16: status $status"
cp "$work/out" "$work/by-name"
quern run -m "$parrot" -p xyz -n 5 --temp 0 -q
cmp -s "$work/out" "$work/by-name" || fail "a model by its name prints another text"
: >"$work/log"
quern run -hf t/models:f16 -p xyz -n 5 --temp 0 -q
cmp -s "$work/out" "$work/by-name" || fail "-hf"
quern run t/models:parrot-F16.gguf xyz -n 5 --temp 0 -q
cmp -s "$work/out" "$work/by-name" || fail "a name as the first operand"
[ ! -s "$work/log" ] || fail "what is in the cache is requested again: $(cat "$work/log")"
for command in "info t/models:F16" "info -m t/models:F16 --plan" "tokenize -m t/models:F16 x" "logits -m t/models:Q1_0 --ids 1 -o $work/l" \
    "quantize t/models:F16 $work/q.gguf q8_0" "perplexity -m t/models:F16 -f $QN_SOURCE_DIR/README.md -c 64 --limit-bytes 2000"; do
    quern $command
    [ $status -eq 0 ] || fail "quern $command: status $status"
done
refuses 1 "no model of type Q9_9" info t/models:Q9_9
refuses 1 'No such file' info t/models.gguf # a path, as it ends in .gguf and has no ':'
quern run -m "$parrot" and/or -n 1 # a prompt
[ $status -eq 0 ] || fail "a prompt with a slash: status $status"
(cd "$work" && mkdir -p t && cp "$parrot" t/file && quern info -m t/file && [ $status -eq 0 ]) || fail "a file whose path looks like a name"
quern pull old/models:F16
[ $status -eq 0 ] || fail "a repository that was renamed: status $status"
quern rm old/models

# ---- Addresses as a browser shows them, and ollama's names ----
for name in hf.co/t/models:F16 https://huggingface.co/t/models/blob/main/parrot-F16.gguf huggingface.co/t/models:f16 \
    'https://huggingface.co/t/models/resolve/main/parrot-F16.gguf?download=true'; do
    : >"$work/log"
    quern run "$name" xyz -n 5 --temp 0 -q
    cmp -s "$work/out" "$work/by-name" || fail "run $name: $(cat "$work/err")"
    [ ! -s "$work/log" ] || fail "run $name: it is in the cache"
done
quern pull -q https://hf.co/t/models
grep -q qwen3-Q1_0.gguf "$work/out" || fail "the address of a repository: $(cat "$work/out" "$work/err")"
refuses 2 "expected the address of a repository, or of a file in it" pull https://huggingface.co/t/models/discussions
refuses 1 "expected the address of a repository, or of a file in it" info https://huggingface.co/datasets/t/models
refuses 2 "is a folder's" pull https://huggingface.co/t/models/tree/main/sub

# ---- Revisions ----
revisions=$(folder revisions)
next=fedcba9876543210fedcba9876543210fedcba98
quern pull -q t/revisions:Q1_0
quern pull -q t/revisions@v1.0:Q1_0
[ "$(cat "$work/out")" = "$revisions/snapshots/$next/qwen3-Q1_0.gguf" ] || fail "a tag: $(cat "$work/out" "$work/err")"
[ "$(cat "$revisions/refs/main" "$revisions/refs/v1.0")" = "$commit$next" ] || fail "a tag: refs"
quern pull -q t/revisions@refs/pr/1:F16
[ "$(cat "$revisions/refs/refs/pr/1")" = $next ] || fail "a pull request: refs"
grep -q '^hub GET /api/models/t/revisions/revision/refs/pr/1' "$work/log" || fail "a pull request: $(cat "$work/log")"
quern pull -q t/revisions@$next:F16
[ ! -e "$revisions/refs/$next" ] || fail "a commit: a reference"
: >"$work/log"
for name in t/revisions@v1.0:F16 t/revisions@$next:F16 https://huggingface.co/t/revisions/blob/v1.0/parrot-F16.gguf \
    https://huggingface.co/t/revisions/blob/refs%2Fpr%2F1/parrot-F16.gguf https://hf.co/t/revisions/blob/refs/pr/1/parrot-F16.gguf; do
    quern run $name xyz -n 5 --temp 0 -q
    cmp -s "$work/out" "$work/by-name" || fail "run $name: $(cat "$work/err")"
done
[ ! -s "$work/log" ] || fail "revisions of the cache are requested again: $(cat "$work/log")"
refuses 1 "404.*Invalid rev id: none" pull -q t/revisions@none:F16
HF_HUB_OFFLINE=1 refuses 1 "t/revisions@none:F16: not in" run t/revisions@none:F16 x
HF_HUB_OFFLINE=1 refuses 1 "t/revisions@${commit/0/1}: not in" info t/revisions@${commit/0/1}
for name in t/models@ t/models@-x t/models@../x t/models@a//b 't/models@a b' t/models@a@b; do
    refuses 2 "a revision is a branch" pull "$name"
done
quern list
grep -qE ' t/revisions:qwen3-Q1_0.gguf$' "$work/out" || fail "list: no branch main"
grep -qE ' t/revisions@(v1.0|refs/pr/1):qwen3-Q1_0.gguf$' "$work/out" || fail "list: no tag: $(cat "$work/out")"
quern rm t/revisions@v1.0:Q1_0
[ -e "$revisions/snapshots/$commit/qwen3-Q1_0.gguf" ] && [ ! -e "$revisions/snapshots/$next/qwen3-Q1_0.gguf" ] ||
    fail "rm of a tag: $(find "$revisions")"
refuses 1 "t/revisions@none: no models of it" rm t/revisions@none
quern rm t/revisions
[ ! -e "$revisions" ] || fail "rm of all revisions: $(find "$revisions")"

# ---- Split models, files, the choice ----
quern pull -q t/good-gguf:parts/s-Q4_K_M-00002-of-00003.gguf
[ "$(ls -L "$(folder good-gguf)/snapshots/$commit/parts" | wc -l)" -eq 3 ] || fail "a split model: $(ls "$(folder good-gguf)"/snapshots/*/parts)"
grep -q 'parts/s-Q4_K_M-00001-of-00003.gguf$' "$work/out" || fail "a split model: path $(cat "$work/out")"
[ "$(readlink "$(folder good-gguf)/snapshots/$commit/parts/s-Q4_K_M-00001-of-00003.gguf" | cut -d / -f 1-5)" = ../../../blobs/"$(
    sha256sum <"$(folder good-gguf)/snapshots/$commit/parts/s-Q4_K_M-00001-of-00003.gguf" | cut -d ' ' -f 1)" ] || fail "a link in a folder"
quern pull -q t/good-gguf:q4_k
[ $status -eq 0 ] || fail "a type up to '_': status $status"
for file in config.json empty.txt x-Q2_0.gguf sub/dir/x-Q2_0.gguf; do
    quern pull -q t/good-gguf:$file
    [ $status -eq 0 ] || fail "pull :$file: status $status"
done
[ "$(cat "$(folder good-gguf)/snapshots/$commit/config.json")" = '{"a": 1}' ] || fail "a file that is no LFS file"
quern pull t/good-gguf
grep -q 'note: m-Q1_0.gguf, .*1-bit and ternary files.*the largest that fits in four fifths' "$work/err" || fail "the choice: not explained"
grep -q 'm-Q1_0.gguf$' "$work/out" || fail "the choice"

# ---- list and rm ----
quern list
grep -qE '^3.0 MiB +Q1_0 +20[0-9-]{8} [0-9:]{5} +t/good-gguf:m-Q1_0.gguf$' "$work/out" || fail "list: no m-Q1_0.gguf"
grep -qE '^234.4 KiB +Q4_K_M .* t/good-gguf:parts/s-Q4_K_M-00001-of-00003.gguf \(3 files\)$' "$work/out" || fail "list: no split model"
[ "$(wc -l <"$work/out")" -eq 6 ] || fail "list: $(wc -l <"$work/out") lines"
touch -a -d 2001-02-03 "$(link good-gguf)"
quern list
grep -q '2001-02-03.*m-Q1_0' "$work/out" || fail "list: the last use"
quern info t/good-gguf:Q1_0
quern list
! grep -q '2001' "$work/out" || fail "list: -m is no use"
mkdir -p "$(folder cut)/blobs"
head -c 1000 /dev/zero >"$(blob cut).incomplete"
quern list
grep -qE '^1000 B +- .* t/cut \(1 incomplete download\)$' "$work/out" || fail "list: an incomplete download"
quern rm t/cut
[ $status -eq 0 ] && [ ! -e "$(folder cut)" ] || fail "rm of an incomplete download"
quern rm t/good-gguf:Q4_K_M
[ "$(cat "$work/out")" = '3 files removed, 234.4 KiB' ] || fail "rm of a split model: $(cat "$work/out")"
[ ! -e "$(folder good-gguf)/snapshots/$commit/parts" ] || fail "rm: the folder of a split model stays"
refuses 1 'no model of type Q4_K_M' rm t/good-gguf:Q4_K_M
refuses 1 'no models of it in' rm t/never
refuses 2 'OWNER/REPO' rm nothing
quern pull -q t/good-gguf:Q8_0
(
    exec 9>"$HF_HOME/hub/.locks/models--t--good-gguf/$hash.lock"
    flock 9
    failures=0
    refuses 1 'another process' rm t/good-gguf:m-Q1_0.gguf
    [ $failures -eq 0 ] && [ -e "$(link good-gguf)" ]
) || fail "rm beside a download"
quern pull -q t/good-gguf:Q1_0
quern rm t/good-gguf
[ "$(ls "$(folder good-gguf)/snapshots/$commit" | tr '\n' ' ')" = 'config.json empty.txt ' ] || fail "rm of a repository: what stays: $(ls -R "$(folder good-gguf)")"
[ "$(ls "$(folder good-gguf)/blobs" | wc -l)" -eq 2 ] || fail "rm of a repository: blobs"

# ---- A repository that moves on ----
quern pull -q t/moves:Q1_0
touch "$work/moved"
: >"$work/log"
quern pull -q t/moves:Q1_0
! grep -q '^cdn' "$work/log" || fail "what has not changed is downloaded again"
[ "$(ls "$(folder moves)/snapshots" | wc -l)" -eq 2 ] && [ "$(ls "$(folder moves)/blobs" | wc -l)" -eq 1 ] || fail "a new commit"
[ "$(cat "$(folder moves)/refs/main")" = fedcba9876543210fedcba9876543210fedcba98 ] || fail "a new commit: refs/main"
quern list
[ "$(grep -c t/moves "$work/out")" -eq 1 ] || fail "list: a file of two commits"
rm "$work/moved"
quern pull -q t/moves:F16
touch "$work/moved"
quern pull -q t/moves:Q1_0
HF_HUB_OFFLINE=1 quern pull t/moves:F16
[ "$(cat "$work/out")" = "$(folder moves)/snapshots/$commit/m-F16.gguf" ] || fail "offline, a file that branch main lacks: $(cat "$work/err")"
grep -q "using commit $commit" "$work/err" || fail "offline, a file that branch main lacks: not said"
HF_HUB_OFFLINE=1 quern pull -q t/moves:Q1_0
grep -q fedcba9876543210fedcba9876543210fedcba98 "$work/out" || fail "offline: not of branch main"
quern rm t/moves:m-F16.gguf
quern rm t/moves:m-Q1_0.gguf
[ ! -e "$(folder moves)" ] || fail "rm: a file of two commits: $(find "$(folder moves)")"

# ---- huggingface_hub: each finds the other's files ----
python=${QN_HF_PYTHON:-python3}
if "$python" -c 'import huggingface_hub' 2>/dev/null; then
    export HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_PROGRESS_BARS=1
    download() { "$python" -c 'import huggingface_hub, sys
print(huggingface_hub.hf_hub_download(*sys.argv[1:]))' "$@" 2>"$work/err"; }
    quern pull -q t/good-gguf:Q1_0
    quern pull -q t/good-gguf:sub/dir/x-Q2_0.gguf
    : >"$work/log"
    [ "$(HF_HUB_OFFLINE=1 download t/good-gguf m-Q1_0.gguf)" = "$(link good-gguf)" ] || fail "huggingface_hub offline does not find what quern pulled"
    [ "$(download t/good-gguf m-Q1_0.gguf)" = "$(link good-gguf)" ] || fail "huggingface_hub does not find what quern pulled"
    HF_HUB_OFFLINE=1 download t/good-gguf sub/dir/x-Q2_0.gguf >/dev/null || fail "huggingface_hub: a file in a folder"
    ! grep -q '^cdn' "$work/log" || fail "huggingface_hub downloads again what quern pulled"
    download t/good-gguf m-F16.gguf >/dev/null || fail "huggingface_hub does not download"
    : >"$work/log"
    HF_HUB_OFFLINE=1 quern pull t/good-gguf:F16
    [ $status -eq 0 ] || fail "quern does not find what huggingface_hub downloaded"
    quern pull t/good-gguf:F16
    [ $status -eq 0 ] && ! grep -q '^cdn' "$work/log" || fail "quern downloads again what huggingface_hub has"
    cat >"$work/check.py" <<'P'
import huggingface_hub, sys
cache = huggingface_hub.scan_cache_dir()
assert not cache.warnings, cache.warnings
files = {file.file_name for repo in cache.repos if repo.repo_id == "t/good-gguf" for revision in repo.revisions for file in revision.files}
assert files == set(sys.argv[1:]), files
P
    "$python" "$work/check.py" m-Q1_0.gguf x-Q2_0.gguf m-F16.gguf config.json empty.txt >"$work/out" 2>&1 || fail "huggingface_hub finds the cache damaged"
    # Whole repositories, and what huggingface_hub notes about one: lists of files, files that are not there, other references.
    cat >"$work/snapshot.py" <<'P'
import huggingface_hub, sys
try:
    huggingface_hub.hf_hub_download("t/moves", "absent.txt")
except huggingface_hub.utils.EntryNotFoundError:
    pass
huggingface_hub.snapshot_download("t/moves", revision=sys.argv[1], allow_patterns=sys.argv[2:])
huggingface_hub.snapshot_download("t/moves", revision=sys.argv[1], allow_patterns=sys.argv[2:], local_files_only=True)
P
    rm -f "$work/moved"
    quern pull -q t/moves:Q1_0
    quern pull -q t/moves:Q4_K_M
    : >"$work/log"
    "$python" "$work/snapshot.py" main 'm-Q1_0.gguf' 'parts/*' >"$work/out" 2>&1 || fail "snapshot_download: $(cat "$work/out")"
    ! grep -q '^cdn' "$work/log" || fail "snapshot_download downloads again what quern pulled"
    "$python" "$work/snapshot.py" refs/pr/1 '*.gguf' >"$work/out" 2>&1 || fail "snapshot_download: $(cat "$work/out")"
    : >"$work/log"
    for file in Q8_0 F16 x-Q2_0.gguf; do
        quern pull -q t/moves:$file
        [ $status -eq 0 ] || fail "quern does not find t/moves:$file of snapshot_download"
    done
    ! grep -q '^cdn' "$work/log" || fail "quern downloads again what snapshot_download has"
    quern rm t/moves
    [ ! -e "$(folder moves)" ] || fail "rm: what huggingface_hub notes about a repository stays: $(find "$(folder moves)")"
    "$python" "$work/check.py" m-Q1_0.gguf x-Q2_0.gguf m-F16.gguf config.json empty.txt >"$work/out" 2>&1 || fail "quern rm damages the cache"
    # Each waits for the other's lock.
    rm -rf "$(folder cut)"
    "$python" - "$HF_HOME/hub/.locks/models--t--cut/$hash.lock" "$work/held" <<'P' &
import os, sys, time
from huggingface_hub.utils import WeakFileLock
os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)
with WeakFileLock(sys.argv[1]):
    open(sys.argv[2], "w").close()
    time.sleep(3)
P
    holder=$!
    while [ ! -e "$work/held" ] && kill -0 $holder 2>/dev/null; do sleep 0.1; done
    timeout --foreground -s INT 1 "$QN_BIN/quern" pull t/cut >"$work/out" 2>"$work/err"
    grep -q 'another process downloads it' "$work/err" && [ ! -e "$(folder cut)/blobs/$hash.incomplete" ] || fail "quern does not wait for a lock of huggingface_hub"
    wait $holder
    quern rm t/good-gguf
    "$python" "$work/check.py" config.json empty.txt >"$work/out" 2>&1 || fail "after quern rm, huggingface_hub finds the cache damaged"
fi

# ---- Offline ----
kill $server
trap 'rm -rf "$work"' EXIT
wait $server 2>/dev/null
HF_HUB_OFFLINE=1 quern run -m t/models:F16 -p xyz -n 5 --temp 0 -q
cmp -s "$work/out" "$work/by-name" || fail "offline: $(cat "$work/err")"
HF_HUB_OFFLINE=yes quern pull t/models
grep -q "$commit/parrot-F16.gguf\|$commit/qwen3-Q1_0.gguf" "$work/out" || fail "offline: pull"
TRANSFORMERS_OFFLINE=1 refuses 1 'HF_HUB_OFFLINE forbids' pull t/models:Q8_0
quern run -m t/models:F16 -p xyz -n 5 --temp 0 -q
cmp -s "$work/out" "$work/by-name" || fail "without a server: $(cat "$work/err")"
mkdir -p "$work/xdg" "$work/user/.cache"
ln -s "$HF_HOME" "$work/xdg/huggingface"
ln -s "$HF_HOME" "$work/user/.cache/huggingface"
for way in HF_HUB_CACHE="$HF_HOME/hub" HUGGINGFACE_HUB_CACHE='$HF_HOME/hub' XDG_CACHE_HOME="$work/xdg" HOME="$work/user"; do
    env $(case $way in X* | HOME*) echo -u HF_HOME -u XDG_CACHE_HOME ;; esac) HF_HUB_OFFLINE=1 "$way" "$QN_BIN/quern" info t/models:F16 >"$work/out" 2>"$work/err" ||
        fail "the cache by $way: $(cat "$work/err")"
done
finish
