/* The peak int8 and f32 rates of one thread, from registers only: the limit that prefill is compared with. Then the
 * int8 rates of one thread and of all at once, whose cores may have two threads that share a unit, and the share of it
 * that the matmul of a prompt reaches. Nothing is checked. */
#include "problem.h"

#include "base/cpu.h"
#include "base/team.h"
#include "kernels/matmul/packed.h"

#include <time.h>

/* Twelve independent accumulators hide a latency of four cycles at up to three instructions per cycle. */
#define EACH(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11)
enum { N_ACCUMULATORS = 12, REPEATS = 1000 };

#if QN_X86

#include <immintrin.h>

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static void peak_avx512(void *context)
{
    (void)context;
    __m512i sum[N_ACCUMULATORS], codes = _mm512_set1_epi8(1), acts = _mm512_set1_epi8(2);
#define CLEAR(i) sum[i] = _mm512_setzero_si512();
#define STEP(i) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum[i]) : "v"(codes), "v"(acts));
    EACH(CLEAR)
    for (int n = 0; n < REPEATS; n++) {
        EACH(STEP)
    }
#undef CLEAR
#undef STEP
}

__attribute__((target("avx512f"))) static void peak_fma_avx512(void *context)
{
    (void)context;
    __m512 sum[N_ACCUMULATORS], x = _mm512_set1_ps(0.5f);
#define CLEAR(i) sum[i] = _mm512_setzero_ps();
#define STEP(i) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+v"(sum[i]) : "v"(x));
    EACH(CLEAR)
    for (int n = 0; n < REPEATS; n++) {
        EACH(STEP)
    }
#undef CLEAR
#undef STEP
}

__attribute__((target("avx2,fma"))) static void peak_fma_avx2(void *context)
{
    (void)context;
    __m256 sum[N_ACCUMULATORS], x = _mm256_set1_ps(0.5f);
#define CLEAR(i) sum[i] = _mm256_setzero_ps();
#define STEP(i) __asm__ volatile("vfmadd231ps %1, %1, %0" : "+x"(sum[i]) : "x"(x));
    EACH(CLEAR)
    for (int n = 0; n < REPEATS; n++) {
        EACH(STEP)
    }
#undef CLEAR
#undef STEP
}

__attribute__((target("avx2"))) static void peak_avx2(void *context)
{
    (void)context;
    __m256i sum[N_ACCUMULATORS], codes = _mm256_set1_epi8(1), acts = _mm256_set1_epi8(2), ones = _mm256_set1_epi16(1),
                                 product;
#define CLEAR(i) sum[i] = _mm256_setzero_si256();
#define STEP(i)                                                                                                        \
    __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0"                               \
                     : "+x"(sum[i]), "=&x"(product)                                                                    \
                     : "x"(codes), "x"(acts), "x"(ones));
    EACH(CLEAR)
    for (int n = 0; n < REPEATS; n++) {
        EACH(STEP)
    }
#undef CLEAR
#undef STEP
}

#ifdef QN_HAVE_AMX
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Four independent accumulators; a product has 16 * 16 sums of 64 int8 (or 32 bf16) values. Operands of zeros would be
 * multiplied twice as fast. */
enum { TILE_PRODUCTS = 4, TILE_OPERATIONS = 2 * 16 * 16 * 64 };

#define TILE_PEAK(name, isa, instruction)                                                                              \
    __attribute__((target("amx-tile," isa))) static void name(void *context)                                           \
    {                                                                                                                  \
        struct tile_config config = { .palette = 1 };                                                                  \
        _Alignas(64) uint16_t ones[16 * 32]; /* in bf16 */                                                             \
        (void)context;                                                                                                 \
        for (int i = 0; i < 16 * 32; i++)                                                                              \
            ones[i] = 0x3f80;                                                                                          \
        for (int tile = 0; tile < 8; tile++) {                                                                         \
            config.row_bytes[tile] = 64;                                                                               \
            config.rows[tile] = 16;                                                                                    \
        }                                                                                                              \
        __asm__ volatile(                                                                                              \
            "ldtilecfg %0\n\ttilezero %%tmm0\n\ttilezero %%tmm1\n\ttilezero %%tmm2\n\ttilezero %%tmm3\n\t"             \
            "tileloadd (%1,%2,1), %%tmm4\n\ttileloadd (%1,%2,1), %%tmm5" ::"m"(config),                                \
            "r"(ones), "r"((size_t)64)                                                                                 \
            : "memory");                                                                                               \
        for (int n = 0; n < REPEATS; n++)                                                                              \
            __asm__ volatile(instruction " %%tmm4, %%tmm5, %%tmm0\n\t" instruction                                     \
                                         " %%tmm4, %%tmm5, %%tmm1\n\t" instruction                                     \
                                         " %%tmm4, %%tmm5, %%tmm2\n\t" instruction " %%tmm4, %%tmm5, %%tmm3" ::        \
                                             : "memory");                                                              \
        __asm__ volatile("tilerelease" ::: "memory");                                                                  \
    }
