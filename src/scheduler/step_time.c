/* Means of measured steps. Times depend on the model, the device, the context length of sequences and the load of the
 * machine, so no formula is assumed: each class of rows has the mean of its recent steps, and a class without recent
 * steps uses the mean of a neighbour.
 *
 * A single step may take far too long (a kernel that is compiled, a busy machine): means follow shorter times quickly
 * and longer ones slowly. */
#include "scheduler/step_time.h"

/* STALE_STEPS: a mean not measured for this number of steps is not used. PROBE_STEPS: a step without prompts is
 * measured after this number of steps with prompts; the first after FIRST_PROBE_STEPS. */
enum { STALE_STEPS = 1024, PROBE_STEPS = 256, FIRST_PROBE_STEPS = 16 };

/* Weights of a shorter and of a longer measurement in a mean; a measurement counts as at most MOST_RATIO times the
 * mean. */
static const double SHORTER = 0.5, LONGER = 0.125, MOST_RATIO = 2;

/* A step with prompts may take DECODE_STEPS times the time of one without: prompts get half of the device. Steps are
 * not made shorter than LEAST_SECONDS: the part of their time that does not depend on rows would be too large. */
static const double DECODE_STEPS = 2, LEAST_SECONDS = 0.008;

/* Upper bound of the last class: more rows than any step has. */
static const double MOST_ROWS = 1 << 20;

static size_t class_of(size_t rows)
{
    size_t class = 0;
    while (class + 1 < QN_STEP_CLASSES && (size_t)1 << class < rows)
        class ++;
    return class;
}

static bool is_known(const qn_step_times *t, const qn_step_mean *mean)
{
    return mean->last && t->n_steps - mean->last < STALE_STEPS;
}

static void add(const qn_step_times *t, qn_step_mean *mean, size_t rows, double value)
{
    if (!is_known(t, mean)) {
        *mean = (qn_step_mean){ (double)rows, value, t->n_steps };
        return;
    }
    const double longest = mean->value * MOST_RATIO, share = value < mean->value ? SHORTER : LONGER;
    mean->value += ((value < longest ? value : longest) - mean->value) * share;
    mean->rows += ((double)rows - mean->rows) * share;
    mean->last = t->n_steps;
}

/* ---- Estimates ---- */

/* The mean of the measured class nearest to `class`, which may be `class` itself; of two, the smaller. NULL: none. */
static const qn_step_mean *nearest(const qn_step_times *t, const qn_step_mean *means, size_t class)
{
    for (size_t distance = 0; distance < QN_STEP_CLASSES; distance++) {
        if (distance <= class && is_known(t, &means[class - distance]))
            return &means[class - distance];
        if (class + distance < QN_STEP_CLASSES && is_known(t, &means[class + distance]))
            return &means[class + distance];
    }
    return NULL;
}

/* Returns the expected seconds of a step that only decodes; 0 if unknown. */
static double decode_seconds(const qn_step_times *t, size_t n_decode)
{
    const qn_step_mean *mean = nearest(t, t->decode, class_of(n_decode));
    return mean ? mean->value : 0;
}

void qn_step_times_add(qn_step_times *t, size_t n_decode, size_t n_prompt, double seconds)
{
    const size_t class = class_of(n_decode);
    t->n_steps++;
    if (n_decode)
        t->n_mixed[class] = n_prompt ? t->n_mixed[class] + 1 : 0;
    if (!n_prompt) {
        add(t, &t->decode[class], n_decode, seconds);
        return;
    }
    const double decode = n_decode ? decode_seconds(t, n_decode) : 0;
    if (n_decode && decode <= 0)
        return;
    add(t, &t->prompts[class_of(n_prompt)], n_prompt, seconds > decode ? (seconds - decode) / (double)n_prompt : 0);
}

/* ---- Rows ---- */

/* The most rows of a class that take at most `seconds`; 0 if none do. For a class that was not measured, at most twice
 * the mean rows of the nearest measured class. */
static double rows_of_class(const qn_step_times *t, size_t class, double seconds)
{
    const qn_step_mean *mean = nearest(t, t->prompts, class);
    const double least = class ? (double)((size_t)1 << (class - 1)) : 0;
    if (!mean || seconds <= mean->value * least)
        return 0;
    double rows = class + 1 < QN_STEP_CLASSES ? (double)((size_t)1 << class) : MOST_ROWS;
    if (!is_known(t, &t->prompts[class]) && rows > 2 * mean->rows)
        rows = 2 * mean->rows;
    return mean->value * rows > seconds ? seconds / mean->value : rows;
}

/* The maximum over all classes, because a row may cost less in a larger class. */
static double rows_within(const qn_step_times *t, double seconds)
{
    double rows = 0;
    for (size_t class = 0; class < QN_STEP_CLASSES; class ++) {
        const double fit = rows_of_class(t, class, seconds);
        rows = fit > rows ? fit : rows;
    }
    return rows;
}

static bool is_probe(const qn_step_times *t, size_t class)
{
    return t->n_mixed[class] >= (is_known(t, &t->decode[class]) ? PROBE_STEPS : FIRST_PROBE_STEPS);
}

size_t qn_step_times_prompt_rows(const qn_step_times *t, size_t n_decode, double most, size_t multiple)
{
    const double decode = decode_seconds(t, n_decode);
    if (is_probe(t, class_of(n_decode)))
        return 0;
    if (decode <= 0)
        return multiple;
    double seconds = DECODE_STEPS * decode > LEAST_SECONDS ? DECODE_STEPS * decode : LEAST_SECONDS;
    seconds = seconds < most ? seconds : most;
    const double rows = rows_within(t, seconds - decode);
    return rows > (double)multiple ? (size_t)rows / multiple * multiple : multiple;
}
