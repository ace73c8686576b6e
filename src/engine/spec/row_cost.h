/* What the rows of a draft cost: tables of the measured times of steps by their number of rows, those of the model and
 * those that a drafter takes for its proposals (passes), and the number of drafted rows that gives most tokens a
 * second. */
#ifndef QN_ENGINE_SPEC_ROW_COST_H
#define QN_ENGINE_SPEC_ROW_COST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows of the longest step that is measured, and passes for one step. */
enum { QN_COST_ROWS = 160, QN_COST_PASSES = 16 };

/* Drafted rows are expected to divide the rate of tokens of each sequence of a step by at most this, so that a sequence
 * without proposals does not wait for those of others. */
#define QN_COST_SLOWER 1.25

/* Zero except `first` and `unit`: nothing was measured. */
typedef struct qn_row_costs {
    double first; /* time of one more row before it was measured, relative to a step of one */
    double unit;  /* of passes: time of one of one row before any was measured, relative to a step of the model */
    uint64_t n_steps;
    struct {
        double seconds;
        uint64_t step;  /* when it was measured last; 0: never */
        uint32_t lasts; /* steps after which it is not used */
    } of[QN_COST_ROWS + 1];
} qn_row_costs;

/* qn_row_costs_add - adds the time of a step of n > 0 rows that decodes, without rows of prompts. */
void qn_row_costs_add(qn_row_costs *costs, size_t n, double seconds);

/* qn_row_costs_is_known - returns true if the time of a step of n rows was measured lately; qn_row_costs_are_known, of
 * any step. */
bool qn_row_costs_is_known(const qn_row_costs *costs, size_t n);
bool qn_row_costs_are_known(const qn_row_costs *costs);

/* qn_row_costs_seconds - returns the expected time of a step of n > 0 rows. A number that was not measured is expected
 * to take less than the measured ones around it suggest, and beyond them no more than `first` for each row, so that it
 * is tried. Without measurements the unit is the time of a step of one row. */
double qn_row_costs_seconds(const qn_row_costs *costs, size_t n);

/* qn_row_costs_pass_seconds - returns the expected time of a pass of n rows; 0 for none. Before one was measured it is
 * passes->unit steps of one row for each of the same ratio. */
double qn_row_costs_pass_seconds(const qn_row_costs *costs, const qn_row_costs *passes, size_t n);

/* A sequence that may have drafted rows. */
typedef struct qn_row_offer {
    const float *chances; /* [n] that each token is accepted if all before it are */
    size_t n;
    bool is_passed;  /* each token takes a row of a pass, which offers of a step share */
    size_t block;    /* if it is not 0, all tokens take one pass, with this many rows */
    size_t chosen;   /* written by qn_row_costs_choose */
    double expected; /* tokens of the step; used by qn_row_costs_choose */
} qn_row_offer;

/* qn_row_costs_choose - chooses how many tokens of each offer to draft, such that the step gives most tokens a second,
 * and each of its sequences at least 1 / QN_COST_SLOWER of what it has without drafts. Where none pay, a single row is
 * tried now and then if its time was not measured.
 *
 *   n_rows   rows of the step without drafts, each of which gives a token
 *   offers   [n] of the sequences of these rows; sequences that are left out offer nothing
 *   passes   their costs; NULL if no offer is passed
 *   most     drafted rows in all
 *
 * Returns the number of drafted rows: 0 if none pay, and if the time of a step without drafts is to be measured. */
size_t qn_row_costs_choose(const qn_row_costs *costs, const qn_row_costs *passes, size_t n_rows, qn_row_offer *offers,
                           size_t n, size_t most);

/* qn_row_costs_gain - returns the tokens a second that are expected of a step with the tokens that were chosen,
 * relative to one without drafts, less 1. with_passed: false leaves out those of offers that are passed. Other
 * parameters are those of qn_row_costs_choose. */
double qn_row_costs_gain(const qn_row_costs *costs, const qn_row_costs *passes, size_t n_rows,
                         const qn_row_offer *offers, size_t n, bool with_passed);

#endif
