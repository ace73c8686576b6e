/* Steps whose matmuls are computed on matrix units, emulated in C (kernels/matmul/tiles.h), on every machine: the same
 * logits as the reference, whatever the threads, also where an item has a part of the tokens. */

#include "helper_model.h"

#include "base/memory.h"

enum { N_ROWS = 81 }; /* more than one block of 64 tokens, the last tile is not full */

static float *logits_of(const char *golden, int n_threads, bool tiles, size_t *count)
{
    static qn_row rows[N_ROWS];
    static uint32_t logit_rows[N_ROWS];
    struct fixture x = { 0 };
    float *logits;
    char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, golden);
    assert_ok(qn_gguf_open(path, &x.file));
    qn_kernels_init(&x.kernels, 0);
    x.kernels.matmul.block_scales = true; /* the arithmetic of kernels/matmul/blocks.h, as with tiles */
    if (tiles)
        qn_matmul_init_amx_ref(&x.kernels.matmul);
    build_executor_with_kernels(&x, n_threads, N_ROWS, N_ROWS);
    struct memory memory = new_memory(&x);
    *count = N_ROWS * x.plan.n_vocab;
    assert_ok(qn_alloc(&logits, N_ROWS, x.plan.n_vocab * sizeof *logits, "test"));
    prepare_memory(&memory, N_ROWS);
    for (uint32_t i = 0; i < N_ROWS; i++) {
        logit_rows[i] = i;
        rows[i] = row_of_memory(&memory, (int32_t)((7 * i + i / 5) % x.plan.n_vocab), i);
    }
    const qn_step step = {
        .rows = rows, .n_rows = N_ROWS, .logit_rows = logit_rows, .n_logit_rows = N_ROWS, .logits = logits
    };
    qn_executor_run(x.executor, &step);
    free_memory(&memory);
    tear_down(&x);
    return logits;
}

TEST(tiles_compute_the_same_logits)
{
    static const char *const models[] = { "qwen3.q1_0", "llama.ptq1_0", "qwen35.pq2_0" };
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        size_t count;
        float *expected = logits_of(models[m], 1, false, &count);
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            float *found = logits_of(models[m], n_threads, true, &count);
            if (memcmp(found, expected, count * sizeof *found) != 0)
                fail_msg("%s, %d threads: logits differ", models[m], n_threads);
            qn_free(found);
        }
        qn_free(expected);
    }
}
