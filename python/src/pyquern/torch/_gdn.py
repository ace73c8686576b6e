"""The operators of Gated DeltaNet: the rule by chunks and token by token, and the stages of the rule by chunks.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

from pyquern._cdef import ffi
from pyquern._lib import InvalidError, UnsupportedError, check, lib
from pyquern.torch._library import (
    ALIGNMENT,
    DTYPES,
    FLOATS,
    Call,
    cuda_kernels,
    define,
    device_of,
    host_lengths,
    launch,
    row_distance,
)

_CHUNK, _STEP = "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"
_HEAD_UNIT, _HEAD_MAX = 16, 256  # head sizes are multiples of the unit
_CHUNK_SIZE = 64

# q, k, v, g, beta, initial_state, cu_seqlens, gate_factor, gate_bias
_Inputs = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def _padded(head: int) -> int:
    """The size to pad a head to. Zeros at the end of q, k, v and the state change no other element of any result."""
    return -(-head // _HEAD_UNIT) * _HEAD_UNIT


def _check(name: str, inputs: _Inputs, v_first: bool) -> int:
    """Checks shapes, types and devices; returns the number of sequences."""
    q, k, v, g, beta, initial, cu_seqlens, factor, bias = inputs
    for label, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise InvalidError(
                f"{label}: {tensor.dim()} dimensions, expected 4: batch, tokens, heads, elements of a head"
            )
        if tensor.dtype != q.dtype:
            raise InvalidError(f"{label}: {tensor.dtype}, expected {q.dtype} as q")
    batch, tokens, heads, head_k = q.shape
    v_heads, head_v = v.shape[2:]
    if q.dtype not in FLOATS or _padded(head_k) > _HEAD_MAX or _padded(head_v) > _HEAD_MAX:
        raise UnsupportedError(f"{name}: no kernel for {q.dtype} with heads of {head_k} and {head_v} elements")
    if heads == 0 or v_heads % heads:
        raise InvalidError(f"v: {v_heads} heads, expected a multiple of the {heads} heads of q")
    n = batch
    if cu_seqlens is not None:
        if batch != 1:
            raise InvalidError(f"cu_seqlens: a batch of {batch}, expected 1 with all sequences concatenated")
        n = _n_sequences(cu_seqlens)
    state = (n, v_heads, head_v, head_k) if v_first else (n, v_heads, head_k, head_v)
    for label, part, shape in (
        ("k", k, q.shape),
        ("v", v, (batch, tokens, v_heads, head_v)),
        ("g", g, (batch, tokens, v_heads)),
        ("beta", beta, (batch, tokens, v_heads)),
        ("initial_state", initial, state),
        ("cu_seqlens", cu_seqlens, (n + 1,)),
        ("gate_factor", factor, (v_heads,)),
        ("gate_bias", bias, (v_heads,)),
    ):
        if part is None:
            continue
        if part.shape != shape:
            raise InvalidError(f"{label}: shape {tuple(part.shape)}, expected {tuple(shape)}")
        if part.device != q.device:
            raise InvalidError(f"{label}: a tensor on {part.device}, expected {q.device} as q")
        if label != "cu_seqlens" and not part.is_floating_point():
            raise InvalidError(f"{label}: {part.dtype}, expected a floating type")
    if bias is not None and factor is None:
        raise InvalidError("gate_bias: given without gate_factor")
    return n


def _n_sequences(cu_seqlens: Tensor) -> int:
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] == 0 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise InvalidError(
            f"cu_seqlens: {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}, expected int32 or int64 (N + 1,)"
        )
    return cu_seqlens.shape[0] - 1


# ---- Inputs of the kernels ----


def _rows(x: Tensor, head: int, on_device: bool, align: bool) -> Tensor:
    """Rows of tokens x [B, T, H, D] with heads padded to a size; x itself if nothing has to be changed."""
    if x.shape[3] != head:
        x = pad(x, (0, head - x.shape[3]))
    if not on_device:
        return x.contiguous()
    distance = row_distance(x, 2)
    if distance == 0 or (x.element_size() == 2 and distance * 2 % ALIGNMENT):
        x = x.contiguous()
    return x.clone(memory_format=torch.contiguous_format) if align and x.data_ptr() % ALIGNMENT else x


def _gates(x: Tensor, on_device: bool) -> Tensor:
    if not on_device:
        return x.float().contiguous()
    x = x if x.dtype in FLOATS else x.float()
    return x if row_distance(x, 2) else x.contiguous()


def _host_gate(g: Tensor, factor: Tensor | None, bias: Tensor | None) -> Tensor:
    """The log decay, which on a GPU the kernels compute."""
    if factor is None:
        return g
    return factor.float() * softplus(g.float() if bias is None else g.float() + bias.float())


def _state(initial: Tensor, shape: tuple[int, ...], keep_bf16: bool, align: bool) -> Tensor:
    """A contiguous initial state of a shape, padded; the state itself if nothing has to be changed."""
    if initial.dtype != torch.float32 and not (keep_bf16 and initial.dtype == torch.bfloat16):
        initial = initial.float()
    if initial.shape != shape:
        initial = pad(initial, (0, shape[3] - initial.shape[3], 0, shape[2] - initial.shape[2]))
    initial = initial.contiguous()
    return initial.clone() if align and initial.data_ptr() % ALIGNMENT else initial


class _Rule:
    """A call of the rule with given shapes, types and strides; only the addresses change from call to call."""

    __slots__ = (
        "device",
        "final_shape",
        "function",
        "name",
        "o_shape",
        "options",
        "output_final",
        "plain",
        "shape",
        "state_shape",
        "v_first",
        "views",
        "workspace_bytes",
    )

    def __init__(self, name: str, inputs: _Inputs, options: tuple[Any, ...]) -> None:
        scale, normalize, sigmoid, self.output_final, self.v_first, max_tokens = options
        self.name, self.options = name, options
        q, v, cu_seqlens = inputs[0], inputs[2], inputs[6]
        n = _check(name, inputs, self.v_first)
        device = self.device = device_of(q)
        k_size, v_size = _padded(q.shape[3]), _padded(v.shape[3])
        self.state_shape = (n, v.shape[2], *((v_size, k_size) if self.v_first or device < 0 else (k_size, v_size)))
        self.o_shape = v.shape
        prepared, _, _ = self._prepared(inputs, align=False)
        # Whether the kernels can read the tensors unchanged.
        self.plain = all(a is b for a, b in zip(inputs, prepared)) and (device >= 0 or (self.v_first and not sigmoid))
        if not self.plain:
            return
        self.workspace_bytes = -1
        prefix = "qn_" if device < 0 else "qn_cuda_"
        self.function = getattr(lib, f"{prefix}gdn_{'chunk' if name == _CHUNK else 'step'}")
        self.views = [ffi.new(f"{prefix}view *")[0] for _ in range(8 if name == _CHUNK else 7)]
        for view, x in zip(self.views, inputs[:5]):
            view.dtype, view.count = DTYPES[x.dtype], x.numel()
            if device >= 0 and x.numel():
                rows = x.shape[0] * x.shape[1]
                view.stride = row_distance(x, 2)
                view.count = (rows - 1) * view.stride + x.numel() // rows
        initial = inputs[5]
        states = torch.Size(self.state_shape).numel()
        given = (initial is not None or name == _STEP, self.output_final)
        for view, present in zip(self.views[5:-1], given):
            if present:
                view.count = states
                view.dtype = lib.QN_DTYPE_F32 if initial is None else DTYPES[initial.dtype]
        self.views[-1].dtype, self.views[-1].count = DTYPES[v.dtype], v.numel()
        shape = self.shape = ffi.new(f"{prefix}gdn_shape *")
        shape.batch, shape.tokens, shape.k_heads, shape.head_k = q.shape
        shape.v_heads, shape.head_v = v.shape[2:]
        shape.mapping, shape.scale, shape.normalize = lib.QN_GDN_GROUPED, scale, normalize
        if cu_seqlens is not None:
            shape.n_sequences = n
            shape.cu_seqlens.count = n + 1
            shape.cu_seqlens.dtype = lib.QN_DTYPE_U32 if device < 0 else DTYPES[cu_seqlens.dtype]
        if device >= 0:
            shape.max_tokens, shape.sigmoid_beta, shape.transposed_states = max_tokens, sigmoid, not self.v_first
            for view, gate in ((shape.gate_factor, inputs[7]), (shape.gate_bias, inputs[8])):
                if gate is not None:
                    view.dtype, view.count = lib.QN_DTYPE_F32, gate.numel()

    def _prepared(self, inputs: _Inputs, align: bool) -> tuple[_Inputs, bool, bool]:
        """The inputs as the kernels read them, and whether sigmoid and v_first still apply."""
        q, k, v, g, beta, initial, cu_seqlens, factor, bias = inputs
        _, _, sigmoid, output_final, v_first, _ = self.options
        on_device = self.device >= 0
        k_size, v_size = _padded(q.shape[3]), _padded(v.shape[3])
        if not on_device:
            g, factor, bias = _host_gate(g, factor, bias), None, None
            beta, sigmoid = beta.float().sigmoid() if sigmoid else beta, False
            initial = initial if initial is None or v_first else initial.transpose(-1, -2)
            v_first = True
        if initial is not None:
            initial = _state(initial, self.state_shape, self.name == _CHUNK and on_device and not output_final, align)
        return (
            (
                _rows(q, k_size, on_device, align),
                _rows(k, k_size, on_device, align),
                _rows(v, v_size, on_device, align),
                _gates(g, on_device),
                _gates(beta, on_device),
                initial,
                None if cu_seqlens is None else cu_seqlens.contiguous(),
                None if factor is None else factor.float().contiguous(),
                None if bias is None else bias.float().contiguous(),
            ),
            sigmoid,
            v_first,
        )

    def _adapted(self, inputs: _Inputs) -> tuple[Tensor, Tensor]:
        """Calls with tensors that the kernels can read, and gives the results in the requested form."""
        head_k, head_v = inputs[0].shape[3], inputs[2].shape[3]
        prepared, sigmoid, v_first = self._prepared(inputs, align=True)
        scale, normalize, _, output_final, _, max_tokens = self.options
        o, final = _gated_delta_rule(self.name, *prepared, scale, normalize, sigmoid, output_final, v_first, max_tokens)
        o = o[..., :head_v].contiguous()
        if output_final:
            final = final[:, :, :head_v, :head_k] if v_first else final[:, :, :head_k, :head_v]
            final = (final if v_first == self.v_first else final.transpose(-1, -2)).contiguous()
        return o, final

    def __call__(self, inputs: _Inputs) -> tuple[Tensor, Tensor]:
        q, k, v, g, beta, initial, cu_seqlens, factor, bias = inputs
        if not self.plain:
            return self._adapted(inputs)
        addresses = [q.data_ptr(), k.data_ptr(), v.data_ptr(), g.data_ptr(), beta.data_ptr()]
        device = self.device
        if device >= 0:
            at = addresses[0] | addresses[1] | addresses[2] | (0 if initial is None else initial.data_ptr())
            if at % ALIGNMENT:
                return self._adapted(inputs)
        # Tokens outside of all sequences are not written.
        o = v.new_empty(self.o_shape) if cu_seqlens is None else v.new_zeros(self.o_shape)
        state = final = None
        if self.name == _CHUNK and o.numel():
            state = initial
            if self.output_final:
                final = q.new_empty(self.state_shape, dtype=torch.float32)
            states = (state, final)
        else:
            state = q.new_zeros(self.state_shape, dtype=torch.float32) if initial is None else initial.clone()
            final = state
            states = (state, None)
        if o.numel() and self.state_shape[0]:
            views, shape = self.views, self.shape
            for view, address in zip(views, addresses):
                view.data = address
            for view, tensor in zip(views[5:-1], states):
                view.data = 0 if tensor is None else tensor.data_ptr()
            views[-1].data = o.data_ptr()
            if cu_seqlens is not None:
                cu_seqlens = cu_seqlens if device >= 0 else host_lengths(cu_seqlens)
                shape.cu_seqlens.data = cu_seqlens.data_ptr()
            if factor is not None:
                shape.gate_factor.data = factor.data_ptr()
                if bias is not None:
                    shape.gate_bias.data = bias.data_ptr()
            self._run(q)
        if not self.output_final or final is None:
            final = q.new_empty(0, dtype=torch.float32)
        return o, final

    def _run(self, q: Tensor) -> None:
        device = self.device
        if device < 0:
            check(self.function(self.shape, *self.views))
            return
        if self.name == _STEP:
            launch(device, self.function, self.shape, *self.views)
            return
        if self.workspace_bytes < 0:
            size = ffi.new("size_t *")
            check(lib.qn_cuda_gdn_chunk_workspace(cuda_kernels(device), self.shape, DTYPES[q.dtype], size))
            self.workspace_bytes = size[0]
        workspace = q.new_empty(self.workspace_bytes, dtype=torch.uint8)
        launch(device, self.function, self.shape, *self.views, workspace.data_ptr(), self.workspace_bytes)


class _Thread(threading.local):
    """A thread's calls, by their constant properties."""

    def __init__(self) -> None:
        self.rules: dict[Any, _Rule] = {}


