/* Before jinja2 runs a template, it decides what each name means in a block with its own scope (a frame): a name
 * that the block assigns before it reads it is undefined at first, even if an outer variable has that name. Inner
 * blocks see that, too. This file makes the same decision (jinja2's idtracking.py); at run time, scopes begin with
 * these names undefined. */
#include "jinja/frames.h"

#include "base/status.h"

#include <string.h>

typedef enum origin { ORIGIN_OUTER, ORIGIN_UNDEFINED, ORIGIN_PARAMETER } origin;

typedef struct frame_name {
    const char *name;
    origin from; /* meaning at the start of the frame */
    bool is_known, is_stored;
} frame_name;

typedef struct symbols {
    const struct symbols *parent;
    frame_name *list;
    uint32_t n, capacity;
} symbols;

typedef struct finder {
    struct qn_jinja *jinja;
    qn_arena scratch;
    unsigned depth;
} finder;

static frame_name *find(const symbols *s, const char *name)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->list[i].name == name)
            return &s->list[i];
    return NULL;
}

static bool is_known_outside(const symbols *s, const char *name)
{
    for (const symbols *outer = s->parent; outer; outer = outer->parent) {
        const frame_name *found = find(outer, name);
        if (found && found->is_known)
            return true;
    }
    return false;
}

static qn_status get(finder *f, symbols *s, const char *name, frame_name **out)
{
    *out = find(s, name);
    if (*out)
        return QN_OK;
    if (s->n == s->capacity) {
        const uint32_t capacity = s->capacity ? 2 * s->capacity : 8;
        frame_name *list;
        QN_TRY(qn_arena_alloc(&f->scratch, &list, capacity, sizeof *list));
        if (s->n)
            memcpy(list, s->list, s->n * sizeof *list);
        s->list = list;
        s->capacity = capacity;
    }
    s->list[s->n] = (frame_name){ .name = name };
    *out = &s->list[s->n++];
    return QN_OK;
}

static qn_status load(finder *f, symbols *s, const char *name)
{
    frame_name *found = find(s, name);
    if ((found && found->is_known) || is_known_outside(s, name))
        return QN_OK;
    QN_TRY(get(f, s, name, &found));
    found->is_known = true;
    found->from = ORIGIN_OUTER;
    return QN_OK;
}

static qn_status store(finder *f, symbols *s, const char *name, bool is_parameter)
{
    frame_name *found;
    QN_TRY(get(f, s, name, &found));
    found->is_stored = true;
    if (is_parameter)
        found->from = ORIGIN_PARAMETER;
    else if (!found->is_known)
        found->from = is_known_outside(s, name) ? ORIGIN_OUTER : ORIGIN_UNDEFINED;
    found->is_known = true;
    return QN_OK;
}

/* ---- The names that a frame's own statements read and assign ---- */

static qn_status visit(finder *f, symbols *s, const qn_node *node);

static qn_status visit_parts(finder *f, symbols *s, const qn_node *node)
{
    const qn_node *const parts[] = { node->a, node->b, node->c, node->d };
    for (int i = 0; i < 4; i++)
        if (parts[i])
            QN_TRY(visit(f, s, parts[i]));
    for (uint32_t i = 0; i < node->n_items; i++)
        QN_TRY(visit(f, s, node->items[i]));
    for (uint32_t i = 0; i < node->n_args; i++)
        if (node->args[i].value)
            QN_TRY(visit(f, s, node->args[i].value));
    return QN_OK;
}

static qn_status visit_target(finder *f, symbols *s, const qn_node *target, bool is_parameter)
{
    if (target->kind == QN_NODE_NAME)
        return store(f, s, target->name, is_parameter);
    if (target->kind == QN_NODE_ATTRIBUTE)
        return load(f, s, target->a->name);
    for (uint32_t i = 0; i < target->n_items; i++)
        QN_TRY(visit_target(f, s, target->items[i], is_parameter));
    return QN_OK;
}

