/* Launches of Gated DeltaNet on the GPU: grids, shared memory for devices with different limits, and rejected arguments
 * with their error texts. quern-check checks the kernels' results on a device. */

#include "helper_launch.h"

#include "cuda/kernels/deltanet/deltanet.h"
#include "quern/kernels.h"

static qn_gdn_chunk_args chunk_args(void)
{
    return (qn_gdn_chunk_args){ .q = 4096,
                                .k = 8192,
                                .v = 16384,
                                .o = 32768,
                                .tokens = 200,
                                .sequences = 3,
                                .k_heads = 2,
                                .v_heads = 6,
                                .head_k = 128,
                                .head_v = 128,
                                .dtype = QN_DTYPE_BF16,
                                .q_stride = 1280,
                                .k_stride = 1280,
                                .v_stride = 1280,
                                .o_stride = 768,
                                .g_stride = 6,
                                .beta_stride = 6 };
}

#define refused(call, text) assert_fails(call, QN_ERR_INVALID, text)

static const qn_gdn_division whole = { 0, 2 };
enum { WORKSPACE = 1 << 20 };

TEST(chunks)
{
    static const struct {
        uint32_t shared_bytes;
        const char *defines;
    } devices[] = { { 227 << 10, "-DQN_HEAD_K=128 -DQN_GDN_STAGES=3 -DQN_GDN_SLICES=2" },
                    { 163 << 10, "-DQN_HEAD_K=128 -DQN_GDN_STAGES=2 -DQN_GDN_SLICES=2" },
                    { 99 << 10, "-DQN_HEAD_K=128 -DQN_GDN_STAGES=1 -DQN_GDN_SLICES=2" } };
    qn_gdn_chunk_args args = chunk_args();
    qn_gdn_chunk_launches chunk;
    for (size_t i = 0; i < COUNT(devices); i++) {
        label("%u bytes of shared memory", devices[i].shared_bytes);
        assert_ok(qn_gdn_gpu_chunk(&args, &whole, devices[i].shared_bytes, WORKSPACE, &chunk));
        assert_int_equal(chunk.n, 2);
        assert_string_equal(chunk.launches[0].function, "qn_gdn_prepare");
        assert_string_equal(chunk.launches[1].function, "qn_gdn_advance");
        assert_defines(&chunk.launches[0], "-DQN_HEAD_K=128");
        assert_defines(&chunk.launches[1], devices[i].defines);
        /* Indices of chunks, key heads; blocks of the value heads of three sequences. */
        const uint32_t grids[2][3] = { { 3 * 4 * 2, 1, 1 }, { 6 * 3, 1, 1 } };
        for (int l = 0; l < 2; l++) {
            assert_memory_equal(chunk.launches[l].grid, grids[l], sizeof grids[l]);
            assert_true(chunk.launches[l].shared_bytes <= devices[i].shared_bytes);
            assert_int_equal(chunk.launches[l].args_bytes, sizeof args);
        }
    }
    assert_fails(qn_gdn_gpu_chunk(&args, &whole, 48 << 10, WORKSPACE, &chunk), QN_ERR_UNSUPPORTED, "shared memory");
}

