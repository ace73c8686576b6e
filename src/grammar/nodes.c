/* From expressions to nodes. Parts that call no rule become DFAs, as large as the bounds allow; the rest becomes
 * splits and calls. Regular expressions and choices are one DFA. */
#include "grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_WEIGHT = 1 << 14 };

static qn_status count_step(qn_grammar *g, const char *what)
{
    return ++g->steps > QN_GRAMMAR_STEPS ? qn_fail(QN_ERR_UNSUPPORTED, "%s: too large", what) : QN_OK;
}

/* Returns the range of an expression that is one ASCII character, or NULL. */
static const qn_range *find_byte(const qn_exprs *x, uint32_t expr)
{
    const qn_expr *e = &x->items[expr];
    while ((e->kind == QN_EXPR_CAT || e->kind == QN_EXPR_ALT) && e->child && !x->items[e->child].sibling)
        e = &x->items[e->child];
    const bool is_one = e->kind == QN_EXPR_CLASS && e->b == 1 && x->ranges[e->a].hi < 0x80;
    return is_one ? &x->ranges[e->a] : NULL;
}

/* Tries to make one DFA, which all uses of the expression share. *is_done: false if it is too large. */
static qn_status try_dfa(qn_grammar *g, qn_exprs *x, uint32_t expr, const char *what, uint32_t next, uint32_t *entry,
                         bool *is_done)
{
    const qn_range *byte = find_byte(x, expr);
    *is_done = byte != NULL;
    if (byte)
        return qn_grammar_add_node(
            g, (qn_node){ .kind = QN_BYTE, .lo = (uint8_t)byte->lo, .hi = (uint8_t)byte->hi, .next = next }, entry);
    if (!x->items[expr].dfa) {
        qn_dfa dfa;
        uint32_t id;
        if (qn_expr_weigh(x, expr, MAX_WEIGHT) > MAX_WEIGHT)
            return QN_OK;
        const qn_status status = qn_dfa_compile(x, expr, false, what, &g->steps, &dfa);
        if (status == QN_ERR_UNSUPPORTED && g->steps <= QN_GRAMMAR_STEPS)
            return QN_OK;
        QN_TRY(status);
        QN_TRY(qn_grammar_add_dfa(g, &dfa, &id));
        x->items[expr].dfa = id + 1;
    }
    *is_done = true;
    return qn_grammar_add_node(g, (qn_node){ .kind = QN_DFA, .a = x->items[expr].dfa - 1, .next = next }, entry);
}

static qn_status add_split(qn_grammar *g, uint32_t a, uint32_t b, uint32_t *entry)
{
    return qn_grammar_add_node(g, (qn_node){ .kind = QN_SPLIT, .next = a, .a = b }, entry);
}

static qn_status add_parts(qn_grammar *g, qn_exprs *x, uint32_t expr, const char *what, uint32_t next, uint32_t *entry);

qn_status qn_grammar_add_expr(qn_grammar *g, qn_exprs *x, uint32_t expr, const char *what, uint32_t next,
                              uint32_t *entry)
{
    bool is_done = false;
    QN_TRY(count_step(g, what));
    if (!x->items[expr].calls)
        QN_TRY(try_dfa(g, x, expr, what, next, entry, &is_done));
    return is_done ? QN_OK : add_parts(g, x, expr, what, next, entry);
}

/* Adds an expression with copies of the children, in their order. */
static qn_status copy_children(qn_exprs *x, qn_expr_kind kind, const uint32_t *children, size_t n, uint32_t *id)
{
    uint32_t last = 0, copy;
    QN_TRY(qn_expr_add(x, (qn_expr){ .kind = (uint8_t)kind }, id));
    for (size_t i = 0; i < n; i++) {
        qn_expr e = x->items[children[i]];
        e.sibling = 0;
        QN_TRY(qn_expr_add(x, e, &copy));
        qn_expr_append(x, *id, &last, copy);
    }
    return QN_OK;
}

/* Adds a CAT, its last child first. Each run of children without calls becomes a DFA. */
static qn_status add_cat(qn_grammar *g, qn_exprs *x, const uint32_t *children, size_t n, const char *what,
                         uint32_t next, uint32_t *entry)
{
    *entry = next;
    while (n) {
        size_t first = n;
        bool is_done = false;
        while (first > 0 && !x->items[children[first - 1]].calls)
            first--;
        if (n - first > 1) {
            uint32_t run;
            QN_TRY(copy_children(x, QN_EXPR_CAT, children + first, n - first, &run));
            QN_TRY(try_dfa(g, x, run, what, *entry, entry, &is_done));
        }
        if (!is_done)
            QN_TRY(qn_grammar_add_expr(g, x, children[first = n - 1], what, *entry, entry));
        n = first;
    }
    return QN_OK;
}

/* Adds an ALT. The alternatives without calls become one DFA. Reorders `children`: the alternatives have no order. */
static qn_status add_alt(qn_grammar *g, qn_exprs *x, uint32_t *children, size_t n, const char *what, uint32_t next,
                         uint32_t *entry)
{
    size_t n_plain = 0;
    bool is_done = false;
    *entry = QN_NODE_NEVER;
    for (size_t i = 0; i < n; i++)
        if (!x->items[children[i]].calls) {
            const uint32_t plain = children[i];
            children[i] = children[n_plain];
            children[n_plain++] = plain;
        }
    if (n_plain > 1 && n_plain < n) {
        uint32_t plain;
        QN_TRY(copy_children(x, QN_EXPR_ALT, children, n_plain, &plain));
        QN_TRY(try_dfa(g, x, plain, what, next, entry, &is_done));
    }
    for (size_t i = is_done ? n_plain : 0; i < n; i++) {
        uint32_t node;
        QN_TRY(qn_grammar_add_expr(g, x, children[i], what, next, &node));
        if (*entry == QN_NODE_NEVER)
            *entry = node;
        else
            QN_TRY(add_split(g, *entry, node, entry));
    }
    return QN_OK;
}

