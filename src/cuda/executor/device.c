/* Steps on a CUDA device: rows of any sequences, as a graph for a decode step (graphs.c), as individual launches otherwise.
 * The launches themselves are in inputs.c, operations.c and sampling.c. */
#include "cuda/executor/device.h"

#include "base/memory.h"
#include "cuda/executor/operations.h"
#include "cuda/executor/read_rate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2048 /* rows of a prefill step */, MANY_POSITIONS = 1 << 20 };

static qn_cuda_model *cuda_model_of(qn_device *device)
{
    return (qn_cuda_model *)device;
}

/* ---- Rows that are executed together ---- */

/* Rows of up to QN_CUDA_MAX_SEQUENCES sequences of one cache format: a part of the caller's step. They are executed in another
 * order than the caller's: pieces of few rows first. */
struct batch {
    qn_cuda_rows_step step;
    const qn_row *rows;
    size_t n_rows;
    const uint32_t *logit_rows;  /* [n_logits], of the caller's step */
    size_t first, n_logits;      /* first: index of rows[0] in the caller's step */
    float *logits;               /* [n_logits, n_vocab], or NULL */
    qn_sample_request *requests; /* [n_logits], or NULL */
    qn_cuda_sampling sampling;   /* of all logit rows; with requests */
    bool samples_later;          /* requests are prepared and sampled by device_sample */
};

/* The number of rows of the first sequence. */
static size_t first_piece(const qn_row *rows, size_t n_rows)
{
    size_t n = 1;
    while (n < n_rows && rows[n].memory == rows->memory)
        n++;
    return n;
}

static qn_cuda_memory *memory_of(const qn_row *row)
{
    return (qn_cuda_memory *)row->memory;
}

/* A decode step has logits of all rows. */
static bool has_logits(const qn_step *step, size_t row, size_t logit)
{
    return logit < step->n_logit_rows && step->logit_rows[logit] == row;
}

/* With `deterministic`: whether the piece of n rows after batch b can be executed with it. Up to same_rows a row is computed by the same
 * operations for any number of rows; others take part in no pass with rows of other sequences. */
static bool may_join(const struct batch *b, const qn_step *step, size_t n, size_t logit)
{
    const size_t row = b->first + b->n_rows;
    return !b->n_rows || (n == 1 && b->n_rows == b->step.n_pieces && b->n_rows < b->step.model->same_rows &&
                          has_logits(step, row - 1, logit + b->n_rows - 1) && has_logits(step, row, logit + b->n_rows));
}

/* The rows from `row` on that can be executed together, and their logit rows from `logit` on. */
static struct batch batch_of(qn_cuda_model *model, const qn_step *step, size_t row, size_t logit)
{
    const qn_row *rows = step->rows + row;
    const size_t n_vocab = model->plan->n_vocab;
    struct batch b = { .step = { .model = model, .pieces = model->pieces },
                       .rows = rows,
                       .logit_rows = step->logit_rows + logit,
                       .first = row,
                       .logits = step->logits ? step->logits + logit * n_vocab : NULL,
                       .requests = step->requests ? step->requests + logit : NULL };
    while (row + b.n_rows < step->n_rows && b.step.n_pieces < QN_CUDA_MAX_SEQUENCES &&
           qn_cuda_same_format(memory_of(&rows[b.n_rows]), memory_of(rows))) {
        const size_t n = first_piece(rows + b.n_rows, step->n_rows - row - b.n_rows);
        if (model->deterministic && !may_join(&b, step, n, logit))
            break;
        b.n_rows += n;
        b.step.n_pieces++;
    }
    while (logit + b.n_logits < step->n_logit_rows && step->logit_rows[logit + b.n_logits] < row + b.n_rows)
        b.n_logits++;
    b.requests = b.n_logits ? b.requests : NULL;
    return b;
}

