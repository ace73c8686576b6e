/* What a poller reports of sockets, and when. */
#include "helper_assert.h"

#include "base/poller.h"

#include <pthread.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 8, LATE = 10000 /* milliseconds, where something must come */, SOON = 20 };

static qn_poller *poller;
static int pair[2]; /* the poller has the first */
static qn_poller_event events[MOST];
static bool is_woken;

static void begin(void *data)
{
    assert_int_equal(qn_poller_create(&poller), QN_OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    assert_true(qn_poller_add(poller, pair[0], data));
}

static void end(void)
{
    qn_poller_remove(poller, pair[0]);
    close(pair[0]);
    close(pair[1]);
    qn_poller_free(poller);
}

static size_t wait_for(int milliseconds)
{
    return qn_poller_wait(poller, milliseconds, NULL, events, MOST, &is_woken);
}

static void say(const char *text)
{
    assert_int_equal(write(pair[1], text, strlen(text)), (ssize_t)strlen(text));
}

TEST(bytes_are_reported_once)
{
    int data;
    char text[8];
    begin(&data);
    assert_int_equal(wait_for(SOON), 0);
    for (int i = 0; i < 3; i++) { /* not read: each arrival is news */
        say("ab");
        assert_int_equal(wait_for(LATE), 1);
        assert_ptr_equal(events[0].data, &data);
        assert_false(events[0].has_ended);
        assert_int_equal(wait_for(SOON), 0);
    }
    assert_int_equal(qn_socket_peek(pair[0], text, sizeof text), 6);
    assert_int_equal(qn_socket_receive(pair[0], text, sizeof text), 6);
    assert_int_equal(qn_socket_peek(pair[0], text, sizeof text), -1);
    say("ab");
    assert_int_equal(wait_for(LATE), 1);
    end();
}

TEST(an_end_is_reported)
{
    int data;
    char byte;
    begin(&data);
    say("a");
    shutdown(pair[1], SHUT_WR);
    assert_int_equal(wait_for(LATE), 1);
    assert_true(events[0].has_ended);
    assert_int_equal(wait_for(SOON), 0);
    assert_int_equal(qn_socket_receive(pair[0], &byte, 1), 1);
    assert_int_equal(qn_socket_receive(pair[0], &byte, 1), 0);
    end();
}

TEST(without_data_a_socket_ends_each_wait)
{
    begin(NULL);
    say("a");
    for (int i = 0; i < 3; i++)
        assert_int_equal(wait_for(-1), 0);
    end();
}

static void *wake(void *unused)
{
    usleep(1000 * SOON);
    qn_poller_wake(poller);
    return unused;
}

TEST(a_wake_ends_one_wait)
{
    int data;
    pthread_t thread;
    begin(&data);
    assert_int_equal(pthread_create(&thread, NULL, wake, NULL), 0);
    assert_int_equal(wait_for(-1), 0);
    assert_true(is_woken);
    pthread_join(thread, NULL);
    qn_poller_wake(poller); /* before the wait, twice */
    qn_poller_wake(poller);
    say("a");
    assert_int_equal(wait_for(-1), 1);
    assert_true(is_woken);
    assert_int_equal(wait_for(SOON), 0);
    assert_false(is_woken);
    end();
}

TEST(sets_are_waited_for)
{
    int data, other[2];
    fd_set reads, writes;
    begin(&data);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, other), 0);
    const qn_poller_sets sets = { .read = &reads, .write = &writes, .highest = other[1] };
    for (int i = 0; i < 3; i++) { /* nothing; a socket that is writable; news of the poller's own */
        FD_ZERO(&reads);
        FD_ZERO(&writes);
        FD_SET(other[0], &reads);
        if (i == 1)
            FD_SET(other[1], &writes);
        if (i == 2)
            say("a");
        const size_t n = qn_poller_wait(poller, i ? LATE : SOON, &sets, events, MOST, &is_woken);
        assert_int_equal(n, i == 2);
        assert_false(FD_ISSET(other[0], &reads));
        assert_int_equal(FD_ISSET(other[1], &writes) != 0, i == 1);
    }
    assert_int_equal(write(other[1], "a", 1), 1);
    FD_SET(other[0], &reads);
    FD_ZERO(&writes);
    qn_poller_wake(poller);
    assert_int_equal(qn_poller_wait(poller, LATE, &sets, events, MOST, &is_woken), 0);
    assert_true(is_woken);
    assert_true(FD_ISSET(other[0], &reads));
    close(other[0]);
    close(other[1]);
    end();
}
