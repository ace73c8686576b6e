/* Classes of texts, and whether a DFA takes all texts of one: then the tokens of the class follow without a walk. */
#include "text/grammar/vocab.h"

enum { MAX_STATES = 64, MAX_VISITS = 2048 };

unsigned qn_text_contains(qn_text_class kind)
{
    static const unsigned contains[QN_TEXT_CLASSES] = { 1, 3, 7, 15, 7 | 16, 63, 127 };
    return contains[kind];
}

/* Characters outside ASCII that are line ends or controls: U+0080 to U+009F, U+2028 and U+2029. */
static bool is_control(const char *text, size_t length)
{
    const uint8_t *b = (const uint8_t *)text;
    return (length > 1 && b[0] == 0xc2 && b[1] < 0xa0) || (length > 2 && b[0] == 0xe2 && b[1] == 0x80 && (b[2] & 0xfe) == 0xa8);
}

qn_text_class qn_text_class_of(const char *text, size_t length, uint32_t *n_characters)
{
    const qn_string_table *table = qn_string_machine(QN_STRING_VALUE);
    bool is_foreign = false, has_quote = false;
    int kind = QN_TEXT_LOWER;
    uint8_t state = 0;
    *n_characters = 0;
    for (size_t i = 0; i < length; i++) {
        const uint8_t byte = (uint8_t)text[i];
        int needs = QN_TEXT_ASCII;
        *n_characters += !state;
        const bool is_quote = !state && (byte == '"' || byte == '\\');
        if (!is_quote)
            state = (*table)[state][byte];
        has_quote |= is_quote;
        if (state >= QN_STRING_END || byte == 0x7f || is_control(text + i, length - i))
            return QN_TEXT_CLASSES;
        is_foreign |= byte >= 0x80;
        if (byte >= 0x80 || (byte >= 'a' && byte <= 'z'))
            needs = QN_TEXT_LOWER;
        else if (byte >= 'A' && byte <= 'Z')
            needs = QN_TEXT_LETTERS;
        else if (byte == ' ' && i == 0)
            needs = QN_TEXT_WORDS;
        kind = needs > kind ? needs : kind;
    }
    if (has_quote)
        return QN_TEXT_LINE;
    if (is_foreign)
        return kind == QN_TEXT_ASCII ? QN_TEXT_ANY : QN_TEXT_FOREIGN;
    return (qn_text_class)kind;
}

/* States of the DFA that are reached with a number of bytes of a character left, by what these may be. */
enum { BODY, NEED_1, AFTER_C2, AFTER_E280, AFTER_E2, AFTER_E0, AFTER_ED, NEED_2, AFTER_F0, AFTER_F4, NEED_3, PLACES };

typedef struct state_set {
    uint32_t items[MAX_STATES];
    size_t n;
} state_set;

typedef struct level {
    const qn_dfa *dfa;
    uint16_t run_end[256]; /* by byte, the next one of another class of the DFA */
    state_set at[PLACES];
    bool is_full;     /* too many states */
    bool lives, ends; /* some byte follows, some does not */
} level;

static void add_state(level *l, int place, uint32_t state)
{
    state_set *to = &l->at[place];
    for (size_t i = 0; i < to->n; i++)
        if (to->items[i] == state)
            return;
    if (to->n == MAX_STATES)
        l->is_full = true;
    else
        to->items[to->n++] = state;
}

static void take_byte(level *l, uint32_t state, uint8_t byte, int place)
{
    const uint32_t next = l->dfa->next[(size_t)state * l->dfa->n_classes + l->dfa->class_of[byte]];
    l->lives |= next != 0;
    l->ends |= !next;
    if (next)
        add_state(l, place, next);
}

/* Bytes of a range, of equal ones one. */
static void take_range(level *l, const state_set *from, int lo, int hi, int place)
{
    for (int byte = lo; byte <= hi; byte = l->run_end[byte])
        for (size_t i = 0; i < from->n; i++)
            take_byte(l, from->items[i], (uint8_t)byte, place);
}

