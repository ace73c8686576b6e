/* Gated DeltaNet layers in the persistent decode kernel, from the RMS norm to the output's GEMV, over several tokens,
 * which carry the state and the open chunk. fp16 rows are compared with float64; the delta rule with the CPU's kernels
 * and with qn_gdn_open_step; the output with float64 on the heads of qn_gdn_open_step. */
#include "cuda_persistent.h"
#include "cuda_deltanet.h"
#include "delta_states.h"

#include "kernels/deltanet/deltanet.h"
#include "kernels/hadamard/hadamard.h"

/* Keys, v' and S as it is read are f16, as in the check of qn_gdn_open_step. The first row reads none: the same
 * operations in float32 in another order. */
#define TOLERANCE_DELTA 1e-3
#define TOLERANCE_FIRST 1e-5
/* Rows of two open chunks: elements that differ by 1e-6 and are rounded to different sides differ by 2^-10, one in a
 * thousand. */
#define TOLERANCE_ROWS 2e-4
/* The last GEMV rounds activations to 15 or 16 bits of the amax of 128, which is three or four times their root mean
 * square: an error of 4 / 16383 / sqrt(12), 7e-5 of the norm. */
#define TOLERANCE_OUT 2e-4

enum { HEAD = 128, PHASES = 4, CHUNK = QN_GDN_CHUNK };

/* State slots: those of the persistent kernel and of qn_gdn_open_step, and one for folds at any length. The first two
 * are open slots too. */
enum { OWN, REFERENCE, FOLDED, SLOTS };

/* As qn_expect_close, for a token. */
static void expect_close(const char *what, size_t token, const float *found, const float *expected, size_t n,
                         double tolerance)
{
    qn_expect_close(qn_text("token %zu: %s", token, what), found, expected, n, tolerance);
}

/* ---- A layer ---- */

enum { QKV, Z, ALPHA, BETA };

struct layer {
    /* The case. */
    size_t hidden, k_heads, v_heads, taps, rotation;
    bool grouped, f16_rows; /* f16_rows: alpha and beta have fp16 weights; else the weights of the other rows */

    size_t values, width;
    struct gpu_weights in, f16, out;
    float *x, *norm, *conv, *bias, *factor, *head_norm, *signs, *out_weights;
    uint64_t gpu_x, o, y, states, open;
    uint64_t positions, state_positions, slot; /* [n_tokens], [n_tokens], [1] */
    qn_gdn_open_layout layout;
    size_t state_bytes, n_tokens;
    qn_persistent_gemv gemvs[2];
    qn_persistent_delta delta;
    qn_persistent_args args;
    qn_launch launch;
    qn_gdn_open_args open_args; /* of qn_gdn_open_step and of folds, without rows */
};

/* Sizes of the layer's arrays of states. */
static void sizes_of(struct layer *l)
{
    l->values = l->v_heads * HEAD;
    l->width = 2 * l->k_heads * HEAD + l->values;
    const qn_recurrent_shape shape = { l->k_heads, l->v_heads, HEAD, HEAD, l->taps };
    const qn_gpu_recurrent_layout layout = qn_gpu_recurrent_layout_of(&shape);
    l->layout = layout.open;
    l->state_bytes = layout.state_layer_bytes;
}

/* The GEMVs and the delta rule between them. The operands are set: x, weights and signs of the GEMVs, conv, bias and
 * factor of the rule. */
