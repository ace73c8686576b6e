/* Steps of a draft model over many sequences. */
#include "engine/spec/draft_sequence.h"

#include "base/memory.h"
#include "device/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct qn_draft_runner {
    qn_device *device;
    const qn_kv_format *format;
    size_t n_vocab, n_ctx;
    /* Of the step being composed: at most one logit row for each row. */
    qn_row rows[QN_DRAFT_ROWS];
    uint32_t logit_rows[QN_DRAFT_ROWS];
    qn_sample_request requests[QN_DRAFT_ROWS];
    qn_logprobs logprobs[QN_DRAFT_ROWS];
    qn_draft_rows *samples[QN_DRAFT_ROWS]; /* whose logit rows these are */
    qn_draft_rows *pieces[QN_DRAFT_ROWS];
    size_t lengths[QN_DRAFT_ROWS]; /* rows of the pieces */
    size_t n_rows, n_logit_rows, n_pieces;
};

struct qn_draft_sequence {
    qn_draft_runner *runner;
    qn_memory *memory;
    qn_token *tokens; /* [length of the memory's sequence] */
    size_t cap_tokens;
    size_t n_same; /* first tokens that were compared with the text */
};

qn_status qn_draft_runner_create(qn_device *device, const qn_kv_format *format, size_t n_vocab, size_t n_ctx,
                                 qn_draft_runner **out)
{
    QN_TRY(qn_alloc(out, 1, sizeof **out, "draft model"));
    (*out)->device = device;
    (*out)->format = format;
    (*out)->n_vocab = n_vocab;
    (*out)->n_ctx = n_ctx;
    return QN_OK;
}

void qn_draft_runner_free(qn_draft_runner *runner)
{
    qn_free(runner);
}

/* ---- Sequences ---- */

qn_status qn_draft_sequence_create(qn_draft_runner *runner, qn_draft_sequence **out)
{
    const qn_memory_params params = { .n_ctx = runner->n_ctx, .n_batch = QN_DRAFT_ROWS, .format = runner->format };
    qn_draft_sequence *q;
    *out = NULL;
    QN_TRY(qn_alloc(&q, 1, sizeof *q, "sequence of the draft model"));
    q->runner = runner;
    const qn_status status = runner->device->vtable->memory_new(runner->device, &params, &q->memory);
    if (status != QN_OK) {
        qn_free(q);
        return status;
    }
    *out = q;
    return QN_OK;
}

void qn_draft_sequence_free(qn_draft_sequence *q)
{
    if (!q)
        return;
    q->memory->vtable->free(q->memory);
    free(q->tokens);
    qn_free(q);
}

qn_memory *qn_draft_sequence_memory(qn_draft_sequence *q)
{
    return q->memory;
}

qn_status qn_draft_sequence_take(qn_draft_sequence *q, const qn_token *tokens)
{
    const size_t length = q->memory->sequence->length;
    const qn_status status =
        qn_realloc_array(&q->tokens, &q->cap_tokens, length, sizeof *q->tokens, "tokens of a draft");
    if (status != QN_OK)
        qn_memory_truncate(q->memory, 0);
    else if (length)
        memcpy(q->tokens, tokens, length * sizeof *q->tokens);
    return status;
}

void qn_draft_sequence_restart(qn_draft_sequence *q)
{
    q->n_same = 0;
}

/* Whether the rows from `length` on can be dropped. */
static bool can_truncate(const qn_draft_sequence *q, size_t length)
{
    return length == q->memory->sequence->length || (length >= qn_sequence_shortest(q->memory->sequence) &&
                                                     qn_memory_rewind_length(q->memory, length) == length);
}

bool qn_draft_sequence_follow(qn_draft_sequence *q, const qn_token *tokens, size_t n, size_t *n_held)
{
    const size_t length = q->memory->sequence->length, most = length < n ? length : n - 1;
    size_t same = q->n_same < most ? q->n_same : most;
    *n_held = 0;
    while (same < most && q->tokens[same] == tokens[same])
        same++;
    same = can_truncate(q, same) ? same : 0;
    if (same < length)
        qn_memory_truncate(q->memory, same);
    q->n_same = *n_held = same;
    if (n > q->runner->n_ctx)
        return false;
    for (size_t i = same; i < n; i++)
        if (tokens[i] < 0 || (size_t)tokens[i] >= q->runner->n_vocab)
            return false;
    return true;
}

size_t qn_draft_sequence_most(const qn_draft_sequence *q, size_t n)
{
    const size_t most = qn_sequence_max_drafted(q->memory->sequence, n), end = q->memory->sequence->length + n,
                 left = q->runner->n_ctx > end ? q->runner->n_ctx - end : 0;
    return most < left ? most : left;
}

