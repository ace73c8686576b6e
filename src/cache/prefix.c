/* Decides which nodes a sequence takes over, and which are added, spilled and evicted. prefix_nodes.c stores the
 * nodes. */
#include "cache/prefix_nodes.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* The DENSE_STATES newest periodic states are not thinned. A periodic state counts as PERIODIC_AGE times as old as a
 * mark. Items that only one request used count as ONCE_AGE times as old as continued ones. */
enum { DENSE_STATES = 2, PERIODIC_AGE = 4, ONCE_AGE = 4 };

/* ---- Thinning ---- */

/* Returns the exponent of two in a node's depth. */
static unsigned level_of(const qn_prefix_node *node)
{
    return (unsigned)__builtin_ctz(node->depth);
}

/* Returns whether a periodic state is thinned when `newer` periodic states are newer. After the first DENSE_STATES only
 * multiples of two periods remain, after twice that number only multiples of four, and so on. So a budget of n states
 * covers about n * n / 3 periods. */
static bool is_thinned(const qn_prefix_node *node, size_t newer)
{
    const unsigned first = (unsigned)__builtin_ctz(QN_STATE_PERIOD / QN_PAGE);
    return newer >> (level_of(node) > first ? level_of(node) - first : 0) >= DENSE_STATES;
}

static bool is_state_held(const qn_prefix *p, const qn_prefix_node *node)
{
    return qn_node_has_item(node, QN_ITEM_STATE, QN_IN_POOL) &&
           qn_pool_is_shared(p->cache->states, node->items[QN_ITEM_STATE]);
}

/* Returns the node whose state is to be evicted first, of those in `place`; QN_NO_NODE if there is none. with_held:
 * includes states that a sequence holds. *thinned: whether it is a thinned periodic state. The newest state is found
 * only if there is no other. */
