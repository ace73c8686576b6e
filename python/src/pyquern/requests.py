"""Answers in generation: requests, which can be waited for, and streams of their pieces.

The library calls back for each piece, from its own thread or within the call that generates. A callback appends to a
list,
which streams read, and wakes waiting threads and tasks: one call and one small object for each token. An exception in a
callback ends the generation and is raised to the code that asks for the answer.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, TypeVar

from pyquern._cdef import ffi
from pyquern._lib import InvalidError, check_process, error_of, is_process, lib
from pyquern.answers import ChatCompletion, ChatEvent, Completion, FinishReason, Logprob, ToolCall, Usage

Piece = TypeVar("Piece")
Answer = TypeVar("Answer")
OnPiece = Callable[[Piece], object]


class _Calling(threading.local):
    """Whether this thread is running the caller's code in a callback of a scheduler."""

    depth = 0


_calling = _Calling()


@contextmanager
def callback_of(calls_back: bool) -> Iterator[None]:
    _calling.depth += calls_back
    try:
        yield
    finally:
        _calling.depth -= calls_back


def check_no_callback(function: str) -> None:
    """Raises in a callback of a scheduler, where `function` would wait for the callback itself."""
    if _calling.depth:
        raise InvalidError(
            f"{function}(): it is called in a callback of a scheduler, for whose end it would wait: submit a request there, and take "
            "its answer elsewhere"
        )


class Interruptible:
    """The owner of callbacks of the library: it stores the first exception that one of them raised."""

    error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error

    def progress(self, done: int, total: int) -> bool:
        return self.error is None


class _Future(Future[Answer]):
    """A request's future. It may be waited for wherever the request itself may."""

    def __init__(self, check_wait: Callable[[str], None]) -> None:
        super().__init__()
        self._check_wait = weakref.WeakMethod(check_wait)

    def _check(self, function: str) -> None:
        check = self._check_wait()  # None: the request has ended and is no longer referenced
        if check:
            check(function)

    def result(self, timeout: float | None = None) -> Answer:
        self._check("result")
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._check("exception")
        return super().exception(timeout)


class Request(Interruptible, ABC, Generic[Piece, Answer]):
    """An answer in generation.

    `result()` waits for it, as does `await` in asyncio; `for` and `async for` give its pieces as they come. Leaving
    such a loop early, and cancelling a task that awaits, cancel the request. `future` is for concurrent.futures.wait
    and as_completed.
    """

    def __init__(self, seed: int, on_piece: OnPiece[Piece] | None, has_tokens: bool, has_logprobs: bool) -> None:
        self.future: Future[Answer] = _Future(self.check_wait)
        self.future.set_running_or_notify_cancel()
        self._seed = seed
        self._on_piece = on_piece
        self._pieces: list[Piece] = []
        self._tokens: list[int] | None = [] if has_tokens else None
        self._logprobs: list[Logprob] | None = [] if has_logprobs else None
        self._wakers: tuple[Callable[[], None], ...] = ()
        self._wakers_lock = threading.RLock()
        self._cancel: Callable[[], None] = lambda: None
        self._calls_back = False  # of a scheduler, whose thread makes the answer
        self._process = os.getpid()

    def result(self, timeout: float | None = None) -> Answer:
        """The answer, as soon as it is complete.

        A cancelled request has the answer up to that point, with the finish_reason "cancelled". Raises the exception of
        a callback, and TimeoutError after `timeout` seconds, which does not end the request. Ctrl-C ends it.
        """
        self.check_wait("result")
        try:
            return self.future.result(timeout)
        except KeyboardInterrupt:
            self.cancel()
            raise

    def check_wait(self, function: str) -> None:
        """Raises where the answer would never come: in a forked child, and in a callback of a scheduler."""
        check_process(self._process, "the request")
        if self._calls_back and not self.future.done():
            check_no_callback(function)

    def cancel(self) -> None:
        """Ends the request before its next token. Nothing happens if it has ended."""
        self._cancel()

    def done(self) -> bool:
        """Whether the answer is complete."""
        check_process(self._process, "the request")
        return self.future.done()

    def __iter__(self) -> Stream[Piece, Answer]:
        return Stream(self)

    def __aiter__(self) -> Stream[Piece, Answer]:
        return Stream(self)

    def __await__(self) -> Generator[Any, None, Answer]:
        return self._wait().__await__()

    async def _wait(self) -> Answer:
        self.check_wait("await")
        try:
            return await asyncio.wrap_future(self.future)
        except asyncio.CancelledError:
            self.cancel()
            raise

    # ---- Called by the callbacks ----

    def add(self, piece: Piece) -> bool:
        self._pieces.append(piece)
        for wake in self._wakers:
            wake()
        if self._on_piece is None:
            return True
        with callback_of(self._calls_back):
            return self._on_piece(piece) is not False

    def add_token(self, token: int, logprobs: Any) -> bool:
        if self._tokens is not None:
            self._tokens.append(token)
        if self._logprobs is not None and logprobs:
            values = logprobs[0]
            top = tuple(zip(ffi.unpack(values.tokens, values.n), ffi.unpack(values.values, values.n), strict=True))
            self._logprobs.append(Logprob(token, values.chosen, top))
        return True

    @abstractmethod
    def add_event(self, event: Any) -> bool: ...

    @abstractmethod
    def _answer(self, reason: FinishReason, is_stop_string: bool, usage: Usage) -> Answer: ...

    def end(self, reason: FinishReason, is_stop_string: bool, usage: Usage) -> None:
        """Makes the answer, and wakes waiting threads and tasks."""
        try:
            if self.error is None:
                answer = self._answer(reason, is_stop_string, usage)
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits
            self.fail(error)
        with callback_of(self._calls_back):  # of the future
            if self.error is None:
                self.future.set_result(answer)
            else:
                self.future.set_exception(self.error)
        for wake in self._wakers:
            wake()

    # ---- Streams ----

    def _watch(self, wake: Callable[[], None]) -> None:
        with self._wakers_lock:
            self._wakers = (*self._wakers, wake)

    def _unwatch(self, wake: Callable[[], None]) -> None:
        with self._wakers_lock:
            self._wakers = tuple(other for other in self._wakers if other != wake)


