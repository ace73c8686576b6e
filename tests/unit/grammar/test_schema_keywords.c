/* Keywords that are rewritten or that take automata of their own: what fits validates, what validates fits. */
#include "helper_texts.h"
#include "helper_time.h"

#include "base/append.h"

TEST(test_negations)
{
    static const struct texts cases[] = {
        { "{\"not\":{\"type\":\"string\"}}", { "1", "null", "[]", "{\"a\":1}", "true" }, { "\"a\"" } },
        { "{\"type\":[\"integer\",\"string\"],\"not\":{\"type\":\"integer\"}}", { "\"a\"" }, { "1" } },
        { "{\"type\":\"integer\",\"not\":{\"enum\":[3,5]}}", { "2", "4", "6", "-3" }, { "3", "5" } },
        { "{\"type\":\"number\",\"not\":{\"const\":2}}", { "1.5", "3", "2.5" }, { "2", "2.0" } },
        { "{\"type\":\"string\",\"not\":{\"pattern\":\"^a\"}}", { "\"b\"", "\"\"" }, { "\"a\"", "\"ab\"" } },
        { "{\"type\":\"string\",\"pattern\":\"b\",\"not\":{\"anyOf\":[{\"pattern\":\"^a\"},{\"maxLength\":2}]}}",
          { "\"bcd\"" },
          { "\"abc\"", "\"bc\"", "\"xyz\"" } },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"not\":{\"required\":[\"a\"]}}",
          { "{}", "{\"b\":1}" },
          { "{\"a\":1}" } },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"x\",\"y\"]}},\"not\":{\"properties\":{"
          "\"a\":{\"const\":\"x\"}}}}",
          { "{\"a\":\"y\"}" },
          { "{\"a\":\"x\"}", "{}" } },
        { "{\"type\":\"boolean\",\"not\":{\"const\":true}}", { "false" }, { "true" } },
        { "{\"type\":[\"null\",\"string\"],\"not\":{\"enum\":[null,\"a\"]}}", { "\"b\"" }, { "null", "\"a\"" } },
        { "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"not\":{\"minItems\":2}}",
          { "[]", "[1]" },
          { "[1,2]" } },
        { "{\"type\":\"integer\",\"not\":{\"minimum\":5}}", { "4" }, { "5" } },
        { "{\"type\":\"integer\",\"not\":{\"allOf\":[{\"minimum\":2},{"
          "\"maximum\":4}]}}",
          { "1", "5" },
          { "2", "4" } },
        { "{\"type\":\"integer\",\"not\":{\"not\":{\"minimum\":5}}}", { "5" }, { "4" } },
        { "{\"type\":\"integer\",\"not\":{\"oneOf\":[{\"minimum\":0},{\"minimum\":10}]}}",
          { "-1", "10" },
          { "0", "9" } },
        { "{\"type\":\"integer\",\"not\":{\"$ref\":\"#/$defs/few\"},\"$defs\":{\"few\":{\"maximum\":3}}}",
          { "4" },
          { "3" } },
        { "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false,\"not\":{"
          "\"properties\":{\"a\":{}},\"additionalProperties\":false}}",
          { "{\"b\":1}", "{\"a\":1,\"b\":1}" },
          { "{}", "{\"a\":1}" } },
        { "{\"type\":\"integer\",\"not\":{\"if\":{\"minimum\":5},\"then\":{\"maximum\":7},\"else\":{\"maximum\":2}}}",
          { "3", "4" },
          { "2" } },
    };
    CHECK_TEXTS(cases, true);
    CHECK_TEXTS(cases, false);
}

/* Without strict, oneOf is a union. */
TEST(test_exclusive)
{
    static const struct texts cases[] = {
        { "{\"oneOf\":[{\"required\":[\"a\"]},{\"required\":[\"b\"]}],\"type\":\"object\"}",
          { "{\"a\":1}", "{\"b\":1}" },
          { "{}", "{\"a\":1,\"b\":1}" } },
        { "{\"oneOf\":[{\"enum\":[1,2]},{\"enum\":[2.0,3]}]}", { "1", "3" }, { "2" } },
        { "{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"string\",\"pattern\":\"^a\"}]}", { "\"b\"" }, { "\"a\"" } },
        { "{\"oneOf\":[{\"properties\":{\"k\":{\"const\":1}},\"required\":[\"k\"]},{\"properties\":{\"k\":{"
          "\"const\":2}},\"required\":[\"k\"]}]}",
          { "{\"k\":1}", "{\"k\":2}" },
          { "{\"k\":3}" } },
        { "{\"oneOf\":[{\"type\":\"object\",\"properties\":{\"a\":{}},\"additionalProperties\":false},{"
          "\"type\":\"object\",\"properties\":{\"b\":{}},\"additionalProperties\":false}]}",
          { "{\"a\":1}", "{\"b\":1}" },
          { "{}", "{\"a\":1,\"b\":1}" } },
        { "{\"type\":\"integer\",\"oneOf\":[{\"minimum\":0},{\"maximum\":10},{\"const\":5}]}",
          { "-1", "11", "-9" },
          { "5", "0", "10" } },
    };
    CHECK_TEXTS(cases, true);
}

