/* Matmul on the GPU: activations in every layout against the CPU's reference; GEMV and GEMM of every type, layout and
 * awkward shape against float64 on the same quantised values; and their speed on the shapes of real models. */
#include "cuda_matmul_problem.h"

#include "base/f16.h"
#include "base/memory.h"
#include "kernels/elementwise/elementwise.h"
#include "cuda/kernels/matmul/matmul.h"
#include "kernels/norm/norm.h"

/* ---- Activations ---- */

static float float_at(const uint8_t *at)
{
    float x;
    memcpy(&x, at, sizeof x);
    return x;
}

/* The factor of a token's results. scales: of QN_ACTS_HILO. */
static double rms_factor(const struct gpu_acts *a, const float *scales, size_t token)
{
    const size_t n_blocks = qn_round_up(a->acts.n_cols, QN_TILE_COLS) / QN_ACTS_HILO_COLS;
    double sum = 0;
    for (size_t block = 0; a->acts.rms_norm && block < n_blocks; block++)
        sum += (double)scales[(n_blocks + block) * a->acts.capacity + token];
    return a->acts.rms_norm ? 1 / sqrt(sum / (double)a->acts.n_cols + (double)a->acts.eps) : 1;
}

/* Activations of a layout, dequantised, divided by the RMS of their rows if that is left to the matmul: [n_tokens,
 * n_cols rounded up to k-tiles]. */
static double *acts_read(const struct gpu_acts *a, size_t n_tokens)
{
    const size_t width = qn_round_up(a->acts.n_cols, QN_TILE_COLS);
    const uint8_t *bytes = qn_check_acts_read(a);
    const float *scales = qn_gpu_read(a->scale);
    double *values = qn_doubles(n_tokens * width);
    for (size_t token = 0; token < n_tokens; token++) {
        const double factor = a->acts.layout == QN_ACTS_HILO ? rms_factor(a, scales, token) : 1;
        for (size_t k = 0; k < width; k++) {
            double *to = &values[token * width + k];
            const size_t group = k % 256 / 32, h = k % 32 / 16, t = k % 16 / 4, i = k % 4;
            if (a->acts.layout == QN_ACTS_F16) {
                const size_t at = group % 2 * 32 + i % 2 * 16 + 8 * h + 2 * t + i / 2, piece = (at / 8) ^ (token % 8);
                uint16_t f16;
                memcpy(&f16,
                       bytes + (k / 64 * (a->acts.capacity / 8) + token / 8) * 1024 + token % 8 * 128 + piece * 16 +
                           at % 8 * 2,
                       2);
                *to = (double)qn_f16_to_f32(f16) * (double)scales[token];
            } else if (a->acts.layout == QN_ACTS_HILO) {
                *to = qn_check_hilo_code(a, bytes, token, k) * 64.0 * factor *
                      (double)qn_check_hilo_scale(a, bytes, scales, token, k);
                if (k % QN_ACTS_HILO_COLS == 0)
                    qn_check_plane_sums(a, bytes, token, k);
            } else {
                const uint8_t *from = bytes + k / QN_TILE_COLS * QN_ACTS_N1_TILE_BYTES, *code = from + k % QN_TILE_COLS;
                const size_t scale = k % QN_TILE_COLS / QN_ACTS_HILO_COLS;
                *to = (256 * (int8_t)code[0] + (int8_t)code[QN_TILE_COLS]) *
                      (double)float_at(from + 2 * QN_TILE_COLS + scale * sizeof(float));
            }
        }
    }
    return values;
}

/* The largest magnitude of columns [begin, end). */
static float largest_of(const float *x, size_t begin, size_t end)
{
    float largest = 0;
    for (size_t k = begin; k < end; k++)
        largest = fmaxf(largest, fabsf(x[k]));
    return largest;
}

/* The same values quantised by the layout's rule and dequantised: values [n_cols] of a token. */
static void quantize_dequantize(int layout, const float *x, size_t n_cols, double *values)
{
    /* Hi/lo int8 has a scale for each QN_ACTS_HILO_COLS columns, fp16 one a token. */
    const size_t n = layout == QN_ACTS_F16 ? n_cols : QN_ACTS_HILO_COLS;
    for (size_t first = 0; first < n_cols; first += n) {
        const size_t end = first + n < n_cols ? first + n : n_cols;
        const float amax = largest_of(x, first, end);
        if (layout == QN_ACTS_F16) {
            int exponent = 0;
            frexpf(amax, &exponent);
            exponent = exponent < -125 ? -125 : exponent;
            for (size_t k = first; k < end; k++)
                values[k] = ldexp((double)qn_f16_to_f32(qn_f32_to_f16(ldexpf(x[k], -exponent))), exponent);
            continue;
        }
        const float inverse = amax < 1e-30f ? 0 : (float)QN_HILO_MAX / amax;
        const double scale = 64 * (double)(amax * (1.0f / (64.0f * (float)QN_HILO_MAX)));
        for (size_t k = first; k < end; k++)
            values[k] = (double)rintf(x[k] * inverse) * scale;
    }
}

