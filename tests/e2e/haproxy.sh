#!/usr/bin/env bash
# Two replicas of quern serve behind HAProxy with docs/haproxy.cfg (tests/server/serve_haproxy.py). QN_SOAK: 1000 requests.
. "$(dirname "$0")/lib_cli.sh"
PATH=$PATH:/usr/sbin # Debian's haproxy
command -v python3 >/dev/null && command -v haproxy >/dev/null || {
    echo "skipped: no python3 or no haproxy"
    exit 77
}
[ -z "$QN_SANITIZE" ] || exit 77 # the server's code that runs here is that of serve_load
requests=150 conversations=16
[ -z "${QN_SOAK:-}" ] || requests=1000 conversations=100
export QN_BIN QN_SANITIZE
python3 "$QN_SOURCE_DIR/tests/server/serve_haproxy.py" "$QN_SOURCE_DIR/models/quern-demo.gguf" "$QN_SOURCE_DIR/docs/haproxy.cfg" \
    --requests "$requests" --conversations "$conversations"
