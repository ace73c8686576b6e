/* The hash table of nodes by parent and ids, their lists, and their items. */
#include "cache/prefix_nodes.h"

#include "base/keyed_hash.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* ---- Lists ---- */

void qn_nodes_unlink(qn_prefix *p, int list, uint32_t at)
{
    const qn_node_link link = p->nodes[at].links[list];
    p->nodes[link.newer].links[list].older = link.older;
    p->nodes[link.older].links[list].newer = link.newer;
}

void qn_nodes_link(qn_prefix *p, int list, uint32_t at)
{
    qn_node_link *anchor = &p->nodes[QN_NODE_ANCHOR].links[list];
    p->nodes[at].links[list] = (qn_node_link){ .newer = QN_NODE_ANCHOR, .older = anchor->older };
    p->nodes[anchor->older].links[list].newer = at;
    anchor->older = at;
}

void qn_nodes_make_newest(qn_prefix *p, int list, uint32_t at)
{
    qn_nodes_unlink(p, list, at);
    qn_nodes_link(p, list, at);
}

uint32_t qn_nodes_oldest(const qn_prefix *p, int list)
{
    return p->nodes[QN_NODE_ANCHOR].links[list].newer;
}

/* ---- The hash table ---- */

/* Returns whether a page has rows that are not tokens. */
static bool has_hashes(qn_row_ids ids)
{
    for (size_t i = 0; ids.hashes && i < QN_PAGE; i++)
        if (ids.tokens[i] < 0)
            return true;
    return false;
}

/* Copies a page's hashes; those of tokens are 0. */
static void copy_hashes(qn_row_ids ids, uint64_t hashes[QN_PAGE])
{
    for (size_t i = 0; i < QN_PAGE; i++)
        hashes[i] = ids.tokens[i] < 0 ? ids.hashes[i] : 0;
}

static uint64_t key_of(uint32_t parent, qn_row_ids ids)
{
    const uint64_t key = qn_keyed_hash_with(ids.tokens, QN_PAGE * sizeof *ids.tokens, parent);
    uint64_t hashes[QN_PAGE];
    if (!has_hashes(ids))
        return key;
    copy_hashes(ids, hashes);
    return qn_keyed_hash_with(hashes, sizeof hashes, key);
}

/* Returns whether a node holds the page with these ids. */
static bool has_ids(const qn_prefix_node *node, qn_row_ids ids)
{
    uint64_t hashes[QN_PAGE];
    if (memcmp(node->tokens, ids.tokens, sizeof node->tokens) != 0 || (node->hashes != NULL) != has_hashes(ids))
        return false;
    if (!node->hashes)
        return true;
    copy_hashes(ids, hashes);
    return !memcmp(node->hashes, hashes, sizeof hashes);
}

static uint64_t key_of_scope(const char *scope)
{
    return qn_keyed_hash_with(scope, strlen(scope), QN_NO_NODE);
}

static uint32_t *bucket_of(const qn_prefix *p, uint64_t key)
{
    return &p->buckets[key & (p->n_buckets - 1)];
}

static uint32_t find_child(const qn_prefix *p, uint32_t parent, qn_row_ids ids)
{
    const uint64_t key = key_of(parent, ids);
    for (uint32_t at = *bucket_of(p, key); at != QN_NO_NODE; at = p->nodes[at].next) {
        const qn_prefix_node *node = &p->nodes[at];
        if (node->key == key && node->parent == parent && node->depth && has_ids(node, ids))
            return at;
    }
    return QN_NO_NODE;
}

static uint32_t find_root(const qn_prefix *p, const char *scope)
{
    const uint64_t key = key_of_scope(scope);
    for (uint32_t at = *bucket_of(p, key); at != QN_NO_NODE; at = p->nodes[at].next)
        if (p->nodes[at].key == key && !p->nodes[at].depth && !strcmp(p->nodes[at].scope, scope))
            return at;
    return QN_NO_NODE;
}

