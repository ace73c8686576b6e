/* Sockets: addresses as texts, and what started processes inherit. */
#include "helper_assert.h"

#include "base/socket.h"

#include <fcntl.h>
#include <net/if.h>

TEST(prints_the_interface_of_an_address)
{
    qn_address address;
    char text[QN_ADDRESS_TEXT_BYTES], name[IF_NAMESIZE], expected[QN_ADDRESS_TEXT_BYTES];
    assert_true(qn_address_read("fe80::1", true, &address));
    qn_address_print(&address, text);
    assert_string_equal(text, "fe80::1");
    if (!if_indextoname(1, name))
        skip();
    address.scope = 1;
    qn_address_print(&address, text);
    snprintf(expected, sizeof expected, "fe80::1%%%s", name);
    assert_string_equal(text, expected);
}

TEST(listens_without_being_inherited)
{
    qn_socket socket;
    qn_address address;
    uint16_t port;
    assert_int_equal(qn_socket_listen("127.0.0.1", 0, &socket, &address, &port), QN_OK);
    assert_int_not_equal(port, 0);
    assert_int_equal(address.scope, 0);
    assert_true(fcntl((int)socket, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl((int)socket, F_GETFL) & O_NONBLOCK);
    qn_socket_close(socket);
}
