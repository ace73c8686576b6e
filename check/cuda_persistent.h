/* What the checks of chains share: the device as a chain sees it, and arrays and weights on it. */
#ifndef QN_CHECK_CUDA_PERSISTENT_H
#define QN_CHECK_CUDA_PERSISTENT_H

#include "check/cuda.h"
#include "kernels/persistent/persistent_cuda.h"

/* qn_persistent_device - the device under test. */
qn_persistent_gpu qn_persistent_device(void);

/* qn_persistent_supported - whether it takes chains of weights of 1 and 2 bits. */
bool qn_persistent_supported(void);

/* qn_gpu_floats - x [n] on the device. */
qn_gpu_guarded qn_gpu_floats(const float *x, size_t n);

/* qn_gpu_read_floats - all of g; the caller frees it. */
float *qn_gpu_read_floats(const qn_gpu_guarded *g);

/* qn_floats_of - n normally distributed numbers of deviation `scale`; the caller frees them. */
float *qn_floats_of(size_t n, float scale);

/* qn_gpu_pack_rows - stored rows into the tiles of an area, from first_tile on. */
void qn_gpu_pack_rows(const qn_tiled_matrix *area, const uint8_t *stored, size_t row_bytes, size_t n_rows, size_t first_tile);

#endif
