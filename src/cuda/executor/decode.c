/* Decode steps as CUDA graphs: one for each bucket of rows, block and cache format, captured when first needed; and
 * steps that verify a draft of one sequence, and those of a block drafter for one, by their rows. A graph serves all
 * sequences: its kernels read positions, page tables and items of states from the step's inputs. */
#include "cuda/executor/decode.h"

#include "cuda/executor/attention.h"
#include "cuda/executor/executor.h"
#include "cuda/executor/inputs.h"

#include <string.h>

static qn_status run_decode(const qn_cuda_rows_step *s, const qn_cuda_sampling *sampling, bool copies_logits)
{
    QN_TRY(qn_cuda_upload_inputs(s));
    QN_TRY(s->is_draft ? qn_cuda_run_draft(s) : qn_cuda_run_trunk(s));
    if (!s->is_draft) /* what a draft stores is stored again */
        QN_TRY(qn_cuda_quantize_pages(s));
    qn_cuda_rows_step logits = *s;
    logits.row += s->n_known;
    logits.n -= s->n_known;
    QN_TRY(qn_cuda_run_logits(&logits));
    if (sampling)
        return qn_cuda_run_sampler(s->sampler, sampling);
    if (!copies_logits)
        return QN_OK;
    return qn_cuda_copy_d2h(s->common->cuda, s->common->stream, s->workspace->host_logits, s->workspace->logits.address,
                            s->common->plan->n_vocab * sizeof *s->workspace->host_logits);
}

static qn_status capture(const qn_cuda_rows_step *s, const qn_cuda_sampling *sampling, bool copies_logits,
                         qn_cuda_captured *to)
{
    if (to->graph && to->generation == s->workspace->generation)
        return QN_OK;
    QN_TRY(qn_cuda_capture_begin(s->common->cuda, s->common->stream));
    const qn_status status = run_decode(s, sampling, copies_logits);
    if (status != QN_OK) {
        char text[QN_ERROR_TEXT_MAX];
        memcpy(text, qn_error_text(), sizeof text);
        (void)qn_cuda_capture_end(s->common->cuda, s->common->stream, NULL);
        return qn_fail(status, "%s", text);
    }
    QN_TRY(qn_cuda_capture_end(s->common->cuda, s->common->stream, &to->graph));
    to->generation = s->workspace->generation;
    return QN_OK;
}

/* Returns the graph of a step. */
static qn_cuda_captured *captured_of(const qn_cuda_rows_step *s, const qn_cuda_sampling *sampling, bool copies_logits)
{
    const size_t block = s->block, bucket = qn_gpu_bucket_index(s->n),
                 one_row = sampling ? (size_t)sampling->mode : (size_t)QN_SAMPLE_MODES + copies_logits;
    if (s->is_block)
        return &s->graphs->drafted_blocks[block][s->n];
    if (s->is_draft)
        return sampling ? &s->graphs->sampled_drafts[block][sampling->mode] : &s->graphs->drafts[block][bucket];
    if (s->verifies)
        return &s->graphs->verified[block][s->attends_together][s->n];
    return s->n > 1 ? &s->graphs->buckets[block][bucket] : &s->graphs->one_row[block][one_row];
}

qn_status qn_cuda_launch_decode(const qn_cuda_rows_step *s, const qn_cuda_sampling *sampling, bool copies_logits)
{
    qn_cuda_captured *captured = captured_of(s, sampling, copies_logits);
    if (s->in_turn)
        return run_decode(s, NULL, false);
    QN_TRY(qn_cuda_prepare_decode(s));
    QN_TRY(capture(s, sampling, copies_logits, captured));
    return qn_cuda_graph_launch(s->common->cuda, captured->graph, s->common->stream);
}
