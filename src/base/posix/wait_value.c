/* Waits by Linux's futex. Elsewhere a waiting thread gives its processor to others and looks again. */
#include "base/wait_value.h"

#ifdef __linux__
#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

void qn_wait_value(atomic_uint *value, unsigned seen)
{
    /* FUTEX_WAIT compares the value again before it sleeps */
    (void)syscall(SYS_futex, value, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

void qn_wake_value(atomic_uint *value)
{
    (void)syscall(SYS_futex, value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}
#else
#include <sched.h>

void qn_wait_value(atomic_uint *value, unsigned seen)
{
    (void)value;
    (void)seen;
    (void)sched_yield();
}

void qn_wake_value(atomic_uint *value)
{
    (void)value;
}
#endif
