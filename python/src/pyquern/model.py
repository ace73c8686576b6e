"""Models: loading, text from prompts, answers to chats.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import os
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from pyquern._cdef import ffi
from pyquern._lib import check, lib, sized
from pyquern.answers import ChatCompletion, Completion
from pyquern.loading import OnProgress, load
from pyquern.options import MAX_CTX, ChatOptions, Draft, Message, Pooling, TextOptions, integer, kv_text, pooling_name
from pyquern.requests import ChatStream, Stream, TextStream, check_no_callback
from pyquern.scheduler import Scheduler
from pyquern.session import Session
from pyquern.tokenizer import Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self, Unpack


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Properties of a model. With vocab_only, unknown ones are empty or 0."""

    name: str
    architecture: str
    quantisation: str
    n_vocab: int
    n_layers: int
    n_embd: int
    n_ctx_train: int
    n_params: int
    file_bytes: int
    bytes_per_token: int
    cache_bytes_per_position: int
    recurrent_bytes: int
    n_threads: int
    cpu: str
    device: str
    tokeniser: str
    bos: int
    eos: int
    """Tokens of the beginning and of the end of text; -1: there is none."""
    adds_bos: bool
    adds_eos: bool
    """Texts begin with bos; texts of embeddings end with eos."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """Properties of the model's chat template (docs/tool-calls.md)."""

    source: str
    """ "file", "given", "chatml"; "" if none is usable, and `problem` says why."""
    problem: str
    tool_calls: str
    """ "json", "xml", "llama3"; "" if it has no tools; "unknown" if its calls cannot be parsed."""
    think_open: str
    think_close: str
    has_enable_thinking: bool
    has_reasoning_effort: bool
    efforts: tuple[str, ...]
    text: str
    """The template itself; "" if none is usable."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of the memory for sessions and schedulers, in bytes and tokens."""

    memory_limit: int
    bytes_per_position: int
    bytes_per_sequence: int
    tokens_per_sequence: int


def _python(value: Any) -> Any:
    return ffi.string(value).decode(errors="replace") if isinstance(value, ffi.CData) else value


