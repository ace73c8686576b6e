#!/usr/bin/env python3
"""What is inside the programs of a release, by parts.list.

parts.py licences SOURCES ZIG SYSTEM               licences of the parts of a system's programs, as text
parts.py sources SOURCES FOLDER SYSTEM...          copies the source packages of parts under the LGPL to the folder
parts.py spdx SOURCES ZIG VERSION COMMIT FILES     SPDX 2.3 as JSON, with the files of a folder, their hashes, and the parts in each

SOURCES has Debian's source packages, unpacked, as cmake/debian-sources.sh leaves them.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

LISTED = Path(__file__).parent / "parts.list"
TEXTS = Path("/usr/share/common-licenses")


class Part(NamedTuple):
    name: str
    origin: str
    licence: str
    version: str
    package: str  # as a purl, or nothing
    text: str  # its licence, with those who hold the copyright


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace").strip()


def source_folder(sources: Path, package: str) -> Path:
    folders = sorted(sources.glob(f"{package}-[0-9]*/"))
    if len(folders) != 1:
        sys.exit(f"parts.py: expected the source of {package} in {sources}, found {len(folders)}")
    return folders[0]


def source_version(folder: Path) -> str:
    return re.match(r"\S+ \(([^)]+)\)", read(folder / "debian/changelog"))[1]


def purl(package: str, version: str, kind: str = "") -> str:
    return f"pkg:deb/debian/{package}@{version.replace(':', '%3A').replace('+', '%2B')}{kind}"


def zig_file(zig: Path, name: str) -> Path:
    """A file of zig's archive; PyPI's package has licences next to it."""
    folder = zig.resolve().parent
    for base in (folder, *folder.parent.glob("ziglang-*.dist-info/licenses/ziglang")):
        if (base / name).is_file():
            return base / name
    sys.exit(f"parts.py: {zig} has no {name} next to it")


def installed_version(package: str) -> str | None:
    status = Path("/var/lib/dpkg/status")
    found = re.search(rf"^Package: {package}\n(?:[^\n]+\n)*?Version: ([^\n]+)", read(status) if status.exists() else "", re.M)
    return found and found[1]


def rows(system: str):
    for line in LISTED.read_text().splitlines():
        if line and not line.startswith("#"):
            name, origin, systems, licence = line.split(maxsplit=3)
            if any(fnmatch(system, pattern) for pattern in systems.split(",")):
                yield name, origin, licence


def parts(system: str, sources: Path, zig: Path) -> list[Part]:
    found = []
    for name, origin, licence in rows(system):
        kind, _, of = origin.partition(":")
        if kind == "source":
            folder = source_folder(sources, of or name)
            version = source_version(folder)
            text = f"Part of {of}; its text is there." if of else read(folder / "debian/copyright")
            shown = f"in {of} {version}" if of else version
            found.append(Part(name, origin, licence, shown, purl(of or name, version, "?arch=source"), text))
        elif kind == "zig":
            version = subprocess.run([zig, "version"], check=True, capture_output=True, text=True).stdout.strip()
            found.append(Part(name, origin, licence, f"in zig {version}", "", read(zig_file(zig, of))))
        else:
            version = installed_version(name)
            if version:
                text = read(Path("/usr/share/doc") / name / "copyright")
                found.append(Part(name, origin, licence, version, purl(name, version), text))
            elif kind != "page":
                sys.exit(f"parts.py: {name} is not installed, and {system} has a part of it")
    return found


def gnu_texts(listed: list[Part]) -> list[str]:
    """Names of the GNU licences that parts are under. Version 3 of the LGPL refers to the GPL's."""
    names = {name.removesuffix(".0") for part in listed for name in re.findall(r"\bL?GPL-[0-9]\.[0-9]", part.licence)}
    return sorted(names | ({"GPL-3"} if "LGPL-3" in names else set()))


