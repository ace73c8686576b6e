#!/usr/bin/env bash
# quern run --json-schema, --grammar, --choices: finished texts fit (by Python's jsonschema, where it is there), are the same for any number
# of threads and any batch, and errors name the file and the place.
. "$(dirname "$0")/lib_cli.sh"
demo=$QN_SOURCE_DIR/models/quern-demo.gguf

cat >"$work/person.json" <<'EOF'
{"type": "object", "additionalProperties": false, "required": ["name", "pets"], "properties": {
  "name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
  "pets": {"type": "array", "maxItems": 2, "items": {"enum": ["dog", "cat"]}}}}
EOF
cat >"$work/sum.gbnf" <<'EOF'
root ::= term ("+" term){0,3}
term ::= [1-9] [0-9]?
EOF

# validate FILE - whether it has JSON that the schema accepts.
validate() {
    python3 - "$1" "$work/person.json" <<'EOF'
import json, sys
document, schema = (json.load(open(path)) for path in sys.argv[1:])
try:
    import jsonschema
    jsonschema.validate(document, schema)
except ImportError:
    pass
EOF
}

run() {
    quern run -m "$demo" "$@" "Once upon a time" </dev/null
    [ $status -eq 0 ] || fail "run $*: status $status"
}

finished=0
for seed in 1 2 3 4 5 6; do
    filters=
    [ $((seed % 2)) -eq 0 ] || filters="--top-k 0 --top-p 1 --min-p 0"
    # shellcheck disable=SC2086
    run --temp 1.5 $filters --seed $seed -n 200 --json-schema "$work/person.json"
    grep -q 'end of text$' "$work/err" || continue
    finished=$((finished + 1))
    validate "$work/out" || fail "--json-schema, seed $seed: does not validate"
done
[ $finished -ge 4 ] || fail "--json-schema: $finished of 6 texts are finished"

run --temp 0 -n 60 -t 1 --json-schema "$work/person.json"
cp "$work/out" "$work/first"
[ -s "$work/first" ] || fail "--json-schema: no text"
for other in "-t 2" "--batch 1" "--batch 3 --seed 9"; do
    # shellcheck disable=SC2086
    run --temp 0 -n 60 $other --json-schema "$work/person.json"
    cmp -s "$work/out" "$work/first" || fail "--json-schema: another text with $other"
done

# Each style of white space is what json.dumps writes, and properties come in their order.
for style in "default " "indent indent=2" "compact separators=(',',':')"; do
    run --temp 0 -n 300 --json-schema "$work/person.json" --json-whitespace "${style%% *}"
    python3 - "$work/out" "${style#* }" <<'EOF' || fail "--json-whitespace ${style%% *}: $(cat "$work/out")"
import json, sys
text = open(sys.argv[1]).read().removesuffix("\n")
value = json.loads(text)
assert list(value) == [name for name in ("name", "age", "pets") if name in value], value
arguments = eval(f"dict({sys.argv[2]})")
assert text in [json.dumps(value, ensure_ascii=ascii, **arguments) for ascii in (False, True)]
EOF
done
refuses 2 '--json-whitespace: needs --json-schema' run -m "$demo" --json-whitespace any x
refuses 2 '--json-property-order: needs --json-schema' run -m "$demo" --grammar x --json-property-order any x
refuses 2 '--jump-forward: needs a grammar or schema' run -m "$demo" --jump-forward on x

# Forced text takes fewer steps, and is the same.
for how in off auto on; do
    run --temp 0 -n 60 --json-schema "$work/person.json" --jump-forward $how
    cmp -s "$work/out" "$work/first" || fail "--jump-forward $how: another text"
    grep -q 'generated [0-9]* tokens ([0-9]* forced), ' "$work/err" && jumps=yes || jumps=no
    [ $how = off ] && expected=no || expected=yes
    [ $jumps = $expected ] || fail "--jump-forward $how: forced tokens: $jumps"
done

for seed in 1 2 3; do
    run --temp 1.5 --seed $seed --grammar "$work/sum.gbnf"
    grep -qxE '[1-9][0-9]?(\+[1-9][0-9]?){0,3}' "$work/out" || fail "--grammar: $(cat "$work/out")"
    run --temp 1.5 --seed $seed --choices "red,green,deep blue"
    grep -qxE 'red|green|deep blue' "$work/out" || fail "--choices: $(cat "$work/out")"
    run --chat --temp 1.5 --seed $seed --choices one
    [ "$(cat "$work/out")" = one ] || fail "--chat --choices: $(cat "$work/out")"
done

printf '{"type": "object",\n "properties": }\n' >"$work/bad.json"
refuses 1 'bad.json: the schema is not JSON: line 2, column 16' run -m "$demo" --json-schema "$work/bad.json" x
printf '{"properties": {"a": {"type": "array", "uniqueItems": true}}}' >"$work/bad.json"
refuses 1 "bad.json: schema: #/properties/a/uniqueItems: only items of at most 256 constants" run -m "$demo" --json-schema "$work/bad.json" x
printf 'root ::= "a"\nother ::= ("b"\n' >"$work/bad.gbnf"
refuses 1 'bad.gbnf: grammar: line ' run -m "$demo" --grammar "$work/bad.gbnf" x
refuses 1 'missing.gbnf: No such file' run -m "$demo" --grammar "$work/missing.gbnf" x
refuses 1 "no_vocab" run -m "$golden/qwen3.f16.gguf" --choices a x
refuses 2 '--json-schema and --grammar: only one' run -m "$demo" --json-schema x --grammar y z
refuses 2 '--grammar and --choices: only one' run -m "$demo" --grammar x --choices y z
refuses 2 '--choices and --ignore-eos: only one' run -m "$demo" --choices y --ignore-eos z
for list in '' , a, ,a a,,b; do
    refuses 2 "--choices: '$list' has an empty choice" run -m "$demo" --choices "$list" z
done
finish
