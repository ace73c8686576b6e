/* Sessions: creation, evaluation in batches, checkpoints and truncation. session_state.c copies, saves and restores
 * sessions. */
#include "engine/calls.h"

#include "base/append.h"
#include "base/memory.h"
#include "base/params.h"
#include "engine/rows.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BATCH = 4096, DEFAULT_CHECKPOINTS = 4, MAX_CHECKPOINTS = 64 };

/* Reserves workspace on the device for steps of this session up to `length` tokens. It doubles, up to the workspace of
 * the whole context. The caller holds model->lock. */
static qn_status reserve(qn_session *session, size_t length)
{
    qn_device *device = session->model->device;
    const size_t positions = qn_step_positions(length, session->n_ctx);
    return device->vtable->reserve(device, session->n_batch, positions);
}

/* Sets *n_ctx to its default for sessions of this cache format. */
static qn_status find_context(qn_model *model, const qn_kv_format *format, uint32_t *n_ctx)
{
    qn_memory_params params = { .n_ctx = 1, .n_batch = 1 };
    const qn_cache *cache;
    QN_TRY(qn_model_find_cache(model, format, &params, &cache));
    *n_ctx = qn_model_default_context(model, cache);
    return QN_OK;
}

static qn_status create(qn_session *session)
{
    qn_device *device = session->model->device;
    const qn_memory_params params = { .n_ctx = session->n_ctx, .n_batch = session->n_batch, .format = session->format };
    QN_TRY(qn_kept_memory_new(&session->model->kept, device, &params, &session->memory));
    session->is_recurrent = session->model->plan.recurrent.n_v_heads > 0;
    QN_TRY(qn_alloc(&session->checkpoints, session->max_checkpoints, sizeof *session->checkpoints, "session"));
    QN_TRY(qn_alloc(&session->tokens, session->n_ctx, sizeof *session->tokens, "session"));
    QN_TRY(qn_alloc(&session->rows, session->n_batch, sizeof *session->rows, "session"));
    QN_TRY(qn_alloc(&session->logit_rows, session->n_batch, sizeof *session->logit_rows, "session"));
    qn_model_lock(session->model);
    const qn_status status = reserve(session, 0);
    qn_model_unlock(session->model);
    return status;
}

qn_status qn_session_create(qn_model *model, const qn_session_params *params, qn_session **out)
{
    qn_session_params own = QN_SESSION_PARAMS_INIT;
    *out = NULL;
    if (params)
        QN_TRY(QN_PARAMS_READ(qn_session_params, params, &own));
    params = &own;
    QN_TRY(qn_model_enter(model, __func__));
    if (!model->device)
        return qn_fail(QN_ERR_INVALID, "%s: loaded with vocab_only, cannot be run", qn_gguf_path(model->file));
    const qn_kv_format *format;
    QN_TRY(qn_model_kv_format(model, params->kv, &format));
    if (params->n_ctx > QN_MAX_CTX)
        return qn_fail(QN_ERR_INVALID, "context: %u tokens, at most %d are allowed", (unsigned)params->n_ctx,
                       QN_MAX_CTX);
    if (params->n_batch > MAX_BATCH)
        return qn_fail(QN_ERR_INVALID, "batch: %u rows, at most %d are allowed", (unsigned)params->n_batch, MAX_BATCH);
    if (params->n_checkpoints > MAX_CHECKPOINTS)
        return qn_fail(QN_ERR_INVALID, "checkpoints: %u, at most %d are allowed", (unsigned)params->n_checkpoints,
                       MAX_CHECKPOINTS);
    qn_model_log_kv(model, params->kv, format, params->on_log, params->user);
    if (!own.n_ctx)
        QN_TRY(find_context(model, format, &own.n_ctx));
    qn_session *session;
    QN_TRY(qn_alloc(&session, 1, sizeof *session, "session"));
    session->model = model;
    session->on_log = params->on_log;
    session->log_user = params->user;
    session->format = format;
    session->n_ctx = params->n_ctx;
    session->n_batch = params->n_batch ? params->n_batch : (uint32_t)model->device->batch;
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
    if (!session || qn_model_check_process(session->model, __func__) || qn_session_take(session, __func__))
        return;
    for (uint32_t i = 0; session->checkpoints && i < session->max_checkpoints; i++)
        if (session->checkpoints[i].memory_checkpoint)
            qn_checkpoint_free(session->checkpoints[i].memory_checkpoint);
    qn_draft_sequence_free(session->draft);
    if (session->memory)
        session->memory->vtable->free(session->memory);
    qn_free(session->checkpoints);
    qn_free(session->tokens);
    free(session->own_rows);
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
    return session->memory->vtable->bytes(session->memory, length);
}

