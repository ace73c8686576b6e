#!/usr/bin/env bash
# A cache that other users write to: their links, pipes, second names, and names that lie. quern lists, finds, pulls and removes without reading,
# writing or removing what they lead to. (A link of a snapshot to a blob is the cache's own: hub_cache.sh.)
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_hub.sh"
start_hub
repository=$(folder good-gguf)
snapshot=$repository/snapshots/$commit

# A folder of somebody who has other things in it than models.
new_victim() {
    rm -rf "$work/victim"
    mkdir -p "$work/victim/sub/deep" "$work/victim/$commit" "$work/victim/blobs"
    echo mine | tee "$work/victim/thesis.txt" "$work/victim/sub/deep/x.txt" "$work/victim/$commit/m-Q1_0.gguf" "$work/victim/blobs/x" >/dev/null
    echo $commit >"$work/victim/main"
    (cd "$work/victim" && find . | sort && find . -type f -exec sha256sum {} +) >"$work/before"
}
is_untouched() {
    (cd "$work/victim" && find . | sort && find . -type f -exec sha256sum {} +) | diff "$work/before" - >"$work/diff" || fail "$1: $(cat "$work/diff")"
}
# new_repository - one with a snapshot of one model.
new_repository() {
    rm -rf "$repository"
    quern pull -q t/good-gguf:Q1_0
    [ $status -eq 0 ] || fail "pull: status $status"
}

# ---- Removing ----
for link in trees .no_exist trees/x .no_exist/x refs/pr snapshots/x; do
    new_victim
    new_repository
    mkdir -p "$(dirname "$repository/$link")"
    ln -s "$work/victim" "$repository/$link"
    quern rm t/good-gguf
    [ $status -eq 0 ] || fail "rm beside a link $link: status $status"
    is_untouched "rm beside a link $link"
    [ "$link" = snapshots/x ] || [ "$link" = refs/pr ] || [ ! -L "$repository/$link" ] || fail "rm: the link $link stays"
done
for link in refs blobs snapshots "snapshots/$commit"; do
    new_victim
    new_repository
    rm -rf "${repository:?}/$link"
    ln -s "$work/victim" "$repository/$link"
    quern rm t/good-gguf
    quern list
    is_untouched "rm and list of a repository whose $link is a link"
done
new_victim
rm -rf "$repository"
mkdir "$work/victim/snapshots"
mv "$work/victim/$commit" "$work/victim/snapshots/"
(cd "$work/victim" && find . | sort && find . -type f -exec sha256sum {} +) >"$work/before"
ln -s "$work/victim" "$repository"
refuses 1 'no models of it in' rm t/good-gguf
is_untouched "rm of a repository that is a link"
rm "$repository"

# ---- Writing ----
# refuses_to_write WHAT
refuses_to_write() {
    refuses 1 'symbolic link' pull -q t/good-gguf:sub/dir/x-Q2_0.gguf
    is_untouched "pull, $1"
}
for link in blobs snapshots "snapshots/$commit" "snapshots/$commit/sub" "snapshots/$commit/sub/dir" refs; do
    new_victim
    rm -rf "$repository"
    mkdir -p "$(dirname "$repository/$link")"
    ln -s "$work/victim" "$repository/$link"
    refuses_to_write "where $link is a link"
done
rm -rf "$repository"
ln -s "$work/victim" "$repository"
new_victim
refuses_to_write "where the repository is a link"
rm -rf "$repository" "$HF_HOME/hub/.locks"
ln -s "$work/victim" "$HF_HOME/hub/.locks"
refuses_to_write "where .locks is a link"
rm "$HF_HOME/hub/.locks"

new_repository
rm "$repository/refs/main" "$HF_HOME/hub/CACHEDIR.TAG"
ln -s "$work/victim/thesis.txt" "$repository/refs/main"
ln -s "$work/victim/tag" "$HF_HOME/hub/CACHEDIR.TAG"
pulls good-gguf
[ ! -L "$repository/refs/main" ] || fail "pull: refs/main stays a link"
is_untouched "pull where refs/main and CACHEDIR.TAG are links"
rm "$HF_HOME/hub/CACHEDIR.TAG"

# A download that would go on in a file with another name.
new_repository
rm "$(blob good-gguf)"
ln "$work/victim/thesis.txt" "$(blob good-gguf).incomplete"
refuses 1 'with a single name' pull -q t/good-gguf:Q1_0
is_untouched "pull to a file with two names"
rm "$(blob good-gguf).incomplete"

# ---- Reading ----
new_repository
rm "$repository/refs/main"
mkfifo "$repository/refs/main" "$HF_HOME/token"
for command in "list" "info t/good-gguf:Q1_0" "rm t/good-gguf:Q1_0"; do
    HF_HUB_OFFLINE=1 HF_HUB_DISABLE_IMPLICIT_TOKEN=1 timeout 20 "$QN_BIN/quern" $command >"$work/out" 2>"$work/err"
    [ $? -ne 124 ] || fail "$command: waits for the writer of a pipe"
done
HF_HUB_OFFLINE=1 timeout 20 "$QN_BIN/quern" list >"$work/out" 2>"$work/err"
[ $? -ne 124 ] || fail "list: waits for a token"
rm "$HF_HOME/token"

# ---- A name that a terminal shows as another one ----
turned=$(folder turned)
mkdir -p "$turned/snapshots/$commit" "$turned/refs"
printf %s $commit >"$turned/refs/main"
cp "$parrot" "$turned/snapshots/$commit/x"$'\xe2\x80\xae'"Q1_0.gguf"
HF_HUB_OFFLINE=1 quern pull -q t/turned
[ "$(cat "$work/out")" = "$(ls "$turned/snapshots/$commit/"*)" ] || fail "pull: another path than that of the file"
if command -v script >/dev/null; then
    HF_HUB_OFFLINE=1 timeout 60 script -qec "$QN_BIN/quern pull -q t/turned" /dev/null >"$work/out" 2>"$work/err" </dev/null
    grep -qF '\xe2\x80\xaeQ1_0' "$work/out" || fail "pull on a terminal: a name that reorders text"
fi
rm -r "$turned"

# ---- The cache itself may be a link of the user's ----
mv "$HF_HOME/hub" "$work/elsewhere"
rm -rf "$work/elsewhere/models--t--good-gguf"
ln -s "$work/elsewhere" "$HF_HOME/hub"
pulls good-gguf
quern rm t/good-gguf:Q1_0
[ $status -eq 0 ] && [ ! -e "$(link good-gguf)" ] || fail "rm in a cache that is a link"
finish
