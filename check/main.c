/* quern-check's command line, random numbers, guarded memory, counts and timing. */
#include "check/check.h"

#ifdef QN_HAVE_CUDA
#include "check/cuda.h"
#endif

#include "base/cpu.h"
#include "base/f16.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const struct operation {
    const char *name;
    void (*check)(bool bench);
} operations[] = {
    { "peak", qn_check_peak },           { "barrier", qn_check_barrier },
    { "matmul", qn_check_matmul },       { "quantize", qn_check_quantize },
    { "norm", qn_check_norm },           { "rope", qn_check_rope },
    { "attention", qn_check_attention }, { "elementwise", qn_check_elementwise },
    { "hadamard", qn_check_hadamard },   { "sample", qn_check_sample },
    { "deltanet", qn_check_deltanet },   { "packed", qn_check_packed },
    { "aura", qn_check_aura },
};

enum { N_OPERATIONS = sizeof operations / sizeof operations[0], GUARD = 64, FAILURES_SHOWN = 20 };

static struct {
    char name[256];
    bool failed, json;
    size_t cases, failures;
    size_t drawn, every; /* every: run each N-th case; 0: all */
} state;

size_t qn_levels(qn_level levels[8])
{
    static const char *const names[] = { "ref", "avx2", "avxvnni", "avx512", "neon", "dotprod" };
    const unsigned present = qn_cpu_present();
    size_t n = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        unsigned features;
        if (qn_cpu_level(names[i], &features) && !(features & ~present))
            levels[n++] = (qn_level){ names[i], features };
    }
    return n;
}

/* ---- Random numbers ---- */

static uint64_t random_state;

void qn_random_seed(uint64_t seed)
{
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
}

uint64_t qn_random(void)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

size_t qn_random_below(size_t n)
{
    return (size_t)(qn_random() % n);
}

float qn_random_normal(void)
{
    const double u = ((double)(qn_random() >> 11) + 1) * 0x1p-53, v = (double)(qn_random() >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

void qn_assert_ok(qn_status status)
{
    if (status == QN_OK)
        return;
    fflush(stdout);
    fprintf(stderr, "quern-check: %s\n", qn_error_text());
    exit(1);
}

void *qn_xcalloc(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (memory)
        return memory;
    fflush(stdout);
    fprintf(stderr, "quern-check: no memory for %zu elements of %zu\n", count, size);
    exit(1);
}

void qn_random_floats(float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = qn_random_normal() * scale;
}

float *qn_floats_of(size_t n, float scale)
{
    float *x = qn_xcalloc(n, sizeof *x);
    qn_random_floats(x, n, scale);
    return x;
}

double qn_relative_error(const float *found, const float *expected, size_t n)
{
    double error = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        const double d = (double)found[i] - (double)expected[i];
        error += d * d;
        norm += (double)expected[i] * (double)expected[i];
    }
    return sqrt(error / norm);
}

/* ---- Guards ---- */

qn_guarded qn_guarded_new(size_t bytes, size_t shift)
{
    qn_guarded g = { .bytes = bytes, .shift = shift };
    g.block = aligned_alloc(64, (bytes + shift + 2 * GUARD + 63) / 64 * 64);
    if (!g.block) {
        fprintf(stderr, "quern-check: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    g.data = g.block + GUARD + shift;
    memset(g.block, 0xff, bytes + shift + 2 * GUARD); /* all ones: NaN as f32 and f16 */
    return g;
}

bool qn_guarded_ok(const qn_guarded *g)
{
    for (size_t i = 0; i < GUARD + g->shift; i++)
        if (g->block[i] != 0xff)
            return false;
    for (size_t i = 0; i < GUARD; i++)
        if (g->data[g->bytes + i] != 0xff)
            return false;
    return true;
}

void qn_guarded_free(qn_guarded *g)
{
    free(g->block);
}

/* ---- Results ---- */

bool qn_case_selected(void)
{
    return state.drawn++ % (state.every ? state.every : 1) == 0;
}

void qn_case_begin(const char *op, const char *variant, const char *format, ...)
{
    va_list args;
    const int used = snprintf(state.name, sizeof state.name, "%s %s ", op, variant);
    va_start(args, format);
    vsnprintf(state.name + used, sizeof state.name - (size_t)used, format, args);
    va_end(args);
    state.failed = false;
    state.cases++;
}

void qn_expect(bool ok, const char *format, ...)
{
    if (ok || state.failed)
        return;
    state.failed = true;
    if (++state.failures > FAILURES_SHOWN)
        return;
    va_list args;
    printf("FAILED  %s: ", state.name);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

void qn_expect_same(const float *found, const float *expected, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (found[i] != expected[i] && qn_f32_bits(found[i]) != qn_f32_bits(expected[i])) {
            qn_expect(false, "%s[%zu] is %.9g, the reference has %.9g", what, i, (double)found[i], (double)expected[i]);
            return;
        }
}

void qn_expect_near(const float *found, const double *expected, const double *bound, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)found[i] - expected[i]) <= bound[i])) {
            qn_expect(false, "%s[%zu] is %.9g, float64 gives %.9g, bound %.2g", what, i, (double)found[i], expected[i],
                      bound[i]);
            return;
        }
}

