/* Sampling on the GPU against the CPU: the same token for every distribution and filter, or a fallback to the host where that
 * is allowed. And the embedding kernel: rows of the table as the CPU dequantises and rotates them. */
#include "check/cuda.h"

#include "base/f16.h"
#include "check/problem.h"
#include "kernels/hadamard/hadamard.h"
#include "kernels/matmul/embed_cuda.h"
#include "kernels/sample/sample_cuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- The sampler ---- */

enum { MAX_LOGITS = 248320, MAX_RECENT = 300 };

struct gpu_sampler {
    qn_gpu_guarded logits, params, recent, state, result;
    qn_sample_args args;
};

static struct gpu_sampler sampler_new(size_t n)
{
    struct gpu_sampler c = { .logits = qn_gpu_new(n * sizeof(float)),
                             .params = qn_gpu_new(sizeof(qn_sample_params)),
                             .recent = qn_gpu_new(MAX_RECENT * sizeof(int32_t)),
                             .state = qn_gpu_new(sizeof(qn_sample_state)),
                             .result = qn_gpu_new(sizeof(qn_sample_result)) };
    qn_assert_ok(qn_cuda_memset(qn_gpu(), qn_gpu_stream(), c.state.data, 0, c.state.bytes));
    c.args = (qn_sample_args){ .logits = c.logits.data,
                               .params = c.params.data,
                               .recent = c.recent.data,
                               .state = c.state.data,
                               .result = c.result.data,
                               .n = (uint32_t)n };
    qn_gpu_synchronize(); /* uploads run in another stream */
    return c;
}

static void sampler_free(struct gpu_sampler *c)
{
    qn_expect(qn_gpu_guards_intact(&c->logits) && qn_gpu_guards_intact(&c->params) && qn_gpu_guards_intact(&c->recent) &&
                  qn_gpu_guards_intact(&c->state) && qn_gpu_guards_intact(&c->result),
              "bytes outside the buffers were written");
    qn_gpu_free(&c->logits);
    qn_gpu_free(&c->params);
    qn_gpu_free(&c->recent);
    qn_gpu_free(&c->state);
    qn_gpu_free(&c->result);
}

static void launch_sampler(const struct gpu_sampler *c)
{
    qn_launch launches[QN_SAMPLE_LAUNCHES];
    size_t n;
    qn_assert_ok(qn_sample_gpu_launches((qn_sample_mode)c->args.mode, c->args.n, launches, &n));
    for (size_t i = 0; i < n; i++)
        qn_gpu_launch(&launches[i], &c->args);
}

static void set_params(struct gpu_sampler *c, const qn_sample_request *request)
{
    qn_sample_params params = qn_sample_gpu_params(request, c->args.n);
    params.n_recent = (uint32_t)(request->sampling.repeat_penalty == 1 ? 0 : request->n_recent);
    c->args.mode = qn_sample_gpu_mode(&request->sampling, c->args.n);
    qn_assert_ok(qn_cuda_upload(qn_gpu(), c->params.data, &params, sizeof params, NULL, NULL));
    if (params.n_recent)
        qn_assert_ok(
            qn_cuda_upload(qn_gpu(), c->recent.data, request->recent, request->n_recent * sizeof *request->recent, NULL, NULL));
}

static qn_sample_result sample(struct gpu_sampler *c, const qn_sample_request *request, const float *logits)
{
    qn_sample_result result;
    set_params(c, request);
    qn_assert_ok(qn_cuda_upload(qn_gpu(), c->logits.data, logits, c->logits.bytes, NULL, NULL));
    qn_gpu_poison(&c->result);
    launch_sampler(c);
    qn_gpu_read(&c->result, &result);
    return result;
}

/* ---- Distributions and filters ---- */

enum shape { NORMAL, WIDE, FLAT, EQUAL, TWO_VALUES, PEAK, MASKED, ALL_LOW, WITH_NAN, WITH_INFINITY, N_SHAPES };
static const char *const shape_names[N_SHAPES] = { "normal", "wide",   "flat",     "equal", "two values",
                                                   "peak",   "masked", "all -inf", "NaN",   "inf" };

