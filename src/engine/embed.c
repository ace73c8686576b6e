/* Embeddings of texts in a session. */
#include "engine/pooling.h"

#include "base/memory.h"
#include "engine/internal.h"

#include <math.h>

qn_status qn_embedding_tokens(const qn_model *model, const char *text, size_t length, qn_token **tokens, size_t *count)
{
    const qn_tokenizer *tok;
    size_t capacity = 0;
    *tokens = NULL;
    *count = 0;
    QN_TRY(qn_model_tokenizer(model, &tok));
    QN_TRY(qn_tokenizer_encode(tok, text, length, true, true, tokens, count));
    const qn_token end = qn_tokenizer_eos(tok);
    if (!qn_tokenizer_adds_eos(tok) || end < 0 || (*count && (*tokens)[*count - 1] == end))
        return QN_OK;
    const qn_status status = qn_realloc_array(tokens, &capacity, *count + 1, sizeof **tokens, "tokens");
    if (status != QN_OK) {
        qn_free_tokens(*tokens);
        *tokens = NULL;
        *count = 0;
        return status;
    }
    (*tokens)[(*count)++] = end;
    return QN_OK;
}

/* The rows of a batch whose hidden states are computed. */
typedef struct batch {
    float *states; /* [n_batch, n_embd] */
    float **normed;
    size_t n_batch;
} batch;

static qn_status eval_batch(qn_session *session, const qn_token *tokens, size_t first, size_t n, const batch *b,
                            qn_pooled *pooled)
{
    const qn_rows rows = { .size = sizeof rows,
                           .n = n,
                           .tokens = tokens + first,
                           .n_embd = pooled->n_embd,
                           .normed = (float *const *)b->normed };
    for (size_t i = 0; i < n; i++)
        b->normed[i] = qn_pooled_needs(pooled, first + i) ? b->states + i * pooled->n_embd : NULL;
    QN_TRY(qn_session_eval_rows(session, &rows));
    for (size_t i = 0; i < n; i++)
        qn_pooled_pass(pooled, first + i, b->normed[i]);
    return QN_OK;
}

static qn_status eval_all(qn_session *session, const qn_token *tokens, size_t n, const batch *b, qn_pooled *pooled)
{
    for (size_t first = 0; first < n; first += b->n_batch)
        QN_TRY(eval_batch(session, tokens, first, n - first < b->n_batch ? n - first : b->n_batch, b, pooled));
    return QN_OK;
}

static void normalize(float *values, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)values[i] * values[i];
    for (size_t i = 0; sum > 0 && i < n; i++)
        values[i] = (float)(values[i] / sqrt(sum));
}

qn_status qn_session_pool(qn_session *session, const qn_token *tokens, size_t n, qn_pooling pooling, float *out)
{
    const size_t n_embd = session->model->hparams.n_embd;
    batch b = { .n_batch = n < session->n_batch ? n : session->n_batch };
    qn_pooled *pooled = NULL;
    if (!n)
        return qn_fail(QN_ERR_INVALID, "embedding: the text has no tokens, at least 1 is needed");
    if (n > session->n_ctx)
        return qn_fail(QN_ERR_CONTEXT, "context: %zu tokens do not fit, its capacity is %u", n,
                       (unsigned)session->n_ctx);
    QN_TRY(qn_model_check_tokens(session->model, "token", tokens, n));
    QN_TRY(qn_session_truncate(session, 0));
    qn_status status = qn_pooled_create(pooling, n, n_embd, &pooled);
    if (status == QN_OK)
        status = qn_alloc(&b.states, b.n_batch * n_embd, sizeof *b.states, "hidden states");
    if (status == QN_OK)
        status = qn_alloc(&b.normed, b.n_batch, sizeof *b.normed, "hidden states");
    if (status == QN_OK)
        status = eval_all(session, tokens, n, &b, pooled);
    if (status == QN_OK)
        qn_pooled_vector(pooled, out);
    qn_free(pooled);
    qn_free(b.states);
    qn_free(b.normed);
    return status;
}

qn_status qn_embed(qn_session *session, const qn_token *tokens, size_t n, qn_pooling pooling, float *embedding)
{
    QN_TRY(qn_pooling_check(pooling));
    QN_TRY(qn_session_pool(session, tokens, n, pooling, embedding));
    normalize(embedding, session->model->hparams.n_embd);
    return QN_OK;
}
