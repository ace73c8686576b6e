/* The activations of matmuls on a Vulkan device, rotated and not, against float64. */
#include "vulkan.h"

#include "kernels/hadamard/hadamard.h"

enum { MAX_ROWS = 3 };

static const struct shape {
    size_t width, block; /* block: of the transform, 0: none */
    size_t dim, repeats; /* of heads */
    bool has_signs;
} shapes[] = {
    { 64, 0, 32, 1, false },      { 272, 0, 16, 1, false },     { 1536, 0, 128, 3, false },
    { 64, 1, 16, 2, true },       { 96, 32, 48, 2, true },      { 384, 128, 64, 3, false },
    { 3072, 1024, 128, 2, true }, { 4096, 4096, 256, 4, true }, { 512, 64, 256, 1, true },
};

static const char *const names[] = { "norm", "swiglu", "gate", "gated norm" };

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static double scale_of(const float *x, size_t n, double eps)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return 1 / sqrt(sum / (double)n + eps);
}

/* A row before the transform. */
static void expect_row(const struct shape *s, qn_vk_prepare_op op, const float *x, const float *x2, const float *weight,
                       double eps, double *y)
{
    const size_t groups = s->width / s->dim / s->repeats;
    for (size_t i = 0; i < s->width; i++) {
        const size_t h = i / s->dim, d = i % s->dim, from = (h % s->repeats * groups + h / s->repeats) * s->dim + d;
        switch (op) {
        case QN_VK_PREPARE_NORM: y[i] = (double)x[i] * scale_of(x, s->width, eps) * (double)weight[i]; break;
        case QN_VK_PREPARE_SWIGLU: y[i] = (double)x[i] * sigmoid((double)x[i]) * (double)x2[i]; break;
        case QN_VK_PREPARE_GATE: y[i] = (double)x[i] * (x2 ? sigmoid((double)x2[(2 * h + 1) * s->dim + d]) : 1); break;
        case QN_VK_PREPARE_GATED_NORM:
            y[i] = (double)x[from] * scale_of(x + from - d, s->dim, eps) * (double)weight[d] * (double)x2[from] *
                   sigmoid((double)x2[from]);
            break;
        }
    }
}

/* y = H S y of each block, by its definition. */
static void rotate(const struct shape *s, const float *signs, double *y)
{
    double *from = qn_doubles(s->width);
    memcpy(from, y, s->width * sizeof *from);
    for (size_t i = 0; i < s->width; i++) {
        const size_t first = i / s->block * s->block;
        y[i] = 0;
        for (size_t j = 0; j < s->block; j++)
            y[i] += from[first + j] * (s->has_signs ? (double)signs[first + j] : 1) *
                    (__builtin_popcountll(j & (i - first)) % 2 ? -1 : 1) / sqrt((double)s->block);
    }
}

