/* The causal convolution of quern/cuda.h on a GPU against the CPU's functions: sequences of all lengths, states in
 * place and in pools with sequences that are skipped, all types, any number of taps, channels with tails, rows with any
 * stride. */
#include "cuda_api.h"
#include "cuda_views.h"

#include "quern/kernels.h"

enum { MAX_SEQUENCES = 5, SPARE_STATES = 2, SKIPPED = 1, OUTSIDE = 3 /* tokens after the last sequence */ };

struct shape {
    qn_dtype dtype, seqlens; /* seqlens: of cu_seqlens; f32: none, all sequences have ends[1] tokens */
    size_t n_sequences;
    uint32_t ends[MAX_SEQUENCES + 1];
    size_t channels, taps;
    bool has_bias, linear;
    bool pool; /* states in another order among others, and the sequence SKIPPED has none */
    enum { SEPARATE, IN_PLACE, NO_INITIAL, NO_FINAL } states;
    bool is_aligned;
};

struct problem {
    const struct shape *s;
    size_t tokens, state, n_states; /* elements of a state; states of the pool */
    qn_gpu_rows x, y, initial, final;
    float *weights, *bias, *cpu_y;
    qn_cuda_view weights_view, bias_view;
    qn_cuda_conv_shape shape;
};

static size_t index_of(const struct shape *s, size_t sequence)
{
    return s->pool ? s->n_sequences + SPARE_STATES - 1 - sequence : sequence;
}

static bool is_skipped(const struct shape *s, size_t sequence)
{
    return s->pool && sequence == SKIPPED;
}

static void problem_new(struct problem *p, const struct shape *s)
{
    const bool packed = s->seqlens != QN_DTYPE_F32;
    const size_t gap = s->is_aligned ? 16 : 3, shift = s->is_aligned ? 8 : 1;
    *p = (struct problem){ .s = s, .tokens = s->ends[s->n_sequences] + (packed ? OUTSIDE : 0) };
    p->state = (s->taps - 1) * s->channels;
    p->n_states = s->n_sequences + (s->pool ? SPARE_STATES : 0);
    p->x = qn_gpu_rows_random(s->dtype, p->tokens, s->channels, gap, shift, 1);
    p->y = qn_gpu_rows_poison(s->dtype, p->tokens, s->channels, s->is_aligned ? 8 : 0, shift);
    p->initial = qn_gpu_rows_random(s->dtype, p->n_states, p->state, s->pool ? gap : 0, shift, 1);
    p->final = qn_gpu_rows_poison(s->dtype, p->n_states, p->state, gap, shift);
    p->weights = qn_floats_of(s->channels * s->taps, 0.5f);
    p->bias = qn_floats_of(s->channels, 0.5f);
    p->weights_view = qn_array_view(qn_gpu_copy(p->weights), QN_DTYPE_F32);
    if (s->has_bias)
        p->bias_view = qn_array_view(qn_gpu_copy(p->bias), QN_DTYPE_F32);
    p->shape = (qn_cuda_conv_shape){ .batch = packed ? 1 : s->n_sequences,
                                     .tokens = packed ? p->tokens : s->ends[1],
                                     .channels = s->channels,
                                     .taps = s->taps,
                                     .linear = s->linear };
    if (packed) {
        p->shape.n_sequences = s->n_sequences;
        p->shape.cu_seqlens = qn_seqlens_view(s->ends, s->n_sequences, s->seqlens);
    }
    if (s->pool) {
        int32_t *indices = qn_new(s->n_sequences, sizeof *indices);
        for (size_t i = 0; i < s->n_sequences; i++)
            indices[i] = is_skipped(s, i) ? -1 : (int32_t)index_of(s, i);
        p->shape.state_indices = qn_array_view(qn_gpu_copy(indices), QN_DTYPE_I32);
    }
    p->cpu_y = qn_floats(p->tokens * s->channels);
}

/* ---- Expected ---- */

