/* Speed of Gated DeltaNet on the GPU. */
#include "cuda_deltanet.h"

#include <stdio.h>
#include <string.h>

struct timed {
    qn_gdn_chunk_args chunk;
    qn_gdn_chunk_launches launches;
    size_t end; /* number of launches that are timed */
};

static void timed_chunk(void *context, size_t iteration)
{
    const struct timed *t = context;
    (void)iteration;
    for (size_t i = 0; i < t->end; i++)
        qn_gpu_launch(&t->launches.launches[i], &t->chunk);
}

/* Random values, repeated after a million: the power consumption of tensor cores, and thus their clock, depends on the
 * data. */
static qn_gpu_guarded random_bf16(size_t n)
{
    const size_t period = n < 1 << 20 ? n : 1 << 20;
    float *x = normal(period, 1);
    uint16_t *pattern = to_bf16(x, period), *all;
    qn_assert_ok(qn_alloc(&all, n, sizeof *all, "quern-check"));
    for (size_t i = 0; i < n; i++)
        all[i] = pattern[i % period];
    const qn_gpu_guarded g = qn_gpu_from(all, n * sizeof *all);
    qn_free(x);
    qn_free(pattern);
    qn_free(all);
    return g;
}

enum { SHAPE_BYTES = 128 };

/* The launches that are timed: the first, or all. */
enum part { PREPARE, ALL, PARTS };

static qn_gdn_gpu device_limits(void)
{
    const qn_cuda_info *info = qn_cuda_get_info(qn_gpu());
    return (qn_gdn_gpu){ .max_shared_bytes = info->max_shared_bytes, .n_sms = info->n_sms };
}

/* The division is the engine's. Log decays are uniform from -decay to 0: 0.3 forgets a state within three chunks, 0.003
 * nearly never. False if the timing is not selected. */
static bool name_shape(char shape[SHAPE_BYTES], const qn_gdn_chunk_args *args, double decay, enum part part)
{
    static const char *const names[PARTS] = { "prepare", "all" };
    const qn_gdn_gpu gpu = device_limits();
    const qn_gdn_division division = qn_gdn_gpu_divide(args, args->tokens, &gpu);
    snprintf(shape, SHAPE_BYTES, "%u x %u tokens, heads %u/%u of %u, decays to -%g, %u pieces, %u slices: %s",
             args->sequences, args->tokens, args->k_heads, args->v_heads, args->head_k, decay, division.pieces,
             division.slices, names[part]);
    return qn_bench_selected(shape);
}

static void bench_divisions(struct timed *t, double decay)
{
    const qn_gdn_gpu gpu = device_limits();
    const double tokens = (double)t->chunk.tokens * t->chunk.sequences, v_heads = t->chunk.v_heads;
    const qn_gdn_division division = qn_gdn_gpu_divide(&t->chunk, t->chunk.tokens, &gpu);
    qn_gpu_guarded workspace = qn_gpu_new(qn_gdn_gpu_workspace_bytes(&t->chunk, &division));
    qn_assert_ok(qn_gdn_gpu_chunk(&t->chunk, &division, gpu.max_shared_bytes, workspace.data, &t->launches));
    for (enum part part = PREPARE; part < PARTS; part++) {
        char shape[SHAPE_BYTES];
        t->end = part == PREPARE ? 1 : t->launches.n;
        /* The minimum traffic of all kernels: q, k, v, gates and o once. */
        if (name_shape(shape, &t->chunk, decay, part))
            qn_gpu_bench("deltanet", "chunks", shape,
                         tokens * (4 * (t->chunk.k_heads + v_heads) * t->chunk.head_k + 8 * v_heads), "B",
                         part == PREPARE ? 0 : qn_gpu_read_rate(), timed_chunk, t, 1);
    }
    qn_gpu_free(&workspace);
}

