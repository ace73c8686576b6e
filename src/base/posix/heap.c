/* The heap of glibc; other C libraries give memory back by themselves. */
#include "base/heap.h"

#include <stdlib.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

/* glibc maps blocks above a threshold, which go back to the system when freed. By default it raises the threshold with
 * the first of them, up to 32 MiB, and keeps free memory at the ends of its heaps. */
void qn_heap_keep_little(void)
{
#ifdef __GLIBC__
    enum { MAPPED = 256 << 10, KEPT = 4 << 20 };
    (void)mallopt(M_MMAP_THRESHOLD, MAPPED);
    (void)mallopt(M_TRIM_THRESHOLD, KEPT);
#endif
}

/* glibc keeps free memory between blocks and at the end of each thread's heap. malloc_trim returns the former; a
 * thread's own heap shrinks when the thread frees a block of more than 64 KiB. */
void qn_heap_return(void)
{
#ifdef __GLIBC__
    (void)malloc_trim(0);
    void *volatile block = malloc(128 << 10);
    free(block);
#endif
}
