/* The heap of Windows, which gives large blocks back by itself. */
#include "base/heap.h"

#include <windows.h>

void qn_heap_keep_little(void)
{
}

void qn_heap_return(void)
{
    (void)HeapCompact(GetProcessHeap(), 0);
}
