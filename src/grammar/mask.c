/* Makes masks by walking the vocabulary's tries with the configurations that each prefix leads to. If only one
 * configuration is left and it is a DFA, or all are in JSON strings that continue alike, a transition table is
 * walked instead; a DFA walks the tries of shapes. Sets of tokens that stay in a JSON string, and texts of a class
 * that a DFA accepts whole, are precomputed. */
#include "grammar/vocab.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* If more configurations than this follow a text, the bytes that they accept are not computed. */
enum { MAX_FOLLOWING = 8 };

/* From this number of alternatives on, the bytes that they accept are computed for all of them together. */
enum { MANY = 8 };

/* Work that counts as one step: words of a mask that are merged, nodes of a trie walked by a table. */
enum { JOINED = 16, WALKED = 4 };

/* A mask that is made. It belongs to one thread; the vocabulary is not changed. */
typedef struct walker {
    const qn_grammar_vocab *v;
    qn_grammar_state *s;
    const qn_trie_node *nodes;
    const qn_closers *closers; /* of the groups that the nodes name; NULL: nodes name tokens */
    uint32_t *allowed;
    uint32_t added_inside[QN_STRING_FORMS]; /* tokens in a JSON string are allowed up to this length */
    uint32_t states[QN_TOKEN_BYTES + 1], counts[QN_TOKEN_BYTES + 1]; /* by depth, of the table walk */
    uint8_t characters[QN_TOKEN_BYTES + 1];                          /* states of the JSON string, by depth */
} walker;

static void allow_group(const walker *w, int32_t group)
{
    const qn_closers *closers = w->closers;
    for (uint32_t i = closers->begins[group]; i < closers->begins[group + 1]; i++)
        qn_mask_set(w->allowed, closers->tokens[i]);
}

/* Allows the tokens that end at a node: `token` and those with equal bytes, or its group. -1: none. */
static void allow(const walker *w, int32_t token)
{
    if (w->closers && token >= 0) {
        allow_group(w, token);
        return;
    }
    for (; token >= 0; token = w->v->same[token])
        qn_mask_set(w->allowed, (uint32_t)token);
}

/* Makes room for n configurations, which may move; sets `failed` without memory. */
static qn_status reserve(qn_grammar_state *s, size_t n)
{
    const qn_status status = qn_realloc_array(&s->configs, &s->config_capacity, n, sizeof *s->configs, "grammar state");
    s->failed |= status != QN_OK;
    return status;
}

/* ---- Alternatives ---- */

/* Configurations by how they read a byte: [begin, dfas) one by one; [dfas, strings) in the same state of a DFA;
 * [strings, end) in JSON strings whose state and character counts are the same (go_on_alike), so that a byte moves all
 * or none of them. Among these are keys, as far as they are no declared names. A walk changes configurations, so the
 * strings are copied to [end, top), and the copies are walked. */
typedef struct alternatives {
    size_t begin, dfas, strings, end, top;
    uint64_t taken[4];    /* bytes that may follow one of [begin, dfas), and perhaps some others */
    uint64_t declared[4]; /* bytes with which a key may continue as a declared name */
} alternatives;

/* Which configurations accept a byte: none; only those in a DFA; only those in strings; all that are not in strings;
 * all; or one (ONE + its index). */
enum { UNKNOWN, NOTHING, DFAS, STRINGS, OTHERS, ALL, ONE };

/* Sets *string to the configuration in the string of an additional key, or to `c` itself if it is in a string. False:
 * it is in neither. */
static bool take_as_string(walker *w, const qn_config *c, alternatives *a, qn_config *string)
{
    qn_grammar_state *s = w->s;
    const uint32_t kind = s->grammar->nodes[c->node].kind;
    *string = *c;
    if (kind == QN_STRING)
        return true;
    if (kind != QN_KEY || (c->sub & 255) == QN_STRING_REJECTED || !qn_state_adds_key(s, c))
        return false;
    *string = qn_state_additional_key(s, c);
    qn_state_declared_bytes(s, c, a->declared);
    return true;
}

/* Whether a byte moves both of two configurations in JSON strings or none. */
static bool go_on_alike(const qn_grammar *g, const qn_config *a, const qn_config *b)
{
    const qn_string_rule *x = &g->strings[g->nodes[a->node].a], *y = &g->strings[g->nodes[b->node].a];
    return x->form == y->form && x->dfa == y->dfa && a->sub == b->sub && x->max == y->max &&
           (x->max == QN_UNLIMITED || a->count == b->count);
}

static void exchange(qn_config *a, qn_config *b)
{
    const qn_config c = *a;
    *a = *b;
    *b = c;
}

/* Computes the bytes that the alternatives accept, if there are many, or if there are keys, each of which reads its
 * object's rules. */
static void find_taken(qn_grammar_state *s, alternatives *a)
{
    bool is_many = a->dfas - a->begin >= MANY;
    for (size_t i = a->begin; i < a->dfas && !is_many; i++)
        is_many = s->grammar->nodes[s->configs[i].node].kind == QN_KEY;
    if (!is_many)
        memset(a->taken, 0xff, sizeof a->taken);
    for (size_t i = a->begin; i < a->dfas && is_many; i++)
        qn_state_add_bytes(s, &s->configs[i], a->taken);
}

