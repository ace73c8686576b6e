/* The nodes of a prefix cache: the hash table by parent and tokens, lists in the order of use, and the items of nodes.
 * Internal to prefix.c and prefix_nodes.c. */
#ifndef QN_CACHE_PREFIX_NODES_H
#define QN_CACHE_PREFIX_NODES_H

#include "cache/prefix.h"
#include "cache/spill.h"

#define QN_NO_NODE UINT32_MAX

/* Node 0 is the anchor of all lists: between their newest and oldest nodes. */
enum { QN_NODE_ANCHOR = 0 };

/* The lists: of all nodes; of those with a state; of those whose page is in the pool, which belong to prefixes of one
 * request, and to those that were continued. */
enum { QN_NODES_ALL, QN_NODES_WITH_STATE, QN_NODES_ONCE, QN_NODES_CONTINUED, QN_NODE_LISTS };

/* Where an item is. QN_SPILLING: in the pool while it is copied to host memory. It counts neither as a state of the
 * pool nor as a page that can be evicted. */
enum { QN_IN_POOL, QN_SPILLING, QN_IN_HOST };

typedef struct qn_node_link {
    uint32_t newer, older;
} qn_node_link;

/* A root has no page; its tokens are not used. */
typedef struct qn_prefix_node {
    uint32_t parent, n_children, depth; /* depth: pages from the root, itself included; 0: a root */
    uint32_t next;                      /* in its bucket, or in the list of unused nodes */
    uint32_t items[QN_ITEM_KINDS];
    uint8_t places[QN_ITEM_KINDS]; /* QN_IN_POOL, QN_SPILLING or QN_IN_HOST */
    qn_state_kind state_kind;
    bool is_pinned;    /* a sequence takes it over, or host memory is freed for its items: it is not evicted */
    bool is_continued; /* a request continued the prefix, or this node continues one. So does every node above */
    uint64_t used;     /* the clock when it was used last */
    uint64_t key;
    char *scope; /* of a root */
    qn_node_link links[QN_NODE_LISTS];
    int32_t tokens[QN_PAGE];
} qn_prefix_node;

struct qn_prefix {
    const qn_cache *cache;
    uint64_t state_budget, state_bytes; /* in the pool */
    qn_spill *spill;                    /* NULL: nothing is spilled */
    uint64_t clock;                     /* nodes used so far, one counted as often as it is used */
    bool is_exhausted;                  /* what the pool has was held by sequences, and nothing has been added since */
    qn_prefix_node *nodes;
    size_t n_nodes, cap_nodes; /* node 0 is the anchor */
    uint32_t unused;
    uint32_t *buckets; /* [n_buckets], a power of two */
    size_t n_buckets;
    qn_prefix_counts counts;
};

/* ---- Lists ---- */

/* qn_nodes_link - list a node as the most recently used. */
void qn_nodes_link(qn_prefix *p, int list, uint32_t at);
void qn_nodes_unlink(qn_prefix *p, int list, uint32_t at);
void qn_nodes_make_newest(qn_prefix *p, int list, uint32_t at);

/* qn_nodes_oldest - QN_NODE_ANCHOR of an empty list. */
uint32_t qn_nodes_oldest(const qn_prefix *p, int list);

/* qn_nodes_touch - a path of nodes, up to its root, has been used. Descendants are listed as older than their
 * ancestors, so that the oldest node is a leaf. */
void qn_nodes_touch(qn_prefix *p, uint32_t at, bool is_continued);

/* ---- Nodes ---- */

/* qn_nodes_find_path - the deepest node of a path that the tokens match, QN_NO_NODE if the scope has no root. */
uint32_t qn_nodes_find_path(const qn_prefix *p, const char *scope, const int32_t *tokens, size_t n_pages);

qn_status qn_nodes_new_root(qn_prefix *p, const char *scope, uint32_t *out);

/* qn_nodes_new_child - a node without items; `tokens` [QN_PAGE] are copied. */
qn_status qn_nodes_new_child(qn_prefix *p, uint32_t parent, const int32_t *tokens, uint32_t *out);

/* qn_nodes_free - free a node without children and its items, and a root that has no more. */
void qn_nodes_free(qn_prefix *p, uint32_t at);

/* ---- Items ---- */

bool qn_node_has_item(const qn_prefix_node *node, qn_item_kind kind, int place);
bool qn_node_is_page_in(const qn_prefix_node *node, int place);

/* qn_nodes_set_item - replace an item, or QN_NO_ITEM; its reference is the caller's. */
void qn_nodes_set_item(qn_prefix *p, uint32_t at, qn_item_kind kind, uint32_t item, int place);

/* qn_nodes_keep_in_pool - an item that is being copied to host memory is wanted again, and stays. */
void qn_nodes_keep_in_pool(qn_prefix *p, uint32_t at, qn_item_kind kind);

void qn_nodes_drop_item(qn_prefix *p, uint32_t at, qn_item_kind kind);
void qn_nodes_drop_state(qn_prefix *p, uint32_t at);

#endif
