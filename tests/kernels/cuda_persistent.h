/* Helpers for the checks of the persistent decode kernel: device properties, weights, GEMVs and launches. */
#ifndef QN_CHECK_CUDA_PERSISTENT_H
#define QN_CHECK_CUDA_PERSISTENT_H

#include "cuda_matmul_problem.h"
#include "cuda/kernels/persistent/persistent.h"

#define QN_PERSISTENT_EPS 1e-6f

/* qn_persistent_device - Returns the properties of the device under test. */
qn_persistent_gpu qn_persistent_device(void);

/* qn_persistent_supported - Returns whether the kernel of up to n_rows rows supports weights of 1 and 2 bits on the
 * device under test. */
bool qn_persistent_supported(uint32_t n_rows);

/* qn_persistent_random_tiles - Returns tiles with random codes and scales of about 0.01. */
uint64_t qn_persistent_random_tiles(const qn_tile_layout *tiles, size_t n_tiles, size_t n_cols);

/* qn_persistent_set - Sets a GEMV's weights, n_tiles tiles at `address`, and its partition in a launch of the kernel of
 * up to n_rows rows. */
void qn_persistent_set(qn_persistent_gemv *p, const qn_tile_layout *tiles, uint64_t address, size_t n_tiles,
                       size_t n_cols, uint32_t n_rows);

/* qn_persistent_sumsq - Returns the number of sums of squares of a row. of_several: in the kernel of several rows. */
uint32_t qn_persistent_sumsq(const qn_persistent_gemv *p, bool of_several);

/* qn_persistent_partials_of - Returns the partials of a GEMV, as later phases read them. */
qn_persistent_partials qn_persistent_partials_of(const qn_persistent_gemv *p, bool of_several);

/* qn_persistent_link - Sets next_gemv of all phases, and returns an array with them. */
uint64_t qn_persistent_link(qn_persistent_phase *phases, size_t n);

/* qn_persistent_launch - Returns the launch of the kernel of up to n_rows rows. */
qn_launch qn_persistent_launch(const qn_tile_layout *tiles, uint32_t n_rows);

/* qn_persistent_barrier - Returns a barrier, and qn_persistent_expect_barrier asserts that a launch has reset it. */
uint64_t qn_persistent_barrier(void);
void qn_persistent_expect_barrier(uint64_t barrier);

/* qn_persistent_seconds - Measures the device time of `n` launches, as qn_gpu_seconds. */
double qn_persistent_seconds(const qn_launch *launch, const qn_persistent_args *args, size_t n);

#endif