/* Sorts configurations [begin, end) by how they read a byte, which changes their order, and copies those in strings
 * after them. */
static alternatives find_alternatives(walker *w, size_t begin, size_t end)
{
    qn_grammar_state *s = w->s;
    const qn_node *nodes = s->grammar->nodes;
    alternatives a = { .begin = begin, .strings = end, .end = end, .top = end };
    qn_config string;
    qn_state_pay(s, end - begin);
    for (size_t i = begin; i < a.strings && !s->failed;) {
        if (!take_as_string(w, &s->configs[i], &a, &string) ||
            (a.top > end && !go_on_alike(s->grammar, &s->configs[end], &string))) {
            i++;
            continue;
        }
        if (reserve(s, a.top + 1) != QN_OK)
            break;
        s->configs[a.top++] = string;
        exchange(&s->configs[i], &s->configs[--a.strings]);
    }
    a.dfas = a.strings;
    for (size_t i = begin; i < a.dfas;) {
        const qn_config *c = &s->configs[i], *first = &s->configs[a.strings - 1];
        if (nodes[c->node].kind == QN_DFA &&
            (a.dfas == a.strings || (c->sub == first->sub && nodes[c->node].a == nodes[first->node].a)))
            exchange(&s->configs[i], &s->configs[--a.dfas]);
        else
            i++;
    }
    find_taken(s, &a);
    return a;
}

static bool any_takes(qn_grammar_state *s, size_t begin, size_t end, uint8_t byte)
{
    for (size_t i = begin; i < end; i++)
        if (qn_state_takes(s, &s->configs[i], byte))
            return true;
    return false;
}

/* Returns which of the alternatives accept a byte. */
static uint32_t find_way(qn_grammar_state *s, const alternatives *a, uint8_t byte)
{
    const bool is_declared = a->declared[byte / 64] >> (byte % 64) & 1, has_strings = a->top > a->end && !is_declared;
    const size_t n_alike = byte == '"' ? a->top : a->end + 1;
    const size_t others_end = a->taken[byte / 64] >> (byte % 64) & 1 ? a->dfas : a->begin;
    uint32_t way = NOTHING;
    for (size_t i = a->begin; i < others_end && (way == NOTHING || way >= ONE); i++)
        if (qn_state_takes(s, &s->configs[i], byte))
            way = way == NOTHING ? ONE + (uint32_t)(i - a->begin) : OTHERS;
    if (a->dfas < a->strings && qn_state_takes(s, &s->configs[a->dfas], byte))
        way = way == NOTHING ? DFAS : OTHERS;
    if (has_strings && any_takes(s, a->end, n_alike, byte))
        return way == NOTHING ? STRINGS : ALL;
    return !has_strings && any_takes(s, a->strings, a->end, byte) ? ALL : way;
}

/* ---- Walks ---- */

static void walk_dfas(walker *w, const qn_shapes *shapes, uint32_t first, uint32_t last, size_t begin, size_t end,
                      size_t at);
static void walk_strings(walker *w, uint32_t first, uint32_t last, size_t begin, size_t end, size_t at);
static void walk_text(walker *w, uint32_t first, uint32_t last, size_t text, size_t at);

static void walk(walker *w, uint32_t first, uint32_t last, const alternatives *a, uint32_t ways[256]);

/* Walks node `i` and its subtree from configurations [begin, end). Configurations from `at` on are free. */
static void walk_child(walker *w, uint32_t i, size_t begin, size_t end, size_t at)
{
    const qn_trie_node *n = &w->nodes[i];
    const size_t n_frames = w->s->n_frames, next = qn_state_step(w->s, begin, end, at, n->byte);
    if (next > at)
        allow(w, n->token);
    if (next > at && i + 1 < n->end) {
        const alternatives a = find_alternatives(w, at, next);
        walk(w, i + 1, n->end, &a, NULL);
    }
    w->s->n_frames = n_frames;
}

/* Returns the same, from `ways` if it is known; ways NULL: nothing is remembered. */
static uint32_t look_up_way(qn_grammar_state *s, const alternatives *a, uint8_t byte, uint32_t ways[256])
{
    if (!ways)
        return find_way(s, a, byte);
    if (ways[byte] == UNKNOWN)
        ways[byte] = find_way(s, a, byte);
    return ways[byte];
}

