#!/usr/bin/env bash
# Completion in shells: bash's is run, for commands, all options that the help lists, choices and files; fish's is run and zsh's parsed where
# these shells are installed.
. "$(dirname "$0")/lib_cli.sh"

for shell in bash zsh fish; do
    quern help --completion $shell
    [ $status -eq 0 ] || fail "help --completion $shell"
    cp "$work/out" "$work/$shell"
done
refuses 2 'expected bash, zsh or fish' help --completion tcsh
refuses 2 'expected bash, zsh or fish' help --completion

# completes WORD... - what bash offers for the last word, a line each.
. "$work/bash"
completes() {
    COMP_WORDS=(quern "$@") COMP_CWORD=$#
    _quern
    printf '%s\n' "${COMPREPLY[@]}"
}
[ "$(completes ba)" = batch ] || fail "bash: ba is completed to '$(completes ba)'"
[ "$(completes help qua)" = quantize ] || fail "bash: help qua"
[ "$(completes bench --format j)" = json ] || fail "bash: bench --format j"
[ "$(completes run --kv aura4v)" = $'aura4v3\naura4v2' ] || fail "bash: run --kv aura4v"
[ -z "$(completes run -m mod)" ] || fail "bash: files are left to the shell"
commands=$(completes "" | grep -vE '^(help|version)$')
[ "$(echo "$commands" | wc -l)" -ge 15 ] || fail "bash: commands"
for command in $commands; do
    quern help "$command"
    sed -nE 's/^  (-[^ ]*), (-[^ ]*) .*/\1\n\2/p; s/^  (-[^ ,]+) .*/\1/p' "$work/out" | sort >"$work/listed"
    completes "$command" - | sort >"$work/offered"
    cmp -s "$work/listed" "$work/offered" || fail "bash: the options of $command differ from its help: $(diff "$work/listed" "$work/offered")"
done

if command -v fish >/dev/null; then
    offered=$(fish --no-config -c "source '$work/fish'; complete -C 'quern bench --format '" 2>"$work/err" | cut -f 1 | sort | tr '\n' ' ')
    [ "$offered" = 'json table ' ] || fail "fish: bench --format is completed to '$offered': $(cat "$work/err")"
    fish --no-config -c "source '$work/fish'; complete -C 'quern run --te'" | grep -q '^--temp' || fail "fish: run --te"
fi
if command -v zsh >/dev/null; then
    zsh -n "$work/zsh" || fail "zsh: does not parse"
fi
finish