_thread = _Thread()
_MAX_RULES = 256


def _gated_delta_rule(name: str, *arguments: Any) -> tuple[Tensor, Tensor]:
    inputs: _Inputs = arguments[:9]
    options = arguments[9:]
    key = (
        name,
        options,
        *[None if x is None else (x.shape, x.stride(), x.dtype, x.device) for x in inputs],
    )
    rule = _thread.rules.get(key)
    if rule is None:
        if len(_thread.rules) >= _MAX_RULES:
            _thread.rules.clear()
        rule = _thread.rules[key] = _Rule(name, inputs, options)
    return rule(inputs)


def _gated_delta_rule_fake(name: str, *arguments: Any) -> tuple[Tensor, Tensor]:
    inputs: _Inputs = arguments[:9]
    _, _, _, output_final, v_first, _ = arguments[9:]
    n = _check(name, inputs, v_first)
    q, v = inputs[0], inputs[2]
    sizes = (v.shape[3], q.shape[3]) if v_first else (q.shape[3], v.shape[3])
    final = q.new_empty((n, v.shape[2], *sizes) if output_final else (0,), dtype=torch.float32)
    return v.new_empty(v.shape), final


_RULE_ARGUMENTS = (
    "(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor? initial_state, Tensor? cu_seqlens, Tensor? gate_factor,"
    " Tensor? gate_bias, float scale, bool normalize, bool sigmoid_beta, bool output_final_state, bool state_v_first,"
    " int max_tokens) -> (Tensor o, Tensor final_state)"
)
# q, k [B, T, Hk, K] and v, o [B, T, Hv, V] of one type; g, beta [B, T, Hv]; cu_seqlens [N + 1] i32 or i64; gate_factor,
# gate_bias [Hv]: the log decay is gate_factor softplus(g + gate_bias); states [N, Hv, K, V], or [N, Hv, V, K] with
# state_v_first; final_state is f32, and has no elements if it is not requested; max_tokens bounds the tokens of a
# sequence, only for speed, 0: unknown.
chunk_gated_delta_rule, fused_recurrent_gated_delta_rule = (
    define(
        name,
        _RULE_ARGUMENTS,
        functools.partial(_gated_delta_rule_fake, name),
        functools.partial(_gated_delta_rule, name),
    )
    for name in (_CHUNK, _STEP)
)

