/* The thread team: worker threads, a barrier that counts generations, and waits that spin before they sleep. */
#include "base/team.h"

#include "base/cpu.h"
#include "base/memory.h"
#include "base/wait_value.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* About 20 to 50 microseconds on current CPUs: longer than the load imbalance of any operation, shorter than a time
 * slice of the scheduler. */
enum { SPINS = 1500 };

/* A counter that threads wait on, and the number of threads that sleep until it changes. It has its own cache line, to
 * avoid false sharing with the spinning threads. */
struct eventcount {
    _Alignas(QN_ALIGN) atomic_uint value;
    atomic_uint waiters;
};

struct worker {
    struct qn_team *team;
    pthread_t thread;
    int index;
};

/* work and context are written by the caller of qn_team_run before `start` changes, and read by the workers after that;
 * n_threads, spins and workers are constant. */
struct qn_team {
    struct eventcount start; /* number of calls of qn_team_run */
    struct eventcount phase; /* number of barriers completed */
    _Alignas(QN_ALIGN) atomic_uint arrived;
    int n_threads, n_started, spins;
    bool quit;
    void (*work)(void *context, int thread);
    void *context;
    struct worker *workers;
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

static void eventcount_wait(struct eventcount *eventcount, unsigned seen, int spins)
{
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&eventcount->value, memory_order_acquire) != seen)
            return;
        spin_hint();
    }
    eventcount_sleep(eventcount, seen);
}

static void eventcount_advance(struct eventcount *eventcount)
{
    atomic_fetch_add(&eventcount->value, 1);
    if (atomic_load(&eventcount->waiters))
        qn_wake_value(&eventcount->value);
}

void qn_team_barrier(qn_team *team)
{
    if (team->n_threads == 1)
        return;
    const unsigned phase = atomic_load_explicit(&team->phase.value, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == (unsigned)team->n_threads) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        eventcount_advance(&team->phase);
    } else {
        eventcount_wait(&team->phase, phase, team->spins);
    }
}

static void *worker_main(void *argument)
{
    struct worker *worker = argument;
    qn_team *team = worker->team;
    for (unsigned runs = 0;; runs++) {
        eventcount_wait(&team->start, runs, team->spins);
        if (team->quit)
            return NULL;
        team->work(team->context, worker->index);
        qn_team_barrier(team);
    }
}

qn_status qn_team_create(int n_threads, qn_team **out)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > QN_TEAM_MAX)
        return qn_fail(QN_ERR_INVALID, "threads: %d, expected 1 to %d", n_threads, QN_TEAM_MAX);
    qn_team *team;
    QN_TRY(qn_alloc(&team, 1, sizeof *team, "thread team"));
    team->n_threads = n_threads;
    team->spins = n_threads <= qn_cpu_threads() ? SPINS : 0;
    team->n_started = 1;
    qn_status status = qn_alloc(&team->workers, (size_t)n_threads, sizeof *team->workers, "thread team");
    sigset_t all, before; /* the workers block all signals, so that the process handles them on its own threads */
    sigfillset(&all);
    /* SIGBUS belongs to the thread that reads a mapped file (base/mapping.h), which must be able to handle it */
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 1; i < n_threads && status == QN_OK; i++) {
        team->workers[i] = (struct worker){ .team = team, .index = i };
        const int error = pthread_create(&team->workers[i].thread, NULL, worker_main, &team->workers[i]);
        if (error)
            status =
                qn_fail(QN_ERR_MEMORY, "threads: only %d of %d could be started: %s", i, n_threads, strerror(error));
        else
            team->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
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
    team->quit = true;
    eventcount_advance(&team->start);
    for (int i = 1; i < team->n_started; i++)
        pthread_join(team->workers[i].thread, NULL);
    qn_free(team->workers);
    qn_free(team);
}

int qn_team_size(const qn_team *team)
{
    return team->n_threads;
}

void qn_team_run(qn_team *team, void (*work)(void *context, int thread), void *context)
{
    team->work = work;
    team->context = context;
    if (team->n_threads > 1)
        eventcount_advance(&team->start);
    work(context, 0);
    qn_team_barrier(team);
}

void qn_team_range(size_t count, size_t unit, int thread, int n_threads, size_t *begin, size_t *end)
{
    const size_t units = (count + unit - 1) / unit, n = (size_t)n_threads, t = (size_t)thread;
    const size_t first = units / n * t + (units % n < t ? units % n : t);
    const size_t last = first + units / n + (t < units % n);
    *begin = first * unit < count ? first * unit : count;
    *end = last * unit < count ? last * unit : count;
}