static void phases_new(struct layer *l)
{
    qn_persistent_gemv *in = &l->gemvs[0], *out = &l->gemvs[1];
    in->prologue = QN_PROLOGUE_RMS_NORM;
    in->x_out = qn_gpu_floats(l->hidden);
    if (l->f16_rows) {
        in->f16_rows = l->f16.matrix.address;
        in->n_f16_tiles = (uint32_t)l->f16.matrix.n_tiles;
        in->f16_out = qn_gpu_floats((l->hidden + QN_TILE_COLS - 1) / QN_TILE_COLS * in->n_f16_tiles * QN_TILE_ROWS);
    }
    qn_persistent_set(in, &l->in.matrix.tiles, l->in.matrix.address, l->in.matrix.n_tiles, l->hidden, 1);
    in->sumsq = qn_gpu_floats(in->n_slices);
    in->out = qn_gpu_floats(in->n_slices * in->n_tiles * QN_TILE_ROWS);
    const qn_persistent_partials partials = qn_persistent_partials_of(in, false);
    qn_persistent_partials gates = partials;
    if (l->f16_rows) {
        gates.data = in->f16_out;
        gates.n_partials = in->n_k_tiles;
        gates.stride = in->n_f16_tiles * QN_TILE_ROWS;
    }
    l->delta.qkv = partials;
    l->delta.alpha = l->delta.beta = gates;
    l->delta.qkv_row = (uint32_t)l->in.first_row[QKV];
    l->delta.alpha_row = (uint32_t)(l->f16_rows ? l->f16.first_row[0] : l->in.first_row[ALPHA]);
    l->delta.beta_row = (uint32_t)(l->f16_rows ? l->f16.first_row[1] : l->in.first_row[BETA]);
    l->delta.out = l->o;
    l->delta.open = l->layout;
    l->delta.k_heads = (uint32_t)l->k_heads;
    l->delta.v_heads = (uint32_t)l->v_heads;
    l->delta.taps = (uint32_t)l->taps;
    l->delta.scale = 1 / sqrtf(HEAD);
    out->prologue = QN_PROLOGUE_GATED_NORM;
    out->x = l->o;
    out->from = partials;
    out->row = (uint32_t)l->in.first_row[Z];
    out->rotation = (uint32_t)l->rotation;
    out->head = HEAD;
    out->n_heads = (uint32_t)l->v_heads;
    out->n_k_heads = (uint32_t)l->k_heads;
    out->grouped = l->grouped;
    out->eps = QN_PERSISTENT_EPS;
    qn_persistent_set(out, &l->out.matrix.tiles, l->out.matrix.address, l->out.matrix.n_tiles, l->values, 1);
    out->out = qn_gpu_floats(out->n_slices * out->n_tiles * QN_TILE_ROWS);
}

/* The arguments of a launch of `layers` layers. */
static qn_persistent_args args_of(const struct layer *l, qn_persistent_phase *phases, size_t n_phases, size_t layers)
{
    return (qn_persistent_args){ .phases = qn_persistent_link(phases, n_phases),
                                 .barrier = qn_persistent_barrier(),
                                 .positions = l->positions,
                                 .states = l->states,
                                 .open = l->open,
                                 .state_positions = l->state_positions,
                                 .state_from = l->slot,
                                 .open_slots = l->slot,
                                 .state_stride = layers * l->state_bytes,
                                 .open_stride = layers * l->layout.bytes,
                                 .n_phases = (uint32_t)n_phases };
}

/* A token's positions are those after the fold of a full chunk. */
static void states_new(struct layer *l)
{
    uint32_t *positions = qn_new(l->n_tokens, sizeof *positions),
             *state_positions = qn_new(l->n_tokens, sizeof *positions);
    for (size_t i = 0; i < l->n_tokens; i++) {
        positions[i] = (uint32_t)i;
        state_positions[i] = (uint32_t)(i / CHUNK * CHUNK);
    }
    l->states = qn_gpu_new(SLOTS * l->state_bytes);
    l->open = qn_gpu_new(2 * l->layout.bytes);
    l->positions = qn_gpu_copy(positions);
    l->state_positions = qn_gpu_copy(state_positions);
    l->slot = qn_gpu_from(&(uint32_t){ OWN }, sizeof(uint32_t));
}

