/* Launches of attention over AURA codes on the GPU: how queries and keys are partitioned, shared memory on devices with
 * more or less of it, rejected arguments with their error texts. quern-check tests the kernels themselves, on a
 * device. */

#include "helper_launch.h"

#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/aura/aura_attention.h"
#include "cuda/kernels/aura/aura.h"

static qn_aura_gpu device(size_t head_dim)
{
    return (qn_aura_gpu){ .head_dim = head_dim,
                          .n_heads = 24,
                          .n_kv_heads = 4,
                          .key_bits = 4,
                          .value_bits = 4,
                          .n_sms = 132,
                          .max_shared_bytes = 227 << 10 };
}

static void refused(qn_status status, qn_status expected, const char *reason)
{
    assert_int_equal(status, expected);
    if (!strstr(qn_error_text(), reason))
        fail_msg("\"%s\" does not contain \"%s\"", qn_error_text(), reason);
}

static void expect_grid(const qn_launch *launch, uint32_t x, uint32_t y, uint32_t threads)
{
    assert_int_equal(launch->grid[0], x);
    assert_int_equal(launch->grid[1], y);
    assert_int_equal(launch->grid[2], 1);
    assert_int_equal(launch->block[0], threads);
}

TEST(splits)
{
    const qn_aura_gpu gpu = device(256);
    qn_launch launch;
    uint32_t warps_per_block;
    assert_ok(qn_aura_gpu_check(&gpu));

    /* The six query heads of each of four key-value heads are one tile; 33 splits of them fill 132 SMs. */
    assert_int_equal(qn_aura_gpu_splits(&gpu, 1, 32768), 33);
    assert_ok(qn_aura_gpu_score(&gpu, 1, 33, &launch));
    expect_grid(&launch, 4, 33, 512);
    assert_defines(&launch, "-DQN_HEAD_DIM=256 -DQN_BITS=4");
    assert_ok(qn_aura_gpu_value(&gpu, 1, 33, &launch));
    expect_grid(&launch, 4, 33, 384);
    assert_int_equal(launch.args_bytes, sizeof(qn_aura_value_args));
    /* Few keys, or queries that fill the device by themselves, are not split. Two tokens are twelve queries of a
     * key-value head: two tiles. */
    assert_int_equal(qn_aura_gpu_splits(&gpu, 1, 100), 1);
    assert_int_equal(qn_aura_gpu_splits(&gpu, 1000, 32768), 1);
    assert_ok(qn_aura_gpu_attention(&gpu, 2, &launch));
    expect_grid(&launch, 8, 1, 256);

    /* Long blocks of keys are shared by the warps of a thread block; of short ones each warp has its own. */
    const size_t block = qn_aura_gpu_flash_block(&gpu, 1, 32768);
    assert_int_equal(block, 1008); /* 993 keys, rounded up to full tiles */
    assert_ok(qn_aura_gpu_flash_pass1(&gpu, 1, 32768, block, &warps_per_block, &launch));
    assert_int_equal(warps_per_block, 8);
    expect_grid(&launch, 4, 33, 256);
    assert_defines(&launch, "-DQN_HEAD_DIM=256 -DQN_KEY_BITS=4 -DQN_VALUE_BITS=4");
    assert_ok(qn_aura_gpu_flash_pass1(&gpu, 1, 32768, 64, &warps_per_block, &launch));
    assert_int_equal(warps_per_block, 1);
    expect_grid(&launch, 4, 33, 256);
    assert_ok(qn_aura_gpu_flash_pass1(&gpu, 1, 10, 100000, &warps_per_block, &launch));
    expect_grid(&launch, 4, 1, 256);

    assert_ok(qn_aura_gpu_flash_pass2(256, 24, &launch));
    expect_grid(&launch, 24, 1, QN_AURA_PASS2_THREADS);
    assert_ok(qn_aura_gpu_rotate(80, 5, &launch));
    expect_grid(&launch, 5, 1, QN_AURA_ROTATE_THREADS);
    assert_defines(&launch, "-DQN_HEAD_DIM=80");
}

