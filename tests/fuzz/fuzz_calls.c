/* Grammars of tool calls with arbitrary tools, in each form: compiling, masking and stepping take bounded time, every
 * token of a mask may follow, and a text that fits as a whole fits byte by byte.
 *
 * An input is: a byte for the form and its delimiters, a byte for the request of calls, the tools and perhaps a
 * format as JSON ({"tools": [...], "format": {...}}), a zero byte, bytes that select tokens of masks. Inputs are
 * mutated as JSON trees: keywords of schemas get numbers of any size, dead alternatives and references. */
#include "grammar/grammar.h"

#include "../unit/helper_schemas.h"
#include "../unit/helper_vocab.h"

#include <stdio.h>
#include <time.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);

/* SECONDS: under ASan the worst input found takes 1.5 s alone, and twice that where processors are shared. */
enum { FLAGS = 2, N_STEPS = 24, N_MASKS = 6, SECONDS = 6, MAX_VOCAB = 512 };

static const char *const merges[] = { "Ġ Ġ",   "\" ,", "\" :", "{ \"", "} }", "a a",  "aa aa", "a b", "1 1", "Ċ Ġ",
                                      "\\ \"", "\\ u", "Ã ©",  "< /",  "Ċ <", "Ċ </", "p a",   "e r", "> Ċ", NULL };
static const struct added_token added[] = {
    { "<|end|>", 3 }, { "<tool_call>", 4 }, { "</tool_call>", 4 }, { NULL, 0 }
};
static const qn_output_form forms[] = { QN_OUTPUT_XML, QN_OUTPUT_JSON, QN_OUTPUT_LLAMA3 };
static qn_tokenizer *tokenizer;
static qn_grammar_vocab *vocabs[2 * SCHEMAS_COUNT(forms)]; /* with delimiters as text, and as tokens */
static qn_output_params outputs[2 * SCHEMAS_COUNT(forms)];

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
        .model = "gpt2", .pre = "gpt-2", .merges = merges, .added = added, .eos = 256 + 19
    };
    struct file_bytes bytes = make_vocab(&spec);
    qn_gguf *file;
    require(qn_gguf_open_memory(bytes.data, bytes.n, "fuzz", &file) == QN_OK, "the file opens");
    require(qn_tokenizer_create(file, &tokenizer) == QN_OK, "the vocabulary loads");
    require(qn_tokenizer_n_vocab(tokenizer) <= MAX_VOCAB, "masks are large enough");
    qn_gguf_close(file);
    free(bytes.data);
    for (size_t i = 0; i < SCHEMAS_COUNT(outputs); i++) {
        qn_output_params_init(&outputs[i], forms[i / 2]);
        if (i % 2)
            qn_output_find_tokens(&outputs[i], tokenizer);
        require(qn_grammar_vocab_create(tokenizer, &outputs[i], 8, &vocabs[i]) == QN_OK, "the vocabulary is prepared");
    }
}

/* ---- Inputs ---- */

typedef struct input {
    const uint8_t *flags;
    const char *json;
    size_t n_json;
    const uint8_t *choices;
    size_t n_choices;
} input;

static bool divide(const uint8_t *data, size_t size, input *in)
{
    if (size < FLAGS)
        return false;
    const uint8_t *json = data + FLAGS, *end = memchr(json, 0, size - FLAGS);
    *in = (input){ .flags = data, .json = (const char *)json, .n_json = end ? (size_t)(end - json) : size - FLAGS };
    if (end) {
        in->choices = end + 1;
        in->n_choices = size - FLAGS - in->n_json - 1;
    }
    return true;
}

/* ---- Running ---- */

static void check_mask(qn_grammar_vocab *vocab, qn_grammar_state *state, const uint32_t *mask)
{
    for (size_t t = 0; t < qn_tokenizer_n_vocab(tokenizer); t++) {
        size_t length;
        const char *bytes = qn_grammar_vocab_bytes(vocab, (qn_token)t, &length);
        if (bytes)
            require((mask[t / 32] >> (t % 32) & 1) == qn_grammar_state_accepts(state, bytes, length),
                    "a mask is its tokens");
    }
}

/* Token number `choice` of those in a mask that have bytes, or -1. */
static qn_token choose(const qn_grammar_vocab *vocab, const uint32_t *mask, size_t choice)
{
    qn_token allowed[MAX_VOCAB];
    size_t n = 0, length;
    for (size_t t = 0; t < qn_tokenizer_n_vocab(tokenizer); t++)
        if (mask[t / 32] >> (t % 32) & 1 && qn_grammar_vocab_bytes(vocab, (qn_token)t, &length))
            allowed[n++] = (qn_token)t;
    return n ? allowed[choice % n] : -1;
}

