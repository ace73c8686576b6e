/* Grammars of tool calls in each form: numbers of the tools' schemas at every keyword and of any size, wherever they
 * stand, and lengths of strings. */
#include "helper_assert.h"

#include "base/append.h"
#include "grammar/grammar.h"

static const qn_output_form forms[] = { QN_OUTPUT_XML, QN_OUTPUT_JSON, QN_OUTPUT_LLAMA3 };
enum { N_FORMS = COUNT(forms) };

/* The grammar of calls of a tool `f`, whose parameter `a` has a schema. */
static qn_status compile(qn_output_form form, const char *schema, bool strict, qn_grammar **out)
{
    qn_output_params output;
    json_error_t error;
    json_t *json = json_loads(schema, JSON_DECODE_ANY, &error);
    if (!json)
        fail_msg("%s: %s", error.text, schema);
    json_t *tools =
        json_pack("[{s:s,s:{s:s,s:{s:s,s:{s:o},s:[s]},s:b}}]", "type", "function", "function", "name", "f",
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
        snprintf(text, sizeof text,
                 "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>", value);
    else if (form == QN_OUTPUT_JSON)
        snprintf(text, sizeof text, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": %s%s%s}}\n</tool_call>",
                 quote, value, quote);
    else
        snprintf(text, sizeof text, "{\"name\": \"f\", \"parameters\": {\"a\": %s%s%s}}", quote, value, quote);
    assert_ok(qn_grammar_state_create(grammar, &state));
    const bool is = qn_grammar_state_advance(state, text, strlen(text)) && qn_grammar_state_is_finished(state);
    qn_grammar_state_free(state);
    return is;
}

/* ---- Numbers ---- */

static const char
    *const counts[] = { "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties" },
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
enum { N_PLACES = COUNT(places) };

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

/* A count that none can have is refused at every place, whatever the branches beside it are; a greatest count that no
 * output reaches is none. */
TEST(test_counts)
{
    static const char *const malformed[] = { "-1", "0.5", "-1e300", "1e-300", "\"1\"", "null", "true", "[]", "-0.25" },
                             *const huge[] = { "1e300",      "1.2345678912345678e300",
                                               "2147483648", "9007199254740991",
                                               "1.8e19",     "9223372036854775807",
                                               "1e10",       "1.7976931348623157e308" },
                             *const fine[] = { "0", "1", "1.0", "-0.0", "2147483647", "2147483647.0" };
    qn_grammar *grammar;
    for (size_t k = 0; k < COUNT(counts); k++)
        for (size_t f = 0; f < N_FORMS; f++)
            for (size_t p = 0; p < N_PLACES; p++) {
                char part[60];
                label("%s, form %d, %s", counts[k], forms[f], places[p]);
                for (size_t i = 0; i < COUNT(malformed); i++) {
                    label("%s", malformed[i]);
                    assert_int_equal(compile(forms[f], schema_at(p, counts[k], malformed[i]), i % 2, &grammar),
                                     QN_ERR_INVALID);
                    snprintf(part, sizeof part, "/%s: not a count", counts[k]);
                    assert_text(part);
                }
                for (size_t i = 0; i < COUNT(huge); i++) {
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
                for (size_t i = 0; i < COUNT(fine); i++) {
                    label("%s", fine[i]);
                    const qn_status status = compile(forms[f], schema_at(p, counts[k], fine[i]), false, &grammar);
                    assert_taken(status, grammar);
                }
            }
}

TEST(test_bounds)
{
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
    for (size_t k = 0; k < COUNT(bounds); k++)
        for (size_t f = 0; f < N_FORMS; f++)
            for (size_t p = 0; p < N_PLACES; p++) {
                label("%s, form %d, %s", bounds[k], forms[f], places[p]);
                for (size_t i = 0; i < COUNT(malformed); i++) {
                    char part[60];
                    label("%s", malformed[i]);
                    assert_int_equal(compile(forms[f], schema_at(p, bounds[k], malformed[i]), i % 2, &grammar),
                                     QN_ERR_INVALID);
                    snprintf(part, sizeof part, "/%s: not a number", bounds[k]);
                    assert_text(part);
                }
                for (size_t i = 0; i < COUNT(fine); i++) {
                    label("%s", fine[i]);
                    const qn_status status = compile(forms[f], schema_at(p, bounds[k], fine[i]), false, &grammar);
                    assert_taken(status, grammar);
                }
            }
}

/* In the form xml the arguments themselves are no rule of a schema. */
TEST(test_arguments)
{
    static const char *const refused[] = { "{\"type\":\"object\",\"minProperties\":-1}",
                                           "{\"type\":\"object\",\"maxLength\":\"1\"}",
                                           "{\"allOf\":[{\"minItems\":0.5},{\"type\":\"object\"}]}" };
    for (size_t i = 0; i < COUNT(refused); i++)
        for (size_t f = 0; f < N_FORMS; f++) {
            qn_output_params output;
            qn_grammar *grammar;
            label("form %d, %s", forms[f], refused[i]);
            json_t *tools =
                json_pack("[{s:{s:s,s:o}}]", "function", "name", "f", "parameters", json_loads(refused[i], 0, NULL));
            qn_output_params_init(&output, forms[f]);
            assert_fails(qn_grammar_from_calls(&(qn_grammar_calls){ .output = &output, .tools = tools }, &grammar),
                         QN_ERR_INVALID, "not a count");
            json_decref(tools);
        }
}

/* Two tools of one name would have each other's arguments. */
TEST(test_names)
{
    json_t *tools = json_pack("[{s:{s:s,s:b}}, {s:s}, {s:{s:s}}]", "function", "name", "f", "strict", true, "name", "g",
                              "function", "name", "f");
    for (size_t f = 0; f < N_FORMS; f++) {
        qn_output_params output;
        qn_grammar *grammar;
        label("form %d", forms[f]);
        qn_output_params_init(&output, forms[f]);
        assert_fails(qn_grammar_from_calls(&(qn_grammar_calls){ .output = &output, .tools = tools }, &grammar),
                     QN_ERR_INVALID, "two tools have the name 'f'");
    }
    json_decref(tools);
}

/* Arguments are objects, whatever the schema says. */
TEST(test_types)
{
    static const struct {
        const char *schema;
        bool may_be;
    } cases[] = { { "{\"type\":\"string\"}", false }, { "{\"type\":\"array\"}", false },
                  { "{\"type\":\"null\"}", false },   { "{\"type\":[\"string\",\"null\"]}", false },
                  { "{\"type\":[]}", false },         { "{\"type\":[\"null\",\"object\"]}", true },
                  { "{\"type\":\"object\"}", true },  { "{}", true } };
    for (size_t i = 0; i < COUNT(cases) * N_FORMS; i++) {
        qn_output_params output;
        qn_grammar *grammar;
        json_t *tools =
            json_pack("[{s:s,s:o}]", "name", "f", "parameters", json_loads(cases[i / N_FORMS].schema, 0, NULL));
        label("form %d, %s", forms[i % N_FORMS], cases[i / N_FORMS].schema);
        qn_output_params_init(&output, forms[i % N_FORMS]);
        const qn_status status =
            qn_grammar_from_calls(&(qn_grammar_calls){ .output = &output, .tools = tools }, &grammar);
        assert_int_equal(status, cases[i / N_FORMS].may_be ? QN_OK : QN_ERR_INVALID);
        if (status != QN_OK)
            assert_text("tool 'f': the type of its arguments is not");
        qn_grammar_free(grammar);
        json_decref(tools);
    }
}

/* ---- Lengths ---- */

TEST(test_lengths)
{
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
    for (size_t i = 0; i < COUNT(cases); i++)
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
TEST(test_no_length)
{
    qn_grammar *grammar;
    for (size_t f = 0; f < N_FORMS; f++) {
        label("form %d", forms[f]);
        assert_fails(compile(forms[f], "{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", false, &grammar),
                     QN_ERR_INVALID, "no text fits");
    }
    assert_ok(compile(QN_OUTPUT_XML, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":3}", false, &grammar));
    assert_true(fits(QN_OUTPUT_XML, grammar, "a\nb", true));
    assert_false(fits(QN_OUTPUT_XML, grammar, "ab", true));
    qn_grammar_free(grammar);
}

/* ---- Constants ---- */

TEST(test_constants)
{
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
        { "{\"const\":-2.5e-7}",
          { "-2.5e-7", "-2.5E-07", "-0.00000025", "-0.0000002500" },
          { "2.5e-7", "-2.5e7", "-2.5e+7" } },
        { "{\"const\":1e20}",
          { "1e20", "1E+20", "100000000000000000000", "100000000000000000000.00" },
          { "1e21", "1e2", "1." } },
        { "{\"const\":1e300}", { "1e300", "1E+300", "1e+00300" }, { "1", "1e30", "1e301" } },
        { "{\"const\":5e-324}", { "5e-324", "5E-324" }, { "5", "5e324" } },
    };
    qn_grammar *grammar;
    for (size_t i = 0; i < COUNT(cases); i++)
        for (size_t f = 0; f < N_FORMS; f++) {
            label("form %d, %s", forms[f], cases[i].schema);
            assert_ok(compile(forms[f], cases[i].schema, true, &grammar));
            for (size_t k = 0; k < 6 && cases[i].fit[k]; k++)
                assert_true(fits(forms[f], grammar, cases[i].fit[k], false) || forms[f] == QN_OUTPUT_XML);
            for (size_t k = 0; k < 6 && cases[i].not [k]; k++)
                assert_false(fits(forms[f], grammar, cases[i].not [k], false));
            qn_grammar_free(grammar);
        }
    for (size_t i = 0; i < COUNT(json); i++) {
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

/* ---- Arguments ---- */

/* A call of `f` as a template prints it. */
static void print_call(qn_output_form form, const char *arguments, qn_text_buffer *to)
{
    json_t *json = json_loads(arguments, 0, NULL), *value;
    const char *key;
    assert_non_null(json);
    if (form != QN_OUTPUT_XML) {
        char *text = json_dumps(json, 0);
        qn_append(to,
                  form == QN_OUTPUT_JSON ? "<tool_call>\n{\"name\": \"f\", \"arguments\": %s}\n</tool_call>"
                                         : "{\"name\": \"f\", \"parameters\": %s}",
                  text);
        free(text);
    } else {
        qn_append(to, "<tool_call>\n<function=f>\n");
        json_object_foreach(json, key, value)
        {
            char *text = json_is_string(value) ? strdup(json_string_value(value)) : json_dumps(value, JSON_ENCODE_ANY);
            qn_append(to, "<parameter=%s>\n%s\n</parameter>\n", key, text);
            free(text);
        }
        qn_append(to, "</function>\n</tool_call>");
    }
    assert_false(to->is_cut);
    json_decref(json);
}

static bool call_fits(qn_output_form form, const qn_grammar *grammar, const char *arguments)
{
    static char text[4000];
    qn_text_buffer to = QN_APPEND_TO(text);
    qn_grammar_state *state;
    print_call(form, arguments, &to);
    assert_ok(qn_grammar_state_create(grammar, &state));
    const bool is = qn_grammar_state_advance(state, text, to.length) && qn_grammar_state_is_finished(state);
    qn_grammar_state_free(state);
    return is;
}

enum { N_ARGUMENTS = 6 };
struct arguments {
    const char *parameters; /* NULL: the tool has none */
    const char *fit[N_ARGUMENTS], *not [N_ARGUMENTS];
};

static void check_arguments(const struct arguments *cases, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < 2 * N_FORMS; k++) {
            const qn_output_form form = forms[k / 2];
            qn_output_params output;
            qn_grammar *grammar;
            json_error_t error;
            json_t *parameters = cases[i].parameters ? json_loads(cases[i].parameters, 0, &error) : NULL;
            label("form %d, strict %zu, %s", form, k % 2, cases[i].parameters ? cases[i].parameters : "no parameters");
            json_t *tools = json_pack("[{s:{s:s,s:b,s:o*}}]", "function", "name", "f", "strict", (int)(k % 2),
                                      "parameters", parameters);
            assert_non_null(tools);
            qn_output_params_init(&output, form);
            assert_ok(qn_grammar_from_calls(&(qn_grammar_calls){ .output = &output, .tools = tools }, &grammar));
            for (size_t a = 0; a < N_ARGUMENTS && cases[i].fit[a]; a++) {
                label("%s", cases[i].fit[a]);
                assert_true(call_fits(form, grammar, cases[i].fit[a]));
            }
            for (size_t a = 0; a < N_ARGUMENTS && cases[i].not [a]; a++) {
                label("%s", cases[i].not [a]);
                assert_false(call_fits(form, grammar, cases[i].not [a]));
            }
            qn_grammar_free(grammar);
            json_decref(tools);
        }
}

/* Parameters that are not among the root's own properties. */
TEST(test_roots)
{
#define CONTENT "{\"properties\":{\"content\":{\"type\":\"string\"}},\"required\":[\"content\"]}"
#define SOURCE "{\"properties\":{\"source_url\":{\"type\":\"string\"}},\"required\":[\"source_url\"]}"
    static const struct arguments cases[] = {
        { "{\"type\":\"object\",\"anyOf\":[" CONTENT "," SOURCE "]}",
          { "{\"content\":\"hello\"}", "{\"source_url\":\"x\"}" },
          { "{}", "{\"content\":\"a\",\"source_url\":\"b\"}", "{\"other\":\"a\"}" } },
        { "{\"anyOf\":[" CONTENT "," SOURCE "]}", { "{\"content\":\"hello\"}" }, { "{}" } },
        { "{\"type\":\"object\",\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"content\":{\"type\":\"string\"}},"
          "\"required\":[\"k\","
          "\"content\"]},{\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":[\"k\"]}]}",
          { "{\"k\":\"a\",\"content\":\"x\"}", "{\"k\":\"b\"}" },
          { "{\"k\":\"a\"}", "{\"k\":\"b\",\"content\":\"x\"}", "{}" } },
        { "{\"$ref\":\"#/$defs/u\",\"$defs\":{\"u\":{\"anyOf\":[" CONTENT "," SOURCE "]}}}",
          { "{\"content\":\"hello\"}", "{\"source_url\":\"x\"}" },
          { "{}" } },
        { "{\"type\":\"object\",\"properties\":{\"path\":{\"type\":\"string\"}},\"required\":[\"path\"],\"anyOf\":"
          "[" CONTENT "," SOURCE "]}",
          { "{\"path\":\"p\",\"content\":\"hello\"}", "{\"path\":\"p\",\"source_url\":\"x\"}" },
          { "{\"path\":\"p\"}", "{\"content\":\"x\"}", "{\"content\":\"x\",\"path\":\"p\"}" } },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"anyOf\":[{"
          "\"required\":[\"a\"]},{"
          "\"required\":[\"b\"]}]}",
          { "{\"a\":1}", "{\"b\":\"x\"}", "{\"a\":1,\"b\":\"x\"}" },
          { "{}", "{\"a\":\"x\"}" } },
        { "{\"const\":{\"a\":1,\"b\":\"x\"}}",
          { "{\"a\":1,\"b\":\"x\"}" },
          { "{}", "{\"a\":1}", "{\"a\":1,\"b\":\"y\"}", "{\"a\":1,\"b\":\"x\",\"c\":2}" } },
        { "{\"type\":\"object\",\"propertyNames\":{\"$ref\":\"#/$defs/"
          "c\"},\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1,\"$defs\":{\"c\":{\"enum\":["
          "\"red\","
          "\"green\"],\"type\":\"string\"}}}",
          { "{\"red\":1}", "{\"red\":1,\"green\":2}" },
          { "{}", "{\"blue\":1}", "{\"red\":\"x\"}" } },
        { "{\"type\":\"object\",\"propertyNames\":{\"const\":\"a\"},\"properties\":{\"a\":{\"enum\":[\"x\"]},\"b\":{"
          "\"type\":"
          "\"integer\"}}}",
          { "{\"a\":\"x\"}", "{}" },
          { "{\"b\":1}", "{\"a\":\"y\"}" } },
        { "{\"type\":\"object\",\"propertyNames\":{\"type\":\"string\"},\"additionalProperties\":{\"type\":\"integer\"}"
          "}",
          { "{\"any\":1}", "{}" },
          { "{\"any\":\"x\"}" } },
        { "{\"type\":\"object\",\"propertyNames\":false}", { "{}" }, { "{\"a\":1}" } },
        { "{\"const\":{\"a\":1,\"b\":\"5\"}}", { "{\"a\":1,\"b\":\"5\"}" }, { "{\"a\":1,\"b\":\"6\"}" } },
        { "{\"properties\":{\"v\":{\"pattern\":\"^[0-9]{3}$\"},\"w\":{\"anyOf\":[{\"maxLength\":3},{\"type\":\"null\"}]"
          "}},"
          "\"required\":[\"v\"]}",
          { "{\"v\":\"123\"}", "{\"v\":\"012\",\"w\":\"5\"}", "{\"v\":\"123\",\"w\":null}" },
          { "{\"v\":\"12\"}", "{\"v\":\"123\",\"w\":\"long\"}" } },
        { "{\"type\":\"object\",\"enum\":[{\"a\":1},{\"b\":[\"x\",null]},{},7]}",
          { "{\"a\":1}", "{\"b\":[\"x\",null]}", "{}" },
          { "{\"a\":2}", "{\"b\":[\"x\"]}", "{\"a\":1,\"b\":[\"x\",null]}" } },
        { "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1}",
          { "{\"a\":1}", "{\"a\":1,\"b\":2}" },
          { "{}", "{\"a\":\"x\"}" } },
        { "{\"type\":\"object\",\"patternProperties\":{\"^x-\":{\"type\":\"integer\"}},\"additionalProperties\":false,"
          "\"minProperties\":1}",
          { "{\"x-a\":1}" },
          { "{}", "{\"a\":1}", "{\"x-a\":\"b\"}" } },
        { "{\"oneOf\":[{\"properties\":{\"t\":{\"const\":\"a\"}},\"required\":[\"t\"]},{\"properties\":{\"t\":{"
          "\"const\":\"b\"}"
          "},\"required\":[\"t\"]}],\"discriminator\":{\"propertyName\":\"t\"}}",
          { "{\"t\":\"a\"}", "{\"t\":\"b\"}" },
          { "{\"t\":\"c\"}", "{}" } },
        { "{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"a\",\"b\"]}},\"required\":[\"kind\"],\"if\":{"
          "\"properties\":{\"kind\":{\"const\":"
          "\"a\"}}},\"then\":" CONTENT ",\"else\":" SOURCE "}",
          { "{\"kind\":\"a\",\"content\":\"x\"}", "{\"kind\":\"b\",\"source_url\":\"x\"}" },
          { "{\"kind\":\"a\"}", "{\"kind\":\"b\",\"content\":\"x\"}", "{\"kind\":\"b\"}" } },
        { "{\"type\":\"object\",\"additionalProperties\":true}", { "{}", "{\"a\":\"x\",\"b\":[1]}" }, { NULL } },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}},\"additionalProperties\":{\"type\":"
          "\"integer\"}}",
          { "{\"z\":5}", "{\"a\":\"x\",\"y\":1,\"z\":2}", "{}" },
          { "{\"z\":\"x\"}", "{\"z\":1,\"a\":\"x\"}" } },
        { "{\"type\":\"object\"}", { "{}", "{\"a\":\"x\",\"b\":{\"c\":1}}" }, { NULL } },
        { "{}", { "{}", "{\"a\":\"x\"}" }, { NULL } },
        { NULL, { "{}", "{\"a\":\"x\"}" }, { NULL } },
        { "{\"type\":[\"object\",\"null\"],\"properties\":{\"a\":{\"type\":\"integer\"}}}",
          { "{\"a\":1}" },
          { "{\"b\":1}" } },
        { "{\"type\":\"object\",\"patternProperties\":{\"^x\":{\"type\":\"integer\"},\"z$\":{\"maximum\":9}},"
          "\"additionalProperties\":{\"enum\":["
          "\"o\"]}}",
          { "{\"xa\":10,\"b\":\"o\",\"xz\":3}" },
          { "{\"xa\":\"o\"}", "{\"b\":10}", "{\"xz\":10}" } },
        { "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"string\"}},\"required\":[\"a\"]},{\"properties\":{\"a\":{"
          "\"maxLength\":2}}}]}",
          { "{\"a\":\"xy\"}" },
          { "{\"a\":\"xyz\"}", "{}" } },
        { "{\"type\":\"object\",\"properties\":{\"r\":{\"type\":\"string\"},\"a\":{\"type\":\"string\"}}}",
          { "{\"r\":\"x\",\"a\":\"y\"}", "{\"a\":\"y\"}" },
          { "{\"a\":\"y\",\"r\":\"x\"}" } },
    };
    check_arguments(cases, COUNT(cases));
}