/* Adds the pieces that are, or are not, for the prefill kernel of attention, and finds the rows of their logits. */
static void add_pieces(struct batch *b, bool prefill, size_t *n_pieces)
{
    qn_cuda_rows_step *s = &b->step;
    for (size_t row = 0, n, logit = 0; row < b->n_rows; row += n) {
        const qn_row *rows = b->rows + row;
        n = first_piece(rows, b->n_rows - row);
        const qn_cuda_piece piece = {
            .memory = memory_of(rows), .row = (uint32_t)s->n, .n = (uint32_t)n, .position = rows->position, .rows = rows
        };
        const bool add = qn_cuda_has_prefill(&piece) == prefill;
        for (; logit < b->n_logits && b->logit_rows[logit] < b->first + row + n; logit++)
            if (add && !s->is_decode)
                qn_cuda_host_input(s, s->inputs.logit_rows)[logit] = (uint32_t)(s->n + b->logit_rows[logit] - b->first - row);
        if (!add)
            continue;
        s->model->pieces[(*n_pieces)++] = piece;
        s->n += n;
    }
}

/* The rows of a decode step of n: another one beside a single row, if it is to be computed as rows of larger steps are. */
static size_t padded(const qn_cuda_model *model, size_t n)
{
    return qn_cuda_bucket(n == 1 && model->deterministic ? 2 : n);
}

static void pad(qn_cuda_rows_step *s)
{
    for (size_t n = padded(s->model, s->n); s->n < n; s->n++)
        s->model->pieces[s->n_pieces++] = (qn_cuda_piece){ .memory = s->pieces->memory, .row = (uint32_t)s->n, .n = 1 };
    s->n_few = s->n;
}

/* Sets the pieces and inputs of a step. */
static qn_status prepare(struct batch *b)
{
    qn_cuda_rows_step *s = &b->step;
    size_t n_pieces = 0;
    const size_t n_padded = padded(s->model, b->n_rows);
    s->is_decode = s->n_pieces == b->n_rows && (b->n_logits == b->n_rows || (b->n_rows == 1 && s->model->deterministic));
    QN_TRY(qn_cuda_graphs_of(s->model, memory_of(b->rows), &s->graphs));
    if (s->is_decode)
        s->inputs = qn_cuda_inputs_of(n_padded, n_padded, 0);
    else
        s->inputs = qn_cuda_inputs_of(b->n_rows, s->n_pieces, b->n_logits);
    add_pieces(b, false, &n_pieces);
    s->n_few = s->n;
    add_pieces(b, true, &n_pieces);
    if (s->is_decode)
        pad(s);
    s->in_phases = s->is_decode && qn_cuda_has_phases(s->model, s->n);
    qn_cuda_fill_inputs(s);
    s->n_samples = s->is_decode ? s->n : b->requests ? b->n_logits : 0; /* a graph always uploads as many */
    b->sampling = (qn_cuda_sampling){ .n = b->n_logits, .params = s->inputs.sampling };
    if (!b->requests || b->samples_later)
        return QN_OK;
    qn_cuda_prepare_requests(s->model, b->requests, b->n_logits);
    return qn_cuda_fill_sampling(s->model, b->requests, b->n_logits, s->inputs.sampling, &b->sampling);
}

/* ---- Decode: rows of different sequences with their logits, as a graph ---- */

/* Sampling may change the logits: they are copied before it. */
static qn_status queue_decode(const struct batch *b)
{
    qn_cuda_model *model = b->step.model;
    const bool one = b->step.n == 1, samples_now = b->requests && !b->samples_later,
               samples_in_graph = one && samples_now && !b->logits;
    QN_TRY(qn_cuda_launch_decode(&b->step, samples_in_graph ? &b->sampling : NULL, one && b->logits));
    if (b->logits && !one)
        QN_TRY(qn_cuda_download(model->cuda, model->stream, b->logits, model->logits.address,
                                b->n_logits * model->plan->n_vocab * sizeof *b->logits));
    if (samples_now && !samples_in_graph)
        QN_TRY(qn_cuda_run_sampler(model, &b->sampling));
    model->flights[model->block] = (qn_cuda_flight){ .logits = one ? b->logits : NULL,
                                                     .requests = b->requests,
                                                     .sampling = b->sampling,
                                                     .is_queued = true,
                                                     .awaits_sampling = b->samples_later };
    return QN_OK;
}

/* ---- Other steps ---- */

