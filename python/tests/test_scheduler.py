"""Schedulers: many requests from threads and asyncio, callbacks, cancelling, what remains of requests, the interpreter's end."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest
from models import CALLER, DEMO, PARROT, QUESTION, TOOLS

import pyquern
from pyquern import requests

N_ROUNDS = 10 if os.environ.get("QN_SOAK") else 1
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def demo() -> pyquern.Model:
    return pyquern.Model(DEMO, device="cpu")


@pytest.fixture
def scheduler(demo: pyquern.Model) -> Iterator[pyquern.Scheduler]:
    with pyquern.Scheduler(demo) as scheduler:
        yield scheduler


def resident() -> int:
    """Bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_many_equal_alone(demo: pyquern.Model) -> None:
    """1000 requests from asyncio, 32 at once, answer what they answer alone, and leave nothing."""
    prompts = [PROMPT, "The dog", "A girl named Lily", "In the forest there", "Tom"]
    cases = [(prompts[i % 5], i) for i in range(20)]

    def alone(prompt: str, seed: int) -> str:
        with demo.session() as session:
            return session.generate(prompt, max_tokens=4, seed=seed, temperature=1.2).text

    async def many(scheduler: pyquern.Scheduler, n: int) -> list[str]:
        limit = asyncio.Semaphore(32)

        async def one(prompt: str, seed: int) -> str:
            async with limit:
                request = scheduler.submit(prompt, max_tokens=4, seed=seed, temperature=1.2)
                if seed % 2:
                    return "".join([text async for text in request])
                return (await request).text

        return await asyncio.gather(*(one(*cases[i % len(cases)]) for i in range(n)))

    expected = [alone(*case) for case in cases]
    assert len(set(expected)) > 5
    with pyquern.Scheduler(demo, max_sequences=32) as scheduler:
        asyncio.run(many(scheduler, 250))
        gc.collect()
        before = resident()
        for _ in range(N_ROUNDS):
            answers = asyncio.run(many(scheduler, 1000))
            assert answers == [expected[i % len(cases)] for i in range(1000)]
        scheduler.wait()
        assert scheduler.counters().finished == 250 + 1000 * N_ROUNDS
        del answers
        gc.collect()
        assert resident() - before < 4 << 20
    assert not requests.live
    assert not [thing for thing in gc.get_objects() if isinstance(thing, pyquern.Request | pyquern.Stream)]


