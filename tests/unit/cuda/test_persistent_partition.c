/* Partition of the persistent decode kernel's GEMVs over blocks, for devices of several sizes, and rejected shapes.
 * quern-check checks the results on a device. */

#include "helper_assert.h"

#include "cuda/kernels/persistent/persistent.h"

static const qn_persistent_gpu h200 = { 132, 227 << 10, 9, true };

/* A100, RTX 3060, 4060, 4090, 5060 Ti, 5090, B200, and the limits of the cards that are supported. */
static const qn_persistent_gpu cards[] = {
    { 108, 163 << 10, 8, true }, { 28, 99 << 10, 8, true },   { 24, 99 << 10, 8, true },    { 128, 99 << 10, 8, true },
    { 36, 99 << 10, 12, true },  { 170, 99 << 10, 12, true }, { 148, 227 << 10, 10, true }, { 20, 99 << 10, 8, true },
};

static qn_tile_layout tiles_of(qn_type type)
{
    return qn_matmul_gpu_tile_layout(qn_type_find(type));
}

static qn_persistent_gemv gemv_of(uint32_t n_rows, uint32_t n_cols, uint32_t rotation)
{
    return (qn_persistent_gemv){ .n_cols = n_cols,
                                 .n_tiles = (uint32_t)qn_matmul_gpu_tile_count(n_rows),
                                 .n_k_tiles = (n_cols + QN_TILE_COLS - 1) / QN_TILE_COLS,
                                 .rotation = rotation };
}

/* Every K tile is in a slice, no slice is empty, no more blocks than SMs, no block without tiles; of one row, slices
 * are multiples of the rotation. */
static void expect_complete(const qn_persistent_gpu *gpu, const qn_persistent_gemv *p, uint32_t n_rows)
{
    assert_true(p->slice_k_tiles > 0 && p->n_slices > 0 && p->slice_blocks > 0);
    assert_true(p->n_slices * p->slice_k_tiles >= p->n_k_tiles);
    assert_true((p->n_slices - 1) * p->slice_k_tiles < p->n_k_tiles);
    assert_true(p->n_slices * p->slice_blocks <= gpu->n_sms);
    assert_true(p->slice_blocks <= p->n_tiles);
    assert_true(p->n_slices <= QN_PERSISTENT_MAX_SLICES);
    assert_true(n_rows > 1 || p->slice_k_tiles * QN_TILE_COLS <= QN_PERSISTENT_MAX_SLICE_COLS);
    if (p->rotation && n_rows == 1)
        assert_int_equal(p->slice_k_tiles * QN_TILE_COLS % p->rotation, 0);
}

/* The scratch of several rows: activations of the slice with their scales, and a segment of sums for each group of
 * tiles and each further warp. */
static void expect_scratch(const qn_tile_layout *tiles, const qn_persistent_gemv *p)
{
    const uint32_t block_tiles = (p->n_tiles + p->slice_blocks - 1) / p->slice_blocks, step = tiles->bits == 1 ? 4 : 2;
    const uint32_t segments = (block_tiles + step - 1) / step + 14, segment = 8 * (step * 16 + 4) * 4;
    assert_true(p->slice_k_tiles * 2 * (2048 + 32) + segments * segment <= QN_PERSISTENT_ROWS_SCRATCH_BYTES);
}

TEST(partitions)
{
    static const uint32_t sizes[][2] = { { 1, 32 },       { 16, 256 },     { 100, 1024 },   { 6144, 4096 },
                                         { 4096, 4096 },  { 24576, 4096 }, { 4096, 12288 }, { 16384, 5120 },
                                         { 16480, 5120 }, { 5120, 6144 },  { 34816, 5120 }, { 5120, 17408 },
                                         { 32, 16384 } };
    static const qn_type types[] = { QN_TYPE_Q1_0, QN_TYPE_Q2_0, QN_TYPE_PQ2_0 };
    static const uint32_t rotations[] = { 0, 32, 256, 1024 }, n_sms[] = { 120, 132, 144 };
    for (size_t d = 0; d < 3 + COUNT(cards); d++)
        for (size_t t = 0; t < 3; t++)
            for (size_t r = 0; r < 4; r++)
                for (size_t i = 0; i < COUNT(sizes); i++) {
                    const qn_persistent_gpu gpu =
                        d < 3 ? (qn_persistent_gpu){ n_sms[d], 227 << 10, 9, true } : cards[d - 3];
                    label("%u SMs, %u bytes, type %d, rotation %u, %u rows, %u columns", (unsigned)gpu.n_sms,
                          (unsigned)gpu.max_shared_bytes, (int)types[t], (unsigned)rotations[r], (unsigned)sizes[i][0],
                          (unsigned)sizes[i][1]);
                    const qn_tile_layout tiles = tiles_of(types[t]);
                    qn_persistent_gemv p = gemv_of(sizes[i][0], sizes[i][1], rotations[r]);
                    if (rotations[r] && sizes[i][1] % rotations[r])
                        continue;
                    assert_ok(qn_persistent_gpu_partition(&gpu, &tiles, 1, &p));
                    expect_complete(&gpu, &p, 1);
                    if (!qn_persistent_gpu_supports(&gpu, &tiles, 2))
                        continue;
                    assert_ok(qn_persistent_gpu_partition(&gpu, &tiles, 2, &p));
                    expect_complete(&gpu, &p, 2);
                    expect_scratch(&tiles, &p);
                    qn_persistent_gemv other = gemv_of(sizes[i][0], sizes[i][1], rotations[r]);
                    assert_ok(qn_persistent_gpu_partition(&gpu, &tiles, 8, &other)); /* the same for any number of rows
                                                                                      */
                    assert_memory_equal(&p, &other, sizeof p);
                }
}

