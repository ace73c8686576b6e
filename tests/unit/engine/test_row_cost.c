/* How many rows are drafted, by simulated costs: the number with most tokens a second, once it was measured. */
#include "helper_assert.h"
#include "helper_test.h"

#include "engine/spec/drafting.h"

#include <math.h>
#include <string.h>

enum { MOST = 15 };

/* Runs steps of one sequence on a machine where n rows take cost(n) and each token is accepted with `chance`. Returns
 * the tokens a second of the last steps, relative to those without drafts. */
static double run(qn_row_costs *costs, double (*cost)(size_t n), float chance, size_t steps, double *tokens_per_step)
{
    float chances[MOST];
    double tokens = 0, seconds = 0;
    for (size_t i = 0; i < MOST; i++)
        chances[i] = chance;
    for (size_t i = 0; i < steps; i++) {
        qn_row_offer offer = { .chances = chances, .n = MOST };
        const size_t n = qn_row_costs_choose(costs, NULL, 1, &offer, 1, MOST);
        const double time = cost(1 + n);
        assert_int_equal(offer.chosen, n);
        qn_row_costs_add(costs, 1 + n, time);
        if (i < steps / 2)
            continue;
        seconds += time;
        for (size_t k = 0; k <= n; k++)
            tokens += pow((double)chance, (double)k);
    }
    *tokens_per_step = tokens / (double)(steps - steps / 2);
    return tokens / seconds * cost(1);
}

static double half(size_t n)
{
    return 0.01 * (1 + 0.5 * (double)(n - 1));
}

/* Rows are computed in tiles of 4. */
static double tiles(size_t n)
{
    return 0.01 * (0.4 + 0.6 * (double)((n + 3) / 4));
}

static double full(size_t n)
{
    return 0.01 * (double)n;
}

static double best_of(double (*cost)(size_t n), double chance)
{
    double best = 1, tokens = 1;
    for (size_t n = 1; n <= MOST; n++) {
        tokens += pow(chance, (double)n);
        best = fmax(best, tokens * cost(1) / cost(1 + n));
    }
    return best;
}

TEST(the_fastest_number_is_found)
{
    static double (*const machines[])(size_t n) = { half, tiles, full };
    for (size_t m = 0; m < 3; m++)
        for (int percent = 5; percent < 100; percent += 5) {
            qn_row_costs costs = { .first = 0.5 };
            double tokens;
            label("machine %zu, %d%%", m, percent);
            const double gain = run(&costs, machines[m], (float)percent / 100, 200, &tokens),
                         best = best_of(machines[m], percent / 100.0);
            assert_true(gain > 0.999);
            assert_true(percent < 30 || gain > best * 0.8); /* unlikely tokens are not tried */
            assert_true(m != 2 || tokens == 1);
        }
}

/* What did not pay is tried again after a while: the machine was busy when it was measured. */
TEST(costs_are_measured_again)
{
    qn_row_costs costs = { .first = 0.5 };
    double tokens;
    (void)run(&costs, full, 0.9f, 200, &tokens);
    assert_true(tokens == 1);
    (void)run(&costs, half, 0.9f, 40, &tokens);
    assert_true(tokens == 1);
    (void)run(&costs, half, 0.9f, 2000, &tokens);
    (void)run(&costs, half, 0.9f, 100, &tokens);
    assert_true(tokens > 2);
}

/* A single slow step does not end drafts. */
TEST(slow_steps_are_forgiven)
{
    qn_row_costs costs = { .first = 0.5 };
    double tokens;
    (void)run(&costs, half, 0.95f, 100, &tokens);
    const double before = tokens;
    for (size_t n = 1; n <= 1 + MOST; n++)
        qn_row_costs_add(&costs, n, 10);
    (void)run(&costs, half, 0.95f, 100, &tokens);
    assert_true(tokens > before * 0.8);
}

static double cheap(size_t n)
{
    return 0.01 * (1 + 0.1 * (double)(n - 1));
}

