#!/usr/bin/env bash
# Chat templates beside jinja2, where the Python of QN_HF_PYTHON (else python3) has it: the golden templates, those of model
# families where they are (QN_SHARED), and drawn ones. QN_SOAK: 500 conversations each, and 100,000 drawn ones.
. "$(dirname "$0")/lib_cli.sh"

conversations=30 generated=2000
[ -z "$QN_SANITIZE" ] || generated=200
[ -z "${QN_SOAK:-}" ] || { conversations=500; generated=100000; }
templates=("$golden"/templates/*.jinja)
for template in "$shared"/data/templates/*.jinja; do
    [ ! -f "$template" ] || templates+=("$template")
done
"${QN_HF_PYTHON:-python3}" "$QN_SOURCE_DIR/tools/compare_templates.py" --render-lines "$QN_BIN/tests/render_lines" \
    --templates "${templates[@]}" --conversations "$conversations" --generated "$generated" >"$work/log" 2>&1
status=$?
cut -c 1-2000 "$work/log"
[ "$status" -ne 2 ] || exit 77
exit "$status"
