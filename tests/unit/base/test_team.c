/* The thread team: every piece is done once, phases are in order, writes of a phase are visible to the next one, and a
 * thread delays the others by one piece only. Also run with the thread sanitizer. */
#include "helper_assert.h"

#include "base/cpu.h"
#include "base/team.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROUNDS = 200, CELLS = 64 };

struct relay {
    int cells[2][CELLS]; /* not atomic: only the phases order the accesses */
};

static qn_team_pieces relay_pieces(void *context, size_t phase, int n_threads)
{
    (void)context;
    return (qn_team_pieces){ .own = phase % 3, .shared = CELLS - phase % 3 * (size_t)n_threads };
}

/* In each round the pieces compute their cells from cells that other pieces wrote in the previous round. */
static void relay_work(void *context, const qn_team_piece *piece)
{
    struct relay *r = context;
    const int *from = r->cells[piece->phase % 2];
    int *to = r->cells[(piece->phase + 1) % 2];
    to[piece->index] = from[(piece->index + 17) % CELLS] + 1;
}

static const int sizes[] = { 1, 2, 3, 7, 19 };

TEST(phases_are_in_order)
{
    for (size_t s = 0; s < COUNT(sizes); s++) {
        qn_team *team;
        label("%d threads", sizes[s]);
        assert_ok(qn_team_create(sizes[s], &team));
        assert_int_equal(qn_team_size(team), sizes[s]);
        for (int run = 0; run < 3; run++) {
            struct relay r = { 0 };
            label("run %d", run);
            qn_team_do(team, &(qn_team_job){ ROUNDS, (size_t)run, relay_pieces, relay_work, &r });
            for (int i = 0; i < CELLS; i++)
                assert_int_equal(r.cells[ROUNDS % 2][i], ROUNDS);
            usleep(run * 2000); /* longer than waiting threads spin: they sleep */
        }
        qn_team_free(team);
    }
}

enum { PHASES = 40, MAX_PIECES = 19 * QN_TEAM_MAX_OWN + QN_TEAM_MAX_SHARED };

struct counts {
    size_t opened;
    qn_team_pieces pieces[PHASES];
    size_t n[PHASES];
    atomic_uchar *done; /* [MAX_PIECES] in the open phase */
    atomic_size_t n_done;
    atomic_bool busy[19]; /* threads in a piece */
    atomic_int wrong;
};

/* Opened once each, in order, when the phase before has ended. */
static qn_team_pieces count_pieces(void *context, size_t phase, int n_threads)
{
    struct counts *c = context;
    c->wrong += phase != c->opened++ || (phase && c->n_done != c->n[phase - 1]);
    c->n[phase] = (size_t)n_threads * c->pieces[phase].own + c->pieces[phase].shared;
    c->n_done = 0;
    memset(c->done, 0, MAX_PIECES);
    return c->pieces[phase];
}

static void count_piece(void *context, const qn_team_piece *piece)
{
    struct counts *c = context;
    const bool known = piece->phase + 1 == c->opened && piece->index < c->n[piece->phase];
    if (!known || atomic_exchange(&c->busy[piece->thread], true) || atomic_exchange(&c->done[piece->index], 1))
        atomic_fetch_add(&c->wrong, 1);
    atomic_fetch_add(&c->n_done, 1);
    atomic_store(&c->busy[piece->thread], false);
}

/* Phases without pieces, of one, of as many as there can be, and any. */
TEST(every_piece_is_done_once)
{
    struct counts c = { 0 };
    uint64_t random = 1;
    c.done = calloc(MAX_PIECES, 1);
    assert_non_null(c.done);
    for (size_t s = 0; s < COUNT(sizes); s++) {
        qn_team *team;
        label("%d threads", sizes[s]);
        assert_ok(qn_team_create(sizes[s], &team));
        for (int run = 0; run < 5; run++) {
            for (size_t i = 0; i < PHASES; i++) {
                random = random * 6364136223846793005u + 1442695040888963407u;
                const size_t own = random >> 33 & 3, shared = random >> 40 & 15;
                c.pieces[i] = (qn_team_pieces){ own, own % 2 ? 0 : shared };
            }
            c.pieces[0] = (qn_team_pieces){ 0, 1 };
            c.pieces[PHASES - 1] = (qn_team_pieces){ 0, (size_t)run };
            c.pieces[run] = (qn_team_pieces){ QN_TEAM_MAX_OWN, QN_TEAM_MAX_SHARED };
            c.opened = 0;
            qn_team_do(team, &(qn_team_job){ PHASES, 0, count_pieces, count_piece, &c });
            assert_int_equal(c.opened, PHASES);
            assert_int_equal(c.n_done, c.n[PHASES - 1]);
            assert_int_equal(c.wrong, 0);
        }
        qn_team_do(team, &(qn_team_job){ 0, 0, count_pieces, count_piece, &c });
        qn_team_free(team);
    }
    free(c.done);
}

