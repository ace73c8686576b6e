/* Grammars: what fits each keyword of a schema, regular expressions, choices and GBNF, and what is refused. */
#include "helper_assert.h"
#include "helper_time.h"

#include "base/append.h"
#include "grammar/grammar.h"

enum { MAX_TEXTS = 12 };

/* For texts that are not about white space and order. */
static const qn_grammar_options any_style = { .style = { .space = QN_JSON_SPACE_ANY, .order = QN_JSON_ORDER_ANY } };

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *json = json_loads(text, JSON_DECODE_ANY, &error);
    if (!json)
        fail_msg("%s: %s", error.text, text);
    return json;
}

static qn_status from_schema(const char *text, const qn_grammar_options *options, qn_grammar **out)
{
    json_t *schema = parse(text);
    const qn_status status = qn_grammar_from_schema(schema, options, out);
    json_decref(schema);
    return status;
}

/* Reads the text byte by byte, as a whole and in two parts, which must agree. -1: it does not fit; 0: it must go on; 1:
 * it may end. */
static int fits(const qn_grammar *grammar, const char *text)
{
    const size_t length = strlen(text);
    qn_grammar_state *bytes, *whole, *copy;
    assert_ok(qn_grammar_state_create(grammar, &bytes));
    assert_ok(qn_grammar_state_create(grammar, &whole));
    bool follows = true;
    for (size_t i = 0; i < length && follows; i++) {
        assert_ok(qn_grammar_state_clone(bytes, &copy));
        const bool is_accepted = qn_grammar_state_accepts(bytes, text + i, length - i);
        follows = qn_grammar_state_advance(bytes, text + i, 1);
        assert_int_equal(is_accepted, qn_grammar_state_advance(copy, text + i, length - i));
        assert_false(is_accepted && !follows);
        qn_grammar_state_free(copy);
    }
    assert_int_equal(qn_grammar_state_accepts(whole, text, length), follows);
    assert_int_equal(qn_grammar_state_advance(whole, text, length), follows);
    const bool ends = qn_grammar_state_is_finished(bytes);
    if (follows)
        assert_int_equal(qn_grammar_state_is_finished(whole), ends);
    qn_grammar_state_free(bytes);
    qn_grammar_state_free(whole);
    return follows ? ends : -1;
}

struct texts {
    const char *source;
    const char *fit[MAX_TEXTS], *not [MAX_TEXTS]; /* what may end; what does not fit, or must go on */
};

static void check_texts(const qn_grammar *grammar, const struct texts *c)
{
    label("%s", c->source);
    for (size_t i = 0; i < MAX_TEXTS && c->fit[i]; i++) {
        label("%s", c->fit[i]);
        assert_int_equal(fits(grammar, c->fit[i]), 1);
    }
    for (size_t i = 0; i < MAX_TEXTS && c->not [i]; i++) {
        label("%s", c->not [i]);
        assert_true(fits(grammar, c->not [i]) < 1);
    }
}

static void check_schemas(const struct texts *cases, size_t n, const qn_grammar_options *options)
{
    for (size_t i = 0; i < n; i++) {
        qn_grammar *grammar;
        label("%s", cases[i].source);
        assert_ok(from_schema(cases[i].source, options, &grammar));
        check_texts(grammar, &cases[i]);
        qn_grammar_free(grammar);
    }
}

TEST(test_scalars)
{
    static const struct texts cases[] = {
        { "true",
          { "null", "-0.5e+1", "\"\"", "[]", "[1, {}]", "{\"a\":[[]]}" },
          { "", "nul", "01", "+1", "[1,]", "{,}", " 1", "1 ", "NaN" } },
        { "{}", { "true", "{}" }, { "tru" } },
        { "{\"type\":\"null\"}", { "null" }, { "0", "\"null\"" } },
        { "{\"type\":\"boolean\"}", { "true", "false" }, { "null", "True" } },
        { "{\"type\":\"string\"}",
          { "\"a\"", "\"\\u00e9\\n\"", "\"\xc3\xa9\"", "\"\\ud83d\\ude00\"", "\"\xf0\x9f\x98\x80\"" },
          { "\"", "\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\xff\"", "\"\xed\xa0\x80\"", "'a'",
            "\"a\"b" } },
        { "{\"minLength\":2,\"maxLength\":3}",
          { "\"ab\"", "\"\\u00e9\xc3\xa9z\"", "\"\\ud83d\\ude00\xf0\x9f\x98\x80\"" },
          { "\"a\"", "\"abcd\"", "\"abc\xc3\"" } },
        { "{\"type\":\"string\",\"minLength\":3,\"maxLength\":2}", { NULL }, { NULL } },
        { "{\"type\":\"integer\"}", { "0", "-12", "98765432109876543210" }, { "-", "01", "1.0", "1e1" } },
        { "{\"type\":\"number\"}", { "0", "-1.50", "1e5", "1E-05" }, { "1.", ".5", "1e" } },
        { "{\"type\":\"integer\",\"minimum\":-15,\"maximum\":120}",
          { "-15", "-9", "0", "99", "120" },
          { "-16", "121", "-20", "1000", "-" } },
        { "{\"type\":\"integer\",\"exclusiveMinimum\":9,\"exclusiveMaximum\":12}",
          { "10", "11" },
          { "9", "12", "1", "-10" } },
        { "{\"type\":\"integer\",\"minimum\":9,\"exclusiveMinimum\":true,\"maximum\":10}", { "10" }, { "9", "11" } },
        { "{\"type\":\"integer\",\"minimum\":3}", { "3", "10", "99999999999" }, { "2", "-3", "0" } },
        { "{\"type\":\"integer\",\"maximum\":-3}", { "-3", "-400" }, { "-2", "3", "0" } },
        { "{\"type\":\"number\",\"minimum\":0.25,\"maximum\":1.5}",
          { "0.25", "0.3", "1", "1.5", "1.50", "1.49999", "1e0", "2.5E-1" },
          { "0.2", "0", "1.51", "2", "1.6e0", "1e1", "2.4e-01", "0.3e0" } },
        { "{\"type\":\"number\",\"exclusiveMinimum\":0}", { "0.1", "0.001", "7" }, { "0", "0.0", "-1" } },
        { "{\"type\":\"number\",\"exclusiveMaximum\":0}", { "-0.1", "-70" }, { "0", "1", "-0.0" } },
        { "{\"type\":[\"string\",\"null\"],\"maxLength\":1}", { "null", "\"a\"" }, { "\"ab\"", "1" } },
        { "{\"type\":\"string\",\"nullable\":true}", { "null", "\"a\"" }, { "1" } },
        { "{\"enum\":[\"a\",\"b\\n\",1,2.5,null,[1,{\"x\":true}]]}",
          { "\"a\"", "\"b\\n\"", "1", "2.5", "2.5e0", "2.50", "null", "[1, {\"x\": true}]" },
          { "\"ab\"", "\"b\"", "2", "[1]", "[1,{}]", "false" } },
        { "{\"const\":\"\xc3\xa9\"}", { "\"\xc3\xa9\"", "\"\\u00e9\"", "\"\\u00E9\"" }, { "\"e\"" } },
        { "{\"enum\":[1,\"a\"],\"type\":\"string\"}", { "\"a\"" }, { "1" } },
        { "{\"const\":1e-07}", { "1e-07", "1e-7", "1E-7", "0.0000001" }, { "1", "1e7", "1e-08" } },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_grammar *grammar;
        label("%s", cases[i].source);
        if (!cases[i].fit[0]) {
            assert_int_equal(from_schema(cases[i].source, &any_style, &grammar), QN_ERR_INVALID);
            assert_null(grammar);
            continue;
        }
        assert_ok(from_schema(cases[i].source, &any_style, &grammar));
        check_texts(grammar, &cases[i]);
        assert_true(qn_grammar_bytes(grammar) > 100);
        qn_grammar_free(grammar);
    }
}

