/* Nodes in a hash table by parent and tokens; lists of all nodes, of those with states and of those with pages in the pool, in
 * the order of use. */
#include "cache/prefix.h"

#include "base/memory.h"
#include "cache/spill.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define NONE UINT32_MAX

/* Node 0 is the anchor of both lists: between their newest and oldest nodes. */
enum { ANCHOR = 0 };

/* The lists: of all nodes, of those with a state, of those whose page is in the pool. */
enum { ALL, STATES, POOLED, LISTS };

/* So many of the newest periodic states are not thinned; a periodic state counts as so many times as old as a mark. */
enum { DENSE_STATES = 2, PERIODIC_AGE = 4 };

/* Where an item is. SPILLING: in the pool while it is copied to host memory. It counts neither as a state of the pool nor as a
 * page that can be evicted. */
enum { IN_POOL, SPILLING, IN_HOST };

struct link {
    uint32_t newer, older;
};

/* A root has no page; its tokens are not used. */
struct node {
    uint32_t parent, n_children, depth; /* depth: pages from the root, itself included; 0: a root */
    uint32_t next;                      /* in its bucket, or in the list of unused nodes */
    uint32_t items[QN_ITEM_KINDS];
    uint8_t places[QN_ITEM_KINDS]; /* IN_POOL, SPILLING or IN_HOST */
    qn_state_kind state_kind;
    bool is_pinned; /* a sequence takes it over, or host memory is freed for its items: it is not evicted */
    uint64_t key;
    char *scope; /* of a root */
    struct link links[LISTS];
    int32_t tokens[QN_PAGE];
};

struct qn_prefix {
    const qn_cache *cache;
    uint64_t state_budget, state_bytes; /* in the pool */
    qn_spill *spill;                    /* NULL: nothing is spilled */
    bool is_exhausted;                  /* what the pool has was held by sequences, and nothing has been added since */
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

static void make_newest(qn_prefix *p, int list, uint32_t at)
{
    unlink_node(p, list, at);
    link_node(p, list, at);
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
    p->nodes[at] = (struct node){
        .parent = parent, .next = *bucket_of(p, key), .items = { QN_NO_ITEM, QN_NO_ITEM, QN_NO_ITEM }, .key = key
    };
    *bucket_of(p, key) = at;
    link_node(p, ALL, at);
    if (parent != NONE) {
        p->nodes[parent].n_children++;
        p->nodes[at].depth = p->nodes[parent].depth + 1;
    }
    *out = at;
    return QN_OK;
}

/* ---- Items ---- */

static bool has_item(const struct node *node, qn_item_kind kind, int place)
{
    return node->items[kind] != QN_NO_ITEM && node->places[kind] == place;
}

static bool is_page_in(const struct node *node, int place)
{
    return has_item(node, QN_ITEM_PAGE, place) || has_item(node, QN_ITEM_F16_PAGE, place);
}

/* Replaces an item, or QN_NO_ITEM; its reference is the caller's. */
static void set_item(qn_prefix *p, uint32_t at, qn_item_kind kind, uint32_t item, int place)
{
    struct node *node = &p->nodes[at];
    const uint64_t bytes = kind == QN_ITEM_STATE ? qn_pool_stride(p->cache->states) : 0;
    const bool was_pooled = has_item(node, kind, IN_POOL);
    node->items[kind] = item;
    node->places[kind] = (uint8_t)place;
    const bool is_pooled = has_item(node, kind, IN_POOL);
    p->state_bytes += is_pooled ? bytes : 0;
    p->state_bytes -= was_pooled ? bytes : 0;
    if (kind != QN_ITEM_STATE && was_pooled)
        unlink_node(p, POOLED, at);
    if (kind != QN_ITEM_STATE && is_pooled)
        link_node(p, POOLED, at);
}

/* An item that is wanted again stays in the pool. */
static void keep_in_pool(qn_prefix *p, uint32_t at, qn_item_kind kind)
{
    if (!has_item(&p->nodes[at], kind, SPILLING))
        return;
    qn_spill_abandon(p->spill, kind, at);
    set_item(p, at, kind, p->nodes[at].items[kind], IN_POOL);
}

static void drop_item(qn_prefix *p, uint32_t at, qn_item_kind kind)
{
    const struct node *node = &p->nodes[at];
    keep_in_pool(p, at, kind);
    if (has_item(node, kind, IN_POOL))
        qn_pool_drop(qn_item_class(p->cache, kind), node->items[kind]);
    else if (has_item(node, kind, IN_HOST))
        qn_spill_drop(p->spill, kind, node->items[kind]);
    set_item(p, at, kind, QN_NO_ITEM, IN_POOL);
}

static void drop_state(qn_prefix *p, uint32_t at)
{
    if (p->nodes[at].items[QN_ITEM_STATE] == QN_NO_ITEM)
        return;
    unlink_node(p, STATES, at);
    drop_item(p, at, QN_ITEM_STATE);
    p->counts.states--;
}

/* Frees a node without children, and a root that has no more. */
static void free_node(qn_prefix *p, uint32_t at)
{
    struct node *node = &p->nodes[at];
    const uint32_t parent = node->parent;
    uint32_t *link = bucket_of(p, node->key);
    drop_state(p, at);
    drop_item(p, at, QN_ITEM_PAGE);
    drop_item(p, at, QN_ITEM_F16_PAGE);
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
        make_newest(p, ALL, at);
        if (is_page_in(&p->nodes[at], IN_POOL))
            make_newest(p, POOLED, at);
    }
}

