"""Answers many prompts with replicas of a model on a Ray cluster: Ray Data's actor pool, with a scheduler in each
actor.

    prompts = ray.data.read_json("prompts.jsonl")
    answers = pyquern.ray.answer(prompts, "model.gguf", max_tokens=200)      # a dataset, computed as it is read
    pyquern.ray.write(prompts, "answers", "model.gguf", max_tokens=200)      # files, which a second call completes

docs/scale.md describes it.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pyarrow.compute
import pyarrow.parquet
import ray
import ray.data

from pyquern._lib import ContextError, Error, InvalidError, UnsupportedError
from pyquern.answers import ChatCompletion, Completion
from pyquern.model import Model
from pyquern.requests import Request
from pyquern.scheduler import Scheduler

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from pyquern.options import ChatOptions

_CALLS_AT_ONCE = 2  # A replica fills up with the next batch while the last answers of one are generated.
_ROW_ERRORS = (ContextError, InvalidError, UnsupportedError)

ANSWER = pyarrow.schema(
    [
        ("answer", pyarrow.string()),
        ("reasoning", pyarrow.string()),
        ("tool_calls", pyarrow.string()),
        ("finish_reason", pyarrow.string()),
        ("prompt_tokens", pyarrow.int64()),
        ("completion_tokens", pyarrow.int64()),
        ("error", pyarrow.string()),
    ]
)
"""The columns that `answer` adds. `tool_calls` is a JSON array in OpenAI's form. `error` is null, or, for a row that
cannot be answered, the library's text; its other columns are null then."""


def _without_none(value: Any) -> Any:
    """Drops None values: Arrow gives every message of a column the keys of all messages."""
    if isinstance(value, Mapping):
        return {name: _without_none(item) for name, item in value.items() if item is not None or name == "content"}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


def _row(given: Completion | ChatCompletion) -> dict[str, Any]:
    row: dict[str, Any] = {
        "finish_reason": given.finish_reason,
        "prompt_tokens": given.usage.prompt_tokens,
        "completion_tokens": given.usage.completion_tokens,
    }
    if isinstance(given, Completion):
        return {"answer": given.text, **row}
    calls = given.message.get("tool_calls")
    return {
        "answer": given.content,
        "reasoning": given.reasoning or None,
        "tool_calls": json.dumps(calls) if calls else None,
        **row,
    }


class _Replica:
    """A model with a scheduler in an actor. Its calls come from several threads."""

    def __init__(
        self,
        model: str,
        column: str,
        model_options: Mapping[str, Any],
        scheduler_options: Mapping[str, Any],
        options: ChatOptions,
    ) -> None:
        self._scheduler = Scheduler(Model(model, **model_options), **scheduler_options)
        self._column, self._options = column, options
        self._checked: set[bool] = set()

    def _submit(self, prompt: str | list[Any]) -> Request[Any, Any]:
        options: Any = self._options
        if isinstance(prompt, str):
            return self._scheduler.submit(prompt, **options)
        return self._scheduler.submit_chat(_without_none(prompt), **options)

    def _check(self, is_text: bool) -> None:
        """Raises errors in the options, which would be the same in every row."""
        if is_text not in self._checked:
            self._submit("a" if is_text else [{"role": "user", "content": "a"}]).cancel()
            self._checked.add(is_text)

    def _try(self, prompt: Any) -> Request[Any, Any] | Error:
        if not isinstance(prompt, (str, list)):
            return InvalidError(f"{self._column}: {prompt!r}, expected a text or a list of messages")
        self._check(isinstance(prompt, str))
        try:
            return self._submit(prompt)
        except _ROW_ERRORS as error:
            return error

    @staticmethod
    def _answer(request: Request[Any, Any] | Error) -> dict[str, Any]:
        if not isinstance(request, Error):
            try:
                return _row(request.result())
            except _ROW_ERRORS as error:
                request = error
        return {"error": str(request)}

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        running = [self._try(prompt) for prompt in batch.column(self._column).to_pylist()]
        answers = pyarrow.Table.from_pylist([self._answer(request) for request in running], ANSWER)
        for name in ANSWER.names:
            batch = batch.append_column(name, answers.column(name))
        return batch