TEST(test_patterns)
{
    static const struct texts cases[] = {
        { "{\"pattern\":\"^a+$\"}", { "\"a\"", "\"aaa\"" }, { "\"\"", "\"ab\"" } },
        { "{\"pattern\":\"b\"}", { "\"b\"", "\"abc\"", "\"\\nb\\\"\"" }, { "\"a\"" } },
        { "{\"pattern\":\"^\\\\S+@\\\\S+$\",\"maxLength\":4}", { "\"a@bc\"" }, { "\"aaaa", "\"abc@d\"", "\"a@\"" } },
        { "{\"pattern\":\"^(ab|xyz)$\",\"minLength\":3}", { "\"xyz\"" }, { "\"a" } },
        { "{\"pattern\":\"^\\\"\\\\n.$\"}", { "\"\\\"\\n\\u20ac\"", "\"\\\"\\nx\"" }, { "\"\\\"\\n\\n\"" } },
        { "{\"format\":\"date\"}",
          { "\"2024-01-31\"", "\"2023-02-28\"" },
          { "\"2024-13-01\"", "\"2024-04-31\"", "\"2024-1-1\"" } },
        { "{\"format\":\"time\"}", { "\"23:59:59Z\"", "\"00:00:00.5+01:00\"" }, { "\"24:00:00Z\"", "\"10:00\"" } },
        { "{\"format\":\"date-time\"}", { "\"2024-01-31T10:00:00Z\"" }, { "\"2024-01-31 10:00:00Z\"" } },
        { "{\"format\":\"uuid\"}", { "\"123e4567-e89b-12d3-a456-426614174000\"" }, { "\"123e4567\"" } },
        { "{\"format\":\"email\"}", { "\"a.b@c-d.org\"" }, { "\"a.b\"", "\"@c.org\"" } },
        { "{\"format\":\"ipv4\"}", { "\"192.168.0.255\"" }, { "\"256.0.0.1\"", "\"01.0.0.1\"" } },
        { "{\"type\":\"string\",\"format\":\"unknown\"}", { "\"x\"" }, { "1" } },
    };
    check_schemas(cases, COUNT(cases), &any_style);
}

