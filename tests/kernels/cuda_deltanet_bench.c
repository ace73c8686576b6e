/* Speed of Gated DeltaNet on the GPU. */
#include "cuda_deltanet.h"

/* Random values, repeated after a million: the power consumption of tensor cores, and thus their clock, depends on the
 * data. */
static uint64_t random_bf16(size_t n)
{
    const size_t period = n < 1 << 20 ? n : 1 << 20;
    const uint16_t *pattern = to_bf16(qn_floats_of(period, 1), period);
    uint16_t *all = qn_new(n, sizeof *all);
    for (size_t i = 0; i < n; i++)
        all[i] = pattern[i % period];
    return qn_gpu_copy(all);
}

/* The launches that are timed: the first, or all. */
enum part { PREPARE, ALL, PARTS };

/* The division is the engine's. Log decays are uniform from -decay to 0: 0.3 forgets a state within three chunks, 0.003
 * nearly never. */
static const char *name_of(const qn_gdn_chunk_args *args, double decay, enum part part)
{
    static const char *const names[PARTS] = { "prepare", "all" };
    const qn_gdn_gpu gpu = qn_gdn_device();
    const qn_gdn_division division = qn_gdn_gpu_divide(args, args->tokens, &gpu);
    return qn_text("%u x %u tokens, heads %u/%u of %u, decays to -%g, %u pieces, %u slices: %s", args->sequences,
                   args->tokens, args->k_heads, args->v_heads, args->head_k, decay, division.pieces, division.slices,
                   names[part]);
}

static void bench_divisions(const qn_gdn_chunk_args *args, double decay)
{
    const qn_gdn_gpu gpu = qn_gdn_device();
    const double tokens = (double)args->tokens * args->sequences, v_heads = args->v_heads;
    const qn_gdn_division division = qn_gdn_gpu_divide(args, args->tokens, &gpu);
    const uint64_t workspace = qn_gpu_new(qn_gdn_gpu_workspace_bytes(args, &division));
    qn_gdn_chunk_args chunk = *args;
    qn_gdn_chunk_launches launches;
    qn_gpu_timed timed[QN_LENGTH(launches.launches)];
    qn_assert_ok(qn_gdn_gpu_chunk(&chunk, &division, gpu.max_shared_bytes, workspace, &launches));
    for (size_t i = 0; i < launches.n; i++)
        timed[i] = (qn_gpu_timed){ .launch = launches.launches[i], .args = &chunk };
    for (enum part part = PREPARE; part < PARTS; part++) /* the minimum traffic of all kernels: q, k, v, gates and o
                                                            once */
        qn_gpu_bench_launches("deltanet", "chunks", name_of(args, decay, part),
                              tokens * (4 * (args->k_heads + v_heads) * args->head_k + 8 * v_heads), "B",
                              part == PREPARE ? 0 : qn_gpu_read_rate(), timed, part == PREPARE ? 1 : launches.n, 1);
}

/* The arguments without addresses. */
static void bench_chunk(qn_gdn_chunk_args args, double decay)
{
    const size_t rows = (size_t)args.sequences * args.tokens, n_k = rows * args.k_heads * args.head_k,
                 n_v = rows * args.v_heads * args.head_v, n_gates = rows * args.v_heads,
                 n_state = (size_t)args.sequences * args.v_heads * args.head_k * args.head_v;
    if (qn_bench_selected(name_of(&args, decay, PREPARE)) || qn_bench_selected(name_of(&args, decay, ALL))) {
        float *g = qn_floats(n_gates), *beta = qn_floats(n_gates), *state = qn_floats_of(n_state, 0.1f);
        for (size_t i = 0; i < n_gates; i++) {
            g[i] = (float)(-decay * uniform());
            beta[i] = (float)uniform();
        }
        qn_split_states(state, args.sequences, n_state / args.sequences);
        args.q = random_bf16(n_k);
        args.k = random_bf16(n_k);
        args.v = random_bf16(n_v);
        args.g = qn_gpu_copy(g);
        args.beta = qn_gpu_copy(beta);
        args.initial = qn_gpu_copy(state);
        args.final = qn_gpu_floats(n_state);
        args.o = qn_gpu_new(n_v * 2);
        bench_divisions(&args, decay);
    }
    qn_release();
}

void qn_bench_cuda_deltanet(void)
{
    static const uint32_t heads[][2] = { { 2, 4 }, { 2, 8 }, { 16, 16 }, { 16, 32 }, { 16, 48 }, { 16, 64 } };
    for (size_t i = 0; i < QN_LENGTH(heads); i++)
        for (uint32_t tokens = 4096; tokens <= 32768; tokens *= 8) {
            bench_chunk(qn_gdn_chunk_args_of(1, tokens, heads[i][0], heads[i][1], 128, 128), 0.3);
            bench_chunk(qn_gdn_chunk_args_of(1, tokens, heads[i][0], heads[i][1], 128, 128), 0.003);
        }
    bench_chunk(qn_gdn_chunk_args_of(8, 4096, 16, 48, 128, 128), 0.3);
    for (uint32_t head = 64; head <= 256; head += 64)
        if (head != 128)
            bench_chunk(qn_gdn_chunk_args_of(1, 8192, 16, 32, head, head), 0.3);
}

/* ---- Open chunks ---- */

/* A layer of a 27B model: `rows` rows of each sequence, after `stored` rows of the chunk. 64 of them are folded. Rows
 * read the plane hi of the state and the open rows; a fold reads and writes both planes. */
