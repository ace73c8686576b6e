/* Nodes in a hash table by parent and tokens; a list of all nodes and a list of those with states, in the order of use. */
#include "cache/prefix.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define NONE UINT32_MAX

/* Node 0 is the anchor of both lists: between their newest and oldest nodes. */
enum { ANCHOR = 0 };

/* The lists: of all nodes, of those with a state. */
enum { ALL, STATES, LISTS };

struct link {
    uint32_t newer, older;
};

/* A root has no page; its tokens are not used. */
struct node {
    uint32_t parent, n_children, depth; /* depth: pages from the root, itself included; 0: a root */
    uint32_t next;                      /* in its bucket, or in the list of unused nodes */
    uint32_t page, f16_page, state;
    uint64_t key;
    char *scope; /* of a root */
    struct link links[LISTS];
    int32_t tokens[QN_PAGE];
};

struct qn_prefix {
    const qn_cache *cache;
    uint64_t state_budget, state_bytes;
    struct node *nodes;
    size_t n_nodes, cap_nodes; /* node 0 is the anchor */
    uint32_t unused;
    uint32_t *buckets; /* [n_buckets], a power of two */
    size_t n_buckets;
    qn_prefix_counts counts;
};

/* ---- Lists ---- */

static void unlink_node(qn_prefix *p, int list, uint32_t at)
{
    const struct link link = p->nodes[at].links[list];
    p->nodes[link.newer].links[list].older = link.older;
    p->nodes[link.older].links[list].newer = link.newer;
}

/* As the most recently used. */
static void link_node(qn_prefix *p, int list, uint32_t at)
{
    struct link *anchor = &p->nodes[ANCHOR].links[list];
    p->nodes[at].links[list] = (struct link){ .newer = ANCHOR, .older = anchor->older };
    p->nodes[anchor->older].links[list].newer = at;
    anchor->older = at;
}

static uint32_t oldest(const qn_prefix *p, int list)
{
    return p->nodes[ANCHOR].links[list].newer;
}

/* ---- The hash table ---- */

static uint64_t key_of(uint32_t parent, const int32_t *tokens)
{
    return XXH64(tokens, QN_PAGE * sizeof *tokens, parent);
}

static uint64_t key_of_scope(const char *scope)
{
    return XXH64(scope, strlen(scope), NONE);
}

static uint32_t *bucket_of(const qn_prefix *p, uint64_t key)
{
    return &p->buckets[key & (p->n_buckets - 1)];
}

static uint32_t find_child(const qn_prefix *p, uint32_t parent, const int32_t *tokens)
{
    const uint64_t key = key_of(parent, tokens);
    for (uint32_t at = *bucket_of(p, key); at != NONE; at = p->nodes[at].next) {
        const struct node *node = &p->nodes[at];
        if (node->key == key && node->parent == parent && node->depth && !memcmp(node->tokens, tokens, sizeof node->tokens))
            return at;
    }
    return NONE;
}

static uint32_t find_root(const qn_prefix *p, const char *scope)
{
    const uint64_t key = key_of_scope(scope);
    for (uint32_t at = *bucket_of(p, key); at != NONE; at = p->nodes[at].next)
        if (p->nodes[at].key == key && !p->nodes[at].depth && !strcmp(p->nodes[at].scope, scope))
            return at;
    return NONE;
}

/* More buckets for more nodes. Without memory the table stays as it is. */
static void grow_buckets(qn_prefix *p)
{
    uint32_t *buckets;
    const size_t n = 2 * p->n_buckets;
    if (p->n_nodes < p->n_buckets || qn_alloc(&buckets, n, sizeof *buckets, "prefix cache") != QN_OK)
        return;
    memset(buckets, 0xff, n * sizeof *buckets);
    for (size_t bucket = 0; bucket < p->n_buckets; bucket++)
        for (uint32_t at = p->buckets[bucket], next; at != NONE; at = next) {
            uint32_t *to = &buckets[p->nodes[at].key & (n - 1)];
            next = p->nodes[at].next;
            p->nodes[at].next = *to;
            *to = at;
        }
    qn_free(p->buckets);
    p->buckets = buckets;
    p->n_buckets = n;
}

/* ---- Nodes ---- */