static const char *layout_name(int layout, uint32_t planes)
{
    return layout == QN_ACTS_HILO_N1 ? "hi/lo of one token"
           : layout == QN_ACTS_F16   ? "fp16"
           : planes == 0             ? "hi/lo"
           : planes == 1             ? "bit planes for 1 bit"
                                     : "bit planes for 2 bits";
}

/* Without an operation the values equal the CPU's exactly; after a norm or SwiGLU, whose last bits differ, they are
 * within half a step. */
static void check_acts(int layout, uint32_t planes, int op, size_t n_cols, size_t n_tokens)
{
    const size_t stride = n_cols + 3, width = qn_round_up(n_cols, QN_TILE_COLS);
    float *x = qn_floats_of(n_tokens * stride, 3), *x2 = qn_floats_of(n_tokens * stride, 3),
          *weight = qn_floats_of(n_cols, 1), *y = qn_floats(n_cols);
    double *expected = qn_doubles(n_cols);
    qn_norm_kernels norm;
    qn_elementwise_kernels elementwise;
    qn_norm_init_ref(&norm);
    qn_elementwise_init_ref(&elementwise);
    for (size_t i = 0; i < n_tokens * stride; i++) /* from tiny to large, and groups of zeros */
        x[i] *= i / 32 % 5 == 1 ? 1e-38f : i / 32 % 5 == 2 ? 1e4f : i / 32 % 5 == 3 ? 0 : 1;
    struct gpu_acts a = qn_check_acts_new(layout, n_cols, n_tokens);
    a.acts.planes = planes;
    a.acts.rms_norm = op == QN_ACTS_OP_RMS_NORM;
    a.acts.eps = 1e-6f;
    qn_matmul_launch l;
    qn_case_begin("matmul", "cuda", "%s of %zu tokens, width %zu%s", layout_name(layout, planes), n_tokens, n_cols,
                  op == QN_ACTS_OP_RMS_NORM ? ", normalised"
                  : op == QN_ACTS_OP_SWIGLU ? ", SwiGLU"
                                            : "");
    qn_assert_ok(qn_matmul_gpu_quantize(&a.acts, op, qn_gpu_copy(x), qn_gpu_copy(x2), qn_gpu_copy(weight), 1e-6f,
                                        stride, n_tokens, &l));
    qn_check_launch(&l);
    const double *values = acts_read(&a, n_tokens);
    for (size_t token = 0; token < n_tokens; token++) {
        memcpy(y, x + token * stride, n_cols * sizeof *y);
        if (op == QN_ACTS_OP_RMS_NORM)
            qn_rms_norm_row(&norm, y, y, weight, n_cols, 1e-6f);
        else if (op == QN_ACTS_OP_SWIGLU)
            elementwise.swiglu(y, y, x2 + token * stride, n_cols);
        quantize_dequantize(layout, y, n_cols, expected);
        const float largest = largest_of(y, 0, n_cols);
        for (size_t k = 0; k < width; k++) {
            const double found = values[token * width + k];
            double bound = 0;
            if (k < n_cols && op != QN_ACTS_OP_NONE) {
                const size_t group_end = k / 32 * 32 + 32, block_end = (k / QN_ACTS_HILO_COLS + 1) * QN_ACTS_HILO_COLS;
                const float group = largest_of(y, k / 32 * 32, group_end < n_cols ? group_end : n_cols);
                const float block =
                    largest_of(y, block_end - QN_ACTS_HILO_COLS, block_end < n_cols ? block_end : n_cols);
                /* Half a code, or half a unit in the last place of fp16; 1e-5 for the error of the operation itself. */
                bound = layout == QN_ACTS_F16 ? fabs((double)y[k]) * 0x1p-11 + (double)largest * 0x1p-24
                                              : (double)block * (0.5 / QN_HILO_MAX);
                /* Smaller groups are zeros, QN_ACTS_HILO before it is divided by an RMS as small as sqrt(eps). */
                bound = bound * 1.01 + (double)group * 1e-5 + (layout == QN_ACTS_HILO ? 1e-27 : 1e-30);
            }
            qn_expect(fabs(found - (k < n_cols ? bound > 0 ? (double)y[k] : expected[k] : 0)) <= bound,
                      "token %zu, column %zu: %.9g, expected %.9g", token, k, found, k < n_cols ? expected[k] : 0);
        }
    }
    qn_release();
}

/* ---- GEMV and GEMM ---- */

