/* Gated delta rule with an open chunk: against the token recurrence in float64; and the same bits for every split of
 * tokens and values and for every instruction set. */
#include "helper_assert.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "kernels/deltanet/deltanet.h"

#include <math.h>

enum { GUARD = 64, CHUNK = QN_GDN_CHUNK };

/* ---- Memory: poisoned (NaN in every float), with guard bytes ---- */

static void *poisoned(size_t bytes)
{
    uint8_t *block;
    assert_ok(qn_alloc(&block, bytes + 2 * GUARD, 1, "test memory"));
    memset(block, 0xff, bytes + 2 * GUARD);
    return block + GUARD;
}

static float *poisoned_floats(size_t n)
{
    return poisoned(n * sizeof(float));
}

static void release(void *memory, size_t bytes)
{
    const uint8_t *p = memory;
    for (size_t i = 0; i < GUARD; i++)
        assert_true(p[-1 - (ptrdiff_t)i] == 0xff && p[bytes + i] == 0xff);
    qn_free((uint8_t *)memory - GUARD);
}

static void release_floats(float *memory, size_t n)
{
    release(memory, n * sizeof(float));
}

static uint64_t random_state;

static double uniform(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(random_state >> 11) * 0x1p-53;
}

/* ---- Tokens ---- */

enum decays { NONE, MILD, EXTREME, N_DECAYS };
enum keys { RANDOM, SIMILAR, EQUAL, N_KEYS };

/* Rows as in a layer: q, k and v contiguous, followed by unrelated elements, and gates with a stride. */
struct problem {
    size_t n, head_k, head_v, row;
    float *rows, *gates;
};

enum { GATE_ROW = 3 };
static const float scale = 0.25f;

static void unit_row(float *x, size_t n, const float *near, double noise)
{
    double sum = 0;
    for (size_t d = 0; d < n; d++) {
        x[d] = (float)((near ? (double)near[d] : 0) + noise * (uniform() + uniform() - 1));
        sum += (double)x[d] * (double)x[d];
    }
    for (size_t d = 0; d < n; d++)
        x[d] = (float)((double)x[d] / sqrt(sum));
}

static float decay_like(enum decays kind)
{
    if (kind == NONE)
        return 0;
    if (kind == EXTREME && uniform() < 0.1)
        return -50;
    return (float)(-0.1 * uniform());
}

static struct problem problem_new(size_t n, size_t head_k, size_t head_v, enum decays decays, enum keys keys)
{
    struct problem p = { .n = n, .head_k = head_k, .head_v = head_v, .row = 2 * head_k + head_v + 5 };
    random_state = n * 31 + head_k * 7 + head_v + (size_t)decays * 3 + (size_t)keys;
    p.rows = poisoned_floats(n * p.row);
    p.gates = poisoned_floats(n * GATE_ROW);
    for (size_t t = 0; t < n; t++) {
        float *q = p.rows + t * p.row, *k = q + head_k, *v = k + head_k;
        const float *first = t ? p.rows + head_k : NULL;
        unit_row(q, head_k, NULL, 1);
        unit_row(k, head_k, keys == RANDOM ? NULL : first, keys == EQUAL && t ? 0 : keys == SIMILAR && t ? 0.01 : 1);
        if (keys == EQUAL && t)
            memcpy(k, first, head_k * sizeof *k);
        for (size_t x = 0; x < head_v; x++)
            v[x] = (float)(4 * uniform() - 2);
        p.gates[t * GATE_ROW] = decay_like(decays);
        p.gates[t * GATE_ROW + 1] = (float)(t % 9 == 4 ? 1 : uniform());
    }
    return p;
}

static void problem_free(struct problem *p)
{
    release_floats(p->rows, p->n * p->row);
    release_floats(p->gates, p->n * GATE_ROW);
}