TEST(test_containers)
{
    static const struct texts cases[] = {
        { "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
          { "[1]", "[ 1 , 2,\n  3]" },
          { "[]", "[1,2,3,4]", "[true]", "[1,]" } },
        { "{\"type\":\"array\",\"maxItems\":0}", { "[]", "[ ]" }, { "[1]" } },
        { "{\"prefixItems\":[{\"const\":1},{\"type\":\"string\"}],\"items\":false}",
          { "[]", "[1]", "[1,\"a\"]" },
          { "[2]", "[1,\"a\",3]" } },
        { "{\"items\":[{\"const\":1}],\"additionalItems\":{\"type\":\"null\"}}", { "[1,null,null]" }, { "[1,2]" } },
        { "{\"properties\":{\"a\":{\"const\":1},\"ab\":{\"const\":2},\"b\":{\"const\":3}},\"required\":[\"b\"],"
          "\"additionalProperties\":false}",
          { "{\"b\":3}", "{\"ab\":2,\"b\":3,\"a\":1}", "{\"a\":1,\"b\":3}", "{ \"b\" : 3 }", "{\n\t\"b\": 3\r\n}" },
          { "{}", "{\"a\":1}", "{\"b\":3,\"b\":3}", "{\"b\":3,\"c\":1}", "{\"a\":2", "{\"b\":3,}", "{  \"b\":3}",
            "{\"\\u0062\"" } },
        { "{\"properties\":{\"a\":{\"const\":1}}}",
          { "{}", "{\"a\":1,\"b\":[]}", "{\"aa\":0}", "{\"\":0,\"a\":1}", "{\"\xc3\xa9\":1,\"\\u00E9\":1}" },
          { "{\"a\":2", "{\"\\u0061\":", "{\"a\":1,\"a\"" } },
        { "{\"properties\":{\"\xc3\xa9\xc3\xa9\":{\"const\":1},\"x\\ny\":{\"const\":2}}}",
          { "{\"\xc3\xa9\xc3\xa9\":1}", "{\"\\u00e9\\u00e9\":1}", "{\"\\u20ac\":0,\"\xc3\xa9\":0}", "{\"x\\ny\":2}",
            "{\"x\\u0001\":0}" },
          { "{\"\\u00e9\xc3\xa9\"", "{\"\\u00E9", "{\"x\\u000ay\"", "{\"\xc3\xa9\xc3\xa9\":2", "{\"x\\u001F" } },
        { "{\"additionalProperties\":{\"type\":\"integer\"},\"properties\":{\"a\":{}}}",
          { "{\"x\":1,\"a\":\"\"}" },
          { "{\"x\":\"\"}" } },
        { "{\"additionalProperties\":false,\"type\":\"object\"}", { "{}" }, { "{\"a\":1}" } },
        { "{\"required\":[\"a\",\"b\"]}", { "{\"b\":1,\"c\":2,\"a\":null}" }, { "{\"a\":1}" } },
        { "{\"type\":\"object\",\"minProperties\":1,\"maxProperties\":2}",
          { "{\"a\":1}", "{\"a\":1,\"b\":2}" },
          { "{}", "{\"a\":1,\"b\":2,\"c\"" } },
        { "{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"required\":[\"c\"],\"maxProperties\":2,"
          "\"additionalProperties\":"
          "false}",
          { "{\"a\":1,\"c\":1}" },
          { "{\"a\":1,\"b\"" } },
        { "{\"properties\":{\"a\":false,\"b\":{}},\"additionalProperties\":false}", { "{\"b\":1}" }, { "{\"a" } },
        { "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"items\":{\"type\":\"null\"}}]}",
          { "\"a\"", "[null]" },
          { "1", "[1]" } },
        { "{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"}}},{\"properties\":{\"k\":{\"const\":\"b\"},\"v\":{"
          "\"type\":\"null\"}}}],\"required\":[\"k\"],\"type\":\"object\"}",
          { "{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\",\"v\":null}" },
          { "{\"k\":\"b\",\"v\":1}", "{\"v\":1}", "{\"k\":\"c\"" } },
        { "{\"allOf\":[{\"properties\":{\"a\":{\"minimum\":2}},\"required\":[\"a\"]},{\"properties\":{\"a\":{"
          "\"type\":"
          "\"integer\",\"maximum\":4}}}]}",
          { "{\"a\":2}", "{\"a\":4}" },
          { "{\"a\":1}", "{\"a\":5}", "{}" } },
        { "{\"$ref\":\"#/$defs/a~1b\",\"$defs\":{\"a/b\":{\"type\":\"object\",\"properties\":{\"n\":{\"$ref\":\"#/"
          "$defs/a~1b\"}},\"additionalProperties\":false}}}",
          { "{}", "{\"n\":{\"n\":{}}}" },
          { "{\"n\":1}", "{\"n\":{\"x\"" } },
        { "{\"definitions\":{\"t\":{\"anyOf\":[{\"const\":0},{\"type\":\"array\",\"items\":{\"$ref\":\"#/definitions/"
          "t\"}}]}},"
          "\"$ref\":\"#/definitions/t\"}",
          { "0", "[[0],[],[[0]]]" },
          { "1", "[1]", "[[0]" } },
        { "{\"$ref\":\"#/$defs/s\",\"maxLength\":1,\"$defs\":{\"s\":{\"type\":\"string\"}}}",
          { "\"a\"" },
          { "\"ab\"" } },
    };
    check_schemas(cases, COUNT(cases), &any_style);
}

/* Objects are closed where their schema can be met without other names. */
TEST(test_closed)
{
    static const qn_grammar_options options = { .style.closed = true };
    static const struct texts cases[] = {
        { "{\"properties\":{\"a\":{}}}", { "{}", "{\"a\": 1}" }, { "{\"b\": 1}", "{\"a\": 1, \"b\": 2}" } },
        { "{\"type\":\"object\"}", { "{}", "{\"b\": 1}" }, { "[" } },
        { "{\"properties\":{\"a\":{}},\"additionalProperties\":true}", { "{\"a\": 1, \"b\": 2}" }, { "1," } },
        { "{\"properties\":{\"a\":{}},\"required\":[\"a\",\"b\"]}", { "{\"a\": 1, \"b\": 2}" }, { "{\"a\": 1}" } },
        { "{\"properties\":{\"a\":{}},\"minProperties\":2}", { "{\"a\": 1, \"b\": 2}" }, { "{\"a\": 1}" } },
        { "{\"properties\":{\"a\":{\"properties\":{\"b\":{}}}}}",
          { "{\"a\": {\"b\": 1}}" },
          { "{\"a\": {\"c\": 1}}", "{\"b\": 1}" } },
        { "{\"allOf\":[{\"properties\":{\"a\":{}}},{\"properties\":{\"b\":{}}}]}",
          { "{\"a\": 1, \"b\": 2}" },
          { "{\"c\": 1}" } },
        { "{\"properties\":{\"a\":{}},\"patternProperties\":{\"^x\":{}}}",
          { "{\"a\": 1, \"x1\": 2}" },
          { "{\"y\": 1}" } },
    };
    check_schemas(cases, COUNT(cases), &options);
}