static void layer_new(struct layer *l, uint32_t type)
{
    sizes_of(l);
    const size_t in_rows[] = { l->width, l->values, l->v_heads, l->v_heads };
    const qn_type_info *info = qn_type_find(type);
    l->in = qn_check_weights_normal(info, l->hidden, l->f16_rows ? 2 : 4, in_rows);
    if (l->f16_rows)
        l->f16 = qn_check_weights_normal(qn_type_find(QN_TYPE_F16), l->hidden, 2, in_rows + ALPHA);
    l->out = qn_check_weights_normal(info, l->values, 1, &l->hidden);
    l->out_weights = qn_check_weights_f32(&l->out, 0);
    l->x = qn_floats_of(l->n_tokens * l->hidden, 3);
    l->norm = qn_floats_of(l->hidden, 1);
    l->conv = qn_floats_of(l->taps * l->width, 0.5f);
    l->bias = qn_floats_of(l->v_heads, 1);
    l->factor = qn_decay_factors(l->v_heads);
    l->head_norm = qn_floats_of(HEAD, 1);
    l->signs = qn_floats_of(l->values, 1);
    for (size_t i = 0; i < l->values; i++)
        l->signs[i] = copysignf(1, l->signs[i]);
    l->gpu_x = qn_gpu_floats(l->hidden);
    l->o = qn_gpu_floats(l->values);
    l->y = qn_gpu_floats(l->hidden);
    l->gemvs[0].x = l->gpu_x;
    l->gemvs[0].weight = qn_gpu_copy(l->norm);
    l->gemvs[1].weight = qn_gpu_copy(l->head_norm);
    l->gemvs[1].signs = l->rotation ? qn_gpu_copy(l->signs) : 0;
    l->delta.conv = qn_gpu_copy(l->conv);
    l->delta.bias = qn_gpu_copy(l->bias);
    l->delta.factor = qn_gpu_copy(l->factor);
    states_new(l);
    phases_new(l);
    qn_persistent_phase phases[PHASES] = { { .kind = QN_PHASE_GEMV, .u.gemv = l->gemvs[0] },
                                           { .kind = QN_PHASE_DELTA, .u.delta = l->delta },
                                           { .kind = QN_PHASE_GEMV, .u.gemv = l->gemvs[1] },
                                           { .kind = QN_PHASE_STORE,
                                             .u.store = { .from = qn_persistent_partials_of(&l->gemvs[1], false),
                                                          .n_outs = 1,
                                                          .outs = { { l->y, 0, 0, (uint32_t)l->hidden } } } } };
    l->args = args_of(l, phases, PHASES, 1);
    l->launch = qn_persistent_launch(&l->in.matrix.tiles, 1);
    l->open_args = qn_gdn_open_args_of(l->k_heads, l->v_heads, HEAD, HEAD, l->taps);
    l->open_args.conv = l->delta.conv;
    l->open_args.bias = l->delta.bias;
    l->open_args.factor = l->delta.factor;
    l->open_args.norm = l->gemvs[1].weight;
    l->open_args.arrivals = qn_gpu_zeros(l->k_heads * sizeof(uint32_t));
    l->open_args.states = l->states;
    l->open_args.open = l->open;
    l->open_args.state_stride = l->state_bytes;
    l->open_args.open_stride = l->layout.bytes;
    l->open_args.layers = l->open_args.sequences = 1;
    l->open_args.grouped = l->grouped;
}

/* ---- Reference ---- */

/* Elements [row, row + n) of partials, added in ascending order as the kernel does and multiplied by the norm's
 * factor. */
static float *add_partials(const struct layer *l, const qn_persistent_partials *from, size_t row, size_t n)
{
    const float *partials = qn_gpu_read(from->data), *sumsq = qn_gpu_read(from->sumsq);
    float *sum = qn_floats(n), total = 0;
    for (size_t i = 0; i < from->n_sumsq; i++)
        total += sumsq[i];
    const float factor = 1 / sqrtf(total / (float)l->hidden + QN_PERSISTENT_EPS);
    for (size_t i = 0; i < n; i++) {
        for (size_t p = 0; p < from->n_partials; p++)
            sum[i] += partials[p * from->stride + row + i];
        sum[i] *= factor;
    }
    return sum;
}

/* Partial c of an fp16 row is its dot product with columns 256c to 256c+255, without the division by the norm. Bound:
 * 22 float32 roundings for each term, and one for its activation. */
