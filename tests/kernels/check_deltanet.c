/* Gated delta rule on the CPU: the kernels of kernels/deltanet/ bit for bit and against float64, and the speed of heads
 * with the shapes of a 27B model. tests/unit/kernels/test_deltanet.c checks whole chunks. */
#include "check.h"

#include "base/address_space.h"
#include "base/memory.h"
#include "base/team.h"
#include "kernels/canon.h"
#include "kernels/deltanet/deltanet.h"

#include <time.h>

/* ---- GEMM ---- */

/* Sizes and layout of a GEMM; the gaps are elements between the rows of c and of b. */
struct shape {
    size_t m, n, k, c_gap, b_gap;
    bool a_transposed; /* a is column-major */
    bool accumulate;
};

/* Gaps of b are NaN and must not be read; gaps of c are poisoned and must not be written. */
static void check_gemm(const qn_cpu_level *level, const struct shape *s)
{
    static float expected[128 * 256];
    qn_deltanet_kernels kernels;
    qn_deltanet_kernels_init(&kernels, level->features);
    const size_t c_row = s->n + s->c_gap, b_row = s->n + s->b_gap;
    const size_t a_row = s->a_transposed ? 1 : s->k, a_col = s->a_transposed ? s->m : 1;
    float *a = qn_guarded_floats(s->m * s->k), *b = qn_guarded_floats(s->k * b_row),
          *c = qn_guarded_floats(s->m * c_row);
    double *exact = qn_doubles(s->m * s->n), *bound = qn_doubles(s->m * s->n);
    qn_random_floats(a, s->m * s->k, 1);
    for (size_t j = 0; j < s->k; j++)
        qn_random_floats(b + j * b_row, s->n, 1);
    for (size_t i = 0; s->accumulate && i < s->m; i++)
        qn_random_floats(c + i * c_row, s->n, 1);
    for (size_t i = 0; i < s->m; i++)
        for (size_t x = 0; x < s->n; x++) {
            double sum = s->accumulate ? (double)c[i * c_row + x] : 0, magnitude = fabs(sum);
            for (size_t j = 0; j < s->k; j++) {
                const double term = (double)a[i * a_row + j * a_col] * (double)b[j * b_row + x];
                sum += term;
                magnitude += fabs(term);
            }
            exact[i * s->n + x] = sum;
            bound[i * s->n + x] = (double)s->k * 0x1p-24 * magnitude; /* one rounding of a partial sum for each term */
        }
    kernels.gemm(c, c_row, a, a_row, a_col, b, b_row, s->m, s->n, s->k, s->accumulate, NULL);
    for (size_t i = 0; i < s->m; i++) {
        const float *row = c + i * c_row;
        qn_expect_level(level, row, expected + i * s->n, s->n, "element");
        if (qn_is_reference(level))
            qn_expect_near(row, exact + i * s->n, bound + i * s->n, s->n, "element");
        for (size_t x = s->n; x < c_row; x++)
            qn_expect(qn_f32_bits(row[x]) == 0xffffffffu, "row %zu: an element of the gap was written", i);
    }
    qn_release();
}

static void check_gemms(void)
{
    static const size_t ms[] = { 0, 1, 2, 3, 4, 5, 7, 16, 33, 128 },
                        ns[] = { 0, 1, 15, 16, 17, 33, 48, 64, 80, 128, 144, 256 };
    static const size_t ks[] = { 0, 1, 2, 15, 17, 63, 64, 65, 128, 256 };
    for (size_t m = 0; m < QN_LENGTH(ms); m++)
        for (size_t n = 0; n < QN_LENGTH(ns); n++)
            for (size_t k = 0; k < QN_LENGTH(ks); k++) {
                const unsigned kind = (unsigned)(m + 3 * n + 5 * k);
                const struct shape s = { .m = ms[m],
                                         .n = ns[n],
                                         .k = ks[k],
                                         .c_gap = kind % 3,
                                         .b_gap = kind % 4 == 1 ? 5 : 0,
                                         .a_transposed = kind & 2,
                                         .accumulate = kind / 4 & 1 };
                if (s.m * s.n * s.k > 1 << 19) /* the reference is slow */
                    continue;
                for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
                    qn_random_seed(kind + 1000 * k);
                    qn_case_begin("deltanet gemm", level->name, "%zu x %zu x %zu gaps %zu %zu%s%s", s.m, s.n, s.k,
                                  s.c_gap, s.b_gap, s.a_transposed ? " a transposed" : "",
                                  s.accumulate ? " accumulate" : "");
                    check_gemm(level, &s);
                }
            }
}

/* ---- Row operations: gate, scale, delta, convolution ---- */

enum { MAX_ROW = 1030, CASES = 5 };
static const char *const case_names[CASES] = { "gate", "scale", "delta", "conv", "conv of one tap" };

