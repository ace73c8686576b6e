"""Stored tensors of GGUF files, and the rotation of their weights.

Reads version 3, little-endian, memory-mapped. A file is untrusted: data beyond its end, or a malformed header, is a
FormatError.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

from pyquern._lib import FormatError, InvalidError, UnsupportedError, bytes_of, lib

_TYPE_NAMES = {
    getattr(lib, name): name.removeprefix("QN_DTYPE_").lower() for name in dir(lib) if name.startswith("QN_DTYPE_")
}
# The kinds of values, in struct's notation.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4
_ROTATION = "prism.hadamard."


class Tensor(NamedTuple):
    """shape is [n_out, n_in] for a matrix: the reverse of the file's order."""

    shape: tuple[int, ...]
    type: int
    offset: int


class Rotation(NamedTuple):
    """The input of a matrix is H (S x): signs S, None for none, and the Walsh-Hadamard transform of blocks."""

    block: int
    signs: tuple[float, ...] | None


class File:
    """A GGUF file: `tensors` by name, and the metadata `keys` that are needed to read them."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.path.stat().st_size else b""
        self._at = 0
        if self._bytes[:4] != b"GGUF":
            raise self._error("not a GGUF file")
        self._at = 4
        version, n_tensors, n_keys = self._take("I"), self._take("Q"), self._take("Q")
        if version != 3:
            raise UnsupportedError(f"{self.path}: GGUF version {version}, expected 3")
        self.keys: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self._string()
            value = self._value(self._take("I"), key == "general.alignment" or key.startswith(_ROTATION))
            if value is not None:
                self.keys[key] = value
        infos = [self._info() for _ in range(n_tensors)]
        alignment = self.keys.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self._error(f"general.alignment is {alignment}, expected a power of two")
        base = -(-self._at // alignment) * alignment
        self.tensors = {name: Tensor(shape, kind, base + offset) for name, shape, kind, offset in infos}
        if len(self.tensors) != n_tensors:
            raise self._error("two tensors have the same name")

    def data(self, name: str) -> tuple[str, memoryview]:
        """The name of a tensor's type, and its bytes in the mapped file, which stays mapped while they are in use."""
        tensor = self._tensor(name)
        if tensor.type not in _TYPE_NAMES:
            raise UnsupportedError(f"{self.path}: tensor '{name}' has type {tensor.type}, which quern does not read")
        try:
            size = bytes_of(tensor.type, math.prod(tensor.shape))
        except (InvalidError, OverflowError) as error:
            raise self._error(f"tensor '{name}' of shape {tensor.shape}: {error}") from None
        if tensor.offset + size > len(self._bytes):
            raise self._error(f"tensor '{name}' runs past the end of the file")
        return _TYPE_NAMES[tensor.type], memoryview(self._bytes)[tensor.offset : tensor.offset + size]

    def rotation(self, name: str) -> Rotation | None:
        """The rotation to apply to the input of a matrix; None: none."""
        keys = {key.removeprefix(_ROTATION): value for key, value in self.keys.items() if key.startswith(_ROTATION)}
        if not keys:
            return None
        for key, known in (
            ("version", (1, 2)),
            ("transform", ("normalized-sylvester-walsh-hadamard",)),
            ("axis", ("input-last-dimension",)),
            ("sign_mode", ("identity", "explicit")),
        ):
            if keys.get(key) not in known:
                raise UnsupportedError(f"{self.path}: {_ROTATION}{key} is {keys.get(key)!r}, expected one of {known}")
        for key, kind in (
            ("weight_names", str),
            ("inverse_weight_names", str),
            ("sign_widths", int),
            ("sign_values", (int, float)),
        ):
            values = keys.setdefault(key, [])
            if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
                raise self._error(f"{_ROTATION}{key} is not an array of {'names' if kind is str else 'numbers'}")
        if name in keys["inverse_weight_names"]:
            raise UnsupportedError(f"{self.path}: tensor '{name}' is a table of rotated rows, expected a matrix")
        if name not in keys["weight_names"]:
            return None
        if keys.get("gdn_v_grouped") and name.endswith("ssm_out.weight"):
            raise UnsupportedError(
                f"{self.path}: tensor '{name}' expects its input in another order of heads (gdn_v_grouped)"
            )
        width, block = self._tensor(name).shape[-1], keys.get("block_size")
        if not isinstance(block, int) or block <= 0 or block & (block - 1) or width % block:
            raise self._error(f"{_ROTATION}block_size is {block}, expected a power of two that divides {width}")
        if keys["sign_mode"] == "identity":
            return Rotation(block, None)
        begin = 0
        for run in keys["sign_widths"]:
            signs = tuple(float(sign) for sign in keys["sign_values"][begin : begin + run])
            if run == width:
                if len(signs) != width or not set(signs) <= {1.0, -1.0}:
                    raise self._error(f"{_ROTATION}sign_values: expected {width} values of 1 or -1 from index {begin}")
                return Rotation(block, signs)
            begin += run
        raise self._error(f"{_ROTATION}sign_widths has no {width}, the width of tensor '{name}'")

    # ---- Reading ----

    def _error(self, text: str) -> FormatError:
        return FormatError(f"{self.path}: {text}")

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise InvalidError(f"{self.path}: no tensor '{name}'")
        return self.tensors[name]

    def _take(self, kind: str) -> Any:
        try:
            value = struct.unpack_from("<" + kind, self._bytes, self._at)[0]
        except struct.error:
            raise self._error("the file ends in its header") from None
        self._at += struct.calcsize("<" + kind)
        return value

    def _skip(self, size: int) -> int:
        """Skips bytes. Returns the offset of the first."""
        begin = self._at
        if size > len(self._bytes) - begin:
            raise self._error("the file ends in its header")
        self._at += size
        return begin

    def _string(self) -> str:
        begin = self._skip(self._take("Q"))
        return self._bytes[begin : self._at].decode("utf-8", "surrogateescape")

    def _value(self, kind: int, wanted: bool, nested: bool = False) -> Any:
        """A value of the metadata; None if it is not wanted."""
        if kind == _STRING:
            return self._string() if wanted else self._skip(self._take("Q")) and None
        if kind == _ARRAY and not nested:
            element, count = self._take("I"), self._take("Q")
            if element in _SCALARS:
                size = struct.calcsize("<" + _SCALARS[element])
                begin = self._skip(size * count)
                return list(struct.unpack_from(f"<{count}{_SCALARS[element]}", self._bytes, begin)) if wanted else None
            values = [self._value(element, wanted, nested=True) for _ in range(count)]
            return values if wanted else None
        if kind not in _SCALARS:
            raise self._error(f"a value of kind {kind} in the metadata")
        value = self._take(_SCALARS[kind])
        return value if wanted else None

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, n_dims = self._string(), self._take("I")
        if n_dims > _MAX_DIMS:
            raise self._error(f"tensor '{name}' has {n_dims} dimensions, at most {_MAX_DIMS} are allowed")
        dims = tuple(self._take("Q") for _ in range(n_dims))
        return name, dims[::-1], self._take("I"), self._take("Q")