static void expect_f16_rows(const struct layer *l, size_t token)
{
    const float *x = l->x + token * l->hidden, *partials = qn_gpu_read(l->gemvs[0].f16_out);
    for (size_t p = 0; p < l->f16.n_matrices; p++) {
        const float *weights = qn_check_weights_f32(&l->f16, p);
        for (size_t row = 0; row < l->f16.n_rows[p]; row++)
            for (size_t k_tile = 0; k_tile < l->gemvs[0].n_k_tiles; k_tile++) {
                const size_t end = (k_tile + 1) * QN_TILE_COLS < l->hidden ? (k_tile + 1) * QN_TILE_COLS : l->hidden;
                const float found = partials[k_tile * l->delta.alpha.stride + l->f16.first_row[p] + row];
                double sum = 0, size = 0;
                for (size_t k = k_tile * QN_TILE_COLS; k < end; k++) {
                    const double term = (double)weights[row * l->hidden + k] * (double)x[k] * (double)l->norm[k];
                    sum += term;
                    size += fabs(term);
                }
                qn_expect(fabs((double)found - sum) <= size * 23 * 0x1p-24,
                          "token %zu: row %zu of fp16 matrix %zu, K tile %zu: %g, expected %g", token, row, p, k_tile,
                          (double)found, sum);
            }
    }
}

/* One token with the CPU's kernels, updating their state; inputs [taps-1][width] are the previous tokens' inputs. */
static void expected_delta(const struct layer *l, const float *qkv, const float *alpha, const float *beta,
                           float *inputs, float *state, float *o)
{
    const size_t keys = l->k_heads * HEAD, past = l->taps - 1;
    const qn_gdn_shape shape = { .batch = 1,
                                 .tokens = 1,
                                 .k_heads = l->k_heads,
                                 .v_heads = l->v_heads,
                                 .head_k = HEAD,
                                 .head_v = HEAD,
                                 .mapping = QN_GDN_TILED,
                                 .scale = 1 / sqrtf(HEAD),
                                 .normalize = true };
    float *y = qn_floats(l->width), *gates = qn_floats(2 * l->v_heads);
    for (size_t c = 0; c < l->width; c++) {
        double sum = (double)l->conv[past * l->width + c] * (double)qkv[c];
        for (size_t tap = 0; tap < past; tap++)
            sum += (double)l->conv[tap * l->width + c] * (double)inputs[tap * l->width + c];
        y[c] = (float)(sum / (1 + exp(-sum)));
    }
    memmove(inputs, inputs + l->width, (past ? past - 1 : 0) * l->width * sizeof *inputs);
    if (past)
        memcpy(inputs + (past - 1) * l->width, qkv, l->width * sizeof *inputs);
    for (size_t h = 0; h < l->v_heads; h++) {
        gates[h] = qn_gdn_log_decay(alpha[h], l->bias[h], l->factor[h]);
        gates[l->v_heads + h] = qn_gdn_beta(beta[h]);
    }
    qn_assert_ok(qn_gdn_step(&shape, view(y, keys), view(y + keys, keys), view(y + 2 * keys, l->values),
                             view(gates, l->v_heads), view(gates + l->v_heads, l->v_heads),
                             view(state, l->values * HEAD), view(o, l->values)));
}

/* The open chunk of OWN, with the state at state_position, to another slot. */
static void fold(const struct layer *l, uint32_t length, uint32_t state_position, uint32_t to)
{
    qn_gdn_open_args args = l->open_args;
    args.sequence = (qn_gdn_open_sequence){
        .position = length, .state_position = state_position, .state_from = OWN, .state_to = to, .open_slot = OWN
    };
    qn_gdn_fold(&args, HEAD, HEAD);
}

/* The same token with qn_gdn_open_step, which folds by itself. Returns its gated heads. */
static float *reference_kernel(const struct layer *l, size_t token, const float *qkv, const float *alpha,
                               const float *beta, const float *z)
{
    const qn_gdn_gpu gpu = qn_gdn_device();
    qn_gdn_open_args args = l->open_args;
    qn_launch launch;
    args.qkv = qn_gpu_copy(qkv);
    args.alpha = qn_gpu_copy(alpha);
    args.beta = qn_gpu_copy(beta);
    args.gate = qn_gpu_copy(z);
    args.out = qn_gpu_floats(l->values);
    args.sequence = (qn_gdn_open_sequence){ .position = (uint32_t)token,
                                            .state_position = token ? (uint32_t)(token - 1) / CHUNK * CHUNK : 0,
                                            .state_from = REFERENCE,
                                            .state_to = REFERENCE,
                                            .open_slot = REFERENCE,
                                            .end = 1 };
    qn_assert_ok(qn_gdn_gpu_open_step(&args, HEAD, HEAD, &gpu, &launch));
    launch.pdl = false;
    qn_gpu_launch(&launch, &args);
    return qn_gpu_read(args.out);
}

