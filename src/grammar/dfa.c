/* From an expression to a DFA: Thompson's NFA and the subset construction over characters, which gives few states,
 * then both again over bytes, with each character in UTF-8 or as a JSON string spells it. Both are bounded. */
#include "grammar/automaton.h"

#include "base/keyed_hash.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* Single bytes of an expression are symbols after the code points. */
enum {
    MAX_NFA = 1 << 16,
    BASE_STEPS = 64,
    FIRST_SLOTS = 64,
    MAX_STATES = 1 << 15,
    MAX_TABLE = 1 << 22,
    NONE = -1,
    BYTE_SYMBOLS = 0x110000
};

typedef struct edge {
    uint32_t target;
    int32_t next;
    uint32_t lo, hi; /* symbols */
    uint32_t first_class, last_class;
    bool is_empty;
} edge;

/* Ends of characters that lead to a state, whatever their value: 1 to 3 bytes of UTF-8, or 1 to 3 hexadecimal
 * digits. */
enum { TAIL_BYTES = 3, TAIL_DIGITS = 3, TAILS = TAIL_BYTES + TAIL_DIGITS };

typedef struct nfa_state {
    int32_t first;         /* index of an edge, or NONE */
    uint32_t tails[TAILS]; /* the states before its tails, shortest first; 0: not made yet */
} nfa_state;

typedef struct nfa {
    const qn_exprs *x;
    const char *what;
    nfa_state *states;
    edge *edges;
    size_t n, capacity, n_edges, edge_capacity;
    uint64_t *steps, limit;
    bool in_string;
} nfa;

static qn_status too_large(const char *what)
{
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: too large or too ambiguous for an automaton", what);
}

static qn_status count_steps(const nfa *m, uint64_t n)
{
    *m->steps += n;
    return *m->steps > m->limit ? too_large(m->what) : QN_OK;
}

static qn_status new_state(nfa *m, uint32_t *state)
{
    if (m->n >= MAX_NFA)
        return too_large(m->what);
    QN_TRY(qn_realloc_array(&m->states, &m->capacity, m->n + 1, sizeof *m->states, "NFA"));
    *state = (uint32_t)m->n;
    m->states[m->n++] = (nfa_state){ .first = NONE };
    return count_steps(m, 1);
}

static qn_status add_edge(nfa *m, uint32_t from, uint32_t to, bool is_empty, uint32_t lo, uint32_t hi)
{
    QN_TRY(qn_realloc_array(&m->edges, &m->edge_capacity, m->n_edges + 1, sizeof *m->edges, "NFA"));
    m->edges[m->n_edges] =
        (edge){ .target = to, .next = m->states[from].first, .lo = lo, .hi = hi, .is_empty = is_empty };
    m->states[from].first = (int32_t)m->n_edges++;
    return QN_OK;
}

static qn_status add_empty(nfa *m, uint32_t from, uint32_t to)
{
    return add_edge(m, from, to, true, 0, 0);
}

/* ---- Characters ---- */

/* The state that reads the last `n` bytes of a UTF-8 character, of any value, and continues at `to`. All characters
 * share these states, which keeps DFAs small. */
static qn_status add_bytes_tail(nfa *m, uint32_t to, size_t n, uint32_t *state)
{
    *state = to;
    for (size_t i = 0; i < n; i++) {
        const uint32_t next = *state;
        *state = m->states[to].tails[i];
        if (*state)
            continue;
        QN_TRY(new_state(m, state));
        QN_TRY(add_edge(m, *state, next, false, 0x80, 0xbf));
        m->states[to].tails[i] = *state;
    }
    return QN_OK;
}

