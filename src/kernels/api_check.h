/* Argument checks shared by the public kernels, and the kernel table that they call. */
#ifndef QN_KERNELS_API_CHECK_H
#define QN_KERNELS_API_CHECK_H

#include "kernels/kernels.h"

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The fastest variants that the CPU supports and QN_CPU allows. Valid once qn_api_ready has returned QN_OK. */
extern qn_kernels qn_api_kernels;

/* qn_api_ready - fills qn_api_kernels on the first call. If QN_CPU is invalid, every call returns the error.
 * Thread-safe. */
qn_status qn_api_ready(void);

/* qn_check_view - returns QN_ERR_INVALID, naming the argument `name`, unless the view holds at least a*b*c elements of
 * `dtype`. */
qn_status qn_check_view(const char *name, qn_view view, qn_dtype dtype, size_t a, size_t b, size_t c);

/* qn_check_float_type - returns QN_ERR_INVALID unless the view's dtype is F32, F16 or BF16. */
qn_status qn_check_float_type(const char *name, qn_view view);

/* qn_view_absent - returns whether the view has no data and no elements: an optional argument that is not given. */
bool qn_view_absent(qn_view view);

/* A batch of sequences: all of the same length, or of any lengths one after the other (cu_seqlens). */
typedef struct qn_sequences {
    size_t n, tokens;        /* number of sequences; tokens of each sequence if offsets is NULL, else of all */
    size_t rows;             /* rows of the token arrays, including tokens outside of all sequences */
    const uint32_t *offsets; /* [n+1] or NULL: sequence i is tokens offsets[i] to offsets[i+1]-1 */
} qn_sequences;

/* qn_check_sequences - checks batch or cumulative lengths as quern/kernels.h describes them, and fills *out, which
 * refers to cu_seqlens' data. Allows zero sequences and zero tokens. */
qn_status qn_check_sequences(size_t batch, size_t tokens, size_t n_sequences, qn_view cu_seqlens, qn_sequences *out);

/* qn_sequence_at - returns the row of the first token of sequence i, and its number of tokens in *n. */
size_t qn_sequence_at(const qn_sequences *sequences, size_t i, size_t *n);

#endif