/* Writes an answer token by token. */
static void write_answer(qn_grammar_vocab *vocab, const qn_grammar *grammar, const uint8_t *choices, size_t n)
{
    qn_grammar_state *state, *whole;
    char text[N_STEPS * 64];
    size_t n_text = 0;
    if (qn_grammar_state_create(grammar, &state) != QN_OK)
        return;
    require(qn_grammar_state_clone(state, &whole) == QN_OK, "a state is copied");
    for (size_t i = 0; i < n && i < N_STEPS; i++) {
        uint32_t mask[(MAX_VOCAB + 31) / 32];
        size_t length;
        if (qn_grammar_mask(vocab, state, mask) != QN_OK)
            break;
        if (i < N_MASKS)
            check_mask(vocab, state, mask);
        const qn_token token = choose(vocab, mask, choices[i]);
        const char *bytes = token < 0 ? NULL : qn_grammar_vocab_bytes(vocab, token, &length);
        if (!bytes) {
            require(qn_grammar_state_is_finished(state), "where nothing follows it may end");
            break;
        }
        require(qn_grammar_state_advance(state, bytes, length), "what a mask has may follow");
        if (n_text + length < sizeof text)
            memcpy(text + n_text, bytes, length);
        n_text += length;
    }
    if (n_text && n_text < sizeof text)
        require(qn_grammar_state_advance(whole, text, n_text), "the whole fits as its tokens did");
    qn_grammar_state_free(state);
    qn_grammar_state_free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in;
    qn_grammar *grammar;
    if (!tokenizer)
        set_up();
    if (size > 16384 || !divide(data, size, &in))
        return 0;
    json_t *json = json_loadb(in.json, in.n_json, JSON_ALLOW_NUL, NULL);
    if (!json_is_array(json_object_get(json, "tools"))) {
        json_decref(json);
        return 0;
    }
    const size_t which = in.flags[0] % SCHEMAS_COUNT(outputs);
    const qn_grammar_calls calls = { .output = &outputs[which],
                                     .tools = json_object_get(json, "tools"),
                                     .name = in.flags[1] & 8 ? "f" : NULL,
                                     .is_lazy = in.flags[1] & 1,
                                     .is_single = in.flags[1] & 2,
                                     .format = in.flags[1] & 1 ? NULL : json_object_get(json, "format"),
                                     .is_format_strict = in.flags[1] & 4 };
    const double begin = now();
    if (qn_grammar_from_calls(&calls, &grammar) == QN_OK)
        write_answer(vocabs[which], grammar, in.choices, in.n_choices);
    else
        require(!grammar, "an error leaves no grammar");
    require(now() - begin < SECONDS, "it ends soon");
    qn_grammar_free(grammar);
    json_decref(json);
    return 0;
}

/* ---- Mutation ---- */

/* Tools in the form of a chat, with a random schema. */
static json_t *draw_tools(void)
{
    return json_pack("{s:[{s:s,s:{s:s,s:o}}]}", "tools", "type", "function", "function", "name", "f", "parameters",
                     draw_parameters());
}

static void mutate_tree(json_t **json)
{
    if (!json_is_object(*json) || draw(200) == 0) {
        json_decref(*json);
        *json = draw_tools();
    }
    for (size_t k = draw(3) + 1; k > 0; k--)
        (void)mutate_json(*json);
    if (draw(60) == 0)
        json_object_set_new(*json, "format", draw_schema(2));
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    input in;
    schemas_state = seed;
    if (max_size < 64 || draw(16) == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    if (!divide(data, size, &in))
        in = (input){ .flags = (const uint8_t *)"\0\0", .json = "" };
    json_t *json = json_loadb(in.json, in.n_json, JSON_ALLOW_NUL, NULL);
    mutate_tree(&json);
    char *text = json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(json);
    const size_t n = text ? strlen(text) : 0;
    if (!text || FLAGS + n + 1 > max_size) {
        free(text);
        return LLVMFuzzerMutate(data, size, max_size);
    }
    uint8_t flags[FLAGS] = { in.flags[0], in.flags[1] }, choices[N_STEPS];
    size_t n_choices = in.n_choices < N_STEPS ? in.n_choices : N_STEPS;
    if (n_choices)
        memcpy(choices, in.choices, n_choices);
    if (draw(4) == 0)
        flags[draw(FLAGS)] = (uint8_t)draw(256);
    for (size_t k = draw(4); k > 0; k--) {
        const size_t at = draw(N_STEPS);
        n_choices += at == n_choices;
        if (at < n_choices)
            choices[at] = (uint8_t)draw(256);
    }
    n_choices = n_choices < max_size - FLAGS - n - 1 ? n_choices : max_size - FLAGS - n - 1;
    memcpy(data, flags, FLAGS);
    memcpy(data + FLAGS, text, n + 1);
    memcpy(data + FLAGS + n + 1, choices, n_choices);
    free(text);
    return FLAGS + n + 1 + n_choices;
}
