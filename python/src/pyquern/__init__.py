"""quern from Python: 1-bit and ternary language models, and their kernels.

    model = pyquern.Model("model.gguf")
    for text in model.generate("Once upon a time", max_tokens=100, stream=True):
        print(text, end="", flush=True)
    answer = model.chat([{"role": "user", "content": "What is a quern?"}])

docs/python.md describes it.

pyquern.kernels   the CPU kernels for numpy arrays
pyquern.gguf      tensors of GGUF files
pyquern.torch     operators for PyTorch, on the CPU and on NVIDIA GPUs

SPDX-License-Identifier: Apache-2.0
"""

from pyquern._lib import (
    BusyError,
    CancelledError,
    ContextError,
    DeviceError,
    Error,
    FormatError,
    InputOutputError,
    InvalidError,
    OutOfMemoryError,
    UnsupportedError,
    __version__,
)
from pyquern.answers import ChatCompletion, ChatEvent, Completion, Logprob, ToolCall, Usage
from pyquern.model import Capacity, ChatFormat, Model, ModelInfo
from pyquern.options import Message
from pyquern.requests import ChatRequest, ChatStream, Request, Stream, TextRequest, TextStream
from pyquern.scheduler import Counters, Scheduler
from pyquern.session import Sampler, Session
from pyquern.tokenizer import Tokenizer

__all__ = [
    "BusyError",
    "CancelledError",
    "Capacity",
    "ChatCompletion",
    "ChatEvent",
    "ChatFormat",
    "ChatRequest",
    "ChatStream",
    "Completion",
    "ContextError",
    "Counters",
    "DeviceError",
    "Error",
    "FormatError",
    "InputOutputError",
    "InvalidError",
    "Logprob",
    "Message",
    "Model",
    "ModelInfo",
    "OutOfMemoryError",
    "Request",
    "Sampler",
    "Scheduler",
    "Session",
    "Stream",
    "TextRequest",
    "TextStream",
    "Tokenizer",
    "ToolCall",
    "UnsupportedError",
    "Usage",
    "__version__",
]
