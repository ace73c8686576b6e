/* States: sets of configurations, each a node with a stack of frames. Equal frames are shared, so that equal
 * configurations have equal bytes. */
#include "grammar/automaton.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_FRAMES = 1 << 14, MAX_WORK = 1024, MAX_SPLITS = 1024, PIECE = 256 };

/* Comparisons that count as one step. */
enum { COMPARED = 4, COMPARED_FRAMES = 8 };

/* ---- Frames ---- */

/* Returns the index of a frame equal to this one, added if there is none; 0 after a failure. Indices stay valid until
 * n_frames is reset. */
static uint32_t add_frame(qn_grammar_state *s, const qn_frame *frame)
{
    for (size_t i = s->n_frames; i-- > 0;)
        if (!memcmp(&s->frames[i], frame, sizeof *frame)) {
            qn_state_pay(s, (s->n_frames - i) / COMPARED_FRAMES);
            return (uint32_t)i;
        }
    qn_state_pay(s, s->n_frames / COMPARED_FRAMES);
    if (s->n_frames >= MAX_FRAMES || qn_realloc_array(&s->frames, &s->frame_capacity, s->n_frames + 1,
                                                      sizeof *s->frames, "grammar state") != QN_OK) {
        s->failed = true;
        return 0;
    }
    s->frames[s->n_frames] = *frame;
    return (uint32_t)s->n_frames++;
}

/* Pushes the frame of a call. A call at the end of a rule returns directly to the rule's caller. */
static bool push(qn_grammar_state *s, const qn_node *call, uint32_t parent, uint32_t *frame)
{
    const uint16_t level = (uint16_t)(s->frames[parent].level + call->lo);
    uint32_t node = call->next;
    if (s->grammar->nodes[node].kind == QN_RETURN) {
        node = s->frames[parent].node;
        parent = s->frames[parent].parent;
    }
    const qn_frame f = {
        .node = node, .parent = parent, .depth = (uint16_t)(s->frames[parent].depth + 1), .level = level
    };
    if (f.depth > QN_GRAMMAR_DEPTH)
        return false;
    *frame = add_frame(s, &f);
    return !s->failed;
}

/* ---- Objects ---- */

typedef struct key_rules {
    uint64_t allowed[4]; /* properties */
    bool additional, any, may_close;
} key_rules;

/* Restricts the rules to properties in order: allows those up to the first required one that is missing, except any
 * after which too few are left for the minimum. */
static void keep_order(const qn_object_rule *o, const qn_frame *f, key_rules *rules)
{
    uint32_t behind = 0;
    for (int i = 0, is_past = 0; i < 4; i++) {
        const uint64_t missing = o->required[i] & ~f->seen[i];
        rules->allowed[i] &= is_past ? 0 : missing ? missing ^ (missing - 1) : ~UINT64_C(0);
        is_past |= missing != 0;
    }
    for (int i = 3; i >= 0 && !o->additional && f->count + 1 < o->min; i--) {
        for (uint64_t left = rules->allowed[i]; left && f->count + 1 + behind < o->min;) {
            const int last = 63 - __builtin_clzll(left);
            const uint64_t after = last < 63 ? o->usable[i] >> (last + 1) : 0;
            left ^= UINT64_C(1) << last;
            if (f->count + 1 + behind + (uint32_t)__builtin_popcountll(after) < o->min)
                rules->allowed[i] ^= UINT64_C(1) << last;
        }
        behind += (uint32_t)__builtin_popcountll(o->usable[i]);
    }
}

/* Returns which members may come next in an object, from those that have come. */
static key_rules find_key_rules(const qn_object_rule *o, const qn_frame *f)
{
    key_rules rules = { .additional = o->additional };
    uint32_t missing = 0;
    for (int i = 0; i < 4; i++)
        missing += (uint32_t)__builtin_popcountll(o->required[i] & ~f->seen[i]);
    const bool optional = o->max == QN_UNLIMITED || f->count + missing < o->max;
    rules.additional &= optional && !(o->is_ordered && missing);
    for (int i = 0; i < 4; i++)
        rules.allowed[i] = o->usable[i] & ~f->seen[i] & (optional ? ~UINT64_C(0) : o->required[i]);
    if (o->is_ordered)
        keep_order(o, f, &rules);
    rules.any = rules.additional || rules.allowed[0] || rules.allowed[1] || rules.allowed[2] || rules.allowed[3];
    rules.may_close = !missing && f->count >= o->min;
    return rules;
}