/* Largest error relative to the sum of magnitudes: float32 additions in any order, some truncated instead of rounded by
 * the tensor cores; and 2^-11 per weight that is rounded to fp16 (or to the product of an fp16 scale and a code). */
static double matmul_bound(const struct gpu_weights *w, int layout)
{
    const bool rounded =
        layout == QN_ACTS_F16 && (w->matrix.tiles.as_f16 || w->matrix.tiles.bits == 4 || w->matrix.tiles.bits == 8);
    return 3e-5 + (rounded || w->type->type == QN_TYPE_BF16 ? 0x1p-11 : 0);
}

static void check_matrix(const struct gpu_weights *w, size_t matrix, int layout, const float *x, size_t n_tokens,
                         const float *found, bool accumulate)
{
    float *weights = qn_floats(w->n_cols);
    double *values = qn_doubles(n_tokens * w->n_cols);
    const double bound = matmul_bound(w, layout);
    for (size_t token = 0; token < n_tokens; token++)
        quantize_dequantize(layout, x + token * w->n_cols, w->n_cols, values + token * w->n_cols);
    for (size_t row = 0; row < w->n_rows[matrix]; row++) {
        qn_check_weights_row(w, matrix, row, weights);
        for (size_t token = 0; token < n_tokens; token++) {
            double sum = 0, size = 0, sizes = 0; /* sums of the magnitudes of terms and of values */
            for (size_t k = 0; k < w->n_cols; k++) {
                sizes += fabs(values[token * w->n_cols + k]);
                const double term = (double)weights[k] * values[token * w->n_cols + k];
                sum += term;
                size += fabs(term);
            }
            const double before = accumulate ? (double)row : 0;
            const float y = found[token * (w->n_rows[matrix] + 5) + row];
            /* fp16 subnormals: an absolute error of 2^-25 instead. */
            const double allowed =
                bound * size + 0x1p-24 * (fabs(sum) + before) + (layout == QN_ACTS_F16 ? 0x1p-25 * sizes : 0);
            qn_expect(fabs((double)y - sum - before) <= allowed, "token %zu, row %zu: %g, expected %g, within %g",
                      token, row, (double)y, sum + before, allowed);
        }
    }
}

/* Two executions give the same bits; padding between the rows of tokens is not modified. */
static void check_matmul_of(struct gpu_weights *w, int layout, uint32_t planes, size_t n_tokens)
{
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    const size_t mark = qn_mark();
    struct gpu_acts a = qn_check_acts_new(layout, w->n_cols, n_tokens);
    a.acts.planes = planes;
    const float *x = qn_floats_of(n_tokens * w->n_cols, 1);
    uint64_t out[3];
    float *before[3], *found[2][3];
    qn_matmul_launch quantize, matmul;
    qn_case_begin("matmul", "cuda", "%s rows %zu+%zu+%zu cols %zu tokens %zu %s", w->type->name, w->n_rows[0],
                  w->n_rows[1], w->n_rows[2], w->n_cols, n_tokens, layout_name(layout, planes));
    for (size_t i = 0; i < w->n_matrices; i++) {
        const size_t stride = w->n_rows[i] + 5, count = n_tokens * stride;
        before[i] = qn_floats(count);
        for (size_t k = 0; k < count; k++)
            before[i][k] = i == 1 ? (float)(k % stride) : NAN;
        out[i] = qn_gpu_copy(before[i]);
        w->matrix.outs[i] = (qn_matmul_out){ out[i], (uint32_t)(w->first_row[i] / QN_TILE_ROWS), (uint32_t)w->n_rows[i],
                                             (uint32_t)stride, i == 1 };
    }
    qn_assert_ok(
        qn_matmul_gpu_quantize(&a.acts, QN_ACTS_OP_NONE, qn_gpu_copy(x), 0, 0, 0, w->n_cols, n_tokens, &quantize));
    qn_assert_ok(qn_matmul_gpu_matmul(&gpu, &w->matrix, &a.acts, n_tokens, &matmul));
    for (size_t time = 0; time < 2; time++) {
        for (size_t i = 0; time && i < w->n_matrices; i++)
            qn_gpu_write(out[i], before[i], qn_gpu_bytes(out[i]));
        qn_check_launch(&quantize);
        qn_check_launch(&matmul);
        for (size_t i = 0; i < w->n_matrices; i++)
            found[time][i] = qn_gpu_read(out[i]);
    }
    for (size_t i = 0; i < w->n_matrices; i++) {
        const size_t n = w->n_rows[i], stride = n + 5;
        check_matrix(w, i, layout, x, n_tokens, found[0][i], i == 1);
        qn_expect(!memcmp(found[0][i], found[1][i], qn_gpu_bytes(out[i])), "two executions differ");
        for (size_t token = 0; token < n_tokens; token++)
            qn_expect(!memcmp(found[0][i] + token * stride + n, before[i] + token * stride + n, 5 * sizeof(float)),
                      "bytes after token %zu were written", token);
    }
    qn_release_to(mark);
}

