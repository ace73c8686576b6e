"""The tokeniser of a model, and its chat template.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, overload

from pyquern._cdef import ffi
from pyquern._lib import check, lib
from pyquern.loading import ModelHandle
from pyquern.options import Message, conversation, token_list


def tokens_of(model: ModelHandle, text: str | bytes, parse_special: bool, add_bos: bool) -> list[int]:
    """The ids of a text."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    out, count = ffi.new("qn_token **"), ffi.new("size_t *")
    check(lib.qn_tokenize(model.pointer, data, len(data), parse_special, add_bos, out, count))
    return _taken(out, count)


def embedding_tokens(model: ModelHandle, text: str) -> list[int]:
    """The ids of a text whose embedding is computed."""
    data, out, count = text.encode("utf-8", "surrogateescape"), ffi.new("qn_token **"), ffi.new("size_t *")
    check(lib.qn_embedding_tokens(model.pointer, data, len(data), out, count))
    return _taken(out, count)


def ranking_tokens(model: ModelHandle, query: str, document: str) -> list[int]:
    """The ids of the prompt that asks about a document."""
    texts = [text.encode("utf-8", "surrogateescape") for text in (query, document)]
    out, count = ffi.new("qn_token **"), ffi.new("size_t *")
    check(lib.qn_ranking_tokens(model.pointer, texts[0], len(texts[0]), texts[1], len(texts[1]), out, count))
    return _taken(out, count)


def prompt_ids(model: ModelHandle, prompt: str | Sequence[int], parse_special: bool, add_bos: bool) -> list[int]:
    """The ids of a prompt, which is a text or a list of ids."""
    if isinstance(prompt, str):
        return tokens_of(model, prompt, parse_special, add_bos)
    return token_list(prompt, "prompt", "a text or token ids")


def conversation_tokens(model: ModelHandle, text: bytes, now: int = -1) -> list[int]:
    """The ids of a conversation in JSON."""
    out, count = ffi.new("qn_token **"), ffi.new("size_t *")
    check(lib.qn_conversation_tokens(model.pointer, text, len(text), now, out, count))
    return _taken(out, count)


def _taken(out: Any, count: Any) -> list[int]:
    try:
        ids: list[int] = ffi.unpack(out[0], count[0])
        return ids
    finally:
        lib.qn_free_tokens(out[0])


class Tokenizer:
    """Text to token ids and back: Model.tokenizer. For any number of threads."""

    def __init__(self, model: ModelHandle) -> None:
        self._model = model

    def encode(self, text: str | bytes, *, add_bos: bool = False, parse_special: bool = False) -> list[int]:
        """The ids of a text, which may be bytes that are not UTF-8.

        add_bos         begin with the beginning-of-text token, if the model has one
        parse_special   names of special tokens become these tokens. Not for untrusted text
        """
        return tokens_of(self._model, text, parse_special, add_bos)

    def decode(self, tokens: Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """The text of tokens. Bytes that are not UTF-8 are replaced by U+FFFD."""
        pointer, is_special = self._model.pointer, lib.qn_token_is_special
        return b"".join(
            self.piece(token) for token in tokens if not (skip_special_tokens and is_special(pointer, token))
        ).decode(errors="replace")

    def piece(self, token: int) -> bytes:
        """The bytes of a token, possibly part of a character."""
        out, length = ffi.new("const char **"), ffi.new("size_t *")
        check(lib.qn_token_piece(self._model.pointer, token, out, length))
        piece: bytes = ffi.unpack(out[0], length[0]) if length[0] else b""
        return piece

    def is_special(self, token: int) -> bool:
        """Whether a token is a control token, which is not part of text."""
        return bool(lib.qn_token_is_special(self._model.pointer, token))

    def is_end(self, token: int) -> bool:
        """Whether a token ends an answer."""
        return bool(lib.qn_token_is_end(self._model.pointer, token))

    def __len__(self) -> int:
        return int(lib.qn_model_get_info(self._model.pointer).n_vocab)

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: Literal[True] = True,
        add_generation_prompt: bool = False,
        now: int = -1,
        **variables: Any,
    ) -> list[int]: ...

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: Literal[False],
        add_generation_prompt: bool = False,
        now: int = -1,
        **variables: Any,
    ) -> str: ...

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        now: int = -1,
        **variables: Any,
    ) -> list[int] | str:
        """A conversation in the model's chat format, as tokens or as text, like the function of transformers.

        Names of special tokens in messages do not become these tokens, so the tokens may differ from those of the text.

        now   seconds since 1970, for templates that print the date; by default the current time
        """
        if tools:
            variables["tools"] = list(tools)
        text = conversation(messages, {"add_generation_prompt": add_generation_prompt, **variables})
        if tokenize:
            return conversation_tokens(self._model, text, now)
        out, length = ffi.new("char **"), ffi.new("size_t *")
        check(lib.qn_conversation_text(self._model.pointer, text, len(text), now, out, length))
        try:
            data: bytes = ffi.unpack(out[0], length[0]) if length[0] else b""
            return data.decode(errors="replace")
        finally:
            lib.qn_free_text(out[0])
