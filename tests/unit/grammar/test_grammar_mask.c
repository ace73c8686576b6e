/* Masks against every token of a vocabulary alone, walks by masks, matches of requests with their triggers, and the
 * distribution of tokens that are checked before they are masked. */
#include "helper_random.h"
#include "helper_sanitizers.h"
#include "helper_vocab.h"
#include "helper_time.h"

#include "engine/internal.h"
#include "grammar/automaton.h"

#include <math.h>
#include <pthread.h>

enum { N_MADE = 20000, END_TOKEN = 256, OTHER_CONTROL = 257, MAX_WORDS = (N_MADE + 31) / 32 };

struct vocabulary {
    qn_tokenizer *tokenizer;
    qn_grammar_vocab *vocab;
    size_t n;
};

static struct vocabulary made, demo;

/* Random pieces of what grammars are about, some of them twice, others no UTF-8. */
static void make_vocabulary(void)
{
    static const char *const parts[] = {
        "\"",       "\\",       "{",    "}",    "[",        "]", ",", ":", " ", "\n", "\t",
        "a",        "b",        "name", "true", "null",     "1", "0", ".", "-", "e",  "u",
        "\\u00",    "\\ud83d",  "\xc3", "\xa9", "\xc3\xa9", "x", "+", "(", ")", "@",  "\xe3\x80\x80",
        "\xc2\xa0", "\xe3\x80", "Z"
    };
    static struct added_token added[N_MADE];
    static char texts[N_MADE][256];
    added[0] = (struct added_token){ "<|end|>", 3 };
    added[1] = (struct added_token){ "<|other|>", 3 };
    for (size_t i = 2; i + 257 < N_MADE; i++) {
        size_t n = 0;
        const size_t n_parts = 1 + random_u32() % (i % 50 ? 4 : 20);
        for (size_t k = 0; k < n_parts; k++)
            for (const char *p = parts[random_u32() % (COUNT(parts))]; *p; p++)
                n += spell_byte((uint8_t)*p, texts[i] + n);
        texts[i][n] = 0;
        added[i] = (struct added_token){ texts[i], 1 };
    }
    const struct vocab_spec spec = { .model = "gpt2", .pre = "gpt-2", .added = added, .eos = END_TOKEN };
    struct file_bytes bytes = make_vocab(&spec);
    qn_gguf *file;
    assert_ok(qn_gguf_open_memory(bytes.data, bytes.n, "vocabulary", &file));
    assert_ok(qn_tokenizer_create(file, &made.tokenizer));
    qn_gguf_close(file);
    free(bytes.data);
}

static int set_up(void)
{
    qn_gguf *file;
    make_vocabulary();
    assert_ok(qn_gguf_open(QN_SOURCE_DIR "/models/quern-demo.gguf", &file));
    assert_ok(qn_tokenizer_create(file, &demo.tokenizer));
    qn_gguf_close(file);
    assert_ok(qn_grammar_vocab_create(made.tokenizer, NULL, 0, &made.vocab));
    assert_ok(qn_grammar_vocab_create(demo.tokenizer, NULL, 64, &demo.vocab));
    made.n = qn_tokenizer_n_vocab(made.tokenizer);
    demo.n = qn_tokenizer_n_vocab(demo.tokenizer);
    return made.n > MAX_WORDS * 32 || demo.n > MAX_WORDS * 32;
}

static int tear_down(void)
{
    qn_grammar_vocab_free(made.vocab);
    qn_grammar_vocab_free(demo.vocab);
    qn_tokenizer_free(made.tokenizer);
    qn_tokenizer_free(demo.tokenizer);
    return 0;
}

static bool is_set(const uint32_t *mask, size_t token)
{
    return mask[token / 32] >> (token % 32) & 1;
}

static qn_token token_of(const struct vocabulary *v, const char *text)
{
    for (size_t t = 0; t < v->n; t++) {
        size_t length;
        const char *bytes = qn_grammar_vocab_bytes(v->vocab, (qn_token)t, &length);
        if (bytes && length == strlen(text) && !memcmp(bytes, text, length))
            return (qn_token)t;
    }
    fail_msg("no token '%s'", text);
    return -1;
}

/* ---- Masks ---- */

