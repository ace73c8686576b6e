/* Sampling a token from a row of logits on the CPU: the reference of the GPU kernels. Every step is a pass over the
 * row, or over its remaining tokens; none sorts more than QN_SAMPLE_SORTED tokens. */
#include "kernels/sample/sample.h"

#include "base/real.h"
#include "kernels/sample/sample_draw.h"
#include "kernels/sample/sample_dry.h"

#include <math.h>
#include <string.h>

/* ---- Scratch ---- */

/* Entries and slots are used before the other arrays, and share memory with them. Each array has n elements. */
struct scratch {
    qn_sample_entry *entries;
    uint32_t *slots;
    float *left; /* logits of the tokens that remain after mask, bias, penalties and filters */
    uint32_t *left_ids;
    float *list; /* scratch of a search */
    uint32_t *list_positions;
    qn_sample_candidate *heap;
};

static struct scratch scratch_at(void *memory, size_t n)
{
    struct scratch s = { .entries = memory, .list = memory };
    s.slots = s.left_ids = (uint32_t *)(void *)(s.entries + n);
    s.left = (float *)(void *)(s.slots + n);
    s.list_positions = (uint32_t *)(void *)(s.list + n);
    s.heap = (qn_sample_candidate *)(void *)(s.list_positions + n);
    return s;
}

size_t qn_sample_scratch_bytes(size_t n)
{
    return n * (sizeof(qn_sample_entry) + sizeof(uint32_t) + sizeof(float));
}

/* ---- Mask, bias and penalties ---- */

size_t qn_sample_max_entries(const qn_sample_request *request, size_t n)
{
    const size_t most = request->n_bias + (qn_sample_penalises_recent(&request->sampling) ? request->n_recent : 0) +
                        (qn_sample_penalises_generated(&request->sampling) ? request->n_generated : 0) +
                        (qn_sample_has_dry(&request->sampling) ? request->n_text : 0);
    return most < n ? most : n;
}

struct entry_list {
    qn_sample_entry *entries;
    uint32_t *slots; /* per token: 1 + the index of its entry; 0: none */
    size_t n, n_vocab;
};

/* Returns the entry of a token, adding it if there is none; NULL outside the vocabulary. */
static qn_sample_entry *entry_of(struct entry_list *list, qn_token token)
{
    if (token < 0 || (size_t)token >= list->n_vocab)
        return NULL;
    if (!list->slots[token]) {
        list->entries[list->n] = (qn_sample_entry){ .token = token };
        list->slots[token] = (uint32_t)++list->n;
    }
    return &list->entries[list->slots[token] - 1];
}

/* Adds DRY's penalties. A token that continues several repetitions gets the penalty of the longest. */
static void add_dry_penalties(const qn_sample_request *request, struct entry_list *list)
{
    const size_t longest = qn_sample_dry_longest(request);
    qn_sample_entry *entry;
    for (size_t at = 0; at < request->n_text; at++) {
        const float penalty = qn_sample_dry_penalty(request, longest, at);
        if (penalty > 0 && (entry = entry_of(list, request->text[at])))
            entry->bias = fminf(entry->bias, -penalty);
    }
}

size_t qn_sample_list_entries(const qn_sample_request *request, size_t n, uint32_t *slots, qn_sample_entry *entries)
{
    struct entry_list list = { .entries = entries, .slots = slots, .n_vocab = n };
    qn_sample_entry *entry;
    if (qn_sample_has_dry(&request->sampling))
        add_dry_penalties(request, &list);
    for (size_t i = 0; i < request->n_bias; i++)
        if ((entry = entry_of(&list, request->bias[i].token)))
            entry->bias += request->bias[i].value;
    for (size_t i = 0; qn_sample_penalises_recent(&request->sampling) && i < request->n_recent; i++)
        if ((entry = entry_of(&list, request->recent[i])))
            entry->is_recent = 1;
    for (size_t i = 0; qn_sample_penalises_generated(&request->sampling) && i < request->n_generated; i++)
        if ((entry = entry_of(&list, request->generated[i])))
            entry->n_generated++;
    for (size_t i = 0; i < list.n; i++)
        slots[entries[i].token] = 0;
    return list.n;
}

/* Returns the position of an id in an ascending list that contains it. */
static size_t position_of(const uint32_t *ids, size_t n, uint32_t id)
{
    size_t first = 0;
    while (n > 1) {
        const size_t half = n / 2;
        if (ids[first + half] <= id)
            first += half;
        n -= half;
    }
    return first;
}

static bool is_allowed(const uint32_t *allowed, uint32_t token)
{
    return !allowed || allowed[token / 32] >> token % 32 & 1;
}

/* Returns the tokens that the mask allows, after bias and penalties: in the caller's array if there is no mask, bias or
 * penalty. */
