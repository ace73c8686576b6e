/* JSON of clients: surrogates that are alone, integers of any length, keys that are there twice, depth, memory. */
#include "helper_assert.h"

#include "gguf/json_decode.h"

/* The text is read from memory without a terminator, for sanitizers. */
static json_t *load(const char *text)
{
    json_error_t why;
    const size_t n = strlen(text);
    char *exact = malloc(n ? n : 1);
    assert_non_null(exact);
    memcpy(exact, text, n);
    json_t *json = qn_json_decode(exact, n, JSON_DECODE_ANY, NULL, &why);
    free(exact);
    return json;
}

static void assert_reads(const char *text, const char *expected)
{
    label("%s", text);
    json_t *json = load(text);
    assert_non_null(json);
    char *printed = json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    assert_string_equal(printed, expected);
    free(printed);
    json_decref(json);
}

TEST(test_surrogates)
{
    assert_reads("\"\\ud83d x\"", "\"\xEF\xBF\xBD x\"");
    assert_reads("\"\\uDc00\\ud800\"", "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");
    assert_reads("\"\\ud83d\\ude00\"", "\"\xF0\x9F\x98\x80\"");
    assert_reads("\"\\ud83d\\ud83d\\ude00\"", "\"\xEF\xBF\xBD\xF0\x9F\x98\x80\"");
    assert_reads("{\"\\udfff\":\"\\\\ud800\"}", "{\"\xEF\xBF\xBD\":\"\\\\ud800\"}");
    assert_reads("\"\\\\\\ud800\"", "\"\\\\\xEF\xBF\xBD\"");
}

TEST(test_integers)
{
    assert_reads("[1,9223372036854775807,-9223372036854775808]", "[1,9223372036854775807,-9223372036854775808]");
    assert_reads("[1,12345678901234567890]", "[1,1.23456789012346e19]");
    assert_reads("{\"a\":-9223372036854775809,\"b\":2}", "{\"a\":-9.22337203685478e18,\"b\":2}");
    assert_reads("[\"99999999999999999999\",\"\\\"\",99999999999999999999,1.5]",
                 "[\"99999999999999999999\",\"\\\"\",1e20,1.5]");
    assert_reads("12345678901234567890", "1.23456789012346e19");
    assert_reads("[12345678901234567890e2,12345678901234567890]", "[1.23456789012346e21,1.23456789012346e19]");
    assert_null(load("[12345678901234567890"));
    assert_null(load("[12345678901234567890,1e400]"));
    assert_null(load("[01234567890123456789012]"));
}

/* What is behind a zero byte is not read from a copy that ends there. */
TEST(test_zero_bytes)
{
    enum { N = 64 << 20 };
    static const char begin[] = "[12345678901234567890";
    char *text = calloc(1, N);
    json_error_t why;
    assert_non_null(text);
    memcpy(text, begin, sizeof begin);
    assert_null(qn_json_decode(text, N, 0, NULL, &why));
    memcpy(text + N / 2, "]", 1);
    assert_null(qn_json_decode(text, N / 2 + 1, 0, NULL, &why));
    assert_null(qn_json_decode(text, sizeof begin, 0, NULL, &why));
    free(text);
}

TEST(test_keys)
{
    assert_reads("{\"a\":1,\"b\":2,\"a\":3}", "{\"a\":3,\"b\":2}");
    assert_reads("\"a\\u0000b\"", "\"a\\u0000b\"");
    assert_null(load("{\"a\":1"));
    assert_null(load(""));
    assert_null(load("NaN"));
}

