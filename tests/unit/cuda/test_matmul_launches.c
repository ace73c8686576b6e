/* The launches of qn_matmul_gemm: blocks cover all rows and tokens; clusters use split-K only if each block gets a
 * k-tile, if the device supports clusters, and if SMs would be idle otherwise. Those of qn_matmul_gemm_few:
 * blocks for all tokens, each with work, within the workspace and the shared memory. Those of qn_matmul_gemv for one
 * token. */
#include "helper_assert.h"

#include "cuda/kernels/matmul/matmul.h"

static const qn_matmul_gpu h200 = { .n_sms = 132, .max_shared_bytes = 232448, .clusters = true, .wgmma = true };
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
                                     .outs = {
                                         { .data = 256, .n_rows = (uint32_t)n_rows, .stride = (uint32_t)n_rows } } };
    const int layout = qn_matmul_gpu_acts_layout(tiles, n_tokens);
    const qn_matmul_acts acts = { .layout = layout,
                                  .address = 1024,
                                  .scale = 256,
                                  .workspace = 2048,
                                  .planes = qn_matmul_gpu_planes(gpu, tiles, n_tokens),
                                  .n_cols = n_cols,
                                  .capacity = layout == QN_ACTS_HILO_N1 ? 1 : 4096 };
    qn_matmul_launch made;
    assert_ok(qn_matmul_gpu_matmul(gpu, &matrix, &acts, n_tokens, &made));
    assert_int_equal(made.launch.cluster ? made.launch.cluster : 1, made.launch.grid[2]);
    return made;
}

static qn_matmul_launch launch_of(const qn_matmul_gpu *gpu, size_t n_rows, size_t n_cols, size_t n_tokens)
{
    const qn_matmul_launch made = launch_with(gpu, &q8_0, n_rows, n_cols, n_tokens);
    assert_string_equal(made.launch.function, "qn_matmul_gemm");
    return made;
}

/* The value of a parameter of the variant, by its definition's text up to the value. */
static size_t value_of(const qn_launch *launch, const char *definition)
{
    unsigned value = 0;
    char defines[QN_GPU_DEFINES_MAX];
    qn_gpu_defines(&launch->variant, defines);
    const char *at = strstr(defines, definition);
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(definition), "%u", &value), 1);
    return value;
}

static size_t tokens_of(const qn_launch *launch)
{
    return value_of(launch, "-DQN_TILE_N=");
}

static void cover_everything(const qn_matmul_gpu *gpu, const qn_tile_layout *tiles)
{
    static const size_t tokens[] = { 17, 32, 33, 64, 65, 100, 128, 129, 512, 4096 };
    static const size_t rows[] = { 1, 256, 257, 5120, 34816 }, cols[] = { 1, 256, 257, 1000, 17408 };
    for (size_t t = 0; t < COUNT(tokens); t++)
        for (size_t r = 0; r < COUNT(rows); r++)
            for (size_t c = 0; c < COUNT(cols); c++) {
                label("%zu rows, %zu columns, %zu tokens", rows[r], cols[c], tokens[t]);
                if (qn_matmul_gpu_acts_layout(tiles, tokens[t]) != QN_ACTS_F16)
                    continue;
                const qn_matmul_launch made = launch_with(gpu, tiles, rows[r], cols[c], tokens[t]);
                const qn_launch launch = made.launch;
                const size_t unsplit = made.args.gemm.n_unsplit;
                const size_t tile_n = tokens_of(&launch), tile_m = value_of(&launch, "-DQN_TILE_M=");
                assert_string_equal(launch.function, "qn_matmul_gemm");
                assert_int_equal(launch.block[0], QN_GEMM_THREADS(tile_m));
                assert_true(launch.grid[0] * tile_n >= tokens[t] && (launch.grid[0] - 1) * tile_n < tokens[t]);
                assert_true(unsplit <= launch.grid[1]);
                assert_int_equal(unsplit * launch.grid[2] + launch.grid[1] - unsplit, (rows[r] + tile_m - 1) / tile_m);
                assert_in_range(launch.grid[2], 1, QN_GEMM_MAX_CLUSTER);
                assert_true(launch.grid[2] <= (cols[c] + QN_TILE_COLS - 1) / QN_TILE_COLS);
                assert_true(launch.shared_bytes <= gpu->max_shared_bytes);
                assert_true(launch.shared_bytes >= QN_GEMM_STAGES(tile_n) * (tile_n * 128 + 16));
                assert_true(launch.grid[2] == 1 || launch.shared_bytes >= tile_m * tile_n * sizeof(float));
            }
}

