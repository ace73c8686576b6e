/* Launches of Gated DeltaNet on the GPU: grids, shared memory for devices with different limits, and rejected arguments with
 * their error texts. quern-check checks the kernels' results on a device. */

#include "helper_launch.h"

#include "kernels/deltanet/deltanet_cuda.h"

static qn_gdn_chunk_args chunk_args(void)
{
    return (qn_gdn_chunk_args){ .q = 4096,
                                .k = 8192,
                                .v = 16384,
                                .o = 32768,
                                .records = 65536,
                                .tokens = 200,
                                .sequences = 3,
                                .k_heads = 2,
                                .v_heads = 6,
                                .head_v = 128,
                                .q_stride = 1280,
                                .k_stride = 1280,
                                .v_stride = 1280,
                                .o_stride = 768,
                                .gate_stride = 6 };
}

static void refused(qn_status status, const char *reason)
{
    assert_int_equal(status, QN_ERR_INVALID);
    if (!strstr(qn_error_text(), reason))
        fail_msg("\"%s\" does not contain \"%s\"", qn_error_text(), reason);
}

static void chunks(void **unused)
{
    (void)unused;
    static const struct {
        uint32_t shared_bytes;
        const char *defines;
    } devices[] = { { 227 << 10, "-DQN_GDN_STAGES=3" }, { 163 << 10, "-DQN_GDN_STAGES=2" }, { 99 << 10, "-DQN_GDN_STAGES=1" } };
    const qn_gdn_chunk_args args = chunk_args();
    qn_launch launches[2];
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        label("%s", devices[i].defines);
        assert_ok(qn_gdn_gpu_chunk(&args, 129, devices[i].shared_bytes, launches));
        assert_string_equal(launches[0].function, "qn_gdn_prepare");
        assert_string_equal(launches[1].function, "qn_gdn_advance");
        assert_defines(&launches[0], "");
        assert_defines(&launches[1], devices[i].defines);
        const uint32_t grids[2][3] = { { 3, 2, 3 }, { 2, 6, 3 } }; /* chunks, key heads; slices of values, value heads */
        for (int l = 0; l < 2; l++) {
            label("launch %d", l);
            assert_memory_equal(launches[l].grid, grids[l], sizeof grids[l]);
            assert_true(launches[l].shared_bytes <= devices[i].shared_bytes);
            assert_int_equal(launches[l].args_bytes, sizeof args);
        }
    }
    assert_int_equal(qn_gdn_gpu_chunk(&args, 129, 48 << 10, launches), QN_ERR_UNSUPPORTED);
    assert_non_null(strstr(qn_error_text(), "shared memory"));
    /* The record of chunk c of sequence s is t/64 + s + c: the largest index for 200 tokens in 3 sequences must be
     * allocated. */
    assert_int_equal(qn_gdn_gpu_record_bytes(200, 3, 6), (3 + 3) * 6 * QN_GDN_RECORD);
}

static void chunks_refused(void **unused)
{
    (void)unused;
    qn_launch launches[2];
    qn_gdn_chunk_args args = chunk_args();
    args.head_v = 96;
    refused(qn_gdn_gpu_chunk(&args, 1, 227 << 10, launches), "96");
    args = chunk_args();
    args.v_heads = 5;
    refused(qn_gdn_gpu_chunk(&args, 1, 227 << 10, launches), "5 value heads");
    args = chunk_args();
    args.k_heads = 0;
    refused(qn_gdn_gpu_chunk(&args, 1, 227 << 10, launches), "0 key heads");
    args = chunk_args();
    args.sequences = 70000;
    refused(qn_gdn_gpu_chunk(&args, 1, 227 << 10, launches), "70000 sequences");
    args = chunk_args();
    args.v_stride = 700;
    refused(qn_gdn_gpu_chunk(&args, 1, 227 << 10, launches), "rows of v");
    args = chunk_args();
    args.q += 2;
    refused(qn_gdn_gpu_chunk(&args, 1, 227 << 10, launches), "multiple of 16");
    args = chunk_args();
    args.k_stride = 1284;
    refused(qn_gdn_gpu_chunk(&args, 1, 227 << 10, launches), "8 elements");
}