TEST(test_dependencies)
{
    static const struct texts cases[] = {
        { "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"dependentRequired\":{\"a\":[\"b\"]}}",
          { "{}", "{\"b\":1}", "{\"a\":1,\"b\":1}" },
          { "{\"a\":1}", "{\"a\":1,\"c\":1}" } },
        { "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"dependencies\":{\"a\":[\"b\"],"
          "\"b\":[\"a\"],\"c\":{\"required\":[\"a\"]}}}",
          { "{}", "{\"a\":1,\"b\":1}", "{\"a\":1,\"b\":1,\"c\":1}" },
          { "{\"a\":1}", "{\"b\":1}", "{\"c\":1}" } },
        { "{\"properties\":{\"a\":{\"type\":\"boolean\"},\"n\":{\"type\":\"integer\"}},\"dependentSchemas\":{"
          "\"a\":{\"properties\":{\"n\":{\"minimum\":5}}}}}",
          { "{\"n\":1}", "{\"a\":true,\"n\":5}", "{\"a\":true}" },
          { "{\"a\":true,\"n\":1}" } },
        { "{\"type\":\"object\",\"required\":[\"a\"],\"properties\":{\"a\":{},\"b\":{}},\"dependentRequired\":{"
          "\"a\":[\"b\"]}}",
          { "{\"a\":1,\"b\":1}" },
          { "{\"a\":1}" } },
    };
    CHECK_TEXTS(cases, true);
    CHECK_TEXTS(cases, false);
}

TEST(test_conditions)
{
    static const struct texts cases[] = {
        { "{\"type\":\"object\",\"properties\":{\"kind\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}},"
          "\"required\":[\"kind\"],\"if\":{\"properties\":{\"kind\":{\"const\":\"big\"}}},\"then\":{"
          "\"properties\":{\"n\":{\"minimum\":10}},\"required\":[\"n\"]},\"else\":{\"properties\":{\"n\":{"
          "\"maximum\":9}}}}",
          { "{\"kind\":\"big\",\"n\":10}", "{\"kind\":\"x\"}", "{\"kind\":\"x\",\"n\":9}" },
          { "{\"kind\":\"big\"}", "{\"kind\":\"big\",\"n\":9}", "{\"kind\":\"x\",\"n\":10}" } },
        { "{\"type\":\"integer\",\"if\":{\"minimum\":10},\"then\":{\"multipleOf\":10},\"else\":{\"multipleOf\":3}}",
          { "20", "9", "3" },
          { "11", "8" } },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{}},\"if\":{\"required\":["
          "\"a\"],\"properties\":{\"a\":{\"pattern\":\"^x\"}}},\"then\":{\"required\":[\"b\"]}}",
          { "{\"a\":\"y\"}", "{}", "{\"a\":\"x\",\"b\":1}" },
          { "{\"a\":\"x\"}" } },
        { "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[1,2,3]},\"b\":{\"type\":\"integer\"}},"
          "\"required\":[\"a\"],\"allOf\":[{\"if\":{\"properties\":{\"a\":{\"const\":1}}},\"then\":{"
          "\"required\":[\"b\"]}},{\"if\":{\"properties\":{\"a\":{\"const\":2}}},\"then\":{\"properties\":{"
          "\"b\":false}}}]}",
          { "{\"a\":1,\"b\":1}", "{\"a\":2}", "{\"a\":3}", "{\"a\":3,\"b\":1}" },
          { "{\"a\":1}", "{\"a\":2,\"b\":1}" } },
        { "{\"type\":\"object\",\"if\":{\"type\":\"array\",\"items\":{\"type\":\"null\"}},\"then\":{\"required\":[\"a\"]},"
          "\"else\":{\"required\":[\"b\"]}}",
          { "{\"b\":1}", "{\"a\":1,\"b\":1}" },
          { "{\"a\":1}", "{}" } },
    };
    CHECK_TEXTS(cases, true);
    CHECK_TEXTS(cases, false);
}