/* Whether a property may come next. */
static bool is_allowed(const key_rules *rules, uint32_t property)
{
    return rules->allowed[property / 64] >> (property % 64) & 1;
}

bool qn_state_adds_key(const qn_grammar_state *s, const qn_config *config)
{
    const qn_object_rule *o = &s->grammar->objects[s->grammar->nodes[config->node].a];
    return o->rest && find_key_rules(o, &s->frames[config->frame]).additional;
}

void qn_state_declared_bytes(qn_grammar_state *s, const qn_config *c, uint64_t bytes[4])
{
    const qn_object_rule *o = &s->grammar->objects[s->grammar->nodes[c->node].a];
    qn_state_pay(s, ((c->sub >> 20) - (c->sub >> 8 & 0xfff)) / COMPARED);
    for (uint32_t i = c->sub >> 8 & 0xfff; i < c->sub >> 20; i++) {
        const qn_spelling *name = &o->spellings[i];
        const uint8_t byte = name->length > c->count ? (uint8_t)name->text[c->count] : o->end;
        bytes[byte / 64] |= UINT64_C(1) << (byte % 64);
    }
}

/* Returns the frame after one more member. property -1: an additional one. If properties are in order, those before it
 * count as seen. */
static uint32_t count_member(qn_grammar_state *s, const qn_object_rule *o, uint32_t frame, int property)
{
    qn_frame f = s->frames[frame];
    const uint32_t most = o->max != QN_UNLIMITED ? o->max : o->min;
    if (f.count < most)
        f.count++;
    if (property >= 0)
        f.seen[property / 64] |= UINT64_C(1) << (property % 64);
    for (int i = 0; i < 4 && o->is_ordered; i++)
        f.seen[i] |= property < 0 || i < property / 64 ? ~UINT64_C(0)
                     : i == property / 64              ? (UINT64_C(2) << (property % 64)) - 1
                                                       : 0;
    return add_frame(s, &f);
}

qn_config qn_state_additional_key(qn_grammar_state *s, const qn_config *c)
{
    const qn_object_rule *o = &s->grammar->objects[s->grammar->nodes[c->node].a];
    return (qn_config){ .node = o->rest, .frame = count_member(s, o, c->frame, -1), .sub = c->sub & 255 };
}

/* ---- Closure ---- */

/* Begins the set of configurations after a byte. */
static void begin_set(qn_grammar_state *s)
{
    qn_state_pay(s, 2);
    memset(s->met, 0, sizeof s->met);
}

/* Adds a configuration to the set [begin, end), unless it has an equal one. Returns the new end. Configurations beyond
 * QN_GRAMMAR_THREADS are dropped. */
static size_t add_config(qn_grammar_state *s, size_t begin, size_t end, const qn_config *c)
{
    const uint64_t key =
        (c->node ^ (uint64_t)c->frame << 32) * UINT64_C(0x9e3779b97f4a7c15) + (c->sub ^ (uint64_t)c->count << 32);
    const uint32_t bit = (uint32_t)(key * UINT64_C(0xd6e8feb86659fd93) >> 53);
    const bool is_met = s->met[bit / 64] >> (bit % 64) & 1;
    for (size_t i = begin; i < end && is_met; i++)
        if (!memcmp(&s->configs[i], c, sizeof *c)) {
            qn_state_pay(s, (i - begin) / COMPARED);
            return end;
        }
    qn_state_pay(s, is_met ? (end - begin) / COMPARED : 0);
    if (end - begin >= QN_GRAMMAR_THREADS)
        return end;
    if (qn_realloc_array(&s->configs, &s->config_capacity, end + 1, sizeof *s->configs, "grammar state") != QN_OK) {
        s->failed = true;
        return end;
    }
    s->met[bit / 64] |= UINT64_C(1) << (bit % 64);
    s->configs[end] = *c;
    return end + 1;
}

typedef struct work {
    struct {
        uint32_t node, frame;
    } items[MAX_WORK], splits[MAX_SPLITS];
    size_t n, n_splits;
} work;

/* Puts a node on the stack of nodes to be visited, if some text leads on from it. */
static void put(qn_grammar_state *s, work *w, uint32_t node, uint32_t frame)
{
    if (!s->grammar->nodes[node].productive)
        return;
    if (w->n == MAX_WORK) {
        s->failed = true;
        return;
    }
    w->items[w->n].node = node;
    w->items[w->n++].frame = frame;
}