class Model:
    """A model, loaded once, for any number of threads.

    name            a GGUF file, or OWNER/REPO[:FILE or :TYPE] of the Hugging Face hub (docs/hub.md), which needs the
                    package huggingface_hub
    device          "cpu", "cuda", "cuda:N", "vulkan", "vulkan:N", or "auto": the first CUDA GPU that can run the model,
                    else a discrete Vulkan GPU that can, else the CPU. The default is the environment variable QN_DEVICE, else "auto"
    memory          limit of the caches of all sessions and schedulers, in bytes or as "4G"; half of the free memory
    kv              format of KV caches: "f16"; "f32", for comparisons, on the CPU only; or AURA codes, "aura8" to "aura2"
                    (docs/aura.md)
    n_ctx           limit of the tokens of a prompt with its answer; 0: the training context, or what memory holds
    n_threads       number of threads; by default one for each core, or as many as a quota pays for
    chat_template   the source of a template to use instead of the file's
    vocab_only      load only the tokeniser
    deterministic   on a GPU, the same bits whatever else is evaluated at the same time
    draft           where drafted tokens come from, for requests that do not say: "auto", "off", "ngram", "mtp", "dflash" or
                    "model" (docs/speculation.md). "mtp" is an error with the reason if the model has no usable block;
                    "off" and "ngram" load the model without its block, which requests can then not ask for
    draft_model     a small model with the same vocabulary, a block drafter, or a block for multi-token prediction
                    alone, named as the model is, that drafts tokens: on the CPU, a block alone on CUDA devices too
                    (docs/speculation.md)
    on_progress     called with the number of bytes of weights checked so far and the total; False ends loading

    Errors are pyquern.Error, with the library's text. Notes of the library go to the logger "pyquern". A model belongs
    to the process that loaded it: in a forked child only its tokenizer and its properties can be used; everything else
    is an InvalidError.
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        *,
        device: str | None = None,
        memory: int | str | None = None,
        kv: str | None = None,
        n_ctx: int = 0,
        n_threads: int = 0,
        chat_template: str | None = None,
        vocab_only: bool = False,
        deterministic: bool = False,
        draft: Draft = "auto",
        draft_model: str | os.PathLike[str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        kv_text(kv)
        self._kv, self._n_ctx = kv, integer(n_ctx, "n_ctx", 0, MAX_CTX)
        self._scheduler: Scheduler | None = None
        self._scheduler_lock = threading.Lock()
        self._handle = load(
            name,
            device=device,
            n_threads=n_threads,
            memory=memory,
            chat_template=chat_template,
            vocab_only=vocab_only,
            deterministic=deterministic,
            draft=draft,
            draft_model=draft_model,
            on_progress_=on_progress,
        )
        self.tokenizer = Tokenizer(self._handle)

    @property
    def info(self) -> ModelInfo:
        """Properties of the model."""
        info = lib.qn_model_get_info(self._handle.pointer)
        return ModelInfo(*(_python(getattr(info, name)) for name in ModelInfo.__slots__))

    @property
    def chat_format(self) -> ChatFormat:
        """Properties of its chat template."""
        found = lib.qn_model_get_chat_format(self._handle.pointer)
        efforts = tuple(_python(found.efforts[i]) for i in range(found.n_efforts))
        names = [name for name in ChatFormat.__slots__ if name != "efforts"]
        return ChatFormat(**{name: _python(getattr(found, name)) for name in names}, efforts=efforts)

    def capacity(self, n_sequences: int = 1, kv: str | None = None) -> Capacity:
        """How many tokens of context the memory holds, for `n_sequences` sequences of equal length."""
        capacity, text = sized("qn_capacity"), kv_text(self._kv if kv is None else kv)
        n_sequences = integer(n_sequences, "n_sequences", 1, 2**32 - 1)
        check(lib.qn_model_get_capacity(self._handle.pointer, text, n_sequences, capacity))
        return Capacity(*(getattr(capacity, name) for name in Capacity.__slots__))

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that `generate` and `chat` use, with the model's kv and n_ctx."""
        self._handle.check_process()
        with self._scheduler_lock:
            if self._scheduler is None:
                self._scheduler = Scheduler(self)
            return self._scheduler

    def session(self, *, kv: str | None = None, n_ctx: int | None = None, n_batch: int = 0) -> Session:
        """A new Session."""
        return Session(self, kv=kv, n_ctx=n_ctx, n_batch=n_batch)

    # ---- Embeddings ----

    @property
    def pooling(self) -> Pooling | None:
        """How the model's file says that embeddings are made of hidden states; None: it does not say, as that of a model
        which was not trained for embeddings."""
        return pooling_name(lib.qn_model_get_pooling(self._handle.pointer))

    @overload
    def embed(self, texts: str, *, pooling: Pooling | None = None) -> NDArray[np.float32]: ...

    @overload
    def embed(self, texts: Sequence[str | Sequence[int]], *, pooling: Pooling | None = None) -> NDArray[np.float32]: ...

    def embed(
        self, texts: str | Sequence[str | Sequence[int]], *, pooling: Pooling | None = None
    ) -> NDArray[np.float32]:
        """The embeddings of texts: vectors of length 1, whose products say how similar texts are.

        texts     a text: [n_embd]; or several texts or lists of token ids: [n, n_embd]
        pooling   "mean", "cls" (the first token) or "last"; None: as the file says, else "last"

        They are evaluated one after another, between requests of other threads.
        """
        import numpy

        given = [texts] if isinstance(texts, str) else list(texts)
        with self.session() as session:
            vectors = [session.embed(text, pooling=pooling) for text in given]
        if isinstance(texts, str):
            return vectors[0]
        return numpy.stack(vectors) if vectors else numpy.empty((0, self.info.n_embd), numpy.float32)

    def rank(self, query: str, documents: Sequence[str]) -> list[float]:
        """Scores of documents for a query, from 0 to 1, in the order of the documents, by a model that has a head for it, as
        Qwen3-Reranker has; UnsupportedError says what another model lacks. They are evaluated one after another,
        between requests of other threads."""
        with self.session() as session:
            return [session.rank(query, document) for document in documents]

    # ---- Text ----

    @overload
    def generate(
        self, prompt: str | Sequence[int], *, stream: Literal[False] = False, **options: Unpack[TextOptions]
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: str | Sequence[int], *, stream: Literal[True], **options: Unpack[TextOptions]
    ) -> TextStream: ...

    def generate(
        self, prompt: str | Sequence[int], *, stream: bool = False, **options: Unpack[TextOptions]
    ) -> Completion | TextStream:
        """Continues a prompt, a text or token ids.

        The options are those of TextOptions. With `stream` the text comes in pieces, as it is generated. Calls of other
        threads are evaluated together with this one, and common beginnings of prompts only once. Ctrl-C ends the
        generation.
        """
        if not stream:
            check_no_callback("generate")
        request = self.scheduler._submit_text("generate", prompt, options)
        return Stream(request) if stream else request.result()

    @overload
    def agenerate(
        self, prompt: str | Sequence[int], *, stream: Literal[False] = False, **options: Unpack[TextOptions]
    ) -> Coroutine[Any, Any, Completion]: ...

    @overload
    def agenerate(
        self, prompt: str | Sequence[int], *, stream: Literal[True], **options: Unpack[TextOptions]
    ) -> TextStream: ...

    def agenerate(
        self, prompt: str | Sequence[int], *, stream: bool = False, **options: Unpack[TextOptions]
    ) -> Coroutine[Any, Any, Completion] | TextStream:
        """`generate` for asyncio: to be awaited, or with `stream` for `async for`. Cancelling the task ends the
        generation."""
        request = self.scheduler._submit_text("agenerate", prompt, options)
        return Stream(request) if stream else request._wait()

    # ---- Chats ----

    @overload
    def chat(
        self, messages: Sequence[Message], *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> ChatCompletion: ...

    @overload
    def chat(
        self, messages: Sequence[Message], *, stream: Literal[True], **options: Unpack[ChatOptions]
    ) -> ChatStream: ...

    def chat(
        self, messages: Sequence[Message], *, stream: bool = False, **options: Unpack[ChatOptions]
    ) -> ChatCompletion | ChatStream:
        """Answers a conversation: messages in OpenAI's form.

        The options are those of ChatOptions. With `stream` the answer comes as events: reasoning, content and tool
        calls. For the next turn, only the new part is evaluated.
        """
        if not stream:
            check_no_callback("chat")
        request = self.scheduler._submit_messages("chat", messages, options)
        return Stream(request) if stream else request.result()

    @overload
    def achat(
        self, messages: Sequence[Message], *, stream: Literal[False] = False, **options: Unpack[ChatOptions]
    ) -> Coroutine[Any, Any, ChatCompletion]: ...

    @overload
    def achat(
        self, messages: Sequence[Message], *, stream: Literal[True], **options: Unpack[ChatOptions]
    ) -> ChatStream: ...

    def achat(
        self, messages: Sequence[Message], *, stream: bool = False, **options: Unpack[ChatOptions]
    ) -> Coroutine[Any, Any, ChatCompletion] | ChatStream:
        """`chat` for asyncio, as `agenerate`."""
        request = self.scheduler._submit_messages("achat", messages, options)
        return Stream(request) if stream else request._wait()

    # ---- The end ----

    def close(self) -> None:
        """Closes its schedulers and sessions and frees the model.

        Must not be called from a callback, nor while another thread is in one of its methods.
        """
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
