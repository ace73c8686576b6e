/* The launches of qn_matmul_gemm: blocks cover all rows and tokens; clusters use split-K only if each block gets a
 * k-tile, if the device supports clusters, and if SMs would be idle otherwise. */
#include "helper_assert.h"

#include "kernels/matmul/matmul_cuda.h"

#include <stdio.h>

static const qn_matmul_gpu h200 = { .n_sms = 132, .max_shared_bytes = 232448, .clusters = true };
static const qn_matmul_gpu sm_120 = { .n_sms = 170, .max_shared_bytes = 101376, .clusters = true };

static qn_matmul_launch launch_of(const qn_matmul_gpu *gpu, size_t n_rows, size_t n_cols, size_t n_tokens)
{
    const qn_tiled_matrix matrix = { .tiles = { QN_STORED_Q1_0, 1, 2, 0, false },
                                     .address = 1024,
                                     .n_tiles = qn_matmul_gpu_tile_count(n_rows),
                                     .n_cols = n_cols,
                                     .n_outs = 1,
                                     .outs = { { .data = 256, .n_rows = (uint32_t)n_rows, .stride = (uint32_t)n_rows } } };
    const qn_matmul_acts acts = {
        .layout = QN_ACTS_F16, .address = 1024, .token_scale = 256, .n_cols = n_cols, .capacity = 4096
    };
    qn_matmul_launch made;
    assert_ok(qn_matmul_gpu_matmul(gpu, &matrix, &acts, n_tokens, &made));
    assert_string_equal(made.launch.function, "qn_matmul_gemm");
    assert_int_equal(made.launch.cluster, made.launch.grid[2]);
    return made;
}

static size_t tokens_of(const qn_launch *launch)
{
    unsigned tokens = 0;
    char defines[QN_GPU_DEFINES_MAX];
    qn_gpu_defines(&launch->variant, defines);
    const char *define = strstr(defines, "-DQN_TILE_N=");
    assert_non_null(define);
    assert_int_equal(sscanf(define, "-DQN_TILE_N=%u", &tokens), 1);
    return tokens;
}

static void cover_everything(const qn_matmul_gpu *gpu)
{
    static const size_t tokens[] = { 17, 32, 33, 64, 65, 100, 128, 129, 512, 4096 };
    static const size_t rows[] = { 1, 256, 257, 5120, 34816 }, cols[] = { 1, 256, 257, 1000, 17408 };
    for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (size_t c = 0; c < sizeof cols / sizeof *cols; c++) {
                label("%zu rows, %zu columns, %zu tokens", rows[r], cols[c], tokens[t]);
                const qn_matmul_launch made = launch_of(gpu, rows[r], cols[c], tokens[t]);
                const qn_launch launch = made.launch;
                const size_t unsplit = made.args.gemm.n_unsplit;
                const size_t tile_n = tokens_of(&launch);
                assert_true(launch.grid[0] * tile_n >= tokens[t] && (launch.grid[0] - 1) * tile_n < tokens[t]);
                assert_true(unsplit <= launch.grid[1]);
                assert_int_equal(unsplit * launch.grid[2] + launch.grid[1] - unsplit,
                                 (rows[r] + QN_GEMM_TILE_M - 1) / QN_GEMM_TILE_M);
                assert_in_range(launch.grid[2], 1, QN_GEMM_MAX_CLUSTER);
                assert_true(launch.grid[2] <= (cols[c] + QN_TILE_COLS - 1) / QN_TILE_COLS);
                assert_true(launch.shared_bytes <= gpu->max_shared_bytes);
                assert_true(launch.shared_bytes >= QN_GEMM_STAGES(tile_n) * (tile_n * 128 + 16));
                assert_true(launch.grid[2] == 1 || launch.shared_bytes >= QN_GEMM_TILE_M * tile_n * sizeof(float));
            }
}

static void blocks_cover_everything(void **unused)
{
    (void)unused;
    cover_everything(&h200);
    cover_everything(&sm_120);
}

static void k_is_split_where_that_pays(void **unused)
{
    (void)unused;
    static const qn_matmul_gpu older = { .n_sms = 108, .max_shared_bytes = 166912 };
    const qn_matmul_launch few = launch_of(&h200, 5120, 17408, 50), some = launch_of(&h200, 34816, 5120, 32);
    assert_true(few.launch.grid[2] > 1 && few.args.gemm.n_unsplit == 0);
    /* 136 blocks of rows for 132 SMs: clusters compute the last few. */
    assert_true(some.launch.grid[2] > 1 && some.args.gemm.n_unsplit > 0);
    assert_int_equal(launch_of(&older, 5120, 17408, 50).launch.grid[2], 1);
    assert_int_equal(launch_of(&older, 34816, 5120, 32).launch.grid[2], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(blocks_cover_everything),
                                        cmocka_unit_test(k_is_split_where_that_pays) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
