/* Sampling on a Vulkan device against the CPU, in steps of many rows: the same token for every distribution and
 * request. And the embedding kernel: rows of the table as the CPU dequantises and rotates them. */
#include "vulkan.h"

#include "base/f16.h"
#include "kernels/hadamard/hadamard.h"
#include "problem.h"
#include "sample_problem.h"
#include "vulkan/kernels/sample.h"

#include <math.h>

enum { MAX_ROWS = 16 };

/* ---- The sampler ---- */

/* A step's rows on the device. */
struct step {
    size_t n, n_rows;
    const qn_vk_array *logits, *raw, *results, *tokens, *states;
    qn_vk_sample_args args;
    bool has_draws;
};

static uint64_t mask_of(const uint32_t *allowed, size_t n)
{
    uint32_t *mask = qn_new(qn_sample_mask_words(n), sizeof *mask);
    memcpy(mask, allowed, qn_sample_mask_words(n) * sizeof *mask);
    return qn_vk_array_of(mask)->at;
}

static void set_row(struct step *s, size_t row, const qn_sample_request *request, qn_vk_sample_params *p)
{
    qn_sample_entry *entries = qn_new(MAX_ENTRIES, sizeof *entries);
    uint32_t *slots = qn_new(s->n, sizeof *slots);
    *p = qn_vk_sample_params_of(request, s->n);
    p->n_entries = (uint32_t)qn_sample_list_entries(request, s->n, slots, entries);
    p->entries = p->n_entries ? qn_vk_array_of(entries)->at : 0;
    p->raw = s->raw->at + row * MAX_ENTRIES * sizeof(float);
    p->allowed = request->allowed ? mask_of(request->allowed, s->n) : 0;
    s->has_draws = s->has_draws || p->kind == QN_VK_SAMPLE_DRAW;
}

static struct step new_step(const qn_sample_request *requests, size_t n_rows, const float *logits, size_t n)
{
    struct step s = { .n = n,
                      .n_rows = n_rows,
                      .logits = qn_vk_array_of(logits),
                      .raw = qn_vk_new_array(n_rows * MAX_ENTRIES * sizeof(float)),
                      .results = qn_vk_new_array(n_rows * sizeof(qn_vk_sample_result)),
                      .tokens = qn_vk_new_array(n_rows * sizeof(int32_t)),
                      .states = qn_vk_new_array(n_rows * sizeof(qn_vk_sample_state)) };
    qn_vk_sample_params *params = qn_new(n_rows, sizeof *params);
    for (size_t row = 0; row < n_rows; row++)
        set_row(&s, row, &requests[row], &params[row]);
    s.args = (qn_vk_sample_args){ .logits = s.logits->at,
                                  .params = qn_vk_array_of(params)->at,
                                  .states = s.states->at,
                                  .results = s.results->at,
                                  .tokens = s.tokens->at,
                                  .n = (uint32_t)n,
                                  .n_slices = qn_vk_sample_slices(n) };
    return s;
}

static void run_step(const struct step *s)
{
    qn_vk_launch launches[QN_VK_SAMPLE_LAUNCHES];
    const size_t n = qn_vk_sample(&qn_vk_device_info()->features, s->has_draws, s->n, s->n_rows, launches);
    for (size_t i = 0; i < n; i++)
        qn_vk_launch_now(launches[i], &s->args);
}

/* Filters that only the host has are not drawn. A driver may flush denormal logits when they are changed. */
static bool is_supported(const qn_sample_request *request, enum shape shape)
{
    return qn_vk_sample_kind_of(request) != QN_VK_SAMPLE_NONE && shape != TINY;
}

static void compare(const struct problem *p, qn_sample_request *request, size_t row, const float *logits, size_t n,
                    const qn_vk_sample_result *found, int32_t next)
{
    void *scratch = qn_new(qn_sample_scratch_bytes(n), 1);
    qn_sample_kernels kernels;
    qn_sample_kernels_init(&kernels, 0);
    qn_sample_token(&kernels, request, logits, n, scratch);
    qn_expect(found->best == request->best, "row %zu (%s, %s): the best is %016llx, expected %016llx", row,
              shape_names[p->shape], filters[p->filter].name, (unsigned long long)found->best,
              (unsigned long long)request->best);
    qn_expect(found->token == request->token, "row %zu (%s, %s, mask %d): token %d, expected %d", row,
              shape_names[p->shape], filters[p->filter].name, p->mask, found->token, request->token);
    qn_expect(next == (found->token < 0 ? 0 : found->token), "row %zu: for the next step %d, for the host %d", row,
              next, found->token);
}