static void fill_logits(float *x, size_t n, enum shape shape)
{
    static const float widths[N_SHAPES] = {
        [NORMAL] = 3, [WIDE] = 20, [FLAT] = 0.01f, [PEAK] = 1, [MASKED] = 3, [WITH_NAN] = 3, [WITH_INFINITY] = 3
    };
    for (size_t i = 0; i < n; i++)
        x[i] = widths[shape] * qn_random_normal();
    for (size_t i = 0; i < n; i++) {
        x[i] = shape == TWO_VALUES ? (float)qn_random_below(2) : shape == ALL_LOW ? -INFINITY : x[i];
        x[i] = shape == MASKED && qn_random_below(10) ? -INFINITY : x[i];
    }
    const size_t at = qn_random_below(n);
    if (shape == PEAK || shape == MASKED)
        x[at] = 25;
    if (shape == EQUAL && n > 1)
        x[at] = -0.0f;
    for (size_t i = 0; shape == WITH_NAN && i < 3; i++)
        x[qn_random_below(n)] = i == 1 ? -NAN : NAN;
    if (shape == WITH_INFINITY)
        x[at] = INFINITY;
}

static const struct {
    const char *name;
    qn_sampling sampling;
} filters[] = {
    { "greedy", { .repeat_penalty = 1, .top_p = 1 } },
    { "default", { .repeat_penalty = 1, .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f } },
    { "plain", { .repeat_penalty = 1, .temperature = 1, .top_p = 1 } },
    { "top_p", { .repeat_penalty = 1, .temperature = 1, .top_p = 0.9f } },
    { "hot top_p", { .repeat_penalty = 1, .temperature = 2.5f, .top_p = 0.5f } },
    { "min_p", { .repeat_penalty = 1, .temperature = 1.3f, .top_p = 1, .min_p = 0.1f } },
    { "top_p and min_p", { .repeat_penalty = 1, .temperature = 0.7f, .top_p = 0.97f, .min_p = 0.02f } },
    { "top_k of thousands", { .repeat_penalty = 1, .temperature = 1.5f, .top_k = 2000, .top_p = 0.99f } },
    { "cold", { .repeat_penalty = 1, .temperature = 0.01f, .top_k = 7, .top_p = 0.999f } },
    { "tiny top_p", { .repeat_penalty = 1, .temperature = 1, .top_p = 1e-6f } },
    { "penalty", { .repeat_penalty = 1.3f, .temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f } },
    { "greedy, penalty", { .repeat_penalty = 1.1f, .top_p = 1 } },
    { "reward", { .repeat_penalty = 0.5f, .temperature = 1, .top_p = 0.8f } },
};
enum { N_FILTERS = sizeof filters / sizeof *filters };