/* ---- Checkpoints ---- */

qn_status qn_session_add_checkpoint(qn_session *session, qn_checkpoint **out)
{
    const bool full = session->n_checkpoints == session->max_checkpoints;
    qn_checkpoint *memory = &session->checkpoints[full ? 0 : session->n_checkpoints];
    if (session->is_recurrent && !memory->memory_checkpoint)
        QN_TRY(qn_checkpoint_new(&memory->memory_checkpoint));
    const qn_checkpoint slot = *memory;
    if (full)
        memmove(session->checkpoints, session->checkpoints + 1, --session->n_checkpoints * sizeof slot);
    session->checkpoints[session->n_checkpoints] = slot;
    *out = &session->checkpoints[session->n_checkpoints++];
    return QN_OK;
}

static qn_status save_checkpoint(qn_session *session)
{
    qn_checkpoint *checkpoint = session->n_checkpoints ? &session->checkpoints[session->n_checkpoints - 1] : NULL;
    if (!session->length)
        return QN_OK;
    if (!checkpoint || checkpoint->length != session->length) {
        QN_TRY(qn_session_add_checkpoint(session, &checkpoint));
        checkpoint->length = session->length;
        const qn_status status =
            checkpoint->memory_checkpoint ? qn_checkpoint_save(checkpoint->memory_checkpoint, session->memory) : QN_OK;
        if (status != QN_OK) {
            session->n_checkpoints--;
            return status;
        }
    }
    checkpoint->pending = session->pending;
    return QN_OK;
}

qn_status qn_session_checkpoint(qn_session *session)
{
    QN_TRY(qn_session_enter(session, __func__));
    const qn_status status = save_checkpoint(session);
    qn_session_leave(session);
    return status;
}

/* Drops the newest checkpoint. Its slot keeps the device's allocations for reuse. */
static void drop_checkpoint(qn_session *session)
{
    qn_memory_checkpoint *memory = session->checkpoints[--session->n_checkpoints].memory_checkpoint;
    if (memory)
        qn_checkpoint_clear(memory);
}

/* Returns true if `held` tokens, which can be truncated to open_tokens lengths, can be truncated to `length`. */
static bool within_open_chunk(uint32_t held, size_t open_tokens, uint32_t length)
{
    return length <= held && held - length < open_tokens;
}

/* The checkpoint from which the state after `length` tokens can be restored; `current` if the session's own state
 * suffices; NULL if there is none. */
static const qn_checkpoint *find_checkpoint(const qn_session *session, uint32_t length, const qn_checkpoint *current)
{
    if (within_open_chunk(session->length, qn_memory_open_tokens(session->memory), length) &&
        qn_memory_rewind_length(session->memory, length) == length)
        return current;
    for (uint32_t i = session->n_checkpoints; i-- > 0;) {
        const qn_checkpoint *checkpoint = &session->checkpoints[i];
        if (within_open_chunk(checkpoint->length, qn_checkpoint_open_tokens(checkpoint->memory_checkpoint), length))
            return checkpoint;
    }
    return NULL;
}

uint32_t qn_session_reach(const qn_session *session, uint32_t length)
{
    if (length >= session->length)
        return session->length;
    const qn_checkpoint current = { 0 };
    if (!session->is_recurrent)
        return qn_session_find_embedding(session, (uint32_t)qn_memory_rewind_length(session->memory, length), length);
    if (find_checkpoint(session, length, &current))
        return length;
    uint32_t rewind_length = 0;
    for (uint32_t i = 0; i < session->n_checkpoints && session->checkpoints[i].length < length; i++)
        rewind_length = session->checkpoints[i].length;
    return rewind_length;
}

