/* Assembling complete UTF-8 characters: the examples of the Unicode standard, all ways of splitting the input, random
 * bytes. */
#include "helper_assert.h"

#include "text/utf8_stream.h"
#include "base/utf8.h"

#define FFFD "\xef\xbf\xbd"

static bool is_whole(const char *text, size_t n)
{
    size_t bytes;
    for (size_t i = 0; i < n; i += bytes) {
        uint32_t code;
        if (qn_utf8_next(text + i, n - i, &bytes, &code) != QN_UTF8_COMPLETE)
            return false;
    }
    return true;
}

/* Feeds `in` in parts: bit i of `cuts` ends a part after byte i. */
static size_t filter(const char *in, size_t n, uint64_t cuts, char *out)
{
    qn_utf8_stream stream = { 0 };
    size_t n_out = 0, begin = 0, length;
    const char *text;
    for (size_t i = 0; i < n; i++)
        if (cuts >> (i % 64) & 1 || i + 1 == n) {
            assert_ok(qn_utf8_stream_feed(&stream, in + begin, i + 1 - begin, &text, &length));
            assert_true(is_whole(text, length));
            assert_true(stream.n_tail <= 3);
            memcpy(out + n_out, text, length);
            n_out += length;
            begin = i + 1;
        }
    assert_ok(qn_utf8_stream_flush(&stream, &text, &length));
    memcpy(out + n_out, text, length);
    n_out += length;
    qn_utf8_stream_free(&stream);
    return n_out;
}

static void check(const char *in, size_t n, const char *expected)
{
    char out[256];
    for (uint64_t cuts = 0; cuts < (uint64_t)1 << n; cuts++) {
        const size_t n_out = filter(in, n, cuts, out);
        assert_int_equal(n_out, strlen(expected));
        assert_memory_equal(out, expected, n_out);
    }
}

#define CHECK(in, expected) check(in, sizeof in - 1, expected)

TEST(test_examples)
{
    CHECK("", "");
    CHECK("plain", "plain");
    CHECK("\xc3\xa9\xe4\xb8\xad\xf0\x9f\x99\x82", "\xc3\xa9\xe4\xb8\xad\xf0\x9f\x99\x82");
    /* The Unicode standard, section 3.9, "U+FFFD Substitution of Maximal Subparts", tables 3-8 to 3-11. */
    CHECK("\xc0\xaf\xe0\x80\xbf\xf0\x81\x82\x41", FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
    CHECK("\xed\xa0\x80\xed\xbf\xbf\xed\xaf\x41", FFFD FFFD FFFD FFFD FFFD FFFD FFFD FFFD "A");
    CHECK("\xf4\x91\x92\x93\xff\x41\x80\xbf\x42", FFFD FFFD FFFD FFFD FFFD "A" FFFD FFFD "B");
    CHECK("\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41", FFFD FFFD FFFD FFFD "A");
    /* The text ends inside a character. */
    CHECK("a\xf0\x9f\x99", "a" FFFD);
    CHECK("\xe4", FFFD);
    CHECK("\xe4\xb8\xc3", FFFD FFFD);
}

TEST(test_holds_back)
{
    qn_utf8_stream stream = { 0 };
    const char *text;
    size_t length;
    assert_ok(qn_utf8_stream_feed(&stream, "a\xf0\x9f", 3, &text, &length));
    assert_int_equal(length, 1);
    assert_ok(qn_utf8_stream_feed(&stream, "\x99", 1, &text, &length));
    assert_int_equal(length, 0);
    assert_ok(qn_utf8_stream_feed(&stream, "\x82", 1, &text, &length));
    assert_int_equal(length, 4);
    assert_memory_equal(text, "\xf0\x9f\x99\x82", 4);
    assert_ok(qn_utf8_stream_flush(&stream, &text, &length));
    assert_int_equal(length, 0);
    qn_utf8_stream_free(&stream);
}

TEST(test_random)
{
    /* Bytes that often form and break characters. */
    static const unsigned char bytes[] = { 'a',  0x80, 0xbf, 0xa0, 0x90, 0xc3, 0xc1,
                                           0xe0, 0xe4, 0xed, 0xf0, 0xf4, 0xf5, 0xff };
    srand(7);
    for (int round = 0; round < 20000; round++) {
        char in[40], whole[160], cut[160];
        const size_t n = (size_t)rand() % sizeof in;
        for (size_t i = 0; i < n; i++)
            in[i] = (char)bytes[(size_t)rand() % sizeof bytes];
        const size_t n_out = filter(in, n, 0, whole);
        assert_true(is_whole(whole, n_out));
        const uint64_t cuts = (uint64_t)rand() << 20 ^ (uint64_t)rand();
        assert_int_equal(filter(in, n, cuts, cut), n_out);
        assert_memory_equal(cut, whole, n_out);
    }
}