TEST(test_options)
{
    static const char schema[] = "{\"properties\":{\"a\":{},\"b\":{}},\"required\":[\"b\"]}";
    qn_grammar *grammar;
    assert_ok(from_schema(schema, &(qn_grammar_options){ .style.closed = true }, &grammar));
    check_texts(grammar, &(struct texts){ schema, { "{\"a\": 1, \"b\": 1}" }, { "{\"c\": 1" } });
    qn_grammar_free(grammar);
    assert_ok(from_schema("{\"type\":\"array\",\"contains\":{}}", NULL, &grammar));
    qn_grammar_free(grammar);
    assert_ok(qn_grammar_from_json(false, (qn_json_style){ 0 }, &grammar));
    check_texts(grammar, &(struct texts){ "json", { "1", "{}" }, { "x" } });
    qn_grammar_free(grammar);
    assert_ok(qn_grammar_from_json(true, (qn_json_style){ 0 }, &grammar));
    check_texts(grammar, &(struct texts){ "json object", { "{}" }, { "1", "[]" } });
    qn_grammar_free(grammar);
}

/* Lists of texts that are the same document but for white space, with what each style says of them. */
TEST(test_spaces)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\"},\"b\":{\"anyOf\":[{"
                                 "\"type\":\"object\"},{\"type\":"
                                 "\"null\"}]},\"c\":{\"const\":{\"x\":[1,{}]}}}}";
    static const struct texts cases[] = {
        [QN_JSON_SPACE_DEFAULT] = { "default",
                                    { "{}", "{\"a\": []}",
                                      "{\"a\": [1, [true, {}]], \"b\": {\"x\": {\"y\": 1}, \"z\": \"\"}}",
                                      "{\"c\": {\"x\": [1, {}]}}" },
                                    { "{ }", "{\"a\":[]}", "{\"a\" : []}", "{\"a\":  []}", "{\"a\": [1,2]}",
                                      "{\"a\": [1 ,2]}", "{\"a\": [ 1]}", "{\"a\": []\n}", "{\"a\": [],\"b\"", "{\n",
                                      "{\"c\": {\"x\":[" } },
        [QN_JSON_SPACE_INDENT] = { "indent",
                                   { "{}", "{\n  \"a\": []\n}", "{\n  \"a\": [\n    1,\n    [\n      {}\n    ]\n  ]\n}",
                                     "{\n  \"b\": {\n    \"x\": {\n      \"y\": 1\n    },\n    \"z\": {}\n  }\n}",
                                     "{\n  \"c\": {\n    \"x\": [\n      1,\n      {}\n    ]\n  }\n}",
                                     "{\n  \"a\": [\n    {\n      \"x\": 1\n    }\n  ],\n  \"b\": null\n}" },
                                   { "{\"a\"", "{\n \"a\"", "{\n   ", "{\n  \"a\": [1", "{\n  \"a\": [\n    1\n]",
                                     "{\n  \"a\":[", "{\n  \"a\": [],\n\"b\"", "{\n}", "{\n  \"a\": []}",
                                     "{\n  \"a\": [],\n    " } },
        [QN_JSON_SPACE_COMPACT] = { "compact",
                                    { "{}", "{\"a\":[1,[true,{}]],\"b\":{\"x\":{\"y\":1},\"z\":\"\"}}",
                                      "{\"c\":{\"x\":[1,{}]}}" },
                                    { "{\"a\": ", "{\"a\":[1, ", "{ ", "{\"a\":[],\n" } },
        [QN_JSON_SPACE_ANY] = { "any",
                                { "{}", "{ \"a\" : [ 1 ,\n\t\t2 ] }", "{\"a\":[1,2]}",
                                  "{\r\n                    \"a\":[]\n}",
                                  "{\"a\": [\n    1,\n    [\n      {}\n    ]\n  ]}" },
                                { "{  ", "{\n\n", "{\n                     ", " {}", "{} " } },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_grammar *grammar;
        assert_ok(from_schema(schema, &(qn_grammar_options){ .style.space = (qn_json_space)i }, &grammar));
        check_texts(grammar, &cases[i]);
        qn_grammar_free(grammar);
        label("any JSON");
        assert_ok(qn_grammar_from_json(false, (qn_json_style){ .space = (qn_json_space)i }, &grammar));
        check_texts(grammar, &cases[i]);
        qn_grammar_free(grammar);
    }
}