/* Allows the tokens at nodes [first, last) that follow the alternatives. ways: by byte, as far as they are known. */
static void walk(walker *w, uint32_t first, uint32_t last, const alternatives *a, uint32_t ways[256])
{
    qn_grammar_state *s = w->s;
    for (uint32_t i = first, next; i < last && !s->failed; i = next) {
        next = w->nodes[i].end;
        const uint32_t way = look_up_way(s, a, w->nodes[i].byte, ways);
        if (way == DFAS || way == STRINGS) { /* one table walk covers all neighbouring nodes */
            while (next < last && look_up_way(s, a, w->nodes[next].byte, ways) == way)
                next = w->nodes[next].end;
            if (way == DFAS)
                walk_dfas(w, NULL, i, next, a->dfas, a->strings, a->top);
            else
                walk_strings(w, i, next, a->end, a->top, a->top);
        } else if (way == OTHERS || way == ALL) {
            walk_child(w, i, a->begin, way == ALL ? a->end : a->strings, a->top);
        } else if (way >= ONE) {
            const size_t one = a->begin + way - ONE;
            if (s->grammar->nodes[s->configs[one].node].kind == QN_DFA)
                walk_dfas(w, NULL, i, next, one, one + 1, a->top);
            else if (s->grammar->nodes[s->configs[one].node].kind == QN_TEXT)
                walk_text(w, i, next, one, a->top);
            else
                walk_child(w, i, one, one + 1, a->top);
        }
    }
}

/* ---- DFAs ---- */

/* Whether the configurations after a text accept a byte, or some byte of a kind. */
enum { EXIT_UNKNOWN, EXIT_TAKEN, EXIT_REFUSED };

/* A walk of configurations [at, ends) in the same state of a DFA; [ends, behind) are the configurations after its
 * text. */
typedef struct dfa_walk {
    const qn_dfa *dfa;
    size_t at, ends, behind;
    uint32_t depth; /* of its start, whose state is in w->states */
    uint8_t exits[256], kind_exits[QN_TEXT_KINDS];
    /* The DFA's classes of the bytes of each kind: [class_begins[kind], class_begins[kind + 1]) */
    uint8_t classes[256];
    uint16_t class_begins[QN_TEXT_KINDS + 1];
    /* The state to which the kinds of `looping` and `loop_kinds` lead back. In tries of a class, loop_kinds also has
     * all bytes of characters outside ASCII, if those characters lead back. */
    uint32_t loop_state;
    uint64_t looping, loop_kinds;
    bool has_classes; /* the trie is that of a class */
    /* Tokens without any of these kinds are skipped: all have line ends, which the DFA refuses. All kinds for other
     * tries. */
    uint64_t needed_kinds;
} dfa_walk;

/* Whether the configurations after the text of a DFA accept a byte; remembered in d->exits. */
static bool takes_exit(walker *w, dfa_walk *d, uint8_t byte)
{
    if (d->exits[byte] == EXIT_UNKNOWN)
        d->exits[byte] = any_takes(w->s, d->ends, d->behind, byte) ? EXIT_TAKEN : EXIT_REFUSED;
    return d->exits[byte] == EXIT_TAKEN;
}

/* Walks nodes [first, last) of the byte trie. Where the text may end, the configurations after it are walked
 * separately, except for bytes that both accept. */
static void walk_bytes(walker *w, dfa_walk *d, uint32_t first, uint32_t last)
{
    qn_grammar_state *s = w->s;
    const qn_dfa *dfa = d->dfa;
    qn_state_pay(s, (last - first) / WALKED);
    for (uint32_t i = first; i < last && !s->failed;) {
        const qn_trie_node *n = &w->nodes[i];
        const uint32_t before = w->states[n->depth - 1];
        const uint32_t state = dfa->next[(size_t)before * dfa->n_classes + dfa->class_of[n->byte]];
        if (n->depth > d->depth + 1 && dfa->accept[before] && takes_exit(w, d, n->byte)) {
            for (size_t k = d->at; k < d->ends; k++)
                s->configs[k].sub = before;
            walk_child(w, i, state ? d->at : d->ends, d->behind, d->behind);
            i = n->end;
        } else if (!state) {
            i = n->end;
        } else {
            w->states[n->depth] = state;
            allow(w, n->token);
            i++;
        }
    }
}

static void find_kind_classes(const qn_grammar_vocab *v, dfa_walk *d)
{
    uint16_t n = 0;
    for (int kind = 0; kind < QN_TEXT_KINDS; kind++) {
        d->class_begins[kind] = n;
        for (int i = v->kind_begins[kind]; i < v->kind_begins[kind + 1]; i++) {
            const uint8_t class = d->dfa->class_of[v->kind_bytes[i]];
            if (n == d->class_begins[kind] || d->classes[n - 1] != class)
                d->classes[n++] = class;
        }
    }
    d->class_begins[QN_TEXT_KINDS] = n;
}

/* Sets *state to the state to which all bytes of a kind lead. False if they lead to several. */
static bool take_kind(const dfa_walk *d, uint32_t before, int kind, uint32_t *state)
{
    const uint32_t *row = d->dfa->next + (size_t)before * d->dfa->n_classes;
    const uint16_t begin = d->class_begins[kind], end = d->class_begins[kind + 1];
    if (before == d->loop_state && d->looping >> kind & 1) {
        *state = before;
        return true;
    }
    *state = row[d->classes[begin]];
    for (uint16_t i = begin + 1; i < end; i++)
        if (row[d->classes[i]] != *state)
            return false;
    return true;
}