TEST(blocks_cover_everything)
{
    cover_everything(&h200, &q8_0);
    cover_everything(&h200, &q1_0);
    cover_everything(&sm_120, &q8_0);
    cover_everything(&sm_120, &q2_0);
}

TEST(k_is_split_where_that_pays)
{
    static const qn_matmul_gpu older = { .n_sms = 108, .max_shared_bytes = 166912 };
    const qn_matmul_launch few = launch_of(&h200, 5120, 17408, 50), some = launch_of(&h200, 34816, 5120, 32);
    assert_true(few.launch.grid[2] > 1 && few.args.gemm.n_unsplit == 0);
    /* 136 blocks of rows for 132 SMs: clusters compute the last few. */
    assert_true(some.launch.grid[2] > 1 && some.args.gemm.n_unsplit > 0);
    assert_int_equal(launch_of(&older, 5120, 17408, 50).launch.grid[2], 1);
    assert_int_equal(launch_of(&older, 34816, 5120, 32).launch.grid[2], 1);
}

/* 96 blocks of 256 rows would leave SMs idle, 128 of 192 do not. */
TEST(rows_of_a_block_fill_the_sms)
{
    const qn_launch one_wave = launch_with(&h200, &q1_0, 24576, 4096, 128).launch;
    assert_int_equal(value_of(&one_wave, "-DQN_TILE_M="), 192);
    assert_true(one_wave.grid[1] == 128 && one_wave.grid[2] == 1);
    const qn_launch many_waves = launch_with(&h200, &q1_0, 24576, 4096, 4096).launch;
    assert_int_equal(value_of(&many_waves, "-DQN_TILE_M="), 256);
}

/* ---- Deterministic passes ---- */

/* The numbers of warps, of blocks that share rows and of k-tiles of each decide the order of a sum. */
static void assert_same_order(const qn_matmul_launch *a, const qn_matmul_launch *b)
{
    assert_string_equal(a->launch.function, b->launch.function);
    assert_int_equal(a->launch.grid[2], b->launch.grid[2]);
    if (strcmp(a->launch.function, "qn_matmul_gemv") == 0) {
        assert_int_equal(a->args.gemv.n_k_warps, b->args.gemv.n_k_warps);
        assert_int_equal(a->launch.block[0], b->launch.block[0]);
    } else if (strcmp(a->launch.function, "qn_matmul_gemm") == 0) {
        assert_int_equal(a->args.gemm.n_unsplit, b->args.gemm.n_unsplit);
        assert_int_equal(tokens_of(&a->launch), tokens_of(&b->launch));
        assert_int_equal(value_of(&a->launch, "-DQN_TILE_M="), value_of(&b->launch, "-DQN_TILE_M="));
    } else {
        assert_int_equal(a->args.few.n_parts, b->args.few.n_parts);
    }
}

TEST(same_tokens_have_the_same_order)
{
    static const qn_tile_layout q4_1 = { QN_STORED_Q4_1, 4, 8, 1, false }, f16 = { QN_STORED_F16, 16, 1, 0, false };
    static const qn_tile_layout *const layouts[] = { &q1_0, &q2_0, &q4_1, &q8_0, &f16 };
    static const qn_matmul_gpu *const gpus[] = { &h200, &sm_120 };
    static const size_t rows[] = { 17, 576, 1536, 4096, 49152, 250000 }, cols[] = { 256, 576, 1536, 5120, 17408 };
    for (size_t g = 0; g < COUNT(gpus); g++)
        for (size_t l = 0; l < COUNT(layouts); l++)
            for (size_t r = 0; r < COUNT(rows); r++)
                for (size_t c = 0; c < COUNT(cols); c++) {
                    const qn_tiled_matrix matrix = { .tiles = *layouts[l],
                                                     .n_tiles = qn_matmul_gpu_tile_count(rows[r]) };
                    const size_t most = qn_matmul_gpu_same_tokens(gpus[g], &matrix);
                    const qn_matmul_launch two = launch_with(gpus[g], layouts[l], rows[r], cols[c], 2);
                    assert_in_range(most, 8, QN_FEW_MAX_TOKENS);
                    for (size_t n = 3; n <= most; n++) {
                        label("GPU %zu, %u bits, %zu tokens, %zu rows, %zu columns", g, layouts[l]->bits, n, rows[r],
                              cols[c]);
                        const qn_matmul_launch made = launch_with(gpus[g], layouts[l], rows[r], cols[c], n);
                        assert_same_order(&two, &made);
                    }
                }
}