/* Properties come in the schema's order: optional ones may be left out, and those that have no name there come last. */
TEST(test_order)
{
    static const struct texts cases[] = {
        { "{\"properties\":{\"r\":{},\"o\":{},\"a\":{}},\"required\":[\"a\",\"r\"]}",
          { "{\"r\": 1, \"o\": 1, \"a\": 1}", "{\"r\": 1, \"a\": 1}", "{\"r\": 1, \"a\": 1, \"z\": 1, \"y\": 1}" },
          { "{\"a\"", "{\"o\"", "{\"r\": 1, \"z\"", "{\"r\": 1, \"a\": 1, \"o\"",
            "{\"r\": 1, \"a\": 1, \"z\": 1, \"o\"", "{}", "{\"r\": 1}" } },
        { "{\"properties\":{\"c\":{},\"b\":{},\"a\":{}},\"additionalProperties\":false}",
          { "{}", "{\"c\": 1}", "{\"b\": 1}", "{\"a\": 1}", "{\"c\": 1, \"a\": 1}",
            "{"
            "\"c\": 1, \"b\": 1, \"a\": 1}" },
          { "{\"a\": 1, \"", "{\"b\": 1, \"c\"", "{\"z\"" } },
        /* What leaves too few behind it cannot come. */
        { "{\"properties\":{\"a\":{},\"b\":{},\"c\":{},\"d\":false},\"minProperties\":2,\"additionalProperties\":"
          "false}",
          { "{\"a\": 1, \"b\": 1}", "{\"b\": 1, \"c\": 1}", "{\"a\": 1, \"c\": 1}" },
          { "{\"c\"", "{\"a\": 1}", "{\"b\": 1}", "{}", "{\"d\"" } },
        { "{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"required\":[\"c\"],\"minProperties\":2,\"maxProperties\":2,"
          "\"additionalProperties\":false}",
          { "{\"a\": 1, \"c\": 1}", "{\"b\": 1, \"c\": 1}" },
          { "{\"c\"", "{\"a\": 1, \"b\"" } },
        { "{\"properties\":{\"b\":{},\"a\":{}},\"minProperties\":2}",
          { "{\"a\": 1, \"x\": 1}", "{\"x\": 1, \"y\": 1}", "{\"b\": 1, \"a\": 1}" },
          { "{\"a\": 1}", "{\"a\": 1, \"b\"" } },
        /* Required ones that have no schema of their own come behind those that have. */
        { "{\"properties\":{\"b\":{}},\"required\":[\"z\",\"y\",\"b\"]}",
          { "{\"b\": 1, \"z\": 1, \"y\": 1, \"a\": 1}" },
          { "{\"z\"", "{\"b\": 1, \"y\"", "{\"b\": 1, \"a\"" } },
        /* What is joined: in the order in which the schema says it. */
        { "{\"properties\":{\"b\":{},\"x\":{}},\"anyOf\":[{\"properties\":{\"a\":{},\"b\":{}},\"required\":["
          "\"a\"]}]}",
          { "{\"b\": 1, \"x\": 1, \"a\": 1}" },
          { "{\"a\": 1, \"b\"", "{\"a\": 1, \"x\"" } },
        { "{\"anyOf\":[{\"properties\":{\"b\":{},\"x\":{}},\"required\":[\"x\"]}],\"properties\":{\"a\":{},"
          "\"c\":{}}}",
          { "{\"b\": 1, \"x\": 1, \"a\": 1, \"c\": 1}" },
          { "{\"a\"", "{\"x\": 1, \"b\"" } },
        { "{\"allOf\":[{\"properties\":{\"d\":{}}},{\"properties\":{\"c\":{}}}],\"properties\":{\"b\":{}}}",
          { "{\"d\": 1, \"c\": 1, \"b\": 1}" },
          { "{\"c\": 1, \"d\"", "{\"b\": 1, \"c\"" } },
        { "{\"properties\":{\"b\":{}},\"allOf\":[{\"properties\":{\"d\":{}}},{\"properties\":{\"c\":{}}}]}",
          { "{\"b\": 1, \"d\": 1, \"c\": 1}" },
          { "{\"c\": 1, \"d\"", "{\"d\": 1, \"b\"" } },
        { "{\"properties\":{\"b\":{}},\"$ref\":\"#/$defs/d\",\"$defs\":{\"d\":{\"properties\":{\"a\":{}}}}}",
          { "{\"b\": 1, \"a\": 1}" },
          { "{\"a\": 1, \"b\"" } },
        { "{\"const\":{\"b\":1,\"a\":2}}", { "{\"b\": 1, \"a\": 2}" }, { "{\"a\"" } },
    };
    check_schemas(cases, COUNT(cases), NULL);
}

/* Many properties, one order: a document of all of them, and of each third; and any two the other way round do not
 * fit. */
TEST(test_long_order)
{
    enum { N = 256 };
    static char text[N * 16];
    json_t *properties = json_object();
    qn_grammar *grammar;
    for (int i = 0; i < N; i++) {
        char name[8];
        snprintf(name, sizeof name, "p%03d", (i * 37) % N);
        json_object_set_new(properties, name, json_pack("{s:i}", "const", i));
    }
    json_t *schema = json_pack("{s:o,s:b}", "properties", properties, "additionalProperties", 0);
    assert_ok(qn_grammar_from_schema(schema, NULL, &grammar));
    for (int step = 1; step < N; step = step * 3 + 1) {
        qn_text_buffer to = QN_APPEND_TO(text);
        for (int i = step / 2; i < N; i += step)
            qn_append(&to, "%s\"p%03d\": %d", i == step / 2 ? "{" : ", ", (i * 37) % N, i);
        qn_append(&to, "}");
        assert_false(to.is_cut);
        label("each %d", step);
        assert_int_equal(fits(grammar, text), 1);
        to = QN_APPEND_TO(text);
        qn_append(&to, "{\"p%03d\": %d, \"p%03d\"", (step * 37) % N, step, ((step - 1) * 37) % N);
        assert_int_equal(fits(grammar, text), -1);
    }
    qn_grammar_free(grammar);
    json_decref(schema);
}

