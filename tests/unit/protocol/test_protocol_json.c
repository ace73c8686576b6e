/* JSON of bodies, read with limits, and of answers, written piece by piece. */
#include "helper_protocol.h"

#include <math.h>

/* ---- Writing ---- */

TEST(members_and_items_are_separated)
{
    qn_bytes out = { 0 };
    qn_bytes_print(&out, "data: ");
    qn_json_open(&out, '{');
    qn_json_member_string(&out, "a", "x");
    qn_json_member_string(&out, "b", NULL);
    qn_json_key(&out, "c");
    qn_json_open(&out, '[');
    qn_json_close(&out, ']');
    qn_json_key(&out, "d");
    qn_json_open(&out, '[');
    qn_json_integer(&out, -5);
    qn_json_bool(&out, true);
    qn_json_bool(&out, false);
    qn_json_null(&out);
    qn_json_open(&out, '{');
    qn_json_close(&out, '}');
    qn_json_open(&out, '{');
    qn_json_close(&out, '}');
    qn_json_string(&out, "[");
    qn_json_string(&out, ":");
    qn_json_number(&out, 2);
    qn_json_close(&out, ']');
    qn_json_member_integer(&out, "e", INT64_MIN);
    qn_json_close(&out, '}');
    qn_bytes_print(&out, "\n\n");
    qn_json_open(&out, '[');
    assert_bytes(
        &out,
        "data: "
        "{\"a\":\"x\",\"b\":null,\"c\":[],\"d\":[-5,true,false,null,{},{},\"[\",\":\",2.0],\"e\":-9223372036854775808}"
        "\n\n[");
    qn_bytes_free(&out);
}

TEST(strings_are_escaped)
{
    static const struct {
        const char *text, *json;
    } cases[] = { { "", "" },
                  { "a\"b\\c/", "a\\\"b\\\\c/" },
                  { "\b\f\n\r\t\x01\x1f\x7f", "\\b\\f\\n\\r\\t\\u0001\\u001F\x7f" },
                  { "é媽🤗", "é媽🤗" },
                  { "a\xff\xfe", "a\xef\xbf\xbd\xef\xbf\xbd" },
                  { "\xc3", "\xef\xbf\xbd" },
                  { "\xf0\x9f\xa4", "\xef\xbf\xbd" },
                  { "\xf0\x9f\xa4x\"", "\xef\xbf\xbdx\\\"" },
                  { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
                  { "\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd" } };
    qn_bytes out = { 0 };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("case %zu", i);
        char expected[128];
        snprintf(expected, sizeof expected, "\"%s\"", cases[i].json);
        qn_json_string(&out, cases[i].text);
        assert_bytes(&out, expected);
    }
    qn_json_text(&out, "a\0b", 3);
    assert_bytes(&out, "\"a\\u0000b\"");
    qn_json_text(&out, NULL, 0);
    assert_bytes(&out, "\"\"");
    qn_bytes_free(&out);
}

TEST(numbers_have_the_digits_of_a_float)
{
    static const struct {
        double value;
        const char *json;
    } cases[] = { { 0, "0.0" },
                  { -1.5, "-1.5" },
                  { 0.1f, "0.1" },
                  { 0.7f, "0.7" },
                  { 0.95f, "0.95" },
                  { 1.0f / 3, "0.33333334" },
                  { 16777216, "16777216.0" },
                  { 0x1.fffffep-1f, "0.99999994" },
                  { 1.0 / 3, "0.333333333" },
                  { 3.4028235e38f, "3.4028235e+38" },
                  { 1e-30, "1e-30" },
                  { 123456789, "123456789.0" },
                  { INFINITY, "null" },
                  { -INFINITY, "null" },
                  { NAN, "null" } };
    qn_bytes out = { 0 };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_json_number(&out, cases[i].value);
        assert_bytes(&out, cases[i].json);
    }
    qn_bytes_free(&out);
}

/* ---- Reading ---- */

