"""The block for multi-token prediction (MTP), as Qwen3.5's files have it: one layer of gated attention after the trunk's last.

At position p it reads the embedding of token p+1 and the trunk's hidden state at p after the output norm, both normalised, joined
(embedding first) and projected (eh_proj); its own output after shared_head_norm is what the trunk's head turns into logits of token
p+2. For the token after that it goes on at p+1 with that output in place of the hidden state. So llama.cpp (src/models/qwen35.cpp,
graph_mtp: h_nextn is taken after output_norm, and after shared_head_norm) and vLLM (qwen3_5_mtp.py) have it.

Keys and values of positions before p are those of the trunk's hidden states: what a drafter has once its tokens are accepted.

SPDX-License-Identifier: Apache-2.0
"""
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

import hadamard
from network import ATTENTION, SWIGLU, is_matrix, rms_norm, rope, shapes, swiglu_layer
from sizes import FULL
from ternary import Basis

NEXTN = ("nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight", "nextn.shared_head_norm.weight")
DEPTH = 3  # tokens that it is trained to draft


def sizes_of(keys):
    """Sizes of a file's network."""
    own = {k.removeprefix("qwen35."): v for k, v in keys.items()}
    return replace(FULL, vocab=len(keys["tokenizer.ggml.tokens"]), hidden=own["embedding_length"], ff=own["feed_forward_length"],
                    layers=own["block_count"] - own.get("nextn_predict_layers", 0), interval=own["full_attention_interval"],
                    heads=own["attention.head_count"], kv=own["attention.head_count_kv"], head_dim=own["attention.key_length"],
                    n_rot=own["rope.dimension_count"], n_k=own["ssm.group_count"], n_v=own["ssm.time_step_rank"],
                    head_k=own["ssm.state_size"], head_v=own["ssm.inner_size"] // own["ssm.time_step_rank"],
                    eps=own["attention.layer_norm_rms_epsilon"], base=own["rope.freq_base"],
                    block=keys[hadamard.PREFIX + "block_size"])


def basis_of(keys, sizes):
    """The file's rotated basis, with signs for eh_proj's input, which the trunk's matrices do not have."""
    rotation, basis = hadamard.Rotation(keys), Basis(sizes, torch.device("cpu"))
    signs = dict(rotation.signs)
    signs.setdefault(2 * sizes.hidden, np.random.default_rng(22).integers(0, 2, 2 * sizes.hidden) * 2 - 1)
    basis.signs = {w: torch.from_numpy(np.asarray(s, np.float32)) for w, s in signs.items()}
    return basis


def trunk_of(tensors, sizes, basis):
    """{name: float32} of the trunk, in the plain basis."""
    found = {}
    for name, shape in shapes(sizes).items():
        w = torch.from_numpy(tensors[name].decode().astype(np.float32)).reshape(shape)
        found[name] = basis.plain(name, w) if is_matrix(name, shape) else w
    return found


def names_in(sizes):
    return {n: f"blk.{sizes.layers}.{n}" for n in (*NEXTN, *ATTENTION, *SWIGLU)}


RESIDUAL = 64.0  # about the size of the demo model's last residual, to which its layers' outputs are scaled


def initial(trunk, sizes, basis):
    """Latent weights to begin with: the trunk's last layer of attention, which reads its own output and a bit of the embedding. The
    residual here has about size 1."""
    last = max(i for i, recurrent in enumerate(sizes.recurrent) if not recurrent)
    w = {n: trunk[f"blk.{last}.{n}"].clone() for n in (*ATTENTION, *SWIGLU)}
    for n in ("attn_output.weight", "ffn_down.weight"):
        w[n] /= RESIDUAL
    e = sizes.hidden
    generator = torch.Generator().manual_seed(23)
    w["nextn.eh_proj.weight"] = torch.cat([torch.empty(e, e).normal_(0, 0.3 / e ** 0.5, generator=generator), torch.eye(e)], 1)
    output_norm = trunk["output_norm.weight"]
    w["nextn.enorm.weight"] = torch.ones(e)
    w["nextn.hnorm.weight"] = output_norm.mean() / output_norm
    w["nextn.shared_head_norm.weight"] = output_norm.clone()
    names = names_in(sizes)
    return {names[n]: basis.rotated(names[n], w[n]) if is_matrix(n, w[n].shape) else w[n] for n in names}


class Block:
    def __init__(self, sizes):
        self.s, self.names = sizes, names_in(sizes)

    def drafts(self, w, table, ids, hidden, depth):
        """ids [B, T], hidden [B, T, E] of the trunk: for each of `depth` steps what the head reads, [B, T - depth, E], at positions 0
        to T - depth - 1: of step i, i = 0.., logits of token p + 2 + i, whose tokens before are the given ones."""
        s = self.s
        w = {n: w[own] for n, own in self.names.items()}
        n = ids.shape[1] - depth
        h, keys, values, found = hidden[:, :n], [], [], []
        upto = torch.ones(n, n, dtype=torch.bool, device=ids.device).tril()
        for i in range(depth):
            embedding = rms_norm(F.embedding(ids[:, 1 + i:1 + i + n], table), w["nextn.enorm.weight"], s.eps)
            x = torch.cat([embedding, rms_norm(h, w["nextn.hnorm.weight"], s.eps)], -1) @ w["nextn.eh_proj.weight"].T
            y = rms_norm(x, w["attn_norm.weight"], s.eps)
            q, gate = (y @ w["attn_q.weight"].T).unflatten(-1, (s.heads, 2 * s.head_dim)).chunk(2, -1)
            k, v = ((y @ w[m].T).unflatten(-1, (s.kv, s.head_dim)) for m in ("attn_k.weight", "attn_v.weight"))
            q = rope(rms_norm(q, w["attn_q_norm.weight"], s.eps), s, i)
            k = rope(rms_norm(k, w["attn_k_norm.weight"], s.eps), s, i)
            q, k, v = (t.repeat_interleave(s.heads // t.shape[2], 2).transpose(1, 2) for t in (q, k, v))  # [B, H, n, D]
            keys.append(k)
            values.append(v)
            o = attend(q, keys, values, upto, s.head_dim ** -0.5)
            x = x + (o.transpose(1, 2) * gate.sigmoid()).flatten(-2) @ w["attn_output.weight"].T
            x = swiglu_layer(s, x, *(w[m] for m in SWIGLU))
            h = rms_norm(x, w["nextn.shared_head_norm.weight"], s.eps)
            found.append(h)
        return found


def attend(q, keys, values, upto, scale):
    """Row p sees rows up to p of the first step, and of each later one its own."""
    if len(keys) == 1:
        return F.scaled_dot_product_attention(q, keys[0], values[0], is_causal=True)
    before = (q @ keys[0].mT).masked_fill(~upto, -torch.inf)
    own = torch.cat([(q * k).sum(-1, keepdim=True) for k in keys[1:]], -1)
    p = (torch.cat([before, own], -1) * scale).softmax(-1)
    n = upto.shape[0]
    return p[..., :n] @ values[0] + sum(p[..., n + i:n + i + 1] * v for i, v in enumerate(values[1:]))
