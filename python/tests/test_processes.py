"""Models after a fork, and in callbacks of their own requests: an error, where there was a wait without an end."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from models import DEMO, PARROT, PARROT_SAYS, QUESTION

import pyquern
from pyquern._cdef import ffi

SECONDS = 30


@pytest.fixture(scope="module")
def parrot() -> pyquern.Model:
    model = pyquern.Model(PARROT, device="cpu", n_threads=2)
    assert model.chat(QUESTION).content == PARROT_SAYS  # its scheduler is there
    return model


def in_child(function: Callable[[], None]) -> None:
    """Runs it in a forked child, which is killed if it hangs."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        text = "no end"
        try:
            function()
            text = ""
        except BaseException as error:  # noqa: BLE001 - told to the parent
            text = repr(error)
        os.write(write, text.encode()[:4000])
        os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    with os.fdopen(read) as said:
        assert (status, said.read()) == (0, "")


def refused(function: Callable[[], object]) -> None:
    with pytest.raises(pyquern.InvalidError, match="fork.*spawn"):
        function()


# ---- Forks ----


def test_forked_calls(parrot: pyquern.Model) -> None:
    scheduler = parrot.scheduler
    session, request = parrot.session(), scheduler.submit("a", max_tokens=2)
    open_stream = parrot.generate("a", stream=True, ignore_eos=True)
    request.result()

    def child() -> None:
        def stream() -> None:
            for _ in parrot.generate("a", stream=True, max_tokens=2):
                pass

        for call in (
            lambda: parrot.generate("a", max_tokens=2),
            lambda: parrot.generate("a", max_tokens=2, timeout=1.0),
            lambda: parrot.chat(QUESTION, timeout=1.0),
            lambda: parrot.chat(QUESTION, stream=True),
            stream,
            lambda: asyncio.run(parrot.agenerate("a", max_tokens=2)),
            lambda: asyncio.run(parrot.achat(QUESTION)),
            lambda: parrot.generate("a", json_object=True),
            parrot.capacity,
            parrot.session,
            lambda: pyquern.Scheduler(parrot),
            lambda: scheduler.submit("a"),
            lambda: scheduler.submit_chat(QUESTION),
            scheduler.counters,
            scheduler.wait,
            lambda: session.generate("a", max_tokens=1),
            lambda: session.generate("a", stream=True),
            lambda: session.chat(QUESTION),
            lambda: session.eval([1]),
            lambda: session.tokens,
            session.fork,
            request.result,
            lambda: request.result(timeout=1.0),
            open_stream.request.future.result,
            lambda: open_stream.request.future.exception(timeout=60.0),
            lambda: next(iter(request)),
            lambda: next(open_stream),
        ):
            refused(call)
        request.cancel()
        open_stream.close()

    in_child(child)
    open_stream.close()
    assert parrot.chat(QUESTION).content == PARROT_SAYS


def test_forked_tokenizer(parrot: pyquern.Model) -> None:
    ids = parrot.tokenizer.encode("abc")

    def child() -> None:
        assert parrot.tokenizer.encode("abc") == ids and parrot.tokenizer.decode(ids) == "abc"
        assert parrot.tokenizer.apply_chat_template(QUESTION)
        assert parrot.info.n_vocab == len(parrot.tokenizer) and parrot.chat_format.source

    in_child(child)


def test_forked_close() -> None:
    """Neither closing nor the end of objects waits for threads that are not there; a model of its own works."""
    model = pyquern.Model(PARROT, device="cpu", n_threads=2)
    scheduler, session = pyquern.Scheduler(model), model.session()
    scheduler.submit("a", ignore_eos=True)

    def child() -> None:
        nonlocal scheduler, session, model
        scheduler.close()
        session.close()
        model.close()
        del scheduler, session, model
        with pyquern.Model(PARROT, device="cpu", n_threads=2) as own:
            assert own.chat(QUESTION).content == PARROT_SAYS

    in_child(child)
    scheduler.close()
    session.close()
    model.close()


