/* Operations on f32 rows: norm, rope, elementwise. */
#include "check.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"

enum { MAX_ROW = 4100 };
static const size_t widths[] = { 1, 2, 7, 15, 16, 17, 31, 32, 33, 128, 576, 2047, 4096, MAX_ROW };
enum { N_WIDTHS = QN_LENGTH(widths) };

/* Inputs of a case, at offsets of 1 to 8 floats, so that only 4-byte alignment is guaranteed. */
static float input[3][MAX_ROW + 16];

static float *random_input(int which, size_t n, float scale)
{
    float *x = input[which] + 1 + qn_random_below(8);
    qn_random_floats(x, n, scale);
    return x;
}

/* Compares the output of a case: the reference's with the exact values, within their bounds, and other instruction
 * sets' with the reference's, which is kept in `expected`, bit by bit. */
static void expect_row(const qn_cpu_level *level, const float *y, const double *exact, const double *bound, size_t n)
{
    static float expected[MAX_ROW];
    qn_expect_level(level, y, expected, n, "element");
    if (qn_is_reference(level))
        qn_expect_near(y, exact, bound, n, "element");
    qn_release();
}

/* ---- Norm ---- */

struct timed_norm {
    const qn_norm_kernels *kernels;
    float *y;
};

static void timed_norm(void *context)
{
    const struct timed_norm *t = context;
    qn_rms_norm_row(t->kernels, t->y, input[0], input[1], 2048, 1e-6f);
}

void qn_check_norm(bool bench)
{
    static double exact[MAX_ROW], bound[MAX_ROW];
    for (size_t w = 0; w < N_WIDTHS; w++)
        for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
            const size_t n = widths[w];
            qn_norm_kernels kernels;
            qn_random_seed(w);
            const float *x = random_input(0, n, 3), *weight = random_input(1, n, 1);
            float *y = qn_guarded_floats(n);
            qn_norm_kernels_init(&kernels, level->features);
            qn_case_begin("norm", level->name, "width %zu", n);
            qn_rms_norm_row(&kernels, y, x, weight, n, 1e-5f);
            double sum = 0;
            for (size_t k = 0; k < n; k++)
                sum += (double)x[k] * (double)x[k];
            for (size_t k = 0; k < n; k++) {
                exact[k] = (double)x[k] / sqrt(sum / (double)n + (double)1e-5f) * (double)weight[k];
                /* The root halves the relative error of a sum of n/16 + 4 steps; then six roundings. */
                bound[k] = ((double)n / 32 + 8) * 0x1p-24 * fabs(exact[k]) + 1e-37;
            }
            expect_row(level, y, exact, bound, n);
        }
    for (const qn_cpu_level *level = qn_levels(); bench && level->name; level++) {
        qn_norm_kernels kernels;
        static float y[2048];
        qn_norm_kernels_init(&kernels, level->features);
        qn_bench("norm", level->name, "2048", 2048, "value", timed_norm, &(struct timed_norm){ &kernels, y });
    }
}

/* ---- Rope ---- */

/* Pair i at positions[components[i]]; at positions[0] without components. */
static void exact_rope(double *y, const float *x, const uint32_t *positions, const uint8_t *components, size_t n_rot,
                       qn_rope_type mode)
{
    for (size_t i = 0; i < n_rot / 2; i++) {
        const uint32_t position = positions[components ? components[i] : 0];
        const size_t a = mode == QN_ROPE_TYPE_NORM ? 2 * i : i,
                     b = mode == QN_ROPE_TYPE_NORM ? 2 * i + 1 : i + n_rot / 2;
        const double angle = (double)position * pow(1e6, -2.0 * (double)i / (double)n_rot);
        y[a] = (double)x[a] * cos(angle) - (double)x[b] * sin(angle);
        y[b] = (double)x[b] * cos(angle) + (double)x[a] * sin(angle);
    }
}

struct timed_rope {
    const qn_rope_kernels *kernels;
    float *x, *cosines, *sines;
    qn_rope_type mode;
};

static void timed_rope(void *context)
{
    const struct timed_rope *t = context;
    t->kernels->apply(t->x, t->cosines, t->sines, 128, t->mode);
}

