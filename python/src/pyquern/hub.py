"""Names of models: files, and OWNER/REPO[:FILE or TYPE] of the Hugging Face hub, by the package huggingface_hub.

docs/hub.md describes the names. A model in the cache is used without a request to the hub. `quern pull` and
huggingface_hub share that cache.

SPDX-License-Identifier: Apache-2.0
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyquern._lib import InvalidError, UnsupportedError

_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?::(.+))?")
_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_LOW_BIT = ("Q1_0", "Q2_0", "PQ2_0", "PTQ1_0")
_FLOAT16 = ("F16", "BF16")
_MEMORY_SHARE = 0.8


def _has_type(file: str, name: str) -> bool:
    """Whether a file's name contains the weight type as a word; `q4_k` matches Q4_K_M, too."""
    return bool(re.search(rf"(?:^|[-._/]){re.escape(name)}(?:_[A-Za-z0-9]+)?(?=[-.])", file, re.IGNORECASE))


def _is_exactly(file: str, name: str) -> bool:
    return bool(re.search(rf"(?:^|[-./]){re.escape(name)}(?=[-.])", file, re.IGNORECASE))


def _is_model(file: str) -> bool:
    split = _SPLIT.search(file)
    name = file.rsplit("/", 1)[-1].lower()
    is_other = "mmproj" in name or "imatrix" in name
    return file.lower().endswith(".gguf") and not is_other and (not split or int(split[1]) == 1)


def _rank(file: str) -> int:
    """Low-bit files come first, since their models were trained so; quantised ones follow, floats come last."""
    if any(_is_exactly(file, name) for name in _LOW_BIT):
        return 0
    if any(_is_exactly(file, name) for name in _FLOAT16):
        return 2
    return 3 if _is_exactly(file, "F32") else 1


def parts(file: str) -> list[str]:
    """All files of the model whose first file is `file`."""
    split = _SPLIT.search(file)
    if not split:
        return [file]
    count = min(int(split[2]), 10_000)
    return [f"{file[: split.start()]}-{i:05}-of-{split[2]}{file[-5:]}" for i in range(1, count + 1)]


def select(files: Mapping[str, int], wanted: str | None, memory: float) -> str:
    """The file that a name selects.

    files    by their paths in the repository, with their sizes
    wanted   FILE or TYPE of the name
    memory   bytes that a model may take if the name leaves the choice
    """
    models = {file: sum(files.get(part, 0) for part in parts(file)) for file in files if _is_model(file)}
    if not wanted:
        fitting = {file: size for file, size in models.items() if size <= memory}
        if not fitting:
            raise InvalidError(f"no model of at most {memory:.0f} bytes among {sorted(models) or 'no GGUF files'}")
        return min(fitting, key=lambda file: (_rank(file), -fitting[file], file))
    if "." in wanted or "/" in wanted:
        found = [file for file in files if file == wanted] or [file for file in files if Path(file).name == wanted]
    else:
        found = [file for file in models if _is_exactly(file, wanted)]
        found = found or [file for file in models if _has_type(file, wanted)]
    if len(found) != 1:
        raise InvalidError(f"{wanted}: {sorted(found) or 'no file'} of {sorted(files)}, expected one")
    return found[0]


def _cached(hub: Any, repository: str) -> tuple[Path, dict[str, int]] | None:
    """The snapshot of branch main in the cache, and its GGUF files."""
    try:
        folder = Path(hub.snapshot_download(repository, allow_patterns=["*.gguf"], local_files_only=True))
    except (OSError, ValueError):
        return None
    files = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*.gguf")}
    return folder, files


def _available_memory() -> float:
    """The bytes available without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    except OSError:
        pass
    return float("inf")


def find(name: str | os.PathLike[str]) -> Path:
    """The file of a model. Downloads it if the name is neither a file nor in the hub's cache."""
    path = Path(name)
    match = _NAME.fullmatch(os.fspath(name))
    if path.exists() or not match or (not match[2] and str(name).lower().endswith(".gguf")):
        return path
    try:
        import huggingface_hub as hub
    except ImportError:
        raise UnsupportedError(
            f"{name}: no such file; as a model of the Hugging Face hub it needs the package huggingface_hub"
        ) from None
    repository, wanted = match[1], match[2]
    memory = _MEMORY_SHARE * _available_memory()
    cached = _cached(hub, repository)
    if cached:
        folder, files = cached
        try:
            file = select(files, wanted, memory)
            if all((folder / part).exists() for part in parts(file)):
                return folder / file
        except InvalidError:
            pass
    siblings = hub.HfApi().model_info(repository, files_metadata=True).siblings or []
    file = select({item.rfilename: item.size or 0 for item in siblings}, wanted, memory)
    paths = [Path(hub.hf_hub_download(repository, part)) for part in parts(file)]
    return paths[0]