/* Rows are cheaper than was thought: that is found out where less than the half of the tokens is accepted. */
TEST(cheap_rows_are_found)
{
    for (int percent = 35; percent < 100; percent += 5) {
        qn_row_costs costs = { .first = 0.5 };
        double tokens;
        label("%d%%", percent);
        const double gain = run(&costs, cheap, (float)percent / 100, 400, &tokens);
        assert_true(gain > best_of(cheap, percent / 100.0) * 0.95);
    }
}

/* The first time of a number of rows is often too long, since a kernel is compiled or the machine is busy. Drafts are
 * made soon all the same, whichever of the first steps is slow, or if the first time of every number of rows is. */
TEST(slow_first_times_are_forgiven)
{
    static double (*const machines[])(size_t n) = { half, cheap };
    for (size_t m = 0; m < COUNT(machines); m++)
        for (size_t slow = 0; slow <= 40; slow++) {
            qn_row_costs costs = { .first = 0.5 };
            float chances[MOST];
            double tokens, best;
            label("machine %zu, slow %zu", m, slow);
            for (size_t i = 0; i < MOST; i++)
                chances[i] = 0.7f;
            for (size_t step = 0; step < 100; step++) {
                qn_row_offer offer = { .chances = chances, .n = MOST };
                const size_t n = qn_row_costs_choose(&costs, NULL, 1, &offer, 1, MOST);
                const bool is_slow = slow < 40 ? step == slow : !costs.of[1 + n].step;
                qn_row_costs_add(&costs, 1 + n, machines[m](1 + n) * (is_slow ? 6 : 1));
            }
            const double gain = run(&costs, machines[m], 0.7f, 200, &tokens);
            best = best_of(machines[m], 0.7);
            assert_true(gain > 0.95 * best);
        }
}

/* Nor does a first time that is far too long raise the expected times of other numbers of rows much. */
TEST(first_times_are_limited)
{
    for (size_t n = 2; n <= QN_COST_ROWS; n += 13) {
        qn_row_costs costs = { .first = 0.5 };
        qn_row_costs_add(&costs, 1, 0.01);
        const double expected = qn_row_costs_seconds(&costs, n), before = qn_row_costs_seconds(&costs, n / 2 + 1);
        label("%zu rows", n);
        qn_row_costs_add(&costs, n, 100);
        assert_true(qn_row_costs_seconds(&costs, n) <= 2.001 * expected);
        assert_true(qn_row_costs_seconds(&costs, n / 2 + 1) <= 2.001 * before);
        qn_row_costs_add(&costs, n, 0.012);
        assert_true(qn_row_costs_seconds(&costs, n) == 0.012);
    }
}

/* A sequence without proposals beside one that repeats itself is slowed by a bounded factor, once times are known. */
TEST(neighbours_are_not_slowed)
{
    enum { SEQUENCES = 8 };
    static double (*const machines[])(size_t n) = { half, cheap, tiles, full };
    float chances[MOST];
    for (size_t i = 0; i < MOST; i++)
        chances[i] = 0.97f;
    for (size_t m = 0; m < COUNT(machines); m++)
        for (size_t n = 1; n <= SEQUENCES; n++) {
            qn_row_offer offers[SEQUENCES] = { { .chances = chances, .n = MOST } };
            qn_row_costs costs = { .first = 0.5 };
            size_t alone = 0, drafted = 0;
            for (size_t step = 0; step < 600; step++) {
                drafted = qn_row_costs_choose(&costs, NULL, n, offers, n, 64);
                const double ratio = machines[m](n + drafted) / machines[m](n);
                label("machine %zu, %zu sequences, step %zu: %zu rows, %g", m, n, step, drafted, ratio);
                assert_true(n == 1 || step < 300 || ratio < QN_COST_SLOWER * 1.01);
                qn_row_costs_add(&costs, n + drafted, machines[m](n + drafted));
                alone = n == 1 && drafted > alone ? drafted : alone;
            }
            assert_true(n > 1 || m == 3 || alone > 4);
            for (size_t i = 1; i < n; i++) /* if all repeat, all gain */
                offers[i] = offers[0];
            assert_true(n == 1 || m != 1 || qn_row_costs_choose(&costs, NULL, n, offers, n, 64) > drafted);
        }
}

