#!/usr/bin/env bash
# quern perplexity --kl-divergence and --save-logits: statistics and files against those of divergence.py, from the logits of `quern logits`
# in float64; hostile files; what is refused.
. "$(dirname "$0")/lib_cli.sh"
command -v python3 >/dev/null || exit 77
export PYTHONDONTWRITEBYTECODE=1
demo=$QN_SOURCE_DIR/models/quern-demo.gguf
here=$(dirname "$0")
python3 "$here/divergence.py" "$QN_BIN/quern" "$demo" "$golden/demo.txt" "$work" || fail "statistics or files"

# Hostile files are one line of error, whatever they are.
saved=$work/saved
hostile() {
    python3 "$here/divergence.py" --damage "$1" "$saved" "$work/damaged"
    refuses 1 "$2" perplexity "$demo" --kl-divergence "$work/damaged"
}
hostile short 'bytes, expected'
hostile long 'bytes, expected'
hostile head 'the file ends early'
hostile ctx 'pieces of 2147483647 tokens'
hostile small-ctx 'pieces of 2 tokens, expected at least 1 of 3'
hostile chunks 'bytes, expected'
hostile no-chunks ': 0 pieces'
hostile negative ': -1 pieces'
hostile vocab 'log probabilities of 4097 tokens, but the model has 4096'
hostile token 'token 3 is 4096, expected 0 to 4095'
hostile minus 'token 3 is -1'
hostile nan 'no log probabilities'
hostile infinite 'no log probabilities'
hostile positive 'no log probabilities'

# Usage.
text=$golden/demo.txt
refuses 2 '--compare: needs --kl-divergence' perplexity "$demo" -f "$text" --compare "$demo"
refuses 2 '--kv: several formats need --kl-divergence' perplexity "$demo" -f "$text" --kv f16,aura4
refuses 2 "--kv: .*aura5" perplexity "$demo" -f "$text" --kv aura5
refuses 2 "--kv: " perplexity "$demo" --kl-divergence "$saved" --kv f16,
refuses 2 "--kv: .*longer than" perplexity "$demo" --kl-divergence "$saved" --kv f16,aaaaaaaaaaaaaaaaaaaaaaaa
refuses 2 '--kv: more than 8' perplexity "$demo" --kl-divergence "$saved" --kv f16,f16,f16,f16,f16,f16,f16,f16,f16
refuses 2 '-f: no text given, which a model' perplexity "$demo" --kl-divergence "$demo"
refuses 2 '-f: not with a file' perplexity "$demo" --kl-divergence "$saved" -f "$text"
refuses 2 '--save-logits: not with' perplexity "$demo" --kl-divergence "$saved" --save-logits "$work/other"
refuses 1 '-c 32: .* pieces of 160 tokens' perplexity "$demo" --kl-divergence "$saved" -c 32
refuses 1 "tokens in the vocabulary" perplexity "$demo" --kl-divergence "$parrot" -f "$text"
refuses 1 "tokens in the vocabulary" perplexity "$demo" --kl-divergence "$saved" --compare "$parrot"
refuses 1 'not replaced' perplexity "$demo" -f "$text" --save-logits "$here/cli_divergence.sh"
refuses 1 'it is the model itself' perplexity "$demo" -f "$text" --save-logits "$demo"
finish
