/* Stop strings, compared with a plain search, for all kinds of overlap and all ways of splitting the text. */
#include "helper_assert.h"

#include "text/stop.h"

#include <time.h>

/* The first position in text[0..n) where a stop string ends, and the length of the longest that ends there; false if
 * none. */
static bool search(const char *text, size_t n, const char *const *strings, size_t n_strings, size_t *end, size_t *match)
{
    for (*end = 1; *end <= n; ++*end) {
        *match = 0;
        for (size_t i = 0; i < n_strings; i++) {
            const size_t length = strlen(strings[i]);
            if (length <= *end && length > *match && !memcmp(text + *end - length, strings[i], length))
                *match = length;
        }
        if (*match)
            return true;
    }
    return false;
}

/* The number of last bytes that may be the beginning of a stop string. */
static size_t n_must_hold(const char *text, size_t n, const char *const *strings, size_t n_strings)
{
    for (size_t held = n; held > 0; held--)
        for (size_t i = 0; i < n_strings; i++)
            if (held < strlen(strings[i]) && !memcmp(text + n - held, strings[i], held))
                return held;
    return 0;
}

static void check(const char *text, size_t n, const char *const *strings, size_t n_strings, uint64_t cuts)
{
    qn_stop_strings *made;
    qn_stop *stop;
    assert_ok(qn_stop_strings_create(strings, n_strings, &made));
    assert_ok(qn_stop_create(made, &stop));
    char out[256];
    size_t n_out = 0, begin = 0, end, match, length;
    const bool found = search(text, n, strings, n_strings, &end, &match);
    const char *safe;
    bool hit = false;
    for (size_t i = 0; i < n; i++) {
        if (!(cuts >> (i % 64) & 1) && i + 1 != n)
            continue;
        assert_ok(qn_stop_feed(stop, text + begin, i + 1 - begin, &safe, &length, &hit));
        memcpy(out + n_out, safe, length);
        n_out += length;
        begin = i + 1;
        assert_int_equal(hit, found && begin >= end);
        if (!hit)
            assert_int_equal(n_out, begin - n_must_hold(text, begin, strings, n_strings));
    }
    assert_ok(qn_stop_flush(stop, &safe, &length));
    memcpy(out + n_out, safe, length);
    n_out += length;
    assert_int_equal(n_out, found ? end - match : n);
    assert_memory_equal(out, text, n_out);
    if (found) {
        const char *string = strings[qn_stop_found(stop)];
        assert_int_equal(strlen(string), match);
        assert_memory_equal(string, text + end - match, match);
        for (size_t i = 0; i < qn_stop_found(stop); i++)
            assert_string_not_equal(strings[i], string);
    }
    qn_stop_free(stop);
    qn_stop_strings_free(made);
}

TEST(test_random)
{
    srand(11);
    for (int round = 0; round < 40000; round++) {
        char text[40], strings[4][8];
        const char *list[4];
        const size_t n = (size_t)rand() % sizeof text, n_strings = (size_t)rand() % 5;
        const int letters = 2 + rand() % 2;
        for (size_t i = 0; i < n; i++)
            text[i] = (char)('a' + rand() % letters);
        for (size_t s = 0; s < n_strings; s++) {
            const size_t length = 1 + (size_t)rand() % 7;
            for (size_t i = 0; i < length; i++)
                strings[s][i] = (char)('a' + rand() % letters);
            strings[s][length] = '\0';
            list[s] = strings[s];
        }
        check(text, n, list, n_strings, (uint64_t)rand() << 20 ^ (uint64_t)rand());
    }
}

TEST(test_words)
{
    static const char *const strings[] = { "\nUser:", "<|im_end|>", "<|im_", "END" };
    static const char *const texts[] = { "Hello\nUse r\nUser: x", "a<|im_start", "<|im", "xENEND", "", "\nUser",
                                         "E\nEN\nUser:" };
    for (size_t i = 0; i < COUNT(texts); i++)
        for (uint64_t cuts = 0; cuts < 4096; cuts += 5) {
            label("'%s', cuts %u", texts[i], (unsigned)cuts);
            check(texts[i], strlen(texts[i]), strings, 4, cuts);
        }
}

