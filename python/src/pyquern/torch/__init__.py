"""Operators of quern for PyTorch, on the CPU and on NVIDIA GPUs: forward only, for torch.compile and torch.export too.

SPDX-License-Identifier: Apache-2.0
"""

from pyquern.torch.accelerate import Acceleration, accelerate
from pyquern.torch.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from pyquern.torch.layers import causal_conv1d_fn, causal_conv1d_update, gated_rms_norm, l2_norm
from pyquern.torch.linear import QuernLinear

__all__ = [
    "Acceleration",
    "QuernLinear",
    "accelerate",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "chunk_gated_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "gated_rms_norm",
    "l2_norm",
]
