"""The network, as quern runs it (src/model/qwen35.c): parameters by their names in the file, logits of token rows.

Norm weights include the 1 that Qwen's own do not; value heads are tiled (value head h reads key head h mod n_k); a weight is
[n_out, n_in]. What is called a matrix here becomes ternary later (ternary.py); this file knows nothing of that.

SPDX-License-Identifier: Apache-2.0
"""
import math

import torch
import torch.nn.functional as F

from deltanet import causal_conv_silu, chunked, l2_norm

DELTA = ("attn_norm.weight", "attn_qkv.weight", "attn_gate.weight", "ssm_conv1d.weight", "ssm_dt.bias", "ssm_a", "ssm_beta.weight",
         "ssm_alpha.weight", "ssm_norm.weight", "ssm_out.weight")
ATTENTION = ("attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "attn_q_norm.weight",
             "attn_k_norm.weight")
SWIGLU = ("post_attention_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight")


def shapes(s):
    """Name: shape, in the file's order."""
    e, q, kv, v = s.hidden, s.heads * s.head_dim, s.kv * s.head_dim, s.n_v * s.head_v
    inside = {
        "attn_norm.weight": (e,), "attn_qkv.weight": (s.qkv, e), "attn_gate.weight": (v, e), "ssm_conv1d.weight": (s.qkv, 4),
        "ssm_dt.bias": (s.n_v,), "ssm_a": (s.n_v,), "ssm_beta.weight": (s.n_v, e), "ssm_alpha.weight": (s.n_v, e),
        "ssm_norm.weight": (s.head_v,), "ssm_out.weight": (e, v), "attn_q.weight": (2 * q, e), "attn_k.weight": (kv, e),
        "attn_v.weight": (kv, e), "attn_output.weight": (e, q), "attn_q_norm.weight": (s.head_dim,),
        "attn_k_norm.weight": (s.head_dim,), "post_attention_norm.weight": (e,), "ffn_gate.weight": (s.ff, e),
        "ffn_up.weight": (s.ff, e), "ffn_down.weight": (e, s.ff),
    }
    found = {"token_embd.weight": (s.vocab, e), "output_norm.weight": (e,), "output.weight": (s.vocab, e)}
    for i, recurrent in enumerate(s.recurrent):
        found |= {f"blk.{i}.{n}": inside[n] for n in (*(DELTA if recurrent else ATTENTION), *SWIGLU)}
    return found


def is_matrix(name, shape):
    """Products that become ternary: all but the two small ones that steer the recurrence."""
    return len(shape) == 2 and "conv1d" not in name and "ssm_alpha" not in name and "ssm_beta" not in name


def initial(s, generator):
    """Random parameters, float32. Decays as Mamba 2 draws them: rates of 1 to 16, steps of 0.001 to 0.1, log-uniform."""
    weights = {}
    for name, shape in shapes(s).items():
        if name.endswith("ssm_a"):
            w = -torch.empty(shape).uniform_(1, 16, generator=generator)
        elif name.endswith("ssm_dt.bias"):
            step = torch.empty(shape).uniform_(math.log(1e-3), math.log(1e-1), generator=generator).exp()
            w = step + torch.log(-torch.expm1(-step))
        elif name.endswith("conv1d.weight"):
            w = torch.empty(shape).uniform_(-0.5, 0.5, generator=generator)
        elif len(shape) == 1:
            w = torch.ones(shape)
        else:
            w = torch.empty(shape).normal_(0, 0.02, generator=generator)
            if name.endswith(("ssm_out.weight", "attn_output.weight", "ffn_down.weight")):
                w /= math.sqrt(2 * s.layers)
        weights[name] = w
    return weights


def rms_norm(x, weight, eps):
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rope(x, s, first=0):
    """Halves of the first n_rot values of a head turn together. first: the position of row 0."""
    half = s.n_rot // 2
    frequency = s.base ** (-torch.arange(0, s.n_rot, 2, device=x.device, dtype=torch.float32) / s.n_rot)
    angle = torch.arange(first, first + x.shape[1], device=x.device, dtype=torch.float32)[:, None, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half].float(), x[..., half:s.n_rot].float()
    return torch.cat([(a * cos - b * sin).to(x.dtype), (a * sin + b * cos).to(x.dtype), x[..., s.n_rot:]], -1)


def softplus(x):
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


def swiglu_layer(s, x, norm, gate, up, down):
    y = rms_norm(x, norm, s.eps)
    return x + (F.silu(y @ gate.T) * (y @ up.T)) @ down.T


def delta_layer(s, x, norm, qkv, gate, conv, dt, a, beta, alpha, out_norm, out, *feed_forward):
    y = rms_norm(x, norm, s.eps)
    k_width = s.n_k * s.head_k
    q, k, v = causal_conv_silu(y @ qkv.T, conv).split([k_width, k_width, s.n_v * s.head_v], -1)
    q, k = (l2_norm(t.unflatten(-1, (s.n_k, s.head_k))).repeat(1, 1, s.n_v // s.n_k, 1) for t in (q, k))
    log_decay = softplus((y @ alpha.T).float() + dt) * a
    o = chunked(q, k, v.unflatten(-1, (s.n_v, s.head_v)), log_decay, (y @ beta.T).float().sigmoid(), s.head_k ** -0.5)
    o = rms_norm(o, out_norm, s.eps).flatten(-2) * F.silu(y @ gate.T)
    return swiglu_layer(s, x + o @ out.T, *feed_forward)


def attention_layer(s, x, norm, wq, wk, wv, out, q_norm, k_norm, *feed_forward):
    y = rms_norm(x, norm, s.eps)
    q, gate = (y @ wq.T).unflatten(-1, (s.heads, 2 * s.head_dim)).chunk(2, -1)
    k, v = ((y @ w.T).unflatten(-1, (s.kv, s.head_dim)) for w in (wk, wv))
    q, k = rope(rms_norm(q, q_norm, s.eps), s), rope(rms_norm(k, k_norm, s.eps), s)
    k, v = (t.repeat_interleave(s.heads // s.kv, 2) for t in (k, v))
    o = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True).transpose(1, 2)
    return swiglu_layer(s, x + (o * gate.sigmoid()).flatten(-2) @ out.T, *feed_forward)


class Network:
    """forward() over weights of one type: bfloat16 matrices on a GPU, float32 for reports. fuse: layers through torch.compile, one
    code for all layers of a kind."""

    def __init__(self, sizes, fuse=False):
        self.s = sizes
        self.delta, self.attention = map(torch.compile if fuse else lambda f: f, (delta_layer, attention_layer))

    def hidden(self, w, ids):
        x = F.embedding(ids, w["token_embd.weight"])
        for i, recurrent in enumerate(self.s.recurrent):
            names = (*(DELTA if recurrent else ATTENTION), *SWIGLU)
            x = (self.delta if recurrent else self.attention)(self.s, x, *(w[f"blk.{i}.{n}"] for n in names))
        return rms_norm(x, w["output_norm.weight"], self.s.eps)

    def logits(self, w, ids):
        return self.hidden(w, ids) @ w["output.weight"].T
