/* GEMV and store phases of the persistent decode kernel. Each phase's output is compared with a float64 computation on
 * the GPU's output of the previous phase, so that errors do not accumulate. Benchmarks: GEMVs of real models' shapes,
 * many layers in one launch. */
#include "cuda_persistent.h"

#include "base/memory.h"
#include "problem.h"
#include "cuda/kernels/persistent/persistent.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float eps = 1e-6f;

/* ---- Weights ---- */

enum { MAX_MATRICES = 2 };

/* Matrices of one type that share activations, as files store them and as tiles. */
struct matrix {
    const qn_type_info *type;
    size_t n_cols, n_outs, n_rows[MAX_MATRICES], row_bytes;
    uint8_t *stored[MAX_MATRICES];
    qn_tiled_matrix matrix;
    qn_gpu_guarded tiles;
};

static struct matrix matrix_new(const qn_type_info *type, size_t n_cols, size_t n_outs, size_t rows0, size_t rows1)
{
    struct matrix a = { .type = type, .n_cols = n_cols, .n_outs = n_outs, .n_rows = { rows0, rows1 } };
    size_t bytes, first_tile = 0;
    if (!qn_row_bytes(type, n_cols, &a.row_bytes))
        exit(1);
    a.matrix = (qn_tiled_matrix){ .tiles = qn_matmul_gpu_tile_layout(type), .n_cols = n_cols, .n_outs = n_outs };
    for (size_t i = 0; i < n_outs; i++)
        a.matrix.n_tiles += qn_matmul_gpu_tile_count(a.n_rows[i]);
    qn_assert_ok(qn_matmul_gpu_bytes(&a.matrix.tiles, a.matrix.n_tiles, n_cols, &bytes));
    a.tiles = qn_gpu_new(bytes);
    a.matrix.address = a.tiles.data;
    for (size_t i = 0; i < n_outs; first_tile += qn_matmul_gpu_tile_count(a.n_rows[i]), i++) {
        a.stored[i] = qn_xcalloc(a.n_rows[i], a.row_bytes);
        qn_random_blocks(type, a.stored[i], a.n_rows[i] * a.row_bytes / type->block_bytes, 0.1f);
        qn_gpu_pack_rows(&a.matrix, a.stored[i], a.row_bytes, a.n_rows[i], first_tile);
    }
    return a;
}

static void matrix_free(struct matrix *a)
{
    qn_expect(qn_gpu_guards_intact(&a->tiles), "bytes around the tiles were written");
    for (size_t i = 0; i < a->n_outs; i++)
        free(a->stored[i]);
    qn_gpu_free(&a->tiles);
}

/* Dequantises one row of the tiles; false if it is padding after the last row of a matrix. */
static bool matrix_row(const struct matrix *a, size_t row, float *weights)
{
    for (size_t i = 0; i < a->n_outs; i++) {
        const size_t padded = qn_matmul_gpu_tile_count(a->n_rows[i]) * QN_TILE_ROWS;
        if (row < a->n_rows[i]) {
            a->type->to_float(a->stored[i] + row * a->row_bytes, a->n_cols / a->type->block_weights, weights);
            return true;
        }
        if (row < padded)
            return false;
        row -= padded;
    }
    return false;
}

/* ---- A launch ---- */

enum { MAX_PHASES = 8 }; /* three GEMVs with three phases of activations; two stores */

struct persistent {
    qn_persistent_phase phases[MAX_PHASES];
    size_t n_phases;
    qn_gpu_guarded array, barrier, acts, acts_scale;
    qn_launch launch;
    qn_persistent_args args;
};

/* The kernel of one row, or that of several with any number of rows. */
static uint32_t kernel_rows(uint32_t n_rows, bool of_several)
{
    return of_several && n_rows < 2 ? 2 : n_rows;
}

/* Sets next_gemv of all phases. */
static void link_gemvs(qn_persistent_phase *phases, size_t n)
{
    for (size_t i = n, next = n; i-- > 0; next = phases[i].kind == QN_PHASE_GEMV ? i : next)
        phases[i].next_gemv = (uint32_t)next;
}