/* Run an operation on random rows: its result in y, the result in float64, and the error bound. */
static void row_case(const qn_deltanet_kernels *kernels, int which, size_t n, float *y, double *exact, double *bound)
{
    enum { TAPS = QN_CONV_MAX_TAPS };
    static float inputs[TAPS][MAX_ROW + 16], weights[TAPS * (MAX_ROW + 16)];
    static double sums[MAX_ROW];
    const float *rows[TAPS], *w = weights + qn_random_below(16);
    const size_t taps = which == 4 ? 1 : 2 + qn_random_below(TAPS - 1), w_row = n + qn_random_below(3);
    const float factor = qn_random_normal();
    const double at = -30;
    for (size_t t = 0; t < TAPS; t++) {
        rows[t] = inputs[t] + qn_random_below(16);
        qn_random_floats(inputs[t], MAX_ROW + 16, 1);
    }
    qn_random_floats(weights, TAPS * (MAX_ROW + 16), 1);
    for (size_t x = 0; x < n; x++) {
        sums[x] = at + 120 * (double)qn_random_below(1000) / 1000; /* e^0 down to values that underflow */
        const double a = (double)rows[0][x], b = (double)rows[1][x];
        double magnitude = 0;
        switch (which) {
        case 0:
            exact[x] = exp(at - sums[x]) * a;
            /* Rounding the exponent changes the result by up to |at - sum| 2^-24; qn_exp is within 2e-7, or 4.5e-38. */
            bound[x] = fabs(exact[x]) * ((sums[x] - at) * 0x1p-24 + 2e-7 + 0x1p-24) + 5e-38 * fabs(a);
            y[x] = rows[0][x];
            break;
        case 1:
            exact[x] = (double)factor * a;
            bound[x] = 0x1p-24 * fabs(exact[x]);
            break;
        case 2:
            exact[x] = (double)factor * (a - b);
            bound[x] = 2.01 * 0x1p-24 * fabs(exact[x]);
            break;
        default:
            exact[x] = 0;
            for (size_t t = 0; t < taps; t++) {
                const double term = (double)w[t * w_row + x] * (double)rows[t][x];
                exact[x] += term;
                magnitude += fabs(term);
            }
            exact[x] /= 1 + exp(-exact[x]);
            /* One rounding per tap, times silu's slope of at most 1.1; then silu's exponential, sum and quotient. */
            bound[x] = 1.1 * (double)taps * 0x1p-24 * magnitude + fabs(exact[x]) * (2e-7 + 3 * 0x1p-24);
        }
    }
    if (which == 0)
        kernels->gate(y, n, 1, at, sums, n);
    else if (which == 1)
        kernels->scale(y, rows[0], factor, n);
    else if (which == 2)
        kernels->delta(y, rows[0], rows[1], factor, n);
    else
        kernels->conv(y, rows, w, w_row, taps, n);
}

static void check_rows(void)
{
    static const size_t widths[] = { 0, 1, 2, 15, 16, 17, 31, 64, 100, 128, MAX_ROW };
    static float expected[MAX_ROW];
    static double exact[MAX_ROW], bound[MAX_ROW];
    for (size_t c = 0; c < CASES * QN_LENGTH(widths); c++)
        for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
            const size_t n = widths[c / CASES];
            const int which = (int)(c % CASES);
            qn_deltanet_kernels kernels;
            qn_random_seed(c);
            float *y = qn_guarded_floats(n);
            qn_deltanet_kernels_init(&kernels, level->features);
            qn_case_begin("deltanet", level->name, "%s width %zu", case_names[which], n);
            row_case(&kernels, which, n, y, exact, bound);
            qn_expect_level(level, y, expected, n, "element");
            if (qn_is_reference(level))
                qn_expect_near(y, exact, bound, n, "element");
            qn_release();
        }
}

/* ---- Speed ---- */

struct timed_gemm {
    const qn_deltanet_kernels *kernels;
    size_t m, n, k;
    float *a, *b, *c;
};

static void timed_gemm(void *context)
{
    const struct timed_gemm *t = context;
    t->kernels->gemm(t->c, t->n, t->a, t->k, 1, t->b, t->n, t->m, t->n, t->k, false, NULL);
}

static void bench_gemm(const qn_deltanet_kernels *kernels, const char *level, size_t m, size_t n, size_t k)
{
    struct timed_gemm t = { kernels, m, n, k, qn_floats_of(m * k, 1), qn_floats_of(k * n, 1), qn_floats(m * n) };
    qn_bench("deltanet", level, qn_text("gemm %zu x %zu x %zu", m, n, k), 2.0 * (double)(m * n * k), "FLOP", timed_gemm,
             &t);
    qn_release();
}

