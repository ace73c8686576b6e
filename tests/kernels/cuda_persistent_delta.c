/* Gated DeltaNet layers in the persistent decode kernel, from the RMS norm to the output's GEMV, over several tokens,
 * which carry the state and the open chunk. fp16 rows are compared with float64; the delta rule with the CPU's kernels
 * and with qn_gdn_open_step; the output with float64 on the heads of qn_gdn_open_step. */
#include "cuda_persistent.h"
#include "cuda_states.h"

#include "base/f16.h"
#include "problem.h"
#include "cuda/kernels/persistent/persistent.h"
#include "kernels/deltanet/deltanet.h"
#include "cuda/kernels/deltanet/deltanet.h"
#include "kernels/hadamard/hadamard.h"
#include "quern/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

enum { HEAD = 128, PHASES = 4, CHUNK = QN_GDN_CHUNK_TOKENS };

/* State slots: those of the persistent kernel and of qn_gdn_open_step, and one for folds at any length. The first two
 * are open slots too. */
enum { OWN, REFERENCE, FOLDED, SLOTS };

static const float eps = 1e-6f;

static qn_view view(const float *x, size_t n)
{
    return (qn_view){ (void *)(uintptr_t)x, QN_DTYPE_F32, n };
}

static void expect_close(const char *what, size_t token, const float *found, const float *expected, size_t n,
                         double tolerance)
{
    const double d = qn_relative_error(found, expected, n);
    qn_expect(d <= tolerance, "token %zu: error of %s is %.2e, expected up to %.0e", token, what, d, tolerance);
}

/* ---- Matrices that share activations, in one array of tiles ---- */

enum { MAX_MATRICES = 4 };

struct matrix {
    size_t n_cols, n_outs, n_rows[MAX_MATRICES], first_row[MAX_MATRICES]; /* first_row: in the output */
    float *weights[MAX_MATRICES];                                         /* [n_rows][n_cols], dequantised */
    qn_tiled_matrix gpu;
    qn_gpu_guarded tiles;
};

/* Weights scaled so that outputs are about as large as inputs. */
static struct matrix matrix_new(uint32_t type, size_t n_cols, size_t n_outs, const size_t *n_rows)
{
    const qn_type_info *info = qn_type_find(type);
    struct matrix a = { .n_cols = n_cols, .n_outs = n_outs };
    size_t row_bytes, bytes;
    a.gpu = (qn_tiled_matrix){ .tiles = qn_matmul_gpu_tile_layout(info), .n_cols = n_cols };
    if (!qn_row_bytes(info, n_cols, &row_bytes))
        exit(1);
    for (size_t p = 0; p < n_outs; p++) {
        a.n_rows[p] = n_rows[p];
        a.first_row[p] = a.gpu.n_tiles * QN_TILE_ROWS;
        a.gpu.n_tiles += qn_matmul_gpu_tile_count(n_rows[p]);
    }
    qn_assert_ok(qn_matmul_gpu_bytes(&a.gpu.tiles, a.gpu.n_tiles, n_cols, &bytes));
    a.tiles = qn_gpu_new(bytes);
    a.gpu.address = a.tiles.data;
    for (size_t p = 0; p < n_outs; p++) {
        const size_t n = n_rows[p] * n_cols;
        uint8_t *stored = qn_xcalloc(n_rows[p], row_bytes);
        a.weights[p] = qn_floats_of(n, 1 / sqrtf((float)n_cols));
        info->from_float(a.weights[p], n / info->block_weights, stored);
        info->to_float(stored, n / info->block_weights, a.weights[p]);
        qn_gpu_pack_rows(&a.gpu, stored, row_bytes, n_rows[p], a.first_row[p] / QN_TILE_ROWS);
        free(stored);
    }
    return a;
}

static void matrix_free(struct matrix *a)
{
    for (size_t p = 0; p < a->n_outs; p++)
        free(a->weights[p]);
    qn_gpu_free(&a->tiles);
}

static size_t matrix_rows(const struct matrix *a)
{
    return a->gpu.n_tiles * QN_TILE_ROWS;
}

/* ---- A layer ---- */

enum { QKV, Z, ALPHA, BETA };

struct layer {
    /* The case. */
    size_t hidden, k_heads, v_heads, taps, rotation;
    bool grouped, f16_rows; /* f16_rows: alpha and beta have fp16 weights; else the weights of the other rows */

    size_t values, width;
    struct matrix in, f16, out;
    float *x, *norm, *conv, *bias, *factor, *head_norm, *signs;
    qn_gpu_guarded gpu_x, gpu_norm, gpu_conv, gpu_bias, gpu_factor, gpu_head_norm, gpu_signs;
    qn_gpu_guarded x_out, sumsq, in_partials, f16_partials, o, out_sumsq, out_partials, y;
    qn_gpu_guarded states, open, arrivals, phases, barrier;
    qn_gpu_guarded positions, state_positions, slot; /* [n_tokens], [n_tokens], [1] */
    qn_gdn_open_layout layout;
    size_t state_bytes, n_tokens;
    qn_persistent_gemv gemvs[2];
    qn_persistent_args args;
    qn_launch launch;
};