/* Rows go to the sequences whose tokens are likeliest; beside many sequences there are fewer. */
TEST(sequences_share_rows)
{
    enum { SEQUENCES = 8 };
    float chances[SEQUENCES][MOST];
    qn_row_offer offers[SEQUENCES];
    qn_row_costs costs = { .first = 0.5 };
    for (size_t i = 0, n = 1; i < 128; i++, n = 1 + i / 2)
        qn_row_costs_add(&costs, n, 0.01 * (1 + 0.02 * (double)n + 0.002 * (double)(n * n)));
    size_t last = SIZE_MAX;
    for (size_t n = 1; n <= SEQUENCES; n *= 2) {
        for (size_t i = 0; i < SEQUENCES; i++) {
            for (size_t k = 0; k < MOST; k++)
                chances[i][k] = i % 2 ? 0.5f : 0.9f;
            offers[i] = (qn_row_offer){ .chances = chances[i], .n = i == 2 ? 1 : MOST };
        }
        const size_t drafted = qn_row_costs_choose(&costs, NULL, n, offers, n, 64);
        label("%zu sequences: %zu rows", n, drafted);
        size_t sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += offers[i].chosen;
        assert_int_equal(sum, drafted);
        assert_true(drafted > 0 && drafted / n < last);
        assert_true(n < 4 || (offers[0].chosen > offers[1].chosen && offers[2].chosen == 1));
        last = drafted / n;
    }
    assert_int_equal(qn_row_costs_choose(&costs, NULL, 1, offers, 1, 2), 2);
    assert_int_equal(qn_row_costs_choose(&costs, NULL, 1, offers, 1, 0), 0);
    assert_int_equal(offers[0].chosen, 0);
}

/* Tokens that take a pass are drafted only if they are worth the time of the passes, too; passes are
 * shared by the sequences of a step. */
TEST(passes_are_counted)
{
    const float chances[3] = { 0.8f, 0.8f, 0.8f };
    qn_row_offer offers[4];
    size_t most = 0, least = 3;
    for (int is_measured = 0; is_measured < 2; is_measured++)
        for (size_t tenths = 0; tenths <= 12; tenths++) {
            qn_row_costs costs = { .first = 0.2 }, passes = { .first = 0.1, .unit = 0.1 * (double)tenths };
            for (size_t i = 0; i < 64; i++)
                qn_row_costs_add(&costs, 1 + i % 8, 0.010 + 0.002 * (double)(i % 8));
            for (size_t i = 0; is_measured && i < 64; i++)
                qn_row_costs_add(&passes, 1 + i % 4, 0.001 * (double)tenths * (1 + 0.1 * (double)(i % 4)) + 1e-9);
            for (size_t i = 0; i < 4; i++)
                offers[i] = (qn_row_offer){ .chances = chances, .n = 3, .is_passed = true };
            const size_t alone = qn_row_costs_choose(&costs, &passes, 1, offers, 1, 64);
            label("%d measured, a pass of %zu tenths of a step: %zu", is_measured, tenths, alone);
            size_t best = 0;
            double rate = 1.03, tokens = 1, chance = 1;
            for (size_t k = 1; k <= 3; k++) {
                chance *= 0.8;
                tokens += chance;
                const double found = tokens / (1 + (0.2 + 0.1 * (double)tenths) * (double)k);
                best = found > rate ? k : best;
                rate = found > rate ? found : rate;
            }
            assert_int_equal(alone, best);
            most = best > most ? best : most;
            least = best < least ? best : least;
            offers[0].is_passed = false;
            assert_int_equal(qn_row_costs_choose(&costs, &passes, 1, offers, 1, 64), 3);
            offers[0].is_passed = true;
            /* Beside others a row saves less: four tokens in 1.6 steps; seven in 2.4, and a pass of all four. */
            const size_t together = qn_row_costs_choose(&costs, &passes, 4, offers, 4, 64);
            assert_true(tenths > 2 ? together <= 4 : together >= 4);
            assert_true(tenths < 6 || together == 0);
        }
    assert_true(least == 0 && most == 3);
}

/* ---- The draft head ---- */

/* Runs steps of one sequence with a draft head whose pairs take 3% of a step and whose passes take a tenth of one.
 * Returns how many of them computed pairs. */