/* Appends "65 to 70, ", or nothing if it does not fit completely. */
static void append_lengths(qn_text_buffer *text, uint32_t held, size_t open_tokens)
{
    enum { RANGE = sizeof "4294967295 to 4294967295, " - 1 };
    if (text->length + RANGE < text->size)
        qn_append(text, "%u to %u, ", (unsigned)(held - (uint32_t)open_tokens + 1), (unsigned)held);
}

static qn_status rewind_error(const qn_session *session, uint32_t length)
{
    char lengths[256]; /* at least eight ranges, the newest first */
    qn_text_buffer text = QN_APPEND_TO(lengths);
    append_lengths(&text, session->length, qn_memory_open_tokens(session->memory));
    for (uint32_t i = session->n_checkpoints; i-- > 0;)
        append_lengths(&text, session->checkpoints[i].length,
                       qn_checkpoint_open_tokens(session->checkpoints[i].memory_checkpoint));
    return qn_fail(
        QN_ERR_UNSUPPORTED,
        "session: cannot rewind from %u to %u tokens: recurrent layers have folded that chunk into their state; "
        "possible are %sand 0",
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

/* Fills session->rows for rows [first, first + n), the session's next ones. They point to the caller's embeddings and
 * hidden states until the step has ended. */
static void fill_rows(qn_session *session, const qn_rows *rows, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const size_t at = first + i;
        qn_row row = { .token = rows->tokens ? rows->tokens[at] : QN_NO_TOKEN,
                       .position = session->length + (uint32_t)i,
                       .embedding = rows->embeddings ? rows->embeddings[at] : NULL,
                       .hidden = rows->hidden ? rows->hidden[at] : NULL,
                       .normed = rows->normed ? rows->normed[at] : NULL,
                       .memory = session->memory };
        if (row.embedding)
            row.token = QN_NO_TOKEN;
        if (session->n_own_rows) {
            qn_session_components(session, row.position, row.rope_offsets);
            for (size_t c = 0; c < QN_ROPE_COMPONENTS; c++)
                row.rope_offsets[c] -= row.position;
        }
        session->rows[i] = row;
    }
}

/* Fills session->logit_rows for the logit rows from *n_logits on that are below first + n, and adds their number to
 * *n_logits. Returns that number. */
static size_t fill_logit_rows(qn_session *session, const qn_rows *rows, size_t first, size_t n, size_t *n_logits)
{
    size_t count = 0;
    for (; *n_logits < rows->n_logit_rows; (*n_logits)++) {
        const size_t row = rows->logit_rows ? rows->logit_rows[*n_logits] : rows->n - rows->n_logit_rows + *n_logits;
        if (row >= first + n)
            break;
        session->logit_rows[count++] = (uint32_t)(row - first);
    }
    return count;
}

/* Evaluates the batch of rows [first, first + n), n <= n_batch, and appends them. *n_logits: the number of logit rows
 * of earlier batches; the batch's are added. Holds the model's lock during the step. */
static qn_status eval_batch(qn_session *session, const qn_rows *rows, size_t first, size_t n, size_t *n_logits)
{
    qn_step step = { .without_pairs = qn_drafting_head_rests(session->model->drafting),
                     .rows = session->rows,
                     .n_rows = n,
                     .logit_rows = session->logit_rows };
    step.logits = rows->logits ? rows->logits + *n_logits * session->model->hparams.n_vocab : NULL;
    step.n_logit_rows = fill_logit_rows(session, rows, first, n, n_logits);
    fill_rows(session, rows, first, n);
    QN_TRY(session->memory->vtable->prepare(session->memory, n));
    qn_model_lock(session->model);
    /* Reserve again for each batch: another session's reservation may have failed and released the workspace. */
    qn_status status = reserve(session, session->length + n);
    if (status == QN_OK)
        status = session->model->device->vtable->run(session->model->device, &step);
    if (status == QN_OK)
        status = qn_model_check(session->model);
    qn_model_unlock(session->model);
    if (status != QN_OK) {
        qn_memory_on_append(session->memory, session->length);
        return status;
    }
    for (size_t i = 0; i < n; i++)
        session->tokens[session->length + i] = session->rows[i].token;
    session->length += (uint32_t)n;
    qn_memory_on_append(session->memory, session->length);
    session->pending = QN_NO_TOKEN;
    return QN_OK;
}

static qn_status append_batch(qn_session *session, const qn_rows *rows, size_t first, size_t n, size_t *n_logits)
{
    qn_status status = qn_session_list_rows(session, rows, first, n);
    if (status == QN_OK)
        status = eval_batch(session, rows, first, n, n_logits);
    if (status != QN_OK)
        qn_session_unlist_rows(session, session->length);
    return status;
}

static qn_status append(qn_session *session, const qn_rows *rows)
{
    const size_t n = rows->n;
    size_t n_logits = 0;
    if (n > session->n_ctx - session->length)
        return qn_fail(QN_ERR_CONTEXT, "context: %zu tokens do not fit after %u, its capacity is %u", n,
                       (unsigned)session->length, (unsigned)session->n_ctx);
    QN_TRY(qn_rows_check(session, rows));
    for (size_t done = 0; done < n;) {
        if (atomic_load(&session->cancelled))
            return qn_fail(QN_ERR_CANCELLED, "evaluation was cancelled after %zu of %zu tokens", done, n);
        const size_t batch = qn_device_piece(session->model->device, session->length,
                                             n - done < session->n_batch ? n - done : session->n_batch);
        const bool last = done + batch == n;
        QN_TRY(append_batch(session, rows, done, batch, &n_logits));
        done += batch;
        if (session->on_progress && !last && !session->on_progress(session->progress_user, done, n))
            return qn_fail(QN_ERR_CANCELLED, "evaluation was cancelled after %zu of %zu tokens", done, n);
    }
    return QN_OK;
}

qn_status qn_session_append(qn_session *session, const qn_token *tokens, size_t n)
{
    return append(session, &(qn_rows){ .n = n, .tokens = tokens });
}

static qn_status eval_rows(qn_session *session, const qn_rows *rows, const char *function)
{
    QN_TRY(qn_session_enter(session, function));
    const qn_status status = append(session, rows);
    qn_session_leave(session);
    atomic_store(&session->cancelled, false); /* a request that came too late does not apply to the next call */
    return status;
}

qn_status qn_session_eval(qn_session *session, const qn_token *tokens, size_t n, qn_logits which, float *logits)
{
    qn_rows rows = { .n = n, .tokens = tokens, .logits = logits };
    if (which == QN_LOGITS_ALL)
        rows.n_logit_rows = n;
    else if (which == QN_LOGITS_LAST)
        rows.n_logit_rows = n ? 1 : 0;
    return eval_rows(session, &rows, __func__);
}

static qn_status read_rows(const qn_rows *rows, qn_rows *out)
{
    return rows ? QN_PARAMS_READ(qn_rows, rows, out) : qn_fail(QN_ERR_INVALID, "rows: NULL, expected rows");
}

qn_status qn_session_eval_rows(qn_session *session, const qn_rows *rows)
{
    qn_rows own = QN_ROWS_INIT;
    QN_TRY(read_rows(rows, &own));
    return eval_rows(session, &own, __func__);
}

/* ---- Truncation ---- */

/* Rewinds the recurrent state to `length` tokens. A checkpoint also restores its f16 page of the cache. If that fails,
 * the contents are lost, and the session is empty. */
static qn_status rewind_recurrent(qn_session *session, uint32_t length)
{
    const qn_checkpoint current = { 0 };
    const qn_checkpoint *memory = find_checkpoint(session, length, &current);
    if (!length) {
        qn_memory_truncate(session->memory, 0);
        return QN_OK;
    }
    if (!memory)
        return rewind_error(session, length);
    if (memory == &current)
        return QN_OK;
    const qn_status status = qn_checkpoint_restore(memory->memory_checkpoint, session->memory);
    if (status != QN_OK) {
        qn_session_unlist_rows(session, 0);
        session->length = 0;
        session->pending = QN_NO_TOKEN;
    }
    return status;
}

/* Truncates the KV cache to `length` tokens. With a cache of codes the last tokens may have to be evaluated again, if
 * their f16 page no longer exists. */
static qn_status rewind_cache(qn_session *session, uint32_t length)
{
    const uint32_t rewind_length = (uint32_t)qn_memory_rewind_length(session->memory, length);
    qn_memory_truncate(session->memory, rewind_length);
    session->length = rewind_length;
    while (session->length < length) {
        size_t n_logits = 0;
        const uint32_t left = length - session->length;
        const size_t n =
            qn_device_piece(session->model->device, session->length, left < session->n_batch ? left : session->n_batch);
        QN_TRY(eval_batch(session, &(qn_rows){ .n = n, .tokens = session->tokens + session->length }, 0, n, &n_logits));
    }
    return QN_OK;
}

/* Checks that truncation evaluates no rows with embeddings again: embeddings are not kept. */
static qn_status check_embeddings(const qn_session *session, uint32_t length)
{
    const uint32_t reach = qn_session_reach(session, length);
    if (reach == length)
        return QN_OK;
    return qn_fail(QN_ERR_UNSUPPORTED,
                   "session: cannot rewind from %u to %u tokens: row %u is an embedding, which would have to be "
                   "evaluated again; possible is %u",
                   (unsigned)session->length, (unsigned)length, (unsigned)reach, (unsigned)reach);
}

static qn_status drop_tokens(qn_session *session, uint32_t length)
{
    if (length > session->length)
        return qn_fail(QN_ERR_INVALID, "session: cannot truncate %u tokens to %u", (unsigned)session->length,
                       (unsigned)length);
    if (length == session->length)
        return QN_OK;
    if (session->is_recurrent)
        QN_TRY(rewind_recurrent(session, length));
    else
        QN_TRY(check_embeddings(session, length));
    session->pending = QN_NO_TOKEN;
    const qn_status status = rewind_cache(session, length);
    qn_session_unlist_rows(session, session->length);
    while (session->n_checkpoints && session->checkpoints[session->n_checkpoints - 1].length > session->length)
        drop_checkpoint(session);
    QN_TRY(status);
    if (session->n_checkpoints && session->checkpoints[session->n_checkpoints - 1].length == length)
        session->pending = session->checkpoints[session->n_checkpoints - 1].pending;
    return QN_OK;
}

qn_status qn_session_truncate(qn_session *session, uint32_t length)
{
    QN_TRY(qn_session_enter(session, __func__));
    const qn_status status = drop_tokens(session, length);
    qn_session_leave(session);
    return status;
}

static qn_status truncate_to(qn_session *session, const qn_rows *rows, uint32_t *shared, const char *function)
{
    if (!rows->n)
        return qn_fail(QN_ERR_INVALID, "prompt: it has no tokens, at least 1 is needed");
    QN_TRY(qn_session_enter(session, function));
    const size_t most = session->length < rows->n ? session->length : rows->n - 1;
    const size_t same = qn_session_shared_rows(session, rows, most);
    const qn_status status = drop_tokens(session, qn_session_reach(session, (uint32_t)same));
    if (status == QN_OK)
        *shared = session->length;
    qn_session_leave(session);
    return status;
}

qn_status qn_session_truncate_to(qn_session *session, const qn_token *tokens, size_t n, uint32_t *shared)
{
    return truncate_to(session, &(qn_rows){ .n = n, .tokens = tokens }, shared, __func__);
}

qn_status qn_session_truncate_to_rows(qn_session *session, const qn_rows *rows, uint32_t *shared)
{
    qn_rows own = QN_ROWS_INIT;
    QN_TRY(read_rows(rows, &own));
    QN_TRY(qn_rows_check_prompt(session, &own));
    return truncate_to(session, &own, shared, __func__);
}
