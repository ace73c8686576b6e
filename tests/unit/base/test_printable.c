/* What lines of terminals and logs may show: the characters, and the ways by which texts of strangers come there. */
#include "helper_assert.h"

#include "base/printable.h"
#include "base/status.h"
#include "http/bytes.h"
#include "protocol/protocol.h"

/* Of each kind that is not shown: the text, and the same as JSON of a log. */
static const struct {
    const char *text, *escaped;
} hidden[] = {
    { "\x1b[2J", "\\u001B[2J" },
    { "\x7f", "\\u007F" },
    { "\xc2\x80", "\\u0080" },
    { "\xc2\x9b"
      "31m",
      "\\u009B31m" },
    { "\xc2\x9f", "\\u009F" },
    { "\xc2\xad", "\\u00AD" },
    { "\xd8\x9c", "\\u061C" },
    { "\xe2\x80\x8b", "\\u200B" },
    { "\xe2\x80\x8e", "\\u200E" },
    { "\xe2\x80\x8f", "\\u200F" },
    { "\xe2\x80\xa8", "\\u2028" },
    { "\xe2\x80\xa9", "\\u2029" },
    { "\xe2\x80\xaa", "\\u202A" },
    { "\xe2\x80\xae", "\\u202E" },
    { "\xe2\x81\xa0", "\\u2060" },
    { "\xe2\x81\xa6", "\\u2066" },
    { "\xe2\x81\xa9", "\\u2069" },
    { "\xef\xbb\xbf", "\\uFEFF" },
    { "\xf3\xa0\x80\x81", "\\uDB40\\uDC01" },
    { "\xff", "\xef\xbf\xbd" },
    { "\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd" },
    { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
};

enum { N_HIDDEN = COUNT(hidden) };

static const char *const shown[] = {
    "a", "~", "\xc2\xa0", "\xc3\xa9", "\xe2\x80\x94", "\xe2\x80\xa6", "\xe4\xb8\x96", "\xef\xb8\x8f", "\xf0\x9f\xa4\x97"
};

TEST(characters_are_told_apart)
{
    for (size_t i = 0; i < N_HIDDEN; i++)
        if (qn_printable(hidden[i].text, strlen(hidden[i].text)))
            fail_msg("case %zu is printable", i);
    for (size_t i = 0; i < COUNT(shown); i++)
        if (qn_printable(shown[i], strlen(shown[i])) != strlen(shown[i]))
            fail_msg("'%s' is not printable", shown[i]);
    assert_int_equal(qn_printable("\xc3\xa9", 1), 0); /* cut */
    assert_int_equal(qn_harmless("\xe2\x80\x8d", 3), 3);
    assert_int_equal(qn_harmless("\xc2\x9b", 2), 0);
}

static void check_masked(const char *text, size_t i)
{
    if (strncmp(text, "name '?", 7) != 0)
        fail_msg("case %zu: %s", i, text);
    for (size_t at = 0, n; text[at]; at += n) {
        n = qn_printable(text + at, strlen(text + at));
        if (!n)
            fail_msg("case %zu: %s", i, text);
    }
}

TEST(errors_and_refusals_show_none)
{
    for (size_t i = 0; i < N_HIDDEN; i++) {
        qn_refusal refusal;
        (void)qn_fail(QN_ERR_INVALID, "name '%s'", hidden[i].text);
        check_masked(qn_error_text(), i);
        (void)qn_refuse(&refusal, 400, NULL, NULL, "name '%s'", hidden[i].text);
        check_masked(refusal.message, i);
    }
}

/* A text that is longer than its place is cut between characters or masked there. */
TEST(cut_texts_stay_utf8)
{
    char text[1024] = "";
    for (size_t i = 0; i < 333; i++)
        memcpy(text + 3 * i, "\xe4\xb8\x96", 4);
    for (int shift = 0; shift < 3; shift++) {
        qn_refusal refusal;
        (void)qn_fail(QN_ERR_INVALID, "%.*s%s", shift, "aaa", text);
        assert_true(qn_is_utf8(qn_error_text(), strlen(qn_error_text())));
        (void)qn_refuse(&refusal, 400, NULL, NULL, "%.*s%s", shift, "aaa", text);
        assert_true(qn_is_utf8(refusal.message, strlen(refusal.message)));
    }
}

TEST(lines_of_logs_have_escapes)
{
    for (size_t i = 0; i < N_HIDDEN; i++) {
        qn_bytes bytes = { 0 };
        qn_json_line_text(&bytes, hidden[i].text, strlen(hidden[i].text));
        assert_false(bytes.has_failed);
        const size_t n = strlen(hidden[i].escaped);
        if (bytes.length != n + 2 || memcmp(bytes.data + 1, hidden[i].escaped, n) != 0)
            fail_msg("case %zu: %.*s", i, (int)bytes.length, bytes.data);
        qn_bytes_free(&bytes);
    }
}