static size_t run_head(qn_row_costs *costs, qn_row_costs *passes, qn_head_use *use, double (*cost)(size_t n),
                       float chance, size_t steps)
{
    const float chances[3] = { chance, chance, chance };
    size_t n_used = 0;
    for (size_t i = 0; i < steps; i++) {
        qn_row_offer offer = { .chances = chances, .n = use->rests ? 0 : 3, .is_passed = true };
        const size_t n = qn_row_costs_choose(costs, passes, 1, &offer, 1, MOST);
        n_used += !use->rests;
        if (qn_row_costs_is_known(costs, 1))
            qn_head_use_add(use, n ? qn_row_costs_gain(costs, passes, 1, &offer, 1, true) : 0, 0.03);
        for (size_t k = 0; k < n; k++)
            qn_row_costs_add(passes, 1, 0.1 * cost(1));
        qn_row_costs_add(costs, 1 + n, cost(1 + n));
    }
    return n_used;
}

TEST(a_head_that_does_not_pay_rests)
{
    qn_row_costs costs = { .first = 0.5 }, passes = { .first = 0.5, .unit = 0.1 };
    qn_head_use use = { 0 };
    const size_t first = run_head(&costs, &passes, &use, full, 0.7f, 100);
    assert_true(use.rests && first <= QN_HEAD_TRIAL + 2);
    const size_t later = run_head(&costs, &passes, &use, full, 0.7f, 50000);
    label("%zu of 50000", later);
    assert_true(later >= QN_HEAD_TRIAL && later < 500);
    (void)run_head(&costs, &passes, &use, cheap, 0.7f, QN_HEAD_LAST_REST + 10 * QN_HEAD_TRIAL); /* it pays again */
    assert_true(run_head(&costs, &passes, &use, cheap, 0.7f, 5000) == 5000);
    (void)run_head(&costs, &passes, &use, cheap, 0.05f, 3 * QN_HEAD_TRIAL); /* its tokens are refused */
    assert_true(use.rests);
}

TEST(a_head_that_pays_or_was_asked_for_does_not_rest)
{
    qn_row_costs costs = { .first = 0.5 }, passes = { .first = 0.5, .unit = 0.1 };
    qn_head_use use = { 0 }, asked = { .is_asked = true };
    assert_int_equal(run_head(&costs, &passes, &use, half, 0.8f, 5000), 5000);
    assert_int_equal(run_head(&costs, &passes, &asked, full, 0.7f, 5000), 5000);
}

/* The expected gain is that of the chosen tokens, with the time of their rows and passes. */
TEST(gains_are_expected)
{
    const float chances[2] = { 0.8f, 0.5f };
    qn_row_costs costs = { .first = 0.5 }, passes = { .first = 0.5 };
    for (size_t n = 1; n <= 4; n++)
        qn_row_costs_add(&costs, n, 1 + 0.25 * (double)(n - 1));
    qn_row_costs_add(&passes, 1, 0.125);
    qn_row_offer offer = { .chances = chances, .n = 2, .is_passed = true, .chosen = 2 };
    assert_true(fabs(qn_row_costs_gain(&costs, &passes, 1, &offer, 1, true) - (2.2 / 1.75 - 1)) < 1e-6);
    offer.chosen = 0;
    assert_true(qn_row_costs_gain(&costs, &passes, 1, &offer, 1, true) == 0);
    offer = (qn_row_offer){ .chances = chances, .n = 1, .chosen = 1 }; /* of a look-up, beside another sequence */
    const double of_look_up = 2.8 / 2 * 1.25 / 1.5 - 1;
    assert_true(fabs(qn_row_costs_gain(&costs, NULL, 2, &offer, 1, true) - of_look_up) < 1e-6);
    const qn_row_offer both[2] = { offer, { .chances = chances, .n = 2, .is_passed = true, .chosen = 1 } };
    assert_true(fabs(qn_row_costs_gain(&costs, &passes, 2, both, 2, false) - of_look_up) < 1e-6);
    assert_true(fabs(qn_row_costs_gain(&costs, &passes, 2, both, 2, true) - (3.6 / 2 * 1.25 / 1.875 - 1)) < 1e-6);
}

/* ---- Bounds, warnings, copies ---- */

