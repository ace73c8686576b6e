/* quern-check's command line, random numbers, guarded memory, counts and timing. */
#include "check.h"

#include "base/append.h"
#include "base/f16.h"
#include "device/registry.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The levels for which an operation has variants. */
enum variants { NO_LEVELS, ALL_LEVELS, ALL_BUT_REF };

static const struct operation {
    const char *name;
    void (*check)(bool bench);
    enum variants variants;
} operations[] = {
    { "peak", qn_check_peak, NO_LEVELS },
    { "barrier", qn_check_barrier, NO_LEVELS },
    { "matmul", qn_check_matmul, ALL_LEVELS },
    { "quantize", qn_check_quantize, ALL_LEVELS },
    { "norm", qn_check_norm, ALL_LEVELS },
    { "rope", qn_check_rope, ALL_LEVELS },
    { "attention", qn_check_attention, ALL_LEVELS },
    { "elementwise", qn_check_elementwise, ALL_LEVELS },
    { "hadamard", qn_check_hadamard, ALL_LEVELS },
    { "encode", qn_check_encode, ALL_LEVELS },
    { "sample", qn_check_sample, ALL_LEVELS },
    { "deltanet", qn_check_deltanet, ALL_LEVELS },
    { "packed", qn_check_packed, ALL_BUT_REF },
    { "aura", qn_check_aura, ALL_LEVELS },
};

enum { N_OPERATIONS = sizeof operations / sizeof operations[0], FAILURES_SHOWN = 20 };

static struct {
    char name[256];
    bool failed, json;
    size_t cases, failures;
    size_t drawn, every; /* every: run each N-th case; 0: all */
    const char *skipped_level;
    const char *shape;                      /* timings of shapes with this text only; NULL: all */
    size_t *uncounted;                      /* the counter of the case's level, until the case compares something */
    size_t compared[QN_CPU_MAX_LEVELS];     /* cases of each level that compared something, in this operation */
    size_t compared_all[QN_CPU_MAX_LEVELS]; /* in all operations */
} state;

const qn_cpu_level *qn_levels(void)
{
    static qn_cpu_level levels[QN_CPU_MAX_LEVELS + 1];
    const bool is_listed = levels[0].name != NULL;
    for (size_t i = 0, n = 0; !is_listed && i < qn_cpu_n_levels; i++) {
        const qn_cpu_level *level = &qn_cpu_levels[i];
        if (qn_cpu_has_level(level) && (!state.skipped_level || strcmp(level->name, state.skipped_level)))
            levels[n++] = *level;
    }
    return levels;
}

bool qn_is_reference(const qn_cpu_level *level)
{
    return level == qn_levels();
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

void qn_random_floats(float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++)
        x[i] = qn_random_normal() * scale;
}