struct stuck {
    atomic_int n_done;
    atomic_bool is_stuck;
    atomic_int stuck_thread;
    int n_others;
};

static qn_team_pieces own_pieces(void *context, size_t phase, int n_threads)
{
    (void)context, (void)phase, (void)n_threads;
    return (qn_team_pieces){ .own = 8 };
}

/* The first piece does not end before all others are done. */
static void get_stuck(void *context, const qn_team_piece *piece)
{
    struct stuck *s = context;
    if (!atomic_exchange(&s->is_stuck, true)) {
        atomic_store(&s->stuck_thread, piece->thread);
        while (atomic_load(&s->n_done) < 8 * piece->n_threads - 1)
            usleep(100);
    }
    atomic_fetch_add(&s->n_done, 1);
}

TEST(a_thread_delays_only_its_piece)
{
    qn_team *team;
    for (int n = 2; n < 6; n++) {
        struct stuck s = { 0 };
        label("%d threads", n);
        assert_ok(qn_team_create(n, &team));
        qn_team_do(team, &(qn_team_job){ 1, 0, own_pieces, get_stuck, &s });
        assert_int_equal(s.n_done, 8 * n);
        qn_team_free(team);
    }
}

struct numbers {
    int least, most;
    atomic_int n_done;
};

static qn_team_pieces note_number(void *context, size_t phase, int n_threads)
{
    struct numbers *n = context;
    (void)phase;
    n->least = n_threads < n->least ? n_threads : n->least;
    n->most = n_threads > n->most ? n_threads : n->most;
    return (qn_team_pieces){ .own = 3, .shared = 2 };
}

static void note_done(void *context, const qn_team_piece *piece)
{
    struct numbers *n = context;
    (void)piece;
    atomic_fetch_add(&n->n_done, 1);
}

/* Jobs are done with whatever number of threads; with more again after fewer. Threads are disturbed by more threads
 * than there are processors. */
TEST(teams_that_adapt)
{
    qn_team *team;
    struct numbers n = { .least = QN_TEAM_MAX };
    assert_ok(qn_team_create(5, &team));
    qn_team_adapt(team);
    for (int i = 0; i < 2000; i++) {
        n.n_done = n.least = n.most = 0;
        n.least = QN_TEAM_MAX;
        qn_team_do(team, &(qn_team_job){ 4, 1 + (size_t)(i / 700), note_number, note_done, &n });
        assert_int_equal(n.least, n.most);
        assert_in_range(n.most, 1, 5);
        assert_int_equal(n.n_done, 4 * (3 * n.most + 2));
    }
    qn_team_free(team);
}

/* A team may end at once after a job, or before any. */
TEST(teams_end)
{
    for (int i = 0; i < 300; i++) {
        qn_team *team;
        struct numbers n = { .least = QN_TEAM_MAX };
        assert_ok(qn_team_create(2 + i % 4, &team));
        if (i % 3)
            qn_team_do(team, &(qn_team_job){ (size_t)(i % 3), 0, note_number, note_done, &n });
        qn_team_free(team);
    }
}

struct cover {
    atomic_uchar *seen;
    size_t count, unit;
    atomic_int wrong;
};

static void cover(void *context, size_t begin, size_t end, int thread)
{
    struct cover *c = context;
    (void)thread;
    if (begin >= end || end > c->count || begin % c->unit)
        atomic_fetch_add(&c->wrong, 1);
    for (size_t i = begin; i < end && i < c->count; i++)
        atomic_fetch_add(&c->seen[i], 1);
}

TEST(division_covers_everything_once)
{
    static const size_t counts[] = { 0, 1, 2, 3, 15, 16, 17, 100, 1000, 12345 };
    for (size_t s = 0; s < COUNT(sizes); s++) {
        qn_team *team;
        assert_ok(qn_team_create(sizes[s], &team));
        for (size_t i = 0; i < COUNT(counts); i++)
            for (size_t unit = 1; unit < 70; unit = 3 * unit + 1) {
                struct cover c = { .count = counts[i], .unit = unit };
                label("%d threads, %zu items in units of %zu", sizes[s], counts[i], unit);
                c.seen = calloc(counts[i] + 1, 1);
                assert_non_null(c.seen);
                qn_team_divide(team, counts[i], unit, cover, &c);
                assert_int_equal(c.wrong, 0);
                for (size_t item = 0; item < counts[i]; item++)
                    assert_int_equal(c.seen[item], 1);
                free(c.seen);
            }
        qn_team_free(team);
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
                    qn_team_range(count, unit, (size_t)t, (size_t)n, &begin, &end);
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
