/* Whether a DFA accepts all texts of a class: then the tokens of the class follow without a walk. */
#include "grammar/vocab.h"

#include <stdlib.h>
#include <string.h>

/* MOVED: moves that count as one step. MAX_MOVES: one for each byte value at each place of a character. */
enum { MAX_STATES = 64, MAX_STEPS = 1 << 16, BEGIN_STEPS = 64, COMPARED = 4, MOVED = 4, MAX_MOVES = 1280 };

unsigned qn_text_contains(qn_text_class kind)
{
    static const unsigned contains[QN_TEXT_CLASSES] = { 1, 3, 7, 15, 7 | 16, 63, 127 };
    return contains[kind];
}

uint64_t qn_text_kind(uint8_t byte)
{
    static const char others[] = " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    /* The last bytes of kinds outside ASCII. First bytes of characters up to U+FFFF are split where white space
     * begins. */
    static const uint8_t foreign[] = { 0x80, 0x81, 0x8f, 0x9f, 0xbf, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1,
                                       0xe2, 0xe3, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf3, 0xf4, 0xff };
    enum { LOWER, UPPER, DIGIT, CONTROL, TAB, NEWLINE, RETURN, OTHERS, FOREIGN = OTHERS + sizeof others - 1 };
    int kind = CONTROL;
    if (byte >= 0x80)
        for (kind = FOREIGN; byte > foreign[kind - FOREIGN];)
            kind++;
    else if (byte >= 'a' && byte <= 'z')
        kind = LOWER;
    else if (byte >= 'A' && byte <= 'Z')
        kind = UPPER;
    else if (byte >= '0' && byte <= '9')
        kind = DIGIT;
    else if (byte == '\t' || byte == '\n' || byte == '\r')
        kind = byte == '\t' ? TAB : byte == '\n' ? NEWLINE : RETURN;
    else if (byte >= ' ' && byte != 0x7f)
        kind = OTHERS + (int)(strchr(others, byte) - others);
    return UINT64_C(1) << kind;
}

/* Whether a character outside ASCII is a line end or white space of regular expressions, or a control U+0080 to
 * U+009F. */