/* ---- Speed ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* CPU time: load by other processes is not counted */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double qn_median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, compare_doubles);
    return values[n / 2];
}

void qn_bench(const char *op, const char *variant, const char *shape, double units, const char *unit,
              void (*work)(void *context), void *context)
{
    enum { RUNS = 5 };
    double seconds[RUNS];
    size_t calls = 1;
    work(context);
    for (double start = now(); now() - start < 0.02; calls++)
        work(context);
    for (int run = 0; run < RUNS; run++) {
        const double start = now();
        for (size_t i = 0; i < calls; i++)
            work(context);
        seconds[run] = (now() - start) / (double)calls;
    }
    const double median = qn_median(seconds, RUNS);
    if (state.json)
        printf("{\"op\": \"%s\", \"variant\": \"%s\", \"shape\": \"%s\", \"seconds\": {\"median\": %.9g, \"min\": %.9g, "
               "\"max\": %.9g}, "
               "\"rate\": %.6g, \"unit\": \"%s\"}\n",
               op, variant, shape, median, seconds[0], seconds[RUNS - 1], units / median, unit);
    else
        printf("%-12s %-8s %-34s %10.2f us %10.2f %c%s/s\n", op, variant, shape, median * 1e6,
               units / median * (units < median * 1e8 ? 1e-6 : 1e-9), units < median * 1e8 ? 'M' : 'G', unit);
    fflush(stdout);
}

void qn_report_ratio(const char *op, const char *variant, const char *shape, double seconds, double ratio, const char *of)
{
    if (state.json)
        printf("{\"op\": \"%s\", \"variant\": \"%s\", \"shape\": \"%s\", \"seconds\": %.9g, \"ratio\": %.6g, "
               "\"of\": \"%s\"}\n",
               op, variant, shape, seconds, ratio, of);
    else
        printf("%-12s %-8s %-34s %10.2f us %10.2f %s\n", op, variant, shape, seconds * 1e6, ratio, of);
    fflush(stdout);
}

void qn_report_rate(const char *op, const char *variant, const char *shape, double seconds, double rate, const char *unit,
                    double limit)
{
    const double scale = rate < 1e9 ? 1e-6 : rate < 1e12 ? 1e-9 : 1e-12;
    if (state.json) {
        printf("{\"op\": \"%s\", \"variant\": \"%s\", \"shape\": \"%s\", \"seconds\": %.9g, \"rate\": %.6g, "
               "\"unit\": \"%s\"",
               op, variant, shape, seconds, rate, unit);
        if (limit > 0)
            printf(", \"of_limit\": %.4f", rate / limit);
        puts("}");
    } else {
        printf("%-12s %-8s %-34s %10.2f us %10.2f %c%s/s", op, variant, shape, seconds * 1e6, rate * scale,
               rate < 1e9    ? 'M'
               : rate < 1e12 ? 'G'
                             : 'T',
               unit);
        if (limit > 0)
            printf(" %5.1f%%", 100 * rate / limit);
        putchar('\n');
    }
    fflush(stdout);
}

/* ---- Command line ---- */

static int usage(const char *problem, const char *what)
{
    fprintf(stderr, "quern-check: %s: %s\n", what, problem);
    fprintf(stderr, "usage: quern-check [--op NAME] [--device cpu|cuda[:N]] [--bench] [--every N] [--format table|json]\n");
    return 2;
}