static const char *const schemas[] = {
    "true",
    "{\"type\":\"string\"}",
    "{\"type\":\"string\",\"minLength\":2,\"maxLength\":5}",
    "{\"type\":\"string\",\"maxLength\":19}",
    "{\"type\":\"string\",\"pattern\":\"^[a-z\xc3\xa9]{1,9}( \\\\w+)*$\"}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":2},\"maxItems\":3}",
    "{\"properties\":{\"name\":{\"type\":\"string\"},\"nameb\":{\"enum\":[\"ab\",\"a\",1]},\"a\":{\"type\":\"number\"}}"
    ","
    "\"required\":[\"a\"]}",
    "{\"properties\":{\"\xc3\xa9\":{},\"\xc3\xa9"
    "a\":{\"const\":\"\xc3\xa9\"},\"x\\\"\":{}}}",
    "{\"properties\":{\"name\":{\"type\":\"boolean\"},\"a\":{\"type\":\"null\"}},\"additionalProperties\":false,"
    "\"required\":["
    "\"name\"]}",
    "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":3},{\"enum\":[\"name\",\"nametrue\"]},{\"type\":\"integer\","
    "\"minimum\":-"
    "10}]}",
    "{\"type\":\"object\",\"maxProperties\":2,\"additionalProperties\":{\"type\":\"string\",\"minLength\":1}}",
    "{\"anyOf\":[{\"properties\":{\"name\":{\"const\":\"a\"},\"b\":{\"type\":\"string\"}},\"required\":[\"name\"]},"
    "{\"properties\":{\"name\":{\"const\":\"b\"},\"b\":{\"type\":\"string\",\"minLength\":3}},\"required\":[\"name\"]}]"
    "}",
    "{\"anyOf\":[{\"type\":\"string\",\"minLength\":3},{\"type\":\"string\"}]}",
    "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"string\",\"minLength\":9},{\"type\":\"string\",\"maxLength\":4}]}",
    "{\"type\":\"string\",\"pattern\":\"^[^<>]*$\"}",
    "{\"type\":\"string\",\"pattern\":\"^( ?[a-z]{1,6})+[.!]?$\",\"maxLength\":14}",
    "{\"type\":\"string\",\"pattern\":\"^[^@\\\\s]+@[^@\\\\s]+$\"}",
    "{\"type\":\"string\",\"pattern\":\"^[^:,]{1,6}(,[^:,]{1,6})*$\"}",
    "{\"anyOf\":[{\"type\":\"string\",\"pattern\":\"^[^()]*$\"},{\"type\":\"string\",\"pattern\":\"^\\\\S{2,}$\"},{"
    "\"type\":"
    "\"array\"}]}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":40}}",
};
static const char *const regexes[] = { "(a|b)*name[^x]*",
                                       ".{3,6}",
                                       "[a-b]+|\"\\\\*|true",
                                       "[a-z]{2,4}",
                                       "( ?[A-Za-z]{1,5}){1,4}",
                                       ".*",
                                       ".{1,20}\"\n",
                                       "[^a-f\\u0080-\\u07ff]+",
                                       "[^{}\\s]+|[^:\"]*\"",
                                       "([^+]{1,4}\\+?)*",
                                       "[^-]*-|[^,@]+@",
                                       "[0-9a-e]{2,8}(-[a-z]+)*",
                                       "\\S+( \\S+)*",
                                       "[^\\u3000-\\u30ff]*x?",
                                       "[\\u0080-\\u07ff\\ue000-\\uffff]*\\.?",
                                       "[\\u00a0\\u3000 ]+|(x|.{2})*\n",
                                       "[\\t\n -~]*\\u00e9?",
                                       "([^\\u00a0]|\\u00a0+a)*",
                                       "(name|[a-z ]*[A-Z]|.*1)*" };
static const char *const gbnfs[] = {
    "root ::= e\ne ::= t (\"+\" t)*\nt ::= [0-9]+ | \"(\" e \")\" | \"\\\"\" ([^\"\\\\] | \"\\\\\" .)* \"\\\"\"",
    "root ::= id (\" \" id)* \"=\" id\nid ::= [a-z]+ rest\nrest ::= \"\" | \"[\" id \"]\"",
    "root ::= [a-z]{1,2} r\nr ::= \"ing\" | \"me\" | \"(\" r \")\"",
    "root ::= (a | b)* \"x\"\na ::= \"(\" root \")\" | \"a\"\nb ::= a? a? \"name\" a*",
};
/* Parameters of a tool, in the form xml. */
static const char *const calls[] = {
    "{\"properties\":{\"name\":{\"type\":\"string\"},\"nameb\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":5},"
    "\"a\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":4},{\"type\":\"null\"},{\"type\":\"integer\"}]}}}",
    "{\"properties\":{\"b\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":3000}},\"required\":[\"b\"]}",
    "{\"additionalProperties\":{\"type\":\"string\",\"pattern\":\"^[a-z]*$\"}}",
    "{\"anyOf\":[{\"properties\":{\"name\":{\"enum\":[\"a\",\"true\"]}}},{\"properties\":{\"a\":{}},"
    "\"additionalProperties\":"
    "true}]}",
    "{\"patternProperties\":{\"^n\":{\"type\":\"boolean\"},\"e$\":{\"const\":true}},\"additionalProperties\":{\"type\":"
    "\"array\"}}",
};
/* Where their walks begin. */
static const char *const call_begins[] = { "<tool_call>\n<function=f>\n<parameter=a>\n",
                                           "<tool_call>\n<function=f>\n<parameter=b>\n",
                                           "<tool_call>\n<function=f>\n<parameter=nam",
                                           "<tool_call>\n<function=f>\n<parameter=", "<tool_call>\n<function=f>\n" };