/* ---- qn_matmul_gemm_few ---- */

static void few_covers(const qn_matmul_gpu *gpu, const qn_tile_layout *tiles, const qn_matmul_launch *made,
                       size_t n_tokens)
{
    const qn_matmul_few_args *a = &made->args.few;
    const qn_launch *launch = &made->launch;
    const size_t tile_n = tokens_of(launch), row_blocks = (a->n_tiles + 15) / 16;
    assert_int_equal(launch->block[0], QN_FEW_THREADS);
    assert_true(launch->grid[1] * tile_n >= n_tokens && (launch->grid[1] - 1) * tile_n < n_tokens);
    assert_true(launch->grid[1] * tile_n <= a->capacity);
    assert_in_range(launch->grid[0], 1, row_blocks * a->n_k_tiles);
    assert_int_equal(a->n_row_blocks, row_blocks);
    assert_in_range(a->block_parts, 1, 2);
    assert_in_range(a->n_parts, (launch->grid[0] - 1) * a->block_parts + 1, launch->grid[0] * a->block_parts);
    assert_true(a->n_parts <= row_blocks * a->n_k_tiles);
    /* Slots and sums of first parts are in the workspace. */
    const size_t n_blocks = (size_t)launch->grid[0] * launch->grid[1];
    assert_true(n_blocks <= QN_FEW_MAX_BLOCKS && n_blocks <= gpu->n_sms);
    const size_t slots = n_blocks * QN_FEW_TILE_M * tile_n * sizeof(float);
    assert_true(a->slots == 2048 + QN_MATMUL_COUNTERS_BYTES && slots <= qn_matmul_gpu_slot_bytes(gpu));
    assert_true(a->first_parts >= a->slots + qn_matmul_gpu_slot_bytes(gpu) &&
                a->first_parts + slots <= 2048 + qn_matmul_gpu_workspace_bytes(gpu));
    const size_t stage =
        (size_t)QN_FEW_TILE_M / QN_TILE_ROWS * (tiles->bits * QN_FRAGMENT_BYTES + tiles->n_scales * 32);
    const bool planes = value_of(launch, "-DQN_PLANES=");
    assert_int_equal(planes, gpu->wgmma && n_tokens <= QN_PLANES_MAX_TOKENS);
    if (planes)
        assert_int_equal(tile_n, QN_PLANES_BLOCK_TOKENS(n_tokens));
    assert_true(planes || tile_n >= 8);
    assert_in_range(a->weight_stages, 1, planes ? 16 : 8);
    /* Each stage of activations has their scales. */
    const size_t with_acts = QN_FEW_ACTS_STAGES(tile_n) * (tile_n / 8 * QN_ACTS_HILO_BYTES + 4 * tile_n + 16) +
                             a->weight_stages * (stage + 16) + QN_FEW_OUTPUT_BYTES(tile_n),
                 with_planes = (QN_FEW_OUTPUT_BYTES(tile_n) + 127) / 128 * 128 +
                               a->weight_stages * (stage + 2 * QN_PLANES_BLOCK_BYTES(tile_n) + 16);
    assert_int_equal(launch->shared_bytes, planes ? with_planes : with_acts);
    assert_true(launch->shared_bytes <= gpu->max_shared_bytes);
}

