/* Detection of the layout of tensors with type id 42. Files store three layouts under this id: mainline's Q2_0, 64
 * weights in 18 bytes; PrismML's older one, 128 weights in 34 bytes with the scale first (identical to PQ2_0);
 * OxiBonsai's, 128 weights in 34 bytes with the scale last (OX2_0). */
#ifndef QN_QUANT_Q2_LAYOUT_H
#define QN_QUANT_Q2_LAYOUT_H

#include "quant/quant.h"

/* A tensor of type 42 as described by its file. */
typedef struct qn_q2_tensor {
    const char *name; /* not terminated: name_length bytes, for messages */
    size_t name_length;
    const uint8_t *data;
    size_t available_bytes; /* readable bytes at data: up to the next tensor or the end of the file */
    uint64_t width;         /* weights in a row */
    uint64_t n_weights;     /* in all rows: a multiple of width, greater than 0 */
} qn_q2_tensor;

/* qn_q2_find_layout - selects one of the three layouts, once for all tensors of type 42 of a file.
 *
 *   tensors     [n], n >= 1
 *   alignment   alignment of the file's tensors: the padding after a tensor is shorter than this
 *   file        the file's name, for messages
 *   type        out: QN_TYPE_Q2_0, QN_TYPE_PQ2_0 or QN_TYPE_OX2_0
 *   note        out: one sentence for the log, a string constant
 *
 * Sizes are compared first: mainline's layout needs 36 bytes for 128 weights, the others 34, and a width that is not a
 * multiple of 128 can only be mainline's. Of the two layouts of 34 bytes, the one is selected whose scales are finite
 * and not negative and whose codes are never 3, in 4096 blocks from all tensors (all blocks if there are fewer). If the
 * sizes allow all layouts (tensors so small that padding hides the difference, or gaps between tensors), mainline's is
 * selected if its scales are valid.
 *
 * QN_OK: every tensor fits its available_bytes. QN_ERR_FORMAT, naming a tensor: no layout fits the sizes, or the
 * contents match neither or both layouts of 34 bytes. */
qn_status qn_q2_find_layout(const qn_q2_tensor *tensors, size_t n, size_t alignment, const char *file, qn_type *type,
                            const char **note);

#endif