static bool takes_kind_exit(walker *w, dfa_walk *d, int kind)
{
    if (d->kind_exits[kind] == EXIT_UNKNOWN) {
        d->kind_exits[kind] = EXIT_REFUSED;
        for (int i = w->v->kind_begins[kind]; i < w->v->kind_begins[kind + 1]; i++)
            if (takes_exit(w, d, w->v->kind_bytes[i]))
                d->kind_exits[kind] = EXIT_TAKEN;
    }
    return d->kind_exits[kind] == EXIT_TAKEN;
}

static void find_loops(walker *w, dfa_walk *d, uint32_t state)
{
    uint64_t steps = 0;
    d->loop_state = state;
    d->looping = 0;
    for (int kind = 0; kind < QN_TEXT_KINDS; kind++) {
        uint32_t next;
        if (d->class_begins[kind] < d->class_begins[kind + 1] && take_kind(d, state, kind, &next) && next == state)
            d->looping |= UINT64_C(1) << kind;
    }
    d->loop_kinds = d->looping;
    if (d->has_classes && qn_text_foreign_loops(d->dfa, state, &steps))
        d->loop_kinds |= w->v->foreign_kinds;
    qn_state_pay(w->s, steps + QN_TEXT_KINDS / WALKED);
}

/* Whether all tokens of a node and its subtree stay in the loops of the state before it. */
static bool is_loop(const walker *w, const dfa_walk *d, const qn_shape *n, uint32_t before)
{
    return before == d->loop_state && !(n->kinds & ~d->loop_kinds) &&
           !(d->has_classes && UINT64_C(1) << n->kind & w->v->inner_kinds);
}

static void find_exit_kinds(walker *w, dfa_walk *d)
{
    d->needed_kinds = 0;
    for (int kind = 0; kind < QN_TEXT_KINDS; kind++)
        if (takes_kind_exit(w, d, kind))
            d->needed_kinds |= UINT64_C(1) << kind;
}

/* Allows tokens [from, to) of shapes. set: the set of all of them, or -1. */
static void allow_shapes(const walker *w, const qn_shapes *shapes, uint32_t from, uint32_t to, int32_t set)
{
    if (set >= 0) {
        const uint32_t *words = shapes->sets + (size_t)set * w->v->n_words;
        for (size_t i = 0; i < w->v->n_words; i++)
            w->allowed[i] |= words[i];
        qn_state_pay(w->s, w->v->n_words / JOINED);
        return;
    }
    for (uint32_t i = from; i < to; i++)
        qn_mask_set(w->allowed, shapes->tokens[i]);
    qn_state_pay(w->s, (to - from) / WALKED);
}

/* Walks nodes [first, last) of the trie of shapes, and the byte trie where bytes of one kind lead to different
 * states. */
static void walk_shapes(walker *w, dfa_walk *d, const qn_shapes *shapes, uint32_t first, uint32_t last)
{
    qn_state_pay(w->s, (last - first) / WALKED);
    for (uint32_t i = first; i < last && !w->s->failed;) {
        const qn_shape *n = &shapes->nodes[i];
        const uint32_t before = w->states[n->depth - 1];
        uint32_t state;
        if (!(n->kinds & d->needed_kinds)) {
            i = n->end;
            continue;
        }
        if (is_loop(w, d, n, before)) {
            allow_shapes(w, shapes, n->tokens, shapes->nodes[n->end].tokens, n->all_set);
            i = n->end;
            continue;
        }
        if (!take_kind(d, before, n->kind, &state) ||
            (n->depth > d->depth + 1 && d->dfa->accept[before] && takes_kind_exit(w, d, n->kind))) {
            for (uint32_t k = n->members; k < n[1].members; k++)
                walk_bytes(w, d, shapes->members[k], w->nodes[shapes->members[k]].end);
            i = n->end;
            continue;
        }
        if (!state) {
            i = n->end;
        } else {
            w->states[n->depth] = state;
            allow_shapes(w, shapes, n->tokens, n[1].tokens, n->own_set);
            if (state == before && state != d->loop_state && n->end > i + 1)
                find_loops(w, d, state);
            i++;
        }
    }
}

/* Walks from configurations [begin, end) in the same state of a DFA. With shapes the nodes are those of shapes, from
 * the root on; without, those of the byte trie. */
static void walk_dfas(walker *w, const qn_shapes *shapes, uint32_t first, uint32_t last, size_t begin, size_t end,
                      size_t at)
{
    qn_grammar_state *s = w->s;
    const size_t n_frames = s->n_frames;
    dfa_walk d;
    d.dfa = &s->grammar->dfas[s->grammar->nodes[s->configs[begin].node].a];
    d.at = at;
    d.ends = at + (end - begin);
    d.depth = shapes ? 0 : w->nodes[first].depth - 1u;
    if (reserve(s, d.ends) != QN_OK)
        return;
    memcpy(&s->configs[at], &s->configs[begin], (end - begin) * sizeof *s->configs);
    w->states[d.depth] = s->configs[begin].sub;
    d.behind = qn_state_follow(s, at, d.ends, d.ends);
    memset(d.exits, EXIT_UNKNOWN, sizeof d.exits);
    if (shapes) {
        memset(d.kind_exits, EXIT_UNKNOWN, sizeof d.kind_exits);
        find_kind_classes(w->v, &d);
        d.has_classes = shapes < w->v->shapes + QN_TEXT_CLASSES;
        find_loops(w, &d, w->states[0]);
        d.needed_kinds = ~UINT64_C(0);
        if (shapes == &w->v->shapes[QN_TRIE_LINES] && !d.dfa->takes_line_ends)
            find_exit_kinds(w, &d);
        walk_shapes(w, &d, shapes, first, last);
    } else {
        walk_bytes(w, &d, first, last);
    }
    s->n_frames = n_frames;
}

