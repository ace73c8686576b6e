/* Strict schemas: what fits validates, what cannot be held is refused, and what validates fits. */
#include "helper_texts.h"
#include "helper_time.h"

#include "base/append.h"

TEST(test_constants)
{
    static const struct texts cases[] = {
        { "{\"type\":\"integer\",\"enum\":[1,2,3],\"minimum\":2}", { "2", "3" }, { "1" } },
        { "{\"type\":\"string\",\"enum\":[\"a\",\"bb\",\"ccc\"],\"minLength\":2,\"pattern\":\"b|c\",\"maxLength\":2}",
          { "\"bb\"" },
          { "\"a\"", "\"ccc\"" } },
        { "{\"enum\":[\"a\",1,null,[1],{\"k\":0.1}],\"minimum\":2,\"minLength\":1,\"minItems\":1}",
          { "\"a\"", "null", "[1]", "{\"k\":0.1}" },
          { "1" } },
        { "{\"enum\":[{\"k\":1},{\"k\":2},{\"l\":1}],\"properties\":{\"k\":{\"$ref\":\"#/$defs/"
          "big\"}},\"$defs\":{\"big\":{"
          "\"minimum\":2}}}",
          { "{\"k\":2}", "{\"l\":1}" },
          { "{\"k\":1}" } },
        { "{\"enum\":[0.1,0.30000000000000004,1e30],\"exclusiveMinimum\":0.1,\"maximum\":1}",
          { "0.30000000000000004" },
          { "0.1", "1e30" } },
        { "{\"type\":\"string\",\"enum\":[\"2024-02-29\",\"2023-02-29\"],\"format\":\"date\"}",
          { "\"2024-02-29\"" },
          { "\"2023-02-29\"" } },
        { "{\"type\":\"integer\",\"enum\":[1.0,2,2.5]}", { "1", "2" }, { "2.5" } },
        { "{\"type\":\"integer\",\"const\":1.0,\"minimum\":1}", { "1" }, { "2" } },
        { "{\"const\":1,\"enum\":[1.0,2]}", { "1" }, { "2" } },
        { "{\"enum\":[1,5],\"anyOf\":[{\"minimum\":3},{\"type\":\"string\"}]}", { "5" }, { "1" } },
    };
    CHECK_TEXTS(cases, true);
    CHECK_TEXTS(cases, false);
}

TEST(test_numbers)
{
    static const struct texts cases[] = {
        { "{\"type\":\"number\",\"minimum\":0}",
          { "0", "-0.0", "1e-07", "5e-05", "1e+16", "1.5E-7", "2e0", "1.7976931348623157e+308", "5e-324" },
          { "-1e-07", "-5e-324", "-1", "-0.1" } },
        { "{\"type\":\"number\",\"exclusiveMinimum\":0}", { "1e-07", "0.5" }, { "0", "0.0", "-0.0", "1e-400" } },
        { "{\"type\":\"number\",\"maximum\":0}", { "-1e-07", "0", "-0.0", "-3e20" }, { "1e-07", "0.001" } },
        { "{\"type\":\"number\",\"minimum\":1e20}",
          { "1e20", "1e+21", "100000000000000000000", "2000000000000000000000" },
          { "5", "9.9e19", "99999999999999999999" } },
        { "{\"type\":\"number\",\"maximum\":-1e20}", { "-1e20", "-100000000000000000000" }, { "5", "-9.9e19", "-1" } },
        { "{\"type\":\"number\",\"minimum\":-2.5e-3,\"maximum\":1250}",
          { "-2.5e-03", "-2.4e-3", "-0.0025", "1.25e3", "1.2e3", "9e2", "1e-300" },
          { "-2.6e-3", "-1e-2", "1.3e3", "1e4", "1.2500001e3" } },
        { "{\"type\":\"number\",\"exclusiveMinimum\":1,\"exclusiveMaximum\":10}",
          { "1.0000000000000002", "9.999999999999998", "2e0" },
          { "1.00000000000000000001", "9.99999999999999999999", "1e0", "1e1", "10.0" } },
        { "{\"type\":\"integer\",\"minimum\":0,\"maximum\":18446744073709551615.0}",
          { "18446744073709551615", "0" },
          { "18446744073709551617", "-1" } },
        { "{\"type\":\"number\",\"minimum\":1e300}", { "1e300", "1.5e305" }, { "9e299", "5" } },
    };
    CHECK_TEXTS(cases, true);
}

