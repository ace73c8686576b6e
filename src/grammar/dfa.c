/* From an expression to a DFA: Thompson's NFA and the subset construction over characters, which gives few states,
 * then both again over bytes, with each character in UTF-8 or as a JSON string spells it. Both are bounded. */
#include "grammar/dfa.h"

#include "base/keyed_hash.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NFA = 1 << 16, BASE_STEPS = 64, MAX_STATES = 1 << 15, MAX_TABLE = 1 << 22 };

static qn_status new_state(qn_nfa *m, uint32_t *state)
{
    *state = 0;
    if (m->n >= MAX_NFA)
        return qn_nfa_too_large(m->what);
    QN_TRY(qn_realloc_array(&m->states, &m->capacity, m->n + 1, sizeof *m->states, "NFA"));
    *state = (uint32_t)m->n;
    m->states[m->n++] = (qn_nfa_state){ .first = QN_NO_EDGE };
    return qn_nfa_count(m, 1);
}

static qn_status add_edge(qn_nfa *m, uint32_t from, uint32_t to, bool is_empty, uint32_t lo, uint32_t hi)
{
    QN_TRY(qn_realloc_array(&m->edges, &m->edge_capacity, m->n_edges + 1, sizeof *m->edges, "NFA"));
    m->edges[m->n_edges] =
        (qn_nfa_edge){ .target = to, .next = m->states[from].first, .lo = lo, .hi = hi, .is_empty = is_empty };
    m->states[from].first = (int32_t)m->n_edges++;
    return QN_OK;
}

static qn_status add_empty(qn_nfa *m, uint32_t from, uint32_t to)
{
    return add_edge(m, from, to, true, 0, 0);
}

/* ---- Characters ---- */

static qn_status add_hex_digits(qn_nfa *m, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    if (lo <= 9)
        QN_TRY(add_edge(m, from, to, false, (uint8_t)('0' + lo), (uint8_t)('0' + (hi < 9 ? hi : 9))));
    if (hi < 10)
        return QN_OK;
    lo = lo > 10 ? lo - 10 : 0;
    QN_TRY(add_edge(m, from, to, false, (uint8_t)('a' + lo), (uint8_t)('a' + hi - 10)));
    return add_edge(m, from, to, false, (uint8_t)('A' + lo), (uint8_t)('A' + hi - 10));
}

static qn_status add_unit(qn_nfa *m, uint32_t from, uint32_t to, qn_unit unit)
{
    return unit.is_digit ? add_hex_digits(m, from, to, unit.lo, unit.hi)
                         : add_edge(m, from, to, false, unit.lo, unit.hi);
}

/* Finds or adds the state that reads `n` units of any value, all digits or all bytes of UTF-8, and continues at `to`.
 * All characters share these states, which keeps DFAs small. */
static qn_status add_tail(qn_nfa *m, uint32_t to, qn_unit any, size_t n, uint32_t *state)
{
    const size_t first = any.is_digit ? QN_TAIL_BYTES : 0;
    *state = to;
    for (size_t i = first; i < first + n; i++) {
        const uint32_t next = *state;
        *state = m->states[to].tails[i];
        if (*state)
            continue;
        QN_TRY(new_state(m, state));
        QN_TRY(add_unit(m, *state, next, any));
        m->states[to].tails[i] = *state;
    }
    return QN_OK;
}

static bool is_any(qn_unit unit)
{
    return unit.is_digit ? !unit.lo && unit.hi == 15 : unit.lo == 0x80 && unit.hi == 0xbf;
}

/* Returns how many units at the end have any value, all of one kind. */
static size_t count_any(const qn_unit *units, size_t n)
{
    size_t count = 0;
    while (count < n && count < QN_TAIL_BYTES && is_any(units[n - 1 - count]) &&
           units[n - 1 - count].is_digit == units[n - 1].is_digit)
        count++;
    return count;
}

/* Adds one spelling of characters. Spellings that begin alike, one after the other, share the states of the units that
 * they have in common. */