static qn_status add_utf8(nfa *m, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    static const uint32_t last_of_length[] = { 0x7f, 0x7ff, 0xffff };
    for (int i = 0; i < 3; i++)
        if (lo <= last_of_length[i] && hi > last_of_length[i]) {
            QN_TRY(add_utf8(m, from, to, lo, last_of_length[i]));
            return add_utf8(m, from, to, last_of_length[i] + 1, hi);
        }
    char first[4], last[4];
    const size_t n = qn_utf8_encode(lo, first);
    for (size_t i = 1; i < n; i++) {
        const uint32_t mask = (1u << (6 * i)) - 1;
        if ((lo & ~mask) == (hi & ~mask))
            continue;
        if (lo & mask) {
            QN_TRY(add_utf8(m, from, to, lo, lo | mask));
            return add_utf8(m, from, to, (lo | mask) + 1, hi);
        }
        if ((hi & mask) != mask) {
            QN_TRY(add_utf8(m, from, to, lo, (hi & ~mask) - 1));
            return add_utf8(m, from, to, hi & ~mask, hi);
        }
    }
    qn_utf8_encode(hi, last);
    for (size_t i = 0; i < n; i++) {
        const uint32_t behind = (1u << (6 * (n - 1 - i))) - 1;
        uint32_t next = to;
        if (!(lo & behind) && (hi & behind) == behind)
            QN_TRY(add_bytes_tail(m, to, n - 1 - i, &next));
        else
            QN_TRY(new_state(m, &next));
        QN_TRY(add_edge(m, from, next, false, (uint8_t)first[i], (uint8_t)last[i]));
        from = next;
    }
    return QN_OK;
}

static qn_status add_hex_digits(nfa *m, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    if (lo <= 9)
        QN_TRY(add_edge(m, from, to, false, (uint8_t)('0' + lo), (uint8_t)('0' + (hi < 9 ? hi : 9))));
    if (hi < 10)
        return QN_OK;
    lo = lo > 10 ? lo - 10 : 0;
    QN_TRY(add_edge(m, from, to, false, (uint8_t)('a' + lo), (uint8_t)('a' + hi - 10)));
    return add_edge(m, from, to, false, (uint8_t)('A' + lo), (uint8_t)('A' + hi - 10));
}

/* As add_bytes_tail, for hexadecimal digits. */
static qn_status add_digits_tail(nfa *m, uint32_t to, size_t n, uint32_t *state)
{
    *state = to;
    for (size_t i = TAIL_BYTES; i < TAIL_BYTES + n; i++) {
        const uint32_t next = *state;
        *state = m->states[to].tails[i];
        if (*state)
            continue;
        QN_TRY(new_state(m, state));
        QN_TRY(add_hex_digits(m, *state, next, 0, 15));
        m->states[to].tails[i] = *state;
    }
    return QN_OK;
}

/* The four digits after \u. */
static qn_status add_hex(nfa *m, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    for (int i = 1; i < 4; i++) {
        const uint32_t mask = (1u << (4 * i)) - 1;
        if ((lo & ~mask) == (hi & ~mask))
            continue;
        if (lo & mask) {
            QN_TRY(add_hex(m, from, to, lo, lo | mask));
            return add_hex(m, from, to, (lo | mask) + 1, hi);
        }
        if ((hi & mask) != mask) {
            QN_TRY(add_hex(m, from, to, lo, (hi & ~mask) - 1));
            return add_hex(m, from, to, hi & ~mask, hi);
        }
    }
    for (int shift = 12; shift >= 0; shift -= 4) {
        const uint32_t behind = (1u << shift) - 1;
        uint32_t next = to;
        if (!(lo & behind) && (hi & behind) == behind)
            QN_TRY(add_digits_tail(m, to, (size_t)shift / 4, &next));
        else
            QN_TRY(new_state(m, &next));
        QN_TRY(add_hex_digits(m, from, next, lo >> shift & 15, hi >> shift & 15));
        from = next;
    }
    return QN_OK;
}

static qn_status add_escape(nfa *m, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    uint32_t backslash = 0, u = 0;
    QN_TRY(new_state(m, &backslash));
    QN_TRY(new_state(m, &u));
    QN_TRY(add_edge(m, from, backslash, false, '\\', '\\'));
    QN_TRY(add_edge(m, backslash, u, false, 'u', 'u'));
    return add_hex(m, u, to, lo, hi);
}

