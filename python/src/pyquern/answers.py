"""Answers of models: texts, chats, and the pieces in which they are streamed.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

FinishReason = Literal["stop", "length", "tool_calls", "cancelled", "deadline"]


class Logprob(NamedTuple):
    """The log probability of a generated token, and the most likely tokens at its position.

    Natural logarithms of the model's probabilities, before bias, penalties, temperature and filters.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """Token ids and log probabilities, the most likely first. The token itself need not be among them."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The numbers of tokens of an answer, and its seconds."""

    prompt_tokens: int
    cached_tokens: int
    """Tokens of the prompt that were taken from an earlier prompt or answer instead of being evaluated."""
    completion_tokens: int
    """Tokens that were generated, an end token included."""
    queued_seconds: float = 0.0
    prompt_seconds: float = 0.0
    """Until the first token was sampled."""
    generate_seconds: float = 0.0
    drafted_tokens: int = 0
    """Drafted tokens that were evaluated."""
    accepted_tokens: int = 0
    """Of these, tokens of the answer: each needed no step of the model of its own."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The continuation of a prompt."""

    text: str
    finish_reason: FinishReason
    """"stop": an end token or a stop string; "length": max_tokens, or the context is full."""
    is_stop_string: bool
    """Whether a stop string ended the text. It is not in the text."""
    seed: int
    """The seed of this answer: the same seed gives the same answer."""
    usage: Usage = field(compare=False)
    tokens: list[int] | None = None
    """With return_tokens or logprobs: the generated ids, an end token included."""
    logprobs: list[Logprob] | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call of a tool."""

    name: str
    arguments: str
    """A JSON object."""
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}", compare=False)

    def parsed(self) -> dict[str, Any]:
        """The arguments as a dict."""
        value: dict[str, Any] = json.loads(self.arguments)
        return value


class ChatEvent(NamedTuple):
    """A piece of a chat's answer. Its type determines its fields.

    "reasoning", "content"   text continues the reasoning or the content
    "tool_call"              a call begins; text is the function's name
    "arguments"              text continues the call's arguments, which are a JSON object
    "tool_call_end"          call is the whole call. It is None if the call was cut off or does not parse. If it does
                             not parse, text is everything that the model wrote of it, and is content of the answer
    """

    type: Literal["reasoning", "content", "tool_call", "arguments", "tool_call_end"]
    text: str
    call_index: int = 0
    """The index of a call: 0, 1, ..."""
    call: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """The answer of a chat."""

    content: str
    reasoning: str
    tool_calls: list[ToolCall]
    finish_reason: FinishReason
    """As in a Completion; "tool_calls" if the answer ended with an end token and contains calls."""
    is_stop_string: bool
    seed: int
    usage: Usage = field(compare=False)
    tokens: list[int] | None = None
    logprobs: list[Logprob] | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to append to the messages of the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message

    def __str__(self) -> str:
        return self.content
