"""The table of docs/protocols.md: which of llama.cpp's tests of its server pass against quern serve, and why the others do not.

    pytest unit/test_X.py --junitxml=RUN/X.xml ...     in llama.cpp's tools/server/tests, LLAMA_SERVER_BIN_PATH being a script that
                                                       starts quern serve with the options that llama-server was to get
    python tools/llama_server_tests.py RUN ...         writes the table to docs/protocols.md, between its two comments

Each RUN is a folder of reports, such as one for each model. A test that passes in one of them passes. Reasons are found by the text with
which a test failed: what fits none of them is named, and is to be looked at.

SPDX-License-Identifier: Apache-2.0
"""
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "protocols.md"
BEGIN, END = "<!-- tools/llama_server_tests.py: the table begins -->\n", "<!-- the table ends -->\n"

# Parts of llama-server that quern does not have, by file: nothing of them is expected to pass.
OTHER = {"lora": "adapters", "mcp_servers": "servers of tools", "proxy": "proxy", "router": "processes for models", "sleep": "sleeping",
         "slot_save": "slots in files", "speculative": "its drafting models", "stream": "streams that are resumed",
         "tools_builtin": "tools of the server", "vision_api": "images", "kv_keep_only_active": "its cache",
         "compat_gcp": "Google's form of requests"}

# The first that fits a failure's name and message is its reason.
REASONS = [
    (r"startswith.*\('b'\)|system_fingerprint|is not None and False", "`system_fingerprint` is `quern-VERSION`, not `bN`"),
    (r"__verbose", "no `__verbose`"),
    (r"'aliases'", "a model has one name"),
    (r"\.gguf' in", "`model_path` is the model's name"),
    (r"huggingface\.co|Max retries|wget|URLError|urlopen|Failed to download", "needs another model"),
    (r"test_access_static_assets|test_public|no_api_key|cors", "other rules for web pages and keys"),
    (r"vision|image|local_media", "images are refused, or replaced by a line"),
    (r"test_reasoning.*-auto-", "llama.cpp's templates think if `enable_thinking` is true, and are not told"),
    (r"test_date_inside_prompt", "templates get no `date_string` or `datetime`"),
    (r"test_apply_chat_template", "the template is the model's own"),
    (r"empty_messages", "empty `messages` are 400"),
    (r"test_anthropic_thinking", "needs a model with thinking"),
    (r"llama_telemetry", "no progress in Responses"),
    (r"test_metrics", "metrics have other names, and are always on"),
    (r"pooling_none", "no vectors of single tokens"),
    (r"mixed_input\[-False", "an input without tokens is an error"),
    (r"too large|invalid_infill|test_nocache_long_input", "other limits and texts of errors"),
    (r"ctx_shift", "contexts are not shifted, and have other lengths"),
    (r"test_infill", "needs a model with tokens of infilling"),
    (r"== 501|501 ==", "refused: 501"),
    (r"match_regex|assert '.*' ==|<s>|assert \d+ == |assert \(?'|assert \d+ [<>]=? \d+|!= 200|200 == 400|Timeout",
     "texts and counts of another model"),
]


def reason_of(file, case):
    problem = next(child for child in case if child.tag in ("failure", "error"))
    if file in OTHER:
        return f"llama-server's own: {OTHER[file]}"
    head = f"{case.get('name')} {problem.get('message') or ''}"
    for pattern, reason in REASONS:
        if re.search(pattern, head, re.DOTALL):
            return reason
    return "unknown: " + " ".join(head.split())[:120].replace("|", "\\|")


def read(folders):
    """Tests by file: their reasons, None for those that passed; skipped ones are left out."""
    found = {}
    for folder in folders:
        for path in sorted(Path(folder).glob("*.xml")):
            tests = found.setdefault(path.stem, {})
            for case in ElementTree.parse(path).iter("testcase"):
                if case.find("skipped") is not None:
                    continue
                has_passed = case.find("failure") is None and case.find("error") is None
                if has_passed or case.get("name") not in tests:
                    tests[case.get("name")] = None if has_passed else reason_of(path.stem, case)
    return found


def table(found):
    lines = ["| tests | pass | fail | because |\n", "| --- | --- | --- | --- |\n"]
    for file, tests in sorted(found.items()):
        failed = Counter(reason for reason in tests.values() if reason)
        why = "; ".join(f"{reason} ({n})" for reason, n in sorted(failed.items(), key=lambda item: (-item[1], item[0])))
        lines.append(f"| `{file}` | {len(tests) - sum(failed.values())} | {sum(failed.values())} | {why} |\n")
    return "".join(lines)


def main():
    text = DOCUMENT.read_text(encoding="utf-8")
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    DOCUMENT.write_text(text[:begin] + table(read(sys.argv[1:])) + text[end:], encoding="utf-8")


if __name__ == "__main__":
    main()
