/* Locks of bytes, which need not exist. For files in folders win32/ alone. */
#ifndef QN_BASE_WIN32_LOCK_H
#define QN_BASE_WIN32_LOCK_H

#include <stdbool.h>
#include <stdint.h>

/* qn_lock_byte - locks a byte of an open file until it is closed: no other descriptor can read or write it. False if
 * another one has locked it; true on a file system without locks. */
bool qn_lock_byte(int fd, uint64_t offset);

#endif