/* A token's row of an open chunk: keys, v' and decays as floats; inputs of the convolution. */
struct open_row {
    float *rule, *inputs;
    size_t n_rule;
};

static struct open_row read_row(const struct layer *l, const uint8_t *open, size_t token)
{
    const size_t row = token % CHUNK, ring = QN_GDN_INPUT_ROWS(l->taps), keys = l->k_heads * HEAD;
    const uint16_t *of_keys = (const uint16_t *)(const void *)(open + l->layout.keys),
                   *of_values = (const uint16_t *)(const void *)(open + l->layout.values);
    const float *scales = (const float *)(const void *)(open + l->layout.scales),
                *decays = (const float *)(const void *)(open + l->layout.decays),
                *inputs = (const float *)(const void *)(open + l->layout.inputs);
    struct open_row r = { .n_rule = keys + l->values + l->v_heads };
    r.rule = qn_floats(r.n_rule);
    r.inputs = qn_floats(l->width);
    for (size_t i = 0; i < keys; i++)
        r.rule[i] = qn_f16_to_f32(of_keys[(i / HEAD * CHUNK + row) * HEAD + i % HEAD]);
    for (size_t i = 0; i < l->values; i++)
        r.rule[keys + i] = qn_f16_to_f32(of_values[(i / HEAD * CHUNK + row) * HEAD + i % HEAD]) *
                           scales[i / QN_GDN_SCALE_VALUES * CHUNK + row];
    for (size_t h = 0; h < l->v_heads; h++)
        r.rule[keys + l->values + h] = decays[h * CHUNK + row];
    memcpy(r.inputs, inputs + token % ring * l->width, l->width * sizeof *inputs);
    return r;
}

/* The row that the token has appended, compared with that of qn_gdn_open_step. */
static void check_row(const struct layer *l, size_t token)
{
    const uint8_t *open = qn_gpu_read(l->open);
    const struct open_row own = read_row(l, open, token), other = read_row(l, open + l->layout.bytes, token);
    expect_close("the row of the open chunk, compared with qn_gdn_open_step,", token, own.rule, other.rule, own.n_rule,
                 TOLERANCE_ROWS);
    expect_close("the inputs, compared with qn_gdn_open_step,", token, own.inputs, other.inputs, l->width, 1e-6);
}

/* The output's matmul of the heads, which are rotated if its weights are. */
static float *expected_out(const struct layer *l, float *heads)
{
    float *y = qn_floats(l->hidden);
    qn_hadamard_kernels hadamard;
    qn_hadamard_init_ref(&hadamard);
    for (size_t i = 0; l->rotation && i < l->values; i += l->rotation)
        hadamard.block(heads + i, l->rotation, l->signs + i, NULL);
    for (size_t row = 0; row < l->hidden; row++) {
        double sum = 0;
        for (size_t k = 0; k < l->values; k++)
            sum += (double)l->out_weights[row * l->values + k] * (double)heads[k];
        y[row] = (float)sum;
    }
    return y;
}

/* ---- Tokens ---- */

static void run_token(struct layer *l, size_t token)
{
    const qn_persistent_gemv *in = &l->gemvs[0];
    qn_gpu_poison(in->x_out, in->sumsq, in->out, l->o, l->gemvs[1].out, l->y, in->f16_out);
    qn_gpu_write(l->gpu_x, l->x + token * l->hidden, l->hidden * sizeof(float));
    l->args.positions = l->positions + token * sizeof(uint32_t);
    l->args.state_positions = l->state_positions + token * sizeof(uint32_t);
    if (token && token % CHUNK == 0)
        fold(l, (uint32_t)token, (uint32_t)token - CHUNK, OWN);
    qn_gpu_launch(&l->launch, &l->args);
}