/* Launches that pass qn_aura_gpu_check fit the shared memory of devices with 227, 163 and 99 KiB a block. */
TEST(shared_memory)
{
    static const size_t dims[] = { 64, 80, 96, 128, 192, 256, 512 };
    static const unsigned bits[] = { 2, 3, 4, 6, 8 };
    static const uint32_t kib[] = { 227, 163, 99 };
    for (size_t d = 0; d < COUNT(dims); d++)
        for (size_t b = 0; b < COUNT(bits); b++)
            for (size_t k = 0; k < COUNT(kib); k++) {
                label("dim %zu bits %u, %u KiB", dims[d], bits[b], (unsigned)kib[k]);
                qn_aura_gpu gpu = device(dims[d]);
                qn_launch launch[4];
                uint32_t warps_per_block;
                gpu.key_bits = gpu.value_bits = bits[b];
                gpu.max_shared_bytes = kib[k] << 10;
                const qn_status status = qn_aura_gpu_check(&gpu);
                if (kib[k] == 99 && status) { /* large tables and the largest heads do not fit together */
                    refused(status, QN_ERR_UNSUPPORTED, "shared memory");
                    assert_true(dims[d] == 512 && (bits[b] == 4 || bits[b] == 8));
                    continue;
                }
                assert_ok(status);
                assert_ok(qn_aura_gpu_score(&gpu, 1, 3, &launch[0]));
                assert_ok(qn_aura_gpu_value(&gpu, 1, 3, &launch[1]));
                assert_ok(qn_aura_gpu_flash_pass1(&gpu, 1, 1000, 64, &warps_per_block, &launch[2]));
                assert_ok(qn_aura_gpu_attention(&gpu, 1, &launch[3]));
                for (int i = 0; i < 4; i++) {
                    label("launch %d", i);
                    assert_true(launch[i].shared_bytes + qn_attention_gpu_static_bytes((uint32_t)dims[d]) <=
                                gpu.max_shared_bytes);
                }
            }
}

/* Ring buffers, look-up tables and static memory do not overlap, wherever dynamic shared memory begins: after the
 * queries at least, after all static memory and what the system reserves at most. */
TEST(ring_buffers)
{
    static const uint32_t dims[] = { 16, 64, 80, 96, 128, 192, 256, 512 };
    static const unsigned bits[] = { 2, 3, 4, 6, 8, 16 };
    static const uint32_t kib[] = { 227, 163, 99 };
    for (size_t d = 0; d < COUNT(dims); d++)
        for (size_t b = 0; b < COUNT(bits); b++)
            for (size_t i = 0; i < 3 * COUNT(kib); i++) {
                const size_t k = i / 3;
                const uint32_t teams = (uint32_t)i % 3, n = teams ? teams : 1; /* 0: not decode attention */
                const uint32_t warps = teams && bits[b] == 16 ? 4 : 8, most = kib[k] << 10,
                               blocks = teams ? qn_attention_gpu_blocks(dims[d], bits[b], warps, most) : 1;
                if (bits[b] == 16 && teams == 2)
                    continue; /* fp16 has no tables to share */
                label("dim %u bits %u, %u KiB, %u teams", dims[d], bits[b], kib[k], teams);
                const uint32_t limit = qn_attention_gpu_block_limit(most, blocks),
                               reserved =
                                   teams ? qn_attention_gpu_reserved_bytes(dims[d], bits[b], warps, teams, limit) : 0,
                               fixed = n * qn_attention_gpu_static_bytes(dims[d]), dynamic = limit - fixed,
                               slot = qn_attention_gpu_slot_bytes(dims[d], bits[b], bits[b]),
                               tables = qn_attention_gpu_table_bytes(bits[b], kib[k] > 99);
                const qn_attention_gpu_ring_space space =
                    qn_attention_gpu_ring_space_of(dims[d], tables, reserved, n, limit);
                const uint32_t slots = qn_attention_gpu_ring_slots(space, slot, warps * n);
                const uint32_t expected = slots ? dynamic : 0;
                assert_int_equal(qn_attention_gpu_shared_bytes(dims[d], bits[b], bits[b], warps, teams, most),
                                 expected);
                assert_true(blocks * (dynamic + fixed + QN_ATTENTION_RESERVED_BYTES) <=
                            most + QN_ATTENTION_RESERVED_BYTES);
                if (space.below) {
                    assert_true(QN_ATTENTION_RESERVED_BYTES + fixed + space.below <= QN_ATTENTION_TABLE_BASE);
                    assert_true(QN_ATTENTION_TABLE_BASE + tables + space.above + reserved <=
                                dynamic + 16 * n * dims[d]);
                } else {
                    assert_true(tables + space.above + (slots ? reserved : 0) <= dynamic);
                }
                if (slots && slots < QN_ATTENTION_MAX_SLOTS) { /* as many as fit */
                    const uint32_t ring = (slots + 1) * slot;
                    assert_true(space.below / ring + space.above / ring < warps * n);
                }
                assert_true(slots || kib[k] == 99 || teams == 2);
            }
    const qn_attention_gpu_ring_space codes = qn_attention_gpu_ring_space_of(256, 64 << 10, 0, 1, 227 << 10),
                                      decode = qn_attention_gpu_ring_space_of(256, 64 << 10, 16 * 784, 2, 227 << 10),
                                      f16 = qn_attention_gpu_ring_space_of(256, 0, 8 << 10, 1, 113 << 10);
    assert_int_equal(qn_attention_gpu_reserved_bytes(256, 4, 8, 2, 227 << 10), 16 * 784);
    assert_int_equal(qn_attention_gpu_blocks(256, 16, 4, 227 << 10), 2);
    assert_int_equal(qn_attention_gpu_blocks(512, 16, 4, 227 << 10), 1);
    assert_int_equal(qn_attention_gpu_blocks(256, 4, 8, 227 << 10), 1);
    assert_int_equal(qn_attention_gpu_block_limit(227 << 10, 2), 113 << 10);
    assert_int_equal(qn_attention_gpu_reserved_bytes(256, 16, 4, 1, 113 << 10), 8 << 10);
    assert_int_equal(qn_attention_gpu_slot_bytes(256, 4, 4), 2176);
    assert_int_equal(qn_attention_gpu_ring_slots(codes, 2176, 8), 9);
    assert_int_equal(qn_attention_gpu_ring_slots(decode, 2176, 16), 3);
    assert_int_equal(qn_attention_gpu_ring_slots(f16, qn_attention_gpu_slot_bytes(256, 16, 16), 4), 3);
    assert_int_equal(qn_attention_gpu_teams(256, 4, 4, 8, 227 << 10), 2);
    assert_int_equal(qn_attention_gpu_teams(256, 8, 8, 8, 227 << 10), 1); /* too little memory */
    assert_int_equal(qn_attention_gpu_teams(256, 16, 16, 4, 227 << 10), 1);
}

