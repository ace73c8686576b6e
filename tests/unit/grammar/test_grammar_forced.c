/* Forced text and its tokens: against every byte in turn, and against the canonical tokens of whole documents. Keys of
 * states. */
#include "helper_random.h"
#include "helper_sanitizers.h"

#include "gguf/gguf.h"
#include "grammar/grammar.h"

enum { MAX_TEXT = 1 << 14, MAX_TOKENS = 4096, MAX_WORDS = 1 << 13, N_SCHEMAS = QN_TEST_SANITIZED ? 40 : 200 };

static qn_tokenizer *tokenizer;
static qn_grammar_vocab *vocab;
static qn_output_params output;
static size_t n_vocab;

static int set_up(void)
{
    qn_gguf *file;
    assert_ok(qn_gguf_open(QN_SOURCE_DIR "/models/quern-demo.gguf", &file));
    assert_ok(qn_tokenizer_create(file, &tokenizer));
    qn_gguf_close(file);
    n_vocab = qn_tokenizer_n_vocab(tokenizer);
    qn_output_params_init(&output, QN_OUTPUT_XML);
    for (size_t t = 0; t < n_vocab; t++) /* any special tokens */
        if (qn_tokenizer_is_special(tokenizer, (int32_t)t) && !qn_tokenizer_is_eog(tokenizer, (int32_t)t)) {
            output.call_close.token = output.call_open.token;
            output.call_open.token = (qn_token)t;
        }
    assert_ok(qn_grammar_vocab_create(tokenizer, &output, 0, &vocab));
    return n_vocab > MAX_WORDS * 32;
}

static int tear_down(void)
{
    qn_grammar_vocab_free(vocab);
    qn_tokenizer_free(tokenizer);
    return 0;
}

/* ---- Answers ---- */

/* An answer, its match, and the same text in a state. */
typedef struct answer {
    qn_grammar *grammar;
    qn_grammar_match *match;
    qn_grammar_state *state;
    qn_token tokens[MAX_TOKENS];
    size_t n, n_text;
    char text[MAX_TEXT];
} answer;

static void begin(answer *a, qn_grammar *grammar)
{
    a->grammar = grammar;
    a->n = a->n_text = 0;
    assert_ok(qn_grammar_match_create(vocab, grammar, NULL, &a->match));
    assert_ok(qn_grammar_state_create(grammar, &a->state));
}

static void end(answer *a)
{
    qn_grammar_match_free(a->match);
    qn_grammar_state_free(a->state);
}

static void append(answer *a, qn_token token)
{
    size_t length;
    const char *bytes = qn_grammar_vocab_bytes(vocab, token, &length);
    assert_non_null(bytes);
    assert_true(a->n < MAX_TOKENS && a->n_text + length < MAX_TEXT);
    assert_true(qn_grammar_state_advance(a->state, bytes, length));
    a->tokens[a->n++] = token;
    memcpy(a->text + a->n_text, bytes, length);
    a->text[a->n_text += length] = 0;
}

static void append_text(answer *a, const char *text, size_t length)
{
    int32_t *tokens;
    size_t count;
    assert_ok(qn_tokenizer_encode(tokenizer, text, length, false, false, &tokens, &count));
    for (size_t i = 0; i < count; i++)
        append(a, tokens[i]);
    free(tokens);
}

/* The forced text, one byte after the other: each is the only one of 256 that may follow. */
static size_t force_bytes(const answer *a, char *text)
{
    qn_grammar_state *state;
    size_t n = 0;
    assert_ok(qn_grammar_state_clone(a->state, &state));
    while (n < QN_GRAMMAR_FORCED && !qn_grammar_state_is_finished(state)) {
        int n_bytes = 0;
        for (int byte = 0; byte < 256; byte++) {
            const char c = (char)byte;
            if (qn_grammar_state_accepts(state, &c, 1)) {
                n_bytes++;
                text[n] = c;
            }
        }
        if (n_bytes != 1)
            break;
        assert_true(qn_grammar_state_advance(state, &text[n++], 1));
    }
    qn_grammar_state_free(state);
    return n;
}

static size_t find_forced(answer *a, char *text)
{
    char expected[QN_GRAMMAR_FORCED];
    size_t n;
    assert_ok(qn_grammar_match_forced(a->match, a->tokens, a->n, text, &n));
    assert_int_equal(n, force_bytes(a, expected));
    assert_memory_equal(text, expected, n);
    return n;
}

