/* Parameters of rows, their commands, and their results. */
#include "vulkan/executor/sampling.h"

#include "base/memory.h"

#include <string.h>

/* ---- Memory ---- */

static void free_lists(const qn_vk_sampler *s, qn_vk_sampler_block *b)
{
    qn_vk_free(s->common->vk, &b->device_lists);
    qn_vk_free(s->common->vk, &b->raw);
    qn_free(b->lists);
    b->lists = NULL;
    b->list_bytes = 0;
}

static void free_block(const qn_vk_sampler *s, qn_vk_sampler_block *b)
{
    free_lists(s, b);
    qn_vk_free(s->common->vk, &b->params);
    qn_vk_free(s->common->vk, &b->results);
    qn_free(b->rows);
    b->rows = NULL;
    memset(b->is_recorded, 0, sizeof b->is_recorded); /* they have addresses of this memory */
}

void qn_vk_sampler_free(qn_vk_sampler *s)
{
    if (!s->common)
        return;
    for (size_t i = 0; i < QN_VK_BLOCKS; i++) {
        qn_vk_sampler_block *b = &s->blocks[i];
        free_block(s, b);
        for (size_t bucket = 0; bucket < QN_GPU_N_BUCKETS; bucket++)
            for (size_t draws = 0; draws < 2; draws++)
                qn_vk_commands_free(s->common->vk, &b->recorded[bucket][draws]);
        qn_vk_commands_free(s->common->vk, &b->other);
    }
    qn_vk_free(s->common->vk, &s->states);
    qn_free(s->slots);
}

qn_status qn_vk_sampler_init(const qn_vk_common *common, const qn_vk_workspace *workspace, qn_vk_sampler *s)
{
    s->common = common;
    s->workspace = workspace;
    for (size_t i = 0; i < QN_VK_BLOCKS; i++)
        QN_TRY(qn_vk_commands_create(common->vk, &s->blocks[i].other));
    return qn_alloc(&s->slots, common->plan->n_vocab, sizeof *s->slots, "sampler");
}

static qn_status reserve_block(const qn_vk_sampler *s, qn_vk_sampler_block *b)
{
    const size_t n = s->workspace->max_rows;
    QN_TRY(qn_alloc(&b->rows, n, sizeof *b->rows, "sampler"));
    QN_TRY(qn_vk_alloc(s->common->vk, n * sizeof *b->rows, QN_VK_SHARED, "sampler", &b->params));
    return qn_vk_alloc(s->common->vk, n * sizeof(qn_vk_sample_result), QN_VK_ON_HOST, "sampler", &b->results);
}

qn_status qn_vk_sampler_reserve(qn_vk_sampler *s)
{
    qn_vk_free(s->common->vk, &s->states);
    QN_TRY(qn_vk_alloc(s->common->vk, s->workspace->logit_rows * sizeof(qn_vk_sample_state), QN_VK_ON_DEVICE, "sampler",
                       &s->states));
    for (size_t i = 0; i < QN_VK_BLOCKS; i++) {
        free_block(s, &s->blocks[i]);
        QN_TRY(reserve_block(s, &s->blocks[i]));
    }
    return QN_OK;
}

/* ---- Before a step's sampling ---- */

/* Bytes of a mask, of all masks, and of entries; and the number of entries. */
struct list_sizes {
    size_t mask, masks, entries, n_entries;
};

static struct list_sizes measure_lists(const qn_vk_sampler *s, const qn_sample_request *requests, size_t n)
{
    const size_t n_vocab = s->common->plan->n_vocab;
    struct list_sizes sizes = { .mask = qn_round_up(qn_sample_mask_words(n_vocab) * sizeof(uint32_t),
                                                    sizeof(qn_sample_entry)) };
    for (size_t i = 0; i < n; i++) {
        sizes.masks += requests[i].allowed ? sizes.mask : 0;
        sizes.n_entries += qn_sample_max_entries(&requests[i], n_vocab);
    }
    sizes.entries = sizes.n_entries * sizeof(qn_sample_entry);
    return sizes;
}

/* The commands do not depend on the addresses of lists, which are parameters. */
static qn_status reserve_lists(const qn_vk_sampler *s, qn_vk_sampler_block *b, const struct list_sizes *sizes)
{
    enum { LEAST_BYTES = 1 << 20 };
    const size_t needed = sizes->masks + sizes->entries, bytes = 2 * needed > LEAST_BYTES ? 2 * needed : LEAST_BYTES;
    if (needed <= b->list_bytes)
        return QN_OK;
    free_lists(s, b);
    QN_TRY(qn_alloc(&b->lists, bytes, 1, "sampler"));
    QN_TRY(qn_vk_alloc(s->common->vk, bytes, QN_VK_SHARED, "sampler", &b->device_lists));
    QN_TRY(
        qn_vk_alloc(s->common->vk, bytes / sizeof(qn_sample_entry) * sizeof(float), QN_VK_ON_HOST, "sampler", &b->raw));
    b->list_bytes = bytes;
    return QN_OK;
}