/* Characters above U+FFFF, as two escapes. */
static qn_status add_pairs(nfa *m, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    lo -= 0x10000;
    hi -= 0x10000;
    while (lo <= hi) {
        uint32_t high = lo >> 10, end = high, low_end = 0x3ff, between;
        if (!(lo & 0x3ff) && hi >> 10 > high)
            end = (hi & 0x3ff) == 0x3ff ? hi >> 10 : (hi >> 10) - 1;
        else if (hi >> 10 == high)
            low_end = hi & 0x3ff;
        QN_TRY(new_state(m, &between));
        QN_TRY(add_escape(m, from, between, 0xd800 + high, 0xd800 + end));
        QN_TRY(add_escape(m, between, to, 0xdc00 + (lo & 0x3ff), 0xdc00 + low_end));
        lo = (end << 10 | low_end) + 1;
    }
    return QN_OK;
}

/* A range of characters as a JSON string spells them. */
static qn_status add_spelled(nfa *m, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    static const char codes[] = "\"\\/\b\f\n\r\t", letters[] = "\"\\/bfnrt";
    for (int i = 0; i < 8; i++)
        if ((uint32_t)codes[i] >= lo && (uint32_t)codes[i] <= hi) {
            uint32_t backslash;
            QN_TRY(new_state(m, &backslash));
            QN_TRY(add_edge(m, from, backslash, false, '\\', '\\'));
            QN_TRY(add_edge(m, backslash, to, false, (uint8_t)letters[i], (uint8_t)letters[i]));
        }
    static const qn_range raw[] = { { 0x20, 0x21 }, { 0x23, 0x5b }, { 0x5d, 0x10ffff } },
                          escaped[] = { { 0, 0x1f }, { 0x80, 0xffff } };
    for (int i = 0; i < 3; i++)
        if (lo <= raw[i].hi && hi >= raw[i].lo)
            QN_TRY(add_utf8(m, from, to, lo > raw[i].lo ? lo : raw[i].lo, hi < raw[i].hi ? hi : raw[i].hi));
    for (int i = 0; i < 2; i++)
        if (lo <= escaped[i].hi && hi >= escaped[i].lo)
            QN_TRY(add_escape(m, from, to, lo > escaped[i].lo ? lo : escaped[i].lo,
                              hi < escaped[i].hi ? hi : escaped[i].hi));
    return hi > 0xffff ? add_pairs(m, from, to, lo > 0x10000 ? lo : 0x10000, hi) : QN_OK;
}

/* ---- Expressions ---- */

static qn_status add_expr(nfa *m, uint32_t id, uint32_t from, uint32_t to);

static qn_status add_repeat(nfa *m, const qn_expr *e, uint32_t from, uint32_t to)
{
    uint32_t at = from, next;
    for (uint32_t i = 0; i < e->a; i++, at = next) {
        QN_TRY(new_state(m, &next));
        QN_TRY(add_expr(m, e->child, at, next));
    }
    if (e->b == QN_UNLIMITED) {
        QN_TRY(new_state(m, &next));
        QN_TRY(add_empty(m, at, next));
        QN_TRY(add_empty(m, next, to));
        uint32_t last;
        QN_TRY(new_state(m, &last));
        QN_TRY(add_expr(m, e->child, next, last));
        return add_empty(m, last, next);
    }
    for (uint32_t i = e->a; i < e->b; i++, at = next) {
        QN_TRY(add_empty(m, at, to));
        QN_TRY(new_state(m, &next));
        QN_TRY(add_expr(m, e->child, at, next));
    }
    return add_empty(m, at, to);
}

