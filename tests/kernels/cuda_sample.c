/* Sampling on the GPU against the CPU, in steps of many rows: the same token and log probabilities for every
 * distribution and request. And the embedding kernel: rows of the table as the CPU dequantises and rotates them. */
#include "cuda.h"

#include "base/f16.h"
#include "problem.h"
#include "sample_problem.h"
#include "kernels/hadamard/hadamard.h"
#include "cuda/kernels/matmul/embed.h"
#include "cuda/kernels/sample/sample.h"

/* ---- The sampler ---- */

enum { MAX_LOGITS = 248320, MAX_ROWS = 130 };

/* Buffers for rows of n logits. */
struct gpu_sampler {
    size_t n, max_rows, n_rows;
    uint64_t logits, params, entries, masks, raw, states, results, tokens;
    qn_sample_mode mode;
};

static struct gpu_sampler sampler_new(size_t n, size_t max_rows)
{
    struct gpu_sampler c = { .n = n,
                             .max_rows = max_rows,
                             .logits = qn_gpu_floats(max_rows * n),
                             .params = qn_gpu_new(max_rows * sizeof(qn_sample_params)),
                             .entries = qn_gpu_new(max_rows * MAX_ENTRIES * sizeof(qn_sample_entry)),
                             .masks = qn_gpu_new(max_rows * qn_sample_mask_words(n) * sizeof(uint32_t)),
                             .raw = qn_gpu_floats(max_rows * MAX_ENTRIES),
                             .states = qn_gpu_zeros(max_rows * sizeof(qn_sample_state)),
                             .results = qn_gpu_new(max_rows * sizeof(qn_sample_result)),
                             .tokens = qn_gpu_new(max_rows * sizeof(int32_t)) };
    qn_gpu_synchronize(); /* uploads run in another stream */
    return c;
}

static void launch_sampler(const struct gpu_sampler *c)
{
    const qn_sample_args args = { .logits = c->logits,
                                  .params = c->params,
                                  .states = c->states,
                                  .results = c->results,
                                  .tokens = c->tokens,
                                  .n = (uint32_t)c->n };
    qn_launch launches[QN_SAMPLE_LAUNCHES];
    size_t n;
    qn_assert_ok(qn_sample_gpu_launches(c->mode, c->n, c->n_rows, qn_gpu_info()->major >= 9, launches, &n));
    for (size_t i = 0; i < n; i++)
        qn_gpu_launch(&launches[i], &args);
}

/* The parameters of a row, its entries and its mask. */
static void set_row(struct gpu_sampler *c, size_t row, const qn_sample_request *request)
{
    qn_sample_params params = qn_sample_gpu_params(request, c->n);
    qn_sample_entry *entries = qn_new(MAX_ENTRIES, sizeof *entries);
    uint32_t *slots = qn_new(c->n, sizeof *slots);
    const size_t mask_bytes = qn_sample_mask_words(c->n) * sizeof(uint32_t), first = row * MAX_ENTRIES;
    params.n_entries = (uint32_t)qn_sample_list_entries(request, c->n, slots, entries);
    params.entries = c->entries + first * sizeof *entries;
    params.raw = request->logprobs ? c->raw + first * sizeof(float) : 0;
    if (params.n_entries)
        qn_gpu_write(params.entries, entries, params.n_entries * sizeof *entries);
    if (request->allowed) {
        params.allowed = c->masks + row * mask_bytes;
        qn_gpu_write(params.allowed, request->allowed, mask_bytes);
    }
    qn_gpu_write(c->params + row * sizeof params, &params, sizeof params);
    c->mode = qn_sample_gpu_join(c->mode, qn_sample_gpu_mode(request, c->n));
}

/* After a launch the tickets are zero; nothing else in a state lasts. */
static void expect_and_poison_states(struct gpu_sampler *c)
{
    qn_sample_state *states = qn_gpu_read(c->states);
    static const uint32_t none[4];
    for (size_t row = 0; row < c->n_rows; row++) {
        qn_expect(memcmp(states[row].tickets, none, sizeof none) == 0,
                  "row %zu: the tickets are not zero after a launch", row);
        memset(&states[row], 0xa5, sizeof *states);
        memset(states[row].tickets, 0, sizeof none);
    }
    qn_gpu_write(c->states, states, c->n_rows * sizeof *states);
}

