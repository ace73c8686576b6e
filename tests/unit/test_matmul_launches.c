/* The launches of qn_matmul_gemm: blocks cover all rows and tokens; clusters use split-K only if each block gets a
 * k-tile, if the device supports clusters, and if SMs would be idle otherwise. Those of qn_matmul_gemm_few: warps cover all
 * tiles, k-tiles and tokens once, within the registers and shared memory that they have. */
#include "helper_assert.h"

#include "kernels/matmul/matmul_cuda.h"

#include <stdio.h>

static const qn_matmul_gpu h200 = { .n_sms = 132, .max_shared_bytes = 232448, .clusters = true };
static const qn_matmul_gpu sm_120 = { .n_sms = 170, .max_shared_bytes = 101376, .clusters = true };

static const qn_tile_layout q8_0 = { QN_STORED_Q8_0, 8, 8, 0, false }, q1_0 = { QN_STORED_Q1_0, 1, 2, 0, false },
                            q2_0 = { QN_STORED_Q2_0, 2, 4, 0, false };

static qn_matmul_launch launch_with(const qn_matmul_gpu *gpu, const qn_tile_layout *tiles, size_t n_rows, size_t n_cols,
                                    size_t n_tokens)
{
    const qn_tiled_matrix matrix = { .tiles = *tiles,
                                     .address = 1024,
                                     .n_tiles = qn_matmul_gpu_tile_count(n_rows),
                                     .n_cols = n_cols,
                                     .n_outs = 1,
                                     .outs = { { .data = 256, .n_rows = (uint32_t)n_rows, .stride = (uint32_t)n_rows } } };
    const qn_matmul_acts acts = { .layout = qn_matmul_gpu_acts_layout(tiles, n_tokens, true),
                                  .address = 1024,
                                  .token_scale = 256,
                                  .n_cols = n_cols,
                                  .capacity = 4096 };
    qn_matmul_launch made;
    assert_ok(qn_matmul_gpu_matmul(gpu, &matrix, &acts, n_tokens, &made));
    assert_int_equal(made.launch.cluster, made.launch.grid[2]);
    return made;
}

