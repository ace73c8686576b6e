/* The contents of a sequence as session files have them: the same on all devices, whatever their layout in memory and
 * the memory's capacity. A device converts the regions of the KV cache, then the arrays of the recurrent layers, layer
 * by layer.
 *
 *   fp16 keys     [tiles of QN_SAVED_KEY_TILE positions][head_dim][QN_SAVED_KEY_TILE] f16: qn_saved_key_at
 *   fp16 values   [positions][head_dim] f16
 *   codes         of the keys or values of one page, as qn_aura_store_key and qn_aura_store_value place them
 *                 (kernels/aura/aura.h); then scales [positions] f32 in a region of their own
 *   means         [attention layers][heads][head_dim] f32 of page 0's keys
 *
 * Regions are in blocks of QN_SAVED_BLOCK_PAGES pages: for each attention layer and head, keys before values, the rows
 * of the block's pages; of codes first the codes of all these pages, then their scales. Before the blocks, a cache of
 * codes has the means, and the fp16 rows of page 0 and of the open page: of each layer and head the keys, then the
 * values. */
#ifndef QN_CACHE_SAVED_LAYOUT_H
#define QN_CACHE_SAVED_LAYOUT_H

#include "cache/kv_format.h"
#include "plan/plan.h"

enum { QN_SAVED_KEY_TILE = 16, QN_SAVED_BLOCK_PAGES = 4 };

typedef struct qn_saved_layout {
    const bool *is_recurrent; /* [n_layers], or NULL */
    size_t n_layers, n_attention, n_recurrent;
    size_t n_heads, head_dim; /* KV heads of an attention layer */
    unsigned key_bits, value_bits;
    qn_recurrent_shape recurrent;
} qn_saved_layout;

/* qn_saved_layout_of - the layout for a plan, which outlives it, and a cache format. */
qn_saved_layout qn_saved_layout_of(const qn_plan *plan, const qn_kv_format *format);

/* qn_saved_check_recurrent - QN_ERR_MEMORY unless the bytes of n_layers recurrent layers fit in a size_t. */
qn_status qn_saved_check_recurrent(const qn_recurrent_shape *shape, size_t n_layers);

/* ---- KV cache ---- */

typedef enum qn_saved_part {
    QN_SAVED_MEANS,
    QN_SAVED_KEYS,
    QN_SAVED_VALUES, /* fp16 */
    QN_SAVED_KEY_CODES,
    QN_SAVED_VALUE_CODES,
    QN_SAVED_KEY_SCALES,
    QN_SAVED_VALUE_SCALES
} qn_saved_part;

/* Keys or values of one head in a page; or the means. */
typedef struct qn_saved_region {
    qn_saved_part part;
    size_t layer, head, page; /* layer of the model, page of the sequence */
    size_t held;              /* positions in use */
    size_t bytes; /* 0: the file has none of it. Of keys in full tiles, with zeros for the positions after `held` */
} qn_saved_region;

/* qn_saved_find_region - region 0, 1, ... of a sequence of this extent. False after the last. */
bool qn_saved_find_region(const qn_saved_layout *layout, const qn_extent *extent, size_t index,
                          qn_saved_region *region);

/* qn_saved_key_at - the index of a key's value d in the keys of a page. */
static inline size_t qn_saved_key_at(size_t head_dim, size_t position, size_t d)
{
    return (position / QN_SAVED_KEY_TILE * head_dim + d) * QN_SAVED_KEY_TILE + position % QN_SAVED_KEY_TILE;
}

/* qn_saved_zero_tail - zero the positions after `held` in a region of keys; does nothing to others. */
void qn_saved_zero_tail(const qn_saved_layout *layout, const qn_saved_region *region, void *data);

/* ---- Recurrent layers ---- */

/* Arrays of a layer, f32, in the order of the file. Zeros stand for the state and the history at position 0, and for
 * rows of the open chunk that are not there. */
typedef enum qn_saved_array {
    QN_SAVED_STATE,       /* [n_v_heads][head_k][head_v] at state_position */
    QN_SAVED_V_NEW,       /* [n_v_heads][QN_PAGE][head_v] corrected values v' of the open chunk */
    QN_SAVED_OPEN_KEYS,   /* [n_k_heads][head_k][QN_PAGE] keys of the open chunk, one token a column */
    QN_SAVED_LOG_DECAY,   /* [n_v_heads][QN_PAGE] g of the open chunk */
    QN_SAVED_HISTORY,     /* [taps-1][qn_recurrent_width] inputs q, k, v of the convolution before state_position */
    QN_SAVED_CONV_INPUTS, /* [QN_PAGE][qn_recurrent_width] the same of the open chunk */
    QN_SAVED_ARRAYS
} qn_saved_array;

/* qn_saved_counts - floats of each array. */
void qn_saved_counts(const qn_recurrent_shape *shape, size_t counts[QN_SAVED_ARRAYS]);

/* qn_saved_layer_bytes - bytes of all arrays of a recurrent layer. */
uint64_t qn_saved_layer_bytes(const qn_recurrent_shape *shape);

/* ---- Both ---- */

/* qn_saved_kv_bytes - bytes of the regions. qn_saved_bytes - of regions and arrays. */
uint64_t qn_saved_kv_bytes(const qn_saved_layout *layout, const qn_extent *extent);
uint64_t qn_saved_bytes(const qn_saved_layout *layout, const qn_extent *extent);

#endif
