/* Address space that is reserved first and backed by memory later, piece by piece; and advice about memory. Any thread;
 * one thread at a time for a granule. */
#ifndef QN_BASE_ADDRESS_SPACE_H
#define QN_BASE_ADDRESS_SPACE_H

#include "base/status.h"

#include <stddef.h>

/* Unit of commit, in bytes: the size of a huge page on x86-64 and most of aarch64. */
enum { QN_COMMIT_GRANULE = 2 << 20 };

/* qn_address_space_reserve - reserves `bytes` of addresses, a multiple of QN_COMMIT_GRANULE and aligned to it. They
 * cannot be accessed and do not count as memory. Free them with qn_address_space_free. */
qn_status qn_address_space_reserve(size_t bytes, void **address);
void qn_address_space_free(void *address, size_t bytes);

/* qn_address_space_commit - makes a granule accessible. It reads as zeros, and pages become resident when they are
 * first written. QN_ERR_MEMORY if the system refuses. */
qn_status qn_address_space_commit(void *granule);

/* qn_address_space_release - returns a granule's memory to the system and makes it inaccessible. */
void qn_address_space_release(void *granule);

/* qn_advise_huge - advises huge pages for memory that is read sequentially, for fewer TLB misses. Call it before the
 * memory is first written. It has no effect if the system has no huge pages. */
void qn_advise_huge(void *memory, size_t bytes);

/* qn_advise_small - advises small pages, for memory of which little is used. */
void qn_advise_small(void *memory, size_t bytes);

/* qn_page_bytes - the size of the system's small pages. */
size_t qn_page_bytes(void);

#endif
