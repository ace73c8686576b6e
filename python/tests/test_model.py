"""Models: loading, tokens, text and chats, what answers may be, errors."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from models import CALLER, DEMO, GOLDEN, PARROT, PARROT_SAYS, QUESTION, TOOLS

import pyquern
from pyquern import hub


@pytest.fixture(scope="module")
def demo() -> pyquern.Model:
    return pyquern.Model(DEMO, device="cpu", n_ctx=1024)


@pytest.fixture(scope="module")
def parrot() -> pyquern.Model:
    return pyquern.Model(PARROT, device="cpu")


@pytest.fixture(scope="module")
def caller() -> pyquern.Model:
    return pyquern.Model(CALLER, device="cpu")


# ---- Loading ----


def test_properties(demo: pyquern.Model, caller: pyquern.Model) -> None:
    assert (demo.info.architecture, demo.info.quantisation, demo.info.n_vocab) == ("qwen35", "ptq1_0", 4096)
    assert demo.info.device == "cpu" and demo.info.recurrent_bytes > 0
    assert demo.chat_format.source == "file" and demo.chat_format.tool_calls == ""
    assert caller.chat_format.tool_calls == "json" and caller.chat_format.think_open == "<think>"
    few, many = demo.capacity(), demo.capacity(100, "aura4")
    assert few.tokens_per_sequence > many.tokens_per_sequence > 0


def test_load_errors(tmp_path: Path) -> None:
    with pytest.raises(pyquern.InputOutputError, match=r"missing\.gguf"):
        pyquern.Model(tmp_path / "missing.gguf")
    (tmp_path / "damaged.gguf").write_bytes(DEMO.read_bytes()[:10000])
    with pytest.raises(pyquern.FormatError, match=r"damaged\.gguf"):
        pyquern.Model(tmp_path / "damaged.gguf")
    wrong: list[dict[str, Any]] = [{"device": "abacus"}, {"memory": "many"}, {"memory": 1000}, {"n_threads": -1}]
    for options in wrong:
        with pytest.raises(pyquern.InvalidError, match=next(iter(options)).removeprefix("n_")):
            pyquern.Model(PARROT, **options)
    with pytest.raises(pyquern.InvalidError, match="template"):
        pyquern.Model(PARROT, chat_template="{% for")


def test_progress() -> None:
    seen: list[tuple[int, int]] = []
    pyquern.Model(DEMO, device="cpu", on_progress=lambda *numbers: seen.append(numbers))
    assert seen and seen[-1][0] == seen[-1][1]
    with pytest.raises(pyquern.CancelledError):
        pyquern.Model(DEMO, device="cpu", on_progress=lambda done, total: False)
    with pytest.raises(ZeroDivisionError):
        pyquern.Model(DEMO, device="cpu", on_progress=lambda done, total: 1 // 0)


def test_close() -> None:
    model = pyquern.Model(PARROT, device="cpu")
    session, scheduler = model.session(), pyquern.Scheduler(model)
    assert model.generate("a").text == PARROT_SAYS
    with model:
        pass
    for call in (
        lambda: model.generate("a"),
        lambda: session.generate("a"),
        lambda: len(session),
        lambda: scheduler.submit("a"),
        lambda: model.tokenizer.encode("a"),
        lambda: model.info,
    ):
        with pytest.raises(pyquern.InvalidError, match="closed"):
            call()
    model.close()


def test_order_of_the_end() -> None:
    """What belongs to a model keeps it."""
    session = pyquern.Model(PARROT, device="cpu").session()
    stream = pyquern.Model(PARROT, device="cpu").generate("a", stream=True)
    gc.collect()
    assert session.generate("a").text == PARROT_SAYS == "".join(stream)


# ---- Tokens ----


def test_tokenizer(parrot: pyquern.Model) -> None:
    t = parrot.tokenizer
    assert t.decode(t.encode("Hé €")) == "Hé €" and len(t) == 262
    assert t.encode(b"\xff\x00") == [255, 0] and t.decode([255]) == "\ufffd" and t.piece(255) == b"\xff"
    (end,) = t.encode("<|im_end|>", parse_special=True)
    assert t.is_special(end) and t.is_end(end) and not t.is_special(65)
    assert len(t.encode("<|im_end|>")) > 1
    assert t.decode([72, end]) == "H<|im_end|>" and t.decode([72, end], skip_special_tokens=True) == "H"
    with pytest.raises(pyquern.InvalidError, match="9999"):
        t.decode([9999])


def test_ranking(demo: pyquern.Model) -> None:
    ranker = pyquern.Model(GOLDEN / "ranker.gguf", device="cpu", kv="f32")
    with open(GOLDEN / "ranker.scores", encoding="utf-8") as lines:
        cases = [line.rstrip("\n").split("\t") for line in lines]
    for score, ids, query, document in cases:
        with ranker.session() as session:
            assert abs(session.rank(query, document) - float(score)) < 1e-5
            assert ",".join(map(str, session.tokens)) == ids
    mill = [case for case in cases if case[2] == "a mill"]
    found = ranker.rank("a mill", [case[3] for case in mill])
    assert max(abs(a - float(case[0])) for a, case in zip(found, mill, strict=True)) < 1e-5
    assert ranker.rank("a mill", []) == []
    with pytest.raises(pyquern.UnsupportedError, match="does not rank documents"):
        demo.rank("a", ["b"])


def test_embeddings(demo: pyquern.Model, caller: pyquern.Model) -> None:
    texts = ["Once upon a time", "The cat sat.", [1, 2, 3]]
    found = demo.embed(texts)
    assert found.shape == (3, demo.info.n_embd) and found.dtype == "float32" and demo.pooling is None
    assert abs((found * found).sum(1) - 1).max() < 1e-5
    assert (demo.embed(texts[0]) == found[0]).all() and demo.embed([]).shape == (0, demo.info.n_embd)
    ids = demo.tokenizer.encode(texts[0])
    with demo.session() as session:
        by_pooling = {pooling: session.embed(ids, pooling=pooling) for pooling in ("mean", "cls", "last")}
        assert session.tokens == ids and (by_pooling["last"] == found[0]).all()
        states = [demo.embed([ids[: n + 1]])[0] for n in range(len(ids))]
        assert (states[0] == by_pooling["cls"]).all() and abs(by_pooling["mean"] - by_pooling["last"]).max() > 1e-3
        for wrong in ("", "rank"):
            with pytest.raises(pyquern.InvalidError, match="pooling"):
                session.embed(ids, pooling=wrong)  # type: ignore[arg-type]
        with pytest.raises(pyquern.InvalidError, match="no tokens"):
            session.embed([])
        with pytest.raises(pyquern.InvalidError):
            session.embed([-1])
    assert (
        caller.chat_format.text
        and "{%" in demo.chat_format.text
        and demo.tokenizer.decode([demo.info.eos]) == "<|im_end|>"
    )


def test_chat_template(parrot: pyquern.Model, caller: pyquern.Model) -> None:
    messages = [{"role": "user", "content": "a<|im_end|>"}]
    apply = parrot.tokenizer.apply_chat_template
    text = apply(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\na<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    tokens = apply(messages, add_generation_prompt=True)
    assert parrot.tokenizer.decode(tokens) == text
    (end,) = parrot.tokenizer.encode("<|im_end|>", parse_special=True)
    assert tokens.count(end) == 1  # the message's is text
    with_tools = caller.tokenizer.apply_chat_template(QUESTION, TOOLS, tokenize=False)
    assert "look_up" in with_tools
    with pytest.raises(TypeError, match="messages"):
        apply("a")  # type: ignore[arg-type]


# ---- Text ----


def test_generate(parrot: pyquern.Model) -> None:
    answer = parrot.generate("a")
    assert (answer.text, answer.finish_reason, answer.is_stop_string) == (PARROT_SAYS, "stop", False)
    assert str(answer) == PARROT_SAYS and answer.tokens is None and answer.usage.completion_tokens == 13
    tokens = parrot.tokenizer.encode("a")
    assert parrot.generate(tokens).text == PARROT_SAYS
    assert list(parrot.generate("a", stream=True)) == list(PARROT_SAYS)
    short = parrot.generate("a", max_tokens=2, return_tokens=True)
    assert (short.finish_reason, short.tokens) == ("length", list("Hé".encode()[:2]))
    for stop in ("世", ["x", "世"]):
        stopped = parrot.generate("a", stop=stop)
        assert (stopped.text, stopped.finish_reason, stopped.is_stop_string) == ("Hé ", "stop", True)
    assert parrot.generate("a", stop_token_ids=[32]).text == "Hé"
    longer = parrot.generate("a", stop_token_ids=[32], min_tokens=9, return_tokens=True)
    assert 32 not in (longer.tokens or [])[:9] and longer.usage.completion_tokens > 9
    assert parrot.generate("a", choices=["yes"], min_tokens=9).text == "yes"  # which can only end
    assert "<|im_end|>" in parrot.generate("a", ignore_eos=True, max_tokens=30, skip_special_tokens=False).text


def test_sampling(demo: pyquern.Model) -> None:
    def text(**options: Any) -> str:
        return str(demo.generate("Once upon a time", **{"max_tokens": 12, **options}))

    answer = demo.generate("Once upon a time", max_tokens=12, temperature=1.5, top_k=-1, top_p=1, min_p=0)
    assert text(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=answer.seed) == answer.text
    greedy = text(temperature=0)
    assert text(temperature=0, seed=5) == greedy == text(top_k=1)
    assert text(temperature=0, repetition_penalty=1.8) != greedy
    assert text(temperature=0, max_tokens=50, frequency_penalty=2.0) != text(temperature=0, max_tokens=50)
    assert text(temperature=0, max_tokens=50, presence_penalty=2.0) != text(temperature=0, max_tokens=50)
    assert text(temperature=1, seed=5, mirostat=2, mirostat_tau=0.0) != text(temperature=1, seed=5)
    again: dict[str, Any] = {"temperature": 0, "max_tokens": 3}
    repeated = "Tom and Tom and Tom and Tom and"
    plain = demo.generate(repeated, **again).text
    for dry in (
        {"dry_multiplier": 0},
        {"dry_penalty_last_n": 0},
        {"dry_allowed_length": 20},
        {"dry_sequence_breakers": ["m and"]},
    ):
        assert demo.generate(repeated, **{**again, "dry_multiplier": 2, **dry}).text == plain, dry
    for dry in ({}, {"dry_base": 1.5}, {"dry_sequence_breakers": []}, {"dry_sequence_breakers": ["Bob"]}):
        assert demo.generate(repeated, **{**again, "dry_multiplier": 2, **dry}).text != plain, dry
        assert demo.session().generate(repeated, **{**again, "dry_multiplier": 2, **dry}).text != plain, dry
    (first,) = demo.generate("Once upon a time", max_tokens=1, temperature=0, return_tokens=True).tokens or []
    assert text(temperature=0, logit_bias={first: -100}) != greedy
    assert demo.generate("a", max_tokens=1, logit_bias={"70": 100}, return_tokens=True).tokens == [70]


def test_logprobs(demo: pyquern.Model) -> None:
    answer = demo.generate("Once upon a", max_tokens=3, temperature=0, logprobs=4)
    assert answer.logprobs and answer.tokens == [entry.token for entry in answer.logprobs]
    for entry in answer.logprobs:
        assert len(entry.top) == 4 and entry.top[0] == (entry.token, entry.logprob)
        assert sum(math.exp(value) for _, value in entry.top) <= 1.0001
    assert demo.generate("a", max_tokens=1, logprobs=0).logprobs[0].top == ()  # type: ignore[index]


def test_option_errors(demo: pyquern.Model, parrot: pyquern.Model) -> None:
    wrong: list[tuple[type[Exception], str | None, dict[str, Any]]] = [
        (pyquern.InvalidError, "temperature", {"temperature": -1}),
        (pyquern.InvalidError, "top_p", {"top_p": 7}),
        (TypeError, "temperature", {"temperature": "hot"}),
        (pyquern.InvalidError, "max_tokens", {"max_tokens": 2**70}),
        (TypeError, "stop", {"stop": [1]}),
        (pyquern.InvalidError, "stop", {"stop": "a\0b"}),
        (pyquern.InvalidError, "logprobs", {"logprobs": 21}),
        (pyquern.InvalidError, "9999", {"logit_bias": {9999: 1.0}}),
        (TypeError, "tempratur", {"tempratur": 1.0}),
        (TypeError, "tools", {"tools": TOOLS}),
        (pyquern.InvalidError, "regex.*json_object|json_object.*regex", {"regex": "a", "json_object": True}),
        (pyquern.InvalidError, None, {"regex": "("}),
        (pyquern.InvalidError, None, {"grammar": "root ::= nowhere"}),
        (pyquern.UnsupportedError, "uniqueItems", {"json_schema": {"type": "array", "uniqueItems": True}}),
        (TypeError, "json_schema", {"json_schema": 1}),
        (
            pyquern.InvalidError,
            "json_whitespace: 'tabs', expected one of 'default'",
            {"json_object": True, "json_whitespace": "tabs"},
        ),
        (TypeError, "choices", {"choices": "ab"}),
        (TypeError, r"generate\(\) has no option 'max_token'", {"max_token": 3}),
        (TypeError, r"generate\(\) has no option 'on_text'", {"on_text": print}),
        (pyquern.InvalidError, "max_tokens: -3", {"max_tokens": -3}),
        (TypeError, "max_tokens: 3.5, expected an integer", {"max_tokens": 3.5}),
        (TypeError, "max_tokens: '3', expected an integer", {"max_tokens": "3"}),
        (TypeError, "max_tokens: True, expected an integer", {"max_tokens": True}),
        (TypeError, "top_k: 1.5, expected an integer", {"top_k": 1.5}),
        (TypeError, "temperature: None|temperature: \\[", {"temperature": []}),
        (pyquern.InvalidError, "logprobs: -1", {"logprobs": -1}),
        (TypeError, "logprobs: True", {"logprobs": True}),
        (pyquern.InvalidError, "timeout: 0", {"timeout": 0}),
        (pyquern.InvalidError, "timeout: -1", {"timeout": -1.0}),
        (pyquern.InvalidError, "timeout: nan", {"timeout": math.nan}),
        (TypeError, "seed: 1.5", {"seed": 1.5}),
        (TypeError, "stop: 5", {"stop": 5}),
        (TypeError, "min_tokens: 1.5, expected an integer", {"min_tokens": 1.5}),
        (pyquern.InvalidError, "min_tokens: -1", {"min_tokens": -1}),
        (pyquern.InvalidError, "min_tokens: 6, expected at most max_tokens, 5", {"max_tokens": 5, "min_tokens": 6}),
        (TypeError, "stop_token_ids", {"stop_token_ids": 5}),
        (TypeError, "dry_sequence_breakers: 'a', expected strings", {"dry_sequence_breakers": "a"}),
        (TypeError, "dry_sequence_breakers", {"dry_sequence_breakers": [1]}),
        (pyquern.InvalidError, "text 2 is empty", {"dry_multiplier": 1, "dry_sequence_breakers": ["a", ""]}),
        (pyquern.InvalidError, "65 texts", {"dry_multiplier": 1, "dry_sequence_breakers": ["a"] * 65}),
        (pyquern.InvalidError, "dry_base: 0.5", {"dry_multiplier": 1, "dry_base": 0.5}),
        (pyquern.InvalidError, "mirostat: 1", {"mirostat": 1}),
        (pyquern.InvalidError, "stop_token_ids: -1", {"stop_token_ids": [-1]}),
        (TypeError, "logit_bias", {"logit_bias": [1]}),
        (TypeError, "logit_bias", {"logit_bias": {"a": 1.0}}),
        (TypeError, "logit_bias", {"logit_bias": {1: "a"}}),
        (TypeError, "ignore_eos: 'no'", {"ignore_eos": "no"}),
        (TypeError, "return_tokens", {"return_tokens": 1}),
        (TypeError, "grammar: 5", {"grammar": 5}),
        (TypeError, "cache_scope", {"cache_scope": 5}),
        (TypeError, "add_bos", {"add_bos": "yes"}),
    ]
    for error, pattern, options in wrong:
        with pytest.raises(error, match=pattern):
            demo.generate("a", **options)
    with pytest.raises(pyquern.ContextError, match="1024"):
        demo.generate([5] * 2000)
    demo.generate("a", max_tokens=-1, stop=["e"]), demo.generate("a", max_tokens=None, stop=["e"])  # no limit
    with pytest.raises(pyquern.InvalidError):
        demo.generate("")
    with pytest.raises(pyquern.InvalidError, match="tool_choice"):
        parrot.chat(QUESTION, tool_choice="required")
    golden = pyquern.Model(GOLDEN / "qwen3.q1_0.gguf", device="cpu")
    with pytest.raises(pyquern.UnsupportedError, match="no_vocab"):
        golden.generate("a")


def test_names_of_functions(demo: pyquern.Model) -> None:
    """An unknown option is that of the function which was called."""
    session = demo.session()
    for name, call in {
        "generate": lambda **given: demo.generate("a", **given),
        "agenerate": lambda **given: demo.agenerate("a", **given),
        "chat": lambda **given: demo.chat(QUESTION, **given),
        "achat": lambda **given: demo.achat(QUESTION, **given),
        "submit": lambda **given: demo.scheduler.submit("a", **given),
        "submit_chat": lambda **given: demo.scheduler.submit_chat(QUESTION, **given),
        "generate ": lambda **given: session.generate("a", **given),
        "chat ": lambda **given: session.chat(QUESTION, **given),
    }.items():
        with pytest.raises(TypeError, match=rf"^{name.strip()}\(\) has no option 'max_token'"):
            call(max_token=3)
    with pytest.raises(TypeError, match=r"^Sampler\(\) has no option 'max_token'"):
        pyquern.Sampler(4, max_token=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="on_text: 5, expected a function"):
        demo.scheduler.submit("a", on_text=5)  # type: ignore[arg-type]
    session.close()


def test_arguments_of_load() -> None:
    """What cannot mean anything is found before a file is read."""
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (pyquern.UnsupportedError, "'foo'.*f16.*aura4", {"kv": "foo"}),
        (TypeError, "kv: 4", {"kv": 4}),
        (pyquern.UnsupportedError, "''", {"kv": ""}),
        (pyquern.InvalidError, "n_ctx: -1, expected 0 to", {"n_ctx": -1}),
        (pyquern.InvalidError, "n_ctx", {"n_ctx": 2**31}),
        (TypeError, "n_ctx: 1.5, expected an integer", {"n_ctx": 1.5}),
        (TypeError, "n_threads: 'x', expected an integer", {"n_threads": "x"}),
        (pyquern.InvalidError, "n_threads", {"n_threads": 2**40}),
        (pyquern.InvalidError, "threads: -1", {"n_threads": -1}),
        (pyquern.InvalidError, "memory", {"memory": -5}),
        (TypeError, "device: 5", {"device": 5}),
        (TypeError, "chat_template: 5", {"chat_template": 5}),
        (TypeError, "vocab_only: 'no'", {"vocab_only": "no"}),
        (TypeError, "on_progress: 5", {"on_progress": 5}),
    ]
    for error, pattern, given in wrong:
        with pytest.raises(error, match=pattern):
            pyquern.Model(GOLDEN / "no such file.gguf", **given)
    model = pyquern.Model(PARROT, device="cpu")
    for error, pattern, given in wrong[:6]:
        with pytest.raises(error, match=pattern.split(",")[0]):
            pyquern.Scheduler(model, **given)
        with pytest.raises(error, match=pattern.split(",")[0]):
            model.session(**given)
    for name in ("max_sequences", "max_rows", "max_queued"):
        with pytest.raises(pyquern.InvalidError, match=f"{name}: -1"):
            pyquern.Scheduler(model, **{name: -1})
        with pytest.raises(TypeError, match=f"{name}: 'a'"):
            pyquern.Scheduler(model, **{name: "a"})
    with pytest.raises(pyquern.InvalidError, match="n_batch: -1"):
        model.session(n_batch=-1)


def test_prompts_and_messages(parrot: pyquern.Model) -> None:
    """What HTTP refuses is refused."""
    for prompt in (5, None, b"abc", ["a"], [1.5], {"a": 1}):
        with pytest.raises(TypeError, match="prompt"):
            parrot.generate(prompt)  # type: ignore[arg-type]
    with pytest.raises(pyquern.InvalidError, match="prompt: -1"):
        parrot.generate([-1])
    user = {"role": "user", "content": "a"}
    wrong: list[tuple[type[Exception], str, Any]] = [
        (pyquern.InvalidError, "messages: there are none", []),
        (
            pyquern.InvalidError,
            r"messages\[1\]: role is 'robot', expected 'system', .* or 'tool'",
            [user, {**user, "role": "robot"}],
        ),
        (pyquern.InvalidError, r"messages\[0\]: role is 5", [{"role": 5, "content": "a"}]),
        (pyquern.InvalidError, "role is missing", [{"content": "a"}]),
        (pyquern.InvalidError, "content is missing", [{"role": "user"}]),
        (pyquern.InvalidError, "content is missing", [{"role": "user", "content": None}]),
        (TypeError, "content is 5", [{"role": "user", "content": 5}]),
        (TypeError, r"messages\[0\]: tool_calls is 'a'", [{"role": "assistant", "content": "a", "tool_calls": "a"}]),
        (TypeError, "tool_calls is {'a': 1}", [{"role": "assistant", "content": "a", "tool_calls": {"a": 1}}]),
        (pyquern.InvalidError, r"messages\[0\]: tool call {}", [{"role": "assistant", "tool_calls": [{}]}]),
        (pyquern.InvalidError, "tool call 5", [{"role": "assistant", "tool_calls": [5]}]),
        (pyquern.InvalidError, "'name': 5", [{"role": "assistant", "tool_calls": [{"function": {"name": 5}}]}]),
        (TypeError, r"messages\[0\]: 'a'", ["a"]),
        (TypeError, "messages: 'a'", "a"),
        (TypeError, "messages: 5", 5),
        (TypeError, "messages: None", None),
    ]
    for error, pattern, messages in wrong:
        for call in (
            parrot.chat,
            parrot.scheduler.submit_chat,
            parrot.session().chat,
            parrot.tokenizer.apply_chat_template,
        ):
            with pytest.raises(error, match=pattern):
                call(messages)
    options: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (TypeError, "tools: 'a'", {"tools": "a"}),
        (pyquern.InvalidError, r"tools\[0\]: 'a'", {"tools": ["a"]}),
        (pyquern.InvalidError, r"tools\[0\]", {"tools": [{"type": "function"}]}),
        (TypeError, "chat_template_kwargs", {"chat_template_kwargs": [1]}),
        (TypeError, "enable_thinking: 'no'", {"enable_thinking": "no"}),
        (pyquern.InvalidError, "reasoning_effort: 'much', expected 'none'", {"reasoning_effort": "much"}),
        (pyquern.InvalidError, "reasoning_budget: -3", {"reasoning_budget": -3}),
    ]
    for error, pattern, given in options:
        with pytest.raises(error, match=pattern):
            parrot.chat(QUESTION, **given)


# ---- What a text is to be ----


def test_constraints(demo: pyquern.Model) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    for given in (schema, json.dumps(schema)):
        person = json.loads(demo.generate("A person: ", json_schema=given, seed=1).text)
        assert set(person) == {"name", "age"} and 0 <= person["age"] <= 99 and len(person["name"]) <= 8
    lenient = {"type": "array", "items": {"type": "boolean"}, "maxItems": 2, "uniqueItems": True}
    assert isinstance(json.loads(demo.generate("a", json_schema=lenient, strict=False).text), list)
    assert demo.generate("a", json_object=True, max_tokens=5).text.startswith("{")
    fixed = {"const": {"b": [1], "a": {}}}
    spellings = {
        "default": '{"b": [1], "a": {}}',
        "indent": '{\n  "b": [\n    1\n  ],\n  "a": {}\n}',
        "compact": '{"b":[1],"a":{}}',
    }
    for style, text in spellings.items():
        assert demo.generate("a", json_schema=fixed, json_whitespace=style).text == text
    assert json.loads(demo.generate("a", json_schema=fixed, json_property_order="any").text) == fixed["const"]
    assert demo.generate("Is it?", choices=["yes", "no"]).text in ("yes", "no")
    assert demo.generate("a", regex="[0-9]{3}-[a-f]").text[3] == "-"
    assert demo.generate("a", grammar='root ::= "x" [yz]').text in ("xy", "xz")
    answer = demo.session().generate("a", choices=["maybe"])
    assert (answer.text, answer.finish_reason) == ("maybe", "stop")


def test_pydantic(demo: pyquern.Model) -> None:
    class Point:  # what pydantic's classes have
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "title": "Point"}

    assert isinstance(json.loads(demo.generate("a", json_schema=Point).text)["x"], bool)
    pydantic = pytest.importorskip("pydantic")
    cat = pydantic.create_model("Cat", is_grey=(bool, ...))
    cats = pydantic.create_model("Cats", properties=(list[cat], pydantic.Field(max_length=2)))  # type: ignore[valid-type]
    assert isinstance(cat.model_validate_json(demo.generate("a", json_schema=cat, max_tokens=200).text).is_grey, bool)
    found = cats.model_validate_json(demo.generate("a", json_schema=cats, max_tokens=400).text)
    assert all(isinstance(one.is_grey, bool) for one in found.properties)


# ---- Chats ----


def test_chat(caller: pyquern.Model, parrot: pyquern.Model) -> None:
    answer = caller.chat(QUESTION, tools=TOOLS)
    (call,) = answer.tool_calls
    assert (answer.content, answer.reasoning, answer.finish_reason) == ("", "I look it up.", "tool_calls")
    assert call.name == "look_up" and call.parsed() == {"text": 'a "quern"', "n": 2} and call.id.startswith("call_")
    assert "look_up" in caller.chat(QUESTION).content  # without tools a call is content
    message = answer.message
    assert message["tool_calls"][0]["function"]["arguments"] == call.arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "A mill."}
    turns = caller.chat([*QUESTION, answer, result], tools=TOOLS)
    again = caller.chat([*QUESTION, message, result], tools=TOOLS)
    assert turns.usage.prompt_tokens == again.usage.prompt_tokens and again.usage.cached_tokens >= 64
    assert parrot.chat(QUESTION, stop="世").content == "Hé "


def test_chat_events(caller: pyquern.Model) -> None:
    stream = caller.chat(QUESTION, tools=TOOLS, stream=True)
    events = list(stream)
    assert [event.type for event in events] == ["reasoning", "tool_call", "arguments", "tool_call_end"]
    assert events[1].text == "look_up" and events[3].call == stream.result().tool_calls[0]
    cut = caller.chat(QUESTION, tools=TOOLS, stream=True, max_tokens=4)  # before the function's name
    assert [event.type for event in cut] == ["reasoning"] and not cut.result().tool_calls
    assert cut.result().finish_reason == "length" and cut.result().content == ""  # a delimiter that is cut is nothing


def test_tool_choice(caller: pyquern.Model) -> None:
    other = {"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}}}  # fmt: skip
    named = {"type": "function", "function": {"name": "add"}}
    answer = caller.chat(QUESTION, tools=[*TOOLS, other], tool_choice=named, max_tokens=200, parallel_tool_calls=False)
    assert [call.name for call in answer.tool_calls] == ["add"] and answer.tool_calls[0].parsed()["a"] in (1, 2)
    assert caller.chat(QUESTION, tools=TOOLS, tool_choice="required").tool_calls
    none = caller.chat(QUESTION, tools=TOOLS, tool_choice="none")
    assert not none.tool_calls and none.usage.prompt_tokens == caller.chat(QUESTION).usage.prompt_tokens
    with pytest.raises(pyquern.InvalidError, match="nothing"):
        caller.chat(QUESTION, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nothing"}})
    with pytest.raises(pyquern.UnsupportedError, match="tools"):
        caller.chat(QUESTION, tools=TOOLS, regex="a")


def test_reasoning(caller: pyquern.Model) -> None:
    assert caller.chat(QUESTION).reasoning == "I look it up."
    cut = caller.chat(QUESTION, reasoning_budget=0, return_tokens=True)
    ended = caller.tokenizer.encode("<think>\n</think>\n\n", parse_special=True)
    assert cut.tokens and cut.tokens[: len(ended)] == ended
    variables = {"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}
    lengths = {caller.chat(QUESTION, max_tokens=1, **given).usage.prompt_tokens for given in variables}
    assert len(lengths) == 1 and lengths != {caller.chat(QUESTION, max_tokens=1).usage.prompt_tokens}
    with pytest.raises(pyquern.InvalidError, match="arguments"):
        caller.chat(
            [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]
        )


def test_async(caller: pyquern.Model, parrot: pyquern.Model) -> None:
    async def run() -> None:
        assert (await parrot.agenerate("a")).text == PARROT_SAYS
        assert [text async for text in parrot.agenerate("a", stream=True)] == list(PARROT_SAYS)
        assert (await caller.achat(QUESTION, tools=TOOLS)).tool_calls
        events = [event.type async for event in caller.achat(QUESTION, tools=TOOLS, stream=True)]
        assert events == ["reasoning", "tool_call", "arguments", "tool_call_end"]
        with pytest.raises(pyquern.InvalidError):
            await parrot.agenerate("")

    asyncio.run(run())


# ---- Names of models ----


def test_select() -> None:
    files = {
        "M-F16.gguf": 16, "M-Q1_0.gguf": 1, "M-Q4_K_M.gguf": 4, "M-Q8_0.gguf": 8, "mmproj-F16.gguf": 1, "README.md": 1,
        "big/M-PQ2_0-00001-of-00002.gguf": 6, "big/M-PQ2_0-00002-of-00002.gguf": 6,
    }  # fmt: skip
    assert hub.select(files, None, 100) == "big/M-PQ2_0-00001-of-00002.gguf"
    assert hub.select(files, None, 11) == "M-Q1_0.gguf"
    assert hub.select(files, "q4_k", 0) == hub.select(files, "Q4_K_M", 0) == "M-Q4_K_M.gguf"
    assert hub.select(files, "M-Q8_0.gguf", 0) == "M-Q8_0.gguf" and hub.select(files, "f16", 0) == "M-F16.gguf"
    assert hub.select(files, "pq2_0", 0) == "big/M-PQ2_0-00001-of-00002.gguf"
    assert hub.select({"a-Q4_0.gguf": 4, "a-BF16.gguf": 9}, None, 10) == "a-Q4_0.gguf"
    for wanted in ("q3_k", "no.gguf"):
        with pytest.raises(pyquern.InvalidError, match=wanted):
            hub.select(files, wanted, 0)
    with pytest.raises(pyquern.InvalidError, match="at most 0 bytes"):
        hub.select(files, None, 0)


def test_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(pyquern.UnsupportedError, match="huggingface_hub"):
        pyquern.Model("some-one/parrot:q8_0")
    downloads: list[str] = []
    fake: Any = ModuleType("huggingface_hub")

    def snapshot_download(repository: str, **options: Any) -> str:
        assert repository == "some-one/parrot" and options["local_files_only"]
        if not downloads:
            raise FileNotFoundError
        return str(tmp_path)

    def hf_hub_download(repository: str, file: str) -> str:
        downloads.append(file)
        (tmp_path / file).symlink_to(PARROT)
        return str(tmp_path / file)

    siblings = [SimpleNamespace(rfilename="parrot-F32.gguf", size=70000), SimpleNamespace(rfilename="a.md", size=None)]
    fake.snapshot_download, fake.hf_hub_download = snapshot_download, hf_hub_download
    fake.HfApi = lambda: SimpleNamespace(model_info=lambda *a, **k: SimpleNamespace(siblings=siblings))
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    for name in ("some-one/parrot:f32", "some-one/parrot"):
        assert pyquern.Model(name, device="cpu").generate("a").text == PARROT_SAYS
    assert downloads == ["parrot-F32.gguf"]  # the second time it is in the cache
