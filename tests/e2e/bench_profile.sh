#!/usr/bin/env bash
# quern bench --profile: each test says where its time went, by operation, as a table and as JSON.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
demo=$QN_SOURCE_DIR/models/quern-demo.gguf

quern bench -m "$demo" -t 2 -p 40 -n 12 -r 2 --temp 1 --profile --format json
[ $status -eq 0 ] || fail "--profile: status $status"
python3 - "$work" <<'P' || fail '--profile: JSON'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1] + "/out")]
assert [row["test"] for row in rows] == ["pp40", "tg12", "tg12 sampled"]
for row in rows:
    p = row["profile"]
    names = [o["name"] for o in p["operations"]]
    assert p["threads"] == 2 and len(names) == len(set(names))
    assert p["steps"] >= (2 if row["test"] == "pp40" else 24)
    assert {"embed", "norm", "attention", "delta_rule"} <= set(names)
    assert ("swiglu" in names) == (row["test"] == "pp40")  # of one row, it is part of the matmul's phase
    assert sum(name.startswith("matmul ptq1_0 512 x ") for name in names) >= 2
    assert any(name.startswith("logits ") for name in names)
    assert ("sampling" in names) == (row["test"] != "pp40")
    total = sum(o["seconds"] for o in p["operations"]) + p["outside_seconds"]
    assert abs(total - p["seconds"]) < 1e-4 + 1e-3 * p["seconds"], (total, p["seconds"])
    for o in p["operations"]:
        assert o["seconds"] >= 0 and o["computing"] > 0 and o["waiting"] > -1e-5 and 0 < o["parallel"] <= 1.001, o
    # the rate and the profile are of the same time
    if row["test"] == "pp40":
        assert abs(2 * 40 / row["tok_per_s"]["max"] / p["seconds"] - 1) < 0.9
P

quern bench -m "$demo" -t 1 -p 16 -n 4 -r 1 --profile
{ [ $status -eq 0 ] && [ "$(grep -c '^  profile  .* seconds .* parallel$' "$work/out")" -eq 2 ] &&
    [ "$(grep -c '^  all operations  .*%$' "$work/out")" -eq 2 ] && [ "$(grep -c '^  between steps  .*%$' "$work/out")" -eq 2 ] &&
    grep -q -E '^  matmul ptq1_0 512 x [0-9]+  .*%$' "$work/out"; } || fail 'the table'

quern bench -m "$demo" -t 1 -p 16 -n 4 -r 1
{ [ $status -eq 0 ] && ! grep -q profile "$work/out"; } || fail 'a profile without --profile'
quern bench -m "$demo" -t 1 -p 8 -n 4 -r 1 --parallel 1,2 --profile --format json
{ [ $status -eq 0 ] && [ "$(grep -c '"profile":{' "$work/out")" -eq 4 ]; } || fail '--parallel'
refuses 2 '--profile: cannot be used with --reuse' bench -m "$demo" --profile --reuse 100,10
printf '8 40\n' >"$work/lengths"
refuses 2 '--profile: cannot be used with --soak' bench -m "$demo" --profile --soak "$work/lengths" --parallel 1
finish
