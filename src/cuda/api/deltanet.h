/* Checks shared by the Gated DeltaNet functions of quern/cuda.h. */
#ifndef QN_CUDA_API_DELTANET_H
#define QN_CUDA_API_DELTANET_H

#include "cuda/api/api.h"
#include "cuda/kernels/deltanet/deltanet.h"

/* A call: its checked shape, and the arguments derived from it. */
typedef struct qn_api_gdn {
    const qn_cuda_gdn_shape *shape;
    qn_dtype dtype;
    size_t rows, n_sequences, longest;
    qn_gdn_chunk_args args;
    qn_gdn_division division;
} qn_api_gdn;

/* qn_api_gdn_begin - Checks the shape and the type of q, and fills the arguments derived from them. */
qn_status qn_api_gdn_begin(qn_api_gdn *call, const qn_cuda_kernels *kernels, const qn_cuda_gdn_shape *shape,
                           qn_dtype dtype);

/* qn_api_gdn_check_gates - Checks a view of rows of v_heads elements of f32, f16 or bf16. *stride is the row stride. */
qn_status qn_api_gdn_check_gates(const qn_api_gdn *call, const char *name, qn_cuda_view view, uint32_t *stride);

/* qn_api_gdn_check_states - Checks the optional views of initial and final states, of f32 or bf16. */
qn_status qn_api_gdn_check_states(qn_api_gdn *call, qn_cuda_view initial, qn_cuda_view final);

#endif