/* Returns results [n_rows] of logits [n_rows][n]. */
static const qn_sample_result *sample(struct gpu_sampler *c, const qn_sample_request *requests, size_t n_rows,
                                      const float *logits)
{
    c->n_rows = n_rows;
    c->mode = QN_SAMPLE_NONE;
    qn_gpu_poison(c->logits, c->params, c->entries, c->masks, c->raw, c->results, c->tokens);
    for (size_t row = 0; row < n_rows; row++)
        set_row(c, row, &requests[row]);
    qn_gpu_write(c->logits, logits, n_rows * c->n * sizeof *logits);
    launch_sampler(c);
    const qn_sample_result *results = qn_gpu_read(c->results);
    const int32_t *tokens = qn_gpu_read(c->tokens);
    for (size_t row = 0; row < n_rows; row++)
        qn_expect(tokens[row] == results[row].token, "row %zu: for the next step %d, for the host %d", row, tokens[row],
                  results[row].token);
    expect_and_poison_states(c);
    return results;
}

/* ---- Comparison ---- */

/* Log probabilities have the same bits. The device's are of `found`, with the chosen token's raw logit. */
static void compare_logprobs(const qn_logprobs *expected, uint32_t n_top, const qn_sample_result *found, float logit,
                             size_t n)
{
    qn_logprobs device = { .n = n_top };
    qn_sample_set_logprobs(&device, n, found->largest, found->total, found->top, logit);
    qn_expect(device.n == expected->n, "%u log probabilities, expected %u", device.n, expected->n);
    qn_expect_same(&device.chosen, &expected->chosen, 1, "log probability of the token");
    qn_expect(memcmp(device.tokens, expected->tokens, expected->n * sizeof *device.tokens) == 0,
              "other most likely tokens");
    qn_expect_same(device.values, expected->values, expected->n, "log probability");
}

static void compare(const struct gpu_sampler *gpu, const struct problem *p, qn_sample_request *request, size_t row,
                    const float *logits, const qn_sample_result *found)
{
    const size_t n = gpu->n;
    const uint32_t n_top = p->logprobs.n;
    void *scratch = qn_new(qn_sample_scratch_bytes(n), 1);
    qn_sample_kernels kernels;
    qn_sample_kernels_init(&kernels, 0);
    qn_sample_token(&kernels, request, logits, n, scratch);
    qn_expect(found->best == request->best, "row %zu (%s, %s): the best is %016llx, expected %016llx", row,
              shape_names[p->shape], filters[p->filter].name, (unsigned long long)found->best,
              (unsigned long long)request->best);
    qn_expect(found->token == request->token, "row %zu (%s, %s, mask %d): token %d, expected %d", row,
              shape_names[p->shape], filters[p->filter].name, p->mask, found->token, request->token);
    if (request->logprobs && request->token >= 0)
        compare_logprobs(request->logprobs, n_top, found, logits[request->token], n);
}

/* The logits of entries before they change are those of the row. */
static void compare_raw(const struct gpu_sampler *gpu, const qn_sample_request *requests, const float *logits)
{
    float *expected = qn_floats(MAX_ENTRIES);
    uint32_t *slots = qn_new(gpu->n, sizeof *slots);
    qn_sample_entry *entries = qn_new(MAX_ENTRIES, sizeof *entries);
    float *raw = qn_gpu_read(gpu->raw);
    for (size_t row = 0; row < gpu->n_rows; row++) {
        const size_t n = requests[row].logprobs ? qn_sample_list_entries(&requests[row], gpu->n, slots, entries) : 0;
        for (size_t i = 0; i < n; i++)
            expected[i] = logits[row * gpu->n + (size_t)entries[i].token];
        qn_expect(memcmp(raw + row * MAX_ENTRIES, expected, n * sizeof *expected) == 0, "row %zu: logits of entries",
                  row);
    }
}

/* ---- Steps of many rows ---- */

enum kinds { MIXED, GREEDY_ONLY, TOP_K_ONLY, N_KINDS };
static const char *const kind_names[N_KINDS] = { "mixed", "greedy", "small top_k" };

static bool is_of_kind(size_t filter, enum kinds kinds)
{
    const qn_sampling *sampling = &filters[filter].sampling;
    const bool greedy = qn_sample_is_greedy(sampling),
               top_k = sampling->top_k > 0 && sampling->top_k <= QN_SAMPLE_MAX_TOP_K;
    return kinds == MIXED || greedy || (kinds == TOP_K_ONLY && top_k);
}

