"""Muon for matrices, AdamW for the rest, over weights kept in stacks of one shape.

Muon: momentum, made orthogonal by five Newton-Schulz steps (Keller Jordan et al., Muon, 2024), with the factor that gives every
shape a like change of its outputs.

SPDX-License-Identifier: Apache-2.0
"""
import torch


def orthogonal(m, dtype):
    """About U V^T of m = U D V^T, for stacks [n, r, c]; computed in this type."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = m.to(dtype)
    turned = x.shape[-2] > x.shape[-1]
    x = x.mT if turned else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        y = x @ x.mT
        x = a * x + (b * y + c * y @ y) @ x
    return x.mT if turned else x


class Muon:
    def __init__(self, stacks, dtype, momentum=0.95, decay=0.01):
        self.stacks, self.dtype, self.momentum, self.decay = stacks, dtype, momentum, decay
        self.buffers = [torch.zeros_like(s) for s in stacks]

    @torch.no_grad()
    def step(self, grads, rate):
        for stack, grad, buffer in zip(self.stacks, grads, self.buffers):
            buffer.lerp_(grad, 1 - self.momentum)
            update = orthogonal(grad.lerp(buffer, self.momentum), self.dtype)
            factor = max(1, stack.shape[-2] / stack.shape[-1]) ** 0.5
            stack.mul_(1 - rate * self.decay).add_(update.float(), alpha=-rate * factor)


class AdamW:
    def __init__(self, weights, betas=(0.9, 0.95), eps=1e-10):
        self.weights, self.betas, self.eps, self.n = weights, betas, eps, 0
        self.first = [torch.zeros_like(w) for w in weights]
        self.second = [torch.zeros_like(w) for w in weights]

    @torch.no_grad()
    def step(self, grads, rate):
        self.n += 1
        (b1, b2), lists = self.betas, (self.first, self.second)
        torch._foreach_lerp_(lists[0], grads, 1 - b1)
        torch._foreach_mul_(lists[1], b2)
        torch._foreach_addcmul_(lists[1], grads, grads, 1 - b2)
        size = torch._foreach_div(lists[1], 1 - b2 ** self.n)
        torch._foreach_sqrt_(size)
        torch._foreach_add_(size, self.eps)
        torch._foreach_addcdiv_(self.weights, lists[0], size, -rate / (1 - b1 ** self.n))
