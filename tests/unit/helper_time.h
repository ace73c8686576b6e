/* The time that tests measure to bound a cost. */
#ifndef QN_TESTS_HELPER_TIME_H
#define QN_TESTS_HELPER_TIME_H

#include <time.h>

/* The CPU time of this thread, which other processes barely affect. */
static inline double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