/* In this layout, and where it can have bit planes, also with them. */
static void check_matmul(struct gpu_weights *w, int layout, size_t n_tokens)
{
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    const uint32_t planes = layout == QN_ACTS_HILO ? qn_matmul_gpu_planes(&gpu, &w->matrix.tiles, n_tokens) : 0;
    check_matmul_of(w, layout, 0, n_tokens);
    if (planes)
        check_matmul_of(w, layout, planes, n_tokens);
}

/* One NaN or infinity among the activations of token 1 of 3 or 40: its elements are NaN or infinite, those of other
 * tokens finite. */
static void check_not_finite(const qn_type_info *type)
{
    enum { COLS = 768, ROWS = 20 };
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    struct gpu_weights w = qn_check_weights_new(type, COLS, 1, &(size_t){ ROWS }, 100);
    for (int kind = 0; kind < 6; kind++) {
        const size_t n_tokens = kind < 3 ? 3 : 40;
        const float bad = kind % 3 == 0 ? NAN : kind % 3 == 1 ? INFINITY : -INFINITY;
        struct gpu_acts a = qn_check_acts_new(qn_matmul_gpu_acts_layout(&w.matrix.tiles, n_tokens), COLS, n_tokens);
        if (a.acts.layout == QN_ACTS_HILO)
            a.acts.planes = qn_matmul_gpu_planes(&gpu, &w.matrix.tiles, n_tokens);
        float *x = qn_floats_of(n_tokens * COLS, 1);
        qn_matmul_launch l;
        x[COLS + qn_random_below(COLS)] = bad;
        const uint64_t out = qn_gpu_floats(n_tokens * ROWS);
        w.matrix.outs[0] = (qn_matmul_out){ out, 0, ROWS, ROWS, 0 };
        qn_case_begin("matmul", "cuda", "%s with %g, %s", type->name, (double)bad,
                      layout_name(a.acts.layout, a.acts.planes));
        qn_assert_ok(qn_matmul_gpu_quantize(&a.acts, QN_ACTS_OP_NONE, qn_gpu_copy(x), 0, 0, 0, COLS, n_tokens, &l));
        qn_check_launch(&l);
        qn_assert_ok(qn_matmul_gpu_matmul(&gpu, &w.matrix, &a.acts, n_tokens, &l));
        qn_check_launch(&l);
        const float *y = qn_gpu_read(out);
        for (size_t i = 0; i < n_tokens * ROWS; i++)
            qn_expect(isfinite(y[i]) == (i / ROWS != 1), "element %zu of token %zu is %g", i % ROWS, i / ROWS,
                      (double)y[i]);
    }
    qn_release();
}

static void check_refusals(void)
{
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    const qn_tiled_matrix matrix = { .tiles = qn_matmul_gpu_tile_layout(qn_type_find(QN_TYPE_Q8_0)),
                                     .address = 1024,
                                     .n_tiles = 4,
                                     .n_cols = 512,
                                     .n_outs = 1 };
    static const struct {
        const char *what;
        qn_matmul_acts acts;
        size_t n_tokens, n_outs;
    } refused[] = {
        { "hi/lo int8 of one token by Q8_0", { .layout = QN_ACTS_HILO_N1, .n_cols = 512, .capacity = 1 }, 1, 1 },
        { "hi/lo int8 of two tokens by Q8_0", { .layout = QN_ACTS_HILO, .n_cols = 512, .capacity = 128 }, 2, 1 },
        { "different widths", { .layout = QN_ACTS_F16, .n_cols = 256, .capacity = 128 }, 1, 1 },
        { "more tokens than allocated", { .layout = QN_ACTS_F16, .n_cols = 512, .capacity = 128 }, 129, 1 },
        { "a matmul without outputs", { .layout = QN_ACTS_F16, .n_cols = 512, .capacity = 128 }, 1, 0 },
    };
    qn_case_begin("matmul", "cuda", "rejected arguments");
    for (size_t i = 0; i < QN_LENGTH(refused); i++) {
        qn_tiled_matrix with = matrix;
        qn_matmul_acts acts = refused[i].acts;
        qn_matmul_launch l;
        with.n_outs = refused[i].n_outs;
        acts.address = 1024;
        qn_expect(qn_matmul_gpu_matmul(&gpu, &with, &acts, refused[i].n_tokens, &l) == QN_ERR_INVALID, "%s: accepted",
                  refused[i].what);
    }
    size_t bytes;
    qn_expect(qn_matmul_gpu_acts_bytes(QN_ACTS_F16, 512, 100, &bytes) == QN_ERR_INVALID,
              "fp16 of 100 tokens was accepted");
    qn_expect(qn_matmul_gpu_bytes(&matrix.tiles, SIZE_MAX / 64, 1 << 20, &bytes) == QN_ERR_INVALID,
              "a matrix beyond the limits was accepted");
}

