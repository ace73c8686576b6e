# Shared by the tests of quern batch. Sourced after lib_cli.sh, not run.
demo=$QN_SOURCE_DIR/models/quern-demo.gguf

# value EXPRESSION < LINES - of each line, as Python sees it in `x`.
value() { python3 -c "import json,sys
for line in sys.stdin:
    x = json.loads(line)
    print($1)"; }

# line ID BODY [URL]
line() { printf '{"custom_id":"%s","method":"POST","url":"%s","body":%s}\n' "$1" "${3:-/v1/completions}" "$2"; }
