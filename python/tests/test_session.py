"""Sessions: continuing, going back, copies and files, logits, streams, Ctrl-C."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from models import CALLER, DEMO, GOLDEN, PARROT, PARROT_SAYS, QUESTION, TOOLS

import pyquern

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def demo() -> pyquern.Model:
    return pyquern.Model(DEMO, device="cpu")


def interrupt(call: Callable[[], object], seconds: float) -> None:
    """A call with Ctrl-C after so long, which must raise KeyboardInterrupt. Python ignores one that comes in a finalizer."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(KeyboardInterrupt):
            timer.start()  # which waits for its thread
            call()
        timer.join()
    finally:
        gc.enable()


# ---- What a session holds ----


def test_continue(demo: pyquern.Model) -> None:
    session = demo.session(n_ctx=256)
    first = session.generate(PROMPT, max_tokens=8, temperature=0, return_tokens=True)
    assert session.pending == (first.tokens or [])[-1] and len(session) == len(session.tokens)
    second = session.generate(max_tokens=8, temperature=0)
    assert first.text + second.text == demo.generate(PROMPT, max_tokens=16, temperature=0).text
    assert session.n_ctx == 256 and session.kv == "f16"
    full = session.generate(max_tokens=1000, ignore_eos=True)
    assert full.finish_reason == "length" and len(session) == 256


def test_where_answers_end(demo: pyquern.Model) -> None:
    whole = demo.session().generate(PROMPT, max_tokens=20, temperature=0, return_tokens=True).tokens or []
    end = whole.index(whole[6])
    short = demo.session().generate(PROMPT, max_tokens=20, temperature=0, return_tokens=True, stop_token_ids=[whole[6]])
    assert (
        short.finish_reason == "stop"
        and (short.tokens or [])[:end] == whole[:end]
        and short.usage.completion_tokens == end + 1
    )
    longer = demo.session().generate(PROMPT, max_tokens=20, temperature=0, stop_token_ids=[whole[6]], min_tokens=12)
    assert longer.usage.completion_tokens > 12


def test_fork_and_rewind(demo: pyquern.Model) -> None:
    session = demo.session()
    session.generate(PROMPT, max_tokens=10, temperature=0)
    fork, length = session.fork(), len(session)
    expected = session.generate(max_tokens=6, temperature=0).text
    assert fork.generate(max_tokens=6, temperature=0).text == expected
    tokens = session.tokens
    session.rewind(length)
    assert session.tokens == tokens[:length]
    fork.rewind(length)
    assert session.eval(tokens[length:]).tobytes() == fork.eval(tokens[length:]).tobytes()
    assert session.tokens == tokens
    assert session.rewind_to(tokens[:3] + [7]) == 3 and len(session) == 3
    assert session.reach(2) <= 2
    with pytest.raises(pyquern.InvalidError):
        session.rewind(100)
    with pytest.raises(pyquern.InvalidError):
        session.rewind(-1)


def test_checkpoint(demo: pyquern.Model) -> None:
    session = demo.session()
    session.eval(list(range(3, 103)), None)
    session.checkpoint()
    session.eval(list(range(103, 303)), None)
    with pytest.raises(pyquern.UnsupportedError, match="257 to 300, 65 to 100"):
        session.rewind(200)
    session.rewind(100)
    assert len(session) == 100


def test_save_and_restore(demo: pyquern.Model, tmp_path: Path) -> None:
    session = demo.session()
    session.generate(PROMPT, max_tokens=10, temperature=0)
    session.save(tmp_path / "s.session")
    restored = pyquern.Session.restore(demo, tmp_path / "s.session")
    assert restored.tokens == session.tokens and restored.pending == session.pending
    assert restored.eval([5, 6]).tobytes() == session.eval([5, 6]).tobytes()
    with pytest.raises(pyquern.InvalidError, match="model"):
        pyquern.Session.restore(pyquern.Model(PARROT, device="cpu"), tmp_path / "s.session")
    (tmp_path / "other").write_text("mine")
    with pytest.raises(pyquern.InvalidError, match="other"):
        session.save(tmp_path / "other")


def test_kv(demo: pyquern.Model) -> None:
    assert demo.session(kv="aura4").kv == "aura4"
    assert pyquern.Model(DEMO, device="cpu", kv="aura8").session().kv == "aura8"
    assert pyquern.Model(DEMO, device="cpu", kv="f32").session().kv == "f32"
    with pytest.raises(pyquern.UnsupportedError, match="aura5"):
        demo.session(kv="aura5")


# ---- Logits ----


def test_logits() -> None:
    """Those of the golden files, of one call and of two."""
    model = pyquern.Model(GOLDEN / "qwen3.q1_0.gguf", device="cpu")
    ids = [int(text) for text in (GOLDEN / "qwen3.q1_0.ids").read_text().replace(",", " ").split()]
    expected = np.fromfile(GOLDEN / "qwen3.q1_0.logits.f32", np.float32).reshape(len(ids), -1)
    logits = model.session().eval(ids, "all")
    assert logits.dtype == np.float32 and logits.shape == expected.shape and logits.flags.owndata
    assert np.linalg.norm(logits - expected) < 0.05 * np.linalg.norm(expected)
    session = model.session()
    session.eval(ids[:5], None)
    assert np.array_equal(session.eval(ids[5:]), logits[-1])
    with pytest.raises(pyquern.InvalidError, match="logits"):
        session.eval([1], "some")  # type: ignore[call-overload]
    with pytest.raises(pyquern.InvalidError, match="vocabulary"):
        session.eval([10**6])
    with pytest.raises(pyquern.InvalidError, match="tokens"):
        session.eval([])
    with pytest.raises(pyquern.ContextError):
        session.eval([1] * 10_000)


