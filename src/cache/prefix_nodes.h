/* The nodes of a prefix cache: the hash table by parent and ids, the lists in order of use, and the items of nodes.
 * Internal to prefix.c and prefix_nodes.c. A node is known by its index in `nodes`, which stays the same until the node
 * is freed; a pointer to a node is valid until another is created. One thread at a time uses all of it (prefix.h). */
#ifndef QN_CACHE_PREFIX_NODES_H
#define QN_CACHE_PREFIX_NODES_H

#include "cache/prefix.h"
#include "cache/spill.h"

#define QN_NO_NODE UINT32_MAX

/* Node 0 is the anchor of all lists: it links the newest and the oldest node of each list. */
enum { QN_NODE_ANCHOR = 0 };

/* The lists. QN_NODES_ONCE and QN_NODES_CONTINUED hold the nodes whose page is in the pool: those of prefixes that only
 * one request used, and those of continued prefixes. */
enum { QN_NODES_ALL, QN_NODES_WITH_STATE, QN_NODES_ONCE, QN_NODES_CONTINUED, QN_NODE_LISTS };

/* Where an item is. QN_SPILLING: in the pool, being copied to host memory. Such an item counts neither as a state in
 * the pool nor as a page that can be evicted. */
enum { QN_IN_POOL, QN_SPILLING, QN_IN_HOST };

typedef struct qn_node_link {
    uint32_t newer, older;
} qn_node_link;

/* A page of a prefix, or a root. A root has no page; its ids are not used. A node holds a reference to each of its
 * items. */
typedef struct qn_prefix_node {
    uint32_t parent, n_children, depth; /* depth: pages from the root, its own included; 0: a root */
    uint32_t next;                      /* next node in its bucket, or in the list of unused nodes */
    uint32_t items[QN_ITEM_KINDS];
    uint8_t places[QN_ITEM_KINDS]; /* QN_IN_POOL, QN_SPILLING or QN_IN_HOST */
    qn_state_kind state_kind;
    bool is_pinned;    /* not evicted: a sequence is taking it over, or host memory is being freed for its items */
    bool is_continued; /* a request continued this prefix, or added this node to continue one. All ancestors are
                          continued too */
    uint64_t used;     /* the clock at its last use */
    uint64_t key;
    char *scope;      /* scope of a root; else NULL */
    uint64_t *hashes; /* [QN_PAGE] of the rows that are not tokens; NULL if all are */
    qn_node_link links[QN_NODE_LISTS];
    int32_t tokens[QN_PAGE];
} qn_prefix_node;

/* A prefix cache. Used by one thread at a time. */
struct qn_prefix {
    const qn_cache *cache;              /* outlives it */
    uint64_t state_budget, state_bytes; /* state_bytes: of states in the pool */
    qn_spill *spill;                    /* NULL: nothing is spilled */
    uint64_t clock;                     /* uses of nodes so far */
    bool is_exhausted;                  /* the last eviction found nothing to evict, and nothing has been added since */
    qn_prefix_node *nodes;
    size_t n_nodes, cap_nodes; /* node 0 is the anchor */
    uint32_t unused;
    uint32_t *buckets; /* [n_buckets], a power of two */
    size_t n_buckets;
    qn_prefix_counts counts;
};

/* ---- Lists ---- */

/* qn_nodes_link - adds a node to a list as the most recently used. */
void qn_nodes_link(qn_prefix *p, int list, uint32_t at);
void qn_nodes_unlink(qn_prefix *p, int list, uint32_t at);
void qn_nodes_make_newest(qn_prefix *p, int list, uint32_t at);

/* qn_nodes_oldest - returns the least recently used node of a list, QN_NODE_ANCHOR if the list is empty. */
uint32_t qn_nodes_oldest(const qn_prefix *p, int list);

/* qn_nodes_touch - marks a node and its ancestors, up to the root, as used. Descendants are listed as older than their
 * ancestors, so the oldest node is a leaf. is_continued: also marks them as continued. */
void qn_nodes_touch(qn_prefix *p, uint32_t at, bool is_continued);

/* ---- Nodes ---- */

/* qn_nodes_find_path - returns the deepest node whose path matches the first pages of ids [n_pages * QN_PAGE]: the
 * root if no page matches, QN_NO_NODE if the scope has no root. */
uint32_t qn_nodes_find_path(const qn_prefix *p, const char *scope, qn_row_ids ids, size_t n_pages);

/* qn_nodes_new_root - creates the root of a scope. Copies `scope`. Pointers to nodes are invalid afterwards. */
qn_status qn_nodes_new_root(qn_prefix *p, const char *scope, uint32_t *out);

/* qn_nodes_new_child - creates a node without items. Copies `ids` [QN_PAGE]. Pointers to nodes are invalid
 * afterwards. */
qn_status qn_nodes_new_child(qn_prefix *p, uint32_t parent, qn_row_ids ids, uint32_t *out);

/* qn_nodes_free - frees a node that has no children, with its items. Also frees its root if that has no more
 * children. */
void qn_nodes_free(qn_prefix *p, uint32_t at);

/* ---- Items ---- */

bool qn_node_has_item(const qn_prefix_node *node, qn_item_kind kind, int place);
bool qn_node_is_page_in(const qn_prefix_node *node, int place);

/* qn_nodes_set_item - replaces an item of a node without dropping the old one. `item` may be QN_NO_ITEM; the node takes
 * over the caller's reference. */
void qn_nodes_set_item(qn_prefix *p, uint32_t at, qn_item_kind kind, uint32_t item, int place);

/* qn_nodes_keep_in_pool - abandons the copy of an item to host memory, if one is in flight: the item stays in the
 * pool. */
void qn_nodes_keep_in_pool(qn_prefix *p, uint32_t at, qn_item_kind kind);

/* qn_nodes_drop_item - drops an item, wherever it is; abandons its copy. Does nothing if there is none. */
void qn_nodes_drop_item(qn_prefix *p, uint32_t at, qn_item_kind kind);

/* qn_nodes_drop_state - drops the state of a node, and takes the node out of the list of those with states. */
void qn_nodes_drop_state(qn_prefix *p, uint32_t at);

#endif