TEST(few_tokens_are_covered)
{
    static const qn_matmul_gpu older = { .n_sms = 108, .max_shared_bytes = 166912 },
                               large = { 300, 232448, true, true };
    static const qn_matmul_gpu *const gpus[] = { &h200, &sm_120, &older, &large };
    static const qn_tile_layout *const layouts[] = { &q1_0, &q2_0 };
    static const size_t tokens[] = { 2, 4, 5, 8, 9, 16, 17, 24, 25, 32, 33, 48, 64 };
    static const size_t rows[] = { 1, 17, 256, 5120, 34816, 250000 }, cols[] = { 1, 256, 257, 1000, 5120, 17408 };
    for (size_t g = 0; g < COUNT(gpus); g++)
        for (size_t l = 0; l < COUNT(layouts); l++)
            for (size_t t = 0; t < COUNT(tokens); t++)
                for (size_t r = 0; r < COUNT(rows); r++)
                    for (size_t c = 0; c < COUNT(cols); c++) {
                        label("GPU %zu, %u bits, %zu tokens, %zu rows, %zu columns", g, layouts[l]->bits, tokens[t],
                              rows[r], cols[c]);
                        const qn_matmul_launch made = launch_with(gpus[g], layouts[l], rows[r], cols[c], tokens[t]);
                        assert_string_equal(made.launch.function, "qn_matmul_gemm_few");
                        few_covers(gpus[g], layouts[l], &made, tokens[t]);
                    }
}

/* Matrices with a unit for each SM fill all of them. */
TEST(few_tokens_fill_the_device)
{
    static const size_t tokens[] = { 2, 32, 64 };
    for (size_t t = 0; t < COUNT(tokens); t++) {
        const qn_launch wide = launch_with(&h200, &q1_0, 34816, 5120, tokens[t]).launch,
                        deep = launch_with(&h200, &q1_0, 5120, 17408, tokens[t]).launch;
        assert_true(wide.grid[0] * wide.grid[1] == 132 && deep.grid[0] * deep.grid[1] == 132);
    }
    assert_string_equal(launch_with(&h200, &q1_0, 34816, 5120, QN_FEW_MAX_TOKENS + 1).launch.function,
                        "qn_matmul_gemm");
}

/* The bits of a token's results follow from the parts: they are the same for any number of tokens. */
TEST(parts_do_not_depend_on_tokens)
{
    static const qn_matmul_gpu odd = { .n_sms = 35, .max_shared_bytes = 232448, .clusters = true, .wgmma = true };
    static const qn_matmul_gpu *const gpus[] = { &h200, &odd };
    static const size_t rows[] = { 1, 300, 5120, 34816 }, cols[] = { 256, 1000, 5120, 17408 };
    for (size_t i = 0; i < 2 * 4 * 4; i++) {
        const qn_matmul_gpu *gpu = gpus[i / 16];
        const uint32_t parts = launch_with(gpu, &q1_0, rows[i / 4 % 4], cols[i % 4], 2).args.few.n_parts;
        for (size_t n = 3; n <= QN_FEW_MAX_TOKENS; n++) {
            label("%u SMs, %zu rows, %zu columns, %zu tokens", gpu->n_sms, rows[i / 4 % 4], cols[i % 4], n);
            const qn_matmul_launch made = launch_with(gpu, &q1_0, rows[i / 4 % 4], cols[i % 4], n);
            assert_int_equal(made.args.few.n_parts, parts);
            few_covers(gpu, &q1_0, &made, n);
        }
    }
}

static qn_matmul_acts hilo_acts(uint64_t address, size_t n_cols)
{
    return (qn_matmul_acts){
        .layout = QN_ACTS_HILO, .address = address, .scale = 256, .workspace = 2048, .n_cols = n_cols, .capacity = 128
    };
}

