#!/usr/bin/env python3
"""Writes a wheel of pyquern for a system of make_release.sh, with the shared library that a build folder has.

make_wheel.py SOURCE BUILD SYSTEM LICENCES FOLDER    LICENCES: a file, of what is linked into the library

The package is what scikit-build-core packs (python/pyproject.toml, cmake/python.cmake); here no interpreter of the system is needed, and the
bytes depend on the source, the library and SOURCE_DATE_EPOCH alone. The library is libquern.so on every system: pyquern loads that name.
"""

import base64
import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from pack_zip import write_zip

TAGS = {
    "linux-x86_64": ("manylinux_2_28_x86_64", "libquern.so.*.*"),
    "linux-aarch64": ("manylinux_2_28_aarch64", "libquern.so.*.*"),
    "macos-arm64": ("macosx_12_0_arm64", "libquern.*.*.*.dylib"),
    "macos-x86_64": ("macosx_12_0_x86_64", "libquern.*.*.*.dylib"),
}


def generated_declarations(source: Path) -> bytes:
    """_cdef.py, from the headers that cmake/python.cmake names."""
    names = re.search(r"^set\(headers ([a-z ]+)\)", (source / "cmake/python.cmake").read_text(), re.M)[1].split()
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "_cdef.py"
        headers = [source / f"include/quern/{name}.h" for name in names]
        subprocess.run([sys.executable, source / "python/make_cdef.py", result, *headers], check=True, stdout=subprocess.DEVNULL)
        return result.read_bytes()


def metadata(project: dict, version: str, readme: str) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"License: {project['license']}",
        *(f"Classifier: {c}" for c in project["classifiers"]),
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {r}" for r in project["dependencies"]),
    ]
    for extra, requirements in project["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f"Requires-Dist: {r}; extra == '{extra}'" for r in requirements)]
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", readme])


def main() -> None:
    if len(sys.argv) != 6 or sys.argv[3] not in TAGS:
        sys.exit(__doc__)
    source, build, licences, folder = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[4]), Path(sys.argv[5])
    tag, pattern = TAGS[sys.argv[3]]
    version = re.search(r"^project\(quern VERSION ([0-9.]+)", (source / "CMakeLists.txt").read_text(), re.M)[1]
    libraries = sorted(p for p in build.glob(pattern) if not p.is_symlink())
    if len(libraries) != 1:
        sys.exit(f"make_wheel.py: expected one {pattern} in {build}, found {len(libraries)}")
    project = tomllib.loads((source / "python/pyproject.toml").read_text())["project"]
    package = source / "python/src"
    files = {
        str(p.relative_to(package)): p.read_bytes()
        for p in package.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts and p.name != "_cdef.py"
    }
    files["pyquern/_cdef.py"] = generated_declarations(source)
    files["pyquern/LICENSE"] = (source / "LICENSE").read_bytes()
    files["pyquern/licences.txt"] = licences.read_bytes()
    files["pyquern/libquern.so"] = libraries[0].read_bytes()
    info = f"pyquern-{version}.dist-info"
    files[f"{info}/METADATA"] = metadata(project, version, (source / "python/README.md").read_text()).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: quern\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n".encode()

    def record(name: str) -> str:
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        return f"{name},sha256={digest},{len(files[name])}\n"

    files[f"{info}/RECORD"] = ("".join(record(name) for name in sorted(files)) + f"{info}/RECORD,,\n").encode()
    write_zip(folder / f"pyquern-{version}-py3-none-{tag}.whl", files, ("pyquern/libquern.so",))


if __name__ == "__main__":
    main()