/* A step of n_rows rows: shapes and filters in turn, from number *next on. */
static void check_step(struct gpu_sampler *gpu, size_t n_rows, enum kinds kinds, size_t *next)
{
    const size_t n = gpu->n, mark = qn_mark();
    float *logits = qn_floats(n_rows * n);
    uint32_t *masks = qn_new(n_rows * qn_sample_mask_words(n), sizeof *masks);
    struct problem *problems = qn_new(n_rows, sizeof *problems);
    qn_sample_request *requests = qn_new(n_rows, sizeof *requests);
    qn_case_begin("sample", "cuda", "%zu rows of %zu logits, %s, from %zu", n_rows, n, kind_names[kinds], *next);
    qn_random_seed(n * 1000 + *next);
    for (size_t row = 0; row < n_rows; row++) {
        struct problem *p = &problems[row];
        do {
            p->shape = (enum shape)(*next % N_SHAPES);
            p->filter = *next / N_SHAPES % n_filters;
            ++*next;
        } while (!is_of_kind(p->filter, kinds));
        p->mask = qn_random_below(3) ? 0 : 1 + (int)qn_random_below(3);
        p->allowed = masks + row * qn_sample_mask_words(n);
        qn_fill_logits(logits + row * n, n, p->shape);
        requests[row] = qn_request_of(p, logits + row * n, n);
    }
    const qn_sample_result *first = sample(gpu, requests, n_rows, logits),
                           *found = sample(gpu, requests, n_rows, logits);
    compare_raw(gpu, requests, logits);
    for (size_t row = 0; row < n_rows; row++) {
        const bool same = found[row].best == first[row].best && found[row].token == first[row].token;
        qn_expect(same, "row %zu: the first time it is %d, then %d", row, first[row].token, found[row].token);
        compare(gpu, &problems[row], &requests[row], row, logits + row * n, &found[row]);
    }
    qn_release_to(mark);
}