/* Walks from one text with length limits; otherwise as walk_dfas. */
static void walk_text(walker *w, uint32_t first, uint32_t last, size_t text, size_t at)
{
    enum { TAKEN = 1, REFUSED };
    qn_grammar_state *s = w->s;
    const uint32_t depth = w->nodes[first].depth - 1u;
    const size_t n_frames = s->n_frames, ends = at + 1;
    uint8_t exits[256] = { 0 };
    if (reserve(s, ends) != QN_OK)
        return;
    qn_config c = s->configs[at] = s->configs[text];
    w->states[depth] = c.sub;
    w->counts[depth] = c.count;
    const size_t behind = qn_state_follow(s, at, ends, ends);
    qn_state_pay(s, (last - first) / WALKED);
    for (uint32_t i = first; i < last && !s->failed;) {
        const qn_trie_node *n = &w->nodes[i];
        c.sub = w->states[n->depth - 1];
        c.count = w->counts[n->depth - 1];
        const bool may_exit = n->depth > depth + 1 && qn_state_text_may_end(s->grammar, &c);
        if (may_exit && !exits[n->byte])
            exits[n->byte] = any_takes(s, ends, behind, n->byte) ? TAKEN : REFUSED;
        if (may_exit && exits[n->byte] == TAKEN) {
            s->configs[at] = c;
            walk_child(w, i, at, behind, behind);
            i = n->end;
        } else if (!qn_state_text_step(s->grammar, &c, n->byte)) {
            i = n->end;
        } else {
            w->states[n->depth] = c.sub;
            w->counts[n->depth] = c.count;
            allow(w, n->token);
            i++;
        }
    }
    s->n_frames = n_frames;
}

/* The configurations after the quote of JSON strings [begin, end). */
typedef struct closing {
    size_t begin, end, at;
    bool is_known, is_constant; /* is_known: computed; is_constant: independent of the quote's position */
    bool follows;
    size_t n_frames;
    alternatives a;
    uint32_t ways[256];
} closing;

static bool is_constant(const qn_grammar_state *s, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        const qn_string_rule *rule = &s->grammar->strings[s->grammar->nodes[s->configs[i].node].a];
        if (rule->dfa >= 0 || s->configs[i].count < rule->min)
            return false;
    }
    return true;
}

/* Walks after a quote at node `i`. sub and count are as in qn_config; count is relative to the start of the walk. */
static void walk_closed(walker *w, uint32_t i, closing *c, uint32_t sub, uint32_t count)
{
    qn_grammar_state *s = w->s;
    const size_t n = c->end - c->begin, next_to = c->at + n;
    if (!c->is_known) {
        for (size_t k = 0; k < n; k++) {
            s->configs[c->at + k] = s->configs[c->begin + k];
            s->configs[c->at + k].sub = sub;
            s->configs[c->at + k].count += count;
        }
        s->n_frames = c->n_frames;
        const size_t end = qn_state_step(s, c->at, next_to, next_to, '"');
        c->follows = end > next_to;
        c->a = find_alternatives(w, next_to, end);
        c->is_known = c->is_constant;
        memset(c->ways, 0, sizeof c->ways);
    }
    if (!c->follows)
        return;
    allow(w, w->nodes[i].token);
    if (i + 1 < w->nodes[i].end)
        walk(w, i + 1, w->nodes[i].end, &c->a, c->is_constant ? c->ways : NULL);
}

