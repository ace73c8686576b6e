"""Sessions: one sequence of tokens with its cache, and sampling from its logits.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from pyquern import requests
from pyquern._cdef import ffi
from pyquern._lib import InvalidError, check, check_process, error_of, is_process, lib, sized
from pyquern.answers import ChatCompletion, Completion, Usage
from pyquern.loading import ModelHandle, on_log
from pyquern.options import (
    MAX_CTX,
    ChatPrompt,
    Message,
    Options,
    Pooling,
    SamplingOptions,
    SessionChatOptions,
    SessionTextOptions,
    assign,
    fill_answer,
    fill_sampling,
    integer,
    kv_text,
    pooling_of,
    token_ids,
)
from pyquern.requests import ChatRequest, ChatStream, Interruptible, Request, Stream, TextRequest, TextStream
from pyquern.tokenizer import conversation_tokens, embedding_tokens, prompt_ids, ranking_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Self, Unpack

    from pyquern.model import Model

Piece = TypeVar("Piece")
Answer = TypeVar("Answer")


class _Owner:
    """Owns a qn_session, which one thread at a time may use, holding `busy`. In a forked child no lock is taken."""

    def __init__(self, pointer: Any) -> None:
        self.pointer = pointer
        self._process = os.getpid()
        self.busy = threading.Lock()
        self._cancel_lock = threading.RLock()
        self._generation: object | None = None
        self._is_cancelled = False

    @contextmanager
    def use(self) -> Iterator[Any]:
        self.acquire()
        try:
            yield self.pointer
        finally:
            self.busy.release()

    def acquire(self) -> None:
        """Takes the session. Waits for a cancelled generation, but not for another, which this thread may be
        reading."""
        check_process(self._process, "the session")
        if not self.busy.acquire(blocking=self._is_cancelled):
            raise InvalidError("session: it is generating; its stream has to be read to the end, or closed")
        if self.pointer is None:
            self.busy.release()
            raise InvalidError("session: it is closed")

    def begin(self) -> object:
        """Begins a generation in an acquired session."""
        with self._cancel_lock:
            self._generation, self._is_cancelled = object(), False
            return self._generation

    def end(self, generation: object) -> None:
        """Ends a generation: others may use the session. Does nothing if it has ended already."""
        with self._cancel_lock:
            if self._generation is generation:
                self._generation = None
                self.busy.release()

    def cancel(self) -> None:
        """Ends a running generation. Without one, the library would keep the request for the next."""
        if not is_process(self._process):
            return
        with self._cancel_lock:
            if self._generation:
                self._is_cancelled = True
                lib.qn_session_cancel(self.pointer)

    def free(self) -> None:
        if not is_process(self._process):
            return
        self.cancel()
        with self.busy:
            pointer, self.pointer = self.pointer, None
            lib.qn_session_free(pointer if pointer is not None else ffi.NULL)


def _free_session(owner: _Owner, model: ModelHandle) -> None:
    owner.free()


class Session:
    """A sequence of tokens with its KV cache and recurrent state.

    model      a Model
    kv         format of the KV cache: "f16", "f32", "aura8" to "aura2"; by default the model's
    n_ctx      limit of tokens; by default the model's; 0: the training context, or what memory holds
    n_batch    tokens of a prompt that are evaluated together: 128 on the CPU, 256 with AMX, 2048 on a GPU

    A session is continued: `generate` appends to it, `chat` evaluates only the part of a conversation that it lacks.
    One thread at a time may use a session; a call while its stream is open is an InvalidError.
    """

    def __init__(
        self, model: Model, *, kv: str | None = None, n_ctx: int | None = None, n_batch: int = 0, n_checkpoints: int = 0
    ) -> None:
        self._model = model._handle
        out = ffi.new("qn_session **")
        params, _text = _params(
            model._kv if kv is None else kv, model._n_ctx if n_ctx is None else n_ctx, n_batch, n_checkpoints
        )
        check(lib.qn_session_create(self._model.pointer, params, out))
        self._own(out[0])

    def _own(self, pointer: Any) -> None:
        self._owner = _Owner(pointer)
        self._free = weakref.finalize(self, _free_session, self._owner, self._model)
        self._model.children.add(self._owner)

    # ---- Copies and files ----

    def fork(self) -> Session:
        """An independent session with the same contents. Both share memory until one of them changes it."""
        out = ffi.new("qn_session **")
        with self._owner.use() as pointer:
            check(lib.qn_session_fork(pointer, out))
        session = Session.__new__(Session)
        session._model = self._model
        session._own(out[0])
        return session

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file with the session's tokens and cache. It contains the conversation."""
        with self._owner.use() as pointer:
            check(lib.qn_session_save(pointer, os.fsencode(path)))

    @classmethod
    def restore(
        cls, model: Model, path: str | os.PathLike[str], *, kv: str | None = None, n_ctx: int = 0, n_batch: int = 0
    ) -> Session:
        """A session from a file written by `save` with the same model. By default n_ctx is the saved one."""
        out = ffi.new("qn_session **")
        session = cls.__new__(cls)
        session._model = model._handle
        params, _text = _params(kv, n_ctx, n_batch, 0)
        check(lib.qn_session_restore(session._model.pointer, os.fsencode(path), params, out))
        session._own(out[0])
        return session

    def close(self) -> None:
        """Ends a generation and frees the session."""
        self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---- Contents ----

    @property
    def tokens(self) -> list[int]:
        """The evaluated tokens."""
        with self._owner.use() as pointer:
            tokens: list[int] = ffi.unpack(lib.qn_session_tokens(pointer), lib.qn_session_length(pointer))
            return tokens

    def __len__(self) -> int:
        with self._owner.use() as pointer:
            return int(lib.qn_session_length(pointer))

    @property
    def n_ctx(self) -> int:
        """Limit of its tokens."""
        with self._owner.use() as pointer:
            return int(lib.qn_session_capacity(pointer))

    @property
    def kv(self) -> str:
        """The format of its KV cache."""
        with self._owner.use() as pointer:
            name: str = ffi.string(lib.qn_session_kv(pointer)).decode()
            return name

    @property
    def pending(self) -> int | None:
        """The last generated token, which is evaluated when the session is continued."""
        with self._owner.use() as pointer:
            return _pending(pointer)

    def rewind(self, length: int) -> None:
        """Drops all tokens after the first `length`. UnsupportedError, with the possible lengths, for an impossible
        one."""
        with self._owner.use() as pointer:
            check(lib.qn_session_truncate(pointer, integer(length, "length", 0, lib.qn_session_length(pointer))))

    def rewind_to(self, tokens: Sequence[int]) -> int:
        """Keeps only the common beginning with these tokens. Returns its length.

        At least the last token is left to evaluate.
        """
        with self._owner.use() as pointer:
            return _rewind_to(pointer, tokens)

    def checkpoint(self) -> None:
        """Saves this length for `rewind`, for models with recurrent layers."""
        with self._owner.use() as pointer:
            check(lib.qn_session_checkpoint(pointer))

    def reach(self, length: int) -> int:
        """The greatest length up to `length` that `rewind` accepts."""
        with self._owner.use() as pointer:
            return int(lib.qn_session_reach(pointer, integer(length, "length", 0, 2**32 - 1)))

    # ---- Logits ----

    @overload
    def eval(self, tokens: Sequence[int], logits: Literal["last", "all"] = "last") -> NDArray[np.float32]: ...

    @overload
    def eval(self, tokens: Sequence[int], logits: None) -> None: ...

    def eval(self, tokens: Sequence[int], logits: Literal["last", "all"] | None = "last") -> NDArray[np.float32] | None:
        """Appends tokens, and computes the logits of the tokens that follow.

        logits   "last": [n_vocab], after the last token; "all": [n, n_vocab], after each; None: none

        The library writes directly into the array. Ctrl-C ends the evaluation; tokens of batches that had finished
        remain in the session.
        """
        which = {"last": lib.QN_LOGITS_LAST, "all": lib.QN_LOGITS_ALL, None: lib.QN_LOGITS_NONE}.get(logits)
        if which is None:
            raise InvalidError(f"logits: {logits!r}, expected 'last', 'all' or None")
        ids = token_ids(tokens, "tokens")
        if logits is None:
            self._eval(ids, which, ffi.NULL)
            return None
        import numpy

        n_vocab = lib.qn_model_get_info(self._model.pointer).n_vocab
        shape = (n_vocab,) if logits == "last" else (len(ids), n_vocab)
        if not len(ids):
            raise InvalidError("tokens: there are none, at least 1 is needed for logits")
        result = numpy.empty(shape, numpy.float32)
        self._eval(ids, which, ffi.cast("float *", result.ctypes.data))
        return result

    def _eval(self, ids: Any, which: int, out: Any) -> None:
        interrupted = Interruptible()
        with self._owner.use() as pointer, _progress(pointer, interrupted):
            status = lib.qn_session_eval(pointer, ids, len(ids), which, out)
            if interrupted.error:
                raise interrupted.error
            check(status)

    def embed(self, text: str | Sequence[int], *, pooling: Pooling | None = None) -> NDArray[np.float32]:
        """The embedding of a text or of token ids, [n_embd], of length 1. The session then holds its tokens only.

        pooling   "mean", "cls" (the first token) or "last"; None: as the model's file says, else "last"
        """
        import numpy

        given = lib.qn_model_get_pooling(self._model.pointer) or lib.QN_POOLING_LAST
        which = given if pooling is None else pooling_of(pooling)
        ids = token_ids(embedding_tokens(self._model, text) if isinstance(text, str) else text, "tokens")
        result = numpy.empty(lib.qn_model_get_info(self._model.pointer).n_embd, numpy.float32)
        interrupted = Interruptible()
        with self._owner.use() as pointer, _progress(pointer, interrupted):
            status = lib.qn_embed(pointer, ids, len(ids), which, ffi.cast("float *", result.ctypes.data))
            if interrupted.error:
                raise interrupted.error
            check(status)
        return result

    def rank(self, query: str, document: str) -> float:
        """The score of a document for a query, from 0 to 1, by a model that ranks documents. The session then holds the
        prompt that asks about them only."""
        ids = token_ids(ranking_tokens(self._model, query, document), "tokens")
        score, interrupted = ffi.new("float *"), Interruptible()
        with self._owner.use() as pointer, _progress(pointer, interrupted):
            status = lib.qn_rank(pointer, ids, len(ids), score)
            if interrupted.error:
                raise interrupted.error
            check(status)
        return float(score[0])

    # ---- Generation ----

    @overload
    def generate(
        self,
        prompt: str | Sequence[int] = "",
        *,
        stream: Literal[False] = False,
        **given: Unpack[SessionTextOptions],
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: str | Sequence[int] = "", *, stream: Literal[True], **given: Unpack[SessionTextOptions]
    ) -> TextStream: ...

    def generate(
        self, prompt: str | Sequence[int] = "", *, stream: bool = False, **given: Unpack[SessionTextOptions]
    ) -> Completion | TextStream:
        """Appends a prompt, a text or token ids, and continues it.

        The options are those of SessionTextOptions. With `stream` the pieces come as they are generated, and the
        session cannot be used otherwise before the stream ends.
        """
        options = Options("generate", given)
        params = sized("qn_request_params")
        parse_special, add_bos = options.take_flag("parse_special", True), options.take_flag("add_bos", True)
        seed = fill_answer(params, self._model.pointer, options, None, self._model.draft)
        request = TextRequest(seed, None, _take_tokens(params, options), False)
        params.on_text = requests.on_text
        options.end()

        def tokens(pointer: Any) -> list[int]:
            is_empty = not lib.qn_session_length(pointer)
            ids = prompt_ids(self._model, prompt, parse_special, add_bos and is_empty)
            pending = _pending(pointer)
            return ([] if pending is None else [pending]) + ids

        running = self._generate(request, params, options, tokens, stream)
        return running if stream else request.result()

    @overload
    def chat(
        self, messages: Sequence[Message], *, stream: Literal[False] = False, **given: Unpack[SessionChatOptions]
    ) -> ChatCompletion: ...

    @overload
    def chat(
        self, messages: Sequence[Message], *, stream: Literal[True], **given: Unpack[SessionChatOptions]
    ) -> ChatStream: ...

    def chat(
        self, messages: Sequence[Message], *, stream: bool = False, **given: Unpack[SessionChatOptions]
    ) -> ChatCompletion | ChatStream:
        """Answers a conversation. The part that the session already contains is kept.

        The options are those of SessionChatOptions.
        """
        options = Options("chat", given)
        params = sized("qn_request_params")
        prompt = ChatPrompt(messages, options)
        seed = fill_answer(params, self._model.pointer, options, prompt, self._model.draft)
        request = ChatRequest(seed, None, _take_tokens(params, options), False)
        params.on_event = requests.on_event
        if prompt.tools:
            params.tools, params.tools_length = options.keep(ffi.from_buffer(prompt.tools_json)), len(prompt.tools_json)
        options.end()

        def tokens(pointer: Any) -> list[int]:
            ids = conversation_tokens(self._model, prompt.json)
            return ids[_rewind_to(pointer, ids) :]

        running = self._generate(request, params, options, tokens, stream)
        return running if stream else request.result()

    def _generate(
        self,
        request: Request[Piece, Answer],
        params: Any,
        options: Options,
        tokens: Callable[[Any], list[int]],
        stream: bool,
    ) -> Any:
        owner, thread_runs = self._owner, threading.Lock()
        owner.acquire()
        generation = owner.begin()

        def run_in_thread(ids: list[int]) -> None:
            if thread_runs.acquire(blocking=False):
                self._run(request, params, options, ids, generation)

        try:
            ids = tokens(owner.pointer)
            request._cancel = owner.cancel
            if not stream:
                self._run(request, params, options, ids, generation)
                return Stream(request)
            # A thread that is not a daemon would delay the end of the interpreter; freeing the session ends its
            # generation.
            threading.Thread(target=run_in_thread, args=(ids,), daemon=True).start()
        except BaseException:
            # Ctrl-C may come after the thread has begun, which then ends the generation.
            if stream and not thread_runs.acquire(blocking=False):
                owner.cancel()
            else:
                owner.end(generation)
            raise
        return Stream(request)

    def _run(
        self, request: Request[Any, Any], params: Any, options: Options, ids: list[int], generation: object
    ) -> None:
        """Generates, and ends the request. The session is released before the request ends. Holds the options, to which
        the parameters point."""
        owner, result, finish = self._owner, sized("qn_request_result"), lib.QN_FINISH_CANCELLED
        try:
            with _progress(owner.pointer, request) as user:
                params.user = user
                params.tokens, params.n_tokens = options.keep(token_ids(ids, "prompt")), len(ids)
                status = lib.qn_generate(owner.pointer, params, result)
                if status:
                    request.fail(error_of(status, ffi.string(lib.qn_error_text())))
                finish = result.finish
            if finish == lib.QN_FINISH_CALLBACK and not request.error:
                request.fail(KeyboardInterrupt())  # Ctrl-C, and again while it was being recorded
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits
            request.fail(error)
        finally:
            owner.end(generation)
        r = result
        usage = Usage(
            len(ids), 0, r.n_generated, 0.0, r.prompt_seconds, r.generate_seconds, r.n_drafted, r.n_accepted
        )
        request.end(requests.REASONS.get(finish, "cancelled"), bool(result.is_stop_string), usage)


