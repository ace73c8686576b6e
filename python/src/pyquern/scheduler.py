"""Many requests of one model at once.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent import futures
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyquern import requests
from pyquern._cdef import ffi
from pyquern._lib import InvalidError, check, lib
from pyquern.loading import ModelHandle, on_log, size
from pyquern.options import (
    ChatPrompt,
    Message,
    Options,
    SubmitChatOptions,
    SubmitTextOptions,
    fill_answer,
    fill_request,
    terminated,
)
from pyquern.requests import ChatRequest, Request, TextRequest
from pyquern.tokenizer import tokens_of

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from pyquern.model import Model


@dataclass(frozen=True, slots=True)
class Counters:
    """What a scheduler does now, and has done (docs/scheduler.md)."""

    queued: int
    running: int
    memory_bytes: int
    memory_limit: int
    prefix_tokens: int
    prefix_states: int
    prefix_host_bytes: int
    submitted: int
    finished: int
    set_aside: int
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    prefix_hits: int
    steps: int
    rows: int
    ahead_steps: int
    step_seconds: float
    longest_step_seconds: float
    idle_seconds: float


class _Owner:
    """Owns a qn_scheduler. `lock` is held by calls, so that none finds it freed, `_free_lock` until it is freed."""

    def __init__(self, pointer: Any) -> None:
        self.lock, self._free_lock = threading.RLock(), threading.RLock()
        self.pointer = pointer

    def use(self) -> Any:
        if self.pointer is None:
            raise InvalidError("scheduler: it is closed")
        return self.pointer

    def cancel(self, identity: Any) -> None:
        with self.lock:
            if self.pointer is not None:
                lib.qn_scheduler_cancel(self.pointer, identity[0])

    def free(self) -> None:
        with self._free_lock:
            # Its callbacks may want `lock` until it is freed.
            with self.lock:
                pointer, self.pointer = self.pointer, None
            if pointer is not None:
                lib.qn_scheduler_free(pointer)


def _free_now(owner: _Owner, model: ModelHandle) -> None:
    """Has the model, so that it is freed after its scheduler."""
    owner.free()


def _free_scheduler(owner: _Owner, model: ModelHandle) -> None:
    # The last reference can go in a callback, and the library cannot free a scheduler there.
    if isinstance(threading.current_thread(), threading._DummyThread):
        threading.Thread(target=_free_now, args=(owner, model), name="pyquern-free").start()
    else:
        _free_now(owner, model)


class Scheduler:
    """Runs many requests of a model together.

    model            a Model
    kv               format of the KV cache: "f16", "aura8" to "aura2"; the model's without it
    n_ctx            most tokens of a request, prompt and answer; the model's without it
    max_sequences    most requests that are evaluated at the same time: 16 on the CPU, 64 on a GPU
    max_queued       most requests that wait, 1024; a full queue is an OutOfMemoryError
    max_rows         most rows of a step: 128 on the CPU, 2048 on a GPU
    step_seconds     about how long a step that decodes may take
    prefix_states    memory for recurrent states that are kept for reuse
    prefix_cache     whether what requests have in common is evaluated once

    What a request answers depends on the request alone. Methods may be called from any thread, and from callbacks, `close`
    aside. The library computes without the GIL, and calls back from a thread of its own.
    """

    def __init__(
        self,
        model: Model,
        *,
        kv: str | None = None,
        n_ctx: int | None = None,
        max_sequences: int = 0,
        max_queued: int = 0,
        max_rows: int = 0,
        step_seconds: float = 0.0,
        prefix_states: int | str | None = None,
        prefix_cache: bool = True,
    ) -> None:
        self._model = model._handle
        params, out = ffi.new("qn_scheduler_params *"), ffi.new("qn_scheduler **")
        kv = kv or model._kv
        kv_text = ffi.new("char[]", terminated(kv, "kv")) if kv else ffi.NULL
        params.kv, params.n_ctx = kv_text, model._n_ctx if n_ctx is None else n_ctx
        params.max_sequences, params.max_queued, params.max_rows = max_sequences, max_queued, max_rows
        params.step_seconds, params.prefix_states = step_seconds, size(prefix_states, "prefix_states")
        params.no_prefix_cache = not prefix_cache
        params.on_log = on_log
        check(lib.qn_scheduler_create(self._model.pointer, params, out))
        self._owner = _Owner(out[0])
        self._free = weakref.finalize(self, _free_scheduler, self._owner, self._model)
        self._model.children.add(self._owner)

    def submit(self, prompt: str | Sequence[int], **given: Unpack[SubmitTextOptions]) -> TextRequest:
        """Queues a prompt, a text or token ids, that is to be continued. Does not wait.

        The options are those of TextOptions, and on_text, which is called for each piece of text.
        """
        options = Options("submit", given)
        params = ffi.new("qn_request_params *", lib.qn_request_defaults())
        parse_special, add_bos = options.take("parse_special", True), options.take("add_bos", True)
        ids = tokens_of(self._model, prompt, parse_special, add_bos) if isinstance(prompt, str) else list(prompt)
        params.tokens, params.n_tokens = options.keep(ffi.new("qn_token[]", ids)), len(ids)
        on_text: Callable[[str], object] | None = options.take("on_text")
        seed = fill_answer(params, self._model.pointer, options, None)
        params.on_text = requests.on_text
        request = TextRequest(seed, on_text, *self._token_options(params, options))
        self._submit(request, params, options)
        return request

    def submit_chat(self, messages: Sequence[Message], **given: Unpack[SubmitChatOptions]) -> ChatRequest:
        """Queues a conversation that is to be answered. Does not wait.

        The options are those of ChatOptions, and on_event, which is called for each event.
        """
        options = Options("submit_chat", given)
        params = ffi.new("qn_request_params *", lib.qn_request_defaults())
        prompt = ChatPrompt(messages, options)
        params.conversation = options.keep(ffi.from_buffer(prompt.json))
        params.conversation_length = len(prompt.json)
        on_event = options.take("on_event")
        seed = fill_answer(params, self._model.pointer, options, prompt)
        params.on_event = requests.on_event
        request = ChatRequest(seed, on_event, *self._token_options(params, options))
        self._submit(request, params, options)
        return request

    @staticmethod
    def _token_options(params: Any, options: Options) -> tuple[bool, bool]:
        """Whether answers have tokens and log probabilities. Each costs a call for every token."""
        fill_request(params, options)
        has_logprobs = params.n_logprobs >= 0
        has_tokens = bool(options.take("return_tokens", False)) or has_logprobs
        if has_tokens:
            params.on_token = requests.on_token
        return has_tokens, has_logprobs

    def _submit(self, request: Request[Any, Any], params: Any, options: Options) -> None:
        options.end()
        owner, identity, user = self._owner, ffi.new("uint64_t *"), ffi.new_handle(request)
        key = int(ffi.cast("uintptr_t", user))
        params.user, params.on_end = user, requests.on_end
        request._cancel = lambda: owner.cancel(identity)
        # The scheduler lives as long as its requests.
        requests.live[key] = (user, self)
        try:
            with owner.lock:
                check(lib.qn_scheduler_submit(owner.use(), params, identity))
        except BaseException:
            if identity[0]:  # Ctrl-C after it was queued
                owner.cancel(identity)
            else:
                requests.live.pop(key, None)
            raise

    def wait(self) -> None:
        """Waits until all requests have ended. Not from a callback."""
        while pending := [future for future in self._futures() if not future.done()]:
            futures.wait(pending)

    def _futures(self) -> list[futures.Future[Any]]:
        return [ffi.from_handle(user).future for user, owner in list(requests.live.values()) if owner is self]

    def counters(self) -> Counters:
        """What it does now, and has done, as of the last step."""
        with self._owner.lock:
            counters = lib.qn_scheduler_get_counters(self._owner.use())
        return Counters(*(getattr(counters, name) for name in Counters.__slots__))

    def close(self) -> None:
        """Cancels all requests and frees the scheduler. Not from a callback."""
        self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
