/* Objects that a fork does not copy whole: their threads exist in the process that made them alone, a lock that another thread held
 * stays held in the child, and a GPU's context is not the child's. Such an object keeps its process, and each function that would
 * take its locks or wait for its threads compares first. That costs a system call, so it is done where a call begins, never for a
 * token. A process is told by its id: the library installs no handler in the program that uses it. */
#ifndef QN_BASE_PROCESS_H
#define QN_BASE_PROCESS_H

#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

/* qn_process_is - whether this is the process `maker`, a getpid() that the object keeps. */
bool qn_process_is(pid_t maker);

/* qn_process_check - QN_ERR_INVALID in another process than `maker`.
 *
 *   function   the public function that was called
 *   what       the object: "model" */
qn_status qn_process_check(pid_t maker, const char *function, const char *what);

#endif
