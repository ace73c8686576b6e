"""pyquern.ray on a cluster of two nodes on this machine, one of which is killed."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from models import CALLER, DEMO, PARROT, QUESTION, TOOLS

import pyquern

ray = pytest.importorskip("ray")
pytest.importorskip("ray.data")

N_PROMPTS = 2000 if os.environ.get("QN_SOAK") else 200
PROMPTS = ["Once upon a time", "The dog", "Tom"]
ROW: Any = {"max_tokens": 3, "temperature": 0.0, "cores": 1}


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Any, Any]]:
    """The cluster, and its second node."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    second = cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


def prompts(n: int) -> Any:
    return ray.data.from_items([{"id": i, "prompt": PROMPTS[i % 3]} for i in range(n)])


def test_texts(nodes: object) -> None:
    from pyquern.ray import answer

    rows = [{"id": 0, "prompt": "The dog"}, {"id": 1, "prompt": "a" * 5000}, {"id": 2, "prompt": None}]
    given = answer(ray.data.from_items(rows), DEMO, model_options={"n_ctx": 256}, replicas=1, **ROW).take_all()
    dog, long, none = sorted(given, key=lambda row: int(row["id"]))
    expected = pyquern.Model(DEMO, device="cpu").generate("The dog", max_tokens=3, temperature=0)
    assert (dog["answer"], dog["finish_reason"], dog["error"]) == (expected.text, "length", None)
    assert (dog["prompt_tokens"], dog["completion_tokens"]) == (expected.usage.prompt_tokens, 3)
    assert long["answer"] is None and "256" in long["error"] and "expected a text" in none["error"]


def test_chats(nodes: object) -> None:
    from pyquern.ray import answer

    turns = [*QUESTION, {"role": "assistant", "content": "A mill.", "reasoning_content": "Hm."}, *QUESTION]
    dataset = ray.data.from_items([{"messages": QUESTION}, {"messages": turns}])
    given = answer(dataset, CALLER, column="messages", replicas=1, cores=1, tools=TOOLS).take_all()
    model = pyquern.Model(CALLER, device="cpu")
    for row in given:
        (call,) = json.loads(row["tool_calls"])
        assert (row["reasoning"], call["function"]["name"]) == ("I look it up.", "look_up")
    expected = [model.chat(messages, tools=TOOLS).usage.prompt_tokens for messages in (QUESTION, turns)]
    assert sorted(row["prompt_tokens"] for row in given) == sorted(expected)


@pytest.mark.parametrize(
    ("model", "options", "pattern"),
    [
        (PARROT, {"temperature": -1.0}, "temperature"),
        (PARROT, {"tempratur": 1}, "tempratur"),
        ("/none.gguf", {}, "/none"),
    ],
)
def test_errors(nodes: object, model: Path, options: dict[str, Any], pattern: str) -> None:
    """What is wrong for every row ends the computation."""
    from pyquern.ray import answer

    with pytest.raises(Exception, match=pattern):
        answer(prompts(2), model, replicas=1, cores=1, **options).take_all()


def test_lost_node(nodes: tuple[Any, Any], tmp_path: Path) -> None:
    """Each row is answered once: a call goes on where another ended, and a node that is killed is done without."""
    from pyquern.ray import write

    cluster, second = nodes
    given: Any = {"batch_size": 10, **ROW}
    assert write(prompts(10), tmp_path, DEMO, **given) == 10
    killing: list[threading.Thread] = []

    def on_progress(n_rows: int) -> None:
        if n_rows >= N_PROMPTS // 4 and not killing:
            killing.append(threading.Thread(target=cluster.remove_node, args=(second, False)))
            killing[0].start()

    assert write(prompts(N_PROMPTS), tmp_path, DEMO, on_progress=on_progress, **given) == N_PROMPTS - 10
    killing[0].join()
    assert write(prompts(N_PROMPTS), tmp_path, DEMO, **given) == 0
    rows = ray.data.read_parquet(str(tmp_path)).take_all()
    assert sorted(row["id"] for row in rows) == list(range(N_PROMPTS))
    model = pyquern.Model(DEMO, device="cpu")
    expected = [model.generate(prompt, max_tokens=3, temperature=0).text for prompt in PROMPTS]
    assert all(row["answer"] == expected[row["id"] % 3] for row in rows)
    assert not list(tmp_path.glob("*.part"))
