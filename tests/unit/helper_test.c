/* The cases of a unit test's program: registered by the constructors of TEST(), run by cmocka. */
#include "helper_assert.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_TESTS = 256 };

static struct test_case cases[MAX_TESTS];
static size_t n_cases;
static test_fixture *set_up_group, *tear_down_group, *set_up_every, *tear_down_every;

void add_test(struct test_case test)
{
    if (n_cases == MAX_TESTS) {
        fprintf(stderr, "%s: there are %d tests before it, the most that one program may have\n", test.name, MAX_TESTS);
        abort();
    }
    size_t at = n_cases++;
    for (; at && cases[at - 1].line > test.line; at--)
        cases[at] = cases[at - 1];
    cases[at] = test;
}

void set_group(test_fixture *set_up, test_fixture *tear_down)
{
    set_up_group = set_up;
    tear_down_group = tear_down;
}

void set_every(test_fixture *set_up, test_fixture *tear_down)
{
    set_up_every = set_up;
    tear_down_every = tear_down;
}

static void run_case(void **state)
{
    const struct test_case *test = *state;
    if (test->run)
        test->run();
    else
        test->run_row(test->row);
}

static int set_up_case(void **state)
{
    const struct test_case *test = *state;
    return test->set_up ? test->set_up() : 0;
}

static int tear_down_case(void **state)
{
    const struct test_case *test = *state;
    return test->tear_down ? test->tear_down() : 0;
}

static int set_up_all(void **state)
{
    (void)state;
    return set_up_group ? set_up_group() : 0;
}

static int tear_down_all(void **state)
{
    (void)state;
    return tear_down_group ? tear_down_group() : 0;
}

int run_all_tests(void)
{
    static struct CMUnitTest tests[MAX_TESTS];
    for (size_t i = 0; i < n_cases; i++) {
        if (!cases[i].set_up && !cases[i].tear_down) {
            cases[i].set_up = set_up_every;
            cases[i].tear_down = tear_down_every;
        }
        tests[i] = (struct CMUnitTest){ cases[i].name, run_case, set_up_case, tear_down_case, &cases[i] };
    }
    return _cmocka_run_group_tests("tests", tests, n_cases, set_up_all, tear_down_all);
}