/* Values are held to what references and combinations say of them. */
TEST(test_values)
{
#define V(schema)                                                                                                      \
    "{\"type\":\"object\",\"properties\":{\"v\":" schema                                                               \
    "},\"required\":[\"v\"],\"$defs\":{\"C\":{\"type\":\"string\",\"enum\":[\"red\","                                  \
    "\"green\"]},\"A\":{\"$ref\":\"#/$defs/C\"},\"W\":{\"type\":\"string\",\"pattern\":\"^[a-z]+$\"}}}"
    static const struct arguments cases[] = {
        { V("{\"$ref\":\"#/$defs/C\"}"),
          { "{\"v\":\"red\"}" },
          { "{\"v\":\"purple\"}", "{\"v\":\"\"}", "{\"v\":\"redx\"}" } },
        { V("{\"$ref\":\"#/$defs/A\",\"description\":\"x\"}"), { "{\"v\":\"green\"}" }, { "{\"v\":\"purple\"}" } },
        { V("{\"allOf\":[{\"$ref\":\"#/$defs/C\"}],\"default\":\"red\"}"),
          { "{\"v\":\"green\"}" },
          { "{\"v\":\"purple\"}" } },
        { V("{\"anyOf\":[{\"$ref\":\"#/$defs/C\"},{\"type\":\"null\"}]}"),
          { "{\"v\":\"red\"}", "{\"v\":null}" },
          { "{\"v\":\"x\"}", "{\"v\":1}" } },
        { V("{\"anyOf\":[{\"enum\":[\"a\",\"b\"],\"type\":\"string\"},{\"type\":\"null\"}]}"),
          { "{\"v\":\"a\"}", "{\"v\":null}" },
          { "{\"v\":\"c\"}" } },
        { V("{\"oneOf\":[{\"const\":\"auto\"},{\"type\":\"integer\",\"maximum\":3}]}"),
          { "{\"v\":\"auto\"}", "{\"v\":2}" },
          { "{\"v\":\"x\"}", "{\"v\":4}" } },
        { V("{\"$ref\":\"#/$defs/W\",\"maxLength\":3}"),
          { "{\"v\":\"abc\"}" },
          { "{\"v\":\"abcd\"}", "{\"v\":\"AB\"}", "{\"v\":\"\"}" } },
        { V("{\"allOf\":[{\"type\":\"string\"},{\"minLength\":2},{\"maxLength\":3}]}"),
          { "{\"v\":\"ab\"}", "{\"v\":\"\u00e9\u20ac\"}" },
          { "{\"v\":\"a\"}", "{\"v\":\"abcd\"}" } },
        { V("{\"type\":\"string\",\"maxLength\":2000,\"minLength\":1}"), { "{\"v\":\"a\"}" }, { "{\"v\":\"\"}" } },
        { V("{\"type\":\"string\",\"format\":\"date\"}"), { "{\"v\":\"2024-02-29\"}" }, { "{\"v\":\"2023-02-29\"}" } },
        { V("{\"enum\":[\"a\",1,null,true,[1]]}"),
          { "{\"v\":\"a\"}", "{\"v\":1}", "{\"v\":null}", "{\"v\":[1]}" },
          { "{\"v\":2}", "{\"v\":\"b\"}", "{\"v\":false}" } },
        { V("{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/C\"}}"),
          { "{\"v\":[\"red\"]}" },
          { "{\"v\":[\"x\"]}" } },
        { V("{\"type\":\"string\",\"not\":{\"enum\":[\"a\",\"b\"]}}"),
          { "{\"v\":\"c\"}", "{\"v\":\"ab\"}" },
          { "{\"v\":\"a\"}" } },
    };
    check_arguments(cases, COUNT(cases));
}