/* The logits of entries before they change. */
static void compare_raw(const struct step *s, const qn_sample_request *requests, const float *logits)
{
    uint32_t *slots = qn_new(s->n, sizeof *slots);
    qn_sample_entry *entries = qn_new(MAX_ENTRIES, sizeof *entries);
    const float *raw = qn_vk_contents(s->raw);
    for (size_t row = 0; row < s->n_rows; row++) {
        const size_t n = qn_sample_list_entries(&requests[row], s->n, slots, entries);
        for (size_t i = 0; i < n; i++)
            qn_expect(
                memcmp(&raw[row * MAX_ENTRIES + i], &logits[row * s->n + (size_t)entries[i].token], sizeof *raw) == 0,
                "row %zu: the logit of entry %zu", row, i);
    }
}

/* A step of n_rows rows: shapes and filters in turn, from number *next on. */
static void check_step(size_t n, size_t n_rows, size_t *next)
{
    float *logits = qn_floats(n_rows * n);
    uint32_t *masks = qn_new(n_rows * qn_sample_mask_words(n), sizeof *masks);
    struct problem *problems = qn_new(n_rows, sizeof *problems);
    qn_sample_request *requests = qn_new(n_rows, sizeof *requests);
    qn_case_begin("sample", "vulkan", "%zu rows of %zu logits, from %zu", n_rows, n, *next);
    qn_random_seed(n * 1000 + *next);
    for (size_t row = 0; row < n_rows;) {
        struct problem *p = &problems[row];
        *p = (struct problem){ .shape = (enum shape)(*next % N_SHAPES),
                               .filter = *next / N_SHAPES % n_filters,
                               .mask = qn_random_below(3) ? 0 : 1 + (int)qn_random_below(3),
                               .allowed = masks + row * qn_sample_mask_words(n) };
        ++*next;
        qn_fill_logits(logits + row * n, n, p->shape);
        requests[row] = qn_request_of(p, logits + row * n, n);
        row += is_supported(&requests[row], p->shape);
    }
    const struct step s = new_step(requests, n_rows, logits, n);
    run_step(&s);
    const qn_vk_sample_result *found = qn_vk_contents(s.results);
    const int32_t *tokens = qn_vk_contents(s.tokens);
    for (size_t row = 0; row < n_rows; row++)
        compare(&problems[row], &requests[row], row, logits + row * n, n, &found[row], tokens[row]);
    compare_raw(&s, requests, logits);
    qn_release();
}

static void check_sampling(size_t n, size_t n_steps)
{
    static const size_t steps[] = { 1, 7, 1, 2, MAX_ROWS, 1, 3 };
    size_t next = n % N_SHAPES; /* the shapes and filters of one row alone differ between sizes */
    for (size_t i = 0; i < n_steps; i++)
        if (qn_case_selected())
            check_step(n, steps[i % QN_LENGTH(steps)], &next);
}

/* ---- Embedding ---- */