/* Logits of rows [i, i + n) of the batch's logit rows, into model->logits. */
static qn_status run_logits(const struct batch *b, size_t i, size_t n)
{
    qn_cuda_rows_step s = b->step;
    const uint32_t *rows = qn_cuda_host_input(&s, s.inputs.logit_rows) + i;
    size_t consecutive = 1;
    while (consecutive < n && rows[consecutive] == rows[0] + consecutive)
        consecutive++;
    if (consecutive < n) {
        QN_TRY(qn_cuda_gather_rows(&s, i, n));
        s.logit_in = s.model->gathered.address;
    }
    s.row = rows[0];
    s.n = n;
    return qn_cuda_run_logits(&s);
}

static qn_status queue_sampling(const struct batch *b, size_t i, size_t n)
{
    qn_cuda_model *model = b->step.model;
    qn_cuda_sampling sampling = b->sampling;
    sampling.first = i;
    sampling.n = n;
    if (!b->samples_later)
        QN_TRY(qn_cuda_run_sampler(model, &sampling));
    model->flights[model->block] = (qn_cuda_flight){
        .requests = b->requests, .sampling = sampling, .is_queued = true, .awaits_sampling = b->samples_later
    };
    return QN_OK;
}

/* What was queued with the current block has been computed. */
static qn_status finish_flight(qn_cuda_model *model)
{
    const qn_cuda_flight flight = model->flights[model->block];
    model->flights[model->block].is_queued = model->flights[model->block].awaits_sampling = false;
    if (flight.awaits_sampling) /* behind a step that failed: there are no results */
        return QN_OK;
    if (flight.logits)
        memcpy(flight.logits, model->host_logits, model->plan->n_vocab * sizeof *flight.logits);
    return flight.requests ? qn_cuda_finish_sampling(model, &flight.sampling, flight.requests) : QN_OK;
}

/* Before inputs and logits of an earlier part of the step are overwritten. */
static qn_status wait_for_flight(qn_cuda_model *model)
{
    if (!model->flights[model->block].is_queued)
        return QN_OK;
    QN_TRY(qn_cuda_stream_synchronize(model->cuda, model->stream));
    return finish_flight(model);
}

static qn_status queue_launches(const struct batch *b)
{
    qn_cuda_model *model = b->step.model;
    const size_t n_vocab = model->plan->n_vocab;
    QN_TRY(qn_cuda_prepare_decode(&b->step));
    QN_TRY(qn_cuda_upload_inputs(&b->step));
    QN_TRY(qn_cuda_run_trunk(&b->step));
    model->flights[model->block] = (qn_cuda_flight){ .is_queued = true };
    for (size_t i = 0, n; i < b->n_logits; i += n) {
        n = b->n_logits - i < model->logit_rows ? b->n_logits - i : model->logit_rows;
        if (i)
            QN_TRY(wait_for_flight(model));
        QN_TRY(run_logits(b, i, n));
        if (b->logits)
            QN_TRY(qn_cuda_download(model->cuda, model->stream, b->logits + i * n_vocab, model->logits.address,
                                    n * n_vocab * sizeof *b->logits));
        if (b->requests)
            QN_TRY(queue_sampling(b, i, n));
    }
    return QN_OK;
}

static qn_cuda_launched *launched_step(qn_cuda_model *model, uint64_t number)
{
    return &model->launched[number % (QN_CUDA_BLOCKS + 1)];
}

static qn_status queue_batch(struct batch *b, const qn_cuda_launched *launched)
{
    QN_TRY(wait_for_flight(b->step.model));
    QN_TRY(prepare(b));
    if (!b->first && launched->is_timed)
        QN_TRY(qn_cuda_event_record(b->step.model->cuda, launched->started, b->step.model->stream));
    QN_TRY(qn_cuda_poison_step(&b->step));
    if (b->step.is_decode || b->step.n == 1)
        QN_TRY(qn_cuda_fold_full_chunks(&b->step));
    return b->step.is_decode ? queue_decode(b) : queue_launches(b);
}

