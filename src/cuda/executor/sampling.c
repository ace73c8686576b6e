/* Sampling at the end of a step, on the device, for many rows; rows with mirostat or log probabilities after sampling,
 * which the kernels do not have, are sampled on the host from the same logits. The logits of rejected tokens are copied
 * to the host. */
#include "cuda/executor/sampling.h"

#include "base/memory.h"
#include "cuda/runtime/provoke.h"

#include <stdatomic.h>
#include <string.h>

/* Sampling data of one step: a block. The device reads and writes it until the step has ended. */
struct block {
    qn_sample_result *results; /* [max_rows], pinned like `lists` */
    /* Masks of the rows that have one, and entries of all rows. `lists` also has the logits of the entries before they
     * change, for rows with log probabilities or a check. Parameters hold the addresses, so that graphs do not depend
     * on them. */
    uint8_t *lists;
    size_t list_bytes;           /* capacity */
    qn_cuda_buffer device_lists; /* the same masks and entries */
};

struct qn_cuda_sampler {
    const qn_cuda_common *common;
    qn_cuda_workspace *workspace;
    qn_cuda_buffer states; /* [logit_rows] */
    qn_cuda_buffer tokens; /* [max_rows] i32: tokens of the last step that sampled. The next step reads them first and
                              writes them last */
    uint32_t *slots;       /* [n_vocab] zero between calls */
    struct block blocks[QN_CUDA_BLOCKS];
};

uint64_t qn_cuda_sampled_tokens(const qn_cuda_sampler *s)
{
    return s->tokens.address;
}

/* ---- Buffers ---- */

static void free_lists(const qn_cuda_sampler *s, struct block *b)
{
    qn_cuda_free(s->common->cuda, &b->device_lists);
    qn_cuda_free_host(s->common->cuda, b->lists);
    b->lists = NULL;
    b->list_bytes = 0;
}

void qn_cuda_sampler_free(qn_cuda_sampler *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < QN_CUDA_BLOCKS; i++) {
        free_lists(s, &s->blocks[i]);
        qn_cuda_free_host(s->common->cuda, s->blocks[i].results);
    }
    qn_cuda_free(s->common->cuda, &s->states);
    qn_cuda_free(s->common->cuda, &s->tokens);
    qn_free(s->slots);
    qn_free(s);
}

static qn_status create(qn_cuda_sampler *s, size_t max_rows, size_t logit_rows)
{
    qn_cuda *cuda = s->common->cuda;
    QN_TRY(qn_cuda_alloc(cuda, logit_rows, sizeof(qn_sample_state), "step buffer on the GPU", &s->states));
    QN_TRY(qn_cuda_memset(cuda, s->common->stream, s->states.address, 0, s->states.bytes));
    QN_TRY(qn_cuda_alloc(cuda, max_rows, sizeof(int32_t), "step buffer on the GPU", &s->tokens));
    QN_TRY(qn_cuda_memset(cuda, s->common->stream, s->tokens.address, 0, s->tokens.bytes));
    for (size_t i = 0; i < QN_CUDA_BLOCKS; i++)
        QN_TRY(
            qn_cuda_alloc_host(cuda, max_rows * sizeof(qn_sample_result), "sampler", (void **)&s->blocks[i].results));
    QN_TRY(qn_alloc(&s->slots, s->common->plan->n_vocab, sizeof *s->slots, "sampler"));
    return qn_cuda_stream_synchronize(cuda, s->common->stream);
}

qn_status qn_cuda_sampler_create(qn_cuda_workspace *workspace, size_t max_rows, size_t logit_rows,
                                 qn_cuda_sampler **out)
{
    qn_cuda_sampler *s;
    *out = NULL;
    QN_TRY(qn_alloc(&s, 1, sizeof *s, "sampler"));
    s->common = workspace->common;
    s->workspace = workspace;
    const qn_status status = create(s, max_rows, logit_rows);
    if (status != QN_OK) {
        qn_cuda_sampler_free(s);
        return status;
    }
    *out = s;
    return QN_OK;
}

/* ---- Before the step ---- */

/* The parameters of a step on the host. */
static qn_sample_params *host_params(const qn_cuda_sampler *s, const qn_cuda_sampling *what)
{
    return (qn_sample_params *)(void *)(s->workspace->block_inputs[what->block] + what->params);
}

/* Sizes of the lists of a step. */
struct list_sizes {
    size_t mask, masks, entries, raw; /* bytes: of a mask; of all masks, entries, logits */
};

static struct list_sizes measure_lists(const qn_cuda_sampler *s, const qn_sample_request *requests, size_t n)
{
    const size_t n_vocab = s->common->plan->n_vocab;
    struct list_sizes sizes = { .mask = qn_round_up(qn_sample_mask_words(n_vocab) * sizeof(uint32_t),
                                                    sizeof(qn_sample_entry)) };
    for (size_t i = 0; i < n; i++) {
        const size_t n_entries = qn_sample_max_entries(&requests[i], n_vocab);
        sizes.masks += requests[i].allowed ? sizes.mask : 0;
        sizes.entries += n_entries * sizeof(qn_sample_entry);
        sizes.raw += n_entries * sizeof(float);
    }
    return sizes;
}

