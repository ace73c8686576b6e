/* Pooling of hidden states, and what a model says of it. */
#include "engine/pooling.h"

#include "base/append.h"
#include "base/memory.h"
#include "device/rows.h"
#include "engine/internal.h"

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
    case QN_POOLING_LAST:
    case QN_POOLING_RANK: return p->n < p->n_tokens ? p->n_tokens - 1 : p->n_tokens;
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

/* GGUF's values of pooling_type are those of qn_pooling. That of rerankers makes no embeddings. */
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