def _params(kv: str | None, n_ctx: int, n_batch: int, n_checkpoints: int) -> tuple[Any, Any]:
    """A qn_session_params, and the objects to which it points."""
    params, text = sized("qn_session_params"), kv_text(kv)
    params.n_ctx = integer(n_ctx, "n_ctx", 0, MAX_CTX)
    assign(params, "n_batch", n_batch, "n_batch")
    assign(params, "n_checkpoints", n_checkpoints, "n_checkpoints")
    params.kv, params.on_log = text, on_log
    return params, text


@contextmanager
def _progress(pointer: Any, owner: Interruptible) -> Iterator[Any]:
    """Lets the library call back between batches, so that Ctrl-C is noticed. Yields the handle of `owner`."""
    user = ffi.new_handle(owner)
    lib.qn_session_on_progress(pointer, requests.on_progress, user)
    try:
        yield user
    finally:
        lib.qn_session_on_progress(pointer, ffi.NULL, ffi.NULL)


def _take_tokens(params: Any, options: Options) -> bool:
    """Whether to report tokens, each of which costs a call."""
    has_tokens = options.take_flag("return_tokens", False)
    if has_tokens:
        params.on_token = requests.on_token
    return has_tokens


def _pending(pointer: Any) -> int | None:
    token = ffi.new("qn_token *")
    return int(token[0]) if lib.qn_session_pending(pointer, token) else None