static void check_embedding(const qn_type_info *type, size_t n_rows, size_t n_cols, size_t block)
{
    enum { TOKENS = 3 };
    if (!qn_case_selected())
        return;
    const qn_vk_format format = qn_vk_format_of(type);
    const size_t code_words = qn_vk_code_words(&format, n_cols), scale_words = qn_vk_scale_words(&format, n_cols);
    qn_problem p;
    qn_hadamard_kernels hadamard;
    qn_case_begin("embed", "vulkan", "%s, a table of %zu by %zu, blocks of %zu", type->name, n_rows, n_cols, block);
    qn_hadamard_kernels_init(&hadamard, 0);
    qn_problem_new(&p, type, n_rows, n_cols, 1, false);
    qn_random_blocks(type, p.data, n_rows * n_cols / type->block_weights, 100);
    const int32_t tokens[TOKENS] = { (int32_t)n_rows - 1, 0, (int32_t)qn_random_below(n_rows) };
    float *signs = qn_signs_of(n_cols), *expected = qn_floats(TOKENS * n_cols), *scratch = qn_floats(n_cols);
    uint32_t *codes = qn_new(n_rows * code_words, sizeof *codes),
             *scales = qn_new(n_rows * (scale_words + 1), sizeof *scales), *inputs = qn_new(TOKENS, sizeof *inputs),
             *sources = qn_new(TOKENS, sizeof *sources), *sampled = qn_new(2, sizeof *sampled);
    for (size_t row = 0; row < n_rows; row++)
        qn_vk_pack_row(type, p.data + row * p.weights.row_bytes, n_cols, scratch, codes + row * code_words,
                       scales + row * scale_words);
    for (size_t r = 0; r < TOKENS; r++) {
        float *x = expected + r * n_cols;
        type->to_float(p.data + (size_t)tokens[r] * p.weights.row_bytes, n_cols / type->block_weights, x);
        for (size_t i = 0; qn_vk_is_f16(type) && i < n_cols; i++)
            x[i] = qn_f16_to_f32(qn_f32_to_f16(x[i]));
        for (size_t i = 0; block && i < n_cols; i += block)
            hadamard.block(x + i, block, NULL, signs + i);
    }
    /* The last two rows have the tokens of a step before. */
    inputs[0] = (uint32_t)tokens[0];
    inputs[1] = inputs[2] = UINT32_MAX / 2;
    sources[1] = 2;
    sources[2] = 1;
    sampled[0] = (uint32_t)tokens[2];
    sampled[1] = (uint32_t)tokens[1];
    const size_t piece = block ? block : 256;
    const qn_vk_array *y = qn_vk_new_array(TOKENS * n_cols * sizeof(float));
    const qn_vk_embed_args args = { .codes = qn_vk_array_of(codes)->at,
                                    .scales = qn_vk_array_of(scales)->at,
                                    .y = y->at,
                                    .inputs = qn_vk_array_of(inputs)->at,
                                    .sources = qn_vk_array_of(sources)->at,
                                    .sampled = qn_vk_array_of(sampled)->at,
                                    .signs = block ? qn_vk_array_of(signs)->at : 0,
                                    .width = (uint32_t)n_cols,
                                    .piece = (uint32_t)piece,
                                    .factor = qn_hadamard_scale(piece) };
    qn_vk_launch_now(qn_vk_embed(&format, block != 0, TOKENS, n_cols, piece), &args);
    qn_expect_same(qn_vk_contents(y), expected, TOKENS * n_cols, "value");
    qn_release();
}

static void check_embeddings(void)
{
    size_t n_types;
    const qn_type_info *types = qn_types(&n_types);
    for (size_t t = 0; t < n_types; t++) {
        if (qn_vk_is_f16(&types[t]) && types[t].type != QN_TYPE_F16)
            continue;
        qn_random_seed(t);
        check_embedding(&types[t], 40, types[t].block_weights * (types[t].block_weights == 1 ? 576 : 1), 0);
        check_embedding(&types[t], 17, 2304, 256);
        check_embedding(&types[t], 9, 4096, 4096);
        check_embedding(&types[t], 33, 5120, 0);
    }
}

/* ---- Speed ---- */

static void bench_sampling(size_t n, size_t n_rows)
{
    float *logits = qn_floats(n_rows * n);
    qn_sample_request *requests = qn_new(n_rows, sizeof *requests);
    qn_fill_logits(logits, n_rows * n, NORMAL);
    for (size_t f = 0; f < 6; f++) {
        for (size_t row = 0; row < n_rows; row++)
            requests[row] = (qn_sample_request){ .sampling = filters[f].sampling, .random = qn_random() };
        const struct step s = new_step(requests, n_rows, logits, n);
        qn_vk_launch launches[QN_VK_SAMPLE_LAUNCHES];
        const size_t n_launches = qn_vk_sample(&qn_vk_device_info()->features, s.has_draws, n, n_rows, launches);
        for (size_t i = 0; i < n_launches; i++)
            qn_vk_bench_launch("sample",
                               qn_text("%zu rows of %zu, %s, %s", n_rows, n, filters[f].name, launches[i].shader->name),
                               (double)(n_rows * n * sizeof *logits), "B", launches[i], &s.args);
    }
    qn_release();
}

void qn_check_vulkan_sample(bool bench)
{
    static const struct {
        size_t n, n_steps;
    } sizes[] = { { 1, 14 },    { 2, 14 },    { 31, 42 },    { 1025, 42 },
                  { 2047, 28 }, { 4097, 28 }, { 32001, 14 }, { 151936, 3 } };
    for (size_t i = 0; i < QN_LENGTH(sizes); i++)
        check_sampling(sizes[i].n, sizes[i].n_steps);
    check_embeddings();
    if (bench) {
        bench_sampling(151936, 1);
        bench_sampling(248320, 1);
        bench_sampling(151936, 32);
    }
}
