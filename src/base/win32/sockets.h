/* The headers of Windows' sockets, in the order that they need. For the files of this folder alone. */
#ifndef QN_BASE_WIN32_SOCKETS_H
#define QN_BASE_WIN32_SOCKETS_H

#include <winsock2.h>
/* after winsock2.h, whose types it needs */
#include <ws2tcpip.h>

/* qn_sockets_start - make the functions of sockets usable. Any thread. */
void qn_sockets_start(void);

#endif