/* The arrays of the workspace follow each other, and it ends after the last. */
TEST(workspaces)
{
    static const qn_gdn_division divisions[] = { { 0, 1 }, { 0, 2 }, { 1, 1 }, { 7, 2 }, { 72, 2 }, { 65535, 1 } };
    for (size_t i = 0; i < 2 * COUNT(divisions); i++) {
        const qn_gdn_division *d = &divisions[i / 2];
        label("%u pieces, %u slices, %s", d->pieces, d->slices, i % 2 ? "with cu_seqlens" : "equal lengths");
        qn_gdn_chunk_args a = chunk_args();
        qn_gdn_chunk_launches chunk;
        a.head_v = 64;
        a.cu_seqlens = i % 2 ? 65536 : 0;
        a.tokens = i % 2 ? 3 * 200 : 200;
        assert_ok(qn_gdn_gpu_chunk(&a, d, 227 << 10, WORKSPACE, &chunk));
        const size_t pieces = d->pieces, end = WORKSPACE + qn_gdn_gpu_workspace_bytes(&a, d);
        /* With cu_seqlens chunk c of sequence s has index t/64 + s + c: the largest has its place. */
        assert_int_equal(a.chunks, i % 2 ? 3 * 200 / 64 + 3 : 3 * 4);
        size_t used = a.records + (size_t)a.chunks * 6 * QN_GDN_RECORD;
        assert_int_equal(a.records, WORKSPACE);
        assert_int_equal(a.pieces, pieces);
        assert_int_equal(chunk.n, pieces ? 4 : 2);
        if (pieces) {
            assert_true(a.states >= used);
            used = a.states + 2 * pieces * 64 * 128 * sizeof(float);
            assert_true(a.transitions >= used);
            used = a.transitions + pieces * 128 * 128 * sizeof(float);
            assert_true(a.sources >= used);
            used = a.sources + pieces * sizeof(uint32_t);
            assert_string_equal(chunk.launches[1].function, "qn_gdn_span_effects");
            assert_int_equal(chunk.launches[1].grid[0], pieces); /* values of one slice */
            assert_string_equal(chunk.launches[2].function, "qn_gdn_compose");
            const uint32_t heads[] = { 64 / QN_GDN_COMPOSE_ROWS, 6 * 3, 1 }; /* fewer than run at a time */
            assert_memory_equal(chunk.launches[2].grid, heads, sizeof heads);
        }
        assert_int_equal(chunk.launches[chunk.n - 1].grid[0], pieces ? pieces : 6 * 3);
        assert_true(used <= end && end - used < 256);
    }
}

/* The launches that have work only where states do not decay to 0 have no more blocks than run at a time, however many
 * heads. */
TEST(one_wave)
{
    static const qn_gdn_gpu h100 = { 227 << 10, 132 };
    qn_gdn_chunk_args a = chunk_args();
    qn_gdn_chunk_launches chunk;
    a.sequences = 1;
    a.tokens = 4096;
    a.k_heads = a.v_heads = 48;
    a.q_stride = a.k_stride = a.v_stride = a.o_stride = 48 * 128;
    a.g_stride = a.beta_stride = 48;
    const qn_gdn_division d = qn_gdn_gpu_divide(&a, a.tokens, &h100);
    assert_ok(qn_gdn_gpu_chunk(&a, &d, h100.max_shared_bytes, WORKSPACE, &chunk));
    assert_int_equal(chunk.n, 4);
    assert_true(chunk.launches[1].grid[0] <= h100.n_sms);
    assert_int_equal(chunk.launches[2].grid[0], 128 / QN_GDN_COMPOSE_ROWS);
    assert_int_equal(chunk.launches[2].grid[1], 16);
}

/* Keys of three and four tiles: one slice, no spans, fewer stages. */
TEST(long_keys)
{
    static const qn_gdn_gpu h100 = { 227 << 10, 132 };
    static const struct {
        uint32_t head_k;
        const char *defines;
    } sizes[] = { { 192, "-DQN_HEAD_K=192 -DQN_GDN_STAGES=2 -DQN_GDN_SLICES=1" },
                  { 256, "-DQN_HEAD_K=256 -DQN_GDN_STAGES=2 -DQN_GDN_SLICES=1 -DQN_F16" } };
    for (size_t i = 0; i < COUNT(sizes); i++) {
        label("keys of %u", sizes[i].head_k);
        qn_gdn_chunk_args a = chunk_args();
        qn_gdn_chunk_launches chunk;
        a.head_k = sizes[i].head_k;
        a.dtype = i ? QN_DTYPE_F16 : QN_DTYPE_BF16;
        a.tokens = 32768;
        const qn_gdn_division d = qn_gdn_gpu_divide(&a, 32768, &h100);
        assert_int_equal(d.slices, 1);
        assert_int_equal(d.pieces, 0);
        assert_ok(qn_gdn_gpu_chunk(&a, &d, h100.max_shared_bytes, WORKSPACE, &chunk));
        assert_int_equal(chunk.n, 2);
        assert_defines(&chunk.launches[1], sizes[i].defines);
        assert_int_equal(chunk.launches[1].grid[0], 2 * 6 * 3);
    }
}

/* Full tiles, and enough shared memory for long keys. */
TEST(which_have_chunks)
{
    static const qn_gdn_gpu h100 = { 227 << 10, 132 }, rtx = { 99 << 10, 24 };
    assert_true(qn_gdn_gpu_has_chunks(128, 64, &h100) && qn_gdn_gpu_has_chunks(128, 64, &rtx));
    assert_true(qn_gdn_gpu_has_chunks(192, 192, &h100) && qn_gdn_gpu_has_chunks(256, 256, &h100));
    assert_false(qn_gdn_gpu_has_chunks(192, 192, &rtx) || qn_gdn_gpu_has_chunks(256, 256, &rtx));
    assert_false(qn_gdn_gpu_has_chunks(96, 128, &h100) || qn_gdn_gpu_has_chunks(128, 96, &h100));
}