static qn_status add_units(qn_nfa *m, uint32_t from, uint32_t to, const qn_unit *units, size_t n)
{
    qn_path *path = &m->paths[units[0].lo == '\\'];
    const size_t n_any = count_any(units + 1, n - 1);
    bool is_shared = true;
    if (path->from != from || path->to != to)
        *path = (qn_path){ .from = from, .to = to };
    for (size_t i = 0; i < n; i++) {
        uint32_t next = to;
        if (i + 1 + n_any >= n) {
            QN_TRY(add_tail(m, to, units[n - 1], n - 1 - i, &next));
            path->n = is_shared ? i : path->n;
            return add_unit(m, from, next, units[i]);
        }
        is_shared &= units[i].lo == units[i].hi;
        if (is_shared && i < path->n && path->units[i].lo == units[i].lo) {
            from = path->states[i];
            continue;
        }
        QN_TRY(new_state(m, &next));
        QN_TRY(add_unit(m, from, next, units[i]));
        if (is_shared) {
            path->units[i] = units[i];
            path->states[i] = next;
            path->n = i + 1;
        } else if (path->n > i) {
            path->n = i;
        }
        from = next;
    }
    return QN_OK;
}

static qn_status add_utf8(qn_nfa *m, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    static const uint32_t last_of_length[] = { 0x7f, 0x7ff, 0xffff };
    for (int i = 0; i < 3; i++)
        if (lo <= last_of_length[i] && hi > last_of_length[i]) {
            QN_TRY(add_utf8(m, from, to, lo, last_of_length[i]));
            return add_utf8(m, from, to, last_of_length[i] + 1, hi);
        }
    char first[4], last[4];
    qn_unit units[4];
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
    for (size_t i = 0; i < n; i++)
        units[i] = (qn_unit){ false, (uint8_t)first[i], (uint8_t)last[i] };
    return add_units(m, from, to, units, n);
}

/* Adds UTF-16 code units from lo to hi as \uXXXX, after the `n` units of a code unit before them. */
static qn_status add_escape(qn_nfa *m, uint32_t from, uint32_t to, qn_unit *units, size_t n, uint32_t lo, uint32_t hi)
{
    for (int i = 1; i < 4; i++) {
        const uint32_t mask = (1u << (4 * i)) - 1;
        if ((lo & ~mask) == (hi & ~mask))
            continue;
        if (lo & mask) {
            QN_TRY(add_escape(m, from, to, units, n, lo, lo | mask));
            return add_escape(m, from, to, units, n, (lo | mask) + 1, hi);
        }
        if ((hi & mask) != mask) {
            QN_TRY(add_escape(m, from, to, units, n, lo, (hi & ~mask) - 1));
            return add_escape(m, from, to, units, n, hi & ~mask, hi);
        }
    }
    units[n++] = (qn_unit){ false, '\\', '\\' };
    units[n++] = (qn_unit){ false, 'u', 'u' };
    for (int shift = 12; shift >= 0; shift -= 4)
        units[n++] = (qn_unit){ true, lo >> shift & 15, hi >> shift & 15 };
    return add_units(m, from, to, units, n);
}

/* Adds the units of high surrogates from lo to hi, which differ in their digits at the end only. */
static qn_status add_high(qn_nfa *m, uint32_t from, uint32_t to, uint32_t high, uint32_t end, uint32_t low,
                          uint32_t low_end)
{
    qn_unit units[QN_PATH_UNITS];
    for (int i = 1; i < 3; i++) {
        const uint32_t mask = (1u << (4 * i)) - 1;
        if ((high & ~mask) == (end & ~mask))
            continue;
        if (high & mask) {
            QN_TRY(add_high(m, from, to, high, high | mask, low, low_end));
            return add_high(m, from, to, (high | mask) + 1, end, low, low_end);
        }
        if ((end & mask) != mask) {
            QN_TRY(add_high(m, from, to, high, (end & ~mask) - 1, low, low_end));
            return add_high(m, from, to, end & ~mask, end, low, low_end);
        }
    }
    size_t n = 0;
    units[n++] = (qn_unit){ false, '\\', '\\' };
    units[n++] = (qn_unit){ false, 'u', 'u' };
    for (int shift = 12; shift >= 0; shift -= 4)
        units[n++] = (qn_unit){ true, high >> shift & 15, end >> shift & 15 };
    return add_escape(m, from, to, units, n, low, low_end);
}

