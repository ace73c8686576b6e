/* Shared by the checks of the matmul on a GPU: activations and weights in device memory. */
#ifndef QN_CHECK_CUDA_MATMUL_PROBLEM_H
#define QN_CHECK_CUDA_MATMUL_PROBLEM_H

#include "cuda.h"
#include "cuda/kernels/matmul/matmul.h"

enum { QN_CHECK_MATRICES = 4 };

/* Arrays for tokens in one layout. */
struct gpu_acts {
    qn_matmul_acts acts;
    uint64_t data, scale, workspace;
    size_t n_tokens;
};

/* Matrices of a type that share activations, as stored in files and as tiles. */
struct gpu_weights {
    const qn_type_info *type;
    size_t n_cols, n_matrices, n_rows[QN_CHECK_MATRICES], row_bytes;
    size_t first_row[QN_CHECK_MATRICES]; /* of a matrix among the rows of the tiles */
    uint8_t *stored[QN_CHECK_MATRICES];
    qn_tiled_matrix matrix;
};

qn_matmul_gpu qn_check_matmul_gpu(void);
void qn_check_launch(const qn_matmul_launch *l);

/* qn_check_acts_new - Allocates poisoned activations with a capacity for n_tokens. */
struct gpu_acts qn_check_acts_new(int layout, size_t n_cols, size_t n_tokens);

/* qn_check_acts_read - Returns a copy of the activations on the host, from their address on. */
uint8_t *qn_check_acts_read(const struct gpu_acts *a);

/* qn_check_hilo_code, qn_check_hilo_scale - Return the integer of column k of a token in QN_ACTS_HILO, and the scale
 * for codes times 64, also of bit planes, of which they check what one integer has twice. bytes: qn_check_acts_read;
 * scales: a copy of a->scale. */
int qn_check_hilo_code(const struct gpu_acts *a, const uint8_t *bytes, size_t token, size_t k);
float qn_check_hilo_scale(const struct gpu_acts *a, const uint8_t *bytes, const float *scales, size_t token, size_t k);

/* qn_check_plane_sums - Checks the sums of integers that bit planes have of a token and the 128 columns from k on. */
void qn_check_plane_sums(const struct gpu_acts *a, const uint8_t *bytes, size_t token, size_t k);

/* qn_check_hadamard_f64 - Multiplies v by signs and applies the Walsh-Hadamard transform to each block, in float64.
 * block 0: v is unchanged. */
void qn_check_hadamard_f64(double *v, const float *signs, size_t n, size_t block);

/* qn_check_tiles - Returns an array for tiles of rows. */
uint64_t qn_check_tiles(const qn_tile_layout *tiles, size_t n_tiles, size_t n_cols);

/* qn_check_weights_new - Creates random matrices of weights below `largest` in magnitude, packed on the device. */
struct gpu_weights qn_check_weights_new(const qn_type_info *type, size_t n_cols, size_t n_matrices,
                                        const size_t *n_rows, float largest);

/* qn_check_weights_normal - The same with normally distributed weights, with which outputs are about as large as
 * inputs. */
struct gpu_weights qn_check_weights_normal(const qn_type_info *type, size_t n_cols, size_t n_matrices,
                                           const size_t *n_rows);

/* qn_check_weights_row - Dequantises a row of a matrix. */
void qn_check_weights_row(const struct gpu_weights *w, size_t matrix, size_t row, float *weights);

/* qn_check_weights_f32 - Returns a matrix, dequantised. */
float *qn_check_weights_f32(const struct gpu_weights *w, size_t matrix);

/* qn_check_bench - Times iterations of `each` launches of an array. */
void qn_check_bench(const char *shape, double units, const char *unit, double limit, const qn_matmul_launch *launches,
                    size_t each, size_t n_iterations);

/* qn_check_cuda_matmul_fused - Checks matmuls that compute the activations of the next (cuda_matmul_fused.c). */
void qn_check_cuda_matmul_fused(bool with_bench);

/* qn_check_cuda_matmul_norm - Checks matmuls that read rows of floats (cuda_matmul_norm.c). */
void qn_check_cuda_matmul_norm(bool with_bench);

#endif