/* ---- Thinning ---- */

/* The powers of two in a node's position. */
static unsigned level_of(const struct node *node)
{
    return (unsigned)__builtin_ctz(node->depth);
}

/* Whether a periodic state is thinned when `newer` periodic states are newer: beyond DENSE_STATES of them multiples of two
 * periods remain, beyond twice as many multiples of four, and so on. So a budget of n states reaches over about n * n / 3
 * periods. */
static bool is_thinned(const struct node *node, size_t newer)
{
    const unsigned first = (unsigned)__builtin_ctz(QN_STATE_PERIOD / QN_PAGE);
    return newer >> (level_of(node) > first ? level_of(node) - first : 0) >= DENSE_STATES;
}

static bool is_state_held(const qn_prefix *p, const struct node *node)
{
    return has_item(node, QN_ITEM_STATE, IN_POOL) && qn_pool_is_shared(p->cache->states, node->items[QN_ITEM_STATE]);
}

/* The state that goes first, of those in the pool or in host memory; NONE if there is none. with_held: also one that a
 * sequence holds. *thinned: it is a periodic one that is thinned. The newest goes only if there is no other. */
static uint32_t find_state(const qn_prefix *p, int place, bool with_held, bool *thinned)
{
    uint32_t found = NONE;
    size_t age = 0, n_periodic = 0, greatest = 0;
    *thinned = false;
    for (uint32_t at = p->nodes[ANCHOR].links[STATES].older; p->counts.states && at != ANCHOR;
         at = p->nodes[at].links[STATES].older, age++) {
        const struct node *node = &p->nodes[at];
        const bool is_periodic = node->state_kind == QN_STATE_PERIODIC, thins = is_periodic && is_thinned(node, n_periodic);
        const size_t weighted = is_periodic ? age * PERIODIC_AGE : age;
        n_periodic += is_periodic;
        if (!has_item(node, QN_ITEM_STATE, place) || node->is_pinned || (!with_held && is_state_held(p, node)))
            continue;
        if (thins || (!*thinned && weighted >= greatest)) {
            found = at;
            greatest = weighted;
            *thinned = thins;
        }
    }
    return found;
}

/* ---- Spilling ---- */