/* The token recurrence in float64: o [n][head_v], state [head_k][head_v]. */
static void recurrence_float64(const struct problem *p, double *o, double *state)
{
    memset(state, 0, p->head_k * p->head_v * sizeof *state);
    for (size_t t = 0; t < p->n; t++) {
        const float *q = p->rows + t * p->row, *k = q + p->head_k, *v = k + p->head_k;
        const double e_g = exp((double)p->gates[t * GATE_ROW]), beta = (double)p->gates[t * GATE_ROW + 1];
        double v_new[QN_GDN_MAX_DIM];
        for (size_t x = 0; x < p->head_v; x++)
            v_new[x] = (double)v[x];
        for (size_t d = 0; d < p->head_k; d++)
            for (size_t x = 0; x < p->head_v; x++) {
                state[d * p->head_v + x] *= e_g;
                v_new[x] -= state[d * p->head_v + x] * (double)k[d];
            }
        memset(o + t * p->head_v, 0, p->head_v * sizeof *o);
        for (size_t d = 0; d < p->head_k; d++)
            for (size_t x = 0; x < p->head_v; x++) {
                state[d * p->head_v + x] += beta * v_new[x] * (double)k[d];
                o[t * p->head_v + x] += (double)scale * state[d * p->head_v + x] * (double)q[d];
            }
    }
}

/* ---- A head, whole or in slices of its values ---- */

struct memory {
    size_t head_k, head_v, n_out, o_row, open_tokens;
    float *state, *v_new, *keys, *log_decay, *o;
    void *scratch;
};

static struct memory memory_new(const struct problem *p)
{
    struct memory m = { .head_k = p->head_k, .head_v = p->head_v, .n_out = p->n, .o_row = p->head_v + 3 };
    m.state = poisoned_floats(p->head_k * p->head_v);
    memset(m.state, 0, p->head_k * p->head_v * sizeof(float));
    m.v_new = poisoned_floats(CHUNK * p->head_v);
    m.keys = poisoned_floats(p->head_k * CHUNK);
    m.log_decay = poisoned_floats(CHUNK);
    m.o = poisoned_floats(p->n * m.o_row);
    m.scratch = poisoned(qn_gdn_scratch(p->head_k));
    return m;
}

static void memory_free(struct memory *m)
{
    for (size_t t = 0; t < m->n_out; t++)
        for (size_t x = m->head_v; x < m->o_row; x++)
            assert_true(isnan(m->o[t * m->o_row + x])); /* gaps between rows */
    release_floats(m->state, m->head_k * m->head_v);
    release_floats(m->v_new, CHUNK * m->head_v);
    release_floats(m->keys, m->head_k * CHUNK);
    release_floats(m->log_decay, CHUNK);
    release_floats(m->o, m->n_out * m->o_row);
    release(m->scratch, qn_gdn_scratch(m->head_k));
}

static qn_gdn_head head_of(const struct memory *m, size_t first)
{
    return (qn_gdn_head){ .state = m->state + first,
                          .state_row = m->head_v,
                          .v_new = m->v_new + first,
                          .v_new_row = m->head_v,
                          .log_decay = m->log_decay };
}

static qn_gdn_group group_of(const struct memory *m, const qn_gdn_head *head, size_t n_values)
{
    return (qn_gdn_group){ .head_k = m->head_k,
                           .n_values = n_values,
                           .heads = head,
                           .n_heads = 1,
                           .keys = m->keys,
                           .open_tokens = m->open_tokens };
}

/* Advance by tokens from..to-1, at most `step` per call, with values 0..cut-1 and the others as separate slices. */
static void advance(const qn_deltanet_kernels *kernels, const struct problem *p, struct memory *m, size_t from,
                    size_t to, size_t step, size_t cut)
{
    for (size_t t = from; t < to; t += step) {
        const size_t n = to - t < step ? to - t : step;
        const float *row = p->rows + t * p->row, *gates = p->gates + t * GATE_ROW;
        for (size_t first = 0; first < p->head_v; first += first ? p->head_v : cut) {
            qn_gdn_head head = head_of(m, first);
            qn_gdn_group group = group_of(m, &head, first ? p->head_v - cut : cut);
            head.v = row + 2 * p->head_k + first;
            head.g = gates;
            head.beta = gates + 1;
            head.o = m->o + t * m->o_row + first;
            group.n = n;
            group.q = row;
            group.k = row + p->head_k;
            group.qk_stride = group.v_stride = p->row;
            group.gate_stride = GATE_ROW;
            group.o_stride = m->o_row;
            group.scale = scale;
            memset(m->scratch, 0xff, qn_gdn_scratch(p->head_k));
            qn_gdn_advance(kernels, &group, m->scratch);
        }
        qn_gdn_append_keys(m->keys, p->head_k, m->open_tokens, row + p->head_k, p->row, n);
        qn_gdn_append_decay(m->log_decay, m->open_tokens, gates, GATE_ROW, n);
        m->open_tokens = qn_gdn_open_tokens_after(m->open_tokens, n);
        assert_int_equal(m->open_tokens, (t + n - 1) % CHUNK + 1);
    }
}

