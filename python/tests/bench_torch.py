"""Times of pyquern.torch on a GPU, of calls launched from Python one by one.

    python python/tests/bench_torch.py

Host time is what a call takes on the CPU while the GPU is behind; GPU time is by CUDA events around calls; both are medians.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

import pyquern.torch as pt
from pyquern import kernels

CALLS = 200


def measured(call: Callable[[], Any], calls: int) -> tuple[float, float, float]:
    """Milliseconds of a call: on the host with a busy GPU, on the GPU with calls back to back, and in all."""
    for _ in range(5):
        call()
    host: list[float] = []
    while len(host) < calls:
        if len(host) % 50 == 0:  # few enough launches for the queue of the driver
            torch.cuda.synchronize()
            torch.cuda._sleep(100_000_000)  # the GPU stays behind
        begin = time.perf_counter()
        call()
        host.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(calls + 1)]
    torch.cuda._sleep(20_000_000)
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    device = [a.elapsed_time(b) for a, b in pairwise(events)]
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return statistics.median(host) * 1e3, statistics.median(device), (time.perf_counter() - begin) / calls * 1e3


def show(name: str, call: Callable[[], Any], calls: int = CALLS) -> None:
    host, device, whole = measured(call, calls)
    print(f"{name:64} host {host:7.4f}  GPU {device:7.4f}  one by one {whole:7.4f} ms", flush=True)


def rule(
    tokens: int, heads: int, v_heads: int, dtype: Any = torch.bfloat16, gates: bool = False, **options: Any
) -> Any:
    q, k = (torch.randn(1, tokens, heads, 128, device="cuda").to(dtype) for _ in range(2))
    v = torch.randn(1, tokens, v_heads, 128, device="cuda").to(dtype)
    g, beta = -torch.rand(1, tokens, v_heads, device="cuda"), torch.rand(1, tokens, v_heads, device="cuda")
    if gates:
        g, beta = g.to(dtype), beta.to(dtype)
        options |= {
            "use_gate_in_kernel": True,
            "A_log": torch.randn(v_heads, device="cuda"),
            "dt_bias": torch.randn(v_heads, device="cuda"),
            "use_beta_sigmoid_in_kernel": True,
        }
    operator = pt.chunk_gated_delta_rule if tokens > 1 else pt.fused_recurrent_gated_delta_rule
    return lambda: operator(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True, **options)


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "PyTorch", torch.__version__)
    show("delta rule, 4096 tokens, 2/4 heads", rule(4096, 2, 4))
    show("the same, with gates in the kernel", rule(4096, 2, 4, gates=True))
    show("the same, with a final state [K, V]", rule(4096, 2, 4, output_final_state=True))
    show("the same in f16", rule(4096, 2, 4, torch.float16))
    show("delta rule, 4096 tokens, 16/48 heads", rule(4096, 16, 48))
    show("delta rule, 32768 tokens, 16/48 heads", rule(32768, 16, 48), 20)
    state = torch.zeros(1, 48, 128, 128, device="cuda")
    show("delta rule, one token, 16/48 heads", rule(1, 16, 48, initial_state=state, output_final_state=True))
    for tokens in (1, 4096):
        channels = 10240
        x = torch.randn(1, tokens, channels, device="cuda").bfloat16()
        weight = torch.randn(channels, 4, device="cuda")
        show(
            f"convolution, {tokens} tokens, {channels} channels",
            lambda x=x, weight=weight: pt.causal_conv1d_fn(x.transpose(1, 2), weight, activation="silu"),
        )
        z, norm = torch.randn(1, tokens, 48, 128, device="cuda").bfloat16(), torch.ones(128, device="cuda")
        show(f"gated norm, {tokens} tokens, 48 heads", lambda z=z, norm=norm: pt.gated_rms_norm(z, z, norm))
        for dtype in ("q1_0", "ptq1_0"):
            layer = pt.QuernLinear(5120, 17408, dtype)
            layer.weight.copy_(torch.from_numpy(kernels.encode(torch.randn(17408, 5120).numpy(), dtype)))
            layer, acts = layer.cuda(), torch.randn(tokens, 5120, device="cuda").bfloat16()
            show(f"matmul, {dtype}, {tokens} tokens, 5120 to 17408", lambda layer=layer, acts=acts: layer(acts))
    for n_keys in (128, 32768):
        cache = pt.AuraCache(256, 4, n_keys, device="cuda")
        rows = torch.randn(n_keys, 4, 256, device="cuda").bfloat16()
        cache.store(rows, rows, torch.arange(n_keys, device="cuda"))
        q, at = torch.randn(1, 24, 256, device="cuda").bfloat16(), torch.tensor([n_keys - 1], device="cuda").int()
        show(
            f"AURA attention, one token, {n_keys} keys, 24/4 heads of 256",
            lambda cache=cache, q=q, at=at, n_keys=n_keys: cache.attention(q, n_keys, positions=at),
        )


if __name__ == "__main__":
    main()