/* A step that another one is in front of must be queued without waiting. */
static qn_status check_ahead(const qn_cuda_model *model, const qn_step *step, const struct batch *first)
{
    if (model->n_launched == model->n_finished || (first->n_rows == step->n_rows && first->n_logits <= model->logit_rows))
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "step: launched while another is in flight, with more sequences than %zu",
                   model->base.ahead);
}

/* Whether the requests of a step, which is one batch, are prepared while it is computed. */
static bool may_sample_later(const qn_step *step, const struct batch *b)
{
    bool prepares = false;
    for (size_t i = 0; b->requests && i < b->n_logits; i++)
        prepares = prepares || b->requests[i].prepare;
    return prepares && !b->logits && b->n_rows == step->n_rows && b->n_logits <= b->step.model->logit_rows;
}

/* Queues all batches of a step, and waits for all but the last. */
static qn_status queue_step(qn_cuda_model *model, const qn_step *step)
{
    const qn_cuda_launched *launched = launched_step(model, model->n_launched);
    for (size_t row = 0, logit = 0; row < step->n_rows;) {
        struct batch b = batch_of(model, step, row, logit);
        QN_TRY(check_ahead(model, step, &b));
        b.samples_later = may_sample_later(step, &b);
        QN_TRY(queue_batch(&b, launched));
        row += b.n_rows;
        logit += b.n_logits;
    }
    return qn_cuda_event_record(model->cuda, launched->computed, model->stream);
}

/* After a failure: the caller may free what queued kernels access. */
static qn_status abandon_block(qn_cuda_model *model, qn_status status)
{
    char text[QN_ERROR_TEXT_MAX];
    memcpy(text, qn_error_text(), sizeof text);
    (void)qn_cuda_stream_synchronize(model->cuda, model->stream);
    model->flights[model->block].is_queued = false;
    return qn_fail(status, "%s", text);
}

/* A step takes the block that no step in flight has. is_timed: the time between it and the step before is measured. */
static qn_status launch(qn_device *device, const qn_step *step, bool is_timed)
{
    qn_cuda_model *model = cuda_model_of(device);
    pthread_mutex_lock(&model->stream_lock);
    qn_cuda_use_block(model, model->flights[0].is_queued);
    qn_cuda_launched *launched = launched_step(model, model->n_launched);
    launched->block = model->block;
    launched->is_timed = is_timed;
    qn_status status = queue_step(model, step);
    if (status != QN_OK)
        status = abandon_block(model, status);
    else
        model->n_launched++;
    pthread_mutex_unlock(&model->stream_lock);
    return status;
}

static qn_status device_launch(qn_device *device, const qn_step *step)
{
    return launch(device, step, true);
}

static qn_status queue_later_sampling(qn_cuda_model *model, qn_cuda_flight *flight, const qn_cuda_launched *launched)
{
    flight->awaits_sampling = false;
    QN_TRY(
        qn_cuda_fill_sampling_later(model, flight->requests, flight->sampling.n, flight->sampling.params, &flight->sampling));
    QN_TRY(qn_cuda_run_sampler(model, &flight->sampling));
    return qn_cuda_event_record(model->cuda, launched->computed, model->stream);
}

static qn_status device_sample(qn_device *device)
{
    qn_cuda_model *model = cuda_model_of(device);
    if (model->n_launched == model->n_finished)
        return QN_OK;
    const qn_cuda_launched *launched = launched_step(model, model->n_launched - 1);
    qn_cuda_flight *flight = &model->flights[launched->block];
    if (!flight->awaits_sampling)
        return QN_OK;
    qn_cuda_prepare_requests(model, flight->requests, flight->sampling.n);
    pthread_mutex_lock(&model->stream_lock);
    qn_cuda_use_block(model, launched->block);
    qn_status status = queue_later_sampling(model, flight, launched);
    if (status != QN_OK) {
        status = abandon_block(model, status);
        model->n_finished++;
    }
    pthread_mutex_unlock(&model->stream_lock);
    return status;
}

/* Between the step before and this one, of which both have been computed. */
static double measure_idle(qn_cuda_model *model, uint64_t number)
{
    double seconds = 0;
    if (number && launched_step(model, number)->is_timed &&
        qn_cuda_event_seconds(model->cuda, launched_step(model, number - 1)->computed, launched_step(model, number)->started,
                              &seconds) != QN_OK)
        return 0;
    return seconds;
}

