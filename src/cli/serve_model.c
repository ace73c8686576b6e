/* A model of quern serve: its name, context, sampling and scheduler. Values that the command line does not set come
 * from the model's file, or are the library's defaults. */
#include "cli/serve_model.h"

#include "base/status.h"
#include "cache/sequence.h"
#include "cli/cli.h"
#include "cli/draft.h"
#include "cli/effort.h"
#include "gguf/gguf.h"
#include "quern/grammar.h"

#include <pthread.h>
#include <string.h>

enum { CPU_SEQUENCES = 16, GPU_SEQUENCES = 64, OTHER_BYTES = 12 << 20 };

/* Reads the sampling that the file recommends. */
static qn_status read_sampling(const char *path, qn_sampling *sampling)
{
    qn_gguf *file;
    uint32_t top_k = (uint32_t)sampling->top_k, last_n = (uint32_t)sampling->repeat_last_n;
    const qn_status status = qn_gguf_open_alone(path, &file);
    if (status)
        return status;
    const bool is_read = !qn_gguf_get_f32(file, "general.sampling.temp", false, &sampling->temperature) &&
                         !qn_gguf_get_u32(file, "general.sampling.top_k", false, &top_k) &&
                         !qn_gguf_get_f32(file, "general.sampling.top_p", false, &sampling->top_p) &&
                         !qn_gguf_get_f32(file, "general.sampling.min_p", false, &sampling->min_p) &&
                         !qn_gguf_get_f32(file, "general.sampling.penalty_repeat", false, &sampling->repeat_penalty) &&
                         !qn_gguf_get_u32(file, "general.sampling.penalty_last_n", false, &last_n);
    qn_gguf_close(file);
    sampling->top_k = top_k < INT32_MAX ? (int)top_k : 0;
    sampling->repeat_last_n = last_n < INT32_MAX ? (int)last_n : INT32_MAX;
    if (!is_read)
        return QN_ERR_FORMAT;
    const bool is_valid = sampling->temperature >= 0 && sampling->top_p > 0 && sampling->top_p <= 1 &&
                          sampling->min_p >= 0 && sampling->min_p < 1 && sampling->repeat_penalty >= 1e-3F &&
                          sampling->repeat_penalty <= 1e3F;
    return is_valid ? QN_OK : QN_ERR_INVALID;
}

/* Returns the sampling values: the options', else the file's if they are valid, else the defaults. */
static qn_sampling choose_sampling(const qn_args *args, const char *path)
{
    qn_sampling sampling = QN_SAMPLING_INIT;
    if (read_sampling(path, &sampling)) {
        if (!args->quiet)
            qn_cli_note("general.sampling of the model is not valid, and is ignored");
        sampling = (qn_sampling)QN_SAMPLING_INIT;
    }
    qn_args_put_sampling(args, &sampling);
    return sampling;
}

void qn_serve_name(const char *path, char name[QN_REGISTRY_NAME_BYTES])
{
    const char *const slash = strrchr(path, '/'), *const file = slash ? slash + 1 : path;
    const size_t length = strlen(file);
    uint32_t number, count;
    snprintf(name, QN_REGISTRY_NAME_BYTES, "%s", file);
    if (length >= QN_REGISTRY_NAME_BYTES || length < 6 || strcmp(file + length - 5, ".gguf") != 0)
        return;
    name[length - 5] = 0;
    if (qn_gguf_split_numbers(file, &number, &count))
        name[length - strlen("-00001-of-00001.gguf")] = 0;
}

static qn_status create_scheduler(const qn_args *args, qn_model *model, const char *kv, uint32_t n_ctx,
                                  uint32_t n_parallel, qn_scheduler **out)
{
    const qn_scheduler_params params = { .size = sizeof(qn_scheduler_params),
                                         .kv = kv,
                                         .n_ctx = n_ctx,
                                         .max_sequences = n_parallel,
                                         .max_queued = (uint32_t)args->max_queued,
                                         .max_rows = (uint32_t)args->batch,
                                         .prefix_states = args->prefix_cache == QN_BYTES_OFF ? 0 : args->prefix_cache,
                                         .no_prefix_cache = args->prefix_cache == QN_BYTES_OFF,
                                         .prefix_host = args->prefix_host == QN_BYTES_OFF ? 0 : args->prefix_host,
                                         .no_prefix_host = args->prefix_host == QN_BYTES_OFF,
                                         .on_log = args->quiet ? NULL : qn_cli_log_note,
                                         .draft = qn_find_draft(args) };
    return qn_scheduler_create(model, &params, out);
}

static uint32_t choose_parallel(const qn_args *args, const qn_model *model)
{
    const uint32_t most = strcmp(qn_model_get_info(model)->device, "cpu") ? GPU_SEQUENCES : CPU_SEQUENCES;
    if (args->sequences)
        return (uint32_t)args->sequences;
    return args->batch && args->batch < most ? (uint32_t)args->batch : most;
}

uint64_t qn_serve_weight_bytes(uint64_t file_bytes)
{
    return file_bytes + file_bytes / 32 + OTHER_BYTES;
}

static qn_pooling choose_pooling(const qn_args *args)
{
    const char *const given = args->pooling ? args->pooling : "";
    return !strcmp(given, "mean")   ? QN_POOLING_MEAN
           : !strcmp(given, "cls")  ? QN_POOLING_CLS
           : !strcmp(given, "last") ? QN_POOLING_LAST
                                    : QN_POOLING_NONE;
}

static char fingerprint[32]; /* in answers */

static void make_fingerprint(void)
{
    snprintf(fingerprint, sizeof fingerprint, "quern-%s", qn_version());
}

qn_status qn_serve_prepare(const qn_args *args, const char *path, qn_model *model, qn_registered *out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    qn_capacity capacity = QN_CAPACITY_INIT;
    pthread_once(&once, make_fingerprint);
    const uint32_t n_parallel = choose_parallel(args, model);
    const char *const kv = qn_choose_kv(args, model);
    QN_TRY(qn_model_get_capacity(model, kv, 1, &capacity));
    (void)qn_grammar_prepare(model); /* an error returns with the first constrained request */
    if (!capacity.tokens_per_sequence)
        return qn_fail(QN_ERR_MEMORY, "serve: the memory does not hold a request; see --memory");
    const uint32_t n_ctx = qn_choose_context(args, model, &capacity);
    const uint64_t page_bytes = capacity.bytes_per_position * QN_PAGE;
    QN_TRY(create_scheduler(args, model, kv, n_ctx, n_parallel, &out->scheduler));
    size_t n_breakers;
    const char *const *breakers = qn_breaker_texts(args, &n_breakers);
    out->served = (qn_served){ .model = model,
                               .fingerprint = fingerprint,
                               .n_ctx = n_ctx,
                               .max_tokens = args->max_tokens,
                               .sampling = choose_sampling(args, path),
                               .breakers = breakers,
                               .n_breakers = n_breakers,
                               .effort = qn_choose_effort(args, model),
                               .thinking = qn_choose_thinking(args),
                               .pooling = choose_pooling(args),
                               .max_inputs = (size_t)args->max_queued,
                               .reasoning_budget = args->reasoning_budget };
    out->n_parallel = n_parallel;
    out->page_tokens = QN_PAGE;
    out->n_pages = page_bytes ? capacity.memory_limit / page_bytes : 0;
    out->bytes = qn_serve_weight_bytes(qn_model_get_info(model)->file_bytes) + capacity.memory_limit;
    return QN_OK;
}