static void persistent_ready(struct persistent *c, const qn_tile_layout *tiles, uint32_t n_rows, bool of_several,
                             size_t widest)
{
    const qn_persistent_gpu gpu = qn_persistent_device();
    const size_t groups = (widest + QN_TILE_COLS - 1) / QN_TILE_COLS * (QN_TILE_COLS / QN_ACTS_HILO_COLS);
    link_gemvs(c->phases, c->n_phases);
    c->array = qn_gpu_from(c->phases, c->n_phases * sizeof *c->phases);
    c->barrier = qn_gpu_from(&(uint32_t){ 0 }, sizeof(uint32_t));
    c->acts = qn_gpu_new(groups * QN_ACTS_HILO_BYTES);
    c->acts_scale = qn_gpu_new(groups * QN_PERSISTENT_MAX_ROWS * sizeof(float));
    qn_assert_ok(qn_persistent_gpu_launch(&gpu, tiles, kernel_rows(n_rows, of_several), &c->launch));
    c->args = (qn_persistent_args){ .phases = c->array.data,
                                    .barrier = c->barrier.data,
                                    .n_phases = (uint32_t)c->n_phases,
                                    .n_rows = n_rows,
                                    .acts = c->acts.data,
                                    .acts_scale = c->acts_scale.data };
}

/* ---- Reference ---- */

/* Quantised activations of a GEMV and their tolerance: one step for values so near the middle between two codes that
 * float32 and float64 may round differently. */
struct operand {
    double *codes, *tolerance; /* codes: times the scale; tolerance: a step, or 0 */
    bool finite;
};

static void hadamard(double *x, size_t n)
{
    for (size_t d = 1; d < n; d *= 2)
        for (size_t i = 0; i < n; i++)
            if (!(i & d)) {
                const double a = x[i], b = x[i + d];
                x[i] = a + b;
                x[i + d] = a - b;
            }
    for (size_t i = 0; i < n; i++)
        x[i] /= sqrt((double)n);
}

/* Rounding error of float32, in steps: a sum of a few dozen partials, a Hadamard transform of 1024 and an exponential
 * have a few 1e-6 relative to amax of a group, which is 32767 steps. */
#define TIE_MARGIN 0.1

static void quantize_operand(const double *values, size_t n, double largest_code, struct operand *c)
{
    for (size_t group = 0; group < n; group += 128) {
        double largest = 0;
        for (size_t i = group; i < group + 128 && i < n; i++)
            largest = fmax(largest, fabs(values[i]));
        const double step = largest / largest_code;
        for (size_t i = group; i < group + 128 && i < n; i++) {
            const double in_steps = largest < (double)QN_MIN_GROUP_ABSMAX ? 0 : values[i] / step, code = rint(in_steps);
            c->codes[i] = code * step;
            c->tolerance[i] = fabs(fabs(in_steps - code) - 0.5) < TIE_MARGIN ? step : 0;
        }
    }
}

static double factor_of(const double *sumsq, size_t n, size_t n_cols)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += sumsq[i];
    return 1 / sqrt(sum / (double)n_cols + (double)eps);
}

/* Sums of a row's partials, [stride]. */
static double *reduce_partials(const qn_gpu_guarded *partials, size_t n_partials, size_t stride, size_t row)
{
    float *all = qn_gpu_read_floats(partials);
    double *sums = qn_xcalloc(stride, sizeof *sums);
    for (size_t i = 0; i < n_partials * stride; i++)
        sums[i % stride] += (double)all[row * n_partials * stride + i];
    free(all);
    return sums;
}

/* Of the codes of activations. */
static double largest_code(const struct matrix *matrix, bool of_several)
{
    return of_several ? QN_HILO_MAX : matrix->matrix.tiles.bits == 1 ? 32767 : 16383;
}

/* Compares the sum of a GEMV phase's partials of a row with the float64 product of the matrix and the quantised
 * values. */
static void check_gemv(const char *what, const struct matrix *matrix, const double *values, const qn_gpu_guarded *out,
                       const qn_persistent_gemv *p, double codes, size_t token)
{
    struct operand c = { qn_xcalloc(matrix->n_cols, sizeof(double)), qn_xcalloc(matrix->n_cols, sizeof(double)), true };
    float *weights = qn_xcalloc(matrix->n_cols, sizeof *weights);
    const size_t stride = matrix->matrix.n_tiles * QN_TILE_ROWS;
    double *found = reduce_partials(out, p->n_slices, stride, token);
    quantize_operand(values, matrix->n_cols, codes, &c);
    for (size_t row = 0; row < stride; row++) {
        double sum = 0, size = 0, tolerance = 0;
        if (matrix_row(matrix, row, weights))
            for (size_t k = 0; k < matrix->n_cols; k++) {
                const double term = (double)weights[k] * c.codes[k];
                sum += term;
                size += fabs(term);
                tolerance += fabs((double)weights[k]) * c.tolerance[k];
            }
        /* Bound for float32 sums: some thousand terms are summed as integers in the MMA, some hundred as floats; the
         * scales differ by one rounding. */
        qn_expect(fabs(found[row] - sum) <= 3e-6 * size + tolerance, "%s: row %zu of %zu is %g, expected %g within %g",
                  what, row, token, found[row], sum, 3e-6 * size + tolerance);
    }
    qn_expect(qn_gpu_guards_intact(out), "%s: bytes outside its partials were written", what);
    free(c.codes);
    free(c.tolerance);
    free(weights);
    free(found);
}

