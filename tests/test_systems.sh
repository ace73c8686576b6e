#!/usr/bin/env bash
# What differs between systems is in folders posix/, win32/ and darwin/ below src/base/, src/cli/, src/gpu/, src/cuda/ and src/hub/:
# no other code asks which system or C library it is compiled for, and none uses functions that only some C libraries have, or functions
# whose last bit is the C library's choice where bits are promised.
set -eu
cd "$(dirname "$0")/.."

# check FOLDER... - prints what is wrong in sources below src/; fails if there is any.
check() {
    local systems='_WIN32|_WIN64|__MINGW|__CYGWIN__|__linux|__gnu_linux__|__APPLE__|__MACH__|__unix|__FreeBSD__|__OpenBSD__|__NetBSD__|__GLIBC__|__GLIBC_PREREQ|__MUSL__|__ANDROID__|_MSC_VER'
    local functions='memmem|memrchr|rawmemchr|mempcpy|stpcpy|strcasestr|strchrnul|strndup|strsep|getline|getdelim|qsort_r|explicit_bzero|open_memstream|fmemopen|isatty|realpath|nl_langinfo|malloc_trim|mallopt'
    local inexact='fmaf?|expf?|exp2f?|expm1f?|logf?|log2f?|log10f?|log1pf?|powf?|sinf?|cosf?|tanf?|tanhf?|acosf?|asinf?|atanf?|atan2f?|erff?|cbrtf?'
    local bad=0 own
    own=$(find "$@" -name '*.[ch]' ! -path '*/posix/*' ! -path '*/win32/*' ! -path '*/darwin/*')
    [ -n "$own" ] || return 0
    # wrong WHY - prints the lines of standard input with the reason; true if there are any.
    wrong() { local lines; lines=$(cat) && [ -n "$lines" ] && sed "s|\$|   <- $1|" <<<"$lines"; }
    # shellcheck disable=SC2086
    {
        grep -nHE "^[[:space:]]*#[[:space:]]*(if|ifdef|ifndef|elif)\b.*\b($systems)" $own | wrong 'asks for a system' && bad=1
        grep -nHE "(^|[^A-Za-z0-9_.>\"])($functions)\(" $own | grep -vE ':[0-9]+:[[:space:]]*(/\*|\* |//)' |
            wrong 'not in every C library: base/ has it' && bad=1
        grep -nHE '"[^"]*%m([^a-z]|$)' $own | grep -v 'strftime' | wrong '%m is an extension: strerror(errno)' && bad=1
        own=$(find "$@" \( -path 'src/kernels/*' -o -path 'src/plan/*' -o -path 'src/model/*' -o -path 'src/convert/*' -o \
            -path 'src/quant/*' -o -path 'src/cpu/*' \) -name '*.[ch]')
        [ -n "$own" ] && grep -nHE "(^|[^A-Za-z0-9_.>\"])($inexact)\(" $own |
            grep -vE ":[0-9]+:[[:space:]]*(\* |//)|/\*.*\b($inexact)\(" |
            wrong "its last bit is the C library's choice: base/real.h, base/fmaf.h" && bad=1
    }
    return $bad
}

# The test must be able to fail.
trial=$(mktemp -d)
trap 'rm -rf "$trial"' EXIT
refuses() {
    rm -rf "$trial/src"
    mkdir -p "$trial/$(dirname "$1")"
    printf '%s\n' "$2" >"$trial/$1"
    if (cd "$trial" && check src) >/dev/null; then
        echo "test_systems: did not notice '$2' in $1"
        exit 1
    fi
}
accepts() {
    rm -rf "$trial/src"
    mkdir -p "$trial/$(dirname "$1")"
    printf '%s\n' "$2" >"$trial/$1"
    (cd "$trial" && check src) || { echo "test_systems: refused '$2' in $1"; exit 1; }
}
refuses src/cli/x.c '#ifdef __linux__'
refuses src/cli/x.c '#if defined(_WIN32)'
refuses src/base/x.h '#  elif X && __APPLE__'
refuses src/http/x.c '#ifdef __GLIBC__'
refuses src/cli/x.c 'p = memmem(a, b, c, d);'
refuses src/cli/x.c 'return isatty(1);'
refuses src/cli/x.c 'qn_fail(QN_ERR_IO, "%s: %m", path);'
refuses src/kernels/x.c 'y = fmaf(a, b, c);'
refuses src/plan/x.c '    return 2 * pow(a, b);'
accepts src/base/posix/x.c '#ifdef __linux__'
accepts src/cli/win32/x.c 'x = isatty(1);'
accepts src/cli/x.c 'p = qn_memmem(a, b, c, d);'
accepts src/kernels/x.c 'y = qn_fmaf(a, b, c) + sqrtf(x);'
accepts src/cli/x.c 'y = exp(x);'

check src && echo "no system outside of posix/, win32/ and darwin/"
