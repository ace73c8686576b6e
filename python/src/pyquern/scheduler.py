"""Many requests of one model at once.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from pyquern import requests
from pyquern._cdef import ffi
from pyquern._lib import InvalidError, check, check_process, is_process, lib, sized
from pyquern.loading import ModelHandle, on_log, size
from pyquern.options import (
    MAX_CTX,
    ChatPrompt,
    Draft,
    Message,
    Options,
    SubmitChatOptions,
    SubmitTextOptions,
    assign,
    draft_kind,
    fill_answer,
    fill_request,
    flag,
    integer,
    kv_text,
    token_ids,
)
from pyquern.requests import ChatRequest, Request, TextRequest, check_no_callback
from pyquern.tokenizer import prompt_ids

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from pyquern.model import Model


@dataclass(frozen=True, slots=True)
class Counters:
    """Current and total numbers of a scheduler (docs/scheduler.md)."""

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
    drafted_tokens: int
    accepted_tokens: int
    draft_passes: int
    draft_seconds: float


class _Owner:
    """Owns a qn_scheduler. Calls hold `lock`, so that none uses a freed scheduler; `_free_lock` is held until it is
    freed. In a forked child both may be held for ever, and neither is taken."""

    def __init__(self, pointer: Any) -> None:
        self.lock, self._free_lock = threading.RLock(), threading.RLock()
        self.pointer = pointer
        self._process = os.getpid()

    def check_process(self) -> None:
        check_process(self._process, "the scheduler")

    @contextmanager
    def use(self) -> Iterator[Any]:
        self.check_process()
        with self.lock:
            if self.pointer is None:
                raise InvalidError("scheduler: it is closed")
            yield self.pointer

    def cancel(self, identity: Any) -> None:
        if not is_process(self._process):
            return
        with self.lock:
            if self.pointer is not None:
                lib.qn_scheduler_cancel(self.pointer, identity[0])

    def free(self) -> None:
        if not is_process(self._process):
            return
        with self._free_lock:
            # Its callbacks may take `lock` until it is freed.
            with self.lock:
                pointer, self.pointer = self.pointer, None
            if pointer is not None:
                lib.qn_scheduler_free(pointer)


def _free_now(owner: _Owner, model: ModelHandle) -> None:
    """Frees a scheduler. Holds the model, so that it is freed afterwards."""
    owner.free()


def _free_scheduler(owner: _Owner, model: ModelHandle) -> None:
    # The last reference may be dropped in a callback, where the library cannot free a scheduler.
    if isinstance(threading.current_thread(), threading._DummyThread):
        threading.Thread(target=_free_now, args=(owner, model), name="pyquern-free").start()
    else:
        _free_now(owner, model)


class Scheduler:
    """Runs many requests of a model together.

    model            a Model
    kv               format of the KV cache: "f16", "f32", "aura8" to "aura2"; by default the model's
    n_ctx            limit of the tokens of a request, prompt and answer; by default the model's
    max_sequences    limit of the requests evaluated at the same time: 16 on the CPU, 64 on a GPU
    max_queued       limit of the waiting requests, 1024; a full queue is a BusyError
    max_rows         limit of the rows of a step: 128 on the CPU, 256 with AMX, 2048 on a GPU
    step_seconds     approximate limit of the duration of a step that decodes
    prefix_states    memory for recurrent states that are kept for reuse
    prefix_cache     whether common beginnings of requests are evaluated only once
    draft            where drafted tokens come from, for requests that do not say; by default as the model was loaded

    A request's answer depends only on the request. Methods may be called from any thread. The library computes without
    the GIL, and calls back from its own thread. A callback may submit and cancel requests, but not wait for answers,
    which would wait for the callback: `wait`, `close`, a request's `result` and pieces, and Model.generate and
    Model.chat without `stream` raise InvalidError there.
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
        draft: Draft | None = None,
    ) -> None:
        self._model = model._handle
        params, out = sized("qn_scheduler_params"), ffi.new("qn_scheduler **")
        kv_name = kv_text(model._kv if kv is None else kv)
        params.kv = kv_name
        params.n_ctx = model._n_ctx if n_ctx is None else integer(n_ctx, "n_ctx", 0, MAX_CTX)
        for name, value in (
            ("max_sequences", max_sequences),
            ("max_queued", max_queued),
            ("max_rows", max_rows),
            ("step_seconds", step_seconds),
            ("prefix_states", size(prefix_states, "prefix_states")),
        ):
            assign(params, name, value, name)
        params.no_prefix_cache = not flag(prefix_cache, "prefix_cache")
        params.draft = draft_kind(self._model.draft if draft is None else draft)
        params.on_log = on_log
        check(lib.qn_scheduler_create(self._model.pointer, params, out))
        self._owner = _Owner(out[0])
        self._free = weakref.finalize(self, _free_scheduler, self._owner, self._model)
        self._model.children.add(self._owner)

    def submit(self, prompt: str | Sequence[int], **given: Unpack[SubmitTextOptions]) -> TextRequest:
        """Queues a prompt, a text or token ids, to be continued. Does not wait.

        The options are those of TextOptions, and on_text, which is called for each piece of text.
        """
        return self._submit_text("submit", prompt, given)

    def _submit_text(self, function: str, prompt: str | Sequence[int], given: Mapping[str, Any]) -> TextRequest:
        """`function` is the called method, for errors in options."""
        self._owner.check_process()
        options = Options(function, given)
        params = sized("qn_request_params")
        parse_special, add_bos = options.take_flag("parse_special", True), options.take_flag("add_bos", True)
        ids = token_ids(prompt_ids(self._model, prompt, parse_special, add_bos), "prompt")
        params.tokens, params.n_tokens = options.keep(ids), len(ids)
        on_text: Callable[[str], object] | None = options.take_function("on_text") if function == "submit" else None
        seed = fill_answer(params, self._model.pointer, options, None)
        params.on_text = requests.on_text
        request = TextRequest(seed, on_text, *self._token_options(params, options))
        self._submit(request, params, options)
        return request

    def submit_chat(self, messages: Sequence[Message], **given: Unpack[SubmitChatOptions]) -> ChatRequest:
        """Queues a conversation to be answered. Does not wait.

        The options are those of ChatOptions, and on_event, which is called for each event.
        """
        return self._submit_messages("submit_chat", messages, given)

    def _submit_messages(self, function: str, messages: Sequence[Message], given: Mapping[str, Any]) -> ChatRequest:
        self._owner.check_process()
        options = Options(function, given)
        params = sized("qn_request_params")
        prompt = ChatPrompt(messages, options)
        params.conversation = options.keep(ffi.from_buffer(prompt.json))
        params.conversation_length = len(prompt.json)
        on_event = options.take_function("on_event") if function == "submit_chat" else None
        seed = fill_answer(params, self._model.pointer, options, prompt)
        params.on_event = requests.on_event
        request = ChatRequest(seed, on_event, *self._token_options(params, options))
        self._submit(request, params, options)
        return request

    @staticmethod
    def _token_options(params: Any, options: Options) -> tuple[bool, bool]:
        """Whether to report tokens and log probabilities. Each costs a call for every token."""
        fill_request(params, options)
        has_logprobs = params.n_logprobs >= 0
        has_tokens = options.take_flag("return_tokens", False) or has_logprobs
        if has_tokens:
            params.on_token = requests.on_token
        return has_tokens, has_logprobs

    def _submit(self, request: Request[Any, Any], params: Any, options: Options) -> None:
        options.end()
        owner, identity, user = self._owner, ffi.new("uint64_t *"), ffi.new_handle(request)
        key = int(ffi.cast("uintptr_t", user))
        params.user, params.on_end = user, requests.on_end
        request._cancel, request._calls_back = lambda: owner.cancel(identity), True
        # The scheduler lives as long as its requests.
        requests.live[key] = (user, self)
        try:
            with owner.use() as pointer:
                check(lib.qn_scheduler_submit(pointer, params, identity))
        except BaseException:
            if identity[0]:  # Ctrl-C came after it was queued
                owner.cancel(identity)
            else:
                requests.live.pop(key, None)
            raise

    def wait(self) -> None:
        """Waits until all requests have ended. Not from a callback."""
        self._owner.check_process()
        check_no_callback("wait")
        while pending := [future for future in self._futures() if not future.done()]:
            futures.wait(pending)

    def _futures(self) -> list[futures.Future[Any]]:
        return [ffi.from_handle(user).future for user, owner in list(requests.live.values()) if owner is self]

    def counters(self) -> Counters:
        """Current and total numbers, as of the last step."""
        counters = sized("qn_scheduler_counters")
        with self._owner.use() as pointer:
            check(lib.qn_scheduler_get_counters(pointer, counters))
        return Counters(*(getattr(counters, name) for name in Counters.__slots__))

    def close(self) -> None:
        """Cancels all requests and frees the scheduler. Not from a callback."""
        check_no_callback("close")
        self._free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