/* The input of a token of a sequence, which may be up to taps-1 tokens before its first one. */
static float input_at(const struct problem *p, size_t sequence, ptrdiff_t token, size_t channel)
{
    const struct shape *s = p->s;
    if (token >= 0)
        return p->x.values[(s->ends[sequence] + (size_t)token) * s->channels + channel];
    if (s->states == NO_INITIAL)
        return 0;
    const size_t row = (size_t)((ptrdiff_t)s->taps - 1 + token);
    return p->initial.values[index_of(s, sequence) * p->state + row * s->channels + channel];
}

/* qn_conv_scan of the CPU, one sequence at a time, on the values as rounded to the type. */
static void run_cpu(const struct problem *p)
{
    const struct shape *s = p->s;
    for (size_t i = 0; i < s->n_sequences && !s->linear; i++) {
        const size_t first = s->ends[i] * s->channels, n = s->ends[i + 1] - s->ends[i];
        const qn_conv_shape shape = { .batch = 1, .tokens = n, .channels = s->channels, .taps = s->taps };
        const qn_view initial = { p->initial.values + index_of(s, i) * p->state, QN_DTYPE_F32, p->state };
        qn_assert_ok(qn_conv_scan(&shape, qn_floats_view(p->x.values + first, n * s->channels),
                                  qn_floats_view(p->weights, s->channels * s->taps),
                                  s->has_bias ? qn_floats_view(p->bias, s->channels) : (qn_view){ 0 },
                                  s->states == NO_INITIAL ? (qn_view){ 0 } : initial, (qn_view){ 0 },
                                  qn_floats_view(p->cpu_y + first, n * s->channels)));
    }
}

/* An output, and its largest error: sums of at most nine terms, and SiLU, whose slope is at most 1.1 and whose
 * exponential has an error of an ulp for each unit of its argument and two more. */
static double expected_y(const struct problem *p, size_t sequence, size_t token, size_t channel, double *bound)
{
    const struct shape *s = p->s;
    double sum = s->has_bias ? (double)p->bias[channel] : 0, terms = fabs(sum);
    for (size_t t = 0; t < s->taps; t++) {
        const ptrdiff_t at = (ptrdiff_t)token - (ptrdiff_t)s->taps + 1 + (ptrdiff_t)t;
        const double term = (double)p->weights[channel * s->taps + t] * (double)input_at(p, sequence, at, channel);
        sum += term;
        terms += fabs(term);
    }
    const double y = s->linear ? sum : (double)p->cpu_y[(s->ends[sequence] + token) * s->channels + channel];
    *bound = terms * 12 * 0x1p-24 + (s->linear ? 0 : fabs(y) * (8 + 2 * fabs(sum)) * 0x1p-23);
    return y;
}

static void compare_y(const struct problem *p)
{
    const struct shape *s = p->s;
    const size_t n = p->tokens * s->channels;
    double *expected = qn_doubles(n), *bound = qn_doubles(n);
    for (size_t i = 0; i < n; i++)
        bound[i] = -1;
    for (size_t i = 0; i < s->n_sequences; i++)
        for (size_t token = 0; token < s->ends[i + 1] - s->ends[i] && !is_skipped(s, i); token++)
            for (size_t channel = 0; channel < s->channels; channel++) {
                const size_t at = (s->ends[i] + token) * s->channels + channel;
                expected[at] = expected_y(p, i, token, channel, &bound[at]);
            }
    qn_gpu_rows_expect(&p->y, expected, bound, "y");
}

/* States of the pool: the last inputs of its sequence, or the previous contents. */
static void compare_states(const struct problem *p, const qn_gpu_rows *states)
{
    const struct shape *s = p->s;
    const size_t n = p->n_states * p->state;
    double *expected = qn_doubles(n), *bound = qn_doubles(n);
    for (size_t i = 0; i < n; i++) {
        expected[i] = states->values ? (double)states->values[i] : 0;
        bound[i] = states->values ? 0 : -1;
    }
    for (size_t i = 0; i < s->n_sequences; i++) {
        const ptrdiff_t tokens = (ptrdiff_t)(s->ends[i + 1] - s->ends[i]);
        for (size_t row = 0; row + 1 < s->taps && !is_skipped(s, i); row++)
            for (size_t channel = 0; channel < s->channels; channel++) {
                const size_t at = index_of(s, i) * p->state + row * s->channels + channel;
                expected[at] = (double)input_at(p, i, tokens - (ptrdiff_t)s->taps + 1 + (ptrdiff_t)row, channel);
                bound[at] = 0;
            }
    }
    qn_gpu_rows_expect(states, expected, bound, "state");
}

