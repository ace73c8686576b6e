/* The thread team: threads claim the pieces of a phase, and whoever ends the last piece opens the next phase. */
#include "base/team.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "base/pace.h"
#include "base/preempted.h"
#include "base/thread.h"
#include "base/ticks.h"
#include "base/wait_value.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* SPINS are about 20 to 50 microseconds on current CPUs: longer than the load imbalance of any operation, shorter than
 * a time slice of the scheduler. A thread that waits first spins for TAKE_SPINS, in which most phases end, before it
 * looks for pieces of others: that reads the cache lines of all threads. */
enum { SPINS = 1500, TAKE_SPINS = 40 };

/* A counter that threads wait on, and the number of threads that sleep until it changes. The struct has its own cache
 * line: threads spin on the counter, and writes to other members would take the line away from them. */
struct eventcount {
    _Alignas(QN_ALIGN) atomic_uint value;
    atomic_uint waiters;
};

/* Pieces claimed of one kind: the number of the phase in the upper half, how many in the lower. A claim is a
 * compare-and-swap, so it fails if the phase is over: whoever succeeds has a piece that is not done, and until it is
 * done the phase cannot end. A thread that slept through 2^31 phases would take the number for its own. */
typedef atomic_uint_fast64_t claims;

/* What a thread has for itself, in cache lines of its own. Other threads only claim. */
struct member {
    _Alignas(QN_ALIGN) claims own;
    _Alignas(QN_ALIGN) struct qn_team *team;
    pthread_t thread; /* of member 0: the last caller */
    int index;
    qn_preempted preempted; /* used by the thread alone */
};

/* n_threads, n_started, spins and the pointers in members are constant while a job is done. */
struct qn_team {
    struct eventcount opened; /* phases opened, and ends of jobs */
    struct eventcount grown;  /* times that more threads were used */
    atomic_int n_used;        /* members 0 to n_used - 1; the others sleep until that changes */
    atomic_uint n_disturbed;  /* times that a thread gave way to others */
    /* The open phase: its number << 32 | (threads - 1) << 22 | own << 14 | shared. Without pieces: no job. */
    _Alignas(QN_ALIGN) atomic_uint_fast64_t open;
    _Alignas(QN_ALIGN) claims shared;
    _Alignas(QN_ALIGN) atomic_uint done; /* pieces of the open phase */
    _Alignas(QN_ALIGN) int n_threads;    /* not beside `done`, which all threads change */
    int n_started, spins;
    atomic_bool quit;
    /* Written between phases by the thread that opens the next one, read by those that hold a piece of it. */
    const qn_team_job *job;
    size_t phase;
    uint32_t number; /* of the open phase, counted since the team was created */
    int n_of_job;    /* threads that the job's pieces are divided for */
    struct member *members;
    bool has_caller, adapts;
    qn_pace pace; /* used by the caller of a job */
};

static inline void spin_hint(void)
{
#if QN_X86
    __builtin_ia32_pause();
#elif QN_ARM64
    __asm__ volatile("yield");
#endif
}

static void eventcount_sleep(struct eventcount *eventcount, unsigned seen)
{
    atomic_fetch_add(&eventcount->waiters, 1);
    while (atomic_load(&eventcount->value) == seen)
        qn_wait_value(&eventcount->value, seen);
    atomic_fetch_sub(&eventcount->waiters, 1);
}

/* Spins until the value changes; false if it has not. */
static bool eventcount_spin(struct eventcount *eventcount, unsigned seen, int spins)
{
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&eventcount->value, memory_order_acquire) != seen)
            return true;
        spin_hint();
    }
    return false;
}

static void eventcount_advance(struct eventcount *eventcount)
{
    atomic_fetch_add(&eventcount->value, 1);
    if (atomic_load(&eventcount->waiters))
        qn_wake_value(&eventcount->value);
}

/* ---- Phases ---- */

/* The open phase as a thread has read it. */
struct phase {
    uint32_t number;
    int n_threads;
    size_t own, shared;
};