/* The arguments without addresses. */
static void bench_chunk(qn_gdn_chunk_args args, double decay)
{
    char shape[SHAPE_BYTES];
    if (!name_shape(shape, &args, decay, PREPARE) && !name_shape(shape, &args, decay, ALL))
        return;
    const size_t rows = (size_t)args.sequences * args.tokens, n_k = rows * args.k_heads * args.head_k,
                 n_v = rows * args.v_heads * args.head_v, n_gates = rows * args.v_heads,
                 n_state = (size_t)args.sequences * args.v_heads * args.head_k * args.head_v;
    float *g = floats(n_gates), *beta = floats(n_gates), *state = normal(n_state, 0.1f);
    for (size_t i = 0; i < n_gates; i++) {
        g[i] = (float)(-decay * uniform());
        beta[i] = (float)uniform();
    }
    qn_split_states(state, args.sequences, n_state / args.sequences);
    qn_gpu_guarded q = random_bf16(n_k), k = random_bf16(n_k), v = random_bf16(n_v), o = qn_gpu_new(n_v * 2);
    qn_gpu_guarded gates[2] = { qn_gpu_from(g, n_gates * sizeof *g), qn_gpu_from(beta, n_gates * sizeof *g) };
    qn_gpu_guarded states[2] = { qn_gpu_from(state, n_state * sizeof *state), qn_gpu_new(n_state * sizeof *state) };
    args.q = q.data;
    args.k = k.data;
    args.v = v.data;
    args.g = gates[0].data;
    args.beta = gates[1].data;
    args.initial = states[0].data;
    args.final = states[1].data;
    args.o = o.data;
    struct timed t = { .chunk = args };
    bench_divisions(&t, decay);
    qn_free(g);
    qn_free(beta);
    qn_free(state);
    qn_gpu_guarded *const all[] = { &q, &k, &v, &o, &gates[0], &gates[1], &states[0], &states[1] };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        qn_gpu_free(all[i]);
}

/* As the engine calls the kernels. */
static qn_gdn_chunk_args chunk_args(uint32_t sequences, uint32_t tokens, uint32_t k_heads, uint32_t v_heads,
                                    uint32_t head)
{
    return (qn_gdn_chunk_args){ .state_type = QN_GDN_STATE_PLANES,
                                .tokens = tokens,
                                .sequences = sequences,
                                .k_heads = k_heads,
                                .v_heads = v_heads,
                                .head_k = head,
                                .head_v = head,
                                .dtype = QN_DTYPE_BF16,
                                .q_stride = k_heads * head,
                                .k_stride = k_heads * head,
                                .v_stride = v_heads * head,
                                .o_stride = v_heads * head,
                                .g_stride = v_heads,
                                .beta_stride = v_heads,
                                .tiled = true,
                                .normalize = true,
                                .scale = 0.0884f };
}

static void bench_chunks(void)
{
    static const uint32_t heads[][2] = { { 2, 4 }, { 2, 8 }, { 16, 16 }, { 16, 32 }, { 16, 48 }, { 16, 64 } };
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        for (uint32_t tokens = 4096; tokens <= 32768; tokens *= 8) {
            bench_chunk(chunk_args(1, tokens, heads[i][0], heads[i][1], 128), 0.3);
            bench_chunk(chunk_args(1, tokens, heads[i][0], heads[i][1], 128), 0.003);
        }
    bench_chunk(chunk_args(8, 4096, 16, 48, 128), 0.3);
    for (uint32_t head = 64; head <= 256; head += 64)
        if (head != 128)
            bench_chunk(chunk_args(1, 8192, 16, 32, head), 0.3);
}

void qn_bench_cuda_deltanet(void)
{
    bench_chunks();
}

/* ---- Open chunks ---- */

struct timed_open {
    qn_gdn_open_args args;
    size_t state_bytes; /* of a layer */
    qn_launch launch;
};

/* Each iteration uses another layer's memory. */
static void timed_open_step(void *context, size_t iteration)
{
    const struct timed_open *t = context;
    qn_gdn_open_args args = t->args;
    args.state_offset = iteration * t->state_bytes;
    args.open_offset = iteration * args.layout.bytes;
    qn_gpu_launch(&t->launch, &args);
}

/* A layer of a 27B model: one row of each sequence, after `stored` rows of the chunk. 64 of them are folded. Rows read
 * the plane hi of the state and the open rows; a fold reads and writes both planes. */