static void help(void)
{
    printf(
        "usage: quern-check [--op NAME] [--device cpu|cuda[:N]] [--bench] [--every N] [--format table|json]\n"
        "Checks every kernel variant that this CPU or GPU supports against its reference, and the references against float64.\n"
        "  --op NAME       one operation only:");
    for (int i = 0; i < N_OPERATIONS; i++)
        printf(" %s", operations[i].name);
#ifdef QN_HAVE_CUDA
    printf("\n                  with --device cuda:");
    for (size_t i = 0; i < qn_n_cuda_operations; i++)
        printf(" %s", qn_cuda_operations[i].name);
#endif
    printf("\n  --device D      where the kernels run: cpu, or cuda[:N], the NVIDIA GPU with index N (default 0)\n"
           "  --bench         time the variants as well\n"
           "  --every N       only every N-th case of operations with hundreds of cases, for slow runs under sanitizers\n"
           "  --format F      format of the timings: table, or json, one object per line\n");
}

/* Run one operation and print the number of its cases and failures. */
static void run_one(const char *name, void (*check)(bool bench), bool bench)
{
    const size_t cases = state.cases, failures = state.failures;
    check(bench);
    if (!state.json)
        printf("%-12s %zu cases, %zu failed\n", name, state.cases - cases, state.failures - failures);
}

static size_t run_cpu(const char *only, bool bench)
{
    size_t run = 0;
    for (int i = 0; i < N_OPERATIONS; i++)
        if (!only || !strcmp(only, operations[i].name)) {
            run_one(operations[i].name, operations[i].check, bench);
            run++;
        }
    return run;
}

#ifdef QN_HAVE_CUDA
static size_t run_cuda(const char *only, bool bench)
{
    size_t run = 0;
    for (size_t i = 0; i < qn_n_cuda_operations; i++)
        if (!only || !strcmp(only, qn_cuda_operations[i].name)) {
            run_one(qn_cuda_operations[i].name, qn_cuda_operations[i].check, bench);
            run++;
        }
    qn_check_cuda_close();
    return run;
}
#endif

int main(int argc, char **argv)
{
    const char *only = NULL;
    bool bench = false, cuda = false;
#ifdef QN_HAVE_CUDA
    int ordinal;
#endif
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        if (!strcmp(option, "--help") || !strcmp(option, "-h")) {
            help();
            return 0;
        }
        if (!strcmp(option, "--bench")) {
            bench = true;
            continue;
        }
        if (strcmp(option, "--op") && strcmp(option, "--device") && strcmp(option, "--format") && strcmp(option, "--every"))
            return usage("unknown option", option);
        if (++i == argc)
            return usage("a value is missing", option);
        if (!strcmp(option, "--op"))
            only = argv[i];
        else if (!strcmp(option, "--every")) {
            char *end;
            const long every = strtol(argv[i], &end, 10);
            if (every < 1 || *end)
                return usage("not an integer of at least 1", argv[i]);
            state.every = (size_t)every;
        } else if (!strcmp(option, "--format") && strcmp(argv[i], "table") && strcmp(argv[i], "json"))
            return usage("not a format, expected table or json", argv[i]);
        else if (!strcmp(option, "--format"))
            state.json = !strcmp(argv[i], "json");
#ifdef QN_HAVE_CUDA
        else if (qn_cuda_parse_name(argv[i], &ordinal))
            cuda = true;
#endif
        else if (strcmp(argv[i], "cpu"))
            return usage("not a device of this build", argv[i]);
    }
    size_t run = 0;
#ifdef QN_HAVE_CUDA
    if (cuda) {
        if (!qn_check_cuda_open(ordinal))
            return 1;
        run = run_cuda(only, bench);
    }
#endif
    if (!cuda)
        run = run_cpu(only, bench);
    if (!run)
        return usage("no such operation", only);
    if (!state.json)
        printf("%zu passed, %zu failed\n", state.cases - state.failures, state.failures);
    else if (state.failures)
        fprintf(stderr, "quern-check: %zu of %zu cases failed\n", state.failures, state.cases);
    return state.failures != 0;
}
