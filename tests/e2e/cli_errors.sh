#!/usr/bin/env bash
# Bad usage is status 2, what cannot be done is status 1, each with one line on standard error; nothing half-written stays.
. "$(dirname "$0")/lib_cli.sh"
model=$golden/qwen3.f16.gguf

# ---- Bad usage ----
refuses 2 "unknown command 'nonsense'" nonsense
refuses 2 "unknown option '--nonsense'" --nonsense
for command in run chat batch bench perplexity tokenize logits info quantize convert graft pull list rm; do
    refuses 2 "unknown option '--nonsense'" $command --nonsense
    quern $command --help
    { [ $status -eq 0 ] && grep -q "^usage: quern $command" "$work/out"; } || fail "quern $command --help"
done
for command in bench perplexity tokenize; do # run and chat have one: cli_default_model.sh
    refuses 2 '-m: no model' $command
done
refuses 2 "-n: 'abc' is not an integer" run -m "$model" -p x -n abc
refuses 2 "-n: '1.5' is not an integer" run -m "$model" -p x -n 1.5
refuses 2 "-n: '' is not an integer" run -m "$model" -p x -n ''
refuses 2 "-n: ' 3' is not an integer" run -m "$model" -p x -n ' 3'
refuses 2 '-n: a value is missing' run -m "$model" -p x -n
refuses 2 '-n: -2 is out of range' run -m "$model" -p x -n -2
refuses 2 '-t: -3 is out of range: 1 to 1024' run -m "$model" -p x -t -3
refuses 2 '-t: 0 is out of range' bench -m "$model" -t 0
refuses 2 '-t: 1025 is out of range' bench -m "$model" -t 1025
refuses 2 '-c: 99999999999 is out of range' run -m "$model" -p x -c 99999999999
refuses 2 '-c: 99999999999999999999999 is out of range' run -m "$model" -p x -c 99999999999999999999999
refuses 2 '--temp: -1 is out of range' run -m "$model" -p x --temp -1
refuses 2 "--temp: 'nan' is not a number" run -m "$model" -p x --temp nan
refuses 2 "--temp: '1x' is not a number" run -m "$model" -p x --temp=1x
refuses 2 '--top-p: 1.5 is out of range' run -m "$model" -p x --top-p 1.5
refuses 2 '--min-p: 1 is out of range' run -m "$model" -p x --min-p 1
refuses 2 '--repeat-penalty: 0 is out of range' run -m "$model" -p x --repeat-penalty 0
refuses 2 '--dry-multiplier: -1 is out of range' run -m "$model" -p x --dry-multiplier -1
refuses 2 '--dry-base: 0.5 is out of range' run -m "$model" -p x --dry-base 0.5
refuses 2 '--dry-allowed-length: -1 is out of range' run -m "$model" -p x --dry-allowed-length -1
refuses 2 '--dry-penalty-last-n: -2 is out of range' run -m "$model" -p x --dry-penalty-last-n -2
for command in "run -p x" chat bench serve; do
    refuses 2 '--dry-sequence-breaker: the text is empty, expected 1 to 64 bytes, or none' $command -m "$model" --dry-sequence-breaker a --dry-sequence-breaker ''
    refuses 2 '--dry-sequence-breaker: the text is longer than 64 bytes' $command -m "$model" --dry-sequence-breaker "$(printf 'x%.0s' {1..65})"
done
refuses 2 "--seed: '-2' is not" run -m "$model" -p x --seed -2
refuses 2 '--seed: 18446744073709551616 is out of range' run -m "$model" -p x --seed 18446744073709551616
refuses 2 "--kv: 'q4' is not one of" run -m "$model" -p x --kv q4
refuses 2 "--device: 'tpu' is not one of" run -m "$model" -p x --device tpu
refuses 2 "--quiet: takes no value" run -m "$model" -p x --quiet=1
refuses 2 "unexpected argument 'y'" run -m "$model" -p x y
refuses 2 'only one prompt' run -m "$model" -p x -f y
refuses 2 '--system: needs --chat' run -m "$model" -p x --system y
refuses 2 '--system: the conversation of --load' run -m "$model" -p x --chat --system y --load z
refuses 2 '--system: the conversation of --load' chat -m "$model" --system y --load z
refuses 2 '--stop: the text is empty' run -m "$model" -p x --stop ''
refuses 2 'nothing to measure' bench -m "$model" -p 0 -n 0
refuses 2 "--format: 'xml' is not one of" bench -m "$model" --format xml
refuses 2 '-r: 0 is out of range' bench -m "$model" -r 0
for list in '' 0 1, ,1 1,x 4097 1,-2; do
    refuses 2 "--parallel: '$list' is not a list" bench -m "$model" --parallel "$list"
