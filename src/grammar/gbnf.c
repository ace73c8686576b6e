/* Grammars in llama.cpp's syntax. Each rule is parsed to an expression. Rules that are not recursive and call no
 * recursive rule are inlined where they are called, so that they become parts of DFAs. */
#include "grammar/automaton.h"

#include "base/keyed_hash.h"
#include "base/memory.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_NAME = 200,
    MAX_CLASS = 512,
    MAX_COUNT = 100000,
    MAX_HEIGHT = 192,
    MAX_INLINED = 1 << 12,
    SLOTS = 2 * QN_GRAMMAR_RULES
};

typedef struct reader {
    qn_grammar *grammar;
    qn_exprs x;
    const char *text;
    size_t n, at, line;
    int depth;
    uint32_t *slots;  /* [SLOTS] rules by name, + 1 */
    uint32_t *bodies; /* [capacity] expression of each rule, 0: not defined yet */
    size_t capacity;
    struct measure *measures; /* [n_rules] */
} reader;

static qn_status invalid(const reader *r, const char *problem)
{
    return qn_fail(QN_ERR_INVALID, "grammar: line %zu: %s", r->line, problem);
}

static char peek(const reader *r)
{
    return r->at < r->n ? r->text[r->at] : 0;
}

static bool take(reader *r, char c)
{
    if (r->at >= r->n || r->text[r->at] != c)
        return false;
    r->at++;
    return true;
}

/* Skips blanks and comments; with `lines` also line ends. */
static void skip_space(reader *r, bool lines)
{
    for (; r->at < r->n; r->at++) {
        const char c = r->text[r->at];
        if (c == '#') {
            while (r->at + 1 < r->n && r->text[r->at + 1] != '\n' && r->text[r->at + 1] != '\r')
                r->at++;
        } else if (c == '\n' && lines) {
            r->line++;
        } else if (c != ' ' && c != '\t' && !(c == '\r' && lines)) {
            return;
        }
    }
}

/* ---- Rules by name ---- */

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static qn_status take_name(reader *r, uint32_t *rule)
{
    char name[MAX_NAME + 1];
    size_t n = 0;
    for (; is_name(peek(r)); r->at++)
        if (n < MAX_NAME)
            name[n++] = r->text[r->at];
        else
            return invalid(r, "a name of more than 200 bytes");
    name[n] = 0;
    if (!n)
        return invalid(r, "expected a name");
    size_t slot = qn_keyed_hash(name, n) & (SLOTS - 1);
    for (; r->slots[slot]; slot = (slot + 1) & (SLOTS - 1), r->grammar->steps++)
        if (!strcmp(r->grammar->rules[r->slots[slot] - 1].name, name)) {
            *rule = r->slots[slot] - 1;
            return QN_OK;
        }
    QN_TRY(qn_realloc_array(&r->bodies, &r->capacity, r->grammar->n_rules + 1, sizeof *r->bodies, "rules"));
    QN_TRY(qn_grammar_add_rule(r->grammar, name, rule));
    r->bodies[*rule] = 0;
    r->slots[slot] = *rule + 1;
    return QN_OK;
}

/* ---- Terminals ---- */

static qn_status take_hex(reader *r, int digits, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < digits; i++, r->at++) {
        const char c = peek(r);
        const int lower = c | 0x20;
        if (c >= '0' && c <= '9')
            *code = *code << 4 | (uint32_t)(c - '0');
        else if (lower >= 'a' && lower <= 'f')
            *code = *code << 4 | (uint32_t)(lower - 'a' + 10);
        else
            return invalid(r, "expected a hexadecimal digit");
    }
    return *code > 0x10ffff ? invalid(r, "no code point") : QN_OK;
}

