"""Stages train and qat: the network in bfloat16, then the same with ternary weights, taught by the first.

What is trained are latent float32 weights; the forward pass sees bfloat16 tensors made from them before every step (in stage qat: the
plain matrices that the ternary ones mean), and the gradient of what it sees is the gradient of what is trained (straight through),
turned into its basis.

SPDX-License-Identifier: Apache-2.0
"""
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

from common import fail, log, save_json
from network import Network, initial, is_matrix
from optimizer import AdamW, Muon
from rows import END_OF_TEXT, PAD
from ternary import Basis, stored

IGNORED = -100
# How much of the loss in stage qat is the distance from the first network's predictions; the rest is that from the text.
FROM_TEACHER = 0.7
RATES = {"train": dict(muon=0.02, adam=3e-3, flat=0.5), "qat": dict(muon=0.01, adam=1.5e-3, flat=0.3)}
WARM_UP = 100


class Weights:
    """Latent weights, and what the network sees of them. basis: None, or that of ternary weights. dtype: of matrices as they are
    seen, by default bfloat16 on a GPU."""

    def __init__(self, weights, basis, device, dtype=None):
        self.basis, self.dtype = basis, dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
        groups = {}
        for name, shape in ((n, tuple(w.shape)) for n, w in weights.items()):
            # Matrices of one shape and way to be turned share a stack; the tables and small ones are trained another way.
            own = name if not is_matrix(name, shape) or not name.startswith("blk.") else ""
            groups.setdefault((own or name.endswith("ssm_out.weight"), shape), []).append(name)
        self.names = list(groups.values())
        self.latent, self.seen, self.leaves = [], [], []
        for names in self.names:
            stack = torch.stack([weights[n] for n in names]).to(device, torch.float32)
            seen = torch.empty_like(stack, dtype=self.dtype if self.narrow(names[0]) else torch.float32)
            self.latent.append(stack)
            self.seen.append(seen)
            self.leaves.append([s.detach().requires_grad_() for s in seen])
        self.by_muon = [is_matrix(names[0], stack.shape[1:]) and names[0].startswith("blk.")
                        for names, stack in zip(self.names, self.latent)]
        self.muon = Muon([w for w, m in zip(self.latent, self.by_muon) if m], self.dtype)
        self.adam = AdamW([w for w, m in zip(self.latent, self.by_muon) if not m])
        self.refresh()

    @staticmethod
    def narrow(name):
        return name.endswith(".weight") and "norm" not in name and "conv1d" not in name

    def network(self):
        return {n: leaf for names, leaves in zip(self.names, self.leaves) for n, leaf in zip(names, leaves)}

    def state(self):
        return {n: w.clone() for names, stack in zip(self.names, self.latent) for n, w in zip(names, stack)}

    @torch.no_grad()
    def refresh(self):
        for names, latent, seen in zip(self.names, self.latent, self.seen):
            if self.basis and is_matrix(names[0], latent.shape[1:]):
                seen.copy_(self.basis.meant(names[0], latent))
            elif names[0].endswith("ssm_a"):
                seen.copy_(-latent.exp())
            else:
                seen.copy_(stored(names[0], latent) if self.basis else latent)

    @torch.no_grad()
    def step(self, muon_rate, adam_rate):
        grads = []
        for names, latent, leaves, seen in zip(self.names, self.latent, self.leaves, self.seen):
            grad = torch.stack([leaf.grad for leaf in leaves]).float()
            if self.basis and is_matrix(names[0], latent.shape[1:]):
                grad = self.basis.rotated(names[0], grad)
            elif names[0].endswith("ssm_a"):
                grad = grad * seen
            grads.append(grad)
            for leaf in leaves:
                leaf.grad = None
        self.muon.step([g for g, m in zip(grads, self.by_muon) if m], muon_rate)
        self.adam.step([g for g, m in zip(grads, self.by_muon) if not m], adam_rate)
        self.refresh()


def text_loss(hidden, head, target):
    return F.cross_entropy((hidden @ head.T).float().flatten(0, 1), target.flatten(), ignore_index=IGNORED)


def distillation_loss(hidden, head, teacher_hidden, teacher_head, target):
    """Both losses; the distance is the mean over tokens of KL(teacher, student)."""
    said = (hidden @ head.T).float().log_softmax(-1)
    right = (teacher_hidden @ teacher_head.T).float().log_softmax(-1)
    counts = (target != IGNORED).float()
    distance = ((right.exp() * (right - said)).sum(-1) * counts).sum() / counts.sum()
    text = F.nll_loss(said.flatten(0, 1), target.flatten(), ignore_index=IGNORED)
    return text, distance


class Batches:
    """Rows in random order, all of them before any again."""

    def __init__(self, path, size, device, seed):
        rows = np.load(path).astype(np.int32)
        self.rows, self.size = torch.from_numpy(rows).to(device), min(size, len(rows))
        self.generator = torch.Generator().manual_seed(seed)
        self.order, self.at = None, len(rows)

    def next(self):
        if self.at + self.size > len(self.rows):
            self.order, self.at = torch.randperm(len(self.rows), generator=self.generator).to(self.rows.device), 0
        some = self.rows[self.order[self.at:self.at + self.size]]
        self.at += self.size
        return self.with_targets(some)

    @staticmethod
    def with_targets(some):
        some = some.long()
        target = F.pad(some[:, 1:], (0, 1), value=PAD)
        return some.masked_fill(some == PAD, END_OF_TEXT), target.masked_fill(target == PAD, IGNORED)