/* The layers of a 27B model; their states together are larger than any cache. */
enum { DIM = 128, LAYERS = 48, HEADS = 48, KEY_HEADS = 16, GROUP = HEADS / KEY_HEADS, PREFILL = 256, MAX_THREADS = 2 };
enum { STATE = DIM * DIM, V_NEW = QN_GDN_CHUNK * DIM, KEYS = DIM * QN_GDN_CHUNK };

struct layers {
    const qn_deltanet_kernels *kernels;
    qn_team *team;
    size_t n_layers, open_tokens, n_tokens;
    float *state, *v_new, *keys; /* [LAYERS][...] */
    float *log_decay;            /* [LAYERS * HEADS][QN_GDN_CHUNK] */
    float *rows, *gates, *o;     /* [PREFILL][DIM], for q, k and v; g, beta; [threads][DIM] */
    unsigned char *scratch;      /* [threads][qn_gdn_scratch(DIM)] */
};

static void *alloc_huge(size_t count, float value)
{
    float *memory = qn_floats(count);
    qn_advise_huge(memory, count * sizeof(float));
    for (size_t i = 0; i < count; i++)
        memory[i] = value; /* write every page: untouched pages would all map to the zero page */
    return memory;
}

/* Value heads of a layer. */
static void advance_heads(const struct layers *l, size_t layer, size_t begin, size_t end, int thread)
{
    for (size_t unit = begin, n; unit < end; unit += n) {
        const size_t k_head = unit / GROUP;
        float *keys = l->keys + layer * KEY_HEADS * KEYS;
        qn_gdn_head heads[GROUP];
        for (n = 0; unit + n < end && (unit + n) / GROUP == k_head; n++) {
            const size_t head = layer * HEADS + (unit + n) % GROUP * KEY_HEADS + k_head;
            heads[n] = (qn_gdn_head){ .state = l->state + head * STATE,
                                      .state_row = DIM,
                                      .v_new = l->v_new + head * V_NEW,
                                      .v_new_row = DIM,
                                      .log_decay = l->log_decay + head * QN_GDN_CHUNK,
                                      .v = l->rows,
                                      .g = l->gates,
                                      .beta = l->gates + 1,
                                      .o = l->o + (size_t)thread * PREFILL * DIM };
        }
        const qn_gdn_group group = { .head_k = DIM,
                                     .n_values = DIM,
                                     .heads = heads,
                                     .n_heads = n,
                                     .keys = keys + k_head * KEYS,
                                     .open_tokens = l->open_tokens,
                                     .n = l->n_tokens,
                                     .q = l->rows,
                                     .k = l->rows,
                                     .qk_stride = DIM,
                                     .v_stride = DIM,
                                     .o_stride = DIM,
                                     .scale = 0.1f,
                                     .next = unit + n < end ? keys + (unit + n) / GROUP * KEYS : NULL };
        qn_gdn_advance(l->kernels, &group, l->scratch + (size_t)thread * qn_gdn_scratch(DIM));
    }
}

/* Keys and decays of key heads of the open chunk. */
static void append_heads(const struct layers *l, size_t layer, size_t begin, size_t end)
{
    for (size_t k_head = begin; k_head < end; k_head++)
        qn_gdn_append_keys(l->keys + (layer * KEY_HEADS + k_head) * KEYS, DIM, l->open_tokens, l->rows, DIM,
                           l->n_tokens);
    for (size_t head = GROUP * begin; head < GROUP * end; head++)
        qn_gdn_append_decay(l->log_decay + (layer * HEADS + head) * QN_GDN_CHUNK, l->open_tokens, l->gates, 0,
                            l->n_tokens);
}

/* Two phases for each layer, in each a piece for each thread. */
static qn_team_pieces layer_pieces(void *context, size_t phase, int n_threads)
{
    (void)context, (void)phase, (void)n_threads;
    return (qn_team_pieces){ .own = 1 };
}

static void advance_piece(void *context, const qn_team_piece *piece)
{
    const struct layers *l = context;
    const bool appends = piece->phase % 2;
    size_t begin, end;
    qn_team_range(appends ? KEY_HEADS : HEADS, 1, piece->index, (size_t)piece->n_threads, &begin, &end);
    if (appends)
        append_heads(l, piece->phase / 2, begin, end);
    else
        advance_heads(l, piece->phase / 2, begin, end, piece->thread);
}

static void advance_layers(void *context)
{
    struct layers *l = context;
    qn_team_do(l->team, &(qn_team_job){
                            .n_phases = 2 * l->n_layers, .pieces = layer_pieces, .work = advance_piece, .context = l });
}

/* Read the states of all layers in memory order. */
static void read_range(void *context, size_t begin, size_t end, int thread)
{
    const struct layers *l = context;
    float sums[4 * QN_LANES] = { 0 };
    for (size_t i = begin; i < end; i += 4 * QN_LANES)
        for (size_t x = 0; x < 4 * QN_LANES; x++)
            sums[x] += l->state[i + x];
    memcpy(l->o + (size_t)thread * PREFILL * DIM, sums, sizeof sums);
}