static qn_status new_node(qn_prefix *p, uint64_t key, uint32_t parent, uint32_t *out)
{
    uint32_t at = p->unused;
    if (at == NONE) {
        if (p->n_nodes == NONE)
            return qn_fail(QN_ERR_MEMORY, "prefix cache: too many pages");
        QN_TRY(qn_realloc_array(&p->nodes, &p->cap_nodes, p->n_nodes + 1, sizeof *p->nodes, "prefix cache"));
        at = (uint32_t)p->n_nodes++;
        grow_buckets(p);
    } else {
        p->unused = p->nodes[at].next;
    }
    p->nodes[at] = (struct node){ .parent = parent,
                                  .next = *bucket_of(p, key),
                                  .page = QN_NO_ITEM,
                                  .f16_page = QN_NO_ITEM,
                                  .state = QN_NO_ITEM,
                                  .key = key };
    *bucket_of(p, key) = at;
    link_node(p, ALL, at);
    if (parent != NONE) {
        p->nodes[parent].n_children++;
        p->nodes[at].depth = p->nodes[parent].depth + 1;
    }
    *out = at;
    return QN_OK;
}

static void drop_state(qn_prefix *p, uint32_t at)
{
    struct node *node = &p->nodes[at];
    if (node->state == QN_NO_ITEM)
        return;
    unlink_node(p, STATES, at);
    qn_pool_drop(p->cache->states, node->state);
    node->state = QN_NO_ITEM;
    p->counts.states--;
    p->state_bytes -= qn_pool_stride(p->cache->states);
}

/* Frees a node without children, and a root that has no more. */
static void free_node(qn_prefix *p, uint32_t at)
{
    struct node *node = &p->nodes[at];
    const uint32_t parent = node->parent;
    uint32_t *link = bucket_of(p, node->key);
    drop_state(p, at);
    if (node->page != QN_NO_ITEM)
        qn_pool_drop(p->cache->pages, node->page);
    if (node->f16_page != QN_NO_ITEM)
        qn_pool_drop(p->cache->f16_pages, node->f16_page);
    while (*link != at)
        link = &p->nodes[*link].next;
    *link = node->next;
    unlink_node(p, ALL, at);
    free(node->scope);
    p->counts.pages -= node->depth > 0;
    node->next = p->unused;
    p->unused = at;
    if (parent != NONE && --p->nodes[parent].n_children == 0 && !p->nodes[parent].depth)
        free_node(p, parent);
}

static qn_status new_root(qn_prefix *p, const char *scope, uint32_t *out)
{
    char *copy = strdup(scope);
    if (!copy)
        return qn_fail(QN_ERR_MEMORY, "prefix cache: no memory for a scope");
    const qn_status status = new_node(p, key_of_scope(scope), NONE, out);
    if (status != QN_OK) {
        free(copy);
        return status;
    }
    p->nodes[*out].scope = copy;
    return QN_OK;
}

/* A path of nodes has been used. Descendants are listed as older than their ancestors, so that the oldest node is a leaf. */
static void touch(qn_prefix *p, uint32_t at)
{
    for (; at != NONE; at = p->nodes[at].parent) {
        unlink_node(p, ALL, at);
        link_node(p, ALL, at);
    }
}

/* ---- Adopting ---- */

/* The deepest node of a path that the tokens match, NONE if there is no root. */
static uint32_t find_path(const qn_prefix *p, const char *scope, const int32_t *tokens, size_t n_pages)
{
    uint32_t at = find_root(p, scope);
    for (size_t i = 0; at != NONE && i < n_pages; i++) {
        const uint32_t child = find_child(p, at, tokens + i * QN_PAGE);
        if (child == NONE)
            break;
        at = child;
    }
    return at;
}

static qn_status adopt(qn_prefix *p, uint32_t at, qn_sequence *sequence)
{
    const struct node *node = &p->nodes[at];
    const uint32_t n = node->depth;
    QN_TRY(qn_sequence_begin(sequence, n));
    if (p->cache->states) {
        unlink_node(p, STATES, at);
        link_node(p, STATES, at);
        qn_sequence_take_state(sequence, node->state);
    }
    for (; node->depth; node = &p->nodes[node->parent])
        qn_sequence_take_page(sequence, node->depth - 1, node->page, node->f16_page);
    return QN_OK;
}

qn_status qn_prefix_adopt(qn_prefix *p, const char *scope, const int32_t *tokens, size_t n, qn_sequence *sequence,
                          uint32_t *matched)
{
    uint32_t at = find_path(p, scope ? scope : "", tokens, n ? (n - 1) / QN_PAGE : 0);
    *matched = at == NONE ? 0 : p->nodes[at].depth * QN_PAGE;
    if (at == NONE)
        return QN_OK;
    touch(p, at);
    while (p->cache->states && p->nodes[at].depth && p->nodes[at].state == QN_NO_ITEM)
        at = p->nodes[at].parent;
    return p->nodes[at].depth ? adopt(p, at, sequence) : QN_OK;
}

/* ---- Adding ---- */

