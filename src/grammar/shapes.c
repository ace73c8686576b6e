/* Tries of shapes: tokens by the kinds of their bytes. A DFA that treats all bytes of a kind alike visits a tenth of
 * the nodes. */
#include "grammar/vocab.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* From these numbers of tokens on, merging a set is faster than setting bit by bit. */
enum { FULL_SHAPE = 1024, FULL_SUBTREE = 2048 };

typedef struct builder {
    const qn_grammar_vocab *v;
    const qn_trie *trie;
    qn_shapes *shapes;
    size_t node_capacity, member_capacity, token_capacity;
} builder;

static qn_status add_token(builder *b, int32_t token)
{
    qn_shapes *s = b->shapes;
    for (; token >= 0; token = b->v->same[token]) {
        QN_TRY(qn_realloc_array(&s->tokens, &b->token_capacity, s->n_tokens + 1, sizeof *s->tokens, "shapes"));
        s->tokens[s->n_tokens++] = (uint32_t)token;
    }
    return QN_OK;
}

static qn_status add_nodes(builder *b, const uint32_t *children, size_t n, int depth);

/* Calls add_nodes for the children of nodes of the trie. */
static qn_status add_below(builder *b, const uint32_t *nodes, size_t n, int depth)
{
    const qn_trie_node *all = b->trie->nodes;
    size_t n_children = 0;
    for (size_t i = 0; i < n; i++)
        for (uint32_t c = nodes[i] + 1; c < all[nodes[i]].end; c = all[c].end)
            n_children++;
    if (!n_children)
        return QN_OK;
    uint32_t *children = malloc(n_children * sizeof *children), *next = children;
    if (!children)
        return qn_fail(QN_ERR_MEMORY, "shapes: no memory for %zu nodes", n_children);
    for (size_t i = 0; i < n; i++)
        for (uint32_t c = nodes[i] + 1; c < all[nodes[i]].end; c = all[c].end)
            *next++ = c;
    const qn_status status = add_nodes(b, children, n_children, depth);
    free(children);
    return status;
}

/* Adds the node of a kind for the children of that kind, and its subtree. some: [n] scratch */
static qn_status add_node(builder *b, int kind, const uint32_t *some, size_t n, int depth)
{
    qn_shapes *s = b->shapes;
    const size_t id = s->n;
    QN_TRY(qn_realloc_array(&s->nodes, &b->node_capacity, id + 1, sizeof *s->nodes, "shapes"));
    QN_TRY(qn_realloc_array(&s->members, &b->member_capacity, s->n_members + n, sizeof *s->members, "shapes"));
    s->nodes[s->n++] = (qn_shape){ .kinds = UINT64_C(1) << kind,
                                   .tokens = (uint32_t)s->n_tokens,
                                   .members = (uint32_t)s->n_members,
                                   .kind = (uint8_t)kind,
                                   .depth = (uint8_t)depth };
    memcpy(s->members + s->n_members, some, n * sizeof *some);
    s->n_members += n;
    for (size_t i = 0; i < n; i++)
        QN_TRY(add_token(b, b->trie->nodes[some[i]].token));
    QN_TRY(add_below(b, some, n, depth + 1));
    s->nodes[id].end = (uint32_t)s->n;
    for (size_t c = id + 1; c < s->n; c = s->nodes[c].end)
        s->nodes[id].kinds |= s->nodes[c].kinds;
    return QN_OK;
}

static qn_status add_nodes(builder *b, const uint32_t *children, size_t n, int depth)
{
    uint64_t kinds = 0;
    for (size_t i = 0; i < n; i++)
        kinds |= b->v->kind_of[b->trie->nodes[children[i]].byte];
    uint32_t *some = malloc(n * sizeof *some);
    qn_status status = some ? QN_OK : qn_fail(QN_ERR_MEMORY, "shapes: no memory for %zu nodes", n);
    for (; kinds && status == QN_OK; kinds &= kinds - 1) {
        size_t n_some = 0;
        for (size_t i = 0; i < n; i++)
            if (b->v->kind_of[b->trie->nodes[children[i]].byte] == (kinds & -kinds))
                some[n_some++] = children[i];
        status = add_node(b, __builtin_ctzll(kinds), some, n_some, depth);
    }
    free(some);
    return status;
}

static qn_status add_set(builder *b, size_t *capacity, uint32_t from, uint32_t to, int32_t *id)
{
    qn_shapes *s = b->shapes;
    const size_t n_words = b->v->n_words;
    QN_TRY(qn_realloc_array(&s->sets, capacity, (s->n_sets + 1) * n_words, sizeof *s->sets, "shapes"));
    uint32_t *set = s->sets + s->n_sets * n_words;
    memset(set, 0, n_words * sizeof *set);
    for (uint32_t i = from; i < to; i++)
        qn_mask_set(set, s->tokens[i]);
    *id = (int32_t)s->n_sets++;
    return QN_OK;
}

/* Makes the sets of large nodes. The extra last node ends the lists. */
static qn_status add_sets(builder *b)
{
    qn_shapes *s = b->shapes;
    size_t capacity = 0;
    for (size_t i = 0; i < s->n; i++) {
        qn_shape *node = &s->nodes[i];
        const uint32_t own = s->nodes[i + 1].tokens, below = s->nodes[node->end].tokens;
        node->own_set = node->all_set = -1;
        if (own - node->tokens >= FULL_SHAPE)
            QN_TRY(add_set(b, &capacity, node->tokens, own, &node->own_set));
        if (below - node->tokens >= FULL_SUBTREE)
            QN_TRY(add_set(b, &capacity, node->tokens, below, &node->all_set));
    }
    return QN_OK;
}

qn_status qn_shapes_make(const qn_grammar_vocab *v, const qn_trie *trie, qn_shapes *shapes)
{
    builder b = { .v = v, .trie = trie, .shapes = shapes };
    size_t n = 0;
    uint32_t *roots = malloc((trie->n + 1) * sizeof *roots);
    if (!roots)
        return qn_fail(QN_ERR_MEMORY, "shapes: no memory for %zu nodes", trie->n);
    for (uint32_t i = 0; i < trie->n; i = trie->nodes[i].end)
        roots[n++] = i;
    qn_status status = add_nodes(&b, roots, n, 1);
    free(roots);
    QN_TRY(status);
    QN_TRY(qn_realloc_array(&shapes->nodes, &b.node_capacity, shapes->n + 1, sizeof *shapes->nodes, "shapes"));
    shapes->nodes[shapes->n] =
        (qn_shape){ .tokens = (uint32_t)shapes->n_tokens, .members = (uint32_t)shapes->n_members };
    return add_sets(&b);
}

void qn_shapes_free(qn_shapes *shapes)
{
    free(shapes->nodes);
    free(shapes->members);
    free(shapes->tokens);
    free(shapes->sets);
}