/* Whether tokens are canonical: those of the whole text with the forced one have a border between the two, and go on
 * so. */
static bool is_canonical(const answer *a, const char *forced, size_t length, const qn_token *tokens, size_t n)
{
    static char text[MAX_TEXT + QN_GRAMMAR_FORCED];
    int32_t *all;
    size_t count, i = 0, at = 0;
    memcpy(text, a->text, a->n_text);
    memcpy(text + a->n_text, forced, length);
    assert_ok(qn_tokenizer_encode(tokenizer, text, a->n_text + length, false, false, &all, &count));
    for (; i < count && at < a->n_text; i++) {
        const char *bytes;
        size_t n_bytes;
        assert_ok(qn_tokenizer_piece(tokenizer, all[i], &bytes, &n_bytes));
        at += n_bytes;
    }
    const bool is_equal = at == a->n_text && n <= count - i && !memcmp(tokens, all + i, n * sizeof *tokens);
    free(all);
    return is_equal;
}

/* Forced tokens: each may follow, their bytes begin the forced text, and they are canonical. */
static size_t find_tokens(answer *a, qn_token *tokens)
{
    char text[QN_GRAMMAR_FORCED];
    size_t n, n_tokens, at = 0;
    qn_grammar_match *match;
    qn_token all[MAX_TOKENS];
    assert_ok(qn_grammar_match_forced(a->match, a->tokens, a->n, text, &n));
    assert_ok(qn_grammar_match_forced_tokens(a->match, tokenizer, a->tokens, a->n, a->n, tokens, &n_tokens));
    assert_ok(qn_grammar_match_clone(a->match, &match));
    memcpy(all, a->tokens, a->n * sizeof *all);
    for (size_t i = 0; i < n_tokens; i++) {
        size_t length;
        const char *bytes = qn_grammar_vocab_bytes(vocab, tokens[i], &length);
        assert_true(bytes && at + length <= n && !memcmp(text + at, bytes, length));
        assert_true(qn_grammar_match_accepts(match, all, a->n + i, tokens[i]));
        all[a->n + i] = tokens[i];
        at += length;
    }
    qn_grammar_match_free(match);
    if (n_tokens && !memchr(text, QN_MARK_CALL_CLOSE, n) && !is_canonical(a, text, n, tokens, n_tokens))
        fail_msg("'%.*s' after '%s': the tokens are not canonical", (int)n, text, a->text);
    return n_tokens;
}

/* ---- Texts ---- */

static qn_grammar *compile(const char *schema)
{
    qn_grammar *grammar;
    json_t *json = json_loads(schema, JSON_DECODE_ANY, NULL);
    assert_non_null(json);
    assert_ok(qn_grammar_from_schema(json, NULL, &grammar));
    json_decref(json);
    return grammar;
}

#define PERSON                                                                                                         \
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"},"              \
    "\"kind\":{\"const\":\"caf\xc3\xa9\"},\"unit\":{\"enum\":[\"metre\",\"metric\"]}},"                                \
    "\"required\":[\"name\",\"age\",\"kind\",\"unit\"],\"additionalProperties\":false}"

static const struct {
    const char *schema, *before, *forced;
} texts[] = {
    { PERSON, "", "{\"name\": \"" },
    { PERSON, "{\"name\": \"", "" },
    { PERSON, "{\"name\": \"a", "" },
    { PERSON, "{\"name\": \"a\"", ", \"age\": " },
    { PERSON, "{\"name\": \"a\", \"age\": 1", "" },
    { PERSON, "{\"name\": \"a\", \"age\": 1,", " \"kind\": \"caf" }, /* then as it is, or escaped */
    { PERSON, "{\"name\": \"a\", \"age\": 1, \"kind\": \"caf\\", "u00" },
    { PERSON, "{\"name\": \"a\", \"age\": 1, \"kind\": \"caf\xc3\xa9", "\", \"unit\": \"metr" },
    { PERSON, "{\"name\": \"a\", \"age\": 1, \"kind\": \"caf\xc3\xa9\", \"unit\": \"metri", "c\"}" },
    { PERSON, "{\"name\": \"a\", \"age\": 1, \"kind\": \"caf\xc3\xa9\", \"unit\": \"metric\"}", "" },
    { "{\"const\":{\"a\":[1,true,null]}}", "", "{\"a\": [1, true, null]}" },
    { "{\"type\":\"number\"}", "", "" },
    { "{\"type\":\"array\",\"items\":{\"const\":true},\"minItems\":2,\"maxItems\":2}", "", "[true, true]" },
    { "{\"type\":\"array\",\"items\":{\"const\":true},\"minItems\":1,\"maxItems\":2}", "", "[true" },
    { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"},\"b\":{}},\"required\":[\"b\"],"
      "\"additionalProperties\":false}",
      "", "{\"" },
    { "{\"anyOf\":[{\"const\":\"abc\"},{\"const\":\"abd\"}]}", "", "\"ab" },
};