TEST(fused_launches)
{
    enum { ROWS = 17408, COLS = 5120, TILES = ROWS / QN_TILE_ROWS };
    const qn_matmul_acts from = hilo_acts(1024, COLS), to = hilo_acts(4096, ROWS), same = hilo_acts(1024, ROWS);
    qn_tiled_matrix matrix = { .tiles = q1_0,
                               .address = 1024,
                               .n_tiles = 2 * TILES,
                               .n_cols = COLS,
                               .n_outs = 2,
                               .outs = { { .n_rows = ROWS }, { .first_tile = TILES, .n_rows = ROWS } } };
    qn_matmul_next next = { QN_ACTS_OP_SWIGLU, &to, 0, { 0, 0 } };
    qn_matmul_launch made;
    assert_ok(qn_matmul_gpu_matmul_fused(&h200, &matrix, &from, 8, &next, &made));
    assert_true(made.args.few.up_tile == TILES && made.args.few.n_row_blocks == ROWS / 128);
    assert_true(made.args.few.next.acts == 4096 && made.args.few.next.op == QN_ACTS_OP_SWIGLU);
    next.acts = &same; /* what it reads */
    assert_int_equal(qn_matmul_gpu_matmul_fused(&h200, &matrix, &from, 8, &next, &made), QN_ERR_INVALID);
    next.acts = &from;
    assert_int_equal(qn_matmul_gpu_matmul_fused(&h200, &matrix, &from, 8, &next, &made), QN_ERR_INVALID);
    next.acts = &to;
    next.op = QN_ACTS_OP_RMS_NORM; /* of two outputs */
    assert_int_equal(qn_matmul_gpu_matmul_fused(&h200, &matrix, &from, 8, &next, &made), QN_ERR_INVALID);
    next.op = QN_ACTS_OP_SWIGLU;
    matrix.outs[1].n_rows--;
    assert_false(qn_matmul_gpu_can_fuse(&matrix, QN_ACTS_OP_SWIGLU, 0));
    assert_int_equal(qn_matmul_gpu_matmul_fused(&h200, &matrix, &from, 8, &next, &made), QN_ERR_INVALID);
    matrix.n_outs = 1;
    matrix.n_tiles = TILES;
    assert_false(qn_matmul_gpu_can_fuse(&matrix, QN_ACTS_OP_RMS_NORM, 0)); /* it is not added */
    matrix.outs[0].accumulate = 1;
    next = (qn_matmul_next){ QN_ACTS_OP_RMS_NORM, &to, 512, { 0, 0 } };
    assert_ok(qn_matmul_gpu_matmul_fused(&h200, &matrix, &from, 64, &next, &made));
    assert_true(made.args.few.next.weight == 512 && made.args.few.up_tile == 0);
    assert_int_equal(made.args.few.next.sumsq, 256 + ROWS / 128 * 128 * sizeof(float));
    assert_true(made.args.few.next.hadamard.block == 0 && made.args.few.next.hadamard.scale == 1);
    next.rotation = (qn_matmul_rotation){ 4096, 64 };
    assert_ok(qn_matmul_gpu_matmul_fused(&h200, &matrix, &from, 64, &next, &made));
    assert_true(made.args.few.next.hadamard.signs == 4096 && made.args.few.next.hadamard.block == 64);
    assert_true(made.args.few.next.hadamard.scale == 0.125f);
    next.rotation.block = 256; /* more than the epilogue has together */
    assert_false(qn_matmul_gpu_can_fuse(&matrix, QN_ACTS_OP_RMS_NORM, 256));
    assert_int_equal(qn_matmul_gpu_matmul_fused(&h200, &matrix, &from, 64, &next, &made), QN_ERR_INVALID);
    next.rotation = (qn_matmul_rotation){ 4096, 96 };
    assert_int_equal(qn_matmul_gpu_matmul_fused(&h200, &matrix, &from, 64, &next, &made), QN_ERR_INVALID);
    next.rotation = (qn_matmul_rotation){ 4100, 64 };
    assert_int_equal(qn_matmul_gpu_matmul_fused(&h200, &matrix, &from, 64, &next, &made), QN_ERR_INVALID);
    next.rotation.block = 0;
    matrix.outs[0].data = 8; /* rows that are read by 16 bytes */
    assert_int_equal(qn_matmul_gpu_matmul_fused(&h200, &matrix, &from, 64, &next, &made), QN_ERR_INVALID);
    matrix.outs[0].n_rows -= 2;
    assert_false(qn_matmul_gpu_can_fuse(&matrix, QN_ACTS_OP_RMS_NORM, 0));
    matrix.outs[0].n_rows += 2;
    matrix.tiles = q8_0;
    assert_false(qn_matmul_gpu_can_fuse(&matrix, QN_ACTS_OP_RMS_NORM, 0));
}

