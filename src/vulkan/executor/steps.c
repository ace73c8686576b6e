/* A batch is a run of commands: all operations, and the logits of its first logit rows. Logits of more rows follow in
 * passes. A decode step of few rows has all in commands that were recorded once for its bucket. */
#include "vulkan/executor/steps.h"

#include "device/rows.h"
#include "gpu/batch.h"
#include "gpu/embeddings.h"
#include "gpu/hidden.h"
#include "gpu/host_sampling.h"
#include "kernels/rope/rope.h"
#include "vulkan/executor/recurrent.h"

#include <string.h>

struct batch {
    qn_vk_model *model;
    qn_gpu_batch part;
    bool is_decode;
    qn_vk_recording recording;
    size_t n_pieces;
};

/* ---- Inputs ---- */

static const uint32_t *words_at(const qn_vk_workspace *w, size_t offset)
{
    return (const uint32_t *)(const void *)(w->inputs.host + offset);
}

static float *floats_at(const qn_vk_workspace *w, size_t offset)
{
    return (float *)(void *)(w->inputs.host + offset);
}

/* Whether the rows of a piece share the keys that they read: fewer have no more than a few pages to read again. */
static bool has_many(const qn_gpu_piece *piece)
{
    enum { MANY_ROWS = 8 };
    return piece->n >= MANY_ROWS;
}

static void fill_inputs(const struct batch *b)
{
    const qn_vk_model *model = b->model;
    const qn_plan *plan = model->common.plan;
    const qn_vk_workspace *w = &model->workspace;
    const qn_gpu_inputs *in = &b->recording.inputs;
    const size_t half = plan->heads.n_rot / 2;
    qn_gpu_fill_inputs(in, model->pieces, b->n_pieces, w->inputs.host);
    qn_gpu_embed_rows(plan, &model->common.hadamard, model->common.team, (const int32_t *)words_at(w, in->tokens),
                      b->recording.n, floats_at(w, w->embeddings_at));
    qn_vk_fill_sequences(model->pieces, b->n_pieces, (qn_vk_sequence *)(void *)(w->inputs.host + w->sequences_at));
    for (size_t i = 0; i < b->recording.n; i++) {
        float *cosines = floats_at(w, w->angles_at) + 2 * half * i;
        qn_rope_angles(words_at(w, in->positions)[i], plan->frequencies, plan->attn_factor, plan->heads.n_rot, cosines,
                       cosines + half);
    }
}

/* Orders the rows, and fills the inputs. */
static void prepare(struct batch *b, const qn_gpu_batching *batching)
{
    qn_vk_model *model = b->model;
    const qn_gpu_batch *part = &b->part;
    b->is_decode = part->n_logits && qn_gpu_is_decode(batching, part);
    const size_t n_rows = b->is_decode ? qn_gpu_padded_rows(batching, part->n_rows) : part->n_rows;
    const qn_gpu_inputs inputs = b->is_decode ? qn_gpu_inputs_of(n_rows, n_rows, 0, 0)
                                              : qn_gpu_inputs_of(n_rows, part->n_pieces, part->n_logits, 0);
    uint32_t *logit_rows = (uint32_t *)(void *)(model->workspace.inputs.host + inputs.logit_rows);
    qn_gpu_order order = qn_gpu_order_pieces(part, has_many, model->pieces, b->is_decode ? NULL : logit_rows);
    if (b->is_decode)
        qn_gpu_pad(&order, n_rows, model->pieces);
    b->n_pieces = order.n_pieces;
    b->recording = (qn_vk_recording){ .common = &model->common,
                                      .weights = &model->weights,
                                      .caches = &model->caches,
                                      .workspace = &model->workspace,
                                      .barriers = model->barriers,
                                      .inputs = inputs,
                                      .format = qn_vk_format_of_memory(model->pieces->memory),
                                      .pieces = model->pieces,
                                      .is_decode = b->is_decode,
                                      .n = order.n_rows,
                                      .n_few = order.n_few,
                                      .n_sequences = order.n_pieces };
    fill_inputs(b);
}

/* ---- Commands ---- */