static json_t *read_body(const char *text, const qn_protocol_limits *limits)
{
    qn_refusal refusal = { 0 };
    qn_reading reading = { .limits = limits };
    json_t *json = qn_body_read(text, strlen(text), &reading, &refusal);
    if (!json)
        assert_int_equal(refusal.status, 400);
    if (!json)
        assert_string_equal(refusal.code, "invalid_json");
    return json;
}

static void assert_reads(const char *text, const char *as)
{
    label("%s", text);
    json_t *json = read_body(text, NULL), *expected = json_loads(as, JSON_ALLOW_NUL, NULL);
    assert_non_null(json);
    assert_non_null(expected);
    assert_true(json_equal(json, expected));
    json_decref(json);
    json_decref(expected);
}

TEST(lone_surrogates_are_replaced)
{
    assert_reads("{\"a\":\"\\ud83e\\udd17\"}", "{\"a\":\"🤗\"}");
    assert_reads("{\"a\":\"\\uD83E\\uDD17\\ud83e\"}", "{\"a\":\"🤗\\ufffd\"}");
    assert_reads("{\"a\":\"\\ud83ex\"}", "{\"a\":\"\\ufffdx\"}");
    assert_reads("{\"a\":\"\\udd17\\ud83e\"}", "{\"a\":\"\\ufffd\\ufffd\"}");
    assert_reads("{\"a\":\"\\ud83e\\ud83e\\udd17\"}", "{\"a\":\"\\ufffd🤗\"}");
    assert_reads("{\"a\":\"\\\\ud83e\"}", "{\"a\":\"\\\\ud83e\"}");
    assert_reads("{\"a\":\"\\\\\\ud83e\"}", "{\"a\":\"\\\\\\ufffd\"}");
    assert_reads("{\"\\ud800\":{\"text\":\"\\u0000\"}}", "{\"\\ufffd\":{\"text\":\"\\u0000\"}}");
    assert_null(read_body("{\"a\":\"\\ud8\"}", NULL));
    assert_null(read_body("{\"a\":\"\\ud83\"}", NULL));
}

TEST(what_is_no_body_is_refused)
{
    static const char *const bad[] = { "",
                                       "{",
                                       "[]",
                                       "5",
                                       "null",
                                       "{} {}",
                                       "{\"a\":1e999}",
                                       "{'a':1}",
                                       "{a:1}",
                                       "{\"a\":\"\xff\"}",
                                       "{\"a\":\"\n\"}",
                                       "{\"a\":01}",
                                       "{\"\\u0000\":1}",
                                       "\xef\xbb\xbf\xef\xbb\xbf{}" };
    for (size_t i = 0; i < COUNT(bad); i++) {
        label("%s", bad[i]);
        assert_null(read_body(bad[i], NULL));
    }
    assert_reads(" {\"a\":1,\"a\":2} \n", "{\"a\":2}");
    assert_reads("\xef\xbb\xbf{\"a\":2}", "{\"a\":2}");
    json_t *json = read_body("{\"seed\":18446744073709551615,\"n\":2}", NULL);
    assert_true(json_is_integer(json_object_get(json, "n")));
    assert_true(json_real_value(json_object_get(json, "seed")) == 0x1p64);
    json_decref(json);
    assert_reads(
        "{\"a\":[9223372036854775808,-9223372036854775808, -9223372036854775809 ,2,\"99999999999999999999\\\"\",1e30]}",
        "{\"a\":[9223372036854775808.0,-9223372036854775808,-9223372036854775809.0,2,\"99999999999999999999\\\"\",1e30]"
        "}");
}

