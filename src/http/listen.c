/* The listening socket and its name in a URL. */
#include "http/listen.h"

#include <stdio.h>
#include <string.h>

qn_status qn_listen(const char *host, uint16_t port, qn_listener *out)
{
    char text[QN_ADDRESS_TEXT_BYTES];
    const bool is_localhost = !strcmp(host, "localhost");
    const qn_status status =
        qn_socket_listen(is_localhost ? "127.0.0.1" : host, port, &out->socket, &out->address, &port);
    if (status)
        return status;
    qn_address_print(&out->address, text);
    snprintf(out->authority, sizeof out->authority, out->address.is_ipv6 ? "[%s]:%u" : "%s:%u", text, (unsigned)port);
    return QN_OK;
}