/* ---- Speed ---- */

/* Tiles of random bytes with small scales, in shapes of real models, and enough copies that caches do not help. */
struct shape {
    const char *name;
    size_t n_rows, n_cols;
    bool accumulate;
};

/* Another choice than that of choose_gemm_config: rows of a block, and blocks that split K. */
struct choice {
    size_t rows, cluster;
};

static void set_blocks(qn_matmul_launch *l, const struct choice *blocks)
{
    enum { ROWS = 4 }; /* of the variant's values */
    const size_t tokens = l->launch.variant.values[ROWS - 1], tiles = blocks->rows / QN_TILE_ROWS;
    const size_t stages = QN_GEMM_STAGES(tokens) * (tokens * 128 + 16), sums = blocks->rows * tokens * sizeof(float);
    const uint32_t row_blocks = (uint32_t)((l->args.gemm.n_tiles + tiles - 1) / tiles);
    l->launch.variant.values[ROWS] = (uint32_t)blocks->rows;
    l->launch.block[0] = (uint32_t)QN_GEMM_THREADS(blocks->rows);
    l->launch.grid[1] = row_blocks;
    l->launch.grid[2] = l->launch.cluster = (uint32_t)blocks->cluster;
    l->launch.shared_bytes = (uint32_t)(blocks->cluster > 1 && sums > stages ? sums : stages);
    l->args.gemm.n_unsplit = blocks->cluster > 1 ? 0 : row_blocks;
}

/* Whether inputs are normalised and quantised beforehand, not timed, or by a launch before each matmul. */
enum norm_mode { NORMALIZED_BEFORE, NORM_IN_LAUNCH };

/* The matrices of `shapes` one after the other, as in a layer, for n_tokens. choice: NULL for the usual one. */
static void bench_choice(const qn_type_info *type, const char *name, const struct shape *shapes, size_t n_shapes,
                         size_t n_tokens, enum norm_mode norm_mode, const struct choice *choice)
{
    const qn_matmul_gpu gpu = qn_check_matmul_gpu();
    const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(type);
    const int layout = qn_matmul_gpu_acts_layout(&tiles, n_tokens);
    size_t layer = 0, bytes, widest = 0, tallest = 0;
    double weights = 0;
    const char *chosen = choice ? qn_text(", blocks of %zu in clusters of %zu", choice->rows, choice->cluster) : "";
    const char *shape = qn_text("%s %s tokens %zu%s%s", type->name, name, n_tokens,
                                norm_mode == NORMALIZED_BEFORE ? "" : " with norms", chosen);
    if (!qn_bench_selected(shape))
        return;
    for (size_t i = 0; i < n_shapes; i++) {
        qn_assert_ok(qn_matmul_gpu_bytes(&tiles, qn_matmul_gpu_tile_count(shapes[i].n_rows), shapes[i].n_cols, &bytes));
        layer += qn_round_up(bytes, 256);
        weights += (double)shapes[i].n_rows * (double)shapes[i].n_cols;
        widest = shapes[i].n_cols > widest ? shapes[i].n_cols : widest;
        tallest = shapes[i].n_rows > tallest ? shapes[i].n_rows : tallest;
    }
    const size_t n_copies = qn_gpu_bench_copies(layer), each = n_shapes * (norm_mode == NORM_IN_LAUNCH ? 2 : 1);
    uint64_t at = qn_gpu_random(layer * n_copies);
    const uint64_t out = qn_gpu_floats(n_tokens * tallest), x = qn_gpu_random(n_tokens * widest * sizeof(float)),
                   weight = qn_gpu_random(widest * sizeof(float));
    struct gpu_acts *acts = qn_new(n_shapes, sizeof *acts);
    qn_matmul_launch *launches = qn_new(n_copies * each, sizeof *launches);
    for (size_t i = 0; i < n_shapes; i++)
        acts[i] = qn_check_acts_new(layout, shapes[i].n_cols, n_tokens);
    for (size_t i = 0; i < n_shapes && layout == QN_ACTS_HILO; i++)
        acts[i].acts.planes = qn_matmul_gpu_planes(&gpu, &tiles, n_tokens);
    for (size_t copy = 0, n = 0; copy < n_copies; copy++)
        for (size_t i = 0; i < n_shapes; i++) {
            const uint32_t rows = (uint32_t)shapes[i].n_rows;
            const qn_tiled_matrix a = { .tiles = tiles,
                                        .address = at,
                                        .n_tiles = qn_matmul_gpu_tile_count(rows),
                                        .n_cols = shapes[i].n_cols,
                                        .n_outs = 1,
                                        .outs = { { out, 0, rows, rows, shapes[i].accumulate } } };
            qn_assert_ok(qn_matmul_gpu_quantize(&acts[i].acts, QN_ACTS_OP_RMS_NORM, x, 0, weight, 1e-6f,
                                                shapes[i].n_cols, n_tokens, &launches[n]));
            if (norm_mode == NORM_IN_LAUNCH)
                n++;
            else if (copy == 0)
                qn_check_launch(&launches[n]);
            acts[i].acts.prepares_slots = 0; /* they are prepared */
            qn_assert_ok(qn_matmul_gpu_matmul(&gpu, &a, &acts[i].acts, n_tokens, &launches[n++]));
            if (choice)
                set_blocks(&launches[n - 1], choice);
            qn_assert_ok(qn_matmul_gpu_bytes(&tiles, a.n_tiles, a.n_cols, &bytes));
            at += qn_round_up(bytes, 256);
        }
    const bool is_memory_bound = n_tokens <= 128;
    qn_check_bench(shape, is_memory_bound ? (double)layer : 2 * weights * (double)n_tokens,
                   is_memory_bound ? "B" : "FLOP", is_memory_bound ? qn_gpu_read_rate() : 0, launches, each, n_copies);
    qn_release();
}