/* Tokens without duplicates, as the host passes them; the most likely token is one of them. */
static size_t recent_tokens(int32_t *recent, const float *logits, size_t n)
{
    size_t count = 0, best = 0;
    for (size_t i = 0; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    recent[count++] = (int32_t)best;
    while (count < MAX_RECENT && count < n / 2) {
        const int32_t token = (int32_t)qn_random_below(n);
        bool is_new = true;
        for (size_t i = 0; i < count; i++)
            is_new = is_new && recent[i] != token;
        if (is_new)
            recent[count++] = token;
    }
    return count;
}

/* True if a fallback to the host is allowed: thousands of logits may fall into one bin, or around the min_p threshold. */
static bool may_fall_back_to_host(enum shape shape, const qn_sample_request *request, size_t n)
{
    const bool crowded =
        shape == FLAT || shape == EQUAL || shape == TWO_VALUES || (shape == PEAK && request->sampling.temperature > 2);
    return n > QN_SAMPLE_CANDIDATES && (crowded || request->sampling.min_p > 0);
}

struct counts {
    size_t n_draws_done, host_fallbacks;
};

static void compare(struct gpu_sampler *gpu, qn_sample_request *request, const float *logits, size_t n, enum shape shape,
                    struct counts *counts)
{
    qn_sample_kernels kernels;
    void *scratch = qn_xcalloc(qn_sample_scratch_bytes(n), 1);
    qn_sample_kernels_init(&kernels, 0);
    qn_sample_token(&kernels, request, logits, n, scratch);
    const qn_sample_result found = sample(gpu, request, logits), again = sample(gpu, request, logits);
    free(scratch);
    qn_expect(found.best == request->best, "the best is %016llx, expected %016llx", (unsigned long long)found.best,
              (unsigned long long)request->best);
    qn_expect(memcmp(&found, &again, sizeof found) == 0, "the second time it is %d, not %d", again.token, found.token);
    const bool host_fallbacks = found.token < 0 && request->token >= 0;
    qn_expect(host_fallbacks ? may_fall_back_to_host(shape, request, n) : found.token == request->token,
              "token %d, expected %d", found.token, request->token);
    counts->n_draws_done++;
    counts->host_fallbacks += host_fallbacks;
}

static void check_sampling(size_t n, size_t n_draws, struct counts *counts)
{
    float *logits = qn_xcalloc(n, sizeof *logits);
    struct gpu_sampler gpu = sampler_new(n);
    for (int shape = 0; shape < N_SHAPES; shape++)
        for (size_t f = 0; f < N_FILTERS; f++) {
            if (!qn_case_selected())
                continue;
            int32_t recent[MAX_RECENT];
            qn_sample_request request = { .sampling = filters[f].sampling };
            qn_case_begin("sample", "cuda", "%zu logits, %s, %s", n, shape_names[shape], filters[f].name);
            qn_random_seed(n * 1000 + (size_t)shape * N_FILTERS + f);
            fill_logits(logits, n, (enum shape)shape);
            request.recent = recent;
            request.n_recent = recent_tokens(recent, logits, n);
            for (size_t i = 0; i < (qn_sample_is_greedy(&request.sampling) ? 1 : n_draws); i++) {
                request.random = i == 0 ? 0 : i == 1 ? UINT64_MAX : qn_random();
                compare(&gpu, &request, logits, n, (enum shape)shape, counts);
            }
        }
    sampler_free(&gpu);
    free(logits);
}

/* ---- Embedding ---- */

static void check_embedding(const qn_type_info *type, size_t n_rows, size_t n_cols, size_t block, size_t first_tile)
{
    if (!qn_case_selected())
        return;
    enum { TOKENS = 3 };
    qn_problem p;
    qn_hadamard_kernels hadamard;
    const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(type);
    qn_tiled_matrix matrix = { .tiles = tiles, .n_tiles = first_tile + qn_matmul_gpu_tile_count(n_rows) + 1, .n_cols = n_cols };
    size_t bytes;
    qn_case_begin("embed", "cuda", "%s, a table of %zu by %zu from tile %zu, blocks of %zu", type->name, n_rows, n_cols,
                  first_tile, block);
    qn_hadamard_kernels_init(&hadamard, 0);
    qn_problem_new(&p, type, n_rows, n_cols, 1, false);
    qn_random_blocks(type, p.data.data, n_rows * n_cols / type->block_weights, 100); /* scales and offsets are f16 */
    qn_assert_ok(qn_matmul_gpu_bytes(&tiles, matrix.n_tiles, n_cols, &bytes));
    int32_t tokens[TOKENS] = { (int32_t)n_rows - 1, 0, (int32_t)qn_random_below(n_rows) };
    float *signs = qn_xcalloc(n_cols, sizeof *signs), *expected = qn_xcalloc(TOKENS * n_cols, sizeof *expected),
          *found = qn_xcalloc(TOKENS * n_cols, sizeof *found);
    uint32_t words[40], copied[40];
    for (size_t i = 0; i < n_cols; i++)
        signs[i] = qn_random_below(2) ? 1 : -1;
    for (size_t i = 0; i < 40; i++)
        words[i] = (uint32_t)qn_random();
    for (size_t r = 0; r < TOKENS; r++) {
        float *x = expected + r * n_cols;
        type->to_float(p.weights.data + (size_t)tokens[r] * p.weights.row_bytes, n_cols / type->block_weights, x);
        for (size_t i = 0; tiles.bits == 16 && i < n_cols; i++)
            x[i] = qn_f16_to_f32(qn_f32_to_f16(x[i])); /* bf16 has smaller numbers than f16 */
        for (size_t i = 0; block && i < n_cols; i += block)
            hadamard.block(x + i, block, NULL, signs + i);
    }
    qn_gpu_guarded weights = qn_gpu_new(bytes), rows = qn_gpu_from(p.weights.data, n_rows * p.weights.row_bytes),
                   ids = qn_gpu_from(tokens, sizeof tokens), sign = qn_gpu_from(signs, n_cols * sizeof *signs),
                   out = qn_gpu_new(TOKENS * n_cols * sizeof *found), from = qn_gpu_from(words, sizeof words),
                   to = qn_gpu_new(sizeof copied);
    matrix.address = weights.data;
    qn_matmul_launch pack;
    qn_launch launch;
    qn_matmul_embed_args args;
    qn_assert_ok(qn_matmul_gpu_pack(&matrix, rows.data, p.weights.row_bytes, n_rows, first_tile, &pack));
    qn_gpu_launch(&pack.launch, &pack.args);
    qn_assert_ok(
        qn_matmul_gpu_embed(&matrix, first_tile, ids.data, block ? sign.data : 0, block, TOKENS, out.data, &launch, &args));
    args.from = from.data;
    args.to = to.data;
    args.n_words = 40;
    qn_gpu_launch(&launch, &args);
    qn_gpu_read(&out, found);
    qn_gpu_read(&to, copied);
    qn_expect_same(found, expected, TOKENS * n_cols, "value");
    qn_expect(memcmp(words, copied, sizeof words) == 0, "the copied words differ");
    qn_gpu_guarded *const all[] = { &weights, &rows, &ids, &sign, &out, &from, &to };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        qn_expect(qn_gpu_guards_intact(all[i]), "bytes outside of memory %zu were written", i);
        qn_gpu_free(all[i]);
    }
    free(signs);
    free(expected);
    free(found);
    qn_problem_free(&p);
}

