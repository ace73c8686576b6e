/* Builds automata: nodes and rules, and the checks of a finished automaton. */
#include "grammar/automaton.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* ---- Building ---- */

qn_status qn_grammar_begin(qn_grammar **out)
{
    static _Atomic uint64_t n_grammars;
    uint32_t id;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return qn_fail(QN_ERR_MEMORY, "grammar: no memory");
    (*out)->serial = atomic_fetch_add(&n_grammars, 1);
    atomic_init(&(*out)->n_references, 1);
    QN_TRY(qn_grammar_add_node(*out, (qn_node){ .kind = QN_NEVER }, &id));
    return qn_grammar_add_node(*out, (qn_node){ .kind = QN_FINAL }, &id);
}

qn_grammar *qn_grammar_share(qn_grammar *g)
{
    atomic_fetch_add(&g->n_references, 1);
    return g;
}

void qn_grammar_free(qn_grammar *g)
{
    if (!g || atomic_fetch_sub(&g->n_references, 1) > 1)
        return;
    for (size_t i = 0; i < g->n_dfas; i++)
        qn_dfa_free(&g->dfas[i]);
    for (size_t i = 0; i < g->n_objects; i++) {
        qn_object_rule *o = &g->objects[i];
        for (uint32_t k = 0; k < o->n_spellings; k++)
            free(o->spellings[k].text);
        free(o->spellings);
        free(o->values);
        free(o->value_rules);
        free(o->other_rules);
    }
    for (size_t i = 0; i < g->n_arrays; i++) {
        free(g->arrays[i].items);
        free(g->arrays[i].item_rules);
    }
    for (size_t i = 0; i < g->n_lists; i++) {
        free(g->lists[i].text);
        free(g->lists[i].begins);
    }
    for (size_t i = 0; i < g->n_rules; i++)
        free(g->rules[i].name);
    free(g->nodes);
    free(g->dfas);
    free(g->strings);
    free(g->objects);
    free(g->arrays);
    free(g->lists);
    free(g->rules);
    free(g);
}

size_t qn_grammar_bytes(const qn_grammar *g)
{
    return g->bytes;
}

qn_status qn_grammar_add_node(qn_grammar *g, qn_node node, uint32_t *id)
{
    if (g->n_nodes >= QN_GRAMMAR_NODES)
        return qn_fail(QN_ERR_UNSUPPORTED, "grammar: more than %d nodes", QN_GRAMMAR_NODES);
    QN_TRY(qn_realloc_array(&g->nodes, &g->node_capacity, g->n_nodes + 1, sizeof *g->nodes, "grammar"));
    *id = (uint32_t)g->n_nodes;
    g->nodes[g->n_nodes++] = node;
    return QN_OK;
}

qn_status qn_grammar_add_rule(qn_grammar *g, const char *name, uint32_t *rule)
{
    if (g->n_rules >= QN_GRAMMAR_RULES)
        return qn_fail(QN_ERR_UNSUPPORTED, "grammar: more than %d rules, at '%s'", QN_GRAMMAR_RULES, name);
    QN_TRY(qn_realloc_array(&g->rules, &g->rule_capacity, g->n_rules + 1, sizeof *g->rules, "grammar"));
    char *copy = strdup(name);
    if (!copy)
        return qn_fail(QN_ERR_MEMORY, "grammar: no memory for rule '%s'", name);
    *rule = (uint32_t)g->n_rules;
    g->rules[g->n_rules++] = (qn_rule){ QN_NODE_NEVER, copy };
    return QN_OK;
}

qn_status qn_grammar_add_dfa(qn_grammar *g, qn_dfa *dfa, uint32_t *id)
{
    const qn_status status = qn_realloc_array(&g->dfas, &g->dfa_capacity, g->n_dfas + 1, sizeof *g->dfas, "grammar");
    if (status != QN_OK) {
        qn_dfa_free(dfa);
        return status;
    }
    *id = (uint32_t)g->n_dfas;
    g->dfas[g->n_dfas++] = *dfa;
    return QN_OK;
}

qn_status qn_grammar_add_string(qn_grammar *g, qn_string_rule rule, uint32_t *id)
{
    QN_TRY(qn_realloc_array(&g->strings, &g->string_capacity, g->n_strings + 1, sizeof *g->strings, "grammar"));
    *id = (uint32_t)g->n_strings;
    g->strings[g->n_strings++] = rule;
    return QN_OK;
}