/* ---- The phases that are checked: RMS norm + gate and up; SwiGLU + down; RMS norm + last GEMV; stores ---- */

struct shape {
    size_t hidden, inner, rows;
    uint32_t rotation;
};

struct test_case {
    struct shape shape;
    uint32_t n_rows;
    bool of_several; /* the kernel of several rows, with one row too */
    struct matrix matrices[3];
    struct persistent persistent;
    float *x, *weights[2], *signs; /* x: [n_rows][hidden] */
    qn_gpu_guarded gpu_x, gpu_weights[2], gpu_signs, x_out[2], sumsq[2], out[3], stored[3];
    qn_persistent_gemv *gemvs[3];
};

/* Sums of squares of a row. */
static uint32_t n_sumsq(const qn_persistent_gemv *p, bool of_several)
{
    return of_several ? QN_PERSISTENT_ROWS_SUMSQ(p->n_cols) : p->n_slices;
}

static qn_persistent_gemv *add_gemv(struct test_case *c, size_t i, qn_persistent_gemv p)
{
    const qn_persistent_gpu gpu = qn_persistent_device();
    const struct matrix *a = &c->matrices[i];
    p.n_cols = (uint32_t)a->n_cols;
    p.n_tiles = (uint32_t)a->matrix.n_tiles;
    p.n_k_tiles = (uint32_t)((a->n_cols + QN_TILE_COLS - 1) / QN_TILE_COLS);
    p.weights = a->matrix.address;
    p.rotation = c->shape.rotation;
    p.signs = p.rotation ? c->gpu_signs.data : 0;
    qn_assert_ok(qn_persistent_gpu_partition(&gpu, &a->matrix.tiles, kernel_rows(c->n_rows, c->of_several), &p));
    c->out[i] = qn_gpu_new((size_t)c->n_rows * p.n_slices * p.n_tiles * QN_TILE_ROWS * sizeof(float));
    p.out = c->out[i].data;
    if (p.prologue == QN_PROLOGUE_RMS_NORM) {
        c->sumsq[i / 2] = qn_gpu_new(c->n_rows * n_sumsq(&p, c->of_several) * sizeof(float));
        p.sumsq = c->sumsq[i / 2].data;
    }
    if (c->of_several)
        c->persistent.phases[c->persistent.n_phases++] = (qn_persistent_phase){ .kind = QN_PHASE_ACTS, .u.gemv = p };
    qn_persistent_phase *phase = &c->persistent.phases[c->persistent.n_phases++];
    *phase = (qn_persistent_phase){ .kind = QN_PHASE_GEMV, .u.gemv = p };
    return &phase->u.gemv;
}

/* The partials of a GEMV, as later phases read them. */
static qn_persistent_partials partials_of(const qn_persistent_gemv *p, bool of_several)
{
    return (qn_persistent_partials){ .data = p->out,
                                     .sumsq = p->sumsq,
                                     .n_partials = p->n_slices,
                                     .stride = p->n_tiles * QN_TILE_ROWS,
                                     .n_sumsq = p->sumsq ? n_sumsq(p, of_several) : 0,
                                     .n_cols = p->n_cols,
                                     .eps = eps };
}