def _rewind_to(pointer: Any, tokens: Sequence[int]) -> int:
    shared = ffi.new("uint32_t *")
    ids = token_ids(tokens, "tokens")
    check(lib.qn_session_truncate_to(pointer, ids, len(ids), shared))
    return int(shared[0])


class Sampler:
    """Samples tokens from logits, for your own loops: the library's sampler, with SamplingOptions. For one thread at a
    time.

    By default it gets a new seed, `seed`. DRY (`dry_multiplier`) needs the model, to tokenise the breakers.
    """

    def __init__(self, n_vocab: int, *, model: Model | None = None, **given: Unpack[SamplingOptions]) -> None:
        options = Options("Sampler", given)
        sampling, out = sized("qn_sampling"), ffi.new("qn_sampler **")
        self.seed = fill_sampling(sampling, model._handle.pointer if model is not None else None, options)
        options.end()
        check(lib.qn_sampler_create(sampling, integer(n_vocab, "n_vocab", 1, 2**31 - 1), out))
        self._sampler = ffi.gc(out[0], lib.qn_sampler_free)
        self._n_vocab = n_vocab

    def pick(self, logits: NDArray[np.float32], recent: Sequence[int] = ()) -> int:
        """The next token.

        logits   [n_vocab] f32, contiguous, not changed; -inf excludes a token
        recent   the tokens before, oldest first: for penalties, all of them in every call
        """
        if logits.shape != (self._n_vocab,) or logits.dtype != "float32" or not logits.flags.c_contiguous:
            raise InvalidError(
                f"logits: {logits.dtype} {list(logits.shape)}, expected contiguous float32 [{self._n_vocab}]"
            )
        ids, token = token_ids(recent, "recent"), ffi.new("qn_token *")
        check(lib.qn_sampler_pick(self._sampler, ffi.cast("float *", logits.ctypes.data), ids, len(ids), token))
        return int(token[0])
