/* Running a plan on the CPU: a fixed team of threads walks the operations, each doing its share, and meets after each. */
#ifndef QN_DEVICE_CPU_EXECUTOR_H
#define QN_DEVICE_CPU_EXECUTOR_H

#include "base/team.h"
#include "device/plan.h"
#include "kernels/kernels.h"

typedef struct qn_executor qn_executor;

/* qn_executor_create - for one plan, which must outlive it, on a team that several may share. */
qn_status qn_executor_create(qn_team *team, const qn_kernels *kernels, const qn_plan *plan, qn_executor **out);
void qn_executor_free(qn_executor *executor);

/* qn_executor_run - one step: the cache gains the rows' keys and values, step->logits the logits asked for. The plan is
 * reserved for at least step->n_rows rows and every row's position + 1. One caller at a time. */
void qn_executor_run(qn_executor *executor, const qn_step *step);

#endif
