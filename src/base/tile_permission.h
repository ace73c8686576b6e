/* Permission to use the tile registers of matrix units, 8 KiB that the kernel saves for each thread: it must be
 * requested. */
#ifndef QN_BASE_TILE_PERMISSION_H
#define QN_BASE_TILE_PERMISSION_H

#include <stdbool.h>

/* qn_request_tiles - requests the permission for all threads of the process, which may have it already. Returns whether
 * it has it: not if the kernel does not support the registers, forbids them, or a thread has a signal stack that is too
 * small for them. Any thread may call it. */
bool qn_request_tiles(void);

#endif