static void check_token(const struct layer *l, size_t token, float *inputs, float *state)
{
    const size_t mark = qn_mark();
    const qn_persistent_delta *d = &l->delta;
    const float *qkv = add_partials(l, &d->qkv, d->qkv_row, l->width),
                *z = add_partials(l, &d->qkv, l->in.first_row[Z], l->values),
                *alpha = add_partials(l, &d->alpha, d->alpha_row, l->v_heads),
                *beta = add_partials(l, &d->beta, d->beta_row, l->v_heads);
    float *o = qn_floats(l->values);
    if (l->f16_rows)
        expect_f16_rows(l, token);
    expected_delta(l, qkv, alpha, beta, inputs, state, o);
    expect_close("the delta rule's output", token, qn_gpu_read(l->o), o, l->values,
                 token ? TOLERANCE_DELTA : TOLERANCE_FIRST);
    float *heads = reference_kernel(l, token, qkv, alpha, beta, z);
    check_row(l, token);
    expect_close("the output", token, qn_gpu_read(l->y), expected_out(l, heads), l->hidden, TOLERANCE_OUT);
    qn_release_to(mark);
}

/* The state after all tokens, compared with the CPU's. */
static void check_state(const struct layer *l, const float *expected)
{
    const uint32_t length = (uint32_t)l->n_tokens;
    fold(l, length, (length - 1) / CHUNK * CHUNK, FOLDED);
    float *states = qn_gpu_read(l->states);
    float *const found = states + FOLDED * (l->state_bytes / sizeof *states);
    qn_join_states(found, 1, l->values * HEAD);
    expect_close("the state", length, found, expected, l->values * HEAD, TOLERANCE_DELTA);
}

/* Runs all tokens twice. The second run must give the same bits as the first, which is compared with the reference. */
static void check_layer(struct layer l, uint32_t type)
{
    qn_case_begin("persistent", "delta", "%s, hidden %zu, heads %zu/%zu, %zu taps%s%s%s, %zu tokens",
                  qn_type_find(type)->name, l.hidden, l.k_heads, l.v_heads, l.taps, l.grouped ? ", grouped" : "",
                  l.f16_rows ? ", fp16 gates" : "", l.rotation ? ", rotated" : "", l.n_tokens);
    layer_new(&l, type);
    float *inputs = qn_floats(l.taps * l.width), *state = qn_floats(l.values * HEAD);
    const void *y[2], *open[2];
    for (int time = 0; time < 2; time++) {
        qn_gpu_poison(l.states, l.open); /* not read at position 0 */
        for (size_t token = 0; token < l.n_tokens; token++) {
            run_token(&l, token);
            if (time == 0)
                check_token(&l, token, inputs, state);
        }
        if (time == 0)
            check_state(&l, state);
        y[time] = qn_gpu_read(l.y);
        open[time] = qn_gpu_read(l.open);
    }
    qn_expect(!memcmp(y[0], y[1], qn_gpu_bytes(l.y)) && !memcmp(open[0], open[1], l.layout.bytes), "two runs differ");
    qn_persistent_expect_barrier(l.args.barrier);
    qn_release();
}