static qn_persistent_partials partials_of(const qn_persistent_gemv *p, const qn_gpu_guarded *data, bool normalised)
{
    return (qn_persistent_partials){ .data = data->data,
                                     .sumsq = normalised ? p->sumsq : 0,
                                     .n_partials = p->n_slices,
                                     .stride = p->n_tiles * QN_TILE_ROWS,
                                     .n_sumsq = normalised ? p->n_slices : 0,
                                     .n_cols = p->n_cols,
                                     .eps = eps };
}

static void gemvs_new(struct layer *l)
{
    const qn_persistent_gpu device = qn_persistent_device();
    qn_persistent_gemv *in = &l->gemvs[0], *out = &l->gemvs[1];
    *in = (qn_persistent_gemv){ .prologue = QN_PROLOGUE_RMS_NORM,
                                .n_cols = (uint32_t)l->hidden,
                                .x = l->gpu_x.data,
                                .x_out = l->x_out.data,
                                .weight = l->gpu_norm.data,
                                .weights = l->in.tiles.data,
                                .n_tiles = (uint32_t)l->in.gpu.n_tiles,
                                .n_k_tiles = (uint32_t)((l->hidden + QN_TILE_COLS - 1) / QN_TILE_COLS) };
    if (l->f16_rows) {
        l->f16_partials = qn_gpu_new(in->n_k_tiles * matrix_rows(&l->f16) * sizeof(float));
        in->f16_rows = l->f16.tiles.data;
        in->f16_out = l->f16_partials.data;
        in->n_f16_tiles = (uint32_t)l->f16.gpu.n_tiles;
    }
    qn_assert_ok(qn_persistent_gpu_partition(&device, &l->in.gpu.tiles, 1, in));
    l->sumsq = qn_gpu_new(in->n_slices * sizeof(float));
    l->in_partials = qn_gpu_new(in->n_slices * matrix_rows(&l->in) * sizeof(float));
    in->sumsq = l->sumsq.data;
    in->out = l->in_partials.data;
    *out = (qn_persistent_gemv){ .prologue = QN_PROLOGUE_GATED_NORM,
                                 .n_cols = (uint32_t)l->values,
                                 .x = l->o.data,
                                 .weight = l->gpu_head_norm.data,
                                 .signs = l->rotation ? l->gpu_signs.data : 0,
                                 .from = partials_of(in, &l->in_partials, true),
                                 .row = (uint32_t)l->in.first_row[Z],
                                 .rotation = (uint32_t)l->rotation,
                                 .head = HEAD,
                                 .n_heads = (uint32_t)l->v_heads,
                                 .n_k_heads = (uint32_t)l->k_heads,
                                 .grouped = l->grouped,
                                 .eps = eps,
                                 .weights = l->out.tiles.data,
                                 .n_tiles = (uint32_t)l->out.gpu.n_tiles,
                                 .n_k_tiles = (uint32_t)((l->values + QN_TILE_COLS - 1) / QN_TILE_COLS) };
    qn_assert_ok(qn_persistent_gpu_partition(&device, &l->out.gpu.tiles, 1, out));
    l->out_partials = qn_gpu_new(out->n_slices * matrix_rows(&l->out) * sizeof(float));
    out->out = l->out_partials.data;
}

static qn_persistent_delta delta_of(const struct layer *l)
{
    const qn_persistent_gemv *in = &l->gemvs[0];
    qn_persistent_partials gates = partials_of(in, &l->in_partials, true);
    if (l->f16_rows) {
        gates.data = l->f16_partials.data;
        gates.n_partials = in->n_k_tiles;
        gates.stride = in->n_f16_tiles * QN_TILE_ROWS;
    }
    return (qn_persistent_delta){ .qkv = partials_of(in, &l->in_partials, true),
                                  .alpha = gates,
                                  .beta = gates,
                                  .qkv_row = (uint32_t)l->in.first_row[QKV],
                                  .alpha_row = (uint32_t)(l->f16_rows ? l->f16.first_row[0] : l->in.first_row[ALPHA]),
                                  .beta_row = (uint32_t)(l->f16_rows ? l->f16.first_row[1] : l->in.first_row[BETA]),
                                  .conv = l->gpu_conv.data,
                                  .bias = l->gpu_bias.data,
                                  .factor = l->gpu_factor.data,
                                  .out = l->o.data,
                                  .open = l->layout,
                                  .k_heads = (uint32_t)l->k_heads,
                                  .v_heads = (uint32_t)l->v_heads,
                                  .taps = (uint32_t)l->taps,
                                  .scale = 1 / sqrtf(HEAD) };
}