TEST(rotated_activations)
{
    const qn_matmul_acts acts = hilo_acts(1024, 5120);
    qn_matmul_acts f16 = acts;
    qn_matmul_rotation rotation = { 4096, 1024 };
    qn_matmul_launch made;
    assert_ok(qn_matmul_gpu_quantize(&acts, QN_ACTS_OP_RMS_NORM, 256, 0, 512, 0, 5120, 64, &made));
    assert_true(made.args.acts.hadamard.block == 0 && made.args.acts.hadamard.scale == 1);
    assert_ok(qn_matmul_gpu_quantize_rotated(&made, &rotation));
    assert_true(made.args.acts.hadamard.signs == 4096 && made.args.acts.hadamard.block == 1024);
    assert_true(made.args.acts.hadamard.scale == 0.03125f);
    rotation.block = 2048; /* more than a block of threads has */
    assert_int_equal(qn_matmul_gpu_quantize_rotated(&made, &rotation), QN_ERR_INVALID);
    rotation.block = 512;
    made.args.acts.n_cols = 5120 + 256;
    assert_int_equal(qn_matmul_gpu_quantize_rotated(&made, &rotation), QN_ERR_INVALID);
    f16.layout = QN_ACTS_F16;
    assert_ok(qn_matmul_gpu_quantize(&f16, QN_ACTS_OP_NONE, 256, 0, 0, 0, 5120, 64, &made));
    assert_int_equal(qn_matmul_gpu_quantize_rotated(&made, &rotation), QN_ERR_INVALID);
}

TEST(workspace_refused)
{
    const qn_tiled_matrix matrix = { .tiles = q1_0, .address = 1024, .n_tiles = 4, .n_cols = 256, .n_outs = 1 };
    qn_matmul_acts acts = { .layout = QN_ACTS_HILO, .address = 1024, .scale = 256, .n_cols = 256, .capacity = 128 };
    qn_matmul_launch made;
    acts.workspace = 256;
    acts.scale = 248;
    assert_fails(qn_matmul_gpu_matmul(&h200, &matrix, &acts, 2, &made), QN_ERR_INVALID, "scales at one of 16");
    for (acts.workspace = 0; acts.workspace <= 128; acts.workspace += 128) {
        assert_fails(qn_matmul_gpu_matmul(&h200, &matrix, &acts, 2, &made), QN_ERR_INVALID, "workspace");
        assert_int_equal(qn_matmul_gpu_quantize(&acts, QN_ACTS_OP_NONE, 256, 0, 0, 0, 256, 2, &made), QN_ERR_INVALID);
    }
}

/* ---- qn_matmul_gemv ---- */

/* Stages of weights, partials and the operands of all columns are what the shared memory holds: 64 KB of operands for
 * 30000 columns. */
TEST(one_token_is_covered)
{
    static const qn_matmul_gpu *const gpus[] = { &h200, &sm_120 };
    static const qn_tile_layout *const layouts[] = { &q1_0, &q2_0 };
    static const size_t rows[] = { 1, 17, 5120, 34816, 250000 }, cols[] = { 1, 256, 257, 5120, 17408, 30000 };
    for (size_t g = 0; g < 2; g++)
        for (size_t l = 0; l < 2; l++)
            for (size_t r = 0; r < COUNT(rows); r++)
                for (size_t c = 0; c < COUNT(cols); c++) {
                    label("GPU %zu, %u bits, %zu rows, %zu columns", g, layouts[l]->bits, rows[r], cols[c]);
                    const qn_matmul_launch made = launch_with(gpus[g], layouts[l], rows[r], cols[c], 1);
                    const qn_matmul_gemv_args *a = &made.args.gemv;
                    assert_string_equal(made.launch.function, "qn_matmul_gemv");
                    const size_t warps = made.launch.block[0] / 32, partials = a->n_k_warps * a->reduce_tiles;
                    const size_t tile = layouts[l]->bits * QN_FRAGMENT_BYTES + layouts[l]->n_scales * 32;
                    const size_t step = value_of(&made.launch, "-DQN_STEP_TILES=") * tile;
                    assert_in_range(warps, 1, QN_GEMV_MAX_WARPS);
                    assert_in_range(made.launch.grid[0], 1, a->n_tiles);
                    assert_true(warps % a->n_k_warps == 0 && a->n_k_warps <= a->n_k_tiles);
                    assert_int_equal(made.launch.shared_bytes,
                                     warps * value_of(&made.launch, "-DQN_STAGES=") * (step + 8) +
                                         2 * partials * QN_TILE_ROWS * sizeof(float) +
                                         (cols[c] + 255) / 256 * QN_GEMV_N1_TILE_BYTES);
                    assert_true(made.launch.shared_bytes <= gpus[g]->max_shared_bytes);
                }
}
