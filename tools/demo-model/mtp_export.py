"""Stage join: the trained block joined to a file. The tensors that were there are copied byte for byte.

The block's matrices are PTQ1_0 in the file's rotated basis, as the trunk's are, eh_proj with signs of its own width.

SPDX-License-Identifier: Apache-2.0
"""
import os

import numpy as np
import torch

import ggufio
import hadamard
from common import fail, log
from export import MOST_BYTES, tensor
from mtp_block import names_in
from network import is_matrix

# Of the keys' arrays of numbers, the types that they have in the file: a reader of Python lists does not see them.
NUMBERS = {"qwen35.rope.dimension_sections": "i4", "tokenizer.ggml.token_type": "i4", hadamard.PREFIX + "sign_widths": "i4",
           hadamard.PREFIX + "sign_values": "i1"}


def typed(keys):
    return {k: np.array(v, NUMBERS[k]) if k in NUMBERS else v for k, v in keys.items()}


def without_block(keys, tensors, layers):
    """The file as it was without a block."""
    prefix, names = f"blk.{layers}.", hadamard.PREFIX + "weight_names"
    keys = {**keys, "qwen35.block_count": layers, names: [n for n in keys[names] if not n.startswith(prefix)]}
    keys.pop("qwen35.nextn_predict_layers", None)
    return keys, {n: t for n, t in tensors.items() if not n.startswith(prefix)}


def with_block(keys, latent, sizes, basis):
    """Keys of the file with the block: those there were, in their order."""
    names = [n for n, w in latent.items() if is_matrix(n, w.shape)]
    widths = {w: basis.signs[w].numpy() for w in sorted({latent[n].shape[1] for n in names} | set(keys[hadamard.PREFIX + "sign_widths"]))}
    changed = {"qwen35.block_count": sizes.layers + 1, hadamard.PREFIX + "sign_widths": list(widths),
               hadamard.PREFIX + "sign_values": np.concatenate(list(widths.values())).astype(int).tolist(),
               hadamard.PREFIX + "weight_names": keys[hadamard.PREFIX + "weight_names"] + names}
    found = {}
    for k, v in keys.items():
        found[k] = changed.get(k, v)
        if k == "qwen35.block_count":
            found["qwen35.nextn_predict_layers"] = 1
    return found


def run(work, sizes, basis, model, out):
    latent = torch.load(os.path.join(work, "mtp.pt"), map_location="cpu")
    keys, tensors = without_block(*ggufio.read(model), sizes.layers)
    added = [tensor(n, latent[n]) for n in names_in(sizes).values()]
    ggufio.write(out + ".part", typed(with_block(keys, latent, sizes, basis)), [*tensors.values(), *added])
    size = os.path.getsize(out + ".part")
    if size > MOST_BYTES:
        fail(f"join: the file has {size} bytes, at most {MOST_BYTES} are allowed")
    written = ggufio.read(out + ".part")[1]
    for n, t in tensors.items():
        if not np.array_equal(written[n].data, t.data):
            fail(f"join: '{n}' is not what it was")
    os.replace(out + ".part", out)
    log(f"join: {out}, {size} bytes, of which the block {sum(t.data.size for t in added)}")