static void steps(void **unused)
{
    (void)unused;
    qn_gdn_step_args args = { .rows = 7,
                              .k_heads = 2,
                              .v_heads = 6,
                              .taps = 4,
                              .qkv_stride = 2 * 2 * 48 + 6 * 144,
                              .gate_stride = 6 * 144,
                              .out_stride = 6 * 144 };
    qn_launch launch, other;
    assert_ok(qn_gdn_gpu_step(&args, 48, 144, &launch));
    assert_defines(&launch, "-DQN_HEAD_K=48 -DQN_HEAD_V=144");
    assert_int_equal(launch.grid[0], 6);
    assert_int_equal(launch.grid[1], 7);
    assert_int_equal(launch.block[0], 512);
    assert_ok(qn_gdn_gpu_step(&args, 48, 144, &other));
    assert_memory_equal(&launch.variant, &other.variant, sizeof launch.variant); /* kernels are looked up by these bytes */
    refused(qn_gdn_gpu_step(&args, 40, 144, &launch), "40");
    refused(qn_gdn_gpu_step(&args, 48, 272, &launch), "272");
    refused(qn_gdn_gpu_step(&args, 64, 144, &launch), "rows of q, k and v");
    args.taps = 9;
    refused(qn_gdn_gpu_step(&args, 48, 144, &launch), "9 taps");
    args.taps = 4;
    args.rows = 0;
    refused(qn_gdn_gpu_step(&args, 48, 144, &launch), "0 rows");
}

static void conv_and_norm(void **unused)
{
    (void)unused;
    const qn_gdn_conv_args conv = {
        .sequences = 2, .k_heads = 2, .v_heads = 6, .taps = 4, .qkv_stride = 1280, .out_stride = 1280
    };
    const qn_gdn_norm_args norm = {
        .rows = 33, .k_heads = 2, .v_heads = 6, .o_stride = 768, .gate_stride = 768, .out_stride = 768
    };
    const qn_gdn_chunk_args rule = chunk_args();
    qn_launch launch;
    assert_ok(qn_gdn_gpu_conv(&conv, 128, 128, 33, true, &launch));
    assert_defines(&launch, "-DQN_HEAD_K=128 -DQN_HEAD_V=128 -DQN_BF16");
    assert_int_equal(launch.grid[0], 2 + 2 + 6);
    assert_int_equal(launch.grid[1], 3); /* blocks of 16 tokens */
    assert_int_equal(launch.grid[2], 2);
    assert_ok(qn_gdn_gpu_norm(&norm, 128, 128, false, &launch));
    assert_defines(&launch, "-DQN_HEAD_K=128 -DQN_HEAD_V=128");
    assert_int_equal(launch.grid[0], 2); /* blocks of 4 heads */
    assert_int_equal(launch.grid[1], 33);
    assert_ok(qn_gdn_gpu_recurrent(&rule, 128, false, &launch));
    assert_int_equal(launch.grid[0], 4); /* blocks of 32 values */
    refused(qn_gdn_gpu_recurrent(&rule, 64, true, &launch), "bf16");
    refused(qn_gdn_gpu_conv(&conv, 128, 112, 33, true, &launch), "112");
    refused(qn_gdn_gpu_conv(&conv, 128, 128, 0, true, &launch), "0 blocks of tokens");
}

static void sizes(void **unused)
{
    (void)unused;
    assert_int_equal(qn_gdn_gpu_state_bytes(48, 128, 128), 48 * 128 * 128 * 4);
    assert_int_equal(qn_gdn_gpu_input_bytes(16, 48, 128, 128, 4), 4 * (2 * 16 * 128 + 48 * 128) * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks),        cmocka_unit_test(chunks_refused), cmocka_unit_test(steps),
        cmocka_unit_test(conv_and_norm), cmocka_unit_test(sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
