#!/usr/bin/env python3
"""Make tests/golden/parrot.gguf, caller.gguf and agent.gguf: tiny models with a tokeniser that always say the same thing.

usage: make_parrot_model.py tests/golden/parrot.gguf
       make_parrot_model.py tests/golden/caller.gguf --caller
       make_parrot_model.py tests/golden/agent.gguf --agent

The program's tests need a model that generates text, whose text is known, and which is the same on every machine. This one is a
llama whose attention and feed-forward layers add nothing, so that the next token depends on the last one alone: after any token
comes "H", and then, byte by byte, the rest of TEXT, and the end of the turn. The bytes of TEXT are all different (a byte must say
which one follows), and most of its characters take several, which is what streaming has to put together.

The caller says CALL instead, whose pieces are tokens: reasoning, then a tool call. Its chat template has tools and reasoning.

The agent is a caller that ends a loop of tools: after a tool's result its chat template ends with "H", after which the model says the
rest of TEXT.

The vocabulary is the 256 bytes, a few merged tokens, the pieces of CALL, and ChatML's special tokens; the pre-tokeniser is GPT-2's.
Needs numpy.

SPDX-License-Identifier: Apache-2.0
"""
import sys

import numpy as np

import ggufio

TEXT = "Hé 世🙂!"
MERGES = ["h e", "Ġ t", "Ġt he"]
CALL = [
    "<think>", "\nI look it up.\n", "</think>", "<tool_call>",
    '\n{"name": "look_up", "arguments": {"text": "a \\"quern\\"", "n": 2}}\n', "</tool_call>",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
CALLER_CHATML = (
    "{% if tools %}{{ '<|im_start|>system\\n' + tools|tojson + '<|im_end|>\\n' }}{% endif %}{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' }}"
    "{% if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}"
    "{{ message.content }}{% for call in message.tool_calls %}"
    "{{ '<tool_call>\\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}"
    "{{ call.function.arguments|tojson + '}\\n</tool_call>' }}"
    "{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)
AGENT_CHATML = CALLER_CHATML.replace("{% if enable_thinking", "{% if messages[-1].role == 'tool' %}H{% elif enable_thinking")
TEMPLATES = {"parrot": CHATML, "caller": CALLER_CHATML, "agent": AGENT_CHATML}
HIDDEN, LAYERS, HEADS, HEAD_DIM, FF = 32, 2, 2, 16, 32
# The logit of the token that follows is LOGIT, of all others 0: its probability is about 1 - 260 exp(-LOGIT).
LOGIT = 24.0


def byte_characters():
    """GPT-2's way to spell bytes as printable characters: printable Latin-1 as itself, the others from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelled, extra = {}, 256
    for b in range(256):
        if b in plain:
            spelled[b] = chr(b)
        else:
            spelled[b] = chr(extra)
            extra += 1
    return spelled


def main(path, model):
    spelled = byte_characters()
    added = [] if model == "parrot" else CALL
    plain = [spelled[b] for b in range(256)] + [m.replace(" ", "") for m in MERGES]
    vocab = plain + added + SPECIAL
    texts = [] if model == "parrot" else [[vocab.index(piece) for piece in CALL]]
    texts += [] if model == "caller" else [list(TEXT.encode())]
    said = sum(texts, [])
    assert len(set(said)) == len(said), "the bytes of TEXT and the pieces of CALL must all be different"
    end = vocab.index("<|im_end|>")
    last = {text[-1] for text in texts}
    # Tokens of the text have a direction of their own; all others share the last one.
    direction = np.full(len(vocab), HIDDEN - 1)
    direction[said] = np.arange(len(said))
    follows = {d: end if token in last else said[d + 1] for d, token in enumerate(said)}
    follows[HIDDEN - 1] = said[0]

    embedding = np.zeros((len(vocab), HIDDEN))
    embedding[np.arange(len(vocab)), direction] = 1.0
    output = np.zeros((len(vocab), HIDDEN))
    for d, token in follows.items():
        output[token, d] = LOGIT / np.sqrt(HIDDEN)  # the normed embedding is sqrt(HIDDEN) in its direction

    tensors = []

    def add(name, values, kind):
        tensors.append(ggufio.Tensor(name, values.shape, kind, ggufio.encode_plain(kind, values)))

    rng = np.random.default_rng(1)
    width = HEADS * HEAD_DIM
    add("token_embd.weight", embedding, "f16")
    add("output_norm.weight", np.ones(HIDDEN), "f32")
    add("output.weight", output, "f16")
    for i in range(LAYERS):
        add(f"blk.{i}.attn_norm.weight", np.ones(HIDDEN), "f32")
        for name in ("attn_q", "attn_k", "attn_v"):
            add(f"blk.{i}.{name}.weight", rng.normal(0, HIDDEN ** -0.5, (width, HIDDEN)), "f16")
        add(f"blk.{i}.attn_output.weight", np.zeros((HIDDEN, width)), "f16")
        add(f"blk.{i}.ffn_norm.weight", np.ones(HIDDEN), "f32")
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{i}.{name}.weight", rng.normal(0, HIDDEN ** -0.5, (FF, HIDDEN)), "f16")
        add(f"blk.{i}.ffn_down.weight", np.zeros((HIDDEN, FF)), "f16")

    keys = {
        "general.architecture": "llama",
        "general.name": model,
        "llama.block_count": LAYERS,
        "llama.context_length": 1024,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FF,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.vocab_size": len(vocab),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": vocab,
        "tokenizer.ggml.token_type": [1] * len(plain) + [4] * len(added) + [3] * len(SPECIAL),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.bos_token_id": vocab.index("<|endoftext|>"),
        "tokenizer.chat_template": TEMPLATES[model],
    }
    ggufio.write(path, keys, tensors)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--caller"], ["--agent"]):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2][2:] if len(sys.argv) == 3 else "parrot")