/* Over fp16 blocks have fewer warps when there are more rows, and an SM runs more of them; never with
 * `deterministic`. */
static void f16_blocks_of_rows(void)
{
    static const struct {
        size_t head_dim, n_rows;
        uint32_t warps, blocks;
    } cases[] = { { 128, 1, 8, 8 },     { 128, 16, 8, 128 }, { 128, 17, 4, 136 }, { 128, 33, 4, 264 },
                  { 128, 34, 2, 272 },  { 128, 66, 2, 528 }, { 128, 67, 1, 536 }, { 128, 256, 1, 1056 },
                  { 256, 256, 2, 528 }, { 96, 1, 4, 8 },     { 96, 256, 4, 264 } };
    qn_launch launch;
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        qn_attention_gpu gpu = { .head_dim = cases[i / 2].head_dim,
                                 .n_heads = 32,
                                 .n_kv_heads = 8,
                                 .key_bits = 16,
                                 .value_bits = 16,
                                 .deterministic = i % 2,
                                 .n_sms = 132,
                                 .max_shared_bytes = 227 << 10 };
        const qn_attention_splits splits = qn_attention_gpu_splits(&gpu, 256);
        label("heads of %zu, %zu rows", gpu.head_dim, cases[i / 2].n_rows);
        assert_ok(qn_attention_gpu_check(&gpu));
        assert_ok(qn_attention_gpu_decode(&gpu, cases[i / 2].n_rows, &splits, &launch));
        assert_int_equal(launch.block[0], 32 * (gpu.deterministic ? 4 : cases[i / 2].warps));
        if (!gpu.deterministic)
            assert_int_equal(launch.grid[0], cases[i / 2].blocks);
    }
}

/* Decode and prefill attention of rows of many sessions: the splits of a row do not depend on the others, and grids not
 * on lengths. */
