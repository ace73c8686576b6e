/* Masks: a walk over the vocabulary's trie with the configurations that each prefix leads to. Where one configuration is left
 * that is a DFA or a JSON string, its table is walked instead. What stays in a JSON string is known beforehand. */
#include "text/grammar/vocab.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct walker {
    const qn_grammar_vocab *v;
    qn_grammar_state *s;
    const qn_trie_node *nodes;
    uint32_t *allowed;
    uint32_t states[QN_TOKEN_BYTES + 1], counts[QN_TOKEN_BYTES + 1]; /* by depth, of the table that is walked */
    uint8_t characters[QN_TOKEN_BYTES + 1];                          /* states of the JSON string */
} walker;

static void allow(const walker *w, int32_t token)
{
    for (; token >= 0; token = w->v->same[token])
        qn_mask_set(w->allowed, (uint32_t)token);
}

/* ---- The trie ---- */

static void walk(walker *w, uint32_t first, uint32_t last, size_t begin, size_t end);

/* Nodes below one whose configurations are [begin, end): node `i`, and what is below it. */
static void walk_child(walker *w, uint32_t i, size_t begin, size_t end)
{
    const qn_trie_node *n = &w->nodes[i];
    const size_t n_frames = w->s->n_frames, next = qn_state_step(w->s, begin, end, n->byte);
    if (next > end) {
        allow(w, n->token);
        walk(w, i + 1, n->end, end, next);
    }
    w->s->n_frames = n_frames;
}

/* The same where the configuration before the byte is `c`. */
static void walk_from(walker *w, uint32_t i, qn_config c, size_t end)
{
    qn_grammar_state *s = w->s;
    if (qn_realloc_array(&s->configs, &s->config_capacity, end + 1, sizeof *s->configs, "grammar state") != QN_OK) {
        s->failed = true;
        return;
    }
    s->configs[end] = c;
    walk_child(w, i, end, end + 1);
}

/* Whether something follows the text of a DFA's node but the end. */
static bool goes_on(walker *w, const qn_config *c, size_t end)
{
    qn_grammar_state *s = w->s;
    const size_t n_frames = s->n_frames, next = qn_state_follow(s, end, s->grammar->nodes[c->node].next, c->frame);
    bool follows = false;
    for (size_t i = end; i < next; i++)
        follows |= s->configs[i].node != QN_NODE_FINAL;
    s->n_frames = n_frames;
    return follows;
}

static void walk_dfa(walker *w, uint32_t first, uint32_t last, qn_config c, size_t end)
{
    const qn_dfa *dfa = &w->s->grammar->dfas[w->s->grammar->nodes[c.node].a];
    const bool follows = goes_on(w, &c, end);
    const uint32_t depth = w->nodes[first].depth - 1u;
    w->states[depth] = c.sub;
    w->s->steps += (last - first) / 8;
    for (uint32_t i = first; i < last && !w->s->failed;) {
        const qn_trie_node *n = &w->nodes[i];
        const uint32_t state = dfa->next[(size_t)w->states[n->depth - 1] * dfa->n_classes + dfa->class_of[n->byte]];
        if (!state) {
            i = n->end;
        } else if (follows && dfa->accept[state]) {
            c.sub = w->states[n->depth - 1];
            walk_from(w, i, c, end);
            i = n->end;
        } else {
            w->states[n->depth] = state;
            allow(w, n->token);
            i++;
        }
    }
}

static void walk_string(walker *w, uint32_t first, uint32_t last, qn_config c, size_t end)
{
    const qn_string_rule *rule = &w->s->grammar->strings[w->s->grammar->nodes[c.node].a];
    const qn_string_table *table = qn_string_machine(rule->form);
    const qn_dfa *dfa = rule->dfa >= 0 ? &w->s->grammar->dfas[rule->dfa] : NULL;
    const uint32_t depth = w->nodes[first].depth - 1u;
    w->characters[depth] = (uint8_t)c.sub;
    w->states[depth] = c.sub >> 8;
    w->counts[depth] = c.count;
    w->s->steps += (last - first) / 8;
    for (uint32_t i = first; i < last && !w->s->failed;) {
        const qn_trie_node *n = &w->nodes[i];
        const uint32_t above = n->depth - 1u, character = (*table)[w->characters[above]][n->byte];
        uint32_t state = w->states[above];
        if (character == QN_STRING_END) {
            c.sub = w->characters[above] | state << 8;
            c.count = w->counts[above];
            walk_from(w, i, c, end);
            i = n->end;
            continue;
        }
        if (dfa)
            state = dfa->next[(size_t)state * dfa->n_classes + dfa->class_of[n->byte]];
        if (character == QN_STRING_REJECTED || (dfa && !state) || (!w->characters[above] && w->counts[above] >= rule->max)) {
            i = n->end;
            continue;
        }
        w->characters[n->depth] = (uint8_t)character;
        w->states[n->depth] = state;
        w->counts[n->depth] = w->counts[above] + !character;
        allow(w, n->token);
        i++;
    }
}

