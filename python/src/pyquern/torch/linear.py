"""A linear layer with quantised weights in GGUF's formats.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pyquern import gguf
from pyquern._lib import InvalidError, bytes_of, dtype_value
from pyquern.torch import _operators


class QuernLinear(torch.nn.Module):
    """y = x W^T + bias, with W [out_features, in_features] of a type, named in lower case ("q1_0", "ptq1_0"). Forward
    only.

    weight: [out_features, bytes of a row] uint8, always on the CPU; bias: [out_features] or None
    rotation: W is in a rotated basis, and x is rotated first, in blocks of `rotation_block` (0: no rotation) with
    `signs` [in_features], each 1 or -1, or None

    When a layer is moved to a GPU, or its state is loaded there, the weights are packed for the GPU's kernels: the
    buffer `packed`, which is not part of the state.
    """

    weight: Tensor
    packed: Tensor | None
    bias: Tensor | None
    signs: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, dtype: str, bias: bool = False, rotation: gguf.Rotation | None = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.dtype = in_features, out_features, dtype
        row = bytes_of(dtype_value(dtype), in_features)
        self.register_buffer("weight", torch.zeros(out_features, row, dtype=torch.uint8))
        self.register_buffer("packed", None, persistent=False)
        self.register_buffer("bias", torch.zeros(out_features) if bias else None)
        self.rotation_block = rotation.block if rotation else 0
        self.register_buffer("signs", torch.tensor(rotation.signs) if rotation and rotation.signs else None)
        self._pack(self.weight)

    @classmethod
    def from_gguf(cls, path: str | Path, name: str, bias: str | None = None) -> QuernLinear:
        """A layer from a matrix in a GGUF file, for example "blk.0.ffn_up.weight", with the f32 vector named `bias`, if
        any.

        Matrices in a rotated basis (prism.hadamard.*) get their rotation.
        """
        file = gguf.File(path)
        dtype, data = file.data(name)
        shape = file.tensors[name].shape
        if len(shape) != 2:
            raise InvalidError(f"{path}: tensor '{name}' has {len(shape)} dimensions, expected 2")
        layer = cls(shape[1], shape[0], dtype, bias is not None, file.rotation(name))
        # A copy, so that the layer can be changed and moved, and the file replaced.
        state = {"weight": torch.frombuffer(bytearray(data), dtype=torch.uint8).view_as(layer.weight)}
        if layer.signs is not None:
            state["signs"] = layer.signs
        if bias is not None:
            kind, values = file.data(bias)
            if kind != "f32" or file.tensors[bias].shape != (shape[0],):
                raise InvalidError(
                    f"{path}: tensor '{bias}' is {kind} {file.tensors[bias].shape}, expected f32 ({shape[0]},)"
                )
            state["bias"] = torch.frombuffer(bytearray(values), dtype=torch.float32)
        layer.load_state_dict(state)
        return layer

    def _pack(self, weight: Tensor) -> None:
        """Keeps the weights on the CPU, and packed ones on the GPU if these or packed ones are there."""
        device = weight.device if self.packed is None else self.packed.device
        self.weight = weight.cpu() if weight.is_cuda else weight
        self.packed = None
        if device.type == "cuda":
            self.packed = _operators.pack(weight.to(device), self.dtype, self.in_features)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuernLinear:
        """Called by .to(), .cuda(), .half() and others for all tensors of a layer."""
        weight, packed = self.weight, self.packed
        super()._apply(fn, recurse)
        moved = self.weight
        if moved.is_cuda:
            self.weight = weight if weight.device.type == "cpu" else moved.cpu()
            if packed is None:
                self.packed = _operators.pack(moved, self.dtype, self.in_features)
        if self.packed is not None and not self.packed.is_cuda:
            self.packed = None
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._pack(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in_features] -> [..., out_features] of the type of x, accumulated in f32."""
        if x.shape[-1] != self.in_features:
            raise InvalidError(f"x: shape {tuple(x.shape)}, expected (..., {self.in_features})")
        weight = self.weight if self.packed is None else self.packed
        if x.device != weight.device:
            raise InvalidError(f"x: a tensor on {x.device}, expected {weight.device} as the layer")
        return _operators.quantized_matmul(  # type: ignore[no-any-return]
            x, weight, self.bias, self.signs, self.dtype, self.out_features, self.rotation_block
        )

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, dtype={self.dtype}, bias={self.bias is not None}"
