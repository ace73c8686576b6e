/* The server's clocks. Any thread. */
#ifndef QN_HTTP_CLOCK_H
#define QN_HTTP_CLOCK_H

#include <time.h>

static inline double qn_clock_read(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* qn_now - seconds of a clock that never goes back. */
static inline double qn_now(void)
{
    return qn_clock_read(CLOCK_MONOTONIC);
}

/* qn_time - seconds since 1970. */
static inline double qn_time(void)
{
    return qn_clock_read(CLOCK_REALTIME);
}

#endif