static void close_head(const qn_deltanet_kernels *kernels, struct memory *m)
{
    const qn_gdn_head head = head_of(m, 0);
    const qn_gdn_group group = group_of(m, &head, m->head_v);
    memset(m->scratch, 0xff, qn_gdn_scratch(m->head_k));
    qn_gdn_flush(kernels, &group, m->scratch);
    m->open_tokens = 0;
}

static void assert_same_memory(const struct memory *a, const struct memory *b)
{
    const size_t width = a->head_v * sizeof(float);
    assert_int_equal(a->open_tokens, b->open_tokens);
    assert_memory_equal(a->state, b->state, a->head_k * width);
    assert_memory_equal(a->v_new, b->v_new, a->open_tokens * width);
    assert_memory_equal(a->log_decay, b->log_decay, a->open_tokens * sizeof(float));
    for (size_t d = 0; d < a->head_k; d++)
        assert_memory_equal(a->keys + d * CHUNK, b->keys + d * CHUNK, a->open_tokens * sizeof(float));
    for (size_t t = 0; t < a->n_out; t++)
        assert_memory_equal(a->o + t * a->o_row, b->o + t * b->o_row, width);
}

/* Fill kernels with the reference and the variants that this CPU supports; returns their number. */
static const char *kernel_names[QN_CPU_MAX_LEVELS];

static size_t all_kernels(qn_deltanet_kernels kernels[QN_CPU_MAX_LEVELS])
{
    size_t n = 0;
    for (size_t i = 0; i < qn_cpu_n_levels; i++)
        if (qn_cpu_has_level(&qn_cpu_levels[i])) {
            kernel_names[n] = qn_cpu_levels[i].name;
            qn_deltanet_kernels_init(&kernels[n++], qn_cpu_levels[i].features);
        }
    return n;
}

/* ---- Tests ---- */

static double error_of(const float *found, size_t found_row, const double *exact, size_t rows, size_t width)
{
    double error = 0, norm = 0;
    for (size_t r = 0; r < rows; r++)
        for (size_t x = 0; x < width; x++) {
            const double e = exact[r * width + x], d = (double)found[r * found_row + x] - e;
            error += d * d;
            norm += e * e;
        }
    return sqrt(error / norm);
}

/* The tolerance for f32: a few hundred roundings of 2^-24 with random signs contribute to each value. */
static const double bar = 1e-5;

static void assert_accurate(size_t n, size_t head_k, size_t head_v, enum decays decays, enum keys keys)
{
    label("%zu tokens, K %zu, V %zu, decays %d, keys %d", n, head_k, head_v, (int)decays, (int)keys);
    struct problem p = problem_new(n, head_k, head_v, decays, keys);
    struct memory m = memory_new(&p);
    qn_deltanet_kernels kernels;
    double *o, *state;
    assert_ok(qn_alloc(&o, n * head_v, sizeof *o, "o"));
    assert_ok(qn_alloc(&state, head_k * head_v, sizeof *state, "state"));
    qn_deltanet_kernels_init(&kernels, qn_cpu_present());
    recurrence_float64(&p, o, state);
    advance(&kernels, &p, &m, 0, n, n, head_v);
    close_head(&kernels, &m);
    const double o_error = error_of(m.o, m.o_row, o, n, head_v);
    const double state_error = error_of(m.state, head_v, state, head_k, head_v);
    if (!(o_error <= bar && state_error <= bar)) /* also fails for NaN */
        fail_msg("relative errors are %.2g of o, %.2g of the state", o_error, state_error);
    memory_free(&m);
    problem_free(&p);
    qn_free(o);
    qn_free(state);
}