static uint32_t find_state(const qn_prefix *p, int place, bool with_held, bool *thinned)
{
    uint32_t found = QN_NO_NODE;
    size_t age = 0, n_periodic = 0, greatest = 0;
    *thinned = false;
    for (uint32_t at = p->nodes[QN_NODE_ANCHOR].links[QN_NODES_WITH_STATE].older;
         p->counts.states && at != QN_NODE_ANCHOR; at = p->nodes[at].links[QN_NODES_WITH_STATE].older, age++) {
        const qn_prefix_node *node = &p->nodes[at];
        const bool is_periodic = node->state_kind == QN_STATE_PERIODIC,
                   thins = is_periodic && is_thinned(node, n_periodic);
        const size_t weighted = age * (is_periodic ? PERIODIC_AGE : 1) * (node->is_continued ? 1 : ONCE_AGE);
        n_periodic += is_periodic;
        if (!qn_node_has_item(node, QN_ITEM_STATE, place) || node->is_pinned || (!with_held && is_state_held(p, node)))
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

/* Returns the nearest ancestor, less than QN_SPILL_TOKENS before the node, that has a state in the pool; QN_NO_NODE if
 * there is none. */
static uint32_t near_state(const qn_prefix *p, uint32_t at)
{
    for (size_t n = QN_PAGE; n < QN_SPILL_TOKENS; n += QN_PAGE) {
        at = p->nodes[at].parent;
        if (!p->nodes[at].depth)
            break;
        if (qn_node_has_item(&p->nodes[at], QN_ITEM_STATE, QN_IN_POOL))
            return at;
    }
    return QN_NO_NODE;
}

/* Drops a thinned state in host memory, else the least recently used page without children, else a state. Returns false
 * if there is nothing to drop. */
static bool free_host(qn_prefix *p)
{
    bool thinned;
    uint32_t at = find_state(p, QN_IN_HOST, false, &thinned);
    if (thinned) {
        qn_nodes_drop_state(p, at);
        return true;
    }
    for (uint32_t leaf = qn_nodes_oldest(p, QN_NODES_ALL); leaf != QN_NODE_ANCHOR;
         leaf = p->nodes[leaf].links[QN_NODES_ALL].newer) {
        const qn_prefix_node *node = &p->nodes[leaf];
        if (qn_node_is_page_in(node, QN_IN_HOST) && !node->n_children && !node->is_pinned) {
            qn_nodes_free(p, leaf);
            return true;
        }
    }
    if (at != QN_NO_NODE)
        qn_nodes_drop_state(p, at);
    return at != QN_NO_NODE;
}

/* Frees host memory for an item of a node, without dropping that node's own items. */
static bool free_host_for(qn_prefix *p, uint32_t at)
{
    const bool was_pinned = p->nodes[at].is_pinned;
    p->nodes[at].is_pinned = true;
    const bool freed = free_host(p);
    p->nodes[at].is_pinned = was_pinned;
    return freed;
}

/* Begins to copy an item to host memory, dropping the least used copies there if space is needed. Returns false if no
 * copy was begun. */
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
    qn_nodes_set_item(p, at, kind, item, QN_SPILLING);
    return true;
}

/* Begins to copy a state to host memory, or drops it. Returns whether a copy was begun. */
static bool spill_state(qn_prefix *p, uint32_t at)
{
    if (near_state(p, at) == QN_NO_NODE && spill_item(p, at, QN_ITEM_STATE))
        return true;
    qn_nodes_drop_state(p, at);
    return false;
}

static bool is_below(const qn_prefix *p, uint32_t at, uint32_t above)
{
    while (p->nodes[at].depth > p->nodes[above].depth)
        at = p->nodes[at].parent;
    return at == above;
}

/* Frees a node and its descendants, which are listed as older. */
static void free_branch(qn_prefix *p, uint32_t at)
{
    for (uint32_t below = qn_nodes_oldest(p, QN_NODES_ALL), newer; below != at; below = newer) {
        newer = p->nodes[below].links[QN_NODES_ALL].newer;
        if (is_below(p, below, at))
            qn_nodes_free(p, below);
    }
    qn_nodes_free(p, at);
}

/* Drops an item that could not be copied, a page with its descendants. But if host memory was exhausted and something
 * there could be freed, the item stays in the pool until the next attempt. */
static void end_failed_copy(qn_prefix *p, const qn_spilled *c)
{
    if (c->status == QN_ERR_MEMORY && free_host_for(p, c->owner))
        qn_nodes_set_item(p, c->owner, c->kind, p->nodes[c->owner].items[c->kind], QN_IN_POOL);
    else if (c->kind == QN_ITEM_STATE)
        qn_nodes_drop_state(p, c->owner);
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
        qn_nodes_set_item(p, c.owner, c.kind, c.copy, QN_IN_HOST);
    }
    return any;
}

void qn_prefix_wait(qn_prefix *p)
{
    if (p->spill)
        qn_spill_wait(p->spill);
}

/* Moves an item from host memory back to the pool, evicting nodes that are not pinned if necessary. */
static qn_status fetch_item(qn_prefix *p, uint32_t at, qn_item_kind kind)
{
    uint32_t item;
    qn_status status;
    if (!qn_node_has_item(&p->nodes[at], kind, QN_IN_HOST))
        return QN_OK;
    do
        status = qn_spill_in(p->spill, kind, p->nodes[at].items[kind], &item);
    while (status == QN_ERR_MEMORY && qn_prefix_evict(p));
    QN_TRY(status);
    qn_nodes_set_item(p, at, kind, item, QN_IN_POOL);
    return QN_OK;
}

/* ---- Eviction ---- */

static bool is_page_shared(const qn_prefix *p, const qn_prefix_node *node)
{
    for (qn_item_kind kind = QN_ITEM_PAGE; kind <= QN_ITEM_F16_PAGE; kind++)
        if (qn_node_has_item(node, kind, QN_IN_POOL) &&
            qn_pool_is_shared(qn_item_class(p->cache, kind), node->items[kind]))
            return true;
    return false;
}

