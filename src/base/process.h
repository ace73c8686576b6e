/* Detects use after a fork of objects that a fork does not copy: their threads exist only in the process that made
 * them, a lock held by another thread stays held in the child, and a GPU's context is not valid in the child. Such
 * an object stores its process, and each function that takes its locks or waits for its threads checks it first. The
 * check costs a system call, so it is done at the beginning of a call, never for each token. A process is identified
 * by its id: the library installs no fork handler. */
#ifndef QN_BASE_PROCESS_H
#define QN_BASE_PROCESS_H

#include "base/status.h"

#include <stdbool.h>
#include <sys/types.h>

/* qn_process_is - whether this is the process `maker`, the getpid() that the object stores. */
bool qn_process_is(pid_t maker);

/* qn_process_check - QN_ERR_INVALID in any process other than `maker`.
 *
 *   function   the public function that was called
 *   what       the object: "model" */
qn_status qn_process_check(pid_t maker, const char *function, const char *what);

#endif