/* Walks from configurations [begin, end) in JSON strings that continue alike up to the quote. */
static void walk_strings(walker *w, uint32_t first, uint32_t last, size_t begin, size_t end, size_t at)
{
    qn_grammar_state *s = w->s;
    const qn_config string = s->configs[begin];
    const qn_string_rule *rule = &s->grammar->strings[s->grammar->nodes[string.node].a];
    const qn_string_table *table = qn_string_machine(rule->form);
    const qn_dfa *dfa = rule->dfa >= 0 ? &s->grammar->dfas[rule->dfa] : NULL;
    const uint32_t depth = w->nodes[first].depth - 1u;
    closing c = {
        .begin = begin, .end = end, .at = at, .is_constant = is_constant(s, begin, end), .n_frames = s->n_frames
    };
    if (reserve(s, at + (end - begin)) != QN_OK)
        return;
    w->characters[depth] = (uint8_t)string.sub;
    w->states[depth] = string.sub >> 8;
    w->counts[depth] = 0;
    qn_state_pay(s, (last - first) / WALKED);
    for (uint32_t i = first; i < last && !s->failed;) {
        const qn_trie_node *n = &w->nodes[i];
        const uint32_t above = n->depth - 1u, character = (*table)[w->characters[above]][n->byte],
                       count = w->counts[above];
        uint32_t state = w->states[above];
        if (character == QN_STRING_END) {
            walk_closed(w, i, &c, w->characters[above] | state << 8, count);
            i = n->end;
            continue;
        }
        if (dfa)
            state = dfa->next[(size_t)state * dfa->n_classes + dfa->class_of[n->byte]];
        if (character == QN_STRING_REJECTED || (dfa && !state) ||
            (!w->characters[above] && string.count + count >= rule->max)) {
            i = n->end;
            continue;
        }
        w->characters[n->depth] = (uint8_t)character;
        w->states[n->depth] = state;
        w->counts[n->depth] = count + !character;
        allow(w, n->token);
        i++;
    }
    s->n_frames = c.n_frames;
}

/* ---- The mask ---- */

/* Adds the tokens of a set that begin at most `most` characters. */
static void add_set(const walker *w, const qn_token_set *set, uint32_t most)
{
    const bool is_few = most < QN_SHORT_TEXTS;
    const uint32_t *tokens = most == QN_UNLIMITED ? set->all : set->few[is_few ? most : QN_SHORT_TEXTS - 1];
    qn_state_pay(w->s, w->v->n_words / JOINED);
    for (size_t i = 0; !is_few && most != QN_UNLIMITED && i < set->n_longer && set->characters[i] <= most; i++)
        qn_mask_set(w->allowed, set->longer[i]);
    for (size_t i = 0; i < w->v->n_words; i++)
        w->allowed[i] |= tokens[i];
}

/* The bytes that may follow the text of a DFA's configuration. */
typedef struct following {
    size_t config;
    bool is_known;
    uint64_t bytes[4];
} following;

static void find_following(qn_grammar_state *s, following *next)
{
    const size_t n_frames = s->n_frames, at = 2 * s->n_configs;
    const size_t end = qn_state_follow(s, next->config, next->config + 1, at);
    next->is_known = true;
    if (end - at > MAX_FOLLOWING)
        memset(next->bytes, 0xff, sizeof next->bytes);
    for (size_t i = at; i < end && end - at <= MAX_FOLLOWING; i++)
        qn_state_add_bytes(s, &s->configs[i], next->bytes);
    s->n_frames = n_frames;
}

/* Whether any byte may follow the text. */
static bool may_follow(qn_grammar_state *s, following *next)
{
    if (!next->is_known)
        find_following(s, next);
    return next->bytes[0] || next->bytes[1] || next->bytes[2] || next->bytes[3];
}

/* Whether a byte of a class may follow the text. */
static bool goes_on(qn_grammar_state *s, following *next, qn_text_class kind)
{
    if (!may_follow(s, next))
        return false;
    uint64_t bytes[4];
    qn_text_bytes(kind, bytes);
    for (int i = 0; i < 4; i++)
        if (next->bytes[i] & bytes[i])
            return true;
    return false;
}

static void add_inside(walker *w, qn_string_form form, uint32_t most)
{
    if (most <= w->added_inside[form])
        return;
    add_set(w, &w->v->inside[form], most);
    w->added_inside[form] = most;
}

/* Adds the texts of classes up to `last` that a DFA accepts whole. Returns the tries that remain to be walked. */
static unsigned add_texts(walker *w, const qn_dfa *dfa, uint32_t state, qn_text_class last, following *next)
{
    unsigned tries = QN_TRIES_ALL;
    uint32_t added[QN_TEXT_CLASSES] = { 0 }; /* by class, the number of characters added */
    uint64_t steps = 0;
    for (int kind = (int)last; kind >= 0; kind--) {
        const unsigned parts = qn_text_contains((qn_text_class)kind);
        if (!(tries & parts))
            continue;
        const qn_text_fit fit = qn_text_fits(dfa, state, (qn_text_class)kind, &steps);
        if (fit.characters > added[kind])
            add_set(w, &w->v->texts[kind], fit.characters);
        for (int part = 0; part <= kind; part++)
            if (parts >> part & 1 && added[part] < fit.characters)
                added[part] = fit.characters;
        if (fit.characters == QN_UNLIMITED ||
            (fit.is_closed && !(fit.ends_within && goes_on(w->s, next, (qn_text_class)kind))))
            tries &= ~parts;
    }
    qn_state_pay(w->s, steps);
    if (!dfa->takes_line_ends && !may_follow(w->s, next))
        tries &= ~(1u << QN_TRIE_LINES);
    return tries;
}

/* Bits after those of tries: closers of each form. */
enum { FIRST_CLOSERS = QN_TRIES };

