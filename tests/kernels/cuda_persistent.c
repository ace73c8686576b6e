/* GEMV and store phases of the persistent decode kernel. Each phase's output is compared with a float64 computation on
 * the GPU's output of the previous phase, so that errors do not accumulate. Benchmarks: GEMVs of real models' shapes,
 * many layers in one launch. */
#include "cuda_persistent.h"

#include "base/memory.h"
#include "kernels/matmul/matmul.h"

/* ---- A launch ---- */

enum { MAX_PHASES = 8 }; /* three GEMVs with three phases of activations; two stores */

struct persistent {
    qn_persistent_phase phases[MAX_PHASES];
    size_t n_phases;
    qn_launch launch;
    qn_persistent_args args;
};

/* The kernel of one row, or that of several with any number of rows. */
static uint32_t kernel_rows(uint32_t n_rows, bool of_several)
{
    return of_several && n_rows < 2 ? 2 : n_rows;
}

/* Arguments of a launch whose widest operand has `groups` groups of columns with a scale each. */
static qn_persistent_args args_of(qn_persistent_phase *phases, size_t n, uint32_t n_rows, size_t groups)
{
    return (qn_persistent_args){ .phases = qn_persistent_link(phases, n),
                                 .barrier = qn_persistent_barrier(),
                                 .n_phases = (uint32_t)n,
                                 .n_rows = n_rows,
                                 .acts = qn_gpu_new(groups * QN_ACTS_HILO_BYTES),
                                 .acts_scale = qn_gpu_floats(groups * QN_PERSISTENT_MAX_ROWS) };
}

/* ---- Reference ---- */

/* Quantised activations of a GEMV and their tolerance: one step for values so near the middle between two codes that
 * float32 and float64 may round differently. */
struct operand {
    double *codes, *tolerance; /* codes: times the scale; tolerance: a step, or 0 */
};

