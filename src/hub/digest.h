/* The hash of a file while it is downloaded, computed by a thread of its own, so that it costs no time where there is a second
 * processor. */
#ifndef QN_HUB_DIGEST_H
#define QN_HUB_DIGEST_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct qn_hub_digest qn_hub_digest;

/* qn_hub_digest_create - for a file of `size` bytes whose hash is to be `expected`: 64 digits are a SHA-256 of the content, 40
 * the SHA-1 of a git blob, which begins with the size. Free with qn_hub_digest_free. */
qn_status qn_hub_digest_create(const char *expected, uint64_t size, qn_hub_digest **digest);

/* qn_hub_digest_restart - drop all bytes that were pushed. */
qn_status qn_hub_digest_restart(qn_hub_digest *digest);

enum { QN_HUB_BLOCK = 256 << 10 };

/* qn_hub_digest_block - memory of QN_HUB_BLOCK bytes for what follows: the same until it is pushed. Waits until the thread
 * leaves one. */
uint8_t *qn_hub_digest_block(qn_hub_digest *digest);

/* qn_hub_digest_push - append the first `size` bytes of that block, and give it away. */
void qn_hub_digest_push(qn_hub_digest *digest, size_t size);

/* qn_hub_digest_finish - wait for the result: QN_ERR_FORMAT, with both hashes, if it is not what was expected. Only
 * qn_hub_digest_restart and qn_hub_digest_free may follow. */
qn_status qn_hub_digest_finish(qn_hub_digest *digest, const char *name);

void qn_hub_digest_free(qn_hub_digest *digest);

#endif
