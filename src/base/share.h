/* How clients share a limited resource, such as the places of a queue. Up to the limit, any client may take more.
 * Beyond it, only clients with less than an equal part may, up to a multiple of the limit in total: one client that
 * takes everything cannot exclude the others. Pure functions: the counts belong to the caller, who reads them under its
 * lock. */
#ifndef QN_BASE_SHARE_H
#define QN_BASE_SHARE_H

#include <stdbool.h>
#include <stddef.h>

/* The factor for queues of requests. */
enum { QN_QUEUE_FACTOR = 4 };

typedef struct qn_share {
    size_t most;      /* total up to which any client may take more */
    size_t factor;    /* the total never exceeds factor * most */
    size_t used, own; /* taken by all clients; by this one */
    size_t n_clients; /* clients that have taken some, this one included */
} qn_share;

/* qn_share_part - an equal part of `most`, at least 1. */
size_t qn_share_part(const qn_share *share);

/* qn_share_allows - whether the client may take n more. */
bool qn_share_allows(const qn_share *share, size_t n);

#endif
