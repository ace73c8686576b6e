/* The layout of pages of keys and values on the CPU: sizes, and where the regions of session files are. */
#ifndef QN_CPU_KV_LAYOUT_H
#define QN_CPU_KV_LAYOUT_H

#include "cache/saved_layout.h"
#include "cpu/view.h"

/* The layout of the pages of one format. */
typedef struct qn_kv_layout {
    qn_kv_view view; /* without memory and tables */
    uint32_t *kv_index;
    size_t head_dim;
} qn_kv_layout;

/* qn_kv_layout_create - the layout for the attention layers of a plan. The codecs, of dimension head_dim, outlive it;
 * NULL: an fp16 cache. QN_ERR_MEMORY if sizes overflow. Free with qn_kv_layout_free, which accepts a zeroed struct. */
qn_status qn_kv_layout_create(qn_kv_layout *layout, const qn_plan *plan, const qn_aura_codecs *codecs);
void qn_kv_layout_free(qn_kv_layout *layout);

/* qn_kv_region - where a region that has bytes is in a sequence's memory, which has the layout of the file. Of keys in
 * full tiles, elements of positions after region->held are arbitrary. */
void *qn_kv_region(const qn_kv_view *view, const qn_saved_region *region);

/* qn_kv_bytes - bytes in use by `length` positions. */
uint64_t qn_kv_bytes(const qn_kv_layout *layout, size_t length);

#endif
