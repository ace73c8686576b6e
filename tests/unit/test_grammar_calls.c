/* Grammars of tool calls in each form: numbers of the tools' schemas at every keyword and of any size, wherever they stand, and
 * lengths of strings. */
#include "helper_assert.h"

#include "base/append.h"
#include "text/grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>

static const qn_output_form forms[] = { QN_OUTPUT_XML, QN_OUTPUT_JSON, QN_OUTPUT_LLAMA3 };
enum { N_FORMS = sizeof forms / sizeof *forms };

/* The grammar of calls of a tool `f`, whose parameter `a` has a schema. */
static qn_status compile(qn_output_form form, const char *schema, bool strict, qn_grammar **out)
{
    qn_output_params output;
    json_error_t error;
    json_t *json = json_loads(schema, JSON_DECODE_ANY, &error);
    if (!json)
        fail_msg("%s: %s", error.text, schema);
    json_t *tools = json_pack("[{s:s,s:{s:s,s:{s:s,s:{s:o},s:[s]},s:b}}]", "type", "function", "function", "name", "f",
                              "parameters", "type", "object", "properties", "a", json, "required", "a", "strict", (int)strict);
    assert_non_null(tools);
    qn_output_params_init(&output, form);
    const qn_status status = qn_grammar_from_calls(&(qn_grammar_calls){ .output = &output, .tools = tools }, out);
    json_decref(tools);
    return status;
}

/* Whether a call may have this value, which is written as JSON in the forms of JSON. */
static bool fits(qn_output_form form, const qn_grammar *grammar, const char *value, bool is_string)
{
    char text[1000];
    qn_grammar_state *state;
    const char *quote = is_string ? "\"" : "";
    if (form == QN_OUTPUT_XML)
        snprintf(text, sizeof text, "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>",
                 value);
    else if (form == QN_OUTPUT_JSON)
        snprintf(text, sizeof text, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": %s%s%s}}\n</tool_call>", quote,
                 value, quote);
    else
        snprintf(text, sizeof text, "{\"name\": \"f\", \"parameters\": {\"a\": %s%s%s}}", quote, value, quote);
    assert_ok(qn_grammar_state_create(grammar, &state));
    const bool is = qn_grammar_state_advance(state, text, strlen(text)) && qn_grammar_state_is_finished(state);
    qn_grammar_state_free(state);
    return is;
}

/* ---- Numbers ---- */

static const char *const counts[] = { "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties" },
                         *const bounds[] = { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum" };

/* Places of a keyword: `$` stands for it and its number. In most of them the type that it is about is left out. */
static const char *const places[] = {
    "{\"type\":\"string\",$}",
    "{\"type\":\"null\",$}",
    "{$}",
    "{\"type\":[\"string\",\"number\",\"array\",\"object\"],$}",
    "{\"anyOf\":[{\"type\":\"null\"}],\"type\":\"string\",$}",
    "{\"oneOf\":[{\"type\":\"null\"},{\"type\":\"boolean\"}],\"type\":\"string\",$}",
    "{\"allOf\":[{\"type\":\"null\"}],$}",
    "{\"allOf\":[{\"type\":\"null\"},{\"type\":\"string\",$}]}",
    "{\"enum\":[\"x\",null],$}",
    "{\"const\":null,$}",
    "{\"type\":\"array\",\"items\":{\"type\":\"null\",$}}",
    "{\"type\":\"object\",\"properties\":{\"b\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"string\",$}]}}}",
};
enum { N_PLACES = sizeof places / sizeof *places };

static const char *schema_at(size_t place, const char *keyword, const char *number)
{
    static char text[400];
    const char *at = strchr(places[place], '$');
    qn_text_buffer to = QN_APPEND_TO(text);
    qn_append_bytes(&to, places[place], (size_t)(at - places[place]));
    qn_append(&to, "\"%s\":%s%s", keyword, number, at + 1);
    assert_false(to.is_cut);
    return text;
}

static bool is_min(const char *keyword)
{
    return !strncmp(keyword, "min", 3);
}

/* The schema is well formed, though it may have no value. */
static void assert_taken(qn_status status, qn_grammar *grammar)
{
    if (status != QN_OK && !strstr(qn_error_text(), "no text fits") && !strstr(qn_error_text(), "matches nothing"))
        assert_ok(status);
    qn_grammar_free(grammar);
}

/* A count that none can have is refused at every place, whatever the branches beside it are; a greatest count that no output
 * reaches is none. */
static void test_counts(void **unused)
{
    (void)unused;
    static const char *const malformed[] = { "-1", "0.5", "-1e300", "1e-300", "\"1\"", "null", "true", "[]", "-0.25" },
                             *const huge[] = { "1e300",  "1.2345678912345678e300", "2147483648", "9007199254740991",
                                               "1.8e19", "9223372036854775807",    "1e10",       "1.7976931348623157e308" },
                             *const fine[] = { "0", "1", "1.0", "-0.0", "2147483647", "2147483647.0" };
    qn_grammar *grammar;
    for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
        for (size_t f = 0; f < N_FORMS; f++)
            for (size_t p = 0; p < N_PLACES; p++) {
                char part[60];
                label("%s, form %d, %s", counts[k], forms[f], places[p]);
                for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
                    label("%s", malformed[i]);
                    assert_int_equal(compile(forms[f], schema_at(p, counts[k], malformed[i]), i % 2, &grammar), QN_ERR_INVALID);
                    snprintf(part, sizeof part, "/%s: not a count", counts[k]);
                    assert_text(part);
                }
                for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
                    label("%s", huge[i]);
                    const qn_status status = compile(forms[f], schema_at(p, counts[k], huge[i]), false, &grammar);
                    if (!is_min(counts[k])) {
                        assert_taken(status, grammar);
                        continue;
                    }
                    assert_int_equal(status, QN_ERR_UNSUPPORTED);
                    snprintf(part, sizeof part, "/%s: ", counts[k]);
                    assert_text(part);
                    assert_text("is above 2147483647");
                }
                for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
                    label("%s", fine[i]);
                    const qn_status status = compile(forms[f], schema_at(p, counts[k], fine[i]), false, &grammar);
                    assert_taken(status, grammar);
                }
            }
}

