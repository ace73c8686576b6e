/* The subset construction for expressions with assertions. An element of a subset is a state of the NFA with what it
 * owes: states of the look-aheads that were passed and are not decided yet. It accepts a text if the state does and
 * each of these does, or for a negated one does not. That makes a DFA of any look-ahead, also of one in a loop, if the
 * bounds allow. */
#include "grammar/dfa.h"

#include "base/keyed_hash.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_OWED = 24, FIRST_SLOTS = 64, LOOK_BITS = 5 };

/* An element of every set of a DFA state after a word's character. No element of another kind has this number. */
#define AFTER_WORD UINT32_MAX
#define NO_ELEMENT (UINT32_MAX - 1)

const uint32_t qn_word_bounds[QN_WORD_BOUNDS] = { '0', '9' + 1, 'A', 'Z' + 1, '_', '_' + 1, 'a', 'z' + 1 };

/* One debt: the state of a look-ahead's DFA, its index, and whether it is negated. */
typedef uint32_t debt;

static debt make_debt(uint32_t state, uint32_t look, bool is_negated)
{
    return state << LOOK_BITS | look << 1 | is_negated;
}

typedef struct element {
    uint32_t state, first, n; /* debts [first, first + n), ascending */
} element;

typedef struct search {
    qn_subsets *b;
    element *elements;
    debt *debts;
    uint32_t *slots;                   /* elements by content, + 1 */
    uint32_t *marks;                   /* by element, the closure that met it last */
    uint32_t *stack, *seeds, *classes; /* classes: [n_looks, n_classes] the look-ahead's class of each class */
    bool *is_word;                     /* [n_classes] */
    size_t n, capacity, mark_capacity, n_debts, debt_capacity, slot_mask, stack_capacity, seed_capacity;
    uint32_t mark;
} search;

/* Whether a class has a character: not the surrogates, nor single bytes. */
static bool has_characters(const qn_look *look, uint32_t class)
{
    const uint32_t first = look->bounds[class], end = look->bounds[class + 1];
    return first < QN_BYTE_SYMBOLS && !(first >= 0xd800 && end <= 0xe000);
}

qn_status qn_look_prepare(qn_look *look, const qn_nfa *m)
{
    const qn_dfa *d = &look->dfa;
    look->holds = malloc(d->n_states);
    if (!look->holds)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory", m->what);
    memcpy(look->holds, d->accept, d->n_states);
    for (bool is_changed = true; is_changed;) {
        is_changed = false;
        QN_TRY(qn_nfa_count(m, (uint64_t)d->n_states * d->n_classes / 4 + 1));
        for (uint32_t s = 1; s < d->n_states; s++)
            for (uint32_t c = 0; look->holds[s] && c < d->n_classes; c++)
                if (!look->holds[d->next[(size_t)s * d->n_classes + c]] && has_characters(look, c)) {
                    look->holds[s] = false;
                    is_changed = true;
                }
    }
    return QN_OK;
}

/* ---- Elements ---- */

static size_t slot_of(const search *s, uint32_t state, const debt *debts, uint32_t n)
{
    return (qn_keyed_hash(debts, n * sizeof *debts) ^ state * UINT64_C(0x9e3779b97f4a7c15)) & s->slot_mask;
}

static qn_status grow_slots(search *s)
{
    const size_t n = s->slots ? 2 * (s->slot_mask + 1) : FIRST_SLOTS;
    uint32_t *slots = calloc(n, sizeof *slots);
    if (!slots)
        return qn_fail(QN_ERR_MEMORY, "DFA: no memory for %zu elements", n);
    free(s->slots);
    s->slots = slots;
    s->slot_mask = n - 1;
    for (uint32_t i = 0; i < s->n; i++) {
        size_t slot = slot_of(s, s->elements[i].state, s->debts + s->elements[i].first, s->elements[i].n);
        while (slots[slot])
            slot = (slot + 1) & s->slot_mask;
        slots[slot] = i + 1;
    }
    return QN_OK;
}

/* Finds or adds the element of a state and debts, which are not among s->debts. */
static qn_status find_element(search *s, uint32_t state, const debt *debts, uint32_t n, uint32_t *id)
{
    if (!s->slots || 2 * s->n > s->slot_mask)
        QN_TRY(grow_slots(s));
    QN_TRY(qn_nfa_count(s->b->m, 1 + n));
    size_t slot = slot_of(s, state, debts, n);
    for (; s->slots[slot]; slot = (slot + 1) & s->slot_mask) {
        const element *e = &s->elements[ *id = s->slots[slot] - 1];
        ++*s->b->m->steps;
        if (e->state == state && e->n == n && (!n || !memcmp(s->debts + e->first, debts, n * sizeof *debts)))
            return QN_OK;
    }
    QN_TRY(qn_realloc_array(&s->elements, &s->capacity, s->n + 1, sizeof *s->elements, "DFA"));
    QN_TRY(qn_realloc_array(&s->marks, &s->mark_capacity, s->n + 1, sizeof *s->marks, "DFA"));
    QN_TRY(qn_realloc_array(&s->debts, &s->debt_capacity, s->n_debts + n + 1, sizeof *s->debts, "DFA"));
    if (n)
        memcpy(s->debts + s->n_debts, debts, n * sizeof *debts);
    *id = (uint32_t)s->n;
    s->marks[s->n] = 0;
    s->elements[s->n++] = (element){ state, (uint32_t)s->n_debts, n };
    s->n_debts += n;
    s->slots[slot] = *id + 1;
    return QN_OK;
}