/* Whether any token that closes a string may do so after `count` characters. */
static bool may_close_anywhere(const walker *w, const qn_string_rule *rule, uint32_t count)
{
    return count >= rule->min &&
           (rule->max == QN_UNLIMITED || rule->max - count >= w->v->closers[rule->form].most_characters);
}

/* Replaces a text that is long enough, and that no token makes too long, by the node before it, which has no length
 * limits. */
static void stop_counting(const qn_grammar *g, qn_config *c)
{
    const qn_node *n = &g->nodes[c->node];
    if (n->kind != QN_TEXT)
        return;
    const qn_string_rule *rule = &g->strings[n->a];
    if (c->count < rule->min || (rule->max != QN_UNLIMITED && rule->max - c->count <= QN_TOKEN_BYTES))
        return;
    c->node--;
    c->count = 0;
}

/* Adds the precomputed sets of a configuration. Returns the tries that remain to be walked. */
static unsigned prepare(walker *w, size_t config)
{
    const qn_grammar *g = w->s->grammar;
    qn_config c = w->s->configs[config];
    stop_counting(g, &c);
    const qn_node *n = &g->nodes[c.node];
    switch ((qn_node_kind)n->kind) {
    case QN_DFA: return add_texts(w, &g->dfas[n->a], c.sub, QN_TEXT_LINE, &(following){ .config = config });
    case QN_STRING: {
        const qn_string_rule *rule = &g->strings[n->a];
        if (c.sub & 255)
            return QN_TRIES_ALL;
        if (rule->dfa >= 0)
            return add_texts(w, &g->dfas[rule->dfa], c.sub >> 8, QN_TEXT_ANY,
                             &(following){ .bytes = { UINT64_C(1) << '"' }, .is_known = true });
        add_inside(w, rule->form, rule->max != QN_UNLIMITED ? rule->max - c.count : QN_UNLIMITED);
        return may_close_anywhere(w, rule, c.count) ? 1 << (FIRST_CLOSERS + rule->form) : 1 << QN_TRIE_CLOSING;
    }
    case QN_KEY:
        if ((c.sub & 255) || !qn_state_adds_key(w->s, &c))
            return QN_TRIES_ALL;
        add_inside(w, g->strings[g->nodes[g->objects[n->a].rest].a].form, QN_UNLIMITED);
        return 1 << QN_TRIE_CLOSING;
    default: return n->kind == QN_FINAL ? 0 : QN_TRIES_ALL;
    }
}

/* Returns the way of all bytes of a shape's kind with which tokens begin; OTHERS if they differ. */
static uint32_t find_shape_way(walker *w, const qn_shapes *shapes, uint32_t i, const alternatives *a,
                               uint32_t ways[256])
{
    const qn_shape *n = &shapes->nodes[i];
    const uint32_t way = look_up_way(w->s, a, w->nodes[shapes->members[n->members]].byte, ways);
    for (uint32_t k = n->members + 1; k < n[1].members; k++)
        if (look_up_way(w->s, a, w->nodes[shapes->members[k]].byte, ways) != way)
            return OTHERS;
    return way;
}

/* Walks a whole trie; by shapes where a single DFA accepts the first byte. */
static void walk_roots(walker *w, const qn_shapes *shapes, const alternatives *a, uint32_t ways[256])
{
    const qn_grammar_state *s = w->s;
    for (uint32_t i = 0, next; i < shapes->n && !s->failed; i = next) {
        const uint32_t way = find_shape_way(w, shapes, i, a, ways);
        const size_t one = way >= ONE ? a->begin + way - ONE : a->dfas;
        next = shapes->nodes[i].end;
        if (way == DFAS || (way >= ONE && s->grammar->nodes[s->configs[one].node].kind == QN_DFA)) {
            while (next < shapes->n && find_shape_way(w, shapes, next, a, ways) == way)
                next = shapes->nodes[next].end;
            walk_dfas(w, shapes, i, next, one, way == DFAS ? a->strings : one + 1, a->top);
            continue;
        }
        for (uint32_t k = shapes->nodes[i].members; way != NOTHING && k < shapes->nodes[i + 1].members;) {
            const uint32_t first = shapes->members[k];
            uint32_t last = w->nodes[first].end;
            for (k++; k < shapes->nodes[i + 1].members && shapes->members[k] == last; k++)
                last = w->nodes[last].end;
            walk(w, first, last, a, ways);
        }
    }
}

/* Walks each trie from the configurations that need it. */
static void walk_tries(walker *w, const uint16_t *tries, size_t n)
{
    qn_grammar_state *s = w->s;
    alternatives a;
    uint32_t ways[256];
    for (int t = 0; t < QN_TRIES; t++) {
        bool is_known = t > 0;
        for (size_t i = 0; i < n && is_known; i++)
            is_known = (tries[i] >> t & 1) == (tries[i] >> (t - 1) & 1);
        if (!is_known) {
            size_t end = n;
            for (size_t i = 0; i < n; i++)
                if (tries[i] >> t & 1) {
                    s->configs[end] = s->configs[i];
                    stop_counting(s->grammar, &s->configs[end++]);
                }
            a = find_alternatives(w, n, end);
            memset(ways, 0, sizeof ways);
        }
        w->nodes = w->v->tries[t].nodes;
        if (a.top > n && t < QN_TRIE_CLOSING)
            walk_roots(w, &w->v->shapes[t], &a, ways);
        else if (a.top > n)
            walk(w, 0, (uint32_t)w->v->tries[t].n, &a, ways);
    }
}

