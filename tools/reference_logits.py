#!/usr/bin/env python3
"""Logits of a llama, qwen2, qwen3 or qwen35 GGUF file in float64: the oracle that quern's logits are compared with.

usage: reference_logits.py MODEL.gguf IDS OUT.f32 [--int8 N [--scale absmax|mse|minmax] [--two-terms REGEX]]
       reference_logits.py --compare A.f32 B.f32 N_IDS

IDS is a file of token ids separated by commas or white space, or such a list itself; OUT.f32 gets raw little-endian f32 logits
[n_ids, n_vocab], as `quern logits` writes them. --int8 computes what an engine gets that rounds the input of every product with
quantised weights to int8 with one scale per N values and keeps keys and values as f16, everything else exact, and prints the
distance from float64. The scale is the largest magnitude / 127, or the best of 20 below it (mse), or, with a zero point, the span
from smallest to largest value / 255 (minmax). Inputs of the tensors whose names match --two-terms get a second int8 term for what
the first left over. --compare prints the mean over tokens of |A - B| / |B|.

Gated DeltaNet layers go token by token, as the recurrence is defined: chunks are what is to be checked. Inputs of rotated weights
(prism.hadamard.*) are rotated in float64, then rounded like others.

Needs numpy only. Attention is one causal pass over the whole context, so memory grows with the square of the number of ids.

SPDX-License-Identifier: Apache-2.0
"""
import argparse
import os
import re

import numpy as np

import ggufio
import hadamard


class Arithmetic:
    """What happens to a value on its way into a matrix product and into the cache. Exact: nothing."""

    def activation(self, name, x):
        return x

    def cached(self, x):
        return x


class Int8(Arithmetic):
    """Activations as int8 with one scale per `block` values; f16 keys and values."""

    def __init__(self, block=32, scale="absmax", two_terms=None):
        self.block, self.two_terms = block, two_terms
        self.round = {"absmax": self.absmax, "mse": self.least_squares, "minmax": self.minmax}[scale]

    def activation(self, name, x):
        v = x.reshape(-1, self.block)
        rounded = self.round(v)
        if self.two_terms and re.search(self.two_terms, name):
            rounded = rounded + self.round(v - rounded)
        return rounded.reshape(x.shape)

    def cached(self, x):
        return x.astype(np.float16).astype(np.float64)

    @staticmethod
    def with_scale(v, scale):
        scale = scale.astype(np.float32).astype(np.float64)
        safe = np.where(scale > 0, scale, 1.0)
        return np.clip(np.rint(v / safe), -127, 127) * scale

    def absmax(self, v):
        return self.with_scale(v, np.abs(v).max(axis=1, keepdims=True) / 127.0)

    def least_squares(self, v):
        peak = np.abs(v).max(axis=1, keepdims=True)
        best, best_error = v, np.inf
        for shrink in np.arange(0.81, 1.005, 0.01):
            tried = self.with_scale(v, peak / 127.0 * shrink)
            error = ((tried - v) ** 2).sum(axis=1, keepdims=True)
            best = np.where(error < best_error, tried, best)
            best_error = np.minimum(error, best_error)
        return best

    @staticmethod
    def minmax(v):
        low, high = v.min(axis=1, keepdims=True), v.max(axis=1, keepdims=True)
        scale = (high - low) / 255.0
        safe = np.where(scale > 0, scale, 1.0)
        zero = np.clip(np.rint(-128.0 - low / safe), -128, 127)
        return (np.clip(np.rint(v / safe) + zero, -128, 127) - zero) * scale


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def l2_norm(x):
    return x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-6)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