/* Whatever the shape, the division is one that the launches take, and its workspace is within what was reserved. */
TEST(divisions)
{
    static const uint32_t heads[] = { 2, 4, 8, 16, 32, 48, 64, 128 }, tokens[] = { 1, 64, 65, 1000, 4096, 32768 };
    static const qn_gdn_gpu gpus[] = { { 227 << 10, 132 }, { 163 << 10, 108 }, { 99 << 10, 24 } };
    for (size_t g = 0; g < COUNT(gpus); g++)
        for (size_t h = 0; h < COUNT(heads); h++)
            for (size_t t = 0; t < COUNT(tokens); t++)
                for (uint32_t sequences = 1; sequences <= 9; sequences += 4)
                    for (uint32_t head_v = 64; head_v <= 256; head_v += 64) {
                        label("GPU %zu, %u heads of %u, %u sequences of %u tokens", g, heads[h], head_v, sequences,
                              tokens[t]);
                        qn_gdn_chunk_args a = chunk_args();
                        qn_gdn_chunk_launches chunk;
                        a.k_heads = a.v_heads = heads[h];
                        a.head_v = head_v;
                        a.tokens = tokens[t];
                        a.sequences = sequences;
                        a.q_stride = a.k_stride = heads[h] * 128;
                        a.v_stride = a.o_stride = heads[h] * head_v;
                        a.g_stride = a.beta_stride = heads[h];
                        const qn_gdn_division d = qn_gdn_gpu_divide(&a, tokens[t], &gpus[g]);
                        qn_gdn_chunk_args more = a;
                        more.tokens += 64;
                        assert_ok(qn_gdn_gpu_chunk(&a, &d, gpus[g].max_shared_bytes, WORKSPACE, &chunk));
                        assert_true(qn_gdn_gpu_workspace_bytes(&a, &d) <= qn_gdn_gpu_max_workspace_bytes(&a, &gpus[g]));
                        assert_true(qn_gdn_gpu_max_workspace_bytes(&a, &gpus[g]) <=
                                    qn_gdn_gpu_max_workspace_bytes(&more, &gpus[g]));
                    }
}

/* On a GPU of 132 SMs: nearly as many blocks as SMs, pieces aligned with heads where that costs nothing, multiples of
 * the value heads of a key head. */
TEST(pieces)
{
    static const qn_gdn_gpu h100 = { 227 << 10, 132 };
    static const struct {
        uint32_t sequences, tokens, k_heads, v_heads, pieces, slices;
    } shapes[] = { { 1, 4096, 2, 8, 64, 1 },    { 1, 32768, 2, 8, 128, 2 },   { 1, 4096, 16, 16, 128, 2 },
                   { 1, 4096, 16, 32, 128, 2 }, { 1, 4096, 16, 48, 132, 2 },  { 1, 32768, 16, 48, 132, 2 },
                   { 1, 4096, 16, 64, 128, 2 }, { 1, 32768, 16, 64, 132, 2 }, { 8, 4096, 16, 48, 0, 2 },
                   { 1, 4096, 16, 80, 130, 2 }, { 1, 32768, 264, 264, 0, 2 }, { 1, 64, 2, 8, 0, 1 } };
    for (size_t i = 0; i < COUNT(shapes); i++) {
        label("%u sequences of %u tokens, %u and %u heads", shapes[i].sequences, shapes[i].tokens, shapes[i].k_heads,
              shapes[i].v_heads);
        for (int ragged = 0; ragged < 2; ragged++) {
            qn_gdn_chunk_args a = chunk_args();
            a.k_heads = shapes[i].k_heads;
            a.v_heads = shapes[i].v_heads;
            a.sequences = shapes[i].sequences;
            a.tokens = ragged ? shapes[i].tokens * shapes[i].sequences : shapes[i].tokens;
            a.cu_seqlens = ragged ? 65536 : 0;
            const qn_gdn_division d = qn_gdn_gpu_divide(&a, shapes[i].tokens, &h100);
            assert_int_equal(d.pieces, shapes[i].pieces);
            assert_int_equal(d.slices, shapes[i].slices);
        }
    }
    /* Few heads and many tokens, but less shared memory than composing needs. */
    static const qn_gdn_gpu rtx = { 99 << 10, 24 };
    qn_gdn_chunk_args a = chunk_args();
    a.sequences = 1;
    a.tokens = 32768;
    assert_int_equal(qn_gdn_gpu_divide(&a, 32768, &rtx).pieces, 0);
}

