/* What schemas and grammars of requests cost: each of these texts is small for a body, and made so that work or memory
 * grow with the square of their size, or faster. Whatever the status, compilation ends soon and keeps little. */
#include "helper_assert.h"
#include "helper_sanitizers.h"
#include "helper_time.h"

#include "base/append.h"
#include "grammar/grammar.h"

#include <malloc.h>

enum { SECONDS = QN_TEST_SANITIZED ? 4 : 1 };

/* ---- Texts ---- */

typedef struct growing {
    char *text;
    size_t n, size;
} growing;

static void add(growing *g, const char *piece)
{
    const size_t n = strlen(piece);
    if (g->n + n + 1 > g->size) {
        g->size = 2 * (g->n + n) + 64;
        g->text = realloc(g->text, g->size);
        assert_non_null(g->text);
    }
    memcpy(g->text + g->n, piece, n + 1);
    g->n += n;
}

/* `n` times `piece`, in which @ is the number, with commas between them. */
static void repeat(growing *g, const char *piece, int n)
{
    for (int i = 0; i < n; i++) {
        add(g, i ? "," : "");
        for (const char *c = piece; *c; c++) {
            char word[16] = { *c, 0 };
            if (*c == '@')
                snprintf(word, sizeof word, "%d", i);
            add(g, word);
        }
    }
}

/* Pieces in turn: a text, or one that is repeated if its count is above 0. */
typedef struct part {
    int n;
    const char *text;
} part;

static char *make(const part *parts)
{
    growing g = { 0 };
    for (; parts->text; parts++)
        if (parts->n)
            repeat(&g, parts->text, parts->n);
        else
            add(&g, parts->text);
    return g.text;
}

/* ---- Costs ---- */

/* Most bytes that values of JSON had at once. */
static size_t held, most_held;

static void *count_malloc(size_t n)
{
    void *p = malloc(n);
    held += p ? malloc_usable_size(p) : 0;
    most_held = held > most_held ? held : most_held;
    return p;
}

static void count_free(void *p)
{
    held -= p ? malloc_usable_size(p) : 0;
    free(p);
}

enum { SCHEMA, XML, JSON, N_WAYS };

static qn_status compile(int way, json_t *schema, qn_grammar **out)
{
    qn_output_params output;
    if (way == SCHEMA)
        return qn_grammar_from_schema(schema, &(qn_grammar_options){ .strict = false }, out);
    json_t *tools = json_pack("[{s:{s:s,s:O}}]", "function", "name", "f", "parameters", schema);
    qn_output_params_init(&output, way == XML ? QN_OUTPUT_XML : QN_OUTPUT_JSON);
    const qn_status status = qn_grammar_from_calls(&(qn_grammar_calls){ .output = &output, .tools = tools }, out);
    json_decref(tools);
    return status;
}

enum { PARTS = 12 };

static const struct {
    const char *what;
    part parts[PARTS];
} schemas[] = {
    { "a union of references to a long enum, for each parameter",
      { { 0, "{\"properties\":{" },
        { 250, "\"p@\":{\"$ref\":\"#/$defs/d\"}" },
        { 0, "},\"$defs\":{\"d\":{\"anyOf\":[" },
        { 150, "{\"$ref\":\"#/$defs/e\"}" },
        { 0, "]},\"e\":{\"enum\":[" },
        { 9000, "0" },
        { 0, "]}}}" } } },
    { "lists of allOf that add up",
      { { 0, "{\"allOf\":[" },
        { 4000, "{\"$ref\":\"#/$defs/d\"},{\"$ref\":\"#/$defs/e\"}" },
        { 0, "],\"$defs\":{\"d\":{\"allOf\":[" },
        { 1000, "{}" },
        { 0, "]},\"e\":{\"allOf\":[" },
        { 1001, "{}" },
        { 0, "]}}}" } } },
    { "many keywords, copied for each part",
      { { 0, "{" }, { 20000, "\"k@\":1" }, { 0, ",\"allOf\":[" }, { 4000, "{\"minLength\":1}" }, { 0, "]}" } } },
    { "two long enums",
      { { 0, "{\"allOf\":[{\"enum\":[" }, { 30000, "@" }, { 0, "]},{\"enum\":[" }, { 30000, "-@" }, { 0, "]}]}" } } },
    { "equal values again and again",
      { { 0, "{\"$defs\":{\"a\":{\"const\":[" },
        { 50000, "@" },
        { 0, "]},\"b\":{\"const\":[" },
        { 50000, "@" },
        { 0, "]}},\"allOf\":[" },
        { 4000, "{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"}" },
        { 0, "]}" } } },
    { "a long list of types",
      { { 0, "{\"type\":[" },
        { 100000, "\"string\"" },
        { 0, "],\"anyOf\":[" },
        { 150,
          "{\"anyOf\":[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}" },
        { 0, "]}" } } },
    { "constants that are looked up for each alternative",
      { { 0, "{\"enum\":[" },
        { 30000, "\"c@\"" },
        { 0, "],\"type\":\"string\",\"minLength\":3,\"anyOf\":[" },
        { 150, "{\"maxLength\":1}" },
        { 0, "]}" } } },
    { "an enum of other types than its alternatives",
      { { 0, "{\"enum\":[" },
        { 200000, "\"c\"" },
        { 0, "],\"anyOf\":[" },
        { 150, "{\"type\":\"null\",\"anyOf\":[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{"
               "},{},{}]}" },
        { 0, "]}" } } },
    { "required names, for each parameter",
      { { 0, "{\"properties\":{" },
        { 250, "\"p@\":{}" },
        { 0, "},\"required\":[" },
        { 3000000, "\"p\"" },
        { 0, "]}" } } },
};

