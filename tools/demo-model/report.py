"""Stage report: what both networks are worth on stories that nobody trained on, what they write, and logits to hold quern to.

SPDX-License-Identifier: Apache-2.0
"""
import math
import os

import numpy as np
import torch
import torch.nn.functional as F

from common import load_json, log, save, save_json
from network import Network, is_matrix
from rows import SPECIAL, conversation
from ternary import Basis, quantised_network

PLAIN = ["Once upon a time", "One day, a little fox found a lantern in the snow.", "The old clock in the kitchen could talk.",
         "Lily and Ben were playing by the river when", "There was a dragon who was afraid of the dark."]
ASKED = ["Tell me a story about a rabbit and a red kite.", "Write a story about a brave little snail.",
         "Can you tell me a story about a girl named Anna and a magic key?", "Tell me a story with a boat and a storm.",
         "Hello!"]
TEMPERATURE, MIN_P = 0.7, 0.05


@torch.no_grad()
def losses(network, w, tok, texts, width, device):
    """Sum of nats and number of bytes over texts, each on its own; of the first token nothing is known, so it does not count."""
    nats, n_bytes = 0.0, 0
    encoded = [(t, e.ids) for t, e in zip(texts, tok.encode_batch(texts))]
    encoded = sorted([p for p in encoded if len(p[1]) <= width], key=lambda p: len(p[1]))
    for start in range(0, len(encoded), 32):
        some = encoded[start:start + 32]
        longest = -(-len(some[-1][1]) // 64) * 64
        ids, target = np.zeros((len(some), longest), np.int64), np.full((len(some), longest), -100)
        for i, (text, row) in enumerate(some):
            ids[i, :len(row)], target[i, :len(row) - 1] = row, row[1:]
            n_bytes += len(text.encode()) - len(tok.decode([row[0]]).encode())
        logits = network.logits(w, torch.from_numpy(ids).to(device)).float()
        nats += F.cross_entropy(logits.flatten(0, 1), torch.from_numpy(target).to(device).flatten(), reduction="sum").item()
    return nats, n_bytes


@torch.no_grad()
def continue_texts(network, w, tok, prompts, n_new, device):
    """One continuation a prompt, each sampled until an end token: plainly, the whole text again for every token."""
    generator = torch.Generator(device).manual_seed(11)
    rows = [tok.encode(p).ids for p in prompts]
    width = -(-(max(map(len, rows)) + n_new) // 64) * 64
    ids = torch.zeros(len(rows), width, dtype=torch.long, device=device)
    for i, row in enumerate(rows):
        ids[i, :len(row)] = torch.tensor(row)
    length = torch.tensor([len(r) for r in rows], device=device)
    ends = torch.tensor([tok.token_to_id(SPECIAL[0]), tok.token_to_id(SPECIAL[2])], device=device)
    alive, which = torch.ones(len(rows), dtype=torch.bool, device=device), torch.arange(len(rows), device=device)
    for _ in range(n_new):
        last = network.hidden(w, ids[:, :-(-int(length.max()) // 64) * 64])[which, length - 1]
        x = (last @ w["output.weight"].T).float() / TEMPERATURE
        p = x.masked_fill(x < x.amax(-1, keepdim=True) + math.log(MIN_P), -torch.inf).softmax(-1)
        new = torch.multinomial(p, 1, generator=generator)[:, 0]
        alive &= ~torch.isin(new, ends)
        if not alive.any():
            break
        ids[which, length] = torch.where(alive, new, ids[which, length])
        length += alive
    return [tok.decode(ids[i, len(r):length[i]].tolist()) for i, r in enumerate(rows)]


def run(work, sizes, device):
    from tokenizers import Tokenizer

    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
    tok = Tokenizer.from_file(os.path.join(work, "tokenizer.json"))
    network, basis = Network(sizes), Basis(sizes, torch.device("cpu"))
    trained = torch.load(os.path.join(work, "train.pt"), map_location=device)
    latent = torch.load(os.path.join(work, "qat.pt"), map_location="cpu")
    plain = {n: -w.exp() if n.endswith("ssm_a") else w.bfloat16().float() if is_matrix(n, w.shape) else w for n, w in trained.items()}
    # On the CPU, as the exporter does: a sum in another order can put a weight on the other side of the threshold.
    low = quantised_network(sizes, {n: -w.exp() if n.endswith("ssm_a") else w for n, w in latent.items()}, basis)
    low = {n: w.to(device) for n, w in low.items()}
    held_out, figures = load_json(os.path.join(work, "heldout.json")), {}
    for origin in ("read", "written"):
        texts = [t for o, t in held_out if o == origin]
        if not texts:
            continue
        bits = {}
        for what, w in (("bf16", plain), ("ternary", low)):
            nats, n_bytes = losses(network, w, tok, texts, sizes.row, device)
            bits[what] = nats / n_bytes
        figures[origin] = {"stories": len(texts), "bytes": n_bytes, "nats_per_byte": bits,
                           "perplexity_per_byte": {k: math.exp(v) for k, v in bits.items()},
                           "ternary_over_bf16": math.exp(bits["ternary"] - bits["bf16"])}
        log(f"report: {origin}: {figures[origin]}")
    save_json(os.path.join(work, "report.json"), figures)
    prompts = PLAIN + [conversation(q, "").removesuffix("<|im_end|>\n") for q in ASKED]
    with open(os.path.join(work, "samples.md"), "w", encoding="utf-8") as f:
        for what, w in (("ternary", low), ("bf16", plain)):
            texts = continue_texts(network, w, tok, prompts, 60 if sizes.vocab < 4096 else 320, device)
            f.write(f"# {what}\n\n" + "".join(f"**{p}**\n\n{t}\n\n" for p, t in zip(PLAIN + ASKED, texts)))
    # A file's logits are compared at the tokens of a few texts: a held-out story, a request, and bytes of no language.
    rng = np.random.default_rng(9)
    texts = [held_out[0][1], prompts[5] + held_out[-1][1][:400]]
    rows = [tok.encode(t).ids[:sizes.tail_ids] for t in texts] + [rng.integers(0, sizes.vocab, sizes.tail_ids).tolist()]
    for i, row in enumerate(rows):
        ids = F.pad(torch.tensor(row), (0, -len(row) % 64))[None].to(device)
        with torch.no_grad():
            logits = network.logits(low, ids)[0, :len(row)]
        save(os.path.join(work, f"logits{i}.ids"), lambda f, row=row: f.writelines(f"{n}\n" for n in row))
        save(os.path.join(work, f"logits{i}.f32"), lambda f, x=logits: f.write(x.float().cpu().numpy().astype("<f4").tobytes()), "wb")
    log("report: written")
