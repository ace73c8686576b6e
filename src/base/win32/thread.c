/* Threads of winpthreads. Windows sends no signals to threads, and does not count preemptions of one. */
#include "base/thread.h"

#include <windows.h>

int qn_thread_start(pthread_t *thread, void *(*run)(void *context), void *context)
{
    return pthread_create(thread, NULL, run, context);
}

void qn_thread_yield(void)
{
    SwitchToThread();
}

long qn_thread_preemptions(void)
{
    return 0;
}