/* Sets the parameters of a row, and its mask and entries at these offsets of the lists, which are advanced. */
static void fill_row(qn_vk_sampler *s, qn_vk_sampler_block *b, const qn_sample_request *request, qn_vk_sample_params *p,
                     struct list_sizes *at)
{
    const size_t n_vocab = s->common->plan->n_vocab;
    *p = qn_vk_sample_params_of(request, n_vocab);
    if (qn_vk_sample_kind_of(request) == QN_VK_SAMPLE_NONE) {
        p->kind = QN_VK_SAMPLE_NONE;
        return;
    }
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
        p->raw = request->check ? b->raw.address + at->n_entries * sizeof(float) : 0;
        at->entries += n * sizeof(qn_sample_entry);
        at->n_entries += n;
    }
}

qn_status qn_vk_sampling_fill(qn_vk_sampler *s, const qn_sample_request *requests, size_t n, qn_vk_sampling *what)
{
    const struct list_sizes sizes = measure_lists(s, requests, n);
    struct list_sizes at = { .mask = sizes.mask, .entries = sizes.masks };
    qn_vk_sampler_block *b = &s->blocks[what->block];
    const size_t padded = qn_gpu_bucket(n) < s->workspace->max_rows ? qn_gpu_bucket(n) : s->workspace->max_rows;
    QN_TRY(reserve_lists(s, b, &sizes));
    what->has_draws = false;
    for (size_t i = 0; i < n; i++) {
        fill_row(s, b, &requests[i], &b->rows[i], &at);
        what->has_draws = what->has_draws || b->rows[i].kind == QN_VK_SAMPLE_DRAW;
    }
    for (size_t i = n; i < padded; i++)
        b->rows[i] = (qn_vk_sample_params){ .kind = QN_VK_SAMPLE_NONE };
    memcpy(b->params.host, b->rows, padded * sizeof *b->rows);
    if (at.masks)
        memcpy(b->device_lists.host, b->lists, at.masks);
    if (at.entries > sizes.masks)
        memcpy(b->device_lists.host + sizes.masks, b->lists + sizes.masks, at.entries - sizes.masks);
    return QN_OK;
}

bool qn_vk_sampling_needs_host(const qn_sample_request *requests, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (qn_vk_sample_kind_of(&requests[i]) == QN_VK_SAMPLE_NONE)
            return true;
    return false;
}

/* ---- Commands ---- */

static qn_status record(const qn_vk_sampler *s, const qn_vk_sampling *what, size_t n, qn_vk_commands *commands)
{
    const qn_vk_sampler_block *b = &s->blocks[what->block];
    qn_vk *vk = s->common->vk;
    const size_t n_vocab = s->common->plan->n_vocab;
    const qn_vk_sample_args args = {
        .logits = s->workspace->logits.address,
        .params = b->params.address + what->first * sizeof(qn_vk_sample_params),
        .states = s->states.address,
        .results = b->results.address + what->first * sizeof(qn_vk_sample_result),
        .tokens = s->workspace->tokens.address + what->first * sizeof(int32_t),
        .n = (uint32_t)n_vocab,
        .n_slices = qn_vk_sample_slices(n_vocab),
    };
    qn_vk_launch launches[QN_VK_SAMPLE_LAUNCHES];
    const size_t n_launches = qn_vk_sample(&qn_vk_get_info(vk)->features, what->has_draws, n_vocab, n, launches);
    QN_TRY(qn_vk_begin(vk, commands));
    for (size_t i = 0; i < n_launches; i++) {
        QN_TRY(qn_vk_dispatch(vk, commands, &launches[i], &args));
        if (i + 1 < n_launches)
            qn_vk_barrier(vk, commands);
    }
    qn_vk_mark(vk, commands, s->common->plan->n_ops);
    return qn_vk_end(vk, commands);
}

