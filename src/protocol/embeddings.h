/* Exchanges whose answers are embeddings, or scores of documents (rerank.c). Protocols differ in the fields of the body
 * and in the form of the answer. */
#ifndef QN_PROTOCOL_EMBEDDINGS_H
#define QN_PROTOCOL_EMBEDDINGS_H

#include "protocol/openai.h"

extern const qn_protocol qn_ollama_embed, qn_ollama_embeddings, qn_rerank;

/* The embedding of one text. */
typedef struct qn_embedded {
    float *values; /* [n]; NULL until it is computed */
    size_t n;
    qn_request_result result;
} qn_embedded;

typedef struct qn_embeddings_exchange {
    qn_exchange base;
    json_t *model, *given; /* references: the string that base.model points into; the inputs, until bind */
    qn_prompt *prompts;    /* [base.n_requests] tokens of each input */
    size_t n_prompts;
    qn_embedded *embedded; /* [n_prompts] */
    qn_pooling pooling;    /* QN_POOLING_NONE: the served model's */
    int64_t dimensions;    /* the first of a vector's numbers that are wanted; 0: all */
    int norm;              /* 2: L2, 1: taxicab, 0: greatest absolute value becomes 32760, -1: none, p: the p-norm */
    bool is_base64;
    bool cuts; /* inputs longer than the context are cut, else refused */
    const qn_served *served;
    qn_refusal refusal; /* with has_failed */
} qn_embeddings_exchange;

/* qn_embeddings_parse - member `parse`, for a body whose inputs are in the first of the fields that it has.
 *
 *   fields   NULL at the end; refusals name the first */
qn_embeddings_exchange *qn_embeddings_parse(const json_t *body, const char *const *fields, qn_reading *reading,
                                            qn_refusal *refusal);

/* qn_embeddings_alloc - allocates n prompts and vectors. False: refused. */
bool qn_embeddings_alloc(qn_embeddings_exchange *x, size_t n, qn_refusal *refusal);

/* qn_embeddings_check_count - refuses more inputs than requests may wait. */
bool qn_embeddings_check_count(const qn_embeddings_exchange *x, const qn_served *served, qn_refusal *refusal);

/* qn_embeddings_make_requests - makes a request of each prompt, whose vectors have n_values. False: refused. */
bool qn_embeddings_make_requests(qn_embeddings_exchange *x, qn_pooling pooling, size_t n_values, qn_refusal *refusal);

/* qn_embeddings_dimensions - reads `dimensions`; bind compares it with the model's. */
bool qn_embeddings_dimensions(qn_embeddings_exchange *x, const json_t *body, qn_refusal *refusal);

/* qn_embeddings_write - writes the vector of an input, as the body asks for it. */
void qn_embeddings_write(const qn_embeddings_exchange *x, size_t index, qn_bytes *out);

/* qn_embeddings_model - returns the model's name in answers. */
const char *qn_embeddings_model(const qn_embeddings_exchange *x);

/* qn_embeddings_tokens - returns the number of tokens of all inputs. */
size_t qn_embeddings_tokens(const qn_embeddings_exchange *x);

/* qn_embeddings_write_usage - appends the member `usage`, as OpenAI and Jina have it. */
void qn_embeddings_write_usage(const qn_embeddings_exchange *x, qn_bytes *out);

/* qn_embeddings_check_end - whether all vectors are there. If not, the error is written. */
bool qn_embeddings_check_end(qn_embeddings_exchange *x, qn_bytes *out);

/* Members of the protocols. */
bool qn_embeddings_bind(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal);
void qn_embeddings_event(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out);
void qn_embeddings_fail(qn_exchange *exchange, const qn_refusal *refusal, qn_bytes *out);
void qn_embeddings_free(qn_exchange *exchange);

#endif