static void test_bounds(void **unused)
{
    (void)unused;
    static const char *const malformed[] = { "\"1\"", "null", "[]", "{}" }, *const fine[] = { "1e300",
                                                                                              "-1e300",
                                                                                              "1.2345678912345678e300",
                                                                                              "5e-324",
                                                                                              "-5e-324",
                                                                                              "0",
                                                                                              "-0.0",
                                                                                              "9223372036854775807",
                                                                                              "-9223372036854775808",
                                                                                              "9007199254740993",
                                                                                              "0.1",
                                                                                              "1.7976931348623157e308",
                                                                                              "-1.7976931348623157e308",
                                                                                              "1e-300" };
    qn_grammar *grammar;
    for (size_t k = 0; k < sizeof bounds / sizeof *bounds; k++)
        for (size_t f = 0; f < N_FORMS; f++)
            for (size_t p = 0; p < N_PLACES; p++) {
                label("%s, form %d, %s", bounds[k], forms[f], places[p]);
                for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
                    char part[60];
                    label("%s", malformed[i]);
                    assert_int_equal(compile(forms[f], schema_at(p, bounds[k], malformed[i]), i % 2, &grammar), QN_ERR_INVALID);
                    snprintf(part, sizeof part, "/%s: not a number", bounds[k]);
                    assert_text(part);
                }
                for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
                    label("%s", fine[i]);
                    const qn_status status = compile(forms[f], schema_at(p, bounds[k], fine[i]), false, &grammar);
                    assert_taken(status, grammar);
                }
            }
}

/* In the form xml the arguments themselves are no rule of a schema. */
static void test_arguments(void **unused)
{
    (void)unused;
    static const char *const refused[] = { "{\"type\":\"object\",\"minProperties\":-1}",
                                           "{\"type\":\"object\",\"maxLength\":\"1\"}",
                                           "{\"allOf\":[{\"minItems\":0.5},{\"type\":\"object\"}]}" };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        for (size_t f = 0; f < N_FORMS; f++) {
            qn_output_params output;
            qn_grammar *grammar;
            label("form %d, %s", forms[f], refused[i]);
            json_t *tools =
                json_pack("[{s:{s:s,s:o}}]", "function", "name", "f", "parameters", json_loads(refused[i], 0, NULL));
            qn_output_params_init(&output, forms[f]);
            assert_int_equal(qn_grammar_from_calls(&(qn_grammar_calls){ .output = &output, .tools = tools }, &grammar),
                             QN_ERR_INVALID);
            assert_text("not a count");
            json_decref(tools);
        }
}

/* Two tools of one name would have each other's arguments. */
static void test_names(void **unused)
{
    (void)unused;
    json_t *tools = json_pack("[{s:{s:s,s:b}}, {s:s}, {s:{s:s}}]", "function", "name", "f", "strict", true, "name", "g",
                              "function", "name", "f");
    for (size_t f = 0; f < N_FORMS; f++) {
        qn_output_params output;
        qn_grammar *grammar;
        label("form %d", forms[f]);
        qn_output_params_init(&output, forms[f]);
        assert_int_equal(qn_grammar_from_calls(&(qn_grammar_calls){ .output = &output, .tools = tools }, &grammar),
                         QN_ERR_INVALID);
        assert_text("two tools have the name 'f'");
    }
    json_decref(tools);
}

/* ---- Lengths ---- */

