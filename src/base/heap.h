/* How the C library's heap gives memory back to the system, for programs that run for weeks. */
#ifndef QN_BASE_HEAP_H
#define QN_BASE_HEAP_H

/* qn_heap_keep_little - from now on large blocks go back to the system when they are freed. Call it before threads are
 * started. */
void qn_heap_keep_little(void);

/* qn_heap_return - gives free memory back to the system. Any thread. */
void qn_heap_return(void);

#endif
