/* The transitions of JSON strings: tables of states by bytes, for values and for keys. */
#include "grammar/automaton.h"

#include <pthread.h>
#include <string.h>

enum {
    BODY,
    NEED_1,
    NEED_2,
    NEED_3,
    AFTER_E0,
    AFTER_ED,
    AFTER_F0,
    AFTER_F4,
    ESCAPE,
    HEX_4,
    HEX_3,
    HEX_2,
    HEX_1,
    AFTER_D,
    HIGH_2,
    HIGH_1,
    PAIR_BACKSLASH,
    PAIR_U,
    PAIR_D,
    PAIR_LOW,
    AFTER_0,
    AFTER_00,
    CONTROL_0,
    CONTROL_1,
    MODE_STATES
};

/* A key of QN_STRING_KEY_UNICODE has all characters outside ASCII unescaped, or all as escapes. Each way is a mode
 * with its own copy of the states. */
enum { UNDECIDED, RAW, ESCAPED };

static qn_string_table machines[QN_STRING_FORMS];
static pthread_once_t machines_once = PTHREAD_ONCE_INIT;

static void fill(uint8_t *row, int lo, int hi, uint8_t next)
{
    memset(row + lo, next, (size_t)(hi - lo + 1));
}

/* Sets the transitions of the hexadecimal digits lo to hi, from 0 to 15. */
static void fill_hex(uint8_t *row, int lo, int hi, bool upper, uint8_t next)
{
    for (int digit = lo; digit <= hi; digit++) {
        row[(uint8_t) "0123456789abcdef"[digit]] = next;
        if (upper)
            row[(uint8_t) "0123456789ABCDEF"[digit]] = next;
    }
}

/* Adds UTF-8 characters outside ASCII, from BODY of one mode to BODY of another. */
static void add_raw(uint8_t (*from)[256], uint8_t (*t)[256], int base)
{
    const uint8_t to = (uint8_t)base;
    fill(from[BODY], 0xc2, 0xdf, to + NEED_1);
    fill(from[BODY], 0xe1, 0xef, to + NEED_2);
    from[BODY][0xe0] = to + AFTER_E0;
    from[BODY][0xed] = to + AFTER_ED;
    fill(from[BODY], 0xf1, 0xf3, to + NEED_3);
    from[BODY][0xf0] = to + AFTER_F0;
    from[BODY][0xf4] = to + AFTER_F4;
    fill(t[NEED_1], 0x80, 0xbf, to + BODY);
    fill(t[NEED_2], 0x80, 0xbf, to + NEED_1);
    fill(t[NEED_3], 0x80, 0xbf, to + NEED_2);
    fill(t[AFTER_E0], 0xa0, 0xbf, to + NEED_1);
    fill(t[AFTER_ED], 0x80, 0x9f, to + NEED_1);
    fill(t[AFTER_F0], 0x90, 0xbf, to + NEED_2);
    fill(t[AFTER_F4], 0x80, 0x8f, to + NEED_2);
}

/* Adds escapes of characters outside ASCII; if not `is_key`, of all characters. Modes as in add_raw. */
static void add_escaped(uint8_t (*from)[256], uint8_t (*t)[256], int base, bool is_key, bool upper)
{
    const uint8_t to = (uint8_t)base;
    fill_hex(from[HEX_4], is_key, 15, upper, to + HEX_3);
    fill_hex(from[HEX_4], 13, 13, upper, to + AFTER_D);
    fill_hex(from[AFTER_0], 1, 15, upper, to + HEX_2);
    fill_hex(from[AFTER_00], 8, 15, upper, to + HEX_1);
    fill_hex(t[HEX_3], 0, 15, upper, to + HEX_2);
    fill_hex(t[HEX_2], 0, 15, upper, to + HEX_1);
    fill_hex(t[HEX_1], 0, 15, upper, to + BODY);
    fill_hex(t[AFTER_D], 0, 7, upper, to + HEX_2);
    fill_hex(t[AFTER_D], 8, 11, upper, to + HIGH_2);
    fill_hex(t[HIGH_2], 0, 15, upper, to + HIGH_1);
    fill_hex(t[HIGH_1], 0, 15, upper, to + PAIR_BACKSLASH);
    t[PAIR_BACKSLASH]['\\'] = to + PAIR_U;
    t[PAIR_U]['u'] = to + PAIR_D;
    fill_hex(t[PAIR_D], 13, 13, upper, to + PAIR_LOW);
    fill_hex(t[PAIR_LOW], 12, 15, upper, to + HEX_2);
}

/* Adds the ASCII characters of a mode. In a key, each has one spelling: itself, its short escape, or \u with lower-case
 * digits. */
static void add_ascii(uint8_t (*t)[256], int base, bool is_key)
{
    const uint8_t to = (uint8_t)base;
    fill(t[BODY], 0x20, 0x7f, to + BODY);
    t[BODY]['"'] = QN_STRING_END;
    t[BODY]['\\'] = to + ESCAPE;
    for (const char *c = is_key ? "\"\\bfnrt" : "\"\\/bfnrt"; *c; c++)
        t[ESCAPE][(uint8_t)*c] = to + BODY;
    t[ESCAPE]['u'] = to + HEX_4;
    if (!is_key)
        return;
    t[HEX_4]['0'] = to + AFTER_0;
    t[AFTER_0]['0'] = to + AFTER_00;
    t[AFTER_00]['0'] = to + CONTROL_0;
    t[AFTER_00]['1'] = to + CONTROL_1;
    fill_hex(t[CONTROL_0], 0, 7, false, to + BODY);
    fill_hex(t[CONTROL_0], 11, 11, false, to + BODY);
    fill_hex(t[CONTROL_0], 14, 15, false, to + BODY);
    fill_hex(t[CONTROL_1], 0, 15, false, to + BODY);
}

static void make_machine(qn_string_table *m, qn_string_form form)
{
    uint8_t(*t)[256] = *m, (*raw)[256] = t + RAW * MODE_STATES, (*escaped)[256] = t + ESCAPED * MODE_STATES;
    const bool is_key = form != QN_STRING_VALUE;
    memset(*m, QN_STRING_REJECTED, sizeof *m);
    add_ascii(t, 0, is_key);
    if (form != QN_STRING_KEY_UNICODE) {
        add_raw(t, t, 0);
        add_escaped(t, t, 0, is_key, true);
        return;
    }
    add_ascii(raw, RAW * MODE_STATES, true);
    add_ascii(escaped, ESCAPED * MODE_STATES, true);
    add_raw(t, raw, RAW * MODE_STATES);
    add_raw(raw, raw, RAW * MODE_STATES);
    add_escaped(t, escaped, ESCAPED * MODE_STATES, true, false);
    add_escaped(escaped, escaped, ESCAPED * MODE_STATES, true, false);
}

static void make_machines(void)
{
    _Static_assert(3 * MODE_STATES <= QN_STRING_STATES, "states of the machine");
    for (int i = 0; i < QN_STRING_FORMS; i++)
        make_machine(&machines[i], (qn_string_form)i);
}

const qn_string_table *qn_string_machine(qn_string_form form)
{
    pthread_once(&machines_once, make_machines);
    return &machines[form];
}