static qn_status device_finish(qn_device *device)
{
    qn_cuda_model *model = cuda_model_of(device);
    const uint64_t number = model->n_finished;
    const qn_cuda_launched *launched = launched_step(model, number);
    qn_status status = qn_cuda_event_synchronize(model->cuda, launched->computed);
    pthread_mutex_lock(&model->stream_lock);
    qn_cuda_use_block(model, launched->block);
    if (status == QN_OK)
        status = finish_flight(model);
    qn_cuda_poison_block(model);
    device->idle_seconds = status == QN_OK ? measure_idle(model, number) : 0;
    if (status != QN_OK)
        status = abandon_block(model, status);
    model->n_finished++;
    pthread_mutex_unlock(&model->stream_lock);
    return status;
}

/* Of steps that the caller waits for, what the device waited before them is not measured. */
static qn_status device_run(qn_device *device, const qn_step *step)
{
    QN_TRY(launch(device, step, false));
    QN_TRY(device_sample(device));
    return device_finish(device);
}

/* ---- The device ---- */

static void device_free(qn_device *device)
{
    qn_cuda_model *model = cuda_model_of(device);
    if (model->cuda) {
        qn_cuda_kept_tables_free(model);
        qn_cuda_caches_free(model->caches);
        qn_cuda_graphs_free(model);
        qn_cuda_buffers_free(model);
        qn_cuda_weights_free(model);
        for (size_t i = 0; i <= QN_CUDA_BLOCKS; i++) {
            qn_cuda_event_free(model->cuda, model->launched[i].started);
            qn_cuda_event_free(model->cuda, model->launched[i].computed);
        }
        if (model->stream)
            qn_cuda_stream_free(model->cuda, model->stream);
        qn_cuda_close(model->cuda);
    }
    qn_free(model->buffers);
    qn_free(model->acts);
    pthread_mutex_destroy(&model->stream_lock);
    qn_free(model->pieces);
    qn_free(model);
}

static qn_status device_reserve(qn_device *device, size_t max_rows, size_t max_positions)
{
    qn_cuda_model *model = cuda_model_of(device);
    if (model->deterministic) { /* attention is divided by max_positions; from some number on no further */
        max_rows = max_rows > 2 ? max_rows : 2;
        max_positions = max_positions > MANY_POSITIONS ? max_positions : MANY_POSITIONS;
    }
    pthread_mutex_lock(&model->stream_lock);
    const qn_status status = qn_cuda_buffers_reserve(model, max_rows, max_positions);
    /* The host needs tokens to dequantise their embeddings; `deterministic` steps are several batches. */
    device->ahead = model->table.tiled_matrix && !model->deterministic ? QN_CUDA_MAX_SEQUENCES : 0;
    pthread_mutex_unlock(&model->stream_lock);
    return status;
}

static qn_status device_upload(qn_device *device, const uint8_t *data, bool *taken)
{
    return qn_cuda_weights_upload(cuda_model_of(device), data, taken);
}

static qn_status device_read_rate(qn_device *device, double *rate)
{
    qn_cuda_model *model = cuda_model_of(device);
    pthread_mutex_lock(&model->stream_lock);
    const qn_status status = qn_cuda_read_rate(model->cuda, model->stream, rate);
    pthread_mutex_unlock(&model->stream_lock);
    return status;
}

static const qn_device_vtable vtable = {
    .free = device_free,
    .reserve = device_reserve,
    .run = device_run,
    .launch = device_launch,
    .sample = device_sample,
    .finish = device_finish,
    .memory_new = qn_cuda_memory_new,
    .upload = device_upload,
    .read_rate = device_read_rate,
};

/* QN_CUDA=launches: every operation is a separate launch, for comparison with the persistent decode kernel. */
static qn_status read_environment(bool *launches_only)
{
    const char *how = getenv("QN_CUDA");
    *launches_only = how && !strcmp(how, "launches");
    if (how && *how && !*launches_only && strcmp(how, "persistent"))
        return qn_fail(QN_ERR_INVALID, "QN_CUDA is '%.32s', expected persistent or launches", how);
    return QN_OK;
}

