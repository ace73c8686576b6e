#!/usr/bin/env bash
# The chat page. As quern serve has it: headers and bytes of every file, then over the demo model in headless Chromium. Then all that it
# does, against a server of the test: streaming, stop, reload, formulas, branches, a full context, a long conversation, what answers, names
# and imports must not do, keys, a server that goes and comes back, a phone. QN_PAGE_PICTURES: a folder that gets pictures for docs/images, in place of the tests.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_python.sh"

command -v python3 >/dev/null || exit 77
export QN_BIN QN_SANITIZE
tests=$QN_SOURCE_DIR/tests/e2e
mkdir "$work/page" && "$QN_BIN/tests/page_files" "$work/page" >"$work/page/table" || exit 1

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
driver=$(command -v chromedriver)
if [ -z "$browser" ] || [ -z "$driver" ]; then
    python3 "$tests/page_serve.py" "$work/page" "$QN_SOURCE_DIR/models/quern-demo.gguf" || exit
    echo "skipped: no Chromium with chromedriver"
    exit 77
fi
python_with page selenium==4.51.0
if [ -n "${QN_PAGE_PICTURES:-}" ]; then
    "$python" "$tests/page_test.py" "$work/page" "$browser" "$driver" "$QN_PAGE_PICTURES" &&
        pngquant --force --ext .png --speed 1 64 "$QN_PAGE_PICTURES"/page-*.png
    exit
fi
timeout 550 "$python" "$tests/page_serve.py" "$work/page" "$QN_SOURCE_DIR/models/quern-demo.gguf" "$browser" "$driver" || exit
[ -z "$QN_SANITIZE" ] || exit 0 # no code of quern's runs below
timeout 550 "$python" "$tests/page_test.py" "$work/page" "$browser" "$driver"
