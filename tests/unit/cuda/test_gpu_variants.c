/* Launches for the sizes and formats of usual models select variants that are compiled when quern is built, and each of
 * those variants is selected by one of them: the text that the build makes of a row of variants.def is that of the
 * launch. */
#include "helper_assert.h"

#include "cuda/runtime/code.h"
#include "cuda/kernels/attention/page_rows.h"
#include "cuda/kernels/aura/aura_attention.h"
#include "cuda/kernels/aura/aura.h"
#include "cuda/kernels/deltanet/open_few.h"
#include "cuda/kernels/deltanet/stages.h"
#include "quern/kernels.h"
#include "cuda/kernels/conv/conv.h"
#include "cuda/kernels/elementwise/elementwise.h"
#include "cuda/kernels/hadamard/hadamard.h"
#include "cuda/kernels/matmul/embed.h"
#include "cuda/kernels/matmul/hadamard_quantize.h"
#include "cuda/kernels/norm/norm.h"
#include "cuda/kernels/peak/peak.h"
#include "cuda/kernels/persistent/persistent.h"
#include "cuda/kernels/rope/rope.h"
#include "cuda/kernels/sample/argmax.h"
#include "cuda/kernels/sample/sample.h"
#include "cuda/kernels/spin/spin.h"

enum { N_SMS = 132, MAX_SHARED = 227 << 10, MAX_PIPELINES = 1024 };

static bool is_selected[MAX_PIPELINES];

static void expect_built_in(const qn_launch *launch)
{
    const qn_gpu_code *code = qn_gpu_code_built_in();
    char defines[QN_GPU_DEFINES_MAX];
    qn_gpu_defines(&launch->variant, defines);
    for (size_t i = 0; i < code->n_pipelines; i++)
        if (!strcmp(code->pipelines[i].source, launch->variant.source->file) &&
            !strcmp(code->pipelines[i].defines, defines)) {
            is_selected[i] = true;
            return;
        }
    fail_msg("%s: '%s' '%s' is not built in", launch->function, launch->variant.source->file, defines);
}

static void selects(qn_status status, const qn_launch *launch)
{
    assert_ok(status);
    expect_built_in(launch);
}

static void caches(void)
{
    static const size_t head_dims[] = { 64, 128, 256 };
    static const unsigned code_bits[] = { 4, 8 };
    qn_launch launch;
    for (size_t d = 0; d < 3; d++) {
        qn_attention_gpu gpu = {
            .head_dim = head_dims[d], .n_heads = 8, .n_kv_heads = 2, .n_sms = N_SMS, .max_shared_bytes = MAX_SHARED
        };
        for (int bits = 0; bits < 3; bits++) {
            gpu.pages = bits < 2;
            gpu.key_bits = gpu.value_bits = gpu.pages ? code_bits[bits] : 16;
            assert_ok(qn_attention_gpu_check(&gpu));
            const qn_attention_splits splits = qn_attention_gpu_splits(&gpu, 4096);
            for (size_t rows = 1; rows <= 4096; rows *= 2)
                selects(qn_attention_gpu_decode(&gpu, rows, &splits, &launch), &launch);
            if (qn_attention_gpu_has_page_rows(&gpu, 4))
                selects(qn_attention_gpu_decode_page(&gpu, 4, &splits, &launch), &launch);
            selects(qn_attention_gpu_prefill(&gpu, 64, 1, &launch), &launch);
            selects(qn_rope_gpu_qk_norm_store(head_dims[d], gpu.pages, 1, 8, 2, &launch), &launch);
            if (gpu.pages)
                selects(qn_aura_gpu_quantize_page(head_dims[d], gpu.key_bits, gpu.value_bits, 1, 2, 1, &launch),
                        &launch);
            if (gpu.pages)
                selects(qn_aura_gpu_store(head_dims[d], gpu.key_bits, gpu.value_bits, 1, 2, &launch), &launch);
        }
        selects(qn_aura_gpu_rotate(head_dims[d], 1, &launch), &launch);
    }
    selects(qn_rope_gpu_angles(64, 1, &launch), &launch);
}

/* The public kernels over codes of 4 bits. */
static void public_attention(void)
{
    qn_launch launch;
    uint32_t warps;
    for (size_t head_dim = 128; head_dim <= 256; head_dim *= 2) {
        const qn_aura_gpu gpu = { .head_dim = head_dim,
                                  .n_heads = 8,
                                  .n_kv_heads = 2,
                                  .key_bits = 4,
                                  .value_bits = 4,
                                  .n_sms = N_SMS,
                                  .max_shared_bytes = MAX_SHARED };
        assert_ok(qn_aura_gpu_check(&gpu));
        selects(qn_aura_gpu_score(&gpu, 1, 1, &launch), &launch);
        selects(qn_aura_gpu_value(&gpu, 1, 1, &launch), &launch);
        selects(qn_aura_gpu_flash_pass1(&gpu, 1, 1024, 64, &warps, &launch), &launch);
    }
}

