/* JSON of clients: surrogates that are alone, integers of any length, keys that are there twice. */
#include "helper_assert.h"

#include "text/json_decode.h"

#include <stdlib.h>

/* The text is read from memory without a terminator, for sanitizers. */
static json_t *load(const char *text)
{
    json_error_t why;
    const size_t n = strlen(text);
    char *exact = malloc(n ? n : 1);
    assert_non_null(exact);
    memcpy(exact, text, n);
    json_t *json = qn_json_decode(exact, n, JSON_DECODE_ANY, &why);
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

static void test_surrogates(void **state)
{
    (void)state;
    assert_reads("\"\\ud83d x\"", "\"\xEF\xBF\xBD x\"");
    assert_reads("\"\\uDc00\\ud800\"", "\"\xEF\xBF\xBD\xEF\xBF\xBD\"");
    assert_reads("\"\\ud83d\\ude00\"", "\"\xF0\x9F\x98\x80\"");
    assert_reads("\"\\ud83d\\ud83d\\ude00\"", "\"\xEF\xBF\xBD\xF0\x9F\x98\x80\"");
    assert_reads("{\"\\udfff\":\"\\\\ud800\"}", "{\"\xEF\xBF\xBD\":\"\\\\ud800\"}");
    assert_reads("\"\\\\\\ud800\"", "\"\\\\\xEF\xBF\xBD\"");
}

static void test_integers(void **state)
{
    (void)state;
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
static void test_zero_bytes(void **state)
{
    (void)state;
    enum { N = 64 << 20 };
    static const char begin[] = "[12345678901234567890";
    char *text = calloc(1, N);
    json_error_t why;
    assert_non_null(text);
    memcpy(text, begin, sizeof begin);
    assert_null(qn_json_decode(text, N, 0, &why));
    memcpy(text + N / 2, "]", 1);
    assert_null(qn_json_decode(text, N / 2 + 1, 0, &why));
    assert_null(qn_json_decode(text, sizeof begin, 0, &why));
    free(text);
}

static void test_keys(void **state)
{
    (void)state;
    assert_reads("{\"a\":1,\"b\":2,\"a\":3}", "{\"a\":3,\"b\":2}");
    assert_reads("\"a\\u0000b\"", "\"a\\u0000b\"");
    assert_null(load("{\"a\":1"));
    assert_null(load(""));
    assert_null(load("NaN"));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_surrogates), cmocka_unit_test(test_integers),
                                        cmocka_unit_test(test_zero_bytes), cmocka_unit_test(test_keys) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
