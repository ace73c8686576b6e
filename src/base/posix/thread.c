/* Threads by POSIX; Linux also counts preemptions of a thread. */
#include "base/thread.h"

#include <sched.h>
#include <signal.h>
#include <sys/resource.h>

int qn_thread_start(pthread_t *thread, void *(*run)(void *context), void *context)
{
    sigset_t all, before;
    sigfillset(&all);
    /* SIGBUS belongs to the thread that reads a mapped file (base/mapping.h), which must be able to handle it */
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

void qn_thread_yield(void)
{
    sched_yield();
}

long qn_thread_preemptions(void)
{
#ifdef __linux__
    struct rusage usage;
    return getrusage(RUSAGE_THREAD, &usage) ? 0 : usage.ru_nivcsw;
#else
    return 0;
#endif
}
