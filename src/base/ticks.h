/* A counter that is read in a few nanoseconds, for intervals that need not be exact. */
#ifndef QN_BASE_TICKS_H
#define QN_BASE_TICKS_H

#include "base/cpu.h"

#include <stdint.h>

#if !QN_X86 && !QN_ARM64
#include <time.h>
#endif

/* qn_ticks - returns a counter that grows at a constant rate. */
static inline uint64_t qn_ticks(void)
{
#if QN_X86
    return __builtin_ia32_rdtsc();
#elif QN_ARM64
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
#endif
}

/* qn_ticks_per_ms - returns about how many ticks a millisecond has. x86 does not tell: its counters run at 2 to 5
 * ticks per nanosecond, so that the result is a millisecond to within a factor of two. */
static inline uint64_t qn_ticks_per_ms(void)
{
#if QN_X86
    return 3000000;
#elif QN_ARM64
    uint64_t per_second;
    __asm__ volatile("mrs %0, cntfrq_el0" : "=r"(per_second));
    return per_second / 1000;
#else
    return 1000000;
#endif
}

#endif
