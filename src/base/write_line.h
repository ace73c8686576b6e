/* Writes lines to a log or standard error, from threads that must not wait for its reader. */
#ifndef QN_BASE_WRITE_LINE_H
#define QN_BASE_WRITE_LINE_H

#include <stdbool.h>
#include <stddef.h>

/* qn_write_line - writes a line by one call of write, unless that would block, as with a full pipe. Returns false if
 * the line is lost.
 *
 *   line   [length], less than PIPE_BUF
 *
 * Threads: any. Another process that writes to the same pipe may still fill it between the check and the write. */
bool qn_write_line(int fd, const char *line, size_t length);

#endif