TEST(test_schemas)
{
    json_set_alloc_funcs(count_malloc, count_free);
    for (size_t i = 0; i < COUNT(schemas); i++) {
        char *text = make(schemas[i].parts);
        json_t *schema = json_loads(text, 0, NULL);
        assert_non_null(schema);
        for (int way = 0; way < N_WAYS; way++) {
            qn_grammar *grammar;
            label("%s, way %d", schemas[i].what, way);
            const size_t before = most_held = held;
            const double begin = cpu_seconds();
            const qn_status status = compile(way, schema, &grammar);
            const double seconds = cpu_seconds() - begin;
            if (getenv("QN_VERBOSE"))
                print_message("%.3f s, %zu KiB, %d %s: %s\n", seconds, (most_held - before) >> 10, status,
                              status ? qn_error_text() : "", schemas[i].what);
            assert_true(seconds < SECONDS);
            assert_true(most_held - before < strlen(text) * 4 + (64 << 20));
            qn_grammar_free(grammar);
        }
        json_decref(schema);
        free(text);
    }
    json_set_alloc_funcs(malloc, free);
}

/* Each pair of alternatives excludes each other by the last of many names that both require. */
TEST(test_strict)
{
    static const part parts[] = { { 0, "{\"type\":\"object\",\"oneOf\":[" },
                                  { 150, "{\"properties\":{\"k\":{\"const\":@}}}" },
                                  { 0, "],\"required\":[" },
                                  { 100000, "\"a@\"" },
                                  { 0, ",\"k\"]}" },
                                  { 0, NULL } };
    qn_grammar *grammar;
    char *text = make(parts);
    json_t *schema = json_loads(text, 0, NULL);
    assert_non_null(schema);
    const double begin = cpu_seconds();
    assert_int_equal(qn_grammar_from_schema(schema, &(qn_grammar_options){ .strict = true }, &grammar),
                     QN_ERR_UNSUPPORTED);
    assert_true(cpu_seconds() - begin < SECONDS);
    json_decref(schema);
    free(text);
}

/* Rules that all call each other: each byte leads to all of them, from all of them. */
TEST(test_states)
{
    enum { RULES = 400 };
    growing g = { 0 };
    qn_grammar *grammar;
    qn_grammar_state *state;
    char line[80];
    add(&g, "root ::= r\nr ::= \"z\"");
    for (int i = 0; i < RULES; i++) {
        snprintf(line, sizeof line, "|c%d", i);
        add(&g, line);
    }
    for (int i = 0; i < RULES; i++) {
        snprintf(line, sizeof line, "\nc%d ::= \"a\" r \"%d\"", i, i);
        add(&g, line);
    }
    assert_ok(qn_grammar_from_gbnf(g.text, g.n, &grammar));
    const double begin = cpu_seconds();
    assert_ok(qn_grammar_state_create(grammar, &state));
    for (int i = 0; i < 20 && qn_grammar_state_advance(state, "a", 1); i++)
        (void)qn_grammar_state_accepts(state, "aaaa", 4);
    assert_true(cpu_seconds() - begin < SECONDS);
    qn_grammar_state_free(state);
    qn_grammar_free(grammar);
    free(g.text);
}