/* Whether a split was visited with this frame: loops may return without a byte, and branches join. */
static bool repeats(qn_grammar_state *s, work *w, uint32_t node, uint32_t frame)
{
    qn_state_pay(s, w->n_splits / COMPARED);
    for (size_t i = 0; i < w->n_splits; i++)
        if (w->splits[i].node == node && w->splits[i].frame == frame)
            return true;
    if (w->n_splits == MAX_SPLITS) {
        s->failed = true;
        return true;
    }
    w->splits[w->n_splits].node = node;
    w->splits[w->n_splits++].frame = frame;
    return false;
}

/* Puts what may come next in an array, from the number of its items: its end, a comma or the first item, or, with lo 2,
 * the item itself, which is counted. */
static void put_item(qn_grammar_state *s, work *w, const qn_node *n, uint32_t frame)
{
    const qn_array_rule *array = &s->grammar->arrays[n->a];
    const uint32_t count = s->frames[frame].count;
    const uint32_t which = count < array->n_prefix ? count : array->n_prefix;
    if (n->lo != 2 && count >= array->min)
        put(s, w, n->lo ? array->close_empty : array->close, frame);
    if ((array->max != QN_UNLIMITED && count >= array->max) || !s->grammar->nodes[array->items[which]].productive)
        return;
    if (n->lo != 2) {
        put(s, w, n->lo ? array->first : array->comma, frame);
        return;
    }
    qn_frame f = s->frames[frame];
    const uint32_t most = array->max != QN_UNLIMITED     ? array->max
                          : array->min > array->n_prefix ? array->min
                                                         : array->n_prefix;
    if (f.count < most)
        f.count++;
    put(s, w, array->items[which], add_frame(s, &f));
}

/* Puts what follows a QN_ONCE node, if its property, or with `hi` one of the first ones, may still come. */
static void put_once(qn_grammar_state *s, work *w, const qn_node *n, uint32_t frame)
{
    const qn_object_rule *o = &s->grammar->objects[n->a];
    const key_rules rules = find_key_rules(o, &s->frames[frame]);
    bool is_any = false;
    for (uint32_t i = 0; n->hi && i <= n->lo && !is_any; i++)
        is_any = is_allowed(&rules, i);
    if (is_any)
        put(s, w, n->next, frame);
    else if (!n->hi && is_allowed(&rules, n->lo))
        put(s, w, n->next, count_member(s, o, frame, n->lo));
}

/* Whether a text has its least length and its DFA accepts. */
static bool text_may_end(const qn_grammar *g, const qn_node *n, const qn_config *c)
{
    const qn_string_rule *rule = &g->strings[n->a];
    return c->count >= rule->min && g->dfas[rule->dfa].accept[c->sub];
}

