"""The examples of docs/python.md run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from models import CALLER, GOLDEN, REPOSITORY

import pyquern


def test_examples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "python.md").read_text()
    names: dict[str, Any] = {}
    (tmp_path / "models").symlink_to(REPOSITORY / "models")
    (tmp_path / "Qwen3-Reranker-0.6B.gguf").symlink_to(GOLDEN / "ranker.gguf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QN_DEVICE", "cpu")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 5
    for block in blocks:
        # The demo model's template has no tools.
        model = names.get("model")
        if "tools=tools" in block:
            names["model"] = pyquern.Model(CALLER, device="cpu")
        exec(compile(block, "python.md", "exec"), names)  # noqa: S102 - the repository's own text
        names["model"] = model or names["model"]