static void check_layers(void)
{
    static const struct {
        uint32_t type;
        struct layer layer;
    } cases[] = {
        { QN_TYPE_Q1_0, { .hidden = 256, .k_heads = 1, .v_heads = 1, .taps = 4, .n_tokens = 9 } },
        /* Two folds, and inputs before the state. */
        { QN_TYPE_Q1_0, { .hidden = 256, .k_heads = 1, .v_heads = 2, .taps = 4, .n_tokens = 133, .f16_rows = true } },
        { QN_TYPE_Q1_0, { .hidden = 256, .k_heads = 2, .v_heads = 2, .taps = 8, .n_tokens = 73 } },
        { QN_TYPE_Q1_0, { .hidden = 384, .k_heads = 2, .v_heads = 4, .taps = 4, .n_tokens = 7, .f16_rows = true } },
        { QN_TYPE_Q1_0,
          { .hidden = 1280, .k_heads = 2, .v_heads = 6, .taps = 4, .n_tokens = 6, .grouped = true, .f16_rows = true } },
        { QN_TYPE_Q1_0, { .hidden = 512, .k_heads = 1, .v_heads = 3, .taps = 1, .n_tokens = 3 } },
        { QN_TYPE_Q1_0, { .hidden = 512, .k_heads = 1, .v_heads = 2, .taps = 8, .n_tokens = 18, .f16_rows = true } },
        { QN_TYPE_PQ2_0,
          { .hidden = 512, .k_heads = 2, .v_heads = 4, .taps = 4, .n_tokens = 5, .rotation = 256, .grouped = true } },
        /* Heads of a 27B model; then more units than blocks. */
        { QN_TYPE_Q1_0, { .hidden = 1024, .k_heads = 16, .v_heads = 48, .taps = 4, .n_tokens = 5, .f16_rows = true } },
        { QN_TYPE_Q1_0, { .hidden = 256, .k_heads = 8, .v_heads = 80, .taps = 4, .n_tokens = 3, .grouped = true } },
    };
    for (size_t i = 0; i < QN_LENGTH(cases); i++) {
        qn_random_seed(500 + i);
        if (qn_case_selected())
            check_layer(cases[i].layer, cases[i].type);
    }
}

/* ---- Speed: several layers of a 27B model in one launch ---- */

enum { BENCH_LAYERS = 8, BENCH_HIDDEN = 5120, BENCH_K_HEADS = 16, BENCH_V_HEADS = 48, BENCH_OPEN_ROWS = 32 };

/* The parts of a layer that are in the launch. */
enum { IN = 1, F16_ROWS = 2, DELTA = 4, OUT = 8 };

/* A layer's arrays, without matrices, with random values. Returns a random state. */
static float *bench_layer_new(struct layer *l, unsigned what)
{
    const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(qn_type_find(QN_TYPE_Q1_0)),
                         f16_rows = qn_matmul_gpu_tile_layout(qn_type_find(QN_TYPE_F16));
    *l = (struct layer){
        .hidden = BENCH_HIDDEN, .k_heads = BENCH_K_HEADS, .v_heads = BENCH_V_HEADS, .taps = 4, .n_tokens = 1
    };
    sizes_of(l);
    l->f16_rows = what & F16_ROWS;
    l->in.first_row[Z] = l->width;
    l->in.matrix = (qn_tiled_matrix){ .tiles = tiles, .n_tiles = (l->width + l->values) / QN_TILE_ROWS };
    l->f16.matrix = (qn_tiled_matrix){ .tiles = f16_rows, .n_tiles = 2 * l->v_heads / QN_TILE_ROWS };
    l->f16.first_row[1] = l->v_heads;
    l->in.first_row[ALPHA] = l->width;
    l->in.first_row[BETA] = l->width + l->v_heads;
    l->out.matrix = (qn_tiled_matrix){ .tiles = tiles, .n_tiles = l->hidden / QN_TILE_ROWS };
    float *random = qn_floats_of(l->state_bytes / sizeof(float), 0.1f);
    for (size_t h = 0; h < l->v_heads; h++)
        random[h] = -fabsf(random[h]); /* factors of the decay are negative */
    l->gemvs[0].x = qn_gpu_from(random, l->hidden * sizeof *random);
    l->gemvs[0].weight = qn_gpu_from(random, l->hidden * sizeof *random);
    l->delta.conv = qn_gpu_from(random, l->taps * l->width * sizeof *random);
    l->delta.bias = qn_gpu_from(random, l->v_heads * sizeof *random);
    l->delta.factor = qn_gpu_from(random, l->v_heads * sizeof *random);
    l->gemvs[1].weight = qn_gpu_from(random, HEAD * sizeof *random);
    l->o = qn_gpu_from(random, l->values * sizeof *random);
    qn_split_states(random, 1, l->values * HEAD);
    l->states = qn_gpu_new(BENCH_LAYERS * l->state_bytes);
    l->open = qn_gpu_zeros(BENCH_LAYERS * l->layout.bytes);
    l->positions = qn_gpu_from((uint32_t[]){ CHUNK + BENCH_OPEN_ROWS }, sizeof(uint32_t));
    l->state_positions = qn_gpu_from((uint32_t[]){ CHUNK }, sizeof(uint32_t));
    l->slot = qn_gpu_from((uint32_t[]){ 0 }, sizeof(uint32_t));
    phases_new(l);
    const uint64_t between[] = { l->gemvs[0].sumsq, l->gemvs[0].out, l->gemvs[1].out, l->gemvs[0].f16_out };
    for (size_t i = 0; i < QN_LENGTH(between) - !l->f16_rows; i++)
        qn_gpu_fill(between[i], 0x3c); /* 0.0115f, not NaN */
    return random;
}