TEST(test_formats)
{
    static const struct texts cases[] = {
        { "{\"format\":\"date\"}",
          { "\"2024-02-29\"", "\"2000-02-29\"", "\"0004-02-29\"", "\"0001-01-01\"", "\"9999-12-31\"" },
          { "\"0000-01-01\"", "\"2023-02-29\"", "\"1900-02-29\"", "\"0000-02-29\"" } },
        { "{\"format\":\"date-time\"}", { "\"2024-02-29T00:00:00Z\"" }, { "\"2023-02-29T00:00:00Z\"" } },
        { "{\"format\":\"ipv6\"}",
          { "\"::\"", "\"::1\"", "\"fe80::1:2\"", "\"1:2:3:4:5:6:7:8\"", "\"1:2:3:4:5:6:7::\"", "\"::2:3:4:5:6:7:8\"" },
          { "\"zzz\"", "\"1:2:3\"", "\"1::2::3\"", "\"1:2:3:4:5:6:7:8:9\"", "\"12345::\"", "\":1\"" } },
        { "{\"format\":\"hostname\"}",
          { "\"localhost\"", "\"a-b.example.org\"", "\"1.2\"", "\"a.b.c.d.e.f.g.h\"" },
          { "\"-bad-\"", "\"a..b\"", "\"\"", "\"a_b\"", "\"a-\"" } },
        { "{\"format\":\"uri\"}",
          { "\"http://a.b/c?d=e&f#g\"", "\"mailto:x@y.org\"", "\"urn:isbn:1\"", "\"file:///a%20b\"",
            "\"http://u:p@h:80/\"" },
          { "\"not a uri\"", "\"/a\"", "\"http://a b\"", "\"1a:b\"", "\"http://a/%zz\"" } },
        { "{\"format\":\"duration\"}",
          { "\"P1Y2M3DT4H5M6S\"", "\"PT36H\"", "\"P4W\"", "\"P1D\"", "\"P1M\"" },
          { "\"P\"", "\"PT\"", "\"1D\"", "\"P1S\"", "\"P1Y4W\"" } },
        { "{\"format\":\"json-pointer\"}", { "\"\"", "\"/a/0/~1\"" }, { "\"a\"", "\"/~2\"" } },
        { "{\"type\":\"integer\",\"format\":\"int32\"}", { "1" }, { "\"1\"" } },
    };
    CHECK_TEXTS(cases, true);
}