TEST(lengths_against_float64)
{
    static const size_t lengths[] = { 1, 2, 16, 63, 64, 65, 128, 129, 197, 1000, 4097 };
    for (size_t i = 0; i < COUNT(lengths); i++)
        for (int decays = 0; decays < N_DECAYS; decays++)
            for (int keys = 0; keys < N_KEYS; keys++)
                assert_accurate(lengths[i], 64, 48, (enum decays)decays, (enum keys)keys);
    for (int decays = 0; decays < N_DECAYS; decays++)
        assert_accurate(4097, 128, 128, (enum decays)decays, (enum keys)decays);
}

TEST(sizes_against_float64)
{
    static const size_t sizes[] = { 16, 48, 64, 128, 256 };
    for (size_t i = 0; i < 25; i++)
        for (int decays = 0; decays < N_DECAYS; decays++)
            assert_accurate(197, sizes[i / 5], sizes[i % 5], (enum decays)decays,
                            (enum keys)((i + (size_t)decays) % N_KEYS));
}

/* For every split of the tokens and every variant: the same state and open chunk, and the same state after a flush. */
TEST(same_bits)
{
    static const struct {
        size_t head_k, head_v;
    } sizes[] = { { 128, 128 }, { 16, 256 }, { 256, 16 }, { 48, 80 } };
    static const size_t steps[] = { 1, 2, 7, 63, 64, 65, 197 };
    qn_deltanet_kernels kernels[QN_CPU_MAX_LEVELS];
    const size_t n_kernels = all_kernels(kernels);
    for (size_t s = 0; s < COUNT(sizes); s++) {
        label("K %zu, V %zu", sizes[s].head_k, sizes[s].head_v);
        struct problem p =
            problem_new(197, sizes[s].head_k, sizes[s].head_v, (enum decays)(s % N_DECAYS), (enum keys)(s % 2));
        struct memory expected = memory_new(&p);
        advance(&kernels[0], &p, &expected, 0, p.n, p.n, p.head_v);
        for (size_t v = 0; v < n_kernels; v++)
            for (size_t i = 0; i < COUNT(steps); i++) {
                label("%s, %zu tokens at a time", kernel_names[v], steps[i]);
                struct memory m = memory_new(&p), closed = memory_new(&p);
                advance(&kernels[v], &p, &m, 0, p.n, steps[i], p.head_v);
                assert_same_memory(&m, &expected);
                advance(&kernels[0], &p, &closed, 0, p.n, p.n, p.head_v);
                close_head(&kernels[0], &closed);
                close_head(&kernels[v], &m);
                assert_same_memory(&m, &closed);
                memory_free(&m);
                memory_free(&closed);
            }
        memory_free(&expected);
        problem_free(&p);
    }
}

TEST(slices_of_values)
{
    qn_deltanet_kernels kernels[QN_CPU_MAX_LEVELS];
    const size_t n_kernels = all_kernels(kernels);
    struct problem p = problem_new(150, 64, 128, MILD, RANDOM);
    struct memory whole = memory_new(&p);
    advance(&kernels[0], &p, &whole, 0, p.n, p.n, p.head_v);
    for (size_t v = 0; v < n_kernels; v++)
        for (size_t cut = 16; cut < p.head_v; cut += 48)
            for (size_t step = 1; step <= p.n; step += 149) {
                label("%s, slices of %zu, %zu tokens at a time", kernel_names[v], cut, step);
                struct memory m = memory_new(&p);
                advance(&kernels[v], &p, &m, 0, p.n, step, cut);
                assert_same_memory(&m, &whole);
                memory_free(&m);
            }
    memory_free(&whole);
    problem_free(&p);
}