/* Where a string may be something else, what would be read as that is no string; and no text has what ends it. */
TEST(test_readings)
{
    static const struct {
        const char *schema, *fit[6], *not [6];
    } cases[] = {
        { "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\",\"minimum\":3,\"maximum\":4}]}",
          { "3", "x", "5x", "1.5", "" },
          { "5", " 5 ", "5.0", "1e3" } },
        { "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}]}",
          { "[1, 2]", "x", "a[" },
          { "[x", "[\"a\"]" } },
        { "{\"type\":[\"string\",\"null\"],\"enum\":[\"a\",\"null\"]}", { "a" }, { "null", "None" } },
        { "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":4},{\"type\":\"boolean\"}]}",
          { "true", "False", "tru", "trux" },
          { "truex" } },
        { "{\"type\":[\"string\",\"integer\"],\"minLength\":2}", { "ab", "5" }, { "a" } },
        { "{\"type\":[\"string\",\"integer\"]}", { "a", "5" }, { NULL } },
        { "{}", { "a", "5", "[x", "null" }, { "<parameter=a>", "a</parameter>b" } },
        { "{\"type\":\"string\"}",
          { "<parameter=b>", "<parameter=", "<param", "</paramete", "\n</x>" },
          { "x<parameter=a>", "a\n</parameter>\nb", "</function>" } },
        { "{\"type\":\"string\",\"pattern\":\"a$\"}", { "a", "<a" }, { "</parameter>a", "<parameter=a>a" } },
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int strict = 0; strict < 2; strict++) {
            qn_grammar *grammar;
            label("strict %d, %s", strict, cases[i].schema);
            assert_ok(compile(QN_OUTPUT_XML, cases[i].schema, strict, &grammar));
            for (size_t k = 0; k < 6 && cases[i].fit[k]; k++) {
                label("'%s'", cases[i].fit[k]);
                assert_true(fits(QN_OUTPUT_XML, grammar, cases[i].fit[k], true));
            }
            for (size_t k = 0; k < 6 && cases[i].not [k]; k++) {
                label("'%s'", cases[i].not [k]);
                assert_false(fits(QN_OUTPUT_XML, grammar, cases[i].not [k], true));
            }
            qn_grammar_free(grammar);
        }
}
