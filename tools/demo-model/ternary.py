"""Ternary weights in a rotated basis: how a trained matrix gets there, what the file will hold, and what the network then computes.

A matrix W that reads x is kept as W' = W S H, because the file's readers give it H(S x) (src/model/hadamard.h): H the normalised
Walsh-Hadamard matrix in blocks, S random signs of the input width, H S S H = 1. W' is what becomes ternary, in groups of 128 of a
row: codes by a threshold at 0.7 of the mean magnitude, the scale the mean of those above it (Li and Liu, Ternary Weight Networks,
2016), rounded to f16. The embedding table is kept the same way, its rows turned back when read. The network itself computes with the
matrix that this means in the plain basis, Q(W') H S: the same function, and no product more.

SPDX-License-Identifier: Apache-2.0
"""
import numpy as np
import torch

import hadamard
from network import is_matrix

GROUP = 128
THRESHOLD = 0.7


def signs_of(sizes):
    """One run of signs an input width, drawn once and for all."""
    rng = np.random.default_rng(20)
    widths = sorted({sizes.hidden, sizes.ff, sizes.n_v * sizes.head_v, sizes.heads * sizes.head_dim})
    return {w: rng.integers(0, 2, w) * 2 - 1 for w in widths}


def quantise(z):
    """Scales [n_out, n_in / GROUP] as f16 values and codes -1, 0, 1 [n_out, n_in], of z [..., n_out, n_in] float32."""
    x = z.unflatten(-1, (-1, GROUP))
    size = x.abs()
    above = size > THRESHOLD * size.mean(-1, keepdim=True)
    scale = (size * above).sum(-1) / above.sum(-1).clamp(min=1)
    # f16 has no smaller normal number than 6.1e-5, and a scale of 0 would leave a row without gradient.
    scale = scale.clamp(min=1e-4).half().float()
    return scale, (x.sign() * above).flatten(-2)


class Basis:
    """Between the plain basis and the file's, for the matrices of a network."""

    def __init__(self, sizes, device):
        self.s = sizes
        self.h = torch.from_numpy(hadamard.matrix(sizes.block)).to(device, torch.float32)
        self.signs = {w: torch.from_numpy(s).to(device, torch.float32) for w, s in signs_of(sizes).items()}
        heads = hadamard.tiled_to_grouped(np.arange(sizes.n_v * sizes.head_v), sizes.n_k, sizes.n_v)
        self.grouped = torch.from_numpy(heads).to(device)
        self.tiled = self.grouped.argsort()

    def turn(self, w):
        return (w.unflatten(-1, (-1, self.s.block)) @ self.h).flatten(-2)

    def rotated(self, name, w):
        if name.endswith("ssm_out.weight"):
            w = w[..., self.grouped]
        return self.turn(w * self.signs[w.shape[-1]])

    def plain(self, name, z):
        w = self.turn(z) * self.signs[z.shape[-1]]
        return w[..., self.tiled] if name.endswith("ssm_out.weight") else w

    def meant(self, name, z):
        """The matrix that the network multiplies with, when z is what is trained."""
        scale, codes = quantise(z)
        return self.plain(name, (codes.unflatten(-1, (-1, GROUP)) * scale[..., None]).flatten(-2))


def stored(name, w):
    """What the file keeps of a parameter that is not ternary, as float32: the gates' two products are f16."""
    return w.half().float() if name.endswith(("ssm_alpha.weight", "ssm_beta.weight")) else w


def quantised_network(sizes, latent, basis):
    """Plain float32 weights of the network that the file of these latent weights is."""
    return {n: basis.meant(n, w) if is_matrix(n, w.shape) else stored(n, w) for n, w in latent.items()}
