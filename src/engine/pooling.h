/* Pooling: the hidden states of a prompt's rows become one vector, its embedding. Rows arrive in order, in pieces of
 * any size; the result does not depend on the pieces. */
#ifndef QN_ENGINE_POOLING_H
#define QN_ENGINE_POOLING_H

#include "quern/quern.h"

typedef struct qn_pooled {
    qn_pooling pooling;
    size_t n_tokens, n_embd;
    size_t n;     /* rows that have passed */
    double sum[]; /* [n_embd] of the hidden states that count */
} qn_pooled;

/* qn_pooling_check - QN_ERR_INVALID unless a pooling makes a vector of a text. */
qn_status qn_pooling_check(qn_pooling pooling);

/* qn_session_pool - Evaluates tokens in an emptied session and pools their hidden states, as qn_embed does.
 *
 *   out   [n_embd] */
qn_status qn_session_pool(qn_session *session, const qn_token *tokens, size_t n, qn_pooling pooling, float *out);

/* qn_pooled_create - Creates an empty sum for n_tokens > 0 rows. Free it with qn_free. */
qn_status qn_pooled_create(qn_pooling pooling, size_t n_tokens, size_t n_embd, qn_pooled **out);

/* qn_pooled_needs - Returns true if the hidden state of a row is still needed. */
bool qn_pooled_needs(const qn_pooled *pooled, size_t row);

/* qn_pooled_first - Returns the first row whose hidden state is still needed; n_tokens: none is. */
size_t qn_pooled_first(const qn_pooled *pooled);

/* qn_pooled_pass - Passes a row. A row that has passed before changes nothing.
 *
 *   normed   [n_embd] its hidden state after the final norm; not read unless the row is needed */
void qn_pooled_pass(qn_pooled *pooled, size_t row, const float *normed);

/* qn_pooled_vector - Writes the vector, [n_embd], of all rows. */
void qn_pooled_vector(const qn_pooled *pooled, float *out);

#endif