TILE_PEAK(peak_tiles_int8, "amx-int8", "tdpbssd")
TILE_PEAK(peak_tiles_bf16, "amx-bf16", "tdpbf16ps")
#endif

#elif QN_ARM64

#include <arm_neon.h>

__attribute__((target("arch=armv8.2-a+dotprod"))) static void peak_dotprod(void *context)
{
    (void)context;
    int32x4_t sum[N_ACCUMULATORS];
    int8x16_t codes = vdupq_n_s8(1), acts = vdupq_n_s8(2);
#define CLEAR(i) sum[i] = vdupq_n_s32(0);
#define STEP(i) __asm__ volatile("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum[i]) : "w"(codes), "w"(acts));
    EACH(CLEAR)
    for (int n = 0; n < REPEATS; n++) {
        EACH(STEP)
    }
#undef CLEAR
#undef STEP
}

__attribute__((target("arch=armv8.2-a+i8mm"))) static void peak_i8mm(void *context)
{
    (void)context;
    int32x4_t sum[N_ACCUMULATORS];
    int8x16_t codes = vdupq_n_s8(1), acts = vdupq_n_s8(2);
#define CLEAR(i) sum[i] = vdupq_n_s32(0);
#define STEP(i) __asm__ volatile("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum[i]) : "w"(codes), "w"(acts));
    EACH(CLEAR)
    for (int n = 0; n < REPEATS; n++) {
        EACH(STEP)
    }
#undef CLEAR
#undef STEP
}

#endif

/* ---- Several threads ---- */

struct repeated {
    void (*work)(void *context); /* the same on all threads */
    void **contexts;             /* [threads], or NULL */
    size_t calls;
};

static qn_team_pieces one_each(void *context, size_t phase, int n_threads)
{
    (void)context, (void)phase, (void)n_threads;
    return (qn_team_pieces){ .own = 1 };
}

static void repeat(void *context, const qn_team_piece *piece)
{
    const struct repeated *r = context;
    for (size_t i = 0; i < r->calls; i++)
        r->work(r->contexts ? r->contexts[piece->index] : NULL);
}

static double wall_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Prints and returns the rate of all threads together, the median of several runs of about 40 ms, as a share of
 * `limit` unless that is 0. `units` are those of a call. */
static double bench_threads(int n_threads, const char *variant, const char *name, double units,
                            void (*work)(void *context), void **contexts, double limit)
{
    enum { RUNS = 5 };
    double seconds[RUNS];
    qn_team *team;
    struct repeated repeated = { .work = work, .contexts = contexts, .calls = 1 };
    const qn_team_job job = { .n_phases = 1, .pieces = one_each, .work = repeat, .context = &repeated };
    qn_assert_ok(qn_team_create(n_threads, &team));
    qn_team_do(team, &job);
    const double start = wall_clock();
    qn_team_do(team, &job);
    repeated.calls = (size_t)(0.04 / (wall_clock() - start + 1e-9)) + 1;
    for (int run = 0; run < RUNS; run++) {
        const double begin = wall_clock();
        qn_team_do(team, &job);
        seconds[run] = (wall_clock() - begin) / (double)repeated.calls;
    }
    qn_team_free(team);
    const double median = qn_median(seconds, RUNS), rate = units * n_threads / median;
    qn_report_rate("peak", variant, qn_text("%s, %d thread%s", name, n_threads, n_threads == 1 ? "" : "s"), median,
                   rate, "OP", limit);
    return rate;
}

/* ---- The matmul of a prompt: each thread has a panel of rows, all have the same activations ---- */

enum { PROMPT_COLS = 5120, PROMPT_TOKENS = 256 };

struct prompt {
    const qn_matmul_kernels *kernels;
    qn_packed_matrix weights;
    const qn_acts *acts;
    float *out;
    void *scratch;
};

static void run_prompt(void *context)
{
    const struct prompt *p = context;
    qn_matmul_rows(p->kernels, &p->weights, p->acts, PROMPT_TOKENS, 0, QN_PANEL_ROWS, false, p->out, QN_PANEL_ROWS,
                   p->scratch);
}