#define refused_chunk(change, text)                                                                                    \
    do {                                                                                                               \
        qn_gdn_chunk_args args = chunk_args();                                                                         \
        args.change;                                                                                                   \
        refused(qn_gdn_gpu_chunk(&args, &whole, 227 << 10, WORKSPACE, &chunk), text);                                  \
    } while (0)

TEST(chunks_refused)
{
    qn_gdn_chunk_launches chunk;
    const qn_gdn_division many = { 65536, 2 };
    qn_gdn_chunk_args valid = chunk_args();
    refused_chunk(head_v = 90, "90");
    refused_chunk(head_k = 272, "272");
    refused_chunk(dtype = QN_DTYPE_F32, "data type 0");
    refused_chunk(v_heads = 5, "5 value heads");
    refused_chunk(k_heads = 0, "0 key heads");
    refused_chunk(sequences = 70000, "70000 sequences");
    refused_chunk(v_stride = 700, "rows of v");
    refused_chunk(q += 2, "multiple of 16");
    refused(qn_gdn_gpu_chunk(&valid, &many, 227 << 10, WORKSPACE, &chunk), "65536 pieces");
    refused_chunk(k_stride = 1284, "8 elements");
}

static qn_gdn_open_args open_args(void)
{
    return (qn_gdn_open_args){ .states = 4096,
                               .open = 8192,
                               .positions = 4,
                               .state_stride = 1 << 20,
                               .open_stride = 1 << 20,
                               .layers = 3,
                               .sequences = 7,
                               .k_heads = 2,
                               .v_heads = 6,
                               .taps = 4,
                               .qkv_stride = 2 * 2 * 48 + 6 * 144,
                               .gate_stride = 6 * 144,
                               .out_stride = 6 * 144 };
}

TEST(open_chunks)
{
    static const qn_gdn_gpu h100 = { 227 << 10, 132 }, small = { 48 << 10, 2 };
    qn_gdn_open_args args = open_args();
    qn_launch launch;
    assert_ok(qn_gdn_gpu_open_step(&args, 48, 144, &h100, &launch));
    assert_string_equal(launch.function, "qn_gdn_open_step");
    assert_defines(&launch, "-DQN_HEAD_K=48 -DQN_HEAD_V=144");
    assert_int_equal(launch.grid[0], 42);
    assert_int_equal(launch.block[0], 256);
    assert_int_equal(launch.args_bytes, sizeof args);
    assert_true(launch.pdl);
    assert_int_equal(args.layout.values, 2 * 64 * 48 * 2);
    assert_int_equal(args.layout.bytes - args.layout.inputs, (3 + QN_GDN_DROPPED_ROWS) * (2 * 2 * 48 + 6 * 144) * 4);
    args.sequences = 100;
    assert_ok(qn_gdn_gpu_open_fold(&args, 48, 144, &h100, &launch));
    assert_string_equal(launch.function, "qn_gdn_open_fold");
    assert_int_equal(launch.grid[0], 600);
    assert_int_equal(launch.grid[1], 3);
    assert_ok(qn_gdn_gpu_open_step(&args, 48, 144, &h100, &launch));
    assert_int_equal(launch.grid[0], 2 * 132); /* as many blocks as run at a time: limited by registers */
    static const qn_gdn_gpu less_shared = { 99 << 10, 132 };
    assert_ok(qn_gdn_gpu_open_step(&args, 48, 144, &less_shared, &launch));
    assert_int_equal(launch.grid[0], 132); /* and by shared memory */
    assert_fails(qn_gdn_gpu_open_step(&args, 128, 128, &small, &launch), QN_ERR_UNSUPPORTED, "shared memory");
    for (size_t head_k = 16; head_k <= 256; head_k += 16) /* whole warps, and all values of small heads in one pass */
        for (size_t head_v = 16; head_v <= 256; head_v += 16) {
            args.qkv_stride = args.gate_stride = args.out_stride = 10 * 256;
            assert_ok(qn_gdn_gpu_open_step(&args, head_k, head_v, &h100, &launch));
            assert_true(launch.block[0] % 32 == 0 && (head_v > 128 || launch.block[0] >= 2 * head_v));
        }
    args = open_args(); /* one sequence, in the arguments */
    args.positions = 0;
    args.sequences = 1;
    assert_ok(qn_gdn_gpu_open_step(&args, 48, 144, &h100, &launch));
    assert_int_equal(launch.grid[0], 6);
}