size_t qn_draft_sequence_bytes(const qn_draft_sequence *q)
{
    return sizeof *q + q->cap_tokens * sizeof *q->tokens +
           (size_t)q->memory->vtable->bytes(q->memory, q->memory->sequence->length);
}

/* ---- Steps ---- */

static void reset(qn_draft_runner *r)
{
    r->n_rows = r->n_logit_rows = r->n_pieces = 0;
}

/* Adds rows [begin, begin + n) of `piece` to the step. Without memory the piece fails. */
static void add_rows(qn_draft_runner *r, qn_draft_rows *piece, size_t begin, size_t n)
{
    qn_draft_sequence *q = piece->sequence;
    const uint32_t length = q->memory->sequence->length;
    if (qn_realloc_array(&q->tokens, &q->cap_tokens, length + n, sizeof *q->tokens, "tokens of a draft") != QN_OK ||
        q->memory->vtable->prepare(q->memory, n) != QN_OK) {
        piece->failed = true;
        return;
    }
    memcpy(q->tokens + length, piece->tokens + begin, n * sizeof *q->tokens);
    for (size_t i = 0; i < n; i++)
        r->rows[r->n_rows++] =
            (qn_row){ .token = piece->tokens[begin + i], .position = length + (uint32_t)i, .memory = q->memory };
    r->pieces[r->n_pieces] = piece;
    r->lengths[r->n_pieces++] = n;
    if (!piece->samples || begin + n < piece->n)
        return;
    r->logprobs[r->n_logit_rows].n = 0;
    r->requests[r->n_logit_rows] =
        (qn_sample_request){ .sampling = QN_SAMPLING_INIT, .logprobs = &r->logprobs[r->n_logit_rows] };
    r->requests[r->n_logit_rows].sampling.temperature = 0;
    r->samples[r->n_logit_rows] = piece;
    r->logit_rows[r->n_logit_rows++] = (uint32_t)(r->n_rows - 1);
}

/* Drops all rows of a step that failed. */
static void drop(qn_draft_runner *r)
{
    for (size_t i = 0; i < r->n_pieces; i++) {
        qn_memory *memory = r->pieces[i]->sequence->memory;
        qn_memory_on_append(memory, memory->sequence->length);
        qn_memory_truncate(memory, 0);
        r->pieces[i]->sequence->n_same = 0;
        r->pieces[i]->failed = true;
    }
    reset(r);
}

/* Runs the step, and takes its tokens. */
static qn_status run_step(qn_draft_runner *r, void (*on_step)(void *user, size_t n_rows), void *user)
{
    const qn_step step = { .rows = r->rows,
                           .n_rows = r->n_rows,
                           .logit_rows = r->logit_rows,
                           .n_logit_rows = r->n_logit_rows,
                           .requests = r->n_logit_rows ? r->requests : NULL };
    size_t longest = 0;
    for (size_t i = 0; i < r->n_rows; i++)
        longest = r->rows[i].position > longest ? r->rows[i].position : longest;
    if (!r->n_rows)
        return QN_OK;
    size_t positions = 4096;
    while (positions <= longest)
        positions *= 2;
    qn_status status =
        r->device->vtable->reserve(r->device, QN_DRAFT_ROWS, positions < r->n_ctx ? positions : r->n_ctx);
    if (status == QN_OK)
        status = r->device->vtable->run(r->device, &step);
    if (status != QN_OK) {
        drop(r);
        return status;
    }
    for (size_t i = 0; i < r->n_pieces; i++) {
        qn_memory *memory = r->pieces[i]->sequence->memory;
        qn_memory_on_append(memory, memory->sequence->length + r->lengths[i]);
    }
    for (size_t i = 0; i < r->n_logit_rows; i++) {
        r->samples[i]->token = r->requests[i].token;
        r->samples[i]->chance = r->requests[i].token >= 0 ? expf(r->logprobs[i].chosen) : 0;
    }
    if (on_step)
        on_step(user, r->n_rows);
    reset(r);
    return QN_OK;
}

qn_status qn_draft_runner_run(qn_draft_runner *r, qn_draft_rows *list, size_t n,
                              void (*on_step)(void *user, size_t n_rows), void *user)
{
    reset(r);
    for (size_t i = 0; i < n; i++) {
        list[i].failed = false;
        list[i].token = -1;
        list[i].chance = 0;
        for (size_t done = 0; done < list[i].n && !list[i].failed;) {
            const size_t left = QN_DRAFT_ROWS - r->n_rows, more = list[i].n - done, now = more < left ? more : left;
            add_rows(r, &list[i], done, now);
            done += now;
            if (r->n_rows == QN_DRAFT_ROWS || done < list[i].n)
                QN_TRY(run_step(r, on_step, user));
        }
    }
    return run_step(r, on_step, user);
}