TEST(test_refused_schemas)
{
    static const struct {
        const char *schema;
        qn_status status;
        const char *text;
    } cases[] = {
        { "1", QN_ERR_INVALID, "neither an object nor a boolean" },
        { "false", QN_ERR_INVALID, "no text fits 'schema: #'" },
        { "{\"type\":\"text\"}", QN_ERR_INVALID, "#/type: 'text' is not a type, expected \"string\"" },
        { "{\"type\":[\"null\",\"List\"]}", QN_ERR_INVALID, "#/type: 'List' is not a type, expected \"array\"" },
        { "{\"type\":\"file\"}", QN_ERR_INVALID, "#/type: 'file' is not a type" },
        { "{\"not\":{}}", QN_ERR_INVALID, "no text fits" },
        { "{\"properties\":{\"a\":{\"contains\":{}}}}", QN_ERR_UNSUPPORTED,
          "schema: #/properties/a: keyword 'contains'" },
        { "{\"type\":\"string\",\"pattern\":\"(?<=a)\"}", QN_ERR_UNSUPPORTED, "look-behind at byte" },
        { "{\"type\":\"string\",\"pattern\":\"(\"}", QN_ERR_INVALID, "missing ')'" },
        { "{\"type\":\"string\",\"minLength\":-1}", QN_ERR_INVALID, "#/minLength: not a count" },
        { "{\"type\":\"string\",\"minLength\":\"1\"}", QN_ERR_INVALID, "#/minLength: not a count" },
        { "{\"type\":\"integer\",\"minimum\":\"1\"}", QN_ERR_INVALID, "#/minimum: not a number" },
        { "{\"$ref\":\"#/x\"}", QN_ERR_INVALID, "$ref '#/x': there is no such schema" },
        { "{\"$ref\":\"http://a/b\"}", QN_ERR_UNSUPPORTED, "is outside the schema" },
        { "{\"$ref\":\"#\"}", QN_ERR_INVALID, "refers to itself" },
        { "{\"anyOf\":[]}", QN_ERR_INVALID, "#/anyOf: not a list" },
        { "{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", QN_ERR_INVALID, "matches nothing" },
        { "{\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}", QN_ERR_INVALID, "no text fits" },
        { "{\"required\":[1]}", QN_ERR_INVALID, "#/required/0: not a string" },
        { "{\"allOf\":[{\"format\":\"uri\"},{\"format\":\"uuid\"}]}", QN_ERR_UNSUPPORTED,
          "have 'format', which cannot" },
    };
    const qn_grammar_options strict = { .strict = true };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_grammar *grammar;
        label("%s", cases[i].schema);
        assert_fails(from_schema(cases[i].schema, &strict, &grammar), cases[i].status, cases[i].text);
        assert_null(grammar);
    }
}

typedef qn_status read_grammar(const char *text, size_t n, qn_grammar **out);

static void check_cases(read_grammar *read, const struct texts *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        qn_grammar *grammar;
        label("%s", cases[i].source);
        assert_ok(read(cases[i].source, strlen(cases[i].source), &grammar));
        check_texts(grammar, &cases[i]);
        qn_grammar_free(grammar);
    }
}

struct refused {
    const char *source;
    qn_status status;
    const char *text;
};

static void check_refused(read_grammar *read, const struct refused *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        qn_grammar *grammar;
        label("%s", cases[i].source);
        assert_fails(read(cases[i].source, strlen(cases[i].source), &grammar), cases[i].status, cases[i].text);
        assert_null(grammar);
    }
}

TEST(test_regexes)
{
    static const struct texts cases[] = {
        { "ab|c", { "ab", "c" }, { "a", "abc", "" } },
        { "^(?:a|b)*?$", { "", "abba" }, { "c" } },
        { "a{2}b{1,}c{0,2}", { "aab", "aabbbcc" }, { "ab", "aac", "aabccc" } },
        { "[^a-c\\d]\\w\\s\\D", { "x_ -" }, { "a_ -", "x- -", "x_ 1" } },
        { "\\x41\\u00e9\\u{1f600}\\.\\/\\n", { "A\xc3\xa9\xf0\x9f\x98\x80./\n" }, { "A" } },
        { ".", { "a", "\xe2\x82\xac" }, { "\n", "\xff", "aa" } },
        { "(?<name>a)[\\]-]", { "a]", "a-" }, { "a" } },
        { "", { "" }, { "a" } },
        { "((a*)*)*", { "", "aaa" }, { "b" } },
        { "(?!a)[a-c]+", { "b", "ca" }, { "a", "ab" } },
        { "(?=.*1)(?=.*2)[0-9]{2,3}", { "12", "021" }, { "11", "1234", "2" } },
        { "((?!ab)[ab])*", { "", "ba", "bbaa" }, { "ab", "aab" } },
        { "a(?=b|(?!c)[a-d])[a-d]d?", { "ab", "aad" }, { "ac", "acd" } },
        { "(?!(a|b)$)[abc]*", { "", "c", "aa" }, { "a", "b" } },
        { "\\bfoo\\b( \\w+)?", { "foo", "foo bar" }, { "foo " } },
        { "a\\Bb\\b!?", { "ab", "ab!" }, { "a" } },
        { "(^a|b)+$", { "a", "bb", "ab" }, { "ba", "aa" } },
        { "\\p{Lu}\\p{L}*", { "\xc3\x89t\xc3\xa9", "A" }, { "a", "A1" } },
        { "[\\p{Script=Greek}\\pN]+",
          { "\xce\xb1"
            "1" },
          { "a" } },
        { "\\p{Uppercase_Letter}\\p{gc=Letter}\\p{Decimal_Number}", { "Ab1" }, { "ab1", "A11", "Abc" } },
        { "[^\\P{ASCII}a]", { "b" }, { "a", "\xc3\xa9" } },
    };
    static const struct refused refused[] = {
        { "(a)\\1", QN_ERR_UNSUPPORTED, "back reference" },
        { "(?<!a)b", QN_ERR_UNSUPPORTED, "look-behind" },
        { "(?i)b", QN_ERR_UNSUPPORTED, "this kind of group" },
        { "(?=a\\b)a", QN_ERR_UNSUPPORTED, "a word boundary in a look-ahead" },
        { "(?!a)+b", QN_ERR_UNSUPPORTED, "a quantifier of an assertion" },
        { "\\p{Lx}", QN_ERR_UNSUPPORTED, "the property 'Lx' at byte 2" },
        { "\\p{L", QN_ERR_INVALID, "a property without its end" },
        { "\\p", QN_ERR_INVALID, "unexpected end" },
        { "(?=a)b", QN_ERR_INVALID, "matches nothing" },
        { "a**", QN_ERR_INVALID, "quantifier" },
        { "[b-a]", QN_ERR_INVALID, "no range" },
        { "a)", QN_ERR_INVALID, "unexpected ')'" },
        { "[", QN_ERR_INVALID, "unexpected end" },
        { "a{2", QN_ERR_INVALID, "malformed" },
        { "a{200000}", QN_ERR_UNSUPPORTED, "100000" },
        { "\\", QN_ERR_INVALID, "unexpected end" },
        { "[^\\u{0}-\\u{10ffff}]", QN_ERR_INVALID, "matches nothing" },
        { "a^b", QN_ERR_INVALID, "matches nothing" },
    };
    check_cases(qn_grammar_from_regex, cases, COUNT(cases));
    check_refused(qn_grammar_from_regex, refused, COUNT(refused));
}