/* Adds the configurations that are reached from a node without a byte. */
static size_t add_closure(qn_grammar_state *s, size_t begin, size_t end, uint32_t node, uint32_t frame)
{
    const qn_grammar *g = s->grammar;
    work w;
    w.n = w.n_splits = 0;
    put(s, &w, node, frame);
    while (w.n && !s->failed) {
        qn_config c = { .node = w.items[--w.n].node, .frame = w.items[w.n].frame };
        const qn_node *n = &g->nodes[c.node];
        qn_state_pay(s, 1);
        switch ((qn_node_kind)n->kind) {
        case QN_NEVER: break;
        case QN_FINAL:
            c.frame = 0;
            end = add_config(s, begin, end, &c);
            break;
        case QN_BYTE:
        case QN_INDENT: end = add_config(s, begin, end, &c); break;
        case QN_DFA:
            c.sub = 1;
            end = add_config(s, begin, end, &c);
            if (g->dfas[n->a].accept[1])
                put(s, &w, n->next, c.frame);
            break;
        case QN_STRING:
            c.sub = g->strings[n->a].dfa >= 0 ? 1 << 8 : 0;
            end = add_config(s, begin, end, &c);
            break;
        case QN_KEY:
            c.sub = g->objects[n->a].n_spellings << 20;
            end = add_config(s, begin, end, &c);
            break;
        case QN_REST:
            if (find_key_rules(&g->objects[n->a], &s->frames[c.frame]).additional)
                put(s, &w, n->next, count_member(s, &g->objects[n->a], c.frame, -1));
            break;
        case QN_WORDS:
            c.sub = (uint32_t)g->lists[n->a].n << 16;
            end = add_config(s, begin, end, &c);
            break;
        case QN_ONCE: put_once(s, &w, n, c.frame); break;
        case QN_TEXT:
            c.sub = 1;
            end = add_config(s, begin, end, &c);
            if (text_may_end(g, n, &c))
                put(s, &w, n->next, c.frame);
            break;
        case QN_SPLIT:
            if (repeats(s, &w, c.node, c.frame))
                break;
            put(s, &w, n->a, c.frame);
            put(s, &w, n->next, c.frame);
            break;
        case QN_CALL: {
            uint32_t called;
            if (push(s, n, c.frame, &called))
                put(s, &w, g->rules[n->a].entry, called);
            break;
        }
        case QN_RETURN: put(s, &w, s->frames[c.frame].node, s->frames[c.frame].parent); break;
        case QN_MEMBER: {
            const qn_object_rule *o = &g->objects[n->a];
            const key_rules rules = find_key_rules(o, &s->frames[c.frame]);
            if (rules.may_close)
                put(s, &w, n->lo ? o->close_empty : o->close, c.frame);
            if (rules.any)
                put(s, &w, n->lo ? o->first : o->more, c.frame);
            break;
        }
        case QN_ITEM: put_item(s, &w, n, c.frame); break;
        }
    }
    return end;
}

size_t qn_state_follow(qn_grammar_state *s, size_t begin, size_t end, size_t at)
{
    size_t out = at;
    begin_set(s);
    for (size_t i = begin; i < end && !s->failed; i++)
        out = add_closure(s, at, out, s->grammar->nodes[s->configs[i].node].next, s->configs[i].frame);
    return out;
}

/* ---- A byte ----
 *
 * Functions step_... add the configurations that follow `c`, at node n, after a byte to the set [begin, end), and
 * return its new end: `end` itself if the byte may not follow. */

static size_t step_string(qn_grammar_state *s, size_t begin, size_t end, qn_config c, const qn_node *n, uint8_t byte)
{
    const qn_string_rule *rule = &s->grammar->strings[n->a];
    const uint32_t state = c.sub & 255, next = (*qn_string_machine(rule->form))[state][byte];
    const qn_dfa *dfa = rule->dfa >= 0 ? &s->grammar->dfas[rule->dfa] : NULL;
    uint32_t dfa_state = c.sub >> 8;
    if (next == QN_STRING_REJECTED)
        return end;
    if (next == QN_STRING_END) {
        if (c.count < rule->min || (dfa && !dfa->accept[dfa_state]))
            return end;
        return add_closure(s, begin, end, n->next, c.frame);
    }
    if (!state && rule->max != QN_UNLIMITED && c.count >= rule->max)
        return end;
    if (dfa && !(dfa_state = dfa->next[(size_t)dfa_state * dfa->n_classes + dfa->class_of[byte]]))
        return end;
    if (!next && c.count < (rule->max != QN_UNLIMITED ? rule->max : rule->min))
        c.count++;
    c.sub = next | dfa_state << 8;
    return add_config(s, begin, end, &c);
}

/* Returns the state of a text after a byte; 0: the byte may not follow. The state of a text at its maximum length may
 * be one that does not accept: its DFA refuses some short texts, such as `null`, but no text that continues one. */
static uint32_t next_of_text(const qn_grammar *g, const qn_node *n, const qn_config *c, uint8_t byte)
{
    const qn_string_rule *rule = &g->strings[n->a];
    const qn_dfa *dfa = &g->dfas[rule->dfa];
    const uint32_t next = dfa->next[(size_t)c->sub * dfa->n_classes + dfa->class_of[byte]];
    const bool begins = (byte & 0xc0) != 0x80, is_last = byte < 0x80 && c->count + 1 == rule->max && !dfa->accept[next];
    return rule->max != QN_UNLIMITED && begins && (c->count >= rule->max || is_last) ? 0 : next;
}

