/* Random bytes of the operating system. Any thread. */
#ifndef QN_BASE_RANDOM_H
#define QN_BASE_RANDOM_H

#include <stdbool.h>
#include <stddef.h>

/* qn_random_bytes - fills [n] bytes, at most 256, with random numbers fit for secrets. False if the system has none:
 * the bytes are then unspecified. */
bool qn_random_bytes(void *bytes, size_t n);

#endif