/* Begins to copy a node's page to host memory, and its state too. Returns false if the page is not copied. */
static bool spill_node(qn_prefix *p, uint32_t at)
{
    const qn_prefix_node *node = &p->nodes[at];
    if (!spill_item(p, at, qn_node_has_item(node, QN_ITEM_PAGE, QN_IN_POOL) ? QN_ITEM_PAGE : QN_ITEM_F16_PAGE))
        return false;
    if (qn_node_has_item(node, QN_ITEM_STATE, QN_IN_POOL) && !is_state_held(p, node))
        (void)spill_state(p, at);
    return true;
}

/* Frees a node without a state and ancestors that become empty. Only without attention layers: their nodes hold nothing
 * but states. */
static void free_empty(qn_prefix *p, uint32_t at)
{
    while (!p->cache->pages && !p->nodes[at].n_children && p->nodes[at].items[QN_ITEM_STATE] == QN_NO_ITEM) {
        const uint32_t parent = p->nodes[at].parent;
        const bool is_last = !p->nodes[parent].depth;
        qn_nodes_free(p, at);
        if (is_last)
            break;
        at = parent;
    }
}

/* Returns which of two nodes is evicted first: the oldest one used by one request only, or the oldest continued one. */
static uint32_t older_of(const qn_prefix *p, uint32_t once, uint32_t continued)
{
    if (once == QN_NODE_ANCHOR || continued == QN_NODE_ANCHOR)
        return once == QN_NODE_ANCHOR ? continued : once;
    const uint64_t now = p->clock + 1;
    return (now - p->nodes[once].used) * ONCE_AGE >= now - p->nodes[continued].used ? once : continued;
}

static qn_evicted evict_page(qn_prefix *p)
{
    uint32_t once = qn_nodes_oldest(p, QN_NODES_ONCE), continued = qn_nodes_oldest(p, QN_NODES_CONTINUED), at;
    while ((at = older_of(p, once, continued)) != QN_NODE_ANCHOR) {
        const qn_prefix_node *node = &p->nodes[at];
        if (at == once)
            once = node->links[QN_NODES_ONCE].newer;
        else
            continued = node->links[QN_NODES_CONTINUED].newer;
        if (node->is_pinned || is_page_shared(p, node))
            continue;
        if (spill_node(p, at))
            return QN_EVICTED_LATER;
        if (!node->n_children) {
            qn_nodes_free(p, at);
            return QN_EVICTED;
        }
    }
    return QN_EVICTED_NONE;
}

