"""Stage report: how many drafted tokens of held-out texts are accepted, from the weights that the file has.

The texts were written by quern from the beginnings of stories that nobody trained on (mtp_texts.py). A text is gone through as a
drafter would: three tokens are drafted, those that the text has too are accepted, and drafting goes on after the first that it does not
have. What is drafted is the block's first choice, or, where texts are sampled, also the token that it draws with the text's own random
numbers.

SPDX-License-Identifier: Apache-2.0
"""
import os

import numpy as np
import torch

import ggufio
from common import load_json, log, save_json
from mtp_block import DEPTH, Block, basis_of, names_in, sizes_of, trunk_of
from mtp_training import TEMPERATURE, Trunk
from network import is_matrix


def block_of(tensors, sizes, basis):
    """{name: float32} of the file's block, in the plain basis."""
    found = {}
    for n in names_in(sizes).values():
        w = torch.from_numpy(tensors[n].decode().astype(np.float32)).reshape(tensors[n].shape)
        found[n] = basis.plain(n, w) if is_matrix(n, w.shape) else w
    return found


def drawn_alike(log_p, log_q, token, generator):
    """What is drawn from q with random numbers with which `token` was drawn from p: the largest of log p + g, g of Gumbel's
    distribution, given that it is the token's (Maddison et al., A* Sampling, 2014, on truncated Gumbels), then that of log q + g."""
    def gumbel(n):
        return -torch.empty(n, dtype=torch.float64).exponential_(generator=generator).log()

    largest = gumbel(1)
    perturbed = -torch.logaddexp(-largest, -(log_p + gumbel(len(log_p))))
    perturbed[token] = largest
    return int((log_q + perturbed - log_p).argmax())


def walk(proposed, ids, start, depth):
    """Steps and, of each place in the draft, how often it was reached and accepted. proposed [N, DEPTH]; a token is known at start + 1."""
    counts, p = np.zeros((depth, 2), int), start
    steps = 0
    while p + 1 + DEPTH < len(ids):
        n = 0
        while n < depth:
            right = proposed[p][n] == ids[p + 2 + n]
            counts[n] += [1, right]
            if not right:
                break
            n += 1
        p, steps = p + n + 1, steps + 1
    return steps, counts


@torch.no_grad()
def measured(texts, trunk, block, w, temperature, generator):
    """{what is proposed: {depth: figures}} over texts of one temperature."""
    sums = {}
    for at, (before, written, _) in enumerate(texts):
        ids = torch.tensor(before + written)
        hidden = trunk.hidden([at])[:, :len(ids)]
        said = block.drafts(w, trunk.table, ids[None], hidden, DEPTH)
        log_q = torch.stack([(h[0] @ trunk.head.T).double() for h in said], 1)  # [N, DEPTH, V]
        proposed = {"first choice": log_q.argmax(-1).tolist()}
        if temperature:
            log_q = (log_q / temperature).log_softmax(-1)
            log_p = ((hidden[0] @ trunk.head.T).double() / temperature).log_softmax(-1)
            alike = proposed["same random numbers"] = [[-1] * DEPTH for _ in log_q]
            for p in range(len(before) - 1, len(log_q)):
                for i in range(min(DEPTH, len(ids) - p - 2)):
                    alike[p][i] = drawn_alike(log_p[p + 1 + i], log_q[p, i], int(ids[p + 2 + i]), generator)
        for how, tokens in proposed.items():
            for depth in range(1, DEPTH + 1):
                steps, counts = walk(tokens, ids.tolist(), len(before) - 1, depth)
                known = sums.setdefault(how, {}).setdefault(depth, [0, np.zeros((depth, 2), int)])
                known[0] += steps
                known[1] += counts
    return {how: {depth: {"steps": steps, "accepted": (c[:, 1] / c[:, 0]).round(4).tolist(),
                          "tokens_a_step": round(float(1 + c[:, 1].sum() / steps), 4)} for depth, (steps, c) in by.items()}
            for how, by in sums.items()}


def run(work, quern, out):
    keys, tensors = ggufio.read(out)
    sizes = sizes_of(keys)
    basis = basis_of(keys, sizes)
    weights, w, block = trunk_of(tensors, sizes, basis), block_of(tensors, sizes, basis), Block(sizes)
    generator, figures = torch.Generator().manual_seed(25), {}
    held_out = load_json(os.path.join(work, "heldout.json"))
    for temperature in (0, TEMPERATURE):
        texts = [t for t in held_out if t[2] == temperature and len(t[1]) > DEPTH]
        trunk = Trunk(weights, [np.array(b + t) for b, t, _ in texts], quern, out, torch.float32)
        figures[temperature] = measured(texts, trunk, block, w, temperature, generator)
        n = sum(len(t[1]) for t in texts)
        for how, by in figures[temperature].items():
            for depth, found in by.items():
                log(f"report: temperature {temperature}, {len(texts)} texts, {n} tokens, {how}, {depth} drafted: {found}")
    save_json(os.path.join(work, "report.json"), figures)
