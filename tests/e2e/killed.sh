#!/usr/bin/env bash
# kill -9 while a model is written: nothing is left of it, on file systems with files without names and on others, and what stood there stays.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
without=$(dirname "$0")/without_calls.py
model=$QN_SOURCE_DIR/models/quern-demo.gguf

# kill_writer FOLDER [PROGRAM...] - quantizes to FOLDER/out.gguf and kills it while it writes: when it has the file open. The target may be done already.
kill_writer() {
    local folder=$1 writer
    shift
    echo kept >"$folder/note"
    QN_DEVICE=cpu exec_in_background "$@" "$QN_BIN/quern" quantize "$model" "$folder/out.gguf" f16 -t 1
    for _ in {1..2000}; do
        ! find "/proc/$writer/fd" -lname "$folder/*" 2>/dev/null | grep -qv "$model" || break
        kill -0 "$writer" 2>/dev/null || break
    done
    kill -9 "$writer" 2>/dev/null
    wait "$writer" 2>/dev/null
}
exec_in_background() {
    "$@" >/dev/null 2>&1 &
    writer=$!
}
parts() { find "$1" -name '.*.part' | wc -l; }

mkdir "$work/unnamed" "$work/named"
for i in 1 2 3; do
    kill_writer "$work/unnamed"
    rm -f "$work/unnamed/out.gguf"
done
# Without O_TMPFILE here (an old overlay file system) it is as below.
quern quantize "$parrot" "$work/unnamed/other.gguf" q8_0
[ "$(parts "$work/unnamed")" -eq 0 ] || fail "parts are left: $(ls -A "$work/unnamed")"

python3 "$without" tmpfile true
if [ $? -ne 77 ]; then
    for i in 1 2 3; do
        kill_writer "$work/named" python3 "$without" tmpfile
        [ "$(parts "$work/named")" -le 1 ] || fail "parts of earlier processes are left: $(ls -A "$work/named")"
        rm -f "$work/named/out.gguf"
    done
    QN_DEVICE=cpu timeout 60 python3 "$without" tmpfile "$QN_BIN/quern" quantize "$parrot" "$work/named/other.gguf" q8_0 >/dev/null 2>&1 ||
        fail "quantize without O_TMPFILE"
    [ "$(parts "$work/named")" -eq 0 ] || fail "parts are left without O_TMPFILE: $(ls -A "$work/named")"
    [ -s "$work/named/other.gguf" ] || fail "no file without O_TMPFILE"
fi
[ "$(cat "$work/named/note")" = kept ] || fail "another file was removed"
finish