/* Makes a block's lists large enough. Growing waits for all work of the device: the first lists are large, for masks of
 * about 100 rows of a large vocabulary. */
static qn_status reserve_lists(const qn_cuda_sampler *s, struct block *b, const struct list_sizes *sizes)
{
    enum { LEAST_BYTES = 4 << 20 };
    const size_t needed = sizes->masks + sizes->entries + sizes->raw,
                 bytes = 2 * needed > LEAST_BYTES ? 2 * needed : LEAST_BYTES;
    if (needed <= b->list_bytes)
        return QN_OK;
    free_lists(s, b);
    QN_TRY(qn_cuda_alloc(s->common->cuda, bytes, 1, "step buffer on the GPU", &b->device_lists));
    QN_TRY(qn_cuda_alloc_host(s->common->cuda, bytes, "sampler", (void **)&b->lists));
    b->list_bytes = bytes;
    return QN_OK;
}

/* Fills the parameters of a row, and its mask and entries at these offsets of the lists, which are advanced. */
static void fill_row(qn_cuda_sampler *s, struct block *b, const qn_sample_request *request, qn_sample_params *p,
                     struct list_sizes *at)
{
    const size_t n_vocab = s->common->plan->n_vocab;
    *p = qn_sample_gpu_params(request, n_vocab);
    if (request->allowed) {
        memcpy(b->lists + at->masks, request->allowed, qn_sample_mask_words(n_vocab) * sizeof *request->allowed);
        p->allowed = b->device_lists.address + at->masks;
        at->masks += at->mask;
    }
    if (qn_sample_max_entries(request, n_vocab)) {
        const size_t n =
            qn_sample_list_entries(request, n_vocab, s->slots, (qn_sample_entry *)(void *)(b->lists + at->entries));
        p->n_entries = (uint32_t)n;
        p->entries = b->device_lists.address + at->entries;
        p->raw = request->logprobs || request->check ? (uint64_t)(uintptr_t)(b->lists + at->raw) : 0;
        at->entries += n * sizeof(qn_sample_entry);
        at->raw += n * sizeof(float);
    }
}

qn_status qn_cuda_fill_sampling(qn_cuda_sampler *s, const qn_sample_request *requests, size_t n, qn_cuda_sampling *what)
{
    const struct list_sizes sizes = measure_lists(s, requests, n);
    struct list_sizes at = { .mask = sizes.mask, .entries = sizes.masks, .raw = sizes.masks + sizes.entries };
    struct block *b = &s->blocks[what->block];
    *what = (qn_cuda_sampling){ .n = n, .params = what->params, .block = what->block };
    QN_TRY(reserve_lists(s, b, &sizes));
    for (size_t i = 0; i < n; i++) {
        what->mode = qn_sample_gpu_join(what->mode, qn_sample_gpu_mode(&requests[i], s->common->plan->n_vocab));
        fill_row(s, b, &requests[i], host_params(s, what) + i, &at);
        b->results[i] = (qn_sample_result){ .token = -1 };
    }
    if (!at.entries)
        return QN_OK;
    return qn_cuda_copy_h2d(s->common->cuda, s->common->stream, b->device_lists.address, b->lists, at.entries);
}

qn_status qn_cuda_fill_sampling_later(qn_cuda_sampler *s, const qn_sample_request *requests, size_t n,
                                      qn_cuda_sampling *what)
{
    QN_TRY(qn_cuda_fill_sampling(s, requests, n, what));
    return qn_cuda_copy_h2d(s->common->cuda, s->common->stream, s->workspace->inputs + what->params,
                            host_params(s, what), n * sizeof(qn_sample_params));
}

/* ---- The end of the step ---- */

qn_status qn_cuda_run_sampler(const qn_cuda_sampler *s, const qn_cuda_sampling *what)
{
    const qn_sample_args args = { .logits = s->workspace->logits.address,
                                  .params =
                                      s->workspace->inputs + what->params + what->first * sizeof(qn_sample_params),
                                  .states = s->states.address,
                                  .results = (uint64_t)(uintptr_t)(s->blocks[what->block].results + what->first),
                                  .tokens = s->tokens.address + what->first * sizeof(int32_t),
                                  .n = (uint32_t)s->common->plan->n_vocab };
    qn_launch launches[QN_SAMPLE_LAUNCHES];
    size_t n_launches;
    QN_TRY(qn_sample_gpu_launches(what->mode, s->common->plan->n_vocab, what->n, s->common->matmul.clusters, launches,
                                  &n_launches));
    for (size_t i = 0; i < n_launches; i++)
        QN_TRY(qn_cuda_launch(s->common->cuda, s->common->stream, &launches[i], &args));
    return QN_OK;
}