bool qn_state_text_step(const qn_grammar *g, qn_config *c, uint8_t byte)
{
    const qn_node *n = &g->nodes[c->node];
    const qn_string_rule *rule = &g->strings[n->a];
    c->sub = next_of_text(g, n, c, byte);
    if (c->sub && (byte & 0xc0) != 0x80 && c->count < (rule->max != QN_UNLIMITED ? rule->max : rule->min))
        c->count++;
    return c->sub != 0;
}

bool qn_state_text_may_end(const qn_grammar *g, const qn_config *c)
{
    return text_may_end(g, &g->nodes[c->node], c);
}

static size_t step_text(qn_grammar_state *s, size_t begin, size_t end, qn_config c, const qn_node *n, uint8_t byte)
{
    if (!qn_state_text_step(s->grammar, &c, byte))
        return end;
    end = add_config(s, begin, end, &c);
    return text_may_end(s->grammar, n, &c) ? add_closure(s, begin, end, n->next, c.frame) : end;
}

static size_t step_key(qn_grammar_state *s, size_t begin, size_t end, qn_config c, const qn_node *n, uint8_t byte)
{
    const qn_object_rule *o = &s->grammar->objects[n->a];
    const key_rules rules = find_key_rules(o, &s->frames[c.frame]);
    const uint32_t state = c.sub & 255;
    uint32_t first = c.sub >> 8 & 0xfff, last = c.sub >> 20;
    uint32_t next = QN_STRING_REJECTED;
    if (o->rest && state != QN_STRING_REJECTED)
        next = (*qn_string_machine(s->grammar->strings[s->grammar->nodes[o->rest].a].form))[state][byte];
    if (first < last && byte == o->end && o->spellings[first].length == c.count) {
        const uint32_t property = o->spellings[first].property;
        if (!is_allowed(&rules, property))
            return end;
        return add_closure(s, begin, end, o->values[property], count_member(s, o, c.frame, (int)property));
    }
    const bool additional = rules.additional && next != QN_STRING_REJECTED;
    if (next == QN_STRING_END)
        return additional ? add_closure(s, begin, end, o->rest_value, count_member(s, o, c.frame, -1)) : end;
    qn_state_pay(s, (last - first) / COMPARED);
    while (first < last &&
           (o->spellings[first].length <= c.count || (uint8_t)o->spellings[first].text[c.count] != byte))
        first++;
    while (first < last && (uint8_t)o->spellings[last - 1].text[c.count] != byte)
        last--;
    if (first < last) {
        bool leads_on = additional;
        for (uint32_t i = first; i < last && !leads_on; i++)
            leads_on = is_allowed(&rules, o->spellings[i].property);
        c.sub = next | first << 8 | last << 20;
        c.count++;
        return leads_on ? add_config(s, begin, end, &c) : end;
    }
    if (!additional)
        return end;
    c = qn_state_additional_key(s, &c);
    c.sub = next;
    return add_config(s, begin, end, &c);
}

