/* A batch is a submission: all operations, the logits of its first logit rows, a copy of these to the host if it is
 * asked for, and sampling. Logits of more rows follow in passes. A decode step of few rows has its operations in
 * commands that were recorded once for its bucket. The host waits for a step's last submission when the step is
 * finished, for the others at once. */
#include "vulkan/executor/steps.h"

#include "base/memory.h"
#include "device/rows.h"
#include "gpu/batch.h"
#include "gpu/embeddings.h"
#include "gpu/hidden.h"
#include "gpu/requests.h"
#include "kernels/rope/rope.h"
#include "vulkan/executor/recurrent.h"

#include <math.h>
#include <string.h>
#include <time.h>

struct batch {
    qn_vk_model *model;
    size_t block;
    qn_gpu_batch part;
    bool is_decode, samples_later;
    qn_vk_recording recording;
    size_t n_pieces;
    qn_vk_sampling sampling;
};

/* ---- Inputs ---- */

static const uint32_t *words_at(const qn_vk_workspace *w, size_t offset)
{
    return (const uint32_t *)(const void *)(w->inputs.host + offset);
}

static uint64_t *addresses_at(const qn_vk_workspace *w, size_t offset)
{
    return (uint64_t *)(void *)(w->inputs.host + offset);
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

/* The tables of each piece are those of the block. */
static void fill_tables(const struct batch *b)
{
    const qn_gpu_inputs *in = &b->recording.inputs;
    for (size_t i = 0; i < b->n_pieces; i++) {
        if (!b->model->pieces[i].rows)
            continue;
        const size_t at = qn_vk_refresh_tables(b->model->pieces[i].memory, b->block);
        addresses_at(&b->model->workspace, in->kv_tables)[i] += at;
        addresses_at(&b->model->workspace, in->f16_tables)[i] += at;
    }
}

static void fill_inputs(const struct batch *b)
{
    const qn_vk_model *model = b->model;
    const qn_plan *plan = model->common.plan;
    const qn_vk_workspace *w = &model->workspace;
    const qn_gpu_inputs *in = &b->recording.inputs;
    const size_t half = plan->heads.n_rot / 2;
    qn_gpu_fill_inputs(in, model->pieces, b->n_pieces, w->inputs.host);
    fill_tables(b);
    if (w->embeds_on_host)
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

/* ---- Long launches ---- */

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Systems reset a device whose work does not end. Returns into how many pieces each launch of a step of n rows is
 * divided: as if the step were one launch, which is to take a tenth of a second. Its time is that of the prompt before,
 * and as much more as it has more rows. Before the first one a piece has 64 rows. */
static uint32_t pieces_of(const qn_vk_model *model, size_t n)
{
    enum { MOST_PIECES = 1024, FIRST_ROWS = 64 };
    const size_t before = model->timed_rows;
    if (!before)
        return (uint32_t)((n + FIRST_ROWS - 1) / FIRST_ROWS);
    const double longest = 0.1, more = n > before ? (double)n / (double)before : 1,
                 pieces = ceil(model->timed_seconds * more / longest);
    return pieces > MOST_PIECES ? MOST_PIECES : pieces < 1 ? 1 : (uint32_t)pieces;
}

/* ---- Commands ---- */

/* Records all operations, if not all are only logits, and the logits of rows [first, first + n) of the logit rows. */
static qn_status record(const struct batch *b, qn_vk_commands *commands, bool has_trunk, size_t first, size_t n)
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

/* The commands of a decode step whose logits are one pass, which are recorded for all rows of the bucket. */
static qn_status decode_commands(const struct batch *b, const qn_vk_commands **commands)
{
    qn_vk_step_commands *c = &b->model->commands[b->block];
    const size_t bucket = qn_gpu_bucket_index(b->recording.n);
    qn_vk_commands *decode = &c->decode[bucket];
    *commands = decode;
    if (!decode->pool)
        QN_TRY(qn_vk_commands_create(b->model->common.vk, decode));
    if (c->recorded[bucket] == b->recording.format)
        return QN_OK;
    c->recorded[bucket] = NULL;
    QN_TRY(record(b, decode, true, 0, b->recording.n));
    c->recorded[bucket] = b->recording.format;
    return QN_OK;
}

/* Records a copy of n rows of logits to the host. */
static qn_status copy_commands(const struct batch *b, size_t n, const qn_vk_commands **commands)
{
    const qn_vk_workspace *w = &b->model->workspace;
    qn_vk *vk = b->model->common.vk;
    qn_vk_commands *copies = &b->model->commands[b->block].copies;
    *commands = copies;
    QN_TRY(qn_vk_begin(vk, copies));
    qn_vk_copy(vk, copies, &w->host_logits, 0, &w->logits, 0, n * b->model->common.plan->n_vocab * sizeof(float));
    return qn_vk_end(vk, copies);
}

/* ---- Results ---- */

/* Passes on the results of a block, whose commands have run. */
static qn_status pass_on(qn_vk_model *model, qn_vk_flight *flight)
{
    const size_t n_vocab = model->common.plan->n_vocab;
    const qn_vk_sampling *what = &flight->sampling;
    if (flight->is_done || flight->awaits_sampling) /* after a step that failed there are no results */
        return QN_OK;
    flight->is_done = true;
    if (flight->logits)
        memcpy(flight->logits + what->first * n_vocab, model->workspace.host_logits.host,
               what->n * n_vocab * sizeof *flight->logits);
    return flight->requests && what->n ? qn_vk_sampling_finish(&model->sampler, what, flight->requests + what->first)
                                       : QN_OK;
}

/* Adds the times of commands that have run to the profile. */
static qn_status add_times(qn_vk_model *model, const qn_vk_flight *flight)
{
    for (size_t i = 0; model->profile.seconds && i < flight->n_commands; i++)
        QN_TRY(qn_vk_add_times(model->common.vk, flight->commands[i], model->profile.seconds,
                               model->common.plan->n_ops + 1));
    return QN_OK;
}

/* Waits for what a block has in flight, if anything, and passes on its results. */
static qn_status wait_for_flight(qn_vk_model *model, qn_vk_flight *flight)
{
    if (!flight->is_queued)
        return QN_OK;
    flight->is_queued = false;
    if (flight->awaits_sampling) /* it is given up, and has no submission of its own to wait for */
        qn_vk_drain(model->common.vk);
    QN_TRY(qn_vk_wait(model->common.vk, &flight->submission));
    if (flight->n_timed) {
        model->timed_rows = flight->n_timed;
        model->timed_seconds = seconds_now() - flight->submitted;
    }
    QN_TRY(add_times(model, flight));
    return pass_on(model, flight);
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
    QN_TRY(qn_vk_wait(b->model->common.vk, &b->model->flights[b->block].submission));
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

/* ---- Queueing ---- */

/* Queues commands that compute logits of n rows from `first` on of the batch's logit rows, if n is not 0, and what is
 * done with these logits. */
static qn_status queue(struct batch *b, const qn_vk_commands *computing, size_t first, size_t n)
{
    qn_vk_model *model = b->model;
    qn_vk_flight *flight = &model->flights[b->block];
    const qn_vk_commands *commands[QN_VK_FLIGHT_COMMANDS] = { computing };
    size_t n_commands = 1;
    b->sampling.first = first;
    b->sampling.n = n;
    if (n && (b->part.logits || (b->part.requests && qn_vk_sampling_needs_host(b->part.requests + first, n))))
        QN_TRY(copy_commands(b, n, &commands[n_commands++]));
    if (n && b->part.requests && !b->samples_later)
        QN_TRY(qn_vk_sampling_commands(&model->sampler, &b->sampling, &commands[n_commands++]));
    QN_TRY(qn_vk_submit(model->common.vk, commands, n_commands, b->samples_later ? NULL : &flight->submission));
    memcpy(flight->commands, commands, sizeof commands);
    flight->n_commands = n_commands;
    flight->submitted = seconds_now();
    flight->n_timed = b->is_decode || first ? 0 : b->recording.n;
    flight->logits = b->part.logits;
    flight->requests = b->part.requests;
    flight->sampling = b->sampling;
    flight->is_queued = true;
    flight->is_done = false;
    flight->status = QN_OK;
    flight->awaits_sampling = b->samples_later;
    return QN_OK;
}

static qn_status queue_batch(struct batch *b, const qn_gpu_batching *batching)
{
    qn_vk_model *model = b->model;
    const size_t n_logits = b->part.n_logits, most = model->workspace.logit_rows;
    qn_vk_commands *step = &model->commands[b->block].step;
    prepare(b, batching);
    step->pieces = pieces_of(model, b->recording.n);
    if (b->part.requests && !b->samples_later) {
        qn_gpu_prepare_requests(model->common.team, b->part.requests, n_logits);
        QN_TRY(qn_vk_sampling_fill(&model->sampler, b->part.requests, n_logits, &b->sampling));
    }
    if (b->is_decode && b->recording.n <= most) {
        const qn_vk_commands *commands;
        QN_TRY(decode_commands(b, &commands));
        QN_TRY(queue(b, commands, 0, n_logits));
        return finish_hidden(b);
    }
    for (size_t first = 0, n; first < n_logits || !first; first += n ? n : 1) {
        n = n_logits - first < most ? n_logits - first : most;
        QN_TRY(wait_for_flight(model, &model->flights[b->block]));
        QN_TRY(record(b, step, !first, first, n));
        QN_TRY(queue(b, step, first, n));
    }
    return finish_hidden(b);
}

/* Whether the requests of a step, which is one batch, are prepared while it is computed. */
static bool may_sample_later(const qn_step *step, const struct batch *b)
{
    bool prepares = false;
    for (size_t i = 0; b->part.requests && i < b->part.n_logits; i++)
        prepares = prepares || b->part.requests[i].prepare;
    return prepares && b->part.n_rows == step->n_rows && b->part.n_logits <= b->model->workspace.logit_rows &&
           !qn_gpu_has_hidden(b->part.rows, b->part.n_rows);
}

/* A step that is launched while another is in flight is one submission, and may read that one's tokens. */
static qn_status check_ahead(qn_vk_model *model, const qn_step *step, const struct batch *b)
{
    if (model->n_launched == model->n_finished)
        return QN_OK;
    if (b->part.n_rows != step->n_rows || b->part.n_logits > model->workspace.logit_rows)
        return qn_fail(QN_ERR_INVALID, "step: launched while another is in flight, with more sequences than %zu",
                       model->base.ahead);
    qn_vk_flight *other = &model->flights[(b->block + 1) % QN_VK_BLOCKS];
    if (other->requests && qn_vk_sampling_needs_host(other->requests + other->sampling.first, other->sampling.n))
        other->status = wait_for_flight(model, other);
    return other->status;
}

static qn_status queue_step(qn_vk_model *model, size_t block, const qn_step *step)
{
    const qn_gpu_batching batching = { .n_vocab = model->common.plan->n_vocab };
    for (size_t row = 0, logit = 0; row < step->n_rows;) {
        struct batch b = { .model = model, .block = block, .part = qn_gpu_batch_of(&batching, step, row, logit) };
        b.sampling.block = block;
        b.samples_later = may_sample_later(step, &b);
        QN_TRY(check_ahead(model, step, &b));
        QN_TRY(wait_for_flight(model, &model->flights[block]));
        QN_TRY(queue_batch(&b, &batching));
        row += b.part.n_rows;
        logit += b.part.n_logits;
    }
    return QN_OK;
}

/* Waits after a failure: the caller may free memory that queued kernels access. */
static qn_status abandon(qn_vk_model *model, qn_vk_flight *flight, qn_status status)
{
    char text[QN_ERROR_TEXT_MAX];
    memcpy(text, qn_error_text(), sizeof text);
    qn_vk_drain(model->common.vk);
    (void)qn_vk_wait(model->common.vk, &flight->submission);
    flight->is_queued = flight->awaits_sampling = false;
    return qn_fail(status, "%s", text);
}

qn_status qn_vk_launch_step(qn_device *device, const qn_step *step)
{
    qn_vk_model *model = (qn_vk_model *)device;
    const size_t block = model->n_launched % QN_VK_BLOCKS;
    QN_TRY(qn_device_check_features(device, qn_row_features(step->rows, step->n_rows)));
    qn_vk_workspace_select(&model->workspace, block);
    const qn_status status = queue_step(model, block, step);
    if (status != QN_OK)
        return abandon(model, &model->flights[block], status);
    model->n_launched++;
    return QN_OK;
}

static qn_status queue_later_sampling(qn_vk_model *model, qn_vk_flight *flight)
{
    const qn_vk_commands *commands;
    flight->awaits_sampling = false;
    qn_gpu_prepare_requests(model->common.team, flight->requests, flight->sampling.n);
    QN_TRY(qn_vk_sampling_fill(&model->sampler, flight->requests, flight->sampling.n, &flight->sampling));
    QN_TRY(qn_vk_sampling_commands(&model->sampler, &flight->sampling, &commands));
    flight->commands[flight->n_commands++] = commands;
    return qn_vk_submit(model->common.vk, &commands, 1, &flight->submission);
}

qn_status qn_vk_sample_step(qn_device *device)
{
    qn_vk_model *model = (qn_vk_model *)device;
    if (model->n_launched == model->n_finished)
        return QN_OK;
    qn_vk_flight *flight = &model->flights[(model->n_launched - 1) % QN_VK_BLOCKS];
    if (!flight->awaits_sampling)
        return QN_OK;
    qn_status status = queue_later_sampling(model, flight);
    if (status == QN_OK)
        return QN_OK;
    status = abandon(model, flight, status);
    model->n_finished++;
    return status;
}

qn_status qn_vk_finish_step(qn_device *device)
{
    qn_vk_model *model = (qn_vk_model *)device;
    qn_vk_flight *flight = &model->flights[model->n_finished % QN_VK_BLOCKS];
    qn_status status = flight->status;
    if (status != QN_OK)
        status = qn_fail(status, "step: waiting for it failed when the next one was launched");
    else
        status = wait_for_flight(model, flight);
    if (status != QN_OK)
        status = abandon(model, flight, status);
    model->n_finished++;
    model->profile.n_steps++;
    return status;
}

qn_status qn_vk_run_step(qn_device *device, const qn_step *step)
{
    QN_TRY(qn_vk_launch_step(device, step));
    QN_TRY(qn_vk_sample_step(device));
    return qn_vk_finish_step(device);
}

/* ---- Profile ---- */

/* Commands have marks in a profile alone. */
static qn_status set_profiled(qn_vk_model *model, bool is_profiled)
{
    qn_vk_drain(model->common.vk);
    qn_vk_steps_forget(model);
    qn_vk_sampler_forget(&model->sampler);
    for (size_t i = 0; i < QN_VK_BLOCKS; i++)
        model->flights[i].n_commands = 0; /* marks of steps that were not passed on are of no profile */
    qn_free(model->profile.seconds);
    model->profile = (qn_vk_profile){ .began = seconds_now() };
    return qn_vk_set_profiled(model->common.vk, is_profiled);
}

qn_status qn_vk_profile_start(qn_device *device)
{
    qn_vk_model *model = (qn_vk_model *)device;
    const size_t n = model->common.plan->n_ops + 1;
    QN_TRY(set_profiled(model, true));
    return qn_alloc(&model->profile.seconds, n, sizeof *model->profile.seconds, "profile");
}

void qn_vk_profile_stop(qn_device *device, qn_profile *report)
{
    qn_vk_model *model = (qn_vk_model *)device;
    const qn_vk_profile *p = &model->profile;
    const double seconds = seconds_now() - p->began;
    double inside = 0;
    for (size_t i = 0; p->seconds && i <= model->common.plan->n_ops; i++) {
        if (!(p->seconds[i] > 0))
            continue;
        qn_profile_line *line = qn_profile_find_line(report, model->common.plan, i);
        line->seconds += p->seconds[i];
        line->busy += p->seconds[i];
        line->available += p->seconds[i];
        inside += p->seconds[i];
    }
    report->seconds += seconds;
    report->outside += seconds - inside;
    report->n_steps += p->n_steps;
    (void)set_profiled(model, false);
}

/* ---- Creation ---- */

qn_status qn_vk_steps_create(qn_vk_model *model)
{
    qn_vk *vk = model->common.vk;
    for (size_t i = 0; i < QN_VK_BLOCKS; i++) {
        QN_TRY(qn_vk_submission_create(vk, &model->flights[i].submission));
        QN_TRY(qn_vk_commands_create(vk, &model->commands[i].step));
        QN_TRY(qn_vk_commands_create(vk, &model->commands[i].copies));
    }
    return QN_OK;
}

void qn_vk_steps_forget(qn_vk_model *model)
{
    for (size_t i = 0; i < QN_VK_BLOCKS; i++)
        memset(model->commands[i].recorded, 0, sizeof model->commands[i].recorded);
}

void qn_vk_steps_free(qn_vk_model *model)
{
    qn_vk *vk = model->common.vk;
    for (size_t i = 0; i < QN_VK_BLOCKS; i++) {
        qn_vk_step_commands *c = &model->commands[i];
        qn_vk_submission_free(vk, &model->flights[i].submission);
        qn_vk_commands_free(vk, &c->step);
        qn_vk_commands_free(vk, &c->copies);
        for (size_t bucket = 0; bucket < QN_GPU_N_BUCKETS; bucket++)
            qn_vk_commands_free(vk, &c->decode[bucket]);
    }
}