static void take_ascii(level *l, const state_set *from, qn_text_class kind, bool is_first)
{
    if (kind == QN_TEXT_LINE) {
        take_range(l, from, ' ', '~', BODY);
        return;
    }
    if (kind == QN_TEXT_ASCII || kind == QN_TEXT_ANY) {
        take_range(l, from, ' ', '!', BODY);
        take_range(l, from, '#', '[', BODY);
        take_range(l, from, ']', '~', BODY);
        return;
    }
    take_range(l, from, 'a', 'z', BODY);
    if (kind != QN_TEXT_LOWER)
        take_range(l, from, 'A', 'Z', BODY);
    if (kind != QN_TEXT_LOWER && kind != QN_TEXT_LETTERS && is_first)
        take_range(l, from, ' ', ' ', BODY);
}

/* The states after one more character; true if the DFA takes all characters of the class. */
static bool take_character(level *l, const state_set *from, qn_text_class kind, bool is_first)
{
    for (int i = 0; i < PLACES; i++)
        l->at[i].n = 0;
    l->lives = l->ends = false;
    take_ascii(l, from, kind, is_first);
    if (kind < QN_TEXT_FOREIGN || (l->lives && l->ends))
        return !l->ends;
    take_range(l, from, 0xc2, 0xc2, AFTER_C2);
    take_range(l, from, 0xc3, 0xdf, NEED_1);
    take_range(l, from, 0xe0, 0xe0, AFTER_E0);
    take_range(l, from, 0xe1, 0xe1, NEED_2);
    take_range(l, from, 0xe2, 0xe2, AFTER_E2);
    take_range(l, from, 0xe3, 0xec, NEED_2);
    take_range(l, from, 0xed, 0xed, AFTER_ED);
    take_range(l, from, 0xee, 0xef, NEED_2);
    take_range(l, from, 0xf0, 0xf0, AFTER_F0);
    take_range(l, from, 0xf1, 0xf3, NEED_3);
    take_range(l, from, 0xf4, 0xf4, AFTER_F4);
    take_range(l, &l->at[NEED_3], 0x80, 0xbf, NEED_2);
    take_range(l, &l->at[AFTER_F0], 0x90, 0xbf, NEED_2);
    take_range(l, &l->at[AFTER_F4], 0x80, 0x8f, NEED_2);
    take_range(l, &l->at[NEED_2], 0x80, 0xbf, NEED_1);
    take_range(l, &l->at[AFTER_E0], 0xa0, 0xbf, NEED_1);
    take_range(l, &l->at[AFTER_E2], 0x80, 0x80, AFTER_E280);
    take_range(l, &l->at[AFTER_E2], 0x81, 0xbf, NEED_1);
    take_range(l, &l->at[AFTER_ED], 0x80, 0x9f, NEED_1);
    take_range(l, &l->at[AFTER_E280], 0x80, 0xa7, BODY);
    take_range(l, &l->at[AFTER_E280], 0xaa, 0xbf, BODY);
    take_range(l, &l->at[AFTER_C2], 0xa0, 0xbf, BODY);
    take_range(l, &l->at[NEED_1], 0x80, 0xbf, BODY);
    return !l->ends;
}

static bool are_equal(const state_set *a, const state_set *b)
{
    size_t n_common = 0;
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n; k++)
            n_common += a->items[i] == b->items[k];
    return a->n == b->n && n_common == a->n;
}

qn_text_fit qn_text_fits(const qn_dfa *dfa, uint32_t state, qn_text_class kind)
{
    level l = { .dfa = dfa };
    state_set from = { { state }, 1 };
    qn_text_fit fit = { 0 };
    for (int byte = 255, end = 256; byte >= 0; byte--) {
        if (byte < 255 && dfa->class_of[byte] != dfa->class_of[byte + 1])
            end = byte + 1;
        l.run_end[byte] = (uint16_t)end;
    }
    for (size_t n_visits = 0; n_visits < MAX_VISITS; n_visits += from.n) {
        const bool is_first = fit.characters == 0;
        if (!take_character(&l, &from, kind, is_first) || l.is_full) {
            fit.is_closed = !l.lives && !l.is_full;
            break;
        }
        fit.characters++;
        if (fit.characters > QN_TOKEN_BYTES || (!is_first && are_equal(&from, &l.at[BODY]))) {
            fit.characters = QN_UNLIMITED;
            break;
        }
        from = l.at[BODY];
        for (size_t i = 0; i < from.n; i++)
            fit.ends_within |= dfa->accept[from.items[i]] != 0;
    }
    return fit;
}