/* The nearest node above, less than QN_SPILL_TOKENS before, that has a state in the pool; NONE if there is none. */
static uint32_t near_state(const qn_prefix *p, uint32_t at)
{
    for (size_t n = QN_PAGE; n < QN_SPILL_TOKENS; n += QN_PAGE) {
        at = p->nodes[at].parent;
        if (!p->nodes[at].depth)
            break;
        if (has_item(&p->nodes[at], QN_ITEM_STATE, IN_POOL))
            return at;
    }
    return NONE;
}

/* Drops what is used least of host memory. */
static bool free_host(qn_prefix *p)
{
    bool thinned;
    uint32_t at = find_state(p, IN_HOST, false, &thinned);
    if (thinned) {
        drop_state(p, at);
        return true;
    }
    for (uint32_t leaf = oldest(p, ALL); leaf != ANCHOR; leaf = p->nodes[leaf].links[ALL].newer) {
        const struct node *node = &p->nodes[leaf];
        if (is_page_in(node, IN_HOST) && !node->n_children && !node->is_pinned) {
            free_node(p, leaf);
            return true;
        }
    }
    if (at != NONE)
        drop_state(p, at);
    return at != NONE;
}

/* The same for an item of a node, which stays. */
static bool free_host_for(qn_prefix *p, uint32_t at)
{
    const bool was_pinned = p->nodes[at].is_pinned;
    p->nodes[at].is_pinned = true;
    const bool freed = free_host(p);
    p->nodes[at].is_pinned = was_pinned;
    return freed;
}

/* Begins to copy an item to host memory, which evicts the least used copies. False: no copy is made. */
static bool spill_item(qn_prefix *p, uint32_t at, qn_item_kind kind)
{
    if (!p->spill || !qn_spill_fits(p->spill, kind))
        return false;
    while (!qn_spill_has_space(p->spill, kind))
        if (!free_host_for(p, at))
            return false;
    const uint32_t item = p->nodes[at].items[kind];
    if (!qn_spill_begin(p->spill, kind, item, at))
        return false;
    set_item(p, at, kind, item, SPILLING);
    return true;
}

/* Returns whether a copy is made; the state is dropped otherwise. */
static bool spill_state(qn_prefix *p, uint32_t at)
{
    if (near_state(p, at) == NONE && spill_item(p, at, QN_ITEM_STATE))
        return true;
    drop_state(p, at);
    return false;
}

static bool is_below(const qn_prefix *p, uint32_t at, uint32_t above)
{
    while (p->nodes[at].depth > p->nodes[above].depth)
        at = p->nodes[at].parent;
    return at == above;
}

/* Frees a node and those below it, which are listed as older. */
static void free_branch(qn_prefix *p, uint32_t at)
{
    for (uint32_t below = oldest(p, ALL), newer; below != at; below = newer) {
        newer = p->nodes[below].links[ALL].newer;
        if (is_below(p, below, at))
            free_node(p, below);
    }
    free_node(p, at);
}

/* What could not be copied is dropped, and what is below it. Where host memory was exhausted, something of it is, and the item
 * stays in the pool until the next try. */
static void end_failed_copy(qn_prefix *p, const qn_spilled *c)
{
    if (c->status == QN_ERR_MEMORY && free_host_for(p, c->owner))
        set_item(p, c->owner, c->kind, p->nodes[c->owner].items[c->kind], IN_POOL);
    else if (c->kind == QN_ITEM_STATE)
        drop_state(p, c->owner);
    else
        free_branch(p, c->owner);
}

bool qn_prefix_end_copies(qn_prefix *p)
{
    qn_spilled c;
    bool any = false;
    while (p->spill && qn_spill_end(p->spill, &c)) {
        any = true;
        if (c.status != QN_OK) {
            end_failed_copy(p, &c);
            continue;
        }
        qn_pool_drop(qn_item_class(p->cache, c.kind), p->nodes[c.owner].items[c.kind]);
        set_item(p, c.owner, c.kind, c.copy, IN_HOST);
    }
    return any;
}

void qn_prefix_wait(qn_prefix *p)
{
    if (p->spill)
        qn_spill_wait(p->spill);
}

