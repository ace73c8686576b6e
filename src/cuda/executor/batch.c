/* Batches of rows as steps on the device: their graphs, inputs and sampling. */
#include "cuda/executor/batch.h"

#include "cuda/executor/attention.h"
#include "cuda/executor/executor.h"
#include "cuda/executor/inputs.h"
#include "cuda/kernels/attention/page_rows.h"
#include "cuda/kernels/deltanet/open_few.h"
#include "gpu/requests.h"

static qn_gpu_batching batching_of(const qn_cuda_model *model)
{
    return (qn_gpu_batching){ .n_vocab = model->common.plan->n_vocab,
                              .deterministic = model->common.deterministic,
                              .same_rows = model->weights.same_rows };
}

qn_cuda_batch qn_cuda_batch_of(qn_cuda_model *model, const qn_step *step, size_t row, size_t logit)
{
    const qn_gpu_batching batching = batching_of(model);
    return (qn_cuda_batch){ .model = model,
                            .part = qn_gpu_batch_of(&batching, step, row, logit),
                            .step = { .is_draft = step->is_draft,
                                      .common = &model->common,
                                      .weights = &model->weights,
                                      .workspace = &model->workspace,
                                      .sampler = model->sampler,
                                      .block = model->flights.block,
                                      .pieces = model->flights.pieces } };
}

/* Sets the step's rows and pieces in their order, and the rows of its logits. */
static void order_rows(qn_cuda_batch *b, const qn_gpu_batching *batching)
{
    qn_cuda_rows_step *s = &b->step;
    qn_gpu_piece *pieces = b->model->flights.pieces;
    qn_gpu_order order = qn_gpu_order_pieces(&b->part, qn_cuda_has_prefill, pieces,
                                             s->is_decode ? NULL : qn_cuda_host_input(s, s->inputs.logit_rows));
    if (s->is_decode)
        qn_gpu_pad(&order, qn_gpu_padded_rows(batching, order.n_rows), pieces);
    s->n_pieces = order.n_pieces;
    s->n = order.n_rows;
    s->n_few = order.n_few;
}

/* Whether the batch is a draft of one sequence to verify, within a page: where drafts may go on to the next one
 * (qn_sequence_max_drafted), those that do are launched as other steps are. */
static bool verifies(const qn_gpu_batching *batching, const qn_gpu_batch *part, bool is_draft)
{
    return !is_draft && !batching->deterministic && part->n_pieces == 1 && part->n_rows > 1 &&
           part->n_rows <= QN_CUDA_VERIFIED_ROWS && part->n_logits == part->n_rows &&
           part->rows->position % QN_PAGE + part->n_rows <= QN_PAGE;
}

/* Whether rows that verify a draft attend to the same codes together. */
static bool attends_together(const qn_gpu_batch *part)
{
    const qn_cuda_format *format = qn_cuda_format_of((qn_gpu_memory *)part->rows->memory);
    return qn_attention_gpu_has_page_rows(&format->attention, part->n_rows) &&
           part->rows->position >= qn_attention_gpu_page_rows_from(&format->attention);
}

/* Whether the batch is a block drafter's block of one sequence, with the logits of consecutive rows from the first or
 * the second on. *n_known: rows before them. A graph computes the logits of all rows after these. */
static bool is_block(const qn_plan *plan, const qn_gpu_batch *part, size_t *n_known)
{
    const size_t known = plan->head.from_anchor ? 0 : 1;
    if (!plan->head.block || part->n_pieces != 1 || part->n_rows > QN_CUDA_VERIFIED_ROWS || !part->n_logits ||
        part->logits)
        return false;
    for (size_t i = 0; i < part->n_logits; i++)
        if (part->logit_rows[i] - part->first != known + i)
            return false;
    *n_known = known;
    return true;
}

/* Whether the recurrent layers run kernels that do not fold. */
static bool fits_open_chunks(const qn_cuda_rows_step *s)
{
    const qn_recurrent_shape *r = &s->common->plan->recurrent;
    bool fits =
        !s->is_draft && !s->common->deterministic && qn_gdn_gpu_has_open_few(r->head_k, r->head_v, &s->common->gdn);
    for (size_t i = 0; fits && i < s->n_pieces; i++)
        fits = s->pieces[i].n <= QN_GDN_DROPPED_ROWS && s->pieces[i].position % QN_PAGE + s->pieces[i].n <= QN_PAGE;
    return fits;
}

qn_status qn_cuda_batch_prepare(qn_cuda_batch *b)
{
    const qn_gpu_batching batching = batching_of(b->model);
    const qn_gpu_batch *part = &b->part;
    qn_cuda_rows_step *s = &b->step;
    s->is_decode = qn_gpu_is_decode(&batching, part);
    s->verifies = verifies(&batching, part, s->is_draft);
    s->attends_together = s->verifies && attends_together(part);
    s->is_block = s->is_draft && is_block(s->common->plan, part, &s->n_known);
    const size_t n_rows = s->is_decode ? qn_gpu_padded_rows(&batching, part->n_rows) : part->n_rows;
    QN_TRY(qn_cuda_graphs_of(&b->model->graphs, qn_cuda_format_of((qn_gpu_memory *)part->rows->memory), &s->graphs));
    const size_t n_hidden = s->common->plan->head.draft ? n_rows : 0;
    const size_t n_logits = s->is_block ? n_rows : part->n_logits; /* a graph's inputs have the same places */
    s->inputs = s->is_decode ? qn_gpu_inputs_of(n_rows, n_rows, 0, n_hidden)
                             : qn_gpu_inputs_of(n_rows, part->n_pieces, n_logits, n_hidden);
    order_rows(b, &batching);
    s->fits_open_chunks = fits_open_chunks(s);
    s->in_turn = s->is_decode && qn_gpu_has_turns(s->pieces, s->n_pieces);
    s->in_phases = s->is_decode && !s->is_draft && !s->in_turn && qn_cuda_has_phases(s->workspace, s->n);
    qn_cuda_fill_inputs(s);
    /* A graph always uploads the same number of bytes. */
    s->n_samples = s->is_decode || s->verifies || s->is_block ? s->n : part->requests ? part->n_logits : 0;
    b->sampling = (qn_cuda_sampling){ .n = part->n_logits, .params = s->inputs.sampling, .block = s->block };
    if (!part->requests || b->samples_later)
        return QN_OK;
    qn_gpu_prepare_requests(s->common->team, part->requests, part->n_logits);
    return qn_cuda_fill_sampling(s->sampler, part->requests, part->n_logits, &b->sampling);
}