static void read_states(void *context)
{
    struct layers *l = context;
    qn_team_divide(l->team, (size_t)LAYERS * HEADS * STATE, 4 * QN_LANES, read_range, l);
}

static double seconds_of(struct layers *l, void (*work)(void *layers))
{
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    work(l);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) * 1e-9;
}

/* A full chunk token by token, including its commit to the state, interleaved with reads of the states. Each time is
 * the median over the rounds. */
static void bench_decoding(struct layers *l, const char *level)
{
    enum { ROUNDS = 5, READ_EVERY = 8, READS = ROUNDS * QN_GDN_CHUNK / READ_EVERY };
    double token[QN_GDN_CHUNK][ROUNDS], read[READS], sum = 0;
    l->n_layers = LAYERS;
    l->n_tokens = 1;
    l->open_tokens = QN_GDN_CHUNK;
    for (size_t i = 0; i < ROUNDS * QN_GDN_CHUNK; i++) {
        if (i % READ_EVERY == 0)
            read[i / READ_EVERY] = seconds_of(l, read_states);
        token[i % QN_GDN_CHUNK][i / QN_GDN_CHUNK] = seconds_of(l, advance_layers);
        l->open_tokens = qn_gdn_open_tokens_after(l->open_tokens, 1);
    }
    for (size_t i = 0; i < QN_GDN_CHUNK; i++)
        sum += qn_median(token[i], ROUNDS) / QN_GDN_CHUNK;
    const char *shape =
        qn_text("27B decode, a head, %d thread%s", qn_team_size(l->team), qn_team_size(l->team) > 1 ? "s" : "");
    qn_report_ratio("deltanet", level, shape, sum / (LAYERS * HEADS), sum / qn_median(read, READS),
                    "times reading the state once");
}

struct prefill {
    struct layers *layers;
    size_t per_call;
};

static void timed_prefill(void *context)
{
    struct layers *l = ((struct prefill *)context)->layers;
    l->n_tokens = ((struct prefill *)context)->per_call;
    for (size_t done = 0; done < PREFILL; done += l->n_tokens) {
        advance_layers(l);
        l->open_tokens = qn_gdn_open_tokens_after(l->open_tokens, l->n_tokens);
    }
}

static void bench_layers(void)
{
    struct layers l = { .state = alloc_huge((size_t)LAYERS * HEADS * STATE, 0.01f),
                        .v_new = alloc_huge((size_t)LAYERS * HEADS * V_NEW, 0.01f),
                        .keys = alloc_huge((size_t)LAYERS * KEY_HEADS * KEYS, 0.01f),
                        .log_decay = alloc_huge((size_t)LAYERS * HEADS * QN_GDN_CHUNK, -0.01f),
                        .rows = alloc_huge((size_t)PREFILL * DIM, 0),
                        .o = alloc_huge((size_t)MAX_THREADS * PREFILL * DIM, 0) };
    float gates[2] = { -0.01f, 0.5f };
    l.gates = gates;
    l.scratch = qn_new(MAX_THREADS, qn_gdn_scratch(DIM));
    qn_random_floats(l.rows, (size_t)PREFILL * DIM, 0.08f);
    for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
        qn_deltanet_kernels kernels;
        qn_deltanet_kernels_init(&kernels, level->features);
        l.kernels = &kernels;
        for (int threads = 1; threads <= MAX_THREADS && level->features; threads++) { /* the reference is slow */
            qn_assert_ok(qn_team_create(threads, &l.team));
            bench_decoding(&l, level->name);
            struct prefill prefill = { .layers = &l };
            for (prefill.per_call = 1; threads == 1 && prefill.per_call <= PREFILL; prefill.per_call *= PREFILL) {
                l.n_layers = 1;
                qn_bench("deltanet", level->name, qn_text("48 heads, 256 tokens, %zu at a time", prefill.per_call),
                         PREFILL, "token", timed_prefill, &prefill);
            }
            qn_team_free(l.team);
        }
    }
    qn_release();
}

void qn_check_deltanet(bool bench)
{
    check_gemms();
    check_rows();
    if (!bench)
        return;
    for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
        qn_deltanet_kernels kernels;
        qn_deltanet_kernels_init(&kernels, level->features);
        bench_gemm(&kernels, level->name, 2 * QN_GDN_CHUNK, DIM, DIM);
        bench_gemm(&kernels, level->name, DIM, DIM, QN_GDN_CHUNK);
        bench_gemm(&kernels, level->name, 16, QN_GDN_CHUNK, DIM);
        bench_gemm(&kernels, level->name, 2, DIM, DIM);
    }
    bench_layers();
}
