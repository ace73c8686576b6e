/* Queueing, sampling and finishing steps. The launches themselves are in inputs.c, executor.c and sampling.c. Static
 * functions are called with stream_lock held, except launch(). */
#include "cuda/executor/steps.h"

#include "base/memory.h"
#include "cuda/executor/batch.h"
#include "cuda/executor/decode.h"
#include "cuda/executor/executor.h"
#include "cuda/executor/hidden.h"
#include "cuda/executor/inputs.h"
#include "cuda/executor/poison.h"
#include "cuda/executor/recurrent.h"
#include "device/rows.h"
#include "gpu/hidden.h"
#include "gpu/requests.h"

#include <string.h>

static qn_cuda_model *cuda_model_of(qn_device *device)
{
    return (qn_cuda_model *)device;
}

/* ---- Graphs: rows of different sequences with their logits, a draft to verify, draft steps ---- */

/* Queues a step that is a graph. Sampling may change the logits: they are copied before it. */
static qn_status queue_decode(const qn_cuda_batch *b)
{
    qn_cuda_model *model = b->model;
    const bool one = b->step.n == 1 && !b->step.is_draft, samples_now = b->part.requests && !b->samples_later,
               samples_in_graph = b->step.n == 1 && !b->step.is_block && samples_now && !b->part.logits;
    QN_TRY(qn_cuda_launch_decode(&b->step, samples_in_graph ? &b->sampling : NULL, one && b->part.logits));
    if (b->part.logits && !one)
        QN_TRY(qn_cuda_download(model->common.cuda, model->common.stream, b->part.logits,
                                model->workspace.logits.address,
                                b->part.n_logits * model->common.plan->n_vocab * sizeof *b->part.logits));
    if (samples_now && !samples_in_graph)
        QN_TRY(qn_cuda_run_sampler(model->sampler, &b->sampling));
    model->flights.of_block[model->flights.block] = (qn_cuda_flight){ .logits = one ? b->part.logits : NULL,
                                                                      .requests = b->part.requests,
                                                                      .sampling = b->sampling,
                                                                      .is_queued = true,
                                                                      .awaits_sampling = b->samples_later };
    return QN_OK;
}

/* ---- Other steps ---- */

/* Logits of rows [i, i + n) of the batch's logit rows, into model->workspace.logits. */
static qn_status run_logits(const qn_cuda_batch *b, size_t i, size_t n)
{
    qn_cuda_rows_step s = b->step;
    const uint32_t *rows = qn_cuda_host_input(&s, s.inputs.logit_rows) + i;
    size_t consecutive = 1;
    while (consecutive < n && rows[consecutive] == rows[0] + consecutive)
        consecutive++;
    if (consecutive < n) {
        QN_TRY(qn_cuda_gather_rows(&s, i, n));
        s.logit_in = s.workspace->gathered.address;
    }
    s.row = rows[0];
    s.n = n;
    return qn_cuda_run_logits(&s);
}

static qn_status queue_sampling(const qn_cuda_batch *b, size_t i, size_t n)
{
    qn_cuda_model *model = b->model;
    qn_cuda_sampling sampling = b->sampling;
    sampling.first = i;
    sampling.n = n;
    if (!b->samples_later)
        QN_TRY(qn_cuda_run_sampler(model->sampler, &sampling));
    model->flights.of_block[model->flights.block] = (qn_cuda_flight){
        .requests = b->part.requests, .sampling = sampling, .is_queued = true, .awaits_sampling = b->samples_later
    };
    return QN_OK;
}

/* Passes the results of the current block to the caller's arrays. The work that was queued with it has been
 * computed. */
static qn_status finish_flight(qn_cuda_model *model)
{
    const qn_cuda_flight flight = model->flights.of_block[model->flights.block];
    model->flights.of_block[model->flights.block].is_queued =
        model->flights.of_block[model->flights.block].awaits_sampling = false;
    if (flight.awaits_sampling) /* after a step that failed: there are no results */
        return QN_OK;
    if (flight.rows)
        qn_gpu_finish_hidden(model->common.plan, flight.rows, flight.n_rows);
    if (flight.logits)
        memcpy(flight.logits, model->workspace.host_logits, model->common.plan->n_vocab * sizeof *flight.logits);
    return flight.requests ? qn_cuda_finish_sampling(model->sampler, &flight.sampling, flight.requests) : QN_OK;
}

/* Waits for the work queued with the current block, if any, and passes on its results. Called before inputs and logits
 * of an earlier part of the step are overwritten. */
static qn_status wait_for_flight(qn_cuda_model *model)
{
    if (!model->flights.of_block[model->flights.block].is_queued)
        return QN_OK;
    QN_TRY(qn_cuda_stream_synchronize(model->common.cuda, model->common.stream));
    return finish_flight(model);
}

