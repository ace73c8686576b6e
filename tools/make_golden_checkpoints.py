#!/usr/bin/env python3
"""Make tests/golden/checkpoints: small random checkpoints of each class that quern convert reads, with their logits and tokens.

usage: make_golden_checkpoints.py OUT_FOLDER [NAME...]

A folder NAME is what transformers and tokenizers save, with three files more: golden.ids (token ids, one a line), golden.logits.f32 (raw
little-endian f32 [n_ids, n_vocab], transformers, float32, eager attention, of the weights as stored) and golden.tokens (texts of
make_tokenizer_golden.py with the ids that tokenizers gives, in the same format). transformers has no MTP block: its tensors are
random, and it has no part in the logits.

    pip install numpy torch transformers
    python3 tools/make_golden_checkpoints.py tests/golden/checkpoints

SPDX-License-Identifier: Apache-2.0
"""
import json
import os
import shutil
import sys

import numpy as np
import safetensors.torch
import torch
import transformers as hf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from make_tokenizer_golden import QWEN2, TEXTS, escape

N_VOCAB = 352  # more than the tokenisers have: the last ids have no token
N_TRAINED = 320
N_IDS = 40
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
CHAT = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"

COMMON = dict(vocab_size=N_VOCAB, max_position_embeddings=512, attn_implementation="eager")
SMALL = dict(COMMON, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
LOW_BIT = dict(COMMON, hidden_size=128, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
               head_dim=64, tie_word_embeddings=True, rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=1e6))
HYBRID = dict(vocab_size=N_VOCAB, max_position_embeddings=512, hidden_size=64, intermediate_size=80, num_hidden_layers=4,
              num_attention_heads=4, num_key_value_heads=2, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=6,
              linear_key_head_dim=32, linear_value_head_dim=16, rms_norm_eps=1e-6,
              rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.5, mrope_section=[4, 2, 2]))
VISION = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2, out_hidden_size=64,
              num_position_embeddings=16)


def config_of(name):
    if name == "llama":
        rope = dict(rope_type="llama3", rope_theta=50000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                    original_max_position_embeddings=64)
        return hf.LlamaConfig(**SMALL, rms_norm_eps=1e-5, rope_parameters=rope), hf.LlamaForCausalLM
    if name == "qwen2":
        return hf.Qwen2Config(**SMALL, tie_word_embeddings=True,
                              rope_parameters=dict(rope_type="default", rope_theta=1e6)), hf.Qwen2ForCausalLM
    if name == "qwen3":
        rope = dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=128)
        return hf.Qwen3Config(**SMALL, head_dim=32, rope_parameters=rope), hf.Qwen3ForCausalLM
    if name == "qwen3-low-bit":
        return hf.Qwen3Config(**LOW_BIT), hf.Qwen3ForCausalLM
    if name == "qwen35":
        return hf.Qwen3_5Config(text_config=HYBRID, vision_config=VISION, tie_word_embeddings=False,
                                attn_implementation="eager"), hf.Qwen3_5ForConditionalGeneration
    if name == "qwen35-text":  # equal numbers of heads, kinds of layers that follow no interval
        types = ["full_attention", "linear_attention", "full_attention"]
        shape = dict(HYBRID, num_hidden_layers=3, linear_num_value_heads=2, layer_types=types, tie_word_embeddings=True)
        return hf.Qwen3_5TextConfig(**shape, attn_implementation="eager"), hf.Qwen3_5ForCausalLM
    raise SystemExit(f"no golden checkpoint '{name}'; there are: {' '.join(DTYPES)}")


DTYPES = {"llama": torch.bfloat16, "qwen2": torch.float16, "qwen3": torch.float32, "qwen3-low-bit": torch.bfloat16,
          "qwen35": torch.bfloat16, "qwen35-text": torch.float16}


def draw(name, shape, rng):
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.5, 8.0, shape))
    if name.endswith("dt_bias") or len(shape) == 1 and "norm" not in name:
        return rng.standard_normal(shape)
    if len(shape) == 1:
        return rng.uniform(0.5, 1.5, shape)
    return rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))