/* Returns the first of the words [first, end) whose byte at `at` is `byte` or above. */
static uint32_t find_word(const qn_word_list *list, uint32_t first, uint32_t end, uint32_t at, int byte)
{
    while (first < end) {
        const uint32_t middle = (first + end) / 2;
        if ((uint8_t)list->text[list->begins[middle] + at] < byte)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/* Narrows the words of a configuration to those that continue with a byte. False if none does. */
static bool narrow(const qn_word_list *list, qn_config *c, uint8_t byte)
{
    const uint32_t first = find_word(list, c->sub & 0xffff, c->sub >> 16, c->count, byte);
    const uint32_t end = find_word(list, first, c->sub >> 16, c->count, byte + 1);
    c->sub = first | end << 16;
    c->count++;
    return first < end;
}

static size_t step_words(qn_grammar_state *s, size_t begin, size_t end, qn_config c, const qn_node *n, uint8_t byte)
{
    const qn_word_list *list = &s->grammar->lists[n->a];
    qn_state_pay(s, 4);
    if (!narrow(list, &c, byte))
        return end;
    const uint32_t first = c.sub & 0xffff;
    if (list->begins[first + 1] - list->begins[first] == c.count) /* no other word begins with it */
        return add_closure(s, begin, end, n->next, c.frame);
    return add_config(s, begin, end, &c);
}

static void add_word_bytes(qn_grammar_state *s, const qn_config *c, const qn_node *n, uint64_t bytes[4])
{
    const qn_word_list *list = &s->grammar->lists[n->a];
    for (uint32_t i = c->sub & 0xffff; i < c->sub >> 16;) {
        const uint8_t byte = (uint8_t)list->text[list->begins[i] + c->count];
        bytes[byte / 64] |= UINT64_C(1) << (byte % 64);
        i = find_word(list, i, c->sub >> 16, c->count, byte + 1);
        qn_state_pay(s, 4);
    }
}

/* Whether a byte continues an indentation: a line end, then two spaces for each level. *ends: the indentation was
 * complete before it. */
static bool indent_takes(const qn_grammar_state *s, const qn_node *n, const qn_config *c, uint8_t byte, bool *ends)
{
    *ends = c->sub == 2u * (s->frames[c->frame].level + n->lo);
    return byte == (c->sub ? ' ' : '\n');
}

static size_t step_indent(qn_grammar_state *s, size_t begin, size_t end, qn_config c, const qn_node *n, uint8_t byte)
{
    bool ends;
    if (!indent_takes(s, n, &c, byte, &ends))
        return end;
    if (ends)
        return add_closure(s, begin, end, n->next, c.frame);
    c.sub++;
    return add_config(s, begin, end, &c);
}

size_t qn_state_step(qn_grammar_state *s, size_t begin, size_t end, size_t at, uint8_t byte)
{
    const qn_grammar *g = s->grammar;
    size_t out = at;
    begin_set(s);
    for (size_t i = begin; i < end && !s->failed; i++) {
        qn_config c = s->configs[i];
        const qn_node *n = &g->nodes[c.node];
        qn_state_pay(s, 1);
        if (n->kind == QN_BYTE && byte >= n->lo && byte <= n->hi)
            out = add_closure(s, at, out, n->next, c.frame);
        if (n->kind == QN_STRING)
            out = step_string(s, at, out, c, n, byte);
        if (n->kind == QN_KEY)
            out = step_key(s, at, out, c, n, byte);
        if (n->kind == QN_TEXT)
            out = step_text(s, at, out, c, n, byte);
        if (n->kind == QN_INDENT)
            out = step_indent(s, at, out, c, n, byte);
        if (n->kind != QN_DFA) {
            out = n->kind == QN_WORDS ? step_words(s, at, out, c, n, byte) : out;
            continue;
        }
        const qn_dfa *dfa = &g->dfas[n->a];
        c.sub = dfa->next[(size_t)c.sub * dfa->n_classes + dfa->class_of[byte]];
        if (!c.sub)
            continue;
        out = add_config(s, at, out, &c);
        if (dfa->accept[c.sub])
            out = add_closure(s, at, out, n->next, c.frame);
    }
    return s->failed ? at : out;
}

static bool string_takes(const qn_grammar *g, const qn_string_rule *rule, const qn_config *c, uint8_t byte)
{
    const uint32_t state = c->sub & 255, next = (*qn_string_machine(rule->form))[state][byte];
    const qn_dfa *dfa = rule->dfa >= 0 ? &g->dfas[rule->dfa] : NULL;
    if (next == QN_STRING_END)
        return c->count >= rule->min && (!dfa || dfa->accept[c->sub >> 8]);
    return next != QN_STRING_REJECTED && (state || c->count < rule->max) &&
           (!dfa || dfa->next[(size_t)(c->sub >> 8) * dfa->n_classes + dfa->class_of[byte]]);
}

bool qn_state_takes(qn_grammar_state *s, const qn_config *c, uint8_t byte)
{
    const qn_grammar *g = s->grammar;
    const qn_node *n = &g->nodes[c->node];
    uint64_t declared[4] = { 0 };
    qn_config after = *c;
    bool ends;
    qn_state_pay(s, 1);
    switch ((qn_node_kind)n->kind) {
    case QN_BYTE: return byte >= n->lo && byte <= n->hi;
    case QN_INDENT: return indent_takes(s, n, c, byte, &ends);
    case QN_TEXT: return next_of_text(g, n, c, byte) != 0;
    case QN_DFA:
        return g->dfas[n->a].next[(size_t)c->sub * g->dfas[n->a].n_classes + g->dfas[n->a].class_of[byte]] != 0;
    case QN_STRING: return string_takes(g, &g->strings[n->a], c, byte);
    case QN_WORDS: return narrow(&g->lists[n->a], &after, byte);
    case QN_KEY: {
        const qn_object_rule *o = &g->objects[n->a];
        if (o->rest && (c->sub & 255) != QN_STRING_REJECTED &&
            (*qn_string_machine(g->strings[g->nodes[o->rest].a].form))[c->sub & 255][byte] != QN_STRING_REJECTED)
            return true;
        qn_state_declared_bytes(s, c, declared);
        return declared[byte / 64] >> (byte % 64) & 1;
    }
    default: return false;
    }
}

static void add_byte(uint64_t bytes[4], int byte)
{
    bytes[byte / 64] |= UINT64_C(1) << (byte % 64);
}

static void add_key_bytes(qn_grammar_state *s, const qn_config *c, const qn_node *n, uint64_t bytes[4])
{
    const qn_object_rule *o = &s->grammar->objects[n->a];
    qn_state_declared_bytes(s, c, bytes);
    if ((c->sub & 255) == QN_STRING_REJECTED || !qn_state_adds_key(s, c))
        return;
    const qn_string_table *table = qn_string_machine(s->grammar->strings[s->grammar->nodes[o->rest].a].form);
    for (int byte = 0; byte < 256; byte++)
        if ((*table)[c->sub & 255][byte] != QN_STRING_REJECTED)
            add_byte(bytes, byte);
}

void qn_state_add_bytes(qn_grammar_state *s, const qn_config *c, uint64_t bytes[4])
{
    const qn_node *n = &s->grammar->nodes[c->node];
    if (n->kind == QN_KEY) {
        add_key_bytes(s, c, n, bytes);
        return;
    }
    if (n->kind == QN_WORDS) {
        add_word_bytes(s, c, n, bytes);
        return;
    }
    if (n->kind == QN_DFA) {
        const qn_dfa *dfa = &s->grammar->dfas[n->a];
        const uint32_t *row = dfa->next + (size_t)c->sub * dfa->n_classes;
        qn_state_pay(s, 256 / COMPARED);
        for (int byte = 0; byte < 256; byte++)
            if (row[dfa->class_of[byte]])
                add_byte(bytes, byte);
        return;
    }
    const int first = n->kind == QN_BYTE ? n->lo : 0, last = n->kind == QN_BYTE ? n->hi : 255;
    for (int byte = first; byte <= last; byte++)
        if (qn_state_takes(s, c, (uint8_t)byte))
            add_byte(bytes, byte);
}

bool qn_state_has_final(const qn_grammar_state *s, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++)
        if (s->configs[i].node == QN_NODE_FINAL)
            return true;
    return false;
}

/* ---- States ---- */

qn_status qn_grammar_state_create(const qn_grammar *grammar, qn_grammar_state **out)
{
    qn_grammar_state *s = calloc(1, sizeof *s);
    *out = s;
    if (!s)
        return qn_fail(QN_ERR_MEMORY, "grammar state: no memory");
    s->grammar = grammar;
    s->mask_steps = QN_GRAMMAR_MASK_STEPS;
    const qn_frame bottom = { .node = QN_NODE_FINAL };
    qn_state_begin(s, QN_GRAMMAR_TOKEN_STEPS);
    add_frame(s, &bottom);
    begin_set(s);
    if (!s->failed)
        s->n_configs = add_closure(s, 0, 0, grammar->root, 0);
    if (!s->failed)
        return QN_OK;
    qn_grammar_state_free(s);
    *out = NULL;
    return qn_fail(QN_ERR_UNSUPPORTED, "grammar: too ambiguous at its beginning");
}

void qn_grammar_state_free(qn_grammar_state *s)
{
    if (!s)
        return;
    free(s->configs);
    free(s->frames);
    free(s);
}

qn_status qn_grammar_state_clone(const qn_grammar_state *state, qn_grammar_state **out)
{
    qn_grammar_state *s = calloc(1, sizeof *s);
    *out = s;
    if (!s)
        return qn_fail(QN_ERR_MEMORY, "grammar state: no memory");
    s->grammar = state->grammar;
    qn_status status =
        qn_realloc_array(&s->configs, &s->config_capacity, state->n_configs + 1, sizeof *s->configs, "grammar state");
    if (status == QN_OK)
        status = qn_realloc_array(&s->frames, &s->frame_capacity, state->n_frames, sizeof *s->frames, "grammar state");
    if (status != QN_OK) {
        qn_grammar_state_free(s);
        *out = NULL;
        return status;
    }
    memcpy(s->configs, state->configs, state->n_configs * sizeof *s->configs);
    memcpy(s->frames, state->frames, state->n_frames * sizeof *s->frames);
    s->n_configs = state->n_configs;
    s->n_frames = state->n_frames;
    return QN_OK;
}

/* Appends the configurations after the bytes at n_configs. Returns their end, or n_configs if the bytes may not
 * follow. */
static size_t look_ahead(qn_grammar_state *s, const char *bytes, size_t length)
{
    size_t begin = 0, end = s->n_configs;
    for (size_t i = 0; i < length; i++) {
        const size_t next = qn_state_step(s, begin, end, end, (uint8_t)bytes[i]);
        if (next == end)
            return s->n_configs;
        if (begin) {
            memmove(s->configs + s->n_configs, s->configs + end, (next - end) * sizeof *s->configs);
            end = s->n_configs + (next - end);
        } else {
            end = next;
        }
        begin = s->n_configs;
    }
    return end;
}

bool qn_state_accepts(qn_grammar_state *s, const char *bytes, size_t length)
{
    const size_t n_frames = s->n_frames;
    const bool follows = !length || look_ahead(s, bytes, length) > s->n_configs;
    s->n_frames = n_frames;
    return follows;
}

bool qn_grammar_state_accepts(qn_grammar_state *s, const char *bytes, size_t length)
{
    qn_state_begin(s, QN_GRAMMAR_TOKEN_STEPS);
    return qn_state_accepts(s, bytes, length);
}

/* Keeps only the frames that configurations use, in the order of use. */
static void compact(qn_grammar_state *s, uint32_t *moved, qn_frame *kept)
{
    uint32_t chain[QN_GRAMMAR_DEPTH + 2];
    size_t n = 1;
    kept[0] = s->frames[0];
    for (size_t i = 0; i < s->n_configs; i++) {
        size_t depth = 0;
        for (uint32_t f = s->configs[i].frame; f && !moved[f]; f = s->frames[f].parent)
            chain[depth++] = f;
        while (depth--) {
            const uint32_t f = chain[depth];
            kept[n] = s->frames[f];
            kept[n].parent = moved[kept[n].parent];
            moved[f] = (uint32_t)n++;
        }
        s->configs[i].frame = moved[s->configs[i].frame];
    }
    memcpy(s->frames, kept, n * sizeof *kept);
    s->n_frames = n;
}

static bool advance_piece(qn_grammar_state *s, const char *bytes, size_t length, uint64_t max_steps)
{
    const size_t n_frames = s->n_frames, begin = s->n_configs;
    qn_state_begin(s, max_steps);
    const size_t end = look_ahead(s, bytes, length);
    uint32_t *moved = end > begin ? calloc(s->n_frames, sizeof *moved) : NULL;
    qn_frame *kept = end > begin ? malloc(s->n_frames * sizeof *kept) : NULL;
    const bool follows = moved && kept;
    s->was_too_ambiguous = s->failed;
    if (follows) {
        memmove(s->configs, s->configs + begin, (end - begin) * sizeof *s->configs);
        s->n_configs = end - begin;
        compact(s, moved, kept);
    } else {
        s->n_frames = n_frames;
    }
    free(moved);
    free(kept);
    return follows;
}

bool qn_state_advance(qn_grammar_state *s, const char *bytes, size_t length, uint64_t max_steps)
{
    if (!length)
        return true;
    if (length <= PIECE)
        return advance_piece(s, bytes, length, max_steps);
    qn_grammar_state *trial;
    if (qn_grammar_state_clone(s, &trial) != QN_OK)
        return false;
    bool follows = true;
    for (size_t at = 0; at < length && follows; at += PIECE)
        follows = advance_piece(trial, bytes + at, length - at < PIECE ? length - at : PIECE, max_steps);
    if (follows) {
        const qn_grammar_state old = *s;
        *s = *trial;
        *trial = old;
    }
    s->was_too_ambiguous = !follows && trial->was_too_ambiguous;
    qn_grammar_state_free(trial);
    return follows;
}

bool qn_grammar_state_advance(qn_grammar_state *s, const char *bytes, size_t length)
{
    return qn_state_advance(s, bytes, length, QN_GRAMMAR_TOKEN_STEPS);
}

bool qn_grammar_state_is_finished(const qn_grammar_state *s)
{
    return qn_state_has_final(s, 0, s->n_configs);
}