/* Adds characters above U+FFFF, as two escapes. */
static qn_status add_pairs(qn_nfa *m, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    lo -= 0x10000;
    hi -= 0x10000;
    while (lo <= hi) {
        uint32_t high = lo >> 10, end = high, low_end = 0x3ff;
        if (!(lo & 0x3ff) && hi >> 10 > high)
            end = (hi & 0x3ff) == 0x3ff ? hi >> 10 : (hi >> 10) - 1;
        else if (hi >> 10 == high)
            low_end = hi & 0x3ff;
        QN_TRY(add_high(m, from, to, 0xd800 + high, 0xd800 + end, 0xdc00 + (lo & 0x3ff), 0xdc00 + low_end));
        lo = (end << 10 | low_end) + 1;
    }
    return QN_OK;
}

/* Adds a range of characters as a JSON string spells them. */
static qn_status add_spelled(qn_nfa *m, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    static const char codes[] = "\"\\/\b\f\n\r\t", letters[] = "\"\\/bfnrt";
    qn_unit units[QN_PATH_UNITS];
    for (int i = 0; i < 8; i++)
        if ((uint32_t)codes[i] >= lo && (uint32_t)codes[i] <= hi) {
            const qn_unit escape[] = { { false, '\\', '\\' }, { false, (uint8_t)letters[i], (uint8_t)letters[i] } };
            QN_TRY(add_units(m, from, to, escape, 2));
        }
    static const qn_range raw[] = { { 0x20, 0x21 }, { 0x23, 0x5b }, { 0x5d, 0x10ffff } },
                          escaped[] = { { 0, 0x1f }, { 0x80, 0xffff } };
    for (int i = 0; i < 3; i++)
        if (lo <= raw[i].hi && hi >= raw[i].lo)
            QN_TRY(add_utf8(m, from, to, lo > raw[i].lo ? lo : raw[i].lo, hi < raw[i].hi ? hi : raw[i].hi));
    for (int i = 0; i < 2; i++)
        if (lo <= escaped[i].hi && hi >= escaped[i].lo)
            QN_TRY(add_escape(m, from, to, units, 0, lo > escaped[i].lo ? lo : escaped[i].lo,
                              hi < escaped[i].hi ? hi : escaped[i].hi));
    return hi > 0xffff ? add_pairs(m, from, to, lo > 0x10000 ? lo : 0x10000, hi) : QN_OK;
}

/* ---- Expressions ---- */

static qn_status add_expr(qn_nfa *m, uint32_t id, uint32_t from, uint32_t to);
static qn_status determinize(qn_subsets *b, uint32_t start);
static void nfa_free(qn_nfa *m);

/* Finds or adds the look-ahead whose language is an expression. *index: its place in m->looks. */
static qn_status find_look(qn_nfa *m, uint32_t expr, uint32_t *index)
{
    qn_nfa inner = { .x = m->x, .what = m->what, .steps = m->steps, .limit = m->limit };
    qn_subsets b = { .m = &inner };
    uint32_t start;
    for (*index = 0; *index < m->n_looks; ++*index)
        if (m->looks[*index].expr == expr)
            return QN_OK;
    if (m->n_looks == QN_LOOKS)
        return qn_nfa_too_large(m->what);
    if (!m->looks && !(m->looks = calloc(QN_LOOKS, sizeof *m->looks)))
        return qn_fail(QN_ERR_MEMORY, "%s: no memory", m->what);
    qn_look *look = &m->looks[m->n_looks++];
    look->expr = expr;
    qn_status status = new_state(&inner, &start);
    if (status == QN_OK)
        status = new_state(&inner, &b.accept);
    if (status == QN_OK)
        status = add_expr(&inner, expr, start, b.accept);
    if (status == QN_OK)
        status = determinize(&b, start);
    if (status == QN_OK) {
        look->dfa = b.dfa;
        look->bounds = b.bounds;
        b.dfa = (qn_dfa){ 0 };
        b.bounds = NULL;
        status = qn_look_prepare(look, m);
    }
    qn_subsets_free(&b);
    nfa_free(&inner);
    return status == QN_ERR_INVALID ? QN_OK : status;
}