/* Doubles the buckets when there is a node for each. Without memory the table stays as it is. */
static void grow_buckets(qn_prefix *p)
{
    uint32_t *buckets;
    const size_t n = 2 * p->n_buckets;
    if (p->n_nodes < p->n_buckets || qn_alloc(&buckets, n, sizeof *buckets, "prefix cache") != QN_OK)
        return;
    memset(buckets, 0xff, n * sizeof *buckets);
    for (size_t bucket = 0; bucket < p->n_buckets; bucket++)
        for (uint32_t at = p->buckets[bucket], next; at != QN_NO_NODE; at = next) {
            uint32_t *to = &buckets[p->nodes[at].key & (n - 1)];
            next = p->nodes[at].next;
            p->nodes[at].next = *to;
            *to = at;
        }
    qn_free(p->buckets);
    p->buckets = buckets;
    p->n_buckets = n;
}

uint32_t qn_nodes_find_path(const qn_prefix *p, const char *scope, qn_row_ids ids, size_t n_pages)
{
    uint32_t at = find_root(p, scope);
    for (size_t i = 0; at != QN_NO_NODE && i < n_pages; i++) {
        const uint32_t child = find_child(p, at, qn_row_ids_from(ids, i * QN_PAGE));
        if (child == QN_NO_NODE)
            break;
        at = child;
    }
    return at;
}

/* ---- Nodes ---- */

static qn_status new_node(qn_prefix *p, uint64_t key, uint32_t parent, uint32_t *out)
{
    uint32_t at = p->unused;
    if (at == QN_NO_NODE) {
        if (p->n_nodes == QN_NO_NODE)
            return qn_fail(QN_ERR_MEMORY, "prefix cache: too many pages");
        QN_TRY(qn_realloc_array(&p->nodes, &p->cap_nodes, p->n_nodes + 1, sizeof *p->nodes, "prefix cache"));
        at = (uint32_t)p->n_nodes++;
        grow_buckets(p);
    } else {
        p->unused = p->nodes[at].next;
    }
    p->nodes[at] = (qn_prefix_node){
        .parent = parent, .next = *bucket_of(p, key), .items = { QN_NO_ITEM, QN_NO_ITEM, QN_NO_ITEM }, .key = key
    };
    *bucket_of(p, key) = at;
    qn_nodes_link(p, QN_NODES_ALL, at);
    if (parent != QN_NO_NODE) {
        p->nodes[parent].n_children++;
        p->nodes[at].depth = p->nodes[parent].depth + 1;
    }
    *out = at;
    return QN_OK;
}

/* ---- Items ---- */

bool qn_node_has_item(const qn_prefix_node *node, qn_item_kind kind, int place)
{
    return node->items[kind] != QN_NO_ITEM && node->places[kind] == place;
}

bool qn_node_is_page_in(const qn_prefix_node *node, int place)
{
    return qn_node_has_item(node, QN_ITEM_PAGE, place) || qn_node_has_item(node, QN_ITEM_F16_PAGE, place);
}

/* Returns the list that holds a node while its page is in the pool. */
static int pooled_list(const qn_prefix_node *node)
{
    return node->is_continued ? QN_NODES_CONTINUED : QN_NODES_ONCE;
}

void qn_nodes_set_item(qn_prefix *p, uint32_t at, qn_item_kind kind, uint32_t item, int place)
{
    qn_prefix_node *node = &p->nodes[at];
    const uint64_t bytes = kind == QN_ITEM_STATE ? qn_pool_stride(p->cache->states) : 0;
    const bool was_pooled = qn_node_has_item(node, kind, QN_IN_POOL);
    node->items[kind] = item;
    node->places[kind] = (uint8_t)place;
    const bool is_pooled = qn_node_has_item(node, kind, QN_IN_POOL);
    p->state_bytes += is_pooled ? bytes : 0;
    p->state_bytes -= was_pooled ? bytes : 0;
    if (kind != QN_ITEM_STATE && was_pooled)
        qn_nodes_unlink(p, pooled_list(node), at);
    if (kind != QN_ITEM_STATE && is_pooled)
        qn_nodes_link(p, pooled_list(node), at);
}

