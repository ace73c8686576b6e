/* Cache formats, and the layout of their pages on the CPU (qn_kv_view in cache/view.h): sizes, and the contents of a
 * sequence's cache as a series of regions, for files. */
#ifndef QN_CACHE_KV_H
#define QN_CACHE_KV_H

#include "cache/sequence.h"
#include "cache/view.h"

/* A cache format, by its name in --kv and the API. */
typedef struct qn_kv_format {
    const char *name;
    unsigned key_bits, value_bits; /* 0: f16 */
} qn_kv_format;

/* QN_KV_SEED: seed of the codecs' rotations. Session files hold rotated rows, so another seed needs another file version. */
enum { QN_KV_SEED = 1, QN_KV_MAX_BITS = 8 };

/* qn_kv_format_named - find a format; QN_ERR_UNSUPPORTED, listing the supported ones, if there is none of this name. */
qn_status qn_kv_format_named(const char *name, const qn_kv_format **format);

/* The codecs of keys and values; both NULL: an fp16 cache. */
typedef struct qn_kv_codecs {
    const qn_aura_codec *keys, *values;
} qn_kv_codecs;

/* The attention layers of a model: those with is_recurrent [n_layers] not set, or all layers if it is NULL. */
typedef struct qn_kv_shape {
    const bool *is_recurrent;
    size_t n_layers, n_heads, head_dim; /* n_heads: KV heads */
} qn_kv_shape;

/* The layout of the pages of one format. */
typedef struct qn_kv_layout {
    qn_kv_view view; /* without memory and tables */
    uint32_t *kv_index;
    size_t head_dim;
} qn_kv_layout;

/* qn_kv_layout_create - the layout for these layers. The codecs, of dimension head_dim, outlive it. QN_ERR_MEMORY if sizes
 * overflow. Free with qn_kv_layout_free, which accepts a zeroed struct. */
qn_status qn_kv_layout_create(qn_kv_layout *layout, const qn_kv_shape *shape, qn_kv_codecs codecs);
void qn_kv_layout_free(qn_kv_layout *layout);

/* A part of what a sequence has stored. */
typedef struct qn_kv_region {
    uint8_t *data; /* NULL without bytes, and in a view without memory */
    size_t bytes;
    size_t page; /* of the sequence, if there are bytes; 0 for the means */
    bool is_f16; /* in a cache of codes: in an fp16 page */
    size_t tail; /* of fp16 keys: positions in use of the last tile of QN_KEY_TILE; 0: all, or no such keys */
} qn_kv_region;

/* qn_kv_find_region - iterate over what a sequence of this extent has stored, for saving: finds region 0, 1, ... and returns
 * false after the last. Their order, which session files have, is by blocks of
 * QN_KEY_BLOCK positions: for each attention layer and head, keys before values, the rows of the block's pages; of codes first
 * the codes of all these pages, then their scales. Regions of fp16 keys are full tiles, in which elements of positions >=
 * length are arbitrary. With a view without memory, sizes alone are set. */
bool qn_kv_find_region(const qn_kv_layout *layout, const qn_kv_view *view, size_t index, const qn_extent *extent,
                       qn_kv_region *region);

/* qn_kv_saved_bytes - the sum of the regions' sizes. */
uint64_t qn_kv_saved_bytes(const qn_kv_layout *layout, const qn_extent *extent);

/* qn_kv_zero_tail - zero the elements of positions that are not in use in a copy of a region. */
void qn_kv_zero_tail(const qn_kv_layout *layout, const qn_kv_region *region, uint8_t *copy);

/* qn_kv_bytes - bytes in use by `length` positions. */
uint64_t qn_kv_bytes(const qn_kv_layout *layout, size_t length);

/* qn_kv_position_bytes - bytes of one position in all attention layers of a cache with this shape and these codecs: of
 * codes if there are codecs, else of fp16 rows. */
uint64_t qn_kv_position_bytes(const qn_kv_shape *shape, qn_kv_codecs codecs);

#endif