static void bench_open(size_t sequences, uint32_t stored, uint32_t rows)
{
    enum {
        HEAD = 128,
        K_HEADS = 16,
        V_HEADS = 48,
        TAPS = 4,
        VALUES = V_HEADS * HEAD,
        WIDTH = 2 * K_HEADS * HEAD + VALUES
    };
    const bool folded = stored == 64;
    const qn_recurrent_shape heads = { K_HEADS, V_HEADS, HEAD, HEAD, TAPS };
    const qn_gpu_recurrent_layout layout = qn_gpu_recurrent_layout_of(&heads);
    const size_t state_bytes = layout.state_layer_bytes, plane = VALUES * HEAD * 2,
                 row_bytes = (K_HEADS + V_HEADS) * HEAD * 2,
                 bytes = sequences * (plane * (folded ? 4 : 1) + stored * row_bytes);
    const char *shape = qn_text("%zu sequences, %u rows, heads 16/48, %u open rows%s, %.1f MB", sequences, rows, stored,
                                folded ? ", folded" : "", (double)bytes / 1e6);
    if (!qn_bench_selected(shape))
        return;
    const size_t layers = qn_gpu_bench_copies(sequences * state_bytes);
    const qn_gdn_gpu gpu = qn_gdn_device();
    uint32_t *slots = qn_new(sequences, sizeof *slots), *positions = qn_new(sequences, sizeof *positions),
             *state_positions = qn_new(sequences, sizeof *positions),
             *cu_seqlens = qn_new(sequences + 1, sizeof *cu_seqlens);
    for (size_t i = 0; i < sequences; i++) {
        slots[i] = (uint32_t)i;
        positions[i] = 64 + stored;
        state_positions[i] = 64;
        cu_seqlens[i + 1] = (uint32_t)(i + 1) * rows;
    }
    float *x = qn_floats_of((sequences * rows + TAPS + 1) * WIDTH, 0.5f), *factor = qn_floats(V_HEADS),
          *zeros = qn_floats(V_HEADS * 192);
    for (size_t h = 0; h < V_HEADS; h++)
        factor[h] = -0.1f;
    qn_gdn_open_args args = qn_gdn_open_args_of(K_HEADS, V_HEADS, HEAD, HEAD, TAPS);
    args.qkv = args.alpha = args.beta = args.gate = qn_gpu_from(x, sequences * rows * WIDTH * sizeof *x);
    args.conv = args.bias = args.norm = qn_gpu_from(x, (TAPS * WIDTH + VALUES) * sizeof *x);
    args.factor = qn_gpu_copy(factor);
    args.out = qn_gpu_floats(sequences * rows * VALUES);
    args.arrivals = qn_gpu_zeros(sequences * K_HEADS * 4);
    args.states = qn_gpu_random(sequences * layers * state_bytes);
    args.open = qn_gpu_random(sequences * layers * layout.open.bytes);
    args.state_from = args.state_to = args.open_slots = qn_gpu_copy(slots);
    args.positions = qn_gpu_copy(positions);
    args.state_positions = qn_gpu_copy(state_positions);
    args.cu_seqlens = qn_gpu_copy(cu_seqlens);
    args.state_stride = layers * state_bytes;
    args.open_stride = layers * layout.open.bytes;
    args.sequences = (uint32_t)sequences;
    args.scale = 0.0884f;
    for (size_t i = 0; i < sequences * layers; i++) /* scales and decays: finite states after any number of folds */
        qn_gpu_write(args.open + i * layout.open.bytes + layout.open.scales, zeros, V_HEADS * 192 * 4);
    qn_launch step, row, few;
    qn_assert_ok(qn_gdn_gpu_open_step(&args, HEAD, HEAD, &gpu, &step));
    qn_assert_ok(qn_gdn_gpu_open_row(&args, &gpu, &row));
    qn_assert_ok(qn_gdn_gpu_open_few(&args, &gpu, &few));
    qn_gdn_open_args *of_layers = qn_new(layers, sizeof *of_layers); /* each iteration uses another layer's memory */
    for (size_t i = 0; i < layers; i++) {
        of_layers[i] = args;
        of_layers[i].state_offset = i * state_bytes;
        of_layers[i].open_offset = i * layout.open.bytes;
    }
    qn_gpu_bench_launches("deltanet", "open", shape, (double)bytes, "B", qn_gpu_read_rate(),
                          &(qn_gpu_timed){ step, of_layers, sizeof args }, 1, layers);
    if (!folded && rows == 1)
        qn_gpu_bench_launches("deltanet", "row", shape, (double)bytes, "B", qn_gpu_read_rate(),
                              &(qn_gpu_timed){ row, of_layers, sizeof args }, 1, layers);
    if (!folded)
        qn_gpu_bench_launches("deltanet", "few", shape, (double)bytes, "B", qn_gpu_read_rate(),
                              &(qn_gpu_timed){ few, of_layers, sizeof args }, 1, layers);
    qn_release();
}

void qn_bench_cuda_deltanet_open(void)
{
    static const uint32_t stored[] = { 1, 32, 63, 64 }, drafted[] = { 2, 4, 8, 15 };
    for (size_t sequences = 1; sequences <= 128; sequences *= sequences == 1 ? 8 : 4)
        for (size_t i = 0; i < QN_LENGTH(stored); i++)
            bench_open(sequences, stored[i], 1);
    for (size_t sequences = 1; sequences <= 8; sequences *= 8)
        for (size_t i = 0; i < QN_LENGTH(drafted); i++)
            bench_open(sequences, 32, drafted[i]);
}