static qn_status visit_body(finder *f, symbols *s, const qn_body *body)
{
    for (uint32_t i = 0; i < body->n; i++)
        QN_TRY(visit(f, s, body->nodes[i]));
    return QN_OK;
}

static qn_status copy_symbols(finder *f, const symbols *from, symbols *to)
{
    *to = *from;
    to->capacity = from->n;
    QN_TRY(qn_arena_alloc(&f->scratch, &to->list, from->n, sizeof *to->list));
    if (from->n)
        memcpy(to->list, from->list, from->n * sizeof *to->list);
    return QN_OK;
}

/* Joins the branches of an if. A name that only some of them assign keeps its outer meaning. */
static qn_status join_branches(finder *f, symbols *s, const symbols *branches, size_t n_branches)
{
    const uint32_t n_before = s->n;
    for (size_t b = 0; b < n_branches; b++)
        for (uint32_t i = 0; i < branches[b].n; i++) {
            const frame_name *from = &branches[b].list[i];
            frame_name *to = find(s, from->name);
            const bool was_stored = to && (uint32_t)(to - s->list) < n_before && to->is_stored;
            QN_TRY(get(f, s, from->name, &to));
            to->is_known |= from->is_known;
            to->from = from->from;
            if (!was_stored)
                to->is_stored |= from->is_stored;
        }
    return QN_OK;
}

static bool is_stored_in(const symbols *s, const char *name)
{
    const frame_name *found = find(s, name);
    return found && found->is_stored;
}

static qn_status visit_if(finder *f, symbols *s, const qn_node *node)
{
    enum { BRANCHES = 3 }; /* the body; the elifs as one if; the else */
    symbols before, branches[BRANCHES];
    const bool has_elif = node->otherwise.n == 1 && node->otherwise.nodes[0]->kind == QN_NODE_IF && node->is_elif;
    QN_TRY(visit(f, s, node->a));
    QN_TRY(copy_symbols(f, s, &before));
    for (int i = 0; i < BRANCHES; i++)
        QN_TRY(copy_symbols(f, s, &branches[i]));
    QN_TRY(visit_body(f, &branches[0], &node->body));
    QN_TRY(visit_body(f, &branches[has_elif ? 1 : 2], &node->otherwise));
    QN_TRY(join_branches(f, s, branches, BRANCHES));
    for (uint32_t i = 0; i < s->n; i++) {
        frame_name *found = &s->list[i];
        if (!found->is_stored || is_stored_in(&before, found->name))
            continue;
        int count = 0;
        for (int b = 0; b < BRANCHES; b++)
            count += is_stored_in(&branches[b], found->name);
        if (count < BRANCHES)
            found->from = ORIGIN_OUTER;
    }
    return QN_OK;
}

static qn_status visit_node(finder *f, symbols *s, const qn_node *node)
{
    switch (node->kind) {
    case QN_NODE_NAME: return load(f, s, node->name);
    case QN_NODE_IF: return visit_if(f, s, node);
    case QN_NODE_MACRO: return store(f, s, node->name, false);
    case QN_NODE_SET: QN_TRY(visit(f, s, node->b)); return visit_target(f, s, node->a, false);
    case QN_NODE_SET_BLOCK: return visit_target(f, s, node->a, false);
    case QN_NODE_FOR: return visit(f, s, node->b);
    case QN_NODE_CALL_BLOCK:
    case QN_NODE_FILTER_BLOCK: return visit(f, s, node->a);
    case QN_NODE_WITH:
        for (uint32_t i = 1; i < node->n_items; i += 2)
            QN_TRY(visit(f, s, node->items[i]));
        return QN_OK;
    case QN_NODE_BLOCK: return QN_OK;
    default: return visit_parts(f, s, node);
    }
}

static qn_status visit(finder *f, symbols *s, const qn_node *node)
{
    enum { MAX_DEPTH = 1000 };
    if (++f->depth > MAX_DEPTH)
        return qn_fail(QN_ERR_INVALID, "chat template, line %u: expressions are nested deeper than %d", node->line,
                       MAX_DEPTH);
    QN_TRY(visit_node(f, s, node));
    f->depth--;
    return QN_OK;
}