def test_no_cycles(scheduler: pyquern.Scheduler) -> None:
    """A request is gone with its last reference: nothing waits for the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        for _ in scheduler.submit(PROMPT, max_tokens=2):
            pass
        scheduler.submit(PROMPT, max_tokens=2).result()
        scheduler.wait()
        while requests.live:
            time.sleep(0.001)
        assert not [thing for thing in gc.get_objects() if isinstance(thing, pyquern.Request | pyquern.Stream)]
    finally:
        gc.enable()


def test_futures(scheduler: pyquern.Scheduler) -> None:
    running = [scheduler.submit(PROMPT, max_tokens=3, seed=i) for i in range(8)]
    done = [future.result().text for future in futures.as_completed([request.future for request in running])]
    assert sorted(done) == sorted(request.result().text for request in running)
    slow = scheduler.submit(PROMPT, ignore_eos=True)
    with pytest.raises(futures.TimeoutError):
        slow.result(timeout=0.01)
    slow.cancel()
    assert slow.result().finish_reason == "cancelled"
    assert scheduler.submit(PROMPT, ignore_eos=True, timeout=0.05).result().finish_reason == "deadline"


def test_threads(demo: pyquern.Model) -> None:
    with futures.ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda seed: demo.generate(PROMPT, max_tokens=4, seed=seed % 2).text, range(16)))
    assert texts == texts[:2] * 8


def test_callbacks(scheduler: pyquern.Scheduler) -> None:
    pieces: list[str] = []
    names: set[str] = set()

    def take(text: str) -> None:
        pieces.append(text)
        names.add(threading.current_thread().name)

    answer = scheduler.submit(PROMPT, max_tokens=5, on_text=take).result()
    assert "".join(pieces) == answer.text and threading.current_thread().name not in names
    assert scheduler.submit(PROMPT, on_text=lambda text: False).result().finish_reason == "cancelled"

    def fail(text: str) -> None:
        raise ZeroDivisionError(text)

    failing, beside = scheduler.submit(PROMPT, on_text=fail), scheduler.submit(PROMPT, max_tokens=5, seed=1)
    with pytest.raises(ZeroDivisionError):
        failing.result()
    with pytest.raises(ZeroDivisionError):
        list(failing)
    assert beside.result().text == scheduler.submit(PROMPT, max_tokens=5, seed=1).result().text


def test_chat_callbacks() -> None:
    with pyquern.Scheduler(pyquern.Model(CALLER, device="cpu")) as scheduler:
        events: list[str] = []
        request = scheduler.submit_chat(QUESTION, tools=TOOLS, on_event=lambda event: events.append(event.type))
        assert request.result().tool_calls
        assert events == ["reasoning", "tool_call", "arguments", "tool_call_end"]


def test_streams_end(scheduler: pyquern.Scheduler) -> None:
    """A loop that is left, and a stream that is dropped, end their requests."""
    request = scheduler.submit(PROMPT, ignore_eos=True)
    for _ in request:
        break
    assert request.result().finish_reason == "cancelled"
    request = scheduler.submit(PROMPT, ignore_eos=True)
    with iter(request) as stream:
        next(stream)
    assert request.result().finish_reason == "cancelled"
    request = scheduler.submit(PROMPT, max_tokens=5)
    assert list(request) == list(request)  # once more, after the end


def test_cancelled_tasks(scheduler: pyquern.Scheduler) -> None:
    async def run() -> None:
        awaited, streamed = (scheduler.submit(PROMPT, ignore_eos=True) for _ in range(2))

        async def read() -> None:
            async for _ in streamed:
                pass

        tasks = [asyncio.ensure_future(awaited), asyncio.ensure_future(read())]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError)
        for request in (awaited, streamed):
            assert (await request).finish_reason == "cancelled"

    asyncio.run(run())


def test_closed_loop(scheduler: pyquern.Scheduler) -> None:
    """A request goes on whose loop has been closed."""
    stream = iter(scheduler.submit(PROMPT, max_tokens=30, ignore_eos=True))

    async def run() -> None:
        await stream.__anext__()

    asyncio.run(run())
    assert stream.result().finish_reason == "length"


def test_queue(demo: pyquern.Model) -> None:
    with pyquern.Scheduler(demo, max_sequences=1, max_queued=2, max_rows=1) as scheduler:
        running = []
        with pytest.raises(pyquern.BusyError, match="queue"):
            for _ in range(10):
                running.append(scheduler.submit(PROMPT, ignore_eos=True))
        for request in running:
            request.cancel()
        scheduler.wait()
        assert all(request.done() for request in running)
    with pytest.raises(pyquern.InvalidError, match="sequences: 100"):
        pyquern.Scheduler(demo, max_sequences=100, max_rows=10)


def test_close(demo: pyquern.Model) -> None:
    scheduler = pyquern.Scheduler(demo)
    request = scheduler.submit(PROMPT, ignore_eos=True)
    scheduler.close()
    assert request.result().finish_reason == "cancelled"
    request.cancel()


def test_dropped_scheduler(demo: pyquern.Model) -> None:
    """Requests keep their scheduler and its model, whose last references go in a callback."""
    expected = demo.generate(PROMPT, max_tokens=2, seed=1).text
    for _ in range(20):
        request = pyquern.Scheduler(pyquern.Model(DEMO, device="cpu")).submit(PROMPT, max_tokens=2, seed=1)
        assert request.result().text == expected
    deadline = time.monotonic() + 20
    while any(thread.name == "pyquern-free" for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not requests.live


@pytest.mark.parametrize(
    "left",
    [
        "request = model.scheduler.submit('a', ignore_eos=True)",
        "stream = model.generate('a', ignore_eos=True, stream=True); next(stream)",
        "stream = model.session().generate('a', ignore_eos=True, stream=True); next(stream)",
        "session = model.session(); session.cycle = session; del model",
    ],
)
def test_end_of_the_interpreter(left: str) -> None:
    code = f"import pyquern\nmodel = pyquern.Model({str(PARROT)!r}, device='cpu')\n{left}\nprint('end')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")


def test_scope(demo: pyquern.Model) -> None:
    """What a scope evaluated is not used in another."""
    tokens = list(range(10, 210))
    first = demo.generate(tokens, max_tokens=1, cache_scope="a").usage.cached_tokens
    assert demo.generate(tokens, max_tokens=1, cache_scope="b").usage.cached_tokens == 0 == first
    assert demo.generate(tokens, max_tokens=1, cache_scope="a").usage.cached_tokens >= 128


def test_notes(caplog: pytest.LogCaptureFixture) -> None:
    """A cache format that is not used: the caller's heads are too small for AURA codes."""
    model = pyquern.Model(CALLER, device="cpu")
    with caplog.at_level("INFO", "pyquern"), pyquern.Scheduler(model, kv="aura4"):
        pass
    assert [record.getMessage() for record in caplog.records] == [
        "cache: heads of 16 values cannot be stored as aura4; they are stored as f16"
    ]