static void bench_layer(const qn_type_info *type, const char *name, const struct shape *shapes, size_t n_shapes,
                        size_t n_tokens, enum norm_mode norm_mode)
{
    bench_choice(type, name, shapes, n_shapes, n_tokens, norm_mode, NULL);
}

static const struct shape layer8[] = { { "8b qkv", 6144, 4096, false },
                                       { "8b out", 4096, 4096, true },
                                       { "8b gate+up", 24576, 4096, false },
                                       { "8b down", 4096, 12288, true } };

/* What choose_gemm_config chooses from, for each matrix of a layer. */
static void bench_gemm_blocks(const qn_type_info *type, size_t n_tokens)
{
    for (size_t i = 0; i < QN_LENGTH(layer8); i++)
        for (struct choice blocks = { 192, 1 }; blocks.rows <= 256; blocks.rows += 64)
            for (blocks.cluster = 1; blocks.cluster <= QN_GEMM_MAX_CLUSTER; blocks.cluster++)
                bench_choice(type, layer8[i].name, &layer8[i], 1, n_tokens, NORMALIZED_BEFORE, &blocks);
}

static void bench(void)
{
    static const struct shape layer27[] = { { "27b qkv+z", 16384, 5120, false },
                                            { "27b out", 5120, 6144, true },
                                            { "27b gate+up", 34816, 5120, false },
                                            { "27b down", 5120, 17408, true } };
    static const struct shape head = { "27b head", 248320, 5120, false };
    static const qn_type types[] = {
        QN_TYPE_Q1_0, QN_TYPE_PQ2_0, QN_TYPE_Q2_0, QN_TYPE_Q4_1, QN_TYPE_Q8_0, QN_TYPE_F16
    };
    for (size_t t = 0; t < QN_LENGTH(types); t++) {
        const qn_type_info *type = qn_type_find(types[t]);
        bench_layer(type, "27b layer", layer27, 4, 1, NORMALIZED_BEFORE);
        bench_layer(type, "27b layer", layer27, 4, 1, NORM_IN_LAUNCH);
        bench_layer(type, "27b layer", layer27, 4, 8, NORMALIZED_BEFORE);
        bench_layer(type, "27b layer", layer27, 4, 512, NORM_IN_LAUNCH);
        for (size_t i = 0; t < 2 && i < 4; i++) {
            bench_layer(type, layer27[i].name, &layer27[i], 1, 1, NORMALIZED_BEFORE);
            bench_layer(type, layer27[i].name, &layer27[i], 1, 8, NORMALIZED_BEFORE);
            bench_layer(type, layer27[i].name, &layer27[i], 1, 32, NORMALIZED_BEFORE);
        }
        if (t >= 2)
            continue;
        static const size_t some[] = { 2, 4, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128, 256 };
        for (size_t i = 0; i < QN_LENGTH(some); i++)
            bench_layer(type, "27b layer", layer27, 4, some[i], NORMALIZED_BEFORE);
        bench_layer(type, "27b layer", layer27, 4, 128, NORM_IN_LAUNCH);
        bench_layer(type, "27b layer", layer27, 4, 4096, NORM_IN_LAUNCH);
        bench_layer(type, "27b layer", layer27, 4, 8, NORM_IN_LAUNCH);
        bench_layer(type, "27b layer", layer27, 4, 32, NORM_IN_LAUNCH);
        bench_layer(type, "8b layer", layer8, 4, 1, NORMALIZED_BEFORE);
        bench_layer(type, "8b layer", layer8, 4, 8, NORMALIZED_BEFORE);
        static const size_t many[] = { 24, 32, 33, 64, 65, 96, 128, 256 };
        for (size_t i = 0; i < QN_LENGTH(many); i++)
            bench_layer(type, "8b layer", layer8, 4, many[i], NORMALIZED_BEFORE);
        for (size_t n_tokens = 32; n_tokens <= 128; n_tokens *= 2)
            for (size_t i = 0; i < 4; i++)
                bench_layer(type, layer8[i].name, &layer8[i], 1, n_tokens, NORMALIZED_BEFORE);
        bench_layer(type, "8b layer", layer8, 4, 128, NORM_IN_LAUNCH);
        bench_gemm_blocks(type, 128);
        bench_layer(type, "8b layer", layer8, 4, 512, NORM_IN_LAUNCH);
        bench_layer(type, head.name, &head, 1, 1, NORMALIZED_BEFORE);
        bench_layer(type, head.name, &head, 1, 8, NORMALIZED_BEFORE);
        bench_layer(type, head.name, &head, 1, 32, NORMALIZED_BEFORE);
    }
}

