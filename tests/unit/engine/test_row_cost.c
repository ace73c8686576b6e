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
        const size_t n = qn_row_costs_choose(costs, 1, &offer, 1, MOST);
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
            assert_true(percent < 55 || gain > best * 0.8); /* before they are measured, rows are thought to cost a
                                                                half */
            assert_true(m != 2 || tokens == 1);
        }
}

/* What did not pay is tried again after a while: the machine was busy when it was measured. */
TEST(costs_are_measured_again)
{
    qn_row_costs costs = { .first = 0.5 };
    double tokens;
    (void)run(&costs, full, 0.9f, 40, &tokens);
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

/* Rows go to the sequences whose tokens are likeliest; beside many sequences there are fewer. */
TEST(sequences_share_rows)
{
    enum { SEQUENCES = 8 };
    float chances[SEQUENCES][MOST];
    qn_row_offer offers[SEQUENCES];
    qn_row_costs costs = { .first = 0.5 };
    for (size_t n = 1; n <= 64; n++)
        qn_row_costs_add(&costs, n, 0.01 * (1 + 0.02 * (double)n + 0.002 * (double)(n * n)));
    size_t last = SIZE_MAX;
    for (size_t n = 1; n <= SEQUENCES; n *= 2) {
        for (size_t i = 0; i < SEQUENCES; i++) {
            for (size_t k = 0; k < MOST; k++)
                chances[i][k] = i % 2 ? 0.5f : 0.9f;
            offers[i] = (qn_row_offer){ .chances = chances[i], .n = i == 2 ? 1 : MOST };
        }
        const size_t drafted = qn_row_costs_choose(&costs, n, offers, n, 64);
        label("%zu sequences: %zu rows", n, drafted);
        size_t sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += offers[i].chosen;
        assert_int_equal(sum, drafted);
        assert_true(drafted > 0 && drafted / n < last);
        assert_true(n < 4 || (offers[0].chosen > offers[1].chosen && offers[2].chosen == 1));
        last = drafted / n;
    }
    assert_int_equal(qn_row_costs_choose(&costs, 1, offers, 1, 2), 2);
    assert_int_equal(qn_row_costs_choose(&costs, 1, offers, 1, 0), 0);
    assert_int_equal(offers[0].chosen, 0);
}

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

TEST(low_acceptance_is_told_once)
{
    qn_drafting *model, copy = { 0 };
    assert_ok(qn_drafting_create(0.5, &model));
    qn_drafting_load(model, &copy);
    for (int i = 0; i < 1000; i++)
        assert_false(qn_drafting_count(&copy, 4, i % 2)); /* 12% */
    size_t n_told = 0;
    for (int i = 0; i < 1000; i++) {
        const bool is_told = qn_drafting_count(&copy, 3, i % 20 < 1 ? 1 : i % 50 == 1 ? 1 : 0);
        n_told += is_told;
        if (is_told)
            qn_drafting_log(&copy, count_line, &n_lines);
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