enum {
    N_CALLS = COUNT(calls),
    N_STYLES = 4,
    N_PLAIN = COUNT(schemas),
    N_SCHEMAS = N_STYLES * N_PLAIN, /* each in every style of white space; properties in any order where that is any */
    N_REGEXES = COUNT(regexes),
    N_GBNFS = COUNT(gbnfs)
};

static qn_grammar *compile(size_t which)
{
    qn_grammar *grammar = NULL;
    if (which < N_SCHEMAS) {
        const qn_json_space space = (qn_json_space)(which / N_PLAIN);
        const qn_grammar_options options = {
            .style = { .space = space, .order = space == QN_JSON_SPACE_ANY ? QN_JSON_ORDER_ANY : QN_JSON_ORDER_SCHEMA }
        };
        json_t *schema = json_loads(schemas[which % N_PLAIN], JSON_DECODE_ANY, NULL);
        assert_non_null(schema);
        assert_ok(qn_grammar_from_schema(schema, &options, &grammar));
        json_decref(schema);
    } else if (which < N_SCHEMAS + N_REGEXES) {
        assert_ok(qn_grammar_from_regex(regexes[which - N_SCHEMAS], strlen(regexes[which - N_SCHEMAS]), &grammar));
    } else if (which >= N_SCHEMAS + N_REGEXES + N_GBNFS) {
        qn_output_params output;
        json_t *tools = json_pack("[{s:s,s:o}]", "name", "f", "parameters",
                                  json_loads(calls[which - N_SCHEMAS - N_REGEXES - N_GBNFS], 0, NULL));
        assert_non_null(tools);
        qn_output_params_init(&output, QN_OUTPUT_XML);
        assert_ok(qn_grammar_from_calls(&(qn_grammar_calls){ .output = &output, .tools = tools }, &grammar));
        json_decref(tools);
    } else {
        const char *text = gbnfs[which - N_SCHEMAS - N_REGEXES];
        assert_ok(qn_grammar_from_gbnf(text, strlen(text), &grammar));
    }
    return grammar;
}

/* Compares a mask with each token alone. Returns how many of its tokens have bytes. */
static size_t check_mask(const struct vocabulary *v, qn_grammar_state *state, const uint32_t *mask)
{
    size_t n = 0;
    for (size_t t = 0; t < v->n; t++) {
        size_t length;
        const char *bytes = qn_grammar_vocab_bytes(v->vocab, (qn_token)t, &length);
        const bool expected =
            bytes ? qn_grammar_state_accepts(state, bytes, length)
                  : qn_tokenizer_is_eog(v->tokenizer, (int32_t)t) && qn_grammar_state_is_finished(state);
        if (is_set(mask, t) != expected)
            fail_msg("token %zu, '%.*s': %d in the mask, %d alone", t, (int)length, bytes ? bytes : "", is_set(mask, t),
                     expected);
        n += bytes && expected;
    }
    return n;
}

static void check_walks(const struct vocabulary *v, size_t which, int n_walks, int n_steps)
{
    static uint32_t mask[MAX_WORDS], again[MAX_WORDS];
    qn_grammar *grammar = compile(which);
    label("grammar %zu", which);
    for (int walk = 0; walk < n_walks; walk++) {
        char text[8192] = "";
        size_t n = 0, length;
        qn_grammar_state *state;
        assert_ok(qn_grammar_state_create(grammar, &state));
        if (which >= N_SCHEMAS + N_REGEXES + N_GBNFS && walk % 2 == 0) {
            const char *begin = call_begins[which - N_SCHEMAS - N_REGEXES - N_GBNFS];
            (void)qn_grammar_state_advance(state, begin, strlen(begin));
        }
        /* With more alternatives a token may need more than there may be, or more steps than it has. */
        for (int step = 0; step < n_steps && state->n_configs < QN_GRAMMAR_THREADS / 4; step++) {
            label("after %s", text);
            assert_ok(qn_grammar_mask(v->vocab, state, mask));
            const size_t n_allowed = check_mask(v, state, mask);
            assert_ok(qn_grammar_mask(v->vocab, state, again));
            assert_memory_equal(mask, again, (v->n + 31) / 32 * sizeof *mask);
            assert_true(n_allowed || qn_grammar_state_is_finished(state));
            if (!n_allowed)
                break;
            size_t pick = random_u32() % n_allowed, token = 0;
            for (;; token++)
                if (is_set(mask, token) && qn_grammar_vocab_bytes(v->vocab, (qn_token)token, &length) && !pick--)
                    break;
            const char *bytes = qn_grammar_vocab_bytes(v->vocab, (qn_token)token, &length);
            assert_true(qn_grammar_state_advance(state, bytes, length));
            memcpy(text + n, bytes, length);
            text[n += length] = 0;
        }
        qn_grammar_state_free(state);
    }
    qn_grammar_free(grammar);
}