/* Most SMs have work in the GEMVs of large models: otherwise few blocks would load all the weights. */
TEST(uses_most_blocks)
{
    static const uint32_t sizes[][2] = { { 16384, 5120 }, { 5120, 6144 }, { 34816, 5120 }, { 5120, 17408 } };
    const qn_tile_layout tiles = tiles_of(QN_TYPE_Q1_0);
    for (size_t i = 0; i < 4; i++) {
        qn_persistent_gemv p = gemv_of(sizes[i][0], sizes[i][1], 0);
        for (uint32_t n_rows = 1; n_rows <= 2; n_rows++) {
            assert_ok(qn_persistent_gpu_partition(&h200, &tiles, n_rows, &p));
            const uint32_t block_tiles = (p.n_tiles + p.slice_blocks - 1) / p.slice_blocks;
            /* The block with the most weights has at most an eighth more than the mean. */
            assert_true((uint64_t)8 * p.slice_k_tiles * block_tiles * h200.n_sms <=
                        (uint64_t)9 * p.n_k_tiles * p.n_tiles);
        }
    }
}

static void expect_refused(uint32_t n_tiles, uint32_t n_cols, uint32_t rotation, const char *reason)
{
    const qn_tile_layout tiles = tiles_of(QN_TYPE_Q1_0);
    qn_persistent_gemv p = gemv_of(1, n_cols, rotation);
    p.n_tiles = n_tiles;
    assert_int_equal(qn_persistent_gpu_partition(&h200, &tiles, 8, &p), QN_ERR_UNSUPPORTED);
    assert_int_equal(qn_persistent_gpu_partition(&h200, &tiles, 1, &p), QN_ERR_UNSUPPORTED);
    if (!strstr(qn_error_text(), reason))
        fail_msg("\"%s\" does not contain \"%s\"", qn_error_text(), reason);
}

TEST(refusals)
{
    expect_refused(8, 1024, 16, "rotated in blocks of 16");
    expect_refused(8, 2048, 2048, "rotated in blocks of 2048");
    expect_refused(8, 1024, 96, "rotated in blocks of 96");
    expect_refused(8, 1536, 1024, "1536 columns");
    expect_refused(0, 1024, 0, "0 tiles");
    expect_refused(8, 1000, 0, "1000 columns");
    expect_refused(1 << 20, 1024, 0, "do not fit in shared memory");
}

TEST(devices)
{
    const qn_tile_layout one = tiles_of(QN_TYPE_Q1_0), two = tiles_of(QN_TYPE_PTQ1_0), bytes = tiles_of(QN_TYPE_Q8_0);
    qn_launch launch;
    assert_true(qn_persistent_gpu_supports(&h200, &one, 1) && qn_persistent_gpu_supports(&h200, &two, 1));
    assert_false(qn_persistent_gpu_supports(&h200, &bytes, 1));
    assert_false(qn_persistent_gpu_supports(&(qn_persistent_gpu){ 46, 64 << 10, 8, true }, &one, 1));
    assert_false(qn_persistent_gpu_supports(&(qn_persistent_gpu){ 132, 227 << 10, 9, false }, &one, 1));
    for (size_t i = 0; i < COUNT(cards); i++) {
        assert_ok(qn_persistent_gpu_launch(&cards[i], &two, 1, &launch));
        assert_true(launch.grid[0] == cards[i].n_sms && launch.shared_bytes <= cards[i].max_shared_bytes);
        assert_int_equal(launch.variant.values[5], cards[i].major < 10); /* binary MMA */
        assert_int_equal(qn_persistent_gpu_code_max(&cards[i], &two, 1), cards[i].major < 10 ? 16383 : QN_HILO_MAX);
    }
    assert_true(qn_persistent_gpu_is_faster(&h200, 1) && qn_persistent_gpu_is_faster(&cards[3], 1));
    assert_true(qn_persistent_gpu_is_faster(&cards[5], 900000000) &&
                !qn_persistent_gpu_is_faster(&cards[5], 200000000));
    assert_int_equal(qn_persistent_gpu_launch(&h200, &bytes, 1, &launch), QN_ERR_UNSUPPORTED);
    assert_ok(qn_persistent_gpu_launch(&h200, &one, 1, &launch));
    assert_int_equal(launch.grid[0], h200.n_sms);
    assert_true(launch.cooperative && launch.shared_bytes <= h200.max_shared_bytes);
    assert_int_equal(launch.args_bytes, sizeof(qn_persistent_args));
    assert_true(qn_persistent_gpu_supports(&h200, &one, 8) && qn_persistent_gpu_supports(&h200, &two, 2));
    assert_false(qn_persistent_gpu_supports(&h200, &one, 9));
    assert_int_equal(qn_persistent_gpu_launch(&h200, &one, 9, &launch), QN_ERR_UNSUPPORTED);
    for (uint32_t n_rows = 2; n_rows <= 8; n_rows++) {
        assert_ok(qn_persistent_gpu_launch(&h200, &one, n_rows, &launch));
        assert_string_equal(launch.function, "qn_persistent_decode_rows");
        assert_true(launch.cooperative && launch.shared_bytes <= h200.max_shared_bytes);
    }
}
