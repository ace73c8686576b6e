/* The phases of a step on the CPU (base/team.h): operations that do not depend on each other are one phase, whose works
 * are divided into pieces for the threads. */
#ifndef QN_CPU_PHASES_H
#define QN_CPU_PHASES_H

#include "cpu/operations.h"

/* qn_phases_create - finds the phases of the executor's plan. QN_ERR_MEMORY. Free with qn_phases_free, also after an
 * error. */
qn_status qn_phases_create(qn_executor *executor);
void qn_phases_free(qn_executor *executor);

/* qn_phases_open, qn_phases_work - the functions of qn_team_job, for the executor's step; the context is the
 * executor. */
qn_team_pieces qn_phases_open(void *executor, size_t phase, int n_threads);
void qn_phases_work(void *executor, const qn_team_piece *piece);

#endif