TEST(test_texts)
{
    char text[QN_GRAMMAR_FORCED];
    for (size_t i = 0; i < COUNT(texts); i++) {
        static answer a;
        label("case %zu", i);
        begin(&a, compile(texts[i].schema));
        append_text(&a, texts[i].before, strlen(texts[i].before));
        const size_t n = find_forced(&a, text);
        if (n != strlen(texts[i].forced) || memcmp(text, texts[i].forced, n) != 0)
            fail_msg("after '%s': '%.*s', expected '%s'", texts[i].before, (int)n, text, texts[i].forced);
        end(&a);
        qn_grammar_free(a.grammar);
    }
}

/* Of other kinds of grammars: alternatives, ends, texts longer than what is forced at once. */
TEST(test_kinds)
{
    static const struct {
        const char *regex, *gbnf, *forced;
    } cases[] = {
        { "abc(de)?", NULL, "abc" },
        { "\\u00e9[\\u00e9\\u00e8]", NULL, "\xc3\xa9\xc3" },
        { "", NULL, "" },
        { "x?yz", NULL, "" },
        { "(xy|xz)w", NULL, "x" },
        { NULL, "root ::= \"(\" a \")\"\na ::= \"x\" | \"[\" a \"]\"", "(" },
        { NULL, "root ::= a a \"!\"\na ::= \"x\" b\nb ::= \"y\"", "xyxy!" },
    };
    char text[QN_GRAMMAR_FORCED];
    static answer a;
    qn_grammar *grammar;
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("case %zu", i);
        if (cases[i].regex)
            assert_ok(qn_grammar_from_regex(cases[i].regex, strlen(cases[i].regex), &grammar));
        else
            assert_ok(qn_grammar_from_gbnf(cases[i].gbnf, strlen(cases[i].gbnf), &grammar));
        begin(&a, grammar);
        assert_int_equal(find_forced(&a, text), strlen(cases[i].forced));
        assert_memory_equal(text, cases[i].forced, strlen(cases[i].forced));
        end(&a);
        qn_grammar_free(grammar);
    }
    assert_ok(qn_grammar_from_regex("a{300}", 6, &grammar));
    begin(&a, grammar);
    assert_int_equal(find_forced(&a, text), QN_GRAMMAR_FORCED);
    end(&a);
    qn_grammar_free(grammar);
}

/* ---- Tokens ---- */

/* Each schema is an object of random properties, of which some are constants, enums, arrays or objects. */
static json_t *draw_value(int depth)
{
    static const char *const words[] = { "metre", "metric", "caf\xc3\xa9", "on", "a b", "x\"y", "", "100 km", "<b>" };
    enum { N_WORDS = COUNT(words) };
    json_t *object, *properties, *required;
    switch (random_u32() % (depth < 3 ? 9 : 6)) {
    case 0: return json_pack("{s:s}", "const", words[random_u32() % N_WORDS]);
    case 1: return json_pack("{s:[s,s]}", "enum", words[random_u32() % N_WORDS], words[random_u32() % N_WORDS]);
    case 2: return json_pack("{s:s}", "type", "integer");
    case 3: return json_pack("{s:s}", "type", "boolean");
    case 4: return json_pack("{s:s,s:i}", "type", "string", "maxLength", 1 + (int)(random_u32() % 12));
    case 5: return json_pack("{s:s,s:s}", "type", "string", "pattern", "^[A-Z][a-z]{1,6}-[0-9]{3}$");
    case 6:
        return json_pack("{s:s,s:o,s:i,s:i}", "type", "array", "items", draw_value(depth + 1), "minItems",
                         (int)(random_u32() % 3), "maxItems", 2 + (int)(random_u32() % 2));
    default: break;
    }
    object = json_pack("{s:s,s:{},s:[],s:b}", "type", "object", "properties", "required", "additionalProperties", 0);
    properties = json_object_get(object, "properties");
    required = json_object_get(object, "required");
    for (uint32_t i = 0, n = 1 + random_u32() % 4; i < n; i++) {
        static const char *const names[] = { "name", "id", "size of", "\xc3\xbc", "url", "isActive", "a", "b_c", "0" };
        const char *name = names[random_u32() % (COUNT(names))];
        if (!json_object_get(properties, name) && random_u32() % 4)
            json_array_append_new(required, json_string(name));
        if (!json_object_get(properties, name))
            json_object_set_new(properties, name, draw_value(depth + 1));
    }
    return object;
}