static qn_status take_char(reader *r, uint32_t *code)
{
    static const char letters[] = "trn\\\"[]", codes[] = "\t\r\n\\\"[]";
    size_t bytes;
    if (r->at >= r->n || peek(r) == '\n')
        return invalid(r, "a literal or class without its end");
    if (!take(r, '\\')) {
        if (qn_utf8_next(r->text + r->at, r->n - r->at, &bytes, code) != QN_UTF8_COMPLETE)
            return invalid(r, "no UTF-8");
        r->at += bytes;
        return QN_OK;
    }
    if (take(r, 'x'))
        return take_hex(r, 2, code);
    if (take(r, 'u'))
        return take_hex(r, 4, code);
    if (take(r, 'U'))
        return take_hex(r, 8, code);
    const char *letter = peek(r) ? strchr(letters, peek(r)) : NULL;
    if (!letter)
        return invalid(r, "an unknown escape");
    r->at++;
    *code = (uint8_t)codes[letter - letters];
    return QN_OK;
}

static qn_status take_literal(reader *r, uint32_t *id)
{
    uint32_t last = 0, part;
    QN_TRY(qn_expr_add(&r->x, (qn_expr){ .kind = QN_EXPR_CAT }, id));
    while (!take(r, '"')) {
        qn_range range;
        QN_TRY(take_char(r, &range.lo));
        range.hi = range.lo;
        QN_TRY(qn_expr_class(&r->x, &range, 1, false, &part));
        qn_expr_append(&r->x, *id, &last, part);
    }
    return QN_OK;
}

static qn_status take_class(reader *r, uint32_t *id)
{
    qn_range ranges[MAX_CLASS];
    size_t n = 0;
    const bool negated = take(r, '^');
    while (!take(r, ']')) {
        qn_range *range = &ranges[n++];
        if (n == MAX_CLASS)
            return invalid(r, "a class of more than 511 ranges");
        QN_TRY(take_char(r, &range->lo));
        range->hi = range->lo;
        if (peek(r) == '-' && r->at + 1 < r->n && r->text[r->at + 1] != ']') {
            r->at++;
            QN_TRY(take_char(r, &range->hi));
            if (range->hi < range->lo)
                return invalid(r, "a range that ends before it begins");
        }
    }
    return n || negated ? qn_expr_class(&r->x, ranges, n, negated, id) : invalid(r, "an empty class");
}

/* ---- Rules ---- */

static qn_status take_count(reader *r, uint32_t *count)
{
    *count = 0;
    if (peek(r) < '0' || peek(r) > '9')
        return invalid(r, "expected a count");
    for (; peek(r) >= '0' && peek(r) <= '9'; r->at++) {
        *count = *count * 10 + (uint32_t)(peek(r) - '0');
        if (*count > MAX_COUNT)
            return qn_fail(QN_ERR_UNSUPPORTED, "grammar: line %zu: a count above %d", r->line, MAX_COUNT);
    }
    return QN_OK;
}

static qn_status take_repeat(reader *r, bool nested, uint32_t *id)
{
    for (;;) {
        qn_expr e = { .kind = QN_EXPR_REPEAT, .calls = r->x.items[*id].calls, .child = *id, .b = QN_UNLIMITED };
        if (take(r, '?')) {
            e.b = 1;
        } else if (take(r, '+')) {
            e.a = 1;
        } else if (take(r, '{')) {
            skip_space(r, nested);
            QN_TRY(take_count(r, &e.a));
            e.b = e.a;
            skip_space(r, nested);
            if (take(r, ',')) {
                skip_space(r, nested);
                e.b = QN_UNLIMITED;
                if (peek(r) != '}')
                    QN_TRY(take_count(r, &e.b));
                skip_space(r, nested);
            }
            if (!take(r, '}') || e.b < e.a)
                return invalid(r, "a malformed repetition");
        } else if (!take(r, '*')) {
            return QN_OK;
        }
        if (++r->depth > QN_GRAMMAR_NESTED)
            return invalid(r, "groups are nested too deeply");
        QN_TRY(qn_expr_add(&r->x, e, id));
        skip_space(r, nested);
    }
}

static qn_status take_alternatives(reader *r, bool nested, uint32_t *id);