TEST(test_choices)
{
    const char *const choices[] = { "yes", "yesterday", "\xff", "" };
    qn_grammar *grammar;
    assert_ok(qn_grammar_from_choices(choices, 4, &grammar));
    check_texts(grammar, &(struct texts){ "choices", { "yes", "yesterday", "\xff", "" }, { "y", "yester", "no" } });
    qn_grammar_free(grammar);
    assert_fails(qn_grammar_from_choices(choices, 0, &grammar), QN_ERR_INVALID, "choices: the list is empty");
}

TEST(test_gbnf)
{
    static const struct texts cases[] = {
        { "root ::= \"a\" | \"b\" # comment\n", { "a", "b" }, { "ab" } },
        { "root ::= (\n  \"a\" # x\n  | \"b\"\n)+ \"\\\"\\n\\x41\\u00e9\"", { "ab\"\nA\xc3\xa9" }, { "\"" } },
        { "root ::= [a-c^\\]]{2} [^a-y] .", { "a]z\n", "^bz\xc3\xa9" }, { "adz.", "aaa." } },
        { "root ::= x{2,3} y? z{1,} w{0,1}\nx::=\"x\"\ny ::= \"y\"\nz ::= \"z\" \nw ::= \"w\"",
          { "xxz", "xxxyzzw" },
          { "xz", "xxxxz" } },
        { "# start\n\nroot  ::= expr\r\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr \")\"\n",
          { "1+(2+(3))", "12" },
          { "1+", "(1", "1)" } },
        { "root ::= a |\n  b\na ::= \"x\" root \"y\" | \"\"\nb ::= \"<\" root \">\"",
          { "", "xxyy", "x<>y" },
          { "xx", "xyy", "<" } },
        { "root ::= \"a\" root?", { "a", "aaaa" }, { "", "b" } },
        { "root ::= (x | y)* \"!\"\nx ::= \"(\" root \")\"\ny ::= (x? x?)?", { "!", "(!)(!)!" }, { "(", "()!" } },
        { "root ::= \"\xc3\xa9\" ([\xc3\xa9-\xc3\xaa])", { "\xc3\xa9\xc3\xaa" }, { "\xc3\xa9\xc3\xab" } },
    };
    static const struct refused refused[] = {
        { "", QN_ERR_INVALID, "no rule 'root'" },
        { "a ::= \"x\"", QN_ERR_INVALID, "no rule 'root'" },
        { "root ::= x", QN_ERR_INVALID, "rule 'x' is not defined" },
        { "root ::= \"a\"\nroot ::= \"b\"", QN_ERR_INVALID, "line 2: rule 'root' is defined twice" },
        { "root ::= root \"a\" | \"b\"", QN_ERR_INVALID, "'root' refers to itself" },
        { "root ::= a? b\na ::= \"x\"\nb ::= a? root", QN_ERR_INVALID, "refers to itself" },
        { "root ::= \"x\" root", QN_ERR_INVALID, "no text fits 'root'" },
        { "root ::= (\"a\"", QN_ERR_INVALID, "expected ')'" },
        { "root ::= \"a", QN_ERR_INVALID, "without its end" },
        { "root ::= [b-a]", QN_ERR_INVALID, "a range that ends" },
        { "root ::= []", QN_ERR_INVALID, "an empty class" },
        { "root = \"a\"", QN_ERR_INVALID, "expected '::='" },
        { "root ::= \"a\" ] \"b\"", QN_ERR_INVALID, "line 1: expected a literal" },
        { "root ::= \"a\"{2", QN_ERR_INVALID, "repetition" },
        { "root ::= \"a\"{200000}", QN_ERR_UNSUPPORTED, "a count above" },
        { "root ::= \"\\q\"", QN_ERR_INVALID, "an unknown escape" },
        { "root ::= <[1]>", QN_ERR_INVALID, "expected" },
    };
    check_cases(qn_grammar_from_gbnf, cases, COUNT(cases));
    check_refused(qn_grammar_from_gbnf, refused, COUNT(refused));
}

/* ---- Bounds ---- */

/* A schema of `levels` levels, each `before` and `after` around the next. */
static char *nest(const char *before, const char *inner, const char *after, size_t levels)
{
    const size_t n_before = strlen(before), n_after = strlen(after), n_inner = strlen(inner);
    char *text = malloc(levels * (n_before + n_after) + n_inner + 1), *p = text;
    assert_non_null(text);
    for (size_t i = 0; i < levels; i++, p += n_before)
        memcpy(p, before, n_before);
    memcpy(p, inner, n_inner);
    p += n_inner;
    for (size_t i = 0; i < levels; i++, p += n_after)
        memcpy(p, after, n_after);
    *p = 0;
    return text;
}

