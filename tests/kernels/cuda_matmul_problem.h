/* Shared by the checks of the matmul on a GPU: activations and weights in device memory. */
#ifndef QN_CHECK_CUDA_MATMUL_PROBLEM_H
#define QN_CHECK_CUDA_MATMUL_PROBLEM_H

#include "cuda.h"
#include "cuda/kernels/matmul/matmul.h"

/* Buffers for tokens in one layout. */
struct gpu_acts {
    qn_matmul_acts acts;
    qn_gpu_guarded data, scale, workspace;
};

/* Up to three matrices of a type that share activations, as stored in files and as tiles. */
struct gpu_weights {
    const qn_type_info *type;
    size_t n_cols, n_matrices, n_rows[3], row_bytes;
    uint8_t *stored[3];
    qn_tiled_matrix matrix;
    qn_gpu_guarded tiles;
};

/* qn_check_alloc - Allocates memory for `count` elements of `size` bytes, or ends the program. */
void *qn_check_alloc(size_t count, size_t size);

qn_matmul_gpu qn_check_matmul_gpu(void);
void qn_check_launch(const qn_matmul_launch *l);

/* qn_check_acts_new - Allocates poisoned activations with a capacity for n_tokens. qn_check_acts_free checks their
 * guards. */
struct gpu_acts qn_check_acts_new(int layout, size_t n_cols, size_t n_tokens);
void qn_check_acts_free(struct gpu_acts *a);

/* qn_check_hilo_code - Returns the integer of column k of a token in QN_ACTS_HILO. */
int qn_check_hilo_code(const uint8_t *acts, size_t capacity, size_t token, size_t k);

/* qn_check_signs_new - Returns random signs of n columns. */
float *qn_check_signs_new(size_t n);

/* qn_check_hadamard_f64 - Multiplies v by signs and applies the Walsh-Hadamard transform to each block, in float64.
 * block 0: v is unchanged. */
void qn_check_hadamard_f64(double *v, const float *signs, size_t n, size_t block);

/* qn_check_weights_new - Creates random matrices, packed on the device. */
struct gpu_weights qn_check_weights_new(const qn_type_info *type, size_t n_cols, size_t n_matrices,
                                        const size_t n_rows[3]);
void qn_check_weights_free(struct gpu_weights *w);

/* qn_check_cuda_matmul_fused - Checks matmuls that compute the activations of the next (cuda_matmul_fused.c). */
void qn_check_cuda_matmul_fused(bool with_bench);

/* qn_check_cuda_matmul_norm - Checks matmuls that read rows of floats (cuda_matmul_norm.c). */
void qn_check_cuda_matmul_norm(bool with_bench);

#endif