/* The component of pair i by the layouts' definitions: [TT..HH..WW..] and [THWTHW...TT] (transformers'
 * apply_multimodal_rotary_pos_emb of Qwen2-VL and apply_interleaved_mrope of Qwen3-VL). */
static uint8_t component_of(const qn_rope_sections *s, size_t i)
{
    if (s->interleaved)
        return i % 3 == 1 && i < 3 * s->pairs[1] ? 1 : i % 3 == 2 && i < 3 * s->pairs[2] ? 2 : 0;
    for (uint8_t c = 0; c < QN_ROPE_COMPONENTS; i -= s->pairs[c++])
        if (i < s->pairs[c])
            return c;
    return 0;
}

/* Positions of several components: the sections of Qwen2-VL, Qwen3-VL and Qwen3.5, of all four components, and of fewer
 * pairs than there are. */
static void check_sections(void)
{
    static const struct {
        qn_rope_sections sections;
        size_t n_rot;
    } cases[] = { { { { 16, 24, 24, 0 }, false }, 128 }, { { { 24, 20, 20, 0 }, true }, 128 },
                  { { { 11, 11, 10, 0 }, true }, 64 },   { { { 5, 4, 6, 1 }, false }, 32 },
                  { { { 3, 2, 1, 0 }, false }, 34 },     { { { 2, 2, 2, 0 }, true }, 30 } };
    static float cosines[64], sines[64], plain[2][64];
    static double frequencies[64];
    for (size_t c = 0; c < 2 * (sizeof cases / sizeof *cases); c++)
        for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
            const size_t n = cases[c / 2].n_rot;
            const qn_rope_sections *sections = &cases[c / 2].sections;
            const qn_rope_type mode = c % 2 ? QN_ROPE_TYPE_NEOX : QN_ROPE_TYPE_NORM;
            const uint32_t positions[] = { 70000, 7, 4095, 31 }, equal[] = { 901, 901, 901, 901 };
            uint8_t components[64];
            qn_rope_kernels kernels;
            double exact[128], bound[128];
            qn_random_seed(c);
            const float *x = random_input(0, n, 1);
            float *y = qn_guarded_floats(n);
            memcpy(y, x, n * sizeof(float));
            qn_rope_frequencies(1e6, NULL, NULL, n, frequencies);
            qn_rope_pair_components(sections, n, components);
            qn_case_begin("rope", level->name, "%s width %zu sections %u %u %u %u %s",
                          mode == QN_ROPE_TYPE_NORM ? "interleaved" : "neox", n, (unsigned)sections->pairs[0],
                          (unsigned)sections->pairs[1], (unsigned)sections->pairs[2], (unsigned)sections->pairs[3],
                          sections->interleaved ? "interleaved" : "contiguous");
            for (size_t k = 0; k < n / 2; k++)
                qn_expect(components[k] == component_of(sections, k), "the component of a pair is wrong");
            qn_rope_angles(equal[0], frequencies, 1, n, plain[0], plain[1]);
            qn_rope_angles_of(equal, components, frequencies, 1, n, cosines, sines);
            qn_expect(!memcmp(cosines, plain[0], n / 2 * sizeof *cosines) &&
                          !memcmp(sines, plain[1], n / 2 * sizeof *sines),
                      "equal components do not give the bits of one position");
            qn_rope_angles_of(positions, components, frequencies, 1, n, cosines, sines);
            qn_rope_kernels_init(&kernels, level->features);
            kernels.apply(y, cosines, sines, n, mode);
            exact_rope(exact, x, positions, components, n, mode);
            for (size_t k = 0; k < n; k++)
                bound[k] = 6 * 0x1p-24 * 5 + 1e-9; /* as below */
            expect_row(level, y, exact, bound, n);
        }
}

