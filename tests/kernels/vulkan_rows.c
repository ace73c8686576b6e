/* Norm and SwiGLU as `prepare` computes them, and bias, norm and rope of heads on a Vulkan device, against float64. */
#include "vulkan.h"

static const size_t widths[] = { 1, 31, 64, 65, 576, 5121 };
enum { MAX_ROWS = 5, PIECE = 256 };

/* A sum of n squares by 128 lanes, and a few more roundings. The division and the square root of Vulkan are within 2.5
 * ulp and 3 ulp. */
static double norm_bound(size_t n)
{
    return (double)(n / 64 + 24) * 0x1p-24;
}

static void check_norm(size_t n_rows, size_t n, bool is_listed)
{
    const float eps = 1e-5f, *x = qn_floats_of(n_rows * n, 3), *weight = qn_floats_of(n, 2);
    double *expected = qn_doubles(n_rows * n), *bound = qn_doubles(n_rows * n);
    uint32_t *rows = qn_new(n_rows, sizeof *rows);
    qn_case_begin("norm", "vulkan", "%zu rows of %zu%s", n_rows, n, is_listed ? ", listed" : "");
    for (size_t row = 0; row < n_rows; row++) {
        const size_t from = rows[row] = is_listed ? (uint32_t)qn_random_below(n_rows) : (uint32_t)row;
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += (double)x[from * n + i] * (double)x[from * n + i];
        for (size_t i = 0; i < n; i++) {
            const double y = (double)x[from * n + i] / sqrt(sum / (double)n + (double)eps) * (double)weight[i];
            expected[row * n + i] = y;
            bound[row * n + i] = fabs(y) * norm_bound(n) + 1e-30;
        }
    }
    const qn_vk_array *y = qn_vk_new_array(n_rows * n * sizeof(float));
    const qn_vk_prepare_args args = { .x = qn_vk_array_of(x)->at,
                                      .weight = qn_vk_array_of(weight)->at,
                                      .y = y->at,
                                      .rows = is_listed ? qn_vk_array_of(rows)->at : 0,
                                      .width = (uint32_t)n,
                                      .piece = PIECE,
                                      .eps = eps };
    qn_vk_launch_now(qn_vk_prepare(QN_VK_PREPARE_NORM, false, n_rows, n, PIECE), &args);
    qn_expect_near(qn_vk_contents(y), expected, bound, n_rows * n, "value");
    qn_release();
}

/* The gates have every magnitude, those too where e^x overflows or vanishes. */
static void check_swiglu(size_t n_rows, size_t n)
{
    float *gate = qn_floats_of(n_rows * n, 3), *up = qn_floats_of(n_rows * n, 2);
    double *expected = qn_doubles(n_rows * n), *bound = qn_doubles(n_rows * n);
    qn_case_begin("swiglu", "vulkan", "%zu rows of %zu", n_rows, n);
    for (size_t i = 0; i < n_rows * n; i++) {
        gate[i] *= i % 7 == 0 ? 40 : 1;
        const double g = (double)gate[i], y = g / (1 + exp(-g)) * (double)up[i];
        expected[i] = y;
        /* e^x within 4e-7, and four operations; below -87 it is flushed. */
        bound[i] = fabs(y) * 24 * 0x1p-24 + 1e-34;
    }
    const qn_vk_array *y = qn_vk_new_array(n_rows * n * sizeof(float));
    const qn_vk_prepare_args args = {
        .x = qn_vk_array_of(gate)->at, .x2 = qn_vk_array_of(up)->at, .y = y->at, .width = (uint32_t)n, .piece = PIECE
    };
    qn_vk_launch_now(qn_vk_prepare(QN_VK_PREPARE_SWIGLU, false, n_rows, n, PIECE), &args);
    qn_expect_near(qn_vk_contents(y), expected, bound, n_rows * n, "value");
    qn_release();
}

static const struct heads {
    size_t n_heads, dim, stride, n_rot;
    bool interleaved, has_bias, has_norm, is_rotated;
} shapes[] = {
    { 1, 16, 16, 16, true, false, false, false },   { 3, 64, 64, 64, false, false, true, false },
    { 2, 128, 128, 64, false, true, true, true },   { 5, 80, 160, 80, true, true, false, true },
    { 1, 512, 512, 510, false, true, true, false },
};

/* Computes a head in float64. angles: cosines [n_rot/2], sines [n_rot/2]. */
static void expect_head(const struct heads *s, const float *x, const float *bias, const float *weight,
                        const float *angles, double eps, double scale, double *y)
{
    double head[QN_VK_MAX_HEAD], sum = 0;
    const size_t pairs = s->n_rot / 2;
    for (size_t i = 0; i < s->dim; i++) {
        head[i] = (double)x[i] + (s->has_bias ? (double)bias[i] : 0);
        sum += head[i] * head[i];
    }
    for (size_t i = 0; s->has_norm && i < s->dim; i++)
        head[i] *= (double)weight[i] / sqrt(sum / (double)s->dim + eps);
    for (size_t i = 0; i < s->dim; i++)
        y[i] = head[i] * scale;
    for (size_t i = 0; i < pairs; i++) {
        const size_t a = s->interleaved ? 2 * i : i, b = s->interleaved ? 2 * i + 1 : i + pairs;
        y[a] = (head[a] * (double)angles[i] - head[b] * (double)angles[pairs + i]) * scale;
        y[b] = (head[a] * (double)angles[pairs + i] + head[b] * (double)angles[i]) * scale;
    }
}

