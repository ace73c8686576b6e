/* SHA-256 and SHA-1 by the system's or GnuTLS's cryptography, which use the processor's instructions for them. */
#ifndef QN_HUB_HASH_H
#define QN_HUB_HASH_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef enum qn_hub_algorithm { QN_HUB_SHA1, QN_HUB_SHA256 } qn_hub_algorithm;

enum { QN_HUB_HASH_BYTES = 32 /* of the longer one */ };

/* A hash that is computed; one thread at a time. */
typedef struct qn_hub_hash qn_hub_hash;

/* qn_hub_hash_begin - QN_ERR_UNSUPPORTED if the algorithm cannot be had. */
qn_status qn_hub_hash_begin(qn_hub_algorithm algorithm, qn_hub_hash **out);

void qn_hub_hash_add(qn_hub_hash *hash, const void *bytes, size_t n);

/* qn_hub_hash_end - writes the hash and frees it. NULL: only frees it. `hash` NULL is allowed. */
void qn_hub_hash_end(qn_hub_hash *hash, uint8_t bytes[QN_HUB_HASH_BYTES]);

#endif
