/* Sessions: what one conversation holds, appending tokens to it in batches, and going back. Copies of whole sessions, in memory
 * and in files, are session_state.c's business. */
#include "engine/internal.h"

#include "base/memory.h"

#include <stdio.h>
#include <string.h>

enum { DEFAULT_CTX = 4096, DEFAULT_BATCH = 128, MAX_BATCH = 4096, DEFAULT_CHECKPOINTS = 4, MAX_CHECKPOINTS = 64 };

/* Room in the model's plan for this session's steps; the lock is held. */
static qn_status reserve(qn_session *session)
{
    return qn_plan_reserve(&session->model->plan, &session->model->kernels.matmul, session->n_batch, session->n_ctx);
}

static qn_status create(qn_session *session)
{
    const qn_hparams *h = &session->model->hparams;
    const qn_plan *plan = &session->model->plan;
    qn_kv_codecs codecs;
    QN_TRY(qn_model_kv_codecs(session->model, session->format, &codecs));
    const qn_kv_shape shape = { plan->is_recurrent, h->n_layers, h->n_kv_heads, h->head_dim };
    QN_TRY(qn_kv_create(&session->kv, &shape, session->n_ctx, session->n_batch, codecs));
    if (plan->recurrent.n_v_heads)
        QN_TRY(qn_recurrent_create(&session->recurrent, &plan->recurrent, plan->is_recurrent, h->n_layers));
    QN_TRY(qn_alloc(&session->checkpoints, session->max_checkpoints, sizeof *session->checkpoints, "session"));
    QN_TRY(qn_alloc(&session->tokens, session->n_ctx, sizeof *session->tokens, "session"));
    QN_TRY(qn_alloc(&session->rows, session->n_batch, sizeof *session->rows, "session"));
    QN_TRY(qn_alloc(&session->logit_rows, session->n_batch, sizeof *session->logit_rows, "session"));
    pthread_mutex_lock(&session->model->lock);
    const qn_status status = reserve(session);
    pthread_mutex_unlock(&session->model->lock);
    return status;
}

static void log_fallback(const qn_model *model, const qn_session_params *params, const qn_kv_format *format)
{
    char line[128];
    if (!params->on_log || !params->kv || strcmp(params->kv, format->name) == 0)
        return;
    snprintf(line, sizeof line, "cache: heads of %u values cannot be kept as %s; they are kept as %s",
             (unsigned)model->hparams.head_dim, params->kv, format->name);
    params->on_log(params->user, line);
}