static void check(const struct shape *s, qn_vk_prepare_op op, size_t n_rows, bool is_listed, bool has_gates)
{
    const size_t n = n_rows * s->width;
    const float eps = 1e-6f, *x = qn_floats_of(n, 2), *x2 = qn_floats_of(2 * n, 2), *weight = qn_floats_of(s->width, 1),
                *signs = qn_signs_of(s->width);
    double *expected = qn_doubles(n), *bound = qn_doubles(n);
    uint32_t *rows = qn_new(n_rows, sizeof *rows);
    qn_case_begin("prepare", "vulkan", "%s%s, %zu rows of %zu, blocks of %zu, heads of %zu, %zu to a key head%s",
                  names[op], has_gates ? "" : " without gates", n_rows, s->width, s->block, s->dim, s->repeats,
                  is_listed ? ", listed" : "");
    for (size_t row = 0; row < n_rows; row++) {
        const size_t from = rows[row] = (uint32_t)(is_listed ? n_rows - 1 - row : row);
        double *y = expected + row * s->width, squares = 0;
        expect_row(s, op, x + from * s->width,
                   has_gates ? x2 + row * s->width * (op == QN_VK_PREPARE_GATE ? 2 : 1) : NULL, weight, (double)eps, y);
        for (size_t i = 0; i < s->width; i++)
            squares += y[i] * y[i];
        if (s->block)
            rotate(s, signs, y);
        /* A sum of squares by 128 lanes, some 30 more roundings of a value, and one a stage of the transform, each of
         * at most 2^-24 of a value's size: of the row's root mean square, where values were mixed. */
        for (size_t i = 0; i < s->width; i++)
            bound[row * s->width + i] = (fabs(y[i]) + (s->block ? 8 * sqrt(squares / (double)s->width) : 1e-6)) *
                                        ((double)s->width / 128 + 48) * 0x1p-24;
    }
    const qn_vk_array *y = qn_vk_new_array(n * sizeof(float));
    const qn_vk_prepare_args args = { .x = qn_vk_array_of(x)->at,
                                      .x2 = has_gates ? qn_vk_array_of(x2)->at : 0,
                                      .weight = qn_vk_array_of(weight)->at,
                                      .signs = s->has_signs ? qn_vk_array_of(signs)->at : 0,
                                      .y = y->at,
                                      .rows = is_listed ? qn_vk_array_of(rows)->at : 0,
                                      .width = (uint32_t)s->width,
                                      .piece = s->block ? (uint32_t)s->block : 80,
                                      .dim = (uint32_t)s->dim,
                                      .repeats = (uint32_t)s->repeats,
                                      .eps = eps,
                                      .factor = qn_hadamard_scale(s->block ? s->block : 1) };
    qn_vk_launch_now(qn_vk_prepare(op, s->block != 0, n_rows, s->width, args.piece), &args);
    qn_expect_near(qn_vk_contents(y), expected, bound, n, "value");
    qn_release();
}

/* ---- Integers of heads ---- */

/* Those that `combine` writes of a row's heads are those of the whole row. After the last head there are zeros. */
static void check_heads(size_t dim, size_t n_heads, uint32_t planes)
{
    enum { PIECE = 256 };
    const size_t width = n_heads * dim, bytes = MAX_ROWS * qn_vk_act_row_bytes(width, planes);
    const float *x = qn_floats_of(MAX_ROWS * width, 2);
    qn_case_begin("prepare", "vulkan", "heads as integers, %d rows of %zu heads of %zu, %u planes", MAX_ROWS, n_heads,
                  dim, planes);
    const qn_vk_array *whole = qn_vk_array_of(qn_new(bytes, 1)), *heads = qn_vk_array_of(qn_new(bytes, 1));
    const qn_vk_prepare_args args = { .x = qn_vk_array_of(x)->at,
                                      .codes = whole->at,
                                      .width = (uint32_t)width,
                                      .piece = PIECE,
                                      .dim = (uint32_t)dim,
                                      .planes = planes };
    const qn_vk_combine_args combine = { .y = args.x,
                                         .sequences = qn_vk_array_of(qn_new(MAX_ROWS, sizeof(uint32_t)))->at,
                                         .codes = heads->at,
                                         .planes = planes,
                                         .dim = (uint32_t)dim };
    qn_vk_launch_now(qn_vk_prepare(QN_VK_PREPARE_GATE, false, MAX_ROWS, width, PIECE), &args);
    qn_vk_launch_now(qn_vk_combine(MAX_ROWS, n_heads), &combine);
    qn_expect(!memcmp(qn_vk_contents(heads), qn_vk_contents(whole), bytes), "other bits than of whole rows");
    qn_release();
}

void qn_check_vulkan_prepare(bool bench)
{
    static const size_t heads[][2] = { { 480, 2 }, { 480, 6 }, { 512, 3 }, { 32, 5 }, { 416, 1 } };
    (void)bench;
    qn_random_seed(4);
    for (size_t i = 0; i < QN_LENGTH(shapes); i++)
        for (int op = QN_VK_PREPARE_NORM; op <= QN_VK_PREPARE_GATED_NORM; op++) {
            check(&shapes[i], (qn_vk_prepare_op)op, 1, false, true);
            check(&shapes[i], (qn_vk_prepare_op)op, MAX_ROWS, op == QN_VK_PREPARE_NORM, op != QN_VK_PREPARE_GATE);
        }
    for (size_t i = 0; i < QN_LENGTH(heads); i++)
        for (uint32_t planes = 1; planes <= 2; planes++)
            check_heads(heads[i][0], heads[i][1], planes);
}