static qn_status add_page(qn_prefix *p, uint32_t parent, const int32_t *tokens, const qn_sequence *s, size_t page,
                          uint32_t *out)
{
    QN_TRY(new_node(p, key_of(parent, tokens), parent, out));
    struct node *node = &p->nodes[*out];
    memcpy(node->tokens, tokens, sizeof node->tokens);
    qn_sequence_share_page(s, page, &node->page, &node->f16_page);
    p->counts.pages++;
    return QN_OK;
}

void qn_prefix_add(qn_prefix *p, const char *scope, const int32_t *tokens, const qn_sequence *s)
{
    const size_t n_pages = s->length / QN_PAGE;
    uint32_t at = find_path(p, scope ? scope : "", tokens, n_pages);
    if (!n_pages || (at == NONE && new_root(p, scope ? scope : "", &at) != QN_OK))
        return;
    for (size_t i = p->nodes[at].depth; i < n_pages; i++) {
        uint32_t child;
        if (add_page(p, at, tokens + i * QN_PAGE, s, i, &child) != QN_OK)
            break;
        at = child;
    }
    touch(p, at);
    if (!p->nodes[at].depth && !p->nodes[at].n_children)
        free_node(p, at);
}

void qn_prefix_keep_state(qn_prefix *p, const char *scope, const int32_t *tokens, const qn_sequence *s)
{
    const size_t depth = s->state_position / QN_PAGE;
    if (!p->cache->states || !depth || qn_pool_stride(p->cache->states) > p->state_budget)
        return;
    const uint32_t at = find_path(p, scope ? scope : "", tokens, depth);
    if (at == NONE || p->nodes[at].depth != depth)
        return;
    if (p->nodes[at].state != QN_NO_ITEM) {
        unlink_node(p, STATES, at);
        link_node(p, STATES, at);
        return;
    }
    qn_pool_share(p->cache->states, s->state);
    p->nodes[at].state = s->state;
    link_node(p, STATES, at);
    p->counts.states++;
    p->state_bytes += qn_pool_stride(p->cache->states);
    while (p->state_bytes > p->state_budget)
        drop_state(p, oldest(p, STATES));
}

/* ---- Eviction ---- */

static bool is_page_shared(const qn_prefix *p, const struct node *node)
{
    return (node->page != QN_NO_ITEM && qn_pool_is_shared(p->cache->pages, node->page)) ||
           (node->f16_page != QN_NO_ITEM && qn_pool_is_shared(p->cache->f16_pages, node->f16_page));
}

bool qn_prefix_evict(qn_prefix *p)
{
    for (uint32_t at = oldest(p, ALL); at != ANCHOR; at = p->nodes[at].links[ALL].newer)
        if (!p->nodes[at].n_children && !is_page_shared(p, &p->nodes[at])) {
            free_node(p, at);
            return true;
        }
    for (uint32_t at = oldest(p, STATES); p->counts.states && at != ANCHOR; at = p->nodes[at].links[STATES].newer)
        if (!qn_pool_is_shared(p->cache->states, p->nodes[at].state)) {
            drop_state(p, at);
            return true;
        }
    return false;
}

void qn_prefix_clear(qn_prefix *p)
{
    while (oldest(p, ALL) != ANCHOR) {
        uint32_t at = oldest(p, ALL);
        while (p->nodes[at].n_children)
            at = p->nodes[at].links[ALL].newer;
        free_node(p, at);
    }
}

qn_prefix_counts qn_prefix_get_counts(const qn_prefix *p)
{
    return p->counts;
}

/* ---- Creation ---- */

enum { FIRST_BUCKETS = 64 };

static qn_status create(qn_prefix *p)
{
    QN_TRY(qn_alloc(&p->buckets, FIRST_BUCKETS, sizeof *p->buckets, "prefix cache"));
    memset(p->buckets, 0xff, FIRST_BUCKETS * sizeof *p->buckets);
    p->n_buckets = FIRST_BUCKETS;
    QN_TRY(qn_realloc_array(&p->nodes, &p->cap_nodes, 1, sizeof *p->nodes, "prefix cache"));
    p->nodes[ANCHOR] = (struct node){ 0 };
    p->n_nodes = 1;
    return QN_OK;
}

qn_status qn_prefix_create(const qn_cache *cache, uint64_t state_budget, qn_prefix **out)
{
    qn_prefix *p;
    *out = NULL;
    QN_TRY(qn_alloc(&p, 1, sizeof *p, "prefix cache"));
    *p = (qn_prefix){ .cache = cache, .state_budget = state_budget, .unused = NONE };
    const qn_status status = create(p);
    if (status != QN_OK) {
        qn_prefix_free(p);
        return status;
    }
    *out = p;
    return QN_OK;
}

void qn_prefix_free(qn_prefix *p)
{
    if (!p)
        return;
    if (p->nodes)
        qn_prefix_clear(p);
    free(p->nodes);
    qn_free(p->buckets);
    qn_free(p);
}