/* Samples a row of the logits that the kernels did not sample. Mask, bias and penalties are already applied to them.
 * *logit: the token's logit. */
static qn_status sample_on_host(const qn_cuda_sampler *s, size_t row, qn_sample_request *request, float *logit)
{
    const size_t n = s->common->plan->n_vocab;
    qn_sample_request again = { .sampling = request->sampling,
                                .random = request->random,
                                .allowed = request->allowed,
                                .logprobs = request->logprobs_after ? request->logprobs : NULL,
                                .logprobs_after = request->logprobs_after,
                                .mirostat_mu = request->mirostat_mu };
    void *scratch;
    again.sampling.repeat_penalty = 1;
    again.sampling.frequency_penalty = again.sampling.presence_penalty = again.sampling.dry_multiplier = 0;
    QN_TRY(qn_cuda_download(s->common->cuda, s->common->stream, s->workspace->host_logits,
                            s->workspace->logits.address + row * n * sizeof(float), n * sizeof(float)));
    QN_TRY(qn_alloc(&scratch, qn_sample_scratch_bytes(n), 1, "sampler"));
    qn_sample_token(&s->common->sample, &again, s->workspace->host_logits, n, scratch);
    qn_free(scratch);
    request->token = again.token;
    request->surprise = again.surprise;
    *logit = s->workspace->host_logits[again.token];
    return QN_OK;
}

/* A row's entries [p->n_entries]. */
static const qn_sample_entry *entries_of(const struct block *b, const qn_sample_params *p)
{
    return (const qn_sample_entry *)(const void *)(b->lists + (p->entries - b->device_lists.address));
}

/* The logit of a row's token before bias and penalties; `logit` is the logit after them. A sampled token is not masked.
 * */
static float raw_logit(const struct block *b, const qn_sample_params *p, qn_token token, float logit)
{
    if (!p->n_entries)
        return logit;
    const qn_sample_entry *entries = entries_of(b, p);
    const float *raw = (const float *)(uintptr_t)p->raw;
    for (uint32_t i = 0; i < p->n_entries; i++)
        if (entries[i].token == token)
            return raw[i];
    return logit;
}

/* Copies a row's logits, as they were before bias and penalties, for `check`. */
static qn_status copy_logits(const qn_cuda_sampler *s, const struct block *b, size_t row, const qn_sample_params *p,
                             float *copy)
{
    const size_t bytes = s->common->plan->n_vocab * sizeof(float);
    QN_TRY(qn_cuda_download(s->common->cuda, s->common->stream, s->workspace->host_logits,
                            s->workspace->logits.address + row * bytes, bytes));
    memcpy(copy, s->workspace->host_logits, bytes);
    const qn_sample_entry *entries = p->n_entries ? entries_of(b, p) : NULL;
    const float *raw = (const float *)(uintptr_t)p->raw;
    for (uint32_t i = 0; i < p->n_entries; i++)
        copy[entries[i].token] = raw[i];
    return QN_OK;
}

/* Sets the result of a request. row: its index among the rows that were sampled together. */
static qn_status finish_row(qn_cuda_sampler *s, const qn_cuda_sampling *what, size_t row, qn_sample_request *request)
{
    const struct block *b = &s->blocks[what->block];
    const qn_sample_result *result = &b->results[what->first + row];
    const qn_sample_params *p = host_params(s, what) + what->first + row;
    float logit = result->logit;
    request->best = result->best;
    request->token = result->token;
    if (!qn_sample_is_finite(request->best))
        return QN_OK;
    if (request->token < 0)
        QN_TRY(sample_on_host(s, row, request, &logit));
    if (request->logprobs && !request->logprobs_after)
        qn_sample_set_logprobs(request->logprobs, s->common->plan->n_vocab, result->largest, result->total, result->top,
                               raw_logit(b, p, request->token, logit));
    float *copy = request->check ? request->check(request->user, request->token) : NULL;
    return copy ? copy_logits(s, b, row, p, copy) : QN_OK;
}

qn_status qn_cuda_finish_sampling(qn_cuda_sampler *s, const qn_cuda_sampling *what, qn_sample_request *requests)
{
    for (size_t i = 0; i < what->n; i++)
        QN_TRY(finish_row(s, what, i, &requests[what->first + i]));
    return QN_OK;
}

/* Poisons the lists on the device after the step in flight, which uses other lists. A failure appears in the next call
 * of the driver. */
void qn_cuda_poison_sampling(const qn_cuda_sampler *s, size_t block)
{
    const struct block *b = &s->blocks[block];
    qn_cuda_poison_host(s->common->cuda, b->results, s->workspace->max_rows * sizeof *b->results);
    qn_cuda_poison_host(s->common->cuda, b->lists, b->list_bytes);
    (void)qn_cuda_poison(s->common->cuda, s->common->stream, b->device_lists.address, b->device_lists.bytes);
}