def test_forked_exit() -> None:
    """A child that ends as a program does."""
    program = f"""
import os, pyquern
model = pyquern.Model({str(PARROT)!r}, device="cpu", n_threads=2)
model.generate("a", max_tokens=2)
child = os.fork()
if child:
    raise SystemExit(os.waitpid(child, 0)[1])
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=SECONDS * 2, check=False).returncode == 0


def test_fork_at_any_time() -> None:
    """Locks are held and lists change when the fork comes."""
    model = pyquern.Model(DEMO, device="cpu", n_threads=2)
    is_over = threading.Event()

    def submit() -> None:
        while not is_over.is_set():
            model.generate("Once", max_tokens=3)

    threads = [threading.Thread(target=submit) for _ in range(3)]
    for thread in threads:
        thread.start()
    model.generate("Once", max_tokens=1)
    try:
        for _ in range(10):
            in_child(lambda: refused(lambda: model.generate("a", timeout=1.0)))
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


_global: pyquern.Model | None = None


def _answer(method: str) -> str:
    try:
        model = _global or pyquern.Model(PARROT, device="cpu", n_threads=1)
        return str(model.chat(QUESTION, timeout=20.0).content)
    except pyquern.InvalidError as error:
        return f"{method}: {error}"


def test_pool(parrot: pyquern.Model) -> None:
    global _global
    _global = parrot
    try:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert all("spawn" in text for text in pool.map_async(_answer, ["fork"] * 3).get(SECONDS))
            assert "spawn" in pool.apply_async(_answer, ("fork",)).get(SECONDS)
            with pytest.raises(pyquern.InvalidError, match="spawn"):
                pool.apply_async(_raise).get(SECONDS)
    finally:
        _global = None
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(_answer, ("spawn",)).get(2 * SECONDS) == PARROT_SAYS


def _raise() -> object:
    assert _global
    return _global.generate("a")


# ---- Callbacks ----


@pytest.fixture
def alarm() -> Iterator[None]:
    """Raises in a test that hangs, as Ctrl-C would."""

    def ring(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
def test_waits_in_callbacks(parrot: pyquern.Model) -> None:
    scheduler = parrot.scheduler
    with pyquern.Scheduler(parrot) as other:
        for name, call in {
            "generate": lambda: parrot.generate("b", max_tokens=1),
            "generate with a timeout": lambda: parrot.generate("b", max_tokens=1, timeout=1.0),
            "chat": lambda: parrot.chat(QUESTION, timeout=1.0),
            "stream": lambda: list(parrot.generate("b", stream=True)),
            "chat, stream": lambda: list(parrot.chat(QUESTION, stream=True)),
            "result": lambda: scheduler.submit("b", max_tokens=1).result(),
            "result with a timeout": lambda: scheduler.submit("b", max_tokens=1).result(timeout=1.0),
            "future": lambda: scheduler.submit("b", max_tokens=1).future.result(),
            "future with a timeout": lambda: scheduler.submit("b", max_tokens=1).future.exception(timeout=60.0),
            "another scheduler": lambda: other.submit("b", max_tokens=1).result(),
            "asyncio": lambda: asyncio.run(parrot.agenerate("b", max_tokens=1)),
            "wait": scheduler.wait,
            "close": scheduler.close,
            "close another": other.close,
            "close the model": parrot.close,
        }.items():
            with pytest.raises(pyquern.InvalidError, match="callback"):
                scheduler.submit("a", on_text=lambda text, call=call: call()).result()
            with pytest.raises(pyquern.InvalidError, match="callback"):
                scheduler.submit_chat(QUESTION, on_event=lambda event, call=call: call()).result()
            assert name and parrot.chat(QUESTION).content == PARROT_SAYS


@pytest.mark.usefixtures("alarm")
def test_callbacks_of_futures(parrot: pyquern.Model) -> None:
    """They run in the same thread, when the answer is complete."""
    errors: list[BaseException | None] = []
    called = threading.Event()

    def done(_: Any) -> None:
        try:
            parrot.generate("b", max_tokens=1)
            errors.append(None)
        except pyquern.InvalidError as error:
            errors.append(error)
        called.set()

    request = parrot.scheduler.submit("a", ignore_eos=True, max_tokens=20)
    request.future.add_done_callback(done)
    request.result()
    assert called.wait(SECONDS)
    assert len(errors) == 1 and (errors[0] is None or "callback" in str(errors[0]))


@pytest.mark.usefixtures("alarm")
def test_what_callbacks_may(parrot: pyquern.Model) -> None:
    """Submit, cancel, look at complete answers, tokenize, and use sessions."""
    complete = parrot.scheduler.submit("a", max_tokens=1)
    complete.result()
    submitted: list[pyquern.Request[Any, Any]] = []

    def on_text(_: str) -> None:
        if submitted:
            return
        submitted.append(parrot.scheduler.submit("b", max_tokens=1))
        assert parrot.scheduler.counters().submitted and complete.result() and parrot.tokenizer.encode("b")
        with parrot.session() as session:
            session.generate("b", max_tokens=1)

    parrot.scheduler.submit("a", on_text=on_text).result()
    assert submitted[0].result().usage.completion_tokens == 1


@pytest.mark.usefixtures("alarm")
def test_log_handler(caplog: pytest.LogCaptureFixture) -> None:
    """Notes can come from the thread that would compute the answer."""
    from pyquern import loading

    model = pyquern.Model(PARROT, device="cpu")
    errors: list[Exception] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                model.generate("a", max_tokens=1)
            except pyquern.InvalidError as error:
                errors.append(error)

    handler = Handler()
    loading.log.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "pyquern"):
            loading.on_log(ffi.NULL, ffi.new("char[]", b"a note"))
    finally:
        loading.log.removeHandler(handler)
    assert len(errors) == 1 and "callback" in str(errors[0])


def test_interrupt() -> None:
    """Ctrl-C ends a wait for an answer, and the program."""
    program = f"""
import pyquern, sys
model = pyquern.Model({str(DEMO)!r}, device="cpu", n_threads=1)
def on_text(text):
    print("begun", flush=True)
    model.generate("b", timeout=1.0)
try:
    model.scheduler.submit("a", on_text=on_text).result()
except pyquern.InvalidError:
    print("refused", flush=True)
request = model.scheduler.submit("a", ignore_eos=True, on_text=lambda text: print("more", flush=True))
try:
    request.result()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        rest, _ = process.communicate(timeout=SECONDS)
    assert lines == ["begun\n", "refused\n", "more\n"] and "interrupted" in rest and time.monotonic() - begin < SECONDS
