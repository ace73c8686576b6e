/* Helpers for the checks of the persistent decode kernel: device properties, arrays and weights on the device. */
#ifndef QN_CHECK_CUDA_PERSISTENT_H
#define QN_CHECK_CUDA_PERSISTENT_H

#include "cuda.h"
#include "cuda/kernels/persistent/persistent.h"

/* qn_persistent_device - Returns the properties of the device under test. */
qn_persistent_gpu qn_persistent_device(void);

/* qn_persistent_supported - Returns whether the kernel supports weights of 1 and 2 bits on the device under test. */
bool qn_persistent_supported(void);

/* qn_gpu_floats - Copies x [n] to the device. */
qn_gpu_guarded qn_gpu_floats(const float *x, size_t n);

/* qn_gpu_read_floats - Copies all of g to the host; the caller frees it. */
float *qn_gpu_read_floats(const qn_gpu_guarded *g);

/* A launch to be timed: the context of qn_persistent_iteration. */
typedef struct qn_persistent_timed {
    qn_launch launch;
    qn_persistent_args args;
} qn_persistent_timed;

/* qn_persistent_iteration - Launches a qn_persistent_timed, for qn_gpu_bench and qn_gpu_seconds. */
void qn_persistent_iteration(void *context, size_t iteration);

/* qn_gpu_pack_rows - Packs rows, as a file stores them, into the tiles of `area` from first_tile on. */
void qn_gpu_pack_rows(const qn_tiled_matrix *area, const uint8_t *stored, size_t row_bytes, size_t n_rows,
                      size_t first_tile);

/* qn_persistent_random_tiles - Returns tiles with random codes and scales of about 0.01; *bytes is their size. */
qn_gpu_guarded qn_persistent_random_tiles(const qn_tile_layout *tiles, size_t n_tiles, size_t n_cols, size_t *bytes);

#endif
