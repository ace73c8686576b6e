"""Stage export: the latent weights as a GGUF file. What is written says the same, bit for bit, on every machine.

SPDX-License-Identifier: Apache-2.0
"""
import json
import os

import numpy as np
import torch

import ggufio
import hadamard
from common import fail, log
from network import is_matrix, shapes
from rows import SPECIAL
from ternary import GROUP, quantise, signs_of, stored

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
          "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
MOST_BYTES = 12_000_000


def encode_ptq1_0(scale, codes):
    """Bytes of PTQ1_0 blocks: five digits of base 3 a byte, as the fraction v/243 of 256 rounded up; the scale at the end."""
    digits = (codes.reshape(-1, GROUP) + 1).astype(np.uint32)
    value = np.zeros((len(digits), 26), np.uint32)
    place, power = ggufio.TRIT_BYTE, 243 // 3 // ggufio.TRIT_POWER
    for e in range(GROUP):
        value[:, place[e]] += digits[:, e] * power[e]
    blocks = np.empty((len(digits), 28), np.uint8)
    blocks[:, :26] = (value * 256 + 242) // 243
    blocks[:, 26:] = scale.reshape(-1, 1).astype("<f2").view(np.uint8)
    return blocks.reshape(-1)


def tensor(name, latent):
    """What trained weights of this name are in the file."""
    if is_matrix(name, latent.shape):
        scale, codes = quantise(latent)
        t = ggufio.Tensor(name, latent.shape, "ptq1_0", encode_ptq1_0(scale.numpy(), codes.numpy()))
        meant = (codes.unflatten(-1, (-1, GROUP)) * scale[..., None]).flatten(-2)
        if not np.array_equal(t.decode(), meant.double().numpy()):
            fail(f"export: '{name}' does not decode to what was encoded")
        return t
    value = -latent.exp() if name.endswith("ssm_a") else stored(name, latent)
    kind = "f16" if name.endswith(("ssm_alpha.weight", "ssm_beta.weight")) else "f32"
    return ggufio.Tensor(name, value.shape, kind, ggufio.encode_plain(kind, value.numpy()))


def vocabulary(path):
    with open(path, encoding="utf-8") as f:
        model = json.load(f)["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3 if t in SPECIAL else 1 for t in tokens], "i4"),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.eot_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.padding_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def rotation(s):
    names = [n for n, shape in shapes(s).items() if is_matrix(n, shape) and n != "token_embd.weight"]
    signs = signs_of(s)
    keys = {"version": 1, "block_size": s.block, "transform": hadamard.TRANSFORM, "axis": hadamard.AXIS, "sign_mode": "explicit",
            "sign_widths": np.array(list(signs), "i4"), "sign_values": np.concatenate(list(signs.values())).astype("i1"),
            "weight_names": names, "inverse_weight_names": ["token_embd.weight"], "gdn_v_grouped": True}
    return {hadamard.PREFIX + k: v for k, v in keys.items()}


def keys_of(s):
    pairs = s.n_rot // 2
    own = {
        "block_count": s.layers, "context_length": 2048, "embedding_length": s.hidden, "feed_forward_length": s.ff,
        "attention.head_count": s.heads, "attention.head_count_kv": s.kv, "attention.key_length": s.head_dim,
        "attention.value_length": s.head_dim, "attention.layer_norm_rms_epsilon": s.eps, "rope.freq_base": s.base,
        "rope.dimension_count": s.n_rot,
        "rope.dimension_sections": np.array([pairs - 2 * (pairs // 3), pairs // 3, pairs // 3, 0], "i4"),
        "ssm.conv_kernel": 4, "ssm.inner_size": s.n_v * s.head_v, "ssm.state_size": s.head_k, "ssm.time_step_rank": s.n_v,
        "ssm.group_count": s.n_k, "full_attention_interval": s.interval, "vocab_size": s.vocab,
    }
    return {
        "general.architecture": "qwen35",
        "general.name": "quern demo",
        "general.description": "A small model that tells short stories; trained for quern's demonstration and tests.",
        "general.license": "apache-2.0",
        **{f"qwen35.{k}": v for k, v in own.items()},
    }


def run(work, sizes, out):
    latent = torch.load(os.path.join(work, "qat.pt"), map_location="cpu")
    tensors = [tensor(n, latent[n]) for n in shapes(sizes)]
    keys = {**keys_of(sizes), **vocabulary(os.path.join(work, "tokenizer.json")), **rotation(sizes)}
    ggufio.write(out + ".part", keys, tensors)
    size = os.path.getsize(out + ".part")
    if size > MOST_BYTES:
        fail(f"export: the file has {size} bytes, at most {MOST_BYTES} are allowed")
    os.replace(out + ".part", out)
    log(f"export: {out}, {size} bytes")