static qn_evicted evict_oldest(qn_prefix *p)
{
    bool thinned;
    const qn_evicted evicted = evict_page(p);
    const uint32_t at = evicted == QN_EVICTED_NONE ? find_state(p, QN_IN_POOL, false, &thinned) : QN_NO_NODE;
    if (at == QN_NO_NODE)
        return evicted;
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

/* Evicts up to half of QN_SPILL_COPIES times: each eviction begins up to two copies, of a page and its state. */
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

/* Returns whether a sequence of n_pages continues an earlier one, if the cache has its path up to this node: it has all
 * pages of the earlier sequence, or half of its own. A common system prompt alone is neither. */
static bool is_continuation(const qn_prefix *p, uint32_t at, size_t n_pages)
{
    const qn_prefix_node *node = &p->nodes[at];
    return node->depth && (!node->n_children || 2 * (size_t)node->depth >= n_pages);
}

/* Returns the node of a path where a sequence begins; the root if it begins empty. */
static uint32_t find_beginning(const qn_prefix *p, uint32_t at)
{
    if (!p->cache->states)
        return at;
    while (p->nodes[at].depth && p->nodes[at].items[QN_ITEM_STATE] == QN_NO_ITEM)
        at = p->nodes[at].parent;
    if (!qn_node_has_item(&p->nodes[at], QN_ITEM_STATE, QN_IN_HOST))
        return at;
    const uint32_t near = near_state(p, at);
    return near == QN_NO_NODE ? at : near;
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

/* Abandons copies to host memory of the path's items: they stay in the pool. */
static void keep_path_in_pool(qn_prefix *p, uint32_t at)
{
    for (; p->nodes[at].depth; at = p->nodes[at].parent)
        for (qn_item_kind kind = 0; kind < QN_ITEM_KINDS; kind++)
            qn_nodes_keep_in_pool(p, at, kind);
}

static qn_status adopt(qn_prefix *p, uint32_t at, qn_sequence *sequence)
{
    const qn_prefix_node *node = &p->nodes[at];
    keep_path_in_pool(p, at);
    pin_path(p, at, true);
    qn_status status = fetch_path(p, at);
    pin_path(p, at, false);
    if (status == QN_OK)
        status = qn_sequence_begin(sequence, node->depth);
    QN_TRY(status);
    if (p->cache->states) {
        qn_nodes_make_newest(p, QN_NODES_WITH_STATE, at);
        qn_sequence_take_state(sequence, node->items[QN_ITEM_STATE]);
    }
    for (; node->depth; node = &p->nodes[node->parent])
        qn_sequence_take_page(sequence, node->depth - 1, node->items[QN_ITEM_PAGE], node->items[QN_ITEM_F16_PAGE]);
    return QN_OK;
}

qn_status qn_prefix_adopt(qn_prefix *p, const char *scope, qn_row_ids ids, size_t n, qn_sequence *sequence,
                          uint32_t *matched)
{
    uint32_t at = qn_nodes_find_path(p, scope ? scope : "", ids, n ? (n - 1) / QN_PAGE : 0);
    *matched = at == QN_NO_NODE ? 0 : p->nodes[at].depth * QN_PAGE;
    if (at == QN_NO_NODE)
        return QN_OK;
    qn_nodes_touch(p, at, is_continuation(p, at, n / QN_PAGE));
    at = find_beginning(p, at);
    return p->nodes[at].depth ? adopt(p, at, sequence) : QN_OK;
}

bool qn_prefix_is_spilled(const qn_prefix *p, const char *scope, qn_row_ids ids, size_t n)
{
    uint32_t at = qn_nodes_find_path(p, scope ? scope : "", ids, n ? (n - 1) / QN_PAGE : 0);
    if (at == QN_NO_NODE)
        return false;
    at = find_beginning(p, at);
    if (qn_node_has_item(&p->nodes[at], QN_ITEM_STATE, QN_IN_HOST))
        return true;
    for (; p->nodes[at].depth; at = p->nodes[at].parent)
        if (qn_node_has_item(&p->nodes[at], QN_ITEM_PAGE, QN_IN_HOST) ||
            qn_node_has_item(&p->nodes[at], QN_ITEM_F16_PAGE, QN_IN_HOST))
            return true;
    return false;
}

/* ---- Adding ---- */

/* Replaces a node's page by the sequence's. */
static void share_page(qn_prefix *p, uint32_t at, const qn_sequence *s)
{
    uint32_t page, f16_page;
    qn_sequence_share_page(s, p->nodes[at].depth - 1, &page, &f16_page);
    qn_nodes_drop_item(p, at, QN_ITEM_PAGE);
    qn_nodes_drop_item(p, at, QN_ITEM_F16_PAGE);
    qn_nodes_set_item(p, at, QN_ITEM_PAGE, page, QN_IN_POOL);
    qn_nodes_set_item(p, at, QN_ITEM_F16_PAGE, f16_page, QN_IN_POOL);
}

static qn_status add_page(qn_prefix *p, uint32_t parent, qn_row_ids ids, const qn_sequence *s, uint32_t *out)
{
    QN_TRY(qn_nodes_new_child(p, parent, ids, out));
    share_page(p, *out, s);
    p->counts.pages++;
    return QN_OK;
}

/* Replaces a path's pages that are in host memory by the sequence's. */
static void share_pages(qn_prefix *p, uint32_t at, const qn_sequence *s)
{
    for (; p->nodes[at].depth; at = p->nodes[at].parent)
        if (qn_node_is_page_in(&p->nodes[at], QN_IN_HOST))
            share_page(p, at, s);
}

void qn_prefix_add(qn_prefix *p, const char *scope, qn_row_ids ids, const qn_sequence *s)
{
    const size_t n_pages = s->length / QN_PAGE;
    uint32_t at = qn_nodes_find_path(p, scope ? scope : "", ids, n_pages);
    p->is_exhausted = false;
    if (!n_pages || (at == QN_NO_NODE && qn_nodes_new_root(p, scope ? scope : "", &at) != QN_OK))
        return;
    share_pages(p, at, s);
    const bool is_continued = p->nodes[at].is_continued && is_continuation(p, at, n_pages);
    for (size_t i = p->nodes[at].depth; i < n_pages; i++) {
        uint32_t child;
        if (add_page(p, at, qn_row_ids_from(ids, i * QN_PAGE), s, &child) != QN_OK)
            break;
        at = child;
    }
    qn_nodes_touch(p, at, is_continued);
    if (!p->nodes[at].depth && !p->nodes[at].n_children)
        qn_nodes_free(p, at);
}

void qn_prefix_keep_state(qn_prefix *p, const char *scope, qn_row_ids ids, const qn_sequence *s, qn_state_kind kind)
{
    const size_t depth = s->state_position / QN_PAGE;
    bool thinned;
    if (!p->cache->states || !depth || qn_pool_stride(p->cache->states) > p->state_budget)
        return;
    (void)qn_prefix_end_copies(p);
    p->is_exhausted = false;
    const uint32_t at = qn_nodes_find_path(p, scope ? scope : "", ids, depth);
    if (at == QN_NO_NODE || p->nodes[at].depth != depth)
        return;
    qn_prefix_node *node = &p->nodes[at];
    const bool is_new = node->items[QN_ITEM_STATE] == QN_NO_ITEM;
    qn_nodes_keep_in_pool(p, at, QN_ITEM_STATE);
    if (is_new || qn_node_has_item(node, QN_ITEM_STATE, QN_IN_HOST)) {
        qn_nodes_drop_item(p, at, QN_ITEM_STATE);
        qn_pool_share(p->cache->states, s->state);
        qn_nodes_set_item(p, at, QN_ITEM_STATE, s->state, QN_IN_POOL);
    }
    node->state_kind = is_new || kind == QN_STATE_MARK ? kind : node->state_kind;
    if (is_new)
        qn_nodes_link(p, QN_NODES_WITH_STATE, at);
    else
        qn_nodes_make_newest(p, QN_NODES_WITH_STATE, at);
    p->counts.states += is_new;
    while (p->state_bytes > p->state_budget)
        (void)spill_state(p, find_state(p, QN_IN_POOL, true, &thinned));
}

/* ---- All of it ---- */

void qn_prefix_clear(qn_prefix *p)
{
    while (qn_nodes_oldest(p, QN_NODES_ALL) != QN_NODE_ANCHOR) {
        uint32_t at = qn_nodes_oldest(p, QN_NODES_ALL);
        while (p->nodes[at].n_children)
            at = p->nodes[at].links[QN_NODES_ALL].newer;
        qn_nodes_free(p, at);
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
    p->nodes[QN_NODE_ANCHOR] = (qn_prefix_node){ 0 };
    p->n_nodes = 1;
    return QN_OK;
}

qn_status qn_prefix_create(const qn_cache *cache, uint64_t state_budget, uint64_t host_budget, qn_prefix **out)
{
    qn_prefix *p;
    *out = NULL;
    QN_TRY(qn_alloc(&p, 1, sizeof *p, "prefix cache"));
    *p = (qn_prefix){ .cache = cache, .state_budget = state_budget, .unused = QN_NO_NODE };
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