TEST(test_after_the_end)
{
    static const char *const strings[] = { "ab" };
    qn_stop_strings *made;
    qn_stop *stop;
    const char *safe;
    size_t length;
    bool hit;
    assert_ok(qn_stop_strings_create(strings, 1, &made));
    assert_ok(qn_stop_create(made, &stop));
    assert_ok(qn_stop_feed(stop, "xaby", 4, &safe, &length, &hit));
    assert_true(hit);
    assert_int_equal(length, 1);
    assert_ok(qn_stop_feed(stop, "more", 4, &safe, &length, &hit));
    assert_true(hit);
    assert_int_equal(length, 0);
    assert_ok(qn_stop_flush(stop, &safe, &length));
    assert_int_equal(length, 0);
    assert_ok(qn_stop_feed(stop, "za", 2, &safe, &length, &hit));
    assert_false(hit);
    assert_int_equal(length, 1);
    qn_stop_free(stop);
    qn_stop_strings_free(made);
}

/* While it holds, strings that end are text; one that has begun is found when it ends later. */
TEST(test_held)
{
    static const char *const strings[] = { "ab", "abcd" };
    static const struct {
        const char *held, *then, *safe; /* of both */
        size_t found;
    } cases[] = { { "xab", "yab", "xaby", 0 }, { "xabc", "d", "x", 1 },          { "ab", "cd!", "", 1 },
                  { "xa", "b", "x", 0 },       { "abab", "", "abab", 9 },        { "ab", "x", "abx", 9 },
                  { "", "ab", "", 0 },         { "abcdab", "cab", "abcdabc", 0 } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_stop_strings *made;
        qn_stop *stop;
        char text[64] = "";
        const char *safe;
        size_t length;
        bool hit;
        label("case %zu", i);
        assert_ok(qn_stop_strings_create(strings, 2, &made));
        assert_ok(qn_stop_create(made, &stop));
        qn_stop_hold(stop, true);
        assert_ok(qn_stop_feed(stop, cases[i].held, strlen(cases[i].held), &safe, &length, &hit));
        assert_false(hit);
        strncat(text, safe, length);
        qn_stop_hold(stop, false);
        assert_ok(qn_stop_feed(stop, cases[i].then, strlen(cases[i].then), &safe, &length, &hit));
        strncat(text, safe, length);
        assert_int_equal(hit, cases[i].found < 9);
        if (hit)
            assert_int_equal(qn_stop_found(stop), cases[i].found);
        assert_ok(qn_stop_flush(stop, &safe, &length));
        strncat(text, safe, length);
        assert_string_equal(text, cases[i].safe);
        qn_stop_free(stop);
        qn_stop_strings_free(made);
    }
}

TEST(test_refusals)
{
    qn_stop_strings *made;
    const char *const empty[] = { "a", "" }, *const broken[] = { "\xa9" }, *const null[] = { NULL };
    assert_fails(qn_stop_strings_create(empty, 2, &made), QN_ERR_INVALID, "stop string 1");
    assert_null(made);
    assert_int_equal(qn_stop_strings_create(broken, 1, &made), QN_ERR_INVALID);
    assert_int_equal(qn_stop_strings_create(null, 1, &made), QN_ERR_INVALID);
}

static double seconds(const char *text, size_t n, const char *const *strings, size_t n_strings)
{
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
        qn_stop_strings *made;
        qn_stop *stop;
        const char *safe;
        size_t length;
        bool hit;
        assert_ok(qn_stop_strings_create(strings, n_strings, &made));
        assert_ok(qn_stop_create(made, &stop));
        const clock_t begin = clock();
        for (size_t at = 0; at < n; at += 100)
            assert_ok(qn_stop_feed(stop, text + at, 100, &safe, &length, &hit));
        const double elapsed = (double)(clock() - begin) / CLOCKS_PER_SEC;
        best = elapsed < best ? elapsed : best;
        qn_stop_free(stop);
        qn_stop_strings_free(made);
    }
    return best;
}

/* A stop string of 20,000 equal letters almost matches at every position; a search that restarts at every letter takes
 * 20,000 steps per letter. Ten times the text must take at most 30 times as long: 10 times, and a factor of 3 for a
 * busy host. */
TEST(test_linear)
{
    enum { LONG = 20000, TEXT = 4000000 };
    char *string = malloc(LONG + 2), *text = malloc(TEXT);
    assert_non_null(string);
    assert_non_null(text);
    memset(string, 'a', LONG);
    strcpy(string + LONG, "b");
    memset(text, 'a', TEXT);
    for (size_t i = LONG - 1; i < TEXT; i += LONG)
        text[i] = 'c';
    const char *const strings[] = { string, "aab" };
    assert_true(seconds(text, TEXT, strings, 2) < 30 * (seconds(text, TEXT / 10, strings, 2) + 1e-3));
    free(string);
    free(text);
}
