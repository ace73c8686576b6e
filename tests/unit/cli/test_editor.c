/* Columns of characters, answers wrapped at words, and the line editor: what the bytes of keys make of a text. How it
 * looks on a terminal is in tests/e2e/chat_terminal.py. */
#include "helper_assert.h"

#include "base/append.h"
#include "cli/columns.h"
#include "cli/editor.h"
#include "cli/wrap.h"

#define FAMILY                                                                                                         \
    "\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7" /* man, joiner, woman, joiner, girl */
#define FLAG "\xf0\x9f\x87\xa9\xf0\x9f\x87\xaa"
#define KEYCAP "1\xef\xb8\x8f\xe2\x83\xa3"
#define ACUTE_E "e\xcc\x81"
#define WORLD "\xe4\xb8\x96"

/* ---- Columns ---- */

TEST(test_clusters)
{
    static const struct {
        const char *text;
        unsigned columns;
        bool is_unsure;
    } cases[] = {
        { "a", 1, false },
        { ACUTE_E, 1, false },
        { WORLD, 2, false },
        { FAMILY, 6, true },
        { FLAG, 4, true },
        { KEYCAP, 2, true },
        { "\xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd", 4, true },      /* a thumb with a skin tone */
        { "\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8", 2, false }, /* jamo of one syllable */
        { "\n", 0, false },
        { "\xff", 0, false },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[64];
        assert_true(qn_print(text, sizeof text, "%sx", cases[i].text));
        const size_t n = strlen(text);
        const qn_cluster cluster = qn_cluster_first(text, n);
        if (cluster.bytes != strlen(cases[i].text) || cluster.columns != cases[i].columns ||
            cluster.is_unsure != cases[i].is_unsure)
            fail_msg("case %zu: %zu bytes, %u columns", i, cluster.bytes, cluster.columns);
        assert_int_equal(qn_cluster_before(text, n - 1), 0);
    }
    /* Letters of flags are paired from the beginning. */
    assert_int_equal(qn_cluster_before("a" FLAG FLAG, 17), 9);
    assert_int_equal(qn_cluster_before(FLAG FLAG, 8), 0);
}

/* ---- Wrapping ---- */

/* What is printed of a text in pieces of n bytes, which end anywhere between characters. */
static char *wrapped(const char *text, size_t columns, size_t piece)
{
    char *printed = NULL;
    size_t n_printed = 0;
    FILE *to = open_memstream(&printed, &n_printed);
    qn_wrap wrap;
    assert_non_null(to);
    qn_wrap_begin(&wrap, to);
    for (size_t length = strlen(text), n; length; text += n, length -= n) {
        n = piece < length ? piece : length;
        while (n < length && ((unsigned char)text[n] & 0xc0) == 0x80)
            n++;
        qn_wrap_text(&wrap, text, n, columns);
    }
    assert_int_equal(fclose(to), 0);
    return printed;
}

static void assert_wrapped(const char *text, size_t columns, size_t piece, const char *expected)
{
    char *printed = wrapped(text, columns, piece);
    if (strcmp(printed, expected) != 0)
        fail_msg("'%s' in %zu columns, pieces of %zu: '%s', expected '%s'", text, columns, piece, printed, expected);
    free(printed);
}

TEST(test_wrap)
{
    /* A word is moved by erasing what was printed of it. */
    assert_wrapped("one two three", 10, 100, "one two th\033[9G\033[K\nthree");
    assert_wrapped("one two three", 13, 1, "one two three");
    /* A space at the edge is the end of the line, and a newline there is one. */
    assert_wrapped("one two  three", 7, 100, "one two\nthree");
    assert_wrapped("one two \nthree", 7, 100, "one two\nthree");
    assert_wrapped("one two\nthree", 7, 1, "one two\nthree");
    /* A word that is longer than the line is left to the terminal. */
    assert_wrapped("abcdefghij", 4, 3, "abcdefghij");
    /* Wide characters, and punctuation that does not begin a line. */
    assert_wrapped(WORLD WORLD WORLD, 5, 100, WORLD WORLD "\n" WORLD);
    assert_wrapped(WORLD WORLD "\xe3\x80\x82", 5, 100, WORLD WORLD "\033[3G\033[K\n" WORLD "\xe3\x80\x82");
    /* A cluster is moved as a whole, when its second half does not fit. */
    assert_wrapped("abcd " FAMILY, 9, 100,
                   "abcd \xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\033[6G\033[K\n" FAMILY);
    /* Code, which ends with its fence. */
    assert_wrapped("```c\nint long_name = 1;\n```\nint long_name", 10, 100,
                   "```c\nint long_name = 1;\n```\nint long_n\033[5G\033[K\nlong_name");
    assert_wrapped("```` x\n```\nab cd ef\n````\nab cd ef", 6, 1, "```` x\n```\nab cd ef\n````\nab cd \nef");
    /* What controls a terminal is dropped. */
    assert_wrapped("a\033[31m\rb\xc2\x9b\x07\x7f\xff", 80, 100, "a[31mb");
    assert_wrapped("a\tb\tc", 16, 100, "a\tb c");
}

