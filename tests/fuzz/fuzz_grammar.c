/* src/grammar/ with arbitrary sources and texts: compiling and masking take bounded time, a text fits byte by byte
 * exactly if it fits as a whole, every token of a mask fits, and a state that can continue does.
 *
 * An input is: a byte that selects the kind of source, the source, a zero byte, a text to try. */
#include "grammar/grammar.h"

#include "../unit/helper_vocab.h"

#include <stdio.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_STEPS = 8, SECONDS = 2 };

static const char *const merges[] = { "Ġ Ġ", "\" ,", "\" :", "{ \"",  "} }",  "a a", "aa aa",
                                      "a b", "1 1",  "Ċ Ġ",  "\\ \"", "\\ u", "Ã ©", NULL };
static const struct added_token added[] = { { "<|end|>", 3 }, { NULL, 0 } };
static qn_grammar_vocab *vocab;
static size_t n_vocab;

static void require(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "not so: %s (%s)\n", what, qn_error_text());
        abort();
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void set_up(void)
{
    const struct vocab_spec spec = {
        .model = "gpt2", .pre = "gpt-2", .merges = merges, .added = added, .eos = 256 + 13
    };
    struct file_bytes bytes = make_vocab(&spec);
    qn_gguf *file;
    qn_tokenizer *tokenizer;
    require(qn_gguf_open_memory(bytes.data, bytes.n, "fuzz", &file) == QN_OK, "the file opens");
    require(qn_tokenizer_create(file, &tokenizer) == QN_OK, "the vocabulary loads");
    require(qn_grammar_vocab_create(tokenizer, NULL, 8, &vocab) == QN_OK, "the vocabulary is prepared");
    n_vocab = qn_tokenizer_n_vocab(tokenizer);
    qn_tokenizer_free(tokenizer);
    qn_gguf_close(file);
    free(bytes.data);
}

static qn_status compile(uint8_t kind, const char *source, size_t n, qn_grammar **grammar)
{
    const qn_grammar_options options = {
        .strict = kind & 8,
        .style = { .closed = kind & 16, .space = (qn_json_space)(kind >> 6), .order = (qn_json_order)(kind >> 5 & 1) }
    };
    *grammar = NULL;
    if (kind % 4 == 1)
        return qn_grammar_from_regex(source, n, grammar);
    if (kind % 4 == 2)
        return qn_grammar_from_gbnf(source, n, grammar);
    json_t *json = json_loadb(source, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    qn_status status = QN_ERR_INVALID;
    if (json && kind % 4 == 0)
        status = qn_grammar_from_schema(json, &options, grammar);
    if (json_is_array(json) && kind % 4 == 3) {
        const char *choices[64];
        size_t count = 0;
        for (size_t i = 0; i < json_array_size(json) && count < 64; i++)
            if (json_is_string(json_array_get(json, i)))
                choices[count++] = json_string_value(json_array_get(json, i));
        status = qn_grammar_from_choices(choices, count, grammar);
    }
    json_decref(json);
    return status;
}

static void check_mask(qn_grammar_state *state)
{
    uint32_t mask[16];
    require(n_vocab <= 512, "the mask is large enough");
    if (qn_grammar_mask(vocab, state, mask) != QN_OK)
        return;
    for (size_t t = 0; t < n_vocab; t++) {
        size_t length;
        const char *bytes = qn_grammar_vocab_bytes(vocab, (qn_token)t, &length);
        if (bytes)
            require((mask[t / 32] >> (t % 32) & 1) == qn_grammar_state_accepts(state, bytes, length),
                    "a mask is its tokens");
    }
}

static void try_text(const qn_grammar *grammar, const char *text, size_t n)
{
    qn_grammar_state *state, *whole;
    if (qn_grammar_state_create(grammar, &state) != QN_OK)
        return;
    require(qn_grammar_state_clone(state, &whole) == QN_OK, "a state is copied");
    bool follows = true;
    for (size_t i = 0; i < n && follows; i++) {
        if (i < N_STEPS)
            check_mask(state);
        follows = qn_grammar_state_advance(state, text + i, 1);
    }
    if (n <= 256)
        require(qn_grammar_state_accepts(whole, text, n) == follows, "bytes and the whole agree");
    qn_grammar_state_free(state);
    qn_grammar_state_free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_grammar *grammar;
    if (!vocab)
        set_up();
    if (!size || size > 8192)
        return 0;
    const char *source = (const char *)data + 1, *end = memchr(source, 0, size - 1);
    const size_t n = end ? (size_t)(end - source) : size - 1;
    const double begin = now();
    if (compile(data[0], source, n, &grammar) == QN_OK)
        try_text(grammar, end ? end + 1 : "", end ? size - n - 2 : 0);
    require(now() - begin < SECONDS, "it ends soon");
    qn_grammar_free(grammar);
    return 0;
}