/* Adds a look-ahead in a state of its DFA to a list of debts, unless it is decided. *is_broken: it cannot hold. */
static qn_status owe(const search *s, debt *debts, uint32_t *n, uint32_t look, bool is_negated, uint32_t state,
                     bool *is_broken)
{
    const qn_look *l = &s->b->m->looks[look];
    const bool never = !state, always = state && l->holds[state];
    const debt d = make_debt(state, look, is_negated);
    uint32_t at = 0;
    *is_broken = is_negated ? always : never;
    if (never || always)
        return QN_OK;
    while (at < *n && debts[at] < d)
        at++;
    if (at < *n && debts[at] == d)
        return QN_OK;
    if (*n == MOST_OWED)
        return qn_nfa_too_large(s->b->m->what);
    memmove(debts + at + 1, debts + at, (*n - at) * sizeof *debts);
    debts[at] = d;
    ++*n;
    return QN_OK;
}

/* ---- Sets ---- */

static qn_status push(uint32_t **list, size_t *capacity, size_t *n, uint32_t id)
{
    QN_TRY(qn_realloc_array(list, capacity, *n + 1, sizeof **list, "DFA"));
    (*list)[(*n)++] = id;
    return QN_OK;
}

/* Puts what follows an element over an empty edge on the stack. */
static qn_status pass(search *s, const element *e, const qn_nfa_edge *edge, bool is_begin, bool is_after_word,
                      size_t *depth)
{
    debt debts[MOST_OWED];
    uint32_t n = e->n, id;
    bool is_broken = false, is_negated = edge->hi;
    if (edge->asserts == QN_ASSERT_BEGIN && !is_begin)
        return QN_OK;
    if (n)
        memcpy(debts, s->debts + e->first, n * sizeof *debts);
    if (edge->asserts == QN_ASSERT_BOUNDARY) /* the next character is of the other kind; negated: of the same */
        is_negated = is_after_word != is_negated;
    if (edge->asserts == QN_ASSERT_LOOK || edge->asserts == QN_ASSERT_BOUNDARY)
        QN_TRY(owe(s, debts, &n, edge->lo, is_negated, s->b->m->looks[edge->lo].dfa.n_states > 1, &is_broken));
    if (is_broken)
        return QN_OK;
    QN_TRY(find_element(s, edge->target, debts, n, &id));
    if (s->marks[id] == s->mark)
        return QN_OK;
    s->marks[id] = s->mark;
    return push(&s->stack, &s->stack_capacity, depth, id);
}

static bool accepts(const search *s, const element *e)
{
    bool does = e->state == s->b->accept;
    for (uint32_t i = e->first; i < e->first + e->n; i++) {
        const debt d = s->debts[i];
        does &= (bool)s->b->m->looks[d >> 1 & (QN_LOOKS - 1)].dfa.accept[d >> LOOK_BITS] != (bool)(d & 1);
    }
    return does;
}