static struct test_case *case_new(const qn_type_info *type, struct shape shape, uint32_t n_rows, bool of_several)
{
    struct test_case *c = qn_xcalloc(1, sizeof *c);
    const size_t hidden = shape.hidden, inner = shape.inner, widest = hidden > inner ? hidden : inner;
    c->shape = shape;
    c->n_rows = n_rows;
    c->of_several = of_several;
    c->matrices[0] = matrix_new(type, hidden, 2, inner, inner);
    c->matrices[1] = matrix_new(type, inner, 1, hidden, 0);
    c->matrices[2] = matrix_new(type, hidden, 2, shape.rows, 7);
    c->x = qn_xcalloc(n_rows * hidden, sizeof *c->x);
    c->signs = qn_xcalloc(widest, sizeof *c->signs);
    qn_random_floats(c->x, n_rows * hidden, 2);
    for (size_t i = 0; i < widest; i++)
        c->signs[i] = qn_random() & 1 ? 1 : -1;
    c->gpu_x = qn_gpu_floats(c->x, n_rows * hidden);
    c->gpu_signs = qn_gpu_floats(c->signs, widest);
    for (size_t i = 0; i < 2; i++) {
        c->weights[i] = qn_xcalloc(hidden, sizeof *c->weights[i]);
        qn_random_floats(c->weights[i], hidden, 1);
        c->gpu_weights[i] = qn_gpu_floats(c->weights[i], hidden);
        c->x_out[i] = qn_gpu_new(n_rows * hidden * sizeof(float));
    }
    const size_t inner_tiles = qn_matmul_gpu_tile_count(inner), row_tiles = qn_matmul_gpu_tile_count(shape.rows);
    c->gemvs[0] = add_gemv(c, 0,
                           (qn_persistent_gemv){ .prologue = QN_PROLOGUE_RMS_NORM,
                                                 .x = c->gpu_x.data,
                                                 .x_out = c->x_out[0].data,
                                                 .weight = c->gpu_weights[0].data });
    c->gemvs[1] = add_gemv(c, 1,
                           (qn_persistent_gemv){ .prologue = QN_PROLOGUE_SWIGLU,
                                                 .from = partials_of(c->gemvs[0], of_several),
                                                 .row2 = (uint32_t)inner_tiles * QN_TILE_ROWS });
    c->gemvs[2] = add_gemv(c, 2,
                           (qn_persistent_gemv){ .prologue = QN_PROLOGUE_RMS_NORM,
                                                 .x = c->x_out[0].data,
                                                 .from = partials_of(c->gemvs[1], of_several),
                                                 .x_out = c->x_out[1].data,
                                                 .weight = c->gpu_weights[1].data });
    c->stored[0] = qn_gpu_new(n_rows * shape.rows * sizeof(float));
    c->stored[1] = qn_gpu_new(n_rows * 7 * sizeof(float));
    c->stored[2] = qn_gpu_new(n_rows * hidden * sizeof(float));
    c->persistent.phases[c->persistent.n_phases++] = (qn_persistent_phase){
        .kind = QN_PHASE_STORE,
        .u.store = { .from = partials_of(c->gemvs[2], of_several),
                     .n_outs = 2,
                     .outs = { { c->stored[0].data, 0, 0, (uint32_t)shape.rows },
                               { c->stored[1].data, 0, (uint32_t)row_tiles * QN_TILE_ROWS, 7 } } }
    };
    c->persistent.phases[c->persistent.n_phases++] = (qn_persistent_phase){
        .kind = QN_PHASE_STORE,
        .u.store = { .from = partials_of(c->gemvs[1], of_several),
                     .n_outs = 1,
                     .outs = { { c->stored[2].data, c->x_out[0].data, 0, (uint32_t)hidden } } }
    };
    persistent_ready(&c->persistent, &c->matrices[0].matrix.tiles, n_rows, of_several, widest);
    return c;
}

static void case_free(struct test_case *c)
{
    for (size_t i = 0; i < 3; i++) {
        matrix_free(&c->matrices[i]);
        qn_gpu_free(&c->out[i]);
        qn_gpu_free(&c->stored[i]);
    }
    for (size_t i = 0; i < 2; i++) {
        free(c->weights[i]);
        qn_gpu_free(&c->gpu_weights[i]);
        qn_gpu_free(&c->x_out[i]);
        qn_gpu_free(&c->sumsq[i]);
    }
    free(c->x);
    free(c->signs);
    qn_gpu_free(&c->gpu_x);
    qn_gpu_free(&c->gpu_signs);
    qn_gpu_free(&c->persistent.array);
    qn_gpu_free(&c->persistent.barrier);
    qn_gpu_free(&c->persistent.acts);
    qn_gpu_free(&c->persistent.acts_scale);
    free(c);
}