static qn_status create(qn_cuda_model *model, const qn_cuda_executor_params *params)
{
    const qn_cuda_params open = { .ordinal = params->ordinal,
                                  .driver = params->driver,
                                  .tools = params->tools,
                                  .on_log = params->base.on_log,
                                  .user = params->base.user };
    const qn_attention_shape *h = &model->plan->heads;
    QN_TRY(read_environment(&model->launches_only));
    QN_TRY(qn_cuda_open(&open, &model->cuda));
    const qn_cuda_info *info = qn_cuda_get_info(model->cuda);
    model->matmul =
        (qn_matmul_gpu){ .n_sms = info->n_sms, .max_shared_bytes = info->max_shared_bytes, .clusters = info->major >= 9 };
    model->persistent_gpu =
        (qn_persistent_gpu){ .n_sms = info->n_sms, .max_shared_bytes = info->max_shared_bytes, .major = info->major };
    model->gdn = (qn_gdn_gpu){ .n_sms = info->n_sms, .max_shared_bytes = info->max_shared_bytes };
    model->attention = (qn_attention_gpu){ .head_dim = h->head_dim,
                                           .n_heads = h->n_heads,
                                           .n_kv_heads = h->n_kv_heads,
                                           .key_bits = 16,
                                           .value_bits = 16,
                                           .deterministic = model->deterministic,
                                           .n_sms = info->n_sms,
                                           .max_shared_bytes = info->max_shared_bytes };
    QN_TRY(qn_attention_gpu_check(&model->attention));
    QN_TRY(qn_cuda_stream_create(model->cuda, &model->stream));
    for (size_t i = 0; i <= QN_CUDA_BLOCKS; i++) {
        QN_TRY(qn_cuda_event_create(model->cuda, &model->launched[i].started));
        QN_TRY(qn_cuda_event_create(model->cuda, &model->launched[i].computed));
    }
    QN_TRY(qn_cuda_kept_tables_init(&model->kept_tables));
    QN_TRY(qn_cuda_caches_create(model, &model->caches));
    QN_TRY(qn_alloc(&model->buffers, model->plan->n_buffers, sizeof *model->buffers, "plan"));
    QN_TRY(qn_alloc(&model->acts, model->plan->n_acts, sizeof *model->acts, "plan"));
    QN_TRY(qn_alloc(&model->pieces, QN_CUDA_MAX_SEQUENCES, sizeof *model->pieces, "step"));
    return qn_cuda_weights_create(model);
}

qn_status qn_cuda_executor_create(const qn_cuda_executor_params *params, qn_device **out)
{
    qn_cuda_model *model;
    *out = NULL;
    QN_TRY(qn_alloc(&model, 1, sizeof *model, "device"));
    *model = (qn_cuda_model){ .base = { .vtable = &vtable, .batch = BATCH, .prompt_multiple = QN_GDN_CHUNK_TOKENS },
                              .plan = params->base.plan,
                              .deterministic = params->base.deterministic,
                              .memory_limit = params->base.memory,
                              .team = params->base.team };
    qn_hadamard_kernels_init(&model->hadamard, params->base.cpu);
    qn_sample_kernels_init(&model->sample, params->base.cpu);
    model->base.piece = model->deterministic ? QN_GDN_CHUNK_TOKENS : 0;
    snprintf(model->base.name, sizeof model->base.name, "cuda:%d", params->ordinal);
    const int error = pthread_mutex_init(&model->stream_lock, NULL);
    if (error) {
        qn_free(model);
        return qn_fail(QN_ERR_MEMORY, "device: no mutex: %s", strerror(error));
    }
    const qn_status status = create(model, params);
    if (status != QN_OK) {
        char text[QN_ERROR_TEXT_MAX]; /* device_free may overwrite it */
        memcpy(text, qn_error_text(), sizeof text);
        device_free(&model->base);
        return qn_fail(status, "%s", text);
    }
    *out = &model->base;
    return QN_OK;
}
