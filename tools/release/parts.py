#!/usr/bin/env python3
"""What is inside the programs of a release, from parts.list and Debian's source packages below a folder.

parts.py licences SOURCES                          their licences, as text
parts.py spdx SOURCES VERSION COMMIT FILES         SPDX 2.3 as JSON, with the files of a folder and their hashes
"""

import hashlib
import json
import os
import re
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
# In the page of quern serve; built from Debian's packages where they are installed.
PAGE = {"libjs-marked": "MIT", "libjs-katex": "MIT", "fonts-katex": "OFL-1.1"}


def parts(sources: Path):
    """Source package, its version, licence, and the folder of its source."""
    for line in (HERE / "parts.list").read_text().splitlines():
        if line and not line.startswith("#"):
            package, licence = line.split()
            folders = sorted(sources.glob(f"{package}-[0-9]*/"))
            if folders:
                changelog = (folders[0] / "debian/changelog").read_text(encoding="utf-8", errors="replace")
                yield package, re.match(r"\S+ \(([^)]+)\)", changelog)[1], licence, folders[0]


def page_parts():
    status = Path("/var/lib/dpkg/status")
    text = status.read_text(encoding="utf-8") if status.exists() else ""
    for package, licence in PAGE.items():
        found = re.search(rf"^Package: {package}\n(?:[^\n]+\n)*?Version: ([^\n]+)", text, re.M)
        if found:
            yield package, found[1], licence, Path("/usr/share/doc") / package


def print_licences(sources: Path) -> None:
    print(
        "quern is under the Apache License 2.0 (LICENSE). Its programs have the libraries below linked into them. Of those under the LGPL\n"
        "you may use a version of your own: quern's source and tools/release/libraries.sh build the program with it."
    )
    for package, version, licence, folder in [*parts(sources), *page_parts()]:
        copyright_file = folder / "debian/copyright"
        if not copyright_file.exists():
            copyright_file = folder / "copyright"
        print(f"\n\n{'=' * 80}\n{package} {version}: {licence}\n{'=' * 80}\n")
        print(copyright_file.read_text(encoding="utf-8", errors="replace").strip())


def spdx(sources: Path, version: str, commit: str, files: Path) -> dict:
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"])))
    packages = [
        {
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
    ]
    relations = [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-quern"}]

    def add(package: str, of: str, licence: str, relation: str, kind: str) -> None:
        packages.append(
            {
                "SPDXID": f"SPDXRef-{package}",
                "name": package,
                "versionInfo": of,
                "supplier": "Organization: Debian",
                "downloadLocation": "NOASSERTION",
                "filesAnalyzed": False,
                "licenseConcluded": licence,
                "licenseDeclared": licence,
                "copyrightText": "NOASSERTION",
                "externalRefs": [
                    {
                        "referenceCategory": "PACKAGE-MANAGER",
                        "referenceType": "purl",
                        "referenceLocator": f"pkg:deb/debian/{package}@{of.replace(':', '%3A').replace('+', '%2B')}{kind}",
                    }
                ],
            }
        )
        relations.append({"spdxElementId": "SPDXRef-quern", "relationshipType": relation, "relatedSpdxElement": f"SPDXRef-{package}"})

    for package, of, licence, _ in parts(sources):
        add(package, of, licence, "STATIC_LINK", "?arch=source")
    for package, of, licence, _ in page_parts():
        add(package, of, licence, "CONTAINS", "")
    listed = []
    for path in sorted(p for p in files.iterdir() if p.is_file()):
        data = path.read_bytes()
        identifier = "SPDXRef-File-" + re.sub(r"[^A-Za-z0-9.-]", "-", path.name)
        listed.append(
            {
                "SPDXID": identifier,
                "fileName": f"./{path.name}",
                "checksums": [
                    {"algorithm": "SHA1", "checksumValue": hashlib.sha1(data).hexdigest()},
                    {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()},
                ],
                "licenseConcluded": "NOASSERTION",
                "copyrightText": "NOASSERTION",
            }
        )
        relations.append({"spdxElementId": identifier, "relationshipType": "GENERATED_FROM", "relatedSpdxElement": "SPDXRef-quern"})
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"quern-{version}",
        "documentNamespace": f"urn:quern:{version}:{commit}",
        "creationInfo": {"created": created, "creators": ["Tool: quern tools/release/parts.py"]},
        "packages": packages,
        "files": listed,
        "relationships": relations,
    }


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "licences":
        print_licences(Path(sys.argv[2]))
    elif len(sys.argv) == 6 and sys.argv[1] == "spdx":
        print(json.dumps(spdx(Path(sys.argv[2]), sys.argv[3], sys.argv[4], Path(sys.argv[5])), indent=1))
    else:
        sys.exit(__doc__)
