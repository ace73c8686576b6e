/* The number of threads of a team, with made-up times: all threads unless fewer are faster, again when that ends, and
 * few trials where nothing changes. */
#include "helper_assert.h"

#include "base/pace.h"

/* The time of a job of one thread's work on 8 processors, of which others use `n_busy`; `sharp`: a thread that shares
 * its processor holds up all others. */
static double seconds_of(int n_threads, int n_busy, bool sharp)
{
    const int n_sharing = n_threads + n_busy > 8 ? n_threads + n_busy - 8 : 0;
    return 1.0 / n_threads * (n_sharing && sharp ? 2.5 : 1);
}

struct run {
    int last, n_trials;
    double seconds;
};

static struct run run_jobs(qn_pace *pace, int n_jobs, int n_busy, bool sharp, size_t kinds)
{
    struct run run = { .last = qn_pace_threads(pace) };
    for (int i = 0; i < n_jobs; i++) {
        const int n = qn_pace_threads(pace);
        assert_in_range(n, 1, pace->most);
        run.n_trials += n != run.last;
        run.last = n;
        run.seconds += seconds_of(n, n_busy, sharp);
        qn_pace_note(pace, (size_t)i % kinds, seconds_of(n, n_busy, sharp), n + n_busy > 8);
    }
    return run;
}

TEST(all_threads_where_nobody_disturbs)
{
    qn_pace pace;
    qn_pace_init(&pace, 8);
    const struct run run = run_jobs(&pace, 10000, 0, true, 1);
    assert_int_equal(run.last, 8);
    assert_int_equal(run.n_trials, 0);
}

TEST(fewer_where_others_are_busy)
{
    for (int n_busy = 1; n_busy <= 3; n_busy++) {
        qn_pace pace;
        label("%d busy processes", n_busy);
        qn_pace_init(&pace, 8);
        run_jobs(&pace, 800, n_busy, true, 1);
        assert_int_equal(pace.n, 8 - n_busy);
        /* trials cost less than a percent */
        const struct run run = run_jobs(&pace, 20000, n_busy, true, 1);
        assert_true(run.seconds < 1.01 * 20000 * seconds_of(8 - n_busy, n_busy, true));
        /* and all are used soon after the others have ended */
        run_jobs(&pace, 4096 + 200, 0, true, 1);
        assert_int_equal(pace.n, 8);
    }
}

/* Where threads that are stopped do not hold up the others, each of them is of use. */
TEST(all_threads_where_they_help)
{
    qn_pace pace;
    qn_pace_init(&pace, 8);
    const struct run run = run_jobs(&pace, 20000, 8, false, 1);
    assert_int_equal(pace.n, 8);
    assert_true(run.n_trials < 40 && run.seconds < 1.01 * 20000 * seconds_of(8, 8, false));
}

/* Jobs of other work between those of a kind are not compared with them. Where a kind seldom comes again, a trial ends
 * without a result, and trials get rare. */
TEST(kinds_are_apart)
{
    qn_pace pace;
    qn_pace_init(&pace, 8);
    run_jobs(&pace, 2000, 1, true, 2);
    assert_int_equal(pace.n, 7);
    qn_pace_init(&pace, 8);
    const struct run run = run_jobs(&pace, 100000, 8, false, 50);
    assert_int_equal(pace.n, 8);
    assert_true(run.n_trials < 200 && run.seconds < 1.02 * 100000 * seconds_of(8, 8, false));
}

/* Fewer threads are best, then all are, while others go on disturbing them: trials of more come in time. */
TEST(more_again_while_disturbed)
{
    qn_pace pace;
    qn_pace_init(&pace, 8);
    for (int i = 0; i < 100000; i++)
        qn_pace_note(&pace, 1, qn_pace_threads(&pace) <= 5 ? 1.0 : 1.5, true);
    assert_in_range(pace.n, 1, 5);
    for (int i = 0; i < 8 * 4200; i++)
        qn_pace_note(&pace, 1, 8.0 / qn_pace_threads(&pace), true);
    assert_int_equal(pace.n, 8);
}

TEST(one_thread)
{
    qn_pace pace;
    qn_pace_init(&pace, 1);
    run_jobs(&pace, 1000, 8, true, 1);
    assert_int_equal(pace.n, 1);
}