/* Truncation to a length in the same open chunk: the removed tokens have no effect on the following ones. */
TEST(going_back)
{
    static const struct {
        size_t taken, back;
    } cases[] = { { 100, 80 }, { 128, 65 }, { 128, 127 }, { 64, 1 }, { 66, 65 } };
    qn_deltanet_kernels kernels;
    qn_deltanet_kernels_init(&kernels, qn_cpu_present());
    struct problem p = problem_new(140, 64, 64, MILD, SIMILAR), other = problem_new(140, 64, 64, EXTREME, RANDOM);
    struct memory reference = memory_new(&p);
    advance(&kernels, &p, &reference, 0, p.n, p.n, p.head_v);
    for (size_t i = 0; i < COUNT(cases); i++)
        for (size_t step = 1; step < 128; step += 125) {
            label("from %zu to %zu, %zu tokens at a time", cases[i].taken, cases[i].back, step);
            struct memory m = memory_new(&p);
            advance(&kernels, &p, &m, 0, cases[i].back, step, p.head_v);
            advance(&kernels, &other, &m, cases[i].back, cases[i].taken, step, p.head_v);
            m.open_tokens -= cases[i].taken - cases[i].back;
            advance(&kernels, &p, &m, cases[i].back, p.n, step, p.head_v);
            assert_same_memory(&m, &reference);
            memory_free(&m);
        }
    memory_free(&reference);
    problem_free(&p);
    problem_free(&other);
}

/* A NaN key makes its own and all later outputs NaN, and no earlier one. */
TEST(later_rows_are_not_read)
{
    enum { BAD = 75 };
    qn_deltanet_kernels kernels[QN_CPU_MAX_LEVELS];
    const size_t n_kernels = all_kernels(kernels);
    struct problem p = problem_new(140, 32, 32, MILD, RANDOM);
    struct memory good = memory_new(&p);
    advance(&kernels[0], &p, &good, 0, p.n, p.n, p.head_v);
    for (size_t d = 0; d < p.head_k; d++)
        p.rows[BAD * p.row + p.head_k + d] = NAN;
    for (size_t v = 0; v < n_kernels; v++) {
        label("%s", kernel_names[v]);
        struct memory m = memory_new(&p);
        advance(&kernels[v], &p, &m, 0, p.n, p.n, p.head_v);
        for (size_t t = 0; t < BAD; t++)
            assert_memory_equal(m.o + t * m.o_row, good.o + t * good.o_row, p.head_v * sizeof(float));
        for (size_t t = BAD; t < p.n; t++)
            assert_true(isnan(m.o[t * m.o_row]));
        memory_free(&m);
    }
    memory_free(&good);
    problem_free(&p);
}

/* Three heads with common keys and queries and separate values, decays and betas: as a group, and each alone. */
TEST(heads_together)
{
    enum { HEADS = 3, TOKENS = 200 };
    static const size_t steps[] = { 1, 7, CHUNK, TOKENS };
    static const enum decays decays[HEADS] = { MILD, NONE, EXTREME };
    qn_deltanet_kernels kernels[QN_CPU_MAX_LEVELS];
    const size_t n_kernels = all_kernels(kernels);
    struct problem p[HEADS];
    struct memory alone[HEADS];
    for (size_t h = 0; h < HEADS; h++) {
        p[h] = problem_new(TOKENS, 48, 32, decays[h], RANDOM);
        for (size_t t = 0; t < TOKENS; t++)
            memcpy(p[h].rows + t * p[h].row, p[0].rows + t * p[0].row, 2 * p[0].head_k * sizeof(float));
        alone[h] = memory_new(&p[h]);
        advance(&kernels[0], &p[h], &alone[h], 0, TOKENS, TOKENS, p[h].head_v);
    }
    for (size_t v = 0; v < n_kernels * COUNT(steps); v++) {
        const size_t step = steps[v / n_kernels];
        label("%s, %zu tokens at a time", kernel_names[v % n_kernels], step);
        struct memory m[HEADS];
        qn_gdn_head heads[HEADS];
        for (size_t h = 0; h < HEADS; h++)
            m[h] = memory_new(&p[h]);
        for (size_t t = 0, n; t < TOKENS; t += n) {
            n = TOKENS - t < step ? TOKENS - t : step;
            qn_gdn_group group = group_of(&m[0], heads, p[0].head_v);
            for (size_t h = 0; h < HEADS; h++) {
                heads[h] = head_of(&m[h], 0);
                heads[h].v = p[h].rows + t * p[h].row + 2 * p[h].head_k;
                heads[h].g = p[h].gates + t * GATE_ROW;
                heads[h].beta = heads[h].g + 1;
                heads[h].o = m[h].o + t * m[h].o_row;
            }
            group.n_heads = HEADS;
            group.n = n;
            group.q = p[0].rows + t * p[0].row;
            group.k = group.q + p[0].head_k;
            group.qk_stride = group.v_stride = p[0].row;
            group.gate_stride = GATE_ROW;
            group.o_stride = m[0].o_row;
            group.scale = scale;
            memset(m[0].scratch, 0xff, qn_gdn_scratch(p[0].head_k));
            qn_gdn_advance(&kernels[v % n_kernels], &group, m[0].scratch);
            for (size_t h = 0; h < HEADS; h++) {
                qn_gdn_append_keys(m[h].keys, p[h].head_k, m[h].open_tokens, group.k, p[h].row, n);
                qn_gdn_append_decay(m[h].log_decay, m[h].open_tokens, heads[h].g, GATE_ROW, n);
                m[h].open_tokens = qn_gdn_open_tokens_after(m[h].open_tokens, n);
            }
        }
        for (size_t h = 0; h < HEADS; h++) {
            label("head %zu", h);
            assert_same_memory(&m[h], &alone[h]);
            memory_free(&m[h]);
        }
    }
    for (size_t h = 0; h < HEADS; h++) {
        memory_free(&alone[h]);
        problem_free(&p[h]);
    }
}