/* A random token of the mask, or what closes something; -1: the end. */
static qn_token pick(answer *a)
{
    static uint32_t mask[MAX_WORDS];
    size_t count = 0, length;
    assert_ok(qn_grammar_match_mask(a->match, a->tokens, a->n, mask));
    for (size_t t = 0; t < n_vocab; t++)
        count += (mask[t / 32] >> (t % 32) & 1) && qn_grammar_vocab_bytes(vocab, (qn_token)t, &length);
    if (!count)
        return -1;
    size_t which = random_u32() % count;
    for (size_t t = 0;; t++)
        if ((mask[t / 32] >> (t % 32) & 1) && qn_grammar_vocab_bytes(vocab, (qn_token)t, &length) && !which--)
            return (qn_token)t;
}

/* The forced tokens, and behind them a random one. */
static void walk(answer *a)
{
    qn_token tokens[QN_GRAMMAR_FORCED];
    char text[QN_GRAMMAR_FORCED];
    while (a->n < 300) {
        find_forced(a, text);
        const size_t n = find_tokens(a, tokens);
        for (size_t i = 0; i < n; i++)
            append(a, tokens[i]);
        const qn_token token = pick(a);
        if (token < 0)
            break;
        append(a, token);
    }
}

/* Whether a text is in the normal form that tokens have. */
static bool is_normal(const char *text, size_t length, const int32_t *tokens, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const char *bytes;
        size_t n_bytes;
        assert_ok(qn_tokenizer_piece(tokenizer, tokens[i], &bytes, &n_bytes));
        if (at + n_bytes > length || memcmp(text + at, bytes, n_bytes) != 0)
            return false;
        at += n_bytes;
    }
    return at == length;
}

/* The forced tokens at each place of a document are its canonical ones, whatever the document goes on with. Counts the
 * document's tokens, and those that are sampled. */
static void check_canonical(qn_grammar *grammar, const char *text, size_t length, size_t *n_tokens, size_t *n_sampled)
{
    static answer a;
    int32_t *tokens;
    size_t count, next = 0;
    begin(&a, grammar);
    assert_ok(qn_tokenizer_encode(tokenizer, text, length, false, false, &tokens, &count));
    for (size_t i = 0; i < count && is_normal(text, length, tokens, count); i++) {
        qn_token forced[QN_GRAMMAR_FORCED];
        const size_t n = find_tokens(&a, forced);
        for (size_t k = 0; k < n; k++)
            if (i + k >= count || forced[k] != tokens[i + k])
                fail_msg("'%.*s' after '%s': token %zu is not canonical", (int)length, text, a.text, k);
        *n_sampled += i == next && !n;
        next += i == next ? n + !n : 0;
        append(&a, tokens[i]);
    }
    *n_tokens += a.n;
    free(tokens);
    end(&a);
}

TEST(test_drawn_schemas)
{
    static answer a;
    size_t n_tokens = 0, n_sampled = 0;
    for (int i = 0; i < N_SCHEMAS; i++) {
        qn_grammar *grammar;
        json_t *schema = draw_value(0);
        const qn_grammar_options options = { .style = { .space = (qn_json_space)(i % 3) } };
        char *shown = json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY);
        label("schema %d, %s", i, shown);
        assert_ok(qn_grammar_from_schema(schema, &options, &grammar));
        begin(&a, grammar);
        walk(&a);
        if (qn_grammar_state_is_finished(a.state))
            check_canonical(grammar, a.text, a.n_text, &n_tokens, &n_sampled);
        end(&a);
        qn_grammar_free(grammar);
        json_decref(schema);
        free(shown);
    }
    print_message("%zu tokens, %zu sampled\n", n_tokens, n_sampled);
    assert_true(n_tokens > n_sampled + n_sampled / 3);
}

