#!/usr/bin/env python3
"""KL divergences in float64 from the logits of `quern logits`: what `quern perplexity --kl-divergence` must print, and files of log
probabilities written and read by this script alone, in llama-perplexity's format.

usage: divergence.py QUERN MODEL TEXT WORK
       divergence.py --damage HOW FILE OUT

The first form leaves WORK/saved, a file that quern wrote; the second copies such a file with one thing wrong."""
import array
import math
import re
import struct
import subprocess
import sys

CTX, PIECES = 160, 0  # codes begin after 64 positions; check() counts the pieces
FIRST = CTX // 2
# Lines of llama-perplexity (llama.cpp's tools/perplexity/perplexity.cpp), # for a number: what reads those reads quern's.
LINES = """====== Perplexity statistics ======
Mean PPL(Q)                   : # ± #
Mean PPL(base)                : # ± #
Cor(ln(PPL(Q)), ln(PPL(base))): #%
Mean ln(PPL(Q)/PPL(base))     : # ± #
Mean PPL(Q)/PPL(base)         : # ± #
Mean PPL(Q)-PPL(base)         : # ± #

====== KL divergence statistics ======
Mean    KLD: # ± #
Maximum KLD: #
99.9%   KLD: #
99.0%   KLD: #
95.0%   KLD: #
90.0%   KLD: #
Median  KLD: #
10.0%   KLD: #
 5.0%   KLD: #
 1.0%   KLD: #
 0.1%   KLD: #
Minimum KLD: #

====== Token probability statistics ======
Mean    Δp: # ± # %
Maximum Δp: #%
99.9%   Δp: #%
99.0%   Δp: #%
95.0%   Δp: #%
90.0%   Δp: #%
75.0%   Δp: #%
Median  Δp: #%
25.0%   Δp: #%
10.0%   Δp: #%
 5.0%   Δp: #%
 1.0%   Δp: #%
 0.1%   Δp: #%
Minimum Δp: #%
RMS Δp    : # ± # %
Same top p: # ± # %"""


def quern(*args):
    done = subprocess.run(args, capture_output=True, text=True, timeout=120)
    if done.returncode:
        sys.exit(f"{' '.join(args)}: {done.stderr}")
    return done.stdout


def log_softmax(logits):
    largest = max(logits)
    log_sum = largest + math.log(sum(math.exp(x - largest) for x in logits))
    return [x - log_sum for x in logits]


def rows_of(program, model, kv, tokens, work):
    """Log probabilities of the positions FIRST to CTX - 2 of each piece."""
    rows = []
    for piece in range(PIECES):
        ids = tokens[piece * CTX : (piece + 1) * CTX]
        quern(program, "logits", "-m", model, "--kv", kv, "--ids", ",".join(map(str, ids)), "-o", f"{work}/logits")
        values = array.array("f", open(f"{work}/logits", "rb").read())
        n = len(values) // CTX
        rows += [log_softmax(values[at * n : (at + 1) * n].tolist()) for at in range(FIRST, CTX - 1)]
    return rows


def codes_of(log_probs):
    largest, smallest = max(log_probs), max(min(log_probs), max(log_probs) - 16)
    scale = (largest - smallest) / 65535
    return scale, smallest, [min(65535, max(0, round((p - smallest) / scale))) for p in log_probs]


def write_file(path, tokens, rows):
    n_vocab = len(rows[0])
    with open(path, "wb") as out:
        out.write(b"_logits_" + struct.pack(f"<3i{len(tokens)}i", CTX, n_vocab, PIECES, *tokens))
        for row in rows:
            scale, smallest, codes = codes_of(row)
            out.write(struct.pack(f"<2f{n_vocab}H", scale, smallest, *codes) + b"\0\0" * (n_vocab % 2))