static void bench_open(size_t sequences, uint32_t stored)
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
    const size_t state_bytes = qn_gdn_gpu_state_bytes(K_HEADS, V_HEADS, HEAD, HEAD, TAPS), plane = VALUES * HEAD * 2,
                 row_bytes = (K_HEADS + V_HEADS) * HEAD * 2,
                 bytes = sequences * (plane * (folded ? 4 : 1) + stored * row_bytes);
    char shape[SHAPE_BYTES];
    snprintf(shape, sizeof shape, "%zu sequences, heads 16/48, %u open rows%s, %.1f MB", sequences, stored,
             folded ? ", folded" : "", (double)bytes / 1e6);
    if (!qn_bench_selected(shape))
        return;
    const size_t layers = qn_gpu_bench_copies(sequences * state_bytes);
    const qn_gdn_open_layout layout = qn_gdn_gpu_open_layout(K_HEADS, V_HEADS, HEAD, HEAD, TAPS);
    const qn_gdn_gpu gpu = device_limits();
    uint32_t *slots, *positions, *state_positions;
    qn_assert_ok(qn_alloc(&slots, sequences, sizeof *slots, "quern-check"));
    qn_assert_ok(qn_alloc(&positions, sequences, sizeof *positions, "quern-check"));
    qn_assert_ok(qn_alloc(&state_positions, sequences, sizeof *positions, "quern-check"));
    for (size_t i = 0; i < sequences; i++) {
        slots[i] = (uint32_t)i;
        positions[i] = 64 + stored;
        state_positions[i] = 64;
    }
    float *x = normal((sequences + TAPS + 1) * WIDTH, 0.5f), *factor = floats(V_HEADS),
          *zeros = floats(sequences * K_HEADS + V_HEADS * 192);
    memset(zeros, 0, (sequences * K_HEADS + V_HEADS * 192) * sizeof *zeros);
    for (size_t h = 0; h < V_HEADS; h++)
        factor[h] = -0.1f;
    qn_gpu_guarded all[] = {
        qn_gpu_from(x, sequences * WIDTH * sizeof *x),       qn_gpu_from(factor, V_HEADS * sizeof *factor),
        qn_gpu_new(sequences * VALUES * sizeof *x),          qn_gpu_from(zeros, sequences * K_HEADS * 4),
        qn_gpu_new(sequences * layers * state_bytes),        qn_gpu_new(sequences * layers * layout.bytes),
        qn_gpu_from(slots, sequences * sizeof *slots),       qn_gpu_from(positions, sequences * 4),
        qn_gpu_from(x, (TAPS * WIDTH + VALUES) * sizeof *x), qn_gpu_from(state_positions, sequences * 4)
    };
    enum { ROWS, FACTOR, OUT, ARRIVALS, STATES, OPEN, SLOTS, POSITIONS, WEIGHTS, STATE_POSITIONS };
    qn_gpu_random(&all[STATES]);
    qn_gpu_random(&all[OPEN]);
    for (size_t i = 0; i < sequences * layers; i++) /* scales and decays: finite states after any number of folds */
        qn_assert_ok(qn_cuda_upload(qn_gpu(), all[OPEN].data + i * layout.bytes + layout.scales, zeros,
                                    V_HEADS * 192 * 4, NULL, NULL));
    struct timed_open t = { .args = { .qkv = all[ROWS].data,
                                      .alpha = all[ROWS].data,
                                      .beta = all[ROWS].data,
                                      .gate = all[ROWS].data,
                                      .conv = all[WEIGHTS].data,
                                      .bias = all[WEIGHTS].data,
                                      .factor = all[FACTOR].data,
                                      .norm = all[WEIGHTS].data,
                                      .out = all[OUT].data,
                                      .arrivals = all[ARRIVALS].data,
                                      .states = all[STATES].data,
                                      .open = all[OPEN].data,
                                      .state_from = all[SLOTS].data,
                                      .state_to = all[SLOTS].data,
                                      .open_slots = all[SLOTS].data,
                                      .positions = all[POSITIONS].data,
                                      .state_positions = all[STATE_POSITIONS].data,
                                      .state_stride = layers * state_bytes,
                                      .open_stride = layers * layout.bytes,
                                      .sequences = (uint32_t)sequences,
                                      .k_heads = K_HEADS,
                                      .v_heads = V_HEADS,
                                      .taps = TAPS,
                                      .qkv_stride = WIDTH,
                                      .alpha_stride = V_HEADS,
                                      .beta_stride = V_HEADS,
                                      .gate_stride = VALUES,
                                      .out_stride = VALUES,
                                      .scale = 0.0884f,
                                      .eps = 1e-6f },
                            .state_bytes = state_bytes };
    qn_assert_ok(qn_gdn_gpu_open_step(&t.args, HEAD, HEAD, &gpu, &t.launch));
    qn_gpu_bench("deltanet", "open", shape, (double)bytes, "B", qn_gpu_read_rate(), timed_open_step, &t, layers);
    if (!folded) {
        qn_assert_ok(qn_gdn_gpu_open_row(&t.args, &gpu, &t.launch));
        qn_gpu_bench("deltanet", "row", shape, (double)bytes, "B", qn_gpu_read_rate(), timed_open_step, &t, layers);
    }
    qn_free(slots);
    qn_free(positions);
    qn_free(state_positions);
    qn_free(x);
    qn_free(factor);
    qn_free(zeros);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        qn_gpu_free(&all[i]);
}

void qn_bench_cuda_deltanet_open(void)
{
    static const uint32_t stored[] = { 1, 32, 63, 64 };
    for (size_t sequences = 1; sequences <= 128; sequences *= sequences == 1 ? 8 : 4)
        for (size_t i = 0; i < sizeof stored / sizeof *stored; i++)
            bench_open(sequences, stored[i]);
}
