/* Sleeping until a number changes: Linux's futex. The thread that changes the number calls qn_wake_value afterwards. */
#ifndef QN_BASE_WAIT_VALUE_H
#define QN_BASE_WAIT_VALUE_H

#include <stdatomic.h>

/* qn_wait_value - sleeps if the value is still `seen`, until qn_wake_value is called for it. A change before the thread
 * sleeps is not missed. It may return at any time: the caller reads the value again. */
void qn_wait_value(atomic_uint *value, unsigned seen);

/* qn_wake_value - wakes all threads that sleep until the value changes. */
void qn_wake_value(atomic_uint *value);

#endif
