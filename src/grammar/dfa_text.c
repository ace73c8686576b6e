/* DFAs of texts that contain none of some words, and intersection and difference of two DFAs. */
#include "grammar/automaton.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_STATES = 1 << 15, MAX_TABLE = 1 << 22, MAX_PAIRS = 1 << 22 };

static qn_status too_large(const char *what)
{
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: too large for an automaton", what);
}

static qn_status no_memory(const char *what)
{
    return qn_fail(QN_ERR_MEMORY, "%s: no memory for an automaton", what);
}

/* ---- Texts without words ---- */

/* States: dead, between characters with no part of a word read, inside a character, and after a part of a word. */
enum { DEAD, ROOT, NEED_1, NEED_2, NEED_3, AFTER_E0, AFTER_ED, AFTER_F0, AFTER_F4, FIRST_PART };

/* Classes of bytes outside ASCII. */
enum {
    INVALID,
    LOW,
    MIDDLE,
    HIGH,
    LEAD_2,
    LEAD_E0,
    LEAD_3,
    LEAD_ED,
    LEAD_F0,
    LEAD_4,
    LEAD_F4,
    PLAIN,
    FIRST_WORD_CLASS
};

static uint8_t class_of_foreign(int byte)
{
    if (byte < 0xc0)
        return byte < 0x90 ? LOW : byte < 0xa0 ? MIDDLE : HIGH;
    if (byte < 0xe0)
        return byte < 0xc2 ? INVALID : LEAD_2;
    if (byte < 0xf0)
        return byte == 0xe0 ? LEAD_E0 : byte == 0xed ? LEAD_ED : LEAD_3;
    return byte == 0xf0 ? LEAD_F0 : byte < 0xf4 ? LEAD_4 : byte == 0xf4 ? LEAD_F4 : INVALID;
}

/* Sets the transitions from between two characters to inside one. */
static void set_leads(uint32_t *next)
{
    static const uint8_t to[][2] = { { LEAD_2, NEED_1 },    { LEAD_E0, AFTER_E0 }, { LEAD_3, NEED_2 },
                                     { LEAD_ED, AFTER_ED }, { LEAD_F0, AFTER_F0 }, { LEAD_4, NEED_3 },
                                     { LEAD_F4, AFTER_F4 } };
    for (size_t i = 0; i < sizeof to / sizeof *to; i++)
        next[to[i][0]] = to[i][1];
}

static void set_inner(qn_dfa *d)
{
    static const uint8_t to[][3] = {
        { NEED_1, LOW, ROOT },        { NEED_1, MIDDLE, ROOT },   { NEED_1, HIGH, ROOT },
        { NEED_2, LOW, NEED_1 },      { NEED_2, MIDDLE, NEED_1 }, { NEED_2, HIGH, NEED_1 },
        { NEED_3, LOW, NEED_2 },      { NEED_3, MIDDLE, NEED_2 }, { NEED_3, HIGH, NEED_2 },
        { AFTER_E0, HIGH, NEED_1 },   { AFTER_ED, LOW, NEED_1 },  { AFTER_ED, MIDDLE, NEED_1 },
        { AFTER_F0, MIDDLE, NEED_2 }, { AFTER_F0, HIGH, NEED_2 }, { AFTER_F4, LOW, NEED_2 }
    };
    for (size_t i = 0; i < sizeof to / sizeof *to; i++)
        d->next[(size_t)to[i][0] * d->n_classes + to[i][1]] = to[i][2];
}

static void set_classes(qn_dfa *d, const char *const *words, size_t n_words)
{
    d->n_classes = FIRST_WORD_CLASS;
    for (int byte = 0; byte < 256; byte++)
        d->class_of[byte] = byte < 0x80 ? (uint8_t)PLAIN : class_of_foreign(byte);
    for (size_t i = 0; i < n_words; i++)
        for (const char *c = words[i]; *c; c++)
            if (d->class_of[(uint8_t)*c] == PLAIN)
                d->class_of[(uint8_t)*c] = (uint8_t)d->n_classes++;
}

/* Adds the words as a tree. */
static void add_words(qn_dfa *d, const char *const *words, size_t n_words, uint8_t *is_word)
{
    for (size_t i = 0; i < n_words; i++) {
        uint32_t state = ROOT;
        for (const char *c = words[i]; *c; c++) {
            uint32_t *next = &d->next[(size_t)state * d->n_classes + d->class_of[(uint8_t)*c]];
            if (!*next)
                *next = d->n_states++;
            state = *next;
        }
        is_word[state] = 1;
    }
}

/* Sets Aho and Corasick's links: where a word does not continue, the longest suffix of the text that begins a word
 * does. */
static void link(qn_dfa *d, uint32_t *fallback, uint32_t *queue, uint8_t *is_word)
{
    size_t n = 0;
    queue[n++] = ROOT;
    for (size_t i = 0; i < n; i++) {
        const uint32_t state = queue[i];
        uint32_t *next = d->next + (size_t)state * d->n_classes;
        for (uint32_t c = PLAIN; c < d->n_classes; c++) {
            const uint32_t other = state == ROOT ? ROOT : d->next[(size_t)fallback[state] * d->n_classes + c];
            if (next[c]) {
                fallback[next[c]] = other;
                is_word[next[c]] |= is_word[other];
                queue[n++] = next[c];
            } else {
                next[c] = other;
            }
        }
        set_leads(next);
        d->accept[state] = 1;
    }
    for (size_t i = 0; i < (size_t)d->n_states * d->n_classes; i++)
        if (is_word[d->next[i]])
            d->next[i] = DEAD;
}

