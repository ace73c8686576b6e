/* Sequences of keys are those of xterm ("PC-Style Function Keys"), with which Windows' own translation agrees. */
#include "cli/win32/keys.h"

#include "base/append.h"
#include "base/utf8.h"

/* Of Windows' winuser.h and wincon.h. */
enum { BACKSPACE = 0x08, TAB = 0x09, ALT = 0x12 };
enum { RIGHT_ALT = 0x01, LEFT_ALT = 0x02, RIGHT_CONTROL = 0x04, LEFT_CONTROL = 0x08, SHIFT = 0x10 };

enum { END_OF_INPUT = 'D' & 0x1f, WINDOWS_END_OF_INPUT = 'Z' & 0x1f };

/* Keys without characters: what is after ESC [ and modifiers. */
static const struct {
    uint16_t code;
    unsigned number; /* before a '~' */
    char letter;     /* where the number is 0 */
} named[] = {
    { 0x21, 5, 0 },   /* Page Up */
    { 0x22, 6, 0 },   /* Page Down */
    { 0x23, 0, 'F' }, /* End */
    { 0x24, 0, 'H' }, /* Home */
    { 0x25, 0, 'D' }, /* Left */
    { 0x26, 0, 'A' }, /* Up */
    { 0x27, 0, 'C' }, /* Right */
    { 0x28, 0, 'B' }, /* Down */
    { 0x2d, 2, 0 },   /* Insert */
    { 0x2e, 3, 0 },   /* Delete */
};

static bool has_control(const qn_key *key)
{
    return key->state & (LEFT_CONTROL | RIGHT_CONTROL);
}

/* Right Alt with Control is AltGr, which belongs to the character. */
static bool has_meta(const qn_key *key)
{
    return key->state & LEFT_ALT || (key->state & RIGHT_ALT && !has_control(key));
}

static void put_named(qn_text_buffer *to, const qn_key *key)
{
    const unsigned modifier =
        1 + !!(key->state & SHIFT) + 2 * !!(key->state & (LEFT_ALT | RIGHT_ALT)) + 4 * has_control(key);
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (named[i].code != key->code)
            continue;
        if (named[i].number && modifier > 1)
            qn_append(to, "\033[%u;%u~", named[i].number, modifier);
        else if (named[i].number)
            qn_append(to, "\033[%u~", named[i].number);
        else if (modifier > 1)
            qn_append(to, "\033[1;%u%c", modifier, named[i].letter);
        else
            qn_append(to, "\033[%c", named[i].letter);
    }
}

static void put_character(qn_text_buffer *to, uint32_t code)
{
    char bytes[4];
    qn_append_bytes(to, bytes, qn_utf8_encode(code, bytes));
}

/* Puts a character when its last unit has come; half of one without the other is dropped. */
static void put_unit(qn_keys *keys, qn_text_buffer *to, uint16_t unit)
{
    const uint16_t first = keys->first_half;
    keys->first_half = unit >= 0xd800 && unit < 0xdc00 ? unit : 0;
    if (unit < 0xd800 || unit >= 0xe000)
        put_character(to, unit);
    else if (unit >= 0xdc00 && first)
        put_character(to, 0x10000 + ((uint32_t)(first - 0xd800) << 10) + (unit - 0xdc00u));
}

static void put_pressed(qn_keys *keys, qn_text_buffer *to, const qn_key *key)
{
    if (!key->unit) {
        put_named(to, key);
        return;
    }
    if (key->code == TAB && key->state & SHIFT) {
        qn_append(to, "\033[Z");
        return;
    }
    if (has_meta(key))
        qn_append(to, "\033");
    /* A console that names keys has the codes of these two the other way round. */
    if (key->code == BACKSPACE)
        qn_append(to, "%c", has_control(key) ? '\b' : 0x7f);
    else if (key->unit == WINDOWS_END_OF_INPUT)
        qn_append(to, "%c", END_OF_INPUT);
    else
        put_unit(keys, to, key->unit);
}

void qn_keys_put(qn_keys *keys, const qn_key *key)
{
    qn_text_buffer to = QN_APPEND_TO(keys->bytes);
    if (key->is_down)
        put_pressed(keys, &to, key);
    else if (key->code == ALT && key->unit) /* a character by its number, when Alt is let go */
        put_unit(keys, &to, key->unit);
    keys->n_bytes = to.length;
    keys->n_taken = 0;
    keys->n_more = key->is_down && key->n > 1 ? key->n - 1u : 0;
}

bool qn_keys_has(const qn_keys *keys)
{
    return keys->n_taken < keys->n_bytes || (keys->n_bytes && keys->n_more);
}

size_t qn_keys_take(qn_keys *keys, char *bytes, size_t size)
{
    size_t n = 0;
    while (n < size && qn_keys_has(keys)) {
        if (keys->n_taken == keys->n_bytes) {
            keys->n_taken = 0;
            keys->n_more--;
        }
        bytes[n++] = keys->bytes[keys->n_taken++];
    }
    return n;
}