/* Adds an empty edge that a text passes only where the assertion holds. */
static qn_status add_assertion(qn_nfa *m, const qn_expr *e, uint32_t from, uint32_t to)
{
    uint32_t look = 0;
    if (e->kind != QN_EXPR_BEGIN)
        QN_TRY(find_look(m, e->child, &look));
    QN_TRY(add_edge(m, from, to, true, look, e->a));
    m->edges[m->n_edges - 1].asserts = e->kind == QN_EXPR_BEGIN  ? QN_ASSERT_BEGIN
                                       : e->kind == QN_EXPR_LOOK ? QN_ASSERT_LOOK
                                                                 : QN_ASSERT_BOUNDARY;
    m->has_assertions = true;
    m->has_boundaries |= e->kind == QN_EXPR_BOUNDARY;
    return QN_OK;
}

/* Adds any text up to the end. All alternatives that end with any text share one state: a set with it needs no
 * other. */
static qn_status add_rest(qn_nfa *m, uint32_t from, uint32_t to)
{
    if (!m->rest) {
        QN_TRY(new_state(m, &m->rest));
        QN_TRY(add_edge(m, m->rest, m->rest, false, 0, 0xd7ff));
        QN_TRY(add_edge(m, m->rest, m->rest, false, 0xe000, QN_BYTE_SYMBOLS - 1));
        QN_TRY(add_empty(m, m->rest, to));
    }
    return add_empty(m, from, m->rest);
}

static qn_status add_repeat(qn_nfa *m, const qn_expr *e, uint32_t from, uint32_t to)
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

static qn_status add_expr(qn_nfa *m, uint32_t id, uint32_t from, uint32_t to)
{
    const qn_expr *e = &m->x->items[id];
    uint32_t at = from, next;
    switch ((qn_expr_kind)e->kind) {
    case QN_EXPR_EMPTY: return add_empty(m, from, to);
    case QN_EXPR_BYTES: return add_edge(m, from, to, false, QN_BYTE_SYMBOLS + e->a, QN_BYTE_SYMBOLS + e->b);
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
    case QN_EXPR_REST: return add_rest(m, from, to);
    case QN_EXPR_BEGIN:
    case QN_EXPR_LOOK:
    case QN_EXPR_BOUNDARY: return add_assertion(m, e, from, to);
    case QN_EXPR_CALL:
        if (e->child)
            return add_expr(m, e->child, from, to);
    }
    return qn_fail(QN_ERR_INVALID, "%s: a call inside a DFA", m->what);
}

/* ---- The subset construction ---- */

static void nfa_free(qn_nfa *m)
{
    for (size_t i = 0; i < m->n_looks; i++) {
        qn_dfa_free(&m->looks[i].dfa);
        free(m->looks[i].bounds);
        free(m->looks[i].holds);
    }
    free(m->looks);
    free(m->states);
    free(m->edges);
}