#define refused_open(function, change, text)                                                                           \
    do {                                                                                                               \
        qn_gdn_open_args changed = open_args();                                                                        \
        changed.change;                                                                                                \
        refused(function(&changed, 48, 144, &h100, &launch), text);                                                    \
    } while (0)

TEST(refused_open_chunks)
{
    static const qn_gdn_gpu h100 = { 227 << 10, 132 };
    qn_gdn_open_args args = open_args();
    qn_launch launch;
    refused(qn_gdn_gpu_open_step(&args, 40, 144, &h100, &launch), "40");
    refused(qn_gdn_gpu_open_fold(&args, 48, 272, &h100, &launch), "272");
    refused(qn_gdn_gpu_open_step(&args, 64, 144, &h100, &launch), "rows of q, k and v");
    refused_open(qn_gdn_gpu_open_step, state_offset = 8, "multiple of 16");
    refused_open(qn_gdn_gpu_open_fold, open_stride = 100, "multiple of 16");
    refused_open(qn_gdn_gpu_open_step, taps = 0, "0 taps");
    refused_open(qn_gdn_gpu_open_step, sequences = 70000, "70000 sequences");
    refused_open(qn_gdn_gpu_open_fold, positions = 0, "7 sequences without their positions");
    refused_open(qn_gdn_gpu_open_step, v_heads = 5, "5 value heads");
    refused_open(qn_gdn_gpu_open_fold, layers = 0, "0 layers");
    refused_open(qn_gdn_gpu_open_step, out_stride = 6, "rows of the result");
    refused_open(qn_gdn_gpu_open_step, conv = 8, "multiple of 16 bytes");
    refused_open(qn_gdn_gpu_open_step, gate_stride += 2, "multiple of 16 bytes");
}

TEST(conv_and_norm)
{
    qn_gdn_conv_args conv = {
        .rows = 33, .k_heads = 2, .v_heads = 6, .taps = 4, .qkv_stride = 1280, .out_stride = 1280
    };
    const qn_gdn_norm_args norm = {
        .rows = 33, .k_heads = 2, .v_heads = 6, .o_stride = 768, .gate_stride = 768, .out_stride = 768
    };
    qn_gdn_chunk_args rule = chunk_args();
    qn_launch launch;
    assert_ok(qn_gdn_gpu_conv(&conv, 128, 128, &launch));
    assert_defines(&launch, "-DQN_HEAD_K=128 -DQN_HEAD_V=128 -DQN_BF16");
    assert_int_equal(launch.grid[0], 2 + 2 + 6);
    assert_int_equal(launch.grid[1], 3); /* blocks of 16 tokens */
    assert_ok(qn_gdn_gpu_norm(&norm, 128, 128, &launch));
    assert_defines(&launch, "-DQN_HEAD_K=128 -DQN_HEAD_V=128 -DQN_BF16");
    assert_int_equal(launch.grid[0], 2); /* blocks of 4 heads */
    assert_int_equal(launch.grid[1], 33);
    rule.dtype = QN_DTYPE_F16;
    assert_ok(qn_gdn_gpu_recurrent(&rule, &launch));
    assert_defines(&launch, "-DQN_HEAD_K=128 -DQN_HEAD_V=128 -DQN_F16");
    assert_int_equal(launch.grid[0], 4); /* blocks of 32 values */
    rule.head_k = 24;
    refused(qn_gdn_gpu_recurrent(&rule, &launch), "24");
    refused(qn_gdn_gpu_conv(&conv, 128, 120, &launch), "120");
    conv.rows = 2; /* not all of the next history */
    refused(qn_gdn_gpu_conv(&conv, 128, 128, &launch), "2 rows");
    conv.rows = 3;
    assert_ok(qn_gdn_gpu_conv(&conv, 128, 128, &launch));
    conv.taps = 9;
    refused(qn_gdn_gpu_conv(&conv, 128, 128, &launch), "9 taps");
}