/* A terminal that becomes narrower than the line: nothing is erased, as it is not known where the word now stands. */
TEST(test_narrower)
{
    char *printed = NULL;
    size_t n_printed = 0;
    FILE *to = open_memstream(&printed, &n_printed);
    qn_wrap wrap;
    assert_non_null(to);
    qn_wrap_begin(&wrap, to);
    qn_wrap_text(&wrap, "one two three fo", 16, 40);
    qn_wrap_text(&wrap, "ur five six", 11, 8);
    assert_int_equal(fclose(to), 0);
    assert_string_equal(printed, "one two three fo\nur five\nsix");
    free(printed);
}

/* ---- Keys ---- */

static const char *const words[] = { "/save ", "/system ", "/reset" };

static void complete(void *unused, const char *text, size_t length, qn_completions *out)
{
    (void)unused;
    for (size_t i = 0; i < COUNT(words); i++)
        if (strncmp(words[i], text, length) == 0)
            qn_completions_add(out, words[i], strlen(words[i]), "");
}

/* The text that keys make, with the result of the last. */
static char *typed(const char *keys, size_t piece, qn_editor_result expected)
{
    FILE *to = fopen("/dev/null", "w");
    assert_non_null(to);
    qn_editor *editor = qn_editor_open(to, "", "");
    qn_editor_result result = QN_EDITOR_MORE;
    size_t used, length;
    assert_non_null(editor);
    qn_editor_completer(editor, complete, NULL);
    qn_editor_remember(editor, "older");
    qn_editor_remember(editor, "newer");
    qn_editor_begin(editor, "> ", NULL, 80, 24);
    for (size_t left = strlen(keys); left && result == QN_EDITOR_MORE; keys += used, left -= used)
        result = qn_editor_feed(editor, keys, piece < left ? piece : left, &used);
    assert_int_equal(result, expected);
    char *text = strdup(qn_editor_text(editor, &length));
    assert_int_equal(strlen(text), length);
    qn_editor_close(editor);
    fclose(to);
    return text;
}

TEST(test_keys)
{
    static const struct {
        const char *keys, *text;
    } cases[] = {
        { "abc\033[D\033[D-\r", "a-bc" },
        { "a" FAMILY "b\033[D\033[DX\r", "aX" FAMILY "b" },
        { "a" FLAG FLAG "\x7f\r", "a" FLAG },
        { ACUTE_E "\x7f\r", "" },
        { "a" KEYCAP "\001\033[C\033[3~\r", "a" },
        { "one two\027x\r", "one x" },
        { "one two\033b\033d\031\031\r", "one twotwo" },
        { "one\001\013\031 \031\r", "one one" },
        { "one\025two\r", "two" },
        { "ab\024\r", "ba" },
        { "a" WORLD "\024\r", WORLD "a" },
        { "\033[A\033[A\r", "older" },
        { "x\020\016\r", "x" },
        { "\033OA\r", "newer" },
        { "\022old\r", "older" },
        { "\022zz\007kept\r", "kept" },
        { "/sa\t\r", "/save " },
        { "/s\ty\t\r", "/system " },
        { "a\033\rb\r", "a\nb" },
        { "\033[200~one\rtwo\033[31m\r\r\033[201~!\r", "one\ntwo[31m!" },
        { "\033[200~a\xff\xc2\x9b" WORLD "\033[201~\r", "a" WORLD },
        { "a\xff\xe4\xb8z" WORLD "\r", "az" WORLD },
        { "a\033[99;99zb\033[1;2Rc\r", "abc" },
        { "abc\002\004\r", "ab" },
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (size_t piece = 1; piece < 100; piece += 98) {
            char *text = typed(cases[i].keys, piece, QN_EDITOR_LINE);
            if (strcmp(text, cases[i].text) != 0)
                fail_msg("case %zu, pieces of %zu: '%s', expected '%s'", i, piece, text, cases[i].text);
            free(text);
        }
    free(typed("\004", 1, QN_EDITOR_END));
    free(typed("a\004", 1, QN_EDITOR_MORE));
}

TEST_GROUP(NULL, NULL)