qn_status qn_grammar_add_object(qn_grammar *g, uint32_t *id)
{
    QN_TRY(qn_realloc_array(&g->objects, &g->object_capacity, g->n_objects + 1, sizeof *g->objects, "grammar"));
    *id = (uint32_t)g->n_objects;
    g->objects[g->n_objects++] = (qn_object_rule){ 0 };
    return QN_OK;
}

qn_status qn_grammar_add_array(qn_grammar *g, uint32_t *id)
{
    QN_TRY(qn_realloc_array(&g->arrays, &g->array_capacity, g->n_arrays + 1, sizeof *g->arrays, "grammar"));
    *id = (uint32_t)g->n_arrays;
    g->arrays[g->n_arrays++] = (qn_array_rule){ 0 };
    return QN_OK;
}

static int compare_words(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

qn_status qn_grammar_add_words(qn_grammar *g, char **words, size_t n, const char *what, uint32_t *id)
{
    qn_word_list list = { 0 };
    size_t total = 0;
    if (n > QN_GRAMMAR_WORDS)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: %zu constants, at most %d are supported", what, n, QN_GRAMMAR_WORDS);
    qsort(words, n, sizeof *words, compare_words);
    for (size_t i = 0; i < n; i++)
        total += strlen(words[i]);
    if (total > UINT32_MAX)
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: constants of %zu bytes", what, total);
    QN_TRY(qn_realloc_array(&g->lists, &g->list_capacity, g->n_lists + 1, sizeof *g->lists, "grammar"));
    list.text = malloc(total + 1);
    list.begins = malloc((n + 1) * sizeof *list.begins);
    *id = (uint32_t)g->n_lists;
    g->lists[g->n_lists++] = list;
    if (!list.text || !list.begins)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for %zu constants", what, n);
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t length = strlen(words[i]);
        if (i && !strcmp(words[i], words[i - 1]))
            continue;
        if (i && !strncmp(words[i], words[i - 1], strlen(words[i - 1])))
            return qn_fail(QN_ERR_INVALID, "%s: '%.40s' begins '%.40s'", what, words[i - 1], words[i]);
        list.begins[list.n++] = at;
        memcpy(list.text + at, words[i], length);
        at += (uint32_t)length;
    }
    list.begins[list.n] = at;
    g->lists[*id] = list;
    g->steps += total;
    g->bytes += total + (n + 1) * sizeof *list.begins;
    return QN_OK;
}

/* ---- Nodes that lead to an end ---- */

static bool rule_is_productive(const qn_grammar *g, uint32_t rule)
{
    return g->nodes[g->rules[rule].entry].productive;
}

/* Whether there may be undeclared members. The rules of their values decide, not the nodes: a node after a value leads
 * back to further such members. */
static bool has_others(const qn_grammar *g, const qn_object_rule *o)
{
    if (!o->additional || !o->others)
        return o->additional && rule_is_productive(g, o->rest_rule);
    for (uint32_t i = 0; i < o->n_other_rules; i++)
        if (rule_is_productive(g, o->other_rules[i]))
            return true;
    return false;
}

static bool object_is_productive(const qn_grammar *g, const qn_object_rule *o)
{
    uint32_t n_usable = 0;
    for (uint32_t i = 0; i < o->n_properties; i++) {
        const bool usable = rule_is_productive(g, o->value_rules[i]);
        if (!usable && o->required[i / 64] >> (i % 64) & 1)
            return false;
        n_usable += usable;
    }
    return o->n_required <= o->max && o->min <= o->max && (n_usable >= o->min || has_others(g, o));
}

static bool array_is_productive(const qn_grammar *g, const qn_array_rule *array)
{
    for (uint32_t i = 0; i < array->min && i <= array->n_prefix; i++)
        if (!rule_is_productive(g, array->item_rules[i]))
            return false;
    return array->min <= array->max;
}