static int compare_u32(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Appends the closure of NFA states to b->sets. It does not make it a DFA state. */
static qn_status add_closure(qn_subsets *b, const uint32_t *states, size_t n, size_t *count)
{
    const qn_nfa *m = b->m;
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
            for (int32_t k = m->states[s].first; k != QN_NO_EDGE; k = m->edges[k].next) {
                const qn_nfa_edge *e = &m->edges[k];
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
    if (m->rest && b->marks[m->rest] == b->mark) { /* it accepts whatever another state does */
        end = begin;
        b->sets[end++] = m->rest;
    }
    *count = end - begin;
    if (*count > 1)
        qsort(b->sets + begin, *count, sizeof *b->sets, compare_u32);
    return qn_nfa_count(m, *count + 1);
}

/* Finds or adds the DFA state of the closure of NFA states; 0 if the closure is empty. */
static qn_status intern(qn_subsets *b, const uint32_t *states, size_t n, uint32_t *state)
{
    size_t count;
    bool is_new;
    QN_TRY(add_closure(b, states, n, &count));
    QN_TRY(qn_subsets_intern(b, count, state, &is_new));
    for (uint32_t i = b->set_of[*state]; is_new && i < b->set_of[*state + 1]; i++)
        b->dfa.accept[*state] |= b->sets[i] == b->accept || (b->m->rest && b->sets[i] == b->m->rest);
    return QN_OK;
}

/* Sets the transitions of a DFA state. A counting sort groups the targets by class. */
static qn_status add_transitions(qn_subsets *b, uint32_t state)
{
    const qn_nfa *m = b->m;
    const uint32_t n_classes = b->dfa.n_classes;
    size_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        if (!pass)
            memset(b->target_of, 0, (n_classes + 1) * sizeof *b->target_of);
        for (uint32_t i = b->set_of[state]; i < b->set_of[state + 1]; i++)
            for (int32_t k = m->states[b->sets[i]].first; k != QN_NO_EDGE; k = m->edges[k].next) {
                const qn_nfa_edge *e = &m->edges[k];
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
        QN_TRY(qn_nfa_count(m, n));
        QN_TRY(qn_realloc_array(&b->targets, &b->target_capacity, n + 1, sizeof *b->targets, "DFA"));
        for (uint32_t c = 0; c < n_classes; c++)
            b->target_of[c + 1] += b->target_of[c];
        n = 0;
    }
    uint32_t next = 0, before = 0, n_before = 0; /* classes near each other often have the same targets */
    for (uint32_t c = 0, begin = 0; c < n_classes; begin = b->target_of[c++]) {
        const uint32_t count = b->target_of[c] - begin;
        if (!count)
            continue;
        if (count != n_before || memcmp(b->targets + begin, b->targets + before, count * sizeof *b->targets) != 0)
            QN_TRY(intern(b, b->targets + begin, count, &next));
        before = begin;
        n_before = count;
        b->dfa.next[(size_t)state * n_classes + c] = next;
    }
    return QN_OK;
}

static uint32_t class_of(const qn_subsets *b, uint32_t symbol)
{
    return qn_class_of(b->bounds, b->dfa.n_classes, symbol);
}

/* Computes the classes: sets of symbols that no edge tells apart, and no look-ahead. */
static qn_status set_classes(qn_subsets *b)
{
    const qn_nfa *m = b->m;
    size_t n = 0, most = 2 * m->n_edges + 2 + QN_WORD_BOUNDS;
    for (size_t i = 0; i < m->n_looks; i++)
        most += m->looks[i].dfa.n_classes;
    b->bounds = malloc(most * sizeof *b->bounds);
    if (!b->bounds)
        return qn_fail(QN_ERR_MEMORY, "DFA: no memory for %zu edges", m->n_edges);
    b->bounds[n++] = 0;
    for (size_t i = 0; i < m->n_edges; i++)
        if (!m->edges[i].is_empty) {
            b->bounds[n++] = m->edges[i].lo;
            b->bounds[n++] = m->edges[i].hi + 1;
        }
    for (size_t i = 0; i < m->n_looks; i++)
        for (uint32_t c = 0; c < m->looks[i].dfa.n_classes; c++)
            b->bounds[n++] = m->looks[i].bounds[c];
    for (size_t i = 0; m->has_boundaries && i < QN_WORD_BOUNDS; i++)
        b->bounds[n++] = qn_word_bounds[i];
    qsort(b->bounds, n, sizeof *b->bounds, compare_u32);
    for (size_t i = 0; i < n; i++)
        if (!i || b->bounds[i] != b->bounds[b->dfa.n_classes - 1])
            b->bounds[b->dfa.n_classes++] = b->bounds[i];
    b->bounds[b->dfa.n_classes] = QN_BYTE_SYMBOLS + 256;
    for (size_t i = 0; i < m->n_edges; i++)
        if (!m->edges[i].is_empty) {
            m->edges[i].first_class = class_of(b, m->edges[i].lo);
            m->edges[i].last_class = class_of(b, m->edges[i].hi);
        }
    return qn_nfa_count(m, 4 * n);
}

static qn_status determinize(qn_subsets *b, uint32_t start)
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
    if (b->m->has_assertions)
        return qn_look_determinize(b, start);
    QN_TRY(intern(b, &start, 1, &state));
    if (!state)
        return qn_fail(QN_ERR_INVALID, "%s: matches nothing", b->m->what);
    for (state = 1; state < b->dfa.n_states; state++)
        QN_TRY(add_transitions(b, state));
    return qn_dfa_trim(&b->dfa, b->m->what, b->m->steps);
}

/* ---- Characters to bytes ---- */

static qn_status add_symbols(qn_nfa *m, uint32_t from, uint32_t to, uint32_t lo, uint32_t hi)
{
    if (hi >= QN_BYTE_SYMBOLS) {
        const uint32_t first = lo > QN_BYTE_SYMBOLS ? lo - QN_BYTE_SYMBOLS : 0;
        QN_TRY(add_edge(m, from, to, false, first, hi - QN_BYTE_SYMBOLS));
        hi = QN_BYTE_SYMBOLS - 1;
    }
    if (lo > hi)
        return QN_OK;
    return m->in_string ? add_spelled(m, from, to, lo, hi) : add_utf8(m, from, to, lo, hi);
}

/* Makes the NFA over bytes of a DFA over symbols. It has the same states, followed by `accept`. */
static qn_status add_bytes(qn_nfa *m, const qn_subsets *b, uint32_t *accept)
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
        QN_TRY(qn_nfa_count(m, d->n_classes));
    }
    return QN_OK;
}

