/* Activations and weights on the GPU for the checks of the matmul. */
#include "cuda_matmul_problem.h"

#include "base/memory.h"
#include "gpu/f16_rows.h"
#include "problem.h"

qn_matmul_gpu qn_check_matmul_gpu(void)
{
    const qn_cuda_info *info = qn_gpu_info();
    return (qn_matmul_gpu){ info->n_sms, info->max_shared_bytes, info->major >= 9, info->major == 9 };
}

void qn_check_launch(const qn_matmul_launch *l)
{
    qn_gpu_launch(&l->launch, &l->args);
}

/* ---- Activations ---- */

struct gpu_acts qn_check_acts_new(int layout, size_t n_cols, size_t n_tokens)
{
    struct gpu_acts a = { .acts = { .layout = layout, .n_cols = n_cols, .capacity = n_tokens }, .n_tokens = n_tokens };
    size_t bytes;
    if (layout != QN_ACTS_HILO_N1)
        a.acts.capacity = qn_round_up(n_tokens, QN_GEMM_TILE_N);
    qn_assert_ok(qn_matmul_gpu_acts_bytes(layout, n_cols, a.acts.capacity, &bytes));
    a.data = qn_gpu_new(qn_round_up(bytes + 1024, 256));
    const size_t scale_bytes = qn_matmul_gpu_scale_bytes(layout, n_cols, a.acts.capacity);
    a.scale = qn_gpu_new(scale_bytes ? scale_bytes : 1);
    a.acts.address = qn_round_up(a.data, 1024);
    a.acts.scale = a.scale;
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    a.workspace = qn_gpu_new(layout == QN_ACTS_HILO ? qn_matmul_gpu_workspace_bytes(&gpu) : 1);
    a.acts.workspace = a.workspace;
    a.acts.prepares_slots = qn_matmul_gpu_few_blocks(&gpu);
    return a;
}

uint8_t *qn_check_acts_read(const struct gpu_acts *a)
{
    return (uint8_t *)qn_gpu_read(a->data) + (a->acts.address - a->data);
}

static size_t block_tokens(const struct gpu_acts *a)
{
    return QN_PLANES_BLOCK_TOKENS(a->n_tokens);
}

static const uint8_t *plane_block(const struct gpu_acts *a, const uint8_t *bytes, size_t k)
{
    return bytes + k / QN_ACTS_HILO_COLS * QN_PLANES_BLOCK_BYTES(block_tokens(a));
}

/* The bit of the columns' weight k in a column of an operand B, at bit `high` of its code. */
static unsigned plane_bit(const uint8_t *operand, unsigned bits, size_t column, size_t k, unsigned high)
{
    const size_t group = k % (bits == 1 ? QN_TILE_COLS : QN_ACTS_HILO_COLS) / 32, half = k % 32 / 16, byte = k % 16;
    return operand[column / 8 * 256 + half * 128 + column % 8 * 16 + byte] >> (group * bits + high) & 1;
}

/* The bit of plane p of a token's integer, at bit `high` of its code. */
static unsigned integer_bit(const struct gpu_acts *a, const uint8_t *block, size_t token, size_t p, size_t k,
                            unsigned high)
{
    const size_t c = p + high, tokens = block_tokens(a),
                 column = 32 * (token / 4) + 8 * (c / 4) + 2 * (token % 4) + c / 2 % 2;
    return plane_bit(block + (c % 2 ? QN_PLANES_UPPER(tokens) : 0), a->acts.planes, column, k, high);
}

/* The integer, from its planes at the low bits of codes; those at the high bits are the same. */
static int integer_of_planes(const struct gpu_acts *a, const uint8_t *block, size_t token, size_t k)
{
    const uint8_t *negatives = block + QN_PLANES_NEGATIVE(block_tokens(a));
    const size_t column = 2 * (token % 4) + token / 4;
    const int negative = (int)plane_bit(negatives, a->acts.planes, column, k, 0);
    int code = -65536 * negative;
    for (size_t p = 0; p < 16; p++) {
        const unsigned low = integer_bit(a, block, token, p, k, 0);
        const unsigned high = a->acts.planes == 1 ? low
                              : p < 15            ? integer_bit(a, block, token, p, k, 1)
                                                  : plane_bit(negatives, a->acts.planes, column, k, 1);
        qn_expect(low == high, "token %zu, column %zu, plane %zu: low bits of codes have %u, high bits %u", token, k, p,
                  low, high);
        code += (int)(low << p);
    }
    return code;
}

int qn_check_hilo_code(const struct gpu_acts *a, const uint8_t *bytes, size_t token, size_t k)
{
    if (a->acts.planes)
        return integer_of_planes(a, plane_block(a, bytes, k), token, k);
    const uint8_t *block = bytes + (k / QN_ACTS_HILO_COLS * (a->acts.capacity / 8) + token / 8) * QN_ACTS_HILO_BYTES;
    const size_t column = k % QN_ACTS_HILO_COLS,
                 at = token % 8 * 128 + ((column / 16) ^ (token % 8)) * 16 + column % 16;
    return 256 * (int8_t)block[at] + (int8_t)block[1024 + at];
}

float qn_check_hilo_scale(const struct gpu_acts *a, const uint8_t *bytes, const float *scales, size_t token, size_t k)
{
    float scale;
    if (!a->acts.planes)
        return scales[k / QN_ACTS_HILO_COLS * a->acts.capacity + token];
    memcpy(&scale, plane_block(a, bytes, k) + QN_PLANES_INFO(block_tokens(a)) + 16 * token, sizeof scale);
    return scale / 64;
}

