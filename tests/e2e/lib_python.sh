# A Python with packages from the index, for tests of clients. Sourced after lib_cli.sh, not run.

# python_with NAME PACKAGE... - sets $python to one that has the packages, in a virtual environment which the build folder keeps, or that of
# QN_TEST_VENVS, which several builds share; QN_TEST_PYTHON is taken as it is. The test is skipped where they cannot be installed.
python_with() {
    local folder=${QN_TEST_VENVS:-$QN_BIN}/python-$1
    shift
    python=${QN_TEST_PYTHON:-$folder/bin/python}
    [ -z "${QN_TEST_PYTHON:-}" ] || return 0
    (
        flock 9
        [ ! -e "$folder/complete" ] || exit 0
        rm -rf "$folder"
        # Few retries: where packets are dropped, pip would wait for longer than the test may take. What is imported alone is compiled.
        python3 -m venv "$folder" && "$folder/bin/python" -m pip --disable-pip-version-check install -q --no-compile --retries 1 --timeout 30 "$@" &&
            touch "$folder/complete"
    ) 9>"$folder.lock" >"$work/log" 2>&1 || {
        echo "skipped: no Python with $*: $(tail -n 1 "$work/log")"
        exit 77
    }
}
