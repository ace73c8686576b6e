/* Writes lines. One lock for all descriptors: one thread at a time checks and writes, so that the check stays valid. */
#include "base/write_line.h"

#include <poll.h>
#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

/* Whether a write of a line would not block: a pipe is ready when PIPE_BUF bytes fit. The caller holds the lock. */
static bool is_ready(int fd)
{
    struct pollfd p = { .fd = fd, .events = POLLOUT };
    return poll(&p, 1, 0) == 1 && p.revents & POLLOUT;
}

bool qn_write_line(int fd, const char *line, size_t length)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    const bool is_written = is_ready(fd) && write(fd, line, length) == (ssize_t)length;
    pthread_mutex_unlock(&lock);
    return is_written;
}
