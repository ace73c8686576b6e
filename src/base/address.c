/* Addresses of sockets. Systems have the same functions for them, in headers of their own. */
#include "base/socket.h"

#include "base/append.h"

#include QN_SOCKETS_HEADER /* base/posix/sockets.h or base/win32/sockets.h */

#include <string.h>

bool qn_address_read(const char *text, bool is_ipv6, qn_address *out)
{
    qn_sockets_start();
    *out = (qn_address){ .is_ipv6 = is_ipv6 };
    return inet_pton(is_ipv6 ? AF_INET6 : AF_INET, text, out->bytes) == 1;
}

bool qn_address_from(const struct sockaddr *system, qn_address *out)
{
    struct sockaddr_in ipv4;
    struct sockaddr_in6 ipv6;
    *out = (qn_address){ .is_ipv6 = system->sa_family == AF_INET6 };
    if (system->sa_family == AF_INET) {
        memcpy(&ipv4, system, sizeof ipv4);
        memcpy(out->bytes, &ipv4.sin_addr, sizeof ipv4.sin_addr);
    } else if (system->sa_family == AF_INET6) {
        memcpy(&ipv6, system, sizeof ipv6);
        memcpy(out->bytes, &ipv6.sin6_addr, sizeof ipv6.sin6_addr);
    } else {
        return false;
    }
    return true;
}

void qn_address_print(const qn_address *address, char text[QN_ADDRESS_TEXT_BYTES])
{
    inet_ntop(address->is_ipv6 ? AF_INET6 : AF_INET, address->bytes, text, QN_ADDRESS_TEXT_BYTES);
    qn_text_buffer after = qn_append_after(text, QN_ADDRESS_TEXT_BYTES);
    if (address->scope)
        qn_sockets_print_interface(&after, address->scope);
}