TEST(nothing_to_do)
{
    qn_deltanet_kernels kernels;
    qn_deltanet_kernels_init(&kernels, qn_cpu_present());
    struct problem p = problem_new(70, 32, 32, MILD, RANDOM);
    struct memory m = memory_new(&p), same = memory_new(&p);
    for (size_t open_tokens = 0; open_tokens <= CHUNK; open_tokens++)
        assert_int_equal(qn_gdn_open_tokens_after(open_tokens, 0), open_tokens);
    close_head(&kernels, &m);
    assert_same_memory(&m, &same); /* flushing an empty chunk changes nothing */
    advance(&kernels, &p, &m, 0, CHUNK, CHUNK, p.head_v);
    advance(&kernels, &p, &same, 0, CHUNK, CHUNK, p.head_v);
    const qn_gdn_head head = head_of(&m, 0);
    const qn_gdn_group group = group_of(&m, &head, p.head_v);
    qn_gdn_advance(&kernels, &group, m.scratch);
    qn_gdn_append_keys(m.keys, p.head_k, m.open_tokens, NULL, 0, 0);
    qn_gdn_append_decay(m.log_decay, m.open_tokens, NULL, 0, 0);
    assert_same_memory(&m, &same); /* a full chunk stays open until the next token */
    memory_free(&m);
    memory_free(&same);
    problem_free(&p);
}

TEST(gates)
{
    for (double x = -100; x <= 100; x += 0.37) {
        const float alpha = (float)(x - 0.5), bias = 0.5f, a = -1.7f;
        const double sum = (double)alpha + (double)bias;
        /* Softplus in its other form, which has no cancellation; the result is rounded once. */
        const double exact = (fmax(sum, 0) + log1p(exp(-fabs(sum)))) * (double)a;
        const float g = qn_gdn_log_decay(alpha, bias, a);
        assert_true(g <= 0 && fabs((double)g - exact) <= fabs(exact) * 1.01 * 0x1p-24 + 1e-45);
        /* qn_exp is within 2e-7, or 4.5e-38; then a sum and a quotient. */
        const double sigmoid = 1 / (1 + exp(-(double)(float)x));
        assert_true(fabs((double)qn_gdn_beta((float)x) - sigmoid) <= sigmoid * (2e-7 + 2 * 0x1p-24) + 5e-38);
    }
    assert_true(qn_gdn_log_decay(-3e38f, -3e38f, -1) == 0);
    assert_true(isfinite(qn_gdn_log_decay(3e38f, 3e38f, -3e38f)));
    assert_true(isnan(qn_gdn_log_decay(NAN, 0, -1)));
    assert_true(isnan(qn_gdn_beta(NAN)));
    assert_true(qn_gdn_beta(3e38f) == 1 && qn_gdn_beta(-3e38f) < 1e-37f);
}