TEST(test_made_vocabulary)
{
    for (size_t i = 0; i < N_SCHEMAS + N_REGEXES + N_GBNFS + N_CALLS; i++)
        check_walks(&made, i, QN_TEST_SANITIZED ? 1 : 2, 12);
}

TEST(test_demo_vocabulary)
{
    for (size_t i = 0; i < N_SCHEMAS + N_REGEXES + N_GBNFS + N_CALLS; i++)
        check_walks(&demo, i, QN_TEST_SANITIZED ? 1 : 4, 12);
}

static qn_grammar *from_schema(const char *text)
{
    qn_grammar *grammar;
    json_t *schema = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(schema);
    assert_ok(qn_grammar_from_schema(schema, NULL, &grammar));
    json_decref(schema);
    return grammar;
}

/* The most steps of a mask on the way through a text, a byte at a time. */
static uint64_t count_steps(const qn_grammar *grammar, const char *text)
{
    static uint32_t mask[MAX_WORDS];
    qn_grammar_state *state;
    uint64_t most = 0;
    assert_ok(qn_grammar_state_create(grammar, &state));
    for (size_t i = 0;; i++) {
        qn_state_begin(state, QN_GRAMMAR_MASK_STEPS);
        assert_ok(qn_grammar_mask(made.vocab, state, mask));
        most = most > state->steps ? most : state->steps;
        if (!text[i])
            break;
        assert_true(qn_grammar_state_advance(state, text + i, 1));
    }
    qn_grammar_state_free(state);
    return most;
}

/* Masks of texts with a number of characters visit a small part of the vocabulary. */
TEST(test_steps)
{
    static const struct {
        const char *schema, *regex, *text;
        uint64_t most;
    } cases[] = {
        { NULL, ".{1,80}", "some text \xc3\xa9 of words", 9000 },
        { NULL, "[^\"]{1,80}", "some text of words", 10000 },
        { NULL, "(.|\n){1,200}", "some text of words", 13000 },
        { "{\"type\":\"string\",\"pattern\":\"^.{1,80}$\"}", NULL, "\"some text of words", 14000 },
        { "{\"type\":\"string\",\"pattern\":\"^[^<>]{2,90}$\"}", NULL, "\"some text of words", 18000 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_grammar *grammar;
        label("case %zu", i);
        if (cases[i].regex)
            assert_ok(qn_grammar_from_regex(cases[i].regex, strlen(cases[i].regex), &grammar));
        else
            grammar = from_schema(cases[i].schema);
        const uint64_t steps = count_steps(grammar, cases[i].text);
        if (steps > cases[i].most)
            fail_msg("%llu steps, at most %llu", (unsigned long long)steps, (unsigned long long)cases[i].most);
        qn_grammar_free(grammar);
    }
}

/* Threads share a vocabulary and its cache. */
static void *take_masks(void *which)
{
    static const char text[] = "{\"name\": [1, true, null, \"a b\"], \"b\": {}}";
    qn_grammar *grammar = which;
    qn_grammar_state *state;
    uint32_t *mask = calloc(MAX_WORDS, sizeof *mask);
    bool is_right = mask && qn_grammar_state_create(grammar, &state) == QN_OK;
    for (size_t i = 0; is_right && text[i]; i++) {
        is_right = qn_grammar_mask(demo.vocab, state, mask) == QN_OK &&
                   is_set(mask, (size_t)token_of(&demo, "\"")) == qn_grammar_state_accepts(state, "\"", 1);
        is_right &= qn_grammar_state_advance(state, text + i, 1);
    }
    if (mask)
        qn_grammar_state_free(state);
    free(mask);
    return is_right ? which : NULL;
}

TEST(test_threads)
{
    pthread_t threads[4];
    qn_grammar *grammar;
    assert_ok(qn_grammar_from_json(true, (qn_json_style){ 0 }, &grammar));
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_masks, grammar), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_ptr_equal(result, grammar);
    }
    qn_grammar_free(grammar);
}

/* ---- Matches ---- */

/* Appends a token per byte. */
static size_t append(qn_token *answer, size_t n, const char *text)
{
    for (; *text; text++)
        answer[n++] = (uint8_t)*text;
    return n;
}

/* Both callbacks for every token. */
static void check_match(qn_grammar_match *match, const qn_token *answer, size_t n)
{
    static uint32_t mask[MAX_WORDS];
    memset(mask, 0, sizeof mask);
    assert_ok(qn_grammar_match_mask(match, answer, n, mask));
    for (size_t t = 0; t < made.n; t++)
        assert_int_equal(qn_grammar_match_accepts(match, answer, n, (qn_token)t), is_set(mask, t));
}

