/* Log probabilities of prompts: a row whose next token is part of the prompt is sampled under a mask that allows this
 * token alone. Log probabilities are those of the model, before masks. A step has at most QN_STEP_SCORED such rows, so
 * a long prompt takes several steps. */
#include "scheduler/scheduler.h"

#include "base/memory.h"

#include <string.h>

bool qn_request_is_scored(const qn_request *r)
{
    return r->params.on_prompt_token && r->params.n_prompt_logprobs >= 0 && r->n_scored < r->n_prompt;
}

size_t qn_request_n_reusable(const qn_request *r)
{
    const size_t most = qn_request_is_scored(r) ? r->n_scored : r->n_tokens;
    const size_t first = r->pooled ? qn_pooled_first(r->pooled) : most;
    return first < most ? first + 1 : most;
}

/* The next row to be scored. Rows before it are evaluated again, after the request was set aside. */
static size_t first_row(const qn_request *r)
{
    const size_t length = r->memory->sequence->length, next = r->n_scored ? r->n_scored - 1 : 0;
    return length > next ? length : next;
}

static size_t rows_to_score(const qn_request *r)
{
    const size_t first = first_row(r), last = r->n_prompt - 1; /* nothing of the prompt follows the last row */
    return qn_request_is_scored(r) && !r->is_over && first < last ? last - first : 0;
}

/* ---- Composition ---- */

static qn_status alloc_scores(const qn_scheduler *s, qn_scheduled *step)
{
    const size_t n_words = qn_sample_mask_words(s->model->hparams.n_vocab);
    if (!step->score_masks)
        QN_TRY(qn_alloc(&step->score_masks, QN_STEP_SCORED * n_words, sizeof *step->score_masks, "masks of a prompt"));
    return step->scores
               ? QN_OK
               : qn_alloc(&step->scores, QN_STEP_SCORED, sizeof *step->scores, "log probabilities of a prompt");
}

/* The next request that gets rows; NULL: none. The caller holds the lock. */
static qn_request *next_to_score(const qn_scheduler *s)
{
    qn_request *next = NULL;
    for (uint32_t i = 0; i < s->n_running; i++) {
        qn_request *r = s->running[i];
        if (!r->score_share && rows_to_score(r) && (!next || r->client->rows < next->client->rows))
            next = r;
    }
    return next;
}

static void fail_scored(const qn_scheduler *s, qn_status status)
{
    for (uint32_t i = 0; i < s->n_running; i++)
        if (rows_to_score(s->running[i]))
            qn_request_fail(s->running[i], status);
}

void qn_scheduler_share_scores(qn_scheduler *s, qn_scheduled *step)
{
    size_t left = QN_STEP_SCORED;
    for (uint32_t i = 0; i < s->n_running; i++)
        s->running[i]->score_share = 0;
    pthread_mutex_lock(&s->lock);
    for (qn_request *r; left && (r = next_to_score(s)) != NULL; left -= r->score_share)
        r->score_share = rows_to_score(r) < left ? rows_to_score(r) : left;
    pthread_mutex_unlock(&s->lock);
    const qn_status status = left < QN_STEP_SCORED ? alloc_scores(s, step) : QN_OK;
    if (status != QN_OK)
        fail_scored(s, status);
}

size_t qn_request_most_rows(const qn_request *r)
{
    if (rows_to_score(r) <= r->score_share)
        return SIZE_MAX;
    return first_row(r) - r->memory->sequence->length + r->score_share;
}

/* ---- Rows ---- */

static qn_sample_request score_of(qn_scheduled *step, size_t n_vocab, qn_token token, int n_logprobs)
{
    const size_t n_words = qn_sample_mask_words(n_vocab);
    uint32_t *mask = step->score_masks + step->n_scored * n_words;
    qn_logprobs *logprobs = &step->scores[step->n_scored++];
    qn_sample_request request = { .sampling = QN_SAMPLING_INIT, .allowed = mask, .logprobs = logprobs };
    memset(mask, 0, n_words * sizeof *mask);
    mask[token / 32] = UINT32_C(1) << token % 32;
    logprobs->n = (uint32_t)n_logprobs;
    request.sampling.temperature = 0;
    return request;
}

void qn_scheduler_fill_scores(qn_scheduled *to, qn_piece *piece, size_t first)
{
    const qn_request *r = piece->request;
    const size_t begin = r->memory->sequence->length, from = first_row(r), end = begin + piece->n, n = rows_to_score(r);
    piece->n_scored = end > from ? end - from < n ? end - from : n : 0;
    for (size_t i = 0; i < piece->n_scored; i++) {
        const size_t at = to->step.n_logit_rows++;
        to->requests[at] = score_of(to, r->n_vocab, r->tokens[from + i + 1], r->params.n_prompt_logprobs);
        to->logit_rows[at] = (uint32_t)(first + from - begin + i);
    }
}

/* ---- After a step ---- */

qn_status qn_request_take_scores(qn_scheduler *s, qn_request *r, const qn_sample_request *sampled, size_t n)
{
    if (!qn_request_is_scored(r))
        return QN_OK;
    if (!r->n_scored)
        QN_TRY(qn_request_push_prompt(s, r, r->n_scored++, NULL));
    for (size_t i = 0; i < n; i++) {
        QN_TRY(qn_sample_status(sampled[i].best));
        QN_TRY(qn_request_push_prompt(s, r, r->n_scored++, sampled[i].logprobs));
    }
    return QN_OK;
}