class TextRequest(Request[str, Completion]):
    """A Request whose pieces are text, in complete characters, and whose answer is a Completion."""

    def add_event(self, event: Any) -> bool:
        raise TypeError("an event of a text")

    def _answer(self, reason: FinishReason, is_stop_string: bool, usage: Usage) -> Completion:
        return Completion(
            "".join(self._pieces), reason, is_stop_string, self._seed, usage, self._tokens, self._logprobs
        )


class ChatRequest(Request[ChatEvent, ChatCompletion]):
    """A Request whose pieces are events, and whose answer is a ChatCompletion."""

    _name = ""
    _arguments: list[str]

    def add_event(self, event: Any) -> bool:
        kind, text = event.kind, ffi.unpack(event.text, event.length).decode()
        if kind == lib.QN_OUTPUT_CONTENT:
            return self.add(ChatEvent("content", text))
        if kind == lib.QN_OUTPUT_REASONING:
            return self.add(ChatEvent("reasoning", text))
        if kind == lib.QN_OUTPUT_ARGUMENTS:
            self._arguments.append(text)
            return self.add(ChatEvent("arguments", text, event.call))
        if kind == lib.QN_OUTPUT_CALL_BEGIN:
            self._name, self._arguments = text, []
            return self.add(ChatEvent("tool_call", text, event.call))
        is_complete, is_cut = event.call_end == lib.QN_OUTPUT_COMPLETE, event.call_end == lib.QN_OUTPUT_CUT
        call = ToolCall(self._name, "".join(self._arguments)) if is_complete else None
        return self.add(ChatEvent("tool_call_end", "" if is_cut else text, event.call, call))

    def _answer(self, reason: FinishReason, is_stop_string: bool, usage: Usage) -> ChatCompletion:
        reasoning: list[str] = []
        content: list[str] = []
        calls: list[ToolCall] = []
        for event in self._pieces:
            if event.call:
                calls.append(event.call)
            elif event.type == "reasoning":
                reasoning.append(event.text)
            elif event.type in ("content", "tool_call_end"):
                content.append(event.text)
        if calls and reason == "stop" and not is_stop_string:
            reason = "tool_calls"
        return ChatCompletion(
            "".join(content),
            "".join(reasoning),
            calls,
            reason,
            is_stop_string,
            self._seed,
            usage,
            self._tokens,
            self._logprobs,
        )


class _ThreadWaker:
    """Wakes a thread; once for all pieces that come before it looks."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_set = False

    def wake(self) -> None:
        if not self._is_set:
            self._is_set = True
            self._queue.put(None)

    def wait(self) -> None:
        self._queue.get()
        self._is_set = False


class _LoopWaker:
    """The same for a task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._is_set = False

    def wake(self) -> None:
        if not self._is_set:
            self._is_set = True
            try:
                self._loop.call_soon_threadsafe(self._event.set)
            except RuntimeError:  # The loop is closed, so nothing waits.
                pass

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()
        self._is_set = False