static void check_embeddings(void)
{
    size_t n_types;
    const qn_type_info *types = qn_types(&n_types);
    for (size_t t = 0; t < n_types; t++) {
        if (!qn_matmul_gpu_can_embed(&types[t], 0))
            continue;
        qn_random_seed(t);
        check_embedding(&types[t], 40, types[t].block_weights * (types[t].block_weights == 1 ? 576 : 1), 0, 0);
        check_embedding(&types[t], 17, 2304, 256, 2);
        check_embedding(&types[t], 100, 5120, 1024, 3);
        check_embedding(&types[t], 33, 4096, 2048, 0);
        check_embedding(&types[t], 1, 2048, 4, 1);
    }
}

/* ---- Speed ---- */

static void timed_sampler(void *context, size_t turn)
{
    (void)turn;
    launch_sampler(context);
}

struct timed_embed {
    qn_launch launch;
    qn_matmul_embed_args args;
};

static void timed_embedding(void *context, size_t turn)
{
    const struct timed_embed *t = context;
    (void)turn;
    qn_gpu_launch(&t->launch, &t->args);
}

static void bench_embedding(void)
{
    struct timed_embed t;
    const int32_t token = 77;
    const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(qn_type_find(QN_TYPE_Q1_0));
    qn_tiled_matrix matrix = { .tiles = tiles, .n_tiles = 1000, .n_cols = 5120 };
    size_t bytes;
    qn_assert_ok(qn_matmul_gpu_bytes(&tiles, matrix.n_tiles, matrix.n_cols, &bytes));
    qn_gpu_guarded weights = qn_gpu_new(bytes), out = qn_gpu_new(matrix.n_cols * sizeof(float)),
                   ids = qn_gpu_from(&token, sizeof token);
    matrix.address = weights.data;
    for (size_t block = 0; block <= 1024; block += 1024) {
        char shape[64];
        snprintf(shape, sizeof shape, "a row of 5120, blocks of %zu", block);
        qn_assert_ok(qn_matmul_gpu_embed(&matrix, 0, ids.data, 0, block, 1, out.data, &t.launch, &t.args));
        qn_gpu_bench("embed", "q1_0", shape, 5120, "value", 0, timed_embedding, &t, 64);
    }
    qn_gpu_free(&weights);
    qn_gpu_free(&out);
    qn_gpu_free(&ids);
}

/* The logits stay in L2, as in decode, where they have just been written. */
static void bench_sampling(size_t n)
{
    float *logits = qn_xcalloc(n, sizeof *logits);
    struct gpu_sampler gpu = sampler_new(n);
    fill_logits(logits, n, NORMAL);
    for (size_t f = 0; f < N_FILTERS; f++) {
        char shape[64];
        qn_sample_request request = { .sampling = filters[f].sampling };
        request.random = qn_random();
        snprintf(shape, sizeof shape, "%zu logits, %s", n, filters[f].name);
        sample(&gpu, &request, logits);
        qn_gpu_bench("sample", "cuda", shape, (double)n, "logit", 0, timed_sampler, &gpu, 16);
    }
    sampler_free(&gpu);
    free(logits);
}

void qn_check_cuda_sample(bool bench)
{
    static const size_t sizes[] = { 1, 2, 31, 2048, 2049, 4097, 32000, 151936, MAX_LOGITS };
    struct counts counts = { 0 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_sampling(sizes[i], sizes[i] < 10000 ? 6 : 3, &counts);
    /* Kernels that always fall back to the host would pass the checks above. */
    qn_case_begin("sample", "cuda", "%zu tokens sampled", counts.n_draws_done);
    qn_expect(counts.host_fallbacks * 4 < counts.n_draws_done, "%zu fell back to the host", counts.host_fallbacks);
    check_embeddings();
    if (bench) {
        bench_sampling(MAX_LOGITS);
        bench_embedding();
    }
}
