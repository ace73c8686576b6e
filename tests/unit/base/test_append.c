/* Text in buffers of fixed size: nothing passes the end, what does not fit is cut, and nothing follows it. */
#include "helper_assert.h"

#include "base/append.h"

enum { GUARD = 0x5a };

/* A buffer between guards. */
typedef struct guarded {
    char before[8], text[12], after[8];
} guarded;

static guarded fresh(void)
{
    guarded g;
    memset(&g, GUARD, sizeof g);
    return g;
}

static void assert_guards(const guarded *g)
{
    for (size_t i = 0; i < sizeof g->before; i++)
        assert_true(g->before[i] == GUARD && g->after[i] == GUARD);
}

TEST(test_pieces)
{
    guarded g = fresh();
    qn_text_buffer to = QN_APPEND_TO(g.text);
    assert_string_equal(g.text, "");
    qn_append(&to, "%s-%d", "ab", 7);
    qn_append_bytes(&to, "cd", 2);
    qn_append_hex(&to, (const uint8_t[]){ 0x0f, 0xa0 }, 2);
    assert_string_equal(g.text, "ab-7cd0fa0");
    assert_int_equal(to.length, 10);
    assert_false(to.is_cut);
    to = qn_append_after(g.text, sizeof g.text);
    qn_append(&to, "x");
    assert_string_equal(g.text, "ab-7cd0fa0x");
    assert_false(to.is_cut);
    assert_guards(&g);
}

TEST(test_cut)
{
    for (size_t size = 0; size <= sizeof((guarded *)NULL)->text; size++)
        for (size_t n = 0; n < 30; n++)
            for (int kind = 0; kind < 3; kind++) {
                static const char letters[] = "0a1b2c3d4e5f60718293a4b5c6d7e8f9";
                static const uint8_t bytes[] = { 0x0a, 0x1b, 0x2c, 0x3d, 0x4e, 0x5f, 0x60, 0x71,
                                                 0x82, 0x93, 0xa4, 0xb5, 0xc6, 0xd7, 0xe8, 0xf9 };
                label("%zu bytes of kind %d in %zu", n, kind, size);
                guarded g = fresh();
                qn_text_buffer to = qn_append_to(g.text, size);
                if (kind == 0)
                    qn_append(&to, "%.*s", (int)n, letters);
                else if (kind == 1)
                    qn_append_bytes(&to, letters, n);
                else
                    qn_append_hex(&to, bytes, n / 2);
                const size_t given = kind == 2 ? n / 2 * 2 : n;
                assert_int_equal(to.is_cut, given + 1 > size);
                assert_int_equal(to.length, to.is_cut ? size ? size - 1 : 0 : given);
                qn_append(&to, "%s", to.is_cut ? "more" : "");
                if (size) {
                    assert_int_equal(strlen(g.text), to.length);
                    assert_memory_equal(g.text, letters, to.length);
                }
                assert_true(size == sizeof g.text || g.text[size] == GUARD);
                assert_guards(&g);
            }
}

TEST(test_print)
{
    guarded g = fresh();
    assert_true(qn_print(g.text, sizeof g.text, "%.0f", 12345678901.0));
    assert_string_equal(g.text, "12345678901");
    assert_false(qn_print(g.text, sizeof g.text, "%.0f", 1e300));
    assert_int_equal(strlen(g.text), 11);
    memset(g.text, 'x', sizeof g.text); /* no end in it */
    qn_text_buffer to = qn_append_after(g.text, sizeof g.text);
    assert_true(to.is_cut);
    qn_append(&to, "more");
    assert_string_equal(g.text, "xxxxxxxxxxx");
    assert_guards(&g);
}