static int compare_u32(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Finds or adds the DFA state of the closure of elements. */
static qn_status intern(search *s, const uint32_t *seeds, size_t n_seeds, bool is_begin, bool is_after_word,
                        uint32_t *state)
{
    qn_subsets *b = s->b;
    size_t count = 0, depth = 0;
    bool accept = false, is_new;
    uint32_t rest = NO_ELEMENT;
    s->mark++;
    for (size_t i = 0; i < n_seeds; i++)
        if (s->marks[seeds[i]] != s->mark) {
            s->marks[seeds[i]] = s->mark;
            QN_TRY(push(&s->stack, &s->stack_capacity, &depth, seeds[i]));
        }
    while (depth) {
        const uint32_t id = s->stack[--depth];
        const element e = s->elements[id];
        bool is_kept = e.state == b->accept;
        for (int32_t k = b->m->states[e.state].first; k != QN_NO_EDGE; k = b->m->edges[k].next) {
            is_kept |= !b->m->edges[k].is_empty;
            if (b->m->edges[k].is_empty)
                QN_TRY(pass(s, &e, &b->m->edges[k], is_begin, is_after_word, &depth));
        }
        QN_TRY(qn_nfa_count(b->m, 1));
        if (!is_kept)
            continue;
        accept |= accepts(s, &e);
        if (b->m->rest && e.state == b->m->rest && !e.n)
            rest = id;
        QN_TRY(qn_subsets_add(b, count++, id));
    }
    if (rest != NO_ELEMENT) { /* it accepts whatever another element does */
        count = 0;
        QN_TRY(qn_subsets_add(b, count++, rest));
    }
    if (count > 1)
        qsort(b->sets + b->set_of[b->dfa.n_states], count, sizeof *b->sets, compare_u32);
    if (count && is_after_word && b->m->has_boundaries)
        QN_TRY(qn_subsets_add(b, count++, AFTER_WORD));
    QN_TRY(qn_subsets_intern(b, count, state, &is_new));
    if (is_new)
        b->dfa.accept[*state] = accept;
    return QN_OK;
}

/* Appends what an element becomes by a symbol of a class over an edge, if its debts can still hold. */
static qn_status step(search *s, const element *e, const qn_nfa_edge *edge, uint32_t class, size_t *n_seeds)
{
    const qn_nfa *m = s->b->m;
    debt debts[MOST_OWED];
    uint32_t n = 0, id;
    bool is_broken = false;
    for (uint32_t i = e->first; i < e->first + e->n && !is_broken; i++) {
        const uint32_t look = s->debts[i] >> 1 & (QN_LOOKS - 1), state = s->debts[i] >> LOOK_BITS;
        const qn_dfa *d = &m->looks[look].dfa;
        const uint32_t next =
            d->next[(size_t)state * d->n_classes + s->classes[(size_t)look * s->b->dfa.n_classes + class]];
        QN_TRY(owe(s, debts, &n, look, s->debts[i] & 1, next, &is_broken));
    }
    if (is_broken)
        return QN_OK;
    QN_TRY(find_element(s, edge->target, debts, n, &id));
    return push(&s->seeds, &s->seed_capacity, n_seeds, id);
}

static qn_status add_transitions(search *s, uint32_t state)
{
    qn_subsets *b = s->b;
    for (uint32_t c = 0; c < b->dfa.n_classes; c++) {
        size_t n_seeds = 0;
        uint32_t next;
        QN_TRY(qn_nfa_count(b->m, 1 + b->set_of[state + 1] - b->set_of[state]));
        for (uint32_t i = b->set_of[state]; i < b->set_of[state + 1]; i++) {
            if (b->sets[i] == AFTER_WORD)
                continue;
            const element e = s->elements[b->sets[i]];
            for (int32_t k = b->m->states[e.state].first; k != QN_NO_EDGE; k = b->m->edges[k].next) {
                const qn_nfa_edge *edge = &b->m->edges[k];
                if (!edge->is_empty && edge->first_class <= c && c <= edge->last_class)
                    QN_TRY(step(s, &e, edge, c, &n_seeds));
            }
        }
        QN_TRY(intern(s, s->seeds, n_seeds, false, s->is_word[c], &next));
        b->dfa.next[(size_t)state * b->dfa.n_classes + c] = next;
    }
    return QN_OK;
}

static qn_status map_classes(search *s)
{
    const qn_subsets *b = s->b;
    const uint32_t n = b->dfa.n_classes;
    s->classes = malloc((b->m->n_looks + 1) * n * sizeof *s->classes);
    s->is_word = malloc(n * sizeof *s->is_word);
    if (!s->classes || !s->is_word)
        return qn_fail(QN_ERR_MEMORY, "DFA: no memory for %u classes", n);
    for (uint32_t c = 0; c < n; c++) {
        const uint32_t first = b->bounds[c];
        s->is_word[c] = false;
        for (size_t i = 0; i < QN_WORD_BOUNDS; i += 2)
            s->is_word[c] |= first >= qn_word_bounds[i] && first < qn_word_bounds[i + 1];
        for (size_t look = 0; look < b->m->n_looks; look++) {
            const qn_look *l = &b->m->looks[look];
            s->classes[look * n + c] = l->dfa.n_states ? qn_class_of(l->bounds, l->dfa.n_classes, first) : 0;
        }
    }
    return QN_OK;
}

static qn_status build(search *s, uint32_t start)
{
    uint32_t first, state;
    QN_TRY(map_classes(s));
    QN_TRY(find_element(s, start, NULL, 0, &first));
    QN_TRY(intern(s, &first, 1, true, false, &state));
    for (state = 1; state < s->b->dfa.n_states; state++)
        QN_TRY(add_transitions(s, state));
    if (s->b->dfa.n_states < 2)
        return qn_fail(QN_ERR_INVALID, "%s: matches nothing", s->b->m->what);
    return qn_dfa_trim(&s->b->dfa, s->b->m->what, s->b->m->steps);
}

qn_status qn_look_determinize(qn_subsets *b, uint32_t start)
{
    search s = { .b = b };
    const qn_status status = build(&s, start);
    free(s.elements);
    free(s.debts);
    free(s.slots);
    free(s.marks);
    free(s.stack);
    free(s.seeds);
    free(s.classes);
    free(s.is_word);
    return status;
}