/* Allows the tokens that end at nodes [first, last) which follow configurations [begin, end), the topmost ones. */
static void walk(walker *w, uint32_t first, uint32_t last, size_t begin, size_t end)
{
    qn_grammar_state *s = w->s;
    size_t n = 0, which = begin;
    for (size_t i = begin; i < end; i++)
        if (s->configs[i].node != QN_NODE_FINAL) {
            which = i;
            n++;
        }
    if (first == last || !n || s->failed)
        return;
    s->failed = s->steps > QN_GRAMMAR_STEPS;
    const int kind = n == 1 ? s->grammar->nodes[s->configs[which].node].kind : QN_NEVER;
    if (kind == QN_DFA) {
        walk_dfa(w, first, last, s->configs[which], end);
        return;
    }
    if (kind == QN_STRING) {
        walk_string(w, first, last, s->configs[which], end);
        return;
    }
    for (uint32_t i = first; i < last && !s->failed; i = w->nodes[i].end)
        walk_child(w, i, begin, end);
}

/* ---- The mask ---- */

static void add_inside(const walker *w, qn_string_form form, uint32_t most)
{
    const qn_grammar_vocab *v = w->v;
    const uint32_t *inside = most < QN_SHORT_STRINGS ? v->inside_short[most] : v->inside[form];
    if (most != QN_UNLIMITED && most >= QN_SHORT_STRINGS) {
        inside = v->inside_short[QN_SHORT_STRINGS - 1];
        for (size_t i = 0; i < v->n_long && v->long_characters[i] <= most; i++)
            qn_mask_set(w->allowed, v->inside_long[i]);
    }
    for (size_t i = 0; i < v->n_words; i++)
        w->allowed[i] |= inside[i];
}

enum { ALL = 1, CLOSING = 2 };

/* The tries to walk for a configuration; adds what is known beforehand. */
static int prepare(const walker *w, const qn_config *c)
{
    const qn_grammar *g = w->s->grammar;
    const qn_node *n = &g->nodes[c->node];
    if (n->kind == QN_FINAL)
        return 0;
    if (n->kind == QN_STRING && !(c->sub & 255) && g->strings[n->a].dfa < 0) {
        const qn_string_rule *rule = &g->strings[n->a];
        add_inside(w, rule->form, rule->max != QN_UNLIMITED ? rule->max - c->count : QN_UNLIMITED);
        return CLOSING;
    }
    if (n->kind != QN_KEY || (c->sub & 255) || !qn_state_adds_key(w->s, c))
        return ALL;
    add_inside(w, g->strings[g->nodes[g->objects[n->a].rest].a].form, QN_UNLIMITED); /* declared names have its spellings */
    return CLOSING;
}

static qn_status make_mask(const qn_grammar_vocab *v, qn_grammar_state *s, uint32_t *allowed)
{
    walker w = { .v = v, .s = s, .allowed = allowed };
    const size_t n = s->n_configs, n_frames = s->n_frames;
    const qn_trie *const tries[] = { &v->all, &v->closing };
    int walked[QN_GRAMMAR_THREADS];
    memset(allowed, 0, v->n_words * sizeof *allowed);
    QN_TRY(qn_realloc_array(&s->configs, &s->config_capacity, 2 * n, sizeof *s->configs, "grammar state"));
    s->steps = 0;
    for (size_t i = 0; i < n; i++)
        walked[i] = prepare(&w, &s->configs[i]);
    for (int t = 0; t < 2; t++) {
        size_t end = n;
        for (size_t i = 0; i < n; i++)
            if (walked[i] >> t & 1)
                s->configs[end++] = s->configs[i];
        w.nodes = tries[t]->nodes;
        walk(&w, 0, (uint32_t)tries[t]->n, n, end);
    }
    if (qn_state_has_final(s, 0, n))
        for (size_t i = 0; i < v->n_ends; i++)
            qn_mask_set(allowed, (uint32_t)v->ends[i]);
    s->n_frames = n_frames;
    const bool failed = s->failed;
    s->failed = false;
    return failed ? qn_fail(QN_ERR_UNSUPPORTED, "grammar: too ambiguous for a mask") : QN_OK;
}

/* ---- The cache ---- */

/* The place of a state's mask: its own if it is cached, else that of the mask that was not used for longest. */
static qn_cached_mask *find_cached(qn_grammar_vocab *v, XXH128_hash_t key, bool *is_found)
{
    qn_cached_mask *set = v->cached + key.low64 % (v->n_cached / QN_CACHE_WAYS) * QN_CACHE_WAYS, *oldest = set;
    *is_found = true;
    for (int i = 0; i < QN_CACHE_WAYS; i++) {
        if (set[i].used && set[i].key[0] == key.low64 && set[i].key[1] == key.high64)
            return &set[i];
        if (set[i].used < oldest->used)
            oldest = &set[i];
    }
    *is_found = false;
    return oldest;
}

static XXH128_hash_t hash_state(const qn_grammar_state *s)
{
    const XXH128_hash_t frames = XXH3_128bits(s->frames, s->n_frames * sizeof *s->frames);
    const XXH128_hash_t configs = XXH3_128bits(s->configs, s->n_configs * sizeof *s->configs);
    const uint64_t all[] = { s->grammar->serial, frames.low64, frames.high64, configs.low64, configs.high64 };
    return XXH3_128bits(all, sizeof all);
}

qn_status qn_grammar_mask(qn_grammar_vocab *v, qn_grammar_state *s, uint32_t *allowed)
{
    bool is_found;
    if (!v->n_cached)
        return make_mask(v, s, allowed);
    const XXH128_hash_t key = hash_state(s);
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
    *place = (qn_cached_mask){ { key.low64, key.high64 }, ++v->n_uses };
    memcpy(v->cached_masks + (size_t)(place - v->cached) * v->n_words, allowed, v->n_words * sizeof *allowed);
    pthread_mutex_unlock(&v->lock);
    return QN_OK;
}