static struct phase open_phase(const qn_team *team)
{
    const uint64_t open = atomic_load_explicit(&team->open, memory_order_acquire);
    return (struct phase){ .number = (uint32_t)(open >> 32),
                           .n_threads = (int)(open >> 22 & (QN_TEAM_MAX - 1)) + 1,
                           .own = open >> 14 & QN_TEAM_MAX_OWN,
                           .shared = open & QN_TEAM_MAX_SHARED };
}

static size_t count_pieces(const struct phase *phase)
{
    return (size_t)phase->n_threads * phase->own + phase->shared;
}

/* Numbers are compared by their difference: counters that were not used for long get a newer one, before it is more
 * than 2^31. No phase is open, so no claim can succeed. */
static void renew_claims(qn_team *team)
{
    const uint64_t before = (uint64_t)(team->number - 1) << 32 | UINT32_MAX; /* all claimed */
    atomic_store_explicit(&team->shared, before, memory_order_relaxed);
    for (int i = 0; i < team->n_threads; i++)
        atomic_store_explicit(&team->members[i].own, before, memory_order_relaxed);
}

/* Publishes a phase; all that the thread wrote before is visible to who sees it. */
static void publish(qn_team *team, size_t own, size_t shared)
{
    const uint64_t number = ++team->number, threads = (uint64_t)team->n_of_job - 1;
    if (!(number & ((UINT64_C(1) << 30) - 1)))
        renew_claims(team);
    atomic_store_explicit(&team->open, number << 32 | threads << 22 | own << 14 | shared, memory_order_release);
    eventcount_advance(&team->opened);
}

static void do_piece(const qn_team *team, int thread, size_t index)
{
    const qn_team_piece piece = { .phase = team->phase, .index = index, .thread = thread, .n_threads = team->n_of_job };
    team->job->work(team->job->context, &piece);
}

/* Opens the next phase that has pieces, or ends the job. A phase of one piece is done here: nobody needs to hear of it,
 * nor of a job that had no others. */
static void open_next(qn_team *team, int thread)
{
    const qn_team_job *job = team->job;
    while (++team->phase < job->n_phases) {
        const qn_team_pieces pieces = job->pieces(job->context, team->phase, team->n_of_job);
        assert(pieces.own <= QN_TEAM_MAX_OWN && pieces.shared <= QN_TEAM_MAX_SHARED);
        const size_t n_pieces = (size_t)team->n_of_job * pieces.own + pieces.shared;
        if (n_pieces == 1)
            do_piece(team, thread, 0);
        if (n_pieces <= 1)
            continue;
        atomic_store_explicit(&team->done, 0, memory_order_relaxed);
        publish(team, pieces.own, pieces.shared);
        return;
    }
    const struct phase last = open_phase(team);
    if (count_pieces(&last))
        publish(team, 0, 0);
}

/* ---- Pieces ---- */

/* Claims one of `limit` pieces of the phase. */
static bool claim(claims *of, uint32_t number, size_t limit, size_t *index)
{
    if (!limit)
        return false;
    uint64_t seen = atomic_load_explicit(of, memory_order_relaxed);
    for (;;) {
        const int32_t behind = (int32_t)(number - (uint32_t)(seen >> 32));
        const uint64_t claimed = behind ? 0 : (uint32_t)seen;
        if (behind < 0 || claimed >= limit)
            return false;
        *index = (size_t)claimed;
        if (atomic_compare_exchange_weak_explicit(of, &seen, (uint64_t)number << 32 | (claimed + 1),
                                                  memory_order_acq_rel, memory_order_relaxed))
            return true;
    }
}

static bool claim_own(struct member *owner, const struct phase *phase, size_t *index)
{
    if (owner->index >= phase->n_threads || !claim(&owner->own, phase->number, phase->own, index))
        return false;
    *index += (size_t)owner->index * phase->own;
    return true;
}

static bool claim_shared(qn_team *team, const struct phase *phase, size_t *index)
{
    if (!claim(&team->shared, phase->number, phase->shared, index))
        return false;
    *index += (size_t)phase->n_threads * phase->own;
    return true;
}

/* A piece that nobody has begun, of any thread. */
static bool claim_any(struct member *member, const struct phase *phase, size_t *index)
{
    qn_team *team = member->team;
    for (int i = 1; i < phase->n_threads; i++)
        if (claim_own(&team->members[(member->index + i) % phase->n_threads], phase, index))
            return true;
    return claim_shared(team, phase, index);
}