static qn_status add_expr(nfa *m, uint32_t id, uint32_t from, uint32_t to)
{
    const qn_expr *e = &m->x->items[id];
    uint32_t at = from, next;
    switch ((qn_expr_kind)e->kind) {
    case QN_EXPR_EMPTY: return add_empty(m, from, to);
    case QN_EXPR_BYTES: return add_edge(m, from, to, false, BYTE_SYMBOLS + e->a, BYTE_SYMBOLS + e->b);
    case QN_EXPR_CLASS:
        for (uint32_t i = e->a; i < e->a + e->b; i++) {
            const qn_range r = m->x->ranges[i];
            QN_TRY(add_edge(m, from, to, false, r.lo, r.hi));
        }
        return QN_OK;
    case QN_EXPR_CAT:
        for (uint32_t c = e->child; c; c = m->x->items[c].sibling, at = next) {
            QN_TRY(new_state(m, &next));
            QN_TRY(add_expr(m, c, at, next));
        }
        return add_empty(m, at, to);
    case QN_EXPR_ALT:
        for (uint32_t c = e->child; c; c = m->x->items[c].sibling) {
            QN_TRY(new_state(m, &at));
            QN_TRY(add_empty(m, from, at));
            QN_TRY(add_expr(m, c, at, to));
        }
        return QN_OK;
    case QN_EXPR_REPEAT: return add_repeat(m, e, from, to);
    case QN_EXPR_CALL:
        if (e->child)
            return add_expr(m, e->child, from, to);
    }
    return qn_fail(QN_ERR_INVALID, "%s: a call inside a DFA", m->what);
}

/* ---- The subset construction ---- */

typedef struct builder {
    nfa *m;
    qn_dfa dfa;       /* without class_of */
    uint32_t *bounds; /* [n_classes + 1] the first symbols of the classes */
    uint32_t *sets;   /* concatenated, for each DFA state: its NFA states that accept or have edges, ascending */
    size_t n_sets, set_capacity;
    uint32_t *set_of; /* [n_states + 1] offsets */
    size_t set_of_capacity, next_capacity, accept_capacity;
    uint32_t *slots;
    size_t slot_mask;
    uint32_t *marks, mark, *stack; /* [m->n] */
    uint32_t *targets, *target_of; /* by class */
    size_t target_capacity;
    uint32_t accept;
} builder;

static void builder_free(builder *b)
{
    free(b->bounds);
    free(b->sets);
    free(b->set_of);
    free(b->slots);
    free(b->marks);
    free(b->stack);
    free(b->targets);
    free(b->target_of);
    qn_dfa_free(&b->dfa);
}