def read_file(path):
    data = open(path, "rb").read()
    ctx, n_vocab, pieces = struct.unpack_from("<3i", data, 8)
    assert data[:8] == b"_logits_" and (ctx, pieces) == (CTX, PIECES), "the head of the file"
    tokens = list(struct.unpack_from(f"<{ctx * pieces}i", data, 20))
    at, rows = 20 + 4 * ctx * pieces, []
    for _ in range(pieces * (ctx - 1 - ctx // 2)):
        scale, smallest, *codes = struct.unpack_from(f"<2f{n_vocab}H", data, at)
        rows.append([smallest + scale * code for code in codes])
        at += 8 + 2 * (n_vocab + n_vocab % 2)
    assert at == len(data), "the size of the file"
    return tokens, rows


def mean_of(values):
    n, mean = len(values), sum(values) / len(values)
    return mean, math.sqrt(max(0, sum(v * v for v in values) / n - mean * mean) / (n - 1))


def percentile(values, percent):
    values, at = sorted(values), percent / 100 * (len(values) - 1)
    below = math.floor(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (at - below) * (values[above] - values[below])


def statistics(tokens, base, rows):
    divergences, changes, same, nlls, base_nlls = [], [], [], [], []
    for i, (b, q) in enumerate(zip(base, rows)):
        piece, at = divmod(i, CTX - 1 - FIRST)
        token = tokens[piece * CTX + FIRST + at + 1]
        divergences.append(sum(math.exp(x) * (x - y) for x, y in zip(b, q) if x > -16))
        changes.append(100 * (math.exp(q[token]) - math.exp(b[token])))
        same.append(float(b.index(max(b)) == q.index(max(q))))
        nlls.append(-q[token])
        base_nlls.append(-b[token])
    (nll, nll_error), (base_nll, base_error), n = mean_of(nlls), mean_of(base_nlls), len(nlls)
    covariance = (sum(a * b for a, b in zip(nlls, base_nlls)) / n - nll * base_nll) / (n - 1)
    ratio_error = math.sqrt(max(0, nll_error**2 + base_error**2 - 2 * covariance))
    ppl, base_ppl = math.exp(nll), math.exp(base_nll)
    difference_error = math.sqrt(max(0, (ppl * nll_error) ** 2 + (base_ppl * base_error) ** 2 - 2 * ppl * base_ppl * covariance))
    square, square_error = mean_of([c * c for c in changes])
    share = sum(same) / n
    found = {
        "Mean PPL(Q)": (ppl, ppl * nll_error),
        "Mean PPL(base)": (base_ppl, base_ppl * base_error),
        "Cor(ln(PPL(Q)), ln(PPL(base)))": (100 * covariance / (nll_error * base_error),),
        "Mean ln(PPL(Q)/PPL(base))": (nll - base_nll, ratio_error),
        "Mean PPL(Q)/PPL(base)": (ppl / base_ppl, ppl / base_ppl * ratio_error),
        "Mean PPL(Q)-PPL(base)": (ppl - base_ppl, difference_error),
        "Mean KLD": mean_of(divergences),
        "Mean Δp": mean_of(changes),
        "RMS Δp": (math.sqrt(square), square_error / (2 * math.sqrt(square)) if square else 0),
        "Same top p": (100 * share, 100 * math.sqrt(share * (1 - share) / (n - 1))),
    }
    for name, values in (("KLD", divergences), ("Δp", changes)):
        for word, percent in (("Maximum", 100), ("Median", 50), ("Minimum", 0)):
            found[f"{word} {name}"] = (percentile(values, percent),)
        for percent in (99.9, 99, 95, 90, 10, 5, 1, 0.1) + ((75, 25) if name == "Δp" else ()):
            found[f"{percent:.1f}% {name}"] = (percentile(values, percent),)
    return found


def blocks_of(text):
    """Printed statistics, a dictionary for each measurement."""
    blocks = []
    for block in re.split(r"^.*, KV cache .* tokens$", text, flags=re.M)[1:]:
        lines = "\n".join(re.sub(r"(: |± ) *-?[0-9]+\.[0-9]+", r"\1#", line) for line in block.strip("\n").split("\n"))
        assert lines.startswith(LINES), f"not the lines of llama-perplexity: {lines}"
        lines = re.findall(r"^ *(\S[^:\n]*?) *: +(.*)$", block, flags=re.M)
        numbers = lambda t: tuple(float(x) for x in re.findall(r"-?[0-9]+\.[0-9]+", t))
        blocks.append({re.sub(" +", " ", name): numbers(values) for name, values in lines})
    return blocks


def compare(what, printed, expected):
    """Printed are 6 digits after the point, of the correlation 2 and of the share 3. Log probabilities in quern are floats: those of
    likely tokens are off by 1e-7, and changes of probability are per cent."""
    assert printed.keys() == expected.keys(), f"{what}: printed {sorted(printed.keys() ^ expected.keys())} alone, or not at all"
    for name, values in expected.items():
        digits = {"Cor(ln(PPL(Q)), ln(PPL(base)))": 5.1e-3, "Same top p": 5.1e-4}.get(name, 2e-5 if "Δp" in name else 2e-6)
        for p, e in zip(printed[name], values):
            if abs(p - e) > digits + 2e-5 * abs(e):
                sys.exit(f"{what}: {name} is {p}, expected {e}")
        assert len(printed[name]) == len(values), f"{what}: {name}"


def check(program, model, text, work):
    saved, own = f"{work}/saved", f"{work}/own"
    run = lambda *args: quern(program, "perplexity", model, "-t", "1", *args)
    limits = ("-f", text, "--limit-bytes", "2000", "-c", str(CTX))
    tokens = list(map(int, quern(program, "tokenize", model, "--ids", open(text, "rb").read(2000).decode(errors="ignore")).split()))
    global PIECES
    PIECES = len(tokens) // CTX
    tokens = tokens[: PIECES * CTX]
    f16, aura3 = (rows_of(program, model, kv, tokens, work) for kv in ("f16", "aura3"))

    assert run(*limits) == run(*limits, "--save-logits", saved), "--save-logits changes the perplexity"
    write_file(own, tokens, f16)
    saved_tokens, saved_rows = read_file(saved)
    assert saved_tokens == tokens, "the tokens of the file"
    own_rows = read_file(own)[1]
    off = max(abs(a - b) for x, y in zip(saved_rows, own_rows) for a, b in zip(x, y))
    assert off < 2.6e-4, f"log probabilities of the file differ by {off}: a code is 16 / 65535"

    for what, base_rows, args in (("a file", own_rows, (own,)), ("quern's file", saved_rows, (saved,)), ("a model", f16, (model, *limits))):
        blocks = blocks_of(run("--kl-divergence", *args, "--kv", "f16,aura3"))
        assert len(blocks) == 2, f"{len(blocks)} blocks"
        if what != "a model":
            compare(f"{what}, f16", blocks[0], statistics(tokens, base_rows, f16))
        else:
            assert blocks[0]["Maximum KLD"] == (0.0,) and blocks[0]["RMS Δp"] == (0.0, 0.0), "a model against itself"
        compare(f"{what}, aura3", blocks[1], statistics(tokens, base_rows, aura3))

    # Models and formats, a row for each; one measurement has no table.
    both = run("--kl-divergence", saved, "--compare", model, "--kv", "f16,aura3")
    rows = [line.split() for line in both.rpartition("\nKV ")[2].splitlines()[1:]]
    assert [(r[0], r[-1]) for r in rows] == [(kv, model) for _ in range(2) for kv in ("f16", "aura3")], "rows of the table"
    assert rows[:2] == rows[2:] and len(blocks_of(both)) == 4, "the same model twice"
    assert rows[1][1] == "%.4f" % blocks_of(both)[1]["Mean PPL(Q)"][0], "PPL in the table"
    assert "\nKV " not in run("--kl-divergence", saved), "a table of one"


def damage(how, path, out):
    data = bytearray(open(path, "rb").read())
    ctx, _, pieces = struct.unpack_from("<3i", data, 8)
    first_row = 20 + 4 * ctx * pieces
    edits = {
        "ctx": (8, "<i", 2**31 - 1), "small-ctx": (8, "<i", 2), "vocab": (12, "<i", 4097), "chunks": (16, "<i", 2**31 - 1),
        "no-chunks": (16, "<i", 0), "negative": (16, "<i", -1), "token": (32, "<i", 4096), "minus": (32, "<i", -1),
        "nan": (first_row, "<f", math.nan), "infinite": (first_row + 4, "<f", -math.inf), "positive": (first_row + 4, "<f", 1.0),
    }
    if how == "short":
        data = data[:-2]
    elif how == "long":
        data += b"\0\0"
    elif how == "head":
        data = data[:14]
    else:
        at, form, value = edits[how]
        struct.pack_into(form, data, at, value)
    open(out, "wb").write(data)


damage(*sys.argv[2:]) if sys.argv[1] == "--damage" else check(*sys.argv[1:])
