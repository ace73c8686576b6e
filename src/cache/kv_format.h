/* KV cache formats, by the names that --kv and the API use. */
#ifndef QN_CACHE_KV_FORMAT_H
#define QN_CACHE_KV_FORMAT_H

#include "cache/sequence.h"

#include <stdbool.h>

typedef struct qn_kv_format {
    const char *name;
    unsigned key_bits, value_bits; /* bits of an AURA code; both 0: fp16 or fp32 */
    bool is_f32;
} qn_kv_format;

/* Seed of the codecs' rotations. Session files hold rotated rows, so a new seed requires a new file version. */
enum { QN_KV_SEED = 1 };

/* qn_kv_format_named - finds a format by its name. QN_ERR_UNSUPPORTED, listing the supported names, if there is none.
 * Formats are static: equal formats have equal addresses. */
qn_status qn_kv_format_named(const char *name, const qn_kv_format **format);

/* qn_kv_head_bits - returns the bits of the draft head's keys and values on the CPU: codes of fewer bits would add more
 * error to its few layers than the memory is worth. */
static inline unsigned qn_kv_head_bits(const qn_kv_format *format)
{
    return format->key_bits ? 8 : 0;
}

/* qn_kv_coded_positions - returns the number of positions that an AURA cache of `length` positions stores as codes:
 * those of all complete pages except page 0. */
static inline size_t qn_kv_coded_positions(size_t length)
{
    return length > QN_PAGE ? length / QN_PAGE * QN_PAGE - QN_PAGE : 0;
}

#endif