/* Dequantises one row of the tiles; false if it is padding after the last row of a matrix. */
static bool tiles_row(const struct gpu_weights *w, size_t row, float *weights)
{
    size_t i = w->n_matrices - 1;
    while (row < w->first_row[i])
        i--;
    if (row - w->first_row[i] >= w->n_rows[i])
        return false;
    qn_check_weights_row(w, i, row - w->first_row[i], weights);
    return true;
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

/* Sums of a row's partials, [stride]. */
static double *reduce_partials(const qn_persistent_gemv *p, size_t row)
{
    const size_t stride = p->n_tiles * QN_TILE_ROWS, n = p->n_slices * stride;
    const float *all = qn_gpu_read(p->out);
    double *sums = qn_doubles(stride);
    for (size_t i = 0; i < n; i++)
        sums[i % stride] += (double)all[row * n + i];
    return sums;
}

/* Compares the sum of a GEMV phase's partials of a row with the float64 product of the matrix and the quantised
 * values. */
static void check_gemv(const char *what, const struct gpu_weights *w, const double *values, const qn_persistent_gemv *p,
                       bool of_several, size_t token)
{
    struct operand c = { qn_doubles(w->n_cols), qn_doubles(w->n_cols) };
    float *weights = qn_floats(w->n_cols);
    const double *found = reduce_partials(p, token);
    const qn_persistent_gpu gpu = qn_persistent_device();
    quantize_operand(values, w->n_cols, qn_persistent_gpu_code_max(&gpu, &w->matrix.tiles, of_several ? 2 : 1), &c);
    for (size_t row = 0; row < w->matrix.n_tiles * QN_TILE_ROWS; row++) {
        double sum = 0, size = 0, tolerance = 0;
        if (tiles_row(w, row, weights))
            for (size_t k = 0; k < w->n_cols; k++) {
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
    struct gpu_weights matrices[3];
    struct persistent persistent;
    float *x, *weights[2], *signs; /* x: [n_rows][hidden] */
    uint64_t gpu_signs, stored[3];
    qn_persistent_gemv *gemvs[3];
};

static qn_persistent_phase *add_phase(struct test_case *c, qn_persistent_phase phase)
{
    c->persistent.phases[c->persistent.n_phases] = phase;
    return &c->persistent.phases[c->persistent.n_phases++];
}

/* Adds a GEMV; its prologue is set. */
static void add_gemv(struct test_case *c, size_t i, qn_persistent_gemv p)
{
    const struct gpu_weights *w = &c->matrices[i];
    p.rotation = c->shape.rotation;
    p.signs = p.rotation ? c->gpu_signs : 0;
    qn_persistent_set(&p, &w->matrix.tiles, w->matrix.address, w->matrix.n_tiles, w->n_cols,
                      kernel_rows(c->n_rows, c->of_several));
    p.out = qn_gpu_floats((size_t)c->n_rows * p.n_slices * p.n_tiles * QN_TILE_ROWS);
    if (p.prologue == QN_PROLOGUE_RMS_NORM) {
        p.x_out = qn_gpu_floats(c->n_rows * c->shape.hidden);
        p.weight = qn_gpu_copy(c->weights[i / 2]);
        p.sumsq = qn_gpu_floats(c->n_rows * qn_persistent_sumsq(&p, c->of_several));
    }
    if (c->of_several)
        add_phase(c, (qn_persistent_phase){ .kind = QN_PHASE_ACTS, .u.gemv = p });
    c->gemvs[i] = &add_phase(c, (qn_persistent_phase){ .kind = QN_PHASE_GEMV, .u.gemv = p })->u.gemv;
}

static struct test_case *case_new(const qn_type_info *type, struct shape shape, uint32_t n_rows, bool of_several)
{
    struct test_case *c = qn_new(1, sizeof *c);
    const size_t hidden = shape.hidden, inner = shape.inner, widest = hidden > inner ? hidden : inner;
    *c = (struct test_case){ .shape = shape, .n_rows = n_rows, .of_several = of_several };
    c->matrices[0] = qn_check_weights_new(type, hidden, 2, (size_t[]){ inner, inner }, 0.1f);
    c->matrices[1] = qn_check_weights_new(type, inner, 1, &hidden, 0.1f);
    c->matrices[2] = qn_check_weights_new(type, hidden, 2, (size_t[]){ shape.rows, 7 }, 0.1f);
    c->x = qn_floats_of(n_rows * hidden, 2);
    c->signs = qn_signs_of(widest);
    c->gpu_signs = qn_gpu_copy(c->signs);
    for (size_t i = 0; i < 2; i++)
        c->weights[i] = qn_floats_of(hidden, 1);
    add_gemv(c, 0, (qn_persistent_gemv){ .prologue = QN_PROLOGUE_RMS_NORM, .x = qn_gpu_copy(c->x) });
    add_gemv(c, 1,
             (qn_persistent_gemv){ .prologue = QN_PROLOGUE_SWIGLU,
                                   .from = qn_persistent_partials_of(c->gemvs[0], of_several),
                                   .row2 = (uint32_t)c->matrices[0].first_row[1] });
    const qn_persistent_partials down = qn_persistent_partials_of(c->gemvs[1], of_several);
    add_gemv(c, 2, (qn_persistent_gemv){ .prologue = QN_PROLOGUE_RMS_NORM, .x = c->gemvs[0]->x_out, .from = down });
    c->stored[0] = qn_gpu_floats(n_rows * shape.rows);
    c->stored[1] = qn_gpu_floats(n_rows * 7);
    c->stored[2] = qn_gpu_floats(n_rows * hidden);
    add_phase(c, (qn_persistent_phase){
                     .kind = QN_PHASE_STORE,
                     .u.store = { .from = qn_persistent_partials_of(c->gemvs[2], of_several),
                                  .n_outs = 2,
                                  .outs = { { c->stored[0], 0, 0, (uint32_t)shape.rows },
                                            { c->stored[1], 0, (uint32_t)c->matrices[2].first_row[1], 7 } } } });
    add_phase(c, (qn_persistent_phase){
                     .kind = QN_PHASE_STORE,
                     .u.store = { .from = down,
                                  .n_outs = 1,
                                  .outs = { { c->stored[2], c->gemvs[0]->x_out, 0, (uint32_t)hidden } } } });
    c->persistent.launch = qn_persistent_launch(&c->matrices[0].matrix.tiles, kernel_rows(n_rows, of_several));
    c->persistent.args = args_of(c->persistent.phases, c->persistent.n_phases, n_rows,
                                 qn_round_up(widest, QN_TILE_COLS) / QN_ACTS_HILO_COLS);
    return c;
}

static void rotate(const struct test_case *c, double *values, size_t n)
{
    const size_t r = c->shape.rotation;
    if (r)
        qn_check_hadamard_f64(values, c->signs, n, r);
}

/* Checks a GEMV with RMS norm of a row; `x` is the expected residual stream. Returns the norm's factor. */
static double check_norm(const struct test_case *c, size_t i, const double *x, size_t row)
{
    const qn_persistent_gemv *p = c->gemvs[i];
    const size_t hidden = c->shape.hidden, n = qn_persistent_sumsq(p, c->of_several);
    const size_t slice = c->of_several ? QN_ACTS_HILO_COLS : (size_t)p->slice_k_tiles * QN_TILE_COLS;
    double *values = qn_doubles(hidden), all = 0;
    const float *kept = (float *)qn_gpu_read(p->x_out) + row * hidden,
                *sumsq = (float *)qn_gpu_read(p->sumsq) + row * n;
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
        all += (double)sumsq[s];
    }
    rotate(c, values, hidden);
    check_gemv(i ? "last GEMV" : "gate and up", &c->matrices[i], values, p, c->of_several, row);
    return 1 / sqrt(all / (double)hidden + (double)QN_PERSISTENT_EPS);
}

static void expect_stored(const struct test_case *c, size_t i, const double *expected, size_t n, size_t row)
{
    const float *found = (float *)qn_gpu_read(c->stored[i]) + row * n;
    double size = 0;
    for (size_t k = 0; k < n; k++)
        size = fmax(size, fabs(expected[k]));
    for (size_t k = 0; k < n; k++) /* the reference adds the partials in float64 */
        qn_expect(fabs((double)found[k] - expected[k]) <= 1e-5 * size,
                  "stored %zu, row %zu, element %zu is %g, expected %g", i, row, k, (double)found[k], expected[k]);
}

static void check_phases(const struct test_case *c, size_t row)
{
    const size_t hidden = c->shape.hidden, inner = c->shape.inner, mark = qn_mark();
    double *x = qn_doubles(hidden), *values = qn_doubles(inner);
    for (size_t k = 0; k < hidden; k++)
        x[k] = (double)c->x[row * hidden + k];
    double factor = check_norm(c, 0, x, row);

    const double *both = reduce_partials(c->gemvs[0], row);
    for (size_t k = 0; k < inner; k++) {
        const double gate = factor * both[k], up = factor * both[c->gemvs[1]->row2 + k];
        values[k] = gate / (1 + exp(-gate)) * up;
    }
    rotate(c, values, inner);
    check_gemv("down", &c->matrices[1], values, c->gemvs[1], c->of_several, row);

    const double *down = reduce_partials(c->gemvs[1], row);
    for (size_t k = 0; k < hidden; k++)
        x[k] += down[k];
    expect_stored(c, 2, x, hidden, row);
    factor = check_norm(c, 2, x, row);

    double *last = reduce_partials(c->gemvs[2], row);
    for (size_t k = 0; k < c->gemvs[2]->n_tiles * QN_TILE_ROWS; k++)
        last[k] *= factor;
    expect_stored(c, 0, last, c->shape.rows, row);
    expect_stored(c, 1, last + c->matrices[2].first_row[1], 7, row);
    qn_release_to(mark);
}

static void run_persistent(const struct test_case *c)
{
    for (size_t i = 0; i < 3; i++)
        qn_gpu_poison(c->gemvs[i]->out, c->stored[i], c->gemvs[i]->x_out, c->gemvs[i]->sumsq);
    qn_gpu_launch(&c->persistent.launch, &c->persistent.args);
}

/* n_rows 0: the kernel of one row. */
static void check_persistent(const qn_type_info *type, struct shape shape, uint32_t n_rows)
{
    if (!qn_case_selected())
        return;
    struct test_case *c = case_new(type, shape, n_rows ? n_rows : 1, n_rows > 0);
    const float *first[3];
    qn_case_begin("persistent", n_rows ? "rows" : "cuda", "%s, %zu and %zu columns, %zu rows, rotation %u, tokens %u",
                  type->name, shape.hidden, shape.inner, shape.rows, shape.rotation, c->n_rows);
    run_persistent(c);
    for (size_t row = 0; row < c->n_rows; row++)
        check_phases(c, row);
    qn_persistent_expect_barrier(c->persistent.args.barrier);
    for (size_t i = 0; i < 3; i++)
        first[i] = qn_gpu_read(c->stored[i]);
    run_persistent(c);
    for (size_t i = 0; i < 3; i++)
        qn_expect(!memcmp(first[i], qn_gpu_read(c->stored[i]), qn_gpu_bytes(c->stored[i])),
                  "two runs differ in stored %zu", i);
    qn_release();
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
    qn_expect(!qn_persistent_gpu_supports(&(qn_persistent_gpu){ 108, 48 << 10, 8, true }, &tiles, 1),
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
    const qn_tile_layout tiles = qn_matmul_gpu_tile_layout(type);
    const uint32_t rows[4] = { m->first_rows, m->hidden, 2 * m->inner, m->hidden };
    const uint32_t cols[4] = { m->hidden, m->middle, m->hidden, m->inner };
    qn_persistent_gemv gemvs[4] = { { .prologue = QN_PROLOGUE_RMS_NORM },
                                    { .prologue = QN_PROLOGUE_PLAIN },
                                    { .prologue = QN_PROLOGUE_RMS_NORM },
                                    { .prologue = QN_PROLOGUE_SWIGLU } };
    size_t bytes[4], layer = 0, n = 0;
    double read = 0;
    const bool of_several = n_rows > 1;
    for (size_t i = 0; i < 4; i++) {
        qn_persistent_gemv *p = &gemvs[i];
        p->rotation = m->rotation;
        qn_persistent_set(p, &tiles, 0, rows[i] / QN_TILE_ROWS, cols[i], n_rows);
        qn_assert_ok(qn_matmul_gpu_bytes(&tiles, p->n_tiles, cols[i], &bytes[i]));
        read += gemv_mask >> i & 1 ? (double)bytes[i] * LAYERS : 0;
        bytes[i] = qn_round_up(bytes[i], 256);
        layer += bytes[i];
        p->out = qn_gpu_random((size_t)n_rows * p->n_slices * rows[i] * sizeof(float));
        p->sumsq = i % 2 ? 0 : qn_gpu_floats(n_rows * qn_persistent_sumsq(p, of_several));
    }
    const uint64_t x[2] = { qn_gpu_random(n_rows * m->hidden * sizeof(float)),
                            qn_gpu_random(n_rows * m->hidden * sizeof(float)) };
    uint64_t at = qn_gpu_random(layer * LAYERS);
    const uint64_t plain = qn_gpu_random(n_rows * (m->middle + m->inner) * sizeof(float)),
                   weight = qn_gpu_random(m->hidden * sizeof(float));
    qn_persistent_phase phases[2 * 4 * LAYERS] = { 0 };
    for (size_t l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < 4; i++) {
            if (!(gemv_mask >> i & 1))
                continue;
            qn_persistent_gemv p = gemvs[i];
            p.weights = at;
            at += bytes[i];
            p.weight = weight;
            p.signs = m->rotation ? weight : 0;
            if (i % 2 == 0) {
                p.x = x[i / 2];
                p.x_out = x[1 - i / 2];
                if (l || i)
                    p.from = qn_persistent_partials_of(&gemvs[(i + 3) % 4], of_several);
            } else if (i == 1) {
                p.x = plain;
            } else {
                p.from = qn_persistent_partials_of(&gemvs[2], of_several);
                p.row2 = m->inner;
            }
            if (of_several)
                phases[n++] = (qn_persistent_phase){ .kind = QN_PHASE_ACTS, .u.gemv = p };
            phases[n++] = (qn_persistent_phase){ .kind = QN_PHASE_GEMV, .u.gemv = p };
        }
    const qn_persistent_args args = args_of(phases, n, n_rows, m->inner / QN_ACTS_HILO_COLS);
    const char *shape = qn_text("%s %s%s, %u rows, %d layers, GEMVs %x (%ux%u %ux%u %ux%u %ux%u)", type->name, m->name,
                                m->rotation ? " rotated" : "", n_rows, LAYERS, gemv_mask, gemvs[0].n_slices,
                                gemvs[0].slice_blocks, gemvs[1].n_slices, gemvs[1].slice_blocks, gemvs[2].n_slices,
                                gemvs[2].slice_blocks, gemvs[3].n_slices, gemvs[3].slice_blocks);
    qn_gpu_bench_launches("persistent", "cuda", shape, read, "B", qn_gpu_read_rate(),
                          &(qn_gpu_timed){ .launch = qn_persistent_launch(&tiles, n_rows), .args = &args }, 1, 1);
    qn_release();
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
    const size_t n_rows = qn_persistent_supported(2) ? QN_LENGTH(rows) : 1;
    for (size_t t = 0; t < 3; t++)
        for (size_t i = 0; i < 3; i++)
            for (size_t r = 0; r < n_rows; r++)
                bench_layers(qn_type_find(types[t]), &models[i], 15, rows[r]);
    for (uint32_t one = 1; one < 16; one *= 2)
        for (size_t r = 0; r < n_rows; r++)
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
        for (size_t i = 0; i < QN_LENGTH(shapes); i++) {
            qn_random_seed(100 * t + i);
            for (size_t r = 0; r < QN_LENGTH(rows); r++)
                if (!rows[r] || qn_persistent_supported(2))
                    check_persistent(qn_type_find(types[t]), shapes[i], rows[r]);
        }
    }
    check_refusals();
    if (with_bench && qn_persistent_gpu_supports(&gpu, &(qn_tile_layout){ .bits = 1, .n_scales = 2 }, 1))
        bench();
}