qn_status qn_vk_sampling_commands(qn_vk_sampler *s, const qn_vk_sampling *what, const qn_vk_commands **commands)
{
    qn_vk_sampler_block *b = &s->blocks[what->block];
    const size_t index = qn_gpu_bucket_index(what->n), n = qn_gpu_bucket(what->n);
    *commands = &b->other;
    if (what->first || index == QN_GPU_N_BUCKETS || n > s->workspace->logit_rows)
        return record(s, what, what->n, &b->other);
    qn_vk_commands *recorded = &b->recorded[index][what->has_draws];
    if (!recorded->pool)
        QN_TRY(qn_vk_commands_create(s->common->vk, recorded));
    if (!b->is_recorded[index][what->has_draws])
        QN_TRY(record(s, what, n, recorded));
    b->is_recorded[index][what->has_draws] = true;
    *commands = recorded;
    return QN_OK;
}

void qn_vk_sampler_forget(qn_vk_sampler *s)
{
    for (size_t i = 0; i < QN_VK_BLOCKS; i++)
        memset(s->blocks[i].is_recorded, 0, sizeof s->blocks[i].is_recorded);
}

/* ---- Results ---- */

struct host_rows {
    const qn_vk_sampler *sampler;
    const qn_vk_sample_params *params; /* of the requests */
    qn_sample_request *requests;
    size_t scratch_bytes;
    uint8_t *scratch; /* [threads] */
};

static void sample_range(void *context, size_t begin, size_t end, int thread)
{
    const struct host_rows *h = context;
    const size_t n_vocab = h->sampler->common->plan->n_vocab;
    const float *logits = (const float *)(const void *)h->sampler->workspace->host_logits.host;
    for (size_t i = begin; i < end; i++)
        if (h->params[i].kind == QN_VK_SAMPLE_NONE)
            qn_sample_token(&h->sampler->common->sample, &h->requests[i], logits + i * n_vocab, n_vocab,
                            h->scratch + (size_t)thread * h->scratch_bytes);
}

/* Samples the rows that the kernels did not sample, and writes their tokens for the next step. */
static qn_status sample_on_host(const qn_vk_sampler *s, const qn_vk_sampling *what, qn_sample_request *requests)
{
    struct host_rows h = { .sampler = s,
                           .params = s->blocks[what->block].rows + what->first,
                           .requests = requests,
                           .scratch_bytes = qn_round_up(qn_sample_scratch_bytes(s->common->plan->n_vocab), QN_ALIGN) };
    QN_TRY(qn_alloc(&h.scratch, (size_t)qn_team_size(s->common->team), h.scratch_bytes, "sampler"));
    qn_team_divide(s->common->team, what->n, 1, sample_range, &h);
    qn_free(h.scratch);
    for (size_t i = 0; i < what->n; i++) {
        const int32_t token = requests[i].token < 0 ? 0 : requests[i].token;
        if (h.params[i].kind == QN_VK_SAMPLE_NONE)
            QN_TRY(qn_vk_write(s->common->vk, &s->workspace->tokens, (what->first + i) * sizeof token, &token,
                               sizeof token));
    }
    return QN_OK;
}

/* Copies a row's logits, as they were before bias and penalties, for `check`. */
static qn_status copy_logits(const qn_vk_sampler *s, const qn_vk_sampler_block *b, size_t row,
                             const qn_vk_sample_params *p, float *copy)
{
    const size_t bytes = s->common->plan->n_vocab * sizeof(float);
    QN_TRY(qn_vk_read(s->common->vk, copy, &s->workspace->logits, row * bytes, bytes));
    if (!p->raw)
        return QN_OK;
    const float *raw = (const float *)(const void *)(b->raw.host + (p->raw - b->raw.address));
    const qn_sample_entry *entries =
        (const qn_sample_entry *)(const void *)(b->lists + (p->entries - b->device_lists.address));
    for (uint32_t i = 0; i < p->n_entries; i++)
        copy[entries[i].token] = raw[i];
    return QN_OK;
}

qn_status qn_vk_sampling_finish(qn_vk_sampler *s, const qn_vk_sampling *what, qn_sample_request *requests)
{
    const qn_vk_sampler_block *b = &s->blocks[what->block];
    const qn_vk_sample_params *params = b->rows + what->first;
    const qn_vk_sample_result *results = (const qn_vk_sample_result *)(const void *)b->results.host + what->first;
    if (qn_vk_sampling_needs_host(requests, what->n))
        QN_TRY(sample_on_host(s, what, requests));
    for (size_t i = 0; i < what->n; i++) {
        qn_sample_request *request = &requests[i];
        if (params[i].kind != QN_VK_SAMPLE_NONE) {
            request->best = results[i].best;
            request->token = results[i].token;
            request->surprise = 0;
        }
        float *copy = request->check && request->token >= 0 ? request->check(request->user, request->token) : NULL;
        if (copy)
            QN_TRY(copy_logits(s, b, i, &params[i], copy));
    }
    return QN_OK;
}
