#!/usr/bin/env bash
# quern graft: a block from a GGUF file and from a checkpoint, what info says of the result, logits that stay, and every refusal in one line.
. "$(dirname "$0")/lib_cli.sh"
checkpoint=$golden/checkpoints/qwen35
command -v python3 >/dev/null || exit 77

quern convert "$checkpoint" "$work/full.gguf"
# The same model without its block, as ternary files are published.
cp -r "$checkpoint" "$work/bare"
sed -i 's/"mtp_num_hidden_layers": 1/"mtp_num_hidden_layers": 0/' "$work/bare/config.json"
python3 - "$work/bare/model.safetensors" <<'PY'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
n, = struct.unpack("<Q", data[:8])
header, at, kept, out = json.loads(data[8:8 + n]), 0, {}, b""
for name, t in header.items():
    if name != "__metadata__" and not name.startswith("mtp."):
        begin, end = t["data_offsets"]
        kept[name] = dict(t, data_offsets=[at, at + end - begin])
        out += data[8 + n + begin:8 + n + end]
        at += end - begin
text = json.dumps(kept).encode()
open(sys.argv[1], "wb").write(struct.pack("<Q", len(text)) + text + out)
PY
quern convert "$work/bare" "$work/model.gguf"
[ $status -eq 0 ] || fail "convert without the block: $(cat "$work/err")"

logits() {
    quern logits -m "$1" --ids 1,2,3,4,5,6,7,8 -o "$2"
    [ $status -eq 0 ] || fail "logits of $1: $(cat "$work/err")"
}
logits "$work/model.gguf" "$work/before"
for head in "$work/full.gguf" "$checkpoint" "$checkpoint/model.safetensors"; do
    quern graft "$work/model.gguf" "$head" "$work/joined.gguf" -t 2
    [ $status -eq 0 ] || fail "graft of $head: $(cat "$work/err")"
    grep -q "^$work/joined.gguf, " "$work/out" || fail "graft of $head: printed $(cat "$work/out")"
    grep -q '^quern: note: joined the MTP block as blk.4: 15 tensors, ' "$work/err" || fail "graft of $head: no note"
    [ ! -e "$work/first.gguf" ] || cmp -s "$work/first.gguf" "$work/joined.gguf" || fail "graft of $head gives another file"
    cp "$work/joined.gguf" "$work/first.gguf"
done
logits "$work/joined.gguf" "$work/after"
cmp -s "$work/before" "$work/after" || fail "the logits are others"
quern info "$work/joined.gguf"
for line in 'qwen35.block_count = 5' 'qwen35.nextn_predict_layers = 1' 'recurrent_layers = \[true, true, true, false, false\]' \
    'q8_0 *\[128, 64\] *blk.4.nextn.eh_proj.weight' 'f32 *\[64\] *blk.4.nextn.enorm.weight' 'bf16 *\[64, 352\] *token_embd.weight'; do
    grep -q "$line" "$work/out" || fail "info has no line with '$line'"
done
quern graft "$work/model.gguf" "$work/full.gguf" "$work/kept.gguf" --type keep
quern info "$work/kept.gguf"
grep -q 'bf16 *\[128, 64\] *blk.4.nextn.eh_proj.weight' "$work/out" || fail "--type keep"

refuses 2 'too few arguments' graft "$work/model.gguf" "$work/full.gguf"
refuses 2 "'q1_0'" graft "$work/model.gguf" "$work/full.gguf" "$work/x.gguf" --type q1_0
refuses 1 'has an MTP block already, blk.4' graft "$work/full.gguf" "$work/full.gguf" "$work/x.gguf"
refuses 1 'has no MTP block' graft "$work/model.gguf" "$work/model.gguf" "$work/x.gguf"
refuses 1 'has no MTP block' graft "$work/model.gguf" "$work/bare" "$work/x.gguf"
refuses 1 "embedding_length: 48, but 64 in $work/model.gguf: the block is another" \
    graft "$work/model.gguf" "$golden/qwen35-mtp.bf16.gguf" "$work/x.gguf"
refuses 1 "the class is 'Qwen3ForCausalLM'" graft "$work/model.gguf" "$golden/checkpoints/qwen3" "$work/x.gguf"
refuses 1 "architecture 'qwen3' have no MTP block" graft "$golden/qwen3.f16.gguf" "$work/full.gguf" "$work/x.gguf"
refuses 1 "general.architecture is 'qwen3'" graft "$work/model.gguf" "$golden/qwen3.f16.gguf" "$work/x.gguf"
refuses 1 'model.gguf: is an input' graft "$work/model.gguf" "$work/full.gguf" "$work/model.gguf"
refuses 1 'full.gguf: is an input' graft "$work/model.gguf" "$work/full.gguf" "$work/full.gguf"
refuses 1 'no such file' graft "$work/model.gguf" nothing "$work/x.gguf"
refuses 1 'No such file' graft "$work/nothing.gguf" "$work/full.gguf" "$work/x.gguf"
refuses 1 'config.json' graft "$work/model.gguf" "$work" "$work/x.gguf"
refuses 1 '' graft "$work/model.gguf" "$work/full.gguf" "$work/no/such/folder.gguf"
printf 'some text' >"$work/text"
refuses 1 'exists and is not a GGUF file' graft "$work/model.gguf" "$work/full.gguf" "$work/text"
refuses 1 'text' graft "$work/model.gguf" "$work/text" "$work/x.gguf"
(ulimit -f 20 && timeout 60 "$QN_BIN/quern" graft "$work/model.gguf" "$work/full.gguf" "$work/x.gguf" >"$work/out" 2>"$work/err")
[ $? -eq 1 ] || fail "no error from a file that cannot grow"
grep -q 'x.gguf' "$work/err" || fail "a file that cannot grow: $(cat "$work/err")"
[ ! -e "$work/x.gguf" ] || fail "a file was left behind"
[ -z "$(find "$work" -name '*.part')" ] || fail "a temporary file was left behind"
finish