static void phases_new(struct layer *l)
{
    const qn_persistent_gpu device = qn_persistent_device();
    qn_persistent_phase phases[PHASES] = { { .kind = QN_PHASE_GEMV, .next_gemv = 2 },
                                           { .kind = QN_PHASE_DELTA, .next_gemv = 2 },
                                           { .kind = QN_PHASE_GEMV, .next_gemv = PHASES },
                                           { .kind = QN_PHASE_STORE, .next_gemv = PHASES } };
    phases[0].u.gemv = l->gemvs[0];
    phases[1].u.delta = delta_of(l);
    phases[2].u.gemv = l->gemvs[1];
    phases[3].u.store =
        (qn_persistent_store){ .from = partials_of(&l->gemvs[1], &l->out_partials, false), .n_outs = 1 };
    phases[3].u.store.outs[0].out = l->y.data;
    phases[3].u.store.outs[0].n_rows = (uint32_t)l->hidden;
    l->phases = qn_gpu_from(phases, sizeof phases);
    l->args = (qn_persistent_args){ .phases = l->phases.data,
                                    .barrier = l->barrier.data,
                                    .positions = l->positions.data,
                                    .states = l->states.data,
                                    .open = l->open.data,
                                    .state_positions = l->state_positions.data,
                                    .state_from = l->slot.data,
                                    .open_slots = l->slot.data,
                                    .state_stride = l->state_bytes,
                                    .open_stride = l->layout.bytes,
                                    .n_phases = PHASES };
    qn_assert_ok(qn_persistent_gpu_launch(&device, &l->in.gpu.tiles, 1, &l->launch));
}

/* A token's positions are those after the fold of a full chunk. */
static void states_new(struct layer *l)
{
    uint32_t *positions = qn_xcalloc(2 * l->n_tokens, sizeof *positions);
    for (size_t i = 0; i < l->n_tokens; i++) {
        positions[i] = (uint32_t)i;
        positions[l->n_tokens + i] = (uint32_t)(i / CHUNK * CHUNK);
    }
    l->layout = qn_gdn_gpu_open_layout(l->k_heads, l->v_heads, HEAD, HEAD, l->taps);
    l->state_bytes = qn_gdn_gpu_state_bytes(l->k_heads, l->v_heads, HEAD, HEAD, l->taps);
    l->states = qn_gpu_new(SLOTS * l->state_bytes);
    l->open = qn_gpu_new(2 * l->layout.bytes);
    l->arrivals = qn_gpu_new(l->k_heads * sizeof(uint32_t));
    qn_assert_ok(qn_cuda_memset(qn_gpu(), qn_gpu_stream(), l->arrivals.data, 0, l->arrivals.bytes));
    l->positions = qn_gpu_from(positions, l->n_tokens * sizeof *positions);
    l->state_positions = qn_gpu_from(positions + l->n_tokens, l->n_tokens * sizeof *positions);
    l->slot = qn_gpu_from(&(uint32_t){ OWN }, sizeof(uint32_t));
    free(positions);
}

static void layer_new(struct layer *l, uint32_t type)
{
    const size_t values = l->v_heads * HEAD, width = 2 * l->k_heads * HEAD + values, gates = l->v_heads;
    const size_t in_rows[] = { width, values, gates, gates };
    l->values = values;
    l->width = width;
    l->in = matrix_new(type, l->hidden, l->f16_rows ? 2 : 4, in_rows);
    if (l->f16_rows)
        l->f16 = matrix_new(QN_TYPE_F16, l->hidden, 2, in_rows + ALPHA);
    l->out = matrix_new(type, values, 1, &l->hidden);
    l->x = qn_floats_of(l->n_tokens * l->hidden, 3);
    l->norm = qn_floats_of(l->hidden, 1);
    l->conv = qn_floats_of(l->taps * width, 0.5f);
    l->bias = qn_floats_of(l->v_heads, 1);
    l->factor = qn_floats_of(l->v_heads, 0.3f);
    for (size_t h = 0; h < l->v_heads; h++)
        l->factor[h] = -0.1f - fabsf(l->factor[h]);
    l->head_norm = qn_floats_of(HEAD, 1);
    l->signs = qn_floats_of(values, 1);
    for (size_t i = 0; i < values; i++)
        l->signs[i] = copysignf(1, l->signs[i]);
    l->gpu_x = qn_gpu_new(l->hidden * sizeof(float));
    l->gpu_norm = qn_gpu_floats(l->norm, l->hidden);
    l->gpu_conv = qn_gpu_floats(l->conv, l->taps * width);
    l->gpu_bias = qn_gpu_floats(l->bias, l->v_heads);
    l->gpu_factor = qn_gpu_floats(l->factor, l->v_heads);
    l->gpu_head_norm = qn_gpu_floats(l->head_norm, HEAD);
    l->gpu_signs = qn_gpu_floats(l->signs, values);
    l->x_out = qn_gpu_new(l->hidden * sizeof(float));
    l->o = qn_gpu_new(values * sizeof(float));
    l->y = qn_gpu_new(l->hidden * sizeof(float));
    states_new(l);
    l->barrier = qn_gpu_from(&(uint32_t){ 0 }, sizeof(uint32_t));
    gemvs_new(l);
    phases_new(l);
}