/* The rotation of heads: a transform where there is one, else the matrix with 1 at (i, i + 1 of dim). */
static bool is_transform(size_t dim)
{
    return (dim & (dim - 1)) == 0;
}

static void rotate_expected(size_t dim, const float *signs, double *y)
{
    double x[QN_VK_MAX_HEAD];
    memcpy(x, y, dim * sizeof *x);
    for (size_t i = 0; i < dim; i++) {
        y[i] = is_transform(dim) ? 0 : x[(i + 1) % dim];
        for (size_t j = 0; is_transform(dim) && j < dim; j++)
            y[i] += (__builtin_popcountll(i & j) % 2 ? -1 : 1) * (double)signs[j] * x[j] / sqrt((double)dim);
    }
}

/* What the kernel reads: the matrix is transposed. */
static const float *rotation_matrix(size_t dim)
{
    float *matrix = qn_floats(dim * dim);
    for (size_t i = 0; i < dim; i++)
        matrix[(i + 1) % dim * dim + i] = 1;
    return matrix;
}

static void check_rope(const struct heads *s, size_t n_rows)
{
    const size_t n = n_rows * s->n_heads;
    const float eps = 1e-6f, scale = 0.125f, *x = qn_floats_of(n * s->stride, 2),
                *bias = qn_floats_of(s->n_heads * s->dim, 1), *weight = qn_floats_of(s->dim, 1),
                *signs = qn_signs_of(s->dim);
    float *angles = qn_floats(n_rows * s->n_rot);
    double *expected = qn_doubles(n * s->dim), *bound = qn_doubles(n * s->dim);
    qn_case_begin("rope", "vulkan", "%zu rows, %zu heads of %zu, %zu by rope%s%s%s%s", n_rows, s->n_heads, s->dim,
                  s->n_rot, s->interleaved ? ", interleaved" : "", s->has_bias ? ", bias" : "",
                  s->has_norm ? ", norm" : "", s->is_rotated ? ", rotated" : "");
    for (size_t row = 0; row < n_rows; row++)
        for (size_t i = 0; i < s->n_rot / 2; i++) {
            const double angle = (double)qn_random_normal() * 9;
            angles[row * s->n_rot + i] = (float)cos(angle);
            angles[row * s->n_rot + s->n_rot / 2 + i] = (float)sin(angle);
        }
    for (size_t i = 0; i < n; i++)
        expect_head(s, x + i * s->stride, bias + i % s->n_heads * s->dim, weight, angles + i / s->n_heads * s->n_rot,
                    (double)eps, (double)scale, expected + i * s->dim);
    for (size_t i = 0; i < n && s->is_rotated; i++)
        rotate_expected(s->dim, signs, expected + i * s->dim);
    for (size_t i = 0; i < n * s->dim; i++)
        bound[i] = 20 * (norm_bound(s->dim) + 8 * 0x1p-24); /* values up to 20, of which a pair may cancel */
    const qn_vk_array *y = qn_vk_new_array(n * s->dim * sizeof(float));
    const qn_vk_rope_args args = { .x = qn_vk_array_of(x)->at,
                                   .y = y->at,
                                   .bias = s->has_bias ? qn_vk_array_of(bias)->at : 0,
                                   .weight = s->has_norm ? qn_vk_array_of(weight)->at : 0,
                                   .angles = qn_vk_array_of(angles)->at,
                                   .signs = s->is_rotated && is_transform(s->dim) ? qn_vk_array_of(signs)->at : 0,
                                   .matrix = s->is_rotated ? qn_vk_array_of(rotation_matrix(s->dim))->at : 0,
                                   .stride = (uint32_t)s->stride,
                                   .dim = (uint32_t)s->dim,
                                   .n_rot = (uint32_t)s->n_rot,
                                   .is_interleaved = s->interleaved,
                                   .eps = eps,
                                   .scale = scale,
                                   .factor = 1 / sqrtf((float)s->dim) };
    qn_vk_launch_now(qn_vk_rope(n_rows, s->n_heads), &args);
    qn_expect_near(qn_vk_contents(y), expected, bound, n * s->dim, "value");
    qn_release();
}

void qn_check_vulkan_rows(bool bench)
{
    (void)bench;
    qn_random_seed(1);
    for (size_t w = 0; w < QN_LENGTH(widths); w++)
        for (size_t n_rows = 1; n_rows <= MAX_ROWS; n_rows += 2) {
            check_norm(n_rows, widths[w], false);
            check_norm(n_rows, widths[w], true);
            check_swiglu(n_rows, widths[w]);
        }
    for (size_t i = 0; i < QN_LENGTH(shapes); i++)
        for (size_t n_rows = 1; n_rows <= MAX_ROWS; n_rows += 2)
            check_rope(&shapes[i], n_rows);
}
