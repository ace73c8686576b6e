/* Pooling of hidden states, and embeddings of texts in a session. */
#include "engine/pooling.h"

#include "base/append.h"
#include "base/memory.h"
#include "device/rows.h"
#include "engine/internal.h"

#include <math.h>

/* ---- Pooling ---- */

qn_status qn_pooling_check(qn_pooling pooling)
{
    if (pooling == QN_POOLING_MEAN || pooling == QN_POOLING_CLS || pooling == QN_POOLING_LAST)
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "pooling: %d, expected %d (mean), %d (first token) or %d (last token)", (int)pooling,
                   QN_POOLING_MEAN, QN_POOLING_CLS, QN_POOLING_LAST);
}

qn_status qn_pooled_create(qn_pooling pooling, size_t n_tokens, size_t n_embd, qn_pooled **out)
{
    QN_TRY(qn_alloc(out, 1, sizeof **out + n_embd * sizeof(double), "an embedding"));
    (*out)->pooling = pooling;
    (*out)->n_tokens = n_tokens;
    (*out)->n_embd = n_embd;
    return QN_OK;
}

size_t qn_pooled_first(const qn_pooled *p)
{
    switch (p->pooling) {
    case QN_POOLING_CLS: return p->n ? p->n_tokens : 0;
    case QN_POOLING_LAST: return p->n < p->n_tokens ? p->n_tokens - 1 : p->n_tokens;
    default: return p->n;
    }
}

bool qn_pooled_needs(const qn_pooled *p, size_t row)
{
    const size_t first = qn_pooled_first(p);
    return p->pooling == QN_POOLING_MEAN ? row >= first && row < p->n_tokens : row == first && row < p->n_tokens;
}

void qn_pooled_pass(qn_pooled *p, size_t row, const float *normed)
{
    if (row < p->n)
        return;
    const bool is_needed = qn_pooled_needs(p, row);
    for (size_t i = 0; is_needed && i < p->n_embd; i++)
        p->sum[i] += normed[i];
    p->n = row + 1;
}

void qn_pooled_vector(const qn_pooled *p, float *out)
{
    const double n = p->pooling == QN_POOLING_MEAN ? (double)p->n_tokens : 1;
    for (size_t i = 0; i < p->n_embd; i++)
        out[i] = (float)(p->sum[i] / n);
}

/* ---- Models ---- */

/* GGUF's values of pooling_type are those of qn_pooling; 4 is that of rerankers, whose head is not supported. */
static qn_status find_pooling(qn_model *model)
{
    char key[128];
    uint32_t type = QN_POOLING_NONE;
    qn_text_buffer text = QN_APPEND_TO(key);
    qn_append(&text, "%s.pooling_type", model->hparams.architecture);
    QN_TRY(qn_gguf_get_u32(model->file, key, false, &type));
    model->pooling = type <= QN_POOLING_LAST ? (qn_pooling)type : QN_POOLING_NONE;
    return QN_OK;
}

qn_status qn_model_find_pooling(qn_model *model)
{
    return model->hparams.architecture ? find_pooling(model) : QN_OK;
}

qn_pooling qn_model_get_pooling(const qn_model *model)
{
    return model->pooling;
}

qn_status qn_model_check_embeddings(const qn_model *model)
{
    return model->device ? qn_device_check_features(model->device, QN_ROW_HIDDEN) : QN_OK;
}

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

/* ---- Sessions ---- */

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

qn_status qn_embed(qn_session *session, const qn_token *tokens, size_t n, qn_pooling pooling, float *embedding)
{
    const size_t n_embd = session->model->hparams.n_embd;
    batch b = { .n_batch = n < session->n_batch ? n : session->n_batch };
    qn_pooled *pooled = NULL;
    QN_TRY(qn_pooling_check(pooling));
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
    if (status == QN_OK) {
        qn_pooled_vector(pooled, embedding);
        normalize(embedding, n_embd);
    }
    qn_free(pooled);
    qn_free(b.states);
    qn_free(b.normed);
    return status;
}