static void rotate(const struct test_case *c, double *values, size_t n)
{
    const size_t r = c->shape.rotation;
    for (size_t i = 0; r && i < n; i++)
        values[i] *= (double)c->signs[i];
    for (size_t i = 0; r && i < n; i += r)
        hadamard(values + i, r);
}

/* Checks a GEMV with RMS norm of a row; `x` is the expected residual stream. */
static void check_norm(const struct test_case *c, size_t i, const double *x, size_t row)
{
    const size_t hidden = c->shape.hidden, n = n_sumsq(c->gemvs[i], c->of_several);
    const size_t slice = c->of_several ? QN_ACTS_HILO_COLS : (size_t)c->gemvs[i]->slice_k_tiles * QN_TILE_COLS;
    double *values = qn_xcalloc(hidden, sizeof *values);
    float *all_kept = qn_gpu_read_floats(&c->x_out[i / 2]), *all_sumsq = qn_gpu_read_floats(&c->sumsq[i / 2]);
    const float *kept = all_kept + row * hidden, *sumsq = all_sumsq + row * n;
    for (size_t k = 0; k < hidden; k++) {
        qn_expect(fabs((double)kept[k] - x[k]) <= 1e-5 * (1 + fabs(x[k])),
                  "GEMV %zu, row %zu: x_out is %g at column %zu, expected %g", i, row, (double)kept[k], k, x[k]);
        values[k] = (double)kept[k] * (double)c->weights[i / 2][k];
    }
    for (size_t s = 0; s < n; s++) {
        double sum = 0;
        for (size_t k = s * slice; k < hidden && k < (s + 1) * slice; k++)
            sum += (double)kept[k] * (double)kept[k];
        qn_expect(fabs((double)sumsq[s] - sum) <= 1e-5 * sum,
                  "GEMV %zu, row %zu, slice %zu: sum of squares is %g, expected %g", i, row, s, (double)sumsq[s], sum);
    }
    rotate(c, values, hidden);
    check_gemv(i ? "last GEMV" : "gate and up", &c->matrices[i], values, &c->out[i], c->gemvs[i],
               largest_code(&c->matrices[i], c->of_several), row);
    qn_expect(qn_gpu_guards_intact(&c->x_out[i / 2]) && qn_gpu_guards_intact(&c->sumsq[i / 2]),
              "bytes outside x_out or sumsq were written");
    free(values);
    free(all_kept);
    free(all_sumsq);
}

static double factor_after(const struct test_case *c, size_t i, size_t row)
{
    const size_t n = n_sumsq(c->gemvs[i], c->of_several);
    float *sumsq = qn_gpu_read_floats(&c->sumsq[i / 2]);
    double *wide = qn_xcalloc(n, sizeof *wide);
    for (size_t s = 0; s < n; s++)
        wide[s] = (double)sumsq[row * n + s];
    const double factor = factor_of(wide, n, c->shape.hidden);
    free(sumsq);
    free(wide);
    return factor;
}

static void expect_stored(const struct test_case *c, size_t i, const double *expected, size_t n, size_t row)
{
    float *all = qn_gpu_read_floats(&c->stored[i]);
    const float *found = all + row * n;
    double size = 0;
    for (size_t k = 0; k < n; k++)
        size = fmax(size, fabs(expected[k]));
    for (size_t k = 0; k < n; k++) /* the reference adds the partials in float64 */
        qn_expect(fabs((double)found[k] - expected[k]) <= 1e-5 * size,
                  "stored %zu, row %zu, element %zu is %g, expected %g", i, row, k, (double)found[k], expected[k]);
    qn_expect(qn_gpu_guards_intact(&c->stored[i]), "bytes outside stored %zu were written", i);
    free(all);
}

