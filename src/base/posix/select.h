/* select() with one more descriptor, for base/poller.h where it waits for sets of sockets, too. */
#ifndef QN_BASE_POSIX_SELECT_H
#define QN_BASE_POSIX_SELECT_H

#include "base/poller.h"

#include <sys/select.h>

/* Waits for the sets and for `fd`, which is not in them afterwards. */
static inline void select_with(int fd, int milliseconds, const qn_poller_sets *sets)
{
    struct timeval limit = { .tv_sec = milliseconds / 1000, .tv_usec = milliseconds % 1000 * 1000 };
    fd_set *read = sets->read, *write = sets->write;
    FD_SET(fd, read);
    if (select((fd > sets->highest ? fd : sets->highest) + 1, read, write, NULL, milliseconds < 0 ? NULL : &limit) <=
        0) {
        FD_ZERO(read);
        FD_ZERO(write);
    }
    FD_CLR(fd, read);
}

#endif
