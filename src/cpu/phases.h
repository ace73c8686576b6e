/* The phases of a step on the CPU (base/team.h): operations that do not depend on each other are one phase, whose works
 * are divided into pieces for the threads. */
#ifndef QN_CPU_PHASES_H
#define QN_CPU_PHASES_H

#include "cpu/operations.h"

/* qn_phases_create - finds the phases of the executor's plan. QN_ERR_MEMORY. Free with qn_phases_free, also after an
 * error. */
qn_status qn_phases_create(qn_executor *executor);
void qn_phases_free(qn_executor *executor);

/* qn_guided_piece - finds piece `index` of work that is spread as QN_SPREAD_GUIDED. Pieces are as large as leaves one
 * for each thread, at most `together` items: threads that are slow, or interrupted, take fewer, and all end within the
 * time of one of the last ones, which are single items.
 *
 *   range   its items; NULL for the number of pieces alone
 *
 * Returns the number of pieces. */
size_t qn_guided_piece(const qn_cpu_work *work, size_t n_threads, size_t index, qn_cpu_range *range);

/* qn_phases_open, qn_phases_work - the functions of qn_team_job, for the executor's step; the context is the
 * executor. */
qn_team_pieces qn_phases_open(void *executor, size_t phase, int n_threads);
void qn_phases_work(void *executor, const qn_team_piece *piece);

#endif
