/* The table of step times by rows. A mean follows shorter times quickly and longer ones slowly, since a single step may
 * take far too long (a kernel that is compiled, a busy machine); the first time counts at most as a multiple of what
 * the neighbours in the table suggest, and is measured again soon. An old mean is not used, so that rows which did not
 * pay are tried again: the text grows, and neighbours come and go. */
#include "engine/spec/row_cost.h"

/* STALE_STEPS: how long a mean is used; FIRST_STEPS: one that was measured once, or whose last time was much longer.
 * The latter doubles until two times agree. */
enum { STALE_STEPS = 1024, FIRST_STEPS = 16 };
static const double SHORTER = 0.5, LONGER = 0.125, MOST_RATIO = 2, AGREEING = 1.25;

/* A number of rows between measured ones is expected to take this part of the interpolated time more than the smaller
 * one, so that it is tried: kernels that compute rows in tiles have steps there. */
static const double HOPE = 0.5;

/* A draft has to give this many times the tokens a second of a step without: less is not more than what the measured
 * times vary by. */
static const double LEAST_GAIN = 1.03;

/* A row whose time is not known is tried where its token is accepted at least this often: if rows turn out to be cheap,
 * that is enough. */
static const double LEAST_TRIED = 0.3;

bool qn_row_costs_is_known(const qn_row_costs *c, size_t n)
{
    return n <= QN_COST_ROWS && c->of[n].step && c->n_steps - c->of[n].step < c->of[n].lasts;
}

