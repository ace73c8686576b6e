/* Computes the hash of a file during its download. A thread of its own does so: with a second processor it takes no
 * extra time. All functions are called by one other thread, which downloads. */
#ifndef QN_HUB_DIGEST_H
#define QN_HUB_DIGEST_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct qn_hub_digest qn_hub_digest;

/* qn_hub_digest_create - starts the hash of a file of `size` bytes. Free it with qn_hub_digest_free.
 *
 *   expected   the hash that the file must have: 64 digits are a SHA-256 of the content, 40 the SHA-1 of a git blob,
 *              which includes the size */
qn_status qn_hub_digest_create(const char *expected, uint64_t size, qn_hub_digest **digest);

/* qn_hub_digest_restart - drops all bytes pushed so far. */
qn_status qn_hub_digest_restart(qn_hub_digest *digest);

enum { QN_HUB_BLOCK = 256 << 10 };

/* qn_hub_digest_block - memory of QN_HUB_BLOCK bytes for the next data; the same memory until it is pushed. Waits
 * until the thread has freed a block. */
uint8_t *qn_hub_digest_block(qn_hub_digest *digest);

/* qn_hub_digest_push - appends the first `size` bytes of the block to the data. The block must not be used any more. */
void qn_hub_digest_push(qn_hub_digest *digest, size_t size);

/* qn_hub_digest_finish - waits for the result. QN_ERR_FORMAT, with both hashes, if it differs from the expected one.
 * Afterwards only qn_hub_digest_restart and qn_hub_digest_free may be called. */
qn_status qn_hub_digest_finish(qn_hub_digest *digest, const char *name);

void qn_hub_digest_free(qn_hub_digest *digest);

#endif
