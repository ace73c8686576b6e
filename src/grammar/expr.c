/* Expressions: memory, classes of characters, literals. dfa.c and nodes.c turn them into automata. */
#include "grammar/automaton.h"

#include "base/memory.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { LAST_CODE = 0x10ffff, MAX_EXPRS = 1 << 18, MAX_RANGES = 1 << 18 };

void qn_exprs_free(qn_exprs *x)
{
    free(x->items);
    free(x->ranges);
    *x = (qn_exprs){ 0 };
}

qn_status qn_expr_add(qn_exprs *x, qn_expr expr, uint32_t *id)
{
    if (x->n + 2 > MAX_EXPRS)
        return qn_fail(QN_ERR_UNSUPPORTED, "grammar: more than %d parts of expressions", MAX_EXPRS);
    QN_TRY(qn_realloc_array(&x->items, &x->capacity, x->n + 2, sizeof *x->items, "expressions"));
    if (!x->n)
        x->items[x->n++] = (qn_expr){ 0 };
    *id = (uint32_t)x->n;
    x->items[x->n++] = expr;
    return QN_OK;
}

void qn_expr_append(qn_exprs *x, uint32_t parent, uint32_t *last, uint32_t child)
{
    if (*last)
        x->items[*last].sibling = child;
    else
        x->items[parent].child = child;
    x->items[parent].calls |= x->items[child].calls;
    *last = child;
}

static int compare_ranges(const void *a, const void *b)
{
    const qn_range *x = a, *y = b;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static qn_status add_range(qn_exprs *x, uint32_t lo, uint32_t hi)
{
    if (lo > hi)
        return QN_OK;
    if (lo < 0xd800 && hi > 0xdfff) {
        QN_TRY(add_range(x, lo, 0xd7ff));
        return add_range(x, 0xe000, hi);
    }
    if (lo >= 0xd800 && lo <= 0xdfff)
        return add_range(x, 0xe000, hi);
    if (hi >= 0xd800 && hi <= 0xdfff)
        return add_range(x, lo, 0xd7ff);
    if (x->n_ranges >= MAX_RANGES)
        return qn_fail(QN_ERR_UNSUPPORTED, "grammar: more than %d ranges of characters", MAX_RANGES);
    QN_TRY(qn_realloc_array(&x->ranges, &x->range_capacity, x->n_ranges + 1, sizeof *x->ranges, "classes"));
    x->ranges[x->n_ranges++] = (qn_range){ lo, hi };
    return QN_OK;
}

qn_status qn_expr_class(qn_exprs *x, qn_range *ranges, size_t n, bool negated, uint32_t *id)
{
    const size_t first = x->n_ranges;
    uint32_t next = 0;
    if (n)
        qsort(ranges, n, sizeof *ranges, compare_ranges);
    for (size_t i = 0; i < n; i++) {
        const uint32_t lo = ranges[i].lo > next ? ranges[i].lo : next;
        if (negated && ranges[i].lo > next)
            QN_TRY(add_range(x, next, ranges[i].lo - 1));
        if (!negated && ranges[i].hi >= lo)
            QN_TRY(add_range(x, lo, ranges[i].hi));
        if (ranges[i].hi + 1 > next)
            next = ranges[i].hi + 1;
    }
    if (negated)
        QN_TRY(add_range(x, next, LAST_CODE));
    return qn_expr_add(
        x, (qn_expr){ .kind = QN_EXPR_CLASS, .a = (uint32_t)first, .b = (uint32_t)(x->n_ranges - first) }, id);
}

qn_status qn_expr_literal(qn_exprs *x, const char *text, size_t length, uint32_t *id)
{
    uint32_t last = 0, byte = 0;
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_CAT }, id));
    for (size_t i = 0; i < length; i++) {
        const uint8_t c = (uint8_t)text[i];
        QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_BYTES, .a = c, .b = c }, &byte));
        qn_expr_append(x, *id, &last, byte);
    }
    return QN_OK;
}

qn_status qn_expr_characters(qn_exprs *x, const char *text, size_t length, uint32_t *id)
{
    uint32_t last = 0, part = 0;
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = QN_EXPR_CAT }, id));
    for (size_t i = 0, bytes; i < length; i += bytes) {
        qn_range range;
        qn_utf8_next(text + i, length - i, &bytes, &range.lo);
        range.hi = range.lo;
        QN_TRY(qn_expr_class(x, &range, 1, false, &part));
        qn_expr_append(x, *id, &last, part);
    }
    return QN_OK;
}

qn_status qn_expr_either(qn_exprs *x, char a, char b, uint32_t *id)
{
    qn_range ranges[] = { { (uint8_t)a, (uint8_t)a }, { (uint8_t)b, (uint8_t)b } };
    return qn_expr_class(x, ranges, 2, false, id);
}

qn_status qn_expr_repeat(qn_exprs *x, uint32_t child, uint32_t min, uint32_t max, uint32_t *id)
{
    return qn_expr_add(
        x, (qn_expr){ .kind = QN_EXPR_REPEAT, .calls = x->items[child].calls, .child = child, .a = min, .b = max }, id);
}

qn_status qn_expr_any(qn_exprs *x, uint32_t min, uint32_t max, uint32_t *id)
{
    uint32_t code_point = 0;
    QN_TRY(qn_expr_class(x, NULL, 0, true, &code_point));
    return qn_expr_repeat(x, code_point, min, max, id);
}

uint64_t qn_expr_weigh(const qn_exprs *x, uint32_t id, uint64_t most)
{
    const qn_expr *e = &x->items[id];
    uint64_t sum = e->kind == QN_EXPR_CALL ? e->b : e->kind == QN_EXPR_CLASS ? 2 * (uint64_t)e->b + 1 : 1;
    for (uint32_t c = e->kind == QN_EXPR_CALL ? 0 : e->child; c && sum <= most; c = x->items[c].sibling)
        sum += qn_expr_weigh(x, c, most);
    if (e->kind == QN_EXPR_REPEAT)
        sum *= e->b != QN_UNLIMITED ? (uint64_t)e->b + 1 : (uint64_t)e->a + 1;
    return sum <= most ? sum : most + 1;
}