static void delta_rule(uint32_t head, qn_dtype dtype)
{
    qn_gdn_chunk_args chunk = { .q = 16,
                                .k = 16,
                                .v = 16,
                                .o = 16,
                                .records = 16,
                                .sequences = 1,
                                .k_heads = 1,
                                .v_heads = 1,
                                .head_k = head,
                                .head_v = head,
                                .dtype = dtype,
                                .q_stride = head,
                                .k_stride = head,
                                .v_stride = head,
                                .o_stride = head,
                                .g_stride = 1,
                                .beta_stride = 1 };
    qn_launch launch;
    qn_gdn_chunk_launches launches;
    const bool has_spans = head <= QN_GDN_MAX_SPAN_KEY;
    for (uint32_t slices = 1; dtype != QN_DTYPE_F32 && slices <= (has_spans ? QN_GDN_MAX_BLOCK_SLICES : 1); slices++) {
        const qn_gdn_division division = { has_spans, slices };
        assert_ok(qn_gdn_gpu_chunk(&chunk, &division, MAX_SHARED, 65536, &launches));
        for (size_t i = 0; i < launches.n; i++)
            expect_built_in(&launches.launches[i]);
    }
    selects(qn_gdn_gpu_recurrent(&chunk, &launch), &launch);
}

static void delta_stages(uint32_t head)
{
    qn_gdn_stage_args args = { .rule = { .tokens = 64,
                                         .sequences = 1,
                                         .k_heads = 1,
                                         .v_heads = 1,
                                         .head_k = head,
                                         .head_v = head,
                                         .dtype = QN_DTYPE_BF16 } };
    qn_launch launch;
    selects(qn_gdn_gpu_kkt(&args, &launch), &launch);
    selects(qn_gdn_gpu_state_pass(&args, MAX_SHARED, &launch), &launch);
}

static void open_chunks(uint32_t head)
{
    qn_gdn_open_args args = { .layers = 1,
                              .sequences = 1,
                              .k_heads = 1,
                              .v_heads = 1,
                              .taps = 4,
                              .qkv_stride = 3 * head,
                              .gate_stride = head,
                              .out_stride = head };
    const qn_gdn_gpu gpu = { .max_shared_bytes = MAX_SHARED, .n_sms = N_SMS };
    qn_launch launch;
    selects(qn_gdn_gpu_open_step(&args, head, head, &gpu, &launch), &launch);
    selects(qn_gdn_gpu_open_fold(&args, head, head, &gpu, &launch), &launch);
    if (qn_gdn_gpu_has_open_row(head, head, &gpu))
        selects(qn_gdn_gpu_open_row(&args, &gpu, &launch), &launch);
    if (qn_gdn_gpu_has_open_few(head, head, &gpu))
        selects(qn_gdn_gpu_open_few(&args, &gpu, &launch), &launch);
}

static void delta_rules(void)
{
    open_chunks(64);
    open_chunks(128);
    delta_rule(128, QN_DTYPE_F32);
    delta_rule(128, QN_DTYPE_F16);
    for (uint32_t head = 64; head <= 256; head += 64)
        delta_rule(head, QN_DTYPE_BF16);
    delta_rule(96, QN_DTYPE_BF16);
    for (uint32_t head = 64; head <= 256; head *= 2)
        delta_stages(head);
}

