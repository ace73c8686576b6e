/* Steps whose matmuls are computed on matrix units, emulated in C (kernels/matmul/tiles.h), on every machine: the same
 * logits as the reference, whatever the threads, also where items are halves of panels. */

#include "helper_model.h"
#include "helper_random.h"

#include "base/memory.h"

/* More than one block of 64 tokens: the last tile is not full; tokens of a block are ordered, by threads that race. */
static const size_t row_counts[] = { 81, 96 };
enum { MAX_ROWS = 96 };

static void open_golden(struct fixture *x, const char *golden)
{
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, golden);
    assert_ok(qn_gguf_open(path, &x->file));
    qn_kernels_init(&x->kernels, 0);
}

/* The logits of a step of the executor; frees the fixture. */
static float *run_step(struct fixture *fixture, size_t n_rows, size_t *count)
{
    static qn_row rows[MAX_ROWS];
    static uint32_t logit_rows[MAX_ROWS];
    struct fixture x = *fixture;
    float *logits;
    struct memory memory = new_memory(&x);
    *count = n_rows * x.plan.n_vocab;
    assert_ok(qn_alloc(&logits, n_rows, x.plan.n_vocab * sizeof *logits, "test"));
    prepare_memory(&memory, n_rows);
    for (uint32_t i = 0; i < n_rows; i++) {
        logit_rows[i] = i;
        rows[i] = row_of_memory(&memory, (int32_t)((7 * i + i / 5) % x.plan.n_vocab), i);
    }
    const qn_step step = {
        .rows = rows, .n_rows = n_rows, .logit_rows = logit_rows, .n_logit_rows = n_rows, .logits = logits
    };
    qn_executor_run(x.executor, &step);
    free_memory(&memory);
    tear_down(&x);
    return logits;
}

static float *logits_of(const char *golden, size_t n_rows, int n_threads, bool tiles, size_t *count)
{
    struct fixture x = { 0 };
    open_golden(&x, golden);
    x.kernels.matmul.block_scales = true; /* the arithmetic of kernels/matmul/blocks.h, as with tiles */
    if (tiles)
        qn_matmul_init_amx_ref(&x.kernels.matmul);
    build_executor_with_kernels(&x, n_threads, n_rows, n_rows);
    return run_step(&x, n_rows, count);
}

TEST(tiles_compute_the_same_logits)
{
    static const char *const models[] = { "qwen3.q1_0", "llama.ptq1_0", "qwen35.pq2_0" };
    for (size_t i = 0; i < 2 * sizeof models / sizeof *models; i++) {
        const char *model = models[i / 2];
        const size_t n_rows = row_counts[i % 2];
        size_t count;
        float *expected = logits_of(model, n_rows, 1, false, &count);
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            float *found = logits_of(model, n_rows, n_threads, true, &count);
            if (memcmp(found, expected, count * sizeof *found) != 0)
                fail_msg("%s, %zu rows, %d threads: logits differ", model, n_rows, n_threads);
            qn_free(found);
        }
        qn_free(expected);
    }
}

/* Lets the last matrix of each operation have random weights of another type, without blocks. Returns its data. */
static uint8_t *mix_types(const qn_plan *plan)
{
    const qn_type_info *type = qn_type_find(QN_TYPE_Q4_0);
    static const uint16_t scale = 0x2000; /* 2^-7 */
    size_t bytes = 0;
    uint8_t *data;
    for (int fill = 0; fill < 2; fill++) {
        if (fill) {
            assert_ok(qn_alloc(&data, bytes, 1, "test"));
            for (size_t i = 0; i < bytes; i++)
                data[i] = (uint8_t)random_u32();
            for (size_t i = 0; i < bytes; i += type->block_bytes)
                memcpy(data + i, &scale, sizeof scale);
        }
        for (size_t i = 0; i < plan->n_ops; i++) {
            qn_op_matrices *matrices = qn_op_matrices_of(&plan->ops[i]);
            if (!matrices)
                continue;
            qn_matrix *weights = &matrices->at[matrices->n - 1].weights;
            const size_t row_bytes = weights->n_cols / type->block_weights * type->block_bytes;
            bytes = weights->n_rows * row_bytes > bytes ? weights->n_rows * row_bytes : bytes;
            if (fill) {
                weights->type = type;
                weights->row_bytes = row_bytes;
                weights->data = data;
            }
        }
    }
    return data;
}

static float *mixed_logits(const char *golden, bool tiles, size_t *count)
{
    struct fixture x = { 0 };
    qn_model_head head;
    open_golden(&x, golden);
    if (tiles)
        qn_matmul_init_amx_ref(&x.kernels.matmul);
    assert_ok(qn_model_build_with_head(x.file, &x.hparams, &x.plan, &head));
    random_state = 1;
    uint8_t *data = mix_types(&x.plan);
    assert_ok(qn_team_create(2, &x.team));
    assert_ok(qn_executor_create(x.team, &x.kernels, &x.plan, &x.executor));
    assert_ok(qn_executor_reserve(x.executor, row_counts[0], row_counts[0]));
    float *logits = run_step(&x, row_counts[0], count);
    qn_free(data);
    return logits;
}

/* Activations that a matrix without blocks reads have no factors, so that its results are those of other levels, and
 * with them those of the matrices next to it. */
TEST(activations_of_mixed_types_have_no_factors)
{
    size_t count;
    float *expected = mixed_logits("qwen3.q1_0", false, &count), *found = mixed_logits("qwen3.q1_0", true, &count);
    if (memcmp(found, expected, count * sizeof *found) != 0)
        fail_msg("logits differ");
    qn_free(found);
    qn_free(expected);
}