# ---- Stages ----

# Inputs and outputs of a stage, in the order of its arguments, with their kinds; ? may be None.
_STAGES = {
    "gdn_cumsum": ("g:g", "gc:g"),
    "gdn_kkt": ("k:k beta:b gc:g", "a:a"),
    "gdn_tril_inverse": ("a:a", "inverse:a"),
    "gdn_recompute_w_u": ("k:k v:v beta:b gc:g inverse:a", "w:w u:v"),
    "gdn_state_pass": ("k:k w:w u:v gc:g initial_state:s?", "h:h v_new:v final_state:s"),
    "gdn_chunk_output": ("q:k k:k v_new:v h:h gc:g", "o:v"),
}
# The shape of a kind after batch and tokens, and its type; a stage takes sizes from the kinds that it uses.
_KINDS: dict[str, tuple[tuple[str, ...], torch.dtype | None]] = {
    "k": (("k_heads", "head_k"), None),
    "v": (("v_heads", "head_v"), None),
    "w": (("v_heads", "head_k"), None),
    "g": (("v_heads",), torch.float32),
    "b": (("v_heads",), torch.float32),
    "a": (("v_heads", "chunk"), torch.float32),
    "s": (("v_heads", "head_v", "head_k"), torch.float32),
    "h": (("v_heads", "head_v", "head_k"), None),
}
_PER_TOKEN = "kvwgba"