TEST(test_match)
{
    const char *const choices[] = { "name", "a" };
    qn_grammar *grammar;
    qn_grammar_match *match;
    qn_token answer[64];
    assert_ok(qn_grammar_from_choices(choices, 2, &grammar));
    assert_ok(qn_grammar_match_create(made.vocab, grammar, NULL, &match));
    check_match(match, answer, 0);
    assert_false(qn_grammar_match_is_finished(match));
    assert_false(qn_grammar_match_accepts(match, answer, 0, END_TOKEN));
    assert_true(qn_grammar_match_accepts(match, answer, 0, token_of(&made, "name")));
    answer[0] = 'n';
    check_match(match, answer, 1);
    assert_false(qn_grammar_match_accepts(match, answer, 1, 'b'));
    size_t n = append(answer, 1, "ame");
    check_match(match, answer, n);
    assert_true(qn_grammar_match_is_finished(match));
    assert_true(qn_grammar_match_accepts(match, answer, n, END_TOKEN));
    assert_false(qn_grammar_match_accepts(match, answer, n, OTHER_CONTROL));
    answer[n++] = END_TOKEN;
    check_match(match, answer, n);
    answer[n++] = 'x'; /* against the contract: nothing follows */
    assert_false(qn_grammar_match_accepts(match, answer, n, END_TOKEN));
    assert_false(qn_grammar_match_is_finished(match));
    qn_grammar_match_free(match);
    qn_grammar_free(grammar);
}

TEST(test_triggers)
{
    qn_grammar *grammar;
    qn_grammar_match *match;
    qn_token answer[64];
    assert_ok(qn_grammar_from_regex("1+[}]", 5, &grammar));
    const qn_grammar_start after_text = { .triggers = { { "aab", 3, -1 } }, .n_triggers = 1, .opening_token = -1 };
    assert_ok(qn_grammar_match_create(made.vocab, grammar, &after_text, &match));
    check_match(match, answer, 0);
    assert_true(qn_grammar_match_accepts(match, answer, 0, END_TOKEN));
    size_t n = append(answer, 0, "x[aa"); /* one more a, and the trigger goes on with its last two */
    check_match(match, answer, n);
    n = append(answer, n, "a");
    check_match(match, answer, n);
    assert_true(qn_grammar_match_accepts(match, answer, n, 'b'));
    assert_true(qn_grammar_match_accepts(match, answer, n, token_of(&made, "a")));
    assert_false(qn_grammar_match_accepts(match, answer, n, token_of(&made, "b\"")));
    assert_true(qn_grammar_match_accepts(match, answer, n, token_of(&made, "b1")));
    assert_true(qn_grammar_match_is_finished(match));
    n = append(answer, n, "b");
    check_match(match, answer, n);
    assert_false(qn_grammar_match_is_finished(match));
    n = append(answer, n, "11}");
    check_match(match, answer, n);
    assert_true(qn_grammar_match_is_finished(match));
    qn_grammar_match_free(match);

    const qn_grammar_start after_token = { .triggers = { { .token = OTHER_CONTROL } },
                                           .n_triggers = 1,
                                           .opening_token = -1 };
    assert_ok(qn_grammar_match_create(made.vocab, grammar, &after_token, &match));
    n = append(answer, 0, "{");
    check_match(match, answer, n);
    assert_true(qn_grammar_match_accepts(match, answer, n, OTHER_CONTROL));
    answer[n++] = OTHER_CONTROL;
    check_match(match, answer, n);
    assert_false(qn_grammar_match_accepts(match, answer, n, '{'));
    assert_true(qn_grammar_match_accepts(match, answer, n, '1'));
    qn_grammar_match_free(match);

    /* Free text only behind the opening token. */
    const qn_grammar_start optional = { .triggers = { { .token = OTHER_CONTROL } },
                                        .n_triggers = 1,
                                        .opening_token = '{' };
    for (int opens = 0; opens < 2; opens++) {
        label("opens %d", opens);
        assert_ok(qn_grammar_match_create(made.vocab, grammar, &optional, &match));
        check_match(match, answer, 0);
        assert_true(qn_grammar_match_accepts(match, answer, 0, '{'));
        assert_true(qn_grammar_match_accepts(match, answer, 0, '1'));
        assert_false(qn_grammar_match_accepts(match, answer, 0, 'x'));
        n = append(answer, 0, opens ? "{" : "1");
        check_match(match, answer, n);
        assert_int_equal(qn_grammar_match_accepts(match, answer, n, '{'), opens);
        assert_true(qn_grammar_match_accepts(match, answer, n, '1'));
        if (opens)
            answer[n++] = OTHER_CONTROL;
        check_match(match, answer, n);
        assert_false(qn_grammar_match_accepts(match, answer, n, '{'));
        qn_grammar_match_free(match);
    }

    char longest[300];
    memset(longest, 'a', sizeof longest);
    const qn_grammar_start too_long = { .triggers = { { longest, sizeof longest, -1 } },
                                        .n_triggers = 1,
                                        .opening_token = -1 };
    assert_fails(qn_grammar_match_create(made.vocab, grammar, &too_long, &match), QN_ERR_INVALID,
                 "a trigger of 300 bytes, at most 255");
    qn_grammar_free(grammar);
}