/* Whether some text leads from a node to the end of its rule, from what is known of the nodes after it. */
static bool is_productive(const qn_grammar *g, const qn_node *n)
{
    switch ((qn_node_kind)n->kind) {
    case QN_NEVER: return false;
    case QN_FINAL:
    case QN_RETURN: return true;
    case QN_BYTE:
    case QN_DFA:
    case QN_STRING:
    case QN_TEXT:
    case QN_WORDS:
    case QN_INDENT: return g->nodes[n->next].productive;
    case QN_SPLIT: return g->nodes[n->next].productive || g->nodes[n->a].productive;
    case QN_CALL: return rule_is_productive(g, n->a) && g->nodes[n->next].productive;
    case QN_ONCE:
    case QN_REST: return g->nodes[n->next].productive && object_is_productive(g, &g->objects[n->a]);
    case QN_KEY:
    case QN_MEMBER: return object_is_productive(g, &g->objects[n->a]);
    case QN_ITEM: return array_is_productive(g, &g->arrays[n->a]);
    }
    return false;
}

/* Finds most productive nodes in one pass. A rule's nodes are made one after the other, each after those it leads
 * to, with the entry last; rules call rules that are made after them. */
static void find_most_productive(qn_grammar *g)
{
    uint32_t end = 0;
    for (size_t rule = 0; rule < g->n_rules; rule++) {
        const uint32_t entry = g->rules[rule].entry;
        if (entry != QN_NODE_NEVER && entry < end)
            return; /* this grammar has another order */
        end = entry != QN_NODE_NEVER ? entry : end;
    }
    for (size_t i = 0; i < g->n_nodes; i++)
        g->nodes[i].productive = g->nodes[i].kind == QN_FINAL || g->nodes[i].kind == QN_RETURN;
    for (size_t rule = g->n_rules; rule-- > 0;) {
        const uint32_t entry = g->rules[rule].entry;
        size_t before = rule;
        if (entry == QN_NODE_NEVER) /* a rule that was inlined */
            continue;
        while (before > 0 && g->rules[before - 1].entry == QN_NODE_NEVER)
            before--;
        for (uint32_t i = before ? g->rules[before - 1].entry + 1 : 0; i <= entry; i++)
            g->nodes[i].productive = g->nodes[i].productive || is_productive(g, &g->nodes[i]);
        rule = before;
    }
    g->steps += g->n_nodes;
}

static qn_status find_productive(qn_grammar *g)
{
    find_most_productive(g);
    bool forward = false; /* passes alternate in direction, since nodes may depend on earlier or later ones */
    for (bool is_changed = true; is_changed; forward = !forward) {
        is_changed = false;
        for (size_t i = 0; i < g->n_nodes; i++) {
            qn_node *n = &g->nodes[forward ? i : g->n_nodes - 1 - i];
            if (!n->productive && is_productive(g, n))
                n->productive = is_changed = true;
        }
        g->steps += g->n_nodes / 4;
        if (g->steps > QN_GRAMMAR_STEPS)
            return qn_fail(QN_ERR_UNSUPPORTED, "grammar: rules are nested too deeply");
    }
    for (size_t i = 0; i < g->n_objects; i++) {
        qn_object_rule *o = &g->objects[i];
        for (uint32_t k = 0; k < o->n_properties; k++)
            o->usable[k / 64] |= (uint64_t)rule_is_productive(g, o->value_rules[k]) << (k % 64);
        o->additional = has_others(g, o);
    }
    return QN_OK;
}

/* ---- Left recursion ---- */

typedef struct left_calls {
    const qn_grammar *g;
    uint32_t *calls, *first; /* rules that a rule may call before its first byte; [n_rules + 1] */
    size_t n, capacity;
    uint32_t *marks, mark, *stack;
    bool *nullable; /* rules that derive the empty text */
} left_calls;

/* Visits the nodes that a rule reaches without reading a byte. *reaches_end: the end is among them. */
static qn_status visit_rule(left_calls *l, uint32_t rule, bool *reaches_end)
{
    const qn_grammar *g = l->g;
    size_t depth = 0;
    l->mark++;
    l->stack[depth++] = g->rules[rule].entry;
    *reaches_end = false;
    while (depth) {
        const uint32_t id = l->stack[--depth];
        const qn_node *n = &g->nodes[id];
        if (l->marks[id] == l->mark)
            continue;
        l->marks[id] = l->mark;
        if (n->kind == QN_RETURN)
            *reaches_end = true;
        if (n->kind == QN_CALL) {
            QN_TRY(qn_realloc_array(&l->calls, &l->capacity, l->n + 1, sizeof *l->calls, "grammar"));
            l->calls[l->n++] = n->a;
        }
        if (n->kind == QN_SPLIT)
            l->stack[depth++] = n->a;
        if (n->kind == QN_SPLIT || (n->kind == QN_CALL && l->nullable[n->a]) ||
            (n->kind == QN_DFA && g->dfas[n->a].accept[1]))
            l->stack[depth++] = n->next;
    }
    return QN_OK;
}

