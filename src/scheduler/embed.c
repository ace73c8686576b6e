/* Embeddings of prompts: rows of a prompt are rows of the step like any other, whose hidden states the device also
 * writes. So a long text takes several steps, among which other requests are decoded. Also the progress of prompts. */
#include "scheduler/scheduler.h"

#include "base/memory.h"
#include "device/rows.h"

qn_status qn_request_check_pooling(const qn_scheduler *s, const qn_request_params *p)
{
    if (!p->pooling)
        return QN_OK;
    if (p->pooling == QN_POOLING_RANK)
        QN_TRY(qn_model_check_ranking(s->model));
    else
        QN_TRY(qn_pooling_check(p->pooling));
    if (s->generation)
        return qn_fail(QN_ERR_UNSUPPORTED, "pooling: only a scheduler computes embeddings of prompts, see qn_embed");
    if (!p->on_embedding)
        return qn_fail(QN_ERR_INVALID, "pooling: it is given without on_embedding");
    if (p->max_tokens)
        return qn_fail(QN_ERR_INVALID, "pooling: max_tokens is %lld, expected 0", (long long)p->max_tokens);
    return qn_device_check_features(s->model->device, QN_ROW_HIDDEN);
}

/* ---- Rows ---- */

void qn_scheduler_alloc_normed(qn_scheduler *s, qn_scheduled *step)
{
    qn_status status = QN_OK;
    for (uint32_t i = 0; i < s->n_running; i++) {
        qn_request *r = s->running[i];
        if (!r->pooled || r->is_over)
            continue;
        if (!step->normed && status == QN_OK)
            status = qn_alloc(&step->normed, (size_t)s->params.max_rows * s->model->hparams.n_embd,
                              sizeof *step->normed, "hidden states");
        if (status != QN_OK)
            qn_request_fail(r, status);
    }
}

static float *normed_of(const qn_scheduler *s, const qn_scheduled *step, const qn_piece *piece, size_t i)
{
    return step->normed + (piece->first_row + i) * s->model->hparams.n_embd;
}

void qn_request_ask_normed(const qn_scheduler *s, qn_scheduled *step, const qn_piece *piece)
{
    const qn_request *r = piece->request;
    for (size_t i = 0; r->pooled && i < piece->n; i++)
        if (qn_pooled_needs(r->pooled, step->rows[piece->first_row + i].position))
            step->rows[piece->first_row + i].normed = normed_of(s, step, piece, i);
}

/* ---- After a step ---- */

qn_status qn_request_take_normed(qn_scheduler *s, const qn_scheduled *step, const qn_piece *piece)
{
    qn_request *r = piece->request;
    for (size_t i = 0; r->pooled && i < piece->n; i++)
        qn_pooled_pass(r->pooled, step->rows[piece->first_row + i].position, normed_of(s, step, piece, i));
    if (!r->pooled || r->pooled->n < r->n_prompt)
        return QN_OK;
    const qn_status status = qn_request_push_embedding(s, r, r->pooled);
    qn_free(r->pooled);
    r->pooled = NULL;
    return status;
}

static qn_status push_progress(qn_scheduler *s, qn_request *r, size_t n_done)
{
    return qn_request_push_progress(s, r,
                                    &(qn_prompt_progress){ .n_prompt = r->n_prompt,
                                                           .n_reused = r->result.n_reused,
                                                           .n_done = n_done,
                                                           .seconds = qn_now() - r->admitted });
}

qn_status qn_request_take_progress(qn_scheduler *s, qn_request *r)
{
    const size_t length = r->memory->sequence->length, n = length < r->n_prompt ? length : r->n_prompt;
    if (!r->params.on_progress || n <= r->n_progress)
        return QN_OK;
    if (!r->n_progress)
        QN_TRY(push_progress(s, r, r->result.n_reused));
    r->n_progress = n;
    return push_progress(s, r, n);
}