void qn_random_signs(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = qn_random() & 1 ? 1 : -1;
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

void qn_expect_close(const char *what, const float *found, const float *expected, size_t n, double bar)
{
    const double d = qn_relative_error(found, expected, n);
    qn_expect(d <= bar, "%s: relative error %.2e, more than %.0e", what, d, bar);
}

/* ---- Results ---- */

bool qn_case_selected(void)
{
    return state.drawn++ % (state.every ? state.every : 1) == 0;
}

void qn_case_begin(const char *op, const char *variant, const char *format, ...)
{
    va_list args;
    qn_text_buffer name = QN_APPEND_TO(state.name);
    qn_append(&name, "%s %s ", op, variant);
    va_start(args, format);
    qn_append_list(&name, format, args);
    va_end(args);
    state.failed = false;
    state.cases++;
    state.uncounted = NULL;
    for (size_t i = 0; i < qn_cpu_n_levels; i++)
        if (!strcmp(variant, qn_cpu_levels[i].name))
            state.uncounted = &state.compared[i];
}

/* Counts the case for its level. A case that compares nothing is not counted. */
static void count_compared(void)
{
    if (state.uncounted)
        ++*state.uncounted;
    state.uncounted = NULL;
}

void qn_expect(bool ok, const char *format, ...)
{
    count_compared();
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
    count_compared();
    for (size_t i = 0; i < n; i++)
        if (found[i] != expected[i] && qn_f32_bits(found[i]) != qn_f32_bits(expected[i])) {
            qn_expect(false, "%s[%zu] is %.9g, the reference has %.9g", what, i, (double)found[i], (double)expected[i]);
            return;
        }
}

void qn_expect_level(const qn_cpu_level *level, const float *found, float *expected, size_t n, const char *what)
{
    if (qn_is_reference(level))
        memcpy(expected, found, n * sizeof *found);
    else
        qn_expect_same(found, expected, n, what);
}

void qn_expect_finite(const float *found, size_t n, const char *what)
{
    size_t missing = 0;
    for (size_t i = 0; i < n; i++)
        missing += found[i] != found[i];
    qn_expect(missing == 0, "%zu elements of %s are NaN, or were not written", missing, what);
}

void qn_expect_near(const float *found, const double *expected, const double *bound, size_t n, const char *what)
{
    count_compared();
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
        printf(
            "{\"op\": \"%s\", \"variant\": \"%s\", \"shape\": \"%s\", \"seconds\": {\"median\": %.9g, \"min\": %.9g, "
            "\"max\": %.9g}, \"rate\": %.6g, \"unit\": \"%s\"}\n",
            op, variant, shape, median, seconds[0], seconds[RUNS - 1], units / median, unit);
    else
        printf("%-12s %-8s %-34s %10.2f us %10.2f %c%s/s\n", op, variant, shape, median * 1e6,
               units / median * (units < median * 1e8 ? 1e-6 : 1e-9), units < median * 1e8 ? 'M' : 'G', unit);
    fflush(stdout);
}

void qn_report_ratio(const char *op, const char *variant, const char *shape, double seconds, double ratio,
                     const char *of)
{
    if (state.json)
        printf("{\"op\": \"%s\", \"variant\": \"%s\", \"shape\": \"%s\", \"seconds\": %.9g, \"ratio\": %.6g, "
               "\"of\": \"%s\"}\n",
               op, variant, shape, seconds, ratio, of);
    else
        printf("%-12s %-8s %-34s %10.2f us %10.2f %s\n", op, variant, shape, seconds * 1e6, ratio, of);
    fflush(stdout);
}

bool qn_bench_selected(const char *shape)
{
    return !state.shape || strstr(shape, state.shape);
}

void qn_report_rate(const char *op, const char *variant, const char *shape, double seconds, double rate,
                    const char *unit, double limit)
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

#define USAGE                                                                                                          \
    "usage: quern-check [--op NAME] [--device cpu|cuda[:N]|vulkan[:N]] [--bench] [--shape TEXT]\n"                     \
    "                   [--every N] [--format table|json]\n"                                                           \
    "       quern-check --list-levels\n"

struct options {
    const char *only, *device;
    bool bench, help, list_levels;
};

static int usage(const char *problem, const char *what)
{
    fprintf(stderr, "quern-check: %s: %s\n" USAGE, what, problem);
    return 2;
}

static void help(void)
{
    printf(USAGE "Checks every kernel variant that this CPU or GPU supports against its reference, and the references "
                 "against float64.\n"
                 "  --op NAME       one operation only:");
    for (int i = 0; i < N_OPERATIONS; i++)
        printf(" %s", operations[i].name);
    for (const qn_checked_backend *const *backend = qn_checked_backends; *backend; backend++) {
        printf("\n                  with --device %s:", (*backend)->name);
        for (size_t i = 0; i < (*backend)->n_operations; i++)
            printf(" %s", (*backend)->operations[i].name);
    }
    printf(
        "\n  --device D      where the kernels run: cpu; cuda[:N], vulkan[:N], the GPU with index N (default 0)\n"
        "  --bench         time the variants as well\n"
        "  --shape TEXT    on a GPU, time only shapes whose name contains TEXT\n"
        "  --every N       only every N-th case of operations with hundreds of cases, for slow runs under sanitizers\n"
        "  --format F      format of the timings: table, or json, one object per line\n"
        "  --list-levels   list the levels of instruction sets, and which of them this CPU has\n"
        "  --skip-level L  compare nothing on level L. A run fails if a level that this CPU has was not compared\n");
}

static bool is_level(const char *name)
{
    for (size_t i = 0; i < qn_cpu_n_levels; i++)
        if (!strcmp(name, qn_cpu_levels[i].name))
            return true;
    return false;
}

static void list_levels(void)
{
    for (size_t i = 0; i < qn_cpu_n_levels; i++)
        printf("%-8s %s\n", qn_cpu_levels[i].name, qn_cpu_has_level(&qn_cpu_levels[i]) ? "present" : "absent");
}

/* Fails for each level of this CPU that no case of the operation compared. */
static void expect_levels(const char *op, enum variants variants)
{
    for (size_t i = 0; i < qn_cpu_n_levels; i++) {
        const qn_cpu_level *level = &qn_cpu_levels[i];
        const size_t compared = state.compared[i];
        state.compared[i] = 0;
        state.compared_all[i] += compared;
        if (compared || !qn_cpu_has_level(level) || variants == NO_LEVELS ||
            (variants == ALL_BUT_REF && !level->features))
            continue;
        qn_case_begin(op, "level", "%s", level->name);
        qn_expect(false, "this CPU has the level, and no case compared it");
    }
}

static void print_compared(void)
{
    printf("%-12s", "levels");
    for (size_t i = 0; i < qn_cpu_n_levels; i++) {
        printf("%s %s ", i ? "," : "", qn_cpu_levels[i].name);
        if (qn_cpu_has_level(&qn_cpu_levels[i]))
            printf("%zu cases", state.compared_all[i]);
        else
            printf("absent");
    }
    putchar('\n');
}

/* Run one operation and print the number of its cases and failures. */
static void run_one(const char *name, void (*check)(bool bench), enum variants variants, bool bench)
{
    const size_t cases = state.cases, failures = state.failures;
    check(bench);
    expect_levels(name, variants);
    if (!state.json)
        printf("%-12s %zu cases, %zu failed\n", name, state.cases - cases, state.failures - failures);
}

static size_t run_cpu(const char *only, bool bench)
{
    size_t run = 0;
    for (int i = 0; i < N_OPERATIONS; i++)
        if (!only || !strcmp(only, operations[i].name)) {
            run_one(operations[i].name, operations[i].check, operations[i].variants, bench);
            run++;
        }
    if (run && !state.json)
        print_compared();
    return run;
}

static size_t run_backend(const qn_checked_backend *backend, const char *only, bool bench)
{
    size_t run = 0;
    for (size_t i = 0; i < backend->n_operations; i++)
        if (!only || !strcmp(only, backend->operations[i].name)) {
            run_one(backend->operations[i].name, backend->operations[i].check, NO_LEVELS, bench);
            run++;
        }
    backend->close();
    return run;
}

/* An option with a value. 0, or the exit status of a usage error. */
static int take_value(struct options *options, const char *option, const char *value)
{
    if (!strcmp(option, "--op"))
        options->only = value;
    else if (!strcmp(option, "--device"))
        options->device = value;
    else if (!strcmp(option, "--every")) {
        char *end;
        const long every = strtol(value, &end, 10);
        if (every < 1 || *end)
            return usage("not an integer of at least 1", value);
        state.every = (size_t)every;
    } else if (!strcmp(option, "--shape")) {
        state.shape = value;
    } else if (!strcmp(option, "--skip-level")) {
        if (!is_level(value))
            return usage("not a level, see --list-levels", value);
        state.skipped_level = value;
    } else {
        if (strcmp(value, "table") && strcmp(value, "json"))
            return usage("not a format, expected table or json", value);
        state.json = !strcmp(value, "json");
    }
    return 0;
}

static int take_options(struct options *options, int argc, char **argv)
{
    static const char *const with_value[] = { "--op", "--device", "--format", "--every", "--skip-level", "--shape" };
    for (int i = 1; i < argc; i++) {
        const char *option = argv[i];
        bool known = false;
        if (!strcmp(option, "--help") || !strcmp(option, "-h")) {
            options->help = true;
            return 0;
        }
        if (!strcmp(option, "--bench")) {
            options->bench = true;
            continue;
        }
        if (!strcmp(option, "--list-levels")) {
            options->list_levels = true;
            continue;
        }
        for (size_t k = 0; k < sizeof with_value / sizeof with_value[0]; k++)
            known = known || !strcmp(option, with_value[k]);
        if (!known)
            return usage("unknown option", option);
        if (++i == argc)
            return usage("a value is missing", option);
        const int status = take_value(options, option, argv[i]);
        if (status)
            return status;
    }
    return 0;
}

/* Run the operations on the device; 0, or the exit status if it cannot be used. */
static int run_on(const qn_device_name *device, const struct options *options, size_t *run)
{
    if (device->backend && qn_device_is_cpu(device)) {
        *run = run_cpu(options->only, options->bench);
        return 0;
    }
    for (const qn_checked_backend *const *backend = qn_checked_backends; device->backend && *backend; backend++) {
        if (strcmp((*backend)->name, device->backend->name) != 0)
            continue;
        if (!(*backend)->open(device->ordinal))
            return 1;
        *run = run_backend(*backend, options->only, options->bench);
        return 0;
    }
    return usage("not a device of this build", device->text);
}

int main(int argc, char **argv)
{
    struct options options = { .device = "cpu" };
    qn_device_name device;
    size_t run = 0;
    int status = take_options(&options, argc, argv);
    if (status)
        return status;
    if (options.help || options.list_levels) {
        (options.help ? help : list_levels)();
        return 0;
    }
    if (qn_device_name_parse("--device", options.device, &device))
        return usage("not a device of this build", options.device);
    status = run_on(&device, &options, &run);
    if (status)
        return status;
    if (!run)
        return usage("no such operation", options.only);
    if (!state.json)
        printf("%zu passed, %zu failed\n", state.cases - state.failures, state.failures);
    else if (state.failures)
        fprintf(stderr, "quern-check: %zu of %zu cases failed\n", state.failures, state.cases);
    return state.failures != 0;
}
