/* The contents of a sequence in session files: the same on all devices, whatever their memory layout and capacity. A
 * device converts first the regions of the KV cache, then the arrays of the recurrent layers, layer by layer. Functions
 * of constant data, for any thread. engine/state_file.h has the rest of the file.
 *
 *   keys          [tiles of QN_SAVED_KEY_TILE positions][head_dim][QN_SAVED_KEY_TILE] f16, or f32 in an fp32 cache:
 *                 qn_saved_key_at
 *   values        [positions][head_dim] f16 or f32
 *   codes         keys or values of one page, as qn_aura_store_key and qn_aura_store_value place them
 *                 (kernels/aura/aura.h); their scales [positions] f32 are a separate region
 *   means         [attention layers][heads][head_dim] f32, the means of page 0's keys
 *
 * Regions are in blocks of QN_SAVED_BLOCK_PAGES pages. A block has, for each attention layer and head, the keys of its
 * pages, then the values; with codes, the codes of all its pages come before their scales. In a cache of codes, the
 * means come before the blocks, then the fp16 rows of page 0 and of the open page: for each layer and head the keys,
 * then the values. */
#ifndef QN_CACHE_SAVED_LAYOUT_H
#define QN_CACHE_SAVED_LAYOUT_H

#include "cache/kv_format.h"
#include "plan/plan.h"

enum { QN_SAVED_KEY_TILE = 16, QN_SAVED_BLOCK_PAGES = 4 };

typedef struct qn_saved_layout {
    size_t first_layer;       /* of the model: 0, or the draft head's */
    const bool *is_recurrent; /* [n_layers], or NULL */
    size_t n_layers, n_attention, n_recurrent;
    size_t n_heads, head_dim; /* KV heads of an attention layer */
    unsigned key_bits, value_bits;
    bool is_f32; /* type of a cache without codes */
    qn_recurrent_shape recurrent;
} qn_saved_layout;

/* qn_saved_layout_of - returns the layout for a plan and a cache format. The plan must outlive the layout. */
qn_saved_layout qn_saved_layout_of(const qn_plan *plan, const qn_kv_format *format);

/* qn_saved_layout_of_head - returns the layout of the draft head's layers, without layers if there is none. */
qn_saved_layout qn_saved_layout_of_head(const qn_plan *plan, const qn_kv_format *format);

/* qn_saved_check_recurrent - checks that the bytes of n_layers recurrent layers fit in a size_t; QN_ERR_MEMORY if
 * not. */
qn_status qn_saved_check_recurrent(const qn_recurrent_shape *shape, size_t n_layers);

/* ---- KV cache ---- */

typedef enum qn_saved_part {
    QN_SAVED_MEANS,
    QN_SAVED_KEYS,
    QN_SAVED_VALUES, /* fp16 or fp32 */
    QN_SAVED_KEY_CODES,
    QN_SAVED_VALUE_CODES,
    QN_SAVED_KEY_SCALES,
    QN_SAVED_VALUE_SCALES
} qn_saved_part;

/* Keys, values, codes or scales of one head in a page; or the means. */
typedef struct qn_saved_region {
    qn_saved_part part;
    size_t layer, head, page; /* layer of the model; page of the sequence */
    size_t held;              /* positions of the page that the sequence has */
    size_t bytes;             /* 0: not in the file. Keys fill whole tiles, with zeros for the positions after `held` */
} qn_saved_region;

/* qn_saved_find_region - finds the region with this index, from 0, in the file of a sequence of this extent. Returns
 * false after the last region. */
bool qn_saved_find_region(const qn_saved_layout *layout, const qn_extent *extent, size_t index,
                          qn_saved_region *region);

/* qn_saved_element_bytes - returns the bytes of an element of keys and values that are not codes. */
static inline size_t qn_saved_element_bytes(const qn_saved_layout *layout)
{
    return layout->is_f32 ? sizeof(float) : sizeof(uint16_t);
}

/* qn_saved_key_at - returns the index of dimension d of the key at `position`, in the keys of a page without codes. */
static inline size_t qn_saved_key_at(size_t head_dim, size_t position, size_t d)
{
    return (position / QN_SAVED_KEY_TILE * head_dim + d) * QN_SAVED_KEY_TILE + position % QN_SAVED_KEY_TILE;
}

/* qn_saved_zero_tail - zeroes the positions after `held` in a region of keys; does nothing to other regions. */
void qn_saved_zero_tail(const qn_saved_layout *layout, const qn_saved_region *region, void *data);

/* ---- Recurrent layers ---- */

/* Arrays of a recurrent layer, f32, in the order of the file. The state and the history at position 0, and missing rows
 * of the open chunk, are zeros. */
typedef enum qn_saved_array {
    QN_SAVED_STATE,       /* [n_v_heads][head_k][head_v] at state_position */
    QN_SAVED_V_NEW,       /* [n_v_heads][QN_PAGE][head_v] corrected values v' of the open chunk */
    QN_SAVED_OPEN_KEYS,   /* [n_k_heads][head_k][QN_PAGE] keys of the open chunk, one token a column */
    QN_SAVED_LOG_DECAY,   /* [n_v_heads][QN_PAGE] g of the open chunk */
    QN_SAVED_HISTORY,     /* [taps-1][qn_recurrent_width] convolution inputs q, k, v before state_position */
    QN_SAVED_CONV_INPUTS, /* [QN_PAGE][qn_recurrent_width] convolution inputs of the open chunk */
    QN_SAVED_ARRAYS
} qn_saved_array;

/* qn_saved_counts - returns the number of floats of each array in `counts`. */
void qn_saved_counts(const qn_recurrent_shape *shape, size_t counts[QN_SAVED_ARRAYS]);

/* qn_saved_layer_bytes - returns the number of bytes of all arrays of a recurrent layer. */
uint64_t qn_saved_layer_bytes(const qn_recurrent_shape *shape);

/* ---- Both ---- */

/* qn_saved_kv_bytes - returns the number of bytes of all KV cache regions. */
uint64_t qn_saved_kv_bytes(const qn_saved_layout *layout, const qn_extent *extent);

/* qn_saved_bytes - returns the number of bytes of all regions and all recurrent layers' arrays. */
uint64_t qn_saved_bytes(const qn_saved_layout *layout, const qn_extent *extent);

#endif