/* limit: of one thread and of all. */
static void bench_prompt(const qn_cpu_level *level, const char *type_name, int n_threads, const double limit[2])
{
    const qn_type_info *type = qn_type_find_name(type_name);
    qn_matmul_kernels kernels;
    qn_acts acts;
    struct prompt *prompts = qn_new((size_t)n_threads, sizeof *prompts);
    void **contexts = qn_new((size_t)n_threads, sizeof *contexts);
    qn_matmul_kernels_init(&kernels, level->features);
    const qn_packed_kernel *packed = qn_matmul_packed(&kernels, type);
    for (int thread = 0; thread < n_threads; thread++) {
        struct prompt *p = contexts[thread] = &prompts[thread];
        p->kernels = &kernels;
        p->acts = &acts;
        p->weights.stored = (qn_matrix){ .type = type, .n_rows = QN_PANEL_ROWS, .n_cols = PROMPT_COLS };
        qn_expect(qn_row_bytes(type, PROMPT_COLS, &p->weights.stored.row_bytes), "bytes of a row");
        const size_t bytes = QN_PANEL_ROWS * p->weights.stored.row_bytes;
        uint8_t *stored = qn_new(bytes, 1), *rows = qn_new(bytes, 1);
        qn_random_blocks(type, stored, bytes / type->block_bytes, 1e3f);
        p->weights.stored.data = stored;
        if (packed)
            qn_matmul_pack(&p->weights.stored, packed->packing, 0, 1, rows);
        p->weights.packed = packed ? rows : NULL;
        p->out = qn_floats(PROMPT_TOKENS * QN_PANEL_ROWS);
        p->scratch = qn_new(qn_matmul_scratch(&kernels, PROMPT_COLS), 1);
    }
    qn_acts_keep(&acts, PROMPT_TOKENS, PROMPT_COLS, qn_matmul_act_layouts(&kernels, &prompts[0].weights, true), false);
    qn_quantize_rows(&kernels, &acts, qn_floats_of(PROMPT_TOKENS * PROMPT_COLS, 1), PROMPT_TOKENS);
    const double operations = 2.0 * PROMPT_COLS * PROMPT_TOKENS * QN_PANEL_ROWS;
    const char *name = qn_text("matmul of a prompt, %s", type_name);
    bench_threads(1, level->name, name, operations, run_prompt, contexts, limit[0]);
    if (n_threads > 1)
        bench_threads(n_threads, level->name, name, operations, run_prompt, contexts, limit[1]);
    qn_release();
}

static void bench_all_threads(void)
{
    const int n_threads = qn_cpu_threads();
    double limit[2] = { 0 };
#if QN_X86
    const unsigned present = qn_cpu_present();
    for (int i = 0; i < (n_threads > 1 ? 2 : 1); i++) {
        const int n = i ? n_threads : 1;
        if (present & QN_CPU_AVX512)
            limit[i] =
                bench_threads(n, "avx512", "int8 dpbusd", 2.0 * N_ACCUMULATORS * REPEATS * 64, peak_avx512, NULL, 0);
#ifdef QN_HAVE_AMX
        if (present & QN_CPU_AMX) {
            const double calls = (double)TILE_PRODUCTS * REPEATS * TILE_OPERATIONS;
            limit[i] = bench_threads(n, "amx", "int8 tiles", calls, peak_tiles_int8, NULL, 0);
            bench_threads(n, "amx", "bf16 tiles", calls / 2, peak_tiles_bf16, NULL, 0);
        }
#endif
    }
    qn_release();
#endif
    for (const qn_cpu_level *level = qn_levels(); level->name; level++)
        if (!qn_is_reference(level) && (!level[1].name || !level[2].name)) { /* the best two */
            bench_prompt(level, "q1_0", n_threads, limit);
            bench_prompt(level, "ptq1_0", n_threads, limit);
        }
}

void qn_check_peak(bool bench)
{
    if (!bench)
        return;
    const unsigned present = qn_cpu_present();
    const double calls = 2.0 * N_ACCUMULATORS * REPEATS;
#if QN_X86
    if (present & QN_CPU_AVX2)
        qn_bench("peak", "avx2", "fused multiply-adds", calls * 8, "FLOP", peak_fma_avx2, NULL);
    if (present & QN_CPU_AVX512)
        qn_bench("peak", "avx512", "fused multiply-adds", calls * 16, "FLOP", peak_fma_avx512, NULL);
    if (present & QN_CPU_AVX2)
        qn_bench("peak", "avx2", "int8 dot products, maddubs and madd", calls * 32, "OP", peak_avx2, NULL);
    if (present & QN_CPU_AVX512)
        qn_bench("peak", "avx512", "int8 dot products, dpbusd", calls * 64, "OP", peak_avx512, NULL);
#elif QN_ARM64
    if (present & QN_CPU_DOTPROD)
        qn_bench("peak", "dotprod", "int8 dot products, sdot", calls * 16, "OP", peak_dotprod, NULL);
    if (present & QN_CPU_I8MM)
        qn_bench("peak", "i8mm", "int8 matrix multiplications, smmla", calls * 32, "OP", peak_i8mm, NULL);
#endif
    (void)present;
    (void)calls;
    bench_all_threads();
}
