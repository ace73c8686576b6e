/* Test problem of a matmul: a random matrix, quantised activations, and a run of the CPU's kernels on them. The files
 * that check matmuls do the comparisons. */
#ifndef QN_CHECK_PROBLEM_H
#define QN_CHECK_PROBLEM_H

#include "check.h"
#include "kernels/matmul/matmul.h"

/* qn_random_blocks - Fills blocks of a type with random codes; weights are finite and below `largest` in magnitude. */
void qn_random_blocks(const qn_type_info *type, uint8_t *blocks, size_t n_blocks, float largest);

/* qn_quantize_rows - Quantises x [n_rows, n_cols] to the first rows of acts. */
void qn_quantize_rows(const qn_matmul_kernels *kernels, qn_acts *acts, const float *x, size_t n_rows);

/* qn_acts_keep - Creates activations that belong to the case. */
void qn_acts_keep(qn_acts *acts, size_t n_rows, size_t n_cols, unsigned layouts, bool hilo);

typedef struct qn_problem {
    const qn_type_info *type;
    qn_matrix weights;
    qn_acts acts; /* quantised by the reference, in every layout that the type can use */
    size_t n_tokens;
    uint8_t *data;
    float *x; /* [n_tokens, n_cols], normal */
} qn_problem;

/* qn_problem_new - Allocates and fills a problem; hilo: activations as a hi/lo int8 split. */
void qn_problem_new(qn_problem *p, const qn_type_info *type, size_t n_rows, size_t n_cols, size_t n_tokens, bool hilo);

/* qn_problem_run - Computes rows [begin, end) of the result with p's own acts; out is [n_tokens, n_rows]. */
void qn_problem_run(const qn_matmul_kernels *kernels, const qn_problem *p, size_t begin, size_t end, bool accumulate,
                    float *out);

/* qn_check_blocks - a part of operation matmul: check_blocks.c. */
void qn_check_blocks(void);

/* qn_check_tile_gemm - a part of operation matmul: check_tile_gemm.c. */
void qn_check_tile_gemm(void);

#endif
