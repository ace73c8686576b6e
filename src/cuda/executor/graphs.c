/* The lists of graphs and decode plans. */
#include "cuda/executor/graphs.h"

#include "base/memory.h"

#include <stdlib.h>

qn_status qn_cuda_graphs_of(qn_cuda_graphs **first, const qn_cuda_format *format, qn_cuda_graphs **out)
{
    const qn_attention_gpu *a = &format->attention;
    for (*out = *first; *out; *out = (*out)->next)
        if ((*out)->key_bits == a->key_bits && (*out)->value_bits == a->value_bits)
            return QN_OK;
    QN_TRY(qn_alloc(out, 1, sizeof **out, "graphs"));
    **out = (qn_cuda_graphs){ .next = *first, .key_bits = a->key_bits, .value_bits = a->value_bits };
    *first = *out;
    return QN_OK;
}

static void free_plan(qn_cuda *cuda, qn_cuda_decode_plan *plan)
{
    qn_cuda_free(cuda, &plan->memory);
    free(plan->segments);
    free(plan->phases);
}

void qn_cuda_graphs_free(qn_cuda *cuda, qn_cuda_graphs *first)
{
    for (qn_cuda_graphs *graphs; (graphs = first);) {
        first = graphs->next;
        for (size_t block = 0; block < QN_CUDA_BLOCKS; block++) {
            for (size_t i = 0; i < QN_CUDA_ONE_ROW_GRAPHS; i++)
                qn_cuda_graph_free(cuda, graphs->one_row[block][i].graph);
            for (size_t i = 0; i < QN_SAMPLE_MODES; i++)
                qn_cuda_graph_free(cuda, graphs->sampled_drafts[block][i].graph);
            for (size_t i = 0; i <= QN_CUDA_VERIFIED_ROWS; i++) {
                for (size_t together = 0; together < 2; together++)
                    qn_cuda_graph_free(cuda, graphs->verified[block][together][i].graph);
                qn_cuda_graph_free(cuda, graphs->drafted_blocks[block][i].graph);
            }
            for (size_t i = 0; i < QN_GPU_N_BUCKETS; i++) {
                qn_cuda_graph_free(cuda, graphs->buckets[block][i].graph);
                qn_cuda_graph_free(cuda, graphs->drafts[block][i].graph);
            }
        }
        free_plan(cuda, &graphs->decode_plan);
        free_plan(cuda, &graphs->rows_plan);
        qn_free(graphs);
    }
}
