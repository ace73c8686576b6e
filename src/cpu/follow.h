/* Operations without a phase of their own. In a step of one row, phases take a few microseconds each, much of which is
 * the barrier between them. An operation that works on short parts of a row follows the one before it, in that one's
 * phase: whoever writes the last of the values that a part is computed from, computes the part.
 *
 * Counters say how many values of each part there are. What a thread wrote is visible to the one that comes last. The
 * bits are those of two phases: the same functions compute the same items. */
#ifndef QN_CPU_FOLLOW_H
#define QN_CPU_FOLLOW_H

#include "base/memory.h"
#include "cpu/operations.h"

/* qn_follow_can - returns whether operation i can follow operation i - 1, if both are alone in their phases. */
bool qn_follow_can(const qn_plan *plan, size_t i);

/* qn_follow_counters - returns the number of counters that any operation of a plan needs, each in QN_FOLLOW_STRIDE
 * entries of qn_executor.arrivals. */
size_t qn_follow_counters(const qn_plan *plan);
enum { QN_FOLLOW_STRIDE = QN_ALIGN / sizeof(atomic_uint) };

/* qn_follow_buffer - values [first, first + n) of a buffer have been written, all of them by this call's thread, and no
 * other call names them in this phase. Does what the operation that follows can do now; it overwrites the thread's
 * scratch. Nothing, if none follows. */
void qn_follow_buffer(const qn_executor *ex, int buffer, size_t first, size_t n, int thread);

/* qn_follow_acts - the same, of the values of which the operation that follows makes values [first, first + n) of its
 * activations. It is called `times` times for each value. */
void qn_follow_acts(const qn_executor *ex, size_t first, size_t n, size_t times, int thread);

#endif