static qn_status queue_launches(const qn_cuda_batch *b)
{
    qn_cuda_model *model = b->model;
    const size_t n_vocab = model->common.plan->n_vocab;
    QN_TRY(qn_cuda_prepare_decode(&b->step));
    QN_TRY(qn_cuda_upload_inputs(&b->step));
    QN_TRY(b->step.is_draft ? qn_cuda_run_draft(&b->step) : qn_cuda_run_trunk(&b->step));
    model->flights.of_block[model->flights.block] = (qn_cuda_flight){ .is_queued = true };
    for (size_t i = 0, n; i < b->part.n_logits; i += n) {
        n = b->part.n_logits - i < model->workspace.logit_rows ? b->part.n_logits - i : model->workspace.logit_rows;
        if (i)
            QN_TRY(wait_for_flight(model));
        QN_TRY(run_logits(b, i, n));
        if (b->part.logits)
            QN_TRY(qn_cuda_download(model->common.cuda, model->common.stream, b->part.logits + i * n_vocab,
                                    model->workspace.logits.address, n * n_vocab * sizeof *b->part.logits));
        if (b->part.requests)
            QN_TRY(queue_sampling(b, i, n));
    }
    return QN_OK;
}

static qn_cuda_launched *launched_step(qn_cuda_model *model, uint64_t number)
{
    return &model->flights.launched[number % (QN_CUDA_BLOCKS + 1)];
}

/* The step's results are the caller's rows when it has finished. */
static qn_status queue_hidden(const qn_cuda_batch *b)
{
    qn_cuda_flight *flight = &b->model->flights.of_block[b->model->flights.block];
    if (!qn_gpu_has_hidden(b->part.rows, b->part.n_rows))
        return QN_OK;
    QN_TRY(qn_cuda_queue_hidden(&b->step));
    flight->rows = b->part.rows;
    flight->n_rows = b->part.n_rows;
    return QN_OK;
}

static qn_status queue_batch(qn_cuda_batch *b, const qn_cuda_launched *launched)
{
    QN_TRY(wait_for_flight(b->model));
    QN_TRY(qn_cuda_batch_prepare(b));
    if (!b->part.first && launched->is_timed)
        QN_TRY(qn_cuda_event_record(b->model->common.cuda, launched->started, b->model->common.stream));
    QN_TRY(qn_cuda_poison_step(&b->step));
    if ((b->step.is_decode || b->step.n == 1 || b->step.fits_open_chunks) && !b->step.is_draft)
        QN_TRY(qn_cuda_fold_full_chunks(&b->step));
    QN_TRY(b->step.is_decode || b->step.verifies || b->step.is_block ? queue_decode(b) : queue_launches(b));
    return queue_hidden(b);
}

/* Checks that a step can be queued without waiting, as it must if another one is in flight: it is one batch. */
static qn_status check_ahead(const qn_cuda_model *model, const qn_step *step, const qn_cuda_batch *first)
{
    if (model->flights.n_launched == model->flights.n_finished ||
        (first->part.n_rows == step->n_rows && first->part.n_logits <= model->workspace.logit_rows))
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "step: launched while another is in flight, with more sequences than %zu",
                   model->base.ahead);
}

/* Whether the requests of a step, which is one batch, are prepared while it is computed. */
static bool may_sample_later(const qn_step *step, const qn_cuda_batch *b)
{
    bool prepares = false;
    for (size_t i = 0; b->part.requests && i < b->part.n_logits; i++)
        prepares = prepares || b->part.requests[i].prepare;
    return prepares && !b->part.logits && b->part.n_rows == step->n_rows &&
           b->part.n_logits <= b->model->workspace.logit_rows;
}

/* Queues all batches of a step, and waits for all but the last. */
static qn_status queue_step(qn_cuda_model *model, const qn_step *step)
{
    const qn_cuda_launched *launched = launched_step(model, model->flights.n_launched);
    for (size_t row = 0, logit = 0; row < step->n_rows;) {
        qn_cuda_batch b = qn_cuda_batch_of(model, step, row, logit);
        QN_TRY(check_ahead(model, step, &b));
        b.samples_later = may_sample_later(step, &b);
        QN_TRY(queue_batch(&b, launched));
        row += b.part.n_rows;
        logit += b.part.n_logits;
    }
    return qn_cuda_event_record(model->common.cuda, launched->computed, model->common.stream);
}

/* Waits after a failure: the caller may free memory that queued kernels access. */
static qn_status abandon_block(qn_cuda_model *model, qn_status status)
{
    char text[QN_ERROR_TEXT_MAX];
    memcpy(text, qn_error_text(), sizeof text);
    (void)qn_cuda_stream_synchronize(model->common.cuda, model->common.stream);
    model->flights.of_block[model->flights.block].is_queued = false;
    return qn_fail(status, "%s", text);
}

