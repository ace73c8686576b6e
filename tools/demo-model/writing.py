"""Makes the tuned teacher write stories, thousands at a time.

Every slot of the batch is a conversation at a position of its own: it is fed its request token by token, then what it samples; when
its story ends it takes the next request. All of that happens on the device, in one CUDA graph a step, so the host only replays.

SPDX-License-Identifier: Apache-2.0
"""
import time

import numpy as np
import torch
import torch.nn.functional as F

from common import log
from decode_attention import attention

TEMPERATURE, MIN_P = 0.9, 0.08


class Writer:
    def __init__(self, teacher, prompts, n_slots, length, device, fuse):
        self.t, self.n, self.length = teacher, n_slots, length
        dtype = self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        width = max(len(p) for p in prompts)
        # The request after the last is nobody's: slots without work write it again and again.
        table = np.zeros((len(prompts) + 1, width), np.int32)
        for i, p in enumerate(prompts):
            table[i, :len(p)] = p
        sizes = np.array([len(p) for p in prompts] + [1], np.int32)
        self.prompts, self.sizes = torch.from_numpy(table).to(device), torch.from_numpy(sizes).to(device)
        self.idle = len(prompts)
        self.out = torch.full((len(prompts) + 1, length), -1, dtype=torch.int32, device=device)
        self.finished = torch.zeros(len(prompts) + 1, dtype=torch.bool, device=device)
        self.serving = torch.arange(n_slots, device=device).clamp(max=self.idle)
        self.next = torch.tensor(min(n_slots, self.idle), device=device)
        self.position = torch.zeros(n_slots, dtype=torch.long, device=device)
        self.token = self.prompts[self.serving, 0].long()
        self.slots = torch.arange(n_slots, device=device)
        shape = (n_slots, teacher.kv, length, teacher.dim)
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in teacher.blocks]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in teacher.blocks]
        self.embedding = teacher.embedding.detach().to(dtype)
        self.weights = [{k: p.detach().to(dtype if p.dim() == 2 else torch.float32) for k, p in b.named_parameters()}
                        for b in teacher.blocks]
        self.norm = teacher.norm.detach()
        self.graph = None
        compiled = torch.compile if fuse else lambda f: f
        self.rms, self.heads, self.swiglu, self.choose = map(compiled, (teacher.rms, self.heads, self.swiglu, self.choose))

    def heads(self, qkv, position):
        q, k, v = self.t.split(qkv)
        return self.t.rope(q, position), self.t.rope(k, position), v.contiguous()

    @staticmethod
    def swiglu(gate_up):
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up

    @staticmethod
    def choose(logits):
        """A token of those at least MIN_P times as likely as the likeliest: the largest of log p + Gumbel noise."""
        x = logits.float() / TEMPERATURE
        x = x.masked_fill(x < x.amax(-1, keepdim=True) + np.log(MIN_P), -torch.inf)
        noise = -torch.log(-torch.log(torch.rand_like(x).clamp(1e-10, 1 - 1e-7)))
        return (x + noise).argmax(-1)

    @torch.no_grad()
    def step(self):
        t, x = self.t, F.embedding(self.token, self.embedding)
        length = (self.position + 1).int()
        for w, keys, values in zip(self.weights, self.keys, self.values):
            q, k, v = self.heads(self.rms(x, w["norm1"]) @ w["qkv"].T, self.position)
            keys[self.slots, :, self.position] = k
            values[self.slots, :, self.position] = v
            o = attention(q.unflatten(1, (t.kv, -1)).contiguous(), keys, values, length)
            x = x + o.flatten(1) @ w["out"].T
            x = x + self.swiglu(self.rms(x, w["norm2"]) @ w["gate_up"].T) @ w["down"].T
        chosen = self.choose(self.rms(x, self.norm) @ self.embedding.T)

        after = self.position + 1
        in_prompt = after < self.sizes[self.serving]
        given = self.prompts[self.serving, after.clamp(max=self.prompts.shape[1] - 1)]
        new = torch.where(in_prompt, given.long(), chosen)
        ends = ~in_prompt & (new == t.end)
        leaves = ends | (after >= self.length - 1) | (self.serving == self.idle)
        self.out[self.serving, after] = torch.where(in_prompt, -1, new).int()
        self.finished[self.serving] |= ends
        taken = (self.next + leaves.cumsum(0) - 1).clamp(max=self.idle)
        self.next.add_(leaves.sum()).clamp_(max=self.idle)
        self.serving.copy_(torch.where(leaves, taken, self.serving))
        self.position.copy_(torch.where(leaves, 0, after))
        self.token.copy_(torch.where(leaves, self.prompts[self.serving, 0].long(), new))

    def capture(self):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        self.graph = graph

    def run(self, seconds):
        """Until all requests are answered or the time is over; may be called again. Returns how many steps it took."""
        if self.token.is_cuda and not self.graph:
            self.capture()
        began, steps, every = time.time(), 0, 64 if self.graph else 16
        while time.time() - began < seconds and int((self.serving == self.idle).sum()) <= self.n * 3 // 4:
            for _ in range(every):
                if self.graph:
                    self.graph.replay()
                else:
                    self.step()
            steps += every
            done = int(self.finished.sum())
            if steps % (16 * every) == 0:
                spent = time.time() - began
                log(f"write: step {steps}, {spent:.0f} s, {steps * self.n / spent:.0f} tokens/s, {done} stories of {self.idle}")
        return steps

    def stories(self):
        """(index of the request, ids) of every story that came to its end."""
        for start in range(0, self.idle, 1 << 16):
            rows = self.out[start:start + (1 << 16)].cpu().numpy()
            ended = self.finished[start:start + (1 << 16)].cpu().numpy()
            for i in np.flatnonzero(ended[:min(len(ended), self.idle - start)]):
                row = rows[i]
                row = row[row >= 0]
                yield start + int(i), row[:-1]