/* Tokens of a text that a model would have, and none where the canonical ones would change a token before. */
TEST(test_tokens)
{
    static answer a;
    qn_token tokens[QN_GRAMMAR_FORCED];
    const char *before = "{\"name\": \"a", *whole = "{\"name\": \"a\", \"age\": ";
    begin(&a, compile(PERSON));
    size_t n = find_tokens(&a, tokens), length, n_bytes = 0;
    for (size_t i = 0; i < n; i++, n_bytes += length)
        (void)qn_grammar_vocab_bytes(vocab, tokens[i], &length);
    assert_in_range(n_bytes, strlen("{\"name\":"), strlen("{\"name\": ")); /* the quote may begin a longer token */
    append_text(&a, before, strlen(before));
    assert_int_equal(find_tokens(&a, tokens), 0);
    append_text(&a, "\"", 1);
    int32_t *all;
    size_t count;
    assert_ok(qn_tokenizer_encode(tokenizer, whole, strlen(whole), false, false, &all, &count));
    bool has_border = false;
    for (size_t i = 0, at = 0; i < count; i++) {
        (void)qn_grammar_vocab_bytes(vocab, all[i], &length);
        has_border |= (at += length) == a.n_text;
    }
    free(all);
    assert_int_equal(find_tokens(&a, tokens) > 0, has_border);
    end(&a);
    qn_grammar_free(a.grammar);
}

/* Delimiters that are tokens are forced with the text around them. */
TEST(test_marks)
{
    static answer a;
    qn_token tokens[QN_GRAMMAR_FORCED];
    char text[QN_GRAMMAR_FORCED];
    qn_grammar *grammar;
    json_t *tools =
        json_pack("[{s:s,s:{s:s,s:{s:{s:s}},s:[s],s:b}}]", "name", "get_time", "parameters", "type", "object",
                  "properties", "zone", "const", "UTC", "required", "zone", "additionalProperties", 0);
    assert_ok(
        qn_grammar_from_calls(&(qn_grammar_calls){ .output = &output, .tools = tools, .is_single = true }, &grammar));
    begin(&a, grammar);
    append(&a, output.call_open.token);
    const size_t n = find_forced(&a, text), n_tokens = find_tokens(&a, tokens);
    static const char expected[] = "\n<function=get_time>\n<parameter=zone>\nUTC\n</parameter>\n</function>\n";
    const bool is_token = output.call_close.token >= 0;
    const char *close = is_token ? "\xf9" : "</tool_call>";
    assert_int_equal(n, strlen(expected) + strlen(close));
    assert_memory_equal(text, expected, strlen(expected));
    assert_memory_equal(text + strlen(expected), close, strlen(close));
    assert_true(n_tokens > 10);
    assert_true(!is_token || tokens[n_tokens - 1] == output.call_close.token);
    end(&a);
    qn_grammar_free(grammar);
    json_decref(tools);
}

/* Free text has no forced text and no key; nor has what does not fit. */
TEST(test_free_text)
{
    const char *const choices[] = { "name" };
    const qn_grammar_start start = { .triggers = { { "(", 1, -1 } }, .n_triggers = 1, .opening_token = -1 };
    char text[QN_GRAMMAR_FORCED];
    size_t n;
    int32_t *tokens;
    size_t count;
    qn_grammar *grammar;
    qn_grammar_match *match;
    qn_grammar_key key;
    assert_ok(qn_grammar_from_choices(choices, 1, &grammar));
    assert_ok(qn_grammar_match_create(vocab, grammar, &start, &match));
    assert_ok(qn_tokenizer_encode(tokenizer, "a(", 2, false, false, &tokens, &count));
    assert_ok(qn_grammar_match_forced(match, tokens, count - 1, text, &n));
    assert_int_equal(n, 0);
    assert_false(qn_grammar_match_key(match, tokens, count - 1, &key));
    assert_ok(qn_grammar_match_forced(match, tokens, count, text, &n));
    assert_int_equal(n, 4);
    assert_true(qn_grammar_match_key(match, tokens, count, &key));
    tokens[0] = tokens[count - 1];
    const qn_token wrong[] = { tokens[0], tokens[0] };
    qn_grammar_match_free(match);
    assert_ok(qn_grammar_match_create(vocab, grammar, &start, &match));
    assert_ok(qn_grammar_match_forced(match, wrong, 2, text, &n));
    assert_int_equal(n, 0);
    assert_false(qn_grammar_match_key(match, wrong, 2, &key));
    free(tokens);
    qn_grammar_match_free(match);
    qn_grammar_free(grammar);
}

