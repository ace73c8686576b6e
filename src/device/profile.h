/* Where the time of a device's steps goes, by operation. */
#ifndef QN_DEVICE_PROFILE_H
#define QN_DEVICE_PROFILE_H

#include "plan/plan.h"

#include <stddef.h>

enum { QN_PROFILE_LINES = 40, QN_PROFILE_NAME = 72 };

/* Times in seconds. `seconds` of all lines add up to those of the profile. */
typedef struct qn_profile_line {
    char name[QN_PROFILE_NAME]; /* "matmul q1_0 4096 x 6144" (columns x rows of all matrices), "norm", "sampling" */
    double seconds;             /* from the start of its phases to the start of the next; shared phases by busy time */
    double busy;                /* sum over the threads: in the operation */
    double available;           /* sum over the threads: in its phases, computing or waiting */
} qn_profile_line;

typedef struct qn_profile {
    double seconds; /* that the profile was on */
    double outside; /* of these, outside of the device's steps */
    size_t n_steps, n_lines;
    qn_profile_line lines[QN_PROFILE_LINES]; /* in the order of a step */
} qn_profile;

/* qn_profile_find_line - returns the line of an operation of the plan, adding it to the report if it is new; the last
 * one, "others", where there is no space for it. op plan->n_ops is sampling. */
qn_profile_line *qn_profile_find_line(qn_profile *report, const qn_plan *plan, size_t op);

#endif