static qn_sample_tokens adjust(const qn_sample_kernels *kernels, const qn_sample_request *request, const float *logits,
                               size_t n, const struct scratch *s)
{
    const qn_sampling *sampling = &request->sampling;
    const qn_sample_penalties penalties = { sampling->repeat_penalty, sampling->frequency_penalty,
                                            sampling->presence_penalty };
    const bool has_entries = qn_sample_max_entries(request, n) > 0;
    qn_sample_tokens left = { logits, NULL, n };
    size_t n_entries = 0;
    if (has_entries) {
        memset(s->slots, 0, n * sizeof *s->slots);
        n_entries = qn_sample_list_entries(request, n, s->slots, s->entries);
    }
    if (request->allowed)
        left = (qn_sample_tokens){ s->left, s->left_ids,
                                   kernels->select_allowed(logits, request->allowed, n, s->left, s->left_ids) };
    else if (has_entries)
        left.logits = memcpy(s->left, logits, n * sizeof *logits);
    for (size_t i = 0; i < n_entries; i++) {
        const uint32_t token = (uint32_t)s->entries[i].token;
        if (is_allowed(request->allowed, token))
            s->left[left.ids ? position_of(left.ids, left.n, token) : token] =
                qn_sample_adjust(logits[token], &s->entries[i], &penalties);
    }
    return left;
}

/* ---- Argmax ---- */

/* Returns the key of the largest logit, of the first NaN, or, if all remaining logits are -inf or none remains, of -inf
 * for token 0. */
static uint64_t best_key(const qn_sample_kernels *kernels, const qn_sample_tokens *t)
{
    const float largest = t->n ? kernels->maximum(t->logits, t->n) : -INFINITY;
    size_t at = 0;
    if (largest == -INFINITY)
        return qn_sample_key(largest, 0);
    if (isnan(largest))
        while (!isnan(t->logits[at]))
            at++;
    else
        at = kernels->find(t->logits, t->n, largest);
    return qn_sample_key(largest, qn_sample_id(t, at));
}

/* ---- Log probabilities ---- */

void qn_sample_set_logprobs(qn_logprobs *logprobs, size_t n, uint64_t largest, uint64_t total, const uint64_t *top,
                            float chosen)
{
    const bool is_finite = qn_sample_is_finite(largest);
    logprobs->chosen = NAN;
    logprobs->n = is_finite ? qn_sample_n_top(logprobs, n) : 0;
    if (!is_finite)
        return;
    /* The weight of the largest logit is 1, so the total is not 0. */
    const double log_sum = qn_sample_key_logit(largest) + qn_real_log(ldexp((double)total, -qn_sample_weight_bits(n)));
    logprobs->chosen = (float)(chosen - log_sum);
    for (uint32_t i = 0; i < logprobs->n; i++) {
        logprobs->tokens[i] = (qn_token)qn_sample_key_index(top[i]);
        logprobs->values[i] = (float)(qn_sample_key_logit(top[i]) - log_sum);
    }
}

static void find_logprobs(const qn_sample_kernels *kernels, const qn_sample_request *request, const float *logits,
                          size_t n, const struct scratch *s)
{
    const uint64_t largest = best_key(kernels, &(qn_sample_tokens){ logits, NULL, n });
    const size_t n_top = qn_sample_n_top(request->logprobs, n);
    uint64_t keys[QN_SAMPLE_TOP_LOGPROBS], total = 0;
    if (qn_sample_is_finite(largest)) {
        const qn_sample_scale scale = { qn_sample_key_logit(largest), 1, ldexpf(1, qn_sample_weight_bits(n)) };
        total = kernels->sum(&scale, logits, n);
        if (n_top)
            qn_sample_select_few(kernels, logits, n, s->heap, n_top);
        for (size_t i = 0; i < n_top; i++) {
            const uint64_t key = qn_sample_key(s->heap[i].logit, (uint32_t)s->heap[i].position);
            size_t at = i;
            for (; at > 0 && keys[at - 1] < key; at--)
                keys[at] = keys[at - 1];
            keys[at] = key;
        }
    }
    qn_sample_set_logprobs(request->logprobs, n, largest, total, keys, logits[request->token]);
}

/* ---- The sampler ---- */

void qn_sample_token(const qn_sample_kernels *kernels, qn_sample_request *request, const float *logits, size_t n,
                     void *scratch)
{
    const struct scratch s = scratch_at(scratch, n);
    qn_sample_draw draw = { .kernels = kernels,
                            .request = request,
                            .left = adjust(kernels, request, logits, n, &s),
                            .logits = s.left,
                            .ids = s.left_ids,
                            .list = s.list,
                            .positions = s.list_positions,
                            .heap = s.heap };
    request->surprise = 0;
    request->best = best_key(kernels, &draw.left);
    request->token = qn_sample_is_finite(request->best) ? (int32_t)qn_sample_key_index(request->best) : -1;
    if (request->token < 0)
        return;
    if (qn_sample_is_greedy(&request->sampling)) {
        qn_sample_set_certain(request);
    } else {
        draw.scale = (qn_sample_scale){ qn_sample_key_logit(request->best), 1 / request->sampling.temperature,
                                        ldexpf(1, qn_sample_weight_bits(n)) };
        request->token = request->sampling.mirostat ? qn_sample_draw_mirostat(&draw, &request->surprise)
                                                    : qn_sample_draw_token(&draw, n);
    }
    if (request->logprobs && !request->logprobs_after)
        find_logprobs(kernels, request, logits, n, &s);
}
