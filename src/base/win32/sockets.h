/* The headers of Windows' sockets, in the order that they need, and what base/address.c needs of a system. For this
 * folder and that file alone. */
#ifndef QN_BASE_WIN32_SOCKETS_H
#define QN_BASE_WIN32_SOCKETS_H

#include "base/append.h"

#include <stdint.h>
#include <winsock2.h>
/* after winsock2.h, whose types it needs */
#include <ws2tcpip.h>

/* qn_sockets_start - make the functions of sockets usable. Any thread. */
void qn_sockets_start(void);

/* qn_sockets_print_interface - appends a '%' and an interface, by its number as everywhere in Windows. */
static inline void qn_sockets_print_interface(qn_text_buffer *to, uint32_t number)
{
    qn_append(to, "%%%u", (unsigned)number);
}

#endif