class Stream(Generic[Piece, Answer]):
    """The pieces of an answer as they come, for `for` or `async for`.

    `close()`, the end of a `with`, and dropping the stream cancel the request if it has not ended. `result()` waits for
    the whole answer. For one thread at a time.
    """

    def __init__(self, request: Request[Piece, Answer]) -> None:
        self.request = request
        self._pieces = request._pieces
        self._next = 0
        self._waker: _ThreadWaker | _LoopWaker | None = None

    def result(self, timeout: float | None = None) -> Answer:
        """The answer, as soon as it is complete: Request.result."""
        return self.request.result(timeout)

    def close(self) -> None:
        """Cancels the request if it has not ended."""
        if not is_process(self.request._process):
            return
        if self._waker:
            self.request._unwatch(self._waker.wake)
            self._waker = None
        if not self.request.done():
            self.request.cancel()

    def _take(self) -> Piece | None:
        """The next piece; None to wait. Raises StopIteration, or the exception of the request, at the end."""
        if self._next == len(self._pieces):
            if not self.request.future.done():
                return None
            if self._next == len(self._pieces):  # no piece came before the end
                error = self.request.future.exception()
                if error:
                    raise error
                raise StopIteration
        self._next += 1
        return self._pieces[self._next - 1]

    def __iter__(self) -> Stream[Piece, Answer]:
        return self

    def __next__(self) -> Piece:
        self.request.check_wait("next")
        try:
            while (piece := self._take()) is None:
                if not isinstance(self._waker, _ThreadWaker):
                    self._waker = _ThreadWaker()
                    self.request._watch(self._waker.wake)
                else:
                    self._waker.wait()
            return piece
        except BaseException:
            self.close()
            raise

    def __aiter__(self) -> Stream[Piece, Answer]:
        return self

    async def __anext__(self) -> Piece:
        self.request.check_wait("anext")
        try:
            while (piece := self._take()) is None:
                if not isinstance(self._waker, _LoopWaker):
                    self._waker = _LoopWaker()
                    self.request._watch(self._waker.wake)
                else:
                    await self._waker.wait()
            return piece
        except StopIteration:
            self.close()
            raise StopAsyncIteration from None
        except BaseException:
            self.close()
            raise

    async def aclose(self) -> None:
        """As close."""
        self.close()

    def __enter__(self) -> Stream[Piece, Answer]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Stream[Piece, Answer]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


TextStream = Stream[str, Completion]
ChatStream = Stream[ChatEvent, ChatCompletion]


# ---- The callbacks, whose `user` is the handle of an Interruptible ----

Function = TypeVar("Function", bound=Callable[..., Any])


def callback(declaration: str, *, error: Any = None, onerror: Callable[..., None]) -> Callable[[Function], Function]:
    """cffi's decorator, typed. error: the callback's return value after `onerror` has handled its exception."""
    decorator: Callable[[Function], Function] = ffi.callback(declaration, error=error, onerror=onerror)
    return decorator


def on_error(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    # A signal's exception may come before the first line of a callback, where no `except` would see it.
    if traceback and traceback.tb_frame.f_locals["user"]:
        ffi.from_handle(traceback.tb_frame.f_locals["user"]).fail(error)


@callback("bool(void *, const char *, size_t)", error=False, onerror=on_error)
def on_text(user: Any, text: Any, length: int) -> Any:
    return ffi.from_handle(user).add(ffi.unpack(text, length).decode())


@callback("bool(void *, const qn_output_event *)", error=False, onerror=on_error)
def on_event(user: Any, event: Any) -> Any:
    return ffi.from_handle(user).add_event(event[0])


@callback("bool(void *, qn_token, const qn_logprobs *)", error=False, onerror=on_error)
def on_token(user: Any, token: int, logprobs: Any) -> Any:
    return ffi.from_handle(user).add_token(token, logprobs)


@callback("bool(void *, size_t, size_t)", error=False, onerror=on_error)
def on_progress(user: Any, done: int, total: int) -> Any:
    return ffi.from_handle(user).progress(done, total)


# Unfinished requests of schedulers by the addresses of their handles, since the library has only an address.
live: dict[int, tuple[Any, object]] = {}

REASONS: dict[int, FinishReason] = {
    lib.QN_FINISH_STOP: "stop",
    lib.QN_FINISH_LENGTH: "length",
    lib.QN_FINISH_CONTEXT: "length",
    lib.QN_FINISH_CANCELLED: "cancelled",
    lib.QN_FINISH_DEADLINE: "deadline",
}


@callback("void(void *, const qn_request_result *)", onerror=on_error)
def on_end(user: Any, result: Any) -> None:
    request = ffi.from_handle(user)
    r = result[0]
    if r.finish == lib.QN_FINISH_ERROR:
        request.fail(error_of(r.status, ffi.string(r.error)))
    usage = Usage(
        r.n_prompt,
        r.n_reused,
        r.n_generated,
        r.queued_seconds,
        r.prompt_seconds,
        r.generate_seconds,
        r.n_drafted,
        r.n_accepted,
    )
    request.end(REASONS.get(r.finish, "cancelled"), r.is_stop_string, usage)
    live.pop(int(ffi.cast("uintptr_t", user)), None)