TEST(test_one_of)
{
    static const struct texts cases[] = {
        { "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":[\"string\",\"null\"]},{\"type\":\"array\"}]}",
          { "1", "\"a\"", "null", "[]" },
          { "1.5", "true" } },
        { "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"k\":{\"const\":\"a\"},\"n\":{\"type\":\"integer\"}},"
          "\"required\":"
          "[\"k\"]}"
          ",{\"type\":\"object\",\"properties\":{\"k\":{\"enum\":[\"b\",\"c\"]}},\"required\":[\"k\"]}]}",
          { "{\"k\":\"a\",\"n\":1}", "{\"k\":\"c\",\"n\":\"x\"}" },
          { "{\"k\":\"a\",\"n\":\"x\"}", "{}" } },
        { "{\"type\":\"object\",\"required\":[\"k\"],\"oneOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/"
          "b\"}],\"$defs\":{"
          "\"a\":{\"properties\":{\"k\":{\"const\":\"a\"}}},\"b\":{\"properties\":{\"k\":{\"const\":\"b\"}}}}}",
          { "{\"k\":\"a\"}", "{\"k\":\"b\"}" },
          { "{\"k\":\"c\"}" } },
        { "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"a\"],\"additionalProperties\":"
          "false},{"
          "\"type\":\"object\",\"properties\":{\"b\":{}},\"required\":[\"b\"],\"additionalProperties\":false}]}",
          { "{\"a\":1}", "{\"b\":1}" },
          { "{\"a\":1,\"b\":1}", "{}" } },
        { "{\"oneOf\":[{\"const\":1},{\"const\":2},{\"enum\":[\"x\"]}]}", { "1", "2", "\"x\"" }, { "3" } },
        { "{\"oneOf\":[{\"type\":\"integer\",\"maximum\":5},{\"type\":\"number\",\"exclusiveMinimum\":5}]}",
          { "5", "5.5" },
          { "4.5" } },
    };
    static const char *const refused[] = {
        "{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
        "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}}},{\"type\":\"object\","
        "\"properties\":{"
        "\"b\":{\"type\":\"integer\"}}}]}",
        "{\"oneOf\":[{\"items\":{\"type\":\"string\"}},{\"items\":{\"type\":\"null\"}}],\"type\":\"array\"}",
        /* a name that a pattern matches is not an additional one */
        "{\"oneOf\":[{\"type\":\"object\",\"required\":[\"x1\"]},{\"type\":\"object\",\"patternProperties\":{\"^x\":{}},"
        "\"additionalProperties\":false}]}",
        /* {"k":2,"a1":5} fits both, by `else` */
        "{\"oneOf\":[{\"type\":\"object\",\"required\":[\"k\"],\"if\":{\"patternProperties\":{\"^a\":{\"type\":\"string\"}}},"
        "\"then\":{\"properties\":{\"k\":{\"const\":1}}},\"else\":{\"properties\":{\"k\":{\"const\":2}}}},"
        "{\"type\":\"object\",\"required\":[\"k\"],\"properties\":{\"k\":{\"const\":2}}}]}",
        "{\"oneOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}",
    };
    CHECK_TEXTS(cases, true);
    for (size_t i = 0; i < COUNT(refused); i++) {
        qn_grammar *grammar;
        label("%s", refused[i]);
        assert_fails(compile_schema(refused[i], true, &grammar), QN_ERR_UNSUPPORTED,
                     "/oneOf: it is not clear that alternatives 0 and 1 exclude each other");
        if (i + 1 < COUNT(refused)) {
            assert_ok(compile_schema(refused[i], false, &grammar));
            qn_grammar_free(grammar);
        }
    }
}

TEST(test_references)
{
    static const struct texts cases[] = {
        { "{\"$ref\":\"#/definitions/a%20b%2fc\",\"definitions\":{\"a b\":{\"c\":{\"type\":\"null\"}}}}",
          { "null" },
          { "1" } },
        { "{\"$ref\":\"#/definitions/a%25b\",\"definitions\":{\"a%b\":{\"type\":\"null\"}}}", { "null" }, { "1" } },
        { "{\"items\":{\"$ref\":\"#node\"},\"$defs\":{\"x\":[{\"$anchor\":\"node\",\"type\":\"null\"}]}}",
          { "[null]" },
          { "[1]" } },
        { "{\"$id\":\"https://a.b/s.json\",\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"https://a.b/"
          "s.json\"},\"m\":{"
          "\"$ref\":\"https://a.b/s.json#/$defs/"
          "m\"}},\"additionalProperties\":false,\"$defs\":{\"m\":{\"type\":\"null\"}}}",
          { "{\"n\":{\"m\":null}}" },
          { "{\"m\":1}", "{\"n\":1}" } },
    };
    CHECK_TEXTS(cases, true);
}

TEST(test_merges)
{
    static const struct texts cases[] = {
        { "{\"type\":\"integer\",\"allOf\":[{\"minimum\":5,\"exclusiveMinimum\":true},{\"minimum\":7}]}",
          { "7" },
          { "5", "6" } },
        { "{\"type\":\"integer\",\"allOf\":[{\"minimum\":7},{\"minimum\":7,\"exclusiveMinimum\":true}]}",
          { "8" },
          { "7" } },
        { "{\"type\":\"integer\",\"allOf\":[{\"maximum\":5,\"exclusiveMaximum\":false},{\"maximum\":5,"
          "\"exclusiveMaximum\":"
          "true}]}",
          { "4" },
          { "5" } },
        { "{\"allOf\":[{\"const\":2},{\"enum\":[1,2.0]}]}", { "2" }, { "1" } },
        { "{\"allOf\":[{\"enum\":[1,3]},{\"const\":3},{\"minimum\":2}]}", { "3" }, { "1" } },
        { "{\"anyOf\":[{\"const\":1},{\"const\":3}],\"enum\":[3,4]}", { "3" }, { "1", "4" } },
        { "{\"anyOf\":[{\"allOf\":[{\"const\":1},{\"const\":2}]},{\"const\":3}]}", { "3" }, { "1", "2" } },
    };
    CHECK_TEXTS(cases, true);
}

TEST(test_refused)
{
    static const struct {
        const char *schema, *text;
        const char *fits; /* without strict */
    } cases[] = {
        { "{\"type\":\"object\",\"minProperties\":2}", "#/minProperties: 2, of which", "{\"a\":1,\"b\":2}" },
        { "{\"required\":[\"a\"],\"minProperties\":3}", "#/minProperties: 3, of which", "{\"a\":1,\"b\":2,\"c\":3}" },
        { "{\"type\":\"string\",\"nullable\":true}", "#: 'nullable' is not a keyword", "null" },
        { "{\"type\":\"string\",\"format\":\"regex\"}", "#/format: 'regex' is not supported", "\"(\"" },
        { "{\"properties\":{\"a\":{\"format\":\"idn-hostname\"}}}", "#/properties/a/format: 'idn-hostname'",
          "{\"a\":\"x\"}" },
        { "{\"enum\":[[\"a\"]],\"not\":{\"items\":{\"const\":1}}}", "keyword 'not'", "[\"a\"]" },
    };
    static const struct texts accepted[] = {
        { "{\"required\":[\"a\"],\"minProperties\":2}", { "{\"a\":1,\"b\":2}" }, { "{\"a\":1}" } },
        { "{\"type\":\"object\",\"minProperties\":1}", { "{\"b\":2}" }, { "{}" } },
        { "{\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,\"minProperties\":2}",
          { "{\"a\":1,\"b\":2}" },
          { "{\"a\":1}", "{\"a\":1,\"a\":2}" } },
        { "{\"type\":\"string\",\"nullable\":false}", { "\"\"" }, { "null" } },
    };
    CHECK_TEXTS(accepted, true);
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_grammar *grammar;
        label("%s", cases[i].schema);
        assert_fails(compile_schema(cases[i].schema, true, &grammar), QN_ERR_UNSUPPORTED, cases[i].text);
        assert_ok(compile_schema(cases[i].schema, false, &grammar));
        assert_true(fits(grammar, cases[i].fits));
        qn_grammar_free(grammar);
    }
}