static void test_lengths(void **unused)
{
    (void)unused;
    static const struct {
        const char *schema, *fit[4], *not [4];
    } cases[] = {
        { "{\"type\":\"string\",\"minLength\":2}", { "bb", "b c d", "\xc3\xa9\xe2\x82\xac" }, { "b", "" } },
        { "{\"type\":\"string\",\"maxLength\":2}", { "", "bb", "\xf0\x9f\x98\x80\xf0\x9f\x98\x80" }, { "ccc" } },
        { "{\"type\":\"string\",\"minLength\":1.0,\"maxLength\":2.0}", { "b", "bb" }, { "", "ccc" } },
        { "{\"type\":\"string\",\"minLength\":0,\"maxLength\":0}", { "" }, { "c" } },
        { "{\"type\":\"string\",\"minLength\":1,\"maxLength\":1e300}", { "b", "bbbbbbbbb" }, { "" } },
        { "{\"type\":\"string\",\"maxLength\":1e300}", { "", "bbbbbbbbb" }, { NULL } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t f = 0; f < N_FORMS; f++)
            for (int strict = 0; strict < 2; strict++) {
                qn_grammar *grammar;
                label("form %d, strict %d, %s", forms[f], strict, cases[i].schema);
                assert_ok(compile(forms[f], cases[i].schema, strict, &grammar));
                for (size_t k = 0; k < 4 && cases[i].fit[k]; k++) {
                    label("'%s'", cases[i].fit[k]);
                    assert_true(fits(forms[f], grammar, cases[i].fit[k], true));
                }
                for (size_t k = 0; k < 4 && cases[i].not [k]; k++) {
                    label("'%s'", cases[i].not [k]);
                    assert_false(fits(forms[f], grammar, cases[i].not [k], true));
                }
                qn_grammar_free(grammar);
            }
}

/* More than there may be at most: no call fits. A line end counts as a character. */
static void test_no_length(void **unused)
{
    (void)unused;
    qn_grammar *grammar;
    for (size_t f = 0; f < N_FORMS; f++) {
        label("form %d", forms[f]);
        assert_int_equal(compile(forms[f], "{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", false, &grammar),
                         QN_ERR_INVALID);
        assert_text("no text fits");
    }
    assert_ok(compile(QN_OUTPUT_XML, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":3}", false, &grammar));
    assert_true(fits(QN_OUTPUT_XML, grammar, "a\nb", true));
    assert_false(fits(QN_OUTPUT_XML, grammar, "ab", true));
    qn_grammar_free(grammar);
}

/* ---- Constants ---- */

static void test_constants(void **unused)
{
    (void)unused;
    static const struct {
        const char *schema, *fit[6], *not [6];
    } cases[] = {
        { "{\"enum\":[0.5]}", { "0.5" }, { "0.6", "5", "0.55" } },
        { "{\"enum\":[1e300,-2.5e-300]}", { "1e300" }, { "1e30", "1", "2e300" } },
    };
    static const struct {
        const char *schema, *fit[10], *not [8];
    } json[] = {
        { "{\"const\":1.5}",
          { "1.5", "1.50", "1.5e0", "1.5E+0", "1.5e+000" },
          { "1.51", "15e-1", "1.5e1", "1.5e-0", "1.5e+0000" } },
        { "{\"const\":-2.5e-7}", { "-2.5e-7", "-2.5E-07", "-0.00000025", "-0.0000002500" }, { "2.5e-7", "-2.5e7", "-2.5e+7" } },
        { "{\"const\":1e20}",
          { "1e20", "1E+20", "100000000000000000000", "100000000000000000000.00" },
          { "1e21", "1e2", "1." } },
        { "{\"const\":1e300}", { "1e300", "1E+300", "1e+00300" }, { "1", "1e30", "1e301" } },
        { "{\"const\":5e-324}", { "5e-324", "5E-324" }, { "5", "5e324" } },
    };
    qn_grammar *grammar;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t f = 0; f < N_FORMS; f++) {
            label("form %d, %s", forms[f], cases[i].schema);
            assert_ok(compile(forms[f], cases[i].schema, true, &grammar));
            for (size_t k = 0; k < 6 && cases[i].fit[k]; k++)
                assert_true(fits(forms[f], grammar, cases[i].fit[k], false) || forms[f] == QN_OUTPUT_XML);
            for (size_t k = 0; k < 6 && cases[i].not [k]; k++)
                assert_false(fits(forms[f], grammar, cases[i].not [k], false));
            qn_grammar_free(grammar);
        }
    for (size_t i = 0; i < sizeof json / sizeof *json; i++) {
        label("%s", json[i].schema);
        assert_ok(compile(QN_OUTPUT_JSON, json[i].schema, true, &grammar));
        for (size_t k = 0; k < 10 && json[i].fit[k]; k++) {
            label("%s", json[i].fit[k]);
            assert_true(fits(QN_OUTPUT_JSON, grammar, json[i].fit[k], false));
        }
        for (size_t k = 0; k < 8 && json[i].not [k]; k++) {
            label("%s", json[i].not [k]);
            assert_false(fits(QN_OUTPUT_JSON, grammar, json[i].not [k], false));
        }
        qn_grammar_free(grammar);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),    cmocka_unit_test(test_bounds),  cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_names),     cmocka_unit_test(test_lengths), cmocka_unit_test(test_no_length),
        cmocka_unit_test(test_constants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
