/* Formats of KV caches, by their names in --kv and the API. */
#ifndef QN_CACHE_KV_FORMAT_H
#define QN_CACHE_KV_FORMAT_H

#include "cache/sequence.h"

typedef struct qn_kv_format {
    const char *name;
    unsigned key_bits, value_bits; /* of AURA codes; both 0: fp16 */
} qn_kv_format;

/* Seed of the codecs' rotations. Session files hold rotated rows, so another seed needs another file version. */
enum { QN_KV_SEED = 1 };

/* qn_kv_format_named - find a format; QN_ERR_UNSUPPORTED, listing the supported ones, if there is none of this name.
 * Formats are static: equal ones have equal addresses. */
qn_status qn_kv_format_named(const char *name, const qn_kv_format **format);

/* qn_kv_coded_positions - positions of a cache of codes that are stored as codes: those of all complete pages but page
 * 0. */
static inline size_t qn_kv_coded_positions(size_t length)
{
    return length > QN_PAGE ? length / QN_PAGE * QN_PAGE - QN_PAGE : 0;
}

#endif