/* Queues a step. It takes the block that no step in flight uses. is_timed: the time between this step and the previous
 * one is measured. Takes stream_lock. */
static qn_status launch(qn_device *device, const qn_step *step, bool is_timed)
{
    qn_cuda_model *model = cuda_model_of(device);
    QN_TRY(qn_device_check_features(device, qn_row_features(step->rows, step->n_rows)));
    pthread_mutex_lock(&model->common.stream_lock);
    model->flights.block = model->flights.of_block[0].is_queued;
    qn_cuda_launched *launched = launched_step(model, model->flights.n_launched);
    launched->block = model->flights.block;
    launched->is_timed = is_timed;
    qn_status status = queue_step(model, step);
    if (status != QN_OK)
        status = abandon_block(model, status);
    else
        model->flights.n_launched++;
    pthread_mutex_unlock(&model->common.stream_lock);
    return status;
}

qn_status qn_cuda_launch_step(qn_device *device, const qn_step *step)
{
    return launch(device, step, true);
}

static qn_status queue_later_sampling(qn_cuda_model *model, qn_cuda_flight *flight, const qn_cuda_launched *launched)
{
    flight->awaits_sampling = false;
    QN_TRY(qn_cuda_fill_sampling_later(model->sampler, flight->requests, flight->sampling.n, &flight->sampling));
    QN_TRY(qn_cuda_run_sampler(model->sampler, &flight->sampling));
    return qn_cuda_event_record(model->common.cuda, launched->computed, model->common.stream);
}

qn_status qn_cuda_sample_step(qn_device *device)
{
    qn_cuda_model *model = cuda_model_of(device);
    if (model->flights.n_launched == model->flights.n_finished)
        return QN_OK;
    const qn_cuda_launched *launched = launched_step(model, model->flights.n_launched - 1);
    qn_cuda_flight *flight = &model->flights.of_block[launched->block];
    if (!flight->awaits_sampling)
        return QN_OK;
    qn_gpu_prepare_requests(model->common.team, flight->requests, flight->sampling.n);
    pthread_mutex_lock(&model->common.stream_lock);
    model->flights.block = launched->block;
    qn_status status = queue_later_sampling(model, flight, launched);
    if (status != QN_OK) {
        status = abandon_block(model, status);
        model->flights.n_finished++;
    }
    pthread_mutex_unlock(&model->common.stream_lock);
    return status;
}

/* The time between the previous step and this one; both have been computed. */
static double measure_idle(qn_cuda_model *model, uint64_t number)
{
    double seconds = 0;
    if (number && launched_step(model, number)->is_timed &&
        qn_cuda_event_seconds(model->common.cuda, launched_step(model, number - 1)->computed,
                              launched_step(model, number)->started, &seconds) != QN_OK)
        return 0;
    return seconds;
}

qn_status qn_cuda_finish_step(qn_device *device)
{
    qn_cuda_model *model = cuda_model_of(device);
    const uint64_t number = model->flights.n_finished;
    const qn_cuda_launched *launched = launched_step(model, number);
    qn_status status = qn_cuda_event_synchronize(model->common.cuda, launched->computed);
    pthread_mutex_lock(&model->common.stream_lock);
    model->flights.block = launched->block;
    if (status == QN_OK)
        status = finish_flight(model);
    qn_cuda_poison_block(&model->workspace, model->sampler, launched->block);
    device->idle_seconds = status == QN_OK ? measure_idle(model, number) : 0;
    if (status != QN_OK)
        status = abandon_block(model, status);
    model->flights.n_finished++;
    pthread_mutex_unlock(&model->common.stream_lock);
    return status;
}

/* Runs a step in three calls. For steps that the caller waits for, the time that the device waited before them is not
 * measured. */
qn_status qn_cuda_run_step(qn_device *device, const qn_step *step)
{
    QN_TRY(launch(device, step, false));
    QN_TRY(qn_cuda_sample_step(device));
    return qn_cuda_finish_step(device);
}

/* ---- Creation ---- */

qn_status qn_cuda_flights_create(qn_cuda *cuda, qn_cuda_flights *flights)
{
    for (size_t i = 0; i <= QN_CUDA_BLOCKS; i++) {
        QN_TRY(qn_cuda_event_create(cuda, &flights->launched[i].started));
        QN_TRY(qn_cuda_event_create(cuda, &flights->launched[i].computed));
    }
    return qn_alloc(&flights->pieces, QN_GPU_MAX_SEQUENCES, sizeof *flights->pieces, "step");
}

void qn_cuda_flights_free(qn_cuda *cuda, qn_cuda_flights *flights)
{
    for (size_t i = 0; i <= QN_CUDA_BLOCKS; i++) {
        qn_cuda_event_free(cuda, flights->launched[i].started);
        qn_cuda_event_free(cuda, flights->launched[i].computed);
    }
    qn_free(flights->pieces);
}