static int compare_u32(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Appends the closure of NFA states to b->sets. It does not make it a DFA state. */
static qn_status add_closure(builder *b, const uint32_t *states, size_t n, size_t *count)
{
    const nfa *m = b->m;
    const size_t begin = b->set_of[b->dfa.n_states];
    size_t end = begin;
    b->mark++;
    for (size_t i = 0; i < n; i++) {
        size_t depth = 0;
        if (b->marks[states[i]] == b->mark)
            continue;
        b->marks[states[i]] = b->mark;
        b->stack[depth++] = states[i];
        while (depth) {
            const uint32_t s = b->stack[--depth];
            bool is_kept = s == b->accept;
            for (int32_t k = m->states[s].first; k != NONE; k = m->edges[k].next) {
                const edge *e = &m->edges[k];
                is_kept |= !e->is_empty;
                ++*m->steps;
                if (e->is_empty && b->marks[e->target] != b->mark) {
                    b->marks[e->target] = b->mark;
                    b->stack[depth++] = e->target;
                }
            }
            if (!is_kept)
                continue;
            QN_TRY(qn_realloc_array(&b->sets, &b->set_capacity, end + 1, sizeof *b->sets, "DFA"));
            b->sets[end++] = s;
        }
    }
    *count = end - begin;
    if (*count > 1)
        qsort(b->sets + begin, *count, sizeof *b->sets, compare_u32);
    return count_steps(m, *count + 1);
}

static size_t slot_of(const builder *b, const uint32_t *set, size_t count)
{
    return qn_keyed_hash(set, count * sizeof *set) & b->slot_mask;
}

/* Doubles the hash table, which is at most half full. */
static qn_status grow_slots(builder *b)
{
    const size_t n = b->slots ? 2 * (b->slot_mask + 1) : FIRST_SLOTS;
    uint32_t *slots = calloc(n, sizeof *slots);
    if (!slots)
        return qn_fail(QN_ERR_MEMORY, "DFA: no memory for %zu states", n);
    free(b->slots);
    b->slots = slots;
    b->slot_mask = n - 1;
    for (uint32_t state = 1; state < b->dfa.n_states; state++) {
        size_t slot = slot_of(b, b->sets + b->set_of[state], b->set_of[state + 1] - b->set_of[state]);
        while (slots[slot])
            slot = (slot + 1) & b->slot_mask;
        slots[slot] = state;
    }
    return QN_OK;
}

/* The DFA state of the closure of NFA states; 0 if the closure is empty. */
static qn_status intern(builder *b, const uint32_t *states, size_t n, uint32_t *state)
{
    size_t count;
    QN_TRY(add_closure(b, states, n, &count));
    *state = 0;
    if (!count)
        return QN_OK;
    if (2 * (size_t)b->dfa.n_states > b->slot_mask)
        QN_TRY(grow_slots(b));
    const uint32_t *set = b->sets + b->set_of[b->dfa.n_states];
    size_t slot = slot_of(b, set, count);
    for (; b->slots[slot]; slot = (slot + 1) & b->slot_mask) {
        ++*b->m->steps;
        const uint32_t other = b->slots[slot], length = b->set_of[other + 1] - b->set_of[other];
        if (length == count && !memcmp(b->sets + b->set_of[other], set, count * sizeof *set)) {
            *state = other;
            return QN_OK;
        }
    }
    const uint32_t id = b->dfa.n_states;
    if (id >= MAX_STATES || (size_t)(id + 1) * b->dfa.n_classes > MAX_TABLE)
        return too_large(b->m->what);
    QN_TRY(qn_realloc_array(&b->set_of, &b->set_of_capacity, id + 2, sizeof *b->set_of, "DFA"));
    QN_TRY(qn_realloc_array(&b->dfa.accept, &b->accept_capacity, id + 1, 1, "DFA"));
    QN_TRY(qn_realloc_array(&b->dfa.next, &b->next_capacity, (size_t)(id + 1) * b->dfa.n_classes, sizeof *b->dfa.next,
                            "DFA"));
    memset(b->dfa.next + (size_t)id * b->dfa.n_classes, 0, b->dfa.n_classes * sizeof *b->dfa.next);
    b->set_of[id + 1] = b->set_of[id] + (uint32_t)count;
    b->dfa.accept[id] = false;
    for (size_t i = 0; i < count; i++)
        b->dfa.accept[id] |= set[i] == b->accept;
    b->slots[slot] = id;
    b->dfa.n_states++;
    *state = id;
    return QN_OK;
}

/* Sets the transitions of a DFA state. A counting sort groups the targets by class. */
static qn_status add_transitions(builder *b, uint32_t state)
{
    const nfa *m = b->m;
    const uint32_t n_classes = b->dfa.n_classes;
    size_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (!pass)
            memset(b->target_of, 0, (n_classes + 1) * sizeof *b->target_of);
        for (uint32_t i = b->set_of[state]; i < b->set_of[state + 1]; i++)
            for (int32_t k = m->states[b->sets[i]].first; k != NONE; k = m->edges[k].next) {
                const edge *e = &m->edges[k];
                if (e->is_empty)
                    continue;
                for (uint32_t c = e->first_class; c <= e->last_class; c++, n++)
                    if (pass)
                        b->targets[b->target_of[c]++] = e->target;
                    else
                        b->target_of[c + 1]++;
            }
        if (pass)
            break;
        QN_TRY(count_steps(m, n));
        QN_TRY(qn_realloc_array(&b->targets, &b->target_capacity, n + 1, sizeof *b->targets, "DFA"));
        for (uint32_t c = 0; c < n_classes; c++)
            b->target_of[c + 1] += b->target_of[c];
        n = 0;
    }
    uint32_t next = 0, before = 0, n_before = 0; /* neighbouring classes often have the same targets */
    for (uint32_t c = 0, begin = 0; c < n_classes; begin = b->target_of[c++]) {
        const uint32_t count = b->target_of[c] - begin;
        if (count != n_before ||
            (count && memcmp(b->targets + begin, b->targets + before, count * sizeof *b->targets) != 0))
            QN_TRY(intern(b, b->targets + begin, count, &next));
        before = begin;
        n_before = count;
        b->dfa.next[(size_t)state * n_classes + c] = next;
    }
    return QN_OK;
}