void qn_check_plane_sums(const struct gpu_acts *a, const uint8_t *bytes, size_t token, size_t k)
{
    int32_t sums[2];
    if (!a->acts.planes)
        return;
    memcpy(sums, plane_block(a, bytes, k) + QN_PLANES_INFO(block_tokens(a)) + 16 * token + 4, sizeof sums);
    for (size_t i = 0; i < QN_ACTS_HILO_COLS; i++)
        sums[i / 64] -= qn_check_hilo_code(a, bytes, token, k + i);
    qn_expect(sums[0] == 0 && sums[1] == 0, "token %zu: sums of columns from %zu on differ by %d, %d", token, k,
              sums[0], sums[1]);
}

void qn_check_hadamard_f64(double *v, const float *signs, size_t n, size_t block)
{
    for (size_t i = 0; block && i < n; i++)
        v[i] *= (double)signs[i] / sqrt((double)block);
    for (size_t stride = 1; stride < block; stride *= 2)
        for (size_t i = 0; i < n; i++)
            if (!(i & stride)) {
                const double a = v[i], b = v[i + stride];
                v[i] = a + b;
                v[i + stride] = a - b;
            }
}

/* ---- Weights ---- */

uint64_t qn_check_tiles(const qn_tile_layout *tiles, size_t n_tiles, size_t n_cols)
{
    size_t bytes;
    qn_assert_ok(qn_matmul_gpu_bytes(tiles, n_tiles, n_cols, &bytes));
    return qn_gpu_new(bytes);
}

/* Packs rows into their tiles; types that the kernels cannot read are converted to F16 first. */
static void pack(const struct gpu_weights *w, size_t matrix)
{
    const size_t n_rows = w->n_rows[matrix];
    qn_matmul_launch l;
    uint8_t *rows = w->stored[matrix];
    size_t row_bytes = w->row_bytes;
    if (w->matrix.tiles.as_f16) {
        float *scratch = qn_floats(w->n_cols);
        row_bytes = w->n_cols * 2;
        rows = qn_new(n_rows, row_bytes);
        for (size_t r = 0; r < n_rows; r++)
            qn_gpu_f16_row(w->type, w->stored[matrix] + r * w->row_bytes, w->n_cols, scratch,
                           (uint16_t *)(void *)(rows + r * row_bytes));
    }
    qn_assert_ok(
        qn_matmul_gpu_pack(&w->matrix, qn_gpu_copy(rows), row_bytes, n_rows, w->first_row[matrix] / QN_TILE_ROWS, &l));
    qn_check_launch(&l);
}

/* Without weights. */
static struct gpu_weights weights_of(const qn_type_info *type, size_t n_cols, size_t n_matrices, const size_t *n_rows)
{
    struct gpu_weights w = { .type = type, .n_cols = n_cols, .n_matrices = n_matrices };
    w.matrix = (qn_tiled_matrix){ .tiles = qn_matmul_gpu_tile_layout(type), .n_cols = n_cols, .n_outs = n_matrices };
    if (!qn_row_bytes(type, n_cols, &w.row_bytes))
        exit(1);
    for (size_t i = 0; i < n_matrices; i++) {
        w.n_rows[i] = n_rows[i];
        w.stored[i] = qn_new(n_rows[i], w.row_bytes);
        w.first_row[i] = w.matrix.n_tiles * QN_TILE_ROWS;
        w.matrix.n_tiles += qn_matmul_gpu_tile_count(n_rows[i]);
    }
    w.matrix.address = qn_check_tiles(&w.matrix.tiles, w.matrix.n_tiles, n_cols);
    return w;
}

struct gpu_weights qn_check_weights_new(const qn_type_info *type, size_t n_cols, size_t n_matrices,
                                        const size_t *n_rows, float largest)
{
    struct gpu_weights w = weights_of(type, n_cols, n_matrices, n_rows);
    for (size_t i = 0; i < n_matrices; i++) {
        qn_random_blocks(type, w.stored[i], n_rows[i] * w.row_bytes / type->block_bytes, largest);
        pack(&w, i);
    }
    return w;
}

struct gpu_weights qn_check_weights_normal(const qn_type_info *type, size_t n_cols, size_t n_matrices,
                                           const size_t *n_rows)
{
    struct gpu_weights w = weights_of(type, n_cols, n_matrices, n_rows);
    for (size_t i = 0; i < n_matrices; i++) {
        const size_t n = n_rows[i] * n_cols;
        type->from_float(qn_floats_of(n, 1 / sqrtf((float)n_cols)), n / type->block_weights, w.stored[i]);
        pack(&w, i);
    }
    return w;
}

void qn_check_weights_row(const struct gpu_weights *w, size_t matrix, size_t row, float *weights)
{
    w->type->to_float(w->stored[matrix] + row * w->row_bytes, w->n_cols / w->type->block_weights, weights);
}

float *qn_check_weights_f32(const struct gpu_weights *w, size_t matrix)
{
    float *weights = qn_floats(w->n_rows[matrix] * w->n_cols);
    for (size_t row = 0; row < w->n_rows[matrix]; row++)
        qn_check_weights_row(w, matrix, row, weights + row * w->n_cols);
    return weights;
}

/* ---- Speed ---- */

struct timed {
    const qn_matmul_launch *launches;
    size_t each;
};

static void launch_timed(void *context, size_t iteration)
{
    const struct timed *t = context;
    for (size_t i = 0; i < t->each; i++)
        qn_check_launch(&t->launches[iteration * t->each + i]);
}

void qn_check_bench(const char *shape, double units, const char *unit, double limit, const qn_matmul_launch *launches,
                    size_t each, size_t n_iterations)
{
    qn_gpu_bench("matmul", "cuda", shape, units, unit, limit, launch_timed, &(struct timed){ launches, each },
                 n_iterations);
}
