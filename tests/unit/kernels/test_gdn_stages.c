/* Each stage of the chunked delta rule against its formula in float64, with the rounding points that quern/kernels.h
 * names, on the actual inputs of the stage. test_gdn_chunk.c tests whole chunks. */
#include "helper_gdn.h"

#include "kernels/deltanet/row_kernels.h"

#include "base/cpu.h"

/* Sums of up to 256 terms in f32, and exponentials within 2e-7. Measured: 3e-7. */
#define BAR_F32 2e-6
/* An error of an f32 sum occasionally crosses a rounding boundary. Measured: 4e-5. A missing or additional rounding
 * point costs 5e-4 or more. */
#define BAR_BF16 2e-4
/* Rounding boundaries are eight times as dense. Measured: 1e-4, for equal keys, where all scores of a row change
 * together. */
#define BAR_F16 1.2e-4

static double bar_of(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? BAR_F32 : dtype == QN_DTYPE_F16 ? BAR_F16 : BAR_BF16;
}

/* ---- Iteration over chunks ---- */

/* The problem, and the results of its stages. */
static struct {
    gdn_problem p;
    qn_view gc, a, inverse, w, u, h, v_new;
} stages;

/* The chunk of a value head that the formulas below compute. */
static struct {
    size_t row, n, head, key_head, chunk, sequence;
} place;

static void each_chunk(void (*work)(double *out), double *out)
{
    const gdn_problem *p = &stages.p;
    size_t chunk = 0;
    for (size_t q = 0; q < p->n_sequences; q++) {
        size_t n;
        const size_t first = gdn_sequence(p, q, &n);
        for (size_t from = 0; from < n; from += 64, chunk++)
            for (size_t h = 0; h < p->shape.v_heads; h++) {
                place.row = first + from;
                place.n = n - from < 64 ? n - from : 64;
                place.head = h;
                place.key_head = gdn_key_head(&p->shape, h);
                place.chunk = chunk;
                place.sequence = q;
                work(out);
            }
    }
}