/* ---- Tool calls ---- */

/* The grammar of calls of a tool `f` in the form xml. */
static qn_status compile_call(const char *parameters, bool strict, qn_grammar **out)
{
    json_t *schema = json_loads(parameters, 0, NULL);
    json_t *tools =
        json_pack("[{s:{s:s,s:o,s:b}}]", "function", "name", "f", "parameters", schema, "strict", (int)strict);
    const qn_output_params output = { .form = QN_OUTPUT_XML,
                                      .call_open = { .text = "<tool_call>", .token = -1 },
                                      .call_close = { .text = "</tool_call>", .token = -1 } };
    assert_non_null(tools);
    const qn_status status = qn_grammar_from_calls(&(qn_grammar_calls){ .output = &output, .tools = tools }, out);
    json_decref(tools);
    return status;
}

static bool call_fits(const qn_grammar *grammar, const char *key, const char *value)
{
    char text[400];
    snprintf(text, sizeof text,
             "<tool_call>\n<function=f>\n<parameter=%s>\n%s\n</parameter>\n</function>\n</tool_call>", key, value);
    return fits(grammar, text);
}

TEST(test_calls)
{
    static const struct {
        const char *parameters, *key, *fit[4], *not [4];
    } cases[] = {
        { "{\"properties\":{\"a\":{\"enum\":[\"a\",\"bb\"],\"minLength\":2}}}", "a", { "bb" }, { "a" } },
        { "{\"properties\":{\"a\":{\"enum\":[1,2,\"x\"],\"const\":2.0}}}", "a", { "2" }, { "1", "x" } },
        { "{\"properties\":{\"a\":{\"type\":\"string\",\"maxLength\":2.0}}}", "a", { "bb" }, { "ccc" } },
        { "{\"allOf\":[{\"$ref\":\"#/$defs/d\"},{\"properties\":{\"b\":{\"type\":\"string\"}}}],\"$defs\":{\"d\":{"
          "\"properties\":{\"a\":{\"type\":\"integer\"}}}}}",
          "a",
          { "1" },
          { "x" } },
        { "{\"properties\":{\"a\":{\"type\":[\"string\",\"null\"]}}}", "a", { "null", "x" }, { NULL } },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_grammar *grammar;
        label("%s", cases[i].parameters);
        assert_ok(compile_call(cases[i].parameters, true, &grammar));
        for (size_t k = 0; k < 4 && cases[i].fit[k]; k++)
            assert_true(call_fits(grammar, cases[i].key, cases[i].fit[k]));
        for (size_t k = 0; k < 4 && cases[i].not [k]; k++)
            assert_false(call_fits(grammar, cases[i].key, cases[i].not [k]));
        qn_grammar_free(grammar);
    }
}