static bool claim_next(struct member *member, const struct phase *phase, bool any, size_t *index)
{
    return claim_own(member, phase, index) || claim_shared(member->team, phase, index) ||
           (any && claim_any(member, phase, index));
}

/* Does pieces of the open phase until none is left; `any` includes those of other threads. When the system is likely to
 * take the processor away soon, the thread gives it away itself, while it holds no piece, and returns false. */
static bool help(struct member *member, const struct phase *phase, bool any)
{
    qn_team *team = member->team;
    size_t index;
    unsigned n = 0;
    bool gives_way = false;
    while (!gives_way && claim_next(member, phase, any, &index)) {
        do_piece(team, member->index, index);
        n++;
        gives_way = qn_preempted_soon(&member->preempted);
    }
    if (n && atomic_fetch_add_explicit(&team->done, n, memory_order_acq_rel) + n == count_pieces(phase))
        open_next(team, member->index);
    if (gives_way && qn_preempted_give_way(&member->preempted))
        atomic_fetch_add_explicit(&team->n_disturbed, 1, memory_order_relaxed);
    return !gives_way;
}

/* Helps with the phase, then waits until `opened` differs from `seen`, which was read before the phase. It may also
 * return before the phase has ended. */
static void pass(struct member *member, const struct phase *phase, unsigned seen)
{
    qn_team *team = member->team;
    if (!help(member, phase, false) || eventcount_spin(&team->opened, seen, team->spins ? TAKE_SPINS : 0))
        return;
    if (help(member, phase, true) && !eventcount_spin(&team->opened, seen, team->spins))
        eventcount_sleep(&team->opened, seen);
}

/* The counters are read before `quit`: who sees the counters that qn_team_free has advanced sees `quit` as well, and
 * who does not, does not sleep. */
static void *member_main(void *argument)
{
    struct member *member = argument;
    qn_team *team = member->team;
    qn_preempted_begin(&member->preempted);
    for (;;) {
        const unsigned grown = atomic_load(&team->grown.value), seen = atomic_load(&team->opened.value);
        if (atomic_load(&team->quit))
            return NULL;
        if (member->index >= atomic_load(&team->n_used)) {
            eventcount_sleep(&team->grown, grown);
            continue;
        }
        const struct phase phase = open_phase(team);
        pass(member, &phase, seen);
    }
}

/* ---- Jobs ---- */

static void do_alone(qn_team *team)
{
    const qn_team_job *job = team->job;
    for (team->phase = 0; team->phase < job->n_phases; team->phase++) {
        const qn_team_pieces pieces = job->pieces(job->context, team->phase, 1);
        for (size_t i = 0; i < pieces.own + pieces.shared; i++)
            do_piece(team, 0, i);
    }
}

static void do_together(qn_team *team)
{
    struct member *member = &team->members[0];
    if (!team->has_caller || !pthread_equal(member->thread, pthread_self())) {
        qn_preempted_begin(&member->preempted);
        member->thread = pthread_self();
        team->has_caller = true;
    }
    team->phase = SIZE_MAX;
    open_next(team, 0);
    for (;;) {
        const unsigned seen = atomic_load_explicit(&team->opened.value, memory_order_acquire);
        const struct phase phase = open_phase(team);
        if (!count_pieces(&phase))
            return;
        pass(member, &phase, seen);
    }
}

static void use_threads(qn_team *team, int n)
{
    const bool grows = n > team->n_of_job;
    team->n_of_job = n;
    atomic_store(&team->n_used, n);
    if (grows)
        eventcount_advance(&team->grown);
}

void qn_team_do(qn_team *team, const qn_team_job *job)
{
    team->job = job;
    if (team->n_threads == 1) {
        do_alone(team);
        return;
    }
    if (!team->adapts || !job->kind) {
        do_together(team);
        return;
    }
    if (qn_pace_threads(&team->pace) != team->n_of_job)
        use_threads(team, qn_pace_threads(&team->pace));
    const unsigned disturbed = atomic_load_explicit(&team->n_disturbed, memory_order_relaxed);
    const uint64_t begin = qn_ticks();
    do_together(team);
    qn_pace_note(&team->pace, job->kind, (double)(qn_ticks() - begin),
                 atomic_load_explicit(&team->n_disturbed, memory_order_relaxed) != disturbed);
}

