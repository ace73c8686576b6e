/* Lines for whoever reads a log or standard error, written by threads that must not wait for the reader. */
#ifndef QN_BASE_WRITE_LINE_H
#define QN_BASE_WRITE_LINE_H

#include <stdbool.h>
#include <stddef.h>

/* qn_write_line - write a line by one call of write, unless that would wait, as at a pipe that is full. False: the line is lost.
 *
 *   line   [length], less than PIPE_BUF
 *
 * Threads: any. Another process that writes to the same pipe may fill it between the look and the call. */
bool qn_write_line(int fd, const char *line, size_t length);

#endif