/* ---- Costs ---- */

/* A mask takes some milliseconds of a CPU at most: so many times the time of one in which the whole vocabulary is
 * walked. */
enum { MOST_WALKS = QN_TEST_SANITIZED ? 100 : 16, N_OPTIONAL = 300 };

static const char walked[] = "root ::= ( [^x] | x )* \nx ::= \"x\" ([a-z] x)?";

/* The shortest of some masks behind a text. */
static double time_mask(const char *gbnf, const char *text, qn_status expected)
{
    static uint32_t mask[MAX_WORDS];
    qn_grammar *grammar;
    qn_grammar_state *state;
    double least = INFINITY;
    label("%.40s after '%s'", gbnf, text);
    assert_ok(qn_grammar_from_gbnf(gbnf, strlen(gbnf), &grammar));
    assert_ok(qn_grammar_state_create(grammar, &state));
    assert_true(qn_grammar_state_advance(state, text, strlen(text)));
    for (int i = 0; i < 3; i++) {
        const double begin = cpu_seconds();
        assert_int_equal(qn_grammar_mask(made.vocab, state, mask), expected);
        least = fmin(least, cpu_seconds() - begin);
    }
    if (expected != QN_OK)
        assert_text("too ambiguous");
    qn_grammar_state_free(state);
    qn_grammar_free(grammar);
    return least;
}

/* Rules that may be left out one after the other: each byte leads to all of them. */
static const char *optional_rules(int n_rules, const char *letters)
{
    static char text[2000];
    size_t n = (size_t)sprintf(text, "root ::= ");
    for (int i = 0; i < n_rules; i++)
        n += (size_t)sprintf(text + n, "x? ");
    sprintf(text + n, "\"q\"\nx ::= %s+ y?\ny ::= %s+ z?\nz ::= %s+", letters, letters, letters);
    return text;
}

TEST(test_ambiguous)
{
    const struct {
        const char *gbnf, *after;
    } cases[] = {
        { optional_rules(N_OPTIONAL, "[a-z ]"), "" },
        { "root ::= (\"a\" | \"b\"{0,1000}){0,1000} \"c\"", "" },
        { "root ::= e\ne ::= [a-z ] e [a-z ] | [a-z ] e [a-z ] e | [a-z ]", "aaa" },
    };
    const double walk = time_mask(walked, "", QN_OK);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const double seconds = time_mask(cases[i].gbnf, cases[i].after, QN_ERR_UNSUPPORTED);
        print_message("%.2f ms, a walk %.2f ms: %.40s\n", seconds * 1e3, walk * 1e3, cases[i].gbnf);
        assert_true(seconds < MOST_WALKS * walk);
    }
}

/* Bytes are read by the thread of the steps. */
TEST(test_ambiguous_tokens)
{
    static const char token[] =
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    qn_grammar *grammar;
    qn_grammar_state *state;
    const double walk = time_mask(walked, "", QN_OK);
    assert_ok(qn_grammar_from_gbnf(optional_rules(N_OPTIONAL, "[a-z ]"), strlen(optional_rules(N_OPTIONAL, "[a-z ]")),
                                   &grammar));
    assert_ok(qn_grammar_state_create(grammar, &state));
    const double begin = cpu_seconds();
    assert_false(qn_grammar_state_accepts(state, token, strlen(token)));
    assert_false(qn_grammar_state_advance(state, token, strlen(token)));
    const double seconds = cpu_seconds() - begin;
    print_message("%.2f ms, a walk %.2f ms\n", seconds * 1e3, walk * 1e3);
    assert_true(seconds < MOST_WALKS * walk);
    qn_grammar_state_free(state);
    qn_grammar_free(grammar);
}

/* A token whose check takes more than the thread of the steps may have is left to the mask, as is what was read
 * before. */
TEST(test_costly_checks)
{
    static uint32_t mask[MAX_WORDS];
    qn_grammar *grammar;
    qn_grammar_match *match;
    const qn_token answer[] = { 'a', 'a' };
    assert_ok(qn_grammar_from_gbnf(optional_rules(180, "[a]"), strlen(optional_rules(180, "[a]")), &grammar));
    assert_ok(qn_grammar_match_create(made.vocab, grammar, NULL, &match));
    assert_true(qn_grammar_match_accepts(match, NULL, 0, 'a'));
    for (size_t n = 1; n <= 2; n++) {
        assert_false(qn_grammar_match_accepts(match, answer, n, 'a'));
        memset(mask, 0, sizeof mask);
        assert_ok(qn_grammar_match_mask(match, answer, n, mask));
        assert_true(is_set(mask, 'a'));
    }
    qn_grammar_match_free(match);
    qn_grammar_free(grammar);
}

