#!/usr/bin/env bash
# quern convert of packed checkpoints: FP8, MLX, GPTQ and AWQ give, bit for bit, the file of the checkpoint whose weights were computed in
# float64 (pack_checkpoint.py). What is packed otherwise is refused with what to run first.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
checkpoints=$golden/checkpoints packed=$work/packed/model plain=$work/plain/model # of one name, which the file gets
pack() { python3 "$(dirname "$0")/pack_checkpoint.py" "$checkpoints/$1" "$2" "$packed" "$plain" || fail "pack $1 $2"; }

# same CHECKPOINT METHOD NAME - the packed one, of which NAME is said, is converted to the same file.
same() {
    pack "$1" "$2"
    quern convert "$plain" "$work/plain.gguf" f32
    [ $status -eq 0 ] || fail "$1 $2: the reference is not converted"
    quern convert "$packed" "$work/packed.gguf" f32 -t 2
    [ $status -eq 0 ] || fail "$1 $2: status $status"
    grep -q "matrices are packed ($3)" "$work/err" || fail "$1 $2: nothing says how it was packed"
    cmp -s "$work/plain.gguf" "$work/packed.gguf" || fail "$1 $2: other weights than those computed in float64"
}
# llama: rows in another order; qwen2: biases; qwen35: rows and columns in another order.
same llama fp8-block FP8
same llama fp8-row FP8
same qwen35 fp8-wide FP8
same qwen35 fp8-tensor FP8
grep -q 'left out: [0-9]* scales of activations' "$work/err" || fail "nothing says that scales of activations are left out"
for bits in 2 3 4 5 6 8; do same qwen2 mlx-$bits MLX; done
for bits in 2 3 8; do same qwen2 gptq-$bits GPTQ; done
for method in gptq-4 gptq_v2-4 gptq_act-4; do same llama $method GPTQ; done
same qwen35 gptq_act-4 GPTQ
same llama awq AWQ
same qwen35 awq AWQ

# Without TYPE the weights have the type that config.json names (f16 here); in a smaller type they are those of the plain ones in that type.
pack qwen2 fp8-block
for type in '' q8_0 q4_0; do
    quern convert "$packed" "$work/packed.gguf" $type
    quern convert "$plain" "$work/plain.gguf" ${type:-f16}
    cmp -s "$work/plain.gguf" "$work/packed.gguf" || fail "type '$type' of a packed checkpoint"
done
quern logits -m "$work/packed.gguf" --ids 1,2,3 -o "$work/l"
[ $status -eq 0 ] || fail "the converted model does not run"

# ---- What is refused ----
# with TEXT - the quantization_config of a checkpoint.
with() {
    python3 - "$packed/config.json" "$1" <<'PY'
import json, sys
c = json.load(open(sys.argv[1]))
c["quantization_config"] = json.loads(sys.argv[2])
json.dump(c, open(sys.argv[1], "w"))
PY
}
while read -r config; do
    with "$config"
    refuses 1 'save_pretrained' convert "$packed" "$work/x.gguf"
done <<'CONFIGS'
{"quant_method": "bitsandbytes", "load_in_4bit": true}
{"quant_method": "compressed-tensors", "format": "pack-quantized"}
{"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"a": {"weights": {"type": "float", "num_bits": 4}}}}
{"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "marlin"}
{"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv"}
{"quant_method": "mxfp4"}
{"bits": 4, "group_size": 32, "mode": "mxfp4"}
{"something": 1}
CONFIGS
with '{"quant_method": "fp8", "weight_block_size": [0, 128]}'
refuses 1 "'weight_block_size'" convert "$packed" "$work/x.gguf"
with '{"quant_method": "fp8", "weight_block_size": [64, 64]}'
refuses 1 'weight_scale_inv.*expected' convert "$packed" "$work/x.gguf"
# A part that is missing, and a group out of range.
without() {
    python3 - "$packed/model.safetensors" "$1" "$2" <<'PY'
import json, struct, sys
data = bytearray(open(sys.argv[1], "rb").read())
(n,) = struct.unpack_from("<Q", data)
header = json.loads(data[8 : 8 + n])
if sys.argv[3] == "rename":
    name = next(k for k in header if k.endswith(sys.argv[2]))
    header[name + "x"] = header.pop(name)
    text = json.dumps(header).encode()
    data = bytearray(struct.pack("<Q", len(text)) + text + data[8 + n :])
else:
    at = 8 + n + next(v for k, v in header.items() if k.endswith(sys.argv[2]))["data_offsets"][0]
    data[at : at + 4] = struct.pack("<i", int(sys.argv[3]))
open(sys.argv[1], "wb").write(data)
PY
}
pack qwen2 fp8-block
without .weight_scale_inv rename
refuses 1 "has no 'weight_scale'" convert "$packed" "$work/x.gguf"
pack qwen2 mlx-4
without .biases rename
refuses 1 "has no 'biases'" convert "$packed" "$work/x.gguf"
pack qwen2 gptq-4
for group in -1 3 2147483647; do
    without .g_idx $group
    refuses 1 "g_idx.*is $group, expected 0 to" convert "$packed" "$work/x.gguf"
done
# A NaN among the codes: 0x7f.
pack qwen2 fp8-row
without gate_proj.weight $((0x017f))
refuses 1 'contains an infinity or NaN' convert "$packed" "$work/x.gguf"
# MLX's converter changes other tensors of Qwen3.5, too.
pack qwen35 mlx-8
refuses 1 'MLX changes other tensors' convert "$packed" "$work/x.gguf"
# A bias that is not zero has no place.
pack qwen2 gptq-4
without o_proj.bias 1
refuses 1 'o_proj.bias.* is unknown' convert "$packed" "$work/x.gguf"
finish
