/* What is measured of a model's drafts: times of steps by rows, and how many drafted tokens were accepted. The model
 * keeps it between calls of qn_generate and schedulers, each of which works on a copy. */
#ifndef QN_ENGINE_SPEC_DRAFTING_H
#define QN_ENGINE_SPEC_DRAFTING_H

#include "base/status.h"
#include "engine/spec/draft_plan.h"
#include "engine/spec/head_use.h"
#include "engine/spec/row_cost.h"
#include "quern/quern.h"

#include <pthread.h>
#include <stdbool.h>

/* Time of one more row, relative to a step of one row, before it was measured. */
#define QN_CPU_ROW_COST 0.5
#define QN_GPU_ROW_COST 0.1

typedef struct qn_drafting {
    pthread_mutex_t lock;                                /* of the model's; not used in a copy */
    qn_row_costs costs, passes;                          /* passes: of the draft head */
    uint64_t n_drafts, n_of_head, n_drafted, n_accepted; /* since the model was loaded, or were last checked */
    uint64_t added_drafts, added_of_head, added_drafted, added_accepted; /* of these, not yet in the model's */
    uint64_t n_loaded, n_loaded_passes; /* n_steps of the model's tables when they were copied */
    bool was_checked;                   /* the counts began anew in the copy */
    bool has_warned;
    bool has_drafter; /* of the model's, constant: the draft head is of a drafter's file, not the model's own */
    /* Of these the copy that is stored last remains. */
    qn_draft_record record; /* of a draft model's */
    qn_head_use head;
    qn_acceptances acceptances;
} qn_drafting;

/* qn_drafting_create - creates a model's data. row_cost: time of one more row before it was measured. pass_cost: time
 * of a pass of the draft head before it was measured, relative to a step of one row; 0 without one. Free with
 * qn_drafting_free; NULL is allowed. */
qn_status qn_drafting_create(double row_cost, double pass_cost, qn_drafting **out);
void qn_drafting_free(qn_drafting *drafting);

/* qn_drafting_load - copies the model's data. qn_drafting_store - once, adds what the copy
 * has counted and measured since: other copies of the same time may have been added meanwhile. Any thread. */
void qn_drafting_load(qn_drafting *model, qn_drafting *copy);
void qn_drafting_store(const qn_drafting *copy, qn_drafting *model);

/* qn_drafting_head_rests - returns true if steps leave out the pairs of a model's draft head (head_use.h). Any thread.
 */
bool qn_drafting_head_rests(qn_drafting *model);

/* qn_drafting_count - counts a draft of n tokens; is_of_head: by the model's draft head. Returns true when less than 5%
 * of the tokens of 200 drafts or more were accepted, until that was logged. */
bool qn_drafting_count(qn_drafting *drafting, bool is_of_head, size_t n, size_t n_accepted);

/* qn_drafting_log - logs that hardly any drafted token was accepted, unless another copy of the model's did. */
void qn_drafting_log(qn_drafting *copy, qn_drafting *model, qn_log_fn on_log, void *user);

#endif