/* Adds a REPEAT: with a limit, a copy of the child for each time, of which those above the minimum may be left out;
 * else a loop. */
static qn_status add_repeat(qn_grammar *g, qn_exprs *x, const qn_expr *e, const char *what, uint32_t next,
                            uint32_t *entry)
{
    const uint32_t child = e->child, min = e->a, max = e->b;
    *entry = next;
    if (max == QN_UNLIMITED) {
        uint32_t loop, body;
        QN_TRY(add_split(g, QN_NODE_NEVER, next, &loop));
        QN_TRY(qn_grammar_add_expr(g, x, child, what, loop, &body));
        g->nodes[loop].next = body;
        *entry = loop;
    } else {
        for (uint32_t i = min; i < max; i++) {
            QN_TRY(qn_grammar_add_expr(g, x, child, what, *entry, entry));
            QN_TRY(add_split(g, *entry, next, entry));
        }
    }
    for (uint32_t i = 0; i < min; i++)
        QN_TRY(qn_grammar_add_expr(g, x, child, what, *entry, entry));
    return QN_OK;
}

static qn_status add_parts(qn_grammar *g, qn_exprs *x, uint32_t expr, const char *what, uint32_t next, uint32_t *entry)
{
    const qn_expr e = x->items[expr];
    if (e.kind == QN_EXPR_REPEAT)
        return add_repeat(g, x, &e, what, next, entry);
    if (e.kind == QN_EXPR_CALL && e.child)
        return qn_grammar_add_expr(g, x, e.child, what, next, entry);
    if (e.kind == QN_EXPR_CALL)
        return qn_grammar_add_node(g, (qn_node){ .kind = QN_CALL, .a = e.a, .next = next }, entry);
    if (e.kind != QN_EXPR_CAT && e.kind != QN_EXPR_ALT)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: too large", what);
    size_t n = 0;
    for (uint32_t c = e.child; c; c = x->items[c].sibling)
        n++;
    uint32_t *children = malloc((n + 1) * sizeof *children);
    if (!children)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory", what);
    n = 0;
    for (uint32_t c = e.child; c; c = x->items[c].sibling)
        children[n++] = c;
    const qn_status status = e.kind == QN_EXPR_CAT ? add_cat(g, x, children, n, what, next, entry)
                                                   : add_alt(g, x, children, n, what, next, entry);
    free(children);
    return status;
}

/* ---- One DFA ---- */

/* Finishes a grammar whose root is one expression. Takes over the grammar, and frees it after an error, and the
 * expressions. */
static qn_status finish(qn_status status, qn_grammar *g, qn_exprs *x, uint32_t expr, const char *what, qn_grammar **out)
{
    uint32_t rule, id, end;
    qn_dfa dfa;
    if (status == QN_OK)
        status = qn_grammar_add_rule(g, what, &rule);
    if (status == QN_OK)
        status = qn_dfa_compile(x, expr, false, what, &g->steps, &dfa);
    if (status == QN_OK)
        status = qn_grammar_add_dfa(g, &dfa, &id);
    if (status == QN_OK)
        status = qn_grammar_add_node(g, (qn_node){ .kind = QN_RETURN }, &end);
    if (status == QN_OK)
        status = qn_grammar_add_node(g, (qn_node){ .kind = QN_DFA, .a = id, .next = end }, &g->rules[rule].entry);
    if (status == QN_OK)
        status = qn_grammar_finish(g, rule);
    qn_exprs_free(x);
    if (status == QN_OK)
        *out = g;
    else
        qn_grammar_free(g);
    return status;
}

qn_status qn_grammar_from_regex(const char *regex, size_t length, qn_grammar **out)
{
    static const char what[] = "regular expression";
    qn_exprs x = { 0 };
    qn_grammar *g;
    uint32_t expr = 0;
    *out = NULL;
    qn_status status = qn_grammar_begin(&g);
    if (status == QN_OK)
        status = qn_expr_regex(&x, regex, length, false, what, &expr);
    return finish(status, g, &x, expr, what, out);
}

qn_status qn_grammar_from_choices(const char *const *choices, size_t n_choices, qn_grammar **out)
{
    qn_exprs x = { 0 };
    qn_grammar *g;
    uint32_t expr = 0, last = 0, choice;
    *out = NULL;
    if (!n_choices)
        return qn_fail(QN_ERR_INVALID, "choices: the list is empty");
    qn_status status = qn_grammar_begin(&g);
    if (status == QN_OK)
        status = qn_expr_add(&x, (qn_expr){ .kind = QN_EXPR_ALT }, &expr);
    for (size_t i = 0; i < n_choices && status == QN_OK; i++) {
        status = qn_expr_literal(&x, choices[i], strlen(choices[i]), &choice);
        if (status == QN_OK)
            qn_expr_append(&x, expr, &last, choice);
    }
    return finish(status, g, &x, expr, "choices", out);
}