/* Matrices of every type, by up to 4096 tokens; the persistent decode kernel where it takes their tiles. */
static void matmuls(void)
{
    static const size_t tokens[] = { 1, 2, 4, 8, 16, 17, 32, 33, 65, 96, 128, 130, 512, 4096 },
                        n_tiles[] = { 256, 512, 1024, 1536 };
    static const qn_matmul_gpu gpus[] = {
        { .n_sms = N_SMS, .max_shared_bytes = MAX_SHARED, .clusters = true, .wgmma = true },
        { .n_sms = 108, .max_shared_bytes = 163 << 10 }
    };
    static const qn_persistent_gpu persistent[] = { { N_SMS, MAX_SHARED, 9, true },
                                                    { 108, 163 << 10, 8, true },
                                                    { 128, 99 << 10, 8, true },
                                                    { 148, MAX_SHARED, 10, true },
                                                    { 170, 99 << 10, 12, true } };
    qn_matmul_launch matmul;
    qn_launch launch;
    size_t n_types;
    const qn_type_info *types = qn_types(&n_types);
    for (size_t type = 0; type < n_types; type++) {
        qn_tiled_matrix matrix = {
            .tiles = qn_matmul_gpu_tile_layout(&types[type]), .address = 128, .n_cols = 4096, .n_outs = 1
        };
        for (size_t i = 0; i < COUNT(gpus) * COUNT(n_tiles); i++)
            for (size_t t = 0; t < COUNT(tokens); t++) {
                const qn_matmul_gpu *gpu = &gpus[i / COUNT(n_tiles)];
                matrix.n_tiles = n_tiles[i % COUNT(n_tiles)];
                qn_matmul_acts acts = { .address = 1024, .workspace = 1024, .n_cols = 4096 };
                acts.layout = qn_matmul_gpu_acts_layout(&matrix.tiles, tokens[t]);
                acts.planes = acts.layout == QN_ACTS_HILO ? qn_matmul_gpu_planes(gpu, &matrix.tiles, tokens[t]) : 0;
                acts.capacity = acts.layout == QN_ACTS_HILO_N1 ? 1 : 4096;
                selects(qn_matmul_gpu_matmul(gpu, &matrix, &acts, tokens[t], &matmul), &matmul.launch);
                for (int op = QN_ACTS_OP_NONE; op <= QN_ACTS_OP_SWIGLU; op++) {
                    selects(qn_matmul_gpu_quantize(&acts, op, 0, 0, 0, 0, 4096, tokens[t], &matmul), &matmul.launch);
                    qn_matmul_gpu_quantize_16bit(&matmul, true);
                    expect_built_in(&matmul.launch);
                    if (acts.layout == QN_ACTS_HILO) {
                        qn_matmul_gpu_quantize_f16_too(&matmul, &acts);
                        expect_built_in(&matmul.launch);
                    }
                    qn_hadamard_quantize_args args;
                    if (acts.layout == QN_ACTS_HILO_N1)
                        selects(qn_matmul_gpu_hadamard_quantize(&acts, op, 0, 0, 0, 0, 0, 1024, &launch, &args),
                                &launch);
                }
            }
        for (uint32_t n_rows = 1; n_rows <= 2; n_rows++)
            for (size_t i = 0; i < COUNT(persistent); i++)
                if (qn_persistent_gpu_supports(&persistent[i], &matrix.tiles, n_rows))
                    selects(qn_persistent_gpu_launch(&persistent[i], &matrix.tiles, n_rows, &launch), &launch);
        for (size_t dim = 128; dim <= 256; dim += 128)
            if (qn_persistent_gpu_supports_codes(persistent, &matrix.tiles, dim, 4, 4))
                selects(qn_persistent_gpu_launch_codes(persistent, &matrix.tiles, dim, 4, 4, &launch), &launch);
        selects(qn_matmul_gpu_pack(&matrix, 0, 64, 16, 0, &matmul), &matmul.launch);
        qn_matmul_embed_args args;
        selects(qn_matmul_gpu_embed(&matrix, 0, 0, 0, 0, 1, 0, &launch, &args), &launch);
        matrix.n_tiles = 6;
        if (qn_matmul_gpu_has_gemv_norm(&gpus[0], &matrix))
            selects(
                qn_matmul_gpu_gemv_norm(&gpus[0], &matrix, &(qn_matmul_norm_rows){ .stride = 4096 }, 256, 8, &matmul),
                &matmul.launch);
    }
}

static void convolutions(void)
{
    qn_launch launch;
    for (int is_aligned = 0; is_aligned < 2; is_aligned++) {
        qn_conv_args args = { .rows = 1, .sequences = 1, .channels = 64, .taps = 4 };
        selects(qn_conv_gpu_scan(&args, is_aligned, N_SMS, &launch), &launch);
        selects(qn_conv_gpu_final(&args, is_aligned, &launch), &launch);
        selects(qn_conv_gpu_step(&args, is_aligned, &launch), &launch);
    }
}

static void sources_without_parameters(void)
{
    qn_launch launch, launches[QN_SAMPLE_LAUNCHES];
    qn_hadamard_gpu hadamard;
    size_t n;
    selects(qn_elementwise_gpu_swiglu(1, &launch), &launch);
    selects(qn_norm_gpu_rows(1, 1, &launch), &launch);
    selects(qn_norm_gpu_pair(1, 1, &launch), &launch);
    selects(qn_norm_gpu_keep(1, 1, &launch), &launch);
    selects(qn_norm_gpu_views(1, 1, &launch), &launch);
    selects(qn_argmax_gpu_rows(1, 1, &launch), &launch);
    assert_ok(qn_hadamard_gpu_plan(0, 0, 0, 0, 64, 64, 64, &hadamard));
    expect_built_in(&hadamard.tiles);
    expect_built_in(&hadamard.cross);
    assert_ok(qn_sample_gpu_launches(QN_SAMPLE_HISTOGRAM + QN_SAMPLE_LOGPROBS, 1000, 3, true, launches, &n));
    assert_int_equal(n, QN_SAMPLE_LAUNCHES);
    for (size_t i = 0; i < n; i++)
        expect_built_in(&launches[i]);
    qn_peak_empty_plan(false, &launch);
    expect_built_in(&launch);
    qn_spin_plan(false, &launch);
    expect_built_in(&launch);
}

TEST(launches_select_what_is_built_in)
{
    const qn_gpu_code *code = qn_gpu_code_built_in();
    assert_in_range(code->n_pipelines, 1, MAX_PIPELINES);
    caches();
    public_attention();
    delta_rules();
    matmuls();
    convolutions();
    sources_without_parameters();
    for (size_t i = 0; i < code->n_pipelines; i++)
        if (!is_selected[i])
            fail_msg("%s '%s' is built in, and no launch of this test selects it", code->pipelines[i].source,
                     code->pipelines[i].defines);
}
