"""A linear layer with 1-bit or ternary weights as they are in GGUF files.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from pyquern import gguf
from pyquern._lib import InvalidError, UnsupportedError, bytes_of, dtype_value
from pyquern.torch import _operators

TYPES = ("q1_0", "pq2_0", "ptq1_0")


class QuernLinear(torch.nn.Module):
    """y = x W^T + bias, with W [out_features, in_features] of a type of TYPES. Forward only; on the CPU.

    weight: [out_features, bytes of a row] uint8; bias: [out_features] or None
    rotation: W is in a rotated basis, and x is rotated first, in blocks of `rotation_block` (0: it is not) with `signs`
    [in_features], each 1 or -1, or None
    """

    weight: Tensor
    bias: Tensor | None
    signs: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, dtype: str, bias: bool = False, rotation: gguf.Rotation | None = None
    ) -> None:
        super().__init__()
        if dtype not in TYPES:
            raise UnsupportedError(f"dtype: {dtype!r}, expected one of {', '.join(TYPES)}")
        self.in_features, self.out_features, self.dtype = in_features, out_features, dtype
        row = bytes_of(dtype_value(dtype), in_features)
        self.register_buffer("weight", torch.zeros(out_features, row, dtype=torch.uint8))
        self.register_buffer("bias", torch.zeros(out_features) if bias else None)
        self.rotation_block = rotation.block if rotation else 0
        self.register_buffer("signs", torch.tensor(rotation.signs) if rotation and rotation.signs else None)

    @classmethod
    def from_gguf(cls, path: str | Path, name: str, bias: str | None = None) -> QuernLinear:
        """The layer of a matrix in a GGUF file, for example "blk.0.ffn_up.weight", and of the f32 vector of that name as bias.

        Matrices in a rotated basis (prism.hadamard.*) get their rotation.
        """
        file = gguf.File(path)
        dtype, data = file.data(name)
        shape = file.tensors[name].shape
        if len(shape) != 2:
            raise InvalidError(f"{path}: tensor '{name}' has {len(shape)} dimensions, expected 2")
        layer = cls(shape[1], shape[0], dtype, bias is not None, file.rotation(name))
        # A copy: the layer can be changed and moved, and the file be replaced.
        layer.weight.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8).view_as(layer.weight))
        if bias is not None and layer.bias is not None:
            kind, values = file.data(bias)
            if kind != "f32" or file.tensors[bias].shape != (shape[0],):
                raise InvalidError(
                    f"{path}: tensor '{bias}' is {kind} {file.tensors[bias].shape}, expected f32 ({shape[0]},)"
                )
            layer.bias.copy_(torch.frombuffer(bytearray(values), dtype=torch.float32))
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] -> [..., out_features] of the type of x, accumulated in f32."""
        if x.shape[-1] != self.in_features:
            raise InvalidError(f"x: shape {tuple(x.shape)}, expected (..., {self.in_features})")
        y: Tensor = _operators.quantized_matmul(x, self.weight, self.dtype, self.signs, self.rotation_block)
        return y if self.bias is None else (y + self.bias).to(x.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, dtype={self.dtype}, bias={self.bias is not None}"