/* Random tiles of a matrix; *bytes is increased by their size. */
static uint64_t bench_tiles(const struct gpu_weights *w, size_t n_cols, size_t *bytes)
{
    const uint64_t array = qn_persistent_random_tiles(&w->matrix.tiles, w->matrix.n_tiles, n_cols);
    *bytes += qn_gpu_bytes(array);
    return array;
}

/* The delta rule of a layer. */
static qn_persistent_phase bench_delta(const struct layer *l, size_t layer)
{
    qn_persistent_phase phase = { .kind = QN_PHASE_DELTA, .u.delta = l->delta };
    qn_gdn_open_layout *open = &phase.u.delta.open;
    uint64_t *const offsets[] = { &open->keys, &open->values, &open->scales, &open->decays, &open->inputs };
    for (size_t i = 0; i < QN_LENGTH(offsets); i++)
        *offsets[i] += layer * l->layout.bytes;
    phase.u.delta.state_offset = layer * l->state_bytes;
    return phase;
}

static void bench_layers(const char *shape, unsigned what)
{
    struct layer l;
    const float *random = bench_layer_new(&l, what);
    size_t bytes = 0, n = 0;
    qn_persistent_phase phases[BENCH_LAYERS * 3];
    for (size_t layer = 0; layer < BENCH_LAYERS; layer++) {
        qn_gpu_write(l.states + layer * l.state_bytes, random, l.state_bytes);
        if (what & IN) {
            l.gemvs[0].weights = bench_tiles(&l.in, l.hidden, &bytes);
            if (what & F16_ROWS)
                l.gemvs[0].f16_rows = bench_tiles(&l.f16, l.hidden, &bytes);
            phases[n++] = (qn_persistent_phase){ .kind = QN_PHASE_GEMV, .u.gemv = l.gemvs[0] };
        }
        if (what & DELTA) {
            phases[n++] = bench_delta(&l, layer);
            bytes += l.values * HEAD * sizeof(uint16_t) +
                     BENCH_OPEN_ROWS * (l.k_heads + l.v_heads) * HEAD * sizeof(uint16_t);
        }
        if (what & OUT) {
            l.gemvs[1].weights = bench_tiles(&l.out, l.values, &bytes);
            phases[n++] = (qn_persistent_phase){ .kind = QN_PHASE_GEMV, .u.gemv = l.gemvs[1] };
        }
    }
    const qn_persistent_args args = args_of(&l, phases, n, BENCH_LAYERS);
    const qn_launch launch = qn_persistent_launch(&l.in.matrix.tiles, 1);
    const double seconds = qn_persistent_seconds(&launch, &args, 1);
    qn_report_rate("persistent", "delta", shape, seconds / BENCH_LAYERS, (double)bytes / seconds, "B",
                   qn_gpu_read_rate());
    qn_release();
}

void qn_check_cuda_persistent_delta(bool bench)
{
    if (!qn_persistent_supported(1))
        return;
    static const char *const shapes[] = { "27B: the delta rule", "27B: GEMVs before and after it",
                                          "27B: ... and fp16 rows", "27B: ... and the delta rule" };
    static const unsigned parts[] = { DELTA, IN | OUT, IN | F16_ROWS | OUT, IN | F16_ROWS | DELTA | OUT };
    check_layers();
    for (size_t i = 0; bench && i < QN_LENGTH(shapes); i++)
        if (qn_bench_selected(shapes[i]))
            bench_layers(shapes[i], parts[i]);
}