static qn_status find_left_calls(left_calls *l, uint64_t *steps)
{
    const size_t n_rules = l->g->n_rules;
    for (bool is_changed = true; is_changed;) {
        is_changed = false;
        l->n = 0;
        for (uint32_t r = 0; r < n_rules; r++) {
            bool reaches_end;
            l->first[r] = (uint32_t)l->n;
            QN_TRY(visit_rule(l, r, &reaches_end));
            is_changed |= reaches_end != l->nullable[r];
            l->nullable[r] = reaches_end;
        }
        l->first[n_rules] = (uint32_t)l->n;
        *steps += l->g->n_nodes;
        if (*steps > QN_GRAMMAR_STEPS)
            return qn_fail(QN_ERR_UNSUPPORTED, "grammar: rules are nested too deeply");
    }
    return QN_OK;
}

/* Refuses left recursion, by a depth-first search: a rule that is reached while it is open is left-recursive. */
static qn_status refuse_cycles(left_calls *l, uint8_t *colors, uint32_t *next)
{
    enum { NEW, OPEN, DONE };
    for (uint32_t start = 0; start < l->g->n_rules; start++) {
        size_t depth = 0;
        if (colors[start] != NEW)
            continue;
        l->stack[depth++] = start;
        colors[start] = OPEN;
        next[start] = l->first[start];
        while (depth) {
            const uint32_t rule = l->stack[depth - 1];
            if (next[rule] == l->first[rule + 1]) {
                colors[rule] = DONE;
                depth--;
                continue;
            }
            const uint32_t callee = l->calls[next[rule]++];
            if (colors[callee] == OPEN)
                return qn_fail(QN_ERR_INVALID, "grammar: '%s' refers to itself before any text",
                               l->g->rules[callee].name);
            if (colors[callee] == DONE)
                continue;
            colors[callee] = OPEN;
            next[callee] = l->first[callee];
            l->stack[depth++] = callee;
        }
    }
    return QN_OK;
}

static qn_status refuse_left_recursion(qn_grammar *g)
{
    left_calls l = { .g = g };
    l.first = calloc(g->n_rules + 1, sizeof *l.first);
    l.marks = calloc(g->n_nodes, sizeof *l.marks);
    l.stack = malloc((2 * g->n_nodes + g->n_rules + 2) * sizeof *l.stack);
    l.nullable = calloc(g->n_rules, sizeof *l.nullable);
    uint8_t *colors = calloc(g->n_rules, 1);
    uint32_t *next = calloc(g->n_rules, sizeof *next);
    qn_status status = QN_OK;
    if (!l.first || !l.marks || !l.stack || !l.nullable || !colors || !next)
        status = qn_fail(QN_ERR_MEMORY, "grammar: no memory for %zu rules", g->n_rules);
    if (status == QN_OK)
        status = find_left_calls(&l, &g->steps);
    if (status == QN_OK)
        status = refuse_cycles(&l, colors, next);
    free(l.first);
    free(l.marks);
    free(l.stack);
    free(l.nullable);
    free(l.calls);
    free(colors);
    free(next);
    return status;
}

qn_status qn_grammar_finish(qn_grammar *g, uint32_t root_rule)
{
    g->root = g->rules[root_rule].entry;
    QN_TRY(find_productive(g));
    QN_TRY(refuse_left_recursion(g));
    if (!g->nodes[g->root].productive)
        return qn_grammar_refuse_empty(g, root_rule);
    g->bytes += sizeof *g + g->node_capacity * sizeof *g->nodes + g->string_capacity * sizeof *g->strings +
                g->object_capacity * sizeof *g->objects + g->array_capacity * sizeof *g->arrays +
                g->rule_capacity * (sizeof *g->rules + 32);
    for (size_t i = 0; i < g->n_dfas; i++) {
        QN_TRY(qn_dfa_prepare(&g->dfas[i], &g->steps));
        g->bytes += sizeof *g->dfas + (size_t)g->dfas[i].n_states * ((g->dfas[i].n_classes + 1) * sizeof(uint32_t) + 1);
    }
    for (size_t i = 0; i < g->n_objects; i++)
        g->bytes += g->objects[i].n_spellings * (sizeof(qn_spelling) + 32);
    return QN_OK;
}
