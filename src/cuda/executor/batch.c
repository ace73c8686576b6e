/* Divides a step into batches of rows that are executed together, and sets their order and their inputs. */
#include "cuda/executor/batch.h"

#include "cuda/executor/attention.h"
#include "cuda/executor/executor.h"
#include "cuda/executor/inputs.h"

/* The number of rows of the first sequence. */
static size_t first_piece(const qn_row *rows, size_t n_rows)
{
    size_t n = 1;
    while (n < n_rows && rows[n].memory == rows->memory)
        n++;
    return n;
}

static qn_gpu_memory *memory_of(const qn_row *row)
{
    return (qn_gpu_memory *)row->memory;
}

/* A decode step has logits of all rows. */
static bool has_logits(const qn_step *step, size_t row, size_t logit)
{
    return logit < step->n_logit_rows && step->logit_rows[logit] == row;
}

/* Whether two memories can be in one step. */
static bool is_same_format(const qn_gpu_memory *a, const qn_gpu_memory *b)
{
    return qn_gpu_same_cache(a->format, b->format);
}

/* With `deterministic`: whether the piece of n rows after batch b can be executed with it. In passes of up to same_rows
 * rows, a row is computed by the same operations for any number of rows; larger pieces share no pass with other
 * sequences. */
static bool may_join(const qn_cuda_batch *b, const qn_step *step, size_t n, size_t logit)
{
    const size_t row = b->first + b->n_rows;
    return !b->n_rows || (n == 1 && b->n_rows == b->step.n_pieces && b->n_rows < b->step.weights->same_rows &&
                          has_logits(step, row - 1, logit + b->n_rows - 1) && has_logits(step, row, logit + b->n_rows));
}

qn_cuda_batch qn_cuda_batch_of(qn_cuda_model *model, const qn_step *step, size_t row, size_t logit)
{
    const qn_row *rows = step->rows + row;
    const size_t n_vocab = model->common.plan->n_vocab;
    qn_cuda_batch b = { .model = model,
                        .step = { .common = &model->common,
                                  .weights = &model->weights,
                                  .workspace = &model->workspace,
                                  .sampler = model->sampler,
                                  .block = model->flights.block,
                                  .pieces = model->flights.pieces },
                        .rows = rows,
                        .logit_rows = step->logit_rows + logit,
                        .first = row,
                        .logits = step->logits ? step->logits + logit * n_vocab : NULL,
                        .requests = step->requests ? step->requests + logit : NULL };
    while (row + b.n_rows < step->n_rows && b.step.n_pieces < QN_GPU_MAX_SEQUENCES &&
           is_same_format(memory_of(&rows[b.n_rows]), memory_of(rows))) {
        const size_t n = first_piece(rows + b.n_rows, step->n_rows - row - b.n_rows);
        if (model->common.deterministic && !may_join(&b, step, n, logit))
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
static void add_pieces(qn_cuda_batch *b, bool prefill, size_t *n_pieces)
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
                qn_cuda_host_input(s, s->inputs.logit_rows)[logit] =
                    (uint32_t)(s->n + b->logit_rows[logit] - b->first - row);
        if (!add)
            continue;
        b->model->flights.pieces[(*n_pieces)++] = piece;
        s->n += n;
    }
}

/* The number of rows to execute for a decode step of n rows: a bucket. A single row gets a second one if it must be
 * computed as rows of larger steps are. */
static size_t padded(const qn_cuda_common *common, size_t n)
{
    return qn_gpu_bucket(n == 1 && common->deterministic ? 2 : n);
}

static void pad(qn_cuda_rows_step *s, qn_cuda_piece *pieces)
{
    for (size_t n = padded(s->common, s->n); s->n < n; s->n++)
        pieces[s->n_pieces++] = (qn_cuda_piece){ .memory = s->pieces->memory, .row = (uint32_t)s->n, .n = 1 };
    s->n_few = s->n;
}

qn_status qn_cuda_batch_prepare(qn_cuda_batch *b)
{
    qn_cuda_rows_step *s = &b->step;
    size_t n_pieces = 0;
    const size_t n_padded = padded(s->common, b->n_rows);
    s->is_decode =
        s->n_pieces == b->n_rows && (b->n_logits == b->n_rows || (b->n_rows == 1 && s->common->deterministic));
    QN_TRY(qn_cuda_graphs_of(&b->model->graphs, qn_cuda_format_of(memory_of(b->rows)), &s->graphs));
    if (s->is_decode)
        s->inputs = qn_gpu_inputs_of(n_padded, n_padded, 0);
    else
        s->inputs = qn_gpu_inputs_of(b->n_rows, s->n_pieces, b->n_logits);
    add_pieces(b, false, &n_pieces);
    s->n_few = s->n;
    add_pieces(b, true, &n_pieces);
    if (s->is_decode)
        pad(s, b->model->flights.pieces);
    s->in_phases = s->is_decode && qn_cuda_has_phases(s->workspace, s->n);
    qn_cuda_fill_inputs(s);
    /* A graph always uploads the same number of bytes. */
    s->n_samples = s->is_decode ? s->n : b->requests ? b->n_logits : 0;
    b->sampling = (qn_cuda_sampling){ .n = b->n_logits, .params = s->inputs.sampling, .block = s->block };
    if (!b->requests || b->samples_later)
        return QN_OK;
    qn_cuda_prepare_requests(s->common, b->requests, b->n_logits);
    return qn_cuda_fill_sampling(s->sampler, b->requests, b->n_logits, &b->sampling);
}