/* Walks the bytes after the quote of tokens that close a JSON string, from the configurations with the form's bit. */
static void walk_closers(walker *w, const uint16_t *tries, size_t n, int form)
{
    qn_grammar_state *s = w->s;
    const qn_closers *closers = &w->v->closers[form];
    size_t end = n;
    for (size_t i = 0; i < n; i++)
        if (tries[i] >> (FIRST_CLOSERS + form) & 1)
            s->configs[end++] = s->configs[i];
    if (end == n)
        return;
    const size_t next = qn_state_step(s, n, end, end, '"');
    if (next == end)
        return;
    const alternatives a = find_alternatives(w, end, next);
    uint32_t ways[256] = { UNKNOWN };
    w->nodes = closers->trie.nodes;
    w->closers = closers;
    if (closers->has_bare)
        allow_group(w, 0);
    walk(w, 0, (uint32_t)closers->trie.n, &a, ways);
    w->closers = NULL;
}

/* Makes the mask of a state, without the cache and its lock. */
static qn_status make_mask(const qn_grammar_vocab *v, qn_grammar_state *s, uint32_t *allowed)
{
    walker w = { .v = v, .s = s, .allowed = allowed };
    const size_t n = s->n_configs, n_frames = s->n_frames;
    uint16_t tries[QN_GRAMMAR_THREADS];
    memset(allowed, 0, v->n_words * sizeof *allowed);
    QN_TRY(reserve(s, 2 * n));
    qn_state_begin(s, s->mask_steps);
    for (size_t i = 0; i < n && !s->failed; i++)
        tries[i] = (uint16_t)prepare(&w, i);
    if (!s->failed)
        walk_tries(&w, tries, n);
    for (int form = 0; form < QN_STRING_FORMS && !s->failed; form++)
        walk_closers(&w, tries, n, form);
    if (qn_state_has_final(s, 0, n))
        for (size_t i = 0; i < v->n_ends; i++)
            qn_mask_set(allowed, (uint32_t)v->ends[i]);
    s->n_frames = n_frames;
    return s->failed ? qn_fail(QN_ERR_UNSUPPORTED, "grammar: too ambiguous for a mask") : QN_OK;
}

/* ---- The cache ---- */

/* Returns the cache entry of a state's mask; if it is not cached, the least recently used entry of its set. The caller
 * holds the vocabulary's lock. */
static qn_cached_mask *find_cached(qn_grammar_vocab *v, qn_hash128 key, bool *is_found)
{
    qn_cached_mask *set = v->cached + key.low % (v->n_cached / QN_CACHE_WAYS) * QN_CACHE_WAYS, *oldest = set;
    *is_found = true;
    for (int i = 0; i < QN_CACHE_WAYS; i++) {
        if (set[i].used && set[i].key[0] == key.low && set[i].key[1] == key.high)
            return &set[i];
        if (set[i].used < oldest->used)
            oldest = &set[i];
    }
    *is_found = false;
    return oldest;
}

/* Masks are found by this hash alone. It contains the grammar's serial, and a grammar belongs to one scope, so masks do
 * too. */
qn_hash128 qn_state_hash(const qn_grammar_state *s)
{
    const qn_hash128 frames = qn_keyed_hash128(s->frames, s->n_frames * sizeof *s->frames);
    const qn_hash128 configs = qn_keyed_hash128(s->configs, s->n_configs * sizeof *s->configs);
    const uint64_t all[] = { s->grammar->serial, frames.low, frames.high, configs.low, configs.high };
    return qn_keyed_hash128(all, sizeof all);
}

qn_status qn_grammar_mask(qn_grammar_vocab *v, qn_grammar_state *s, uint32_t *allowed)
{
    bool is_found;
    if (!v->n_cached)
        return make_mask(v, s, allowed);
    const qn_hash128 key = qn_state_hash(s);
    pthread_mutex_lock(&v->lock);
    qn_cached_mask *place = find_cached(v, key, &is_found);
    if (is_found) {
        place->used = ++v->n_uses;
        memcpy(allowed, v->cached_masks + (size_t)(place - v->cached) * v->n_words, v->n_words * sizeof *allowed);
    }
    pthread_mutex_unlock(&v->lock);
    if (is_found)
        return QN_OK;
    QN_TRY(make_mask(v, s, allowed));
    pthread_mutex_lock(&v->lock);
    place = find_cached(v, key, &is_found);
    *place = (qn_cached_mask){ { key.low, key.high }, ++v->n_uses };
    memcpy(v->cached_masks + (size_t)(place - v->cached) * v->n_words, allowed, v->n_words * sizeof *allowed);
    pthread_mutex_unlock(&v->lock);
    return QN_OK;
}