def _places(cores: int | None, gpus: float) -> tuple[int, int]:
    """Cores of a replica, and the number of replicas that fit on the cluster. One core of each node is left for Ray's
    tasks."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    nodes = [node for node in nodes if node.get("CPU", 0) >= 1 and node.get("GPU", 0) >= gpus]
    if not nodes:
        raise InvalidError(f"gpus: {gpus}, but no node of the cluster has so many")
    if cores is None:
        cores = 1 if gpus else max(1, int(min(node["CPU"] for node in nodes)) - 1)
    counts = [
        min(int(max(1, node["CPU"] - 1) // cores), int(node["GPU"] // gpus) if gpus else sys.maxsize) for node in nodes
    ]
    return cores, max(1, sum(counts))


def answer(
    dataset: ray.data.Dataset,
    model: str | os.PathLike[str],
    *,
    column: str = "prompt",
    replicas: int | None = None,
    cores: int | None = None,
    gpus: float = 0,
    batch_size: int = 64,
    model_options: Mapping[str, Any] | None = None,
    scheduler_options: Mapping[str, Any] | None = None,
    **options: Unpack[ChatOptions],
) -> ray.data.Dataset:
    """A dataset with the answers to the rows of another, in the columns ANSWER next to its own.

    model               a file that exists on all nodes, or a name of the Hugging Face hub
    column              column of texts, which are continued, or of lists of messages, which are answered
    replicas            number of copies of the model; by default those that fit on the cluster
    cores               cores of a replica; by default all but one of the smallest node, or 1 with gpus
    gpus                GPUs of a replica, 0 or 1
    batch_size          number of rows that a replica takes at a time; its scheduler evaluates them together as far as
                        it can
    model_options       arguments of Model, such as kv and memory
    scheduler_options   arguments of Scheduler
    options             options of Model.chat or, for texts, of Model.generate

    It is computed as it is read, in no particular order. A row that cannot be answered has an error; an error that
    concerns every row, such as one in an option, ends the computation.
    """
    cores, count = _places(cores, gpus)
    given = {"device": "cuda" if gpus else "cpu", **({} if gpus else {"n_threads": cores}), **(model_options or {})}
    scheduled = {"max_queued": (_CALLS_AT_ONCE + 1) * batch_size, **(scheduler_options or {})}
    return dataset.map_batches(
        _Replica,
        fn_constructor_args=(os.fspath(model), column, given, scheduled, options),
        batch_format="pyarrow",
        batch_size=batch_size,
        compute=ray.data.ActorPoolStrategy(
            min_size=1,
            max_size=replicas or count,
            enable_true_multi_threading=True,
            max_concurrent_calls_per_actor=_CALLS_AT_ONCE,
        ),
        num_cpus=cores,
        num_gpus=gpus or None,
    )


# ---- Files ----


def _finished(folder: Path, column: str) -> set[Any]:
    """The ids of the rows in the files of a folder."""
    ids: set[Any] = set()
    for path in folder.glob("*.parquet"):
        ids.update(pyarrow.parquet.read_table(path, columns=[column]).column(column).to_pylist())
    return ids


def _unfinished(table: pyarrow.Table, column: str, finished: list[ray.ObjectRef[pyarrow.Array]]) -> pyarrow.Table:
    """`finished` has one element: in a list, Ray passes a reference unresolved, whatever this function is fused
    with."""
    is_finished = pyarrow.compute.is_in(table.column(column), ray.get(finished[0]))
    return table.filter(pyarrow.compute.invert(is_finished))


def write(
    dataset: ray.data.Dataset,
    folder: str | os.PathLike[str],
    model: str | os.PathLike[str],
    *,
    id_column: str = "id",
    on_progress: Callable[[int], object] | None = None,
    **given: Any,
) -> int:
    """Writes the answers to the rows of a dataset into Parquet files of a folder. Returns the number of rows written.

    id_column     a column that identifies rows. Rows whose id is in the folder already are not answered again, so that
                  a call completes an earlier one, whatever ended it
    on_progress   called with the number of rows in the folder, after each file
    given         arguments of `answer`

    The caller's process writes the files. Each appears only when it is complete.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    finished = _finished(folder, id_column)
    n_before = len(finished)
    if finished:
        done = [ray.put(pyarrow.array(list(finished)))]
        function: Any = _unfinished
        dataset = dataset.map_batches(
            function, batch_format="pyarrow", fn_kwargs={"column": id_column, "finished": done}
        )
    tables: Iterable[Any] = answer(dataset, model, **given).iter_batches(batch_size=None, batch_format="pyarrow")
    for table in tables:
        fresh: dict[Any, int] = {}  # A block may come twice if a node was lost.
        for i, identity in enumerate(table.column(id_column).to_pylist()):
            if identity not in finished:
                fresh.setdefault(identity, i)
        if fresh:
            _write(table.take(list(fresh.values())), folder)
            finished.update(fresh)
            if on_progress:
                on_progress(len(finished))
    return len(finished) - n_before


def _write(table: pyarrow.Table, folder: Path) -> None:
    path = folder / f"{uuid.uuid4().hex}.parquet"
    unfinished = path.with_suffix(".part")
    try:
        pyarrow.parquet.write_table(table, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