static bool is_space_or_control(const char *text, size_t length)
{
    const uint8_t *b = (const uint8_t *)text;
    if (length > 1 && b[0] == 0xc2)
        return b[1] <= 0xa0;
    if (length < 3)
        return false;
    const uint32_t c = (uint32_t)b[0] << 16 | (uint32_t)b[1] << 8 | b[2];
    return c == 0xe19a80 || (c >= 0xe28080 && c <= 0xe2808a) || c == 0xe280a8 || c == 0xe280a9 || c == 0xe280af ||
           c == 0xe2819f || c == 0xe38080 || c == 0xefbbbf;
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
        if (state >= QN_STRING_END || byte == 0x7f || is_space_or_control(text + i, length - i))
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

/* Places in a character, by the bytes that may complete it. */
enum {
    BODY,
    NEED_1,
    AFTER_C2,
    AFTER_E19A,
    AFTER_E280,
    AFTER_E281,
    AFTER_E380,
    AFTER_EFBB,
    AFTER_E0,
    AFTER_E1,
    AFTER_E2,
    AFTER_E3,
    AFTER_ED,
    AFTER_EF,
    NEED_2,
    AFTER_F0,
    AFTER_F4,
    NEED_3,
    PLACES
};

/* Bytes that a DFA treats alike, from one place of a character to the next. From BODY: first bytes of a character. */
typedef struct move {
    uint8_t from, class, to;
} move;

typedef struct state_set {
    uint32_t items[MAX_STATES];
    size_t n;
} state_set;

typedef struct level {
    const qn_dfa *dfa;
    uint16_t run_end[256]; /* by byte, the next byte of another class of the DFA */
    move moves[MAX_MOVES]; /* all moves of the characters of texts */
    size_t n_moves;
    state_set at[PLACES];
    bool is_full;     /* too many states or steps */
    uint64_t steps;   /* of some ns */
    bool lives, ends; /* lives: some byte follows; ends: some byte does not */
} level;

static void begin_level(level *l, const qn_dfa *dfa)
{
    l->dfa = dfa;
    l->n_moves = 0;
    l->is_full = l->lives = l->ends = false;
    l->steps = BEGIN_STEPS;
    for (int byte = 255, end = 256; byte >= 0; byte--) {
        if (byte < 255 && dfa->class_of[byte] != dfa->class_of[byte + 1])
            end = byte + 1;
        l->run_end[byte] = (uint16_t)end;
    }
}

/* ---- Moves ---- */

static void add_range(level *l, int from, int lo, int hi, int to)
{
    uint64_t is_met[4] = { 0 };
    for (int byte = lo; byte <= hi; byte = l->run_end[byte]) {
        const uint8_t class = l->dfa->class_of[byte];
        if (is_met[class / 64] >> (class % 64) & 1)
            continue;
        is_met[class / 64] |= UINT64_C(1) << (class % 64);
        l->moves[l->n_moves++] = (move){ (uint8_t)from, class, (uint8_t)to };
    }
}

/* Adds all ASCII characters of a class except the space that may only begin a text. */
static void add_ascii(level *l, qn_text_class kind)
{
    if (kind == QN_TEXT_LINE) {
        add_range(l, BODY, ' ', '~', BODY);
    } else if (kind == QN_TEXT_ASCII || kind == QN_TEXT_ANY) {
        add_range(l, BODY, ' ', '!', BODY);
        add_range(l, BODY, '#', '[', BODY);
        add_range(l, BODY, ']', '~', BODY);
    } else {
        add_range(l, BODY, 'a', 'z', BODY);
        if (kind != QN_TEXT_LOWER)
            add_range(l, BODY, 'A', 'Z', BODY);
    }
}

/* Adds all characters outside ASCII that a class may contain. */
static void add_foreign(level *l)
{
    static const struct {
        uint8_t from, lo, hi, to;
    } ranges[] = {
        { BODY, 0xc2, 0xc2, AFTER_C2 },       { BODY, 0xc3, 0xdf, NEED_1 },         { BODY, 0xe0, 0xe0, AFTER_E0 },
        { BODY, 0xe1, 0xe1, AFTER_E1 },       { BODY, 0xe2, 0xe2, AFTER_E2 },       { BODY, 0xe3, 0xe3, AFTER_E3 },
        { BODY, 0xe4, 0xec, NEED_2 },         { BODY, 0xed, 0xed, AFTER_ED },       { BODY, 0xee, 0xee, NEED_2 },
        { BODY, 0xef, 0xef, AFTER_EF },       { BODY, 0xf0, 0xf0, AFTER_F0 },       { BODY, 0xf1, 0xf3, NEED_3 },
        { BODY, 0xf4, 0xf4, AFTER_F4 },       { NEED_3, 0x80, 0xbf, NEED_2 },       { AFTER_F0, 0x90, 0xbf, NEED_2 },
        { AFTER_F4, 0x80, 0x8f, NEED_2 },     { NEED_2, 0x80, 0xbf, NEED_1 },       { AFTER_E0, 0xa0, 0xbf, NEED_1 },
        { AFTER_E1, 0x80, 0x99, NEED_1 },     { AFTER_E1, 0x9a, 0x9a, AFTER_E19A }, { AFTER_E1, 0x9b, 0xbf, NEED_1 },
        { AFTER_E2, 0x80, 0x80, AFTER_E280 }, { AFTER_E2, 0x81, 0x81, AFTER_E281 }, { AFTER_E2, 0x82, 0xbf, NEED_1 },
        { AFTER_E3, 0x80, 0x80, AFTER_E380 }, { AFTER_E3, 0x81, 0xbf, NEED_1 },     { AFTER_ED, 0x80, 0x9f, NEED_1 },
        { AFTER_EF, 0x80, 0xba, NEED_1 },     { AFTER_EF, 0xbb, 0xbb, AFTER_EFBB }, { AFTER_EF, 0xbc, 0xbf, NEED_1 },
        { AFTER_C2, 0xa1, 0xbf, BODY },       { AFTER_E19A, 0x81, 0xbf, BODY },     { AFTER_E280, 0x8b, 0xa7, BODY },
        { AFTER_E280, 0xaa, 0xae, BODY },     { AFTER_E280, 0xb0, 0xbf, BODY },     { AFTER_E281, 0x80, 0x9e, BODY },
        { AFTER_E281, 0xa0, 0xbf, BODY },     { AFTER_E380, 0x81, 0xbf, BODY },     { AFTER_EFBB, 0x80, 0xbe, BODY },
        { NEED_1, 0x80, 0xbf, BODY },
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        add_range(l, ranges[i].from, ranges[i].lo, ranges[i].hi, ranges[i].to);
}

/* ---- Characters ---- */

static void add_state(level *l, int place, uint32_t state)
{
    state_set *to = &l->at[place];
    for (size_t i = 0; i < to->n; i++)
        if (to->items[i] == state) {
            l->steps += i / COMPARED;
            return;
        }
    l->steps += to->n / COMPARED;
    if (to->n == MAX_STATES)
        l->is_full = true;
    else
        to->items[to->n++] = state;
}

static void take_class(level *l, uint32_t state, uint8_t class, int place)
{
    const uint32_t next = l->dfa->next[(size_t)state * l->dfa->n_classes + class];
    l->lives |= next != 0;
    l->ends |= !next;
    l->is_full |= ++l->steps > MAX_STEPS;
    if (next)
        add_state(l, place, next);
}

static void begin_character(level *l)
{
    for (int i = 0; i < PLACES; i++)
        l->at[i].n = 0;
    l->lives = l->ends = false;
}

/* Returns the state to which every character leads from `state`; 0 if some are refused or they lead to several. */
static uint32_t move_alike(const level *l, uint32_t state)
{
    uint32_t at[PLACES] = { 0 };
    for (size_t i = 0; i < l->n_moves; i++) {
        const move m = l->moves[i];
        const uint32_t before = m.from == BODY ? state : at[m.from];
        const uint32_t next = l->dfa->next[(size_t)before * l->dfa->n_classes + m.class];
        if (!next || (at[m.to] && at[m.to] != next))
            return 0;
        at[m.to] = next;
    }
    return at[BODY];
}

/* Computes the states after one more character. True if the DFA accepts every character; else the result is
 * incomplete. */
static bool take_character(level *l, const state_set *from)
{
    begin_character(l);
    const uint32_t next = from->n == 1 ? move_alike(l, from->items[0]) : 0;
    l->steps += l->n_moves / MOVED;
    if (next) {
        l->lives = true;
        add_state(l, BODY, next);
        return true;
    }
    for (size_t i = 0; i < l->n_moves && !(l->lives && l->ends); i++) {
        const move m = l->moves[i];
        const state_set *before = m.from == BODY ? from : &l->at[m.from];
        for (size_t k = 0; k < before->n; k++)
            take_class(l, before->items[k], m.class, m.to);
    }
    return !l->ends;
}

static bool are_equal(level *l, const state_set *a, const state_set *b)
{
    size_t n_common = 0;
    if (a->n != b->n)
        return false;
    l->steps += a->n * b->n / COMPARED;
    for (size_t i = 0; i < a->n; i++)
        for (size_t k = 0; k < b->n; k++)
            n_common += a->items[i] == b->items[k];
    return n_common == a->n;
}

/* ---- Whole DFAs ---- */

enum { PREPARED_STATES = 64 };

/* In qn_dfa.alike: the state to which all characters of QN_TEXT_ANY lead, with this bit if all of QN_TEXT_LINE do.
 * 0: there is no such state. */
#define ALIKE_LINE UINT32_C(0x80000000)

static uint32_t find_alike(const level *l, uint32_t state)
{
    const qn_dfa *dfa = l->dfa;
    const uint32_t *row = dfa->next + (size_t)state * dfa->n_classes, next = move_alike(l, state);
    if (!next)
        return 0;
    return row[dfa->class_of['"']] == next && row[dfa->class_of['\\']] == next ? next | ALIKE_LINE : next;
}

qn_status qn_dfa_prepare(qn_dfa *dfa, uint64_t *steps)
{
    level l;
    *steps += dfa->n_states / MOVED;
    for (uint32_t state = 1; state < dfa->n_states && !dfa->takes_line_ends; state++) {
        const uint32_t *row = dfa->next + (size_t)state * dfa->n_classes;
        dfa->takes_line_ends = row[dfa->class_of['\n']] || row[dfa->class_of['\r']];
    }
    if (dfa->n_states < PREPARED_STATES)
        return QN_OK;
    dfa->alike = malloc(dfa->n_states * sizeof *dfa->alike);
    if (!dfa->alike)
        return qn_fail(QN_ERR_MEMORY, "DFA: no memory for %u states", dfa->n_states);
    begin_level(&l, dfa);
    add_ascii(&l, QN_TEXT_ANY);
    add_foreign(&l);
    dfa->alike[0] = 0;
    for (uint32_t state = 1; state < dfa->n_states; state++) {
        dfa->alike[state] = find_alike(&l, state);
        *steps += dfa->alike[state] ? l.n_moves / MOVED : 1;
    }
    return QN_OK;
}

bool qn_text_foreign_loops(const qn_dfa *dfa, uint32_t state, uint64_t *steps)
{
    level l;
    begin_level(&l, dfa);
    add_foreign(&l);
    *steps += l.steps + l.n_moves / MOVED;
    return move_alike(&l, state) == state;
}

/* Follows characters from *state on while all of a class lead to one state. */
static qn_text_fit follow_alike(const qn_dfa *dfa, uint32_t *state, qn_text_class kind, uint64_t *steps)
{
    qn_text_fit fit = { 0 };
    while (dfa->alike) {
        const uint32_t alike = dfa->alike[*state], next = alike & ~ALIKE_LINE;
        if (!next || (kind == QN_TEXT_LINE && !(alike & ALIKE_LINE)))
            break;
        fit.characters++;
        if (next == *state || fit.characters > QN_TOKEN_BYTES) {
            fit.characters = QN_UNLIMITED;
            break;
        }
        fit.ends_within |= dfa->accept[next] != 0;
        *state = next;
    }
    *steps += fit.characters == QN_UNLIMITED ? 1 : fit.characters / MOVED;
    return fit;
}

/* ---- Classes that follow ---- */

/* Whether a state accepts some of the letters a to z, which are in every class, but not all. */
static bool divides_letters(const qn_dfa *dfa, uint32_t state)
{
    const uint32_t *row = dfa->next + (size_t)state * dfa->n_classes;
    uint32_t n = 0;
    for (int byte = 'a'; byte <= 'z'; byte++)
        n += row[dfa->class_of[byte]] != 0;
    return n > 0 && n <= 'z' - 'a';
}

qn_text_fit qn_text_fits(const qn_dfa *dfa, uint32_t state, qn_text_class kind, uint64_t *steps)
{
    level l;
    qn_text_fit fit = follow_alike(dfa, &state, kind, steps);
    *steps += 1;
    if (fit.characters == QN_UNLIMITED || divides_letters(dfa, state))
        return fit;
    state_set from = { { state }, 1 };
    begin_level(&l, dfa);
    add_ascii(&l, kind);
    if (kind >= QN_TEXT_FOREIGN)
        add_foreign(&l);
    for (;;) {
        const bool is_first = fit.characters == 0;
        take_character(&l, &from);
        if (is_first && (kind == QN_TEXT_WORDS || kind == QN_TEXT_FOREIGN))
            take_class(&l, state, dfa->class_of[' '], BODY);
        if (l.ends || l.is_full) {
            fit.is_closed = !l.lives && !l.is_full;
            break;
        }
        fit.characters++;
        if (fit.characters > QN_TOKEN_BYTES || (!is_first && are_equal(&l, &from, &l.at[BODY]))) {
            fit.characters = QN_UNLIMITED;
            break;
        }
        from = l.at[BODY];
        for (size_t i = 0; i < from.n; i++)
            fit.ends_within |= dfa->accept[from.items[i]] != 0;
    }
    *steps += l.steps;
    return fit;
}

/* ---- Bytes ---- */

void qn_text_bytes(qn_text_class kind, uint64_t bytes[4])
{
    const uint64_t lower = UINT64_C(0x3ffffff) << ('a' - 64), upper = UINT64_C(0x3ffffff) << ('A' - 64);
    const bool is_ascii = kind <= QN_TEXT_ASCII, is_letters = kind <= QN_TEXT_WORDS || kind == QN_TEXT_FOREIGN;
    memset(bytes, 0, 4 * sizeof *bytes);
    if (!is_ascii)
        bytes[2] = bytes[3] = ~UINT64_C(0);
    if (is_letters) {
        bytes[0] = kind >= QN_TEXT_WORDS ? UINT64_C(1) << ' ' : 0;
        bytes[1] = kind >= QN_TEXT_LETTERS ? lower | upper : lower;
        return;
    }
    bytes[0] = ~UINT64_C(0) << ' ';
    bytes[1] = ~UINT64_C(0) >> 1;
    if (kind != QN_TEXT_LINE) {
        bytes[0] ^= UINT64_C(1) << '"';
        bytes[1] ^= UINT64_C(1) << ('\\' - 64);
    }
}
