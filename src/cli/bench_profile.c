/* The profile of a test of quern bench as a table and as JSON. */
#include "cli/bench_profile.h"

#include "engine/read_rate.h"

#include <stdio.h>

bool qn_bench_profile_start(const qn_bench *bench)
{
    return !bench->args->profile || qn_model_profile_start(bench->model) == QN_OK;
}

void qn_bench_profile_stop(const qn_bench *bench, qn_bench_test *test)
{
    if (bench->args->profile)
        qn_model_profile_stop(bench->model, &test->profile);
}

/* Lines in descending order of their seconds. */
static void sort(const qn_profile *profile, const qn_profile_line *sorted[QN_PROFILE_LINES])
{
    for (size_t i = 0; i < profile->n_lines; i++) {
        size_t at = i;
        for (; at > 0 && sorted[at - 1]->seconds < profile->lines[i].seconds; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = &profile->lines[i];
    }
}

/* All lines together, and what is outside of them: one thread prepares the next step, the others wait. */
static qn_profile_line sum_up(const qn_profile *profile)
{
    qn_profile_line sum = { .name = "all operations" };
    for (size_t i = 0; i < profile->n_lines; i++) {
        sum.seconds += profile->lines[i].seconds;
        sum.busy += profile->lines[i].busy;
        sum.available += profile->lines[i].available;
    }
    return sum;
}

static double share(double part, double of)
{
    return of > 0 ? part / of : 0;
}

static void print_line(const qn_profile *profile, const qn_profile_line *line)
{
    const double steps = profile->n_steps ? (double)profile->n_steps : 1;
    printf("  %-44s %10.4f %9.4f %6.1f%% %10.4f %10.4f %9.1f%%\n", line->name, line->seconds,
           1e3 * line->seconds / steps, 100 * share(line->seconds, profile->seconds), line->busy,
           line->available - line->busy, 100 * share(line->busy, line->available));
}

void qn_bench_profile_print(const qn_profile *profile, int n_threads)
{
    const qn_profile_line *sorted[QN_PROFILE_LINES];
    const qn_profile_line sum = sum_up(profile), outside = { .name = "between steps",
                                                             .seconds = profile->outside,
                                                             .available = profile->outside * n_threads };
    sort(profile, sorted);
    printf("  %-44s %10s %9s %7s %10s %10s %10s\n", "profile", "seconds", "ms/step", "share", "computing", "waiting",
           "parallel");
    for (size_t i = 0; i < profile->n_lines; i++)
        print_line(profile, sorted[i]);
    print_line(profile, &sum);
    print_line(profile, &outside);
    printf("  %zu steps\n", profile->n_steps);
}

void qn_bench_profile_print_json(const qn_profile *profile, int n_threads)
{
    printf("\"profile\":{\"seconds\":%.6f,\"outside_seconds\":%.6f,\"steps\":%zu,\"threads\":%d,\"operations\":[",
           profile->seconds, profile->outside, profile->n_steps, n_threads);
    for (size_t i = 0; i < profile->n_lines; i++) {
        const qn_profile_line *line = &profile->lines[i];
        printf("%s{\"name\":\"%s\",\"seconds\":%.6f,\"computing\":%.6f,\"waiting\":%.6f,\"parallel\":%.4f}",
               i ? "," : "", line->name, line->seconds, line->busy, line->available - line->busy,
               share(line->busy, line->available));
    }
    fputs("]},", stdout);
}