/* Nothing is divided by zero, or read outside of the table. */
TEST(any_number_of_rows_has_a_cost)
{
    qn_row_costs costs = { .first = 0.5 };
    for (size_t n = 1; n < 1000; n++)
        assert_true(qn_row_costs_seconds(&costs, n) >= 1);
    qn_row_costs_add(&costs, 5000, 1);
    qn_row_costs_add(&costs, 40, 1);
    for (size_t n = 1; n < 1000; n++)
        assert_true(qn_row_costs_seconds(&costs, n) > 0);
    qn_row_costs_add(&costs, 1, 2); /* less for more rows */
    for (size_t n = 1; n < 1000; n++)
        assert_true(qn_row_costs_seconds(&costs, n) > 0);
}

static size_t n_lines;
static void count_line(void *user, const char *line)
{
    n_lines += user == &n_lines && strstr(line, "14 of 600 drafted");
}

static void count_any(void *user, const char *line)
{
    n_lines += user == &n_lines && strstr(line, "drafted tokens were accepted");
}

TEST(low_acceptance_is_told_once)
{
    qn_drafting *model, copy = { 0 };
    assert_ok(qn_drafting_create(0.5, 0, &model));
    qn_drafting_load(model, &copy);
    for (int i = 0; i < 1000; i++)
        assert_false(qn_drafting_count(&copy, false, 4, i % 2)); /* 12% */
    size_t n_told = 0;
    for (int i = 0; i < 1000; i++) {
        const bool is_told = qn_drafting_count(&copy, false, 3, i % 20 < 1 ? 1 : i % 50 == 1 ? 1 : 0);
        n_told += is_told;
        if (is_told)
            qn_drafting_log(&copy, model, count_line, &n_lines);
        if (i == 500) { /* another scheduler of the model goes on */
            qn_drafting_store(&copy, model);
            memset(&copy, 0, sizeof copy);
            qn_drafting_load(model, &copy);
        }
    }
    assert_int_equal(n_told, 1);
    assert_int_equal(n_lines, 1);
    assert_true(copy.costs.first == 0.5);
    qn_drafting_free(model);
}

/* Two copies that are used at the same time: what both count and measure is kept, and one warns. */
TEST(copies_are_merged)
{
    qn_drafting *model, copies[2], later;
    size_t n_told = 0;
    n_lines = 0;
    assert_ok(qn_drafting_create(0.5, 0, &model));
    assert_true(model->acceptances.head.chances[0] == qn_head_chances[0]);
    for (int i = 0; i < 2; i++)
        qn_drafting_load(model, &copies[i]);
    for (int i = 0; i < 2; i++) {
        copies[i].acceptances.head.chances[0] = 0.125f * (float)(1 + i);
        copies[i].head.rests = i;
        assert_false(qn_drafting_head_rests(model));
        for (int k = 0; k < 150; k++)
            assert_false(qn_drafting_count(&copies[i], false, 3, 0));
        for (size_t k = 0; k < 40; k++)
            qn_row_costs_add(&copies[i].costs, i ? 1 : 2, i ? 1 : 1.25);
    }
    for (int i = 0; i < 2; i++)
        qn_drafting_store(&copies[i], model);
    qn_drafting_load(model, &later);
    assert_int_equal(later.n_drafts, 300);
    assert_int_equal(later.n_drafted, 900);
    assert_true(later.acceptances.head.chances[0] == 0.25f && qn_drafting_head_rests(model));
    assert_true(qn_row_costs_seconds(&later.costs, 1) == 1 && qn_row_costs_seconds(&later.costs, 2) == 1.25);
    for (int i = 0; i < 2; i++)
        qn_drafting_load(model, &copies[i]);
    for (int i = 0; i < 2; i++)
        if (qn_drafting_count(&copies[i], false, 0, 14)) {
            n_told++;
            qn_drafting_log(&copies[i], model, count_any, &n_lines);
        }
    assert_int_equal(n_told, 2);
    assert_int_equal(n_lines, 1);
    for (int i = 1; i >= 0; i--)
        qn_drafting_store(&copies[i], model);
    qn_drafting_load(model, &later);
    assert_true(later.has_warned);
    qn_drafting_free(model);
}
