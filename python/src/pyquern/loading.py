"""Loads models, and manages the lifetime of their objects.

A handle owns an object of the library. Handles of sessions and schedulers hold a reference to that of their model, so
that the model is freed last, also by the garbage collector and at the end of the interpreter.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import logging
import os
import re
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from pyquern import hub
from pyquern._cdef import ffi
from pyquern._lib import InvalidError, check, check_process, lib, sized
from pyquern.options import Draft, assign, draft_kind, flag, terminated
from pyquern.requests import Interruptible, callback, callback_of, check_no_callback, on_error, on_progress

log = logging.getLogger("pyquern")

OnProgress = Callable[[int, int], object]


class Owner(Protocol):
    """An object that must be freed before its model. When `free` returns, it is freed, even if another thread began
    that."""

    def free(self) -> None: ...


def size(value: int | str | None, name: str) -> int:
    """Bytes, given as a number or as "512M": powers of 1024."""
    if value is None:
        return 0
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", str(value).upper())
    if not match:
        raise InvalidError(f"{name}: {value!r}, expected a number of bytes, with K, M, G or T for powers of 1024")
    return int(float(match[1]) * 1024 ** "_KMGT".index(match[2] or "_"))


class _Loading(Interruptible):
    """The owner of a model's callbacks. Notes may also come after loading, from any thread."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress

    def progress(self, done: int, total: int) -> bool:
        is_wanted = self._on_progress is None or self._on_progress(done, total) is not False
        return is_wanted and self.error is None


@callback("void(void *, const char *)", onerror=on_error)
def on_log(user: Any, line: Any) -> None:
    with callback_of(True):  # a handler may be called during a step
        log.info("%s", ffi.string(line).decode(errors="replace"))


class ModelHandle:
    """Owns a qn_model. `draft` is where it was loaded to get drafted tokens from."""

    def __init__(self, pointer: Any, user: Any, draft: Draft) -> None:
        self._pointer = pointer
        self.draft = draft
        self._process = os.getpid()
        self.children: weakref.WeakSet[Owner] = weakref.WeakSet()
        self._free = weakref.finalize(self, _free_model, pointer, user)

    @property
    def pointer(self) -> Any:
        if self._pointer is None:
            raise InvalidError("model: it is closed")
        return self._pointer

    def check_process(self) -> None:
        """Raises in a forked child, where waiting for the model's threads and locks would hang."""
        check_process(self._process, "the model")

    def close(self) -> None:
        check_no_callback("close")
        for child in list(self.children):
            child.free()
        self._pointer = None
        self._free()


def _free_model(pointer: Any, user: Any) -> None:
    """`user` is the library's argument for notes; it must live until the model is freed."""
    lib.qn_model_free(pointer)


def load(
    name: str | os.PathLike[str],
    *,
    device: str | None,
    n_threads: int,
    memory: int | str | None,
    chat_template: str | None,
    vocab_only: bool,
    deterministic: bool,
    draft: Draft,
    draft_model: str | os.PathLike[str] | None,
    on_progress_: OnProgress | None,
) -> ModelHandle:
    """Loads a model. Ctrl-C, or an exception of on_progress, ends it."""
    if on_progress_ is not None and not callable(on_progress_):
        raise TypeError(f"on_progress: {on_progress_!r}, expected a function")
    loading = _Loading(on_progress_)
    user = ffi.new_handle(loading)
    params, out = sized("qn_model_params"), ffi.new("qn_model **")
    device_text = ffi.new("char[]", terminated(device or os.environ.get("QN_DEVICE") or "auto", "device"))
    template = ffi.NULL if chat_template is None else ffi.new("char[]", terminated(chat_template, "chat_template"))
    params.device, params.chat_template = device_text, template
    drafter = ffi.NULL if draft_model is None else ffi.new("char[]", os.fsencode(hub.find(draft_model)))
    params.draft, params.draft_model = draft_kind(draft), drafter
    assign(params, "n_threads", n_threads, "n_threads")
    assign(params, "memory", size(memory, "memory"), "memory")
    params.vocab_only, params.deterministic = flag(vocab_only, "vocab_only"), flag(deterministic, "deterministic")
    params.on_progress, params.on_log, params.user = on_progress, on_log, user
    status = lib.qn_model_load(os.fsencode(hub.find(name)), params, out)
    if status == lib.QN_OK:
        handle = ModelHandle(out[0], (user, loading), draft)
    if loading.error is not None:
        raise loading.error
    check(status)
    return handle