static void begin_case(const struct shape *s, const char *variant, size_t tokens)
{
    static const char *const states[] = { "separate", "in place", "no initial", "no final" };
    qn_case_begin("api", variant,
                  "%zu tokens in %zu sequences, %zu channels, %zu taps, %s, lengths %d, states %s%s%s%s%s", tokens,
                  s->n_sequences, s->channels, s->taps, qn_float_name(s->dtype), (int)s->seqlens, states[s->states],
                  s->pool ? " in a pool" : "", s->has_bias ? ", bias" : "", s->linear ? ", linear" : "",
                  s->is_aligned ? "" : ", unaligned");
}

/* ---- Calls ---- */

static void scan(const struct problem *p)
{
    const struct shape *s = p->s;
    const qn_cuda_view none = { 0 }, initial = qn_gpu_rows_view(&p->initial), final = qn_gpu_rows_view(&p->final);
    qn_assert_ok(qn_cuda_conv_scan(qn_api(), &p->shape, qn_gpu_rows_view(&p->x), p->weights_view, p->bias_view,
                                   s->states == NO_INITIAL ? none : initial,
                                   s->states == NO_FINAL   ? none
                                   : s->states == IN_PLACE ? initial
                                                           : final,
                                   qn_gpu_rows_view(&p->y), qn_gpu_stream()));
}

static void compare(const struct problem *p)
{
    compare_y(p);
    if (p->s->states != NO_FINAL)
        compare_states(p, p->s->states == IN_PLACE ? &p->initial : &p->final);
}

static void check_scan(const struct shape *s)
{
    struct problem p;
    qn_random_seed(s->channels + s->taps * 1000);
    problem_new(&p, s);
    run_cpu(&p);
    begin_case(s, "conv scan", p.tokens);
    scan(&p);
    compare(&p);
    qn_release();
}

/* Sequences of one token, states in place. */
static void check_step(const struct shape *s)
{
    struct problem p;
    qn_random_seed(s->channels + s->taps);
    problem_new(&p, s);
    run_cpu(&p);
    begin_case(s, "conv step", p.tokens);
    qn_assert_ok(qn_cuda_conv_step(qn_api(), &p.shape, qn_gpu_rows_view(&p.x), p.weights_view, p.bias_view,
                                   qn_gpu_rows_view(&p.initial), qn_gpu_rows_view(&p.y), qn_gpu_stream()));
    compare(&p);
    qn_release();
}

static void check_capture(void)
{
    static const struct shape s = { QN_DTYPE_BF16, QN_DTYPE_I32, 3,     { 0, 7, 7, 90 }, 64,  4,
                                    true,          false,        false, IN_PLACE,        true };
    struct problem p;
    problem_new(&p, &s);
    run_cpu(&p);
    qn_assert_ok(qn_cuda_conv_prepare(qn_api()));
    qn_gpu_capture_begin();
    scan(&p);
    qn_cuda_graph *graph = qn_gpu_capture_end();
    for (int run = 0; run < 2; run++) {
        begin_case(&s, run ? "graph again" : "graph", p.tokens);
        qn_gpu_rows_reset(&p.initial);
        qn_gpu_rows_reset(&p.y);
        qn_gpu_graph_launch(graph);
        compare(&p);
    }
    qn_release();
}