/* The grammar is asked about the rest of each token that has the trigger. */
TEST(test_ambiguous_behind_triggers)
{
    static uint32_t mask[MAX_WORDS];
    static const char gbnf[] = "root ::= e\ne ::= [^x] e [^x] | [^x] e [^x] e | [^x]";
    const qn_grammar_start start = { .triggers = { { "a", 1, -1 } }, .n_triggers = 1, .opening_token = -1 };
    qn_grammar *grammar;
    qn_grammar_match *match;
    const double walk = time_mask(walked, "", QN_OK);
    assert_ok(qn_grammar_from_gbnf(gbnf, strlen(gbnf), &grammar));
    assert_ok(qn_grammar_match_create(made.vocab, grammar, &start, &match));
    const double begin = cpu_seconds();
    assert_int_equal(qn_grammar_match_mask(match, NULL, 0, mask), QN_ERR_UNSUPPORTED);
    const double seconds = cpu_seconds() - begin;
    print_message("%.2f ms, a walk %.2f ms\n", seconds * 1e3, walk * 1e3);
    assert_text("too ambiguous");
    assert_true(seconds < MOST_WALKS * walk);
    qn_grammar_match_free(match);
    qn_grammar_free(grammar);
}

/* ---- Where nothing follows ---- */

/* Behind an answer neither a mask nor a token follows; the error has the place. Takes the grammar. */
static void check_stuck(qn_grammar *grammar, const qn_grammar_start *start, const qn_token *answer, size_t n,
                        const char *error)
{
    static uint32_t mask[MAX_WORDS];
    qn_grammar_match *match;
    assert_ok(qn_grammar_match_create(made.vocab, grammar, start, &match));
    for (int again = 0; again < 2; again++) {
        assert_false(qn_grammar_match_accepts(match, answer, n, 'a'));
        assert_fails(qn_grammar_match_mask(match, answer, n, mask), QN_ERR_UNSUPPORTED, error);
    }
    qn_grammar_match_free(match);
    qn_grammar_free(grammar);
}

/* Grammars that go on with a byte that no token has. */
TEST(test_no_token)
{
    const char *const choices[] = { "ab\xf8" };
    const qn_grammar_start start = { .triggers = { { "(", 1, -1 } }, .n_triggers = 1, .opening_token = -1 };
    qn_grammar *grammar;
    qn_token answer[64];
    assert_ok(qn_grammar_from_choices(choices, 1, &grammar));
    check_stuck(grammar, NULL, answer, append(answer, 0, "ab"),
                "no token of the vocabulary may follow at byte 2 of the answer, in 'choices'");
    assert_ok(qn_grammar_from_choices(choices, 1, &grammar));
    check_stuck(grammar, &start, answer, append(answer, 0, "free(ab"),
                "may follow at byte 7 of the answer, in 'choices'");
}

/* Tokens that do not fit, as a caller's own mask may let them through. */
TEST(test_wrong_token)
{
    static const char person[] =
        "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"object\",\"properties\":{\"a\":{"
        "\"enum\":[\"x\",\"y\"]}},\"required\":[\"a\"]}},\"required\":[\"name\"]}";
    qn_grammar *grammar;
    qn_token answer[64];
    assert_ok(qn_grammar_from_regex("a", 1, &grammar));
    check_stuck(grammar, NULL, &(qn_token){ OTHER_CONTROL }, 1,
                "the answer does not fit from byte 0 on, in 'regular expression'");
    check_stuck(from_schema(person), NULL, answer, append(answer, 0, "{\"name\": {\"a\": \"z\""),
                "the answer does not fit from byte 16 on, in 'schema: #/properties/name/properties/a'");
    check_stuck(from_schema(person), NULL, answer, append(answer, 0, "{\"name\": {\"b\""),
                "the answer does not fit from byte 11 on, in 'schema: #/properties/name'");
}

/* More arrays than may be open. */
TEST(test_depth)
{
    enum { NESTED = 300 };
    qn_grammar *grammar;
    qn_token answer[NESTED];
    json_t *schema = json_pack("{s:i}", "const", 1);
    for (int i = 0; i < NESTED; i++) {
        schema = json_pack("{s:s,s:o,s:i}", "type", "array", "items", schema, "minItems", 1);
        answer[i] = '[';
    }
    assert_ok(qn_grammar_from_schema(schema, NULL, &grammar));
    json_decref(schema);
    check_stuck(grammar, NULL, answer, QN_GRAMMAR_DEPTH,
                "may follow at byte 256 of the answer, in 'schema: #/items/items");
}

