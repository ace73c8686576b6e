/* Telling apart the three layouts that files carry under type number 42 (DESIGN.md section 4): mainline's Q2_0, 64 weights in
 * 18 bytes; PrismML's older one, 128 in 34 with the scale first (the bytes of PQ2_0); OxiBonsai's, 128 in 34 with the scale
 * last. */
#ifndef QN_QUANT_Q2_LAYOUT_H
#define QN_QUANT_Q2_LAYOUT_H

#include "quant/quant.h"

/* A tensor of type 42 as its file gives it. */
typedef struct qn_q2_tensor {
    const char *name; /* not terminated: name_length bytes, for texts */
    size_t name_length;
    const uint8_t *data;
    size_t available_bytes; /* readable bytes at data: up to the next tensor, or to the end of the file */
    uint64_t width;         /* weights in a row */
    uint64_t n_weights;     /* in all rows: a multiple of width, more than 0 */
} qn_q2_tensor;

/* qn_q2_find_layout - which of the three a file has, decided once for all its tensors of type 42.
 *
 *   tensors     [n], n >= 1
 *   alignment   of the file's tensors: the padding after one is shorter than this
 *   file        the file's name, for texts
 *   type        QN_TYPE_Q2_0, QN_TYPE_PQ2_0 or QN_TYPE_OX2_0
 *   note        one sentence for the log, constant
 *
 * Sizes come first: mainline's needs 36 bytes where the others need 34, and widths that are no multiple of 128 can only be
 * mainline's. Of the two that need 34, the one whose scales are finite and not negative and whose codes are never 3, over 4096
 * blocks from all tensors (all blocks where there are fewer). Where the sizes allow everything (tensors so small that padding
 * hides the difference, or gaps between them), mainline's wins when its scales are sound. After QN_OK every tensor fits its
 * room. QN_ERR_FORMAT, naming a tensor, when none fits or the contents allow neither or both. */
qn_status qn_q2_find_layout(const qn_q2_tensor *tensors, size_t n, size_t alignment, const char *file, qn_type *type,
                            const char **note);

#endif
