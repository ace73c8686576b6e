/* What threads ask of the system beyond POSIX threads, which every system has (Windows by winpthreads). Any thread may
 * call these functions. */
#ifndef QN_BASE_THREAD_H
#define QN_BASE_THREAD_H

#include <pthread.h>

/* qn_thread_start - starts a thread that handles no signals of the process, only those of its own faults: a signal
 * goes to a thread of the program. Returns 0, or the error number of pthread_create. */
int qn_thread_start(pthread_t *thread, void *(*run)(void *context), void *context);

/* qn_thread_yield - lets other threads run that want this processor. */
void qn_thread_yield(void);

/* qn_thread_preemptions - returns how often the system has taken the processor away from the calling thread; 0 if the
 * system does not count that. */
long qn_thread_preemptions(void);

#endif