/* Records all operations, if not all are only logits, and the logits of rows [first, first + n) of the logit rows. */
static qn_status record(const struct batch *b, const qn_vk_commands *commands, bool has_trunk, size_t first, size_t n)
{
    qn_vk_recording r = b->recording;
    r.commands = commands;
    QN_TRY(qn_vk_begin(r.common->vk, commands));
    if (has_trunk)
        QN_TRY(qn_vk_record_trunk(&r));
    if (n)
        QN_TRY(qn_vk_record_logits(&r, !b->is_decode, first, n));
    return qn_vk_end(r.common->vk, commands);
}

/* Runs the commands of a decode step whose logits are one pass, which are recorded for all rows of the bucket. */
static qn_status run_decode(const struct batch *b)
{
    qn_vk_model *model = b->model;
    const size_t bucket = qn_gpu_bucket_index(b->recording.n);
    qn_vk_commands *commands = &model->decode[bucket];
    if (!commands->pool)
        QN_TRY(qn_vk_commands_create(model->common.vk, commands));
    if (model->recorded[bucket] != b->recording.format) {
        model->recorded[bucket] = NULL;
        QN_TRY(record(b, commands, true, 0, b->recording.n));
    }
    model->recorded[bucket] = b->recording.format;
    return qn_vk_run(model->common.vk, commands);
}

/* ---- Results ---- */

/* Passes on the logits of n rows from `first` on of the batch's logit rows, and samples from them. */
static qn_status finish(const struct batch *b, size_t first, size_t n)
{
    const qn_vk_common *common = &b->model->common;
    const size_t n_vocab = common->plan->n_vocab;
    const float *logits = (const float *)(const void *)b->model->workspace.logits.host;
    if (b->part.logits)
        memcpy(b->part.logits + first * n_vocab, logits, n * n_vocab * sizeof *logits);
    return b->part.requests
               ? qn_gpu_sample_rows(&common->sample, common->team, b->part.requests + first, n, logits, n_vocab)
               : QN_OK;
}

/* Passes on the hidden states of the rows that have one. The trunk's results are still in the workspace. */
static qn_status finish_hidden(const struct batch *b)
{
    const qn_vk_workspace *w = &b->model->workspace;
    const int x = qn_gpu_logit_norm(b->model->common.plan)->norm.in;
    const size_t bytes = b->model->common.plan->buffers[x].width * sizeof(float),
                 at = (size_t)(w->buffers[x] - w->rows.address);
    if (!qn_gpu_has_hidden(b->part.rows, b->part.n_rows))
        return QN_OK;
    for (size_t i = 0; i < b->n_pieces; i++) {
        const qn_gpu_piece *piece = &b->model->pieces[i];
        for (size_t row = 0; piece->rows && row < piece->n; row++) {
            float *to = qn_gpu_hidden_of(&piece->rows[row]);
            if (to)
                QN_TRY(qn_vk_read(b->model->common.vk, to, &w->rows, at + (piece->row + row) * bytes, bytes));
        }
    }
    qn_gpu_finish_hidden(b->model->common.plan, b->part.rows, b->part.n_rows);
    return QN_OK;
}

static qn_status run_batch(struct batch *b, const qn_gpu_batching *batching)
{
    qn_vk_model *model = b->model;
    const size_t n_logits = b->part.n_logits, most = model->workspace.logit_rows;
    prepare(b, batching);
    if (b->is_decode && b->recording.n <= most) {
        QN_TRY(run_decode(b));
        QN_TRY(finish(b, 0, n_logits));
        return finish_hidden(b);
    }
    for (size_t first = 0, n; first < n_logits || !first; first += n ? n : 1) {
        n = n_logits - first < most ? n_logits - first : most;
        QN_TRY(record(b, &model->commands, !first, first, n));
        QN_TRY(qn_vk_run(model->common.vk, &model->commands));
        QN_TRY(finish(b, first, n));
    }
    return finish_hidden(b);
}

qn_status qn_vk_run_step(qn_device *device, const qn_step *step)
{
    qn_vk_model *model = (qn_vk_model *)device;
    const qn_gpu_batching batching = { .n_vocab = model->common.plan->n_vocab };
    QN_TRY(qn_device_check_features(device, qn_row_features(step->rows, step->n_rows)));
    for (size_t row = 0, logit = 0; row < step->n_rows;) {
        struct batch b = { .model = model, .part = qn_gpu_batch_of(&batching, step, row, logit) };
        QN_TRY(run_batch(&b, &batching));
        row += b.part.n_rows;
        logit += b.part.n_logits;
    }
    return QN_OK;
}