/* Three matrices by tokens in the layout that the kernels choose. */
static void check_matrices(const qn_type_info *type, size_t n_cols, const size_t n_rows[3], size_t n_tokens)
{
    struct gpu_weights w = qn_check_weights_new(type, n_cols, 3, n_rows, 100); /* within the range of fp16 */
    check_matmul(&w, qn_matmul_gpu_acts_layout(&w.matrix.tiles, n_tokens), n_tokens);
    qn_release();
}

/* More rows than the SMs of an H200 compute at once. Q8_0: some blocks of rows of the GEMM are computed by one block
 * each, and clusters compute the rest by split-K. Q1_0: blocks of unequal numbers of tiles; several passes over the
 * columns; 70 tokens by blocks of 192 rows, of 24544 without and of 4048 with split-K. */
static void check_many_rows(void)
{
    static const struct {
        qn_type type;
        size_t rows, cols, tokens;
    } cases[] = { { QN_TYPE_Q8_0, 34816 - 32, 1280, 17 },
                  { QN_TYPE_Q1_0, 34816 - 32, 1280, 17 },
                  { QN_TYPE_Q1_0, 180000, 256, 5 },
                  { QN_TYPE_Q1_0, 24576 - 32, 512, 70 },
                  { QN_TYPE_Q2_0, 4096 - 48, 2560, 70 } };
    for (size_t i = 0; i < QN_LENGTH(cases); i++) {
        const size_t n_rows[3] = { cases[i].rows, 16, 16 };
        qn_random_seed(77 + i);
        if (!qn_case_selected())
            continue;
        check_matrices(qn_type_find(cases[i].type), cases[i].cols, n_rows, cases[i].tokens);
    }
}

/* Every number of tokens of qn_matmul_gemm_few and some of qn_matmul_gemm, for each tile layout of the former. */
static void check_token_counts(void)
{
    static const qn_type types[] = { QN_TYPE_Q1_0, QN_TYPE_Q2_0, QN_TYPE_PQ2_0 };
    for (size_t t = 0; t < QN_LENGTH(types); t++)
        for (size_t n_tokens = 1; n_tokens <= 70; n_tokens++) {
            const qn_type_info *type = qn_type_find(types[t]);
            qn_random_seed(5000 + 100 * t + n_tokens);
            if (!qn_case_selected())
                continue;
            const size_t cols =
                type->block_weights * (1 + qn_random_below((n_tokens % 8 ? 1000 : 4000) / type->block_weights));
            const size_t n_rows[3] = { 1 + qn_random_below(300), 1 + qn_random_below(40), 1 + qn_random_below(700) };
            check_matrices(type, cols, n_rows, n_tokens);
        }
}