static void check_phases(const struct test_case *c, size_t row)
{
    const size_t hidden = c->shape.hidden, inner = c->shape.inner;
    const size_t strides[3] = { c->matrices[0].matrix.n_tiles * 16, c->matrices[1].matrix.n_tiles * 16,
                                c->matrices[2].matrix.n_tiles * 16 };
    double *x = qn_xcalloc(hidden, sizeof *x), *values = qn_xcalloc(inner, sizeof *values);
    for (size_t k = 0; k < hidden; k++)
        x[k] = (double)c->x[row * hidden + k];
    check_norm(c, 0, x, row);

    double *both = reduce_partials(&c->out[0], c->gemvs[0]->n_slices, strides[0], row);
    double factor = factor_after(c, 0, row);
    for (size_t k = 0; k < inner; k++) {
        const double gate = factor * both[k], up = factor * both[c->gemvs[1]->row2 + k];
        values[k] = gate / (1 + exp(-gate)) * up;
    }
    rotate(c, values, inner);
    check_gemv("down", &c->matrices[1], values, &c->out[1], c->gemvs[1], largest_code(&c->matrices[1], c->of_several),
               row);

    double *down = reduce_partials(&c->out[1], c->gemvs[1]->n_slices, strides[1], row);
    for (size_t k = 0; k < hidden; k++)
        x[k] += down[k];
    expect_stored(c, 2, x, hidden, row);
    check_norm(c, 2, x, row);

    double *last = reduce_partials(&c->out[2], c->gemvs[2]->n_slices, strides[2], row);
    factor = factor_after(c, 2, row);
    for (size_t k = 0; k < strides[2]; k++)
        last[k] *= factor;
    expect_stored(c, 0, last, c->shape.rows, row);
    expect_stored(c, 1, last + qn_matmul_gpu_tile_count(c->shape.rows) * QN_TILE_ROWS, 7, row);
    free(x);
    free(values);
    free(both);
    free(down);
    free(last);
}

static void run_persistent(const struct test_case *c)
{
    for (size_t i = 0; i < 3; i++) {
        qn_gpu_poison(&c->out[i]);
        qn_gpu_poison(&c->stored[i]);
    }
    for (size_t i = 0; i < 2; i++) {
        qn_gpu_poison(&c->x_out[i]);
        qn_gpu_poison(&c->sumsq[i]);
    }
    qn_gpu_launch(&c->persistent.launch, &c->persistent.args);
    qn_gpu_synchronize();
}

/* n_rows 0: the kernel of one row. */
static void check_persistent(const qn_type_info *type, struct shape shape, uint32_t n_rows)
{
    if (!qn_case_selected())
        return;
    struct test_case *c = case_new(type, shape, n_rows ? n_rows : 1, n_rows > 0);
    uint32_t arrived;
    qn_case_begin("persistent", n_rows ? "rows" : "cuda", "%s, %zu and %zu columns, %zu rows, rotation %u, tokens %u",
                  type->name, shape.hidden, shape.inner, shape.rows, shape.rotation, c->n_rows);
    run_persistent(c);
    for (size_t row = 0; row < c->n_rows; row++)
        check_phases(c, row);
    qn_gpu_read(&c->persistent.barrier, &arrived);
    qn_expect(arrived == 0, "the barrier counter is %u after the launch, expected 0", arrived);
    float *first[3], *again[3];
    for (size_t i = 0; i < 3; i++)
        first[i] = qn_gpu_read_floats(&c->stored[i]);
    run_persistent(c);
    for (size_t i = 0; i < 3; i++) {
        again[i] = qn_gpu_read_floats(&c->stored[i]);
        qn_expect(!memcmp(first[i], again[i], c->stored[i].bytes), "two runs differ in stored %zu", i);
        free(first[i]);
        free(again[i]);
    }
    case_free(c);
}

static void check_refusals(void)
{
    const qn_persistent_gpu gpu = qn_persistent_device();
    const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(qn_type_find(QN_TYPE_Q1_0));
    const qn_tile_layout bytes = qn_matmul_gpu_tile_layout(qn_type_find(QN_TYPE_Q8_0));
    qn_persistent_gemv p = { .n_cols = 1024, .n_tiles = 8, .n_k_tiles = 4 };
    qn_launch launch;
    qn_case_begin("persistent", "cuda", "rejected arguments");
    qn_expect(!qn_persistent_gpu_supports(&gpu, &bytes, 1) &&
                  qn_persistent_gpu_launch(&gpu, &bytes, 1, &launch) == QN_ERR_UNSUPPORTED,
              "8-bit weights were accepted");
    qn_expect(!qn_persistent_gpu_supports(&(qn_persistent_gpu){ 108, 48 << 10, 8 }, &tiles, 1),
              "a device with too little shared memory was accepted");
    static const uint32_t rotations[] = { 16, 2048, 96 };
    for (size_t i = 0; i < 3; i++) {
        p.rotation = rotations[i];
        qn_expect(qn_persistent_gpu_partition(&gpu, &tiles, 1, &p) == QN_ERR_UNSUPPORTED,
                  "a rotation of %u was accepted", rotations[i]);
    }
    p = (qn_persistent_gemv){ .n_cols = 1024, .n_tiles = 1 << 20, .n_k_tiles = 4 };
    qn_expect(qn_persistent_gpu_partition(&gpu, &tiles, 1, &p) == QN_ERR_UNSUPPORTED,
              "accumulators larger than the scratch were accepted");
}

