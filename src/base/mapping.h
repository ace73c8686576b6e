/* Files mapped for reading. Reading beyond the end of a file that has become shorter, or a page that the disk cannot
 * read, raises SIGBUS. The library installs no handler. A program's handler may call qn_mapping_replace: the rest of
 * the mapping then reads as zeros, and code that computes with it must check qn_mapping_is_lost before using a
 * result. */
#ifndef QN_BASE_MAPPING_H
#define QN_BASE_MAPPING_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct qn_mapping qn_mapping;

/* qn_mapping_create - maps `size` bytes of an open file, privately and read-only.
 *
 *   path   for error texts
 *
 * QN_ERR_IO if it cannot be mapped. The descriptor may be closed afterwards. */
qn_status qn_mapping_create(const char *path, int fd, size_t size, qn_mapping **out);

/* qn_mapping_free - unmaps the file. No thread may be reading it. NULL is allowed. */
void qn_mapping_free(qn_mapping *mapping);

/* qn_mapping_data - the first byte of the file; valid until qn_mapping_free. */
const uint8_t *qn_mapping_data(const qn_mapping *mapping);

/* qn_mapping_is_lost - whether qn_mapping_replace has replaced a part, on any thread: data read since may be zeros. It
 * stays true. */
bool qn_mapping_is_lost(const qn_mapping *mapping);

/* qn_mapping_replace - for a handler of SIGBUS: if the address is in a mapping, replaces the mapping from that page
 * to its end by zeros, so that the read can be repeated. False if it is in none, or this fails: the signal has
 * another cause. Async-signal-safe; preserves errno. */
bool qn_mapping_replace(void *address);

/* qn_mapping_drop - tells the system that the whole pages of a range of a mapping will not be read again soon. */
void qn_mapping_drop(const void *begin, size_t bytes);

#endif