done
refuses 2 '-d: --parallel measures' bench -m "$model" --parallel 1 -d 4
refuses 2 '-p: --parallel needs' bench -m "$model" --parallel 1 -p 0
refuses 2 '--temp and other sampling options: --reuse measures' bench -m "$model" --reuse 100,10 --temp 1
refuses 2 '--json-schema: at -n 0' bench -m "$model" -n 0 --json-schema x
refuses 2 '--json-whitespace: needs' bench -m "$model" --json-whitespace any
refuses 2 '--top-p: 0 is out of range' bench -m "$model" --top-p 0
refuses 1 'No such file' bench -m "$parrot" -p 8 -n 4 --json-schema "$work/none"
printf '{"type":"object","unknown":1,"minLength":{}}' >"$work/bad.json"
refuses 1 'bad.json: ' bench -m "$parrot" -p 8 -n 4 --json-schema "$work/bad.json"
printf '{"type":"object"}' >"$work/object.json"
refuses 1 'tokeni[sz]er' bench -m "$model" -p 8 -n 4 --json-schema "$work/object.json"
refuses 2 '--rate: needs --soak' bench -m "$model" --rate 1
refuses 2 '--soak: needs' bench -m "$model" --soak "$model"
refuses 2 "--reuse: '100' is not" bench -m "$model" --reuse 100
refuses 2 "--reuse: sends one request" bench -m "$model" --reuse 100,10 --parallel 2
refuses 2 "-n: --reuse needs" bench -m "$model" --reuse 100,10 -n 0 -p 8
refuses 2 "--parallel: '1,2' is not a number" bench -m "$model" --soak "$model" --parallel 1,2
printf '12 4\n5\n' >"$work/lengths"
refuses 1 'lengths:2: expected' bench -m "$model" --soak "$work/lengths" --parallel 1
refuses 2 "--prefix-cache: 'none' is not a size" bench -m "$model" --prefix-cache none
refuses 2 '-f: no text' perplexity -m "$model"
refuses 2 '-c: 1 is out of range' perplexity -m "$model" -f x -c 1
refuses 2 'give one of' tokenize -m "$model" -f x y
refuses 2 '--ids: no token ids' logits -m "$model" -o "$work/l"
refuses 2 '-o: no output' logits -m "$model" --ids 1
for ids in '' , 1, ,1 1,,2 1x -1 '1;2' 99999999999999999999 0x1 ' '; do
    refuses 2 '--ids: ' logits -m "$model" -o "$work/l" --ids "$ids"
done
refuses 2 'too few arguments' info
refuses 2 'too few arguments' quantize "$model" "$work/out.gguf"
refuses 2 "type 'q9_9': quern cannot quantise to it, expected one of f16 " quantize "$model" "$work/out.gguf" q9_9
refuses 2 "type 'q5_k': quern cannot quantise to it" quantize "$model" "$work/out.gguf" q5_k
refuses 1 "'blk.0.attn_q.weight' is nvfp4, which runs as it is" quantize "$golden/qwen3.nvfp4.gguf" "$work/out.gguf" q8_0
quern
{ [ $status -eq 2 ] && grep -q '^usage:' "$work/err"; } || fail "quern without arguments"
quern --version
{ [ $status -eq 0 ] && grep -qE '^quern [0-9]+\.[0-9]+\.[0-9]+$' "$work/out"; } || fail "quern --version"

# ---- Devices that this build has not ----
refuses 1 '--device cuda: ' run -m "$model" -p x --device cuda

# ---- Bad files ----
: >"$work/empty"
printf 'no model at all' >"$work/garbage"
printf 'GGUF\003\000\000\000\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377\377' >"$work/counts"
head -c 300 "$model" >"$work/header-cut"
head -c 400000 "$model" >"$work/data-cut"
# Changes that keep every length: an architecture, a tensor and a key that do not exist.
LC_ALL=C sed 's/qwen3/qwenX/g' "$model" >"$work/architecture"
LC_ALL=C sed 's/output_norm\.weight/output_nXrm.weight/' "$model" >"$work/tensor"
LC_ALL=C sed 's/qwen3\.block_count/qwen3.blXck_count/' "$model" >"$work/key"
for file in nowhere empty garbage counts header-cut data-cut . architecture tensor key; do
    refuses 1 "$work/$file" logits -m "$work/$file" --ids 1,2 -o "$work/l"