void qn_nodes_keep_in_pool(qn_prefix *p, uint32_t at, qn_item_kind kind)
{
    if (!qn_node_has_item(&p->nodes[at], kind, QN_SPILLING))
        return;
    qn_spill_abandon(p->spill, kind, at);
    qn_nodes_set_item(p, at, kind, p->nodes[at].items[kind], QN_IN_POOL);
}

void qn_nodes_drop_item(qn_prefix *p, uint32_t at, qn_item_kind kind)
{
    const qn_prefix_node *node = &p->nodes[at];
    qn_nodes_keep_in_pool(p, at, kind);
    if (qn_node_has_item(node, kind, QN_IN_POOL))
        qn_pool_drop(qn_item_class(p->cache, kind), node->items[kind]);
    else if (qn_node_has_item(node, kind, QN_IN_HOST))
        qn_spill_drop(p->spill, kind, node->items[kind]);
    qn_nodes_set_item(p, at, kind, QN_NO_ITEM, QN_IN_POOL);
}

void qn_nodes_drop_state(qn_prefix *p, uint32_t at)
{
    if (p->nodes[at].items[QN_ITEM_STATE] == QN_NO_ITEM)
        return;
    qn_nodes_unlink(p, QN_NODES_WITH_STATE, at);
    qn_nodes_drop_item(p, at, QN_ITEM_STATE);
    p->counts.states--;
}

void qn_nodes_free(qn_prefix *p, uint32_t at)
{
    qn_prefix_node *node = &p->nodes[at];
    const uint32_t parent = node->parent;
    uint32_t *link = bucket_of(p, node->key);
    qn_nodes_drop_state(p, at);
    qn_nodes_drop_item(p, at, QN_ITEM_PAGE);
    qn_nodes_drop_item(p, at, QN_ITEM_F16_PAGE);
    while (*link != at)
        link = &p->nodes[*link].next;
    *link = node->next;
    qn_nodes_unlink(p, QN_NODES_ALL, at);
    free(node->scope);
    free(node->hashes);
    p->counts.pages -= node->depth > 0;
    node->next = p->unused;
    p->unused = at;
    if (parent != QN_NO_NODE && --p->nodes[parent].n_children == 0 && !p->nodes[parent].depth)
        qn_nodes_free(p, parent);
}

qn_status qn_nodes_new_root(qn_prefix *p, const char *scope, uint32_t *out)
{
    char *copy = strdup(scope);
    if (!copy)
        return qn_fail(QN_ERR_MEMORY, "prefix cache: no memory for a scope");
    const qn_status status = new_node(p, key_of_scope(scope), QN_NO_NODE, out);
    if (status != QN_OK) {
        free(copy);
        return status;
    }
    p->nodes[*out].scope = copy;
    return QN_OK;
}

qn_status qn_nodes_new_child(qn_prefix *p, uint32_t parent, qn_row_ids ids, uint32_t *out)
{
    uint64_t *hashes = NULL;
    if (has_hashes(ids)) {
        hashes = malloc(QN_PAGE * sizeof *hashes);
        if (!hashes)
            return qn_fail(QN_ERR_MEMORY, "prefix cache: no memory for the ids of a page");
        copy_hashes(ids, hashes);
    }
    const qn_status status = new_node(p, key_of(parent, ids), parent, out);
    if (status != QN_OK) {
        free(hashes);
        return status;
    }
    memcpy(p->nodes[*out].tokens, ids.tokens, sizeof p->nodes[*out].tokens);
    p->nodes[*out].hashes = hashes;
    return QN_OK;
}

/* ---- Use ---- */

void qn_nodes_touch(qn_prefix *p, uint32_t at, bool is_continued)
{
    for (; at != QN_NO_NODE; at = p->nodes[at].parent) {
        qn_prefix_node *node = &p->nodes[at];
        const bool is_pooled = qn_node_is_page_in(node, QN_IN_POOL);
        node->used = ++p->clock;
        qn_nodes_make_newest(p, QN_NODES_ALL, at);
        if (is_pooled)
            qn_nodes_unlink(p, pooled_list(node), at);
        node->is_continued |= is_continued;
        if (is_pooled)
            qn_nodes_link(p, pooled_list(node), at);
    }
}
