/* Sessions: what one conversation holds, and appending tokens to it in batches. */
#include "engine/internal.h"

#include "base/memory.h"

#include <string.h>

enum { DEFAULT_CTX = 4096, DEFAULT_BATCH = 256, MAX_BATCH = 4096, MAX_CTX = 1 << 30 };

/* Room in the model's plan for this session's steps; the lock is held. */
static qn_status reserve(qn_session *session)
{
    return qn_plan_reserve(&session->model->plan, &session->model->kernels.matmul, session->n_batch, session->n_ctx);
}

static qn_status create(qn_session *session)
{
    const qn_hparams *h = &session->model->hparams;
    QN_TRY(qn_kv_create(&session->kv, h->n_layers, h->n_kv_heads, h->head_dim, session->n_ctx));
    QN_TRY(qn_alloc(&session->tokens, session->n_ctx, sizeof *session->tokens, "session"));
    QN_TRY(qn_alloc(&session->rows, session->n_batch, sizeof *session->rows, "session"));
    QN_TRY(qn_alloc(&session->logit_rows, session->n_batch, sizeof *session->logit_rows, "session"));
    pthread_mutex_lock(&session->model->lock);
    const qn_status status = reserve(session);
    pthread_mutex_unlock(&session->model->lock);
    return status;
}

qn_status qn_session_create(qn_model *model, const qn_session_params *params, qn_session **out)
{
    const qn_session_params defaults = { 0 };
    params = params ? params : &defaults;
    *out = NULL;
    if (!model->executor)
        return qn_fail(QN_ERR_INVALID, "%s: loaded as a vocabulary alone, there is nothing to run", qn_gguf_path(model->file));
    if (params->kv && strcmp(params->kv, "f16"))
        return qn_fail(QN_ERR_UNSUPPORTED, "cache format '%s' is not supported (f16)", params->kv);
    if (params->n_ctx > MAX_CTX)
        return qn_fail(QN_ERR_INVALID, "context: %u tokens, at most %d are allowed", (unsigned)params->n_ctx, MAX_CTX);
    if (params->n_batch > MAX_BATCH)
        return qn_fail(QN_ERR_INVALID, "batch: %u rows, at most %d are allowed", (unsigned)params->n_batch, MAX_BATCH);
    const uint32_t n_ctx_train = model->hparams.n_ctx_train;
    qn_session *session;
    QN_TRY(qn_alloc(&session, 1, sizeof *session, "session"));
    session->model = model;
    session->n_ctx = params->n_ctx ? params->n_ctx : n_ctx_train < DEFAULT_CTX ? n_ctx_train : DEFAULT_CTX;
    session->n_batch = params->n_batch ? params->n_batch : DEFAULT_BATCH;
    session->n_batch = session->n_batch < session->n_ctx ? session->n_batch : session->n_ctx;
    atomic_init(&session->cancelled, false);
    const qn_status status = create(session);
    if (status != QN_OK) {
        qn_session_free(session);
        return status;
    }
    *out = session;
    return QN_OK;
}

void qn_session_free(qn_session *session)
{
    if (!session)
        return;
    qn_kv_free(&session->kv);
    qn_free(session->tokens);
    qn_free(session->rows);
    qn_free(session->logit_rows);
    qn_free(session);
}

uint32_t qn_session_length(const qn_session *session)
{
    return session->length;
}

uint32_t qn_session_capacity(const qn_session *session)
{
    return session->n_ctx;
}

qn_status qn_session_truncate(qn_session *session, uint32_t length)
{
    if (length > session->length)
        return qn_fail(QN_ERR_INVALID, "session: it holds %u tokens, %u cannot be kept", (unsigned)session->length,
                       (unsigned)length);
    session->length = length;
    return QN_OK;
}

uint64_t qn_session_cache_bytes(const qn_session *session, uint32_t length)
{
    return session->kv.position_bytes * length;
}

void qn_session_on_progress(qn_session *session, qn_progress_fn on_progress, void *user)
{
    session->on_progress = on_progress;
    session->progress_user = user;
}

void qn_session_cancel(qn_session *session)
{
    atomic_store(&session->cancelled, true);
}

/* One batch of n <= n_batch tokens. Rows from `first_logit` on have their logits written, [n - first_logit, n_vocab]. */
static qn_status eval_batch(qn_session *session, const qn_token *tokens, size_t n, size_t first_logit, float *logits)
{
    qn_step step = { .rows = session->rows, .n_rows = n, .logit_rows = session->logit_rows, .logits = logits };
    for (size_t i = 0; i < n; i++)
        session->rows[i] =
            (qn_row){ .token = tokens[i], .position = session->length + (uint32_t)i, .cache = &session->kv.view };
    for (size_t i = first_logit; i < n; i++)
        session->logit_rows[step.n_logit_rows++] = (uint32_t)i;
    pthread_mutex_lock(&session->model->lock);
    /* Another session may have failed to reserve more, and left nothing. */
    const qn_status status = reserve(session);
    if (status == QN_OK)
        qn_executor_run(session->model->executor, &step);
    pthread_mutex_unlock(&session->model->lock);
    if (status != QN_OK)
        return status;
    memcpy(session->tokens + session->length, tokens, n * sizeof *tokens);
    session->length += (uint32_t)n;
    return QN_OK;
}

qn_status qn_session_append(qn_session *session, const qn_token *tokens, size_t n, qn_logits which, float *logits)
{
    const size_t n_vocab = session->model->hparams.n_vocab;
    if (n > session->n_ctx - session->length)
        return qn_fail(QN_ERR_CONTEXT, "context: %zu tokens do not fit after %u, it holds %u", n, (unsigned)session->length,
                       (unsigned)session->n_ctx);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (size_t)tokens[i] >= n_vocab)
            return qn_fail(QN_ERR_INVALID, "token %zu: id %d is outside the vocabulary, expected 0 to %zu", i, (int)tokens[i],
                           n_vocab - 1);
    if (which != QN_LOGITS_NONE && !logits && n)
        return qn_fail(QN_ERR_INVALID, "logits: asked for without a place to put them");
    for (size_t done = 0; done < n;) {
        if (atomic_load(&session->cancelled))
            return qn_fail(QN_ERR_CANCELLED, "evaluation was cancelled after %zu of %zu tokens", done, n);
        const size_t batch = n - done < session->n_batch ? n - done : session->n_batch;
        const bool last = done + batch == n;
        const size_t first_logit = which == QN_LOGITS_ALL ? 0 : which == QN_LOGITS_LAST && last ? batch - 1 : batch;
        QN_TRY(
            eval_batch(session, tokens + done, batch, first_logit, which == QN_LOGITS_ALL ? logits + done * n_vocab : logits));
        done += batch;
        if (session->on_progress && !last && !session->on_progress(session->progress_user, done, n))
            return qn_fail(QN_ERR_CANCELLED, "evaluation was stopped after %zu of %zu tokens", done, n);
    }
    return QN_OK;
}

qn_status qn_session_eval(qn_session *session, const qn_token *tokens, size_t n, qn_logits which, float *logits)
{
    const qn_status status = qn_session_append(session, tokens, n, which, logits);
    atomic_store(&session->cancelled, false); /* obeyed, or too late for this evaluation and not meant for the next */
    return status;
}
