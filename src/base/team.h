/* A thread team: threads that do a job together. A job is a sequence of phases, a phase a number of pieces of work. Any
 * thread may do any piece; a phase ends when all of its pieces are done, and only then does the next one begin.
 *
 * No phase waits for a thread, only for pieces. A thread that the system does not run, because another process has its
 * processor, delays at most the piece that it is in, or the opening of the next phase; the others do the rest.
 *
 * A waiting thread spins for some microseconds, then sleeps in the kernel: wake-up is fast between the phases of a
 * token, and an idle team uses no CPU time. If the team has more threads than the machine, it does not spin, since that
 * would take CPU time from working threads.
 *
 * The threads block all signals but SIGBUS, so that the process handles signals on its own threads. A team belongs to
 * the process that created it (base/process.h). */
#ifndef QN_BASE_TEAM_H
#define QN_BASE_TEAM_H

#include "base/status.h"

#include <stddef.h>

typedef struct qn_team qn_team;

enum { QN_TEAM_MAX = 1024 };

/* Limits of qn_team_pieces. */
enum { QN_TEAM_MAX_OWN = 255, QN_TEAM_MAX_SHARED = 16383 };

/* The pieces of a phase: n_threads * own + shared. Thread t begins with pieces [t * own, (t + 1) * own), in ascending
 * order, so that it finds the same weights in its caches and the same pages near it in each step. Then the threads that
 * are free take the shared ones, in ascending order. At last they take what is left of other threads' own pieces. */
typedef struct qn_team_pieces {
    size_t own;    /* at most QN_TEAM_MAX_OWN */
    size_t shared; /* at most QN_TEAM_MAX_SHARED */
} qn_team_pieces;

/* A piece, and the thread that does it. */
typedef struct qn_team_piece {
    size_t phase, index;
    int thread;    /* 0 to qn_team_size - 1, also above n_threads: no other thread has this number at the same time */
    int n_threads; /* of which the phase's pieces are counted; the same for all phases of a job */
} qn_team_piece;

/* A job. Both functions are called by any thread of the team.
 *
 *   pieces    returns the pieces of a phase; called once for each, when all earlier phases have ended
 *   work      does one piece. Writes of earlier phases are visible to it. The text of an error (qn_fail) is that of the
 *             thread, not of the caller */
typedef struct qn_team_job {
    size_t n_phases;
    size_t kind; /* jobs of a kind have the same work, so that their times can be compared; 0: not compared */
    qn_team_pieces (*pieces)(void *context, size_t phase, int n_threads);
    void (*work)(void *context, const qn_team_piece *piece);
    void *context;
} qn_team_job;

/* qn_team_create - creates a team.
 *
 *   n_threads   1 to QN_TEAM_MAX, including the thread that calls qn_team_do: n_threads - 1 threads are started
 *   out         the team; free it with qn_team_free
 *
 * QN_ERR_INVALID   n_threads is outside its range
 * QN_ERR_MEMORY    not enough memory, or a thread cannot be started */
qn_status qn_team_create(int n_threads, qn_team **out);

/* qn_team_free - ends the threads, waits for them and frees the team. No job may be in progress. NULL is
 * allowed. */
void qn_team_free(qn_team *team);

/* qn_team_size - the number of threads. */
int qn_team_size(const qn_team *team);

/* qn_team_adapt - lets the team do jobs with fewer of its threads while that is faster (base/pace.h). Before its first
 * job. */
void qn_team_adapt(qn_team *team);

/* qn_team_do - does a job and returns when it is done. Thread 0 is the calling thread, which may be another one in each
 * call; its writes before the call are visible to all. Only one call at a time: the caller has a lock, or is the only
 * user. `pieces` and `work` must not call it. */
void qn_team_do(qn_team *team, const qn_team_job *job);

/* qn_team_divide - does the work of [0, count) in ranges, as a job of one phase.
 *
 *   unit      ranges begin at multiples of it
 *   work      called with disjoint ranges that are not empty and cover all items. `thread` is that of qn_team_piece
 *
 * Returns when all calls have returned. Only one call at a time, qn_team_do included. */
typedef void (*qn_team_range_fn)(void *context, size_t begin, size_t end, int thread);
void qn_team_divide(qn_team *team, size_t count, size_t unit, qn_team_range_fn work, void *context);

/* qn_team_range - divides [0, count) into parts: the contiguous range of one part.
 *
 *   count     number of items
 *   unit      ranges begin at multiples of it; their sizes differ by at most one unit
 *   part      0 to n_parts - 1
 *   n_parts   at least 1
 *   begin     the first item of the range
 *   end       the item after its last one; equal to begin for an empty range */
void qn_team_range(size_t count, size_t unit, size_t part, size_t n_parts, size_t *begin, size_t *end);

#endif