static qn_status take_item(reader *r, uint32_t *id)
{
    uint32_t rule;
    if (take(r, '"'))
        return take_literal(r, id);
    if (take(r, '['))
        return take_class(r, id);
    if (take(r, '.'))
        return qn_expr_class(&r->x, NULL, 0, true, id);
    if (take(r, '(')) {
        skip_space(r, true);
        QN_TRY(take_alternatives(r, true, id));
        return take(r, ')') ? QN_OK : invalid(r, "expected ')'");
    }
    QN_TRY(take_name(r, &rule));
    return qn_expr_add(&r->x, (qn_expr){ .kind = QN_EXPR_CALL, .calls = true, .a = rule }, id);
}

static qn_status take_alternatives(reader *r, bool nested, uint32_t *id)
{
    const int depth = r->depth;
    uint32_t last = 0;
    if (++r->depth > QN_GRAMMAR_NESTED)
        return invalid(r, "groups are nested too deeply");
    QN_TRY(qn_expr_add(&r->x, (qn_expr){ .kind = QN_EXPR_ALT }, id));
    do {
        uint32_t cat, last_part = 0, part;
        skip_space(r, true);
        QN_TRY(qn_expr_add(&r->x, (qn_expr){ .kind = QN_EXPR_CAT }, &cat));
        while (r->at < r->n && (is_name(peek(r)) || strchr("\"[.(", peek(r)))) {
            const int part_depth = r->depth;
            QN_TRY(take_item(r, &part));
            skip_space(r, nested);
            QN_TRY(take_repeat(r, nested, &part));
            r->depth = part_depth;
            qn_expr_append(&r->x, cat, &last_part, part);
        }
        qn_expr_append(&r->x, *id, &last, cat);
    } while (take(r, '|'));
    r->depth = depth;
    return QN_OK;
}

static qn_status take_rule(reader *r)
{
    uint32_t rule, body;
    QN_TRY(take_name(r, &rule));
    skip_space(r, false);
    if (!take(r, ':') || !take(r, ':') || !take(r, '='))
        return invalid(r, "expected '::='");
    if (r->bodies[rule])
        return qn_fail(QN_ERR_INVALID, "grammar: line %zu: rule '%s' is defined twice", r->line,
                       r->grammar->rules[rule].name);
    QN_TRY(take_alternatives(r, false, &body));
    r->bodies[rule] = body;
    if (r->at < r->n && !strchr("\r\n", peek(r)))
        return invalid(r, "expected a literal, a class, a group, a name or the end of the line");
    skip_space(r, true);
    return QN_OK;
}

/* ---- Inlining ---- */

typedef struct measure { /* of a rule or an expression */
    uint64_t weight;     /* estimated number of NFA states */
    uint32_t height;
    bool is_flat; /* it calls only flat rules */
} measure;

static measure measure_expr(const reader *r, uint32_t id)
{
    const qn_expr *e = &r->x.items[id];
    measure m = { 1, 1, true };
    r->grammar->steps++;
    if (e->kind == QN_EXPR_CLASS)
        m.weight = 2 * (uint64_t)e->b + 1;
    if (e->kind == QN_EXPR_CALL)
        m = r->measures[e->a];
    for (uint32_t c = e->kind == QN_EXPR_CALL ? 0 : e->child; c && m.is_flat; c = r->x.items[c].sibling) {
        const measure child = measure_expr(r, c);
        m.weight += child.weight;
        m.height = child.height + 1 > m.height ? child.height + 1 : m.height;
        m.is_flat = child.is_flat;
    }
    if (e->kind == QN_EXPR_REPEAT)
        m.weight *= e->b != QN_UNLIMITED ? (uint64_t)e->b + 1 : (uint64_t)e->a + 1;
    m.is_flat &= m.weight <= MAX_INLINED && m.height <= MAX_HEIGHT;
    return m;
}