TEST(test_names)
{
    static const struct texts cases[] = {
        { "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]+$\",\"maxLength\":3}}",
          { "{}", "{\"abc\":1}" },
          { "{\"A\":1}", "{\"abcd\":1}" } },
        { "{\"type\":\"object\",\"properties\":{\"ab\":{},\"X\":{}},\"propertyNames\":{\"pattern\":\"^[a-z]+$\"}}",
          { "{\"ab\":1,\"c\":2}" },
          { "{\"X\":1}" } },
        { "{\"type\":\"object\",\"propertyNames\":{\"not\":{\"enum\":[\"id\"]}}}",
          { "{\"ide\":1}" },
          { "{\"id\":1}" } },
        { "{\"type\":\"object\",\"propertyNames\":{\"allOf\":[{\"$ref\":\"#/$defs/n\"},{\"minLength\":2}]},"
          "\"$defs\":{\"n\":{\"pattern\":\"^x\"}}}",
          { "{\"xy\":1}" },
          { "{\"x\":1}", "{\"yx\":1}" } },
        { "{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"a\",\"b\"]},\"patternProperties\":{\"^a\":{"
          "\"type\":\"integer\"}}}",
          { "{\"a\":1}", "{\"b\":\"x\"}" },
          { "{\"a\":\"x\"}", "{\"c\":1}" } },
        { "{\"type\":\"object\",\"propertyNames\":false}", { "{}" }, { "{\"a\":1}" } },
        { "{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"integer\"}},\"required\":[\"a1\"],"
          "\"additionalProperties\":false}",
          { "{\"a1\":1}" },
          { "{\"a1\":\"x\"}", "{}", "{\"a2\":1}" } },
        { "{\"type\":\"object\",\"patternProperties\":{\"^a\":{\"type\":\"integer\"}},\"required\":[\"a1\",\"b\"]}",
          { "{\"a1\":1,\"b\":\"x\"}" },
          { "{\"a1\":\"x\",\"b\":1}" } },
        { "{\"type\":\"object\",\"required\":[\"ab\"],\"propertyNames\":{\"minLength\":2}}",
          { "{\"ab\":1,\"cd\":1}" },
          { "{\"ab\":1,\"c\":1}" } },
        { "{\"type\":\"object\",\"patternProperties\":{\"^(?!x)\":{\"type\":\"integer\"},\"a$\":{"
          "\"minimum\":5}},\"additionalProperties\":{\"type\":\"string\"}}",
          { "{\"b\":1}", "{\"ba\":5}", "{\"x\":\"y\"}" },
          { "{\"ba\":4}", "{\"x\":1}" } },
    };
    CHECK_TEXTS(cases, true);
    CHECK_TEXTS(cases, false);
}

TEST(test_unique)
{
    static const struct texts cases[] = {
        { "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\",\"c\"]},\"uniqueItems\":true}",
          { "[]", "[\"c\",\"a\"]", "[\"a\",\"b\",\"c\"]" },
          { "[\"a\",\"a\"]", "[\"a\",\"b\",\"a\"]", "[\"d\"]" } },
        { "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"ab\",1,10,null,true]},\"uniqueItems\":true,"
          "\"minItems\":2}",
          { "[\"ab\",\"a\"]", "[10,1]", "[null,true,\"a\"]" },
          { "[1]", "[1,1]", "[\"a\",\"a\"]", "[null,null]" } },
        { "{\"uniqueItems\":true,\"items\":{\"type\":\"boolean\"}}", { "[true,false]" }, { "[true,true]" } },
        { "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"integer\",\"minimum\":1,"
          "\"maximum\":3},\"maxItems\":2}",
          { "[3,1]" },
          { "[1,1]", "[1,2,3]", "[4]" } },
        { "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"$ref\":\"#/$defs/e\"},\"$defs\":{\"e\":{"
          "\"type\":\"string\",\"enum\":[\"é\",\"b\"]}}}",
          { "[\"é\",\"b\"]" },
          { "[\"é\",\"é\"]" } },
        { "{\"type\":\"array\",\"uniqueItems\":true,\"maxItems\":1,\"items\":{\"type\":\"string\"}}",
          { "[\"x\"]" },
          { "[\"x\",\"y\"]" } },
        { "{\"type\":\"array\",\"uniqueItems\":false}", { "[1,1]" }, { "1" } },
        { "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"a\"]},\"minItems\":1}",
          { "[\"a\"]" },
          { "[\"a\",\"a\"]", "[]" } },
        { "{\"type\":\"object\",\"properties\":{\"n\":{\"type\":\"array\",\"uniqueItems\":true,\"items\":{"
          "\"enum\":[\"a\",\"b\"]}},\"m\":{\"const\":1}}}",
          { "{\"n\":[\"a\"],\"m\":1}" },
          { "{\"n\":[\"a\",\"a\"],\"m\":1}" } },
    };
    CHECK_TEXTS(cases, true);
    CHECK_TEXTS(cases, false);
}

