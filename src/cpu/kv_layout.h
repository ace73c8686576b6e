/* The layout of pages of keys and values on the CPU: their sizes, and the places of session files' regions in them. */
#ifndef QN_CPU_KV_LAYOUT_H
#define QN_CPU_KV_LAYOUT_H

#include "cache/saved_layout.h"
#include "cpu/view.h"

/* The layout of a part of pages in one cache format: of the layers of the trunk, or of the draft head. Constant after
 * creation; any thread may read it. */
typedef struct qn_kv_layout {
    qn_kv_view view; /* without memory and tables; the strides are the bytes of the part */
    uint32_t *kv_index;
    size_t head_dim;
} qn_kv_layout;

/* qn_kv_layout_create - creates the layout for the attention layers [first, end) of a plan, which are of one shape. The
 * codecs, of dimension head_dim, must outlive it; without codecs (NULL), the cache has fp16 or, is_f32, fp32 elements.
 * QN_ERR_MEMORY if sizes overflow. Free with qn_kv_layout_free, which accepts a zeroed struct. */
qn_status qn_kv_layout_create(qn_kv_layout *layout, const qn_plan *plan, size_t first, size_t end,
                              const qn_aura_codecs *codecs, bool is_f32);
void qn_kv_layout_free(qn_kv_layout *layout);

/* qn_kv_region - returns the address, in a sequence's memory, of a region with bytes > 0. The memory there has the
 * layout of the file. In fp16 and fp32 keys, whose tiles are whole, elements of positions after region->held are
 * arbitrary. */
void *qn_kv_region(const qn_kv_view *view, const qn_saved_region *region);

/* qn_kv_bytes - returns the bytes that `length` positions use. */
uint64_t qn_kv_bytes(const qn_kv_layout *layout, size_t length);

#endif
