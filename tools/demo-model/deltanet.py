"""The gated delta rule over whole sequences, in chunks of 64 tokens (Yang et al., Gated Delta Networks, 2024), for training.

A state S [V, K] a value head: S <- e^g S; v' = beta (v - S k); S <- S + v' k^T; o = scale S q. Inside a chunk the v' of all tokens come
from one triangular system, so that all but the pass from chunk to chunk is matrix products. src/kernels/deltanet does the same.

SPDX-License-Identifier: Apache-2.0
"""
import torch
import torch.nn.functional as F

CHUNK = 64


@torch.library.custom_op("demo_model::unit_lower_inverse", mutates_args=())
def unit_lower_inverse(a: torch.Tensor) -> torch.Tensor:
    """(I + A)^-1 of strictly lower triangular A [..., C, C] by substitution: products of powers lose all digits for similar keys.
    An operator of its own, because the solver's layout of the result is not the one that a compiler is told."""
    eye = torch.eye(a.shape[-1], device=a.device, dtype=a.dtype)
    return torch.linalg.solve_triangular(a + eye, eye.expand_as(a), upper=False, unitriangular=True).contiguous()


@unit_lower_inverse.register_fake
def _(a):
    return torch.empty_like(a, memory_format=torch.contiguous_format)


def save_inverse(ctx, inputs, output):
    ctx.save_for_backward(output)


def inverse_gradient(ctx, grad):
    turned = ctx.saved_tensors[0].mT
    return -(turned @ grad @ turned)


unit_lower_inverse.register_autograd(inverse_gradient, setup_context=save_inverse)


def chunked(q, k, v, g, beta, scale):
    """q, k [B, T, H, K], v [B, T, H, V], g and beta [B, T, H] float32, T a multiple of CHUNK; o [B, T, H, V] from a zero state.

    Products have the operands' type; gates, the triangular system and the state are float32."""
    dtype, n = q.dtype, q.shape[1] // CHUNK
    q, k, v = (x.unflatten(1, (n, CHUNK)).permute(0, 3, 1, 2, 4) for x in (q, k, v))  # [B, H, n, C, D]
    g, beta = (x.unflatten(1, (n, CHUNK)).permute(0, 3, 1, 2) for x in (g, beta))
    gc = g.cumsum(-1)
    upto = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    # Masked before exp: what is above the diagonal would overflow.
    decay = (gc[..., :, None] - gc[..., None, :]).masked_fill(~upto, -torch.inf).exp()
    a = (beta[..., None] * (k @ k.mT).float() * decay).tril(-1)
    inverse = unit_lower_inverse(a).to(dtype)
    w = inverse @ (k * (beta * gc.exp())[..., None]).to(dtype)
    u = inverse @ (v * beta[..., None]).to(dtype)
    inside = ((q @ k.mT).float() * decay * scale).to(dtype)
    reading = (q * (gc.exp() * scale)[..., None]).to(dtype)
    last = gc[..., -1:]
    keeping = (k * (last - gc).exp()[..., None]).to(dtype).mT
    whole = last.exp()[..., None]
    state = torch.zeros(*q.shape[:2], k.shape[-1], v.shape[-1], device=q.device)
    outputs = []
    for i in range(n):
        s = state.to(dtype)
        new = u[:, :, i] - w[:, :, i] @ s
        outputs.append(reading[:, :, i] @ s + inside[:, :, i] @ new)
        state = whole[:, :, i] * state + keeping[:, :, i] @ new
    return torch.stack(outputs, 2).permute(0, 2, 3, 1, 4).flatten(1, 2)


def l2_norm(x):
    y = x.float()
    return (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)).to(x.dtype)


def causal_conv_silu(x, taps):
    """x [B, T, D], taps [D, n], the last of which is the current token's."""
    n, t = taps.shape[1], x.shape[1]
    padded = F.pad(x, (0, 0, n - 1, 0))
    return F.silu(sum(padded[:, i:i + t].float() * taps[:, i] for i in range(n))).to(x.dtype)
