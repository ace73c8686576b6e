/* Whether the model's draft head is in use for requests that leave the choice of a drafter to the library. While it is,
 * each step of the model computes the head's keys and values of its rows (the pairs of plan/plan.h), drafted or not.
 * Where that costs more than the head's drafts gain, it rests: steps leave the pairs out, and nothing is drafted by the
 * head. It is tried again later. Positions without pairs hold zeros, so drafts after them are worse for a while. */
#ifndef QN_ENGINE_SPEC_HEAD_USE_H
#define QN_ENGINE_SPEC_HEAD_USE_H

#include <stdbool.h>
#include <stdint.h>

/* Zero except `share` and `is_asked`: nothing was weighed. */
typedef struct qn_head_use {
    double share;  /* of the pairs' weights in those of a draft step */
    bool is_asked; /* the model was loaded with this drafter: it never rests */
    bool rests;
    double gained;    /* of the steps of this trial, less the cost of pairs, each relative to a step without drafts */
    uint32_t n_steps; /* of this trial, or of this rest */
    uint32_t rest;    /* steps of the last rest; 0: the last trial paid */
} qn_head_use;

/* Steps of a trial, of the first rest and of the longest one. */
enum { QN_HEAD_TRIAL = 64, QN_HEAD_FIRST_REST = 1024, QN_HEAD_LAST_REST = 65536 };

/* qn_head_use_add - adds a step that decodes and may have drafts of the head. Trials follow each other while their
 * drafts are expected to gain more than the pairs cost; else the head rests, twice as long after each trial in vain.
 *
 *   gain   tokens a second that are expected of the step, relative to those without drafts, less 1; 0 without drafts of
 *          the head
 *   cost   time of the step's pairs, relative to it */
void qn_head_use_add(qn_head_use *use, double gain, double cost);

#endif
