#!/usr/bin/env bash
# The chat page in headless Chromium against a server of the test: streaming, stop, reload, a long conversation, what answers, names and
# imports must not do, keys, a server that goes and comes back, a phone. QN_PAGE_PICTURES: a folder that gets pictures for docs/images.
. "$(dirname "$0")/lib_cli.sh"
. "$(dirname "$0")/lib_python.sh"

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
driver=$(command -v chromedriver)
if [ -z "$browser" ] || [ -z "$driver" ]; then
    echo "skipped: no Chromium with chromedriver"
    exit 77
fi
python_with page selenium
mkdir "$work/page" && "$QN_BIN/tests/page_files" "$work/page" >"$work/page/table" || exit 1
timeout 300 "$python" "$QN_SOURCE_DIR/tests/e2e/page_test.py" "$work/page" "$browser" "$driver" ${QN_PAGE_PICTURES:+"$QN_PAGE_PICTURES"}