/* What has no text at all is refused when it is compiled, with the part that has none. */
TEST(test_no_text)
{
    static const struct {
        const char *schema, *gbnf, *error;
    } cases[] = {
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[]}},\"required\":[\"a\"]}", NULL,
          "'schema: #/properties/a'" },
        { "{\"type\":\"object\",\"properties\":{\"b\":{},\"a\":{\"type\":\"array\",\"minItems\":2,\"items\":false}},"
          "\"required\":[\"a\",\"b\"]}",
          NULL, "'schema: #/properties/a/items'" },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^a$\",\"minLength\":3}},"
          "\"required\":["
          "\"a\"]}",
          NULL, "'schema: #/properties/a'" },
        { "{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":false,\"required\":[\"b\"]}", NULL,
          "'schema: #/properties/b'" },
        { "{\"type\":\"array\",\"prefixItems\":[{\"const\":1},false],\"minItems\":2}", NULL,
          "'schema: #/prefixItems/1'" },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", NULL, "'schema: #" },
        { "{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":false,\"minProperties\":2}", NULL,
          "no text fits 'schema: #'" },
        { NULL, "root ::= \"a\" b\nb ::= \"(\" b \")\"", "'b'" },
        { NULL, "root ::= \"a\" | b\nb ::= c \"x\"\nc ::= \"y\" c", "'c'" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_grammar *grammar;
        label("case %zu", i);
        json_t *schema = cases[i].schema ? json_loads(cases[i].schema, 0, NULL) : NULL;
        assert_int_equal(schema ? qn_grammar_from_schema(schema, NULL, &grammar)
                                : qn_grammar_from_gbnf(cases[i].gbnf, strlen(cases[i].gbnf), &grammar),
                         QN_ERR_INVALID);
        assert_null(grammar);
        assert_text("no text fits");
        assert_text(cases[i].error);
        json_decref(schema);
    }
}

/* ---- The distribution ---- */

enum { N_SMALL = 6, N_DRAWS = 40000 };

/* The frequencies of tokens that are drawn as the scheduler does: with `first`, checked before they are masked. */
static void draw_tokens(const qn_sampling *sampling, bool first, const float *logits, uint32_t allowed,
                        double *frequencies)
{
    qn_sampler *sampler;
    assert_ok(qn_sampler_create(sampling, N_SMALL, &sampler));
    memset(frequencies, 0, N_SMALL * sizeof *frequencies);
    for (int i = 0; i < N_DRAWS; i++) {
        qn_sample_request request = qn_sampler_next_request(sampler, NULL, 0);
        if (first) {
            assert_ok(qn_sampler_sample(sampler, logits, &request));
            request.random = random_u64();
        }
        if (!first || !(allowed >> request.token & 1)) {
            request.allowed = &allowed;
            assert_ok(qn_sampler_sample(sampler, logits, &request));
        }
        frequencies[request.token] += 1.0 / N_DRAWS;
    }
    qn_sampler_free(sampler);
}

/* Where qn_grammar_match_check_first says so, frequencies are those of masks alone; with filters they are not. */
TEST(test_distribution)
{
    static const float probabilities[N_SMALL] = { 0.40f, 0.30f, 0.15f, 0.08f, 0.05f, 0.02f };
    static const struct {
        qn_sampling sampling;
        bool check_first;
    } cases[] = {
        { { .temperature = 1, .top_p = 1 }, true },
        { { .temperature = 0.7f, .top_p = 1 }, true },
        { { .temperature = 0, .top_p = 1, .top_k = 3 }, true },
        { { .temperature = 1, .top_p = 1, .top_k = 2 }, false },
        { { .temperature = 1, .top_p = 0.6f }, false },
        { { .temperature = 1, .top_p = 1, .min_p = 0.45f }, false },
    };
    const uint32_t allowed = 0x3e; /* all but the most likely one */
    float logits[N_SMALL];
    for (int i = 0; i < N_SMALL; i++)
        logits[i] = logf(probabilities[i]);
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("case %zu", i);
        double first[N_SMALL], masked[N_SMALL], largest = 0;
        qn_sampling sampling = cases[i].sampling;
        sampling.size = sizeof sampling;
        sampling.repeat_penalty = 1;
        draw_tokens(&sampling, false, logits, allowed, masked);
        sampling.seed = 12345;
        draw_tokens(&sampling, true, logits, allowed, first);
        for (int t = 0; t < N_SMALL; t++)
            largest = fmax(largest, fabs(first[t] - masked[t]));
        assert_int_equal(qn_grammar_match_check_first(&sampling), cases[i].check_first);
        if (cases[i].check_first)
            assert_true(largest < 0.015); /* four standard deviations of a difference */
        else
            assert_true(largest > 0.03);
        if (cases[i].check_first && sampling.temperature == 1)
            for (int t = 1; t < N_SMALL; t++)
                assert_true(fabs(masked[t] - (double)probabilities[t] / 0.6) < 0.011);
    }
}

TEST_GROUP(set_up, tear_down)