/* ---- Bounds ---- */

/* `n` times `each` between `head` and `tail`: # is the number, + the next one, ~ a comma but for the last. */
static char *repeat(const char *head, const char *each, const char *tail, int n)
{
    const size_t size = strlen(head) + strlen(tail) + (strlen(each) + 40) * (size_t)n + 1;
    char *text = malloc(size);
    assert_non_null(text);
    qn_text_buffer to = qn_append_to(text, size);
    qn_append(&to, "%s", head);
    for (int i = 0; i < n; i++)
        for (const char *c = each; *c; c++) {
            if (*c == '#')
                qn_append(&to, "%d", i);
            else if (*c == '+')
                qn_append(&to, "%d", i + 1);
            else if (*c != '~')
                qn_append_bytes(&to, c, 1);
            else if (i + 1 < n)
                qn_append_bytes(&to, ",", 1);
        }
    qn_append(&to, "%s", tail);
    assert_false(to.is_cut);
    return text;
}

/* What is too large is refused before it costs, and does not count against what stands beside. A second is for
 * sanitizers. */
TEST(test_bounds)
{
    char *const many = repeat("{\"prefixItems\":[", "{\"type\":\"integer\"}~", "]}", 32000);
    char *const some = repeat("{\"prefixItems\":[", "{\"type\":\"integer\"}~", "]}", 1000);
    char *const patterns = repeat("{\"properties\":{", "\"p#\":{\"pattern\":\".{0,100000}#\"}~", "}}", 250);
    char *const nested =
        repeat("{\"properties\":{", "\"p#\":{\"pattern\":\"((((a{1,99}){1,99}){1,99}){1,99})#\"}~", "}}", 200);
    char *const numbers = repeat("{\"prefixItems\":[", "{\"type\":\"number\",\"minimum\":#}~", "]}", 200);
    const struct {
        const char *schema;
        bool strict;
        qn_status status;
    } cases[] = {
        { many, true, QN_ERR_UNSUPPORTED },     { some, true, QN_OK },    { patterns, false, QN_OK },
        { patterns, true, QN_ERR_UNSUPPORTED }, { nested, false, QN_OK }, { numbers, true, QN_OK },
    };
    qn_grammar *grammar;
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%.40s", cases[i].schema);
        json_t *json = json_loads(cases[i].schema, 0, NULL);
        const double begin = cpu_seconds();
        assert_int_equal(qn_grammar_from_schema(json, &(qn_grammar_options){ .strict = cases[i].strict }, &grammar),
                         cases[i].status);
        assert_true(cpu_seconds() - begin < 1);
        qn_grammar_free(grammar);
        json_decref(json);
    }
    char *const chain = repeat("root ::= r0\n", "r# ::= \"a\" r+ | \"b\" r+\n", "r20000 ::= \"x\"", 20000);
    const double begin = cpu_seconds();
    assert_ok(qn_grammar_from_gbnf(chain, strlen(chain), &grammar));
    assert_true(cpu_seconds() - begin < 1);
    qn_grammar_free(grammar);
    free(chain);
    free(many);
    free(some);
    free(patterns);
    free(nested);
    free(numbers);
}
