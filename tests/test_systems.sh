#!/usr/bin/env bash
# What differs between systems is in folders posix/, win32/ and darwin/ below src/base/, src/cli/, src/gpu/, src/cuda/ and src/hub/: only
# those below src/base/ ask which system or C library they are compiled for, and only src/base/cpu.h for which processor; no other code
# uses functions that only some C libraries have, or functions whose last bit is the C library's choice where bits are promised.
set -eu
cd "$(dirname "$0")/.."

# check FOLDER... - prints what is wrong in sources below src/; fails if there is any.
check() {
    local systems='_?_?WIN(32|64)(__)?|__MINGW[A-Z0-9_]*|__CYGWIN__|_?_?(gnu_)?linux(__)?|__APPLE(__|_CC__)|__MACH__|__DARWIN[A-Z0-9_]*|TARGET_OS_[A-Z]*|_?_?unix(__)?|__[A-Za-z]*BSD__|__DragonFly__|BSD|__sun|_AIX|__HAIKU__|__GLIBC[A-Z_]*|__MUSL__|__BIONIC__|__ANDROID__|_MSC_[A-Z_]*|_WIN32_WINNT'
    local processors='__x86_64(__)?|__amd64(__)?|__i386(__)?|__aarch64__|__arm(64|64e)?__|__ARM_[A-Z0-9_]*|_M_[A-Z0-9_]*'
    local functions='memmem|memrchr|rawmemchr|mempcpy|stpcpy|strcasestr|strchrnul|strndup|strsep|getline|getdelim|qsort_r|explicit_bzero|open_memstream|fmemopen|isatty|realpath|nl_langinfo|malloc_trim|mallopt'
    local inexact='fmaf?|expf?|exp2f?|expm1f?|logf?|log2f?|log10f?|log1pf?|powf?|sinf?|cosf?|tanf?|tanhf?|acosf?|asinf?|atanf?|atan2f?|erff?|cbrtf?'
    local bad=0 own
    own=$(find "$@" -name '*.[ch]' ! -path '*/posix/*' ! -path '*/win32/*' ! -path '*/darwin/*')
    [ -n "$own" ] || own=/dev/null
    # wrong WHY - prints the lines of standard input with the reason; true if there are any.
    wrong() { local lines; lines=$(cat) && [ -n "$lines" ] && sed "s|\$|   <- $1|" <<<"$lines"; }
    # asks MACROS FILE... - the conditions in which one of the macros is a word.
    asks() { grep -nHE "^[[:space:]]*#[[:space:]]*(if|ifdef|ifndef|elif)\b(.*[^A-Za-z0-9_])?($1)([^A-Za-z0-9_]|\$)" "${@:2}" /dev/null; }
    # shellcheck disable=SC2046,SC2086
    {
        asks "$systems" $(find "$@" -name '*.[ch]' ! -path '*/base/posix/*' ! -path '*/base/win32/*' ! -path '*/base/darwin/*') |
            wrong 'asks for a system' && bad=1
        asks "$processors" $(find "$@" -name '*.[ch]' ! -path '*/base/cpu.h') | wrong 'asks for a processor: base/cpu.h does' && bad=1
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
refuses src/http/x.c '#if TARGET_OS_OSX'
refuses src/http/x.c '#if defined __arm64__'
refuses src/kernels/x.h '#ifdef _M_ARM64'
refuses src/kernels/x.h '#ifdef __ARM_FEATURE_DOTPROD'
refuses src/cli/win32/x.c '#ifndef __MINGW32__'
refuses src/gpu/posix/x.c '# if defined(__linux__)'
refuses src/cli/x.c 'p = memmem(a, b, c, d);'
refuses src/cli/x.c 'return isatty(1);'
refuses src/cli/x.c 'qn_fail(QN_ERR_IO, "%s: %m", path);'
refuses src/kernels/x.c 'y = fmaf(a, b, c);'
refuses src/plan/x.c '    return 2 * pow(a, b);'
accepts src/base/posix/x.c '#ifdef __linux__'
accepts src/base/cpu.h '#if defined(__aarch64__)'
accepts src/cli/win32/keys.h '#ifndef QN_CLI_WIN32_KEYS_H'
accepts src/cli/win32/x.c 'x = isatty(1);'
accepts src/cli/x.c 'p = qn_memmem(a, b, c, d);'
accepts src/kernels/x.c 'y = qn_fmaf(a, b, c) + sqrtf(x);'
accepts src/cli/x.c 'y = exp(x);'

check src && echo "no system outside of posix/, win32/ and darwin/"