/* Moves an item back. Pinned nodes stay where they are; others are evicted for it. */
static qn_status fetch_item(qn_prefix *p, uint32_t at, qn_item_kind kind)
{
    uint32_t item;
    qn_status status;
    if (!has_item(&p->nodes[at], kind, IN_HOST))
        return QN_OK;
    do
        status = qn_spill_in(p->spill, kind, p->nodes[at].items[kind], &item);
    while (status == QN_ERR_MEMORY && qn_prefix_evict(p));
    QN_TRY(status);
    set_item(p, at, kind, item, IN_POOL);
    return QN_OK;
}

/* ---- Eviction ---- */

static bool is_page_shared(const qn_prefix *p, const struct node *node)
{
    for (qn_item_kind kind = QN_ITEM_PAGE; kind <= QN_ITEM_F16_PAGE; kind++)
        if (has_item(node, kind, IN_POOL) && qn_pool_is_shared(qn_item_class(p->cache, kind), node->items[kind]))
            return true;
    return false;
}

/* Begins to copy a node's page to host memory, and its state with it. False: no copy is made of the page. */
static bool spill_node(qn_prefix *p, uint32_t at)
{
    const struct node *node = &p->nodes[at];
    if (!spill_item(p, at, has_item(node, QN_ITEM_PAGE, IN_POOL) ? QN_ITEM_PAGE : QN_ITEM_F16_PAGE))
        return false;
    if (has_item(node, QN_ITEM_STATE, IN_POOL) && !is_state_held(p, node))
        (void)spill_state(p, at);
    return true;
}

/* Without attention layers a node has nothing but its state. */
static void free_empty(qn_prefix *p, uint32_t at)
{
    while (!p->cache->pages && !p->nodes[at].n_children && p->nodes[at].items[QN_ITEM_STATE] == QN_NO_ITEM) {
        const uint32_t parent = p->nodes[at].parent;
        const bool is_last = !p->nodes[parent].depth;
        free_node(p, at);
        if (is_last)
            break;
        at = parent;
    }
}

static qn_evicted evict_oldest(qn_prefix *p)
{
    bool thinned;
    for (uint32_t at = oldest(p, POOLED); at != ANCHOR; at = p->nodes[at].links[POOLED].newer) {
        const struct node *node = &p->nodes[at];
        if (node->is_pinned || is_page_shared(p, node))
            continue;
        if (spill_node(p, at))
            return QN_EVICTED_LATER;
        if (!node->n_children) {
            free_node(p, at);
            return QN_EVICTED;
        }
    }
    const uint32_t at = find_state(p, IN_POOL, false, &thinned);
    if (at == NONE)
        return QN_EVICTED_NONE;
    if (spill_state(p, at))
        return QN_EVICTED_LATER;
    free_empty(p, at);
    return QN_EVICTED;
}

qn_evicted qn_prefix_begin_evict(qn_prefix *p)
{
    if (qn_prefix_end_copies(p))
        return QN_EVICTED;
    if (p->spill && qn_spill_is_busy(p->spill))
        return QN_EVICTED_LATER;
    return evict_oldest(p);
}

static bool has_free_share(const qn_prefix *p)
{
    const qn_pool_usage usage = qn_pool_get_usage(qn_pool_of(p->cache->pages ? p->cache->pages : p->cache->states));
    return usage.left >= usage.budget / QN_FREE_SHARE;
}

/* Each eviction takes up to two copies, of a page and its state. */
void qn_prefix_evict_ahead(qn_prefix *p)
{
    (void)qn_prefix_end_copies(p);
    if (!p->spill || p->is_exhausted || qn_spill_is_busy(p->spill) || has_free_share(p))
        return;
    for (int i = 0; i < QN_SPILL_COPIES / 2 && !p->is_exhausted; i++)
        p->is_exhausted = evict_oldest(p) == QN_EVICTED_NONE;
}

