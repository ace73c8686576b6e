"""The model that writes the stories: a llama of a GGUF file in PyTorch, its vocabulary cut to what stories need, tuned on stories.

Left to itself, a chat model of this size rambles. A few passes over the stories of the given file teach it their form, and to
answer a request (asking.py) with a story about it; writing.py then makes it write many.

SPDX-License-Identifier: Apache-2.0
"""
import math
import time

import numpy as np
import torch
import torch.nn.functional as F

import ggufio
from common import log

CHAT = "<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n"
END = "<|im_end|>"
KEPT_PIECES = 16384


def tokenizer_of(keys):
    """The file's byte-level BPE; its pre-tokeniser is SmolLM's."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if keys["tokenizer.ggml.pre"] != "smollm":
        raise SystemExit(f"the teacher's pre-tokeniser is '{keys['tokenizer.ggml.pre']}', expected smollm")
    tokens = keys["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in keys["tokenizer.ggml.merges"]]
    tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                 pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, keys["tokenizer.ggml.token_type"]) if kind == 3]
    tok.add_special_tokens([AddedToken(t, normalized=False) for t in special])
    return tok


class Teacher(torch.nn.Module):
    def __init__(self, path, max_layers=None):
        super().__init__()
        keys, tensors = ggufio.read(path)
        if keys["general.architecture"] != "llama":
            raise SystemExit(f"{path}: architecture '{keys['general.architecture']}', expected llama")
        self.tokenizer = tokenizer_of(keys)
        self.n_layers = min(keys["llama.block_count"], max_layers or 10 ** 6)
        self.heads, self.kv = keys["llama.attention.head_count"], keys["llama.attention.head_count_kv"]
        self.dim = keys["llama.embedding_length"] // self.heads
        self.base, self.eps = keys["llama.rope.freq_base"], keys["llama.attention.layer_norm_rms_epsilon"]

        def weight(*names):
            w = np.concatenate([tensors[n].decode() for n in names]).astype(np.float32)
            return torch.nn.Parameter(torch.from_numpy(w))

        self.embedding = weight("token_embd.weight")
        self.norm = weight("output_norm.weight")
        self.blocks = torch.nn.ModuleList()
        for i in range(self.n_layers):
            b = torch.nn.Module()
            b.norm1, b.norm2 = weight(f"blk.{i}.attn_norm.weight"), weight(f"blk.{i}.ffn_norm.weight")
            b.qkv = weight(*(f"blk.{i}.attn_{x}.weight" for x in "qkv"))
            b.out = weight(f"blk.{i}.attn_output.weight")
            b.gate_up = weight(f"blk.{i}.ffn_gate.weight", f"blk.{i}.ffn_up.weight")
            b.down = weight(f"blk.{i}.ffn_down.weight")
            self.blocks.append(b)

    def keep_pieces(self, texts):
        """Cuts the vocabulary to the first pieces, which are the frequent ones, and those of these texts."""
        seen = {i for e in self.tokenizer.encode_batch(texts, add_special_tokens=False) for i in e.ids}
        kept = sorted(seen | set(range(min(KEPT_PIECES, len(self.embedding)))))
        self.piece = np.array(kept)
        self.place = np.full(len(self.embedding), -1)
        self.place[self.piece] = np.arange(len(kept))
        self.embedding = torch.nn.Parameter(self.embedding.detach()[torch.from_numpy(self.piece)].clone())
        self.end = int(self.place[self.tokenizer.token_to_id(END)])

    def encode(self, texts):
        """Ids in the cut vocabulary; a text that has a piece outside of it gets None."""
        ids = [self.place[np.array(e.ids, np.int64)] for e in self.tokenizer.encode_batch(texts, add_special_tokens=False)]
        return [i if (i >= 0).all() else None for i in ids]

    def decode(self, rows):
        return self.tokenizer.decode_batch([self.piece[r].tolist() for r in rows], skip_special_tokens=True)

    def rope(self, x, positions):
        """Neighbouring pairs turn, as GGUF stores them for this architecture. positions: a shape that x's ends with, less 2."""
        frequency = self.base ** (-torch.arange(0, self.dim, 2, device=x.device, dtype=torch.float32) / self.dim)
        angle = positions[..., None, None].float() * frequency
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., 0::2].float(), x[..., 1::2].float()
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2).to(x.dtype)

    def rms(self, x, weight):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * weight.float()).to(x.dtype)

    def split(self, qkv):
        q, k, v = qkv.split([self.heads * self.dim, self.kv * self.dim, self.kv * self.dim], -1)
        return q.unflatten(-1, (self.heads, self.dim)), k.unflatten(-1, (self.kv, self.dim)), v.unflatten(-1, (self.kv, self.dim))

    def forward(self, ids, dtype):
        """Logits [B, T, n] of ids [B, T], every row from position 0."""
        x = F.embedding(ids, self.embedding).to(dtype)
        positions = torch.arange(ids.shape[1], device=ids.device)
        for b in self.blocks:
            q, k, v = self.split(self.rms(x, b.norm1) @ b.qkv.to(dtype).T)
            q, k = self.rope(q, positions), self.rope(k, positions)
            k, v = (t.repeat_interleave(self.heads // self.kv, 2) for t in (k, v))
            o = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
            x = x + o.transpose(1, 2).flatten(-2) @ b.out.to(dtype).T
            gate, up = (self.rms(x, b.norm2) @ b.gate_up.to(dtype).T).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ b.down.to(dtype).T
        return self.rms(x, self.norm) @ self.embedding.to(dtype).T


def tune(teacher, pairs, device, steps, batch, rate=2e-4, length=320, seed=1):
    """Trains on (request, story) pairs; only the story counts. Steps shared out in warm-up and a linear way down to 0."""
    rng = np.random.default_rng(seed)
    rows = []
    for prompt, text in zip(teacher.encode([CHAT.format(request=r) for r, _ in pairs]), teacher.encode([t for _, t in pairs])):
        if prompt is not None and text is not None and len(prompt) + len(text) < length:
            rows.append((len(prompt), np.concatenate([prompt, text, [teacher.end]])))
    # Rows of a step are of like lengths: less of it is padding.
    rows.sort(key=lambda r: len(r[1]))
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01, fused=device.type == "cuda")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    began, total, queue = time.time(), 0.0, []
    for step in range(steps):
        if not queue:
            queue = [rows[i:i + batch] for i in range(0, len(rows), batch)]
            rng.shuffle(queue)
        some = queue.pop()
        width = max(len(r) for _, r in some)
        ids = np.full((len(some), width), teacher.end)
        target = np.full((len(some), width), -100)
        for i, (start, row) in enumerate(some):
            ids[i, :len(row)] = row
            target[i, start - 1:len(row) - 1] = row[start:]
        ids, target = torch.from_numpy(ids).to(device), torch.from_numpy(target).to(device)
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / 20, 1 - step / steps)
        loss = F.cross_entropy(teacher(ids, dtype).float().flatten(0, 1), target.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(teacher.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total += loss.detach()
        if (step + 1) % max(1, steps // 10) == 0:
            log(f"tune: step {step + 1} of {steps}, {time.time() - began:.0f} s, loss {float(total) / max(1, steps // 10):.3f}")
            total = 0.0
    if not math.isfinite(float(loss.detach())):
        raise SystemExit("tune: the loss is not finite")
