/* Decode steps as CUDA graphs: one for each bucket of rows and each cache format of a model, captured when it is first needed.
 * A graph serves all sequences: its kernels read positions, page tables and items of states from the step's inputs. */
#include "device/cuda/operations.h"

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
    return a->attention.key_bits == b->attention.key_bits && a->attention.value_bits == b->attention.value_bits;
}

qn_status qn_cuda_format_of(qn_cuda_model *model, const qn_cuda_memory *memory, qn_cuda_format **out)
{
    const qn_attention_gpu *a = &memory->attention;
    for (*out = model->formats; *out; *out = (*out)->next)
        if ((*out)->key_bits == a->key_bits && (*out)->value_bits == a->value_bits)
            return QN_OK;
    QN_TRY(qn_alloc(out, 1, sizeof **out, "graphs"));
    **out = (qn_cuda_format){ .next = model->formats, .key_bits = a->key_bits, .value_bits = a->value_bits };
    model->formats = *out;
    return QN_OK;
}

void qn_cuda_formats_free(qn_cuda_model *model)
{
    for (qn_cuda_format *format; (format = model->formats);) {
        model->formats = format->next;
        for (size_t i = 0; i < sizeof format->one_row / sizeof *format->one_row; i++)
            qn_cuda_graph_free(model->cuda, format->one_row[i].graph);
        for (size_t i = 0; i < QN_CUDA_N_BUCKETS; i++)
            qn_cuda_graph_free(model->cuda, format->buckets[i].graph);
        qn_cuda_free(model->cuda, &format->decode_plan.memory);
        free(format->decode_plan.segments);
        free(format->decode_plan.phases);
        qn_free(format);
    }
}

/* ---- Graphs ---- */

static qn_status run_decode(const qn_cuda_rows_step *s, const qn_cuda_sampling *sampling)
{
    qn_cuda_model *model = s->model;
    QN_TRY(qn_cuda_upload_inputs(s));
    QN_TRY(qn_cuda_run_trunk(s));
    QN_TRY(qn_cuda_quantize_pages(s));
    QN_TRY(qn_cuda_run_logits(s));
    if (s->n > 1)
        return QN_OK;
    if (sampling)
        return qn_cuda_run_sampler(model, sampling);
    return qn_cuda_copy_d2h(model->cuda, model->stream, model->host_logits, model->logits.address,
                            model->plan->n_vocab * sizeof *model->host_logits);
}

static qn_status capture(const qn_cuda_rows_step *s, const qn_cuda_sampling *sampling, qn_cuda_captured *to)
{
    qn_cuda_model *model = s->model;
    if (to->graph && to->generation == model->generation)
        return QN_OK;
    QN_TRY(qn_cuda_capture_begin(model->cuda, model->stream));
    const qn_status status = run_decode(s, sampling);
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

qn_status qn_cuda_launch_decode(const qn_cuda_rows_step *s, const qn_cuda_sampling *sampling)
{
    qn_cuda_captured *captured =
        s->n > 1 ? &s->format->buckets[bucket_index(s->n)] : &s->format->one_row[sampling ? sampling->mode : QN_SAMPLE_MODES];
    if (s->n == 1)
        QN_TRY(qn_cuda_prepare_decode(s));
    QN_TRY(capture(s, sampling, captured));
    return qn_cuda_graph_launch(s->model->cuda, captured->graph, s->model->stream);
}