static void layer_free(struct layer *l)
{
    float *const host[] = { l->x, l->norm, l->conv, l->bias, l->factor, l->head_norm, l->signs };
    qn_gpu_guarded *const device[] = { &l->gpu_x,     &l->gpu_norm,        &l->gpu_conv,  &l->gpu_bias, &l->gpu_factor,
                                       &l->x_out,     &l->gpu_head_norm,   &l->gpu_signs, &l->sumsq,    &l->in_partials,
                                       &l->o,         &l->out_partials,    &l->y,         &l->states,   &l->open,
                                       &l->positions, &l->state_positions, &l->slot,      &l->phases,   &l->barrier,
                                       &l->arrivals };
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
    for (size_t i = 0; i < sizeof device / sizeof *device; i++)
        qn_gpu_free(device[i]);
    matrix_free(&l->in);
    matrix_free(&l->out);
    if (l->f16_rows) {
        matrix_free(&l->f16);
        qn_gpu_free(&l->f16_partials);
    }
}

/* ---- Reference ---- */

/* A token's intermediate results on the GPU. */
struct found {
    float *in, *f16, *o, *y, *sumsq;
};

static float factor_of(const struct layer *l, const struct found *f)
{
    float sum = 0;
    for (size_t i = 0; i < l->gemvs[0].n_slices; i++)
        sum += f->sumsq[i];
    return 1 / sqrtf(sum / (float)l->hidden + eps);
}

/* Elements [row, row + n) of partials, added in ascending order as the kernel does. */
static float *add_partials(const float *partials, size_t n_partials, size_t stride, size_t row, size_t n, float factor)
{
    float *sum = qn_xcalloc(n, sizeof *sum);
    for (size_t i = 0; i < n; i++) {
        for (size_t p = 0; p < n_partials; p++)
            sum[i] += partials[p * stride + row + i];
        sum[i] *= factor;
    }
    return sum;
}

/* Partial c of an fp16 row is its dot product with columns 256c to 256c+255, without the division by the norm. Bound:
 * 22 float32 roundings for each term, and one for its activation. */