done
refuses 1 'qwenX.*(llama, qwen2, qwen3, qwen35)' run -m "$work/architecture" -p x
refuses 1 output_norm.weight run -m "$work/tensor" -p x
refuses 1 block_count run -m "$work/key" -p x
# Biases: one is missing; that of the keys has the name of the queries'.
LC_ALL=C sed 's/blk\.1\.attn_v\.bias/blk.1.attn_X.bias/' "$golden/qwen2.f16.gguf" >"$work/no-bias"
LC_ALL=C sed 's/blk\.0\.attn_q\.bias/blk.0.attn_X.bias/; s/blk\.0\.attn_k\.bias/blk.0.attn_q.bias/' "$golden/qwen2.f16.gguf" \
    >"$work/short-bias"
refuses 1 "tensor 'blk.1.attn_v.bias' is missing" logits -m "$work/no-bias" --ids 1 -o "$work/l"
refuses 1 "tensor 'blk.0.attn_q.bias' is \[32, 1, 1, 1\], expected \[96, 1, 1, 1\]" \
    logits -m "$work/short-bias" --ids 1 -o "$work/l"
for file in nowhere empty garbage counts header-cut data-cut .; do
    refuses 1 "$work/$file" info "$work/$file"
    refuses 1 "$work/$file" quantize "$work/$file" "$work/out.gguf" q8_0
    refuses 1 "$work/$file" tokenize -m "$work/$file" text
done
# A name in a file cannot drive the terminal.
LC_ALL=C sed 's/output_norm\.weight/output_\x1b[1m.weight/' "$model" >"$work/escape"
quern info "$work/escape"
! grep -q $'\x1b' "$work/out" "$work/err" || fail "info: an escape sequence of the file was printed"
grep -qF 'output_\x1b[1m.weight' "$work/out" || fail "info: the escaped name is missing"

# ---- Input that the model cannot take ----
refuses 1 '320' logits -m "$model" --ids 1,320 -o "$work/l"
refuses 1 '2147483647' logits -m "$model" --ids 2147483647 -o "$work/l"
refuses 1 '' logits -m "$model" --ids 1,2,3 -c 2 -o "$work/l"
refuses 1 '' run -m "$model" -p x
refuses 1 '' tokenize -m "$model" x
refuses 1 '' run -m "$parrot" -p 'more tokens than fit' -c 4
refuses 1 'prompt is empty' run -m "$parrot" -p ''
refuses 1 'nowhere' run -m "$parrot" -f "$work/nowhere"
refuses 1 '' run -m "$parrot" -f "$work"
refuses 1 'fewer than one piece' perplexity -m "$parrot" -f "$work/garbage" -c 512

# ---- Sessions that are not one, or not this model's ----
quern run -m "$parrot" -p xyz -n 3 --save "$work/session"
head -c 1000 "$work/session" >"$work/session-cut"
LC_ALL=C sed 's/quernSES/quernses/' "$work/session" >"$work/session-magic"
{ head -c 1500 "$work/session"; printf '\377'; tail -c +1502 "$work/session"; } >"$work/session-damaged"
for file in session-cut session-magic session-damaged nowhere empty garbage .; do
    refuses 1 "$work/$file" run -m "$parrot" -p x --load "$work/$file"
    refuses 1 "$work/$file" chat -m "$parrot" --load "$work/$file"
done
refuses 1 'another model' run -m "$model" -p x --load "$work/session"
refuses 1 'do not fit in a context of 4' run -m "$parrot" -p x -c 4 --load "$work/session"

# ---- Output that cannot be written ----
refuses 1 'No such file' run -m "$parrot" -p x -n 0 -q --save "$work/no/such/folder"
refuses 1 'is a directory' run -m "$parrot" -p x -n 0 -q --save "$work"
refuses 1 'No such file' logits -m "$model" --ids 1 -o "$work/no/such/folder"
refuses 1 '' logits -m "$model" --ids 1 -o "$work"
refuses 1 '' quantize "$model" "$work/no/such/folder" q8_0
refuses 1 'not a regular file' quantize "$model" /dev/null q8_0
ln -s missing "$work/dangling"
refuses 1 'symbolic link to a file that does not exist' quantize "$model" "$work/dangling" q8_0
[ -L "$work/dangling" ] || fail "quantize: the link itself was replaced"
onto_a_full_disk() {
    timeout 60 "$QN_BIN/quern" "$@" >/dev/full 2>"$work/err"
    [ $? -eq 1 ] || fail "quern $* onto a full disk: not status 1"
    grep -q 'standard output' "$work/err" || fail "quern $* onto a full disk: no reason given"
}
onto_a_full_disk run -m "$parrot" -p x
onto_a_full_disk tokenize -m "$parrot" x
onto_a_full_disk info "$model"
[ ! -e "$work/l" ] || fail "logits: a file was left behind"
[ ! -e "$work/out.gguf" ] || fail "quantize: a file was left behind"
for left in "$work"/l.* "$work"/out.gguf*; do
    [ ! -e "$left" ] || fail "a temporary file was left behind: $left"
done
finish