/* Alternatives that all go on alike for long: the steps of a whole text are bounded, since steps of others wait. What
 * is found is right, and so are masks behind it. */
TEST(test_many_alternatives)
{
    enum { ALTERNATIVES = 100, LENGTH = 200 };
    static char gbnf[ALTERNATIVES * (LENGTH + 16)];
    static uint32_t masks[QN_GRAMMAR_FORCED * MAX_WORDS], mask[MAX_WORDS];
    static qn_token tokens[2 * QN_GRAMMAR_FORCED];
    const size_t n_words = (n_vocab + 31) / 32;
    size_t at = (size_t)sprintf(gbnf, "root ::= ");
    for (int i = 0; i < ALTERNATIVES; i++) {
        at += (size_t)sprintf(gbnf + at, "%s\"", i ? " | " : "");
        memset(gbnf + at, 'z', LENGTH);
        at += LENGTH;
        at += (size_t)sprintf(gbnf + at, "%03d\"", i);
    }
    qn_grammar *grammar;
    qn_grammar_match *match;
    char text[QN_GRAMMAR_FORCED];
    size_t n, n_tokens;
    int32_t *letter;
    assert_ok(qn_grammar_from_gbnf(gbnf, at, &grammar));
    assert_ok(qn_grammar_match_create(vocab, grammar, NULL, &match));
    assert_ok(qn_grammar_match_forced(match, NULL, 0, text, &n));
    label("%zu bytes", n);
    assert_true(n > 3 && n < LENGTH / 2);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(text[i], 'z');
    assert_ok(qn_grammar_match_forced_tokens(match, tokenizer, tokens, 0, 0, tokens, &n_tokens));
    assert_true(n_tokens <= n);
    assert_ok(qn_tokenizer_encode(tokenizer, "z", 1, false, false, &letter, &n));
    assert_int_equal(n, 1);
    for (n = 0; n < LENGTH - 1; n++) /* one letter a token, where the whole is not looked at */
        tokens[n] = *letter;
    const size_t n_made = qn_grammar_match_masks(match, tokens, 0, n, n_words, masks);
    label("%zu masks", n_made);
    free(letter);
    assert_true(n_made > 0 && n_made < n);
    for (size_t i = 0; i < n_made; i++) {
        memset(mask, 0, sizeof mask);
        assert_ok(qn_grammar_match_mask(match, tokens, i + 1, mask));
        assert_memory_equal(mask, masks + i * n_words, n_words * sizeof *mask);
    }
    qn_grammar_match_free(match);
    qn_grammar_free(grammar);
}

/* ---- Keys ---- */

static qn_grammar_key key_of(qn_grammar *grammar, const char *text)
{
    static answer a;
    qn_grammar_key key;
    begin(&a, grammar);
    append_text(&a, text, strlen(text));
    assert_true(qn_grammar_match_key(a.match, a.tokens, a.n, &key));
    end(&a);
    return key;
}

/* Different texts that lead to one state have one key; other states and other grammars have others. */
TEST(test_keys)
{
    qn_grammar *grammar = compile(PERSON), *same = compile(PERSON);
    const qn_grammar_key a = key_of(grammar, "{\"name\": \"a\", \"age\": 7, "),
                         b = key_of(grammar, "{\"name\": \"somebody\", \"age\": 123, "),
                         inside = key_of(grammar, "{\"name\": \"a"),
                         other = key_of(same, "{\"name\": \"a\", \"age\": 7, ");
    assert_memory_equal(&a, &b, sizeof a);
    assert_memory_not_equal(&a, &inside, sizeof a);
    assert_memory_not_equal(&a, &other, sizeof a);
    qn_grammar_free(grammar);
    qn_grammar_free(same);
}

TEST_GROUP(set_up, tear_down)