/* ---- Speed ---- */

/* The four GEMVs of a model's layer: qkv (RMS norm), output (plain), gate and up (RMS norm), down (SwiGLU). */
struct model {
    const char *name;
    uint32_t hidden, middle, inner, first_rows, rotation;
};

static void bench_layers(const qn_type_info *type, const struct model *m, uint32_t gemv_mask, uint32_t n_rows)
{
    enum { LAYERS = 8 };
    const qn_persistent_gpu gpu = qn_persistent_device();
    const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(type);
    const uint32_t rows[4] = { m->first_rows, m->hidden, 2 * m->inner, m->hidden };
    const uint32_t cols[4] = { m->hidden, m->middle, m->hidden, m->inner };
    qn_persistent_gemv gemvs[4] = { { .prologue = QN_PROLOGUE_RMS_NORM },
                                    { .prologue = QN_PROLOGUE_PLAIN },
                                    { .prologue = QN_PROLOGUE_RMS_NORM },
                                    { .prologue = QN_PROLOGUE_SWIGLU } };
    size_t bytes[4], layer = 0;
    qn_gpu_guarded out[4], sumsq[4], x[2], plain, weight;
    const bool of_several = n_rows > 1;
    for (size_t i = 0; i < 4; i++) {
        qn_persistent_gemv *p = &gemvs[i];
        p->n_cols = cols[i];
        p->n_tiles = rows[i] / QN_TILE_ROWS;
        p->n_k_tiles = cols[i] / QN_TILE_COLS;
        p->rotation = m->rotation;
        qn_assert_ok(qn_persistent_gpu_partition(&gpu, &tiles, n_rows, p));
        qn_assert_ok(qn_matmul_gpu_bytes(&tiles, p->n_tiles, cols[i], &bytes[i]));
        layer += qn_round_up(bytes[i], 256);
        out[i] = qn_gpu_new((size_t)n_rows * p->n_slices * rows[i] * sizeof(float));
        sumsq[i] = qn_gpu_new(n_rows * n_sumsq(p, of_several) * sizeof(float));
        qn_gpu_random(&out[i]);
        p->out = out[i].data;
    }
    qn_gpu_guarded matrix = qn_gpu_new(layer * LAYERS);
    plain = qn_gpu_new(n_rows * (m->middle + m->inner) * sizeof(float));
    weight = qn_gpu_new(m->hidden * sizeof(float));
    for (size_t i = 0; i < 2; i++) {
        x[i] = qn_gpu_new(n_rows * m->hidden * sizeof(float));
        qn_gpu_random(&x[i]);
    }
    qn_gpu_random(&matrix);
    qn_gpu_random(&plain);
    qn_gpu_random(&weight);
    gemvs[0].sumsq = sumsq[0].data;
    gemvs[2].sumsq = sumsq[2].data;
    qn_persistent_phase phases[2 * 4 * LAYERS] = { 0 };
    uint64_t at = matrix.data;
    size_t n = 0;
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < 4; i++) {
            if (!(gemv_mask >> i & 1))
                continue;
            qn_persistent_gemv p = gemvs[i];
            p.weights = at;
            at += qn_round_up(bytes[i], 256);
            p.weight = weight.data;
            p.signs = m->rotation ? weight.data : 0;
            if (i % 2 == 0) {
                p.x = x[i / 2].data;
                p.x_out = x[1 - i / 2].data;
                if (l || i)
                    p.from = partials_of(&gemvs[(i + 3) % 4], of_several);
            } else if (i == 1) {
                p.x = plain.data;
            } else {
                p.from = partials_of(&gemvs[2], of_several);
                p.row2 = m->inner;
            }
            if (of_several)
                phases[n++] = (qn_persistent_phase){ .kind = QN_PHASE_ACTS, .u.gemv = p };
            phases[n++] = (qn_persistent_phase){ .kind = QN_PHASE_GEMV, .u.gemv = p };
        }
    link_gemvs(phases, n);
    const size_t groups = m->inner / QN_ACTS_HILO_COLS; /* of the widest operand */
    qn_gpu_guarded array = qn_gpu_from(phases, n * sizeof *phases),
                   barrier = qn_gpu_from(&(uint32_t){ 0 }, sizeof(uint32_t)),
                   acts = qn_gpu_new(groups * QN_ACTS_HILO_BYTES),
                   acts_scale = qn_gpu_new(groups * QN_PERSISTENT_MAX_ROWS * sizeof(float));
    qn_persistent_timed t = { .args = { .phases = array.data,
                                        .barrier = barrier.data,
                                        .n_phases = (uint32_t)n,
                                        .n_rows = n_rows,
                                        .acts = acts.data,
                                        .acts_scale = acts_scale.data } };
    qn_assert_ok(qn_persistent_gpu_launch(&gpu, &tiles, n_rows, &t.launch));
    char shape[96];
    double read = 0;
    for (size_t i = 0; i < 4; i++)
        read += gemv_mask >> i & 1 ? (double)bytes[i] * LAYERS : 0;
    snprintf(shape, sizeof shape, "%s %s%s, %u rows, %d layers, GEMVs %x (%ux%u %ux%u %ux%u %ux%u)", type->name,
             m->name, m->rotation ? " rotated" : "", n_rows, LAYERS, gemv_mask, gemvs[0].n_slices,
             gemvs[0].slice_blocks, gemvs[1].n_slices, gemvs[1].slice_blocks, gemvs[2].n_slices, gemvs[2].slice_blocks,
             gemvs[3].n_slices, gemvs[3].slice_blocks);
    qn_gpu_bench("persistent", "cuda", shape, read, "B", qn_gpu_read_rate(), qn_persistent_iteration, &t, 1);
    for (size_t i = 0; i < 4; i++) {
        qn_gpu_free(&out[i]);
        qn_gpu_free(&sumsq[i]);
    }
    qn_gpu_free(&x[0]);
    qn_gpu_free(&x[1]);
    qn_gpu_free(&plain);
    qn_gpu_free(&weight);
    qn_gpu_free(&matrix);
    qn_gpu_free(&array);
    qn_gpu_free(&barrier);
    qn_gpu_free(&acts);
    qn_gpu_free(&acts_scale);
}