bool qn_row_costs_are_known(const qn_row_costs *c)
{
    for (size_t n = 1; n <= QN_COST_ROWS; n++)
        if (qn_row_costs_is_known(c, n))
            return true;
    return false;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

void qn_row_costs_add(qn_row_costs *c, size_t n, double seconds)
{
    c->n_steps++;
    if (!n || n > QN_COST_ROWS)
        return;
    double *mean = &c->of[n].seconds;
    uint32_t *lasts = &c->of[n].lasts;
    const bool is_first = !c->of[n].step || c->n_steps - c->of[n].step >= STALE_STEPS;
    const bool agrees = !is_first && seconds < *mean * AGREEING && *mean < seconds * AGREEING;
    if (is_first)
        *mean = qn_row_costs_are_known(c) ? smaller(seconds, qn_row_costs_seconds(c, n) * MOST_RATIO) : seconds;
    else if (seconds < *mean && *lasts < STALE_STEPS)
        *mean = seconds;
    else
        *mean += (smaller(seconds, *mean * MOST_RATIO) - *mean) * (seconds < *mean ? SHORTER : LONGER);
    if (is_first || (!agrees && *lasts == STALE_STEPS && seconds > *mean))
        *lasts = FIRST_STEPS;
    else
        *lasts = agrees || *lasts > STALE_STEPS / 2 ? STALE_STEPS : *lasts * 2;
    c->of[n].step = c->n_steps;
}

double qn_row_costs_seconds(const qn_row_costs *c, size_t n)
{
    size_t below = n < QN_COST_ROWS ? n : QN_COST_ROWS, above = n + 1;
    while (below && !qn_row_costs_is_known(c, below))
        below--;
    while (above <= QN_COST_ROWS && !qn_row_costs_is_known(c, above))
        above++;
    const bool has_above = above <= QN_COST_ROWS;
    if (!below && !has_above)
        return 1 + c->first * (double)(n - 1);
    if (!below) /* as if the unmeasured rows cost `first` */
        return c->of[above].seconds * (1 + c->first * (double)(n - 1)) / (1 + c->first * (double)(above - 1));
    const double of_below = c->of[below].seconds;
    if (has_above && below < n)
        return of_below + HOPE * (c->of[above].seconds - of_below) * (double)(n - below) / (double)(above - below);
    if (below == n)
        return of_below;
    /* Relative to a step of one row, if that was measured, else of `below`. */
    const double one = qn_row_costs_is_known(c, 1) ? c->of[1].seconds : of_below / (1 + c->first * (double)(below - 1));
    const double average = below > 1 ? (of_below - one) / (double)(below - 1) : c->first * one;
    const double slope = average < c->first * one ? average : c->first * one;
    return of_below + (slope > 0 ? slope : 0) * (double)(n - below);
}

/* The offer whose next token is most likely to be accepted, and the chance of that; NULL if there is none. */
static qn_row_offer *find_next(qn_row_offer *offers, size_t n, double *reached)
{
    qn_row_offer *best = NULL;
    for (size_t i = 0; i < n; i++) {
        double chance = 1;
        if (offers[i].chosen == offers[i].n)
            continue;
        for (size_t k = 0; k <= offers[i].chosen; k++)
            chance *= (double)offers[i].chances[k];
        if (!best || chance > *reached) {
            best = &offers[i];
            *reached = chance;
        }
    }
    return best;
}

/* The fewest tokens that a sequence expects of the step. */
static double least_expected(size_t n_rows, const qn_row_offer *offers, size_t n)
{
    double least = n_rows > n ? 1 : (double)QN_COST_ROWS;
    for (size_t i = 0; i < n; i++)
        least = smaller(least, offers[i].expected);
    return least;
}

double qn_row_costs_pass_seconds(const qn_row_costs *c, const qn_row_costs *passes, size_t n)
{
    const double seconds = n ? qn_row_costs_seconds(passes, n) : 0;
    return qn_row_costs_are_known(passes) ? seconds : seconds * passes->unit * qn_row_costs_seconds(c, 1);
}

/* The rows of the passes of a step: of chains, by the index of the token, and of blocks. */
struct pass_rows {
    size_t of_chains[QN_COST_PASSES], of_blocks;
};

/* The time that the next token of an offer adds to the passes. */
static double add_to_passes(const qn_row_costs *c, const qn_row_costs *passes, const qn_row_offer *offer,
                            struct pass_rows *rows)
{
    size_t *n = &rows->of_blocks, more = offer->chosen ? 0 : offer->block;
    if (!offer->is_passed || offer->chosen >= QN_COST_PASSES)
        return 0;
    if (!offer->block) {
        n = &rows->of_chains[offer->chosen];
        more = 1;
    }
    const double before = qn_row_costs_pass_seconds(c, passes, *n);
    *n += more;
    return qn_row_costs_pass_seconds(c, passes, *n) - before;
}

/* Chooses `most` rows or fewer, the likeliest first. Sets *best to the number of rows with most tokens a second of
 * those that slow no sequence too much. */
static void choose(const qn_row_costs *c, const qn_row_costs *passes, size_t n_rows, qn_row_offer *offers, size_t n,
                   size_t most, size_t *best)
{
    struct pass_rows rows = { 0 };
    double passed = 0;
    const double without = qn_row_costs_seconds(c, n_rows);
    double tokens = (double)n_rows, rate = tokens / without * LEAST_GAIN;
    *best = 0;
    for (size_t i = 0; i < n; i++) {
        offers[i].chosen = 0;
        offers[i].expected = 1;
    }
    for (size_t k = 1; k <= most; k++) {
        double chance = 0;
        qn_row_offer *next = find_next(offers, n, &chance);
        if (!next)
            return;
        passed += add_to_passes(c, passes, next, &rows);
        next->chosen++;
        next->expected += chance;
        tokens += chance;
        const double with = qn_row_costs_seconds(c, n_rows + k) + passed;
        if (tokens / with > rate && with <= without * least_expected(n_rows, offers, n) * QN_COST_SLOWER) {
            rate = tokens / with;
            *best = k;
        }
    }
}

size_t qn_row_costs_choose(const qn_row_costs *c, const qn_row_costs *passes, size_t n_rows, qn_row_offer *offers,
                           size_t n, size_t most)
{
    size_t best, ignored;
    double chance = 0;
    if (!n_rows || n_rows >= QN_COST_ROWS || !qn_row_costs_is_known(c, n_rows))
        most = 0;
    choose(c, passes, n_rows, offers, n, most, &best);
    if (!best && most && !qn_row_costs_is_known(c, n_rows + 1)) {
        choose(c, passes, n_rows, offers, n, 0, &ignored);
        best = find_next(offers, n, &chance) && chance >= LEAST_TRIED;
    }
    choose(c, passes, n_rows, offers, n, best, &ignored);
    return best;
}

double qn_row_costs_gain(const qn_row_costs *c, const qn_row_costs *passes, size_t n_rows, const qn_row_offer *offers,
                         size_t n, bool with_passed)
{
    struct pass_rows rows = { 0 };
    double tokens = (double)n_rows, passed = 0;
    size_t n_drafted = 0;
    for (size_t i = 0; i < n; i++) {
        qn_row_offer offer = offers[i];
        double chance = 1;
        const size_t chosen = offer.is_passed && !with_passed ? 0 : offers[i].chosen;
        for (offer.chosen = 0; offer.chosen < chosen; offer.chosen++) {
            passed += add_to_passes(c, passes, &offer, &rows);
            chance *= (double)offer.chances[offer.chosen];
            tokens += chance;
        }
        n_drafted += offer.chosen;
    }
    const double without = qn_row_costs_seconds(c, n_rows), rows_seconds = qn_row_costs_seconds(c, n_rows + n_drafted),
                 with = passed + (rows_seconds > without ? rows_seconds : without); /* a first time is often too long */
    return tokens / (double)n_rows * without / with - 1;
}
