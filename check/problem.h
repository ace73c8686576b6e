/* A matrix product to be checked: a random matrix, activations and what one run of it needs. What is compared with what is for
 * the files that check products. */
#ifndef QN_CHECK_PROBLEM_H
#define QN_CHECK_PROBLEM_H

#include "check/check.h"
#include "kernels/matmul/matmul.h"

/* qn_random_blocks - rows of a type: any codes, and weights that are ordinary numbers below `largest` in magnitude. */
void qn_random_blocks(const qn_type_info *type, uint8_t *blocks, size_t n_blocks, float largest);

/* qn_quantize_rows - x [n_rows, n_cols] to rows 0 on of acts. */
void qn_quantize_rows(const qn_matmul_kernels *kernels, qn_acts *acts, const float *x, size_t n_rows);

typedef struct qn_problem {
    const qn_type_info *type;
    qn_matrix weights;
    qn_acts acts; /* by the reference, in every form that it has */
    size_t n_tokens;
    qn_guarded data;
    float *x; /* [n_tokens, n_cols], normal */
} qn_problem;

void qn_problem_new(qn_problem *p, const qn_type_info *type, size_t n_rows, size_t n_cols, size_t n_tokens, bool hilo);
void qn_problem_free(qn_problem *p);

/* qn_problem_run - rows [begin, end) of the product with p's own acts; out is [n_tokens, n_rows]. */
void qn_problem_run(const qn_matmul_kernels *kernels, const qn_problem *p, size_t begin, size_t end, bool accumulate,
                    float *out);

#endif