/* Replaces calls of flat rules by the rule's expression. Sets `calls` again and returns it. */
static bool inline_calls(reader *r, uint32_t id)
{
    qn_expr *e = &r->x.items[id];
    if (e->kind == QN_EXPR_CALL && r->measures[e->a].is_flat) {
        e->child = r->bodies[e->a];
        e->b = (uint32_t)r->measures[e->a].weight;
        e->calls = false;
    }
    if (e->kind == QN_EXPR_CALL)
        return e->calls;
    e->calls = false;
    for (uint32_t c = e->child; c; c = r->x.items[c].sibling)
        r->x.items[id].calls |= inline_calls(r, c);
    return r->x.items[id].calls;
}

static qn_status inline_rules(reader *r)
{
    const size_t n = r->grammar->n_rules;
    r->measures = calloc(n, sizeof *r->measures);
    if (!r->measures)
        return qn_fail(QN_ERR_MEMORY, "grammar: no memory for %zu rules", n);
    bool forward = false; /* passes alternate in direction, since rules may call earlier or later ones */
    for (bool is_changed = true; is_changed; forward = !forward) {
        is_changed = false;
        for (size_t k = 0; k < n; k++) {
            const size_t i = forward ? k : n - 1 - k;
            if (r->measures[i].is_flat)
                continue;
            r->measures[i] = measure_expr(r, r->bodies[i]);
            is_changed |= r->measures[i].is_flat;
        }
        if (r->grammar->steps > QN_GRAMMAR_STEPS)
            return qn_fail(QN_ERR_UNSUPPORTED, "grammar: rules are nested too deeply");
    }
    for (size_t i = 0; i < n; i++)
        inline_calls(r, r->bodies[i]);
    return QN_OK;
}

/* ---- The grammar ---- */

static qn_status compile(reader *r)
{
    qn_grammar *g = r->grammar;
    uint32_t end;
    size_t root = 0;
    skip_space(r, true);
    while (r->at < r->n) {
        QN_TRY(take_rule(r));
        if (g->steps > QN_GRAMMAR_STEPS) /* names with equal hashes can cause this */
            return qn_fail(QN_ERR_UNSUPPORTED, "grammar: line %zu: too many rules", r->line);
    }
    for (size_t i = 0; i < g->n_rules; i++)
        if (!r->bodies[i])
            return qn_fail(QN_ERR_INVALID, "grammar: rule '%s' is not defined", g->rules[i].name);
    while (root < g->n_rules && strcmp(g->rules[root].name, "root") != 0)
        root++;
    if (root == g->n_rules)
        return qn_fail(QN_ERR_INVALID, "grammar: there is no rule 'root'");
    QN_TRY(inline_rules(r));
    QN_TRY(qn_grammar_add_node(g, (qn_node){ .kind = QN_RETURN }, &end));
    for (size_t i = 0; i < g->n_rules; i++) { /* flat rules are no longer called */
        uint32_t entry;
        if (r->measures[i].is_flat && i != root)
            continue;
        QN_TRY(qn_grammar_add_expr(g, &r->x, r->bodies[i], g->rules[i].name, end, &entry));
        g->rules[i].entry = entry;
    }
    QN_TRY(qn_grammar_finish(g, (uint32_t)root));
    for (size_t i = 0; i < g->n_rules; i++)
        if (!r->measures[i].is_flat && !g->nodes[g->rules[i].entry].productive)
            return qn_grammar_refuse_empty(g, (uint32_t)i);
    return QN_OK;
}

qn_status qn_grammar_from_gbnf(const char *text, size_t length, qn_grammar **out)
{
    const size_t mark = qn_utf8_mark(text, length);
    reader r = { .text = text + mark, .n = length - mark, .line = 1 };
    *out = NULL;
    r.slots = calloc(SLOTS, sizeof *r.slots);
    qn_status status = r.slots ? qn_grammar_begin(&r.grammar) : qn_fail(QN_ERR_MEMORY, "grammar: no memory");
    if (status == QN_OK)
        status = compile(&r);
    if (status == QN_OK)
        *out = r.grammar;
    else
        qn_grammar_free(r.grammar);
    qn_exprs_free(&r.x);
    free(r.slots);
    free(r.bodies);
    free(r.measures);
    return status;
}