qn_status qn_session_create(qn_model *model, const qn_session_params *params, qn_session **out)
{
    const qn_session_params defaults = { 0 };
    params = params ? params : &defaults;
    *out = NULL;
    if (!model->executor)
        return qn_fail(QN_ERR_INVALID, "%s: loaded as a vocabulary alone, there is nothing to run", qn_gguf_path(model->file));
    const qn_kv_format *format;
    QN_TRY(qn_model_kv_format(model, params->kv, &format));
    if (params->n_ctx > QN_MAX_CTX)
        return qn_fail(QN_ERR_INVALID, "context: %u tokens, at most %d are allowed", (unsigned)params->n_ctx, QN_MAX_CTX);
    if (params->n_batch > MAX_BATCH)
        return qn_fail(QN_ERR_INVALID, "batch: %u rows, at most %d are allowed", (unsigned)params->n_batch, MAX_BATCH);
    if (params->n_checkpoints > MAX_CHECKPOINTS)
        return qn_fail(QN_ERR_INVALID, "checkpoints: %u, at most %d are allowed", (unsigned)params->n_checkpoints,
                       MAX_CHECKPOINTS);
    log_fallback(model, params, format);
    const uint32_t n_ctx_train = model->hparams.n_ctx_train;
    qn_session *session;
    QN_TRY(qn_alloc(&session, 1, sizeof *session, "session"));
    session->model = model;
    session->format = format;
    session->n_ctx = params->n_ctx ? params->n_ctx : n_ctx_train < DEFAULT_CTX ? n_ctx_train : DEFAULT_CTX;
    session->n_batch = params->n_batch ? params->n_batch : DEFAULT_BATCH;
    session->n_batch = session->n_batch < session->n_ctx ? session->n_batch : session->n_ctx;
    session->max_checkpoints = params->n_checkpoints ? params->n_checkpoints : DEFAULT_CHECKPOINTS;
    session->pending = QN_NO_TOKEN;
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
    qn_recurrent_free(&session->recurrent);
    for (uint32_t i = 0; session->checkpoints && i < session->max_checkpoints; i++) {
        qn_recurrent_free(&session->checkpoints[i].recurrent);
        qn_kv_open_free(&session->checkpoints[i].open);
    }
    qn_free(session->checkpoints);
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

const qn_token *qn_session_tokens(const qn_session *session)
{
    return session->tokens;
}

bool qn_session_pending(const qn_session *session, qn_token *token)
{
    if (session->pending == QN_NO_TOKEN)
        return false;
    *token = session->pending;
    return true;
}

const char *qn_session_kv(const qn_session *session)
{
    return session->format->name;
}

uint64_t qn_session_cache_bytes(const qn_session *session, uint32_t length)
{
    return qn_kv_bytes(&session->kv, length) + session->recurrent.total_bytes;
}

/* ---- Going back ---- */

qn_status qn_session_add_checkpoint(qn_session *session, qn_checkpoint **out)
{
    const bool full = session->n_checkpoints == session->max_checkpoints;
    qn_checkpoint *memory = &session->checkpoints[full ? 0 : session->n_checkpoints];
    if (session->recurrent.layers && !memory->recurrent.layers)
        QN_TRY(qn_recurrent_create(&memory->recurrent, &session->recurrent.shape, session->model->plan.is_recurrent,
                                   session->recurrent.n_layers));
    if (session->recurrent.layers && !memory->open.halves)
        QN_TRY(qn_kv_open_new(&memory->open, &session->kv));
    const qn_checkpoint slot = *memory;
    if (full)
        memmove(session->checkpoints, session->checkpoints + 1, --session->n_checkpoints * sizeof slot);
    session->checkpoints[session->n_checkpoints] = slot;
    *out = &session->checkpoints[session->n_checkpoints++];
    return QN_OK;
}

qn_status qn_session_checkpoint(qn_session *session)
{
    qn_checkpoint *checkpoint = session->n_checkpoints ? &session->checkpoints[session->n_checkpoints - 1] : NULL;
    if (!session->length)
        return QN_OK;
    if (!checkpoint || checkpoint->length != session->length) {
        QN_TRY(qn_session_add_checkpoint(session, &checkpoint));
        checkpoint->length = session->length;
        qn_recurrent_copy(&checkpoint->recurrent, &session->recurrent);
        qn_kv_open_keep(&checkpoint->open, &session->kv, session->length);
    }
    checkpoint->pending = session->pending;
    return QN_OK;
}

/* Whether recurrent memory of `held` tokens can be made that of the first `length` by forgetting rows of its open chunk. */
static bool covers(uint32_t held, uint32_t length)
{
    return length <= held && held - length < qn_recurrent_open(held);
}

/* The checkpoint from which what the first `length` tokens leave can be had: `present` where the session itself will do, or
 * NULL. */
static const qn_checkpoint *find_memory(const qn_session *session, uint32_t length, const qn_checkpoint *present)
{
    if (covers(session->length, length) && qn_kv_reach(&session->kv, length) == length)
        return present;
    for (uint32_t i = session->n_checkpoints; i-- > 0;) {
        const qn_checkpoint *checkpoint = &session->checkpoints[i];
        if (covers(checkpoint->length, length) && qn_kv_open_reach(&checkpoint->open, length))
            return checkpoint;
    }
    return NULL;
}

uint32_t qn_session_reach(const qn_session *session, uint32_t length)
{
    if (length >= session->length)
        return session->length;
    const qn_checkpoint present = { 0 };
    if (!session->recurrent.layers || find_memory(session, length, &present))
        return length;
    uint32_t reach = 0;
    for (uint32_t i = 0; i < session->n_checkpoints && session->checkpoints[i].length < length; i++)
        reach = session->checkpoints[i].length;
    return reach;
}

/* "65 to 70, " */
static size_t print_lengths(char *text, size_t size, uint32_t held)
{
    const unsigned first = held - (uint32_t)qn_recurrent_open(held) + 1;
    const int n = snprintf(text, size, "%u to %u, ", first, (unsigned)held);
    return n > 0 && (size_t)n < size ? (size_t)n : 0;
}

static qn_status cannot_go_back(const qn_session *session, uint32_t length)
{
    char lengths[256]; /* room for at least eight; the newest are named first */
    size_t used = print_lengths(lengths, sizeof lengths, session->length);
    for (uint32_t i = session->n_checkpoints; i-- > 0;)
        used += print_lengths(lengths + used, sizeof lengths - used, session->checkpoints[i].length);
    lengths[used] = '\0';
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "session: of %u tokens it cannot go back to %u: recurrent layers have closed that chunk, which cannot be "
                   "undone; possible are %sand 0",
                   (unsigned)session->length, (unsigned)length, lengths);
}