/* Alternatives that double with each level. */
static char *nest_alternatives(void)
{
    char text[4096];
    qn_text_buffer to = QN_APPEND_TO(text);
    for (int i = 0; i < 20; i++)
        qn_append(&to, "{\"allOf\":[{\"anyOf\":[{\"minimum\":%d},{\"minLength\":%d}]},", i, i);
    return nest(text, "{}", "", 1);
}

/* Whatever the status, compilation ends soon. A second is for sanitizers and busy machines. */
TEST(test_bounded)
{
    enum { SCHEMA, REGEX, GBNF };
    char *const any = nest("{\"anyOf\":[{\"minLength\":1},", "{\"maxLength\":9}", "]}", 300);
    char *const open = nest_alternatives(), *const all = nest(open, "", "]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}]}", 1);
    char *const arrays = nest("{\"minItems\":1000000,\"items\":", "true", "}", 500);
    const struct {
        int kind;
        const char *text;
        bool is_refused;
    } cases[] = {
        { SCHEMA, any, false },
        { SCHEMA, all, true },
        { SCHEMA, arrays, false },
        { SCHEMA, "{\"type\":\"string\",\"minLength\":2000000000,\"maxLength\":2000000000}", false },
        { SCHEMA, "{\"pattern\":\"^.{1,100000}$\"}", true },
        { SCHEMA, "{\"pattern\":\"^.*a.{18}$\"}", true },
        { SCHEMA, "{\"pattern\":\"^a*$\",\"minLength\":1000000}", true },
        { SCHEMA, "{\"allOf\":[{\"$ref\":\"#\"}]}", true },
        { SCHEMA, "{\"$ref\":\"#\",\"minLength\":1}", true },
        { SCHEMA,
          "{\"$defs\":{\"a\":{\"allOf\":[{\"$ref\":\"#/$defs/b\"},{\"$ref\":\"#/$defs/b\"}]},"
          "\"b\":{\"allOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"}]}},\"$ref\":\"#/$defs/a\"}",
          true },
        { REGEX, "((((((a{99}){99}){99}){99}){99}){99}){99}", true },
        { REGEX, "(((a*)*)*)*(a|aa)+b", false },
        { REGEX, "((((((){99}){99}){99}){99}){99}){99}", true },
        { GBNF, "root ::= ((((\"a\"{1000}){1000}){1000}){1000}){1000}", true },
        { GBNF, "root ::= (((((\"\"{1000}){1000}){1000}){1000}){1000}){1000} root?", true },
        { GBNF,
          "root ::= a a a a a a a a\na ::= b b b b b b b b\nb ::= c c c c c c c c\nc ::= d d d d d d d d\n"
          "d ::= e e e e e e e e\ne ::= \"x\"{100}",
          false },
    };
    const qn_grammar_options strict = { .strict = true };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%.60s", cases[i].text);
        qn_grammar *grammar;
        qn_status status;
        const double begin = cpu_seconds();
        if (cases[i].kind == SCHEMA)
            status = from_schema(cases[i].text, &strict, &grammar);
        else if (cases[i].kind == REGEX)
            status = qn_grammar_from_regex(cases[i].text, strlen(cases[i].text), &grammar);
        else
            status = qn_grammar_from_gbnf(cases[i].text, strlen(cases[i].text), &grammar);
        assert_true(cpu_seconds() - begin < 1);
        assert_int_equal(status != QN_OK, cases[i].is_refused);
        assert_true(status == QN_OK || status == QN_ERR_UNSUPPORTED || status == QN_ERR_INVALID);
        qn_grammar_free(grammar);
    }
    free(any);
    free(open);
    free(all);
    free(arrays);
}

/* As many alternatives as may be, all of which begin alike, fit; one more is refused. */
TEST(test_alternatives)
{
    enum { MOST = QN_GRAMMAR_THREADS / 3 };
    for (int n = MOST; n <= MOST + 1; n++) {
        json_t *branches = json_array();
        for (int i = 0; i < n; i++)
            json_array_append_new(branches, json_pack("{s:{s:{s:i}}}", "properties", "name", "const", i + 1000));
        json_t *schema = json_pack("{s:o}", "anyOf", branches);
        qn_grammar *grammar;
        const qn_status status = qn_grammar_from_schema(schema, NULL, &grammar);
        json_decref(schema);
        assert_int_equal(status, n == MOST ? QN_OK : QN_ERR_UNSUPPORTED);
        for (int i = 0; i < n && status == QN_OK; i++) {
            char text[64];
            snprintf(text, sizeof text, "{\"name\": %d, \"x\": 1}", i + 1000);
            label("%s", text);
            assert_int_equal(fits(grammar, text), 1);
        }
        qn_grammar_free(grammar);
    }
    assert_text("#/anyOf: 171 alternatives, at most 170");
}

/* Arrays nest to the bound on frames, and no further. */
TEST(test_depth)
{
    qn_grammar *grammar;
    qn_grammar_state *state;
    size_t depth = 0;
    assert_ok(qn_grammar_from_json(false, (qn_json_style){ 0 }, &grammar));
    assert_ok(qn_grammar_state_create(grammar, &state));
    while (depth < 1000 && qn_grammar_state_advance(state, "[", 1))
        depth++;
    assert_in_range(depth, QN_GRAMMAR_DEPTH - 1, QN_GRAMMAR_DEPTH + 1);
    for (size_t i = 0; i < depth; i++)
        assert_true(qn_grammar_state_advance(state, "]", 1));
    assert_true(qn_grammar_state_is_finished(state));
    qn_grammar_state_free(state);
    qn_grammar_free(grammar);
}