/* Texts may have U+0000. What is taken for a terminated string may not: it would be another one. */
TEST(zeros_are_in_texts_alone)
{
    static const char *const texts[] = {
        "{\"prompt\":\"a\\u0000b\"}",
        "{\"prompt\":[\"a\\u0000b\"]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000\"}]}",
        "{\"messages\":[{\"content\":[{\"type\":\"text\",\"text\":\"\\u0000\"}]}]}",
        ("{\"messages\":[{\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":\\\"\\u0000\\\"}\"}}]"
         "}]}"),
        "{\"messages\":[{\"content\":[{\"type\":\"tool_use\",\"input\":{\"a\":{\"id\":\"\\u0000\"}}}]}]}",
        "{\"messages\":[{\"tool_calls\":[{\"function\":{\"arguments\":{\"a\":[\"\\u0000\"]}}}]}]}",
        "{\"system\":[{\"type\":\"text\",\"text\":\"\\u0000\"}],\"instructions\":\"\\u0000\",\"input\":\"\\u0000\"}",
        "{\"input\":[{\"type\":\"function_call_output\",\"output\":\"\\u0000\"}]}",
    };
    static const struct {
        const char *body, *param;
    } names[] = {
        { "{\"model\":\"a\\u0000b\"}", "model" },
        { "{\"stop\":[\"a\",\"\\u0000\"]}", "stop" },
        { "{\"grammar\":\"root ::= \\u0000\"}", "grammar" },
        { "{\"user\":\"\\u0000\"}", "user" },
        { "{\"messages\":[{\"role\":\"user\\u0000\",\"content\":\"a\"}]}", "role" },
        { "{\"messages\":[{\"content\":[{\"type\":\"text\\u0000\",\"text\":\"a\"}]}]}", "type" },
        { "{\"messages\":[{\"tool_calls\":[{\"id\":\"a\\u0000\",\"function\":{}}]}]}", "id" },
        { "{\"messages\":[{\"tool_calls\":[{\"function\":{\"name\":\"f\\u0000\"}}]}]}", "name" },
        { "{\"messages\":[{\"role\":\"tool\",\"tool_call_id\":\"\\u0000\"}]}", "tool_call_id" },
        { "{\"input\":[{\"type\":\"reasoning\",\"encrypted_content\":\"a\\u0000\"}]}", "encrypted_content" },
        { "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"a\\u0000\"}]}", "call_id" },
        { "{\"messages\":[{\"content\":[{\"type\":\"thinking\",\"signature\":\"a\\u0000\"}]}]}", "signature" },
        { "{\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"enum\":[\"a\\u0000\"]}}}]}", "enum" },
        { "{\"tools\":[{\"input_schema\":{\"pattern\":\"\\u0000\"}}]}", "pattern" },
        { "{\"tool_choice\":{\"name\":\"f\\u0000\"}}", "name" },
        { "{\"logit_bias\":[[\"a\\u0000\",1]]}", "logit_bias" },
        { "{\"chat_template_kwargs\":{\"x\":\"\\u0000\"}}", "x" },
        { "{\"metadata\":{\"a\":[[\"\\u0000\"]]}}", "a" },
    };
    for (size_t i = 0; i < COUNT(texts); i++)
        assert_reads(texts[i], texts[i]);
    for (size_t i = 0; i < COUNT(names); i++) {
        qn_refusal refusal;
        label("%s", names[i].body);
        assert_null(qn_body_read(names[i].body, strlen(names[i].body), &(qn_reading){ 0 }, &refusal));
        assert_int_equal(refusal.status, 400);
        assert_string_equal(refusal.param, names[i].param);
    }
}

TEST(depth_is_limited)
{
    char text[1000];
    for (size_t depth = 120; depth < 140; depth++) {
        const size_t inner = depth - 1;
        const int n = sprintf(text, "{\"a\":");
        memset(text + n, '[', inner);
        memset(text + n + inner, ']', inner);
        strcpy(text + n + 2 * inner, "}");
        json_t *json = read_body(text, NULL);
        assert_true(!json == (depth > 128));
        json_decref(json);
    }
    json_t *json = read_body("{\"a\":\"[[[[[[\\\"[[[[\"}", &(qn_protocol_limits){ .depth = 1 });
    assert_non_null(json);
    json_decref(json);
    assert_null(read_body("{\"a\":{}}", &(qn_protocol_limits){ .depth = 1 }));
}

TEST_GROUP(load_vocab, free_vocab)
