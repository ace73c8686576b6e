/* Decode steps as CUDA graphs: one for each bucket of rows, block and cache format of a model, captured when first needed.
 * A graph serves all sequences: its kernels read positions, page tables and items of states from the step's inputs. */
#include "cuda/executor/operations.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static const size_t buckets[] = { QN_CUDA_BUCKETS };
_Static_assert(sizeof buckets / sizeof *buckets == QN_CUDA_N_BUCKETS, "a graph for each bucket");

static size_t bucket_index(size_t n)
{
    size_t i = 0;
    while (i < QN_CUDA_N_BUCKETS && buckets[i] < n)
        i++;
    return i;
}

size_t qn_cuda_bucket(size_t n)
{
    const size_t i = bucket_index(n);
    return i < QN_CUDA_N_BUCKETS ? buckets[i] : n;
}

/* ---- Formats ---- */

bool qn_cuda_same_format(const qn_cuda_memory *a, const qn_cuda_memory *b)
{
    return a->format->attention.key_bits == b->format->attention.key_bits &&
           a->format->attention.value_bits == b->format->attention.value_bits;
}

qn_status qn_cuda_graphs_of(qn_cuda_model *model, const qn_cuda_memory *memory, qn_cuda_graphs **out)
{
    const qn_attention_gpu *a = &memory->format->attention;
    for (*out = model->graphs; *out; *out = (*out)->next)
        if ((*out)->key_bits == a->key_bits && (*out)->value_bits == a->value_bits)
            return QN_OK;
    QN_TRY(qn_alloc(out, 1, sizeof **out, "graphs"));
    **out = (qn_cuda_graphs){ .next = model->graphs, .key_bits = a->key_bits, .value_bits = a->value_bits };
    model->graphs = *out;
    return QN_OK;
}

static void free_plan(qn_cuda_model *model, qn_cuda_decode_plan *plan)
{
    qn_cuda_free(model->cuda, &plan->memory);
    free(plan->segments);
    free(plan->phases);
}

void qn_cuda_graphs_free(qn_cuda_model *model)
{
    for (qn_cuda_graphs *graphs; (graphs = model->graphs);) {
        model->graphs = graphs->next;
        for (size_t block = 0; block < QN_CUDA_BLOCKS; block++) {
            for (size_t i = 0; i < QN_CUDA_ONE_ROW_GRAPHS; i++)
                qn_cuda_graph_free(model->cuda, graphs->one_row[block][i].graph);
            for (size_t i = 0; i < QN_CUDA_N_BUCKETS; i++)
                qn_cuda_graph_free(model->cuda, graphs->buckets[block][i].graph);
        }
        free_plan(model, &graphs->decode_plan);
        free_plan(model, &graphs->rows_plan);
        qn_free(graphs);
    }
}

/* ---- Graphs ---- */

static qn_status run_decode(const qn_cuda_rows_step *s, const qn_cuda_sampling *sampling, bool copies_logits)
{
    qn_cuda_model *model = s->model;
    QN_TRY(qn_cuda_upload_inputs(s));
    QN_TRY(qn_cuda_run_trunk(s));
    QN_TRY(qn_cuda_quantize_pages(s));
    QN_TRY(qn_cuda_run_logits(s));
    if (sampling)
        return qn_cuda_run_sampler(model, sampling);
    if (!copies_logits)
        return QN_OK;
    return qn_cuda_copy_d2h(model->cuda, model->stream, model->host_logits, model->logits.address,
                            model->plan->n_vocab * sizeof *model->host_logits);
}

static qn_status capture(const qn_cuda_rows_step *s, const qn_cuda_sampling *sampling, bool copies_logits, qn_cuda_captured *to)
{
    qn_cuda_model *model = s->model;
    if (to->graph && to->generation == model->generation)
        return QN_OK;
    QN_TRY(qn_cuda_capture_begin(model->cuda, model->stream));
    const qn_status status = run_decode(s, sampling, copies_logits);
    if (status != QN_OK) {
        char text[QN_ERROR_TEXT_MAX];
        memcpy(text, qn_error_text(), sizeof text);
        (void)qn_cuda_capture_end(model->cuda, model->stream, NULL);
        return qn_fail(status, "%s", text);
    }
    QN_TRY(qn_cuda_capture_end(model->cuda, model->stream, &to->graph));
    to->generation = model->generation;
    return QN_OK;
}

qn_status qn_cuda_launch_decode(const qn_cuda_rows_step *s, const qn_cuda_sampling *sampling, bool copies_logits)
{
    const size_t block = s->model->block, one_row = sampling ? (size_t)sampling->mode : (size_t)QN_SAMPLE_MODES + copies_logits;
    qn_cuda_captured *captured =
        s->n > 1 ? &s->graphs->buckets[block][bucket_index(s->n)] : &s->graphs->one_row[block][one_row];
    QN_TRY(qn_cuda_prepare_decode(s));
    QN_TRY(capture(s, sampling, copies_logits, captured));
    return qn_cuda_graph_launch(s->model->cuda, captured->graph, s->model->stream);
}