static qn_matmul_launch launch_of(const qn_matmul_gpu *gpu, size_t n_rows, size_t n_cols, size_t n_tokens)
{
    const qn_matmul_launch made = launch_with(gpu, &q8_0, n_rows, n_cols, n_tokens);
    assert_string_equal(made.launch.function, "qn_matmul_gemm");
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

/* ---- qn_matmul_gemm_few ---- */

/* The tiles of each cluster, of each pass and of each warp follow each other, and none is left. */
static void few_covers_rows(const qn_matmul_few_args *a, uint32_t clusters, uint32_t m_warps, size_t most_tiles)
{
    uint32_t tile = 0;
    for (uint32_t cluster = 0; cluster < clusters; cluster++) {
        const uint32_t n_tiles = a->cluster_tiles + (cluster < a->extra_tiles);
        assert_int_equal(tile, cluster * a->cluster_tiles + (cluster < a->extra_tiles ? cluster : a->extra_tiles));
        assert_true(n_tiles > 0 && a->row_passes * a->pass_tiles >= n_tiles);
        tile += n_tiles;
    }
    assert_int_equal(tile, a->n_tiles);
    assert_true(a->warp_tiles * m_warps >= a->pass_tiles);
    assert_in_range(a->warp_tiles, 1, most_tiles);
}

static void few_covers(const qn_matmul_gpu *gpu, const qn_tile_layout *tiles, const qn_matmul_launch *made, size_t n_tokens)
{
    const qn_matmul_few_args *a = &made->args.few;
    const qn_launch *launch = &made->launch;
    const uint32_t warps = launch->variant.values[3], k_warps = 1u << a->k_shift, k_splits = k_warps * launch->grid[2];
    const size_t tile_n = tokens_of(launch);
    assert_int_equal(launch->block[0], (warps + 1) * 32);
    assert_int_equal(1 << QN_FEW_WARP_SHIFT(warps), warps);
    assert_true(a->k_shift <= QN_FEW_WARP_SHIFT(warps));
    few_covers_rows(a, launch->grid[1], warps >> a->k_shift, QN_FEW_WARP_TILES(tile_n, warps));
    assert_true(a->k_rounds >= 1 && a->k_rest < k_splits); /* every warp has a k-tile */
    assert_int_equal(a->k_rounds * k_splits + a->k_rest, a->n_k_tiles);
    assert_true(a->token_passes * tile_n >= n_tokens && (a->token_passes - 1) * tile_n < n_tokens);
    assert_true(a->token_passes * tile_n <= a->capacity);
    const size_t tile_bytes = tiles->bits * QN_FRAGMENT_BYTES + tiles->n_scales * 2 * QN_TILE_ROWS;
    const size_t acts = k_warps * a->acts_stages * (QN_FEW_ACTS_BYTES(tile_n) + 16);
    const size_t weights = warps * a->weight_stages * (a->warp_tiles * tile_bytes + 8);
    const size_t partials = warps * a->reduce_tiles * QN_TILE_ROWS * tile_n * sizeof(float);
    assert_true(a->acts_stages >= 2 && a->weight_stages >= 2 && a->weight_stages <= 32);
    assert_in_range(a->reduce_tiles, 1, a->warp_tiles);
    assert_int_equal(launch->shared_bytes, acts + weights + partials);
    assert_true(launch->shared_bytes <= gpu->max_shared_bytes);
    assert_in_range(launch->grid[2], 1, gpu->clusters ? QN_GEMM_MAX_CLUSTER : 1);
}

static void few_tokens_are_covered(void **unused)
{
    (void)unused;
    static const qn_matmul_gpu older = { .n_sms = 108, .max_shared_bytes = 166912 };
    static const qn_matmul_gpu *const gpus[] = { &h200, &sm_120, &older };
    static const qn_tile_layout *const layouts[] = { &q1_0, &q2_0 };
    static const size_t tokens[] = { 1, 2, 8, 9, 16, 17, 24, 25, 32, 33, 48, 64 };
    static const size_t rows[] = { 1, 17, 256, 5120, 34816, 250000 }, cols[] = { 1, 256, 257, 1000, 5120, 17408 };
    for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++)
        for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++)
            for (size_t t = 0; t < sizeof tokens / sizeof *tokens; t++)
                for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                    for (size_t c = 0; c < sizeof cols / sizeof *cols; c++) {
                        label("GPU %zu, %u bits, %zu tokens, %zu rows, %zu columns", g, layouts[l]->bits, tokens[t], rows[r],
                              cols[c]);
                        const qn_matmul_launch made = launch_with(gpus[g], layouts[l], rows[r], cols[c], tokens[t]);
                        assert_string_equal(made.launch.function, "qn_matmul_gemm_few");
                        few_covers(gpus[g], layouts[l], &made, tokens[t]);
                    }
}

/* The larger matrices of a model fill all SMs, or as many as clusters can take: 39 of 3 blocks. */
static void few_tokens_fill_the_device(void **unused)
{
    (void)unused;
    const qn_launch wide = launch_with(&h200, &q1_0, 34816, 5120, 8).launch,
                    deep = launch_with(&h200, &q1_0, 5120, 17408, 8).launch;
    assert_true(wide.grid[1] * wide.grid[2] == 132 && deep.grid[1] * deep.grid[2] >= 117 && deep.grid[2] > 1);
    assert_string_equal(launch_with(&h200, &q1_0, 34816, 5120, QN_FEW_MAX_TOKENS + 1).launch.function, "qn_matmul_gemm");
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(blocks_cover_everything), cmocka_unit_test(k_is_split_where_that_pays),
                                        cmocka_unit_test(few_tokens_are_covered),
                                        cmocka_unit_test(few_tokens_fill_the_device) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
