/* Checks that the public kernels share, and the table that they run on. */
#ifndef QN_KERNELS_API_CHECK_H
#define QN_KERNELS_API_CHECK_H

#include "kernels/kernels.h"

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The best variants that this machine and QN_CPU allow, once qn_api_ready has returned QN_OK. */
extern qn_kernels qn_api_kernels;

/* qn_api_ready - fills qn_api_kernels on the first call. What is wrong with QN_CPU is reported by every call. */
qn_status qn_api_ready(void);

/* qn_check_view - a view of at least a*b*c elements of `dtype`. */
qn_status qn_check_view(const char *name, qn_view view, qn_dtype dtype, size_t a, size_t b, size_t c);

/* qn_check_float_type - F32, F16 or BF16. */
qn_status qn_check_float_type(const char *name, qn_view view);

/* qn_view_absent - an all-zero view, which stands for an optional argument that is not there. */
bool qn_view_absent(qn_view view);

/* Sequences of tokens that lie one after the other. */
typedef struct qn_sequences {
    size_t n, tokens;        /* `tokens` each, where ends is NULL */
    size_t rows;             /* of the arrays that hold them, tokens of no sequence included */
    const uint32_t *offsets; /* [n+1]: sequence i is ends[i] up to ends[i+1] */
} qn_sequences;

/* qn_check_sequences - the batch, or the cumulative lengths, as quern/kernels.h describes them; no sequences and no tokens are
 * allowed here. */
qn_status qn_check_sequences(size_t batch, size_t tokens, size_t n_sequences, qn_view cu_seqlens, qn_sequences *out);

/* qn_sequence_at - the first token of a sequence; *n is how many there are. */
size_t qn_sequence_at(const qn_sequences *sequences, size_t i, size_t *n);

#endif