/* Steps over one set of buffers, so that each step begins with the states that the previous step left. */
static void check_sampling(size_t n)
{
    static const size_t steps[] = { 1, 2, 1, 3, 1, 5, 17, 1, 64, MAX_ROWS, 1, 9 };
    struct gpu_sampler gpu = sampler_new(n, MAX_ROWS);
    size_t next = 0;
    for (size_t i = 0; i < QN_LENGTH(steps) * 2; i++) {
        /* One row alone, many times: shapes and filters in all combinations. */
        const size_t n_rows = steps[i % QN_LENGTH(steps)], repetitions = n_rows == 1 ? 10 : 1;
        for (size_t r = 0; r < repetitions; r++)
            if (qn_case_selected())
                check_step(&gpu, n_rows, (enum kinds)((i + i / QN_LENGTH(steps)) % N_KINDS), &next);
    }
    qn_release();
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
    qn_tiled_matrix matrix = { .tiles = tiles,
                               .n_tiles = first_tile + qn_matmul_gpu_tile_count(n_rows) + 1,
                               .n_cols = n_cols };
    size_t bytes;
    qn_case_begin("embed", "cuda", "%s, a table of %zu by %zu from tile %zu, blocks of %zu", type->name, n_rows, n_cols,
                  first_tile, block);
    qn_hadamard_kernels_init(&hadamard, 0);
    qn_problem_new(&p, type, n_rows, n_cols, 1, false);
    qn_random_blocks(type, p.data, n_rows * n_cols / type->block_weights, 100); /* scales and offsets are f16 */
    qn_assert_ok(qn_matmul_gpu_bytes(&tiles, matrix.n_tiles, n_cols, &bytes));
    int32_t tokens[TOKENS] = { (int32_t)n_rows - 1, 0, (int32_t)qn_random_below(n_rows) };
    /* The last two rows have the same tokens from sources, one of which was not sampled. */
    const int32_t sampled[2] = { tokens[2], -1 }, own[TOKENS] = { tokens[0], 1 << 30, 1 << 30 };
    const uint32_t sources[TOKENS] = { 0, 2, 1 };
    float *signs = qn_signs_of(n_cols), *expected = qn_floats(TOKENS * n_cols);
    uint32_t words[40];
    for (size_t i = 0; i < QN_LENGTH(words); i++)
        words[i] = (uint32_t)qn_random();
    for (size_t r = 0; r < TOKENS; r++) {
        float *x = expected + r * n_cols;
        type->to_float(p.weights.data + (size_t)tokens[r] * p.weights.row_bytes, n_cols / type->block_weights, x);
        for (size_t i = 0; tiles.bits == 16 && i < n_cols; i++)
            x[i] = qn_f16_to_f32(qn_f32_to_f16(x[i])); /* bf16 has smaller numbers than f16 */
        for (size_t i = 0; block && i < n_cols; i += block)
            hadamard.block(x + i, block, NULL, signs + i);
    }
    uint64_t weights = qn_gpu_new(bytes), rows = qn_gpu_from(p.weights.data, n_rows * p.weights.row_bytes),
             ids = qn_gpu_from(tokens, sizeof tokens), sign = qn_gpu_copy(signs), out = qn_gpu_floats(TOKENS * n_cols),
             from = qn_gpu_from(words, sizeof words), to = qn_gpu_new(sizeof words),
             own_ids = qn_gpu_from(own, sizeof own), sampled_ids = qn_gpu_from(sampled, sizeof sampled),
             source = qn_gpu_from(sources, sizeof sources);
    matrix.address = weights;
    qn_matmul_launch pack;
    qn_launch launch;
    qn_matmul_embed_args args;
    qn_assert_ok(qn_matmul_gpu_pack(&matrix, rows, p.weights.row_bytes, n_rows, first_tile, &pack));
    qn_gpu_launch(&pack.launch, &pack.args);
    qn_assert_ok(qn_matmul_gpu_embed(&matrix, first_tile, ids, block ? sign : 0, block, TOKENS, out, &launch, &args));
    args.from = from;
    args.to = to;
    args.n_words = QN_LENGTH(words);
    qn_gpu_launch(&launch, &args);
    qn_expect_same(qn_gpu_read(out), expected, TOKENS * n_cols, "value");
    qn_expect(memcmp(words, qn_gpu_read(to), sizeof words) == 0, "the copied words differ");
    args.n_words = 0;
    args.tokens = own_ids;
    args.sources = source;
    args.sampled = sampled_ids;
    qn_gpu_poison(out);
    qn_gpu_launch(&launch, &args);
    qn_expect_same(qn_gpu_read(out), expected, TOKENS * n_cols, "value of a token from a source");
    qn_release();
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

static void bench_embedding(void)
{
    const int32_t token = 77;
    const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(qn_type_find(QN_TYPE_Q1_0));
    qn_tiled_matrix matrix = { .tiles = tiles, .n_tiles = 1000, .n_cols = 5120 };
    size_t bytes;
    qn_assert_ok(qn_matmul_gpu_bytes(&tiles, matrix.n_tiles, matrix.n_cols, &bytes));
    uint64_t weights = qn_gpu_new(bytes), out = qn_gpu_floats(matrix.n_cols), ids = qn_gpu_from(&token, sizeof token);
    matrix.address = weights;
    for (size_t block = 0; block <= 1024; block += 1024) {
        qn_matmul_embed_args args;
        qn_gpu_timed timed = { .args = &args };
        qn_assert_ok(qn_matmul_gpu_embed(&matrix, 0, ids, 0, block, 1, out, &timed.launch, &args));
        qn_gpu_bench_launches("embed", "q1_0", qn_text("a row of 5120, blocks of %zu", block), 5120, "value", 0, &timed,
                              1, 64);
    }
    qn_release();
}

/* One row stays in L2, as in decode, where it has just been written; many do not fit. The limit: logits are read
 * once. */
static void bench_sampling(size_t n, size_t n_rows, enum shape distribution)
{
    float *logits = qn_floats(n_rows * n);
    qn_sample_request *requests = qn_new(n_rows, sizeof *requests);
    uint32_t *allowed = qn_new(qn_sample_mask_words(n), sizeof *allowed);
    qn_logprobs logprobs = { .n = QN_SAMPLE_TOP_LOGPROBS };
    struct gpu_sampler gpu = sampler_new(n, n_rows);
    qn_fill_logits(logits, n_rows * n, distribution);
    memset(allowed, 0xff, qn_sample_mask_words(n) * sizeof *allowed);
    for (size_t f = 0; f < n_filters + 2; f++) {
        const size_t filter = f < n_filters ? f : 1; /* the default with log probabilities, and with masks */
        const char *with = f == n_filters ? ", log probabilities" : f == n_filters + 1 ? ", masks" : "";
        for (size_t row = 0; row < n_rows; row++)
            requests[row] = (qn_sample_request){ .sampling = filters[filter].sampling,
                                                 .random = qn_random(),
                                                 .logprobs = f == n_filters ? &logprobs : NULL,
                                                 .allowed = f == n_filters + 1 ? allowed : NULL };
        const char *shape =
            qn_text("%zu rows of %zu, %s, %s%s", n_rows, n, shape_names[distribution], filters[filter].name, with);
        sample(&gpu, requests, n_rows, logits);
        qn_gpu_bench("sample", "cuda", shape, (double)(n_rows * n * sizeof *logits), "B", qn_gpu_read_rate(),
                     timed_sampler, &gpu, 16);
    }
    qn_release();
}

void qn_check_cuda_sample(bool bench)
{
    static const size_t sizes[] = { 1, 2, 31, 2047, 2050, 4097, 32001, 151936, MAX_LOGITS - 1 };
    for (size_t i = 0; i < QN_LENGTH(sizes); i++)
        check_sampling(sizes[i]);
    check_embeddings();
    if (bench) {
        bench_sampling(151936, 1, NORMAL);
        bench_sampling(151936, 32, NORMAL);
        bench_sampling(151936, 128, NORMAL);
        bench_sampling(151936, 1, FLAT);
        bench_sampling(151936, 32, FLAT);
        bench_sampling(151936, 1, EQUAL);
        bench_embedding();
    }
}