TEST(test_multiples)
{
    static const struct texts cases[] = {
        { "{\"type\":\"integer\",\"multipleOf\":3}", { "0", "3", "-9", "123" }, { "1", "-2" } },
        { "{\"type\":\"integer\",\"multipleOf\":10,\"minimum\":15,\"maximum\":40}",
          { "20", "40" },
          { "10", "15", "50" } },
        { "{\"multipleOf\":2.0,\"type\":\"number\"}", { "4" }, { "3", "2.5" } },
        { "{\"allOf\":[{\"type\":\"integer\",\"multipleOf\":4},{\"multipleOf\":6}]}", { "12", "24" }, { "4", "6" } },
        { "{\"enum\":[1,2,3,4],\"multipleOf\":2}", { "2", "4" }, { "1", "3" } },
    };
    CHECK_TEXTS(cases, true);
    CHECK_TEXTS(cases, false);
}

TEST(test_patterns)
{
    static const struct texts cases[] = {
        { "{\"type\":\"string\",\"allOf\":[{\"pattern\":\"^a\"},{\"pattern\":\"b$\"},{\"pattern\":\"c\"}]}",
          { "\"acb\"" },
          { "\"ab\"", "\"cb\"" } },
        { "{\"type\":\"string\",\"pattern\":\"^2\",\"format\":\"date\",\"maxLength\":10}",
          { "\"2024-02-29\"" },
          { "\"1999-01-01\"", "\"2x\"" } },
        { "{\"type\":\"string\",\"pattern\":\"^(?=.*\\\\d)(?=.*[A-Z]).{4,6}$\"}",
          { "\"aB1c\"", "\"ZZ99\"" },
          { "\"abcd\"", "\"A1\"", "\"ABCDEF1\"" } },
        { "{\"type\":\"string\",\"pattern\":\"^(?!.*--)[a-z-]+$\",\"maxLength\":6}",
          { "\"a-b\"" },
          { "\"a--b\"", "\"abcdefg\"" } },
        { "{\"type\":\"string\",\"pattern\":\"^\\\\p{Lu}\\\\p{L}*$\"}",
          { "\"Éa\"", "\"A世\"" },
          { "\"a\"", "\"A1\"" } },
        { "{\"type\":\"string\",\"pattern\":\"^[\\\\p{Nd}_]\\\\P{Nd}$\"}",
          { "\"1a\"", "\"٣x\"" },
          { "\"a1\"", "\"11\"" } },
    };
    CHECK_TEXTS(cases, true);
    CHECK_TEXTS(cases, false);
}

TEST(test_annotations)
{
    static const struct texts cases[] = {
        { "{\"type\":\"string\",\"format\":\"phone-number\",\"displayName\":\"x\",\"x-y\":1,"
          "\"markdownDescription\":\"d\"}",
          { "\"a\"" },
          { "1" } },
        { "{\"type\":\"integer\",\"format\":\"int32\"}", { "1" }, { "\"a\"" } },
        { "{\"type\":\"string\",\"format\":\"uri-reference\"}",
          { "\"/a/b?c\"", "\"a\"", "\"http://a/b\"", "\"#x\"", "\"\"" },
          { "\"a b\"", "\"%zz\"" } },
        { "{\"type\":\"string\",\"format\":\"relative-json-pointer\"}",
          { "\"0\"", "\"1/a\"", "\"2#\"" },
          { "\"a\"", "\"01\"" } },
        { "{\"type\":\"array\",\"unevaluatedItems\":{}}", { "[1]" }, { "1" } },
    };
    CHECK_TEXTS(cases, true);
    CHECK_TEXTS(cases, false);
}

