/* How clients share what has a limit, such as the places of a queue: as long as there is room anyone may have it. Beyond that
 * those may who have less than an equal part, up to a multiple of the limit in all: one client that takes everything leaves
 * others theirs. */
#ifndef QN_BASE_SHARE_H
#define QN_BASE_SHARE_H

#include <stdbool.h>
#include <stddef.h>

/* Of queues of requests. */
enum { QN_QUEUE_FACTOR = 4 };

typedef struct qn_share {
    size_t most;      /* of all clients, as long as anyone may have more */
    size_t factor;    /* so many times `most` is what all clients have at most */
    size_t used, own; /* what all clients have, what this one has */
    size_t n_clients; /* that have some, this one included */
} qn_share;

/* qn_share_part - an equal part of `most`, at least 1. */
size_t qn_share_part(const qn_share *share);

/* qn_share_allows - whether the client may have n more. */
bool qn_share_allows(const qn_share *share, size_t n);

#endif