def low_bit(name, shape, rng):
    """Groups of 128 with a scale that fp16 and bf16 hold: binary attention, ternary embedding and MLP, four values in one matrix."""
    values = [-1, 1] if "self_attn" in name else [-1, 0, 1, 2] if "up_proj" in name else [-1, 0, 1]
    codes = rng.choice(values, (shape[0], shape[1] // 128, 128)).astype(np.float32)
    codes[..., 0], codes[..., 1] = -1, max(values)
    scales = torch.from_numpy(rng.uniform(0.5, 1.5, codes.shape[:2] + (1,)).astype(np.float32) / np.sqrt(shape[1]))
    return (codes * scales.bfloat16().float().numpy()).reshape(shape)


def fill(model, name, rng):
    for key, p in sorted(model.named_parameters()):
        shape = tuple(p.shape)
        w = low_bit(key, shape, rng) if name == "qwen3-low-bit" and len(shape) == 2 else draw(key, shape, rng)
        if name.startswith("qwen35") and key.endswith("norm.weight") and "linear_attn" not in key and "visual" not in key:
            w = w - 1
        p.data = torch.from_numpy(np.asarray(w, np.float32))
    return model.to(DTYPES[name]).float().eval()  # rounded as it is stored


def mtp_tensors(rng):
    e, ff, heads, kv, dim = (HYBRID[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
                                                   "head_dim"))
    layer = "mtp.layers.0."
    shapes = {"mtp.fc.weight": (e, 2 * e), "mtp.pre_fc_norm_embedding.weight": (e,), "mtp.pre_fc_norm_hidden.weight": (e,),
              "mtp.norm.weight": (e,), layer + "input_layernorm.weight": (e,), layer + "post_attention_layernorm.weight": (e,),
              layer + "self_attn.q_proj.weight": (2 * heads * dim, e), layer + "self_attn.k_proj.weight": (kv * dim, e),
              layer + "self_attn.v_proj.weight": (kv * dim, e), layer + "self_attn.o_proj.weight": (e, heads * dim),
              layer + "self_attn.q_norm.weight": (dim,), layer + "self_attn.k_norm.weight": (dim,),
              layer + "mlp.gate_proj.weight": (ff, e), layer + "mlp.up_proj.weight": (ff, e), layer + "mlp.down_proj.weight": (e, ff)}
    return {n: torch.from_numpy(np.asarray(draw(n, s, rng), np.float32)).bfloat16() for n, s in shapes.items()}


def add_mtp(folder, rng):
    path = os.path.join(folder, "model.safetensors")
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file({**tensors, **mtp_tensors(rng)}, path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["text_config"]["mtp_num_hidden_layers"] = 1
    with open(path, "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")


def tokenizer_of(name):
    t = Tokenizer(models.BPE(ignore_merges=name == "llama"))
    if name == "qwen2":  # SmolLM's: no pattern but GPT-2's
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    else:
        pattern = LLAMA3 if name == "llama" else QWEN35 if name.startswith("qwen35") else QWEN2
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        if name != "llama":
            t.normalizer = normalizers.NFC()
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(TEXTS * 2, trainers.BpeTrainer(vocab_size=N_TRAINED, show_progress=False,
                                                         initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    t.add_tokens([AddedToken(s, special=False, normalized=False) for s in ("<|fim_prefix|>", "<tool_call>", "</tool_call>")])
    if name == "llama":
        t.post_processor = processors.TemplateProcessing("<|endoftext|> $A", "<|endoftext|> $A <|endoftext|> $B",
                                                         [("<|endoftext|>", t.token_to_id("<|endoftext|>"))])
    else:
        t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def save_tokenizer(folder, name):
    t = tokenizer_of(name)
    bos = {"bos_token": "<|endoftext|>"} if name == "llama" else {}
    fast = hf.PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|im_end|>", pad_token="<|endoftext|>", **bos)
    fast.chat_template = CHAT
    fast.save_pretrained(folder)
    path = os.path.join(folder, "tokenizer.json")
    if name == "qwen3":  # the older spelling of merges
        with open(path, encoding="utf-8") as f:
            saved = json.load(f)
        saved["model"]["merges"] = [" ".join(m) for m in saved["model"]["merges"]]
        with open(path, "w", encoding="utf-8") as f:
            json.dump(saved, f, ensure_ascii=False)
    with open(os.path.join(folder, "golden.tokens"), "w", encoding="utf-8", newline="\n") as out:
        for text in TEXTS:
            ids = t.encode(text, add_special_tokens=False).ids
            out.write(f"1\t{escape(text)}\t{' '.join(map(str, ids))}\n")


def make(out, name):
    torch.set_num_threads(1)  # the order of float additions must not depend on the machine's cores
    rng = np.random.default_rng([ord(c) for c in name])
    folder = os.path.join(out, name)
    shutil.rmtree(folder, ignore_errors=True)
    config, model_class = config_of(name)
    model = fill(model_class(config), name, rng)
    if model.config.get_text_config().tie_word_embeddings:
        model.tie_weights()
    ids = rng.integers(0, N_VOCAB, N_IDS)
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)[None]).logits[0].float().numpy()
    model.generation_config = hf.GenerationConfig(do_sample=True, temperature=0.6, top_k=20, top_p=0.95, repetition_penalty=1.05)
    model.to(DTYPES[name]).save_pretrained(folder, max_shard_size="100KB" if name == "llama" else "1GB")
    if name == "qwen35":
        add_mtp(folder, rng)
    save_tokenizer(folder, name)
    with open(os.path.join(folder, "golden.ids"), "w") as f:
        f.writelines(f"{i}\n" for i in ids)
    logits.astype("<f4").tofile(os.path.join(folder, "golden.logits.f32"))
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"{name:16} {size:8} bytes, logits of {np.abs(logits).mean():.2f}")


def main():
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    for name in sys.argv[2:] or DTYPES:
        make(sys.argv[1], name)


if __name__ == "__main__":
    main()