TEST(test_joined)
{
    static const struct texts cases[] = {
        { "{\"allOf\":[{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[\"a\",\"b\"]}},{"
          "\"uniqueItems\":false}]}",
          { "[\"a\",\"b\"]" },
          { "[\"a\",\"a\"]" } },
        { "{\"allOf\":[{\"not\":{\"type\":\"string\"}},{\"not\":{\"type\":\"integer\"}}],\"type\":[\"string\","
          "\"integer\",\"null\"]}",
          { "null" },
          { "\"a\"", "1" } },
        { "{\"allOf\":[{\"type\":\"object\",\"dependentRequired\":{\"a\":[\"b\"]}},{\"dependentRequired\":{"
          "\"b\":[\"c\"]}}]}",
          { "{}", "{\"a\":1,\"b\":1,\"c\":1}", "{\"c\":1}" },
          { "{\"a\":1,\"b\":1}", "{\"b\":1}" } },
    };
    CHECK_TEXTS(cases, true);
    CHECK_TEXTS(cases, false);
}

/* What cannot be exact names the keyword; without strict it is left out. */
TEST(test_refused_keywords)
{
    static const struct {
        const char *schema, *text, *fits;
    } cases[] = {
        { "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\"}}", "#/uniqueItems: only items of",
          "[\"a\",\"a\"]" },
        { "{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"enum\":[[1],[2]]}}", "#/uniqueItems: only items of",
          "[[1],[1]]" },
        { "{\"type\":\"array\",\"uniqueItems\":true,\"prefixItems\":[{\"const\":1},{\"const\":1}]}", "#/uniqueItems",
          "[1,1]" },
        { "{\"type\":\"number\",\"multipleOf\":0.1}", "#/multipleOf: 0.1 is not supported", "0.25" },
        { "{\"type\":\"integer\",\"multipleOf\":1e6}", "#/multipleOf: 1e+06 is not supported", "5" },
        { "{\"type\":\"array\",\"not\":{\"items\":{\"type\":\"string\"}}}",
          "keyword 'not' is not supported with a schema", "[\"a\"]" },
        { "{\"not\":{\"type\":\"integer\"}}", "keyword 'not' is not supported with a schema", "1" },
        { "{\"type\":\"array\",\"contains\":{\"const\":1}}", "keyword 'contains' is not supported", "[2]" },
        { "{\"type\":\"object\",\"unevaluatedProperties\":false}", "keyword 'unevaluatedProperties'", "{\"a\":1}" },
        { "{\"$dynamicRef\":\"#a\"}", "keyword '$dynamicRef' is not supported", "1" },
        { "{\"type\":\"string\",\"minlength\":2}", "keyword 'minlength' does not exist: is 'minLength' meant?",
          "\"\"" },
        { "{\"type\":\"object\",\"additonalProperties\":false}", "is 'additionalProperties' meant?", "{\"a\":1}" },
        { "{\"type\":\"object\",\"propertyNames\":{\"anyOf\":[{\"const\":\"a\"},{\"const\":\"b\"}]}}",
          "#/propertyNames: only keywords of strings", "{\"c\":1}" },
        { "{\"type\":\"string\",\"pattern\":\"(?<!a)b\"}", "look-behind at byte", "\"ab\"" },
        { "{\"type\":\"string\",\"pattern\":\"^\\\\p{Nonsense}$\"}", "property", "\"x\"" },
        { "{\"type\":\"string\",\"pattern\":\"(?=\\\\bx)y\"}", "a word boundary in a look-ahead", "\"ab\"" },
        { "{\"type\":\"string\",\"pattern\":\"^(?=^a)a\"}", "an anchor in a look-ahead", "\"b\"" },
        { "{\"type\":\"string\",\"pattern\":\"(?=a)*b\"}", "a quantifier of an assertion", "\"b\"" },
        { "{\"type\":\"object\",\"dependencies\":{\"a\":1}}", "keyword 'dependencies' is not supported",
          "{"
          "\"a\":1}" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_grammar *grammar;
        label("%s", cases[i].schema);
        assert_fails(compile_schema(cases[i].schema, true, &grammar), QN_ERR_UNSUPPORTED, cases[i].text);
        assert_ok(compile_schema(cases[i].schema, false, &grammar));
        assert_true(fits(grammar, cases[i].fits));
        qn_grammar_free(grammar);
    }
}

/* The properties keep the order of the schema where conditions are rewritten. */
TEST(test_order)
{
    static const char *const schemas[] = {
        "{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"dependentRequired\":{\"b\":[\"a\"]}}",
        "{\"dependentRequired\":{\"b\":[\"a\"]},\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}}}",
        "{\"not\":{\"required\":[\"c\",\"d\"]},\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{},\"c\":{}}}",
        ("{\"if\":{\"required\":[\"c\"]},\"then\":{\"required\":[\"b\",\"a\"]},\"properties\":{\"a\":{},"
         "\"b\":{},\"c\":{}}}"),
    };
    for (size_t i = 0; i < COUNT(schemas); i++) {
        json_t *json = json_loads(schemas[i], 0, NULL);
        qn_grammar *grammar;
        label("%s", schemas[i]);
        assert_ok(qn_grammar_from_schema(json, &(qn_grammar_options){ .strict = true }, &grammar));
        assert_true(fits(grammar, "{\"a\": 1, \"b\": 1, \"c\": 1}"));
        assert_false(fits(grammar, "{\"b\": 1, \"a\": 1}"));
        assert_false(fits(grammar, "{\"c\": 1, \"a\": 1}"));
        qn_grammar_free(grammar);
        json_decref(json);
    }
}

/* ---- Bounds ---- */

/* `n` times `each`, in which # is the number, between `head` and `tail`, with commas. */
static char *repeat(const char *head, const char *each, const char *tail, int n)
{
    const size_t size = strlen(head) + strlen(tail) + (strlen(each) + 40) * (size_t)n + 1;
    char *text = malloc(size);
    assert_non_null(text);
    qn_text_buffer to = qn_append_to(text, size);
    qn_append(&to, "%s", head);
    for (int i = 0; i < n; i++)
        for (const char *c = each; *c; c++)
            if (*c == '#')
                qn_append(&to, "%d", i);
            else if (*c != '~' || i + 1 < n)
                qn_append_bytes(&to, *c == '~' ? "," : c, 1);
    qn_append(&to, "%s", tail);
    assert_false(to.is_cut);
    return text;
}

TEST(test_many_constants)
{
    char *const many = repeat("{\"enum\":[5,null,\"caf\u00e9\",", "\"word #\"~", "]}", 10000);
    char *const filtered = repeat("{\"pattern\":\"[05]$\",\"enum\":[", "\"word #\"~", "]}", 10000);
    char *const too_many = repeat("{\"enum\":[", "\"#\"~", "]}", 66000);
    static const char *const fit[] = { "\"word 0\"",      "\"word 1\"", "\"word 10\"",    "\"word 9999\"",
                                       "\"caf\xc3\xa9\"", "5",          "\"caf\\u00e9\"", "null" },
                             *const others[] = { "\"word\"", "\"word 10000\"", "\"word 01\"", "\"\"", "word 1", "6" };
    qn_grammar *grammar;
    const double begin = cpu_seconds();
    assert_ok(compile_schema(many, true, &grammar));
    assert_true(cpu_seconds() - begin < 1);
    assert_true(qn_grammar_bytes(grammar) < 1 << 20);
    for (size_t i = 0; i < COUNT(fit); i++)
        assert_true(fits(grammar, fit[i]));
    for (size_t i = 0; i < COUNT(others); i++)
        assert_false(fits(grammar, others[i]));
    qn_grammar_free(grammar);
    assert_ok(compile_schema(filtered, true, &grammar));
    assert_true(fits(grammar, "\"word 25\""));
    assert_false(fits(grammar, "\"word 26\""));
    qn_grammar_free(grammar);
    assert_fails(compile_schema(too_many, true, &grammar), QN_ERR_UNSUPPORTED, "66000 constants, at most 65535");
    free(many);
    free(filtered);
    free(too_many);
}

/* What a stranger may write to make the compiler work. A second is for sanitizers. */
TEST(test_hostile)
{
    /* alternatives that multiply: 200 names in references to references, in which \u0023 is a number sign for itself */
    char *const names = repeat("[", "\"n#\"~", "]", 200), *const again =
                                                              repeat("[", "{\"$ref\":\"\\u0023/$defs/c\"}~", "]", 150);
    char multiplied[2][16384];
    for (size_t i = 0; i < COUNT(multiplied); i++) {
        qn_text_buffer to = qn_append_to(multiplied[i], sizeof multiplied[i]);
        qn_append(&to, "]},\"b\":{\"allOf\":%s},\"c\":{", again);
        qn_append(&to, i ? "\"dependentRequired\":{\"a\":%s,\"b\":[\"c\"]}}}}" : "\"required\":%s}}}", names);
        assert_false(to.is_cut);
    }
    free(names);
    free(again);
    char *const cases[] = {
        repeat("{\"type\":\"object\",\"not\":{\"$ref\":\"#/$defs/a\"},\"$defs\":{\"a\":{\"allOf\":[",
               "{\"$ref\":\"\\u0023/$defs/b\"}~", multiplied[0], 150),
        repeat("{\"if\":{\"$ref\":\"#/$defs/a\"},\"then\":{\"type\":\"object\"},\"$defs\":{\"a\":{\"allOf\":[",
               "{\"$ref\":\"\\u0023/$defs/b\"}~", multiplied[1], 150),
        repeat("{\"dependentRequired\":{", "\"a#\":[\"b#\"]~", "}}", 250),
        repeat("{\"allOf\":[", "{\"not\":{\"required\":[\"a#\",\"b#\"]}}~", "]}", 200),
        repeat("{\"oneOf\":[", "{\"required\":[\"a#\"]}~", "]}", 150),
        repeat("{\"allOf\":[", "{\"if\":{\"required\":[\"a#\"]},\"then\":{\"required\":[\"b#\"]}}~", "]}", 200),
        repeat("{\"type\":\"string\",\"pattern\":\"^", "(?=.*a.{#}b)", ".*$\"}", 16),
        repeat("{\"type\":\"string\",\"pattern\":\"^", "(?!.*#.*#)", ".{0,200}$\"}", 16),
        repeat("{\"type\":\"string\",\"pattern\":\"^", "(?=", "\"}", 60),
        repeat("{\"type\":\"string\",\"pattern\":\"^(", "((?!a.{#}c)b|a)*", ")*$\"}", 14),
        repeat("{\"type\":\"string\",\"pattern\":\"^", "[\\\\p{L}\\\\p{M}]{1,40}#", "$\"}", 8),
        repeat("{\"type\":\"string\",\"allOf\":[", "{\"pattern\":\"a.{0,9}#\"}~", "]}", 40),
        repeat("{\"patternProperties\":{", "\"^.{#,9}(?!a)[^#]+$\":{\"minimum\":#}~", "}}", 16),
        repeat("{\"patternProperties\":{",
               "\"#\":{\"patternProperties\":{\"#.*#\":{\"patternProperties\":{\"^#\":{}}}}}~", "}}", 16),
        repeat("{\"uniqueItems\":true,\"items\":{\"enum\":[", "#~", "]}}", 20000),
        repeat("{\"uniqueItems\":true,\"items\":{\"enum\":[", "\"#\"~", "]}}", 256),
        repeat("{\"prefixItems\":[", "{\"type\":\"integer\",\"multipleOf\":4096,\"minimum\":#}~", "]}", 250),
        repeat("{\"not\":{\"not\":", "{\"anyOf\":[{\"not\":{\"enum\":[#,1]}}]}", "}}", 1),
        repeat("{\"not\":{\"enum\":[", "\"value number #\"~", "]}}", 20000),
        repeat("{\"propertyNames\":{\"allOf\":[", "{\"pattern\":\"[#]\"}~", "]}}", 60),
        repeat("{\"not\":", "{\"not\":", "{}", 500),
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int strict = 0; strict < 2; strict++) {
            qn_grammar *grammar = NULL;
            json_t *json = json_loads(cases[i], 0, NULL);
            const double begin = cpu_seconds();
            label("%.60s", cases[i]);
            assert_true(i > 1 || json);
            const qn_status status =
                json ? qn_grammar_from_schema(json, &(qn_grammar_options){ .strict = strict }, &grammar)
                     : QN_ERR_INVALID;
            assert_true(status == QN_OK || status == QN_ERR_UNSUPPORTED || status == QN_ERR_INVALID);
            assert_true(cpu_seconds() - begin < 1);
            qn_grammar_free(grammar);
            json_decref(json);
        }
    for (size_t i = 0; i < COUNT(cases); i++)
        free(cases[i]);
}
