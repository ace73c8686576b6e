/* Finds the place of an error in a grammar: the rule that a node belongs to, and the rule that leaves another
 * without any text. */
#include "grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

typedef struct search {
    const qn_grammar *g;
    uint8_t *is_met; /* [n_nodes] */
    uint32_t *stack; /* [n_nodes] */
    size_t n;
} search;

static bool begin(search *s, const qn_grammar *g)
{
    *s = (search){ .g = g, .is_met = calloc(g->n_nodes, 1), .stack = malloc(g->n_nodes * sizeof *s->stack) };
    return s->is_met && s->stack;
}

static void end(search *s)
{
    free(s->is_met);
    free(s->stack);
}

static void add(search *s, uint32_t node)
{
    if (node == QN_NODE_NEVER || s->is_met[node])
        return;
    s->is_met[node] = true;
    s->stack[s->n++] = node;
}

static void add_object(search *s, const qn_object_rule *o)
{
    const uint32_t nodes[] = { o->close_empty, o->close, o->first, o->more, o->rest, o->rest_value, o->others };
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        add(s, nodes[i]);
    for (uint32_t i = 0; i < o->n_properties; i++)
        add(s, o->values[i]);
}

static void add_array(search *s, const qn_array_rule *array)
{
    const uint32_t nodes[] = { array->close_empty, array->close, array->first, array->comma };
    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        add(s, nodes[i]);
    for (uint32_t i = 0; i <= array->n_prefix; i++)
        add(s, array->items[i]);
}

/* Adds the nodes of the same rule that may follow a node. */
static void add_next(search *s, const qn_node *n)
{
    switch ((qn_node_kind)n->kind) {
    case QN_NEVER:
    case QN_FINAL:
    case QN_RETURN: break;
    case QN_KEY:
    case QN_MEMBER: add_object(s, &s->g->objects[n->a]); break;
    case QN_ITEM: add_array(s, &s->g->arrays[n->a]); break;
    case QN_SPLIT: add(s, n->a); /* fall through */
    default: add(s, n->next);
    }
}

const char *qn_grammar_rule_of(const qn_grammar *g, uint32_t node)
{
    search s;
    const char *found = NULL;
    const bool has_memory = begin(&s, g);
    for (size_t i = 0; i < g->n_rules && has_memory && !found; i++) {
        add(&s, g->rules[i].entry);
        while (s.n)
            add_next(&s, &g->nodes[s.stack[--s.n]]);
        if (s.is_met[node])
            found = g->rules[i].name;
    }
    end(&s);
    return found ? found : "root";
}

/* ---- Rules without texts ---- */

static uint32_t find_empty_callee(const search *s, const uint8_t *is_open, const qn_node *n)
{
    const qn_grammar *g = s->g;
    const uint32_t *callees = &n->a;
    size_t n_callees = n->kind == QN_CALL;
    if (n->kind == QN_MEMBER) {
        callees = g->objects[n->a].value_rules;
        n_callees = g->objects[n->a].n_properties;
    }
    if (n->kind == QN_ITEM) {
        callees = g->arrays[n->a].item_rules;
        n_callees =
            g->arrays[n->a].min < g->arrays[n->a].n_prefix + 1 ? g->arrays[n->a].min : g->arrays[n->a].n_prefix + 1;
    }
    for (size_t i = 0; i < n_callees; i++) {
        const bool counts = n->kind != QN_MEMBER || g->objects[n->a].required[i / 64] >> (i % 64) & 1;
        if (counts && !is_open[callees[i]] && !g->nodes[g->rules[callees[i]].entry].productive)
            return callees[i];
    }
    return UINT32_MAX;
}

/* Returns, of the rules without texts that a rule needs, the first that needs no further such rule. */
static uint32_t find_empty(const qn_grammar *g, uint32_t rule)
{
    search s;
    uint8_t *is_open = calloc(g->n_rules, 1);
    const bool has_memory = begin(&s, g);
    for (uint32_t next = rule; has_memory && is_open && next != UINT32_MAX;) {
        rule = next;
        next = UINT32_MAX;
        is_open[rule] = true;
        s.n = 0;
        add(&s, g->rules[rule].entry);
        while (s.n && next == UINT32_MAX) {
            const qn_node *n = &g->nodes[s.stack[--s.n]];
            next = find_empty_callee(&s, is_open, n);
            add_next(&s, n);
        }
    }
    end(&s);
    free(is_open);
    return rule;
}

qn_status qn_grammar_refuse_empty(const qn_grammar *g, uint32_t rule)
{
    const uint32_t empty = find_empty(g, rule);
    const char *name = g->rules[rule].name;
    if (empty == rule)
        return qn_fail(QN_ERR_INVALID, "grammar: no text fits '%s'", name);
    return qn_fail(QN_ERR_INVALID, "grammar: no text fits '%s': it needs '%s', which no text fits", name,
                   g->rules[empty].name);
}
