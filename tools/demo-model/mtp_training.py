"""Trains the block for multi-token prediction (mtp_block.py): the trunk is frozen, the block ternary from the first step.

The loss of each of the chain's steps is the distance of the block's prediction from the trunk's own of the same token,
KL(trunk, block), at the temperature of 0.6: what is drafted is what the trunk would say, greedily or nearly so.

SPDX-License-Identifier: Apache-2.0
"""
import concurrent.futures
import os
import subprocess
import tempfile
import time

import numpy as np
import torch

from common import fail, log, save_json
from mtp_block import DEPTH, Block, initial
from rows import END_OF_TEXT, PAD
from training import Weights, schedule

TEMPERATURE = 0.6
STEP_WEIGHTS = (1.0, 0.8, 0.6)
RATES = dict(muon=0.02, adam=2e-3, flat=0.3)
ROWS_A_STEP = 8
WARM_UP = 10
# Steps of the chain that are trained, and until which share of the time: a later one learns most from the first, for a third of the cost.
DEPTHS = ((1, 0.4), (2, 0.55), (DEPTH, 1.0))


class Distance(torch.autograd.Function):
    """Sum over tokens of KL(trunk, block) at the temperature; the gradient is made at once, a row of text at a time."""

    @staticmethod
    def forward(ctx, said, right, head, counts, seen):
        """said [B, N, E], right [B, N, V] probabilities, counts [B, N]. seen [3]: sums are added of the distance, of the smaller
        probability of the two (what the rejection rule accepts), and of how often both prefer the same token."""
        grad, total = torch.empty_like(said), torch.zeros(())
        for row, p, n, g in zip(said, right, counts, grad):
            log_q = (row @ head.T).float().div_(TEMPERATURE).log_softmax(-1)
            distance = ((torch.special.entr(p).neg_() - p * log_q).sum(-1) * n).sum()
            if seen is not None:
                seen[1] += (torch.minimum(p, log_q.exp()).sum(-1) * n).sum()
                seen[2] += ((p.argmax(-1) == log_q.argmax(-1)) * n).sum()
                seen[0] += distance
            total += distance
            g.copy_(log_q.exp_().sub_(p).mul_(n[:, None] / TEMPERATURE).to(head.dtype) @ head)
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    def backward(ctx, of_sum):
        return ctx.saved_tensors[0] * of_sum.to(ctx.saved_tensors[0].dtype), None, None, None, None


class Trunk:
    """Hidden states of rows after the output norm, as the built quern computes them. They are solved from its logits: the output
    matrix has full rank, and the int8 activations of its CPU kernels are then what is trained for. Kept once computed."""

    def __init__(self, weights, rows, quern, model, dtype):
        self.rows, self.quern, self.model, self.dtype = rows, quern, model, dtype
        self.table, self.head = (weights[n].to(dtype) for n in ("token_embd.weight", "output.weight"))
        head = weights["output.weight"].double()
        self.solve = torch.linalg.solve(head.T @ head, head.T).T.float()
        self.kept = [None] * len(rows)

    def ids(self, which):
        some = torch.from_numpy(np.stack([self.rows[i] for i in which]).astype(np.int64))
        return some.masked_fill(some == PAD, END_OF_TEXT), some != PAD

    def compute(self, ids):
        with tempfile.NamedTemporaryFile(suffix=".f32") as f:
            subprocess.run([self.quern, "logits", "-m", self.model, "--ids", ",".join(map(str, ids)), "-o", f.name, "-t", "1"],
                           check=True)
            logits = np.fromfile(f.name, "<f4").reshape(len(ids), -1)
        return (torch.from_numpy(logits) @ self.solve).to(self.dtype)

    def hidden(self, which):
        for i in which:
            if self.kept[i] is None:
                self.kept[i] = self.compute(self.ids([i])[0][0].tolist())
        return torch.stack([self.kept[i] for i in which])

    def probabilities(self, hidden):
        """[B, T, V] of what follows, at the temperature."""
        return torch.stack([(h @ self.head.T).float().div_(TEMPERATURE).softmax(-1) for h in hidden])


