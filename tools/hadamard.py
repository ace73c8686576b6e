"""Weights stored in a rotated basis (GGUF keys prism.hadamard.*): what their inputs, and rows of a rotated table, go through.

H is the normalised Walsh-Hadamard matrix in Sylvester's order, written out as its definition says: quern's butterflies must not
be checked against butterflies. Needs numpy.

SPDX-License-Identifier: Apache-2.0
"""
import numpy as np

PREFIX = "prism.hadamard."
TRANSFORM = "normalized-sylvester-walsh-hadamard"
AXIS = "input-last-dimension"


def matrix(n):
    """H[r][c] is negative where r & c has an odd number of bits."""
    index = np.arange(n)
    odd = np.array([bin(i).count("1") & 1 for i in range(n)])[index[:, None] & index[None, :]]
    return (1.0 - 2.0 * odd) / np.sqrt(n)


def transform(x, block):
    """H times every run of `block` values of the last axis."""
    return (x.reshape(-1, block) @ matrix(block)).reshape(x.shape)


def tiled_to_grouped(x, n_k, n_v):
    """Value heads along the last axis from r * n_k + k to k * rep + r, where k is the key head that they read."""
    return x.reshape(*x.shape[:-1], n_v // n_k, n_k, -1).swapaxes(-3, -2).reshape(x.shape)


def grouped_to_tiled(x, n_k, n_v):
    return tiled_to_grouped(x, n_v // n_k, n_v)


class Rotation:
    """What a file's keys require; of a file without such keys, nothing."""

    def __init__(self, keys):
        self.names, self.inverse_names = set(), set()
        found = {key[len(PREFIX):]: value for key, value in keys.items() if key.startswith(PREFIX)}
        if not found:
            return
        if found["version"] not in (1, 2) or found["transform"] != TRANSFORM or found["axis"] != AXIS:
            raise ValueError(f"{PREFIX}*: version {found['version']}, transform '{found['transform']}', axis '{found['axis']}'")
        self.block, self.names = found["block_size"], set(found["weight_names"])
        self.inverse_names = set(found["inverse_weight_names"])
        if found.get("tied_output", False):
            self.names.add("token_embd.weight")
        self.signs = {}
        if found["sign_mode"] == "explicit":
            ends = np.cumsum(found["sign_widths"])[:-1]
            runs = np.split(np.array(found["sign_values"], np.float64), ends)
            self.signs = dict(zip(found["sign_widths"], runs, strict=True))
        arch = keys["general.architecture"]
        self.grouped = found.get("gdn_v_grouped", False)
        self.n_k, self.n_v = (keys.get(f"{arch}.ssm.{key}") for key in ("group_count", "time_step_rank"))

    def sign(self, width):
        return self.signs[width] if self.signs else np.ones(width)

    def input(self, name, x):
        """What the matrix of this name expects in place of x [..., n_in]."""
        if name not in self.names:
            return x
        if self.grouped and name.endswith("ssm_out.weight"):
            x = tiled_to_grouped(x, self.n_k, self.n_v)
        return transform(x * self.sign(x.shape[-1]), self.block)

    def rows(self, name, z):
        """Rows of the table of this name as they were before it was rotated."""
        return transform(z, self.block) * self.sign(z.shape[-1]) if name in self.inverse_names else z

    def plain(self, name, z):
        """The matrix W for which W x is z times input(name, x)."""
        if name not in self.names:
            return z
        w = transform(z, self.block) * self.sign(z.shape[-1])
        return grouped_to_tiled(w, self.n_k, self.n_v) if self.grouped and name.endswith("ssm_out.weight") else w