qn_status qn_dfa_without_words(const char *const *words, size_t n_words, const char *what, uint64_t *steps, qn_dfa *out)
{
    size_t most = FIRST_PART;
    for (size_t i = 0; i < n_words; i++)
        most += strlen(words[i]);
    *out = (qn_dfa){ .n_states = FIRST_PART };
    set_classes(out, words, n_words);
    if (most > MAX_STATES || most * out->n_classes > MAX_TABLE)
        return too_large(what);
    *steps += most * out->n_classes / 4;
    out->next = calloc(most * out->n_classes, sizeof *out->next);
    out->accept = calloc(most, 1);
    uint32_t *fallback = calloc(most, sizeof *fallback), *queue = malloc(most * sizeof *queue);
    uint8_t *is_word = calloc(most, 1);
    const bool has_memory = out->next && out->accept && fallback && queue && is_word;
    if (has_memory) {
        set_inner(out);
        add_words(out, words, n_words, is_word);
        link(out, fallback, queue, is_word);
    } else {
        qn_dfa_free(out);
    }
    free(fallback);
    free(queue);
    free(is_word);
    return has_memory ? QN_OK : no_memory(what);
}

/* ---- Two DFAs ---- */

typedef struct pairs {
    const qn_dfa *a, *b;
    bool without;
    uint32_t *number_of; /* [states of a, states of b] the state that a pair has; 0: none yet */
    uint32_t (*of)[2];   /* the pair of each state */
    size_t of_capacity, next_capacity, accept_capacity;
    uint8_t classes[256][2]; /* for each class: its class in either DFA */
    qn_dfa out;
} pairs;

static void join_classes(pairs *p)
{
    for (int byte = 0; byte < 256; byte++) {
        uint32_t c = 0;
        const uint8_t a = p->a->class_of[byte], b = p->b->class_of[byte];
        while (c < p->out.n_classes && (p->classes[c][0] != a || p->classes[c][1] != b))
            c++;
        if (c == p->out.n_classes)
            p->out.n_classes++;
        p->classes[c][0] = a;
        p->classes[c][1] = b;
        p->out.class_of[byte] = (uint8_t)c;
    }
}

static qn_status find_pair(pairs *p, uint32_t a, uint32_t b, const char *what, uint32_t *state)
{
    *state = DEAD;
    if (!a || (!b && !p->without))
        return QN_OK;
    uint32_t *known = &p->number_of[(size_t)a * p->b->n_states + b];
    if (!*known) {
        const size_t n = p->out.n_states;
        if (n >= MAX_STATES || (n + 1) * p->out.n_classes > MAX_TABLE)
            return too_large(what);
        QN_TRY(qn_realloc_array(&p->of, &p->of_capacity, n + 1, sizeof *p->of, "DFA"));
        QN_TRY(
            qn_realloc_array(&p->out.next, &p->next_capacity, (n + 1) * p->out.n_classes, sizeof *p->out.next, "DFA"));
        QN_TRY(qn_realloc_array(&p->out.accept, &p->accept_capacity, n + 1, 1, "DFA"));
        p->of[n][0] = a;
        p->of[n][1] = b;
        p->out.accept[n] = p->a->accept[a] && (bool)p->b->accept[b] != p->without;
        *known = p->out.n_states++;
    }
    *state = *known;
    return QN_OK;
}

static qn_status find_pairs(pairs *p, const char *what, uint64_t *steps)
{
    uint32_t state;
    QN_TRY(find_pair(p, 1, 1, what, &state));
    for (uint32_t s = 1; s < p->out.n_states; s++) {
        *steps += p->out.n_classes;
        if (*steps > QN_GRAMMAR_STEPS)
            return too_large(what);
        for (uint32_t c = 0; c < p->out.n_classes; c++) {
            const uint32_t a = p->a->next[(size_t)p->of[s][0] * p->a->n_classes + p->classes[c][0]];
            const uint32_t b = p->b->next[(size_t)p->of[s][1] * p->b->n_classes + p->classes[c][1]];
            QN_TRY(find_pair(p, a, b, what, &state));
            p->out.next[(size_t)s * p->out.n_classes + c] = state;
        }
    }
    return qn_dfa_trim(&p->out, what, steps);
}

qn_status qn_dfa_meet(const qn_dfa *a, const qn_dfa *b, bool without, const char *what, uint64_t *steps, qn_dfa *out)
{
    pairs p = { .a = a, .b = b, .without = without };
    if ((uint64_t)a->n_states * b->n_states > MAX_PAIRS)
        return too_large(what);
    join_classes(&p);
    p.number_of = calloc((size_t)a->n_states * b->n_states, sizeof *p.number_of);
    p.out.n_states = 1; /* the first is DEAD */
    qn_status status = p.number_of ? QN_OK : no_memory(what);
    if (status == QN_OK)
        status = qn_realloc_array(&p.of, &p.of_capacity, 1, sizeof *p.of, "DFA");
    if (status == QN_OK)
        status = qn_realloc_array(&p.out.next, &p.next_capacity, p.out.n_classes, sizeof *p.out.next, "DFA");
    if (status == QN_OK)
        status = qn_realloc_array(&p.out.accept, &p.accept_capacity, 1, 1, "DFA");
    if (status == QN_OK) {
        memset(p.out.next, 0, p.out.n_classes * sizeof *p.out.next);
        p.out.accept[0] = 0;
        status = find_pairs(&p, what, steps);
    }
    free(p.number_of);
    free(p.of);
    if (status == QN_OK)
        *out = p.out;
    else
        qn_dfa_free(&p.out);
    return status;
}

bool qn_dfa_takes(const qn_dfa *dfa, const char *text, size_t length)
{
    uint32_t state = 1;
    for (size_t i = 0; i < length && state; i++)
        state = dfa->next[(size_t)state * dfa->n_classes + dfa->class_of[(uint8_t)text[i]]];
    return state && dfa->accept[state];
}
