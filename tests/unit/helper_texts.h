/* Texts that fit a schema, and texts that do not. */
#ifndef QN_TESTS_HELPER_TEXTS_H
#define QN_TESTS_HELPER_TEXTS_H

#include "helper_assert.h"

#include "grammar/grammar.h"

#include <string.h>

enum { MAX_TEXTS = 12 };

/* Any white space, and properties in any order. */
static inline qn_status compile_schema(const char *schema, bool strict, qn_grammar **out)
{
    json_error_t error;
    json_t *json = json_loads(schema, JSON_DECODE_ANY, &error);
    if (!json)
        fail_msg("%s: %s", error.text, schema);
    const qn_grammar_options options = { .strict = strict,
                                         .style = { .space = QN_JSON_SPACE_ANY, .order = QN_JSON_ORDER_ANY } };
    const qn_status status = qn_grammar_from_schema(json, &options, out);
    json_decref(json);
    return status;
}

static inline bool fits(const qn_grammar *grammar, const char *text)
{
    qn_grammar_state *state;
    assert_ok(qn_grammar_state_create(grammar, &state));
    const bool is = qn_grammar_state_advance(state, text, strlen(text)) && qn_grammar_state_is_finished(state);
    qn_grammar_state_free(state);
    return is;
}

struct texts {
    const char *schema;
    const char *fit[MAX_TEXTS], *not [MAX_TEXTS];
};

static inline void check_texts(const struct texts *cases, size_t n, bool strict)
{
    for (size_t i = 0; i < n; i++) {
        qn_grammar *grammar;
        label("%s", cases[i].schema);
        assert_ok(compile_schema(cases[i].schema, strict, &grammar));
        for (size_t k = 0; k < MAX_TEXTS && cases[i].fit[k]; k++) {
            label("%s: %s", cases[i].schema, cases[i].fit[k]);
            assert_true(fits(grammar, cases[i].fit[k]));
        }
        for (size_t k = 0; k < MAX_TEXTS && cases[i].not [k]; k++) {
            label("%s: %s", cases[i].schema, cases[i].not [k]);
            assert_false(fits(grammar, cases[i].not [k]));
        }
        qn_grammar_free(grammar);
    }
}

#define CHECK_TEXTS(cases, strict) check_texts(cases, sizeof(cases) / sizeof *(cases), strict)

#endif