static void set_class_of(qn_subsets *b)
{
    for (uint32_t byte = 0; byte < 256; byte++)
        b->dfa.class_of[byte] = (uint8_t)class_of(b, byte);
}

/* Whether all transitions are on ASCII, so that characters are bytes. */
static bool is_ascii(const qn_subsets *b)
{
    const qn_dfa *d = &b->dfa;
    for (uint32_t c = 0; c < d->n_classes; c++)
        for (uint32_t s = 1; b->bounds[c + 1] > 0x80 && s < d->n_states; s++)
            if (d->next[(size_t)s * d->n_classes + c])
                return false;
    return d->n_classes <= 256;
}

/* Turns a DFA over ASCII characters into one over bytes. Bytes above 0x7f get a class that never follows. */
static void take_ascii(qn_subsets *b, qn_dfa *out)
{
    for (uint32_t byte = 0; byte < 256; byte++)
        b->dfa.class_of[byte] = (uint8_t)class_of(b, byte < 0x80 ? byte : 0x80);
    *out = b->dfa;
    b->dfa = (qn_dfa){ 0 };
}

qn_status qn_dfa_compile(const qn_exprs *x, uint32_t expr, bool in_string, const char *what, uint64_t *steps,
                         qn_dfa *out)
{
    qn_nfa m = { .x = x, .what = what, .steps = steps, .limit = *steps + QN_GRAMMAR_DFA_STEPS, .in_string = in_string };
    m.limit = m.limit < QN_GRAMMAR_STEPS ? m.limit : QN_GRAMMAR_STEPS;
    qn_nfa bytes = m;
    qn_subsets characters = { .m = &m }, b = { .m = &bytes };
    uint32_t start;
    qn_status status =
        qn_expr_weigh(x, expr, MAX_NFA) > MAX_NFA ? qn_nfa_too_large(what) : qn_nfa_count(&m, BASE_STEPS);
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
    qn_subsets_free(&characters);
    qn_subsets_free(&b);
    nfa_free(&m);
    nfa_free(&bytes);
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
        return qn_nfa_too_large(what);
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
