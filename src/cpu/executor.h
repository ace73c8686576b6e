/* Executes a plan on the CPU. A step is a job of a thread team (base/team.h), in which operations that do not depend on
 * each other are a phase. An executor is used by one caller at a time; the engine holds the model's lock. cpu/device.h
 * adds sampling and the sessions' memory. */
#ifndef QN_CPU_EXECUTOR_H
#define QN_CPU_EXECUTOR_H

#include "cpu/operations.h"

/* qn_executor_create - creates an executor of one plan. Plan, kernels and team must outlive it; several executors may
 * share a team. QN_ERR_MEMORY. Free with qn_executor_free, which accepts NULL. */
qn_status qn_executor_create(qn_team *team, const qn_kernels *kernels, const qn_plan *plan, qn_executor **out);
void qn_executor_free(qn_executor *executor);

/* qn_executor_pack - qn_cpu_weights_pack for the plan's matrices whose rows begin at `data`, with the team. Call it
 * before the first qn_executor_reserve. */
qn_status qn_executor_pack(qn_executor *executor, const uint8_t *data, bool *packed);

/* qn_executor_reserve - allocates the workspace for steps of up to max_rows rows over sessions of up to max_positions
 * positions. Sizes only grow; a call that needs no growth costs nothing. After QN_ERR_MEMORY there is no workspace, so
 * the caller must reserve again before it runs a step. */
qn_status qn_executor_reserve(qn_executor *executor, size_t max_rows, size_t max_positions);

/* qn_executor_run - executes one step: stores the rows' keys and values in the caches, updates recurrent state, writes
 * step->logits. The reserved workspace must cover step->n_rows rows and every row's position + 1. `step` and its arrays
 * must not change meanwhile; they are not referenced afterwards. One caller at a time. */
void qn_executor_run(qn_executor *executor, const qn_step *step);

#endif