/* ---- Appending ---- */

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
        session->rows[i] = (qn_row){ .token = tokens[i],
                                     .position = session->length + (uint32_t)i,
                                     .cache = &session->kv.view,
                                     .recurrent = session->recurrent.layers };
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
    memmove(session->tokens + session->length, tokens, n * sizeof *tokens); /* which they may be */
    session->length += (uint32_t)n;
    qn_kv_appended(&session->kv, session->length);
    session->pending = QN_NO_TOKEN;
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

/* ---- Going back: truncation, which may have to evaluate again ---- */

/* Recurrent layers as they were at that length, and with them the cache. */
static qn_status go_back_recurrent(qn_session *session, uint32_t length)
{
    const qn_checkpoint present = { 0 };
    const qn_checkpoint *memory = find_memory(session, length, &present);
    if (!length) {
        qn_recurrent_reset(&session->recurrent);
        return QN_OK;
    }
    if (!memory)
        return cannot_go_back(session, length);
    if (memory != &present) {
        qn_recurrent_copy(&session->recurrent, &memory->recurrent);
        qn_kv_open_take(&memory->open, &session->kv, memory->length);
    }
    return QN_OK;
}

/* The cache as that of the first `length` tokens. Of codes, a few at the end may have to be evaluated once more. */
static qn_status go_back(qn_session *session, uint32_t length)
{
    const uint32_t reach = (uint32_t)qn_kv_reach(&session->kv, length);
    qn_kv_cut(&session->kv, reach);
    session->length = reach;
    while (session->length < length) {
        const uint32_t left = length - session->length;
        QN_TRY(eval_batch(session, session->tokens + session->length, left < session->n_batch ? left : session->n_batch, left,
                          NULL));
    }
    return QN_OK;
}

qn_status qn_session_truncate(qn_session *session, uint32_t length)
{
    if (length > session->length)
        return qn_fail(QN_ERR_INVALID, "session: it holds %u tokens, %u cannot be kept", (unsigned)session->length,
                       (unsigned)length);
    if (length == session->length)
        return QN_OK;
    if (session->recurrent.layers)
        QN_TRY(go_back_recurrent(session, length));
    session->pending = QN_NO_TOKEN;
    while (session->n_checkpoints && session->checkpoints[session->n_checkpoints - 1].length > length)
        session->n_checkpoints--;
    QN_TRY(go_back(session, length));
    if (session->n_checkpoints && session->checkpoints[session->n_checkpoints - 1].length == length)
        session->pending = session->checkpoints[session->n_checkpoints - 1].pending;
    return QN_OK;
}
