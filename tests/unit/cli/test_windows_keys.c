/* Keys of a Windows console become what terminals send for them (src/cli/win32/keys.h): both of a console that
 * translates them itself and of one that names them. */
#include "helper_assert.h"
#include "helper_test.h"

#include "cli/win32/keys.c"

/* Numbers of winuser.h and bits of wincon.h. */
enum {
    VK_BACK = 0x08,
    VK_TAB = 0x09,
    VK_RETURN = 0x0d,
    VK_SHIFT = 0x10,
    VK_MENU = 0x12,
    VK_UP = 0x26,
    VK_DELETE = 0x2e,
    VK_F3 = 0x72
};
enum { AT_RIGHT = 0x01, AT_LEFT = 0x02, CTRL = 0x08, SHIFTED = 0x10, NUM_LOCK = 0x20 };

static void expect(qn_keys *keys, const qn_key *key, const char *bytes)
{
    char taken[64];
    qn_keys_put(keys, key);
    assert_int_equal(qn_keys_has(keys), *bytes != 0);
    const size_t n = qn_keys_take(keys, taken, sizeof taken - 1);
    taken[n] = 0;
    assert_string_equal(taken, bytes);
    assert_false(qn_keys_has(keys));
}

TEST(keys_are_those_of_terminals)
{
    static const struct {
        uint16_t code, unit;
        uint32_t state;
        const char *bytes;
    } cases[] = {
        { 'A', 'a', 0, "a" },
        { 'A', 'A', SHIFTED, "A" },
        { 'A', 1, CTRL, "\x01" },
        { 'A', 0xe4, NUM_LOCK, "ä" },
        { 0, 0x20ac, 0, "€" },
        { 'B', 'b', AT_LEFT, "\033b" },
        { 'B', 'b', AT_RIGHT, "\033b" },
        { 'Q', '@', AT_RIGHT | CTRL, "@" }, /* AltGr */
        { VK_RETURN, '\r', 0, "\r" },
        { VK_RETURN, '\r', AT_LEFT, "\033\r" },
        { VK_BACK, '\b', 0, "\x7f" },
        { VK_BACK, 0x7f, CTRL, "\b" },
        { 0, 0x7f, 0, "\x7f" }, /* translated already */
        { VK_TAB, '\t', 0, "\t" },
        { VK_TAB, '\t', SHIFTED, "\033[Z" },
        { 'Z', 0x1a, CTRL, "\x04" },
        { VK_UP, 0, 0x100, "\033[A" },
        { VK_UP, 0, CTRL, "\033[1;5A" },
        { VK_UP, 0, AT_LEFT | SHIFTED, "\033[1;4A" },
        { VK_DELETE, 0, 0, "\033[3~" },
        { VK_DELETE, 0, CTRL, "\033[3;5~" },
        { VK_SHIFT, 0, SHIFTED, "" },
        { VK_F3, 0, 0, "" },
    };
    qn_keys keys = { 0 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_key key = { .is_down = true, .n = 1, .code = cases[i].code, .unit = cases[i].unit, .state = cases[i].state };
        expect(&keys, &key, cases[i].bytes);
        key.is_down = false;
        expect(&keys, &key, "");
    }
}

TEST(characters_of_two_units)
{
    qn_keys keys = { 0 };
    const qn_key first = { .is_down = true, .n = 1, .unit = 0xd83d },
                 second = { .is_down = true, .n = 1, .unit = 0xde42 };
    const qn_key first_up = { .n = 1, .unit = 0xd83d }, letter = { .is_down = true, .n = 1, .unit = 'x' };
    expect(&keys, &first, "");
    expect(&keys, &first_up, ""); /* between them */
    expect(&keys, &second, "🙂");
    expect(&keys, &second, ""); /* alone */
    expect(&keys, &first, "");
    expect(&keys, &letter, "x"); /* the half before is dropped */
    expect(&keys, &second, "");
    /* By its number, when Alt is let go. */
    const qn_key number = { .n = 1, .code = VK_MENU, .unit = 0x20ac }, alt = { .n = 1, .code = VK_MENU };
    expect(&keys, &number, "€");
    expect(&keys, &alt, "");
}

TEST(a_held_key_comes_again)
{
    qn_keys keys = { 0 };
    qn_key key = { .is_down = true, .n = 3, .code = VK_UP };
    expect(&keys, &key, "\033[A\033[A\033[A");
    /* In pieces of any size. */
    char byte;
    size_t n = 0;
    key.unit = 0xe4;
    qn_keys_put(&keys, &key);
    for (; qn_keys_take(&keys, &byte, 1); n++)
        assert_int_equal(byte, "ä"[n % 2]);
    assert_int_equal(n, 6);
    key.n = 0;
    expect(&keys, &key, "ä");
}
