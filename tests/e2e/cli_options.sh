#!/usr/bin/env bash
# One table of options: the parser and the help texts use it, and the manual page's list of options is printed from it. One table
# of environment variables: what the code reads is in the manual page and in docs/environment.md.
. "$(dirname "$0")/lib_cli.sh"
man=$QN_SOURCE_DIR/docs/quern.1

quern help --man
[ $status -eq 0 ] || fail "help --man"
sed -n '/^\.Sh OPTIONS/,/^\.Sh ENVIRONMENT/p' "$man" | sed -n '/^\.Bl/,/^\.El/p' >"$work/listed"
cmp -s "$work/out" "$work/listed" || fail "docs/quern.1: its list of options is not what \`quern help --man\` prints"

for command in run chat serve batch bench bench-serve perplexity tokenize logits info quantize convert graft kernels devices pull list rm; do
    grep -q "^\.It Cm $command\$" "$man" || fail "docs/quern.1 does not describe quern $command"
    quern help $command
    cp "$work/out" "$work/help"
    quern $command --help
    cmp -s "$work/out" "$work/help" || fail "quern help $command and quern $command --help differ"
    awk 'length > 128' "$work/out" >"$work/wide"
    [ ! -s "$work/wide" ] || fail "quern $command --help has lines of over 128 columns: $(cat "$work/wide")"
done

# getenv("NAME"), qn_environment("NAME"), and the names that code looks up in lists (compile_nvcc.c, code_file.c).
variables=$(grep -rhoE '(getenv|qn_environment)\("[A-Z_]+"\)' "$QN_SOURCE_DIR/src" | sed 's/.*"\(.*\)".*/\1/'
    grep -rhoE '"(CUDA_HOME|CUDA_PATH|XDG_CACHE_HOME|HOME|LC_[A-Z]*|LANG)"' "$QN_SOURCE_DIR/src" | tr -d '"')
[ "$(echo "$variables" | sort -u | wc -l)" -ge 8 ] || fail "environment variables: not found in the sources"
for name in $variables; do
    grep -qE "^\.(It )?Ev .*$name\b" "$man" || fail "docs/quern.1: ENVIRONMENT lacks $name"
    grep -qE "^\|[^|]*\`$name\`" "$QN_SOURCE_DIR/docs/environment.md" || fail "docs/environment.md lacks $name"
done
finish
