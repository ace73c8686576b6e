#!/usr/bin/env bash
# What cmake/hardening.cmake promises, read from the binaries: test_hardening.sh LIBQUERN.A PROGRAM-OR-SHARED-LIBRARY...
# Where the compiler's own start files lack the property of CET or BTI the linker drops it from programs, so that is looked for in each
# object of the static library: it shows, too, that the flags reached every object, the kernel variants among them.
set -u
export LC_ALL=C
command -v readelf >/dev/null && command -v objdump >/dev/null || exit 77
failed=0
fault() {
    echo "test_hardening: $*"
    failed=1
}
archive=$1
shift
machine=$(readelf -hW "$1" | sed -n 's/^ *Machine: *//p')

for binary in "$@"; do
    header=$(readelf -hW "$binary") segments=$(readelf -lW "$binary") dynamic=$(readelf -dW "$binary") symbols=$(readelf -sW "$binary")
    grep -q 'Type: *DYN' <<<"$header" || fault "$binary: is not position-independent: $(grep Type: <<<"$header")"
    case $binary in
    *.so*) ;;
    *) grep -q '(FLAGS_1).* PIE' <<<"$dynamic" || fault "$binary: is no PIE" ;;
    esac
    grep -q '^ *GNU_RELRO ' <<<"$segments" || fault "$binary: no GNU_RELRO segment"
    grep -q -E '\(FLAGS\).* BIND_NOW|\(BIND_NOW\)|\(FLAGS_1\).* NOW' <<<"$dynamic" || fault "$binary: symbols are bound late, so RELRO is partial"
    ! grep -q TEXTREL <<<"$dynamic" || fault "$binary: relocations in code"
    grep -q '^ *GNU_STACK .* RW  ' <<<"$segments" || fault "$binary: the stack is executable: $(grep GNU_STACK <<<"$segments")"
    ! grep -E '^ *LOAD .* RWE ' <<<"$segments" || fault "$binary: a segment can be written and executed"
    grep -q ' __stack_chk_fail\b' <<<"$symbols" || fault "$binary: no stack protector"
    grep -q -E ' __(mem|str|v?s?n?printf|v?fprintf|read|pread|recv|fread|fgets|poll|realpath|fdelt)[a-z]*_chk\b' <<<"$symbols" ||
        fault "$binary: no checked function of libc is used"
done

# Code of objects, by "File: ARCHIVE(OBJECT)" and the property below it.
case $machine in
*X86-64) property='x86 feature: IBT, SHSTK' ;;
AArch64) property='AArch64 feature: BTI, PAC' ;;
*) property= ;;
esac
if [ -n "$property" ]; then
    without=$(readelf -nW "$archive" 2>&1 | awk -v property="$property" '
        /^File: / { if (file != "" && !found) print file; file = $2; found = 0 }
        index($0, property) { found = 1 }
        END { if (file == "") print "readelf reads no object"; else if (!found) print file }')
    [ -z "$without" ] || fault "objects without '$property': $without"
fi

if [[ $machine == *X86-64 ]]; then
    for binary in "$@"; do
        code=$(mktemp)
        objdump -d --no-show-raw-insn "$binary" >"$code"
        grep -A1 -E 'sub +\$0x1000,%rsp' "$code" | grep -q -F '$0x0,(%rsp)' || fault "$binary: large stack frames are not probed"
        case $binary in
        *.so*)
            readelf --dyn-syms -W "$binary" | awk '$4 == "FUNC" && $7 != "UND" { sub(/@.*/, "", $8); print $8 }' | sort >"$code.exported"
            [ -s "$code.exported" ] || fault "$binary: exports nothing"
            awk '/^[0-9a-f]+ <.*>:$/ { name = $2; gsub(/[<>:]/, "", name); next }
                 name != "" { if ($2 == "endbr64") print name; name = "" }' "$code" | sort >"$code.pads"
            without=$(comm -23 "$code.exported" "$code.pads")
            [ -z "$without" ] || fault "$binary: functions that do not begin with endbr64: $without"
            ;;
        esac
        rm -f "$code" "$code.exported" "$code.pads"
    done
fi
exit $failed