def test_a_draft_model_changes_no_text(demo: pyquern.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo model drafts for itself; another vocabulary is refused, and so is the drafter without a draft model."""
    with pytest.raises(pyquern.UnsupportedError, match="not the vocabulary"):
        pyquern.Model(DEMO, device="cpu", draft_model=PARROT)
    with pytest.raises(pyquern.UnsupportedError, match="draft model"):
        demo.generate(PROMPT, max_tokens=1, draft="model")
    plain = demo.generate(PROMPT, max_tokens=40, temperature=0, ignore_eos=True, draft="off")
    monkeypatch.setenv("QN_DRAFT", "model")
    model = pyquern.Model(DEMO, device="cpu", draft_model=DEMO)
    drafted = model.generate(PROMPT, max_tokens=40, temperature=0, ignore_eos=True)
    assert drafted.text == plain.text
    assert drafted.usage.accepted_tokens == drafted.usage.drafted_tokens > 20


def test_models_are_loaded_with_a_drafter(demo: pyquern.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of schedulers and sessions draft as the model was loaded; other ones can ask for what it has."""
    monkeypatch.delenv("QN_DRAFT", raising=False)
    options = {"max_tokens": 120, "temperature": 0, "ignore_eos": True}
    plain = demo.generate(PROMPT, draft="off", **options)
    for draft in ("mtp", "off", "auto"):
        model = pyquern.Model(DEMO, device="cpu", n_threads=1, draft=draft)
        with model.session() as session:
            for answer in (model.generate(PROMPT, **options), session.generate(PROMPT, **options)):
                assert answer.text == plain.text
                assert draft != "off" or answer.usage.drafted_tokens == 0
        asked = model.generate(PROMPT, draft="ngram", **options)
        assert asked.text == plain.text
    with pytest.raises(pyquern.UnsupportedError, match="without its block"):
        pyquern.Model(DEMO, device="cpu", draft="off").generate(PROMPT, max_tokens=1, draft="mtp")
    with pytest.raises(pyquern.UnsupportedError, match="no block for multi-token prediction"):
        pyquern.Model(PARROT, device="cpu", draft="mtp")
    with pytest.raises(pyquern.InvalidError, match="given with draft ngram"):
        pyquern.Model(DEMO, device="cpu", draft="ngram", draft_model=DEMO)
    with pytest.raises(pyquern.InvalidError, match="draft: 'fast', expected"):
        pyquern.Model(DEMO, device="cpu", draft="fast")  # type: ignore[arg-type]


def test_drafts_change_no_text(demo: pyquern.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second answer to a prompt is drafted from the first; QN_DRAFT, read by a new scheduler, weighs no costs."""
    monkeypatch.setenv("QN_DRAFT", "ngram")
    with pyquern.Scheduler(demo) as scheduler:
        for seed in (1, 2):
            plain = scheduler.submit(PROMPT, max_tokens=40, seed=seed, ignore_eos=True, draft="off").result()
            drafted = [
                scheduler.submit(PROMPT, max_tokens=40, seed=seed, ignore_eos=True, draft="ngram", cache_scope="me").result()
                for _ in range(2)
            ]
            assert [answer.text for answer in drafted] == [plain.text] * 2
            assert plain.usage.drafted_tokens == 0 < 20 < drafted[1].usage.accepted_tokens
        counters = scheduler.counters()
        assert counters.drafted_tokens >= counters.accepted_tokens > 40
    with pytest.raises(pyquern.UnsupportedError, match="dflash"):
        pyquern.Scheduler(demo, draft="dflash")
    with pytest.raises(pyquern.InvalidError, match="draft"):
        demo.generate(PROMPT, max_tokens=1, draft="fast")  # type: ignore[arg-type]
