/* How many tokens of context fit in the memory of a model's sessions. */
#include "engine/calls.h"

#include "base/params.h"

qn_status qn_model_find_cache(qn_model *model, const qn_kv_format *format, qn_memory_params *params,
                              const qn_cache **cache)
{
    qn_memory *memory;
    params->format = format;
    QN_TRY(qn_kept_memory_new(&model->kept, model->device, params, &memory));
    *cache = memory->sequence->cache;
    memory->vtable->free(memory);
    return QN_OK;
}

uint32_t qn_model_default_context(const qn_model *model, const qn_cache *cache)
{
    const uint32_t trained = model->hparams.n_ctx_train < QN_MAX_CTX ? model->hparams.n_ctx_train : QN_MAX_CTX;
    const uint64_t held = qn_cache_length(cache, 1);
    return held && held < trained ? (uint32_t)held : trained;
}

static uint64_t stride_of(const qn_pool_class *class)
{
    return class ? qn_pool_stride(class) : 0;
}

qn_status qn_model_get_capacity(qn_model *model, const char *kv, uint32_t n_sequences, qn_capacity *capacity)
{
    qn_memory_params params = { .n_ctx = 1, .n_batch = 1 };
    const qn_kv_format *format;
    const qn_cache *cache;
    QN_TRY(QN_RESULT_CHECK(qn_capacity, capacity));
    QN_TRY(qn_model_enter(model, __func__));
    if (!model->device)
        return qn_fail(QN_ERR_INVALID, "%s: loaded with vocab_only, cannot be run", qn_gguf_path(model->file));
    if (!n_sequences)
        return qn_fail(QN_ERR_INVALID, "sequences: 0, expected at least 1");
    QN_TRY(qn_model_kv_format(model, kv, &format));
    QN_TRY(qn_model_find_cache(model, format, &params, &cache));
    const qn_capacity found = { .memory_limit =
                                    qn_pool_get_usage(qn_pool_of(cache->pages ? cache->pages : cache->states)).budget,
                                .bytes_per_position = stride_of(cache->pages) / QN_PAGE,
                                .bytes_per_sequence = stride_of(cache->states) + stride_of(cache->open_chunks) +
                                                      2 * stride_of(cache->f16_pages),
                                .tokens_per_sequence = qn_cache_length(cache, n_sequences) };
    qn_result_write(&found, sizeof found, capacity);
    return QN_OK;
}