def losses(block, trunk, w, which, depth, look=False):
    """Loss of the first `depth` steps of the chain; with look, of each step the mean distance, the share that the rejection rule
    accepts, and the share of equal first choices."""
    (ids, there), hidden = trunk.ids(which), trunk.hidden(which)
    right, found, loss = trunk.probabilities(hidden), [], 0.0
    n = ids.shape[1] - depth
    for i, said in enumerate(block.drafts(w, trunk.table, ids, hidden, depth)):
        part = slice(1 + i, 1 + i + n)
        counts, seen = there[:, part].float(), torch.zeros(3) if look else None
        loss = loss + STEP_WEIGHTS[i] * Distance.apply(said, right[:, part], trunk.head, counts, seen) / counts.sum()
        if look:
            found.append((seen / counts.sum()).tolist())
    return loss, found


class Halves:
    """Gradients of a step by two threads, each of which takes half of the rows: on a busy machine, threads that meet at every product
    wait for each other most of the time."""

    def __init__(self, block, trunk, w):
        self.block, self.trunk, self.w, self.pool = block, trunk, w, concurrent.futures.ThreadPoolExecutor(2)

    def half(self, which, depth, look):
        network = self.w.network()
        loss, found = losses(self.block, self.trunk, network, which, depth, look)
        return torch.autograd.grad(loss, list(network.values())), found

    def step(self, which, depth, look):
        n = len(which) // 2
        done = list(self.pool.map(lambda rows: self.half(rows, depth, look), (which[:n], which[n:])))
        for leaf, a, b in zip(self.w.network().values(), *(grads for grads, _ in done)):
            leaf.grad = (a + b) / 2
        return np.mean([found for _, found in done], 0).tolist() if look else None


def shown(found):
    return ", ".join("%.3f %.3f %.3f" % tuple(step) for step in found)


def run(work, sizes, weights, basis, quern, model, seconds, dtype):
    path = os.path.join(work, "mtp.pt")
    if os.path.exists(path):
        return log(f"mtp: {path} is there")
    rows, watched = (np.load(os.path.join(work, f"{n}.npy")) for n in ("rows", "watched"))
    trunk, test = (Trunk(weights, r, quern, model, dtype) for r in (rows, watched))
    w = Weights(initial(weights, sizes, basis), basis, torch.device("cpu"), dtype)
    block, every = Block(sizes), list(range(len(watched)))
    halves = Halves(block, trunk, w)
    log(f"mtp: {sum(x.numel() for x in w.latent) / 1e6:.2f}M weights, {len(rows)} rows of {rows.shape[1]}; distance, accepted, equal")
    generator = torch.Generator().manual_seed(24)
    began, step, order, figures, tokens = time.time(), 0, [], {"losses": [], "held_out": []}, 0

    def look():
        with torch.no_grad():
            found = losses(block, test, w.network(), every, DEPTH, True)[1]
        figures["held_out"].append([step, time.time() - began, tokens, found])
        log(f"mtp: step {step}, {time.time() - began:.0f} s, {tokens} tokens, held out: {shown(found)}")

    look()
    while (done := (time.time() - began) / seconds) < 1:
        if len(order) < ROWS_A_STEP:
            order = torch.randperm(len(rows), generator=generator).tolist()
        which, order = order[:ROWS_A_STEP], order[ROWS_A_STEP:]
        depth = next(d for d, until in DEPTHS if done < until)
        found = halves.step(which, depth, step % 10 == 9)
        share = min(1.0, (step + 1) / WARM_UP) * schedule(done, RATES["flat"])
        w.step(RATES["muon"] * share, RATES["adam"] * share)
        step, tokens = step + 1, tokens + ROWS_A_STEP * rows.shape[1]
        if found:
            if not np.isfinite(found).all():
                fail(f"mtp: {found} at step {step}")
            figures["losses"].append([step, time.time() - began, tokens, found])
            log(f"mtp: step {step}, {time.time() - began:.0f} s: {shown(found)}")
        if step % 50 == 0:
            look()
            torch.save(w.state(), path + ".part")
    look()
    figures |= {"steps": step, "tokens": tokens, "seconds": time.time() - began}
    torch.save(w.state(), path + ".part")
    os.replace(path + ".part", path)
    save_json(os.path.join(work, "mtp.json"), figures)