/* ---- Ranges ---- */

/* For each thread its part in OWN pieces, of which the last ones are shared. */
enum { DIVIDE_OWN = 7, DIVIDE_SHARED = 1 };
_Static_assert((int)QN_TEAM_MAX <= (int)QN_TEAM_MAX_SHARED, "a shared piece for each thread fits");

struct division {
    size_t count, unit, n_pieces;
    qn_team_range_fn work;
    void *context;
};

static qn_team_pieces division_pieces(void *context, size_t phase, int n_threads)
{
    struct division *d = context;
    (void)phase;
    const size_t units = (d->count + d->unit - 1) / d->unit, n = (size_t)n_threads;
    const bool many = units >= n * (DIVIDE_OWN + DIVIDE_SHARED);
    const qn_team_pieces pieces = { .own = many ? DIVIDE_OWN : units / n,
                                    .shared = many ? n * DIVIDE_SHARED : units % n };
    d->n_pieces = n * pieces.own + pieces.shared;
    return pieces;
}

static void do_range(void *context, const qn_team_piece *piece)
{
    const struct division *d = context;
    size_t begin, end;
    qn_team_range(d->count, d->unit, piece->index, d->n_pieces, &begin, &end);
    d->work(d->context, begin, end, piece->thread);
}

void qn_team_divide(qn_team *team, size_t count, size_t unit, qn_team_range_fn work, void *context)
{
    struct division division = { .count = count, .unit = unit, .work = work, .context = context };
    const qn_team_job job = { .n_phases = 1, .pieces = division_pieces, .work = do_range, .context = &division };
    qn_team_do(team, &job);
}

void qn_team_range(size_t count, size_t unit, size_t part, size_t n_parts, size_t *begin, size_t *end)
{
    const size_t units = (count + unit - 1) / unit;
    const size_t first = units / n_parts * part + (units % n_parts < part ? units % n_parts : part);
    const size_t last = first + units / n_parts + (part < units % n_parts);
    *begin = first * unit < count ? first * unit : count;
    *end = last * unit < count ? last * unit : count;
}

/* ---- Creation ---- */

static qn_status start_threads(qn_team *team)
{
    for (int i = 0; i < team->n_threads; i++)
        team->members[i].team = team, team->members[i].index = i;
    for (int i = 1; i < team->n_threads; i++) {
        const int error = qn_thread_start(&team->members[i].thread, member_main, &team->members[i]);
        if (error)
            return qn_fail(QN_ERR_MEMORY, "threads: only %d of %d could be started: %s", i, team->n_threads,
                           strerror(error));
        team->n_started++;
    }
    return QN_OK;
}

qn_status qn_team_create(int n_threads, qn_team **out)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > QN_TEAM_MAX)
        return qn_fail(QN_ERR_INVALID, "threads: %d, expected 1 to %d", n_threads, QN_TEAM_MAX);
    qn_team *team;
    QN_TRY(qn_alloc(&team, 1, sizeof *team, "thread team"));
    team->n_threads = team->n_of_job = n_threads;
    atomic_init(&team->n_used, n_threads);
    team->spins = n_threads <= qn_cpu_threads() ? SPINS : 0;
    team->n_started = 1;
    qn_status status = qn_alloc(&team->members, (size_t)n_threads, sizeof *team->members, "thread team");
    if (status == QN_OK)
        status = start_threads(team);
    if (status != QN_OK) {
        qn_team_free(team);
        return status;
    }
    *out = team;
    return QN_OK;
}

void qn_team_free(qn_team *team)
{
    if (!team)
        return;
    atomic_store(&team->quit, true);
    eventcount_advance(&team->opened);
    eventcount_advance(&team->grown);
    for (int i = 1; i < team->n_started; i++)
        pthread_join(team->members[i].thread, NULL);
    qn_free(team->members);
    qn_free(team);
}

int qn_team_size(const qn_team *team)
{
    return team->n_threads;
}

void qn_team_adapt(qn_team *team)
{
    qn_pace_init(&team->pace, team->n_threads);
    team->adapts = true;
}