def licences(system: str, sources: Path, zig: Path) -> str:
    listed = parts(system, sources, zig)

    def section(title: str, text: str) -> str:
        return f"\n\n{'=' * 80}\n{title}\n{'=' * 80}\n\n{text}"

    intro = "quern is under the Apache License 2.0 (LICENSE). The parts below are inside of it."
    if any("LGPL" in part.licence for part in listed):
        intro += (
            "\nOf those under the LGPL you may use a version of your own: their sources, and quern's with the scripts"
            "\nthat build all of them (tools/release), are in the folder sources/ of the release."
        )
    sections = [section(f"{part.name} {part.version}: {part.licence}", part.text) for part in listed]
    sections += [section(name, read(TEXTS / name)) for name in gnu_texts(listed)]
    return "\n".join([intro, *sections, ""])


def copy_sources(sources: Path, folder: Path, systems: list[str]) -> None:
    wanted = {name for system in systems for name, origin, licence in rows(system) if origin == "source" and "LGPL" in licence}
    folder.mkdir(parents=True, exist_ok=True)
    for package in sorted(wanted):
        version = source_version(source_folder(sources, package)).rpartition(":")[2]
        description = sources / f"{package}_{version}.dsc"
        files = re.search(r"^Files:\s*\n((?: .*\n)+)", read(description) + "\n", re.M)[1]
        for name in [description.name, *(line.split()[2] for line in files.splitlines())]:
            shutil.copyfile(sources / name, folder / name)


def system_of(name: str, version: str) -> str | None:
    """The system whose programs an archive has."""
    if name.endswith(".whl"):
        return "wheel"
    found = re.fullmatch(rf"quern-{re.escape(version)}-(.+)\.(tar\.gz|zip)", name)
    return found and found[1]


def identifier(*names: str) -> str:
    return "-".join(["SPDXRef", *(re.sub(r"[^A-Za-z0-9.-]", "-", name) for name in names)])


def described(part: Part) -> dict:
    package = {
        "SPDXID": identifier(part.name),
        "name": part.name,
        "versionInfo": part.version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": part.licence,
        "licenseDeclared": part.licence,
        "copyrightText": "NOASSERTION",
    }
    if part.package:
        package["supplier"] = "Organization: Debian"
        reference = {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": part.package}
        package["externalRefs"] = [reference]
    return package


def spdx(sources: Path, zig: Path, version: str, commit: str, files: Path) -> dict:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"])))
    quern = {
        "SPDXID": "SPDXRef-quern",
        "name": "quern",
        "versionInfo": version,
        "sourceInfo": f"commit {commit}",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "Apache-2.0",
        "licenseDeclared": "Apache-2.0",
        "copyrightText": "2026 the authors of quern",
    }
    packages = {"SPDXRef-quern": quern}
    relations = []
    listed = []

    def relate(element: str, kind: str, other: str) -> None:
        relations.append({"spdxElementId": element, "relationshipType": kind, "relatedSpdxElement": other})

    relate("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-quern")
    for path in sorted(p for p in files.rglob("*") if p.is_file()):
        name = str(path.relative_to(files))
        data = path.read_bytes()
        file = identifier("File", name)
        listed.append(
            {
                "SPDXID": file,
                "fileName": f"./{name}",
                "checksums": [
                    {"algorithm": "SHA1", "checksumValue": hashlib.sha1(data).hexdigest()},
                    {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()},
                ],
                "licenseConcluded": "NOASSERTION",
                "copyrightText": "NOASSERTION",
            }
        )
        system = system_of(name, version)
        if system:
            relate(file, "GENERATED_FROM", "SPDXRef-quern")
            for part in parts(system, sources, zig):
                packages[identifier(part.name)] = described(part)
                relate(file, "CONTAINS" if part.origin == "page" else "STATIC_LINK", identifier(part.name))
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"quern-{version}",
        "documentNamespace": f"urn:quern:{version}:{commit}",
        "creationInfo": {"created": created, "creators": ["Tool: quern tools/release/parts.py"]},
        "packages": list(packages.values()),
        "files": listed,
        "relationships": relations,
    }


def main() -> None:
    match sys.argv[1:]:
        case ["licences", sources, zig, system]:
            print(licences(system, Path(sources), Path(zig)), end="")
        case ["sources", sources, folder, *systems]:
            copy_sources(Path(sources), Path(folder), systems)
        case ["spdx", sources, zig, version, commit, files]:
            print(json.dumps(spdx(Path(sources), Path(zig), version, commit, Path(files)), indent=1))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