TEST(many_rows)
{
    const qn_attention_gpu gpu = { .head_dim = 256,
                                   .n_heads = 24,
                                   .n_kv_heads = 4,
                                   .key_bits = 4,
                                   .value_bits = 4,
                                   .pages = true,
                                   .n_sms = 132,
                                   .max_shared_bytes = 227 << 10 };
    qn_launch launch;
    qn_attention_splits splits = qn_attention_gpu_splits(&gpu, 1000);
    assert_int_equal(splits.n, 8 + 1); /* of 128 positions, and the fp16 pages */
    assert_int_equal(splits.tiles, 8);
    assert_ok(qn_attention_gpu_decode(&gpu, 1, &splits, &launch));
    assert_int_equal(launch.grid[0], 4 * 9);
    splits = qn_attention_gpu_splits(&gpu, 262144);
    assert_int_equal(splits.n, 33);
    for (size_t rows = 1; rows <= 256; rows *= 4) {
        assert_ok(qn_attention_gpu_decode(&gpu, rows, &splits, &launch));
        assert_true(launch.grid[0] == 132 && launch.grid[1] == 1 && launch.grid[2] == 1);
        assert_int_equal(launch.block[0], 2 * 256); /* two teams */
    }
    refused(qn_attention_gpu_decode(&gpu, 0, &splits, &launch), QN_ERR_INVALID, "0 rows in 33 splits of 8 tiles");
    f16_blocks_of_rows();
    splits.tiles = 12;
    refused(qn_attention_gpu_decode(&gpu, 1, &splits, &launch), QN_ERR_INVALID, "1 rows in 33 splits of 12 tiles");
    splits = (qn_attention_splits){ .n = 1, .tiles = 8 };
    refused(qn_attention_gpu_decode(&gpu, 1, &splits, &launch), QN_ERR_INVALID, "1 rows in 1 splits of 8 tiles");
    /* 6 query heads a key-value head: 3 blocks a page; a piece of 65 rows may have rows of 2 pages, of 66 of 3. */
    assert_ok(qn_attention_gpu_prefill(&gpu, 65, 1, &launch));
    assert_true(launch.grid[0] == 3 * 2 && launch.grid[1] == 4);
    assert_ok(qn_attention_gpu_prefill(&gpu, 66, 1, &launch));
    assert_int_equal(launch.grid[0], 3 * 3);
    assert_ok(qn_attention_gpu_prefill(&gpu, 1000, 10, &launch));
    assert_int_equal(launch.grid[0], 3 * ((1000 + 10 * 126) / 64));
    refused(qn_attention_gpu_prefill(&gpu, 100, 0, &launch), QN_ERR_INVALID, "100 rows in 0 pieces");
    refused(qn_attention_gpu_prefill(&gpu, (size_t)1 << 40, 1, &launch), QN_ERR_INVALID, "rows in 1 pieces");
}

TEST(refusals)
{
    qn_aura_gpu gpu = device(100);
    qn_launch launch;
    uint32_t warps_per_block;
    refused(qn_aura_gpu_check(&gpu), QN_ERR_UNSUPPORTED, "heads of 100");
    refused(qn_aura_gpu_flash_pass2(100, 1, &launch), QN_ERR_UNSUPPORTED, "heads of 100");
    refused(qn_aura_gpu_rotate(100, 1, &launch), QN_ERR_UNSUPPORTED, "heads of 100");
    gpu = device(128);
    gpu.value_bits = 5;
    refused(qn_aura_gpu_check(&gpu), QN_ERR_UNSUPPORTED, "values of 5");
    gpu = device(128);
    gpu.n_kv_heads = 7;
    refused(qn_aura_gpu_check(&gpu), QN_ERR_INVALID, "24 query heads over 7");
    gpu = device(128);
    refused(qn_aura_gpu_flash_pass1(&gpu, 1, 100, 0, &warps_per_block, &launch), QN_ERR_INVALID, "blocks of 0");
    refused(qn_aura_gpu_flash_pass1(&gpu, 1, 0, 64, &warps_per_block, &launch), QN_ERR_INVALID, "0 keys");
    refused(qn_aura_gpu_score(&gpu, 0, 1, &launch), QN_ERR_INVALID, "a grid of 0");
    refused(qn_aura_gpu_flash_pass2(128, 0, &launch), QN_ERR_INVALID, "a grid of 0");
}

/* Encode, decode and quantize_page: the defines of the variant for these sizes. */
TEST(variants)
{
    qn_launch launch;
    assert_ok(qn_aura_gpu_encode(96, 3, 10, &launch));
    assert_defines(&launch, "-DQN_HEAD_DIM=96 -DQN_BITS=3 -DQN_VALUE_BITS=3");
    assert_ok(qn_aura_gpu_decode(64, 8, 10, &launch));
    assert_defines(&launch, "-DQN_HEAD_DIM=64 -DQN_BITS=8 -DQN_VALUE_BITS=8");
    assert_ok(qn_aura_gpu_quantize_page(128, 4, 2, 1, 8, 3, &launch));
    assert_defines(&launch, "-DQN_HEAD_DIM=128 -DQN_BITS=4 -DQN_VALUE_BITS=2");
    assert_true(launch.grid[0] == 1 && launch.grid[1] == 8 && launch.grid[2] == 3);
    refused(qn_aura_gpu_quantize_page(128, 4, 2, 1, 8, 0, &launch), QN_ERR_INVALID, "pages of 0 layers");
    refused(qn_aura_gpu_encode(128, 5, 10, &launch), QN_ERR_UNSUPPORTED, "heads of 128 in 5 and 5 bits");
    refused(qn_aura_gpu_quantize_page(100, 4, 4, 1, 8, 1, &launch), QN_ERR_UNSUPPORTED, "heads of 100");
}
