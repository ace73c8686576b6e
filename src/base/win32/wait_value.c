/* Waits by WaitOnAddress. */
#include "base/wait_value.h"

#include <windows.h>

void qn_wait_value(atomic_uint *value, unsigned seen)
{
    WaitOnAddress((volatile void *)value, &seen, sizeof seen, INFINITE);
}

void qn_wake_value(atomic_uint *value)
{
    WakeByAddressAll((void *)value);
}
