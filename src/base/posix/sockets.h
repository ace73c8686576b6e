/* The headers of addresses, and what base/address.c needs of a system. */
#ifndef QN_BASE_POSIX_SOCKETS_H
#define QN_BASE_POSIX_SOCKETS_H

#include "base/append.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

/* qn_sockets_start - sockets are usable from the beginning. */
static inline void qn_sockets_start(void)
{
}

/* qn_sockets_print_interface - appends a '%' and the name of an interface, nothing if there is none of that number. */
static inline void qn_sockets_print_interface(qn_text_buffer *to, uint32_t number)
{
    char name[IF_NAMESIZE];
    if (if_indextoname(number, name))
        qn_append(to, "%%%s", name);
}

#endif
