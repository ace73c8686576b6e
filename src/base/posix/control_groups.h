/* The control groups of this process on Linux, of both versions. */
#ifndef QN_BASE_POSIX_CONTROL_GROUPS_H
#define QN_BASE_POSIX_CONTROL_GROUPS_H

#include <stdbool.h>

/* Limit of a path of a group. */
enum { QN_GROUP_PATH_BYTES = 4096 };

/* qn_visit_control_groups - calls visit for the process's group of a controller and for each group above it, whose
 * limits count too. Groups that are not mounted where they usually are, are not found.
 *
 *   root         before every path; "" for the system's
 *   controller   of version 1: "memory"; groups of version 2 have all controllers
 *   visit        folder: that of the group, below root; v2: the version, on which the names of its files depend */
void qn_visit_control_groups(const char *root, const char *controller,
                             void (*visit)(void *context, const char *folder, bool v2), void *context);

#endif