bool qn_prefix_evict(qn_prefix *p)
{
    const qn_evicted evicted = qn_prefix_begin_evict(p);
    if (evicted == QN_EVICTED_LATER) {
        qn_prefix_wait(p);
        (void)qn_prefix_end_copies(p);
    }
    return evicted != QN_EVICTED_NONE;
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

/* The node of a path where a sequence begins; a root if there is none. */
static uint32_t find_beginning(const qn_prefix *p, uint32_t at)
{
    if (!p->cache->states)
        return at;
    while (p->nodes[at].depth && p->nodes[at].items[QN_ITEM_STATE] == QN_NO_ITEM)
        at = p->nodes[at].parent;
    if (!has_item(&p->nodes[at], QN_ITEM_STATE, IN_HOST))
        return at;
    const uint32_t near = near_state(p, at);
    return near == NONE ? at : near;
}

static void pin_path(qn_prefix *p, uint32_t at, bool is_pinned)
{
    for (; p->nodes[at].depth; at = p->nodes[at].parent)
        p->nodes[at].is_pinned = is_pinned;
}

static qn_status fetch_path(qn_prefix *p, uint32_t at)
{
    if (p->cache->states)
        QN_TRY(fetch_item(p, at, QN_ITEM_STATE));
    for (; p->nodes[at].depth; at = p->nodes[at].parent) {
        QN_TRY(fetch_item(p, at, QN_ITEM_PAGE));
        QN_TRY(fetch_item(p, at, QN_ITEM_F16_PAGE));
    }
    return QN_OK;
}

/* Items that are being copied to host memory are wanted in the pool. */
static void keep_path_in_pool(qn_prefix *p, uint32_t at)
{
    for (; p->nodes[at].depth; at = p->nodes[at].parent)
        for (qn_item_kind kind = 0; kind < QN_ITEM_KINDS; kind++)
            keep_in_pool(p, at, kind);
}

static qn_status adopt(qn_prefix *p, uint32_t at, qn_sequence *sequence)
{
    const struct node *node = &p->nodes[at];
    keep_path_in_pool(p, at);
    pin_path(p, at, true);
    qn_status status = fetch_path(p, at);
    pin_path(p, at, false);
    if (status == QN_OK)
        status = qn_sequence_begin(sequence, node->depth);
    QN_TRY(status);
    if (p->cache->states) {
        make_newest(p, STATES, at);
        qn_sequence_take_state(sequence, node->items[QN_ITEM_STATE]);
    }
    for (; node->depth; node = &p->nodes[node->parent])
        qn_sequence_take_page(sequence, node->depth - 1, node->items[QN_ITEM_PAGE], node->items[QN_ITEM_F16_PAGE]);
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
    at = find_beginning(p, at);
    return p->nodes[at].depth ? adopt(p, at, sequence) : QN_OK;
}

bool qn_prefix_is_spilled(const qn_prefix *p, const char *scope, const int32_t *tokens, size_t n)
{
    uint32_t at = find_path(p, scope ? scope : "", tokens, n ? (n - 1) / QN_PAGE : 0);
    if (at == NONE)
        return false;
    at = find_beginning(p, at);
    if (has_item(&p->nodes[at], QN_ITEM_STATE, IN_HOST))
        return true;
    for (; p->nodes[at].depth; at = p->nodes[at].parent)
        if (has_item(&p->nodes[at], QN_ITEM_PAGE, IN_HOST) || has_item(&p->nodes[at], QN_ITEM_F16_PAGE, IN_HOST))
            return true;
    return false;
}

/* ---- Adding ---- */

/* Lets a node have the sequence's page in place of what it has. */
static void share_page(qn_prefix *p, uint32_t at, const qn_sequence *s)
{
    uint32_t page, f16_page;
    qn_sequence_share_page(s, p->nodes[at].depth - 1, &page, &f16_page);
    drop_item(p, at, QN_ITEM_PAGE);
    drop_item(p, at, QN_ITEM_F16_PAGE);
    set_item(p, at, QN_ITEM_PAGE, page, IN_POOL);
    set_item(p, at, QN_ITEM_F16_PAGE, f16_page, IN_POOL);
}

static qn_status add_page(qn_prefix *p, uint32_t parent, const int32_t *tokens, const qn_sequence *s, uint32_t *out)
{
    QN_TRY(new_node(p, key_of(parent, tokens), parent, out));
    struct node *node = &p->nodes[*out];
    memcpy(node->tokens, tokens, sizeof node->tokens);
    share_page(p, *out, s);
    p->counts.pages++;
    return QN_OK;
}

/* In place of copies in host memory. */
static void share_pages(qn_prefix *p, uint32_t at, const qn_sequence *s)
{
    for (; p->nodes[at].depth; at = p->nodes[at].parent)
        if (is_page_in(&p->nodes[at], IN_HOST))
            share_page(p, at, s);
}

void qn_prefix_add(qn_prefix *p, const char *scope, const int32_t *tokens, const qn_sequence *s)
{
    const size_t n_pages = s->length / QN_PAGE;
    uint32_t at = find_path(p, scope ? scope : "", tokens, n_pages);
    p->is_exhausted = false;
    if (!n_pages || (at == NONE && new_root(p, scope ? scope : "", &at) != QN_OK))
        return;
    share_pages(p, at, s);
    for (size_t i = p->nodes[at].depth; i < n_pages; i++) {
        uint32_t child;
        if (add_page(p, at, tokens + i * QN_PAGE, s, &child) != QN_OK)
            break;
        at = child;
    }
    touch(p, at);
    if (!p->nodes[at].depth && !p->nodes[at].n_children)
        free_node(p, at);
}

void qn_prefix_keep_state(qn_prefix *p, const char *scope, const int32_t *tokens, const qn_sequence *s, qn_state_kind kind)
{
    const size_t depth = s->state_position / QN_PAGE;
    bool thinned;
    if (!p->cache->states || !depth || qn_pool_stride(p->cache->states) > p->state_budget)
        return;
    (void)qn_prefix_end_copies(p);
    p->is_exhausted = false;
    const uint32_t at = find_path(p, scope ? scope : "", tokens, depth);
    if (at == NONE || p->nodes[at].depth != depth)
        return;
    struct node *node = &p->nodes[at];
    const bool is_new = node->items[QN_ITEM_STATE] == QN_NO_ITEM;
    keep_in_pool(p, at, QN_ITEM_STATE);
    if (is_new || has_item(node, QN_ITEM_STATE, IN_HOST)) {
        drop_item(p, at, QN_ITEM_STATE);
        qn_pool_share(p->cache->states, s->state);
        set_item(p, at, QN_ITEM_STATE, s->state, IN_POOL);
    }
    node->state_kind = is_new || kind == QN_STATE_MARK ? kind : node->state_kind;
    if (is_new)
        link_node(p, STATES, at);
    else
        make_newest(p, STATES, at);
    p->counts.states += is_new;
    while (p->state_bytes > p->state_budget)
        (void)spill_state(p, find_state(p, IN_POOL, true, &thinned));
}

/* ---- All of it ---- */

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
    qn_prefix_counts counts = p->counts;
    counts.host_bytes = p->spill ? qn_spill_bytes(p->spill) : 0;
    return counts;
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

qn_status qn_prefix_create(const qn_cache *cache, uint64_t state_budget, uint64_t host_budget, qn_prefix **out)
{
    qn_prefix *p;
    *out = NULL;
    QN_TRY(qn_alloc(&p, 1, sizeof *p, "prefix cache"));
    *p = (qn_prefix){ .cache = cache, .state_budget = state_budget, .unused = NONE };
    qn_status status = create(p);
    if (status == QN_OK && host_budget && cache->copy_out)
        status = qn_spill_create(cache, host_budget, &p->spill);
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
    qn_spill_free(p->spill);
    free(p->nodes);
    qn_free(p->buckets);
    qn_free(p);
}
