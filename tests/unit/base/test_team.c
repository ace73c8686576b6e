/* The thread team: ranges cover all items once, barriers synchronise, and writes before a barrier are visible after it.
 * Also run with the thread sanitizer. */
#include "helper_assert.h"

#include "base/cpu.h"
#include "base/team.h"

#include <unistd.h>

enum { ROUNDS = 200, CELLS = 64 };

struct relay {
    qn_team *team;
    int n_threads;
    int cells[2][CELLS]; /* not atomic: only the barriers order the accesses */
    int wrong;
};

/* In each round every thread computes its cells from cells that other threads wrote in the previous round. */
static void relay_work(void *context, int thread)
{
    struct relay *r = context;
    for (int round = 0; round < ROUNDS; round++) {
        const int *from = r->cells[round % 2];
        int *to = r->cells[(round + 1) % 2];
        size_t begin, end;
        qn_team_range(CELLS, 1, thread, r->n_threads, &begin, &end);
        for (size_t i = begin; i < end; i++)
            to[i] = from[(i + 17) % CELLS] + 1;
        qn_team_barrier(r->team);
    }
}

TEST(barriers_order_the_threads)
{
    static const int sizes[] = { 1, 2, 3, 7 };
    for (size_t s = 0; s < COUNT(sizes); s++) {
        label("%d threads", sizes[s]);
        struct relay r = { .n_threads = sizes[s] };
        assert_ok(qn_team_create(sizes[s], &r.team));
        for (int run = 0; run < 3; run++) {
            label("run %d", run);
            memset(r.cells, 0, sizeof r.cells);
            qn_team_run(r.team, relay_work, &r);
            for (int i = 0; i < CELLS; i++)
                assert_int_equal(r.cells[ROUNDS % 2][i], ROUNDS);
            usleep(run * 2000); /* longer than waiting threads spin: they sleep */
        }
        qn_team_free(r.team);
    }
}

TEST(ranges_cover_everything_once)
{
    for (size_t count = 0; count < 70; count++)
        for (size_t unit = 1; unit < 6; unit++)
            for (int n = 1; n < 9; n++) {
                label("%zu items in units of %zu, %d threads", count, unit, n);
                size_t at = 0, min_units = SIZE_MAX, max_units = 0;
                for (int t = 0; t < n; t++) {
                    size_t begin, end;
                    qn_team_range(count, unit, t, n, &begin, &end);
                    assert_int_equal(begin, at);
                    assert_true(end >= begin && (begin % unit == 0 || begin == count));
                    const size_t units = (end - begin + unit - 1) / unit;
                    min_units = units < min_units ? units : min_units;
                    max_units = units > max_units ? units : max_units;
                    at = end;
                }
                assert_int_equal(at, count);
                assert_true(max_units - min_units <= 1);
            }
}

TEST(rejects_absurd_sizes)
{
    qn_team *team;
    assert_int_equal(qn_team_create(0, &team), QN_ERR_INVALID);
    assert_int_equal(qn_team_create(QN_TEAM_MAX + 1, &team), QN_ERR_INVALID);
    assert_null(team);
    assert_text("1 to 1024");
}

TEST(processor_features)
{
    unsigned features;
    assert_true(qn_cpu_cores() >= 1 && qn_cpu_cores() <= qn_cpu_threads());
    setenv("QN_CPU", "ref", 1);
    assert_ok(qn_cpu_features(&features));
    assert_int_equal(features, 0);
    setenv("QN_CPU", "sse9", 1);
    assert_fails(qn_cpu_features(&features), QN_ERR_INVALID, "'sse9'");
    unsigned named = 0;
    for (size_t i = 0; i < qn_cpu_n_levels; i++) {
        const qn_cpu_level *level = &qn_cpu_levels[i];
        named |= level->features;
        setenv("QN_CPU", level->name, 1);
        assert_int_equal(qn_cpu_features(&features), qn_cpu_has_level(level) ? QN_OK : QN_ERR_UNSUPPORTED);
        if (qn_cpu_has_level(level)) {
            assert_int_equal(features, level->features);
            assert_string_equal(qn_cpu_name(features), level->name);
        }
    }
    assert_int_equal(qn_cpu_present() & ~named, 0); /* quern-check compares levels: a feature of none is not tested */
    unsetenv("QN_CPU");
    assert_ok(qn_cpu_features(&features));
    assert_int_equal(features, qn_cpu_present());
}