/* ---- Frames ---- */

static qn_status find_in_body(finder *f, const symbols *s, qn_body *body);

/* Ends the visit of a frame: stores its locals, then visits the inner frames. */
static qn_status end_frame(finder *f, const symbols *s, qn_body *body)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        n += s->list[i].from == ORIGIN_UNDEFINED;
    if (n)
        QN_TRY(qn_arena_alloc(&f->jinja->arena, &body->locals, n, sizeof *body->locals));
    for (uint32_t i = 0; i < s->n; i++)
        if (s->list[i].from == ORIGIN_UNDEFINED)
            body->locals[body->n_locals++] = s->list[i].name;
    return find_in_body(f, s, body);
}

static qn_status find_in_macro(finder *f, const symbols *parent, qn_node *node)
{
    symbols s = { .parent = parent };
    for (uint32_t i = 0; i < node->n_args; i++)
        QN_TRY(store(f, &s, node->args[i].name, true));
    for (uint32_t i = 0; i < node->n_args; i++)
        if (node->args[i].value)
            QN_TRY(visit(f, &s, node->args[i].value));
    QN_TRY(visit_body(f, &s, &node->body));
    return end_frame(f, &s, &node->body);
}

static qn_status find_in_for(finder *f, const symbols *parent, qn_node *node)
{
    symbols body = { .parent = parent }, otherwise = { .parent = parent };
    const char *loop = qn_interned(f->jinja, "loop");
    if (loop)
        QN_TRY(store(f, &body, loop, true));
    QN_TRY(visit_target(f, &body, node->a, true));
    QN_TRY(visit_body(f, &body, &node->body));
    QN_TRY(end_frame(f, &body, &node->body));
    QN_TRY(visit_body(f, &otherwise, &node->otherwise));
    return end_frame(f, &otherwise, &node->otherwise);
}

static qn_status find_in_other(finder *f, const symbols *parent, qn_node *node)
{
    symbols s = { .parent = parent };
    for (uint32_t i = 0; node->kind == QN_NODE_WITH && i < node->n_items; i += 2)
        QN_TRY(visit_target(f, &s, node->items[i], false));
    QN_TRY(visit_body(f, &s, &node->body));
    if (node->kind == QN_NODE_FILTER_BLOCK)
        QN_TRY(visit(f, &s, node->a));
    return end_frame(f, &s, &node->body);
}

static qn_status find_in_body(finder *f, const symbols *s, qn_body *body)
{
    for (uint32_t i = 0; i < body->n; i++) {
        qn_node *node = body->nodes[i];
        switch (node->kind) {
        case QN_NODE_IF: /* no frame of its own */
            QN_TRY(find_in_body(f, s, &node->body));
            QN_TRY(find_in_body(f, s, &node->otherwise));
            break;
        case QN_NODE_FOR: QN_TRY(find_in_for(f, s, node)); break;
        case QN_NODE_MACRO:
        case QN_NODE_CALL_BLOCK: QN_TRY(find_in_macro(f, s, node)); break;
        case QN_NODE_SET_BLOCK:
        case QN_NODE_FILTER_BLOCK:
        case QN_NODE_WITH:
        case QN_NODE_BLOCK: QN_TRY(find_in_other(f, s, node)); break;
        default: break;
        }
    }
    return QN_OK;
}

qn_status qn_find_locals(struct qn_jinja *jinja)
{
    enum { MAX_SCRATCH = 256 << 20 };
    finder f = { .jinja = jinja, .scratch = { .limit = MAX_SCRATCH } };
    symbols s = { 0 };
    qn_status status = visit_body(&f, &s, &jinja->body);
    if (status == QN_OK)
        status = end_frame(&f, &s, &jinja->body);
    qn_arena_free(&f.scratch);
    return status;
}
