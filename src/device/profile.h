/* Where the time of a device's steps goes, by operation. */
#ifndef QN_DEVICE_PROFILE_H
#define QN_DEVICE_PROFILE_H

#include "base/status.h"

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

#endif
