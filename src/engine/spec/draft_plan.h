/* Whether steps of a draft model pay, and how many: each proposes one more token of every sequence, before the step
 * that verifies them. Times are measured (row_cost.h). What was gained and lost by a draft model is added up, so that
 * one that does not pay is not used for long. */
#ifndef QN_ENGINE_SPEC_DRAFT_PLAN_H
#define QN_ENGINE_SPEC_DRAFT_PLAN_H

#include "engine/spec/drafter.h"
#include "engine/spec/row_cost.h"

/* What is known of a draft model besides the times of its steps. Zero: nothing. */
typedef struct qn_draft_record {
    float chances[QN_DRAFT_CLASSES - QN_DRAFT_MODEL_CLASS]; /* that a token of a class is accepted */
    float chance;           /* that any token is, if all before it are; 0: the members before are not set */
    double row_seconds;     /* of one row in a step of many; 0: not measured */
    double gained, elapsed; /* seconds: saved by drafts, less their cost; of all steps */
} qn_draft_record;

/* qn_draft_record_begin - Sets what is expected before anything was measured. */
void qn_draft_record_begin(qn_draft_record *record);

/* qn_draft_class - Returns the class of a token that a draft model finds likely by `chance`. */
uint8_t qn_draft_class(float chance);

/* qn_draft_record_allows - Returns true if `seconds` may be spent, which may be in vain: losses are limited to 1% of
 * the time of all steps, after a first credit.
 *
 *   step   seconds of a step without drafts */
bool qn_draft_record_allows(const qn_draft_record *record, double seconds, double step);

/* qn_draft_record_add - Adds a step and the draft model's steps before it.
 *
 *   seconds   that they took
 *   gained    what they saved or, if negative, lost, in seconds of steps without drafts
 *   step      as in qn_draft_record_allows */
void qn_draft_record_add(qn_draft_record *record, double seconds, double gained, double step);

/* The steps of a draft model that may come before a step. */
typedef struct qn_draft_case {
    const qn_row_costs *costs;       /* of the model */
    const qn_row_costs *draft_costs; /* of the draft model */
    double guess;                    /* time of a step of the draft model of one row, while no time is known */
    size_t n_rows;     /* of the model's step without drafts, each of which gives a token; its time is known */
    size_t n;          /* of their sequences, those that may have drafts, at least 1 */
    size_t first_rows; /* of the draft model's first step */
    float chance;      /* that a proposed token is accepted if all before it are */
    size_t most;       /* tokens of a draft */
} qn_draft_case;

typedef struct qn_draft_plan {
    size_t depth;    /* steps of the draft model that give most tokens a second; 0: none pay */
    double rate;     /* tokens a second with them */
    double row_cost; /* seconds of one drafted row in the model's step */
} qn_draft_plan;

/* qn_draft_plan_find - Finds how many steps pay. As qn_row_costs_choose, it slows no sequence by more than
 * QN_COST_SLOWER. */
qn_draft_plan qn_draft_plan_find(const qn_draft_case *c);

/* qn_draft_seconds - Returns the expected time of a step of the draft model of n > 0 rows. */
double qn_draft_seconds(const qn_draft_case *c, size_t n);

/* qn_draft_plan_continues - Returns true if another step for n sequences is worth the time of one of them.
 *
 *   reached   chance that all tokens of its draft up to now are accepted */
bool qn_draft_plan_continues(const qn_draft_case *c, const qn_draft_plan *plan, size_t n, float reached);

#endif
