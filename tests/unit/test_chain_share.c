/* How a chain's products are shared out over blocks, on devices of several sizes, and what is refused. What blocks compute is
 * quern-check's, on a device. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/chain/chain_cuda.h"

#include <string.h>

static const qn_chain_gpu h200 = { 132, 227 << 10, 9 };

static qn_matmul_tiles tiles_of(qn_type type)
{
    return qn_matmul_gpu_tiles(qn_type_find(type));
}

static qn_chain_product product_of(uint32_t n_rows, uint32_t n_cols, uint32_t rotation)
{
    return (qn_chain_product){ .n_cols = n_cols,
                               .n_tiles = (uint32_t)qn_matmul_gpu_tile_count(n_rows),
                               .n_chunks = (n_cols + QN_TILE_COLS - 1) / QN_TILE_COLS,
                               .rotation = rotation };
}

/* Every chunk is in a slice and no slice is empty; blocks that there are, none without tiles; whole blocks of a rotation. */
static void whole(const qn_chain_gpu *gpu, const qn_chain_product *p)
{
    assert_true(p->slice_chunks > 0 && p->n_slices > 0 && p->slice_blocks > 0);
    assert_true(p->n_slices * p->slice_chunks >= p->n_chunks);
    assert_true((p->n_slices - 1) * p->slice_chunks < p->n_chunks);
    assert_true(p->n_slices * p->slice_blocks <= gpu->n_sms);
    assert_true(p->slice_blocks <= p->n_tiles);
    assert_true(p->n_slices <= QN_CHAIN_MOST_SLICES && p->slice_chunks * QN_TILE_COLS <= QN_CHAIN_MOST_COLS);
    if (p->rotation)
        assert_int_equal(p->slice_chunks * QN_TILE_COLS % p->rotation, 0);
}

static void shares(void **unused)
{
    (void)unused;
    static const uint32_t sizes[][2] = { { 1, 32 },       { 16, 256 },     { 100, 1024 },   { 6144, 4096 },  { 4096, 4096 },
                                         { 24576, 4096 }, { 4096, 12288 }, { 16384, 5120 }, { 16480, 5120 }, { 5120, 6144 },
                                         { 34816, 5120 }, { 5120, 17408 }, { 32, 16384 } };
    static const qn_type types[] = { QN_TYPE_Q1_0, QN_TYPE_Q2_0, QN_TYPE_PQ2_0 };
    static const uint32_t rotations[] = { 0, 32, 256, 1024 }, n_sms[] = { 120, 132, 144 };
    for (size_t d = 0; d < 3; d++)
        for (size_t t = 0; t < 3; t++)
            for (size_t r = 0; r < 4; r++)
                for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
                    const qn_chain_gpu gpu = { n_sms[d], 227 << 10, 9 };
                    const qn_matmul_tiles tiles = tiles_of(types[t]);
                    qn_chain_product p = product_of(sizes[i][0], sizes[i][1], rotations[r]);
                    if (rotations[r] && sizes[i][1] % rotations[r])
                        continue;
                    assert_int_equal(qn_chain_gpu_share(&gpu, &tiles, &p), QN_OK);
                    whole(&gpu, &p);
                }
}

/* Most of the device has work in the products of large models: else weights come through few of its blocks. */
static void busy(void **unused)
{
    (void)unused;
    static const uint32_t sizes[][2] = { { 16384, 5120 }, { 5120, 6144 }, { 34816, 5120 }, { 5120, 17408 } };
    const qn_matmul_tiles tiles = tiles_of(QN_TYPE_Q1_0);
    for (size_t i = 0; i < 4; i++) {
        qn_chain_product p = product_of(sizes[i][0], sizes[i][1], 0);
        assert_int_equal(qn_chain_gpu_share(&h200, &tiles, &p), QN_OK);
        const uint32_t block_tiles = (p.n_tiles + p.slice_blocks - 1) / p.slice_blocks;
        /* What the block with most has is at most an eighth more than an even share. */
        assert_true((uint64_t)8 * p.slice_chunks * block_tiles * h200.n_sms <= (uint64_t)9 * p.n_chunks * p.n_tiles);
    }
}

static void refused(uint32_t n_tiles, uint32_t n_cols, uint32_t rotation, const char *reason)
{
    const qn_matmul_tiles tiles = tiles_of(QN_TYPE_Q1_0);
    qn_chain_product p = product_of(1, n_cols, rotation);
    p.n_tiles = n_tiles;
    assert_int_equal(qn_chain_gpu_share(&h200, &tiles, &p), QN_ERR_UNSUPPORTED);
    if (!strstr(qn_error_text(), reason))
        fail_msg("\"%s\" says nothing of \"%s\"", qn_error_text(), reason);
}

static void refusals(void **unused)
{
    (void)unused;
    refused(8, 1024, 16, "rotated in blocks of 16");
    refused(8, 2048, 2048, "rotated in blocks of 2048");
    refused(8, 1024, 96, "rotated in blocks of 96");
    refused(8, 1536, 1024, "1536 columns");
    refused(0, 1024, 0, "0 tiles");
    refused(8, 1000, 0, "1000 columns");
    refused(1 << 20, 1024, 0, "no room");
}

static void devices(void **unused)
{
    (void)unused;
    const qn_matmul_tiles one = tiles_of(QN_TYPE_Q1_0), two = tiles_of(QN_TYPE_PTQ1_0), bytes = tiles_of(QN_TYPE_Q8_0);
    qn_launch launch;
    assert_true(qn_chain_gpu_takes(&h200, &one) && qn_chain_gpu_takes(&h200, &two));
    assert_false(qn_chain_gpu_takes(&h200, &bytes));
    assert_false(qn_chain_gpu_takes(&(qn_chain_gpu){ 108, 166912, 8 }, &one));
    assert_false(qn_chain_gpu_takes(&(qn_chain_gpu){ 128, 99 << 10, 8 }, &one));
    assert_false(qn_chain_gpu_takes(&(qn_chain_gpu){ 148, 227 << 10, 10 }, &one));
    assert_int_equal(qn_chain_gpu_launch(&h200, &bytes, &launch), QN_ERR_UNSUPPORTED);
    assert_int_equal(qn_chain_gpu_launch(&h200, &one, &launch), QN_OK);
    assert_int_equal(launch.grid[0], h200.n_sms);
    assert_true(launch.cooperative && launch.shared_bytes <= h200.max_shared_bytes);
    assert_int_equal(launch.args_bytes, sizeof(qn_chain_args));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares),
        cmocka_unit_test(busy),
        cmocka_unit_test(refusals),
        cmocka_unit_test(devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
