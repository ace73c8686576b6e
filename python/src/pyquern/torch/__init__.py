"""Operators of quern for PyTorch, on the CPU and on NVIDIA GPUs: forward only, for torch.compile and torch.export too.

SPDX-License-Identifier: Apache-2.0
"""

from pyquern.torch._gdn import (
    gdn_chunk_output,
    gdn_cumsum,
    gdn_kkt,
    gdn_recompute_w_u,
    gdn_state_pass,
    gdn_tril_inverse,
)
from pyquern.torch.accelerate import Acceleration, accelerate
from pyquern.torch.aura import AuraCache, aura_attention, aura_decode, aura_encode, aura_store
from pyquern.torch.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from pyquern.torch.layers import causal_conv1d_fn, causal_conv1d_update, gated_rms_norm, l2_norm, rms_norm
from pyquern.torch.linear import QuernLinear

__all__ = [
    "Acceleration",
    "AuraCache",
    "QuernLinear",
    "accelerate",
    "aura_attention",
    "aura_decode",
    "aura_encode",
    "aura_store",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "chunk_gated_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "gated_rms_norm",
    "gdn_chunk_output",
    "gdn_cumsum",
    "gdn_kkt",
    "gdn_recompute_w_u",
    "gdn_state_pass",
    "gdn_tril_inverse",
    "l2_norm",
    "rms_norm",
]