static void bench(void)
{
    static const struct model models[] = {
        { "27b", 5120, 6144, 17408, 16384, 0 },
        { "27b", 5120, 6144, 17408, 16384, 1024 },
        { "8b", 4096, 4096, 12288, 6144, 0 },
    };
    static const qn_type types[] = { QN_TYPE_Q1_0, QN_TYPE_PQ2_0, QN_TYPE_Q2_0 };
    static const uint32_t rows[] = { 1, 2, 8 };
    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < 3; i++)
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                bench_layers(qn_type_find(types[t]), &models[i], 15, rows[r]);
    for (uint32_t one = 1; one < 16; one *= 2)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            bench_layers(qn_type_find(QN_TYPE_Q1_0), &models[0], one, rows[r]);
}

void qn_check_cuda_persistent(bool with_bench)
{
    static const qn_type types[] = { QN_TYPE_Q1_0, QN_TYPE_Q2_0, QN_TYPE_PQ2_0 };
    static const struct shape shapes[] = {
        { 128, 128, 1, 0 },       { 256, 512, 16, 0 },       { 384, 640, 100, 0 },    { 1024, 2176, 250, 0 },
        { 2048, 1152, 17, 0 },    { 5120, 2304, 300, 0 },    { 1536, 8704, 5000, 0 }, { 256, 512, 33, 32 },
        { 256, 1536, 33, 64 },    { 512, 1024, 40, 128 },    { 1024, 1536, 20, 256 }, { 2048, 1024, 9, 512 },
        { 2048, 4096, 70, 1024 }, { 1024, 5120, 250, 1024 },
    };
    static const uint32_t rows[] = { 0, 1, 2, 3, 8 };
    const qn_persistent_gpu gpu = qn_persistent_device();
    for (size_t t = 0; t < 3; t++) {
        const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(qn_type_find(types[t]));
        if (!qn_persistent_gpu_supports(&gpu, &tiles, 1))
            continue;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            qn_random_seed(100 * t + i);
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
                check_persistent(qn_type_find(types[t]), shapes[i], rows[r]);
        }
    }
    check_refusals();
    if (with_bench && qn_persistent_gpu_supports(&gpu, &(qn_tile_layout){ .bits = 1, .n_scales = 2 }, 1))
        bench();
}