class Model:
    def __init__(self, path):
        keys, self.tensors = ggufio.read(path)
        self.arch = arch = keys["general.architecture"]
        if arch not in ("llama", "qwen2", "qwen3", "qwen35"):
            raise SystemExit(f"{path}: architecture '{arch}', expected llama, qwen2, qwen3 or qwen35")
        self.n_layers = keys[f"{arch}.block_count"] - keys.get(f"{arch}.nextn_predict_layers", 0)
        self.n_heads = keys[f"{arch}.attention.head_count"]
        self.n_kv = keys.get(f"{arch}.attention.head_count_kv", self.n_heads)
        self.head_dim = keys.get(f"{arch}.attention.key_length", keys[f"{arch}.embedding_length"] // self.n_heads)
        self.n_rot = keys.get(f"{arch}.rope.dimension_count", self.head_dim)
        self.eps = keys[f"{arch}.attention.layer_norm_rms_epsilon"]
        # Where a file has no base, llama.cpp takes 10000.
        self.rope_base = keys.get(f"{arch}.rope.freq_base", 10000.0)
        self.scaling = {key.removeprefix(f"{arch}.rope.scaling."): value for key, value in keys.items()
                        if key.startswith(f"{arch}.rope.scaling.")}
        self.scaling.setdefault("original_context_length", keys[f"{arch}.context_length"])
        if self.scaling.setdefault("type", "linear") not in ("none", "linear", "yarn"):
            raise SystemExit(f"{path}: rope scaling of type '{self.scaling['type']}', expected none, linear or yarn")
        self.weights = {name: t.decode() for name, t in self.tensors.items()}
        for name in [name for name in self.weights if name.endswith(".scale") and name[:-5] + "weight" in self.weights]:
            self.weights[name[:-5] + "weight"] = self.weights[name[:-5] + "weight"] * self.weights[name]
        self.rounds = {name: t.type not in ("f32", "f16", "bf16") for name, t in self.tensors.items()}
        self.rotation = hadamard.Rotation(keys)
        self.ffn_norm = "ffn_norm.weight"
        self.recurrent = [False] * self.n_layers
        if arch == "qwen35":
            self.ffn_norm = "post_attention_norm.weight"
            interval = keys.get(f"{arch}.full_attention_interval", 4)
            by_interval = [(i + 1) % interval != 0 for i in range(self.n_layers)]
            self.recurrent = keys.get(f"{arch}.attention.recurrent_layers", by_interval)
            self.n_k_heads, self.n_v_heads = keys[f"{arch}.ssm.group_count"], keys[f"{arch}.ssm.time_step_rank"]
            self.head_k, self.head_v = keys[f"{arch}.ssm.state_size"], keys[f"{arch}.ssm.inner_size"] // self.n_v_heads

    def product(self, name, x, arithmetic):
        x = self.rotation.input(name, x)
        return (arithmetic.activation(name, x) if self.rounds[name] else x) @ self.weights[name].T

    def projection(self, name, x, arithmetic):
        """With a bias, where there is one."""
        return self.product(name + ".weight", x, arithmetic) + self.weights.get(name + ".bias", 0.0)

    def yarn(self, frequency, factor):
        """Frequencies and the attention factor of YaRN (Peng et al., 2023): pairs that turn beta_fast times and more over the
        original context keep their frequency, those that turn beta_slow times and less are slowed down by the factor."""
        s = self.scaling
        pairs = [self.n_rot * np.log(s["original_context_length"] / (turns * 2 * np.pi)) / (2 * np.log(self.rope_base))
                 for turns in (s.get("yarn_beta_fast", 32.0), s.get("yarn_beta_slow", 1.0))]
        low, high = max(np.floor(pairs[0]), 0), min(np.ceil(pairs[1]), self.n_rot - 1)
        ramp = np.clip((np.arange(self.n_rot // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
        kept = (1.0 - ramp) * s.get("yarn_ext_factor", 1.0)
        mscale = 0.1 * np.log(max(factor, 1.0)) + 1.0
        mscale /= 0.1 * s.get("yarn_log_multiplier", 0.0) * np.log(max(factor, 1.0)) + 1.0
        return frequency * (kept + (1.0 - kept) / factor), s.get("yarn_attn_factor", mscale)

    def angles(self, n):
        """Cosines and sines [n, n_rot/2], times the attention factor."""
        frequency = self.rope_base ** (-np.arange(0, self.n_rot, 2) / self.n_rot)
        if "rope_freqs.weight" in self.weights:
            frequency = frequency / self.weights["rope_freqs.weight"]
        factor, attn_factor = self.scaling.get("factor", 1.0), 1.0
        if self.scaling["type"] == "yarn":
            frequency, attn_factor = self.yarn(frequency, factor)
        elif self.scaling["type"] == "linear":
            frequency = frequency / factor
        attn_factor *= self.scaling.get("attn_factor", 1.0)
        angle = np.arange(n)[:, None] * frequency[None, :]
        return np.cos(angle) * attn_factor, np.sin(angle) * attn_factor

    def rope(self, x, angles):
        """x [n, heads, head_dim]. llama turns neighbouring pairs, the others pairs half the rotated width apart."""
        half, out = self.n_rot // 2, x.copy()
        if self.arch == "llama":
            first, second = slice(0, self.n_rot, 2), slice(1, self.n_rot, 2)
        else:
            first, second = slice(0, half), slice(half, self.n_rot)
        cos, sin = (a[:, None, :] for a in angles)
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out

    def attention(self, prefix, x, angles, arithmetic):
        n = len(x)
        q = self.projection(prefix + "attn_q", x, arithmetic).reshape(n, self.n_heads, -1)
        q, gate = q[..., :self.head_dim], q[..., self.head_dim:]
        k = self.projection(prefix + "attn_k", x, arithmetic).reshape(n, self.n_kv, self.head_dim)
        v = self.projection(prefix + "attn_v", x, arithmetic).reshape(n, self.n_kv, -1)
        if self.arch in ("qwen3", "qwen35"):
            q = rms_norm(q, self.weights[prefix + "attn_q_norm.weight"], self.eps)
            k = rms_norm(k, self.weights[prefix + "attn_k_norm.weight"], self.eps)
        q, k = self.rope(q, angles), arithmetic.cached(self.rope(k, angles))
        v = arithmetic.cached(v)
        group = self.n_heads // self.n_kv
        out = np.empty((n, self.n_heads, v.shape[-1]))
        hidden = np.triu(np.full((n, n), -np.inf), 1)
        for h in range(self.n_heads):
            scores = q[:, h] @ k[:, h // group].T / np.sqrt(self.head_dim) + hidden
            out[:, h] = softmax(scores) @ v[:, h // group]
        if self.arch == "qwen35":
            out *= sigmoid(gate)
        return self.product(prefix + "attn_output.weight", out.reshape(n, -1), arithmetic)

    def delta_net(self, prefix, x, arithmetic):
        n, w = len(x), self.weights
        taps = w[prefix + "ssm_conv1d.weight"]
        past = np.zeros((taps.shape[1] - 1, taps.shape[0]))
        qkv = np.concatenate([past, self.product(prefix + "attn_qkv.weight", x, arithmetic)])
        qkv = silu(sum(qkv[t:t + n] * taps[:, t] for t in range(taps.shape[1])))
        q, k, v = np.split(qkv, np.cumsum([self.n_k_heads * self.head_k] * 2), axis=1)
        # Value head h reads key head h mod n_k_heads.
        times = (1, self.n_v_heads // self.n_k_heads, 1)
        q = np.tile(l2_norm(q.reshape(n, self.n_k_heads, -1)), times) / np.sqrt(self.head_k)
        k = np.tile(l2_norm(k.reshape(n, self.n_k_heads, -1)), times)
        v = v.reshape(n, self.n_v_heads, self.head_v)
        beta = sigmoid(self.product(prefix + "ssm_beta.weight", x, arithmetic))
        alpha = self.product(prefix + "ssm_alpha.weight", x, arithmetic)
        decay = np.exp(np.logaddexp(0.0, alpha + w[prefix + "ssm_dt.bias"]) * w[prefix + "ssm_a"])
        state = np.zeros((self.n_v_heads, self.head_v, self.head_k))
        out = np.empty_like(v)
        for t in range(n):
            state *= decay[t, :, None, None]
            correction = beta[t, :, None] * (v[t] - np.einsum("hvk,hk->hv", state, k[t]))
            state += correction[:, :, None] * k[t, :, None, :]
            out[t] = np.einsum("hvk,hk->hv", state, q[t])
        gate = silu(self.product(prefix + "attn_gate.weight", x, arithmetic))
        out = rms_norm(out, w[prefix + "ssm_norm.weight"], self.eps).reshape(n, -1) * gate
        return self.product(prefix + "ssm_out.weight", out, arithmetic)

    def feed_forward(self, prefix, x, arithmetic):
        gate = self.product(prefix + "ffn_gate.weight", x, arithmetic)
        up = self.product(prefix + "ffn_up.weight", x, arithmetic)
        return self.product(prefix + "ffn_down.weight", silu(gate) * up, arithmetic)

    def layer_inputs(self, ids, arithmetic=Arithmetic()):
        """The residual stream before each layer and after the last one."""
        x = self.rotation.rows("token_embd.weight", self.weights["token_embd.weight"][ids])
        angles = self.angles(len(ids))
        inputs = [x]
        for layer in range(self.n_layers):
            prefix = f"blk.{layer}."
            y = rms_norm(x, self.weights[prefix + "attn_norm.weight"], self.eps)
            if self.recurrent[layer]:
                x = x + self.delta_net(prefix, y, arithmetic)
            else:
                x = x + self.attention(prefix, y, angles, arithmetic)
            y = rms_norm(x, self.weights[prefix + self.ffn_norm], self.eps)
            x = x + self.feed_forward(prefix, y, arithmetic)
            inputs.append(x)
        return inputs

    def hidden(self, ids, arithmetic=Arithmetic()):
        """The hidden states after the output norm."""
        return rms_norm(self.layer_inputs(ids, arithmetic)[-1], self.weights["output_norm.weight"], self.eps)

    def logits(self, ids, arithmetic=Arithmetic()):
        table = "output.weight" if "output.weight" in self.weights else "token_embd.weight"
        return self.product(table, self.hidden(ids, arithmetic), arithmetic)

    def drafts(self, ids, length, n):
        """Logits [n] of a chain of the block for multi-token prediction (nextn) after ids[:length + 1], the last of which the
        model has not evaluated: each token of the chain is the likeliest one of the logits before. Position q of the block has
        token q and the hidden state of token q - 1, which for tokens of the chain is the block's own."""
        exact, prefix = Arithmetic(), f"blk.{self.n_layers}."

        def of_block(name, otherwise):
            return prefix + name if prefix + name in self.weights else otherwise

        output = "output.weight" if "output.weight" in self.weights else "token_embd.weight"
        output = of_block("nextn.shared_head_head.weight", output)
        table = of_block("nextn.embed_tokens.weight", "token_embd.weight")
        head_norm = self.weights[of_block("nextn.shared_head_norm.weight", "output_norm.weight")]
        tokens, hidden, logits = list(ids[:length + 1]), list(self.hidden(ids[:length])), []
        angles = self.angles(length + n)
        for i in range(n):
            e = self.rotation.rows(table, self.weights[table][tokens[1:]])
            e = rms_norm(e, self.weights[prefix + "nextn.enorm.weight"], self.eps)
            h = rms_norm(np.array(hidden), self.weights[prefix + "nextn.hnorm.weight"], self.eps)
            x = self.product(prefix + "nextn.eh_proj.weight", np.concatenate([e, h], axis=1), exact)
            y = rms_norm(x, self.weights[prefix + "attn_norm.weight"], self.eps)
            x = x + self.attention(prefix, y, [a[1:length + i + 1] for a in angles], exact)
            y = rms_norm(x, self.weights[prefix + self.ffn_norm], self.eps)
            x = rms_norm(x + self.feed_forward(prefix, y, exact), head_norm, self.eps)
            logits.append(self.product(output, x[-1], exact))
            hidden.append(x[-1])
            tokens.append(int(np.argmax(logits[-1])))
        return np.array(logits)


def relative_error(a, b):
    """Mean over tokens of |a - b| / |b|."""
    return float((np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)).mean())


def read_ids(text):
    if os.path.exists(text):
        with open(text) as f:
            text = f.read()
    return np.array([int(i) for i in re.split(r"[,\s]+", text.strip())])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--compare", action="store_true", help="A.f32 B.f32 N_IDS: print the error of A against B")
    parser.add_argument("--int8", type=int, metavar="N", help="round activations to int8 with a scale per N values")
    parser.add_argument("--scale", choices=("absmax", "mse", "minmax"), default="absmax")
    parser.add_argument("--two-terms", metavar="REGEX", help="tensors whose input gets a second int8 term")
    parser.add_argument("files", nargs=3)
    a = parser.parse_args()
    if a.compare:
        left, right = (np.fromfile(f, "<f4").astype(np.float64).reshape(int(a.files[2]), -1) for f in a.files[:2])
        print(f"{relative_error(left, right):.3e}")
        return
    model, ids = Model(a.files[0]), read_ids(a.files[1])
    logits = exact = model.logits(ids)
    if a.int8:
        logits = model.logits(ids, Int8(a.int8, a.scale, a.two_terms))
        print(f"{relative_error(logits, exact):.3e}")
    logits.astype("<f4").tofile(a.files[2])


if __name__ == "__main__":
    main()