static void expect_f16_rows(const struct layer *l, size_t token, const struct found *f)
{
    const float *x = l->x + token * l->hidden;
    const size_t stride = matrix_rows(&l->f16);
    for (size_t p = 0; p < l->f16.n_outs; p++)
        for (size_t row = 0; row < l->f16.n_rows[p]; row++)
            for (size_t k_tile = 0; k_tile < l->gemvs[0].n_k_tiles; k_tile++) {
                const size_t end = (k_tile + 1) * QN_TILE_COLS < l->hidden ? (k_tile + 1) * QN_TILE_COLS : l->hidden;
                const float found = f->f16[k_tile * stride + l->f16.first_row[p] + row];
                double sum = 0, size = 0;
                for (size_t k = k_tile * QN_TILE_COLS; k < end; k++) {
                    const double term =
                        (double)l->f16.weights[p][row * l->hidden + k] * (double)x[k] * (double)l->norm[k];
                    sum += term;
                    size += fabs(term);
                }
                qn_expect(fabs((double)found - sum) <= size * 23 * 0x1p-24,
                          "token %zu: row %zu of fp16 matrix %zu, K tile %zu: %g, expected %g", token, row, p, k_tile,
                          (double)found, sum);
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
    float *y = qn_xcalloc(l->width, sizeof *y), *gates = qn_xcalloc(2 * l->v_heads, sizeof *gates);
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
    free(y);
    free(gates);
}

/* Of the layer's slots, without rows. */
static qn_gdn_open_args open_args(const struct layer *l, const qn_gdn_open_sequence *sequence)
{
    return (qn_gdn_open_args){ .conv = l->gpu_conv.data,
                               .bias = l->gpu_bias.data,
                               .factor = l->gpu_factor.data,
                               .norm = l->gpu_head_norm.data,
                               .arrivals = l->arrivals.data,
                               .states = l->states.data,
                               .open = l->open.data,
                               .sequence = *sequence,
                               .state_stride = l->state_bytes,
                               .open_stride = l->layout.bytes,
                               .layers = 1,
                               .sequences = 1,
                               .k_heads = (uint32_t)l->k_heads,
                               .v_heads = (uint32_t)l->v_heads,
                               .taps = (uint32_t)l->taps,
                               .qkv_stride = (uint32_t)l->width,
                               .alpha_stride = (uint32_t)l->v_heads,
                               .beta_stride = (uint32_t)l->v_heads,
                               .gate_stride = (uint32_t)l->values,
                               .out_stride = (uint32_t)l->values,
                               .grouped = l->grouped,
                               .scale = 1 / sqrtf(HEAD),
                               .eps = eps };
}

static qn_gdn_gpu gdn_device(void)
{
    const qn_cuda_info *info = qn_cuda_get_info(qn_gpu());
    return (qn_gdn_gpu){ .max_shared_bytes = info->max_shared_bytes, .n_sms = info->n_sms };
}

/* The open chunk of OWN, with the state at state_position, to another slot. */
static void fold(const struct layer *l, uint32_t length, uint32_t state_position, uint32_t to)
{
    qn_gdn_open_args args = open_args(l, &(qn_gdn_open_sequence){ .position = length,
                                                                  .state_position = state_position,
                                                                  .state_from = OWN,
                                                                  .state_to = to,
                                                                  .open_slot = OWN });
    const qn_gdn_gpu gpu = gdn_device();
    qn_launch launch;
    qn_assert_ok(qn_gdn_gpu_open_fold(&args, HEAD, HEAD, &gpu, &launch));
    qn_gpu_launch(&launch, &args);
    qn_gpu_synchronize();
}

/* The same token with qn_gdn_open_step, which folds by itself; out: its gated heads. */
static void reference_kernel(const struct layer *l, size_t token, const float *qkv, const float *alpha,
                             const float *beta, const float *z, float *out)
{
    qn_gpu_guarded in[4] = { qn_gpu_floats(qkv, l->width), qn_gpu_floats(alpha, l->v_heads),
                             qn_gpu_floats(beta, l->v_heads), qn_gpu_floats(z, l->values) };
    qn_gpu_guarded to = qn_gpu_new(l->values * sizeof *out);
    qn_gdn_open_args args =
        open_args(l, &(qn_gdn_open_sequence){ .position = (uint32_t)token,
                                              .state_position = token ? (uint32_t)(token - 1) / CHUNK * CHUNK : 0,
                                              .state_from = REFERENCE,
                                              .state_to = REFERENCE,
                                              .open_slot = REFERENCE,
                                              .end = 1 });
    const qn_gdn_gpu gpu = gdn_device();
    qn_launch launch;
    args.qkv = in[0].data;
    args.alpha = in[1].data;
    args.beta = in[2].data;
    args.gate = in[3].data;
    args.out = to.data;
    qn_assert_ok(qn_gdn_gpu_open_step(&args, HEAD, HEAD, &gpu, &launch));
    launch.pdl = false;
    qn_gpu_launch(&launch, &args);
    qn_gpu_read(&to, out);
    for (int i = 0; i < 4; i++)
        qn_gpu_free(&in[i]);
    qn_gpu_free(&to);
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
    r.rule = qn_xcalloc(r.n_rule, sizeof *r.rule);
    r.inputs = qn_xcalloc(l->width, sizeof *r.inputs);
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
    uint8_t *open = (uint8_t *)qn_gpu_read_floats(&l->open);
    const struct open_row own = read_row(l, open, token), other = read_row(l, open + l->layout.bytes, token);
    expect_close("the row of the open chunk, compared with qn_gdn_open_step,", token, own.rule, other.rule, own.n_rule,
                 TOLERANCE_ROWS);
    expect_close("the inputs, compared with qn_gdn_open_step,", token, own.inputs, other.inputs, l->width, 1e-6);
    free(own.rule);
    free(own.inputs);
    free(other.rule);
    free(other.inputs);
    free(open);
}

/* The output's matmul of the heads, which are rotated if its weights are. */
static void expected_out(const struct layer *l, float *heads, float *y)
{
    qn_hadamard_kernels hadamard;
    qn_hadamard_init_ref(&hadamard);
    for (size_t i = 0; l->rotation && i < l->values; i += l->rotation)
        hadamard.block(heads + i, l->rotation, l->signs + i, NULL);
    for (size_t row = 0; row < l->hidden; row++) {
        double sum = 0;
        for (size_t k = 0; k < l->values; k++)
            sum += (double)l->out.weights[0][row * l->values + k] * (double)heads[k];
        y[row] = (float)sum;
    }
}

/* ---- Tokens ---- */

static void run_token(struct layer *l, size_t token)
{
    const qn_gpu_guarded *poisoned[] = { &l->x_out,        &l->sumsq, &l->in_partials, &l->o,
                                         &l->out_partials, &l->y,     &l->f16_partials };
    for (size_t i = 0; i < sizeof poisoned / sizeof *poisoned - !l->f16_rows; i++)
        qn_gpu_poison(poisoned[i]);
    qn_gpu_synchronize();
    qn_assert_ok(
        qn_cuda_upload(qn_gpu(), l->gpu_x.data, l->x + token * l->hidden, l->hidden * sizeof(float), NULL, NULL));
    l->args.positions = l->positions.data + token * sizeof(uint32_t);
    l->args.state_positions = l->state_positions.data + token * sizeof(uint32_t);
    if (token && token % CHUNK == 0)
        fold(l, (uint32_t)token, (uint32_t)token - CHUNK, OWN);
    qn_gpu_launch(&l->launch, &l->args);
    qn_gpu_synchronize();
}

static void check_token(const struct layer *l, size_t token, float *inputs, float *state)
{
    const size_t stride = matrix_rows(&l->in), slices = l->gemvs[0].n_slices, k_tiles = l->gemvs[0].n_k_tiles;
    struct found f = { qn_gpu_read_floats(&l->in_partials), l->f16_rows ? qn_gpu_read_floats(&l->f16_partials) : NULL,
                       qn_gpu_read_floats(&l->o), qn_gpu_read_floats(&l->y), qn_gpu_read_floats(&l->sumsq) };
    const float factor = factor_of(l, &f);
    float *qkv = add_partials(f.in, slices, stride, l->in.first_row[QKV], l->width, factor);
    float *z = add_partials(f.in, slices, stride, l->in.first_row[Z], l->values, factor);
    float *gates[2], *o = qn_xcalloc(l->values, sizeof *o), *heads = qn_xcalloc(l->values, sizeof *heads);
    float *y = qn_xcalloc(l->hidden, sizeof *y);
    for (size_t i = 0; i < 2; i++)
        gates[i] = l->f16_rows
                       ? add_partials(f.f16, k_tiles, matrix_rows(&l->f16), l->f16.first_row[i], l->v_heads, factor)
                       : add_partials(f.in, slices, stride, l->in.first_row[ALPHA + i], l->v_heads, factor);
    if (l->f16_rows)
        expect_f16_rows(l, token, &f);
    expected_delta(l, qkv, gates[0], gates[1], inputs, state, o);
    expect_close("the delta rule's output", token, f.o, o, l->values, token ? TOLERANCE_DELTA : TOLERANCE_FIRST);
    reference_kernel(l, token, qkv, gates[0], gates[1], z, heads);
    check_row(l, token);
    expected_out(l, heads, y);
    expect_close("the output", token, f.y, y, l->hidden, TOLERANCE_OUT);
    float *const all[] = { f.in, f.f16, f.o, f.y, f.sumsq, qkv, z, gates[0], gates[1], o, heads, y };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* The state after all tokens, compared with the CPU's. */
static void check_state(const struct layer *l, const float *expected)
{
    const uint32_t length = (uint32_t)l->n_tokens;
    fold(l, length, (length - 1) / CHUNK * CHUNK, FOLDED);
    float *states = qn_gpu_read_floats(&l->states);
    float *const found = states + FOLDED * (l->state_bytes / sizeof *states);
    qn_join_states(found, 1, l->values * HEAD);
    expect_close("the state", length, found, expected, l->values * HEAD, TOLERANCE_DELTA);
    free(states);
}

/* Runs all tokens twice. The second run must give the same bits as the first, which is compared with the reference. */
static void check_layer(struct layer l, uint32_t type)
{
    qn_case_begin("persistent", "delta", "%s, hidden %zu, heads %zu/%zu, %zu taps%s%s%s, %zu tokens",
                  qn_type_find(type)->name, l.hidden, l.k_heads, l.v_heads, l.taps, l.grouped ? ", grouped" : "",
                  l.f16_rows ? ", fp16 gates" : "", l.rotation ? ", rotated" : "", l.n_tokens);
    layer_new(&l, type);
    float *inputs = qn_xcalloc(l.taps * l.width, sizeof *inputs), *state = qn_xcalloc(l.values * HEAD, sizeof *state);
    float *y[2];
    uint8_t *open[2];
    for (int time = 0; time < 2; time++) {
        qn_gpu_poison(&l.states); /* not read at position 0 */
        qn_gpu_poison(&l.open);
        for (size_t token = 0; token < l.n_tokens; token++) {
            run_token(&l, token);
            if (time == 0)
                check_token(&l, token, inputs, state);
        }
        if (time == 0)
            check_state(&l, state);
        y[time] = qn_gpu_read_floats(&l.y);
        open[time] = (uint8_t *)qn_gpu_read_floats(&l.open);
    }
    qn_expect(!memcmp(y[0], y[1], l.y.bytes) && !memcmp(open[0], open[1], l.layout.bytes), "two runs differ");
    const qn_gpu_guarded *guarded[] = { &l.x_out, &l.sumsq,  &l.in_partials, &l.o,       &l.out_partials,
                                        &l.y,     &l.states, &l.open,        &l.barrier, &l.f16_partials };
    for (size_t i = 0; i < sizeof guarded / sizeof *guarded - !l.f16_rows; i++)
        qn_expect(qn_gpu_guards_intact(guarded[i]), "bytes outside buffer %zu were written", i);
    uint8_t *barrier = (uint8_t *)qn_gpu_read_floats(&l.barrier);
    for (size_t i = 0; i < l.barrier.bytes; i++)
        qn_expect(barrier[i] == 0, "byte %zu of the barrier counter is %d", i, barrier[i]);
    free(barrier);
    for (int time = 0; time < 2; time++) {
        free(y[time]);
        free(open[time]);
    }
    free(inputs);
    free(state);
    layer_free(&l);
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
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_random_seed(500 + i);
        if (qn_case_selected())
            check_layer(cases[i].layer, cases[i].type);
    }
}

/* ---- Speed: several layers of a 27B model in one launch ---- */

enum { BENCH_LAYERS = 8, BENCH_HIDDEN = 5120, BENCH_K_HEADS = 16, BENCH_V_HEADS = 48, BENCH_OPEN_ROWS = 32 };

/* The parts of a layer that are in the launch. */
enum { IN = 1, F16_ROWS = 2, DELTA = 4, OUT = 8 };

/* A layer's buffers, without matrices. Returns the random values that they hold, as many as a state has. */
static float *bench_layer_new(struct layer *l, unsigned what)
{
    const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(qn_type_find(QN_TYPE_Q1_0)),
                         f16_rows = qn_matmul_gpu_tile_layout(qn_type_find(QN_TYPE_F16));
    *l = (struct layer){
        .hidden = BENCH_HIDDEN, .k_heads = BENCH_K_HEADS, .v_heads = BENCH_V_HEADS, .taps = 4, .n_tokens = 1
    };
    l->values = l->v_heads * HEAD;
    l->width = 2 * l->k_heads * HEAD + l->values;
    l->f16_rows = what & F16_ROWS;
    l->in.first_row[Z] = l->width;
    l->in.gpu = (qn_tiled_matrix){ .tiles = tiles, .n_tiles = (l->width + l->values) / QN_TILE_ROWS };
    l->f16.gpu = (qn_tiled_matrix){ .tiles = f16_rows, .n_tiles = 2 * l->v_heads / QN_TILE_ROWS };
    l->f16.first_row[1] = l->v_heads;
    l->in.first_row[ALPHA] = l->width;
    l->in.first_row[BETA] = l->width + l->v_heads;
    l->out.gpu = (qn_tiled_matrix){ .tiles = tiles, .n_tiles = l->hidden / QN_TILE_ROWS };
    l->layout = qn_gdn_gpu_open_layout(l->k_heads, l->v_heads, HEAD, HEAD, l->taps);
    l->state_bytes = qn_gdn_gpu_state_bytes(l->k_heads, l->v_heads, HEAD, HEAD, l->taps);
    float *random = qn_floats_of(l->state_bytes / sizeof(float), 0.1f);
    for (size_t h = 0; h < l->v_heads; h++)
        random[h] = -fabsf(random[h]); /* factors of the decay are negative */
    l->gpu_x = qn_gpu_floats(random, l->hidden);
    l->gpu_norm = qn_gpu_floats(random, l->hidden);
    l->gpu_conv = qn_gpu_floats(random, l->taps * l->width);
    l->gpu_bias = qn_gpu_floats(random, l->v_heads);
    l->gpu_factor = qn_gpu_floats(random, l->v_heads);
    l->gpu_head_norm = qn_gpu_floats(random, HEAD);
    l->x_out = qn_gpu_new(l->hidden * sizeof(float));
    l->o = qn_gpu_floats(random, l->values);
    qn_split_states(random, 1, l->values * HEAD);
    l->states = qn_gpu_new(BENCH_LAYERS * l->state_bytes);
    l->open = qn_gpu_new(BENCH_LAYERS * l->layout.bytes);
    l->positions = qn_gpu_from((uint32_t[]){ CHUNK + BENCH_OPEN_ROWS }, sizeof(uint32_t));
    l->state_positions = qn_gpu_from((uint32_t[]){ CHUNK }, sizeof(uint32_t));
    l->slot = qn_gpu_from((uint32_t[]){ 0 }, sizeof(uint32_t));
    qn_assert_ok(qn_cuda_memset(qn_gpu(), qn_gpu_stream(), l->open.data, 0, l->open.bytes));
    l->in.tiles = l->f16.tiles = l->out.tiles = (qn_gpu_guarded){ 0 };
    gemvs_new(l);
    const qn_gpu_guarded *const between[] = { &l->sumsq, &l->in_partials, &l->out_partials, &l->f16_partials };
    for (size_t i = 0; i < sizeof between / sizeof *between - !l->f16_rows; i++) /* 0.0115f, not NaN */
        qn_assert_ok(qn_cuda_memset(qn_gpu(), qn_gpu_stream(), between[i]->data, 0x3c, between[i]->bytes));
    return random;
}

static void bench_layers(const char *shape, unsigned what)
{
    const qn_persistent_gpu device = qn_persistent_device();
    const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(qn_type_find(QN_TYPE_Q1_0)),
                         f16_rows = qn_matmul_gpu_tile_layout(qn_type_find(QN_TYPE_F16));
    struct layer l;
    float *random = bench_layer_new(&l, what);
    size_t bytes = 0, matrix_bytes, n_phases = 0, n_matrices = 0;
    qn_persistent_phase phases[BENCH_LAYERS * 3];
    qn_gpu_guarded matrices[BENCH_LAYERS * 3];
    for (size_t layer = 0; layer < BENCH_LAYERS; layer++) {
        qn_assert_ok(
            qn_cuda_upload(qn_gpu(), l.states.data + layer * l.state_bytes, random, l.state_bytes, NULL, NULL));
        if (what & IN) {
            phases[n_phases] = (qn_persistent_phase){ .kind = QN_PHASE_GEMV, .u.gemv = l.gemvs[0] };
            matrices[n_matrices] = qn_persistent_random_tiles(&tiles, l.in.gpu.n_tiles, l.hidden, &matrix_bytes);
            phases[n_phases].u.gemv.weights = matrices[n_matrices++].data;
            bytes += matrix_bytes;
            if (what & F16_ROWS) {
                matrices[n_matrices] =
                    qn_persistent_random_tiles(&f16_rows, l.f16.gpu.n_tiles, l.hidden, &matrix_bytes);
                phases[n_phases].u.gemv.f16_rows = matrices[n_matrices++].data;
                bytes += matrix_bytes;
            }
            n_phases++;
        }
        if (what & DELTA) {
            phases[n_phases] = (qn_persistent_phase){ .kind = QN_PHASE_DELTA, .u.delta = delta_of(&l) };
            phases[n_phases].u.delta.state_offset = layer * l.state_bytes;
            uint64_t *const offsets[] = { &phases[n_phases].u.delta.open.keys, &phases[n_phases].u.delta.open.values,
                                          &phases[n_phases].u.delta.open.scales, &phases[n_phases].u.delta.open.decays,
                                          &phases[n_phases].u.delta.open.inputs };
            for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++)
                *offsets[i] += layer * l.layout.bytes;
            bytes += l.values * HEAD * sizeof(uint16_t) +
                     BENCH_OPEN_ROWS * (l.k_heads + l.v_heads) * HEAD * sizeof(uint16_t);
            n_phases++;
        }
        if (what & OUT) {
            phases[n_phases] = (qn_persistent_phase){ .kind = QN_PHASE_GEMV, .u.gemv = l.gemvs[1] };
            matrices[n_matrices] = qn_persistent_random_tiles(&tiles, l.out.gpu.n_tiles, l.values, &matrix_bytes);
            phases[n_phases++].u.gemv.weights = matrices[n_matrices++].data;
            bytes += matrix_bytes;
        }
    }
    uint32_t next = (uint32_t)n_phases;
    for (size_t i = n_phases; i-- > 0;) {
        phases[i].next_gemv = next;
        if (phases[i].kind == QN_PHASE_GEMV)
            next = (uint32_t)i;
    }
    l.barrier = qn_gpu_from(&(uint32_t){ 0 }, sizeof(uint32_t));
    l.phases = qn_gpu_from(phases, n_phases * sizeof *phases);
    qn_persistent_timed t = { .args = { .phases = l.phases.data,
                                        .barrier = l.barrier.data,
                                        .positions = l.positions.data,
                                        .states = l.states.data,
                                        .open = l.open.data,
                                        .state_positions = l.state_positions.data,
                                        .state_from = l.slot.data,
                                        .open_slots = l.slot.data,
                                        .state_stride = BENCH_LAYERS * l.state_bytes,
                                        .open_stride = BENCH_LAYERS * l.layout.bytes,
                                        .n_phases = (uint32_t)n_phases } };
    qn_assert_ok(qn_persistent_gpu_launch(&device, &tiles, 1, &t.launch));
    const double seconds = qn_gpu_seconds(qn_persistent_iteration, &t, 1);
    qn_report_rate("persistent", "delta", shape, seconds / BENCH_LAYERS, (double)bytes / seconds, "B",
                   qn_gpu_read_rate());
    qn_gpu_guarded *const device_memory[] = { &l.gpu_x,      &l.gpu_norm,      &l.gpu_conv,    &l.gpu_bias,
                                              &l.gpu_factor, &l.gpu_head_norm, &l.x_out,       &l.o,
                                              &l.states,     &l.open,          &l.positions,   &l.state_positions,
                                              &l.slot,       &l.sumsq,         &l.in_partials, &l.out_partials,
                                              &l.barrier,    &l.phases,        &l.f16_partials };
    for (size_t i = 0; i < sizeof device_memory / sizeof *device_memory - !l.f16_rows; i++)
        qn_gpu_free(device_memory[i]);
    for (size_t i = 0; i < n_matrices; i++)
        qn_gpu_free(&matrices[i]);
    free(random);
}

void qn_check_cuda_persistent_delta(bool bench)
{
    if (!qn_persistent_supported())
        return;
    static const char *const shapes[] = { "27B: the delta rule", "27B: GEMVs before and after it",
                                          "27B: ... and fp16 rows", "27B: ... and the delta rule" };
    static const unsigned parts[] = { DELTA, IN | OUT, IN | F16_ROWS | OUT, IN | F16_ROWS | DELTA | OUT };
    check_layers();
    for (size_t i = 0; bench && i < sizeof shapes / sizeof *shapes; i++)
        if (qn_bench_selected(shapes[i]))
            bench_layers(shapes[i], parts[i]);
}