class _Stage:
    """A stage: shapes and types of its arguments, and its implementations."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs, self.outputs = ([tuple(part.split(":")) for part in parts.split()] for parts in _STAGES[name])
        arguments = ", ".join(f"Tensor{'?' if kind.endswith('?') else ''} {label}" for label, kind in self.inputs)
        results = ", ".join(f"Tensor {label}" for label, _ in self.outputs)
        self.operator = define(
            name,
            f"({arguments}, Tensor? cu_seqlens, Tensor? gate_factor, Tensor? gate_bias, float scale, bool sigmoid_beta)"
            f" -> ({results})",
            self.results,
            self.run,
        )

    def sizes(self, tensors: tuple[Tensor | None, ...], cu_seqlens: Tensor | None) -> dict[str, int]:
        first = tensors[0]
        assert first is not None
        # Stages without keys or values do not use their sizes.
        sizes = {"batch": first.shape[0], "tokens": first.shape[1], "k_heads": 1, "head_k": 16, "head_v": 16}
        sizes["chunk"] = _CHUNK_SIZE
        found: dict[str, int] = {}
        for (label, kind), x in zip(self.inputs, tensors):
            if x is None:
                continue
            names, _ = _KINDS[kind[0]]
            lead = 2 if kind in _PER_TOKEN else 1
            if x.dim() != lead + len(names):
                raise InvalidError(f"{label}: {x.dim()} dimensions, expected {lead + len(names)}")
            values = dict(zip(("batch", "tokens") if lead == 2 else (), x.shape))
            values |= dict(zip(names, x.shape[lead:]))
            for name, size in values.items():
                expected = _CHUNK_SIZE if name == "chunk" else found.setdefault(name, size)
                if size != expected:
                    raise InvalidError(f"{label}: shape {tuple(x.shape)}, expected {name} of {expected}")
            if x.device != first.device:
                raise InvalidError(f"{label}: a tensor on {x.device}, expected {first.device}")
        sizes |= found
        n = sizes["batch"] if cu_seqlens is None else _n_sequences(cu_seqlens)
        if n == 0 or sizes["tokens"] == 0:
            raise InvalidError(f"{self.name}: {n} sequences and {sizes['tokens']} tokens, expected at least 1")
        sizes["s"] = n
        chunks = -(-sizes["tokens"] // _CHUNK_SIZE) * n
        if cu_seqlens is not None:  # a bound, since only the device sees the lengths
            chunks = (sizes["tokens"] + (_CHUNK_SIZE - 1) * n) // _CHUNK_SIZE
        sizes["h"] = chunks
        return sizes

    def results(self, *arguments: Any) -> Any:
        """Tensors for the results, of the right shapes."""
        tensors, (cu_seqlens, *_) = arguments[: len(self.inputs)], arguments[len(self.inputs) :]
        sizes, first = self.sizes(tensors, cu_seqlens), tensors[0]
        made = []
        for _, kind in self.outputs:
            names, dtype = _KINDS[kind]
            lead = (sizes["batch"], sizes["tokens"]) if kind in _PER_TOKEN else (sizes[kind],)
            shape = (*lead, *(sizes[name] for name in names))
            # Tokens and chunks outside of all sequences are not written.
            made.append((first.new_empty if cu_seqlens is None else first.new_zeros)(shape, dtype=dtype or first.dtype))
        return made[0] if len(made) == 1 else tuple(made)

    def run(self, *arguments: Any) -> Any:
        tensors, options = arguments[: len(self.inputs)], arguments[len(self.inputs) :]
        cu_seqlens, factor, bias, scale, sigmoid = options
        sizes, results = self.sizes(tensors, cu_seqlens), self.results(*arguments)
        call = Call(tensors[0])
        shape = call.new("gdn_shape")
        for name in ("batch", "tokens", "k_heads", "v_heads", "head_k", "head_v"):
            setattr(shape, name, sizes[name])
        shape.mapping, shape.scale = lib.QN_GDN_GROUPED, scale
        if cu_seqlens is not None:
            shape.n_sequences = sizes["s"]
            lengths = cu_seqlens if call.device >= 0 else host_lengths(cu_seqlens)
            shape.cu_seqlens = call.view(lengths, alignment=1)
        if call.device >= 0:
            shape.sigmoid_beta = sigmoid
            shape.gate_factor, shape.gate_bias = (
                call.view(None if x is None else x.float(), alignment=1) for x in (factor, bias)
            )
        views = []
        for (_, kind), x in zip(self.inputs, tensors):
            if x is not None and call.device < 0:
                x = _host_gate(x, factor, bias) if self.name == "gdn_cumsum" else x
                x = x.float().sigmoid() if kind == "b" and sigmoid else x
            if x is not None and (kind in "as?" or (kind in "gb" and (call.device < 0 or x.dtype not in FLOATS))):
                x = x.float()
            views.append(call.view(x, 2 if kind in _PER_TOKEN else None, 1 if kind in "gb" else ALIGNMENT))
        call.run(self.name, shape, *views, *map(call.view, results if isinstance(results, tuple) else (results,)))
        return results


def _stage(name: str) -> Callable[..., Any]:
    operator = _Stage(name).operator

    def call(
        *tensors: Tensor | None,
        cu_seqlens: Tensor | None = None,
        gate_factor: Tensor | None = None,
        gate_bias: Tensor | None = None,
        scale: float | None = None,
        sigmoid_beta: bool = False,
    ) -> Any:
        """A stage of the gated delta rule in chunks of 64 tokens, as quern/kernels.h and quern/cuda.h describe it.

        Tensors are its inputs in the order there, [B, T, ...]; states are [N, Hv, V, K], and h is [chunks, Hv, V, K],
        with cu_seqlens the largest possible number of chunks. The results are its outputs. scale: K^-1/2 if None
        """
        if scale is None:
            scale = 1.0 if tensors[0] is None else tensors[0].shape[-1] ** -0.5
        return operator(*tensors, cu_seqlens, gate_factor, gate_bias, scale, sigmoid_beta)

    call.__name__ = call.__qualname__ = name
    return call


gdn_cumsum, gdn_kkt, gdn_tril_inverse, gdn_recompute_w_u, gdn_state_pass, gdn_chunk_output = map(_stage, _STAGES)