void qn_check_rope(bool bench)
{
    static const size_t rotated[] = { 2, 16, 30, 32, 34, 64, 80, 128, 256 };
    static const uint32_t positions[] = { 0, 1, 4095, 262143 };
    static float cosines[128], sines[128];
    static double frequencies[128];
    for (size_t c = 0; c < 2 * 9 * 4; c++)
        for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
            const size_t n = rotated[c / 8];
            const qn_rope_type mode = c % 2 ? QN_ROPE_TYPE_NEOX : QN_ROPE_TYPE_NORM;
            const uint32_t position = positions[c / 2 % 4];
            qn_rope_kernels kernels;
            double exact[256], bound[256];
            qn_random_seed(c);
            const float *x = random_input(0, n, 1);
            float *y = qn_guarded_floats(n);
            memcpy(y, x, n * sizeof(float));
            qn_rope_frequencies(1e6, NULL, NULL, n, frequencies);
            qn_rope_angles(position, frequencies, 1, n, cosines, sines);
            qn_rope_kernels_init(&kernels, level->features);
            qn_case_begin("rope", level->name, "%s width %zu position %u",
                          mode == QN_ROPE_TYPE_NORM ? "interleaved" : "neox", n, (unsigned)position);
            kernels.apply(y, cosines, sines, n, mode);
            exact_rope(exact, x, &position, NULL, n, mode);
            for (size_t k = 0; k < n; k++)
                bound[k] = 6 * 0x1p-24 * 5 + 1e-9; /* cosine, sine, two operations; |x| < 5; 1e-9: the error of a double
                                                      angle of 2.6e5 */
            expect_row(level, y, exact, bound, n);
        }
    check_sections();
    for (const qn_cpu_level *level = qn_levels(); bench && level->name; level++) {
        qn_rope_kernels kernels;
        qn_rope_kernels_init(&kernels, level->features);
        for (int mode = 0; mode < 2; mode++) {
            struct timed_rope timed = { &kernels, input[0], cosines, sines, (qn_rope_type)mode };
            qn_bench("rope", level->name, mode ? "neox 128" : "interleaved 128", 128, "value", timed_rope, &timed);
        }
    }
}

/* ---- Elementwise ---- */

struct timed_swiglu {
    const qn_elementwise_kernels *kernels;
    float *y;
};

static void timed_swiglu(void *context)
{
    const struct timed_swiglu *t = context;
    t->kernels->swiglu(t->y, input[0], input[1], 2048);
}

/* x / (1 + exp(-gate)): with `gated` of inputs x and gate, otherwise of one input, times another. */
static void check_elementwise(const qn_cpu_level *level, bool gated, size_t n)
{
    qn_elementwise_kernels kernels;
    double exact[MAX_ROW], bound[MAX_ROW];
    qn_elementwise_kernels_init(&kernels, level->features);
    float *x = random_input(0, n, 6), *other = random_input(1, n, gated ? 6 : 1), *gate = gated ? other : x;
    gate[0] = 200; /* beyond both clamps of the exponential */
    if (n > 2)
        gate[2] = -200;
    float *y = qn_guarded_floats(n);
    (gated ? kernels.gate : kernels.swiglu)(y, x, other, n);
    for (size_t k = 0; k < n; k++) {
        exact[k] = (double)x[k] / (1 + exp(-(double)gate[k])) * (gated ? 1 : (double)other[k]);
        bound[k] = 3e-7 * fabs(exact[k]) + 1e-35; /* the exponential's 2e-7 and up to three roundings */
    }
    expect_row(level, y, exact, bound, n);
}

void qn_check_elementwise(bool bench)
{
    for (int gated = 0; gated < 2; gated++)
        for (size_t w = 0; w < N_WIDTHS; w++)
            for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
                qn_random_seed(w);
                qn_case_begin("elementwise", level->name, "%s width %zu", gated ? "gate" : "swiglu", widths[w]);
                check_elementwise(level, gated, widths[w]);
            }
    for (const qn_cpu_level *level = qn_levels(); bench && level->name; level++) {
        qn_elementwise_kernels kernels;
        static float y[2048];
        qn_elementwise_kernels_init(&kernels, level->features);
        qn_bench("elementwise", level->name, "swiglu 2048", 2048, "value", timed_swiglu,
                 &(struct timed_swiglu){ &kernels, y });
    }
}