/* Hi/lo int8 and fp16 from one launch have the bits of those from two. */
static void check_both_acts(int op, size_t n_cols, size_t n_tokens)
{
    static const int layouts[] = { QN_ACTS_HILO, QN_ACTS_F16 };
    const size_t count = n_tokens * n_cols;
    float *x = qn_floats_of(count, 3);
    x[count - 1] = n_tokens > 2 ? INFINITY : 1; /* a token that is not finite */
    const uint64_t gx = qn_gpu_copy(x), gw = qn_gpu_copy(x);
    qn_matmul_launch l;
    struct gpu_acts found[2], expected[2];
    qn_case_begin("matmul", "cuda", "hi/lo and fp16 of %zu tokens, width %zu, operation %d", n_tokens, n_cols, op);
    for (size_t i = 0; i < 2; i++) {
        found[i] = qn_check_acts_new(layouts[i], n_cols, n_tokens);
        expected[i] = qn_check_acts_new(layouts[i], n_cols, n_tokens);
        qn_assert_ok(qn_matmul_gpu_quantize(&expected[i].acts, op, gx, gx, gw, 1e-6f, n_cols, n_tokens, &l));
        qn_check_launch(&l);
    }
    qn_assert_ok(qn_matmul_gpu_quantize(&found[0].acts, op, gx, gx, gw, 1e-6f, n_cols, n_tokens, &l));
    qn_matmul_gpu_quantize_f16_too(&l, &found[1].acts);
    qn_check_launch(&l);
    for (size_t i = 0; i < 2; i++) {
        size_t bytes;
        qn_assert_ok(qn_matmul_gpu_acts_bytes(layouts[i], n_cols, found[i].acts.capacity, &bytes));
        qn_expect(!memcmp(qn_check_acts_read(&found[i]), qn_check_acts_read(&expected[i]), bytes), "%s: values differ",
                  layout_name(layouts[i], 0));
        qn_expect(!memcmp(qn_gpu_read(found[i].scale), qn_gpu_read(expected[i].scale), qn_gpu_bytes(found[i].scale)),
                  "%s: scales differ", layout_name(layouts[i], 0));
    }
    qn_release();
}

void qn_check_cuda_matmul(bool with_bench)
{
    static const size_t widths[] = { 1, 31, 32, 100, 256, 257, 1000, 2048, 5120, 20737 };
    for (int layout = QN_ACTS_HILO_N1; layout <= QN_ACTS_HILO; layout++)
        for (int op = 0; op < 3; op++)
            for (size_t i = 0; i < QN_LENGTH(widths); i++) {
                qn_random_seed(100 * i + 10 * layout + op);
                if (qn_case_selected())
                    check_acts(layout, 0, op, widths[i],
                               layout == QN_ACTS_HILO_N1
                                   ? 1
                                   : 1 + qn_random_below(layout == QN_ACTS_HILO ? QN_FEW_MAX_TOKENS : 140));
            }
    for (uint32_t planes = 1; planes <= 2; planes++)
        for (int op = 0; op < 3; op++)
            for (size_t i = 0; i < QN_LENGTH(widths); i++) {
                qn_random_seed(1000 + 100 * i + 10 * planes + op);
                if (qn_case_selected())
                    check_acts(QN_ACTS_HILO, planes, op, widths[i], 1 + qn_random_below(QN_PLANES_MAX_TOKENS));
            }
    for (int op = 0; op < 3; op++)
        for (size_t i = 0; i < QN_LENGTH(widths); i++)
            if (qn_case_selected())
                check_both_acts(op, widths[i], 1 + i * 7);
    size_t n_types;
    const qn_type_info *types = qn_types(&n_types);
    static const size_t rows[] = { 1, 7, 16, 17, 48, 100, 250 },
                        tokens[] = { 1, 2, 5, 8, 9, 16, 17, 30, 33, 130, 64, 70 };
    for (size_t t = 0; t < n_types; t++) {
        const size_t block = types[t].block_weights;
        for (size_t draw = 0; draw < 14; draw++) {
            qn_random_seed(1000 * t + draw);
            const size_t cols = block * (draw < 3 ? draw + 1 : 1 + qn_random_below((draw % 4 ? 1500 : 6000) / block));
            const size_t n_rows[3] = { rows[qn_random_below(7)], rows[qn_random_below(7)],
                                       draw == 13 ? 5000 : rows[qn_random_below(7)] };
            if (!qn_case_selected())
                continue;
            struct gpu_weights w = qn_check_weights_new(&types[t], cols, 3, n_rows, 100);
            const size_t n_tokens = draw == 13 ? 2 : draw < 12 ? tokens[draw] : tokens[qn_random_below(12)];
            check_matmul(&w, qn_matmul_gpu_acts_layout(&w.matrix.tiles, n_tokens), n_tokens);
            if (draw % 3 == 0) { /* fp16 in any number */
                const size_t few = 1 + qn_random_below(20);
                check_matmul(&w, qn_matmul_gpu_acts_layout(&w.matrix.tiles, few), few);
                check_matmul(&w, QN_ACTS_F16, few);
            }
            if (draw % 3 == 1)
                check_matmul(&w, qn_matmul_gpu_acts_layout(&w.matrix.tiles, 1), 1);
            qn_release();
        }
        if (qn_case_selected())
            check_not_finite(&types[t]);
    }
    check_token_counts();
    check_many_rows();
    check_refusals();
    qn_check_cuda_matmul_fused(with_bench);
    qn_check_cuda_matmul_norm(with_bench);
    if (with_bench)
        bench();
}