void qn_check_api_conv(void)
{
    static const struct shape scans[] = {
        { QN_DTYPE_BF16, QN_DTYPE_F32, 1, { 0, 1000 }, 1032, 4, false, false, false, SEPARATE, true },
        { QN_DTYPE_BF16, QN_DTYPE_F32, 3, { 0, 70, 140, 210 }, 256, 4, true, false, false, IN_PLACE, true },
        { QN_DTYPE_F16, QN_DTYPE_U32, 5, { 0, 1, 1, 3, 130, 131 }, 72, 4, true, false, false, IN_PLACE, true },
        { QN_DTYPE_F32, QN_DTYPE_I32, 5, { 0, 64, 66, 130, 130, 259 }, 40, 3, false, true, false, SEPARATE, true },
        { QN_DTYPE_BF16, QN_DTYPE_I64, 4, { 0, 100, 103, 103, 260 }, 1048, 4, true, false, true, IN_PLACE, true },
        { QN_DTYPE_F32, QN_DTYPE_I64, 4, { 0, 2, 50, 53, 200 }, 64, 2, true, false, true, SEPARATE, true },
        { QN_DTYPE_F16, QN_DTYPE_F32, 2, { 0, 33, 66 }, 130, 4, false, false, false, SEPARATE, false },
        { QN_DTYPE_BF16, QN_DTYPE_I32, 3, { 0, 5, 40, 41 }, 1, 4, true, true, true, IN_PLACE, false },
        { QN_DTYPE_F32, QN_DTYPE_U32, 3, { 0, 5, 40, 41 }, 257, 7, true, false, false, IN_PLACE, false },
        { QN_DTYPE_BF16, QN_DTYPE_U32, 3, { 0, 20, 24, 150 }, 64, 8, false, false, false, IN_PLACE, true },
        { QN_DTYPE_F16, QN_DTYPE_I32, 2, { 0, 3, 90 }, 64, 5, true, false, false, NO_INITIAL, true },
        { QN_DTYPE_F32, QN_DTYPE_I32, 2, { 0, 3, 90 }, 64, 6, false, true, true, SEPARATE, true },
        { QN_DTYPE_BF16, QN_DTYPE_F32, 1, { 0, 77 }, 64, 1, true, false, false, NO_FINAL, true },
        { QN_DTYPE_F16, QN_DTYPE_F32, 1, { 0, 9 }, 3, 2, false, false, false, NO_FINAL, false },
        { QN_DTYPE_F32, QN_DTYPE_F32, 1, { 0, 1 }, 64, 4, false, false, false, NO_INITIAL, true },
    };
    static const struct shape steps[] = {
        { QN_DTYPE_BF16, QN_DTYPE_F32, 1, { 0, 1 }, 1032, 4, true, false, false, IN_PLACE, true },
        { QN_DTYPE_F16, QN_DTYPE_F32, 5, { 0, 1, 2, 3, 4, 5 }, 64, 3, false, false, true, IN_PLACE, true },
        { QN_DTYPE_F32, QN_DTYPE_F32, 4, { 0, 1, 2, 3, 4 }, 72, 2, true, true, true, IN_PLACE, true },
        { QN_DTYPE_BF16, QN_DTYPE_F32, 3, { 0, 1, 2, 3 }, 131, 4, true, false, true, IN_PLACE, false },
        { QN_DTYPE_F16, QN_DTYPE_F32, 2, { 0, 1, 2 }, 64, 8, false, false, false, IN_PLACE, true },
        { QN_DTYPE_F32, QN_DTYPE_F32, 2, { 0, 1, 2 }, 5, 6, true, false, false, IN_PLACE, false },
        { QN_DTYPE_BF16, QN_DTYPE_F32, 2, { 0, 1, 2 }, 64, 7, true, false, false, IN_PLACE, true },
        { QN_DTYPE_BF16, QN_DTYPE_F32, 2, { 0, 1, 2 }, 64, 5, false, true, false, IN_PLACE, true },
    };
    for (size_t i = 0; i < QN_LENGTH(scans); i++)
        check_scan(&scans[i]);
    for (size_t i = 0; i < QN_LENGTH(steps); i++)
        check_step(&steps[i]);
    check_capture();
}