static double *truth(size_t n)
{
    double *x = malloc(n * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (double)NAN;
    return x;
}

static size_t gate_at(size_t i)
{
    return (place.row + i) * stages.p.shape.v_heads + place.head;
}

static double key(qn_view view, size_t i, size_t d)
{
    return gdn_get(view, ((place.row + i) * stages.p.shape.k_heads + place.key_head) * stages.p.shape.head_k + d);
}

static double value(qn_view view, size_t i, size_t x)
{
    return gdn_get(view, gate_at(i) * stages.p.shape.head_v + x);
}

static double decay(size_t i, size_t j)
{
    return exp(gdn_get(stages.gc, gate_at(i)) - gdn_get(stages.gc, gate_at(j)));
}

static size_t chunk_state(void)
{
    return (place.chunk * stages.p.shape.v_heads + place.head) * stages.p.shape.head_v * stages.p.shape.head_k;
}

/* ---- The formulas ---- */

static void cumsum_true(double *gc)
{
    double sum = 0;
    for (size_t i = 0; i < place.n; i++)
        gc[gate_at(i)] = sum += gdn_get(stages.p.g, gate_at(i));
}

static void kkt_true(double *a)
{
    for (size_t i = 0; i < place.n; i++)
        for (size_t j = 0; j < 64; j++) {
            double sum = 0;
            for (size_t d = 0; j < i && d < stages.p.shape.head_k; d++)
                sum += key(stages.p.k, i, d) * key(stages.p.k, j, d);
            a[gate_at(i) * 64 + j] = j < i ? gdn_get(stages.p.beta, gate_at(i)) * sum * decay(i, j) : 0;
        }
}

static void inverse_true(double *inverse)
{
    for (size_t i = 0; i < place.n; i++)
        for (size_t c = 0; c < 64; c++) {
            double sum = i == c;
            for (size_t j = c; j < i; j++)
                sum -= gdn_get(stages.a, gate_at(i) * 64 + j) * inverse[gate_at(j) * 64 + c];
            inverse[gate_at(i) * 64 + c] = sum;
        }
}

static void w_true(double *w)
{
    const qn_gdn_shape *shape = &stages.p.shape;
    for (size_t d = 0; d < shape->head_k; d++) {
        double gated[64];
        for (size_t j = 0; j < place.n; j++)
            gated[j] = gdn_round(stages.p.dtype, gdn_get(stages.p.beta, gate_at(j)) *
                                                     exp(gdn_get(stages.gc, gate_at(j))) * key(stages.p.k, j, d));
        for (size_t i = 0; i < place.n; i++) {
            double sum = 0;
            for (size_t j = 0; j <= i; j++)
                sum += gdn_get(stages.inverse, gate_at(i) * 64 + j) * gated[j];
            w[gate_at(i) * shape->head_k + d] = gdn_round(stages.p.dtype, sum);
        }
    }
}

static void u_true(double *u)
{
    for (size_t x = 0; x < stages.p.shape.head_v; x++)
        for (size_t i = 0; i < place.n; i++) {
            double sum = 0;
            for (size_t j = 0; j <= i; j++)
                sum += gdn_get(stages.inverse, gate_at(i) * 64 + j) *
                       gdn_round(stages.p.dtype, gdn_get(stages.p.beta, gate_at(j)) * value(stages.p.v, j, x));
            u[gate_at(i) * stages.p.shape.head_v + x] = gdn_round(stages.p.dtype, sum);
        }
}

/* The state pass has three results, concatenated: h, v_new, final. The caller sets final to the initial state. */
static double *pass_v_new(double *out)
{
    return out + stages.h.count;
}

static double *pass_final(double *out)
{
    return out + stages.h.count + stages.v_new.count;
}

static void state_pass_true(double *out)
{
    const qn_gdn_shape *shape = &stages.p.shape;
    const size_t size = shape->head_v * shape->head_k, head = (place.sequence * shape->v_heads + place.head) * size;
    double *state = pass_final(out) + head, *h = out + chunk_state();
    for (size_t i = 0; i < size; i++)
        h[i] = gdn_round(stages.p.dtype, state[i]);
    for (size_t x = 0; x < shape->head_v; x++) {
        double v_new[64];
        double *row = state + x * shape->head_k;
        for (size_t i = 0; i < place.n; i++) {
            v_new[i] = value(stages.u, i, x);
            for (size_t d = 0; d < shape->head_k; d++)
                v_new[i] -= gdn_get(stages.w, gate_at(i) * shape->head_k + d) * row[d];
            pass_v_new(out)[gate_at(i) * shape->head_v + x] = gdn_round(stages.p.dtype, v_new[i]);
        }
        for (size_t d = 0; d < shape->head_k; d++)
            row[d] *= exp(gdn_get(stages.gc, gate_at(place.n - 1)));
        for (size_t j = 0; j < place.n; j++)
            for (size_t d = 0; d < shape->head_k; d++)
                row[d] += gdn_round(stages.p.dtype, decay(place.n - 1, j) * v_new[j]) * key(stages.p.k, j, d);
    }
}

static void output_true(double *o)
{
    const qn_gdn_shape *shape = &stages.p.shape;
    for (size_t i = 0; i < place.n; i++) {
        double scores[64];
        for (size_t j = 0; j <= i; j++) {
            double sum = 0;
            for (size_t d = 0; d < shape->head_k; d++)
                sum += key(stages.p.q, i, d) * key(stages.p.k, j, d);
            scores[j] = gdn_round(stages.p.dtype, sum * decay(i, j));
        }
        for (size_t x = 0; x < shape->head_v; x++) {
            double sum = 0;
            for (size_t d = 0; d < shape->head_k; d++)
                sum += key(stages.p.q, i, d) * gdn_get(stages.h, chunk_state() + x * shape->head_k + d);
            sum *= exp(gdn_get(stages.gc, gate_at(i)));
            for (size_t j = 0; j <= i; j++)
                sum += scores[j] * value(stages.v_new, j, x);
            o[gate_at(i) * shape->head_v + x] = gdn_round(stages.p.dtype, (double)shape->scale * sum);
        }
    }
}

/* ---- The tests ---- */

/* Run all stages in order, each on the actual results of the previous ones, and compare each result. */
static void check_stages(gdn_problem *problem, gdn_decay decays, gdn_keys keys, bool initial)
{
    gdn_make(problem, decays, keys, initial);
    const qn_gdn_shape *shape = &problem->shape;
    const size_t gates = problem->rows * shape->v_heads, size = shape->head_k * shape->head_v;
    const qn_dtype dtype = problem->dtype;
    stages.p = *problem;
    stages.gc = gdn_new(QN_DTYPE_F32, gates);
    stages.a = gdn_new(QN_DTYPE_F32, gates * 64);
    stages.inverse = gdn_new(QN_DTYPE_F32, gates * 64);
    stages.w = gdn_new(dtype, gates * shape->head_k);
    stages.u = gdn_new(dtype, gates * shape->head_v);
    stages.h = gdn_new(dtype, problem->n_chunks * shape->v_heads * size);
    stages.v_new = gdn_new(dtype, gates * shape->head_v);
    const gdn_problem *p = &stages.p;
    double *gc = truth(stages.gc.count), *a = truth(stages.a.count), *inverse = truth(stages.a.count),
           *w = truth(stages.w.count);
    double *u = truth(stages.u.count), *pass = truth(stages.h.count + stages.v_new.count + p->final.count),
           *o = truth(p->o.count);
    label("type %d, T %zu, K %zu, V %zu, decays %d, keys %d", (int)dtype, shape->tokens, shape->head_k, shape->head_v,
          (int)decays, (int)keys);

    assert_ok(qn_gdn_cumsum(shape, p->g, stages.gc));
    each_chunk(cumsum_true, gc);
    GDN_NEAR(stages.gc, gc, 0x1p-24); /* one rounding */

    assert_ok(qn_gdn_kkt(shape, p->k, p->beta, stages.gc, stages.a));
    each_chunk(kkt_true, a);
    GDN_NEAR(stages.a, a, BAR_F32);

    assert_ok(qn_gdn_tril_inverse(shape, stages.a, stages.inverse));
    each_chunk(inverse_true, inverse);
    GDN_NEAR(stages.inverse, inverse, BAR_F32);

    assert_ok(qn_gdn_recompute_w_u(shape, p->k, p->v, p->beta, stages.gc, stages.inverse, stages.w, stages.u));
    each_chunk(w_true, w);
    each_chunk(u_true, u);
    GDN_NEAR(stages.w, w, bar_of(dtype));
    GDN_NEAR(stages.u, u, bar_of(dtype));

    assert_ok(
        qn_gdn_state_pass(shape, p->k, stages.w, stages.u, stages.gc, p->initial, stages.h, stages.v_new, p->final));
    for (size_t i = 0; i < p->final.count; i++)
        pass_final(pass)[i] = initial ? gdn_get(p->initial, i) : 0;
    each_chunk(state_pass_true, pass);
    GDN_NEAR(stages.h, pass, bar_of(dtype));
    GDN_NEAR(stages.v_new, pass_v_new(pass), bar_of(dtype));
    GDN_NEAR(p->final, pass_final(pass), bar_of(dtype));

    assert_ok(qn_gdn_chunk_output(shape, p->q, p->k, stages.v_new, stages.h, stages.gc, p->o));
    each_chunk(output_true, o);
    GDN_NEAR(p->o, o, bar_of(dtype));

    /* In place, for the stages that allow it. */
    assert_ok(qn_gdn_tril_inverse(shape, stages.a, stages.a));
    assert_memory_equal(stages.a.data, stages.inverse.data, stages.a.count * sizeof(float));
    assert_ok(qn_gdn_cumsum(shape, p->g, p->g));
    assert_memory_equal(p->g.data, stages.gc.data, stages.gc.count * sizeof(float));

    const qn_view views[] = { stages.gc, stages.a, stages.inverse, stages.w, stages.u, stages.h, stages.v_new };
    double *const truths[] = { gc, a, inverse, w, u, pass, o };
    for (size_t i = 0; i < 7; i++) {
        gdn_free(views[i]);
        free(truths[i]);
    }
    gdn_problem_free(&stages.p);
}

static const qn_dtype types[] = { QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16 };
enum { N_TYPES = COUNT(types) };

TEST(stages_near_formulas)
{
    static const size_t cases[][5] = { /* tokens, k heads, v heads, K, V */
                                       { 1, 1, 1, 16, 16 },    { 64, 1, 2, 64, 48 },   { 65, 2, 4, 32, 80 },
                                       { 130, 1, 3, 128, 16 }, { 79, 1, 1, 256, 256 }, { 200, 2, 2, 48, 32 }
    };
    for (size_t d = 0; d < N_TYPES; d++)
        for (size_t i = 0; i < COUNT(cases); i++) {
            gdn_problem p = { .dtype = types[d],
                              .shape = { .batch = 1 + i % 2,
                                         .tokens = cases[i][0],
                                         .k_heads = cases[i][1],
                                         .v_heads = cases[i][2],
                                         .head_k = cases[i][3],
                                         .head_v = cases[i][4],
                                         .scale = 0.1f,
                                         .mapping = i % 2 ? QN_GDN_TILED : QN_GDN_GROUPED } };
            check_stages(&p, i % 3 ? GDN_MILD : GDN_NONE, (gdn_keys)(i % 3), i % 2);
        }
}

/* Packed sequences, one empty, and rows outside of all: their inputs are NaN, and their outputs must stay poisoned.
 * Decays of -50 among mild ones. */
TEST(stages_of_ragged_batches)
{
    for (size_t d = 0; d < N_TYPES; d++) {
        gdn_problem p = { .dtype = types[d],
                          .ends = { 0, 1, 1, 80, 144 },
                          .shape = { .batch = 1,
                                     .tokens = 150,
                                     .k_heads = 1,
                                     .v_heads = 2,
                                     .head_k = 32,
                                     .head_v = 16,
                                     .scale = 0.2f,
                                     .n_sequences = 4 } };
        check_stages(&p, GDN_MIXED, GDN_RANDOM_KEYS, true);
    }
}

/* A chunk of equal keys with beta = 1 and without decay: an inverse by a series in powers of A, or by repeated
 * squaring, has no correct digit here, or is NaN. */
TEST(inverse_of_equal_keys)
{
    gdn_problem p = {
        .dtype = QN_DTYPE_F32,
        .shape = { .batch = 1, .tokens = 64, .k_heads = 1, .v_heads = 1, .head_k = 16, .head_v = 16, .scale = 1 }
    };
    gdn_make(&p, GDN_NONE, GDN_EQUAL_KEYS, false);
    const qn_view a = gdn_new(QN_DTYPE_F32, 64 * 64), inverse = gdn_new(QN_DTYPE_F32, 64 * 64);
    for (size_t i = 0; i < 64; i++)
        for (size_t j = 0; j < i; j++)
            gdn_set(a, i * 64 + j, 1); /* on and above the diagonal is poison, which must not be read */
    assert_ok(qn_gdn_tril_inverse(&p.shape, a, inverse));
    for (size_t i = 0; i < 64; i++)
        for (size_t j = 0; j < 64; j++) {
            label("row %zu, column %zu", i, j);
            assert_true(gdn_get(inverse, i * 64 + j) == (i == j ? 1 : j + 1 == i ? -1 : 0));
        }
    gdn_free(a);
    gdn_free(inverse);
    gdn_problem_free(&p);
}

/* Cumulative sums that increase, by a rounding error of the caller, are treated as constant: an exponent above 0 would
 * amplify.
 */
TEST(rising_sums_are_level)
{
    gdn_problem p = {
        .dtype = QN_DTYPE_F32,
        .shape = { .batch = 1, .tokens = 3, .k_heads = 1, .v_heads = 1, .head_k = 16, .head_v = 16, .scale = 1 }
    };
    gdn_make(&p, GDN_NONE, GDN_EQUAL_KEYS, false);
    const qn_view gc = gdn_new(QN_DTYPE_F32, 3), a = gdn_new(QN_DTYPE_F32, 3 * 64);
    const double sums[] = { -2, -100, -1 };
    for (size_t i = 0; i < 3; i++)
        gdn_set(gc, i, sums[i]);
    assert_ok(qn_gdn_kkt(&p.shape, p.k, p.beta, gc, a));
    const double level = gdn_get(a, 2 * 64 + 1) / gdn_get(p.beta, 2);
    assert_true(fabs(level - 1) <= 1e-6);                /* e^0; it would be e^99 */
    assert_true(fabs(gdn_get(a, 2 * 64)) <= exp(-85.0)); /* e^(-100+2) */
    gdn_free(gc);
    gdn_free(a);
    gdn_problem_free(&p);
}

/* Conversions and step have the same bits in all instruction sets. */
TEST(row_kernels_agree)
{
    static const float special[] = { 0,     -0.0f, INFINITY, -INFINITY,   NAN,        65504,
                                     65520, 1e-8f, 6e-8f,    1.00390625f, 1.01171875f };
    enum { N = 77, K = 48, V = 32 };
    qn_gdn_row_kernels ref;
    qn_gdn_row_kernels_init(&ref, 0);
    for (size_t level = 0; level < qn_cpu_n_levels; level++) {
        qn_gdn_row_kernels rows;
        if (!qn_cpu_has_level(&qn_cpu_levels[level]))
            continue;
        label("%s", qn_cpu_levels[level].name);
        qn_gdn_row_kernels_init(&rows, qn_cpu_levels[level].features);
        for (size_t d = 0; d < N_TYPES; d++)
            for (size_t n = 0; n <= N; n++) {
                label("type %d, %zu values", (int)types[d], n);
                const qn_view x = gdn_new(QN_DTYPE_F32, n), y = gdn_new(types[d], n), z = gdn_new(QN_DTYPE_F32, n);
                const qn_view y_ref = gdn_new(types[d], n), z_ref = gdn_new(QN_DTYPE_F32, n);
                for (size_t i = 0; i < n; i++)
                    gdn_set(x, i, i < COUNT(special) ? (double)special[i] : exp(8 * gdn_normal()));
                rows.from_f32(y.data, x.data, types[d], n);
                ref.from_f32(y_ref.data, x.data, types[d], n);
                assert_memory_equal(y.data, y_ref.data, n * gdn_size(types[d]));
                rows.to_f32(z.data, y.data, types[d], n);
                ref.to_f32(z_ref.data, y.data, types[d], n);
                assert_memory_equal(z.data, z_ref.data, n * sizeof(float));
                rows.round(x.data, x.data, types[d], n);
                assert_memory_equal(x.data, z_ref.data, n * sizeof(float));
                gdn_free(x);
                gdn_free(y);
                gdn_free(y_ref);
                gdn_free(z);
                gdn_free(z_ref);
            }
        float q[K], k[K], v[V];
        const qn_view state = gdn_new(QN_DTYPE_F32, K * V), same = gdn_new(QN_DTYPE_F32, K * V);
        const qn_view o = gdn_new(QN_DTYPE_F32, V), o_ref = gdn_new(QN_DTYPE_F32, V);
        for (size_t i = 0; i < K * V; i++) {
            gdn_set(state, i, gdn_normal());
            gdn_set(same, i, gdn_get(state, i));
            q[i % K] = (float)gdn_normal();
            k[i % K] = (float)gdn_normal();
            v[i % V] = (float)gdn_normal();
        }
        const qn_gdn_token token = { .q = q, .k = k, .v = v, .decay = 0.9f, .beta = 0.4f, .scale = 0.3f };
        rows.step(state.data, &token, K, V, o.data);
        ref.step(same.data, &token, K, V, o_ref.data);
        assert_memory_equal(state.data, same.data, K * V * sizeof(float));
        assert_memory_equal(o.data, o_ref.data, V * sizeof(float));
        gdn_free(state);
        gdn_free(same);
        gdn_free(o);
        gdn_free(o_ref);
    }
}