qn_status qn_dfa_trim(qn_dfa *d, const char *what, uint64_t *steps)
{
    uint8_t *alive = calloc(d->n_states, 1);
    if (!alive)
        return qn_fail(QN_ERR_MEMORY, "DFA: no memory for %u states", d->n_states);
    qn_status status = QN_OK;
    for (bool is_changed = true; is_changed && status == QN_OK;) {
        is_changed = false;
        for (uint32_t s = d->n_states; s-- > 1;) {
            bool lives = alive[s] || d->accept[s];
            for (uint32_t c = 0; !lives && c < d->n_classes; c++)
                lives = alive[d->next[(size_t)s * d->n_classes + c]];
            is_changed |= lives != alive[s];
            alive[s] = lives;
        }
        *steps += (uint64_t)d->n_states * d->n_classes / 4;
        if (*steps > QN_GRAMMAR_STEPS)
            status = too_large(what);
    }
    for (size_t i = 0; i < (size_t)d->n_states * d->n_classes; i++)
        if (!alive[d->next[i]])
            d->next[i] = 0;
    if (status == QN_OK && !alive[1])
        status = qn_fail(QN_ERR_INVALID, "%s: matches nothing", what);
    free(alive);
    return status;
}

static uint32_t class_of(const builder *b, uint32_t symbol)
{
    uint32_t low = 0, high = b->dfa.n_classes;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (b->bounds[middle] <= symbol)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Computes the classes: sets of symbols that no edge tells apart. */
static qn_status set_classes(builder *b)
{
    size_t n = 0;
    b->bounds = malloc((2 * b->m->n_edges + 2) * sizeof *b->bounds);
    if (!b->bounds)
        return qn_fail(QN_ERR_MEMORY, "DFA: no memory for %zu edges", b->m->n_edges);
    b->bounds[n++] = 0;
    for (size_t i = 0; i < b->m->n_edges; i++)
        if (!b->m->edges[i].is_empty) {
            b->bounds[n++] = b->m->edges[i].lo;
            b->bounds[n++] = b->m->edges[i].hi + 1;
        }
    qsort(b->bounds, n, sizeof *b->bounds, compare_u32);
    for (size_t i = 0; i < n; i++)
        if (!i || b->bounds[i] != b->bounds[b->dfa.n_classes - 1])
            b->bounds[b->dfa.n_classes++] = b->bounds[i];
    b->bounds[b->dfa.n_classes] = BYTE_SYMBOLS + 256;
    for (size_t i = 0; i < b->m->n_edges; i++)
        if (!b->m->edges[i].is_empty) {
            b->m->edges[i].first_class = class_of(b, b->m->edges[i].lo);
            b->m->edges[i].last_class = class_of(b, b->m->edges[i].hi);
        }
    return count_steps(b->m, 4 * n);
}

static qn_status determinize(builder *b, uint32_t start)
{
    const size_t n = b->m->n;
    QN_TRY(set_classes(b));
    b->marks = calloc(n, sizeof *b->marks);
    b->stack = malloc(n * sizeof *b->stack);
    b->target_of = calloc(b->dfa.n_classes + 1, sizeof *b->target_of);
    if (!b->marks || !b->stack || !b->target_of)
        return qn_fail(QN_ERR_MEMORY, "DFA: no memory for %zu states", n);
    QN_TRY(qn_realloc_array(&b->set_of, &b->set_of_capacity, 2, sizeof *b->set_of, "DFA"));
    QN_TRY(qn_realloc_array(&b->dfa.accept, &b->accept_capacity, 1, 1, "DFA"));
    QN_TRY(qn_realloc_array(&b->dfa.next, &b->next_capacity, b->dfa.n_classes, sizeof *b->dfa.next, "DFA"));
    memset(b->dfa.next, 0, b->dfa.n_classes * sizeof *b->dfa.next);
    b->set_of[0] = b->set_of[1] = 0;
    b->dfa.accept[0] = false;
    b->dfa.n_states = 1;
    uint32_t state;
    QN_TRY(grow_slots(b));
    QN_TRY(intern(b, &start, 1, &state));
    if (!state)
        return qn_fail(QN_ERR_INVALID, "%s: matches nothing", b->m->what);
    for (state = 1; state < b->dfa.n_states; state++)
        QN_TRY(add_transitions(b, state));
    return qn_dfa_trim(&b->dfa, b->m->what, b->m->steps);
}

/* ---- Characters to bytes ---- */

static qn_status add_symbols(nfa *m, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    if (hi >= BYTE_SYMBOLS) {
        const uint32_t first = lo > BYTE_SYMBOLS ? lo - BYTE_SYMBOLS : 0;
        QN_TRY(add_edge(m, from, to, false, first, hi - BYTE_SYMBOLS));
        hi = BYTE_SYMBOLS - 1;
    }
    if (lo > hi)
        return QN_OK;
    return m->in_string ? add_spelled(m, from, to, lo, hi) : add_utf8(m, from, to, lo, hi);
}

/* The NFA over bytes of a DFA over symbols. It has the same states, followed by `accept`. */
static qn_status add_bytes(nfa *m, const builder *b, uint32_t *accept)
{
    const qn_dfa *d = &b->dfa;
    uint32_t state;
    for (uint32_t s = 0; s <= d->n_states; s++)
        QN_TRY(new_state(m, &state));
    *accept = state;
    for (uint32_t s = 1; s < d->n_states; s++) {
        const uint32_t *next = d->next + (size_t)s * d->n_classes;
        if (d->accept[s])
            QN_TRY(add_empty(m, s, *accept));
        for (uint32_t c = 0, end; c < d->n_classes; c = end) {
            for (end = c + 1; end < d->n_classes && next[end] == next[c];)
                end++;
            if (next[c])
                QN_TRY(add_symbols(m, s, next[c], b->bounds[c], b->bounds[end] - 1));
        }
        QN_TRY(count_steps(m, d->n_classes));
    }
    return QN_OK;
}

static void set_class_of(builder *b)
{
    for (uint32_t byte = 0; byte < 256; byte++)
        b->dfa.class_of[byte] = (uint8_t)class_of(b, byte);
}

/* Whether all transitions are on ASCII, so that characters are bytes. */
static bool is_ascii(const builder *b)
{
    const qn_dfa *d = &b->dfa;
    for (uint32_t c = 0; c < d->n_classes; c++)
        for (uint32_t s = 1; b->bounds[c + 1] > 0x80 && s < d->n_states; s++)
            if (d->next[(size_t)s * d->n_classes + c])
                return false;
    return d->n_classes <= 256;
}

/* Turns a DFA over ASCII characters into one over bytes. Bytes above 0x7f get a class that never follows. */
static void take_ascii(builder *b, qn_dfa *out)
{
    for (uint32_t byte = 0; byte < 256; byte++)
        b->dfa.class_of[byte] = (uint8_t)class_of(b, byte < 0x80 ? byte : 0x80);
    *out = b->dfa;
    b->dfa = (qn_dfa){ 0 };
}

qn_status qn_dfa_compile(const qn_exprs *x, uint32_t expr, bool in_string, const char *what, uint64_t *steps,
                         qn_dfa *out)
{
    nfa m = { .x = x, .what = what, .steps = steps, .limit = *steps + QN_GRAMMAR_DFA_STEPS, .in_string = in_string };
    m.limit = m.limit < QN_GRAMMAR_STEPS ? m.limit : QN_GRAMMAR_STEPS;
    nfa bytes = m;
    builder characters = { .m = &m }, b = { .m = &bytes };
    uint32_t start;
    qn_status status = qn_expr_weigh(x, expr, MAX_NFA) > MAX_NFA ? too_large(what) : count_steps(&m, BASE_STEPS);
    if (status == QN_OK)
        status = new_state(&m, &start);
    if (status == QN_OK)
        status = new_state(&m, &characters.accept);
    if (status == QN_OK)
        status = add_expr(&m, expr, start, characters.accept);
    if (status == QN_OK)
        status = determinize(&characters, start);
    const bool is_done = status == QN_OK && !in_string && is_ascii(&characters);
    if (is_done)
        take_ascii(&characters, out);
    if (status == QN_OK && !is_done)
        status = add_bytes(&bytes, &characters, &b.accept);
    if (status == QN_OK && !is_done)
        status = determinize(&b, 1);
    if (status == QN_OK && !is_done) {
        set_class_of(&b);
        *out = b.dfa;
        b.dfa = (qn_dfa){ 0 };
    }
    builder_free(&characters);
    builder_free(&b);
    free(m.states);
    free(m.edges);
    free(bytes.states);
    free(bytes.edges);
    return status;
}

/* Finds the states that lie between two characters of a JSON string. All paths to a state agree on that. */
static void find_aligned(const qn_dfa *d, uint8_t *machine_of, uint32_t *queue)
{
    const qn_string_table *table = qn_string_machine(QN_STRING_VALUE);
    uint8_t *is_met = calloc(d->n_states, 1);
    size_t n = 0;
    memset(machine_of, 0, d->n_states);
    queue[n++] = 1;
    for (size_t i = 0; i < n && is_met; i++)
        for (int byte = 0; byte < 256; byte++) {
            const uint32_t next = d->next[(size_t)queue[i] * d->n_classes + d->class_of[byte]];
            if (!next || is_met[next])
                continue;
            is_met[next] = true;
            machine_of[next] = (*table)[machine_of[queue[i]]][byte];
            queue[n++] = next;
        }
    free(is_met);
}

qn_status qn_dfa_count(qn_dfa *d, uint32_t min, uint32_t max, const char *what, uint64_t *steps)
{
    const size_t most = max != QN_UNLIMITED ? max : min, n_states = (size_t)d->n_states * (most + 1);
    if (n_states > MAX_STATES || n_states * d->n_classes > MAX_TABLE)
        return too_large(what);
    qn_dfa out = *d;
    out.n_states = (uint32_t)n_states;
    out.next = calloc(n_states * d->n_classes, sizeof *out.next);
    out.accept = calloc(n_states, 1);
    uint8_t *machine_of = malloc(d->n_states);
    uint32_t *queue = malloc((d->n_states + 1) * sizeof *queue);
    qn_status status =
        out.next && out.accept && machine_of && queue ? QN_OK : qn_fail(QN_ERR_MEMORY, "%s: no memory", what);
    if (status == QN_OK)
        find_aligned(d, machine_of, queue);
    for (size_t count = 0; count <= most && status == QN_OK; count++)
        for (uint32_t s = 1; s < d->n_states; s++) {
            const size_t state = count * d->n_states + s;
            out.accept[state] = d->accept[s] && count >= min;
            for (uint32_t c = 0; c < d->n_classes && (machine_of[s] || max == QN_UNLIMITED || count < max); c++) {
                const uint32_t next = d->next[(size_t)s * d->n_classes + c];
                const size_t after = count < most && !machine_of[next] ? count + 1 : count;
                out.next[state * d->n_classes + c] = next ? (uint32_t)(after * d->n_states + next) : 0;
            }
        }
    if (status == QN_OK)
        status = qn_dfa_trim(&out, what, steps);
    free(machine_of);
    free(queue);
    qn_dfa_free(status == QN_OK ? d : &out);
    if (status == QN_OK)
        *d = out;
    return status;
}

void qn_dfa_free(qn_dfa *dfa)
{
    free(dfa->next);
    free(dfa->accept);
    free(dfa->alike);
    *dfa = (qn_dfa){ 0 };
}
