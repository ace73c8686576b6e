/* Helpers that the checks of the persistent decode kernel share: device properties, arrays and weights on the
 * device. */
#ifndef QN_CHECK_CUDA_PERSISTENT_H
#define QN_CHECK_CUDA_PERSISTENT_H

#include "cuda.h"
#include "cuda/kernels/persistent/persistent.h"

/* qn_persistent_device - properties of the device under test. */
qn_persistent_gpu qn_persistent_device(void);

/* qn_persistent_supported - whether the kernel supports weights of 1 and 2 bits on the device under test. */
bool qn_persistent_supported(void);

/* qn_gpu_floats - copies x [n] to the device. */
qn_gpu_guarded qn_gpu_floats(const float *x, size_t n);

/* qn_gpu_read_floats - copies all of g to the host; the caller frees it. */
float *qn_gpu_read_floats(const qn_gpu_guarded *g);

/* qn_persistent_iteration - launches a qn_persistent_timed, for qn_gpu_bench and qn_gpu_seconds. */
typedef struct qn_persistent_timed {
    qn_launch launch;
    qn_persistent_args args;
} qn_persistent_timed;

void qn_persistent_iteration(void *context, size_t iteration);

/* qn_gpu_pack_rows - packs rows, as a file stores them, into the tiles of `area` from first_tile on. */
void qn_gpu_pack_rows(const qn_tiled_matrix *area, const uint8_t *stored, size_t row_bytes, size_t n_rows,
                      size_t first_tile);

/* qn_persistent_random_tiles - tiles of any codes, and scales of about 0.01; *bytes: their size. */
qn_gpu_guarded qn_persistent_random_tiles(const qn_tile_layout *tiles, size_t n_tiles, size_t n_cols, size_t *bytes);

#endif