def schedule(done, flat):
    """Share of the rate: warm-up apart, constant for the share `flat` of the way, then a straight line down to 0."""
    return min(1.0, max(0.0, (1 - done) / (1 - flat)))


def loop(stage, sizes, weights, batches, watched, loss_of, seconds, fixed_steps):
    """Steps until the time is over; their number is set once a few have been timed. Returns figures of the run."""
    rates = RATES[stage]
    began, n_steps, timed_from, timed_at, sums, figures = time.time(), fixed_steps or 10 ** 9, 0, 0.0, None, []
    held_out = []
    step = 0
    while step < n_steps:
        ids, target = batches.next()
        losses = loss_of(weights.network(), ids, target)
        losses[0].backward()
        share = min(1.0, (step + 1) / WARM_UP) * schedule(step / n_steps, rates["flat"])
        weights.step(rates["muon"] * share, rates["adam"] * share)
        shown = torch.stack([loss.detach() for loss in losses])
        sums = shown if sums is None else sums + shown
        step += 1
        if not fixed_steps and step in (10, 40):  # the first ones compile
            values = sums.tolist()
            if step == 10:
                timed_from, timed_at = step, time.time()
            else:
                each = (time.time() - timed_at) / (step - timed_from)
                n_steps = step + max(1, int((seconds - (time.time() - began)) / each))
                log(f"{stage}: {each * 1e3:.1f} ms a step, {batches.size * sizes.row / each:.0f} tokens/s, {n_steps} steps; "
                    f"{timed_at - began:.0f} s to compile")
        if step % max(1, min(100, n_steps // 10)) == 0 or step == n_steps:
            values = [v / max(1, min(100, n_steps // 10)) for v in sums.tolist()]
            sums = None
            if not all(np.isfinite(values)):
                fail(f"{stage}: loss {values} at step {step}")
            figures.append([step, *values])
            log(f"{stage}: step {step} of {n_steps}, {time.time() - began:.0f} s, loss " + " ".join(f"{v:.4f}" for v in values))
        if step % 300 == 0 or step == n_steps:
            # As in training, but for the backward pass: another mode would be compiled anew.
            seen = [float(loss.detach()) for loss in loss_of(weights.network(), *watched)]
            held_out.append([step, *seen])
            log(f"{stage}: step {step}, held out: " + " ".join(f"{v:.4f}" for v in seen))
    return {"steps": step, "tokens": step * batches.size * sizes.row, "seconds": time.time() - began, "losses": figures,
            "held_out": held_out}


def run(stage, work, sizes, device, seconds, fixed_steps):
    path = os.path.join(work, f"{stage}.pt")
    if os.path.exists(path):
        return log(f"{stage}: {path} is there")
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    torch.manual_seed(6)
    network = Network(sizes, fuse=device.type == "cuda")
    fused = torch.compile if device.type == "cuda" else lambda f: f
    batches = Batches(os.path.join(work, "rows.npy"), sizes.rows_a_step, device, seed={"train": 7, "qat": 8}[stage])
    if stage == "train":
        first = initial(sizes, torch.Generator().manual_seed(6))
        first = {n: (-w).log() if n.endswith("ssm_a") else w for n, w in first.items()}
        weights, by_text = Weights(first, None, device), fused(text_loss)

        def loss_of(w, ids, target):
            return [by_text(network.hidden(w, ids), w["output.weight"], target)]
    else:
        trained = torch.load(os.path.join(work, "train.pt"), map_location=device)
        teacher = {n: w.detach() for n, w in Weights(trained, None, device).network().items()}
        basis = Basis(sizes, device)
        latent = {n: basis.rotated(n, w) if is_matrix(n, w.shape) else w for n, w in trained.items()}
        weights, taught = Weights(latent, basis, device), fused(distillation_loss)

        def loss_of(w, ids, target):
            with torch.no_grad():
                right = network.hidden(teacher, ids)
            text, distance = taught(network.hidden(w, ids), w["output.weight"], right, teacher["output.weight"], target)
            return [FROM_TEACHER * distance + (1 - FROM_TEACHER) * text, text, distance]
    n = sum(w.numel() for w in weights.latent)
    log(f"{stage}: {n / 1e6:.1f}M weights, {len(batches.rows)} rows of {sizes.row}")
    watched = Batches.with_targets(torch.from_numpy(np.load(os.path.join(work, "watched.npy")).astype(np.int32)).to(device))
    figures = loop(stage, sizes, weights, batches, watched, loss_of, seconds, fixed_steps)
    if device.type == "cuda":
        figures["memory_gib"] = torch.cuda.max_memory_allocated() / 2 ** 30
    torch.save({n: w.cpu() for n, w in weights.state().items()}, path + ".part")
    os.replace(path + ".part", path)
    save_json(os.path.join(work, f"{stage}.json"), figures)
