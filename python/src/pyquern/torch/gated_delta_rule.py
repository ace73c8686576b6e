"""The gated delta rule with the arguments of flash-linear-attention, forward only.

q, k are [B, T, H, K], v is [B, T, HV, V], g and beta are [B, T, HV], with HV a multiple of H: value head h uses key
head h // (HV // H). q, k and v are f32, f16 or bf16, computed in the widest of their types; g and beta are of any
floating type. States are f32, [N, HV, K, V], or [N, HV, V, K] with state_v_first. With cu_seqlens [N + 1] (i32 or i64,
on the device of q), B is 1 and the N sequences are concatenated; rows of o outside of all sequences are zero.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from pyquern._lib import InvalidError, UnsupportedError
from pyquern.torch import _gdn


def _run(
    operator: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    scale: float | None,
    initial_state: Tensor | None,
    output_final_state: bool,
    use_qk_l2norm_in_kernel: bool,
    use_gate_in_kernel: bool,
    A_log: Tensor | None,
    dt_bias: Tensor | None,
    use_beta_sigmoid_in_kernel: bool,
    allow_neg_eigval: bool,
    state_v_first: bool,
    cu_seqlens: Tensor | None,
    max_tokens: int,
    others: dict[str, Any],
) -> tuple[Tensor, Tensor | None]:
    if "transpose_state_layout" in others:
        if state_v_first:
            raise InvalidError("transpose_state_layout: given with state_v_first, its newer name")
        warnings.warn("transpose_state_layout is now state_v_first", DeprecationWarning, stacklevel=3)
        state_v_first = others.pop("transpose_state_layout")
    if "head_first" in others:
        raise UnsupportedError("head_first: not supported, expected tensors [B, T, H, ...]")
    if others:
        raise TypeError(f"unexpected arguments: {', '.join(sorted(others))}")
    gates = (*q.shape[:2], *v.shape[2:3])
    factor = None
    if use_gate_in_kernel:
        if A_log is None or g is None:
            raise InvalidError("use_gate_in_kernel: A_log and g (before the gate) are needed")
        factor = A_log.float().exp().neg()
    g = q.new_zeros(gates, dtype=torch.float32) if g is None else g
    beta = q.new_ones(gates, dtype=torch.float32) if beta is None else beta
    if allow_neg_eigval:
        if not use_beta_sigmoid_in_kernel:
            raise InvalidError("allow_neg_eigval: needs use_beta_sigmoid_in_kernel")
        beta, use_beta_sigmoid_in_kernel = beta.float().sigmoid() * 2.0, False
    value_type = v.dtype
    if not q.dtype == k.dtype == value_type:
        wide = torch.promote_types(torch.promote_types(q.dtype, k.dtype), value_type)
        q, k, v = q.to(wide), k.to(wide), v.to(wide)
    o, final_state = operator(
        q,
        k,
        v,
        g,
        beta,
        initial_state,
        cu_seqlens,
        factor,
        dt_bias if use_gate_in_kernel else None,
        k.shape[-1] ** -0.5 if scale is None else scale,
        use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel,
        output_final_state,
        state_v_first,
        max_tokens,
    )
    return o.to(value_type), final_state if output_final_state else None


def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None,
    beta: Tensor | None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: Any = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int = 64,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule in chunks, for prefill: o [B, T, HV, V] of the type of v, and the final state or None.

    g: log decay, or with use_gate_in_kernel the input of -exp(A_log) softplus(g + dt_bias), A_log and dt_bias [HV];
    None: no decay. beta: None is 1; with use_beta_sigmoid_in_kernel its sigmoid is used, twice that with
    allow_neg_eigval.
    scale: K^-1/2 if None. use_qk_l2norm_in_kernel: q and k are l2-normalised first.
    cu_seqlens_cpu: cu_seqlens on the CPU, only for speed; chunk_indices and chunk_size are accepted but ignored.
    """
    if cp_context is not None:
        raise UnsupportedError("cp_context: context parallelism is not supported")
    if chunk_size not in (16, 32, 64):
        raise InvalidError(f"chunk_size: {chunk_size}, expected 16, 32 or 64")
    max_tokens = 0
    if cu_seqlens_cpu is not None and cu_seqlens_cpu.numel() > 1 and not torch.compiler.is_compiling():
        # A power of two, so that there are few values: arguments are cached for each.
        max_tokens = 1 << max(int(cu_seqlens_cpu.diff().max()) - 1, 0).bit_length()
    return _run(
        _gdn.chunk_gated_delta_rule,
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_gate_in_kernel,
        A_log,
        dt_bias,
        use_beta_sigmoid_in_kernel,
        allow_neg_eigval,
        state_v_first,
        cu_seqlens,
        max_tokens,
        others,
    )


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule token by token, for decode. Arguments and results as for chunk_gated_delta_rule.

    Decays for each element (gk, gv) and a beta for each element of a value are not supported.
    """
    for name, decay in (("gk", gk), ("gv", gv)):
        if decay is not None:
            raise UnsupportedError(f"{name}: decays of single elements are not supported, expected None")
    if beta is not None and beta.dim() == 4:
        raise UnsupportedError("beta: 4 dimensions, expected 3: a beta for each element of a value is not supported")
    return _run(
        _gdn.fused_recurrent_gated_delta_rule,
        q,
        k,
        v,
        g,
        beta,
        scale,
        initial_state,
        output_final_state,
        use_qk_l2norm_in_kernel,
        use_gate_in_kernel,
        A_log,
        dt_bias,
        use_beta_sigmoid_in_kernel,
        allow_neg_eigval,
        state_v_first,
        cu_seqlens,
        0,
        others,
    )