def test_sampler(demo: pyquern.Model) -> None:
    """A loop of one's own samples what the library's does."""
    session, expected = demo.session(), demo.session().generate(PROMPT, max_tokens=8, seed=3, return_tokens=True)
    sampler = pyquern.Sampler(demo.info.n_vocab, seed=3)
    logits, tokens = session.eval(demo.tokenizer.encode(PROMPT, add_bos=True)), []
    for _ in range(8):
        tokens.append(sampler.pick(logits, session.tokens))
        logits = session.eval(tokens[-1:])
    assert tokens == expected.tokens
    with pytest.raises(pyquern.InvalidError, match="float64"):
        sampler.pick(logits.astype(np.float64))
    with pytest.raises(pyquern.InvalidError, match="top_k"):
        pyquern.Sampler(10, top_k=-2)
    with pytest.raises(pyquern.InvalidError, match="expected model="):
        pyquern.Sampler(10, dry_multiplier=1)
    logits = np.zeros(demo.info.n_vocab, np.float32)
    logits[[5, 6]] = 2, 1
    for options in ({"dry_sequence_breakers": []}, {"model": demo}):
        sampler = pyquern.Sampler(demo.info.n_vocab, temperature=0, dry_multiplier=9, **options)
        assert sampler.pick(logits) == 5 and sampler.pick(logits, [300, 301, 5, 300, 301]) == 6, options


# ---- Chats and streams ----


def test_chat() -> None:
    session = pyquern.Model(CALLER, device="cpu").session()
    answer = session.chat(QUESTION, tools=TOOLS)
    assert answer.reasoning and answer.finish_reason == "tool_calls"
    turns: list[pyquern.Message] = [*QUESTION, answer, {"role": "tool", "content": "A mill."}]
    assert session.chat(turns, tools=TOOLS).usage.prompt_tokens < 100  # the rest is in the session
    events = list(session.chat(QUESTION, tools=TOOLS, stream=True))
    assert [event.type for event in events] == ["reasoning", "tool_call", "arguments", "tool_call_end"]


def test_stream(demo: pyquern.Model) -> None:
    session = demo.session()
    expected = demo.generate(PROMPT, max_tokens=20, seed=1).text
    assert "".join(session.generate(PROMPT, max_tokens=20, seed=1, stream=True)) == expected
    session.rewind(0)
    stream = session.generate(PROMPT, stream=True, ignore_eos=True)
    pieces = [next(stream), next(stream)]
    with pytest.raises(pyquern.InvalidError, match="stream"):
        len(session)
    stream.close()
    answer = stream.result()
    assert answer.finish_reason == "cancelled" and answer.text.startswith("".join(pieces))
    assert 2 <= len(session) < 200
    session.rewind(0)
    assert session.generate(PROMPT, max_tokens=20, seed=1).text == expected


def test_close_while_streaming() -> None:
    model = pyquern.Model(DEMO, device="cpu")
    session = model.session()
    stream = session.generate(PROMPT, stream=True, ignore_eos=True)
    next(stream)
    model.close()
    assert stream.result().finish_reason == "cancelled"


def test_errors_in_threads() -> None:
    """An error of the library is raised where the stream is read."""
    session = pyquern.Model(PARROT, device="cpu").session(n_ctx=64)
    with pytest.raises(pyquern.ContextError):
        list(session.generate("a" * 100, stream=True))
    assert "".join(session.generate("a", stream=True)) == PARROT_SAYS


# ---- Ctrl-C ----


def test_interrupt(demo: pyquern.Model) -> None:
    session = demo.session(n_ctx=2048)
    long = list(range(3, 2000))

    def read() -> None:
        for _ in session.generate(PROMPT, ignore_eos=True, stream=True):
            pass

    calls: list[Callable[[], object]] = [
        lambda: session.generate(PROMPT, ignore_eos=True),
        lambda: session.generate(long, max_tokens=1),
        lambda: session.eval(long),
        read,
        lambda: demo.generate(PROMPT, ignore_eos=True),
        lambda: list(demo.generate(PROMPT, ignore_eos=True, stream=True)),
    ]
    delays = random.Random(1)
    for call in calls:
        for _ in range(3):
            interrupt(call, delays.uniform(0.005, 0.1))
            demo.scheduler.wait()
            session.rewind(0)
    assert session.generate(PROMPT, max_tokens=5, seed=1).text == demo.generate(PROMPT, max_tokens=5, seed=1).text


def test_interrupt_of_a_start(demo: pyquern.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C when the thread of a stream has begun: it ends, and the session waits for that."""
    session, start = demo.session(), threading.Thread.start

    def interrupted_start(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted_start)
        with pytest.raises(KeyboardInterrupt):
            session.generate(PROMPT, ignore_eos=True, stream=True)
    session.rewind(0)
    assert session.generate(PROMPT, max_tokens=5, seed=1).text == demo.generate(PROMPT, max_tokens=5, seed=1).text