/* What is JSON, and what is not, as Jansson has it. */
TEST(test_syntax)
{
    static const char *const texts[] = {
        "[]",
        " [ ] ",
        "{}",
        "{ }",
        "[1 , 2]",
        "[1,]",
        "[,1]",
        "[,]",
        "[1 2]",
        "{\"a\":1,}",
        "{,}",
        "{\"a\"}",
        "{\"a\" : 1}",
        "{\"a\",1}",
        "{a:1}",
        "[[[]],[],{}]",
        "{\"a\":{\"b\":[{}]},\"c\":[]}",
        "[1]]",
        "[[1]",
        "{\"a\":[}",
        "[}",
        "{]",
        "true",
        "tru",
        "truex",
        "[true,false,null]",
        "[nul]",
        "-",
        "-0",
        "0",
        "00",
        "-01",
        "1.",
        ".5",
        "1.5",
        "1e",
        "1e5",
        "1E+5",
        "1e-5",
        "1e+",
        "-1.5e-3x",
        "+1",
        "[1e5,2.0]",
        "\"a",
        "\"a\"b",
        "\"\\q\"",
        "\"\\u12\"",
        "\"\\\"\"",
        "\"\\",
        "\"a\tb\"",
        "\"\x7f\"",
        "\"\xc3\xa9\"",
        "\"\xc3\"",
        "\"\\/\\b\\f\\n\\r\\t\"",
        "[\"a\",{\"b\\n\":\"c\\u00e9\"}]",
        "{\"a\\u0000\":1}",
        "1 1",
        "[] []",
        "\xef\xbb[]",
        "[\xef\xbb\xbf]",
        "{\"k\\t\":\"v\\t\",\"l\":[\"\\\\\"]}",
    };
    assert_reads("\xef\xbb\xbf {\"a\":1}", "{\"a\":1}"); /* a byte order mark, once */
    assert_null(load("\xef\xbb\xbf\xef\xbb\xbf[]"));
    assert_null(load("\xef\xbb\xbf"));
    assert_null(load(" \xef\xbb\xbf[]"));
    for (size_t i = 0; i < COUNT(texts); i++) {
        label("%s", texts[i]);
        json_t *json = load(texts[i]), *expected = json_loads(texts[i], JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_int_equal(!json, !expected);
        if (expected)
            assert_true(json_equal(json, expected));
        json_decref(json);
        json_decref(expected);
    }
}

TEST(test_depth)
{
    char text[1200];
    json_error_t why;
    for (size_t depth = 1; depth < 300; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        const qn_json_limits limits = { .depth = 9 };
        json_t *json = qn_json_decode(text, 2 * depth, 0, NULL, &why);
        assert_int_equal(!json, depth > 256);
        assert_true(json || json_error_code(&why) == json_error_stack_overflow);
        json_decref(json);
        json = qn_json_decode(text, 2 * depth, 0, &limits, &why);
        assert_int_equal(!json, depth > 9);
        json_decref(json);
    }
}

static bool take(void *left, size_t bytes)
{
    size_t *n = left;
    const bool fits = bytes <= *n;
    *n -= fits ? bytes : 0;
    return fits;
}

/* Decodes n copies of an element; returns the bytes that were counted. */
static size_t cost_of(const char *element, size_t n, size_t most, bool *done)
{
    size_t left = most;
    json_error_t why;
    const size_t length = strlen(element);
    char *text = malloc(n * (length + 1) + 2), *to = text;
    assert_non_null(text);
    *to++ = '[';
    for (size_t i = 0; i < n; i++, to += length + 1) {
        memcpy(to, element, length);
        to[length] = i + 1 < n ? ',' : ']';
    }
    json_t *json = qn_json_decode(text, (size_t)(to - text), 0, &(qn_json_limits){ .take = take, .user = &left }, &why);
    *done = json != NULL;
    assert_true(json || json_error_code(&why) == json_error_out_of_memory);
    if (json)
        assert_int_equal(json_array_size(json), n);
    json_decref(json);
    free(text);
    return most - left;
}

/* What values take is counted before they are there: in all as much as malloc gives for them. */
TEST(test_memory)
{
    static const struct {
        const char *element;
        size_t least, most; /* bytes of each */
    } cases[] = { { "{}", 200, 300 },
                  { "[]", 110, 170 },
                  { "1.5", 32, 64 },
                  { "\"\"", 64, 110 },
                  { "\"0123456789\"", 70, 120 },
                  { "true", 8, 32 },
                  { "12345", 8, 80 },
                  { "7", 8, 80 },
                  { "{\"a\":true}", 300, 400 } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        enum { N = 100000 };
        bool done;
        label("%s", cases[i].element);
        const size_t cost = cost_of(cases[i].element, N, SIZE_MAX, &done);
        assert_true(done);
        assert_true(cost >= N * cases[i].least && cost <= N * cases[i].most);
        assert_true(cost_of(cases[i].element, N, cost / 2, &done) <= cost / 2);
        assert_false(done);
    }
}

/* Long lists of token ids are cheap: equal integers are one value. Others that share the last bits are not mixed up. */
/* Values in error texts. A long string ends with a whole character. */
TEST(test_found)
{
    static const struct {
        const char *json, *found;
    } cases[] = {
        { "true", "true" },
        { "[1]", "an array" },
        { "-5", "-5" },
        { "0.5", "0.5" },
        { "\"robot\"", "\"robot\"" },
        { "\"a123456789b123456789c123456789d123456789\"", "\"a123456789b123456789c123456789d123456789\"" },
        { "\"a123456789b123456789c123456789d123456789e\"", "\"a123456789b123456789c123456789d123456789...\"" },
        { "\"a123456789b123456789c123456789d12345678\xC3\xA9\"", "\"a123456789b123456789c123456789d12345678...\"" },
        { "\"a123456789b123456789c123456789d1234567\xF0\x9F\x98\x80\"",
          "\"a123456789b123456789c123456789d1234567...\"" },
        { "\"a123456789b123456789c123456789d1234567\xC3\xA9\"", "\"a123456789b123456789c123456789d1234567\xC3\xA9\"" },
    };
    char text[QN_JSON_FOUND_BYTES];
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].json);
        json_t *json = load(cases[i].json);
        assert_string_equal(qn_json_found(json, text), cases[i].found);
        json_decref(json);
    }
    assert_string_equal(qn_json_found(NULL, text), "missing");
}

TEST(test_many_integers)
{
    enum { N = 60000 };
    json_error_t why;
    char *text = malloc(N * 12), *to = text;
    assert_non_null(text);
    for (size_t i = 0; i < N; i++)
        to += sprintf(to, "%c%ld", i ? ',' : '[', (long)(i % 1000) + (i % 3 ? 0 : 1 << 18) - (i % 7 ? 0 : 1 << 20));
    *to++ = ']';
    json_t *json = qn_json_decode(text, (size_t)(to - text), 0, NULL, &why);
    for (size_t i = 0; i < N; i++)
        assert_int_equal(json_integer_value(json_array_get(json, i)),
                         (long)(i % 1000) + (i % 3 ? 0 : 1 << 18) - (i % 7 ? 0 : 1 << 20));
    json_decref(json);
    to = text;
    for (size_t i = 0; i < N; i++)
        to += sprintf(to, "%c%ld", i ? ',' : '[', (long)(i % 1000));
    *to++ = ']';
    json = qn_json_decode(text, (size_t)(to - text), 0, NULL, &why);
    assert_ptr_equal(json_array_get(json, N - 1), json_array_get(json, N - 1001));
    json_decref(json);
    free(text);
}
